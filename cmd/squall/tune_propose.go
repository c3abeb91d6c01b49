package main

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// peopleMargin is how many times the busiest minute of people an agent's limit is set to: 111 gave 200.
const peopleMargin = 1.8

// leastThrottle is the lowest limit for an agent, requests a minute: below, a page with its pictures is a storm.
const leastThrottle = 60

// leastMargin is how far a limit must be over what is usual. Below, a threshold is raised.
const leastMargin = 1.5

// tunedSite is what is told of one site.
type tunedSite struct {
	Site      string          `json:"site"`
	Requests  uint64          `json:"requests"`
	Minutes   int             `json:"minutes"`                // with a request
	Hurt      int             `json:"hurt_minutes,omitempty"` // of them: nothing was learned from them, unless
	EverHurt  bool            `json:"ever_hurt,omitempty"`    // they are so many that they are how the site is
	Agents    tunedAgentsJSON `json:"agents"`
	Throttle  *throttle       `json:"throttle,omitempty"` // null: no limit tells people from scanners
	Usual     []usualRoute    `json:"usual"`
	Limits    []tunedLimit    `json:"thresholds"`
	BusyUsual float64         `json:"busy_workers_usual_most,omitempty"`
	Pool      int             `json:"pool_workers,omitempty"`
}

// tunedAgentsJSON is what is told of a site's agents.
type tunedAgentsJSON struct {
	Distinct    int          `json:"distinct"`
	Approximate bool         `json:"approximate,omitempty"`
	People      []agentCount `json:"people"`   // that may be people's: the busiest
	Scanners    []agentCount `json:"scanners"` // that were storms: the busiest
}

// agentCount is an agent and its busiest minute.
type agentCount struct {
	Agent     string  `json:"agent"`
	PerMinute uint64  `json:"requests_per_minute"`
	At        *string `json:"at,omitempty"`
}

// throttle is the limit for each agent.
type throttle struct {
	PerMinute     float64 `json:"requests_per_minute"`
	Margin        float64 `json:"margin"`                     // times the busiest minute of people
	PeopleMost    uint64  `json:"people_requests_per_minute"` // the busiest minute of one agent that may be people's
	ScannerMost   uint64  `json:"scanner_requests_per_minute,omitempty"`
	PeopleReached int     `json:"people_above"` // agents of people that would have been refused
}

// usualRoute is what is usual of a route.
type usualRoute struct {
	Method    string  `json:"method"`
	Route     string  `json:"route"`
	PerMinute float64 `json:"requests_per_minute"`
	Seconds   float64 `json:"worker_seconds_each,omitempty"`
}

// tunedLimit is a threshold: as it is, what is usual, and what is proposed.
type tunedLimit struct {
	Detector string  `json:"detector"`
	Setting  string  `json:"setting"`
	Now      float64 `json:"now"`
	Usual    float64 `json:"usual_most"`
	Proposed float64 `json:"proposed"`
	Why      string  `json:"why"`
}

// worthWriting tells whether the threshold belongs in the configuration: it is another, or was learned of this site.
func (l tunedLimit) worthWriting() bool { return l.Proposed != l.Now || l.Detector == "agent_flood" }

// What is told of each site at most.
const (
	toldAgents = 10
	toldRoutes = 10
)

// propose makes what is told of a site.
func propose(c *Config, s *siteHistory, usual detectors.Usual) (tunedSite, error) {
	ever := s.everHurt()
	out := tunedSite{
		Site: s.name, EverHurt: ever, Requests: s.requests, Minutes: s.minutes, Hurt: s.hurt, Usual: []usualRoute{},
		BusyUsual: s.usual(busyWorkersUsual), Pool: c.SiteDefaults.Pool.Workers,
	}
	for i := range c.Sites {
		if c.Sites[i].Name == s.name {
			out.Pool = c.Sites[i].Pool.Workers
		}
	}
	n, exact := s.distinctAgents()
	out.Agents = tunedAgentsJSON{Distinct: n, Approximate: !exact, People: []agentCount{}, Scanners: []agentCount{}}
	people, scanners := s.people(), s.scanners()
	for _, key := range people[:min(len(people), toldAgents)] {
		at := formatTime(s.agents[key].at)
		out.Agents.People = append(out.Agents.People, agentCount{alerts.Escape(key), s.agents[key].people, &at})
	}
	for _, key := range scanners[:min(len(scanners), toldAgents)] {
		out.Agents.Scanners = append(out.Agents.Scanners, agentCount{alerts.Escape(key), s.agents[key].scanner, nil})
	}
	out.throttle(s, people, scanners)
	for _, r := range usual.Routes {
		out.Usual = append(out.Usual, usualRoute{alerts.Escape(r.Method), alerts.Escape(r.Route), round3(r.PerMinute), round3(r.Seconds)})
	}
	for _, key := range []string{headsUsual, abandonedUsual, errorsUsual, p99Usual} {
		limit, err := raise(c, s, key)
		if err != nil {
			return out, err
		}
		out.Limits = append(out.Limits, limit)
	}
	now, err := setting(c, s.name, "agent_flood", "per_minute")
	if err != nil || out.Throttle == nil {
		return out, err
	}
	t := out.Throttle
	out.Limits = append([]tunedLimit{{
		"agent_flood", "per_minute", now, float64(t.PeopleMost), t.PerMinute,
		fmt.Sprintf("%s times the %d of the busiest agent that may be people's", alerts.Number(t.Margin), t.PeopleMost),
	}}, out.Limits...)
	return out, nil
}

// throttle sets the limit for each agent: over the busiest minute of people, below that of the scanners.
func (s *tunedSite) throttle(of *siteHistory, people, scanners []string) {
	if len(people) == 0 {
		return
	}
	x := &throttle{PeopleMost: of.agents[people[0]].people}
	x.PerMinute = max(roundUp(peopleMargin*float64(x.PeopleMost)), leastThrottle)
	if len(scanners) > 0 {
		x.ScannerMost = of.agents[scanners[0]].scanner
		if x.PerMinute >= float64(x.ScannerMost) {
			x.PerMinute = roundUp(leastMargin * float64(x.PeopleMost))
		}
		if x.PerMinute >= float64(x.ScannerMost) {
			return
		}
	}
	x.Margin = round3(x.PerMinute / float64(x.PeopleMost))
	for _, key := range people {
		if float64(of.agents[key].people) > x.PerMinute {
			x.PeopleReached++
		}
	}
	s.Throttle = x
}

// raise keeps a threshold, or raises it over what is usual.
func raise(c *Config, s *siteHistory, key string) (tunedLimit, error) {
	detector, name, _ := strings.Cut(key, ".")
	now, err := setting(c, s.name, detector, name)
	l := tunedLimit{Detector: detector, Setting: name, Now: now, Usual: round3(s.usual(key)), Proposed: now}
	switch {
	case err != nil:
	case l.Usual == 0:
		l.Why = "kept: in 999 of 1,000 minutes there was none"
	case now >= leastMargin*l.Usual:
		l.Why = fmt.Sprintf("kept: %s times what 999 of 1,000 minutes stay below", alerts.Number(now/l.Usual))
	default:
		l.Proposed = roundUp(peopleMargin * l.Usual)
		l.Why = fmt.Sprintf("raised: one minute in 1,000 has %s and more, and that is usual", alerts.Number(l.Usual))
	}
	return l, err
}

// setting reads a number of a detector's settings that are in effect for a site; times are in seconds.
func setting(c *Config, site, detector, name string) (float64, error) {
	kind := c.DetectorFor(site, detector)
	var settings any
	if _, err := detectors.New(detector, func(v any) error { settings = v; return kind.Decode(v) }); err != nil {
		return 0, err
	}
	v := reflect.ValueOf(settings).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("yaml") != name {
			continue
		}
		if d, ok := v.Field(i).Interface().(time.Duration); ok {
			return d.Seconds(), nil
		}
		return v.Field(i).Float(), nil
	}
	return 0, fmt.Errorf("detector %s has no setting %s", detector, name)
}

// roundUp gives the next number with two digits that are not 0.
func roundUp(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-1)
	return math.Round(math.Ceil(v/unit-1e-9)*unit*1e6) / 1e6
}

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }

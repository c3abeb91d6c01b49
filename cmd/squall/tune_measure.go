package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/enrich"
)

// Bounds of what a history is measured with.
const (
	tunedSites  = 64
	tunedAgents = 1 << 16 // of a site, with a peak of their own
	tunedDays   = 400     // of minutes
	undecided   = 15      // minutes that wait, since a storm is known only after it has begun
)

// history measures, minute by minute, what is usual of each site, from what the engine makes of its panes: which
// agents are those of scanners, and when clients were hurt, is what detectors and rules say.
type history struct {
	judge *judge
	sites map[string]*siteHistory
	left  int // sites over the limit
}

// siteHistory is what was measured of one site.
type siteHistory struct {
	name     string
	waiting  []*minuteOf // oldest first
	minutes  int         // with a request
	hurt     int         // of them: clients were
	requests uint64
	distinct pane.Distinct
	agents   map[string]*agentPeak
	folded   bool                 // not every agent has its own peak, or was told
	values   map[string][]float32 // of minutes in which nobody was hurt
	hurting  map[string][]float32 // of the others

	panes   []paneAgents // of the last minute
	running map[string]uint64
}

// paneAgents are the requests of the agents in one pane.
type paneAgents struct {
	start  int64 // ns
	agents []pane.Item
}

// agentPeak is the busiest minute of an agent.
type agentPeak struct {
	people, scanner uint64 // requests a minute: outside of storms, and as a storm
	hurting         uint64 // outside of storms, while clients were hurt
	at, hurtingAt   int64  // ns: the minutes of people's
}

// minuteOf is one minute of a site before it is known what it was.
type minuteOf struct {
	start    int64             // ns
	agents   map[string]uint64 // the most in a minute that ends within it
	heads    map[string]uint64 // by route
	storms   map[string]bool   // agents that were a storm in it
	hurt     bool
	requests uint64
	values   map[string]float64
}

func newHistory(j *judge) *history { return &history{judge: j, sites: map[string]*siteHistory{}} }

// observe takes the result of one pane.
func (h *history) observe(res *detectors.Result, _ []alerts.Alert) {
	start := res.Pane.Start - res.Pane.Start%int64(time.Minute)
	for _, name := range res.Pane.SiteNames() {
		if s := h.site(name); s != nil {
			s.minute(start).add(s, res.Pane.Start, res.Pane.Sites[name])
		}
	}
	for _, b := range res.Busy {
		if s := h.sites[b.Site]; s != nil && len(s.waiting) > 0 {
			m := s.waiting[len(s.waiting)-1]
			m.values[busyWorkersUsual] = max(m.values[busyWorkersUsual], b.Upper)
		}
	}
	for i := range res.Detections {
		h.storm(&res.Detections[i])
	}
	for _, a := range h.judge.manager.Active() {
		if s := h.sites[a.Labels.Get("site")]; s != nil && a.Severity == alerts.Page {
			for _, m := range s.since(a.StartsAt) {
				m.hurt = true
			}
		}
	}
	for _, s := range h.sites {
		s.decide(start - undecided*int64(time.Minute))
	}
}

// storm marks the minutes in which an agent is one.
func (h *history) storm(d *detectors.Detection) {
	s := h.sites[d.Labels.Get("site")]
	if s == nil || d.Detector != "agent_flood" && d.Detector != "head_storm" || len(d.Evidence.TopAgents) == 0 {
		return
	}
	top := d.Evidence.TopAgents[0]
	if all := d.Evidence.Requests; all.Known() && top.Count < all.Get()/2 {
		return // it rotates its agents: none of them is it
	}
	for _, m := range s.since(d.Onset) {
		m.storms[top.Key] = true
	}
}

func (h *history) site(name string) *siteHistory {
	s := h.sites[name]
	if s == nil && name != pane.Other {
		if len(h.sites) >= tunedSites {
			h.left++
			return nil
		}
		s = &siteHistory{name: name, agents: map[string]*agentPeak{}, values: map[string][]float32{}, hurting: map[string][]float32{}, running: map[string]uint64{}}
		h.sites[name] = s
	}
	return s
}

// end decides what still waits.
func (h *history) end() []*siteHistory {
	var all []*siteHistory
	for _, name := range slices.Sorted(maps.Keys(h.sites)) {
		s := h.sites[name]
		s.decide(1 << 62)
		all = append(all, s)
	}
	slices.SortStableFunc(all, func(a, b *siteHistory) int { return cmp.Compare(b.requests, a.requests) })
	return all
}

// minute gives the minute that a pane falls into.
func (s *siteHistory) minute(start int64) *minuteOf {
	if n := len(s.waiting); n > 0 && s.waiting[n-1].start == start {
		return s.waiting[n-1]
	}
	m := &minuteOf{start: start, agents: map[string]uint64{}, heads: map[string]uint64{}, storms: map[string]bool{}, values: map[string]float64{}}
	s.waiting = append(s.waiting, m)
	return m
}

// since gives the minutes that wait and end after a time, and the one before.
func (s *siteHistory) since(at int64) []*minuteOf {
	i := slices.IndexFunc(s.waiting, func(m *minuteOf) bool { return m.start+2*int64(time.Minute) > at })
	if i < 0 {
		return nil
	}
	return s.waiting[i:]
}

// What is measured of a minute, by the detector's setting that it belongs to.
const (
	headsUsual       = "head_storm.per_minute"
	abandonedUsual   = "client_abandon.per_minute"
	errorsUsual      = "error_burst.per_minute"
	p99Usual         = "latency.p99"
	busyWorkersUsual = "saturation"
)

// add counts a pane in the minute.
func (m *minuteOf) add(s *siteHistory, start int64, of *pane.Site) {
	for _, a := range s.slide(start, of.Agents) {
		m.agents[a.Key] = max(m.agents[a.Key], s.running[a.Key])
	}
	var latency pane.Quantiles
	for k, c := range of.All() {
		if k.Probe {
			continue
		}
		m.requests += c.Requests
		if k.Method == "HEAD" {
			m.heads[k.Route] += c.Requests
		}
		m.values[abandonedUsual] += float64(c.Abandoned)
		m.values[errorsUsual] += float64(c.Codes.Class(5))
		latency.Merge(&c.Latency)
		s.distinct.Merge(&c.Agents)
	}
	if p99, ok := latency.Quantile(0.99); ok {
		m.values[p99Usual] = max(m.values[p99Usual], p99)
	}
	for _, n := range m.heads {
		m.values[headsUsual] = max(m.values[headsUsual], float64(n))
	}
}

// slide moves the minute over which agents are counted on to a pane, and gives the pane's agents.
func (s *siteHistory) slide(start int64, top *pane.Top) []pane.Item {
	for len(s.panes) > 0 && s.panes[0].start <= start-int64(time.Minute) {
		for _, a := range s.panes[0].agents {
			if s.running[a.Key] -= a.Count - a.Error; s.running[a.Key] == 0 {
				delete(s.running, a.Key)
			}
		}
		s.panes = s.panes[1:]
	}
	items, told := top.Items(), uint64(0)
	for _, a := range items {
		s.running[a.Key] += a.Count - a.Error
		told += a.Count
	}
	s.folded = s.folded || told < top.Total()
	s.panes = append(s.panes, paneAgents{start, items})
	return items
}

// decide takes up the minutes that began before a time.
func (s *siteHistory) decide(before int64) {
	n := 0
	for ; n < len(s.waiting) && s.waiting[n].start < before; n++ {
		s.take(s.waiting[n])
	}
	s.waiting = slices.Delete(s.waiting, 0, n)
}

func (s *siteHistory) take(m *minuteOf) {
	if m.requests == 0 {
		return
	}
	s.minutes++
	s.requests += m.requests
	if m.hurt {
		s.hurt++
	}
	for _, key := range slices.Sorted(maps.Keys(m.agents)) {
		a := s.agent(key)
		switch n := m.agents[key]; {
		case a == nil:
		case m.storms[key]:
			a.scanner = max(a.scanner, n)
		case m.hurt && n > a.hurting:
			a.hurting, a.hurtingAt = n, m.start
		case !m.hurt && n > a.people:
			a.people, a.at = n, m.start
		}
	}
	to := s.values
	if m.hurt {
		to = s.hurting
	}
	if s.minutes > tunedDays*24*60 {
		return
	}
	for key, v := range m.values {
		to[key] = append(to[key], float32(v))
	}
}

// hurtShare of the minutes with a page is no incident any more: it is how the site is, or the thresholds are too low.
const hurtShare = 0.1

// everHurt takes what was measured while clients were hurt for usual, where they are all the time.
func (s *siteHistory) everHurt() bool {
	if float64(s.hurt) <= hurtShare*float64(s.minutes) {
		return false
	}
	for key, list := range s.hurting {
		s.values[key] = append(s.values[key], list...)
	}
	s.hurting = nil
	for _, a := range s.agents {
		if a.hurting > a.people {
			a.people, a.at = a.hurting, a.hurtingAt
		}
	}
	return true
}

// agent gives an agent's peak. Over the limit the quiet half is forgotten.
func (s *siteHistory) agent(key string) *agentPeak {
	a := s.agents[key]
	if a != nil {
		return a
	}
	if len(s.agents) >= tunedAgents {
		s.folded = true
		for _, x := range s.sorted((*agentPeak).most)[tunedAgents/2:] {
			delete(s.agents, x)
		}
	}
	a = &agentPeak{}
	s.agents[key] = a
	return a
}

func (a *agentPeak) most() uint64 { return max(a.people, a.scanner, a.hurting) }

// sorted lists the agents by a value, highest first.
func (s *siteHistory) sorted(value func(*agentPeak) uint64) []string {
	return slices.SortedFunc(maps.Keys(s.agents), func(a, b string) int {
		return cmp.Or(cmp.Compare(value(s.agents[b]), value(s.agents[a])), strings.Compare(a, b))
	})
}

// distinctAgents tells how many there are.
func (s *siteHistory) distinctAgents() (n int, exact bool) {
	if !s.folded {
		return len(s.agents), true
	}
	estimate, exact := s.distinct.Count()
	return int(estimate + 0.5), exact
}

// people lists the agents that may be people's, by their busiest minutes: no bot that says so, none without a name.
func (s *siteHistory) people() []string {
	return slices.DeleteFunc(s.sorted(func(a *agentPeak) uint64 { return a.people }), func(key string) bool {
		class := enrich.ClassOf(key)
		return s.agents[key].people == 0 || class != pipeline.Browser && class != pipeline.OtherAgent
	})
}

// scanners lists the agents that were storms.
func (s *siteHistory) scanners() []string {
	return slices.DeleteFunc(s.sorted(func(a *agentPeak) uint64 { return a.scanner }), func(key string) bool { return s.agents[key].scanner == 0 })
}

// usualShare of the minutes in which nobody was hurt stay below what is called usual: a storm of an hour in a month does
// not count, and what happens each night does.
const usualShare = 0.999

// usual is the most that is usual of a value in a minute.
func (s *siteHistory) usual(key string) float64 {
	list := slices.Sorted(slices.Values(s.values[key]))
	if len(list) == 0 {
		return 0
	}
	return float64(list[int(usualShare*float64(len(list)-1))])
}

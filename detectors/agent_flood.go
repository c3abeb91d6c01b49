package detectors

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// agentFlood watches the busiest User-Agent of a site. Scanners spoof one browser's agent and send more under it
// than all the people who really use it: more than the site has learned that people plausibly make, and a larger
// share of its traffic (a flash sale raises every agent alike). It is silent until it has learned.
type agentFlood struct {
	PerMinute float64       `yaml:"per_minute"` // requests of one agent
	Margin    float64       `yaml:"margin"`     // times the most that was learned, of the rate and of the share
	Window    time.Duration `yaml:"window"`
}

func newAgentFlood(decode func(any) error) (Detector, error) {
	d := &agentFlood{PerMinute: 200, Margin: 1.8, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("per_minute", d.PerMinute), positive("margin", d.Margin))
}

func (d *agentFlood) Span() time.Duration { return d.Window }

func (d *agentFlood) Scope() Scope { return PerSite }

// agentMinutes is how much quiet time must have been learned from.
const agentMinutes = 5

func (d *agentFlood) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		s, usual := w.View.Sites[name], w.Agents(name)
		if s == nil || usual.Minutes < agentMinutes {
			continue
		}
		threshold := max(d.PerMinute, d.Margin*usual.PerMinute)
		if level(float64(s.Agents.AtMost())/w.Minutes(), threshold, leave) == Below {
			continue // as nearly always: nothing has to be ranked
		}
		top, ok := busiestAgent(s)
		if !ok {
			continue
		}
		perMinute := float64(top.Count) / w.Minutes()
		share := float64(top.Count) / float64(s.Agents.Total())
		// A share has an end: where one agent makes most of the quiet traffic already, nine tenths are a flood.
		lvl := min(level(perMinute, threshold, leave), level(share, min(d.Margin*usual.Share, 0.9), leave))
		if lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: perMinute, Threshold: threshold, Evidence: d.Evidence(w, labels)})
	}
	return found
}

// busiestAgent is the agent with the most requests. No agent at all is none: see self_loop.
func busiestAgent(s *pane.Site) (pane.Item, bool) {
	for _, a := range s.Agents.Heaviest(3) {
		if a.Key != "" && a.Key != "-" {
			return a, true
		}
	}
	return pane.Item{}, false
}

// agentAlone is the share of a cell's requests from which its addresses are the agent's.
const agentAlone = 0.95

// Evidence is that of the routes on which the agent is the busiest: the sketches do not tell more apart.
func (d *agentFlood) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	s := w.View.Sites[site]
	if s == nil {
		return Evidence{}
	}
	top, ok := busiestAgent(s)
	if !ok {
		return Evidence{}
	}
	own := func(k pane.Key) bool {
		if !isClient(k) || s.Cells()[k] == nil {
			return false
		}
		first := s.Cells()[k].TopAgents.Heaviest(1)
		return len(first) > 0 && first[0].Key == top.Key
	}
	e := w.explain(site, own)
	var sent, bots float64
	for k, c := range w.cells(site) {
		if own(k) {
			it, _ := c.TopAgents.Get(top.Key)
			n := float64(it.Count - it.Error)
			sent, bots = sent+n, bots+min(n, float64(c.Classes[pipeline.Bot]))
		}
	}
	if sent < agentAlone*e.Requests.Get() { // these would be people's addresses too
		e.DistinctClients, e.RequestsPerClientPerMinute = Num{}, Num{}
	}
	e.BotShare = N(bots / sent)
	e.BaselinePerMinute = N(w.Agents(site).PerMinute)
	e.Requests, e.RequestsPerMinute = N(float64(top.Count)), N(float64(top.Count)/w.Minutes())
	if len(e.TopRoutes) > 0 {
		e.Method, e.Route, _ = strings.Cut(e.TopRoutes[0].Key, " ")
	}
	flood := w.storm(site, ofAgent(top.Key))
	flood.agent = top.Key
	flood.discriminate(&e)
	flood.cover(w.Controls(site), &e)
	return e
}

func (d *agentFlood) Touch(w *Window) string {
	if _, _, ok := w.only(isClient); !ok {
		return ""
	}
	return fmt.Sprintf("one of its agent: fires at %g a minute and %g times what one agent is known to make", d.PerMinute, d.Margin)
}

// Help tells of the detector.
func (*agentFlood) Help() Help {
	return Help{
		Watches:  "The busiest User-Agent of a site: a scanner sends more under one spoofed agent than all people who really use it.",
		Formula:  "requests a minute of one agent >= max(`per_minute`, `margin` × the most that one agent made in a quiet minute) and its share >= min(`margin` × the largest usual share, 90 %), over the `window`; silent for the first five quiet minutes",
		Evidence: []string{"requests_per_minute", "baseline_per_minute", "top_agents", "distinct_clients", "requests_per_client_per_minute", "bot_share", "worker_seconds_share"},
		FalsePositives: []string{
			"an app release or a campaign in one app, whose users share an agent",
			"a crawl that you started: see top_agents",
		},
		Runbook: []string{
			"look at the agent and, where the panes know its addresses, at requests_per_client_per_minute: people ask for assets too",
			"bot_share: a search bot is slowed by robots.txt or its operator's console, not by 429",
			"throttle by agent, with 429 and Retry-After, only as long as the agent does not rotate",
			"squall replay --detections PATH...   # when it began and ended, and what else was on",
		},
	}
}

package detectors

import (
	"errors"
	"fmt"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// selfLoop watches requests that a site's own hosts make to it over its balancer: a view that fetches its own
// style sheet by URL turns each render into several requests out and back, all from one address, which the
// site's own limiter then refuses. The client is ours: nothing here may lead to blocking it.
type selfLoop struct {
	PerMinute float64       `yaml:"per_minute"`
	Window    time.Duration `yaml:"window"`
}

func newSelfLoop(decode func(any) error) (Detector, error) {
	d := &selfLoop{PerMinute: 20, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("per_minute", d.PerMinute))
}

func (d *selfLoop) Span() time.Duration { return d.Window }

func (d *selfLoop) Scope() Scope { return PerSite }

func isOwn(k pane.Key) bool { return k.Origin == pipeline.Own && !k.Probe }

func (d *selfLoop) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		t := w.totals(name)
		if t == nil {
			continue
		}
		perMinute := float64(t.Own) / w.Minutes()
		lvl := level(perMinute, d.PerMinute, leave)
		if lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: perMinute, Threshold: d.PerMinute, Evidence: d.Evidence(w, labels)})
	}
	return found
}

func (d *selfLoop) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	e := w.explain(site, isOwn)
	var renders, static, requests, browsers uint64
	for k, c := range w.cells(site) {
		switch {
		case isOwn(k):
			requests, static, browsers = requests+c.Requests, static+c.Static, browsers+c.Classes[pipeline.Browser]
		case isClient(k) && k.Method == "GET":
			renders += c.Requests - c.Static
		}
	}
	if requests > 0 {
		e.StaticShare = N(float64(static) / float64(requests))
		e.BrowserShare = N(float64(browsers) / float64(requests))
	}
	if renders > 0 {
		e.FanOut = N(float64(requests) / float64(renders))
	}
	if top, ok := busiest(w.perRoute(site, isOwn)); ok {
		e.Method, e.Route = top.key.Method, top.key.Route
	}
	return e
}

func (d *selfLoop) Touch(w *Window) string {
	if _, _, ok := w.only(isOwn); !ok {
		return ""
	}
	return fmt.Sprintf("a request from one of the site's own hosts: fires at %g a minute", d.PerMinute)
}

// Help tells of the detector.
func (*selfLoop) Help() Help {
	return Help{
		Watches:  "Requests that the site's own hosts make to it over its balancer: a view that fetches its own parts by URL.",
		Formula:  "requests a minute from own addresses (interfaces, own.addresses) >= `per_minute` over the `window`; health checks left out",
		Evidence: []string{"requests_per_minute", "static_share", "fan_out", "limited", "route", "top_agents", "distinct_agents", "browser_share"},
		FalsePositives: []string{
			"cron jobs and internal API calls over the public name: the same fault, seldom as urgent",
			"people behind your own NAT: many agents of browsers (distinct_agents, browser_share)",
			"own.addresses that hold an office's address: it belongs into allowed",
		},
		Runbook: []string{
			"never block these addresses: they are yours",
			"grep -rnE \"file_get_contents\\(.*(asset|url|route)\\(\" app resources",
			"fan_out: how many such requests each page makes; limited: what the site's own limiter refused",
		},
	}
}

package detectors

import (
	"errors"
	"fmt"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// errorBurst watches answers of 5xx. A limiter's 503 is a refusal and no failure, and does not count. Beside it
// stands what limiters did to the site's own requests at the same time: a page that fetches its own parts fails
// when they are refused.
type errorBurst struct {
	PerMinute float64       `yaml:"per_minute"` // answers of 5xx a minute
	Ratio     float64       `yaml:"ratio"`      // of all requests, 0–1
	Window    time.Duration `yaml:"window"`
}

func newErrorBurst(decode func(any) error) (Detector, error) {
	d := &errorBurst{PerMinute: 20, Ratio: 0.05, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("per_minute", d.PerMinute), share("ratio", d.Ratio))
}

func (d *errorBurst) Span() time.Duration { return d.Window }

func (d *errorBurst) Scope() Scope { return PerSite }

// failed is how many answers of 5xx a cell has that no limiter gave.
func failed(c *pane.Cell) uint64 { return c.Codes.Class(5) - min(c.Codes.Class(5), c.Refused.Errors) }

// errorShare adds up a site's requests and failures.
func errorShare(w *Window, site string) (requests, errors5xx uint64) {
	for k, c := range w.cells(site) {
		if isClient(k) {
			requests, errors5xx = requests+c.Requests, errors5xx+failed(c)
		}
	}
	return requests, errors5xx
}

func (d *errorBurst) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		t := w.totals(name)
		if t == nil {
			continue
		}
		judged := func(n uint64) (perMinute float64, lvl Level) {
			perMinute = float64(n) / w.Minutes()
			return perMinute, min(level(perMinute, d.PerMinute, leave), level(float64(n)/float64(t.Clients.Requests), d.Ratio, leave))
		}
		if _, lvl := judged(t.Clients.Errors5xx); lvl == Below { // not with a limiter's either
			continue
		}
		_, n := errorShare(w, name)
		perMinute, lvl := judged(n)
		if n == 0 || lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: perMinute, Threshold: d.PerMinute, Evidence: d.Evidence(w, labels)})
	}
	return found
}

func (d *errorBurst) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	e := w.explain(site, isClient)
	var worst pane.Key
	var most uint64
	for k, c := range w.cells(site) {
		if n := failed(c); isClient(k) && (n > most || n == most && n > 0 && lessKey(k, worst)) {
			worst, most = k, n
		}
	}
	e.Method, e.Route = worst.Method, worst.Route
	e.TopRoutes = w.topRoutes(site, isClient, func(c *pane.Cell) float64 { return float64(failed(c)) })
	requests, n := errorShare(w, site)
	e.Errors5xx = N(float64(n))
	e.ErrorRatio = N(float64(n) / float64(requests))
	r := w.refusals(site)
	e.LimitedOwn, e.LimitedAllowed = N(float64(r.own)), N(float64(r.allowed))
	return e
}

func (d *errorBurst) Touch(w *Window) string {
	_, c, ok := w.only(isClient)
	if !ok || failed(c) == 0 {
		return ""
	}
	return fmt.Sprintf("an answer of 5xx: fires at %g a minute and %g %% of the requests", d.PerMinute, d.Ratio*100)
}

// Help tells of the detector.
func (*errorBurst) Help() Help {
	return Help{
		Watches:  "Answers of 5xx that no limiter gave.",
		Formula:  "answers of 5xx a minute >= `per_minute` and their share of all >= `ratio` over the `window`; health checks left out",
		Evidence: []string{"errors_5xx", "error_ratio", "status", "route", "top_routes", "limited_own", "limited_allowed", "reached_upstream_ratio"},
		FalsePositives: []string{
			"a broken page that one crawler asks for again and again: see top_agents",
			"a deploy that answers 502 for seconds",
		},
		Runbook: []string{
			"status: 502 and 504 are the origin's absence, 500 is the application's own",
			"limited_own above 0 at the same time: pages fail since their own requests are refused",
			"squall replay --detections PATH...   # when it began and ended, and what else was on",
		},
	}
}

package detectors

import (
	"errors"
	"fmt"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// clientAbandon watches the clients that gave up before the answer: 460, 499 and their kin. When a pool is
// pinned it is the only trace, since nothing answers 5xx and every health check is green.
type clientAbandon struct {
	PerMinute float64       `yaml:"per_minute"` // abandoned requests a minute
	Ratio     float64       `yaml:"ratio"`      // of all requests, 0–1
	Window    time.Duration `yaml:"window"`
}

func newClientAbandon(decode func(any) error) (Detector, error) {
	d := &clientAbandon{PerMinute: 20, Ratio: 0.05, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("per_minute", d.PerMinute), share("ratio", d.Ratio))
}

func (d *clientAbandon) Span() time.Duration { return d.Window }

func (d *clientAbandon) Scope() Scope { return PerSite }

func isClient(k pane.Key) bool { return !k.Probe }

func (d *clientAbandon) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		t := w.totals(name)
		if t == nil || t.Clients.Abandoned == 0 {
			continue
		}
		perMinute := float64(t.Clients.Abandoned) / w.Minutes()
		ratio := float64(t.Clients.Abandoned) / float64(t.Clients.Requests)
		lvl := min(level(perMinute, d.PerMinute, leave), level(ratio, d.Ratio, leave))
		if lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: perMinute, Threshold: d.PerMinute, Evidence: d.Evidence(w, labels)})
	}
	return found
}

func (d *clientAbandon) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	e := w.explain(site, isClient)
	// The route that lost most clients is the storm's own or the worst victim; the others are collateral: a
	// pinned pool does not choose.
	var worst pane.Key
	var most, all uint64
	for k, c := range w.cells(site) {
		all += c.Abandoned
		if c.Abandoned > most || c.Abandoned == most && most > 0 && lessKey(k, worst) {
			worst, most = k, c.Abandoned
		}
	}
	e.Method, e.Route = worst.Method, worst.Route
	e.Collateral = N(float64(all - most))
	e.AbandonedLately = d.lately(w, site)
	e.TopRoutes = w.topRoutes(site, isClient, func(c *pane.Cell) float64 { return float64(c.Abandoned) })
	return e
}

// lately tells how many a minute gave up in the last third of the window: whether it goes on, of which the whole window
// says so for a minute after it has ended.
func (d *clientAbandon) lately(w *Window, site string) Num {
	if w.Newest == nil {
		return Num{}
	}
	newest := *w
	newest.View = w.Newest(d.Window / 3)
	abandoned := uint64(0)
	for k, c := range newest.cells(site) {
		if isClient(k) {
			abandoned += c.Abandoned
		}
	}
	return N(float64(abandoned) / newest.Minutes())
}

func (d *clientAbandon) Touch(w *Window) string {
	_, c, ok := w.only(isClient)
	if !ok {
		return ""
	}
	did := "a client that stayed"
	if c.Abandoned > 0 {
		did = "a client that gave up"
	}
	return fmt.Sprintf("%s: fires when %g a minute and %g %% of the requests are given up", did, d.PerMinute, d.Ratio*100)
}

// Help tells of the detector.
func (*clientAbandon) Help() Help {
	return Help{
		Watches:  "Clients that gave up before the answer was complete: 460, 499 and their kin. With a pinned pool it is the only trace.",
		Formula:  "requests given up a minute >= `per_minute` and their share of all >= `ratio` over the `window`; health checks left out",
		Evidence: []string{"abandoned", "abandoned_lately", "abandon_ratio", "collateral", "route", "status", "p99_seconds", "p99_censored", "worker_seconds_upper"},
		FalsePositives: []string{
			"mobile networks that drop for a moment: alone it is recorded and pages nobody",
			"pages that visitors leave early on purpose (autocomplete that cancels its own requests)",
		},
		Runbook: []string{
			"collateral: how many of them were not on the worst route; a pinned pool does not choose",
			"saturation at the same time: the pool was full; latency alone: a dependency is slow",
			"squall replay --detections PATH...   # when it began and ended, and what else was on",
		},
	}
}

package detectors

import (
	"errors"
	"fmt"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// latency watches the 99th percentile of the request time of a site. Clients that gave up cut it off: when more
// than 1 % did, the true value is at least the one shown (right-censored).
type latency struct {
	P99      time.Duration `yaml:"p99"`
	Requests int           `yaml:"requests"` // fewer timed requests in the window prove nothing
	Window   time.Duration `yaml:"window"`
}

func newLatency(decode func(any) error) (Detector, error) {
	d := &latency{P99: 5 * time.Second, Requests: 20, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("p99", d.P99.Seconds()), positive("requests", float64(d.Requests)))
}

func (d *latency) Span() time.Duration { return d.Window }

func (d *latency) Scope() Scope { return PerSite }

// latencyLeave is higher than leave: a p99 that came down by a fifth and stays there is still bad, but the queue
// behind a storm drains through every value.
const latencyLeave = 0.8

func (d *latency) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		t := w.totals(name)
		if t == nil || t.Clients.Requests < uint64(d.Requests) {
			continue
		}
		times := t.Clients.Latency()
		if times.Count() < uint64(d.Requests) {
			continue
		}
		p99, ok := times.Quantile(0.99)
		if !ok {
			continue
		}
		lvl := level(p99, d.P99.Seconds(), latencyLeave)
		if lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: p99, Threshold: d.P99.Seconds(), Evidence: d.Evidence(w, labels)})
	}
	return found
}

func (d *latency) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	e := w.explain(site, isClient)
	e.TopRoutes = w.topRoutes(site, isClient, func(c *pane.Cell) float64 { return seconds(c.Busy.Lower) })
	if len(e.TopRoutes) > 0 {
		e.Route = e.TopRoutes[0].Key
	}
	e.Costs = w.costs(site)
	return e
}

func (d *latency) Touch(w *Window) string {
	_, c, ok := w.only(isClient)
	if !ok {
		return ""
	}
	took, timed := c.Latency.Quantile(1)
	if !timed {
		return "the line tells no request time that counts as latency"
	}
	return fmt.Sprintf("took %.3f s: fires when the 99th percentile of a minute is %s or more, of at least %d requests",
		took, d.P99, d.Requests)
}

// Help tells of the detector.
func (*latency) Help() Help {
	return Help{
		Watches:  "The 99th percentile of the request time of a site. Where over 1 % of the clients gave up it is a lower bound.",
		Formula:  "p99 >= `p99` with at least `requests` timed requests in the `window`; 101 and other streams and health checks left out",
		Evidence: []string{"p99_seconds", "p99_censored", "top_routes", "worker_seconds_lower", "worker_seconds_upper", "abandon_ratio"},
		FalsePositives: []string{
			"a nightly job, an export or an upload that takes long by design",
			"slow clients, where the log has only the whole request time",
		},
		Runbook: []string{
			"top_routes: which routes hold the seconds",
			"p99_censored: the number is the patience of the clients, not the time of the origin",
			"php-fpm: request_slowlog_timeout = 3s shows where it waits",
			"squall replay --detections PATH...   # when it began and ended, and what else was on",
		},
	}
}

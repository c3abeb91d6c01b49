package detectors

import (
	"errors"
	"fmt"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// saturation watches how many workers of the origin are busy. By Little's law the mean number in the system is
// the worker time that falls into a window divided by its length; the pool's size is configured, or told by php-fpm. Autoscalers
// that count requests do not see it: ten requests a second of four seconds each pin forty workers. The number
// is an interval, since the log of a client that gave up hides how long its worker went on; only its lower bound
// fires: a few clients that leave a well-served site (a mobile network's hiccup) raise the upper one alone.
type saturation struct {
	Ratio  float64       `yaml:"ratio"` // busy workers over the pool's
	Window time.Duration `yaml:"window"`
}

func newSaturation(decode func(any) error) (Detector, error) {
	d := &saturation{Ratio: 0.8, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("ratio", d.Ratio))
}

func (d *saturation) Span() time.Duration { return d.Window }

func (d *saturation) Scope() Scope { return PerSite }

func (d *saturation) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		pool := w.Pool(name)
		if pool.Workers <= 0 {
			continue
		}
		t := w.totals(name)
		if t == nil {
			continue
		}
		lower, _ := w.busyClients(t)
		ratio := lower / float64(pool.Workers)
		lvl := level(ratio, d.Ratio, latencyLeave)
		if lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: ratio, Threshold: d.Ratio, Evidence: d.Evidence(w, labels)})
	}
	return found
}

func (d *saturation) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	e := w.explain(site, isClient)
	e.TopRoutes = w.topRoutes(site, isClient, func(c *pane.Cell) float64 { return seconds(c.Busy.Upper) })
	e.RepeatFactor = Num{} // of all requests together it says nothing
	// The class that cost most, and what the pool would have done without it.
	if top, ok := w.costliest(site); ok {
		match := func(k pane.Key) bool { return k == top }
		if rows := w.rows(site); len(rows) > 0 && len(rows[0].keys) > 1 {
			top, match = rows[0].key, func(k pane.Key) bool { return rows[0].keys[k] }
		}
		own := w.explain(site, match)
		e.Method, e.Route = top.Method, top.Route
		e.WorkerSecondsShare, e.CounterfactualBusyWorkers, e.RepeatFactor = own.WorkerSecondsShare, own.CounterfactualBusyWorkers, own.RepeatFactor
		e.TopRoutes = ranking(w.rows(site), e.TopRoutes)
	}
	e.Costs = w.costs(site)
	return e
}

func (d *saturation) Touch(w *Window) string {
	_, c, ok := w.only(isClient)
	if !ok {
		return ""
	}
	if c.Busy.Untimed > 0 {
		return "the line does not tell how long the origin worked"
	}
	pool := "the pool's size is not configured, so it stays silent"
	if n := w.Pool(w.Sites[0]).Workers; n > 0 {
		pool = fmt.Sprintf("fires when %.0f %% of %d workers are busy", d.Ratio*100, n)
	}
	return fmt.Sprintf("held a worker for %.3f to %.3f s: %s", seconds(c.Busy.Lower), seconds(c.Busy.Upper), pool)
}

// Help tells of the detector.
func (*saturation) Help() Help {
	return Help{
		Watches:  "How many workers of the origin are busy, by Little's law: the worker time that falls into the window divided by its length.",
		Formula:  "busy workers (lower bound) / the configured pool >= `ratio` over the `window`; silent where pool.workers is not set, unless there is one site alone and php-fpm's log tells the size of its one pool (pm.max_children)",
		Evidence: []string{"busy_workers_lower", "busy_workers_upper", "pool_workers", "top_routes", "worker_seconds_share", "counterfactual_busy_workers", "repeat_factor", "costs"},
		FalsePositives: []string{
			"pool.workers smaller than what really runs",
			"a log without the upstream's times: the request time of slow clients counts as work",
		},
		Runbook: []string{
			"counterfactual_busy_workers: would the pool have been calm without the costliest class",
			"costs: a class with a repeat_factor of 3 or more can be cached",
			"scale on squall_origin_busy_workers, not on the number of requests",
			"curl -s localhost/fpm-status   # active processes, listen queue",
		},
	}
}

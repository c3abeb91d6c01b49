package detectors

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// workerTimeout watches php-fpm: requests that it killed since they ran too long, and pools with all their children
// busy. When kills come in a steady rhythm, the rhythm is that of who asks: a probe.
type workerTimeout struct {
	Count  int           `yaml:"count"` // kills and full pools in the window
	Window time.Duration `yaml:"window"`
}

func newWorkerTimeout(decode func(any) error) (Detector, error) {
	d := &workerTimeout{Count: 3, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("count", float64(d.Count)))
}

func (d *workerTimeout) Span() time.Duration { return d.Window }

func (d *workerTimeout) Scope() Scope { return Cluster }

func isWorkerEvent(e *pipeline.Event) bool {
	return e.Kind == pipeline.PHPTimeout || e.Kind == pipeline.PHPMaxChildren
}

func workerEvents(events []pipeline.Event) (n int) {
	for i := range events {
		if isWorkerEvent(&events[i]) {
			n++
		}
	}
	return n
}

func (d *workerTimeout) Detect(w *Window) []Finding {
	n := w.of(d.Window, float64(workerEvents(w.View.Events)))
	lvl := level(n, float64(d.Count), leave)
	if lvl == Below {
		return nil
	}
	labels := Labels{{"cluster", w.Cluster}}
	return []Finding{{Labels: labels, Level: lvl, Value: n, Threshold: float64(d.Count), Evidence: d.Evidence(w, labels)}}
}

func (d *workerTimeout) Evidence(w *Window, _ Labels) Evidence {
	var timeouts, full, children float64
	requests := map[string]float64{}
	nodes, pods := map[string]bool{}, map[string]bool{}
	var e Evidence
	for i := range w.View.Events {
		x := &w.View.Events[i]
		if !isWorkerEvent(x) {
			continue
		}
		if x.Kind == pipeline.PHPTimeout {
			timeouts++
			if request := cmp.Or(x.Request, x.Script); request != "" {
				requests[request]++
			}
		} else {
			full++
			children = max(children, float64(x.Limit))
		}
		if x.Node != "" {
			nodes[x.Node] = true
		}
		if x.Pod != "" {
			pods[x.Namespace+"/"+x.Pod] = true
		}
		if len(e.Samples) < 3 {
			e.Samples = append(e.Samples, time.Unix(0, x.Time).UTC().Format(time.RFC3339)+" "+x.Message)
		}
	}
	e.PHPTimeouts, e.MaxChildrenReached = N(timeouts), N(full)
	if children > 0 {
		e.MaxChildren = N(children)
	}
	if len(nodes) > 0 {
		e.Nodes = N(float64(len(nodes)))
	}
	if len(pods) > 0 {
		e.Containers = N(float64(len(pods)))
	}
	e.StallSeconds = longestKill(w.View.Events)
	e.TopRoutes = rankRequests(requests)
	if period, ok := rhythm(w.View.Events); ok {
		e.PeriodSeconds = N(period)
		if probe, its, ok := probeOfPeriod(w.View.Events, period); ok {
			e.Probe, e.ProbePeriodSeconds = probe, N(its)
		}
	}
	return e
}

// rankRequests lists what php-fpm killed most.
func rankRequests(requests map[string]float64) []Count {
	var ranked []Count
	for request, n := range requests {
		ranked = append(ranked, Count{Key: request, Count: n})
	}
	slices.SortFunc(ranked, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Key, b.Key))
	})
	return ranked[:min(len(ranked), topRoutes)]
}

// longestKill is how long the longest request had run that php-fpm killed.
func longestKill(events []pipeline.Event) (longest Num) {
	for i := range events {
		e := &events[i]
		if e.Kind == pipeline.PHPTimeout && e.Seconds > 0 && (!longest.Known() || e.Seconds > longest.Get()) {
			longest = N(e.Seconds)
		}
	}
	return longest
}

func (d *workerTimeout) Touch(w *Window) string {
	if workerEvents(w.View.Events) == 0 {
		return ""
	}
	return fmt.Sprintf("php-fpm killed a request or has no idle child: fires at %d within %s", d.Count, d.Window)
}

// Help tells of the detector.
func (*workerTimeout) Help() Help {
	return Help{
		Watches:  "php-fpm's own words: requests that it killed since they ran too long, and pools with all their children busy.",
		Formula:  "kills and full pools within `window` >= `count`",
		Evidence: []string{"php_timeouts", "max_children_reached", "max_children", "stall_seconds", "period_seconds", "probe", "probe_period_seconds", "top_routes"},
		FalsePositives: []string{
			"a batch request that runs into request_terminate_timeout each night",
		},
		Runbook: []string{
			"period_seconds: a steady rhythm is that of who asks, a probe",
			"kubectl logs --previous POD -c CONTAINER",
			"curl -s localhost/fpm-status?full   # what each child does",
		},
	}
}

package detectors

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// probeFailure watches health checks. Of a site: those that pass through the application, and wait with everybody
// else when its workers are busy, so that the balancer or kubelet takes away what still works. Of the cluster: the
// containers whose probes kubelet saw fail.
type probeFailure struct {
	Count            int           `yaml:"count"`             // probes of a site that reached an upstream and were slow, given up or answered 5xx
	Slow             time.Duration `yaml:"slow"`              // kubelet's timeoutSeconds is 1 s where none is set
	Containers       int           `yaml:"containers"`        // of the cluster, whose probes failed
	Period           time.Duration `yaml:"period"`            // the liveness probe's periodSeconds; 0: as its failures follow each other
	FailureThreshold int           `yaml:"failure_threshold"` // its failureThreshold; 0: as many as were seen before a kill
	Window           time.Duration `yaml:"window"`
}

func newProbeFailure(decode func(any) error) (Detector, error) {
	d := &probeFailure{Count: 3, Slow: time.Second, Containers: 5, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	var negative error
	if d.Period < 0 || d.FailureThreshold < 0 {
		negative = errors.New("period and failure_threshold must not be negative")
	}
	return d, errors.Join(span(d.Window), positive("count", float64(d.Count)), positive("slow", d.Slow.Seconds()),
		positive("containers", float64(d.Containers)), negative)
}

func (d *probeFailure) Span() time.Duration { return d.Window }

func (d *probeFailure) Scope() Scope { return PerSite }

func (d *probeFailure) speaksOfCluster() {} // too: of probes that kubelet tells of

func isProbe(k pane.Key) bool { return k.Probe }

// hurt is how many probes of a cell reached an upstream and were slow, given up or answered 5xx: at least, since one
// may be all of it, and since an error may be that of the web server itself.
func (d *probeFailure) hurt(c *pane.Cell) uint64 {
	errors5xx := failed(c)
	return min(c.Reached, max(c.Latency.From(int64(d.Slow)), c.Abandoned, errors5xx-min(errors5xx, c.NotReached)))
}

// hurtAtMost is what hurt can add up to over the cells of the probes.
func (d *probeFailure) hurtAtMost(probes *pane.Sums) uint64 {
	if probes.Requests == 0 {
		return 0
	}
	return probes.Abandoned + probes.Errors5xx + probes.Latency().From(int64(d.Slow))
}

func (d *probeFailure) Detect(w *Window) []Finding {
	var found []Finding
	if !w.SitesOnly {
		n := w.of(d.Window, float64(len(failingProbes(w.View.Events))))
		if lvl := level(n, float64(d.Containers), leave); lvl != Below {
			labels := Labels{{"cluster", w.Cluster}}
			found = append(found, Finding{Labels: labels, Level: lvl, Value: n, Threshold: float64(d.Containers), Evidence: d.Evidence(w, labels)})
		}
	}
	for _, name := range w.Sites {
		t := w.totals(name)
		if t == nil || level(w.of(d.Window, float64(d.hurtAtMost(&t.Probes))), float64(d.Count), leave) == Below {
			continue
		}
		var hurt uint64
		for k, c := range w.cells(name) {
			if isProbe(k) {
				hurt += d.hurt(c)
			}
		}
		n := w.of(d.Window, float64(hurt))
		lvl := level(n, float64(d.Count), leave)
		if lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: n, Threshold: float64(d.Count), Evidence: d.Evidence(w, labels)})
	}
	return found
}

func (d *probeFailure) Evidence(w *Window, key Labels) Evidence {
	var e Evidence
	if site := key.Get("site"); site != "" {
		e = d.throughApp(w, site)
	} else {
		e = failedProbes(w.View.Events)
	}
	period, threshold := d.Period.Seconds(), float64(d.FailureThreshold)
	if period == 0 {
		period = periodOf(w.View.Events, "Liveness")
	}
	if threshold == 0 {
		threshold = float64(failuresBeforeKill(w.View.Events))
	}
	if period > 0 {
		e.ProbePeriodSeconds = N(period)
		if threshold > 0 {
			e.KillBudgetSeconds = N(period * threshold)
		}
	}
	return e
}

// throughApp explains the probes of a site that its application answers.
func (d *probeFailure) throughApp(w *Window, site string) Evidence {
	e := w.explain(site, isProbe)
	var worst pane.Key
	var most, all uint64
	longest, ok := 0.0, false
	for k, c := range w.cells(site) {
		if !isProbe(k) {
			continue
		}
		n := d.hurt(c)
		all += n
		if n > most || n == most && n > 0 && lessKey(k, worst) {
			worst, most = k, n
		}
		if s, known := c.Latency.Quantile(1); known && s >= longest && n > 0 {
			longest, ok = s, true
		}
	}
	e.Method, e.Route, e.ProbesFailed = worst.Method, worst.Route, N(float64(all))
	if ok {
		e.StallSeconds = N(longest)
	}
	e.WorkerSecondsShare, e.CounterfactualBusyWorkers = Num{}, Num{} // both are of clients, which probes are not
	return e
}

// failedProbes explains the failures that kubelet told of.
func failedProbes(events []pipeline.Event) Evidence {
	e := Evidence{Reasons: map[string]int{}, StallSeconds: longestKill(events)}
	nodes, namespaces := map[string]bool{}, map[string]bool{}
	n := 0
	for i := range events {
		x := &events[i]
		if !isProbeFailure(x) {
			continue
		}
		n++
		e.Reasons[probeName(x.Probe)]++
		namespaces[x.Namespace] = true
		if x.Node != "" {
			nodes[x.Node] = true
		}
		if len(e.Samples) < 3 {
			e.Samples = append(e.Samples, fmt.Sprintf("%s %s/%s %s %s: %s", time.Unix(0, x.Time).UTC().Format(time.RFC3339),
				x.Namespace, x.Pod, x.Container, probeName(x.Probe), x.Message))
		}
	}
	e.ProbesFailed, e.Containers = N(float64(n)), N(float64(len(failingProbes(events))))
	e.Namespaces = N(float64(len(namespaces)))
	if len(nodes) > 0 {
		e.Nodes = N(float64(len(nodes)))
	}
	return e
}

func (d *probeFailure) Touch(w *Window) string {
	if slices.ContainsFunc(w.View.Events, func(e pipeline.Event) bool { return isProbeFailure(&e) }) {
		return fmt.Sprintf("a probe failed: fires at %d containers within %s", d.Containers, d.Window)
	}
	_, c, ok := w.only(isProbe)
	if !ok {
		return ""
	}
	did := "a health check"
	switch {
	case d.hurt(c) > 0:
		did = "a health check that the application kept waiting or failed"
	case c.Reached > 0:
		did = "a health check that the application answered in time"
	case c.NotReached > 0:
		did = "a health check that was answered before the application"
	}
	return fmt.Sprintf("%s: fires at %d that it kept waiting %s or failed within %s", did, d.Count, d.Slow, d.Window)
}

// Help tells of the detector.
func (*probeFailure) Help() Help {
	return Help{
		Watches:  "Health checks that pass through the application and wait with everybody else, and containers whose probes kubelet saw fail.",
		Formula:  "of a site: probes that reached an upstream and took `slow`, were given up or got 5xx, >= `count` in the `window`; of the cluster: containers with failed probes >= `containers`",
		Evidence: []string{"probes_failed", "containers", "probe", "probe_period_seconds", "kill_budget_seconds", "stall_seconds", "nodes", "namespaces"},
		FalsePositives: []string{
			"a readiness probe that fails on purpose during a rollout",
			"a balancer's health check through the application, alone: it is a risk and no harm yet",
		},
		Runbook: []string{
			"kill_budget_seconds (period × failureThreshold) must be longer than stall_seconds",
			"which components does the probe pass: nginx, php-fpm, the framework, a session store",
			"kubectl get --raw /api/v1/nodes/NODE/proxy/metrics/probes | grep prober_probe_total",
		},
	}
}

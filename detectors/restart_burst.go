package detectors

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// restartBurst watches how many containers of the whole cluster were restarted within a few minutes. It counts
// restarts, not the lines that tell of them: kubelet's decision, the event and the pod's status are one restart.
// Rollouts make new pods and are none.
type restartBurst struct {
	Count  int           `yaml:"count"` // containers
	Window time.Duration `yaml:"window"`
}

func newRestartBurst(decode func(any) error) (Detector, error) {
	d := &restartBurst{Count: 5, Window: 5 * time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("count", float64(d.Count)))
}

func (d *restartBurst) Span() time.Duration { return d.Window }

func (d *restartBurst) Scope() Scope { return Cluster }

func (d *restartBurst) Detect(w *Window) []Finding {
	n := containersOf(restarts(w.View.Events))
	lvl := level(float64(n), float64(d.Count), leave)
	if lvl == Below {
		return nil
	}
	labels := Labels{{"cluster", w.Cluster}}
	return []Finding{{Labels: labels, Level: lvl, Value: float64(n), Threshold: float64(d.Count), Evidence: d.Evidence(w, labels)}}
}

// containersOf is how many containers were restarted: one in a crash loop is one.
func containersOf(found []*restart) int {
	n, last := 0, restart{}
	for _, r := range found { // in order of the container
		if n == 0 || r.namespace != last.namespace || r.pod != last.pod || r.container != last.container {
			n++
		}
		last = *r
	}
	return n
}

// looping is how many restarts of one container within the window are a loop.
const looping = 3

// loops is how many containers are in a loop.
func loops(found []*restart) (n int) {
	times := map[[3]string]int{}
	for _, r := range found {
		c := [3]string{r.namespace, r.pod, r.container}
		if times[c]++; times[c] == looping {
			n++
		}
	}
	return n
}

// reasonOOMKilled is the container runtime's word.
const reasonOOMKilled = "OOMKilled"

// The reasons of a restart, with how well each is proven.
const (
	reasonLiveness = "liveness"          // kubelet said so
	reasonProbable = "liveness_probable" // ended cleanly after TERM together with others; kubelet's word is missing
	reasonOOM      = "oom"
	reasonCrash    = "crash"
	reasonSelfExit = "self_exit" // ended with 0 alone
	reasonNode     = "node"
	reasonUnknown  = "unknown"
)

func (d *restartBurst) Evidence(w *Window, _ Labels) Evidence {
	all := restarts(w.View.Events)
	e := Evidence{Reasons: map[string]int{}}
	nodes, namespaces := map[string]bool{}, map[string]bool{}
	oom := 0
	for _, r := range all {
		reason := r.reason(containersOf(all) >= d.Count)
		e.Reasons[reason]++
		if reason == reasonOOM {
			oom++
		}
		if r.node != "" {
			nodes[r.node] = true
		}
		namespaces[r.namespace] = true
		if len(e.Samples) < 3 {
			e.Samples = append(e.Samples, r.String())
		}
	}
	e.Restarts, e.OOMKilled = N(float64(len(all))), N(float64(oom))
	e.Namespaces = N(float64(len(namespaces)))
	e.Scope = scope(all, w.Dependencies)
	if n := loops(all); n > 0 {
		e.Looping = N(float64(n))
	}
	if len(nodes) > 0 {
		e.Nodes = N(float64(len(nodes)))
	}
	if period, ok := rhythm(w.View.Events); ok {
		e.PeriodSeconds = N(period)
	}
	return e
}

// A restart is one end and new start of one container.
type restart struct {
	namespace, pod, container, node string
	at                              int64 // ns: when it ended, else when the decision fell
	status                          *pipeline.Event
	decided                         bool // kubelet decided it after failed probes
}

func (r *restart) String() string {
	s := fmt.Sprintf("%s %s/%s %s", time.Unix(0, r.at).UTC().Format(time.RFC3339), r.namespace, r.pod, r.container)
	if r.status != nil && r.status.HasExit {
		s += fmt.Sprintf(" %s/%d", r.status.Reason, r.status.ExitCode)
	}
	return s
}

// reason classifies by the last state and by what kubelet said. Exit code 137 is SIGKILL: out of memory only
// where the reason says so, else a grace period that ran out; 143 is death by SIGTERM.
func (r *restart) reason(many bool) string {
	st := r.status
	switch {
	case r.outOfMemory():
		return reasonOOM
	case r.decided:
		return reasonLiveness
	case st == nil || !st.HasExit:
		return reasonUnknown
	case st.Reason == "ContainerStatusUnknown":
		return reasonNode
	case st.ExitCode == 0 || st.ExitCode == 143:
		if many {
			return reasonProbable
		}
		return reasonSelfExit
	case st.ExitCode == 137 && many:
		return reasonProbable
	}
	return reasonCrash
}

// decisionSpread is how far apart, in event time, kubelet's log and the API's event of one decision may be. No
// container fails its probes twice within it.
const decisionSpread = int64(30 * time.Second)

// restarts finds the restarts that events tell of, each once, in order of namespace, pod, container and time.
func restarts(events []pipeline.Event) []*restart {
	type container struct{ namespace, pod, name string }
	told := map[container][]*pipeline.Event{}
	for i := range events {
		e := &events[i]
		if e.Kind == pipeline.ContainerRestart || e.Kind == pipeline.LivenessRestart {
			c := container{e.Namespace, e.Pod, e.Container}
			told[c] = append(told[c], e)
		}
	}
	var found []*restart
	for c, events := range told {
		found = append(found, restartsOf(c.namespace, c.pod, c.name, events)...)
	}
	slices.SortFunc(found, func(a, b *restart) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod),
			cmp.Compare(a.container, b.container), cmp.Compare(a.at, b.at))
	})
	return found
}

// RestartTimes gives the times, in ns, of the restarts that events tell of, each once, in order.
func RestartTimes(events []pipeline.Event) []int64 {
	var out []int64
	for _, r := range restarts(events) {
		out = append(out, r.at)
	}
	slices.Sort(out)
	return out
}

// restartsOf joins what was told of one container: an end of the container belongs to the last decision before
// it that no other end took.
func restartsOf(namespace, pod, name string, events []*pipeline.Event) []*restart {
	var found []*restart
	ends := map[int64]bool{} // by restartCount, or by time where it is not told
	for _, e := range events {
		switch e.Kind {
		case pipeline.LivenessRestart:
			if n := len(found); n > 0 && found[n-1].decided && e.Time-found[n-1].at < decisionSpread {
				continue
			}
			found = append(found, &restart{namespace: namespace, pod: pod, container: name, node: e.Node, at: e.Time, decided: true})
		case pipeline.ContainerRestart:
			id := e.FinishedAt
			if id == 0 {
				id = int64(e.Restarts)
			}
			if ends[id] {
				continue
			}
			ends[id] = true
			r := unended(found, e)
			if r == nil {
				r = &restart{namespace: namespace, pod: pod, container: name, at: e.Time}
				found = append(found, r)
			}
			r.status, r.node = e, cmp.Or(e.Node, r.node)
		}
	}
	return found
}

// unended finds the decision that an end belongs to.
func unended(found []*restart, e *pipeline.Event) *restart {
	for _, r := range slices.Backward(found) {
		if r.status == nil && r.at <= e.Time+int64(time.Second) {
			return r
		}
	}
	return nil
}

// rhythm tells the period, in seconds, in which php-fpm killed requests of one pool: when it is steady it is a probe's.
// Of many pools each has its own phase, and what all of them do together has none.
func rhythm(events []pipeline.Event) (float64, bool) {
	type pool struct{ node, namespace, pod, container, name string }
	last := map[pool]int64{}
	var gaps []int64
	for i := range events {
		e := &events[i]
		if e.Kind != pipeline.PHPTimeout {
			continue
		}
		p := pool{e.Node, e.Namespace, e.Pod, e.Container, e.Pool}
		if at := last[p]; at > 0 && e.Time > at {
			gaps = append(gaps, e.Time-at)
		}
		last[p] = e.Time
	}
	if len(gaps) < 4 {
		return 0, false
	}
	slices.Sort(gaps)
	median := gaps[len(gaps)/2]
	deviations := make([]int64, len(gaps))
	for i, g := range gaps {
		deviations[i] = max(g-median, median-g)
	}
	slices.Sort(deviations)
	if deviations[len(deviations)/2]*20 > median*3 {
		return 0, false // more than 15 % off: no rhythm
	}
	return seconds(median), true
}

func (d *restartBurst) Touch(w *Window) string {
	n := containersOf(restarts(w.View.Events))
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d restarted: fires at %d containers within %s", n, d.Count, d.Window)
}

// Help tells of the detector.
func (*restartBurst) Help() Help {
	return Help{
		Watches:  "Containers of the whole cluster that were restarted, told by pod status, events and kubelet, each once.",
		Formula:  "containers restarted within `window` >= `count`; new pods of a rollout are none",
		Evidence: []string{"restarts", "reasons", "oom_killed", "nodes", "namespaces", "scope", "looping", "period_seconds"},
		FalsePositives: []string{
			"a node that reboots: see reasons and nodes",
			"a job whose containers end by design, several at a time",
		},
		Runbook: []string{
			"reasons: liveness is kubelet's own word, liveness_probable a clean end together with others",
			"kubectl get events -A --field-selector reason=Killing --sort-by=.lastTimestamp",
			"kubectl get pods -A -o json | jq '.items[].status.containerStatuses[]?.lastState.terminated'",
			"scope: what the containers share, with its lift over chance; where nothing explains them, look at network and nodes",
		},
	}
}

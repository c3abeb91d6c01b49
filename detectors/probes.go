package detectors

import (
	"slices"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// What events tell of probes: kubelet logs each failure, and the API's events tell of some of them again.

// isProbeFailure leaves startup probes out: a container that is starting is expected to fail them.
func isProbeFailure(e *pipeline.Event) bool {
	return e.Kind == pipeline.ProbeFailed && e.Probe != "Startup"
}

// probeName gives the known kinds as constants: no log can invent keys.
func probeName(probe string) string {
	switch probe {
	case "Liveness", "Readiness", "Startup":
		return probe
	}
	return "unknown"
}

// A prober is one probe of one container.
type prober struct{ namespace, pod, container, probe string }

// failingProbes gives the containers whose probes failed, each once.
func failingProbes(events []pipeline.Event) map[prober]bool {
	failing := map[prober]bool{}
	for i := range events {
		if e := &events[i]; isProbeFailure(e) {
			failing[prober{e.Namespace, e.Pod, e.Container, ""}] = true
		}
	}
	return failing
}

// retold is how far apart two tellings of one failure may be: no probe has a shorter period.
const retold = int64(time.Second)

// failures gives the times at which each probe failed, ns, ascending.
func failures(events []pipeline.Event) map[prober][]int64 {
	times := map[prober][]int64{}
	for i := range events {
		e := &events[i]
		if e.Kind != pipeline.ProbeFailed {
			continue
		}
		p := prober{e.Namespace, e.Pod, e.Container, probeName(e.Probe)}
		if seen := times[p]; len(seen) == 0 || e.Time-seen[len(seen)-1] >= retold {
			times[p] = append(seen, e.Time)
		}
	}
	return times
}

// periodOf is the median time between failures of a kind of probe, in seconds; 0 when it is not known.
func periodOf(events []pipeline.Event, probe string) float64 {
	var gaps []int64
	for p, times := range failures(events) {
		if p.probe != probe {
			continue
		}
		for i := 1; i < len(times); i++ {
			gaps = append(gaps, times[i]-times[i-1])
		}
	}
	if len(gaps) == 0 {
		return 0
	}
	slices.Sort(gaps)
	return seconds(gaps[len(gaps)/2])
}

// probeOfPeriod names the kind of probe whose failures follow each other in a period, within 15 %.
func probeOfPeriod(events []pipeline.Event, period float64) (probe string, its float64, ok bool) {
	for _, probe := range []string{"Liveness", "Readiness"} {
		if its := periodOf(events, probe); its > 0 && its >= 0.85*period && its <= 1.15*period {
			return probe, its, true
		}
	}
	return "", 0, false
}

// failuresBeforeKill is how many failures of its liveness probe a container had when kubelet decided to restart it:
// the most of any, since the window may have begun between them. 0: not known, or told once in all.
func failuresBeforeKill(events []pipeline.Event) int {
	times := failures(events)
	most := 0
	for i := range events {
		e := &events[i]
		if e.Kind != pipeline.LivenessRestart {
			continue
		}
		n := 0
		for _, at := range times[prober{e.Namespace, e.Pod, e.Container, "Liveness"}] {
			if at <= e.Time+retold {
				n++
			}
		}
		most = max(most, n)
	}
	if most < 2 {
		return 0
	}
	return most
}

// of is a count as it would be in a window of full length: the engine also asks about single panes, to find where an
// episode began.
func (w *Window) of(full time.Duration, n float64) float64 {
	return n * float64(full) / float64(w.View.End-w.View.Start)
}

package alerts

import (
	"maps"
	"slices"

	"github.com/squall-sre/squall/detectors"
)

// When an alert began: at the beginning of the first pane from which its condition held without a break. A detection is
// known to have been on since its onset, which is before the pane in which it was noticed; numbers, and what a rule
// wants not to be, are known pane by pane.

// beginning is when the condition that holds now, and did not in the pane before, began to hold; start is the beginning
// of this pane.
func (t *tracked) beginning(g *group, start int64, gap bool) int64 {
	began := t.rule.onset(g.found, start)
	if gap || t.before == nil {
		return began
	}
	// With what was noticed in this pane and all else as it was before, does it hold? Then that is what was missing.
	then := maps.Clone(t.before)
	for name, d := range g.found {
		if old := then[name]; old == nil || !old.Active && d.Active {
			then[name] = d
		}
	}
	if held, err := t.rule.when.holds(then); err != nil || !held {
		return max(began, start)
	}
	return began
}

// onset is the earliest onset of a detection from which on the condition holds with those that had begun; otherwise when
// nothing tells it.
func (r *rule) onset(found map[string]*detectors.Detection, otherwise int64) int64 {
	var onsets []int64
	for _, d := range r.read(found) {
		if d.Onset > 0 {
			onsets = append(onsets, d.Onset)
		}
	}
	slices.Sort(onsets)
	began := otherwise
	for _, at := range slices.Backward(slices.Compact(onsets)) {
		then := maps.Clone(found)
		maps.DeleteFunc(then, func(_ string, d *detectors.Detection) bool { return d.Onset > at })
		if held, err := r.when.holds(then); err != nil || !held {
			break
		}
		began = min(began, at)
	}
	return began
}

// read are the detections that the rule reads.
func (r *rule) read(found map[string]*detectors.Detection) map[string]*detectors.Detection {
	out := map[string]*detectors.Detection{}
	for _, name := range r.reads {
		if d := found[name]; d != nil {
			out[name] = d
		}
	}
	return out
}

// start is the beginning of the pane that is being evaluated.
func (m *Manager) start() int64 {
	if m.pane.Pane != nil {
		return m.pane.Pane.Start
	}
	return m.at
}

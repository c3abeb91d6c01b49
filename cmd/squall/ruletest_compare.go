package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/squall-sre/squall/alerts"
)

// A failure is an expectation that was not met, at its place in the file.
type failure struct {
	at   position
	text string
}

// A difference is one value that is not as expected.
type difference struct{ key, want, got string }

// maxGot bounds the alerts that a failure lists.
const maxGot = 20

// compare checks every expectation of the test.
func (t *ruleTest) compare(o *observed) []failure {
	var out []failure
	for i := range t.Alerts {
		out = append(out, t.Alerts[i].among(o)...)
	}
	for i := range t.Firing {
		out = append(out, t.Firing[i].exactly(o)...)
	}
	for i := range t.Detections {
		out = append(out, t.Detections[i].among(o)...)
	}
	for i, name := range t.None {
		at := t.node.get("none").item(i).at
		for _, x := range o.alerts {
			if x.firedAt != 0 && (string(x.Severity) == name || x.Name == name) {
				out = append(out, failure{at, "there must be none of " + name + "\ngot: " + o.text(x)})
			}
		}
		for _, x := range o.detections {
			if x.Detector == name {
				out = append(out, failure{at, "there must be none of " + name + "\ngot: " + o.detectionText(x)})
			}
		}
	}
	return out
}

// unknowable finds the expectations about times of which the input tells nothing: that nothing fires then is no success.
func (t *ruleTest) unknowable(o *observed) []failure {
	var out []failure
	beside := func(at int64, place position, what string) {
		switch {
		case at > o.last:
			out = append(out, failure{place, fmt.Sprintf(
				"%s: %s is after the input's end, %s: nothing is known of that time; give an input that lasts longer (duration), or ask for an earlier time",
				what, o.offset(at), o.offset(o.last))})
		case at < o.start:
			out = append(out, failure{place, fmt.Sprintf(
				"%s: %s is before the input's beginning, %s: nothing is known of that time", what, o.offset(at), alerts.Stamp(o.start))})
		}
	}
	for i := range t.Firing {
		beside(t.Firing[i].At.at(o.start), t.Firing[i].node.place("at"), "at")
	}
	none := func(count *int, node *node, ranges map[string]*timeRange) {
		if count == nil || *count > 0 {
			return // one that never comes fails by itself
		}
		for _, key := range slices.Sorted(maps.Keys(ranges)) {
			if r := ranges[key]; r != nil && r.from != nil && r.from.at(o.start) > o.last {
				beside(r.from.at(o.start), node.place(key), key)
			}
		}
	}
	for i := range t.Alerts {
		e := &t.Alerts[i]
		none(e.Count, e.node, map[string]*timeRange{"starts_at": e.StartsAt, "fires_at": e.FiresAt, "ends_at": e.EndsAt})
	}
	for i := range t.Detections {
		e := &t.Detections[i]
		none(e.Count, e.node, map[string]*timeRange{"starts_at": e.StartsAt, "ends_at": e.EndsAt})
	}
	return out
}

// among looks for the expected alert among those that came.
func (e *expectedAlert) among(o *observed) []failure {
	matched := 0
	var nearest *alertLife
	var fewest []difference
	for _, x := range o.alerts {
		if x.Name != e.Alert {
			continue
		}
		diff := e.against(x, o)
		if len(diff) == 0 {
			matched++
		}
		if nearest == nil || len(diff) < len(fewest) {
			nearest, fewest = x, diff
		}
	}
	switch {
	case e.Count != nil && matched == *e.Count, e.Count == nil && matched > 0:
		return nil
	case matched > 0:
		return []failure{{e.node.place(), fmt.Sprintf("as told are %d × %s, not %d\n%s", matched, e.Alert, *e.Count, o.listed(o.alerts))}}
	case nearest == nil:
		return []failure{{e.node.place(), "no alert " + e.Alert + " came\n" + o.listed(o.alerts)}}
	}
	return []failure{{e.node.place(), "no alert " + e.Alert + " is as expected; the nearest:\n" + o.text(nearest) + diffText(fewest)}}
}

// exactly compares all alerts that fire at a time with those that must: each with one.
func (m *expectedMoment) exactly(o *observed) []failure {
	at := m.At.at(o.start)
	got := o.at(at)
	if m.Alert != "" {
		got = slices.DeleteFunc(got, func(x *alertLife) bool { return x.Name != m.Alert })
	}
	fits := func(i, j int) bool {
		return m.Alerts[i].Alert == got[j].Name && len(m.Alerts[i].against(got[j], o)) == 0
	}
	owner := pairUp(len(m.Alerts), len(got), fits)
	var lines []string
	for i := range m.Alerts {
		if !slices.Contains(owner, i) {
			lines = append(lines, "- "+m.Alerts[i].text())
		}
	}
	for j, i := range owner {
		if i < 0 {
			lines = append(lines, "+ "+o.text(got[j]))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	head := fmt.Sprintf("at %s other alerts fire than expected (-: expected, +: got)\n", o.offset(at))
	return []failure{{m.node.place(), head + strings.Join(lines, "\n")}}
}

// pairUp gives each of the right ones the left one that it goes with, -1 for none, so that as many as can be have one
// (Kuhn's algorithm).
func pairUp(left, right int, fits func(i, j int) bool) []int {
	owner := slices.Repeat([]int{-1}, right)
	var seen []bool
	var claim func(i int) bool
	claim = func(i int) bool {
		for j := range owner {
			if seen[j] || !fits(i, j) {
				continue
			}
			seen[j] = true
			if owner[j] < 0 || claim(owner[j]) {
				owner[j] = i
				return true
			}
		}
		return false
	}
	for i := range left {
		seen = make([]bool, right)
		claim(i)
	}
	return owner
}

// against lists where an alert is not as expected.
func (e *expectedAlert) against(x *alertLife, o *observed) []difference {
	var out []difference
	same := func(key, want, got string) {
		if want != "" && want != got {
			out = append(out, difference{key, want, got})
		}
	}
	same("severity", string(e.Severity), string(x.Severity))
	same("state", string(e.State), string(x.State))
	same("suppressed", e.Suppressed, x.Suppressed)
	for _, name := range slices.Sorted(maps.Keys(e.Labels)) {
		if got := x.label(name); got != e.Labels[name] {
			out = append(out, difference{"labels." + name, e.Labels[name], got})
		}
	}
	out = append(out, o.within("starts_at", e.StartsAt, x.StartsAt)...)
	out = append(out, o.within("fires_at", e.FiresAt, x.firedAt)...)
	out = append(out, o.within("ends_at", e.EndsAt, x.EndsAt)...)
	same("cause", string(e.Cause), string(x.Cause.Verdict))
	for _, name := range slices.Sorted(maps.Keys(e.Annotations)) {
		if got := x.Annotations[name]; !e.Annotations[name].MatchString(got) {
			out = append(out, difference{"annotations." + name, e.Annotations[name].String(), got})
		}
	}
	return out
}

// label gives a label as Alertmanager gets it.
func (x *alertLife) label(name string) string {
	switch name {
	case "alertname":
		return x.Name
	case "severity":
		return string(x.Severity)
	}
	return x.Labels.Get(name)
}

func (o *observed) within(key string, want *timeRange, got int64) []difference {
	if want == nil || want.holds(got, o.start, o.pane) {
		return nil
	}
	return []difference{{key, want.text, o.offset(got)}}
}

// among looks for the expected detection among those that came.
func (e *expectedDetection) among(o *observed) []failure {
	matched := 0
	var lines []string
	for _, x := range o.detections {
		if x.Detector != e.Detector {
			continue
		}
		diff := append(o.within("starts_at", e.StartsAt, x.Onset), o.within("ends_at", e.EndsAt, x.Until)...)
		for _, name := range slices.Sorted(maps.Keys(e.Labels)) {
			if got := x.Labels.Get(name); got != e.Labels[name] {
				diff = append(diff, difference{"labels." + name, e.Labels[name], got})
			}
		}
		if len(diff) == 0 {
			matched++
		}
		lines = append(lines, "got: "+o.detectionText(x)+diffText(diff))
	}
	if e.Count != nil && matched == *e.Count || e.Count == nil && matched > 0 {
		return nil
	}
	want := "at least 1"
	if e.Count != nil {
		want = fmt.Sprint(*e.Count)
	}
	head := fmt.Sprintf("%d detections of %s are as told, not %s", matched, e.Detector, want)
	return []failure{{e.node.place(), strings.Join(append([]string{head}, lines[:min(len(lines), maxGot)]...), "\n")}}
}

func (o *observed) detectionText(d *detectionLife) string {
	return alerts.Escape(fmt.Sprintf("%s %s starts_at=%s ends_at=%s", d.Detector, d.Labels, o.offset(d.Onset), o.offset(d.Until)))
}

// listed tells what came instead.
func (o *observed) listed(all []*alertLife) string {
	if len(all) == 0 {
		return "got: no alert at all"
	}
	var lines []string
	for _, x := range all[:min(len(all), maxGot)] {
		lines = append(lines, "got: "+o.text(x))
	}
	if n := len(all) - len(lines); n > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(lines, "\n")
}

// text is the expectation as it was written.
func (e *expectedAlert) text() string {
	parts := []string{e.Alert}
	add := func(key, value string) {
		if value != "" {
			parts = append(parts, key+"="+value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Labels)) {
		add("labels."+name, e.Labels[name])
	}
	add("severity", string(e.Severity))
	add("state", string(e.State))
	add("suppressed", e.Suppressed)
	for _, r := range []struct {
		key string
		r   *timeRange
	}{{"starts_at", e.StartsAt}, {"fires_at", e.FiresAt}, {"ends_at", e.EndsAt}} {
		if r.r != nil {
			add(r.key, r.r.text)
		}
	}
	add("cause", string(e.Cause))
	for _, name := range slices.Sorted(maps.Keys(e.Annotations)) {
		add("annotations."+name, e.Annotations[name].String())
	}
	return strings.Join(parts, " ")
}

// diffText shows expected and got, one under the other.
func diffText(diff []difference) string {
	var b strings.Builder
	for _, d := range diff {
		fmt.Fprintf(&b, "\n  - %s: %s\n  + %s: %s", d.key, d.want, d.key, alerts.Escape(d.got))
	}
	return b.String()
}

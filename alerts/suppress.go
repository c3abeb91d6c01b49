package alerts

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/prometheus/alertmanager/timeinterval"

	"github.com/squall-sre/squall/detectors"
)

// A Suppressor holds alerts back while it is on: in maintenance windows, or while something else explains them.
// An alert that begins meanwhile is recorded and nobody is told; when it outlasts the suppressor it fires with
// its true beginning. What was told already goes on. Only event time counts.
type Suppressor struct {
	Name string `yaml:"name"`

	// TimeIntervals is a schedule in the words of Alertmanager's time_intervals; UTC without a location.
	TimeIntervals []timeinterval.TimeInterval `yaml:"time_intervals"`
	From          *time.Time                  `yaml:"from"`
	Until         *time.Time                  `yaml:"until"`
	For           time.Duration               `yaml:"for"` // instead of until
	// When is an expression over the detections of the alert's own by-values and of the whole cluster. Of
	// time_intervals, from and until, and when, all that are given must hold.
	When string `yaml:"when"`

	// What is covered; an empty list covers all.
	Alerts     []string   `yaml:"alerts"`
	Severities []Severity `yaml:"severities"`
	Sites      []string   `yaml:"sites"`

	// Extend keeps the suppressor on for a site after its end, for this long at most, while something that it holds
	// back there goes on.
	Extend time.Duration `yaml:"extend"`
	// Wait is how long after that an alert must still hold before it fires.
	Wait time.Duration `yaml:"wait"`
}

// suppressor is a Suppressor that was checked.
type suppressor struct {
	Suppressor
	when        *expression // nil: always
	from, until int64       // ns; 0: open
}

// CheckSuppressors reports the first fault, naming the suppressor. rules are the names of the rules in effect.
func CheckSuppressors(list []Suppressor, rules, detectorNames []string) error {
	_, err := compileSuppressors(list, rules, detectorNames)
	return err
}

func compileSuppressors(list []Suppressor, rules, known []string) ([]*suppressor, error) {
	var out []*suppressor
	for _, s := range list {
		c, err := compileSuppressor(s, rules, known)
		if err == nil && slices.ContainsFunc(out, func(o *suppressor) bool { return o.Name == s.Name }) {
			err = fmt.Errorf("name: there are two of this name")
		}
		if err != nil {
			return nil, fmt.Errorf("suppressor %q: %w", s.Name, err)
		}
		out = append(out, c)
	}
	return out, nil
}

func compileSuppressor(s Suppressor, rules, known []string) (*suppressor, error) {
	c := &suppressor{Suppressor: s}
	if !ruleName.MatchString(s.Name) {
		return nil, fmt.Errorf("name: must be letters, digits and _ . : - only, beginning with a letter")
	}
	if s.From != nil {
		c.from = s.From.UnixNano()
	}
	switch {
	case s.For != 0 && (s.From == nil || s.Until != nil):
		return nil, fmt.Errorf("for: is the length of a window with from and without until")
	case s.For != 0:
		c.until = c.from + int64(s.For)
	case s.Until != nil:
		c.until = s.Until.UnixNano()
	case s.From != nil && s.When == "" && len(s.TimeIntervals) == 0:
		return nil, fmt.Errorf("from: has no end: write until or for")
	}
	if c.until != 0 && c.until <= c.from {
		return nil, fmt.Errorf("until: the window ends before it begins")
	}
	if s.When == "" && len(s.TimeIntervals) == 0 && s.Until == nil && s.From == nil {
		return nil, fmt.Errorf("when is it on? Write time_intervals, from and until, or when")
	}
	for _, i := range s.TimeIntervals {
		if i.Location != nil && i.Location.Location == time.Local { //nolint:gosmopolitan // it is refused
			return nil, fmt.Errorf("time_intervals: location Local is another one on each machine: write its name")
		}
		if len(i.Times)+len(i.Weekdays)+len(i.DaysOfMonth)+len(i.Months)+len(i.Years) == 0 {
			return nil, fmt.Errorf("time_intervals: an interval names no times, weekdays, days_of_month, months or years")
		}
	}
	var err error
	if s.When != "" {
		if c.when, err = compile(s.When, known, reflect.Bool); err != nil {
			return nil, fmt.Errorf("when: %w", err)
		}
	}
	return c, s.checkCovered(rules)
}

func (s *Suppressor) checkCovered(rules []string) error {
	for _, name := range s.Alerts {
		if !slices.Contains(rules, name) {
			if near := nearest(name, rules); near != "" {
				return fmt.Errorf("alerts: no rule is named %q: did you mean %q?", name, near)
			}
			return fmt.Errorf("alerts: no rule is named %q", name)
		}
	}
	for _, severity := range s.Severities {
		if severity.rank() == 0 {
			return fmt.Errorf("severities: %q is none of page, warning and info", severity)
		}
	}
	if s.Extend < 0 || s.Wait < 0 || s.For < 0 {
		return fmt.Errorf("extend, wait and for must not be negative")
	}
	return nil
}

// covers tells whether an alert is one that the suppressor holds back.
func (s *suppressor) covers(t *tracked, severity Severity) bool {
	return (len(s.Alerts) == 0 || slices.Contains(s.Alerts, t.rule.Name)) &&
		(len(s.Severities) == 0 || slices.Contains(s.Severities, severity)) &&
		(len(s.Sites) == 0 || slices.Contains(s.Sites, t.labels.Get("site")))
}

// scheduled tells whether the last instant before an event time (ns) is in the window: a pane that ends where the
// window begins is not.
func (s *suppressor) scheduled(at int64) bool {
	at--
	if at < s.from || s.until != 0 && at >= s.until {
		return false
	}
	now := time.Unix(0, at).UTC()
	return len(s.TimeIntervals) == 0 ||
		slices.ContainsFunc(s.TimeIntervals, func(i timeinterval.TimeInterval) bool { return i.ContainsTime(now) })
}

// on tells whether a suppressor is on for the by-values of a group.
func (m *Manager) on(s *suppressor, g *group) bool {
	if !s.scheduled(m.at) {
		return false
	}
	if s.when == nil {
		return true
	}
	found := maps.Clone(m.wide)
	maps.Copy(found, g.found)
	holds, err := s.when.holds(found)
	if err != nil {
		m.metrics.ruleErrors.Inc()
	}
	return holds
}

// clusterWide are the worst detections of no site, by detector.
func clusterWide(actives []detectors.Detection) map[string]*detectors.Detection {
	wide := map[string]*detectors.Detection{}
	for i := range actives {
		d := &actives[i]
		if old := wide[d.Detector]; d.Labels.Get("site") == "" && (old == nil || worse(d, old)) {
			wide[d.Detector] = d
		}
	}
	return wide
}

// heldBy names the suppressor that holds an alert of a severity back, "" when it is to be told. windowOver follows.
func (m *Manager) heldBy(t *tracked, g *group, severity Severity) string {
	i := slices.IndexFunc(m.suppressors, func(s *suppressor) bool { return s.Name == t.suppressed })
	if i >= 0 && m.suppressors[i].covers(t, severity) {
		s := m.suppressors[i]
		switch {
		case m.on(s, g):
			t.windowOver = 0
			return s.Name
		case t.windowOver == 0:
			t.windowOver = m.at
		}
		if m.at-t.windowOver < int64(s.Extend+s.Wait) {
			return s.Name
		}
	}
	for _, s := range m.suppressors {
		if !s.covers(t, severity) {
			continue
		}
		if m.on(s, g) {
			t.windowOver = 0
			return s.Name
		}
		if over := m.extended(s, t); over != 0 && s.Name != t.suppressed {
			t.windowOver = over
			return s.Name
		}
	}
	return ""
}

// extended gives the end (ns) of a suppressor that is over and goes on for what it still holds back at a site; 0 when
// it does not.
func (m *Manager) extended(s *suppressor, t *tracked) int64 {
	first := int64(0)
	for _, o := range m.tracked {
		if o.suppressed != s.Name || o.overAt != 0 || o.labels.Get("site") != t.labels.Get("site") {
			continue
		}
		over := o.windowOver
		if over == 0 { // it has not been looked at in this pane
			over = m.at
		}
		if m.at-over < int64(s.Extend) && (first == 0 || over < first) {
			first = over
		}
	}
	return first
}

// stepHolding moves an alert that fires or is held back, and whose condition holds.
func (m *Manager) stepHolding(t *tracked, g *group, severity Severity, held string) []Alert {
	t.overAt = 0
	told := t.suppressed == ""
	rises := severity.rank() > t.severity.rank()
	if told && rises && held != "" {
		rises = false // it is told what it was told as, until it may be told more
	}
	if !rises && (told || held != "") {
		if !told {
			t.suppressed = held
		}
		t.last = m.build(t, g)
		return nil
	}
	var out []Alert
	if rises {
		// The severity is part of the identity: the old alert ends and the new one goes on from the same onset.
		before := t.last
		before.At = m.at
		out = append(out, m.resolved(t, before, m.at))
		t.severity = severity
	}
	if !told && held == "" {
		t.firedAt, t.windowOver = m.at, 0
	}
	t.suppressed = held
	t.last = m.build(t, g)
	return append(out, t.last)
}

// Suppressed returns the alerts that are held back, as Active does those that fire.
func (m *Manager) Suppressed() []Alert {
	var out []Alert
	for _, t := range m.ordered() {
		if t.firing && t.suppressed != "" {
			out = append(out, t.last)
		}
	}
	return out
}

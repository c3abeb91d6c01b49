package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors"
)

// A ruleTestFile is what `squall check --test` reads: cases of an input and what the rules must make of it.
type ruleTestFile struct {
	Config string     `yaml:"config"` // the configuration whose rules are tested, relative to this file
	Tests  []ruleTest `yaml:"tests"`

	path string
}

// A ruleTest is one case. Its input is one of simulate, logs and lines.
type ruleTest struct {
	Name   string `yaml:"name"`
	Config string `yaml:"config"` // instead of the file's

	Simulate simulateConfig `yaml:"simulate"`
	Logs     []string       `yaml:"logs"` // paths as replay takes them, relative to the file
	Lines    string         `yaml:"lines"`
	Format   FormatConfig   `yaml:"format"`
	Site     string         `yaml:"site"`    // for formats that log no host
	Workers  int            `yaml:"workers"` // the pool of sites that the configuration does not list

	Alerts     []expectedAlert     `yaml:"alerts"`     // each must come
	Firing     []expectedMoment    `yaml:"firing"`     // exactly these fire at a time
	None       []string            `yaml:"none"`       // severities, alerts and detectors that must not come
	Detections []expectedDetection `yaml:"detections"` // each must come

	node *node
}

// simulateConfig is a simulated input: the name of a scenario, or a mapping with its options.
type simulateConfig struct {
	Scenario string        `yaml:"scenario"`
	Format   string        `yaml:"format"`
	Seed     uint64        `yaml:"seed"`
	Host     string        `yaml:"host"`
	Path     string        `yaml:"path"`
	Workers  int           `yaml:"workers"` // of the simulated pool
	Rate     float64       `yaml:"rate"`    // factor on all arrivals
	Patience time.Duration `yaml:"patience"`
	Duration time.Duration `yaml:"duration"` // cuts the scenario
	Start    string        `yaml:"start"`    // RFC 3339
	Timezone Zone          `yaml:"timezone"`
}

// An expectedAlert is an alert that must come. What is left out is not looked at.
type expectedAlert struct {
	Alert       string             `yaml:"alert"`
	Labels      map[string]string  `yaml:"labels"` // these at least
	Severity    alerts.Severity    `yaml:"severity"`
	State       alerts.State       `yaml:"state"`      // at the end of the input: firing, resolved or suppressed
	Suppressed  string             `yaml:"suppressed"` // who holds it back, or did until its end
	StartsAt    *timeRange         `yaml:"starts_at"`
	FiresAt     *timeRange         `yaml:"fires_at"` // when a receiver is told
	EndsAt      *timeRange         `yaml:"ends_at"`
	Cause       alerts.Verdict     `yaml:"cause"`
	Annotations map[string]pattern `yaml:"annotations"`
	Count       *int               `yaml:"count"` // so many alerts are as told; default: one or more

	node *node
}

// An expectedMoment names all alerts that fire at a time, or all of one name.
type expectedMoment struct {
	At     moment          `yaml:"at"`
	Alert  string          `yaml:"alert"` // only those of this rule
	Alerts []expectedAlert `yaml:"alerts"`

	node *node
}

// An expectedDetection is a detection that must come.
type expectedDetection struct {
	Detector string            `yaml:"detector"`
	Labels   map[string]string `yaml:"labels"`
	StartsAt *timeRange        `yaml:"starts_at"`
	EndsAt   *timeRange        `yaml:"ends_at"`
	Count    *int              `yaml:"count"`

	node *node
}

// A pattern is a regular expression that is found somewhere in a text.
type pattern struct{ *regexp.Regexp }

// UnmarshalText compiles it.
func (p *pattern) UnmarshalText(text []byte) (err error) {
	p.Regexp, err = regexp.Compile(string(text))
	return err
}

// A moment is a time of the input: an offset from its beginning (+5m, 5m) or an absolute time.
type moment struct {
	offset   time.Duration
	absolute time.Time
}

// UnmarshalText reads +5m, 5m or 2026-07-01T00:05:00Z.
func (m *moment) UnmarshalText(text []byte) error {
	var err error
	if m.absolute, err = time.Parse(time.RFC3339Nano, string(text)); err == nil {
		return nil
	}
	m.offset, err = time.ParseDuration(strings.TrimPrefix(string(text), "+"))
	if err != nil || m.offset < 0 {
		return fmt.Errorf("%q is no time: write +5m from the beginning of the input, or 2026-07-01T00:05:00Z", text)
	}
	return nil
}

// at gives the moment in ns, for an input that begins at start.
func (m moment) at(start int64) int64 {
	if !m.absolute.IsZero() {
		return m.absolute.UnixNano()
	}
	return start + int64(m.offset)
}

// A timeRange is where a time must lie, both ends included. A single time stands for itself, give or take a pane.
type timeRange struct {
	text     string
	from, to *moment // nil: open
	single   bool
}

// UnmarshalText reads +2m..+5m, +2m.., ..+5m or +2m.
func (r *timeRange) UnmarshalText(text []byte) error {
	r.text = string(text)
	from, to, isRange := strings.Cut(r.text, "..")
	if !isRange {
		r.single, to = true, from
	}
	for _, x := range []struct {
		text string
		m    **moment
	}{{from, &r.from}, {to, &r.to}} {
		if strings.TrimSpace(x.text) == "" && !r.single && r.text != ".." {
			continue
		}
		*x.m = &moment{}
		if err := (*x.m).UnmarshalText([]byte(strings.TrimSpace(x.text))); err != nil {
			return err
		}
	}
	return nil
}

// holds tells whether a time (ns, 0: never) lies in the range.
func (r *timeRange) holds(at, start int64, pane time.Duration) bool {
	slack := int64(0)
	if r.single {
		slack = int64(pane)
	}
	return at != 0 && (r.from == nil || at >= r.from.at(start)-slack) && (r.to == nil || at <= r.to.at(start)+slack)
}

// promtoolKeys are the words that promtool's unit tests have for what has another name here.
var promtoolKeys = map[string]string{
	"rule_files": "config: the configuration with the rules", "evaluation_interval": "nothing: rules are evaluated at every pane",
	"input_series": "simulate, logs or lines", "interval": "nothing: lines carry their times", "promql_expr_test": "detections",
	"alert_rule_test": "firing: [{at: +5m, alerts: […]}]", "eval_time": "at", "alertname": "alert", "exp_alerts": "alerts",
	"exp_labels": "labels", "exp_annotations": "annotations",
}

// structured fills a struct; the words of promtool are told what they are called here.
func structured(d *decoder, n *node, p any) {
	var theirs []string
	for _, f := range n.fields {
		if ours, ok := promtoolKeys[f.key]; ok {
			d.errs.add(f.at, "unknown key %q: what promtool calls so is here %s", f.key, ours)
			theirs = append(theirs, f.key)
		}
	}
	d.structure(n, addressable(p), theirs)
}

// decodeNode reads the file.
func (f *ruleTestFile) decodeNode(d *decoder, n *node) {
	type plain ruleTestFile
	structured(d, n, (*plain)(f))
	if len(f.Tests) == 0 && len(d.errs) == 0 {
		d.errs.add(n.at, "no tests: write `tests: [{name: …, simulate: S01, alerts: [{alert: StormHurting}]}]`")
	}
}

// decodeNode keeps the node for positions.
func (t *ruleTest) decodeNode(d *decoder, n *node) {
	type plain ruleTest
	t.node = n
	t.Format.Kind = newKind("auto", nil, nil)
	structured(d, n, (*plain)(t))
}

// decodeNode reads a scenario's name or a mapping.
func (s *simulateConfig) decodeNode(d *decoder, n *node) {
	type plain simulateConfig
	s.Seed = 1
	if n.shape == textShape {
		s.Scenario = n.text
	} else {
		d.structure(n, addressable((*plain)(s)), nil)
	}
	if _, err := s.options(); err != nil {
		d.errs.take(n.at, "simulate", err)
	}
}

// decodeNode keeps the node for positions.
func (e *expectedAlert) decodeNode(d *decoder, n *node) {
	type plain expectedAlert
	e.node = n
	structured(d, n, (*plain)(e))
}

// decodeNode keeps the node for positions.
func (m *expectedMoment) decodeNode(d *decoder, n *node) {
	type plain expectedMoment
	m.node = n
	structured(d, n, (*plain)(m))
	if n.shape == mapShape && n.get("at") == nil {
		d.errs.add(n.at, "no time is given: write at: +5m")
	}
}

// decodeNode keeps the node for positions.
func (e *expectedDetection) decodeNode(d *decoder, n *node) {
	type plain expectedDetection
	e.node = n
	structured(d, n, (*plain)(e))
}

// options are those of the simulator.
func (s *simulateConfig) options() (o simulate.Options, err error) {
	if o.Scenario, err = simulate.Named(s.Scenario); err != nil {
		return o, err
	}
	o.Format, o.Seed, o.Host, o.Path, o.Pool = s.Format, s.Seed, s.Host, s.Path, s.Workers
	o.Rate, o.Patience, o.Zone = s.Rate, s.Patience, s.Timezone.Location
	switch {
	case s.Format != "" && !slices.Contains(simulate.Formats(), s.Format):
		return o, errors.New(unknown("format", s.Format, simulate.Formats()))
	case s.Rate < 0 || s.Rate > 1e6:
		return o, fmt.Errorf("rate: %v is no factor over 0", s.Rate)
	case s.Workers < 0:
		return o, fmt.Errorf("workers: %d workers are no pool", s.Workers)
	}
	if s.Start != "" {
		if o.Start, err = time.Parse(time.RFC3339, s.Start); err != nil {
			return o, fmt.Errorf("start: %w", err)
		}
	}
	if s.Duration > 0 {
		o.Scenario.Duration = min(s.Duration, o.Scenario.Duration)
	}
	return o, nil
}

// readRuleTests reads and checks a file of tests. Faults are told as file:line:column.
func readRuleTests(path string) (*ruleTestFile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	root, faults, err := readTree(path, text, nil)
	if err != nil {
		return nil, err
	}
	f := &ruleTestFile{path: path}
	d := &decoder{errs: faults}
	d.value(root, addressable(f))
	for i := range f.Tests {
		f.Tests[i].check(&d.errs)
	}
	return f, d.errs.sorted()
}

// check finds what no single value shows and what needs no configuration.
func (t *ruleTest) check(errs *configErrors) {
	inputs := 0
	for _, key := range []string{"simulate", "logs", "lines"} {
		if t.node.get(key) != nil {
			inputs++
		}
	}
	if inputs != 1 {
		errs.add(t.node.place(), "a test has one input: simulate, logs or lines")
	}
	if t.Name == "" {
		errs.add(t.node.place(), "a test has no name")
	}
	if t.Workers < 0 {
		errs.add(t.node.place("workers"), "workers: %d workers are no pool", t.Workers)
	}
	if len(t.Alerts)+len(t.Firing)+len(t.None)+len(t.Detections) == 0 {
		errs.add(t.node.place(), "test %q expects nothing: write alerts, firing, none or detections", t.Name)
	}
	if _, err := chooseFormat(t.Format.Type, t.Format.Decode); err != nil {
		errs.take(t.node.place("format"), "format", err)
	}
}

// checkNames finds what can never be: alerts without a rule, severities, states and detectors that do not exist.
func (t *ruleTest) checkNames(rules []string, errs *configErrors) {
	one := func(at position, what, got string, known []string) {
		if got != "" && !slices.Contains(known, got) {
			errs.add(at, "%s", unknown(what, got, known))
		}
	}
	levels := []string{string(alerts.Page), string(alerts.Warning), string(alerts.Info)}
	expected := func(e *expectedAlert) {
		if e.Alert == "" {
			errs.add(e.node.place(), "no alert is named: write alert: %s", rules[0])
		}
		one(e.node.place("alert"), "alert", e.Alert, rules)
		one(e.node.place("severity"), "severity", string(e.Severity), levels)
		one(e.node.place("state"), "state", string(e.State), []string{string(alerts.Firing), string(alerts.Resolved), string(alerts.Suppressed)})
		one(e.node.place("cause"), "verdict", string(e.Cause),
			[]string{string(alerts.Proven), string(alerts.Probable), string(alerts.Undetermined)})
	}
	for i := range t.Alerts {
		expected(&t.Alerts[i])
	}
	for i := range t.Firing {
		m := &t.Firing[i]
		one(m.node.place("alert"), "alert", m.Alert, rules)
		for j := range m.Alerts {
			if m.Alerts[j].Alert == "" {
				m.Alerts[j].Alert = m.Alert
			}
			expected(&m.Alerts[j])
		}
	}
	for i := range t.Detections {
		d := &t.Detections[i]
		if d.Detector == "" {
			errs.add(d.node.place(), "no detector is named")
		}
		one(d.node.place("detector"), "detector", d.Detector, detectors.Names())
	}
	for i, name := range t.None {
		one(t.node.get("none").item(i).at, "severity, alert or detector", name, slices.Concat(levels, rules, detectors.Names()))
	}
}

// beside gives a path of the test file as the file means it.
func (f *ruleTestFile) beside(path string) string {
	if path == "" || path == "-" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(f.path), path)
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline/source"
)

// A ruleTester runs files of rule tests and tells what came of them, as `promtool test rules` does.
type ruleTester struct {
	config   string         // for files that name none
	only     *regexp.Regexp // names of the tests to run; nil: all
	out, err io.Writer

	ran, failed int
}

// start runs the tests of all paths whose names match.
func (r *ruleTester) start(ctx context.Context, only string, paths []string) (err error) {
	if only != "" {
		if r.only, err = regexp.Compile(only); err != nil {
			return usageError(fmt.Errorf("--run: %w", err))
		}
	}
	return r.run(ctx, paths)
}

// run tests all files of the paths. What is wrong with the files is the user's; a test that fails is a failure.
func (r *ruleTester) run(ctx context.Context, paths []string) error {
	files, err := source.Expand(paths)
	if err != nil {
		return usageError(err)
	}
	var faults error
	for _, path := range files {
		if err := r.file(ctx, path); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			faults = errors.Join(faults, err)
		}
	}
	switch {
	case faults != nil:
		return usageError(faults)
	case r.ran == 0:
		return usageError(errors.New("no test was run"))
	case r.failed > 0:
		return fmt.Errorf("%d of %d rule tests failed", r.failed, r.ran)
	}
	return nil
}

// file runs the tests of one file. An error says that they could not be run.
func (r *ruleTester) file(ctx context.Context, path string) error {
	f, err := readRuleTests(path)
	if err != nil {
		return err
	}
	configs, err := r.configs(f)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "Unit Testing:  %s\n", path)
	failed := r.failed
	for i := range f.Tests {
		t := &f.Tests[i]
		if r.only != nil && !r.only.MatchString(t.Name) {
			continue
		}
		r.ran++
		faults, err := t.run(ctx, f, configs[i], r.err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			faults = append(faults, failure{t.node.place(), err.Error()})
		}
		if len(faults) == 0 {
			continue
		}
		r.failed++
		fmt.Fprintf(r.out, "  FAILED:  %s\n", t.Name)
		for _, x := range faults {
			fmt.Fprintf(r.out, "    %s: %s\n", x.at, strings.ReplaceAll(x.text, "\n", "\n      "))
		}
	}
	if r.failed == failed {
		fmt.Fprintln(r.out, "  SUCCESS")
	}
	fmt.Fprintln(r.out)
	return nil
}

// configs loads the configuration of each test, and checks the names that the tests use against it.
func (r *ruleTester) configs(f *ruleTestFile) ([]*Config, error) {
	var out []*Config
	var errs configErrors
	for i := range f.Tests {
		t := &f.Tests[i]
		path := r.config
		if f.Config != "" {
			path = f.beside(f.Config)
		}
		if t.Config != "" {
			path = f.beside(t.Config)
		}
		c, err := loadConfig(path, os.LookupEnv)
		if err != nil {
			return nil, err
		}
		if t.Workers > 0 {
			c.SiteDefaults.Pool.Workers = t.Workers
		}
		t.checkNames(ruleNames(c), &errs)
		out = append(out, c)
	}
	return out, errs.sorted()
}

// ruleNames are the rules of a configuration.
func ruleNames(c *Config) []string {
	var names []string
	for _, r := range alerts.MergeRules(c.ConfiguredRules()) {
		names = append(names, r.Name)
	}
	return names
}

// run replays the input of a test and compares what came with what the test expects.
func (t *ruleTest) run(ctx context.Context, f *ruleTestFile, c *Config, stderr io.Writer) ([]failure, error) {
	choice, err := chooseFormat(t.Format.Type, t.Format.Decode)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "squall-rule-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // what a test leaves is nobody's
	paths, start, err := t.input(ctx, f, dir)
	if err != nil {
		return nil, err
	}
	rep, err := newReplayer(c, choice, t.Site, stderr)
	if err != nil {
		return nil, err
	}
	seen := &observed{pane: c.Pane}
	rep.judge.settled = seen.settled
	if err := rep.run(ctx, paths, strings.NewReader("")); err != nil {
		return nil, err
	}
	if err := errors.Join(rep.whole(), rep.blind()); err != nil {
		return nil, err
	}
	seen.end(rep.judge.manager)
	if seen.start = start; start == 0 {
		seen.start = rep.judge.total.first
	}
	seen.last = rep.judge.closed
	return append(t.unknowable(seen), t.compare(seen)...), nil
}

// input gives the files to read, and the event time (ns) at which they begin; 0: with their first line.
func (t *ruleTest) input(ctx context.Context, f *ruleTestFile, dir string) (paths []string, start int64, err error) {
	switch {
	case t.node.get("logs") != nil:
		for _, path := range t.Logs {
			paths = append(paths, f.beside(path))
		}
		return paths, 0, nil
	case t.node.get("lines") != nil:
		path := filepath.Join(dir, "lines.log")
		return []string{path}, 0, os.WriteFile(path, []byte(t.Lines), 0o600)
	}
	o, err := t.Simulate.options()
	if err != nil {
		return nil, 0, err
	}
	path := filepath.Join(dir, t.Simulate.Scenario+".log")
	log, err := os.Create(path)
	if err != nil {
		return nil, 0, err
	}
	truth, err := simulate.Run(ctx, o, log)
	if err = errors.Join(err, log.Close()); err != nil {
		return nil, 0, fmt.Errorf("simulate %s: %w", t.Simulate.Scenario, err)
	}
	return []string{path}, truth.Start.UnixNano(), nil
}

// observed is what came of an input: alerts and detections from their beginning to their end.
type observed struct {
	start      int64 // ns: the beginning of the input
	last       int64 // ns: the end of the last pane that it has lines of
	pane       time.Duration
	alerts     []*alertLife
	detections []*detectionLife
}

// An alertLife is one alert from its beginning to its end. One that was held back and then told is one.
type alertLife struct {
	alerts.Alert       // the newest of it
	firedAt      int64 // ns: when receivers were told; 0: never
	overAt       int64 // ns: when they were told of the end; 0: never
}

// A detectionLife is one detection.
type detectionLife struct {
	detectors.Detection
	over bool
}

// settled takes what changed in one pane.
func (o *observed) settled(res *detectors.Result, transitions []alerts.Alert) {
	for _, a := range transitions {
		life := o.open(&a)
		if life == nil {
			life = &alertLife{}
			o.alerts = append(o.alerts, life)
		}
		life.Alert = a
		switch a.State {
		case alerts.Firing:
			life.firedAt = a.At
		case alerts.Resolved:
			life.overAt = a.At
		case alerts.Suppressed: // nobody is told
		}
	}
	for _, d := range res.Changes {
		i := slices.IndexFunc(o.detections, func(x *detectionLife) bool {
			return !x.over && x.Detector == d.Detector && x.Labels.String() == d.Labels.String()
		})
		if i < 0 {
			o.detections = append(o.detections, &detectionLife{d, !d.Active})
			continue
		}
		o.detections[i].Detection, o.detections[i].over = d, !d.Active
	}
}

// open finds the alert of this identity that is not over.
func (o *observed) open(a *alerts.Alert) *alertLife {
	for _, x := range o.alerts {
		if x.overAt == 0 && x.Name == a.Name && x.Severity == a.Severity && x.Labels.String() == a.Labels.String() {
			return x
		}
	}
	return nil
}

// end takes the newest evidence of what still fires.
func (o *observed) end(m *alerts.Manager) {
	for _, a := range slices.Concat(m.Active(), m.Suppressed()) {
		if life := o.open(&a); life != nil {
			life.Alert = a
		}
	}
}

// at lists the alerts that fire at an event time (ns).
func (o *observed) at(t int64) []*alertLife {
	var out []*alertLife
	for _, x := range o.alerts {
		if x.firedAt != 0 && x.firedAt <= t && (x.overAt == 0 || x.overAt > t) {
			out = append(out, x)
		}
	}
	return out
}

// offset writes an event time as the distance from the beginning of the input.
func (o *observed) offset(at int64) string {
	if at == 0 {
		return "never"
	}
	d := time.Duration(at - o.start).Round(100 * time.Millisecond)
	if d < 0 {
		return d.String()
	}
	return "+" + shortDuration(d)
}

// text tells an alert in one line, for people.
func (o *observed) text(a *alertLife) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s severity=%s state=%s starts_at=%s", a.Name, a.Labels, a.Severity, a.State, o.offset(a.StartsAt))
	if a.firedAt != 0 {
		fmt.Fprintf(&b, " fires_at=%s", o.offset(a.firedAt))
	}
	if a.Suppressed != "" {
		fmt.Fprintf(&b, " suppressed=%s", a.Suppressed)
	}
	if a.EndsAt != 0 {
		fmt.Fprintf(&b, " ends_at=%s", o.offset(a.EndsAt))
	}
	fmt.Fprintf(&b, " cause=%s", a.Cause.Verdict)
	return alerts.Escape(b.String())
}

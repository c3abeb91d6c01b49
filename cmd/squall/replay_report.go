package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/report"
	"github.com/squall-sre/squall/detectors"
)

// reportFiles are where a replay writes its report: in which form to which file, - for standard output.
type reportFiles struct{ html, markdown, json string }

// reportForms are the forms of a report.
var reportForms = []struct {
	flag  string
	file  func(*reportFiles) string
	write func(*report.Report, io.Writer) error
}{
	{"html", func(f *reportFiles) string { return f.html }, (*report.Report).WriteHTML},
	{"markdown", func(f *reportFiles) string { return f.markdown }, (*report.Report).WriteMarkdown},
	{"report-json", func(f *reportFiles) string { return f.json }, (*report.Report).WriteJSON},
}

// wanted tells whether there is anything to write.
func (f *reportFiles) wanted() bool { return *f != reportFiles{} }

// check makes sure that standard output gets one thing: a report, or the transcript.
func (f *reportFiles) check(transcript string) error {
	n := 0
	for _, name := range []string{f.html, f.markdown, f.json, transcript} {
		if name == "-" {
			n++
		}
	}
	if n > 1 {
		return usageError(errors.New("standard output can take one of --json, --html, --markdown and --report-json"))
	}
	return nil
}

// toStdout tells whether a report takes standard output.
func (f *reportFiles) toStdout() bool {
	return slices.Contains([]string{f.html, f.markdown, f.json}, "-")
}

// collect lets a collector see what a judge settles, besides what sees it already.
func (f *reportFiles) collect(c *Config, j *judge) *report.Collector {
	if !f.wanted() {
		return nil
	}
	j.engine.TellSpans()
	collector := report.New(report.Config{Pane: c.Pane})
	before := j.settled
	j.settled = func(res *detectors.Result, transitions []alerts.Alert) {
		before(res, transitions)
		collector.Observe(res, transitions)
	}
	return collector
}

// write makes the report and writes it in each form that is wanted.
func (f *reportFiles) write(collector *report.Collector, c *Config, j *judge, stdout io.Writer) error {
	if collector == nil {
		return nil
	}
	settings, err := c.Effective()
	if err != nil {
		return err
	}
	r := collector.Report(report.Rest{
		Active: append(j.manager.Active(), j.manager.Suppressed()...), Open: j.engine.Open(), Pool: j.engine.Pool,
		Input: j.total.input(), Settings: string(settings),
	})
	var all []error
	for _, form := range reportForms {
		if name := form.file(f); name != "" {
			if err := writeTo(name, stdout, func(w io.Writer) error { return form.write(r, w) }); err != nil {
				all = append(all, fmt.Errorf("--%s: %w", form.flag, err))
			}
		}
	}
	return errors.Join(all...)
}

// writeTo writes a file, or standard output for -.
func writeTo(name string, stdout io.Writer, write func(io.Writer) error) error {
	if name == "-" {
		return write(stdout)
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(file)
	return errors.Join(write(out), out.Flush(), file.Close())
}

// input is the tally as a report tells it.
func (t *tally) input() report.Input {
	in := report.Input{Lines: t.lines, Parsed: t.parsed, Failed: t.failed, Late: t.late, Bytes: t.bytes, Sources: []report.Source{}}
	for _, h := range t.sources() {
		s := report.Source{Name: h.Source, Requests: h.Requests}
		for _, q := range h.Silent {
			s.Silent = append(s.Silent, report.Between(q))
		}
		in.Sources = append(in.Sources, s)
	}
	for _, g := range t.gaps {
		in.Gaps = append(in.Gaps, report.Gap{Source: g.Input, At: g.At, Reason: g.Reason, Bytes: g.Bytes})
	}
	return in
}

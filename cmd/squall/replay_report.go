package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/report"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
)

// reportFiles are where a replay writes its report, in which form to which file, - for standard output, and what it is
// told beside the logs.
type reportFiles struct {
	html, markdown, json string

	earlier []string // where incidents of before are kept: reports, or a daemon's URL
	marks   []string // TIME TEXT
}

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
func (f *reportFiles) wanted() bool { return f.html+f.markdown+f.json != "" }

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
func (f *reportFiles) collect(c *Config, rep *replayer) *report.Collector {
	if !f.wanted() {
		return nil
	}
	j := rep.judge
	collector := report.New(report.Config{Pane: c.Pane})
	j.watch = func(r *pipeline.Record) {
		if rep.edge && r.End >= rep.within.since {
			collector.Record(r)
		}
	}
	before := j.settled
	j.settled = func(res *detectors.Result, transitions []alerts.Alert) {
		before(res, transitions)
		collector.Observe(res, transitions)
	}
	return collector
}

// write makes the report and writes it in each form that is wanted.
func (f *reportFiles) write(ctx context.Context, collector *report.Collector, c *Config, j *judge, stdout io.Writer) error {
	if collector == nil {
		return nil
	}
	settings, err := c.Effective()
	if err != nil {
		return err
	}
	known, err := f.known(ctx)
	if err != nil {
		return err
	}
	open := j.engine.Open()
	j.ledger.Spans(open, nil)
	r := collector.Report(report.Rest{
		Active: append(j.manager.Active(), j.manager.Suppressed()...), Open: open, Pool: j.engine.Pool,
		Input: j.total.input(), Settings: string(settings), Ledger: j.ledger.Entries(), Earlier: known.entries, Marks: known.marks,
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

// known reads what is known from before, and what was noted.
func (f *reportFiles) known(ctx context.Context) (*book, error) {
	b := &book{}
	for _, from := range f.earlier {
		if strings.HasPrefix(from, "http://") || strings.HasPrefix(from, "https://") {
			daemon, err := (&daemonFlags{url: from}).client(nil)
			if err == nil {
				err = b.ask(ctx, daemon)
			}
			if err != nil {
				return nil, fmt.Errorf("--compare: %w", err)
			}
			continue
		}
		list, err := b.reported(from)
		if err != nil {
			return nil, fmt.Errorf("--compare: %w", err)
		}
		b.entries = append(b.entries, list...)
	}
	marks := b.marks
	b.marks = nil
	for _, text := range f.marks {
		at, what, _ := strings.Cut(text, " ")
		m := alerts.Mark{Text: what, Source: "replay"}
		err := m.At.UnmarshalText([]byte(at))
		if err == nil {
			m, err = m.Clean()
		}
		if err != nil {
			return nil, usageError(fmt.Errorf("--annotate %q is no time (RFC 3339) and text: %w", text, err))
		}
		marks = append(marks, m)
	}
	for _, m := range marks {
		b.marks = alerts.AddMark(b.marks, m)
	}
	return b, nil
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

package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// WriteMarkdown writes the report for a ticket: the same content without the timelines. What lines told stands in code
// spans, escaped.
func (r *Report) WriteMarkdown(w io.Writer) error {
	m := markdown{bufio.NewWriter(w), map[alerts.Advice]bool{}}
	m.line("# Incident report\n\n**%s**\n", plain(r.Verdict.Sentence))
	if fix := r.Verdict.Fix; fix != nil {
		m.advice("Fix, in "+layerText(fix.Layer), fix)
	}
	for i := range r.Verdict.Others {
		m.advice("Also, in "+layerText(r.Verdict.Others[i].Layer), &r.Verdict.Others[i])
	}
	if r.Verdict.Cause != "" {
		m.line("**Cause:** %s\n", plain(r.Verdict.Cause))
	}
	for _, x := range r.Marks {
		m.line("- noted %s: %s", x.At, plain(x.Text))
	}
	m.layers(r.Layers)
	for i := range r.Incidents {
		m.incident(i+1, &r.Incidents[i])
	}
	m.list("What is undetermined, and which data is missing", r.Missing)
	if len(r.Next) > 0 {
		m.line("## Next commands\n")
		for _, c := range r.Next {
			m.line("- %s\n  `%s`", plain(c.Why), code(c.Line))
		}
		m.line("")
	}
	m.input(r)
	return m.Flush()
}

type markdown struct {
	*bufio.Writer
	told map[alerts.Advice]bool // each stands once: the alerts of an incident have the same
}

func (m markdown) advice(title string, a *alerts.Advice) {
	if m.told[*a] {
		m.line("**%s:** as above: %s\n", title, plain(gist(a.Text)))
		return
	}
	m.told[*a] = true
	m.line("**%s:** %s\n", title, plain(a.Text))
	m.snippet(a.Snippet)
	m.verify(a.Verify)
}

// line leaves an error to the end: bufio.Writer keeps it, and Flush returns it.
func (m markdown) line(format string, args ...any) { _, _ = fmt.Fprintf(m, format+"\n", args...) }

func (m markdown) list(title string, items []string) {
	if len(items) == 0 {
		return
	}
	m.line("## %s\n", title)
	for _, s := range items {
		m.line("- %s", plain(s))
	}
	m.line("")
}

// snippet writes our own text in a fence that no line of it can end.
func (m markdown) snippet(s string) {
	if s == "" {
		return
	}
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	m.line("%s\n%s\n%s\n", fence, s, fence)
}

func (m markdown) verify(s string) {
	if s != "" {
		m.line("Verify: %s\n", plain(s))
	}
}

func (m markdown) incident(n int, in *Incident) {
	m.line("## Incident %d: %s, %s\n", n, plain(in.Where()), in.Severity)
	m.line("From %s to %s%s. `%s`\n", in.From, in.To, ongoing(in), code(in.ID))
	for _, x := range in.Members {
		m.line("- %s %s on %s%s", x.Onset, x.Detector, plain(x.About), plain(because(&x)))
	}
	m.line("")
	if in.Compared != nil {
		m.line("**The last fix** (against `%s`):\n", code(in.Compared.Earlier))
		for _, line := range in.Compared.Lines() {
			m.line("- %s", plain(line))
		}
		m.line("")
	}
	for _, x := range in.Merged {
		m.line("Merged with `%s` at %s: %s\n", code(x.ID), x.At, plain(x.Because))
	}
	for _, a := range in.Apart {
		m.line("Not merged with `%s`: %s\n", code(a.ID), plain(a.Because))
	}
	for i := range in.Windows {
		m.window(&in.Windows[i])
	}
	for i := range in.Alerts {
		m.alert(&in.Alerts[i])
	}
}

func (m markdown) layers(list []Layers) {
	for i := range list {
		m.line("## Edge and origin of %s\n", plain(list[i].Site))
		for _, s := range list[i].Says {
			m.line("- %s", plain(s))
		}
		m.line("")
	}
}

func ongoing(in *Incident) string {
	if in.Ongoing {
		return ", not over when the log ended"
	}
	return ""
}

func because(x *Member) string {
	s := ""
	if x.After != "" {
		s = ", after " + x.After
	}
	if x.Because != "" {
		s += ": " + x.Because
	}
	return s
}

func (m markdown) window(w *Window) {
	m.line("### Requests of %s from %s to %s\n", plain(w.Site), w.From, w.To)
	m.line("| %s |", strings.Join(classColumns, " | "))
	m.line("|%s", strings.Repeat(" --- |", len(classColumns)))
	for i := range w.Classes {
		var cells []string
		for _, c := range w.Classes[i].cells() {
			cells = append(cells, plain(c))
		}
		m.line("| %s |", strings.Join(cells, " | "))
	}
	if w.Left > 0 {
		m.line("\n%s", left(w.Left))
	}
	m.line("")
	for i := range w.Classes {
		if c := &w.Classes[i]; len(c.Advice) > 0 {
			m.line("`%s`: %s. Facts: %s.\n", code(c.Name()), c.Rule, plain(c.Why))
			for j := range c.Advice {
				m.advice("In "+layerText(c.Advice[j].Layer), &c.Advice[j])
			}
		}
	}
	m.line("What the usual dashboards showed:\n")
	for _, p := range w.Dashboards {
		m.line("- %s: %s%s", p.Name, plain(p.Showed), green(&p))
	}
	m.line("\nTimeouts, as durations tell: %s\n", strings.ReplaceAll(w.Timeouts.Verdict, "_", " "))
	for _, f := range w.Timeouts.Found {
		m.line("- %s: %s s (%s)", f.Layer, f.Seconds, f.From)
	}
	for _, s := range w.Timeouts.Faults {
		m.line("- out of order: %s", s)
	}
	for _, s := range w.Timeouts.Suspected {
		m.line("- %s", s)
	}
	m.line("")
}

func green(p *Panel) string {
	if p.Silent {
		return " (green)"
	}
	return ""
}

func (m markdown) alert(a *Alert) {
	m.line("### %s (%s) on %s\n", plain(a.Name), a.Severity, plain(a.About))
	m.line("Cause (%s): %s\n", a.Cause.Verdict, plain(a.Cause.Text))
	for _, s := range a.Cause.Missing {
		m.line("- missing: %s", plain(s))
	}
	for _, d := range a.Evidence.Discriminators {
		m.line("- by %s (%s): catches %s, hits %s of the rest", d.By, plain(strings.Join(d.Keys, ", ")), interval(d.CaughtLower, d.CaughtUpper), interval(d.FalseLower, d.FalseUpper))
	}
	for _, c := range a.Evidence.RuleCoverage {
		m.line("- rule in place `%s`: would have caught %s of the damage", code(c.Rule), interval(c.Lower, c.Upper))
	}
	if len(a.Advice) > 0 {
		m.line("")
	}
	for i := range a.Advice {
		m.advice("In "+layerText(a.Advice[i].Layer), &a.Advice[i])
	}
	if len(a.Evidence.Samples) > 0 {
		m.line("Samples:\n")
		for _, s := range a.Evidence.Samples {
			m.line("- `%s`", code(s))
		}
	}
	m.line("")
}

func interval(lower, upper detectors.Num) string {
	low, high := alerts.Percent(lower.Get()), alerts.Percent(upper.Get())
	if low == high {
		return low
	}
	return low + " to " + high
}

func (m markdown) input(r *Report) {
	in := &r.Input
	m.line("## What this rests on\n")
	m.line("%s lines, %s understood, from %s to %s.\n", alerts.Number(float64(in.Lines)), alerts.Number(float64(in.Parsed)), r.From, r.To)
	for _, s := range in.Sources {
		m.line("- `%s`: %s requests%s", code(s.Name), alerts.Number(float64(s.Requests)), silences(s.Silent))
	}
	for _, g := range in.Gaps {
		m.line("- `%s`: lines lost at %s (%s)", code(g.Source), g.At, plain(g.Reason))
	}
}

func silences(list []Between) string {
	var b strings.Builder
	for _, s := range list {
		to := "the end"
		if s.To != nil {
			to = *s.To
		}
		b.WriteString("; silent from " + s.From + " to " + to)
	}
	return b.String()
}

// plain makes text from a log stand in Markdown as it is: no markup, no HTML, no table cell of its own.
func plain(s string) string {
	var b strings.Builder
	for _, r := range alerts.Escape(s) {
		if strings.ContainsRune("\\`*_[]<>|#~&!", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// code makes text stand within a code span.
func code(s string) string { return strings.ReplaceAll(alerts.Escape(s), "`", "'") }

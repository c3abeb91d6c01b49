package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/squall-sre/squall/alerts"
)

// shortHistory is how many minutes of a site are too few to tell what is usual: a day.
const shortHistory = 24 * 60

// text writes for people what was found.
func (t *tuned) text(b *bytes.Buffer) {
	if t.First != nil {
		fmt.Fprintf(b, "%s to %s, %s lines\n", *t.First, *t.Last, alerts.Number(float64(t.Lines)))
	}
	for i := range t.Sites {
		t.Sites[i].text(b)
	}
	if t.Left {
		b.WriteString("\nthere are more sites: those seen first are told of\n")
	}
	b.WriteString("\nOn this history\n")
	t.Now.text(b, "with the thresholds in effect")
	if t.Changed {
		t.Then.text(b, "with those proposed")
	}
	b.WriteString("\n# For the configuration: where it lists the site, the detectors belong below that entry.\n")
	b.WriteString(t.Config)
}

func (s *tunedSite) text(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n%s: %s requests in %s minutes", alerts.Escape(s.Site), alerts.Number(float64(s.Requests)), alerts.Number(float64(s.Minutes)))
	switch {
	case s.EverHurt:
		fmt.Fprintf(b, "; in %d of them a page fired, so many that they count as usual: is it hurt all the time, or are thresholds too low?", s.Hurt)
	case s.Hurt > 0:
		fmt.Fprintf(b, "; in %d of them clients were hurt, and nothing was learned from these", s.Hurt)
	}
	b.WriteByte('\n')
	if s.Minutes < shortHistory {
		b.WriteString("  the history is short: less than a day of minutes. What happens once a day or a week is not known\n")
	}
	approx := ""
	if s.Agents.Approximate {
		approx = "≈ "
	}
	fmt.Fprintf(b, "  agents: %s%s distinct\n", approx, alerts.Number(float64(s.Agents.Distinct)))
	for _, a := range s.Agents.People[:min(len(s.Agents.People), 3)] {
		fmt.Fprintf(b, "    people: %s in the minute of %s: %s\n", alerts.Number(float64(a.PerMinute)), *a.At, cutTo(a.Agent, 100))
	}
	for _, a := range s.Agents.Scanners[:min(len(s.Agents.Scanners), 3)] {
		fmt.Fprintf(b, "    scanner: %s in its busiest minute: %s\n", alerts.Number(float64(a.PerMinute)), cutTo(a.Agent, 100))
	}
	switch x := s.Throttle; {
	case x == nil && len(s.Agents.People) == 0:
		b.WriteString("  throttle: none; no agent that may be people's was seen\n")
	case x == nil:
		b.WriteString("  throttle: none; no limit lies over people and below the scanner\n")
	default:
		fmt.Fprintf(b, "  throttle: %s a minute for each agent, with 429 and Retry-After: %s times the %d of people", alerts.Number(x.PerMinute),
			alerts.Number(x.Margin), x.PeopleMost)
		if x.ScannerMost > 0 {
			fmt.Fprintf(b, "; a scanner had %s", alerts.Number(float64(x.ScannerMost)))
		}
		fmt.Fprintf(b, "; %d agents of people are above it\n", x.PeopleReached)
	}
	if s.BusyUsual > 0 {
		fmt.Fprintf(b, "  workers: %s busy at the most that is usual", alerts.Number(s.BusyUsual))
		if s.Pool > 0 {
			fmt.Fprintf(b, ", of %d", s.Pool)
		} else {
			b.WriteString("; the pool is not known (pool.workers)")
		}
		b.WriteByte('\n')
	}
	if len(s.Usual) > 0 {
		b.WriteString("  usual, requests a minute:\n")
		for _, r := range s.Usual {
			fmt.Fprintf(b, "    %9s  %s %s\n", alerts.Number(r.PerMinute), r.Method, cutTo(r.Route, 100))
		}
	}
	b.WriteString("  thresholds:\n")
	for _, l := range s.Limits {
		fmt.Fprintf(b, "    %-27s now %s, proposed %s: %s\n", l.Detector+"."+l.Setting, alerts.Number(l.Now), alerts.Number(l.Proposed), l.Why)
	}
}

func (f *firedAlerts) text(b *bytes.Buffer, with string) {
	fmt.Fprintf(b, "  %s: %d page, %d warning, %d info\n", with, f.Page, f.Warning, f.Info)
	for _, a := range f.List {
		fmt.Fprintf(b, "    %s [%s] %s %s\n", a.At, a.Severity, a.Alert, strings.TrimSpace(a.Labels))
	}
	if f.Left > 0 {
		fmt.Fprintf(b, "    and %d more\n", f.Left)
	}
}

// cutTo shortens a text that is escaped already.
func cutTo(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

package report

import (
	"fmt"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// window makes the table of a span, with who should answer each class.
func window(s *detectors.Span, of []Alert) Window {
	w := Window{Site: s.Site, From: Time(s.From), To: Time(s.To), Total: s.Total, Left: s.Left, Classes: []Class{}}
	w.Total.Samples, w.Total.TopRoutes = nil, nil
	for _, c := range s.Classes {
		advice := alerts.AdviseClass(s, c)
		row := Class{
			Method: c.Method, Route: c.Route, Origin: c.Origin.String(), Evidence: c.Evidence, Cache: c.Cache,
			Rule: advice.Rule, Why: advice.Why, Advice: advice.Advice,
		}
		if len(advice.Advice) > 0 {
			row.Answer = advice.Advice[0].Layer
		}
		w.Classes = append(w.Classes, row)
	}
	oneRule(w.Classes)
	w.Dashboards = dashboards(s)
	w.Timeouts = timeouts(s, of)
	return w
}

// oneRule gives the classes whose HEADs are to be answered in front one rule: two that differ in a path only are one in a
// firewall, and one location after the other in nginx.
func oneRule(classes []Class) {
	var routes []string
	var of []*Class
	for i := range classes {
		if c := &classes[i]; alerts.AnswersHead(c.Rule) {
			routes, of = append(routes, c.Route), append(of, c)
		}
	}
	if len(of) < 2 {
		return
	}
	waf, nginx := alerts.HeadSnippets(routes...)
	for _, c := range of {
		for j := range c.Advice {
			switch a := &c.Advice[j]; a.Layer {
			case "waf":
				a.Snippet = waf
			case "nginx":
				a.Snippet = nginx
			}
		}
	}
}

// dashboards says what the panels that most teams watch showed meanwhile.
func dashboards(s *detectors.Span) []Panel {
	t, p := &s.Total, &s.Probes
	requests, errors := t.Requests.Get(), t.Errors5xx.Get()
	panels := []Panel{{
		"answers 5xx",
		fmt.Sprintf("%s of %s requests (%s)", alerts.Number(errors), alerts.Number(requests), alerts.Percent(ratio(errors, requests))),
		ratio(errors, requests) < 0.01,
	}}
	if checks := p.Requests.Get(); checks > 0 {
		ok := float64(p.Status["200"] + p.Status["204"])
		panels = append(panels, Panel{
			"health checks", fmt.Sprintf("%s of %s answered 200", alerts.Number(ok), alerts.Number(checks)), ratio(ok, checks) > 0.95,
		})
	}
	panels = append(panels, Panel{"requests a minute", alerts.Number(t.RequestsPerMinute.Get()) + usualText(s) + busyText(s), calmRate(s)})
	if n := t.Abandoned.Get(); n > 0 {
		panels = append(panels, Panel{
			"clients that gave up",
			fmt.Sprintf("%s of %s requests (%s): no status 5xx, and on most dashboards no panel at all (CloudWatch has no metric of its own for 460)",
				alerts.Number(n), alerts.Number(requests), alerts.Percent(ratio(n, requests))), false,
		})
	}
	return panels
}

// busyText says what the rate of requests hides.
func busyText(s *detectors.Span) string {
	if !s.Total.BusyWorkersUpper.Known() || s.Pool.Workers == 0 {
		return ""
	}
	text := fmt.Sprintf("; on the mean %s requests held or waited for one of %d workers",
		seconds(s.Total.BusyWorkersLower, s.Total.BusyWorkersUpper), s.Pool.Workers)
	if s.Total.BusyWorkersUpper.Get() > float64(s.Pool.Workers) {
		text += ", which an autoscaler on requests does not see"
	}
	return text
}

// calmRate tells that the rate of all requests was no multiple of what is usual: an alarm on it stays silent.
func calmRate(s *detectors.Span) bool {
	r := s.Total.BaselineRatio
	return r.Known() && r.Get() < unusual
}

// unusual is the multiple of the usual rate at which an alarm may be set.
const unusual = 3

func usualText(s *detectors.Span) string {
	if !s.Total.BaselinePerMinute.Known() {
		return ""
	}
	return ", usual are " + alerts.Number(s.Total.BaselinePerMinute.Get())
}

func ratio(n, of float64) float64 {
	if !(of > 0) {
		return 0
	}
	return n / of
}

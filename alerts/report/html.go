package report

import (
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

//go:embed report.html
var pageText string

// page is the template of the report. Text from logs passes through visible or code, which leave no hidden character, and
// through the template's own escaping.
var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"visible": alerts.Escape, "code": lines, "number": number, "percent": share, "interval": interval,
	"span": span, "layer": layerText, "columns": func() []string { return classColumns }, "methods": func() []string { return methods[:] },
	"because": func(m Member) string { return because(&m) }, "silences": silences, "words": func(s string) string { return strings.ReplaceAll(s, "_", " ") },
	"gist": gist, "left": left, "clock": clock, "lines": (*alerts.Comparison).Lines, "at": func(t alerts.Instant) string { return clock(Time(t)) }, "count": func(n uint64) string { return alerts.Number(float64(n)) },
}).Parse(pageText))

// lines is alerts.Escape for our own text of several lines: the line ends stay.
func lines(s string) string {
	list := strings.Split(s, "\n")
	for i, l := range list {
		list[i] = alerts.Escape(l)
	}
	return strings.Join(list, "\n")
}

func clock(t Time) string { return time.Unix(0, int64(t)).UTC().Format(time.DateTime) + " UTC" }

// htmlSites is how many sites without an incident have a chart on the page.
const htmlSites = 3

// A view is a Report with what the page shows beside it.
type view struct {
	*Report
	Facts     []fact
	Overviews []picture
	Incidents []incidentView
}

// fact is one of the numbers of the first screen.
type fact struct{ Name, Value string }

// picture is a chart with the table of its numbers.
type picture struct {
	Title string
	SVG   template.HTML
	Rows  []tableRow
}

type incidentView struct {
	*Incident
	Number  int
	Windows []windowView
}

type windowView struct {
	*Window
	Rows [][]string
	Zoom picture
}

// WriteHTML writes the report as one page that needs nothing else: no script, no network, no font. Its charts are inline
// SVG, and each has a table of its numbers.
func (r *Report) WriteHTML(w io.Writer) error {
	v := view{Report: r, Facts: r.facts()}
	var shaded []Detection
	for i := range r.Incidents {
		shaded = append(shaded, Detection{From: r.Incidents[i].From, To: r.Incidents[i].To})
	}
	others := 0
	for i := range r.Sites {
		s := &r.Sites[i]
		if !r.concerns(s.Site) {
			if others++; others > htmlSites {
				continue
			}
		}
		v.Overviews = append(v.Overviews, r.picture(s, fmt.Sprintf("o%d", i), r.From, r.To, shaded))
	}
	for i := range r.Incidents {
		v.Incidents = append(v.Incidents, r.incidentView(i))
	}
	return page.Execute(w, v)
}

// concerns tells whether an incident is about a site.
func (r *Report) concerns(site string) bool {
	for i := range r.Incidents {
		for _, s := range r.Incidents[i].Sites {
			if s == site {
				return true
			}
		}
	}
	return false
}

func (r *Report) picture(s *Series, id string, from, to Time, shaded []Detection) picture {
	title := "Timeline of " + s.Site + " " + span(from, to)
	d := drawing{series: s, from: from, to: to, detected: r.Detected, shaded: shaded, id: id, title: title, gaps: r.Input.Gaps, marks: r.Marks, restarts: r.Restarts}
	for _, source := range r.Input.Sources {
		d.silent = append(d.silent, source.Silent...)
	}
	return picture{Title: title, SVG: draw(d), Rows: chartTable(s, from, to)}
}

func (r *Report) incidentView(i int) incidentView {
	in := &r.Incidents[i]
	v := incidentView{Incident: in, Number: i + 1}
	for j := range in.Windows {
		w := &in.Windows[j]
		x := windowView{Window: w}
		for k := range w.Classes {
			x.Rows = append(x.Rows, w.Classes[k].cells())
		}
		for k := range r.Sites {
			if r.Sites[k].Site == w.Site {
				from, to := pad(w.From, w.To, r)
				series := &r.Sites[k]
				if w.Series != nil && w.Series.Len() > 0 { // pane by pane
					series, from, to = w.Series, max(from, w.Series.Start), min(to, w.Series.At(w.Series.Len()))
				}
				x.Zoom = r.picture(series, fmt.Sprintf("z%d-%d", i, j), from, to, []Detection{{From: w.From, To: w.To}})
			}
		}
		v.Windows = append(v.Windows, x)
	}
	return v
}

// facts are the numbers of the first screen, of the worst incident.
func (r *Report) facts() []fact {
	if len(r.Incidents) == 0 {
		return nil
	}
	in := &r.Incidents[0]
	out := []fact{{"lasted", time.Duration(in.To - in.From).Round(time.Second).String()}}
	if r.Verdict.GivenUp.Known() {
		out = append(out, fact{"requests given up", number(r.Verdict.GivenUp)})
	}
	if len(in.Windows) > 0 {
		t := &in.Windows[0].Total
		var errors, requests float64 // of all sites, as those that were given up
		for i := range in.Windows {
			errors, requests = errors+in.Windows[i].Total.Errors5xx.Get(), requests+in.Windows[i].Total.Requests.Get()
		}
		out = append(out, fact{"answered 5xx", number(detectors.N(errors)) + " of " + number(detectors.N(requests))})
		if t.PoolWorkers.Known() && t.BusyWorkersUpper.Known() {
			of := ""
			if len(in.Sites) > 1 {
				of = " of " + alerts.Escape(in.Windows[0].Site)
			}
			out = append(out, fact{"at " + number(t.PoolWorkers) + " workers" + of + ", on the mean", seconds(whole(t.BusyWorkersLower), whole(t.BusyWorkersUpper)) + " requests"})
		}
		return out
	}
	for i := range in.Alerts {
		if e := &in.Alerts[i].Evidence; e.Restarts.Known() {
			return append(out, fact{"containers restarted", number(e.Restarts)}, fact{"on nodes", number(e.Nodes)}, fact{"in namespaces", number(e.Namespaces)})
		}
	}
	return out
}

// whole rounds what is above 100: on the first screen a tenth says nothing.
func whole(n detectors.Num) detectors.Num {
	if n.Get() > 100 {
		return detectors.N(float64(int(n.Get() + 0.5)))
	}
	return n
}

package main

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/report"
	"github.com/squall-sre/squall/pipeline"
)

//go:embed page
var pageFiles embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"visible": alerts.Escape, // html/template escapes markup; this shows control and bidirectional characters
	"lines":   visibleLines,
	"split":   func(s string) []string { return strings.Split(s, "\n") },
	"time":    func(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) },
}).ParseFS(pageFiles, "page/page.html"))

// pageParts are the templates of what changes, which are the IDs of their places too.
var pageParts = []string{"status", "alerts", "sites", "incidents", "sources", "delivery"}

// pageAssets are the files that the page asks for, by name.
var pageAssets = map[string]struct{ file, kind string }{
	"page.css":          {"page/page.css", "text/css; charset=utf-8"},
	"page.js":           {"page/page.js", "text/javascript; charset=utf-8"},
	"icon.svg":          {"page/icon.svg", "image/svg+xml"},
	"uPlot.min.css":     {"page/uplot/uPlot.min.css", "text/css; charset=utf-8"},
	"uPlot.iife.min.js": {"page/uplot/uPlot.iife.min.js", "text/javascript; charset=utf-8"},
	"uPlot.LICENSE":     {"page/uplot/LICENSE", "text/plain; charset=utf-8"},
}

// visibleLines makes a text of ours with several lines visible, its line ends kept.
func visibleLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = alerts.Escape(l)
	}
	return strings.Join(lines, "\n")
}

// A pageData is what the page shows.
type pageData struct {
	Now, Says   string
	Alerts      []shownAlert
	Sites       []shownSite
	Incidents   []shownIncident
	Earlier     []shownEntry
	Marks       []alerts.Mark // the newest first
	Sources     []shownSource
	MoreSources int
	Blind       []pipeline.InputState
	Delivery    []shownFigure
	NotReady    error
}

type shownAlert struct {
	alerts.Alert
	ID   string
	Open bool // its evidence and advice are shown at once: those of the most urgent alone, or nobody finds the charts
}

// shownSite is a row of the table of sites, in words.
type shownSite struct{ Site, Requests, Heads, Abandoned, Errors, Limited, P99, Busy string }

type shownIncident struct {
	*alerts.Incident
	Key, What string
	From, To  int64 // ns
	Ongoing   bool
}

// shownEntry is an incident of the ledger of which no alert is shown any more.
type shownEntry struct {
	Key, Says, Fix string
	Lines          []string
}

type shownSource struct {
	pipeline.InputState
	Age string
}

type shownFigure struct {
	Name, Value string
	Bad         bool
}

// What the page shows at most.
const (
	mostBlind   = 10  // sources named above the alerts; the table has more
	mostSources = 500 // rows
	mostSites   = 20  // rows
	mostCharted = 4   // sites with charts
	mostEarlier = 10  // incidents that are over
	mostMarks   = 20  // annotations
	markText    = 200 // bytes of one
)

// data gathers what the page shows.
func (c *webServerConfig) data(live []report.Series) *pageData {
	list, sources := slices.Clone(c.State.Alerts()), c.State.Sources()
	slices.SortStableFunc(list, func(a, b alerts.Alert) int { return cmp.Compare(urgency(&a), urgency(&b)) })
	d := &pageData{
		Now: time.Now().UTC().Format(time.RFC3339), Blind: blind(sources), NotReady: c.State.Ready(), Incidents: shownIncidents(list),
		MoreSources: max(len(sources)-mostSources, 0),
	}
	for i, a := range list {
		h := fnv.New64a()
		_, _ = fmt.Fprint(h, a.Name, a.Labels.String(), a.StartsAt)
		d.Alerts = append(d.Alerts, shownAlert{a, fmt.Sprintf("a%x", h.Sum64()), i == 0 && a.State == alerts.Firing})
	}
	d.Says = summed(list)
	marks := c.State.Marks()
	d.Earlier = earlier(c.State.Incidents(), d.Incidents, marks)
	d.Marks = slices.Clone(marks[max(len(marks)-mostMarks, 0):])
	slices.Reverse(d.Marks)
	for i := range d.Marks {
		if m := &d.Marks[i]; len(m.Text) > markText {
			m.Text = m.Text[:markText] + "…"
		}
	}
	f := gathered(c.Gatherer)
	for _, s := range sources[:min(len(sources), mostSources)] {
		x := shownSource{InputState: s, Age: "–"}
		if s.Behind {
			x.Age = duration(f.of("squall_source_lag_seconds", s.Input))
		}
		d.Sources = append(d.Sources, x)
	}
	for i := range live[:min(len(live), mostSites)] {
		d.Sites = append(d.Sites, lastMinute(&live[i]))
	}
	d.Delivery = f.delivery(c.State.Loki())
	return d
}

// urgency orders alerts: those that fire, the worst first, then what is held back, then what is over.
func urgency(a *alerts.Alert) int {
	switch a.State {
	case alerts.Firing:
		return len(severities) - slices.Index(severities, a.Severity)
	case alerts.Suppressed:
		return len(severities) + 1
	}
	return len(severities) + 2
}

// summed tells in a sentence what fires.
func summed(list []alerts.Alert) string {
	n := firingOf(list)
	if n[alerts.Page]+n[alerts.Warning]+n[alerts.Info] == 0 {
		return "No alert fires."
	}
	return fmt.Sprintf("Firing: %d page, %d warning, %d info.", n[alerts.Page], n[alerts.Warning], n[alerts.Info])
}

func firingOf(list []alerts.Alert) map[alerts.Severity]int {
	n := map[alerts.Severity]int{}
	for i := range list {
		if list[i].State == alerts.Firing {
			n[list[i].Severity]++
		}
	}
	return n
}

// blind gives the sources in which nothing can be detected, though they are not broken: no alert is no quiet day there.
func blind(sources []pipeline.InputState) (out []pipeline.InputState) {
	for _, s := range sources {
		if (s.State == stateMisfit || s.State == pipeline.StateUnmatched) && len(out) < mostBlind {
			out = append(out, s)
		}
	}
	return out
}

// shownIncidents gives the incidents that the alerts are of, those that are on first, then the newest.
func shownIncidents(list []alerts.Alert) []shownIncident {
	var out []shownIncident
	for i := range list {
		a := &list[i]
		if a.Incident == nil {
			continue
		}
		k := slices.IndexFunc(out, func(x shownIncident) bool { return x.ID == a.Incident.ID })
		if k < 0 {
			k = len(out)
			out = append(out, shownIncident{Incident: a.Incident, From: a.Incident.StartsAt})
		}
		x := &out[k]
		if len(a.Incident.Members) > len(x.Members) {
			x.Incident = a.Incident
		}
		x.Ongoing = x.Ongoing || a.State != alerts.Resolved
		x.To = max(x.To, a.EndsAt)
		if name := a.Name + " " + a.Labels.String(); !strings.Contains(x.What, name) {
			x.What = strings.TrimPrefix(x.What+", "+name, ", ")
		}
	}
	for i := range out {
		h := fnv.New64a()
		_, _ = h.Write([]byte(out[i].ID))
		out[i].Key = fmt.Sprintf("i%x", h.Sum64())
	}
	slices.SortStableFunc(out, func(a, b shownIncident) int {
		if a.Ongoing != b.Ongoing {
			if a.Ongoing {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.From, a.From)
	})
	return out
}

// earlier gives what the ledger knows beside the incidents whose alerts are shown, with what became of the fix of the one
// before.
func earlier(known []alerts.Entry, shown []shownIncident, marks []alerts.Mark) (out []shownEntry) {
	for i := range known {
		e := &known[i]
		if len(out) == mostEarlier || slices.ContainsFunc(shown, func(x shownIncident) bool { return x.ID == e.ID }) {
			continue
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(e.ID))
		x := shownEntry{Key: fmt.Sprintf("e%x", h.Sum64()), Lines: e.Lines()}
		x.Says = fmt.Sprintf("%s to %s: %s %s", e.From, e.To, strings.Join(e.Sites, ", "), strings.TrimSpace(e.Lead+" "+e.Requests))
		if n := e.Numbers.Abandoned; n.Get() > 0 {
			x.Says += "; " + alerts.Number(n.Get()) + " gave up"
		}
		if before := e.Earlier(known); before != nil {
			x.Fix = string(alerts.Compare(before, e, marks).Verdict)
		}
		out = append(out, x)
	}
	return out
}

// lastMinute is the row of a site.
func lastMinute(s *report.Series) shownSite {
	n := s.Len()
	first := max(n-max(int(60/s.Step), 1), 0)
	perMinute := func(lists ...[]uint64) string {
		sum := uint64(0)
		for _, list := range lists {
			for _, v := range list[min(first, len(list)):] {
				sum += v
			}
		}
		return alerts.Number(float64(sum) * 60 / (s.Step * float64(max(n-first, 1))))
	}
	var all [][]uint64
	for _, list := range s.Requests {
		all = append(all, list)
	}
	row := shownSite{
		Site: s.Site, Requests: perMinute(all...), Heads: perMinute(s.Requests["HEAD"]), Abandoned: perMinute(s.Abandoned),
		Errors: perMinute(s.Errors), Limited: perMinute(s.Limited), P99: "–", Busy: "–",
	}
	most, censored := 0.0, false
	low, high, busy := 0.0, 0.0, false
	for i := first; i < n; i++ {
		if v := s.P99[i]; v.Known() && (row.P99 == "–" || v.Get() >= most) {
			most, censored = v.Get(), s.Censored[i]
			row.P99 = alerts.Number(most) + " s"
		}
		if v := s.BusyUpper[i]; v.Known() {
			low, high, busy = max(low, s.BusyLower[i].Get()), max(high, v.Get()), true
		}
	}
	if censored {
		row.P99 = "≥ " + row.P99
	}
	if busy {
		row.Busy = alerts.Number(low) + " to " + alerts.Number(high)
		if s.Pool > 0 {
			row.Busy += fmt.Sprintf(" of %d", s.Pool)
		}
	}
	return row
}

// figures are the values of metrics, by name.
type figures map[string]*dto.MetricFamily

func gathered(g interface {
	Gather() ([]*dto.MetricFamily, error)
}) figures {
	f := figures{}
	families, _ := g.Gather() // what could be gathered is given beside the error
	for _, family := range families {
		f[family.GetName()] = family
	}
	return f
}

// of adds up a metric: all of it, or the series that have a label with this value.
func (f figures) of(name, label string) (sum float64) {
	for _, m := range f[name].GetMetric() {
		if label == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label }) {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sum
}

// delivery tells how the spool, Loki and the receivers are.
func (f figures) delivery(toLoki bool) []shownFigure {
	lost := f.of("squall_lines_lost_total", "")
	out := []shownFigure{
		{"Spool", fmt.Sprintf("%s on disk, the oldest %s old; %s in memory", binaryBytes(f.of("squall_spool_stream_bytes", "")),
			duration(f.of("squall_spool_oldest_seconds", "")), binaryBytes(f.of("squall_spool_queue_bytes", ""))), false},
		{"Lines lost", alerts.Number(lost), lost > 0},
	}
	if !toLoki {
		out = append(out, shownFigure{"Loki", "none is configured: lines stay in the spool, up to its limits", false})
	} else {
		held := f.of("squall_loki_held", "") > 0
		refused := f.of("squall_lines_refused_total", "")
		text := fmt.Sprintf("%s lines shipped, %s waiting, %s behind; %s refused", alerts.Number(f.of("squall_lines_shipped_total", "")),
			alerts.Number(f.of("squall_spool_waiting_lines", "")), duration(f.of("squall_loki_lag_seconds", "")), alerts.Number(refused))
		if held {
			text += "; HELD: its address, a right or a proxy must be set right"
		}
		if f.of("squall_loki_backlog", "") > 0 {
			text += "; what was stored during an outage is shipped too"
		}
		out = append(out, shownFigure{"Loki", text, held || refused > 0})
	}
	owed := f.of("squall_notify_owed_alerts", "")
	return append(out, shownFigure{"Receivers", fmt.Sprintf("%s alerts taken, %s attempts failed, %s owed", alerts.Number(f.of("squall_notify_alerts_sent_total", "")),
		alerts.Number(f.of("squall_notify_failures_total", "")), alerts.Number(owed)), owed > 0})
}

func duration(seconds float64) string {
	return time.Duration(seconds * 1e9).Round(time.Second).String()
}

// chartedSite is what the page draws of one site.
type chartedSite struct {
	report.Series
	Alerts [][2]int64    `json:"alerts"` // s: from and to; to is 0 while it fires
	Marks  []chartedMark `json:"annotations"`
}

// chartedMark is an annotation on a chart.
type chartedMark struct {
	At   float64 `json:"at"` // s
	Text string  `json:"text"`
}

// charted makes the series of the sites that are drawn.
func charted(live []report.Series, list []alerts.Alert, marks []alerts.Mark) ([]byte, error) {
	out := []chartedSite{}
	for _, s := range live[:min(len(live), mostCharted)] {
		x := chartedSite{Series: s, Alerts: [][2]int64{}, Marks: []chartedMark{}}
		for _, m := range marks {
			if at := report.Time(m.At); m.Concerns([]string{s.Site}) && at >= s.Start && at <= s.At(s.Len()) {
				x.Marks = append(x.Marks, chartedMark{float64(m.At) / 1e9, alerts.Escape(m.Text[:min(len(m.Text), markText)])})
			}
		}
		x.Marks = x.Marks[max(len(x.Marks)-mostMarks, 0):]
		for i := range list {
			if a := &list[i]; a.Labels.Get("site") == s.Site && a.State != alerts.Suppressed {
				x.Alerts = append(x.Alerts, [2]int64{a.StartsAt / 1e9, a.EndsAt / 1e9})
			}
		}
		x.Site = alerts.Escape(x.Site)
		out = append(out, x)
	}
	return json.Marshal(out)
}

// page answers with the whole page.
func (c webServerConfig) page(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, c.data(c.State.Live()))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err == nil {
		_, err = w.Write(b.Bytes())
	}
	if err != nil {
		c.Log.Debug("page not written", zap.Error(err)) // nearly always a client that has left
	}
}

// asset answers with a file of the page.
func (c webServerConfig) asset(w http.ResponseWriter, r *http.Request) {
	a, ok := pageAssets[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	text, err := pageFiles.ReadFile(a.file)
	if err != nil {
		say(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "no-cache") // a newer squall may have newer ones
	_, _ = w.Write(text)                        // the client has left: nobody is to be told
}

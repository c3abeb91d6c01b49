package report

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
)

// Config is what a Collector needs.
type Config struct {
	Pane   time.Duration
	Points int // of a timeline at most; 0: 2,000
}

// What a Collector keeps, whatever the log held.
const (
	maxAlerts     = 500
	maxSpans      = 200
	maxDetections = 1000
	maxRestarts   = 20_000
	finePanes     = 1080 // of the panes before an incident's end: three hours
)

// A Collector gathers what a report tells, pane by pane. It is used from one goroutine. Its memory is bounded: by the
// points of the timelines, and by how many alerts, spans and detections it keeps.
type Collector struct {
	pane     int64
	lines    *timelines
	fine     *timelines // of the last hours, not coarsened
	windows  map[string]*Series
	joins    *joins
	restarts []pipeline.Event
	alerts   map[string]*alerts.Alert // by alertKey: the last state
	spans    []detectors.Span
	episodes []Detection
	open     map[string]int // in episodes, by detector and labels: those that are not over
	from, to int64          // ns
	dropped  int
}

// New makes a Collector.
func New(cfg Config) *Collector {
	points := cmp.Or(cfg.Points, seriesPoints)
	return &Collector{
		pane: int64(cfg.Pane), lines: newTimelines(cfg.Pane, points), fine: newTimelines(cfg.Pane, math.MaxInt), windows: map[string]*Series{},
		joins: &joins{step: int64(cfg.Pane), sites: map[string]*joined{}}, alerts: map[string]*alerts.Alert{}, open: map[string]int{},
	}
}

func alertKey(a *alerts.Alert) string {
	return a.Name + "\x00" + a.Labels.String() + "\x00" + alerts.Stamp(a.StartsAt)
}

// Observe takes the result of one pane and what changed in it.
func (c *Collector) Observe(res *detectors.Result, transitions []alerts.Alert) {
	if c.from == 0 || res.Pane.Start < c.from {
		c.from = res.Pane.Start
	}
	c.to = max(c.to, res.Pane.End)
	c.lines.observe(res)
	if res.Pane.Start > c.fine.to+finePanes*c.pane { // a hole: what was before it is over
		c.fine = newTimelines(time.Duration(c.pane), math.MaxInt)
	}
	c.fine.observe(res)
	c.fine.forget(finePanes)
	for i := range res.Pane.Events {
		if e := &res.Pane.Events[i]; (e.Kind == pipeline.ContainerRestart || e.Kind == pipeline.LivenessRestart) && len(c.restarts) < maxRestarts {
			c.restarts = append(c.restarts, *e)
		}
	}
	for i := range res.Changes {
		c.episode(&res.Changes[i])
	}
	c.see(transitions)
	c.keep(res.Spans)
}

func (c *Collector) see(list []alerts.Alert) {
	for i := range list {
		a := list[i]
		key := alertKey(&a)
		if c.alerts[key] == nil && len(c.alerts) >= maxAlerts {
			c.dropped++
			continue
		}
		if old := c.alerts[key]; old != nil && a.Incident == nil {
			a.Incident = old.Incident
		}
		c.alerts[key] = &a
		if line := c.lines.sites[a.Labels.Get("site")]; line != nil {
			line.marked = true
		}
	}
}

func (c *Collector) keep(spans []detectors.Span) {
	for _, s := range spans {
		if len(c.spans) >= maxSpans {
			c.dropped++
			continue
		}
		c.spans = append(c.spans, s)
		if line := c.fine.sites[s.Site]; line != nil && c.lines.step > c.pane {
			x := line.series(s.Site, c.pane, s.Pool.Workers).between(Time(s.From)-Time(5*time.Minute), Time(s.To)+Time(time.Minute))
			c.windows[windowKey(s.Site, s.From)] = &x
		}
	}
}

func windowKey(site string, from int64) string { return site + alerts.Stamp(from) }

// episode notes when a detection began or was over.
func (c *Collector) episode(d *detectors.Detection) {
	key := d.Detector + d.Labels.String()
	i, known := c.open[key]
	if !known {
		if len(c.episodes) >= maxDetections {
			c.dropped++
			return
		}
		i = len(c.episodes)
		c.open[key] = i
		c.episodes = append(c.episodes, Detection{Detector: d.Detector, About: about(d.Labels), From: Time(d.Onset)})
	}
	e := &c.episodes[i]
	e.Peak, e.Limit = detectors.N(max(d.Peak, d.Value)), detectors.N(d.Threshold)
	if !d.Active {
		e.To = Time(d.Until)
		delete(c.open, key)
	}
}

// about is what labels name, in words.
func about(l detectors.Labels) string {
	if site := l.Get("site"); site != "" {
		return site
	}
	if cluster := l.Get("cluster"); cluster != "" {
		return "cluster " + cluster
	}
	return "the cluster"
}

// A Rest is what a report needs beside what was observed.
type Rest struct {
	Active   []alerts.Alert // in their newest state: firing, and held back
	Open     []detectors.Span
	Pool     func(site string) detectors.Pool
	Input    Input
	Settings string         // in effect, as YAML, without secrets
	Ledger   []alerts.Entry // the incidents of the replay
	Earlier  []alerts.Entry // those that are known from before
	Marks    []alerts.Mark  // by time
}

// Report makes the report. The Collector is not to be used any more.
func (c *Collector) Report(rest Rest) *Report {
	c.see(rest.Active)
	c.keep(rest.Open)
	for _, i := range c.open {
		c.episodes[i].To = Time(c.to)
	}
	r := &Report{
		Schema: Schema, From: Time(c.from), To: Time(c.to), Input: rest.Input, Settings: rest.Settings,
		Sites: c.lines.series(rest.Pool), Detected: c.episodes, Dropped: c.dropped, Layers: c.joins.layers(), Restarts: c.restarted(), Marks: rest.Marks,
	}
	r.Incidents = c.incidents()
	r.remember(rest.Ledger, rest.Earlier)
	r.verdict()
	r.missing()
	r.next()
	return r
}

// incidents sorts the alerts by the incident that they are a part of: one ID, or one member in common.
func (c *Collector) incidents() []Incident {
	list := slices.SortedFunc(maps.Values(c.alerts), func(a, b *alerts.Alert) int {
		return cmp.Or(cmp.Compare(a.StartsAt, b.StartsAt), strings.Compare(a.Name, b.Name), strings.Compare(a.Labels.String(), b.Labels.String()))
	})
	var groups [][]*alerts.Alert
	for _, a := range list {
		names := identities(a)
		joined := []*alerts.Alert{a}
		groups = slices.DeleteFunc(groups, func(g []*alerts.Alert) bool {
			if !slices.ContainsFunc(g, func(b *alerts.Alert) bool { return shares(names, identities(b)) }) {
				return false
			}
			joined = append(g, joined...)
			return true
		})
		groups = append(groups, joined)
	}
	out := make([]Incident, 0, len(groups))
	for _, g := range groups {
		out = append(out, c.incident(g))
	}
	slices.SortStableFunc(out, func(a, b Incident) int {
		return cmp.Or(cmp.Compare(urgency(b.Severity), urgency(a.Severity)), cmp.Compare(a.wide(), b.wide()), cmp.Compare(b.givenUp(), a.givenUp()),
			cmp.Compare(b.workerSeconds(), a.workerSeconds()), cmp.Compare(a.From, b.From))
	})
	return out
}

// identities are the names by which two alerts may be known to be of one incident.
func identities(a *alerts.Alert) []string {
	if a.Incident == nil {
		return []string{alertKey(a)}
	}
	names := []string{a.Incident.ID}
	for _, m := range a.Incident.Merged {
		names = append(names, m.ID)
	}
	for _, m := range a.Incident.Members {
		names = append(names, m.Detector+m.Labels.String()+alerts.Stamp(m.Onset))
	}
	return names
}

func shares(a, b []string) bool {
	return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
}

func urgency(s alerts.Severity) int {
	return slices.Index([]alerts.Severity{alerts.Info, alerts.Warning, alerts.Page}, s)
}

// incident makes one of its alerts. What an incident is at its last transition, it is.
func (c *Collector) incident(group []*alerts.Alert) Incident {
	last := slices.MaxFunc(group, func(a, b *alerts.Alert) int { return cmp.Compare(a.At, b.At) })
	in := Incident{ID: alertKey(last), From: Time(last.StartsAt), Severity: alerts.Info}
	if last.Incident != nil {
		in.ID, in.Apart, in.From = last.Incident.ID, last.Incident.Apart, Time(last.Incident.StartsAt)
		for _, m := range last.Incident.Merged {
			in.Merged = append(in.Merged, Merged{m.ID, Time(m.At), m.Because})
		}
		for _, m := range last.Incident.Members {
			in.Members = append(in.Members, Member{m.Detector, about(m.Labels), Time(m.Onset), m.After, m.Because})
		}
	}
	for _, a := range group {
		in.add(a, c.to)
	}
	slices.SortStableFunc(in.Alerts, func(a, b Alert) int { return cmp.Compare(urgency(b.Severity), urgency(a.Severity)) })
	slices.Sort(in.Sites)
	for i := range c.spans {
		s := &c.spans[i]
		if slices.Contains(in.Sites, s.Site) && s.From < int64(in.To) && s.To > int64(in.From) {
			w := window(s, in.Alerts)
			w.Series = c.windows[windowKey(s.Site, s.From)]
			in.Windows = append(in.Windows, w)
			in.From, in.To = min(in.From, Time(s.From)), max(in.To, Time(s.To))
		}
	}
	slices.SortStableFunc(in.Windows, func(a, b Window) int {
		return cmp.Compare(b.Total.WorkerSecondsUpper.Get(), a.Total.WorkerSecondsUpper.Get())
	})
	return in
}

func (in *Incident) add(a *alerts.Alert, end int64) {
	x := Alert{
		Name: a.Name, Detectors: a.Detectors, Incomplete: len(a.Coverage.Lost)+len(a.Coverage.Quiet) > 0, Severity: a.Severity, Suppressed: a.Suppressed, About: about(a.Labels), From: Time(a.StartsAt),
		Value: detectors.N(a.Value), Threshold: detectors.N(a.Threshold), Cause: a.Cause, Evidence: a.Evidence, Advice: a.Advice,
	}
	if a.State == alerts.Resolved {
		to := Time(a.EndsAt)
		x.To = &to
		in.To = max(in.To, to)
	} else {
		in.To, in.Ongoing = max(in.To, Time(end)), true
	}
	in.From = min(in.From, x.From)
	if urgency(a.Severity) > urgency(in.Severity) {
		in.Severity = a.Severity
	}
	if site := a.Labels.Get("site"); site != "" && !slices.Contains(in.Sites, site) {
		in.Sites = append(in.Sites, site)
	}
	in.Alerts = append(in.Alerts, x)
}

// wide puts what befell the whole cluster before what befell a site.
func (in *Incident) wide() int {
	if len(in.Sites) == 0 {
		return 0
	}
	return 1
}

// givenUp is how many requests clients gave up in the windows of the incident; without windows, what its alerts tell.
func (in *Incident) givenUp() float64 {
	var n float64
	for i := range in.Windows {
		if a := in.Windows[i].Total.Abandoned; a.Known() {
			n += a.Get()
		}
	}
	return n
}

func (in *Incident) workerSeconds() float64 {
	var n float64
	for i := range in.Windows {
		if s := in.Windows[i].Total.WorkerSecondsUpper; s.Known() {
			n += s.Get()
		}
	}
	return n
}

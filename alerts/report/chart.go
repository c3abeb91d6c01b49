package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
)

// The measures of a chart, in the units of its viewBox.
const (
	chartWidth   = 720
	chartLeft    = 56
	chartRight   = 8
	panelHeight  = 84
	panelGap     = 30
	laneHeight   = 17
	chartColumns = 330 // that a line has at most
	maxLanes     = 12
)

// A chart is a timeline of one site as inline SVG: panels one below the other with one axis of time.
type chart struct {
	strings.Builder
	from, to float64 // s
	y        float64 // where the next panel begins
	cols     []column
}

// column is what one column of the chart holds: rates a minute, the highest p99 and busy workers.
type column struct {
	start, at                  float64 // s: where it begins, and its middle
	methods                    [len(methods)]float64
	abandoned, errors, limited float64
	p99, busyLower, busyUpper  float64
	timed, censored, busy      bool
}

// columns brings the steps of [from, to) into at most chartColumns columns.
func columns(s *Series, from, to Time) []column {
	first, last := s.Len(), 0
	for i := range s.Len() {
		if at := s.At(i); at+Time(s.Step*1e9) > from && at < to {
			first, last = min(first, i), i+1
		}
	}
	if first >= last {
		return nil
	}
	each := (last - first + chartColumns - 1) / chartColumns
	var out []column
	for i := first; i < last; i += each {
		end := min(i+each, last)
		perMinute := 60 / (s.Step * float64(end-i))
		c := column{start: float64(s.At(i)) / 1e9, at: float64(s.At(i))/1e9 + s.Step*float64(end-i)/2}
		for k := i; k < end; k++ {
			for m, name := range methods {
				if list := s.Requests[name]; list != nil {
					c.methods[m] += float64(list[k]) * perMinute
				}
			}
			c.abandoned += float64(s.Abandoned[k]) * perMinute
			c.errors += float64(s.Errors[k]) * perMinute
			c.limited += float64(s.Limited[k]) * perMinute
			if p := s.P99[k]; p.Known() && (!c.timed || p.Get() >= c.p99) {
				c.p99, c.timed, c.censored = p.Get(), true, s.Censored[k]
			}
			if b := s.BusyUpper[k]; b.Known() {
				c.busy, c.busyLower, c.busyUpper = true, max(c.busyLower, s.BusyLower[k].Get()), max(c.busyUpper, b.Get())
			}
		}
		out = append(out, c)
	}
	return out
}

// drawing is what a chart shows beside its series.
type drawing struct {
	series    *Series
	from, to  Time
	detected  []Detection
	shaded    []Detection // spans of time that are marked: incidents
	silent    []Between
	gaps      []Gap         // where lines are missing
	marks     []alerts.Mark // what was noted
	restarts  *Restarts
	id, title string
}

// draw makes the SVG. Nothing of a log stands in it but the name of the site, which is escaped.
func draw(d drawing) template.HTML {
	c := &chart{from: float64(d.from) / 1e9, to: float64(d.to) / 1e9, cols: columns(d.series, d.from, d.to)}
	if len(c.cols) == 0 || c.to <= c.from {
		return ""
	}
	lanes := lanesOf(d)
	marks := d.marked()
	c.y = 16
	restarted := restartColumns(d.restarts, c.cols, d.to)
	panels := 4
	if restarted != nil {
		panels++
	}
	height := c.y + float64(panels)*(panelHeight+panelGap) + float64(len(lanes))*laneHeight + float64(len(marks))*laneHeight + 24
	fmt.Fprintf(c, `<svg role="img" aria-labelledby="%s-t %s-d" viewBox="0 0 %d %.0f" xmlns="http://www.w3.org/2000/svg">`, d.id, d.id, chartWidth, height)
	fmt.Fprintf(c, `<title id="%s-t">%s</title><desc id="%s-d">%s</desc>`, d.id, escaped(d.title), d.id, escaped(c.describe(d.series)))
	for _, s := range d.shaded {
		c.shade("shade", s.From, s.To, height-24)
	}
	for _, s := range d.silent {
		if from, to, ok := s.times(d.to); ok {
			c.shade("gap", from, to, height-24)
		}
	}
	for _, g := range d.gaps {
		c.gap(g, height-24)
	}
	for _, m := range marks {
		c.rule(m, height-24)
	}
	c.requests()
	c.p99()
	c.workers(d.series.Pool)
	c.errors()
	if restarted != nil {
		c.restarts(restarted)
	}
	for _, l := range lanes {
		c.lane(l)
	}
	for _, m := range marks {
		c.mark(m)
	}
	c.axis()
	c.WriteString("</svg>")
	return template.HTML(c.String()) //nolint:gosec // numbers, our own words, and names that escaped() made text
}

func escaped(s string) string { return template.HTMLEscapeString(alerts.Escape(s)) }

func (s *Between) times(end Time) (from, to Time, ok bool) {
	a, err := time.Parse(time.RFC3339Nano, s.From)
	if err != nil {
		return 0, 0, false
	}
	if s.To == nil {
		return Time(a.UnixNano()), end, true
	}
	b, err := time.Parse(time.RFC3339Nano, *s.To)
	return Time(a.UnixNano()), Time(b.UnixNano()), err == nil
}

// describe says in words what the lines show, for who does not see them.
func (c *chart) describe(s *Series) string {
	var peak column
	for i := range c.cols {
		x := &c.cols[i]
		for m := range methods {
			peak.methods[m] = max(peak.methods[m], x.methods[m])
		}
		peak.abandoned, peak.errors = max(peak.abandoned, x.abandoned), max(peak.errors, x.errors)
		peak.p99, peak.busyLower, peak.busyUpper = max(peak.p99, x.p99), max(peak.busyLower, x.busyLower), max(peak.busyUpper, x.busyUpper)
	}
	var b strings.Builder
	b.WriteString("At the highest:")
	for m, name := range methods {
		if peak.methods[m] > 0 {
			fmt.Fprintf(&b, " %s %s requests a minute,", alerts.Number(peak.methods[m]), name)
		}
	}
	fmt.Fprintf(&b, " %s abandoned and %s answered 5xx a minute, p99 %s s, %s to %s requests at the workers", alerts.Number(peak.abandoned),
		alerts.Number(peak.errors), alerts.Number(peak.p99), alerts.Number(peak.busyLower), alerts.Number(peak.busyUpper))
	if s.Pool > 0 {
		fmt.Fprintf(&b, " (the pool has %d)", s.Pool)
	}
	return b.String() + "."
}

func (c *chart) x(at float64) float64 {
	x := chartLeft + (at-c.from)/(c.to-c.from)*(chartWidth-chartLeft-chartRight)
	return min(max(x, chartLeft), chartWidth-chartRight)
}

func (c *chart) shade(class string, from, to Time, bottom float64) {
	a, b := c.x(float64(from)/1e9), c.x(float64(to)/1e9)
	if b <= a {
		return
	}
	fmt.Fprintf(c, `<rect class="%s" x="%.1f" y="0" width="%.1f" height="%.0f"/>`, class, a, b-a, bottom)
}

// panel opens a panel: its title with the legend, its frame and its scale. It returns the scale's top.
func (c *chart) panel(title string, legend []string, highest float64) (top float64) {
	top = nice(highest)
	fmt.Fprintf(c, `<text class="h" x="%d" y="%.0f">%s`, chartLeft, c.y-5, title)
	for _, l := range legend {
		class, text, _ := strings.Cut(l, ":")
		fmt.Fprintf(c, ` <tspan class="k %s" dx="8">■</tspan> %s`, class, text)
	}
	c.WriteString("</text>")
	fmt.Fprintf(c, `<path class="grid" d="M%d %.0fH%dM%d %.0fH%d"/>`, chartLeft, c.y+panelHeight, chartWidth-chartRight, chartLeft, c.y, chartWidth-chartRight)
	fmt.Fprintf(c, `<text class="s" x="%d" y="%.0f">%s</text><text class="s" x="%d" y="%.0f">0</text>`, chartLeft-5, c.y+8, alerts.Number(top), chartLeft-5, c.y+panelHeight)
	return top
}

func (c *chart) next() { c.y += panelHeight + panelGap }

// nice rounds up to a small multiple of a power of ten.
func nice(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8} {
		if v <= f*unit*1.0001 {
			return f * unit
		}
	}
	return 10 * unit
}

func (c *chart) height(v, top float64) float64 { return c.y + panelHeight*(1-min(v/top, 1)) }

// line draws a value for each column that has one.
func (c *chart) line(class string, top float64, value func(*column) (float64, bool)) {
	var b strings.Builder
	pen := "M"
	for i := range c.cols {
		v, ok := value(&c.cols[i])
		if !ok {
			pen = "M"
			continue
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, c.x(c.cols[i].at), c.height(v, top))
		pen = "L"
	}
	if b.Len() > 0 {
		fmt.Fprintf(c, `<path class="l %s" d="%s"/>`, class, b.String())
	}
}

// area fills between two values.
func (c *chart) area(class string, top float64, between func(*column) (low, high float64)) {
	var up, down strings.Builder
	for i := range c.cols {
		_, high := between(&c.cols[i])
		pen := "L"
		if i == 0 {
			pen = "M"
		}
		fmt.Fprintf(&up, "%s%.1f %.1f", pen, c.x(c.cols[i].at), c.height(high, top))
		back := c.cols[len(c.cols)-1-i]
		low, _ := between(&back)
		fmt.Fprintf(&down, "L%.1f %.1f", c.x(back.at), c.height(low, top))
	}
	fmt.Fprintf(c, `<path class="a %s" d="%s%sZ"/>`, class, up.String(), down.String())
}

func (c *chart) highest(value func(*column) float64) (most float64) {
	for i := range c.cols {
		most = max(most, value(&c.cols[i]))
	}
	return most
}

func (c *chart) requests() {
	sum := func(x *column, upTo int) (n float64) {
		for m := range upTo {
			n += x.methods[m]
		}
		return n
	}
	legend := []string{}
	for m, name := range methods {
		if c.highest(func(x *column) float64 { return x.methods[m] }) > 0 {
			legend = append(legend, fmt.Sprintf("m%d:%s", m, name))
		}
	}
	top := c.panel("Requests a minute", append(legend, "bad:abandoned"), c.highest(func(x *column) float64 { return max(sum(x, len(methods)), x.abandoned) }))
	for m := range methods {
		if c.highest(func(x *column) float64 { return x.methods[m] }) > 0 {
			c.area(fmt.Sprintf("m%d", m), top, func(x *column) (float64, float64) { return sum(x, m), sum(x, m+1) })
		}
	}
	c.line("bad", top, func(x *column) (float64, bool) { return x.abandoned, true })
	c.next()
}

// p99 marks where clients left: the true p99 is at least what is drawn.
func (c *chart) p99() {
	top := c.panel("p99, seconds", []string{"lat:p99", "bad:▲ at least: clients left"}, 1.1*c.highest(func(x *column) float64 { return x.p99 }))
	c.line("lat", top, func(x *column) (float64, bool) { return x.p99, x.timed })
	every := max(1, len(c.cols)/60)
	for i := range c.cols {
		if x := &c.cols[i]; x.censored && i%every == 0 {
			fmt.Fprintf(c, `<path class="up" d="M%.1f %.1fl3 5h-6z"/>`, c.x(x.at), c.height(x.p99, top)-6)
		}
	}
	c.next()
}

func (c *chart) workers(pool int) {
	legend := []string{"busy:lower to upper bound"}
	if pool > 0 {
		legend = append(legend, fmt.Sprintf("pool:pool of %d", pool))
	}
	title := "Requests at the workers (busy, or waiting for one)"
	top := c.panel(title, legend, max(float64(pool)*1.2, c.highest(func(x *column) float64 { return x.busyUpper })))
	if c.highest(func(x *column) float64 {
		if x.busy {
			return 1
		}
		return 0
	}) == 0 {
		fmt.Fprintf(c, `<text class="t" x="%d" y="%.0f">the log does not tell how long the origin worked</text>`, chartLeft+8, c.y+panelHeight/2)
	} else {
		c.area("busy", top, func(x *column) (float64, float64) { return x.busyLower, x.busyUpper })
		c.line("busy", top, func(x *column) (float64, bool) { return x.busyLower, x.busy })
	}
	if pool > 0 {
		y := c.height(float64(pool), top)
		fmt.Fprintf(c, `<path class="l pool" d="M%d %.1fH%d"/>`, chartLeft, y, chartWidth-chartRight)
	}
	c.next()
}

func (c *chart) errors() {
	top := c.panel("Errors a minute", []string{"err:5xx", "lim:refused by a limiter"}, c.highest(func(x *column) float64 { return max(x.errors, x.limited) }))
	c.series("err", top, "no request was answered 5xx", func(x *column) float64 { return x.errors })
	c.series("lim", top, "", func(x *column) float64 { return x.limited })
	c.y += panelHeight + 12
}

// series draws a line that is anywhere above 0; none is told in words.
func (c *chart) series(class string, top float64, none string, value func(*column) float64) {
	if c.highest(value) > 0 {
		c.line(class, top, func(x *column) (float64, bool) { return value(x), true })
	} else if none != "" {
		fmt.Fprintf(c, `<text class="t" x="%d" y="%.0f">%s</text>`, chartLeft+8, c.y+panelHeight/2, none)
	}
}

// lanesOf are the detections of the time shown, one lane a detector, by their first onset.
func lanesOf(d drawing) [][]Detection {
	var names []string
	lanes := map[string][]Detection{}
	for _, x := range d.detected {
		if (x.About != d.series.Site && !strings.HasPrefix(x.About, "cluster") && x.About != "the cluster") || x.To < d.from || x.From > d.to {
			continue
		}
		if lanes[x.Detector] == nil {
			names = append(names, x.Detector)
		}
		lanes[x.Detector] = append(lanes[x.Detector], x)
	}
	slices.SortStableFunc(names, func(a, b string) int { return int(min(max(lanes[a][0].From-lanes[b][0].From, -1), 1)) })
	var out [][]Detection
	for _, n := range names[:min(len(names), maxLanes)] {
		out = append(out, lanes[n])
	}
	return out
}

// lane draws the episodes of one detector as bars with its name.
func (c *chart) lane(list []Detection) {
	var first float64 = chartWidth
	for _, x := range list {
		a, b := c.x(float64(x.From)/1e9), c.x(float64(x.To)/1e9)
		fmt.Fprintf(c, `<rect class="ep" x="%.1f" y="%.1f" width="%.1f" height="%d" rx="2"><title>%s %s</title></rect>`,
			a, c.y, max(b-a, 2), laneHeight-5, escaped(x.Detector), span(x.From, x.To))
		first = min(first, a)
	}
	anchor, at := "end", first-4
	if first < chartLeft+110 {
		last := c.x(float64(list[len(list)-1].To) / 1e9)
		anchor, at = "start", last+4
	}
	if anchor == "start" && at > chartWidth-120 {
		at = chartLeft + 4
	}
	fmt.Fprintf(c, `<text class="t" text-anchor="%s" x="%.1f" y="%.1f">%s</text>`, anchor, at, c.y+laneHeight-7, escaped(list[0].Detector))
	c.y += laneHeight
}

func (c *chart) axis() {
	layout := "15:04"
	if c.to-c.from > 36*3600 {
		layout = "01-02 15:04"
	} else if c.to-c.from < 600 {
		layout = "15:04:05"
	}
	step := tick((c.to - c.from) / 6)
	for at := math.Ceil(c.from/step) * step; at <= c.to; at += step {
		x := c.x(at)
		if x > chartWidth-chartRight-20 {
			break
		}
		fmt.Fprintf(c, `<path class="grid v" d="M%.1f 16V%.0f"/><text class="x" x="%.1f" y="%.0f">%s</text>`,
			x, c.y+2, x, c.y+15, time.Unix(int64(at), 0).UTC().Format(layout))
	}
}

// tick is the distance of the marks on the axis of time, in seconds.
func tick(least float64) float64 {
	for _, s := range []float64{10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400} {
		if s >= least {
			return s
		}
	}
	return math.Ceil(least/86400) * 86400
}

// A tableRow is a row of the table that stands beside a chart.
type tableRow struct {
	At    string
	Cells []string
}

// chartTable are the numbers of a chart, in at most 40 rows.
func chartTable(s *Series, from, to Time) []tableRow {
	cols := columns(s, from, to)
	var out []tableRow
	each := (len(cols) + 39) / 40
	for i := 0; i < len(cols); i += each {
		var sum column
		n := 0.0
		for _, c := range cols[i:min(i+each, len(cols))] {
			n++
			for m := range methods {
				sum.methods[m] += c.methods[m]
			}
			sum.abandoned, sum.errors, sum.limited = sum.abandoned+c.abandoned, sum.errors+c.errors, sum.limited+c.limited
			if c.timed && c.p99 >= sum.p99 {
				sum.p99, sum.timed, sum.censored = c.p99, true, c.censored
			}
			sum.busy = sum.busy || c.busy
			sum.busyLower, sum.busyUpper = max(sum.busyLower, c.busyLower), max(sum.busyUpper, c.busyUpper)
		}
		row := tableRow{At: time.Unix(int64(cols[i].start), 0).UTC().Format(time.DateTime)}
		for m := range methods {
			row.Cells = append(row.Cells, alerts.Number(math.Round(sum.methods[m]/n)))
		}
		p99 := number(numIf(sum.timed, sum.p99))
		if sum.censored {
			p99 = "≥ " + p99
		}
		row.Cells = append(row.Cells, alerts.Number(math.Round(sum.abandoned/n)), alerts.Number(math.Round(sum.errors/n)), alerts.Number(math.Round(sum.limited/n)),
			p99, seconds(numIf(sum.busy, sum.busyLower), numIf(sum.busy, sum.busyUpper)))
		out = append(out, row)
	}
	return out
}

// pad widens a span of time for a chart.
func pad(from, to Time, within *Report) (Time, Time) {
	margin := max((to-from)/4, Time(2*time.Minute))
	return max(from-margin, within.From), min(to+margin, within.To)
}

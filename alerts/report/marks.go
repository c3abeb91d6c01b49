package report

import (
	"fmt"
	"time"

	"github.com/squall-sre/squall/alerts"
)

// maxMarks is how many annotations a chart names; those of the time shown, the newest.
const maxMarks = 8

// marked are the annotations of the time and site that a chart shows.
func (d *drawing) marked() []alerts.Mark {
	var out []alerts.Mark
	for _, m := range d.marks {
		if Time(m.At) >= d.from && Time(m.At) <= d.to && m.Concerns([]string{d.series.Site}) {
			out = append(out, m)
		}
	}
	return out[max(0, len(out)-maxMarks):]
}

// rule draws the time of an annotation through all panels.
func (c *chart) rule(m alerts.Mark, bottom float64) {
	fmt.Fprintf(c, `<path class="mark" d="M%.1f 0V%.0f"/>`, c.x(float64(m.At)/1e9), bottom)
}

// mark names an annotation below the panels.
func (c *chart) mark(m alerts.Mark) {
	x := c.x(float64(m.At) / 1e9)
	anchor, at := "start", x+5
	if x > chartLeft+(chartWidth-chartLeft)/2 {
		anchor, at = "end", x-5
	}
	fmt.Fprintf(c, `<text class="n" text-anchor="%s" x="%.1f" y="%.1f">%s %s</text>`, anchor, at, c.y+laneHeight-7,
		time.Unix(0, int64(m.At)).UTC().Format("15:04"), escaped(brief(m.Text)))
	c.y += laneHeight
}

// brief cuts a text to what a line of a chart has room for.
func brief(s string) string { return cutAt(s, 48) }

func cutAt(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most-1]) + "…"
}

// gap marks a place where lines of a log are missing.
func (c *chart) gap(g Gap, bottom float64) {
	at, err := time.Parse(time.RFC3339Nano, g.At)
	if err != nil || float64(at.UnixNano())/1e9 < c.from || float64(at.UnixNano())/1e9 > c.to {
		return
	}
	fmt.Fprintf(c, `<path class="lost" d="M%.1f 0V%.0f"><title>lines of %s lost (%s)</title></path>`, c.x(float64(at.UnixNano())/1e9), bottom, escaped(g.Source), escaped(g.Reason))
}

// restartColumns are the restarts of containers in the columns of a chart; nil: none in its time.
func restartColumns(r *Restarts, cols []column, to Time) []float64 {
	if r == nil {
		return nil
	}
	out, any := make([]float64, len(cols)), false
	for i, n := range r.Counts {
		at := float64(r.Start)/1e9 + float64(i)*r.Step
		for k := range cols {
			end := float64(to) / 1e9
			if k+1 < len(cols) {
				end = cols[k+1].start
			}
			if n > 0 && at >= cols[k].start && at < end {
				out[k] += float64(n)
				any = true
			}
		}
	}
	if !any {
		return nil
	}
	return out
}

// restarts draws how many containers were restarted in each column.
func (c *chart) restarts(counts []float64) {
	most := 0.0
	for _, n := range counts {
		most = max(most, n)
	}
	c.y += panelGap - 12
	top := c.panel("Containers restarted, of all sites", nil, most)
	for i, n := range counts {
		if n > 0 {
			y := c.height(n, top)
			fmt.Fprintf(c, `<path class="bar" d="M%.1f %.1fV%.1f"/>`, c.x(c.cols[i].at), c.y+panelHeight, y)
		}
	}
	c.y += panelHeight + 12
}

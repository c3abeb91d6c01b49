package report

import (
	"sync"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// A Live keeps the timelines of the sites for the last while, with the measures of a report. It is fed from one goroutine
// and may be asked from any. Its memory is bounded by the number of sites and panes that it keeps.
type Live struct {
	keep int64 // ns

	mu    sync.Mutex
	lines *timelines
	pools map[string]detectors.Pool // of the sites, as of the last pane
}

// NewLive makes a Live that keeps so much event time in steps of a pane.
func NewLive(pane, keep time.Duration) *Live {
	return &Live{keep: int64(keep), lines: newTimelines(pane, int(keep/pane)+2)}
}

// Step is the length of a step.
func (l *Live) Step() time.Duration { return time.Duration(l.lines.step) }

// Observe takes the result of one pane, the alerts that fire, and who knows the pools.
func (l *Live) Observe(res *detectors.Result, firing []alerts.Alert, pool func(site string) detectors.Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.lines
	l.forget(res.Pane.End - l.keep)
	t.observe(res)
	l.pools = map[string]detectors.Pool{}
	for name, line := range t.sites {
		line.marked = false
		l.pools[name] = pool(name)
	}
	for i := range firing {
		if line := t.sites[firing[i].Labels.Get("site")]; line != nil {
			line.marked = true
		}
	}
}

// forget drops what began before a time.
func (l *Live) forget(before int64) {
	t := l.lines
	before -= mod(before, t.step)
	if t.to != 0 {
		t.start = max(t.start, before)
	}
	for name, line := range t.sites {
		n := min(int(max(before-line.first, 0)/t.step), len(line.points))
		for i := range n {
			for _, k := range line.points[i].requests {
				line.total -= k
			}
		}
		line.points, line.first = append([]point(nil), line.points[n:]...), line.first+int64(n)*t.step
		if len(line.points) == 0 {
			delete(t.sites, name)
		}
	}
}

// Series lists the timelines, those of sites with an alert first, then by requests.
func (l *Live) Series() []Series {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.series(func(site string) detectors.Pool { return l.pools[site] })
}

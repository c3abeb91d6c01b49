package report

import (
	"bytes"
	"encoding/gob"
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

// snapshotSites is of how many sites the timelines outlive a restart: those that a page lists.
const snapshotSites = 20

// A liveState is what a Live knows, to go on after a restart.
type liveState struct {
	Step, Start, To int64 // ns
	Sites           []liveSite
}

type liveSite struct {
	Name   string
	First  int64 // ns
	Points []livePoint
	Marked bool
}

type livePoint struct {
	Requests                   [len(methods)]uint64
	Abandoned, Errors, Limited uint64
	P99, BusyLower, BusyUpper  float64
	Timed, Censored, Busy      bool
}

// Snapshot is what is known, of the sites with an alert and those with most requests.
func (l *Live) Snapshot() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.lines
	state := liveState{Step: t.step, Start: t.start, To: t.to}
	names := t.ranked()
	for _, name := range names[:min(len(names), snapshotSites)] {
		line := t.sites[name]
		s := liveSite{Name: name, First: line.first, Marked: line.marked, Points: make([]livePoint, len(line.points))}
		for i, p := range line.points {
			s.Points[i] = livePoint{p.requests, p.abandoned, p.errors, p.limited, p.p99, p.busyLower, p.busyUpper, p.timed, p.censored, p.busy}
		}
		state.Sites = append(state.Sites, s)
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(state)
	return b.Bytes(), err
}

// Restore sets a Live that knows nothing to a snapshot. One of other steps, or that cannot be read, costs what was drawn.
func (l *Live) Restore(snapshot []byte, pool func(site string) detectors.Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.lines
	var state liveState
	if t.to != 0 || gob.NewDecoder(bytes.NewReader(snapshot)).Decode(&state) != nil || state.Step != t.step || state.To-state.Start > l.keep+2*t.step {
		return
	}
	t.start, t.to = state.Start, state.To
	l.pools = map[string]detectors.Pool{}
	for _, s := range state.Sites {
		if len(s.Points) > t.max || s.First < state.Start || len(t.sites) >= seriesSites {
			continue
		}
		line := &timeline{first: s.First, marked: s.Marked, points: make([]point, len(s.Points))}
		for i, p := range s.Points {
			line.points[i] = point{p.Requests, p.Abandoned, p.Errors, p.Limited, p.P99, p.BusyLower, p.BusyUpper, p.Timed, p.Censored, p.Busy}
			for _, n := range p.Requests {
				line.total += n
			}
		}
		t.sites[s.Name], l.pools[s.Name] = line, pool(s.Name)
	}
}

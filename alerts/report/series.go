package report

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

// A Series is the timeline of one site: lists of one length, a value for each step. Counts are of the step; the p99 is
// the highest of its panes, the busy workers the highest mean of a minute.
type Series struct {
	Site      string              `json:"site"`
	Start     Time                `json:"start"`
	Step      float64             `json:"step_seconds"`
	Pool      int                 `json:"pool_workers,omitempty"`
	Requests  map[string][]uint64 `json:"requests"` // by method: GET, HEAD, POST, other
	Abandoned []uint64            `json:"abandoned"`
	Errors    []uint64            `json:"errors_5xx"`
	Limited   []uint64            `json:"limited"`
	P99       []detectors.Num     `json:"p99_seconds"`        // null: no request, or no time logged
	Censored  []bool              `json:"p99_is_lower_bound"` // clients left: the true p99 is at least this
	BusyLower []detectors.Num     `json:"busy_workers_lower"` // null: the log does not tell
	BusyUpper []detectors.Num     `json:"busy_workers_upper"`
	Total     uint64              `json:"total_requests"`
}

// The methods that a timeline tells apart.
var methods = [...]string{"GET", "HEAD", "POST", "other"}

const (
	seriesSites  = 64   // that have a timeline of their own
	seriesPoints = 2000 // of one timeline: above, its steps are doubled
)

// A point is one step of a timeline.
type point struct {
	requests                   [len(methods)]uint64
	abandoned, errors, limited uint64
	p99, busyLower, busyUpper  float64
	timed, censored, busy      bool
}

func (p *point) add(o *point) {
	for i, n := range o.requests {
		p.requests[i] += n
	}
	p.abandoned, p.errors, p.limited = p.abandoned+o.abandoned, p.errors+o.errors, p.limited+o.limited
	if o.timed && (!p.timed || o.p99 > p.p99) {
		p.p99, p.censored = o.p99, o.censored
	}
	if o.busy {
		p.busyLower, p.busyUpper = max(p.busyLower, o.busyLower), max(p.busyUpper, o.busyUpper)
	}
	p.timed, p.busy = p.timed || o.timed, p.busy || o.busy
}

// timelines are the timelines of all sites, of one step.
type timelines struct {
	step      int64 // ns
	max       int   // points
	start, to int64 // ns, whole steps
	sites     map[string]*timeline
}

// timeline is a site's points from the step of its first request on.
type timeline struct {
	first  int64 // ns
	points []point
	total  uint64
	marked bool // an alert is about it
}

func newTimelines(step time.Duration, most int) *timelines {
	return &timelines{step: int64(step), max: most, sites: map[string]*timeline{}}
}

// observe adds one pane.
func (t *timelines) observe(res *detectors.Result) {
	p := res.Pane
	t.reach(p.Start, p.End)
	for _, name := range p.SiteNames() {
		pt := pointOf(p.Sites[name])
		line := t.of(name)
		line.at(p.Start-mod(p.Start, t.step), t.step).add(&pt)
		for _, n := range pt.requests {
			line.total += n
		}
	}
	for _, b := range res.Busy {
		if line := t.sites[b.Site]; line != nil {
			line.at(p.Start-mod(p.Start, t.step), t.step).add(&point{busy: true, busyLower: b.Lower, busyUpper: b.Upper})
		}
	}
}

func mod(a, b int64) int64 { return ((a % b) + b) % b }

// pointOf counts the clients of a site in one pane.
func pointOf(s *pane.Site) point {
	var p point
	var latency pane.Quantiles
	for k, c := range s.All() {
		if k.Probe {
			continue
		}
		i := slices.Index(methods[:], k.Method)
		if i < 0 {
			i = len(methods) - 1
		}
		p.requests[i] += c.Requests
		p.abandoned, p.limited = p.abandoned+c.Abandoned, p.limited+c.Limited
		p.errors += c.Codes.Class(5)
		latency.Merge(&c.Latency)
	}
	var all uint64
	for _, n := range p.requests {
		all += n
	}
	p.p99, p.timed = latency.Quantile(0.99)
	p.censored = p.timed && float64(p.abandoned) > 0.01*float64(all)
	return p
}

// reach makes the timelines hold the time up to an end, by doubling their step where they would have too many points.
func (t *timelines) reach(start, end int64) {
	if t.to == 0 {
		t.start = start - mod(start, t.step)
	}
	t.start = min(t.start, start-mod(start, t.step))
	t.to = max(t.to, end)
	for (t.to-t.start+t.step-1)/t.step > int64(t.max) {
		t.step *= 2
		t.start -= mod(t.start, t.step)
		for _, line := range t.sites {
			line.coarsen(t.step)
		}
	}
}

// coarsen merges points into steps of a new length.
func (l *timeline) coarsen(step int64) {
	old := *l
	half := step / 2
	l.first = old.first - mod(old.first, step)
	l.points = nil
	for i := range old.points {
		l.at(old.first+int64(i)*half-mod(old.first+int64(i)*half, step), step).add(&old.points[i])
	}
}

// at gives the point of a step.
func (l *timeline) at(start, step int64) *point {
	if len(l.points) == 0 {
		l.first = start
	}
	for start < l.first {
		l.points = slices.Insert(l.points, 0, point{})
		l.first -= step
	}
	i := int((start - l.first) / step)
	for len(l.points) <= i {
		l.points = append(l.points, point{})
	}
	return &l.points[i]
}

// of gives a site's timeline. Over the limit, the site with the fewest requests that no alert is about goes into "other".
func (t *timelines) of(name string) *timeline {
	if l := t.sites[name]; l != nil {
		return l
	}
	if len(t.sites) >= seriesSites && name != pane.Other {
		t.foldLightest()
	}
	l := &timeline{}
	t.sites[name] = l
	return l
}

func (t *timelines) foldLightest() {
	var least string
	for _, name := range slices.Sorted(maps.Keys(t.sites)) {
		if l := t.sites[name]; name != pane.Other && !l.marked && (least == "" || l.total < t.sites[least].total) {
			least = name
		}
	}
	if least == "" {
		return // an alert is about each of them, and alerts are bounded
	}
	l := t.sites[least]
	delete(t.sites, least)
	other := t.of(pane.Other)
	for i := range l.points {
		other.at(l.first+int64(i)*t.step, t.step).add(&l.points[i])
	}
	other.total += l.total
}

// series lists the timelines, those that alerts are about first, then by requests.
func (t *timelines) series(pool func(string) detectors.Pool) []Series {
	out := []Series{}
	for _, name := range t.ranked() {
		out = append(out, t.sites[name].series(name, t.step, pool(name).Workers))
	}
	return out
}

// ranked are the sites, those that alerts are about first, then by requests.
func (t *timelines) ranked() []string {
	return slices.SortedFunc(maps.Keys(t.sites), func(a, b string) int {
		x, y := t.sites[a], t.sites[b]
		if x.marked != y.marked {
			if x.marked {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(y.total, x.total), strings.Compare(a, b))
	})
}

func (l *timeline) series(name string, step int64, workers int) Series {
	s := Series{Site: name, Start: Time(l.first), Step: float64(step) / 1e9, Pool: workers, Requests: map[string][]uint64{}, Total: l.total}
	for i := range l.points {
		p := &l.points[i]
		s.Abandoned, s.Errors, s.Limited = append(s.Abandoned, p.abandoned), append(s.Errors, p.errors), append(s.Limited, p.limited)
		s.P99, s.Censored = append(s.P99, numIf(p.timed, p.p99)), append(s.Censored, p.censored)
		s.BusyLower, s.BusyUpper = append(s.BusyLower, numIf(p.busy, p.busyLower)), append(s.BusyUpper, numIf(p.busy, p.busyUpper))
	}
	for m, method := range methods {
		list, sum := make([]uint64, len(l.points)), uint64(0)
		for i := range l.points {
			list[i] = l.points[i].requests[m]
			sum += list[i]
		}
		if sum > 0 {
			s.Requests[method] = list
		}
	}
	return s
}

func numIf(known bool, v float64) detectors.Num {
	if !known {
		return detectors.Num{}
	}
	return detectors.N(v)
}

// Len is how many steps a timeline has.
func (s *Series) Len() int { return len(s.Abandoned) }

// At is when a step begins.
func (s *Series) At(i int) Time { return s.Start + Time(float64(i)*s.Step*1e9) }

// between is the part of a timeline that touches [from, to).
func (s Series) between(from, to Time) Series {
	first, last := s.Len(), 0
	for i := range s.Len() {
		if at := s.At(i); at+Time(s.Step*1e9) > from && at < to {
			first, last = min(first, i), i+1
		}
	}
	if first >= last {
		return Series{Site: s.Site, Start: from, Step: s.Step, Pool: s.Pool}
	}
	out := s
	out.Start, out.Requests = s.At(first), map[string][]uint64{}
	for m, list := range s.Requests {
		out.Requests[m] = list[first:last]
	}
	out.Abandoned, out.Errors, out.Limited = s.Abandoned[first:last], s.Errors[first:last], s.Limited[first:last]
	out.P99, out.Censored = s.P99[first:last], s.Censored[first:last]
	out.BusyLower, out.BusyUpper = s.BusyLower[first:last], s.BusyUpper[first:last]
	out.Total = 0
	for _, list := range out.Requests {
		for _, n := range list {
			out.Total += n
		}
	}
	return out
}

// forget drops all points but those of the last panes, and sites that have none of those.
func (t *timelines) forget(panes int) {
	since := t.to - int64(panes)*t.step
	for name, line := range t.sites {
		n := int((since - line.first) / t.step)
		switch {
		case n <= panes/8 && n <= len(line.points): // now and then is enough
		case n >= len(line.points):
			delete(t.sites, name)
		default:
			line.points = slices.Clone(line.points[n:])
			line.first += int64(n) * t.step
		}
	}
}

// restarted counts the restarts of containers in the steps of the timelines.
func (c *Collector) restarted() *Restarts {
	times := detectors.RestartTimes(c.restarts)
	if len(times) == 0 {
		return nil
	}
	step := c.lines.step
	r := &Restarts{Start: Time(times[0] - mod(times[0], step)), Step: float64(step) / 1e9}
	for _, at := range times {
		i := int((at - int64(r.Start)) / step)
		if i >= 2*seriesPoints {
			break // a container that ended long before, or will
		}
		for len(r.Counts) <= i {
			r.Counts = append(r.Counts, 0)
		}
		r.Counts[i]++
	}
	return r
}

package detectors

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// How much evidence one detection carries.
const (
	topAgents = 5
	topRoutes = 5
)

// untimedShare is the share of requests whose time at the origin may be missing before nothing is said of it.
const untimedShare = 0.01

func seconds(ns int64) float64 { return float64(ns) / float64(time.Second) }

func lessKey(a, b pane.Key) bool { return compareKeys(a, b) < 0 }

func compareKeys(a, b pane.Key) int {
	return cmp.Or(strings.Compare(a.Route, b.Route), strings.Compare(a.Method, b.Method),
		cmp.Compare(a.Origin, b.Origin))
}

// cells ranges over a site's cells in no particular order: callers add up or take a maximum with a tie-break.
func (w *Window) cells(site string) iter.Seq2[pane.Key, *pane.Cell] {
	return func(yield func(pane.Key, *pane.Cell) bool) {
		s := w.View.Sites[site]
		if s == nil {
			return
		}
		for k, c := range s.All() {
			if !yield(k, c) {
				return
			}
		}
	}
}

// totals are the sums over a site's cells; nil where it has none.
func (w *Window) totals(site string) *pane.Totals {
	s := w.View.Sites[site]
	if s == nil {
		return nil
	}
	return s.Totals()
}

// busyClients is busy for all clients, of whose cells nobody has to ask.
func (w *Window) busyClients(t *pane.Totals) (lower, upper float64) {
	length := float64(w.View.End - w.View.Start)
	return float64(t.Clients.Busy.Lower) / length, float64(t.Clients.Busy.Upper) / length
}

// busy is the mean number of busy workers of the matching cells, as an interval.
func (w *Window) busy(site string, match func(pane.Key) bool) (lower, upper float64) {
	var lo, up int64
	for k, c := range w.cells(site) {
		if match(k) {
			lo, up = lo+c.Busy.Lower, up+c.Busy.Upper
		}
	}
	length := float64(w.View.End - w.View.Start)
	return float64(lo) / length, float64(up) / length
}

// A routeRate is the traffic of one method and route over all origins, beside what is usual.
type routeRate struct {
	key       pane.Key
	perMinute float64
	base      Baseline
}

func (r routeRate) ratio() float64 { return r.base.Ratio(r.perMinute) }

// perRoute adds up the matching cells by method and route, sorted by route.
func (w *Window) perRoute(site string, match func(pane.Key) bool) []routeRate {
	sums := map[pane.Key]uint64{}
	for k, c := range w.cells(site) {
		if match(k) {
			k.Origin = 0
			sums[k] += c.Requests
		}
	}
	rates := make([]routeRate, 0, len(sums))
	for k, n := range sums {
		rates = append(rates, routeRate{key: k, perMinute: float64(n) / w.Minutes(), base: w.Baseline(site, k)})
	}
	slices.SortFunc(rates, func(a, b routeRate) int { return compareKeys(a.key, b.key) })
	return rates
}

// busiest picks the route with the most requests; the first by name among equals.
func busiest(rates []routeRate) (routeRate, bool) {
	if len(rates) == 0 {
		return routeRate{}, false
	}
	return slices.MaxFunc(rates, func(a, b routeRate) int {
		return cmp.Or(cmp.Compare(a.perMinute, b.perMinute), -compareKeys(a.key, b.key))
	}), true
}

// costliest is the cell that holds most worker time, by its upper bound.
func (w *Window) costliest(site string) (top pane.Key, ok bool) {
	var most int64
	for k, c := range w.cells(site) {
		if isClient(k) && (c.Busy.Upper > most || c.Busy.Upper == most && most > 0 && lessKey(k, top)) {
			top, most, ok = k, c.Busy.Upper, true
		}
	}
	return top, ok
}

// topRoutes ranks "METHOD route" by a weight.
func (w *Window) topRoutes(site string, match func(pane.Key) bool, weight func(*pane.Cell) float64) []Count {
	sums := map[string]float64{}
	for k, c := range w.cells(site) {
		if v := weight(c); v > 0 && match(k) {
			sums[k.Method+" "+k.Route] += v
		}
	}
	return heaviest(sums)
}

// heaviest ranks keys by their weight.
func heaviest(sums map[string]float64) []Count {
	ranked := make([]Count, 0, len(sums))
	for key, v := range sums {
		ranked = append(ranked, Count{Key: key, Count: N(v).rounded()})
	}
	slices.SortFunc(ranked, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Key, b.Key))
	})
	return ranked[:min(len(ranked), topRoutes)]
}

// explain gives the evidence common to all detectors that look at requests: of the matching cells, beside the
// whole site's.
func (w *Window) explain(site string, match func(pane.Key) bool) Evidence {
	s := w.View.Sites[site]
	if s == nil {
		return Evidence{}
	}
	c := s.Sum(match)
	perMinute := float64(c.Requests) / w.Minutes()
	e := Evidence{
		Requests: N(float64(c.Requests)), RequestsPerMinute: N(perMinute),
		Abandoned: N(float64(c.Abandoned)), Limited: N(float64(c.Limited)),
		Errors5xx: N(float64(c.Codes.Class(5))),
		Status:    codes(&c.Codes), Samples: c.Samples.Strings(),
		TopRoutes: w.topRoutes(site, match, func(c *pane.Cell) float64 { return float64(c.Requests) }),
	}
	if c.Requests > 0 {
		e.AbandonRatio = N(float64(c.Abandoned) / float64(c.Requests))
	}
	if clients, _ := c.Clients.Count(); clients > 0 {
		e.DistinctClients = N(clients)
		e.RequestsPerClientPerMinute = N(perMinute / clients)
	}
	if agents, _ := c.Agents.Count(); agents > 0 {
		e.DistinctAgents = N(agents)
	}
	if urls, _ := c.URLs.Count(); urls > 0 {
		e.RepeatFactor = N(float64(c.Requests) / urls)
	}
	if c.TopAgents != nil {
		for _, it := range c.TopAgents.Heaviest(topAgents) {
			e.TopAgents = append(e.TopAgents, Count{Key: it.Key, Count: float64(it.Count), Approx: it.Error > 0})
		}
	}
	if p99, ok := c.Latency.Quantile(0.99); ok {
		e.P99Seconds = N(p99)
		e.P99Censored = float64(c.Abandoned) > 0.01*float64(c.Requests)
	}
	if told := c.Reached + c.NotReached; told > 0 {
		e.ReachedUpstreamRatio = N(float64(c.Reached) / float64(told))
	}
	w.explainWorkers(&e, site, match, &c)
	return e
}

// explainWorkers adds the origin's side: the workers of the site, and the part of the matching cells.
func (w *Window) explainWorkers(e *Evidence, site string, match func(pane.Key) bool, c *pane.Cell) {
	if w.Pool(site).Workers > 0 {
		e.PoolWorkers, e.PoolLearned = N(float64(w.Pool(site).Workers)), w.Pool(site).Learned
	}
	if float64(c.Busy.Untimed) > untimedShare*float64(c.Requests) {
		return // the log does not tell the origin's time: what it tells of is no bound of the whole
	}
	e.WorkerSecondsLower, e.WorkerSecondsUpper = N(seconds(c.Busy.Lower)), N(seconds(c.Busy.Upper))
	lower, upper := w.busy(site, isClient)
	e.BusyWorkersLower, e.BusyWorkersUpper = N(lower), N(upper)
	if upper > 0 {
		e.WorkerSecondsShare = N(float64(c.Busy.Upper) / float64(w.View.End-w.View.Start) / upper)
	}
	// Without this class the others would not have queued behind it, so their time is what it usually is.
	without, known := int64(0), false // ns, whose sum no order of the cells changes
	for k, cell := range w.cells(site) {
		if match(k) || !isClient(k) {
			continue
		}
		each := w.Baseline(site, k).Seconds
		if each > 0 {
			known = true
		} else if cell.Requests > 0 {
			each = seconds(cell.Busy.Lower) / float64(cell.Requests)
		}
		without += int64(each * float64(cell.Requests) * float64(time.Second))
	}
	if known {
		e.CounterfactualBusyWorkers = N(float64(without) / float64(w.View.End-w.View.Start))
	}
}

func codes(c *pane.Codes) map[string]int {
	m := map[string]int{}
	c.All(func(code uint16, n uint64) {
		name := "none"
		if code > 0 {
			name = string([]byte{'0' + byte(code/100%10), '0' + byte(code/10%10), '0' + byte(code%10)})
		}
		m[name] += int(n)
	})
	return m
}

// only finds the cell of a window that holds a single line.
func (w *Window) only(match func(pane.Key) bool) (pane.Key, *pane.Cell, bool) {
	for _, site := range w.Sites {
		for k, c := range w.cells(site) {
			if match(k) {
				return k, c, true
			}
		}
	}
	return pane.Key{}, nil, false
}

// A Touched is what one line means to one detector.
type Touched struct{ Detector, What string }

// Touch tells, for a view that holds a single line, what it means to each detector that it concerns.
func (e *Engine) Touch(view *pane.Pane) []Touched {
	var out []Touched
	for _, r := range e.detectors {
		r.variants(view.SiteNames(), func(d Detector, sites []string) {
			if what := d.Touch(e.window(r.name, view, sites)); what != "" {
				out = append(out, Touched{r.name, what})
			}
		})
	}
	return out
}

package detectors

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// A Span is all requests of a site from the onset of the first episode to the end of the last one that overlaps it: what a
// report says pinned the origin comes from here.
type Span struct {
	Site     string
	From, To int64     // ns
	Total    Evidence  // of all clients
	Probes   Evidence  // of the health checks
	Classes  []Class   // those that held most worker time, then those with most requests
	Left     int       // classes that are not listed
	Pileups  []Pileup  // durations that many requests share
	Pool     Pool      // as configured or learned
	Controls []Control // what is in place
}

// A Class is the requests of one method and route of one origin in a Span.
type Class struct {
	Method, Route string
	Origin        pipeline.Origin
	Evidence      Evidence
	Cache         []Count // requests by cache status, of those whose log tells it
}

// A Pileup is a duration at which far more requests ended than around it: somebody's timeout.
type Pileup struct {
	Seconds float64
	Count   uint64
}

// How many classes a Span lists.
const (
	costlyClasses   = 8 // by worker time
	frequentClasses = 4 // by requests, of the rest
)

// Open gives the spans of what goes on: at the end of a replay, nothing ends it.
func (e *Engine) Open() []Span {
	var out []Span
	for _, site := range slices.Sorted(maps.Keys(e.incidents)) {
		if site != "" {
			out = append(out, e.span(site, e.incidents[site]))
		}
	}
	return out
}

func (e *Engine) span(site string, view *pane.Pane) Span {
	w := e.window("", view, []string{site})
	s := Span{
		Site: site, From: view.Start, To: view.End, Pool: e.poolOf(site), Controls: e.controls(site),
		Total: w.explain(site, isClient), Probes: w.explain(site, func(k pane.Key) bool { return k.Probe }),
	}
	of := view.Sites[site]
	if of == nil {
		return s
	}
	if usual := w.usual(site); usual > 0 {
		s.Total.BaselinePerMinute = N(usual)
		s.Total.BaselineRatio = N(Baseline{PerMinute: usual}.Ratio(s.Total.RequestsPerMinute.Get()))
	}
	rows := families(of)
	kept := chosen(rows)
	for _, r := range kept {
		s.Classes = append(s.Classes, w.class(site, r))
	}
	for _, r := range rows {
		s.Left += len(r.keys)
	}
	for _, r := range kept {
		s.Left -= len(r.keys)
	}
	all := of.Sum(isClient)
	for _, p := range all.Latency.Pileups() {
		s.Pileups = append(s.Pileups, Pileup(p))
	}
	return s
}

// usual is how many requests a minute the routes that were asked for usually get.
func (w *Window) usual(site string) (sum float64) {
	keys := map[pane.Key]bool{}
	for k := range w.cells(site) {
		if isClient(k) {
			k.Origin = 0
			keys[k] = true
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(keys), compareKeys) {
		sum += w.Baseline(site, k).PerMinute
	}
	return sum
}

// A family is a row of a span: one key, or the keys of many routes that differ in nothing but a name.
type family struct {
	key      pane.Key // with the route of the family: /feeds/*.xml
	keys     map[pane.Key]bool
	requests uint64
	limited  uint64
	upper    int64 // ns of worker time
	heaviest int64 // ns of worker time, or else requests, of one route
}

const (
	familyRoutes = 8    // that differ in a name alone make a family
	familyShare  = 0.2  // of the family's worker time: a route that stands out is a row of its own
	rareShare    = 0.01 // of the requests and of the worker time: a class is not listed below both
)

// families are the rows of a site: its keys, those of small routes of one kind together.
func families(of *pane.Site) []*family {
	groups := map[pane.Key]*family{}
	for k, c := range of.Cells() {
		if !isClient(k) {
			continue
		}
		g := k
		g.Route = familyOf(k.Route)
		if groups[g] == nil {
			groups[g] = &family{key: g, keys: map[pane.Key]bool{}}
		}
		groups[g].add(k, c)
	}
	var rows []*family
	for _, f := range groups {
		total := f.upper
		if total == 0 {
			total = int64(f.requests)
		}
		if len(f.keys) >= familyRoutes && float64(f.heaviest) < familyShare*float64(total) {
			rows = append(rows, f)
			continue
		}
		for k := range f.keys {
			row := &family{key: k, keys: map[pane.Key]bool{}}
			row.add(k, of.Cells()[k])
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *family) int {
		return cmp.Or(cmp.Compare(b.upper, a.upper), cmp.Compare(b.requests, a.requests), compareKeys(a.key, b.key))
	})
	return rows
}

func (f *family) add(k pane.Key, c *pane.Cell) {
	f.keys[k] = true
	f.requests, f.limited, f.upper = f.requests+c.Requests, f.limited+c.Limited, f.upper+c.Busy.Upper
	weight := c.Busy.Upper
	if weight == 0 {
		weight = int64(c.Requests)
	}
	f.heaviest = max(f.heaviest, weight)
}

// familyOf keeps the first segment of a route and the kind of its last.
func familyOf(route string) string {
	first, rest, nested := strings.Cut(strings.TrimPrefix(route, "/"), "/")
	if !nested || !strings.HasPrefix(route, "/") || strings.Contains(rest, "{") {
		return route
	}
	ext := ""
	if i := strings.LastIndexByte(rest, '.'); i > strings.LastIndexByte(rest, '/') {
		ext = rest[i:]
	}
	return "/" + first + "/*" + ext
}

// chosen are the rows that a span lists: the costliest, then the most frequent of the rest, and none that is rare.
func chosen(rows []*family) []*family {
	var requests uint64
	var upper int64
	for _, r := range rows {
		requests, upper = requests+r.requests, upper+r.upper
	}
	listed := slices.DeleteFunc(slices.Clone(rows), func(r *family) bool {
		return float64(r.requests) < rareShare*float64(requests) && float64(r.upper) <= rareShare*float64(upper) && r.limited == 0
	})
	n := min(len(listed), costlyClasses)
	rest := slices.Clone(listed[n:])
	slices.SortStableFunc(rest, func(a, b *family) int { return cmp.Compare(b.requests, a.requests) })
	return slices.Concat(listed[:n], rest[:min(len(rest), frequentClasses)])
}

// class explains one row: as explain does, and with what the cache and the kind of file tell.
func (w *Window) class(site string, row *family) Class {
	key := row.key
	match := func(k pane.Key) bool { return row.keys[k] }
	e := w.explain(site, match)
	cell := w.View.Sites[site].Sum(match)
	c := Class{Method: key.Method, Route: key.Route, Origin: key.Origin}
	e.Method, e.Route, e.TopRoutes = key.Method, key.Route, nil
	usual := key
	usual.Origin = 0
	if base := w.Baseline(site, usual); base.PerMinute > 0 && key.Origin == pipeline.External {
		e.BaselinePerMinute, e.BaselineRatio = N(base.PerMinute), N(base.Ratio(e.RequestsPerMinute.Get()))
	}
	e.StaticShare = N(float64(cell.Static) / float64(max(cell.Requests, 1)))
	var told uint64
	for status := pipeline.CacheUnsaid + 1; status < pipeline.CacheStatuses; status++ {
		if n := cell.Cache[status]; n > 0 {
			c.Cache = append(c.Cache, Count{Key: status.String(), Count: float64(n)})
			told += n
		}
	}
	slices.SortStableFunc(c.Cache, func(a, b Count) int { return cmp.Compare(b.Count, a.Count) })
	if missed := cell.Cache[pipeline.CacheMiss] + cell.Cache[pipeline.CacheExpired]; told > 0 {
		e.MissShare, e.MissesPerMinute = N(float64(missed)/float64(told)), N(float64(missed)/w.Minutes())
		if urls, _ := cell.Missed.Count(); urls > 0 {
			e.MissedURLs = N(urls)
		}
	}
	c.Evidence = e
	return c
}

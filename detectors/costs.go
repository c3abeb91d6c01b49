package detectors

import (
	"slices"

	"github.com/squall-sre/squall/detectors/pane"
)

// A ClassCost is what the requests of one method and route cost the origin, or those of many routes that differ in a name
// alone.
type ClassCost struct {
	Method       string `json:"method"`
	Route        string `json:"route"`  // /feeds/*.xml where there are several
	Routes       int    `json:"routes"` // that it stands for
	Requests     Num    `json:"requests"`
	Share        Num    `json:"worker_seconds_share"`   // of the site's, by the upper bound
	RepeatFactor Num    `json:"repeat_factor,omitzero"` // requests for each address of its own: a cache of it could keep 1 − 1/factor
}

// An accruing detector has evidence that shows over minutes and not within one window: how often an address is asked for.
// The engine hands it the merged panes since the site's first episode began.
type accruing interface {
	accrue(since *Window, key Labels, e *Evidence)
}

func (d *saturation) accrue(since *Window, key Labels, e *Evidence) {
	since.accrueCosts(key.Get("site"), e)
}

func (d *latency) accrue(since *Window, key Labels, e *Evidence) {
	since.accrueCosts(key.Get("site"), e)
}

func (w *Window) accrueCosts(site string, e *Evidence) {
	costs := w.costs(site)
	if len(costs) == 0 {
		return
	}
	e.Costs = costs
	for _, c := range costs {
		if e.RepeatFactor.Known() && c.Method == e.Method && c.Route == e.Route {
			e.RepeatFactor = c.RepeatFactor
		}
	}
}

// rows are the classes of a site, the costliest first; none where the log does not tell the origin's time.
func (w *Window) rows(site string) []*family {
	of := w.View.Sites[site]
	if of == nil {
		return nil
	}
	all := of.Sum(isClient)
	if float64(all.Busy.Untimed) > untimedShare*float64(all.Requests) {
		return nil
	}
	return slices.DeleteFunc(families(of), func(f *family) bool { return f.upper <= 0 })
}

// costs ranks the classes of a site by worker time.
func (w *Window) costs(site string) []ClassCost {
	rows := w.rows(site)
	total := int64(0)
	for _, r := range rows {
		total += r.upper
	}
	var out []ClassCost
	for _, r := range rows[:min(len(rows), topRoutes)] {
		c := ClassCost{
			Method: r.key.Method, Route: r.key.Route, Routes: len(r.keys), Requests: N(float64(r.requests)),
			Share: N(float64(r.upper) / float64(total)),
		}
		sum := w.View.Sites[site].Sum(func(k pane.Key) bool { return r.keys[k] })
		if urls, _ := sum.URLs.Count(); urls > 0 {
			c.RepeatFactor = N(float64(r.requests) / urls)
		}
		out = append(out, c)
	}
	return out
}

// ranking writes the classes as a ranking of routes by worker-seconds; listed where there are none.
func ranking(rows []*family, listed []Count) []Count {
	if len(rows) == 0 {
		return listed
	}
	sums := map[string]float64{}
	for _, r := range rows {
		sums[r.key.Method+" "+r.key.Route] += seconds(r.upper)
	}
	return heaviest(sums)
}

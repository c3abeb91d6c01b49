package detectors

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Usual is what an engine has learned of a site from the time in which nothing was wrong with it.
type Usual struct {
	Site    string
	Minutes float64 // how much quiet time it was learned from
	Agents  AgentBaseline
	Routes  []UsualRoute // those with most requests, at most as many as were asked for
}

// A UsualRoute is what is usual of one method and route.
type UsualRoute struct {
	Method, Route string
	Baseline
}

// Usual lists what was learned, by site, as of the last pane.
func (e *Engine) Usual(routes int) []Usual {
	var out []Usual
	for _, name := range slices.Sorted(maps.Keys(e.baselines.Sites)) {
		u := Usual{Site: name, Agents: e.baselines.agents(name)}
		u.Minutes = u.Agents.Minutes
		for k := range e.baselines.Sites[name].Series {
			u.Routes = append(u.Routes, UsualRoute{Method: k.Method, Route: k.Route, Baseline: e.baselines.get(name, k, e.at)})
		}
		slices.SortFunc(u.Routes, func(a, b UsualRoute) int {
			return cmp.Or(cmp.Compare(b.PerMinute, a.PerMinute), strings.Compare(a.Route, b.Route), strings.Compare(a.Method, b.Method))
		})
		u.Routes = u.Routes[:min(len(u.Routes), routes)]
		out = append(out, u)
	}
	return out
}

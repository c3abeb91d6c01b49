package detectors

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// headStorm watches HEAD requests of each site: on each route, and on all of them together. Link-protection scanners
// fetch every link of a mailing with HEAD from hundreds of addresses, each far under any per-address limit; method and
// route are what they cannot rotate, but a mailing may have a hundred links. One detection a site, however the storm's
// routes move: they are its evidence.
type headStorm struct {
	PerMinute     float64       `yaml:"per_minute"`     // HEAD requests a minute on one route, or on all
	BaselineRatio float64       `yaml:"baseline_ratio"` // times what is usual for that route, or for all
	Window        time.Duration `yaml:"window"`
}

func newHeadStorm(decode func(any) error) (Detector, error) {
	d := &headStorm{PerMinute: 300, BaselineRatio: 10, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("per_minute", d.PerMinute), positive("baseline_ratio", d.BaselineRatio))
}

func (d *headStorm) Span() time.Duration { return d.Window }

func (d *headStorm) Scope() Scope { return PerSite }

func isHead(k pane.Key) bool { return k.Method == "HEAD" && !k.Probe }

func (d *headStorm) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		t := w.totals(name)
		if t == nil || level(float64(t.Heads+1)/w.Minutes(), d.PerMinute, leave) == Below {
			continue // no route, nor all together; one more for what is lost in adding up what is a minute
		}
		routes := w.perRoute(name, isHead)
		worst, lvl := 0.0, Below
		for _, r := range append(routes, w.allHeads(name, routes)) {
			l := d.level(r)
			if l > lvl || l == lvl && r.perMinute > worst {
				worst, lvl = r.perMinute, l
			}
		}
		if lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: worst, Threshold: d.PerMinute, Evidence: d.Evidence(w, labels)})
	}
	return found
}

// level judges a route, or all of them: these only against what is known to be usual, since many monitors and link
// checkers add up, and what is told of from the first minute on is never learned.
func (d *headStorm) level(r routeRate) Level {
	if r.key.Route == "" && !r.base.Known() {
		return Below
	}
	return min(level(r.perMinute, d.PerMinute, leave), level(r.ratio(), d.BaselineRatio, leave))
}

// allHeads adds up the routes of a site, beside what is usual for them together.
func (w *Window) allHeads(site string, routes []routeRate) routeRate {
	all := routeRate{key: pane.Key{Method: "HEAD"}, base: w.Heads(site)}
	for _, r := range routes {
		all.perMinute += r.perMinute
	}
	return all
}

// stormPart is the share of a storm, by its requests or by their worker time, that a route of it has at least.
const stormPart = 0.05

// stormCover is the share of a storm, by its requests, that such routes have: where they have less it spreads over many,
// and each of which there are twice as many requests as usual takes part.
const stormCover = 0.95

// toldRoutes is how many routes of a storm are told.
const toldRoutes = 10

// A stormRoute is what a storm sends to one method and route beyond what is usual there.
type stormRoute struct {
	routeRate
	beyond float64 // requests a minute
	cost   float64 // worker-seconds of these, at most
}

// stormRoutes are the routes that take part in a storm, the one that holds most worker time first; where the log does
// not tell the times, the one with most requests. What monitors and feed readers ask for beside it is left out.
func (w *Window) stormRoutes(site string, match func(pane.Key) bool) []stormRoute {
	busy, untimed := map[pane.Key]int64{}, uint64(0)
	for k, c := range w.cells(site) {
		if match(k) {
			k.Origin = 0
			busy[k] += c.Busy.Upper
			untimed += c.Busy.Untimed
		}
	}
	var all stormRoute
	var routes []stormRoute
	for _, r := range w.perRoute(site, match) {
		x := stormRoute{routeRate: r, beyond: max(0, r.perMinute-r.base.PerMinute)}
		if r.perMinute > 0 {
			x.cost = x.beyond / r.perMinute * seconds(busy[r.key])
		}
		all.beyond, all.cost, all.perMinute = all.beyond+x.beyond, all.cost+x.cost, all.perMinute+r.perMinute
		routes = append(routes, x)
	}
	timed := float64(untimed) <= untimedShare*all.perMinute*w.Minutes()
	unusual := func(r stormRoute) bool { return r.beyond > r.base.PerMinute } // and no monitor that trembles
	large := func(r stormRoute) bool {
		return r.beyond >= stormPart*all.beyond || timed && all.cost > 0 && r.cost >= stormPart*all.cost && r.beyond >= rareShare*all.beyond && unusual(r)
	}
	covered := 0.0
	for _, r := range routes {
		if large(r) {
			covered += r.beyond
		}
	}
	spread := covered < stormCover*all.beyond
	routes = slices.DeleteFunc(routes, func(r stormRoute) bool { return !large(r) && !(spread && unusual(r)) })
	slices.SortStableFunc(routes, func(a, b stormRoute) int {
		if timed && a.cost != b.cost {
			return cmp.Compare(b.cost, a.cost)
		}
		return cmp.Compare(b.beyond, a.beyond)
	})
	return routes
}

// Evidence is that of all routes that take part; Route is the first of them. What is usual is that of Route where it
// alone is a storm, else that of all HEAD requests.
func (d *headStorm) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	routes := w.stormRoutes(site, isHead)
	part := map[string]bool{}
	for _, r := range routes {
		part[r.key.Route] = true
	}
	e := w.explain(site, func(k pane.Key) bool { return isHead(k) && part[k.Route] })
	if len(routes) > 0 {
		e.Method, e.Route = routes[0].key.Method, routes[0].key.Route
		e.TopRoutes = e.TopRoutes[:0]
		for _, r := range routes[:min(len(routes), toldRoutes)] {
			c := Count{Key: r.key.Method + " " + r.key.Route, Count: N(r.perMinute * w.Minutes()).rounded()}
			if r.base.Known() {
				c.BaselineRatio = N(r.ratio())
			}
			e.TopRoutes = append(e.TopRoutes, c)
		}
		slices.SortStableFunc(e.TopRoutes, func(a, b Count) int { return cmp.Compare(b.Count, a.Count) })
		e.DistinctRoutes = N(float64(len(routes)))
		usual := routes[0].routeRate
		if d.level(usual) == Below {
			usual, e.BaselineOfAll = w.allHeads(site, w.perRoute(site, isHead)), true
		}
		if usual.base.Known() {
			e.BaselinePerMinute, e.BaselineRatio = N(usual.base.PerMinute), N(usual.ratio())
		}
	}
	if w.View.Sites[site] != nil {
		s := w.storm(site, w.beyondBaseline(site, isHead))
		s.discriminate(&e)
		s.cover(w.Controls(site), &e)
	}
	return e
}

func (d *headStorm) Touch(w *Window) string {
	k, _, ok := w.only(isHead)
	if !ok {
		return ""
	}
	return fmt.Sprintf("one HEAD on %s: fires at %g a minute on one route, or on all, and %g times what is usual for it",
		k.Route, d.PerMinute, d.BaselineRatio)
}

// Help tells of the detector.
func (*headStorm) Help() Help {
	return Help{
		Watches:  "HEAD requests of each site, on each route and on all of them together: link-protection scanners fetch every link of a mailing with HEAD, from hundreds of addresses and under agents that they rotate.",
		Formula:  "HEAD a minute on one route, or on all routes of the site together, >= `per_minute`, and (x+c)/(b+c) >= `baseline_ratio`, where b is what is usual there and c at most 1 a minute; health checks left out. What is usual is learned to grow threefold an hour at most: a storm that grows slower than that is taken for what is usual",
		Evidence: []string{"requests_per_minute", "baseline_per_minute", "baseline_ratio", "method", "route", "top_routes", "distinct_routes", "reached_upstream_ratio", "distinct_clients", "requests_per_client_per_minute", "distinct_agents", "worker_seconds_share"},
		FalsePositives: []string{
			"a link checker of your own that asks by HEAD: give it an allowed address, or a class of its own",
			"a new monitor by HEAD that is not recognised as a health check",
			"not seen: HEAD on many routes from before the log begins, each under `per_minute`",
		},
		Runbook: []string{
			"reached_upstream_ratio: 0 means the storm is answered before the origin and nothing is to be done",
			"requests_per_client_per_minute: under 30 a limit for each address catches people first",
			"curl -sI URL; curl -s -D- -o /dev/null URL   # the answers to HEAD and GET must be the same once HEAD is answered in front",
			"squall replay --detections PATH...   # when it began and ended, and what else was on",
		},
	}
}

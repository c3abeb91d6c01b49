package detectors

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// headStorm watches HEAD requests for each site, method and route. Link-protection scanners fetch every link of
// a mailing with HEAD from hundreds of addresses, each far under any per-address limit; method and route are
// what they cannot rotate. One detection a site: the routes are its evidence.
type headStorm struct {
	PerMinute     float64       `yaml:"per_minute"`     // HEAD requests a minute on one route
	BaselineRatio float64       `yaml:"baseline_ratio"` // times what is usual for that route
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
		routes := w.perRoute(name, isHead)
		worst, lvl := 0.0, Below
		for _, r := range routes {
			l := min(level(r.perMinute, d.PerMinute, leave), level(r.ratio(), d.BaselineRatio, leave))
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

// stormPart is the share of a storm, by its requests or by their worker time, that a route of it has at least.
const stormPart = 0.05

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
	routes = slices.DeleteFunc(routes, func(r stormRoute) bool {
		return r.beyond < stormPart*all.beyond && !(timed && all.cost > 0 && r.cost >= stormPart*all.cost)
	})
	slices.SortStableFunc(routes, func(a, b stormRoute) int {
		if timed && a.cost != b.cost {
			return cmp.Compare(b.cost, a.cost)
		}
		return cmp.Compare(b.beyond, a.beyond)
	})
	return routes
}

// Evidence is that of all routes that take part; Route is the first of them, and what is usual is that of Route.
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
			e.TopRoutes = append(e.TopRoutes, Count{Key: r.key.Method + " " + r.key.Route, Count: N(r.perMinute * w.Minutes()).rounded()})
		}
		slices.SortStableFunc(e.TopRoutes, func(a, b Count) int { return cmp.Compare(b.Count, a.Count) })
		e.BaselinePerMinute, e.BaselineRatio = N(routes[0].base.PerMinute), N(routes[0].ratio())
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
	return fmt.Sprintf("one HEAD on %s: fires at %g a minute on one route, and %g times what is usual for it",
		k.Route, d.PerMinute, d.BaselineRatio)
}

// Help tells of the detector.
func (*headStorm) Help() Help {
	return Help{
		Watches:  "HEAD requests of each site, method and route: link-protection scanners fetch every link of a mailing with HEAD, from hundreds of addresses and under agents that they rotate.",
		Formula:  "HEAD a minute on one route >= `per_minute`, and (x+c)/(b+c) >= `baseline_ratio`, where b is what is usual for the route and c at most 1 a minute; health checks left out",
		Evidence: []string{"requests_per_minute", "baseline_per_minute", "baseline_ratio", "method", "route", "top_routes", "reached_upstream_ratio", "distinct_clients", "requests_per_client_per_minute", "distinct_agents", "worker_seconds_share"},
		FalsePositives: []string{
			"a link checker of your own that asks by HEAD: give it an allowed address, or a class of its own",
			"a new monitor by HEAD that is not recognised as a health check",
		},
		Runbook: []string{
			"reached_upstream_ratio: 0 means the storm is answered before the origin and nothing is to be done",
			"requests_per_client_per_minute: under 30 a limit for each address catches people first",
			"curl -sI URL; curl -s -D- -o /dev/null URL   # the answers to HEAD and GET must be the same once HEAD is answered in front",
			"squall replay --detections PATH...   # when it began and ended, and what else was on",
		},
	}
}

package alerts

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

// What a share must be to carry a conclusion.
const (
	pinShare     = 0.5  // of the worker-seconds: this class pinned the origin
	broadShare   = 0.3  // no class above it: broad, not one class
	reachedAtAll = 0.05 // of a class's requests: under it the class is answered before the origin
	calmRatio    = 0.8  // busy workers over the pool under which the origin would have been fine
	fewRequests  = 30.0 // a minute and address: below it a limit for each address catches people first
	wideShare    = 0.8  // of the restarted containers: as good as all
	lossyShare   = 0.01 // of the lines late or folded: numbers by route are not proof any more
)

// facts are what a cause and an advice may rest on: the alert, everything that was seen of its by-values, and
// what is missing.
type facts struct {
	alert    *Alert
	seen     map[string]*detectors.Detection
	coverage pane.Coverage
	gaps     []string // sources that lost lines, sorted
	away     []string // nodes of the fleet that did not tell, sorted
	quiet    []detectors.Silence
	requests uint64              // that were read meanwhile
	controls []detectors.Control // what the site has in place
	site     func(string) Site
	grafana  string // its address; "": not known

	head, flood, self, restart, sat   *detectors.Evidence
	limiter, failing, timeouts, probe *detectors.Evidence // ratelimit_backfire, error_burst, worker_timeout, probe_failure
	retry, stampede                   *detectors.Evidence // retry_loop, cache_stampede
	hurting                           bool                // clients leave, wait or workers are used up
	class                             class
	costly                            []class // the costliest first
}

// class is the method and route that hold most of the origin's worker time.
type class struct {
	method, route string
	routes        int     // that differ in a name alone; route has a * for it where there are several
	share         float64 // of the site's worker-seconds; NaN: not known
	repeats       float64 // requests for each address; NaN: not known
	from          string  // the detector that measured it
}

// pattern is the class as a regular expression for a location, "" when it cannot be. A * of one route is a client's.
func (c class) pattern() string {
	if c.routes < 2 {
		return nginxPattern(c.route)
	}
	before, after, _ := strings.Cut(c.route, "*")
	before, after = nginxPattern(before), nginxPattern("/"+after)
	if before == "" || after == "" {
		return ""
	}
	return strings.TrimSuffix(before, "$") + "[^/]+" + strings.TrimPrefix(after, "^/")
}

func (c class) String() string { return strings.TrimSpace(c.method + " " + c.route) }

func (f *facts) prepare() {
	of := func(name string) *detectors.Evidence {
		if d := f.seen[name]; d != nil {
			return &d.Evidence
		}
		return nil
	}
	f.head, f.self, f.restart, f.sat = of("head_storm"), of("self_loop"), of("restart_burst"), of("saturation")
	f.flood = of("agent_flood")
	f.limiter, f.failing, f.timeouts, f.probe = of("ratelimit_backfire"), of("error_burst"), of("worker_timeout"), of("probe_failure")
	f.retry, f.stampede = of("retry_loop"), of("cache_stampede")
	if f.retry != nil && slices.Equal(f.alert.Detectors, []string{"retry_loop"}) {
		f.retry = &f.alert.Evidence // the span that the alert's other numbers are of
	}
	f.hurting = of("client_abandon") != nil || of("latency") != nil || f.sat != nil
	f.class = costliest(f.sat, of("latency"))
	f.costly = costly(f.class, f.sat, of("latency"))
}

// costly are the classes by what they cost, as the detector of the costliest ranked them.
func costly(top class, sat, latency *detectors.Evidence) []class {
	from := sat
	if top.from == "latency" {
		from = latency
	}
	if from == nil {
		return nil
	}
	if len(from.Costs) == 0 {
		return []class{top}
	}
	var out []class
	for _, c := range from.Costs {
		out = append(out, class{c.Method, c.Route, c.Routes, c.Share.Get(), c.RepeatFactor.Get(), top.from})
	}
	return out
}

// costliest finds the class with most worker time: as saturation measured it, else as latency ranked it.
func costliest(sat, latency *detectors.Evidence) class {
	if sat != nil && sat.Route != "" {
		return class{sat.Method, sat.Route, routesIn(sat), sat.WorkerSecondsShare.Get(), sat.RepeatFactor.Get(), "saturation"}
	}
	if latency != nil && len(latency.Costs) > 0 {
		c := latency.Costs[0]
		return class{c.Method, c.Route, c.Routes, c.Share.Get(), c.RepeatFactor.Get(), "latency"}
	}
	if latency != nil && len(latency.TopRoutes) > 0 {
		method, route, ok := strings.Cut(latency.TopRoutes[0].Key, " ")
		if !ok {
			method, route = "", method
		}
		share := latency.TopRoutes[0].Count / latency.WorkerSecondsLower.Get()
		if share > 1 || share <= 0 {
			share = math.NaN()
		}
		return class{method, route, 1, share, math.NaN(), "latency"}
	}
	return class{share: math.NaN()}
}

// routesIn is how many routes the class of an evidence stands for.
func routesIn(e *detectors.Evidence) int {
	for _, c := range e.Costs {
		if c.Method == e.Method && c.Route == e.Route {
			return c.Routes
		}
	}
	return 1
}

// costs ranks the routes by worker-seconds, "" when it is not known.
func (f *facts) costs() string {
	for _, name := range []string{"saturation", "latency"} {
		if d := f.seen[name]; d != nil && d.Evidence.WorkerSecondsUpper.Known() && len(d.Evidence.TopRoutes) > 0 {
			return ranking(d.Evidence.TopRoutes)
		}
	}
	return ""
}

// nodesText names the nodes of a fleet, the first of them when they are many.
func nodesText(names []string) string {
	const few = 5
	switch {
	case len(names) == 0:
		return "some nodes"
	case len(names) == 1:
		return "node " + names[0]
	case len(names) > few:
		return fmt.Sprintf("nodes %s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return "nodes " + strings.Join(names, ", ")
}

// lossy lists what keeps any conclusion from being proven.
func (f *facts) lossy() []string {
	var missing []string
	for _, s := range f.gaps {
		missing = append(missing, "the lines that "+s+" lost in the window")
	}
	if c := &f.coverage; c.Absent > 0 {
		missing = append(missing, fmt.Sprintf("what %s counted: %s of the fleet told nothing, or too late",
			nodesText(f.away), percent(float64(c.Absent)/float64(c.Nodes+c.Absent))))
	}
	site := f.alert.Labels.Get("site")
	for _, q := range f.quiet {
		if site == "" || slices.Contains(q.Sites, site) {
			missing = append(missing, "the requests of "+q.Source+" "+during(q.From, q.To)+": it told of none")
		}
	}
	c := &f.coverage
	if c.Gaps > 0 && len(f.gaps) == 0 {
		missing = append(missing, "lines that were lost in the window")
	}
	if lines := float64(c.Lines); float64(c.Late+c.Dropped) > lossyShare*lines {
		missing = append(missing, fmt.Sprintf("%d lines that came too late or too early to be counted", c.Late+c.Dropped))
	}
	if lines := float64(c.Lines); float64(c.CellsFolded+c.SitesFolded) > lossyShare*lines {
		missing = append(missing, fmt.Sprintf("the routes of %d requests over the limit of routes", c.CellsFolded+c.SitesFolded))
	}
	if c.EventsDropped > 0 {
		missing = append(missing, fmt.Sprintf("%d events over the limit", c.EventsDropped))
	}
	return missing
}

// window is the time of the alert so far.
func (f *facts) window() string {
	return "from " + stamp(f.alert.StartsAt) + " to " + stamp(max(f.alert.At, f.alert.EndsAt))
}

// during writes a span of time; one that lasts has no end.
func during(from, to int64) string {
	if to == 0 {
		return "from " + stamp(from) + " on"
	}
	return "from " + stamp(from) + " to " + stamp(to)
}

// storm is the HEAD class in words.
func (f *facts) storm() string {
	return "HEAD " + routeOf(f)
}

// routesOf are the routes of a HEAD storm, the costliest first.
func routesOf(e *detectors.Evidence) []string {
	if e.Route == "" {
		return nil
	}
	routes := []string{e.Route}
	for _, c := range e.TopRoutes {
		if route, ok := strings.CutPrefix(c.Key, "HEAD "); ok && !slices.Contains(routes, route) {
			routes = append(routes, route)
		}
	}
	return routes
}

// named is how many routes a text names.
const named = 3

// routesText names the routes of a HEAD storm.
func routesText(e *detectors.Evidence) string {
	routes := routesOf(e)
	switch len(routes) {
	case 0:
		return "several routes"
	case 1:
		return routes[0]
	}
	for i := range routes {
		routes[i] = cut(routes[i], 120)
	}
	last, all := routes[len(routes)-1], float64(len(routes))
	if e.DistinctRoutes.Get() > all { // more than are listed
		all = e.DistinctRoutes.Get()
	}
	if all > named {
		routes, last = routes[:min(len(routes), named)+1], counted("other")(all-named)
	}
	return strings.Join(routes[:len(routes)-1], ", ") + " and " + last
}

// perAddress is the arithmetic of a limit for each address, "" when it is not known or such a limit could help.
func perAddress(e *detectors.Evidence) string {
	n := e.RequestsPerClientPerMinute
	if !n.Known() || n.Get() >= fewRequests {
		return ""
	}
	return short(n.Get()) + " requests per address and minute" + from(e) + ": a per-address limit cannot help"
}

func from(e *detectors.Evidence) string {
	if !e.DistinctClients.Known() {
		return ""
	}
	if e.DistinctClients.Get() == 1 {
		return " from 1 address"
	}
	return " from " + approx(e.DistinctClients.Get()) + " addresses"
}

// exactClients is how many distinct addresses or agents panes count one by one; above, the number is an estimate.
const exactClients = 128

func approx(n float64) string {
	if n > exactClients {
		return "≈" + short(math.Round(n))
	}
	return short(n)
}

// rate writes a number a minute.
func rate(v float64) string {
	if v < 1 {
		return "fewer than 1"
	}
	return short(v)
}

// short writes a number with three significant digits below 1,000 and whole above, with separators.
func short(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "an unknown number of"
	}
	if math.Abs(v) < 1000 {
		s := strconv.FormatFloat(v, 'f', 1, 64)
		if math.Abs(v) < 10 {
			s = strconv.FormatFloat(v, 'f', 2, 64)
		}
		if strings.Contains(s, ".") {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if neg {
		return "-" + s
	}
	return s
}

// counted writes a number with its noun.
func counted(noun string) func(float64) string {
	return func(v float64) string {
		if v == 1 {
			return "1 " + noun
		}
		return short(v) + " " + noun + "s"
	}
}

func percent(ratio float64) string { return short(math.Round(ratio*1000)/10) + " %" }

// span is what the numbers are of.
func (f *facts) span() string {
	if f.alert.State == Resolved {
		return "incident"
	}
	return "window"
}

// sentence joins what is not empty.
func sentence(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.Join(parts, "; ")
}

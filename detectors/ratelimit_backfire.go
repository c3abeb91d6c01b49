package detectors

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// ratelimitBackfire watches a limiter that refuses whom it was to protect: the site's own hosts and allowed ranges,
// and visitors who ask for static files with a version behind a question mark. A zone that exempts static files by
// $request_uri does not exempt those, since $request_uri keeps the query string; $uri does not have it.
type ratelimitBackfire struct {
	PerMinute float64       `yaml:"per_minute"` // refused requests a minute that were not meant
	Clients   int           `yaml:"clients"`    // outside addresses that must be refused static files: one alone may be meant
	Window    time.Duration `yaml:"window"`
}

func newRatelimitBackfire(decode func(any) error) (Detector, error) {
	d := &ratelimitBackfire{PerMinute: 10, Clients: 3, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("per_minute", d.PerMinute), positive("clients", float64(d.Clients)))
}

func (d *ratelimitBackfire) Span() time.Duration { return d.Window }

func (d *ratelimitBackfire) Scope() Scope { return PerSite }

// refusals is what limiters did to the requests of a site.
type refusals struct {
	own, allowed, external uint64 // external: static files with a query string
	upstream               uint64 // of own and allowed: refused although an upstream was contacted
	query, queryRefused    uint64 // static files with a query string, of all origins
	plain, plainRefused    uint64 // static files without
	clients                pane.Distinct
}

func (w *Window) refusals(site string) (r refusals) {
	for k, c := range w.cells(site) {
		switch k.Origin {
		case pipeline.Own:
			r.own, r.upstream = r.own+c.Limited, r.upstream+c.Refused.Reached
		case pipeline.Allowed:
			r.allowed, r.upstream = r.allowed+c.Limited, r.upstream+c.Refused.Reached
		default:
			r.external += c.Refused.StaticQuery
			r.clients.Merge(&c.Refused.Clients)
		}
		r.query, r.queryRefused = r.query+c.StaticQuery, r.queryRefused+c.Refused.StaticQuery
		r.plain, r.plainRefused = r.plain+c.Static-c.StaticQuery, r.plainRefused+c.StaticLimit-c.Refused.StaticQuery
	}
	return r
}

// exempt tells that static files without a query string are let through where those with one are not: a limiter
// that refuses both alike makes no exception and does what it says.
func (r *refusals) exempt() bool {
	return r.plain == 0 || 2*float64(r.plainRefused)/float64(r.plain) < float64(r.queryRefused)/float64(r.query)
}

// wrong is how many refusals were not meant.
func (d *ratelimitBackfire) wrong(r *refusals) uint64 {
	n := r.own + r.allowed
	if clients, _ := r.clients.Count(); r.external > 0 && clients >= float64(d.Clients) && r.exempt() {
		n += r.external
	}
	return n
}

func (d *ratelimitBackfire) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		t := w.totals(name)
		if t == nil || level(float64(t.Limited+t.LimitedStatic)/w.Minutes(), d.PerMinute, leave) == Below {
			continue // though all of it were wrong
		}
		r := w.refusals(name)
		perMinute := float64(d.wrong(&r)) / w.Minutes()
		lvl := level(perMinute, d.PerMinute, leave)
		if lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: perMinute, Threshold: d.PerMinute, Evidence: d.Evidence(w, labels)})
	}
	return found
}

func (d *ratelimitBackfire) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	// The cells in which it refused what was not meant; the worst of them is what is shown.
	hit := map[pane.Key]bool{}
	var worst pane.Key
	var most uint64
	for k, c := range w.cells(site) {
		n := c.Refused.StaticQuery
		if k.Origin != pipeline.External {
			n = c.Limited
		}
		if n == 0 {
			continue
		}
		hit[k] = true
		if n > most || n == most && lessKey(k, worst) {
			worst, most = k, n
		}
	}
	match := func(k pane.Key) bool { return hit[k] }
	e, r := w.explain(site, match), w.refusals(site)
	e.Method, e.Route = worst.Method, worst.Route
	e.TopRoutes = w.topRoutes(site, match, func(c *pane.Cell) float64 { return float64(c.Limited) })
	e.LimitedOwn, e.LimitedAllowed, e.LimitedByUpstream = N(float64(r.own)), N(float64(r.allowed)), N(float64(r.upstream))
	e.StaticQuery, e.LimitedStaticQuery = N(float64(r.query)), N(float64(r.queryRefused))
	e.StaticPlain, e.LimitedStaticPlain = N(float64(r.plain)), N(float64(r.plainRefused))
	if n, _ := r.clients.Count(); n > 0 {
		e.LimitedClients = N(n)
	}
	e.Zones, e.Excess = w.zones(site)
	return e
}

// topZones is how many zones one detection names.
const topZones = 3

// zones ranks the limiter zones that nginx's error log names for the site, and gives their highest excess.
func (w *Window) zones(site string) (ranked []Count, excess Num) {
	lines := map[string]float64{}
	for i := range w.View.Events {
		e := &w.View.Events[i]
		if e.Kind != pipeline.LimitRequest || e.Reason != "limited" || e.Zone == "" || !hostOf(w.View, site, e.Host) {
			continue
		}
		lines[e.Zone]++
		if !excess.Known() || e.Excess > excess.Get() {
			excess = N(e.Excess)
		}
	}
	for zone, n := range lines {
		ranked = append(ranked, Count{Key: zone, Count: n})
	}
	slices.SortFunc(ranked, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Key, b.Key))
	})
	return ranked[:min(len(ranked), topZones)], excess
}

// hostOf tells whether an event's host is the site's: the name itself, a name below it, or any where there is only
// one site, whose name is then its owner's word for it.
func hostOf(p *pane.Pane, site, host string) bool {
	return host == site || strings.HasSuffix(host, "."+site) || len(p.Sites) == 1
}

func (d *ratelimitBackfire) Touch(w *Window) string {
	k, c, ok := w.only(isAny)
	switch {
	case !ok || c.Limited == 0:
		return ""
	case k.Origin != pipeline.External:
		whom := "one of the site's own hosts"
		if k.Origin == pipeline.Allowed {
			whom = "an allowed address"
		}
		return fmt.Sprintf("a limiter refused %s: fires at %g a minute", whom, d.PerMinute)
	case c.Refused.StaticQuery > 0:
		return fmt.Sprintf("a limiter refused a static file because of its query string: fires at %g a minute and %d addresses",
			d.PerMinute, d.Clients)
	}
	return ""
}

func isAny(pane.Key) bool { return true }

// Help tells of the detector.
func (*ratelimitBackfire) Help() Help {
	return Help{
		Watches:  "A limiter that refuses whom it was to protect: own hosts, allowed ranges, and visitors who ask for static files with a version behind a question mark.",
		Formula:  "refused requests a minute of own and allowed addresses, and of static files with a query string from at least `clients` addresses, >= `per_minute` over the `window`",
		Evidence: []string{"limited_own", "limited_allowed", "limited_static_query", "static_query", "limited_static_plain", "static_plain", "limited_clients", "zones", "excess"},
		FalsePositives: []string{
			"an office that really floods the site",
			"a limit on static files that is meant",
		},
		Runbook: []string{
			"limited_static_query high and limited_static_plain low: the zone exempts by $request_uri; it must be $uri",
			"grep \"limiting requests\" /var/log/nginx/error.log   # which zone",
			"after nginx -t and a reload: many parallel requests for a file with ?v= must all get 200",
		},
	}
}

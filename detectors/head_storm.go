package detectors

import (
	"errors"
	"fmt"
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
		found = append(found, Finding{labels, lvl, worst, d.PerMinute, d.Evidence(w, labels)})
	}
	return found
}

func (d *headStorm) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	e := w.explain(site, isHead)
	if top, ok := busiest(w.perRoute(site, isHead)); ok {
		e.Method, e.Route = top.key.Method, top.key.Route
		e.BaselinePerMinute, e.BaselineRatio = N(top.base.PerMinute), N(top.ratio())
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

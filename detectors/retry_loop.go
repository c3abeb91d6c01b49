package detectors

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// retryLoop watches clients that ask for the same path again as soon as their own request has timed out: each try
// costs the origin what the one before did, and none succeeds. It belongs to whoever wrote the caller, and one
// client is enough. Many clients that give up once each are none; nor is an address behind which many wait at the
// same time.
type retryLoop struct {
	Retries int           `yaml:"retries"` // of one client for one path
	Within  time.Duration `yaml:"within"`  // after its own timeout
	Wait    time.Duration `yaml:"wait"`    // that a request in vain took at least
	Window  time.Duration `yaml:"window"`
}

// retrySlack is how far, in ns, a request may seem to begin before the one before it has ended: logs of whole
// seconds.
const retrySlack = int64(time.Second)

// retryShare is the least share of a client's requests in vain that follow their predecessor: a loop does nothing
// else, and many clients behind one address overlap.
const retryShare = 0.8

// What a loop is told by.
const (
	rhythmShare = 0.1 // of its period, or a second, that two tries in a row may differ by
	loopShare   = 0.1 // of the requests in vain to the route that loops make at least: else they are by chance in a storm
)

func newRetryLoop(decode func(any) error) (Detector, error) {
	d := &retryLoop{Retries: 5, Within: 5 * time.Second, Wait: 5 * time.Second, Window: 5 * time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	var waits error
	if d.Wait < time.Duration(pane.MinWait) {
		waits = fmt.Errorf("wait must be at least %s, not %s", time.Duration(pane.MinWait), d.Wait)
	}
	return d, errors.Join(span(d.Window), positive("retries", float64(d.Retries)), positive("within", float64(d.Within)), waits)
}

func (d *retryLoop) Span() time.Duration { return d.Window }

func (d *retryLoop) Scope() Scope { return PerClient }

// A loop is what one client does to one path.
type loop struct {
	waits   *pane.Waits
	retries int
	periods []int64 // ns from start to start
}

// loopOf finds how often the client asked again after its own timeout, in one rhythm: of many that ask at random some
// follow each other too.
func (d *retryLoop) loopOf(x *pane.Waits) (l loop, ok bool) {
	l.waits = x
	spans := slices.DeleteFunc(slices.Clone(x.Spans), func(s pane.Wait) bool { return s.End-s.Start < int64(d.Wait) })
	follows := func(i int) (period int64, ok bool) {
		if i < 1 || i >= len(spans) {
			return 0, false
		}
		gap := spans[i].Start - spans[i-1].End
		return spans[i].Start - spans[i-1].Start, gap >= -retrySlack && gap <= int64(d.Within)
	}
	for i := 1; i < len(spans); i++ {
		period, ok := follows(i)
		before, afterOne := follows(i - 1)
		next, beforeOne := follows(i + 1)
		if ok && (afterOne && inRhythm(period, before) || beforeOne && inRhythm(period, next)) {
			l.retries++
			l.periods = append(l.periods, period)
		}
	}
	return l, l.retries > 0 && float64(l.retries) >= retryShare*float64(len(spans)-1)
}

func inRhythm(a, b int64) bool {
	return max(a-b, b-a) <= max(retrySlack, int64(rhythmShare*float64(max(a, b))))
}

// loops are those of a site that are over the leave threshold at least, the worst first.
func (d *retryLoop) loops(w *Window, site string) []loop {
	s := w.View.Sites[site]
	if s == nil {
		return nil
	}
	var found []loop
	all, looping := map[[2]string]uint64{}, map[[2]string]uint64{} // requests in vain by method and route
	for _, x := range s.Waits {
		route := [2]string{x.Method, x.Route}
		all[route] += x.Count
		if l, ok := d.loopOf(x); ok && level(float64(l.retries), float64(d.Retries), leave) > Below {
			found = append(found, l)
			looping[route] += x.Count
		}
	}
	found = slices.DeleteFunc(found, func(l loop) bool {
		route := [2]string{l.waits.Method, l.waits.Route}
		return float64(looping[route]) < loopShare*float64(all[route])
	})
	slices.SortStableFunc(found, func(a, b loop) int {
		return cmp.Or(cmp.Compare(b.retries, a.retries), a.waits.Client.Compare(b.waits.Client),
			cmp.Compare(a.waits.Route, b.waits.Route), cmp.Compare(a.waits.Method, b.waits.Method))
	})
	return found
}

func (d *retryLoop) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		loops := d.loops(w, name)
		if len(loops) == 0 {
			continue
		}
		labels, worst := siteLabels(name), float64(loops[0].retries)
		began := loops[0].waits.Spans[0].Start
		for _, l := range loops {
			began = min(began, l.waits.Spans[0].Start)
		}
		found = append(found, Finding{
			Labels: labels, Level: level(worst, float64(d.Retries), leave), Value: worst, Threshold: float64(d.Retries),
			Evidence: d.Evidence(w, labels), Began: began,
		})
	}
	return found
}

func (d *retryLoop) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	loops := d.loops(w, site)
	if len(loops) == 0 {
		return Evidence{}
	}
	worst := loops[0].waits
	var e Evidence
	if len(w.View.Sites[site].Cells()) > 0 { // of the whole incident, not of the window
		e = w.explain(site, func(k pane.Key) bool { return !k.Probe && k.Route == worst.Route && k.Method == worst.Method })
	}
	e.Method, e.Route = worst.Method, worst.Route
	clients := map[netip.Addr]bool{}
	retries, tries := 0, 0
	var periods []int64
	for _, l := range loops {
		if l.waits.Route != worst.Route || l.waits.Method != worst.Method {
			continue
		}
		clients[l.waits.Client] = true
		retries, tries = retries+l.retries, tries+len(l.waits.Spans)
		periods = append(periods, l.periods...)
	}
	slices.Sort(periods)
	if e.Requests.Known() && e.Requests.Get() < float64(tries) {
		e.Requests = N(float64(tries)) // the waits look back farther than the cells
	}
	e.Retries, e.RetryingClients = N(float64(retries)), N(float64(len(clients)))
	e.PeriodSeconds = N(seconds(periods[len(periods)/2]))
	return e
}

func (d *retryLoop) Touch(w *Window) string {
	for _, site := range w.Sites {
		if s := w.View.Sites[site]; s != nil && len(s.Waits) > 0 {
			return fmt.Sprintf("a request in vain: fires when its client asks for the path again within %s of its own timeout, %d times in %s",
				d.Within, d.Retries, d.Window)
		}
	}
	return ""
}

// Help implements Detector.
func (d *retryLoop) Help() Help {
	return Help{
		Watches: "Clients that ask for the same path again as soon as their own request has timed out: they left, or were answered 5xx, after a long wait.",
		Formula: fmt.Sprintf("for each client, method and path: requests in vain after at least `wait` that begin within `within` of the end of the one before (%.0f %% of the client's must), two in a row in one rhythm, >= `retries` in `window`; silent while they are under %.0f %% of the route's requests in vain", retryShare*100, loopShare*100),
		Evidence: []string{"retries", "retrying_clients", "period_seconds", "method", "route", "status", "abandoned", "p99_seconds",
			"worker_seconds_lower", "worker_seconds_upper", "worker_seconds_share", "samples"},
		FalsePositives: []string{
			"a person who patiently reloads a page that hangs, more often than `retries`",
			"not seen: loops with shorter waits than `wait`, with pauses that vary or are long; over 1,024 clients and paths in vain in one pane only a fixed sample is watched",
		},
		Runbook: []string{
			"it is a ticket for the owner of the calling application, not a page: find the caller by its agent and address in the samples",
			"find what the route waits for: the slow query log, php-fpm's slow log (request_slowlog_timeout)",
			"give the caller a bound: exponential backoff with jitter and a last try; give the query a timeout below the caller's",
			"squall replay --detections PATH...   # when it began, and how long it took",
		},
	}
}

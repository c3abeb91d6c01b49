package detectors

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// cacheStampede watches the cache in front of a site that usually answers from it: when entries expire together,
// or somebody clears them, every visitor waits for an origin that has to make all pages at once.
type cacheStampede struct {
	PerMinute     float64       `yaml:"per_minute"`     // misses a minute
	Ratio         float64       `yaml:"ratio"`          // of what the cache told, 0–1
	BaselineRatio float64       `yaml:"baseline_ratio"` // times the usual misses, and half so many times their usual share
	URLs          float64       `yaml:"urls"`           // different ones that missed beyond the usual; of fewer only EXPIRED counts
	Window        time.Duration `yaml:"window"`
}

const (
	missLearned = 10  // quiet minutes before the usual is known
	missUsual   = 0.5 // share of misses over which a site is none that hits
)

func newCacheStampede(decode func(any) error) (Detector, error) {
	d := &cacheStampede{PerMinute: 60, Ratio: 0.3, BaselineRatio: 5, URLs: 10, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), positive("per_minute", d.PerMinute), share("ratio", d.Ratio),
		positive("baseline_ratio", d.BaselineRatio), positive("urls", d.URLs))
}

func (d *cacheStampede) Span() time.Duration { return d.Window }

func (d *cacheStampede) Scope() Scope { return PerSite }

// missed is what the cache of a site did not have.
type missed struct {
	misses, told uint64
	expired      uint64 // of the misses: what it once had
	urls         float64
	routes       int
}

// missing sums up a site.
func (w *Window) missing(site string) (m missed) {
	var urls pane.Distinct
	routes := map[string]bool{}
	for k, c := range w.cells(site) {
		if k.Probe {
			continue
		}
		misses, told := c.Cached()
		m.misses, m.told, m.expired = m.misses+misses, m.told+told, m.expired+c.Cache[pipeline.CacheExpired]
		urls.Merge(&c.Missed)
		if misses > 0 {
			routes[k.Route] = true
		}
	}
	m.urls, _ = urls.Count()
	m.routes = len(routes)
	return m
}

func (d *cacheStampede) Detect(w *Window) []Finding {
	var found []Finding
	for _, name := range w.Sites {
		t, usual := w.totals(name), w.Cache(name)
		if t == nil || t.Clients.Missed == 0 || usual.Minutes < missLearned || usual.Told == 0 || usual.Share() > missUsual {
			continue
		}
		leastPerMinute, leastRatio := max(d.PerMinute, d.BaselineRatio*usual.Misses), max(d.Ratio, d.BaselineRatio/2*usual.Share())
		judged := func(n uint64) (perMinute float64, lvl Level) {
			perMinute = float64(n) / w.Minutes()
			return perMinute, min(level(perMinute, leastPerMinute, leave), level(float64(n)/float64(t.Clients.Cached), leastRatio, leave))
		}
		if _, lvl := judged(t.Clients.Missed); lvl == Below {
			continue
		}
		m := w.missing(name)
		// One URL that all wait for is a stampede where the cache had it; a page that is never kept is none, however
		// often it is asked for. What misses all the time does not make many URLs of it.
		n := m.misses
		if m.urls-usual.Misses*w.Minutes() < d.URLs {
			n = m.expired
		}
		perMinute, lvl := judged(n)
		if lvl == Below {
			continue
		}
		labels := siteLabels(name)
		found = append(found, Finding{Labels: labels, Level: lvl, Value: perMinute, Threshold: d.PerMinute, Evidence: d.Evidence(w, labels)})
	}
	return found
}

func (d *cacheStampede) Evidence(w *Window, key Labels) Evidence {
	site := key.Get("site")
	s := w.View.Sites[site]
	if s == nil {
		return Evidence{}
	}
	match := func(k pane.Key) bool { m, _ := s.Cells()[k].Cached(); return m > 0 && !k.Probe }
	e := w.explain(site, match)
	m := w.missing(site)
	e.TopRoutes = w.topRoutes(site, match, func(c *pane.Cell) float64 { m, _ := c.Cached(); return float64(m) })
	e.RepeatFactor = Num{}
	if m.urls > 0 {
		e.RepeatFactor, e.MissedURLs, e.MissedRoutes = N(float64(m.misses)/m.urls), N(m.urls), N(float64(m.routes))
	}
	e.MissesPerMinute, e.MissShare = N(float64(m.misses)/w.Minutes()), N(float64(m.misses)/float64(m.told))
	if usual := w.Cache(site); usual.Minutes >= missLearned {
		e.UsualMissesPerMinute, e.UsualMissShare = N(usual.Misses), N(usual.Share())
	}
	if period, ok := steady(w.Onsets(site)); ok {
		e.PeriodSeconds, e.TTLSeconds = N(period), N(period)
	}
	return e
}

// steady is the period, in seconds, of three or more beginnings that come in one rhythm; those of a burst are exact
// to a pane.
func steady(onsets []int64) (float64, bool) {
	if len(onsets) < 3 {
		return 0, false
	}
	var gaps []int64
	for i := 1; i < len(onsets); i++ {
		gaps = append(gaps, onsets[i]-onsets[i-1])
	}
	slices.Sort(gaps)
	median := gaps[len(gaps)/2]
	if far := max(gaps[len(gaps)-1]-median, median-gaps[0]); far > max(median/10, 2*int64(10*time.Second)) {
		return 0, false
	}
	return seconds(median), true
}

func (d *cacheStampede) Touch(w *Window) string {
	_, c, ok := w.only(isClient)
	if !ok {
		return ""
	}
	misses, told := c.Cached()
	if told == 0 {
		return ""
	}
	did := "answered from the cache"
	if misses > 0 {
		did = "missed the cache"
	}
	return fmt.Sprintf("%s: fires when %g a minute miss it, for %g URLs at least, %g %% of all and %g times what is usual",
		did, d.PerMinute, d.URLs, d.Ratio*100, d.BaselineRatio)
}

// Help implements Detector.
func (d *cacheStampede) Help() Help {
	return Help{
		Watches: "The cache in front of a site that usually answers from it: MISS and EXPIRED of many URLs at once, by the cache status that the log tells.",
		Formula: "misses a minute >= max(`per_minute`, `baseline_ratio` × usual) and their share of all but BYPASS >= max(`ratio`, `baseline_ratio`/2 × the usual share), over at least `urls` different URLs more than usual, or EXPIRED alone; the usual is learned over ten quiet minutes and must be half hits or more",
		Evidence: []string{"misses_per_minute", "usual_misses_per_minute", "miss_share", "usual_miss_share", "missed_urls", "missed_routes", "repeat_factor",
			"ttl_seconds", "period_seconds", "top_routes", "top_agents", "worker_seconds_share"},
		FalsePositives: []string{
			"a deploy that renames all its assets: the misses are real, and over within a minute",
			"a fast crawl of pages that nobody reads: one agent makes most of it",
			"not seen: a site that squall has known for less than ten minutes, and a log without the cache status ($upstream_cache_status)",
		},
		Runbook: []string{
			"ttl_seconds tells of bursts in a rhythm: entries that expire together; spread the TTL and serve stale while revalidating",
			"one agent with most of the requests: a crawl after the cache was cleared; who cleared it, and could it be done by URL",
			"curl -sI URL | grep -iE 'cache|age'   # twice: the second must be a HIT",
			"squall replay --detections PATH...   # the bursts of a whole day",
		},
	}
}

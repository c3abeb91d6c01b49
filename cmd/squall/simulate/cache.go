package simulate

import (
	"slices"
	"time"
)

// A Cache stands before the application and answers what it has. It does not serve what is stale.
type Cache struct {
	TTL    time.Duration
	Layer  Layer    // Nginx or Edge: a hit at the edge is in no log behind it
	Routes []string // templates that it keeps; the others it does not look at
	// Lock lets one request for a URL that is not there go on, and the others wait for its answer
	// (proxy_cache_lock; request collapsing).
	Lock bool
	// Filled is when, as an offset from the start, all entries were made together: they expire together. 0: it begins
	// empty.
	Filled time.Duration
	Clears []time.Duration // when somebody deleted all of it
}

// cacheRun is a Cache at work.
type cacheRun struct {
	spec  Cache
	start int64
	have  map[string]entry
}

// entry is one URL: from when, and until when it can be answered.
type entry struct{ from, until int64 }

func newCacheRun(spec Cache, start int64) *cacheRun {
	return &cacheRun{spec: spec, start: start, have: map[string]entry{}}
}

// kept tells whether the cache looks at a request at all.
func (c *cacheRun) kept(r *request) bool {
	return (r.method == "GET" || r.method == "HEAD") && slices.Contains(c.spec.Routes, r.route.Template)
}

// cleared is the last time before t at which the cache was emptied; 0: never.
func (c *cacheRun) cleared(t int64) (last int64) {
	for _, at := range c.spec.Clears {
		if at := c.start + int64(at); at <= t {
			last = max(last, at)
		}
	}
	return last
}

// answer settles a request that the cache can answer, now or once the answer that is being made is there.
func (c *cacheRun) answer(r *request, leave int64) bool {
	if !c.kept(r) {
		return false
	}
	e, known := c.have[r.url.path]
	if !known && c.spec.Filled != 0 {
		e.from = c.start + int64(c.spec.Filled)
		e.until, known = e.from+int64(c.spec.TTL), true
	}
	cleared := c.cleared(r.arrival)
	switch {
	case !known || e.from < cleared:
		r.cache = "MISS"
		return false
	case r.arrival >= e.until:
		r.cache = "EXPIRED"
		return false
	case r.arrival < e.from && !c.spec.Lock:
		r.cache = "MISS"
		return false
	}
	r.cache, r.layer = "HIT", c.spec.Layer
	r.end = max(r.arrival, e.from) + 1e6 + int64(r.random(2)%4)*2e5
	if leave < r.end {
		r.abandoned, r.end, r.cache = true, leave, "" // nginx has not decided yet
		r.patience = r.kind == organic || r.kind == storm
	}
	return true
}

// keep takes what the application makes: it is there when it is finished, whoever still waits.
func (c *cacheRun) keep(r *request, f fate) {
	if !c.kept(r) || f.refused || f.reclaimed || f.dropped || r.status != 200 {
		return
	}
	if e, known := c.have[r.url.path]; known && e.from > r.arrival && e.from < f.finish && e.from >= c.cleared(r.arrival) {
		return // another one will be there before it
	}
	c.have[r.url.path] = entry{f.finish, f.finish + int64(c.spec.TTL)}
}

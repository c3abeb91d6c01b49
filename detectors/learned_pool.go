package detectors

import (
	"maps"
	"slices"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// learnedPools are the pools whose size php-fpm's own log tells: "server reached pm.max_children setting (25)". Such a
// line comes from a pool that is full, so of many pods it tells of those alone that were; only a log without pods,
// where php-fpm and its sites are on one host, is the whole.
type learnedPools map[string]learnedPool // by php-fpm's name of the pool

type learnedPool struct {
	Workers int
	At      int64 // ns: when it was told last
}

const (
	poolMemory = int64(24 * time.Hour) // a pool that did not say so for a day may be another
	maxPools   = 64
)

// learn takes what php-fpm told in a pane.
func (l learnedPools) learn(p *pane.Pane) {
	for i := range p.Events {
		e := &p.Events[i]
		if e.Kind != pipeline.PHPMaxChildren || e.Limit <= 0 || e.Pod != "" {
			continue
		}
		if _, known := l[e.Pool]; known || len(l) < maxPools {
			l[e.Pool] = learnedPool{e.Limit, e.Time}
		}
	}
	maps.DeleteFunc(l, func(_ string, x learnedPool) bool { return x.At <= p.End-poolMemory })
}

// workers is the size of the only pool, 0 when there are several: which site is whose nobody tells.
func (l learnedPools) workers() int {
	if len(l) != 1 {
		return 0
	}
	return slices.Collect(maps.Values(l))[0].Workers
}

// poolOf gives the configured pool of a site, or what php-fpm told of it where there is but one pool and one site.
func (e *Engine) poolOf(site string) Pool {
	p := e.pool(site)
	if p.Workers == 0 && e.onlySite {
		p.Workers = e.learned.workers()
		p.Learned = p.Workers > 0
	}
	return p
}

// Pool is the capacity of a site, as configured or learned.
func (e *Engine) Pool(site string) Pool { return e.poolOf(site) }

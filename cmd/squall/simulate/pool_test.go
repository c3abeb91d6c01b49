package simulate

import (
	"math/rand/v2"
	"testing"
	"time"
)

// slowPool is the same queue step by step: a list of who waits, and workers that look at it each tick.
type slowPool struct {
	spec    Pool
	waiting []*job
	busy    []*job
}

type job struct {
	arrival, service, leave int64
	fate                    fate
	done                    bool
}

func (p *slowPool) tick(now int64) {
	var still []*job
	for _, j := range p.busy {
		if j.fate.finish > now {
			still = append(still, j)
		}
	}
	p.busy = still
	for len(p.waiting) > 0 && len(p.busy) < p.spec.Workers {
		j := p.waiting[0]
		p.waiting = p.waiting[1:]
		if p.spec.DropAbandoned && j.leave < now {
			j.fate, j.done = fate{start: j.leave, finish: j.leave, dropped: true}, true
			continue
		}
		j.fate, j.done = fate{start: now, finish: now + j.service}, true
		if limit := int64(p.spec.Reclaim); limit > 0 && j.service > limit {
			j.fate.finish, j.fate.reclaimed = now+limit, true
		}
		p.busy = append(p.busy, j)
	}
}

func (p *slowPool) arrive(j *job) {
	if p.spec.Backlog > 0 && len(p.busy) == p.spec.Workers && len(p.waiting) >= p.spec.Backlog {
		j.fate, j.done = fate{start: j.arrival, finish: j.arrival, refused: true}, true
		return
	}
	p.waiting = append(p.waiting, j)
	p.tick(j.arrival)
}

// TestPoolAgainstSteps: the closed form gives each request the fate that stepping through time gives it.
func TestPoolAgainstSteps(t *testing.T) {
	for name, spec := range map[string]Pool{
		"unbounded": {Workers: 3},
		"one":       {Workers: 1, Reclaim: 12 * time.Nanosecond},
		"backlog":   {Workers: 4, Backlog: 5},
		"drop":      {Workers: 2, DropAbandoned: true, Reclaim: 15 * time.Nanosecond},
		"all":       {Workers: 5, DropAbandoned: true, Reclaim: 15 * time.Nanosecond, Backlog: 7},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		fast, slow := newPool(spec), &slowPool{spec: spec}
		var jobs []*job
		var got []fate
		now := int64(0)
		for range 3000 {
			for gap := rng.Int64N(6); gap > 0; gap-- {
				now++
				slow.tick(now)
			}
			j := &job{arrival: now, service: 1 + rng.Int64N(20), leave: now + rng.Int64N(40)}
			jobs, got = append(jobs, j), append(got, fast.admit(now, j.service, j.leave))
			slow.arrive(j)
		}
		for len(slow.waiting) > 0 {
			now++
			slow.tick(now)
		}
		for i, j := range jobs {
			if !j.done || got[i] != j.fate {
				t.Fatalf("%s: request %d at %d: %+v, by steps %+v (done %t)", name, i, j.arrival, got[i], j.fate, j.done)
			}
		}
	}
}

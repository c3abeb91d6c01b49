package simulate

// pool is a first-come-first-served queue before a fixed number of workers. Service times are known on
// arrival, so a request's fate is too (Kiefer and Wolfowitz 1955): it begins when the earliest worker is free.
// Requests must arrive in order of time.
type pool struct {
	spec  Pool
	free  []int64 // when each worker is free, ns: a heap, earliest first
	waits []int64 // when each waiting request begins, in order of arrival; used when the backlog is bounded
	head  int
}

func newPool(spec Pool) *pool { return &pool{spec: spec, free: make([]int64, spec.Workers)} }

// fate is what becomes of a request in the pool. Times are ns since the epoch.
type fate struct {
	start, finish int64 // when a worker holds it; equal when none ever does
	refused       bool  // the backlog was full
	dropped       bool  // the client had left before its turn, and was taken out
	reclaimed     bool  // killed at the reclaim timeout
}

// admit queues a request that arrives now, costs service ns, and whose client leaves at leave.
func (p *pool) admit(now, service, leave int64) fate {
	start := max(now, p.free[0])
	if p.spec.Backlog > 0 {
		for p.head < len(p.waits) && p.waits[p.head] <= now {
			p.head++
		}
		if len(p.waits)-p.head >= p.spec.Backlog {
			return fate{start: now, finish: now, refused: true}
		}
		p.push(start, now)
	}
	if p.spec.DropAbandoned && leave < start {
		return fate{start: leave, finish: leave, dropped: true}
	}
	f := fate{start: start, finish: start + service}
	if limit := int64(p.spec.Reclaim); limit > 0 && service > limit {
		f.finish, f.reclaimed = start+limit, true
	}
	p.free[0] = f.finish
	p.sift()
	return f
}

// push notes that one more waits, and reuses the room of those whose turn has come.
func (p *pool) push(start, now int64) {
	if start == now {
		return
	}
	if p.head > 1024 && p.head*2 > len(p.waits) {
		p.waits = p.waits[:copy(p.waits, p.waits[p.head:])]
		p.head = 0
	}
	p.waits = append(p.waits, start)
}

// sift restores the heap after its first element grew.
func (p *pool) sift() {
	h, i := p.free, 0
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[i] <= h[c] {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

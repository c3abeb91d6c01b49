package source

import (
	"cmp"
	"container/heap"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// An object is one delivery: an archive of lines, which is a stream of its own.
type object struct {
	stream *pipeline.Stream
	key    string
	etag   string // without quotes; "": unknown
	size   int64  // bytes, as stored
	at     int64  // ns: its place in the order of reading

	// Of who reads it.
	off     int64 // lines up to here were handed on
	stored  bool  // an earlier run had begun it
	began   bool  // this run has handed on something of it
	touched bool  // off and stored are set

	// Shared, under objectQueue.mu.
	tries int       // failures of its own
	retry time.Time // when it is tried again
	fault string    // why it cannot be read
}

// A finished object was handed on to its end.
type finished struct {
	at, end int64
	nth     int // how many were finished before
}

// An objectQueue hands out objects, the oldest first. None is begun while one that is older by more than ahead is
// being read: else the newer one's lines would move the watermark past those of the older one. It remembers what
// was read, so that each object is read once however often it is found.
//
// What fails for all objects (the network, the credentials) makes the queue pause, and leaves the order as it is.
// What is one object's own fault (no permission) is tried again later, and the others go on.
type objectQueue struct {
	now   func() time.Time
	ahead int64 // ns
	again backoff

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced
	settled  bool          // what there is to read is known: the oldest is the oldest
	pause    time.Time
	failures int // in a row, of all
	waiting  objectHeap
	aside    []*object
	reading  map[*object]bool
	known    map[string]*object // all of the above, by stream
	done     map[string]finished
	finishes int
	lag      int64 // bytes, as stored, of what is known and not read
}

// A backoff is how long to wait after so many failures in a row.
type backoff struct{ least, most time.Duration }

func (b backoff) after(failures int) time.Duration {
	return min(b.most, b.least<<min(max(failures-1, 0), 20))
}

func newObjectQueue(now func() time.Time, ahead time.Duration, again backoff) *objectQueue {
	return &objectQueue{
		now: now, ahead: int64(ahead), again: again, changed: make(chan struct{}), reading: map[*object]bool{},
		known: map[string]*object{}, done: map[string]finished{},
	}
}

// objectHeap has the oldest on top.
type objectHeap []*object

func compareObjects(a, b *object) int {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.key, b.key))
}

func (h objectHeap) Len() int           { return len(h) }
func (h objectHeap) Less(i, j int) bool { return compareObjects(h[i], h[j]) < 0 }
func (h objectHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *objectHeap) Push(x any)        { *h = append(*h, x.(*object)) }
func (h *objectHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}

// wake is called with mu held.
func (q *objectQueue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// add takes up an object, unless it is known.
func (q *objectQueue) add(o *object) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.has(o.stream.ID) {
		return
	}
	q.known[o.stream.ID] = o
	q.lag += o.size
	heap.Push(&q.waiting, o)
	q.wake()
}

func (q *objectQueue) has(id string) bool {
	_, done := q.done[id]
	return done || q.known[id] != nil
}

// knows tells whether an object waits, is being read, or was read.
func (q *objectQueue) knows(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.has(id)
}

// settle says whether it is known now what there is to read.
func (q *objectQueue) settle(settled bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.settled != settled {
		q.settled = settled
		q.wake()
	}
}

func (q *objectQueue) isSettled() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.settled
}

// next waits for the next object to read; nil when ctx ends. Whoever gets one calls finish or failed.
func (q *objectQueue) next(ctx context.Context) *object {
	for ctx.Err() == nil {
		q.mu.Lock()
		o, wait := q.pick()
		changed := q.changed
		q.mu.Unlock()
		if o != nil {
			return o
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

const untilChange = time.Minute

// pick takes the next object, or tells how long to wait for one if nothing changes.
func (q *objectQueue) pick() (o *object, wait time.Duration) {
	now := q.now()
	if !q.settled || q.failures > 0 && len(q.reading) > 0 {
		return nil, untilChange
	}
	if d := q.pause.Sub(now); d > 0 {
		return nil, d
	}
	wait = untilChange
	q.aside = slices.DeleteFunc(q.aside, func(o *object) bool {
		d := o.retry.Sub(now)
		if d <= 0 {
			heap.Push(&q.waiting, o)
			return true
		}
		wait = min(wait, d)
		return false
	})
	if len(q.waiting) == 0 {
		return nil, wait
	}
	for r := range q.reading {
		if q.waiting[0].at-r.at > q.ahead {
			return nil, wait
		}
	}
	o = heap.Pop(&q.waiting).(*object)
	q.reading[o] = true
	return o, 0
}

// finish says that an object was handed on up to its end.
func (q *objectQueue) finish(o *object) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.reading, o)
	delete(q.known, o.stream.ID)
	q.lag -= o.size
	q.done[o.stream.ID] = finished{at: o.at, end: o.off, nth: q.finishes}
	q.finishes++
	q.failures = 0
	if o.tries > 0 { // what was forbidden is allowed now
		for _, other := range q.aside {
			other.retry = time.Time{}
		}
	}
	q.wake()
}

// failed puts an object back. why is its own fault, or empty. It tells how many have faults of their own now.
func (q *objectQueue) failed(o *object, why string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.reading, o)
	now := q.now()
	if why == "" {
		q.failures++
		q.pause = now.Add(q.again.after(q.failures))
		heap.Push(&q.waiting, o)
	} else {
		o.tries++
		o.fault, o.retry = why, now.Add(q.again.after(o.tries))
		q.pause = now.Add(q.again.least)
		q.aside = append(q.aside, o)
	}
	q.wake()
	return len(q.aside)
}

// drop forgets an object that failed by its own fault. It may be found again.
func (q *objectQueue) drop(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.aside, func(o *object) bool { return o.stream.ID == id })
	if i < 0 {
		return false
	}
	q.lag -= q.aside[i].size
	q.aside = slices.Delete(q.aside, i, i+1)
	delete(q.known, id)
	return true
}

// end gives the offset behind the last line of an object that was handed on.
func (q *objectQueue) end(id string) (offset int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d, ok := q.done[id]
	return d.end, ok
}

// newest is the time of the newest object that was read, in ns; 0 for none.
func (q *objectQueue) newest() (at int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range q.done {
		at = max(at, d.at)
	}
	return at
}

// forget drops the memory of objects older than before, in ns, and of all but the last most.
func (q *objectQueue) forget(before int64, most int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.done, func(_ string, d finished) bool { return d.at < before })
	if len(q.done) > most {
		maps.DeleteFunc(q.done, func(_ string, d finished) bool { return d.nth < q.finishes-most*3/4 })
	}
}

// An objectView is what States tells of an object.
type objectView struct{ key, fault string }

// view gives the objects being read and those that failed, at most most of these, and the bytes not yet read.
func (q *objectQueue) view(most int) (shown []objectView, lag int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range q.reading {
		shown = append(shown, objectView{key: r.key})
	}
	for _, o := range q.aside[:min(most, len(q.aside))] {
		shown = append(shown, objectView{o.key, o.fault})
	}
	return shown, q.lag
}

// size is how many objects are known and not read.
func (q *objectQueue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.known)
}

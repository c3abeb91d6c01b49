package spool

import (
	"errors"
	"sync"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// ErrStalled says that the spool stands still: its queue is full and nothing was stored for two seconds.
var ErrStalled = errors.New("the spool stores nothing and its queue is full")

// ErrNotOpen says that the disk has taken nothing since the spool was opened, so that nothing is known of what is
// stored there.
var ErrNotOpen = errors.New("the spool's disk takes nothing, and what is stored there is not known")

// ErrClosed says that the spool was closed.
var ErrClosed = errors.New("the spool is closed")

const (
	stallAfter = 2 * time.Second
	sealAfter  = 250 * time.Millisecond
)

// A queue holds frames in memory until they are stored. Many goroutines put, one takes.
type queue struct {
	now    func() time.Time
	limit  int64 // bytes
	target int   // bytes at which a frame is full

	mu         sync.Mutex
	size       int64 // bytes of all frames that are not stored yet
	lines      int64 // in them
	open       *frame
	sealed     []*frame
	progressed time.Time     // when something was stored last, or when the queue last began to fill
	moved      chan struct{} // closed and replaced when there is more room
	filled     chan struct{} // holds one when there is something to look at
	closed     bool
	free       [][]byte // memory of stored frames
}

const (
	maxReuse = 4 << 20    // bytes of a frame whose memory is kept
	maxFree  = 2 * window // frames whose memory is kept: those on their way, and as many that consumers have just read
)

func (q *queue) reuse() []byte {
	n := len(q.free)
	if n == 0 {
		return make([]byte, 0, q.target+q.target/4)
	}
	b := q.free[n-1]
	q.free = q.free[:n-1]
	return b
}

// keep keeps the memory of a frame for another. mu is held.
func (q *queue) keep(body []byte) {
	if len(q.free) < maxFree && cap(body) >= q.target && cap(body) <= maxReuse {
		q.free = append(q.free, body)
	}
}

// recycle takes the memory of frames that were lent.
func (q *queue) recycle(bodies ...[]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range bodies {
		q.keep(b)
	}
}

func newQueue(limit int64, target int, now func() time.Time) *queue {
	return &queue{now: now, limit: limit, target: target, moved: make(chan struct{}), filled: make(chan struct{}, 1)}
}

// put copies b into the queue. It waits for room while the store makes progress.
func (q *queue) put(b *pipeline.Batch, accept func() bool) (size int, err error) {
	size = batchSize(b)
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed && q.size > 0 && q.size+int64(size) > q.limit {
		wait := stallAfter - q.now().Sub(q.progressed)
		if wait <= 0 {
			return 0, ErrStalled
		}
		moved := q.moved
		q.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-moved:
		case <-timer.C:
		}
		timer.Stop()
		q.mu.Lock()
	}
	if q.closed {
		return 0, ErrClosed
	}
	if !accept() {
		return 0, nil
	}
	if q.size == 0 {
		q.progressed = q.now()
	}
	before := q.size
	q.lines += int64(len(b.Entries))
	q.add(b, size)
	return int(q.size - before), nil
}

// add encodes b into the open frame, in several frames when it is larger than a message may be.
func (q *queue) add(b *pipeline.Batch, size int) {
	if q.open != nil && len(q.open.body)+size > maxBody {
		q.seal()
	}
	first, sum := 0, 0
	for i := range b.Entries {
		n := entrySize(&b.Entries[i])
		if sum+n > maxBody-maxMargin && i > first {
			q.encode(b, first, i, true)
			q.seal()
			first, sum = i, 0
		}
		sum += n
	}
	q.encode(b, first, len(b.Entries), false)
	if len(q.open.body) >= q.target {
		q.seal()
	}
	q.wake()
}

// maxMargin is what a body may hold beside its entries: its stream's names and labels, and skips.
const maxMargin = 2 << 20

func (q *queue) encode(b *pipeline.Batch, first, end int, part bool) {
	if q.open == nil {
		q.open = newFrame(q.now().UnixNano(), q.reuse())
	}
	before := len(q.open.body)
	q.open.add(b, first, end, part)
	q.size += int64(len(q.open.body) - before)
}

func (q *queue) seal() {
	if q.open != nil {
		q.sealed = append(q.sealed, q.open)
		q.open = nil
	}
}

func (q *queue) wake() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// take returns the next frame that is full, old enough or last; nil when there is none now. next is how long
// until the open frame is old enough, 0 when there is no open frame.
func (q *queue) take() (f *frame, next time.Duration, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.sealed) == 0 && q.open != nil {
		age := time.Duration(q.now().UnixNano() - q.open.opened)
		if age < sealAfter && !q.closed {
			return nil, sealAfter - age, false
		}
		q.seal()
	}
	if len(q.sealed) == 0 {
		return nil, 0, q.closed
	}
	f = q.sealed[0]
	q.sealed[0] = nil
	q.sealed = q.sealed[1:]
	return f, 0, false
}

// done says that f is stored, or given up.
func (q *queue) done(f *frame, stored bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.size -= int64(len(f.body))
	q.lines -= f.entries
	if !f.lent {
		q.keep(f.body)
	}
	if stored {
		q.progressed = q.now()
	}
	close(q.moved)
	q.moved = make(chan struct{})
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.moved)
		q.moved = make(chan struct{})
	}
	q.wake()
}

func (q *queue) bytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

// waiting tells how many lines are not stored yet.
func (q *queue) waiting() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lines
}

// empty tells whether everything that was put is stored or given up.
func (q *queue) empty() (bool, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size == 0, q.moved
}

// flush makes the open frame ready to be taken.
func (q *queue) flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seal()
	q.wake()
}

// drained tells that the queue is closed and everything in it was stored or given up.
func (q *queue) drained() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed && q.size == 0
}

package fleet

import (
	"context"
	"sync"
	"time"
)

// An instant is a point of two clocks: the monotonic one stands still while a machine sleeps, and the other is set.
type instant struct{ monotonic, wall time.Time }

func now() instant {
	t := time.Now()
	return instant{t, t.Round(0)}
}

// isOlder tells whether d has passed by either clock.
func (i instant) isOlder(d time.Duration) bool {
	n := now()
	return n.monotonic.Sub(i.monotonic) >= d || n.wall.Sub(i.wall) >= d
}

// A term is the context of who holds a lease. It ends by itself when it was not extended.
type term struct {
	context.Context
	cancel context.CancelFunc
	length time.Duration

	mu    sync.Mutex
	from  instant
	timer *time.Timer
}

func newTerm(parent context.Context, from instant, length time.Duration) *term {
	ctx, cancel := context.WithCancel(parent)
	t := &term{Context: ctx, cancel: cancel, length: length, from: from}
	t.timer = time.AfterFunc(time.Until(from.monotonic.Add(length)), cancel)
	context.AfterFunc(ctx, func() { t.timer.Stop() })
	return t
}

// extend lets the term go on from then, unless it has ended.
func (t *term) extend(from instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.from = from
	if t.timer.Stop() {
		t.timer.Reset(time.Until(from.monotonic.Add(t.length)))
	}
}

// Err looks at the clock first.
func (t *term) Err() error {
	t.mu.Lock()
	isOver := t.from.isOlder(t.length)
	t.mu.Unlock()
	if isOver {
		t.cancel()
	}
	return t.Context.Err()
}

package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	minTTL    = time.Second
	maxLookup = time.Second // how long a lease that was given back may lie there
)

// Lease calls held when this process is the one that holds the lease of that name, and again whenever it is once
// more, until ctx ends or held returns while the lease is held; the lease is then given back, so that another takes
// it at once. A holder that dies is followed after ttl (1 s and more). The stream must have been declared; servers that are away are
// waited for. The error is an impossible name or ttl.
//
// At most one process holds a lease. The context of held ends when the lease is not surely held any more: when it
// could not be renewed for half of ttl. A process that was stopped and goes on may not have come to end it: asking
// that context, and none derived from it, for Err looks at the clock, and is what an action that must not be done
// twice asks right before. Nobody else begins before the other half of ttl has passed.
func (l *Link) Lease(ctx context.Context, name string, ttl time.Duration, held func(ctx context.Context)) error {
	if err := checkCluster(name); err != nil {
		return fmt.Errorf("fleet: the lease %q: letters, digits, - and _ are allowed", name)
	}
	if ttl < minTTL {
		return fmt.Errorf("fleet: the lease %s: %s is shorter than %s", name, ttl, minTTL)
	}
	c := &contender{l: l, name: name, ttl: ttl, mark: []byte(l.node + " " + rand.Text())}
	told := false
	for failures := 0; ctx.Err() == nil; {
		won, err := c.contend(ctx)
		if won {
			failures, told = 0, false
			if isOver := c.hold(ctx, held); isOver {
				return nil
			}
			continue
		}
		if err == nil {
			failures, told = 0, false
		} else if failures++; failures >= 3 && !told && l.Connected() {
			told = true
			l.log.Warn("a lease cannot be asked for", zap.String("lease", name), zap.Error(err))
		}
		pause(ctx, min(ttl/8, maxLookup))
	}
	return ctx.Err()
}

// A contender looks at one lease. It trusts no clock but its own, and of that only the durations: a lease is free
// when its entry has not changed for ttl since it was seen first.
type contender struct {
	l      *Link
	name   string
	ttl    time.Duration
	mark   []byte // what this process writes, and no other
	bucket jetstream.KeyValue

	revision uint64 // that was seen last
	since    instant
}

// contend takes the lease when it is free.
func (c *contender) contend(ctx context.Context) (won bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if c.bucket == nil {
		if err := c.open(ctx); err != nil {
			return false, err
		}
	}
	asked := now()
	entry, err := c.bucket.Get(ctx, c.name)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		// Somebody else may be faster: then it is that one's.
		revision, err := c.bucket.Create(ctx, c.name, c.mark)
		return c.take(asked, revision, err)
	case errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound):
		c.bucket = nil
		return false, err
	case err != nil:
		return false, err
	}
	if entry.Revision() != c.revision {
		c.revision, c.since = entry.Revision(), now()
		return false, nil
	}
	if time.Since(c.since.monotonic) < c.ttl { // a clock that is set must not shorten it
		return false, nil
	}
	asked = now()
	revision, err := c.bucket.Update(ctx, c.name, c.mark, entry.Revision())
	return c.take(asked, revision, err)
}

func (c *contender) take(asked instant, revision uint64, err error) (won bool, _ error) {
	if isTaken(err) {
		c.revision = 0
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.revision, c.since = revision, asked
	return true, nil
}

func (c *contender) open(ctx context.Context) error {
	name := "squall_" + c.l.cluster + "_leases"
	bucket, err := c.l.js.KeyValue(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		var replicas int
		if replicas, err = c.l.replicas(ctx); err != nil {
			return err
		}
		bucket, err = c.l.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: name, History: 1, Storage: jetstream.FileStorage, Replicas: replicas})
	}
	if err != nil {
		return err
	}
	c.bucket = bucket
	return nil
}

// hold renews the lease while held runs. isOver is when held has returned by itself, or ctx has ended.
func (c *contender) hold(ctx context.Context, held func(context.Context)) (isOver bool) {
	c.l.m.leases.Inc()
	defer c.l.m.leases.Dec()
	c.l.log.Info("this process holds a lease", zap.String("lease", c.name))
	term := newTerm(ctx, c.since, c.ttl/2)
	defer term.cancel()
	done := make(chan struct{})
	go func() { defer close(done); held(term) }()
	ticker := time.NewTicker(c.ttl / 8)
	defer ticker.Stop()
	for term.Err() == nil {
		select {
		case <-done:
			c.release(ctx)
			return true
		case <-ticker.C:
			c.renew(term)
		case <-term.Done():
		}
	}
	<-done
	if ctx.Err() != nil {
		c.release(ctx)
		return true
	}
	c.l.log.Warn("a lease is not surely held any more", zap.String("lease", c.name))
	c.revision = 0 // what was written last is not known
	return false
}

// renew writes the entry again; the lease counts from before that.
func (c *contender) renew(term *term) {
	ctx, cancel := context.WithTimeout(term, c.ttl/4)
	defer cancel()
	asked := now()
	revision, err := c.bucket.Update(ctx, c.name, c.mark, c.revision)
	if err == nil {
		c.revision = revision
		term.extend(asked)
		return
	}
	if !isTaken(err) {
		return
	}
	// Somebody has written since: this process, when the answer was lost.
	entry, err := c.bucket.Get(ctx, c.name)
	switch {
	case err != nil || entry.Revision() <= c.revision: // a server that lags answers, or none
	case bytes.Equal(entry.Value(), c.mark):
		c.revision = entry.Revision()
	default:
		term.cancel()
	}
}

// isTaken tells that the entry is not the one that was expected.
func isTaken(err error) bool {
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch)
}

// release removes the entry, if it is still this term's.
func (c *contender) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(c.ttl, 2*time.Second))
	defer cancel()
	if err := c.bucket.Delete(ctx, c.name, jetstream.LastRevision(c.revision)); err != nil {
		c.l.log.Warn("a lease was not given back: it is free after a while", zap.String("lease", c.name), zap.Error(err))
		return
	}
	c.l.log.Info("a lease was given back", zap.String("lease", c.name))
}

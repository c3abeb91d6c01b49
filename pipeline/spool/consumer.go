package spool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

const (
	bucketConsumers = "consumers"
	backlogSuffix   = ".backlog"
)

// A place is how much was stored before a point since the spool began. It holds over restarts and over the loss of
// files, which the sequences of JetStream do not.
type place struct{ lines, bytes int64 }

// A Consumer reads the stored batches in order and remembers on disk how far it was acknowledged. (JetStream's own
// pull consumers hand out again what was not acknowledged in time, behind newer messages and, after a restart,
// minutes later: that order would break Loki's.) It belongs to one goroutine; Waiting may be called from any.
type Consumer struct {
	s       *Spool
	name    string
	kv      *KV
	dec     *decoder
	lent    []byte // the queue's memory that the last delivery lies in
	next    uint64 // the message to be read next, of the store's epoch
	epoch   int
	parent  *Consumer // of a backlog
	backlog *Consumer

	mu     sync.Mutex
	unread bool   // how far it was acknowledged is not known yet
	behind int64  // while unread: lines that wait and are counted as such, in place of an older consumer or stored since
	seen   place  // what was returned, or was lost
	acked  place  // what was acknowledged
	end    place  // of a backlog
	missed int64  // lines lost since the last delivery
	sent   []sent // deliveries that are not acknowledged
}

type sent struct {
	through place
	missed  int64
}

// Consumer opens the consumer of that name. A new one begins with the oldest stored message. It takes the place of
// one of the same name that was opened before. While it is not known what is stored, it waits in Next.
func (s *Spool) Consumer(ctx context.Context, name string) (*Consumer, error) {
	dec, err := newDecoder(true)
	if err != nil {
		return nil, err
	}
	c := &Consumer{s: s, name: name, kv: &KV{s, bucketConsumers}, dec: dec, epoch: -1, unread: true}
	s.mu.Lock()
	opened, before := s.opened, s.consumers[name]
	if before != nil {
		c.behind = before.waiting(s.total)
	}
	s.consumers[name] = c
	s.mu.Unlock()
	if before != nil {
		before.Close()
	}
	if opened {
		if err := c.load(ctx); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// load reads how far c was acknowledged, and the backlog that was put aside.
func (c *Consumer) load(ctx context.Context) error {
	value, known, err := c.kv.Get(ctx, c.name)
	if err != nil {
		return err
	}
	rest, _, err := c.kv.Get(ctx, c.name+backlogSuffix)
	if err != nil {
		return err
	}
	acked, end := readPlaces(value)
	stored := acked
	var b *Consumer
	if from, to := readPlaces(rest); from.lines < to.lines {
		dec, err := newDecoder(true)
		if err != nil {
			return err
		}
		b = &Consumer{s: c.s, name: c.name + backlogSuffix, kv: c.kv, dec: dec, epoch: -1, parent: c, seen: from, acked: from, end: to}
		if acked.lines < to.lines { // the fork was cut off in the middle
			acked = to
		}
	}
	if !known {
		if acked, err = c.s.oldest(ctx); err != nil {
			return err
		}
	}
	c.s.mu.Lock()
	counted := c.waiting(c.s.total)
	c.mu.Lock()
	c.acked, c.seen, c.end, c.backlog, c.unread = acked, acked, end, b, false
	c.mu.Unlock()
	fresh := c.waiting(c.s.total) - counted
	c.s.mu.Unlock()
	c.s.m.recoveredLines.Add(float64(max(fresh, 0)))
	if known && acked == stored {
		return nil
	}
	if err := c.save(ctx, acked); err != nil {
		c.s.cfg.Log.Warn("a consumer of the spool is not remembered yet", zap.String("name", c.name), zap.Error(err))
	}
	return nil
}

func readPlaces(value []byte) (acked, end place) {
	r := reader{b: value}
	acked = place{int64(r.uvarint()), int64(r.uvarint())}
	end = place{int64(r.uvarint()), int64(r.uvarint())}
	if r.bad || acked.lines < 0 || end.lines < 0 {
		return place{}, place{}
	}
	return acked, end
}

// oldest gives the place where the oldest stored message begins.
func (s *Spool) oldest(ctx context.Context) (place, error) {
	msg, err := s.message(ctx, 1)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return s.current().total, nil
	}
	if err != nil {
		return place{}, fmt.Errorf("read the oldest message: %w", err)
	}
	h, err := readHead(msg.Data)
	if err != nil {
		return place{}, nil //nolint:nilerr // it is counted when it is its turn
	}
	return h.before, nil
}

// Next returns the message after the one that it returned last, and waits for it. After Open that is the first
// one that was not acknowledged. A backlog ends with io.EOF.
func (c *Consumer) Next(ctx context.Context) (*pipeline.Delivery, error) {
	if c.lent != nil {
		c.s.queue.recycle(c.lent)
		c.lent = nil
	}
	for {
		v := c.s.current()
		if c.unread && v.st != nil {
			if err := c.load(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if c.parent != nil {
			if d, ended := c.rest(v); ended {
				return d, nil
			}
			if c.place().lines >= c.end.lines {
				return nil, io.EOF
			}
		}
		if v.st != nil && c.epoch != v.epoch {
			if err := c.locate(ctx, v); err != nil {
				return nil, err
			}
			continue
		}
		if v.st != nil && c.next <= v.last {
			d, err := c.read(ctx, v.last)
			if d != nil || err != nil {
				return d, err
			}
			continue
		}
		if v.st != nil {
			c.pass(v.total, dropLost) // nothing is stored behind what was read, though something was
			if c.parent != nil {
				continue
			}
		}
		select {
		case <-v.changed:
		case <-c.s.done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// place tells what was returned, or was lost.
func (c *Consumer) place() place {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// rest gives a delivery without lines when the end of a backlog was lost, so that the loss can be acknowledged.
func (c *Consumer) rest(v view) (d *pipeline.Delivery, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen.lines < c.end.lines || c.missed == 0 {
		return nil, false
	}
	d = &pipeline.Delivery{Stored: c.s.cfg.Now(), Sequence: v.last, Missed: c.missed, Through: c.end.lines}
	c.sent, c.missed = append(c.sent, sent{c.end, c.missed}), 0
	return d, true
}

// locate finds the message that holds the line after what was seen.
func (c *Consumer) locate(ctx context.Context, v view) error {
	first, err := c.s.message(ctx, 1)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		c.next, c.epoch = v.last+1, v.epoch
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the oldest message: %w", err)
	}
	if v.last < first.Sequence || v.last-first.Sequence >= math.MaxInt32 {
		c.next, c.epoch = first.Sequence, v.epoch
		return nil
	}
	seen := c.place()
	var failed error
	n := sort.Search(int(v.last-first.Sequence)+1, func(i int) bool {
		if failed != nil {
			return true
		}
		msg, err := c.s.message(ctx, first.Sequence+uint64(i))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return true
		}
		if err != nil {
			failed = err
			return true
		}
		h, err := readHead(msg.Data)
		return err == nil && h.through().lines > seen.lines
	})
	if failed != nil {
		return fmt.Errorf("find where to go on: %w", failed)
	}
	c.next, c.epoch = first.Sequence+uint64(n), v.epoch
	return nil
}

// read returns nothing when the message could not be read, or is gone together with all behind it.
func (c *Consumer) read(ctx context.Context, last uint64) (*pipeline.Delivery, error) {
	seq, stored, h, batches, err := c.message(ctx)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		c.next = last + 1
		return nil, nil
	case seq == 0:
		return nil, fmt.Errorf("read message %d: %w", c.next, err)
	}
	c.next = seq + 1
	c.pass(h.before, dropLimit)
	if err != nil {
		c.pass(h.through(), dropCorrupt)
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	through := h.through()
	if c.parent != nil && h.before.lines >= c.end.lines {
		return nil, nil // the end of the backlog is gone; this is no part of it
	}
	if through.lines < c.seen.lines || through.lines == c.seen.lines && h.entries > 0 {
		return nil, nil // it was removed, and counted, while it was being read
	}
	d := &pipeline.Delivery{Sequence: seq, Stored: stored, Batches: batches, Missed: c.missed, Through: through.lines}
	c.seen, c.sent, c.missed = through, append(c.sent, sent{through, c.missed}), 0
	return d, nil
}

// message gives the next message, from memory where it is still there. Without a sequence it could not be read; with one
// an error speaks of its content.
func (c *Consumer) message(ctx context.Context) (seq uint64, stored time.Time, h head, batches []*pipeline.Batch, err error) {
	c.s.mu.Lock()
	var m freshMessage
	ok := c.s.epoch == c.epoch
	if ok {
		m, ok = c.s.fresh.take(c.next)
	}
	c.s.mu.Unlock()
	if ok {
		c.lent = m.body
		batches, err = c.dec.batches(m.head, m.body)
		return m.seq, m.at, m.head, batches, err
	}
	msg, err := c.s.message(ctx, c.next)
	if err != nil {
		return 0, stored, h, nil, err
	}
	h, batches, err = c.s.decode(c.dec, msg.Data, 0)
	return msg.Sequence, msg.Time, h, batches, err
}

// pass counts what lies between what was seen and to as lost. It may be called from any goroutine.
func (c *Consumer) pass(to place, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parent != nil && to.lines > c.end.lines {
		to = c.end
	}
	n := to.lines - c.seen.lines
	if n <= 0 || c.unread {
		return
	}
	c.s.m.lose(reason, n, max(to.bytes-c.seen.bytes, 0))
	c.missed += n
	c.seen = to
}

// Ack says that d and all before it are dealt with; they are not returned again.
func (c *Consumer) Ack(ctx context.Context, d *pipeline.Delivery) error {
	c.mu.Lock()
	n, acked := 0, c.acked
	for n < len(c.sent) && c.sent[n].through.lines <= d.Through {
		acked = c.sent[n].through
		n++
	}
	c.mu.Unlock()
	if err := c.save(ctx, acked); err != nil {
		return err
	}
	c.mu.Lock()
	c.acked, c.sent = acked, c.sent[n:]
	c.mu.Unlock()
	if c.parent != nil && acked.lines >= c.end.lines {
		c.parent.mu.Lock()
		c.parent.backlog = nil
		c.parent.mu.Unlock()
		c.dec.close()
	}
	return nil
}

func (c *Consumer) save(ctx context.Context, acked place) error {
	var value []byte
	for _, n := range [...]int64{acked.lines, acked.bytes, c.end.lines, c.end.bytes} {
		value = binary.AppendUvarint(value, uint64(n))
	}
	return c.kv.Put(ctx, c.name, value)
}

// Fork puts what is stored and was not returned by Next aside, as the backlog; Next goes on with what is stored
// from now on. Everything that was returned must have been acknowledged, and there must be no other backlog.
func (c *Consumer) Fork(ctx context.Context) error {
	if c.backlog != nil || len(c.sent) > 0 || c.parent != nil {
		return errors.New("fork a consumer: something is not acknowledged")
	}
	v := c.s.current()
	if c.unread || c.place().lines >= v.total.lines {
		return nil // nothing lies behind
	}
	dec, err := newDecoder(true)
	if err != nil {
		return err
	}
	c.mu.Lock()
	b := &Consumer{
		s: c.s, name: c.name + backlogSuffix, kv: c.kv, dec: dec, next: c.next, epoch: c.epoch,
		seen: c.seen, acked: c.acked, missed: c.missed, end: v.total,
	}
	c.mu.Unlock()
	// The backlog is written first: a consumer that lies within its backlog was cut off here.
	if err := errors.Join(b.save(ctx, b.acked), c.save(ctx, v.total)); err != nil {
		dec.close()
		return err
	}
	c.mu.Lock()
	b.parent = c
	c.backlog, c.acked, c.seen, c.missed = b, v.total, v.total, 0
	c.next, c.epoch = v.last+1, v.epoch
	c.mu.Unlock()
	return nil
}

// Backlog gives what Fork has put aside, nil when that is dealt with.
func (c *Consumer) Backlog() pipeline.Deliveries {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.backlog == nil {
		return nil
	}
	return c.backlog
}

// Waiting tells how many stored lines, with those of the backlog, are neither acknowledged nor lost.
func (c *Consumer) Waiting() int64 {
	return c.waiting(c.s.current().total)
}

// stored counts lines that were stored while it is not known how far c was acknowledged.
func (c *Consumer) stored(lines int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unread {
		c.behind += lines
	}
}

// waiting is Waiting for who holds the spool's lock.
func (c *Consumer) waiting(total place) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unread {
		return c.behind
	}
	upper := total
	if c.parent != nil {
		upper = c.end
	}
	n := upper.lines - c.acked.lines - c.missed
	for _, s := range c.sent {
		n -= s.missed
	}
	if c.backlog != nil {
		n += c.backlog.waiting(total)
	}
	return n
}

// Close frees what the consumer holds in memory. What waited for it waits no longer: it is kept.
func (c *Consumer) Close() {
	var kept int64
	c.s.mu.Lock()
	if c.s.consumers[c.name] == c {
		delete(c.s.consumers, c.name)
		kept = c.waiting(c.s.total)
	}
	c.s.mu.Unlock()
	c.s.m.keptLines.Add(float64(max(kept, 0)))
	if c.backlog != nil {
		c.backlog.dec.close()
	}
	c.dec.close()
}

package spool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/squall-sre/squall/pipeline"
)

// A Consumer reads the stored batches in order and remembers on disk how far it was acknowledged. (JetStream's own
// pull consumers hand out again what was not acknowledged in time, behind newer messages and, after a restart,
// minutes later: that order would break Loki's.) It belongs to one goroutine; Acknowledged and Lag may be
// called from any.
type Consumer struct {
	s    *Spool
	name string
	kv   *KV
	dec  *decoder
	next uint64 // the message to be read next
	seen int64  // entries stored before it

	mu    sync.Mutex
	acked uint64
}

// Consumer opens the consumer of that name. A new one begins with the oldest stored message.
func (s *Spool) Consumer(ctx context.Context, name string) (*Consumer, error) {
	kv, err := s.KV(ctx, "consumers")
	if err != nil {
		return nil, err
	}
	value, ok, err := kv.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	dec, err := newDecoder()
	if err != nil {
		return nil, err
	}
	c := &Consumer{s: s, name: name, kv: kv, dec: dec, next: 1}
	_, last, _ := s.current()
	r := reader{b: value}
	acked, seen := r.uvarint(), int64(r.uvarint())
	switch {
	case !ok || r.bad:
		err = c.begin(ctx)
	case acked > last: // the end of a torn file is gone, and its numbers are given again
		c.acked, c.next, c.seen = last, last+1, s.entries()
	default:
		c.acked, c.next, c.seen = acked, acked+1, seen
	}
	if err != nil {
		dec.close()
		return nil, err
	}
	return c, nil
}

// begin writes down that a new consumer has missed nothing yet.
func (c *Consumer) begin(ctx context.Context) error {
	c.seen = c.s.entries()
	if _, last, _ := c.s.current(); last > 0 {
		switch msg, err := c.s.message(ctx, 1); {
		case err == nil:
			h, err := readHead(msg.Data)
			if err == nil {
				c.seen = h.before
			}
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return fmt.Errorf("read the oldest message: %w", err)
		}
	}
	return c.Ack(ctx, &pipeline.Delivery{Through: c.seen})
}

// Next returns the message after the one that it returned last, and waits for it. After Open that is the first
// one that was not acknowledged.
func (c *Consumer) Next(ctx context.Context) (*pipeline.Delivery, error) {
	for {
		st, last, changed := c.s.current()
		if st != nil && c.next <= last {
			d, err := c.read(ctx)
			if d != nil || err != nil {
				return d, err
			}
			continue
		}
		if last+1 < c.next { // the store was lost and began anew
			c.next, c.seen = last+1, c.s.entries()
		}
		select {
		case <-changed:
		case <-c.s.done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// read returns nothing when the message could not be read, or is gone together with all behind it.
func (c *Consumer) read(ctx context.Context) (*pipeline.Delivery, error) {
	msg, err := c.s.message(ctx, c.next)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		_, last, _ := c.s.current()
		c.next = last + 1
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read message %d: %w", c.next, err)
	}
	c.next = msg.Sequence + 1
	h, batches, err := c.s.decode(c.dec, msg.Data, 0)
	if err != nil {
		c.s.m.dropped.WithLabelValues(dropCorrupt).Add(float64(h.entries))
		return nil, nil
	}
	d := &pipeline.Delivery{Sequence: msg.Sequence, Stored: msg.Time, Batches: batches, Through: h.before + h.entries}
	d.Missed = max(h.before-c.seen, 0)
	c.seen = d.Through
	return d, nil
}

// Ack says that d and all before it are dealt with; they are not returned again.
func (c *Consumer) Ack(ctx context.Context, d *pipeline.Delivery) error {
	value := binary.AppendUvarint(nil, d.Sequence)
	value = binary.AppendUvarint(value, uint64(d.Through))
	if err := c.kv.Put(ctx, c.name, value); err != nil {
		return err
	}
	c.mu.Lock()
	c.acked = d.Sequence
	c.mu.Unlock()
	return nil
}

// Acknowledged gives the sequence up to which everything is dealt with, and that of the last stored message.
func (c *Consumer) Acknowledged() (acked, last uint64) {
	_, last, _ = c.s.current()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acked, last
}

// Close frees what the consumer holds in memory.
func (c *Consumer) Close() { c.dec.close() }

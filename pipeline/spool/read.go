package spool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/squall-sre/squall/pipeline"
)

// A Range says from where stored lines are read. The zero Range reads everything.
type Range struct {
	Sequence uint64    // the first message
	Stored   time.Time // what was stored at this time or later
	// Events is an event time, ns: messages whose newest line is older are passed over. As no line is stored
	// before it was written, reading begins with what was stored skew before that time.
	Events int64
}

// skew is how far the clock of who writes logs may be ahead of ours.
const skew = 10 * time.Minute

// Read hands the stored batches to fn, in the order in which they were stored, up to the last one that is
// stored when Read is called. Batches hold as long as they are referred to. An error of fn ends Read and is
// returned. Messages that cannot be read are passed over.
func (s *Spool) Read(ctx context.Context, from Range, fn func(*pipeline.Batch) error) error {
	dec, err := newDecoder(false)
	if err != nil {
		return err
	}
	defer dec.close()
	last := s.current().last
	seq := max(from.Sequence, 1)
	start := from.Stored
	if from.Events > 0 {
		if t := time.Unix(0, from.Events).Add(-skew); t.After(start) {
			start = t
		}
	}
	if !start.IsZero() {
		if seq, err = s.storedAt(ctx, seq, last, start); err != nil {
			return err
		}
	}
	for seq <= last {
		msg, err := s.message(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if msg.Sequence > last {
			return nil
		}
		seq = msg.Sequence + 1
		_, batches, err := s.decode(dec, msg.Data, from.Events)
		if err != nil {
			continue // whoever ships it counts it
		}
		for _, b := range batches {
			if err := fn(b); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Spool) decode(dec *decoder, data []byte, events int64) (head, []*pipeline.Batch, error) {
	h, err := readHead(data)
	if err != nil {
		return head{}, nil, err
	}
	if events > 0 && (h.entries == 0 || h.newest < events) {
		return h, nil, nil
	}
	batches, err := dec.decode(h)
	return h, batches, err
}

// storedAt finds the first message in [first, last] that was stored at t or later.
func (s *Spool) storedAt(ctx context.Context, first, last uint64, t time.Time) (uint64, error) {
	if first > last {
		return first, nil
	}
	if last-first >= math.MaxInt {
		return 0, fmt.Errorf("read from message %d: no such range", first)
	}
	var failed error
	n := sort.Search(int(last-first+1), func(i int) bool {
		if failed != nil {
			return true
		}
		msg, err := s.message(ctx, first+uint64(i))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return true
		}
		failed = err
		return err != nil || !msg.Time.Before(t)
	})
	return first + uint64(n), failed
}

// message gives the first message whose sequence is seq or higher. It waits while the store is opened anew.
func (s *Spool) message(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
	for {
		v := s.current()
		if v.st != nil {
			msg, err := v.st.at(ctx, seq)
			if err == nil || errors.Is(err, jetstream.ErrMsgNotFound) || ctx.Err() != nil || s.current().st == v.st {
				return msg, err
			}
			continue
		}
		select {
		case <-v.changed:
		case <-s.done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// restore learns the positions: the newest checkpoint that the stored lines cover, and what was stored after it.
func (s *Spool) restore(ctx context.Context, st *store) error {
	dec, err := newDecoder(false)
	if err != nil {
		return err
	}
	defer dec.close()
	state, err := st.state(ctx)
	if err != nil {
		return err
	}
	seq, begun, err := s.restoreCheckpoint(ctx, st, state.LastSeq)
	if err != nil {
		return err
	}
	found := begun // what is really there
	for seq++; seq <= state.LastSeq; seq++ {
		msg, err := st.at(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return fmt.Errorf("read message %d: %w", seq, err)
		}
		seq = msg.Sequence
		h, batches, err := s.decode(dec, msg.Data, 0)
		if h.through().lines > found.lines {
			found = h.through()
		}
		if err != nil {
			continue
		}
		for _, b := range batches {
			s.positions.store([]mark{{b.Stream.Input, b.Stream.ID, b.To, b.Last, b.Anchor}})
		}
	}
	if err := s.restoreTotal(ctx, st, found); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st, s.opened, s.last, s.before = st, true, state.LastSeq, state.LastTime
	s.signal()
	return nil
}

// raise notes that at least that much was stored since the spool began.
func (s *Spool) raise(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.lines > s.total.lines {
		s.total = p
	}
}

// restoreTotal learns how much was ever stored: what is found, or more where a checkpoint or a consumer knows of
// more. The difference was torn off; a consumer counts it when it gets there.
func (s *Spool) restoreTotal(ctx context.Context, st *store, found place) error {
	s.raise(found)
	names := 0
	b, err := st.js.KeyValue(ctx, bucketConsumers)
	switch {
	case errors.Is(err, jetstream.ErrBucketNotFound):
	case err != nil:
		return fmt.Errorf("open the bucket %s: %w", bucketConsumers, err)
	default:
		values, err := b.WatchAll(ctx, jetstream.IgnoreDeletes())
		if err != nil {
			return fmt.Errorf("list the bucket %s: %w", bucketConsumers, err)
		}
		for e := range values.Updates() {
			if e == nil {
				break // all that is there was told
			}
			names++
			acked, end := readPlaces(e.Value())
			s.raise(acked)
			s.raise(end)
		}
		if err := values.Stop(); err != nil {
			return fmt.Errorf("list the bucket %s: %w", bucketConsumers, err)
		}
	}
	total := s.current().total
	if n := total.lines - found.lines; n > 0 && names == 0 {
		s.m.recoveredLines.Add(float64(n))
		s.m.lose(dropLost, n, max(total.bytes-found.bytes, 0))
	}
	return nil
}

// restoreCheckpoint takes the newest checkpoint that the stored lines cover, and gives the message and the place up
// to which it holds.
func (s *Spool) restoreCheckpoint(ctx context.Context, st *store, last uint64) (uint64, place, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxCheckpoint))
	if err != nil {
		return 0, place{}, fmt.Errorf("make a zstd decoder: %w", err)
	}
	defer dec.Close()
	info, err := st.marks.Info(ctx)
	if err != nil {
		return 0, place{}, fmt.Errorf("ask for the state of %s: %w", streamPositions, err)
	}
	for n := info.State.LastSeq; n >= info.State.FirstSeq && n > 0; n-- {
		msg, err := st.marks.GetMsg(ctx, n)
		if err != nil {
			continue
		}
		seq, total, marks, err := readCheckpoint(dec, msg.Data)
		if err != nil {
			continue
		}
		s.raise(total)
		// A checkpoint beyond the last line speaks of lines that are gone.
		if seq > last {
			continue
		}
		s.positions.store(marks)
		return seq, total, nil
	}
	return 0, place{}, nil
}

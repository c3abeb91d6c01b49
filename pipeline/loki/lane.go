package loki

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/grafana/loki-client-go/pkg/backoff"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// After an outage there are two lanes: the backlog, which is shipped in its order and no faster than BacklogRate,
// and what is stored from then on. They take turns, so that neither waits for the other. The lines of the backlog
// have a label of their own: Loki refuses what is an hour behind the newest line of its stream.
//
// The division is on disk before anything is shipped by it, and it is made only when everything that was sent is
// acknowledged. A line therefore keeps its labels whenever it is sent again.

const (
	backlogAfter = 10 * time.Minute // how long what was shipped last had been stored, for the rest to be a backlog
	ackTimeout   = 2 * time.Second
	freshTurn    = 100 * time.Millisecond // how long fresh lines are waited for while there is other work
)

// A lane is one way from the spool to Loki.
type lane struct {
	lines   pipeline.Deliveries
	backlog bool
	open    []*load // taken and not acknowledged, in order
}

// turn ships what has come, a load of the backlog, and what was put aside.
func (s *Shipper) turn(ctx context.Context) error {
	s.reviewPlain(ctx)
	if err := s.retryAside(ctx); err != nil {
		return err
	}
	if s.old == nil {
		if b := s.fresh.lines.Backlog(); b != nil {
			s.old = &lane{lines: b, backlog: true}
			s.deps.Log.Info("what was stored during an outage is shipped beside fresh lines", zap.Int64("lines", b.Waiting()))
		}
		s.m.backlog.Set(0)
	}
	first, more := time.Duration(0), s.cfg.BatchWait
	switch {
	case s.old != nil:
		s.m.backlog.Set(1)
		first = min(max(s.oldDue.Sub(s.deps.Now()), freshTurn), time.Second)
		more = min(more, freshTurn)
	case len(s.aside) > 0 || len(s.fresh.open) > 0:
		first = freshTurn
	}
	if _, err := s.carry(ctx, s.fresh, first, more); err != nil {
		return err
	}
	if now := s.deps.Now(); s.old != nil && !now.Before(s.oldDue) {
		l, err := s.carry(ctx, s.old, time.Second, freshTurn)
		switch {
		case errors.Is(err, io.EOF):
			if len(s.old.open) == 0 {
				s.old = nil
				s.deps.Log.Info("what was stored during the outage is shipped")
			}
		case err != nil:
			return err
		case l != nil:
			s.oldDue = now.Add(time.Duration(float64(l.bytes) / float64(s.cfg.BacklogRate) * float64(time.Second)))
		}
	}
	return nil
}

// carry takes a load from a lane, ships it and tells the spool what is dealt with.
func (s *Shipper) carry(ctx context.Context, n *lane, first, more time.Duration) (*load, error) {
	l, err := s.collect(ctx, n, first, more)
	if l != nil {
		n.open = append(n.open, l)
		if err := s.shipAll(ctx, l.cut(s.size, s.alone)...); err != nil {
			return l, err
		}
	}
	if settled := s.settle(ctx, n); settled != nil {
		return l, settled
	}
	return l, err
}

// collect takes messages until they fill a push or the oldest has waited long enough. It waits at most first for
// the first one; 0 is for ever. There is no load when nothing came.
func (s *Shipper) collect(ctx context.Context, n *lane, first, more time.Duration) (*load, error) {
	begin, cancel := ctx, context.CancelFunc(func() {})
	if first > 0 {
		begin, cancel = context.WithTimeout(ctx, first)
	}
	d, err := n.lines.Next(begin)
	late := begin.Err() != nil && ctx.Err() == nil
	cancel()
	if err != nil {
		if late {
			return nil, nil
		}
		return nil, err
	}
	l := newLoad()
	s.take(l, n, d)
	wait, cancel := context.WithTimeout(ctx, more)
	defer cancel()
	for l.bytes < s.size {
		d, err := n.lines.Next(wait)
		if err != nil {
			break // it comes again with the next load
		}
		s.take(l, n, d)
	}
	return l, nil
}

func (s *Shipper) take(l *load, n *lane, d *pipeline.Delivery) {
	if d.Missed > 0 {
		s.deps.Log.Error("lines left the spool before they were shipped", zap.Int64("lines", d.Missed))
	}
	l.add(s.labeler, s.plain != nil, n.backlog, d)
}

// settle counts the loads that are dealt with, and tells the spool. A line is counted once, when the spool will not
// give it again.
func (s *Shipper) settle(ctx context.Context, n *lane) error {
	for _, l := range n.open { // one that waits aside holds the spool up, and not the memory of those behind it
		if l.left == 0 {
			l.release(s.labeler)
		}
	}
	var last *load
	for len(n.open) > 0 && n.open[0].left == 0 {
		last = n.open[0]
		n.open = n.open[1:]
		s.m.shipped.Add(float64(last.shipped))
		for reason, lines := range last.refused {
			s.m.refused.WithLabelValues(reason).Add(float64(lines))
		}
	}
	if last == nil {
		return nil
	}
	if err := s.acknowledge(ctx, n, last.last); err != nil {
		return err
	}
	age := max(s.deps.Now().Sub(last.last.Stored), 0)
	if n.backlog {
		return nil
	}
	s.m.lagSeconds.Set(age.Seconds())
	if age < backlogAfter || s.old != nil || len(n.open) > 0 || n.lines.Backlog() != nil {
		return nil
	}
	if err := n.lines.Fork(ctx); err != nil {
		return fmt.Errorf("divide the spool after an outage: %w", err)
	}
	return nil
}

// acknowledge retries: the spool may be opening its files anew. If it never succeeds, the same lines are shipped
// again after a restart. The end of ctx does not keep it from trying: the lines are counted already.
func (s *Shipper) acknowledge(ctx context.Context, n *lane, d *pipeline.Delivery) error {
	pause := backoff.New(ctx, s.cfg.Backoff)
	for {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
		err := n.lines.Ack(try, d)
		cancel()
		if err == nil {
			return nil
		}
		s.shout("the spool does not take the shipper's position", zap.Error(err))
		if pause.Wait(); !pause.Ongoing() {
			return ctx.Err()
		}
	}
}

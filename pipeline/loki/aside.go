package loki

import (
	"context"
	"strings"
	"time"
)

// Loki limits the number of streams and the rate of each. The lines of a stream that it limits are put aside and
// tried again, while those of other streams go on. They are not acknowledged until then.

const (
	limitPatience = time.Minute // how long a stream waits for room among the streams; then its lines are refused
	maxAside      = 8 << 20     // bytes that are put aside; with more, nothing new is taken

	// shareBytes is what a part may have to share a push with others.
	shareBytes = 32 << 10
	// knownFor and behindSafe tell which parts Loki takes for sure: it has their stream in memory, and the lines are
	// within half of what it allows them to be behind.
	knownFor   = 10 * time.Minute
	behindSafe = 30 * time.Minute
	maxKnown   = 4 * maxSets
)

// known is when a stream was stored last, and how new its newest line is.
type known struct {
	at     time.Time
	newest int64 // ns
}

// alone tells whether a part needs a push of its own: see load.cut.
func (s *Shipper) alone(p *part) bool {
	k, ok := s.streams[p.labels]
	if !ok || s.deps.Now().Sub(k.at) > knownFor || p.entries[0].Timestamp.UnixNano() < k.newest-int64(behindSafe) {
		return true
	}
	size := 0
	for i := range p.entries {
		size += entryBytes(&p.entries[i])
	}
	return size > shareBytes
}

func (s *Shipper) remember(b *batch, now time.Time) {
	if len(s.streams) > maxKnown {
		clear(s.streams)
	}
	for _, p := range b.parts {
		newest := p.entries[len(p.entries)-1].Timestamp.UnixNano()
		s.streams[p.labels] = known{now, max(newest, s.streams[p.labels].newest)}
	}
}

// limited deals with an answer that limits a stream. Of a push of several it does not tell which.
func (s *Shipper) limited(ctx context.Context, b *batch, a answer) error {
	s.m.retries.WithLabelValues(limited.String()).Inc()
	if len(b.parts) > 1 {
		for i := range b.parts {
			if err := s.ship(ctx, b.with(b.parts[i:i+1])); err != nil {
				return err
			}
		}
		return nil
	}
	now := s.deps.Now()
	if b.since.IsZero() {
		b.since = now
	}
	count := strings.Contains(a.text, signStreamLimit)
	if count && (now.Sub(b.since) >= limitPatience || s.asideBytes >= maxAside) {
		s.bury(b, refusedStreamLimit, a)
		return nil
	}
	b.due = now.Add(max(min(s.cfg.Backoff.MinBackoff<<min(b.tries, 16), s.cfg.Backoff.MaxBackoff, limitPatience/4), a.after))
	b.tries++
	s.aside = append(s.aside, b)
	s.asideBytes += b.bytes
	s.m.aside.Add(float64(b.lines))
	return nil
}

// retryAside tries again what is due, and waits while too much is aside.
func (s *Shipper) retryAside(ctx context.Context) error {
	for ctx.Err() == nil {
		waiting := s.aside
		s.aside = nil
		for i, b := range waiting {
			if s.deps.Now().Before(b.due) {
				s.aside = append(s.aside, b)
				continue
			}
			s.asideBytes -= b.bytes
			s.m.aside.Sub(float64(b.lines))
			if err := s.ship(ctx, b); err != nil {
				s.aside = append(s.aside, waiting[i:]...)
				return err
			}
		}
		if s.asideBytes < maxAside {
			break
		}
		s.sleep(ctx, freshTurn)
	}
	if len(s.fresh.open) > 0 {
		if err := s.settle(ctx, s.fresh); err != nil {
			return err
		}
	}
	return ctx.Err()
}

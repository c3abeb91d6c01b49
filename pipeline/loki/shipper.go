package loki

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"github.com/grafana/loki-client-go/pkg/backoff"
	"github.com/grafana/loki/pkg/push"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

const (
	splitAfter   = 3 // answers 429 to the same bytes: they may be over the burst, and never pass
	suspectAfter = 5 // answers 5xx to the same bytes: it may be they
	shoutEvery   = time.Minute
	canaryLabels = `{job="squall_canary"}`
)

// Deps is what a Shipper is given.
type Deps struct {
	Lines  pipeline.Deliveries
	Static []string // names of labels that sources set
	Dir    string   // where dead-letter.jsonl is written

	Log        *zap.Logger           // default: none
	Registerer prometheus.Registerer // default: none
	Now        func() time.Time      // default: time.Now
}

// A Shipper brings stored lines to Loki, one request at a time.
type Shipper struct {
	cfg     Config
	deps    Deps
	url     string
	client  *http.Client
	labeler *labeler
	m       *metrics
	dead    deadLetters

	size    int  // bytes of a push; shrinks to what the server takes
	plain   bool // the server takes no structured metadata
	shouted time.Time
}

// New checks the configuration and makes the client; it does not connect.
func New(cfg Config, deps Deps) (*Shipper, error) {
	if err := cfg.Check(deps.Static); err != nil {
		return nil, fmt.Errorf("loki: %w", err)
	}
	url, err := cfg.endpoint()
	if err != nil {
		return nil, fmt.Errorf("loki: %w", err)
	}
	client, err := cfg.client()
	if err != nil {
		return nil, fmt.Errorf("loki: %w", err)
	}
	if deps.Log == nil {
		deps.Log = zap.NewNop()
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	return &Shipper{
		cfg: cfg, deps: deps, url: url, client: client, labeler: newLabeler(&cfg), m: newMetrics(deps.Registerer),
		dead: deadLetters{filepath.Join(deps.Dir, "dead-letter.jsonl")}, size: int(cfg.BatchSize),
	}, nil
}

// Run ships until ctx ends, and then ends at once; what Loki has not confirmed is shipped after the next start.
func (s *Shipper) Run(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	for ctx.Err() == nil {
		l, err := s.collect(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read the spool: %w", err)
		}
		for _, b := range l.cut(s.size) {
			if err := s.ship(ctx, b); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
		s.acknowledge(ctx, l.last)
	}
	return nil
}

// collect takes messages until they fill a push or the oldest has waited long enough.
func (s *Shipper) collect(ctx context.Context) (*load, error) {
	l := newLoad()
	d, err := s.deps.Lines.Next(ctx)
	if err != nil {
		return nil, err
	}
	s.take(l, d)
	wait, cancel := context.WithTimeout(ctx, s.cfg.BatchWait)
	defer cancel()
	for l.bytes < s.size {
		d, err := s.deps.Lines.Next(wait)
		if err != nil {
			if wait.Err() != nil && ctx.Err() == nil {
				break
			}
			return nil, err
		}
		s.take(l, d)
	}
	return l, nil
}

func (s *Shipper) take(l *load, d *pipeline.Delivery) {
	if d.Missed > 0 {
		s.m.missed.Add(float64(d.Missed))
		s.deps.Log.Error("lines left the spool before they were shipped", zap.Int64("lines", d.Missed))
	}
	l.add(s.labeler, s.plain, d)
}

// acknowledge retries: the spool may be opening its files anew. If it never succeeds, the same lines are shipped
// again after a restart.
func (s *Shipper) acknowledge(ctx context.Context, d *pipeline.Delivery) {
	pause := backoff.New(ctx, s.cfg.Backoff)
	for pause.Ongoing() {
		err := s.deps.Lines.Ack(ctx, d)
		if err == nil {
			break
		}
		s.shout("the spool does not take the shipper's position", zap.Error(err))
		pause.Wait()
	}
	acked, last := s.deps.Lines.Acknowledged()
	s.m.lagMessages.Set(float64(last) - float64(acked))
	s.m.lagSeconds.Set(max(s.deps.Now().Sub(d.Stored).Seconds(), 0))
}

// ship brings b to Loki. It returns when every line of b is stored or refused; an error is the end of ctx, or a
// fault of ours.
func (s *Shipper) ship(ctx context.Context, b *batch) error {
	body, err := b.encode()
	if err != nil {
		return err
	}
	pause := backoff.New(ctx, s.cfg.Backoff)
	failures := map[verdict]int{}
	for pause.Ongoing() {
		a := s.push(ctx, body)
		failures[a.verdict]++
		if a.verdict != held {
			s.m.held.Set(0)
		}
		switch a.verdict {
		case stored:
			s.m.shipped.Add(float64(b.lines))
			return nil
		case partly:
			return s.refuse(b, a)
		case plain:
			return s.shipPlain(ctx, b, a)
		}
		done, err := s.reduce(ctx, b, a, failures[a.verdict])
		if done || err != nil {
			return err
		}
		s.m.retries.WithLabelValues(a.verdict.String()).Inc()
		s.wait(ctx, pause, a)
	}
	return ctx.Err()
}

// reduce splits b, or gives its only line up, where repeating it is of no use. It tells whether b is dealt with.
func (s *Shipper) reduce(ctx context.Context, b *batch, a answer, times int) (done bool, err error) {
	reason := refusedServer
	switch {
	case a.verdict == tooLarge:
		reason = refusedTooLarge
	case a.verdict == tooMuch && times >= splitAfter && b.lines > 1:
		reason = refusedTooLarge
	case a.verdict == unread:
		reason = refusedUnread
	case a.verdict == broken && times >= suspectAfter:
	default:
		return false, nil
	}
	first, second, ok := b.halves()
	limit := a.verdict == tooLarge || a.verdict == tooMuch
	if limit && ok {
		s.size = max(min(s.size, b.bytes/2), minBatch)
	} else if !s.canary(ctx) {
		return false, nil // it is not the lines, it is the server
	}
	if ok {
		if err := s.ship(ctx, first); err != nil {
			return false, err
		}
		return true, s.ship(ctx, second)
	}
	return true, s.bury(b.parts, reason, a, b.lines)
}

// shipPlain sends the lines whose structured metadata was refused again, with it behind the line.
func (s *Shipper) shipPlain(ctx context.Context, b *batch, a answer) error {
	if !s.plain {
		s.plain = true
		s.deps.Log.Warn("Loki takes no structured metadata: it is written behind the line from now on", zap.String("answer", cut(a.text, maxDeadText)))
	}
	p := b.withoutMetadata()
	if p == nil {
		return s.bury(b.parts, refusedMetadata, a, b.lines)
	}
	s.m.shipped.Add(float64(b.lines - p.lines))
	return s.ship(ctx, p)
}

// refuse counts the entries that a 400 names, and writes to the dead-letter file those that fit what it says; all
// others are stored.
func (s *Shipper) refuse(b *batch, a answer) error {
	left := b.lines
	for _, r := range refusals(a.text) {
		n := min(r.count, left)
		left -= n
		if err := s.bury(matching(b, r, n), r.reason, a, n); err != nil {
			return err
		}
	}
	s.m.shipped.Add(float64(left))
	return nil
}

// matching gives at most n entries of b that r speaks of.
func matching(b *batch, r refusal, n int) []part {
	var parts []part
	for _, p := range b.parts {
		q := part{labels: p.labels}
		for _, e := range p.entries {
			t, hit := e.Timestamp.UnixNano(), true
			switch {
			case r.limit > 0:
				hit = int64(len(e.Line)) > r.limit
			case r.bound != 0 && r.reason == refusedTooNew:
				hit = t >= r.bound
			case r.bound != 0:
				hit = t < r.bound+int64(time.Second) // the bound is told in whole seconds
			}
			if hit && n > 0 {
				q.entries = append(q.entries, e)
				n--
			}
		}
		if len(q.entries) > 0 {
			parts = append(parts, q)
		}
	}
	return parts
}

// bury counts lines as refused and writes them to the dead-letter file.
func (s *Shipper) bury(parts []part, reason string, a answer, lines int) error {
	s.m.refused.WithLabelValues(reason).Add(float64(lines))
	s.shout("Loki refuses lines: see the dead-letter file", zap.String("reason", reason), zap.Int("status", a.status),
		zap.Int("lines", lines), zap.String("answer", cut(a.text, maxDeadText)))
	letter := deadLetter{At: s.deps.Now().UTC(), Reason: reason, Status: a.status, Answer: a.text}
	for _, p := range parts {
		if err := s.dead.write(letter, p.labels, p.entries); err != nil {
			// The lines are counted; a full disk must not hold the others up.
			s.shout("the dead-letter file cannot be written", zap.Error(err))
			return nil
		}
		s.m.deadLetters.Add(float64(len(p.entries)))
	}
	return nil
}

// canary sends one harmless line, to tell a push that cannot be taken from a server that takes none.
func (s *Shipper) canary(ctx context.Context) bool {
	now := s.deps.Now()
	b := newBatch([]part{{canaryLabels, []push.Entry{{Timestamp: now, Line: "squall asks whether lines are taken"}}}})
	body, err := b.encode()
	return err == nil && s.push(ctx, body).verdict == stored
}

// wait pauses before the next try.
func (s *Shipper) wait(ctx context.Context, pause *backoff.Backoff, a answer) {
	d := max(pause.NextDelay(), a.after)
	if a.verdict == held || a.verdict == unread {
		d = max(d, s.cfg.Backoff.MaxBackoff)
		s.m.held.Set(1)
		s.shout("Loki cannot be used: lines wait in the spool", zap.String("url", s.safeURL()), zap.Int("status", a.status),
			zap.String("answer", cut(a.text, 256)))
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *Shipper) shout(text string, fields ...zap.Field) {
	if now := s.deps.Now(); now.Sub(s.shouted) >= shoutEvery {
		s.shouted = now
		s.deps.Log.Error(text, fields...)
	}
}

// push sends body once.
func (s *Shipper) push(ctx context.Context, body []byte) answer {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return answer{verdict: held, text: err.Error()}
	}
	for name, value := range s.cfg.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "squall")
	if s.cfg.TenantID != "" {
		req.Header.Set("X-Scope-OrgID", s.cfg.TenantID)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{verdict: busy, text: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && resp.StatusCode != http.StatusNoContent {
		return answer{verdict: busy, text: err.Error()}
	}
	return classify(resp.StatusCode, resp.Header, string(text), s.deps.Now())
}

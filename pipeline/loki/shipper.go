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
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

const (
	splitAfter   = 3 // answers 429 to the same bytes: they may be over the burst, and never pass
	suspectAfter = 5 // answers 5xx to the same bytes: it may be they
	growEvery    = time.Minute
	shoutEvery   = time.Minute
	canaryLabels = `{job="squall_canary"}`
)

// Deps is what a Shipper is given.
type Deps struct {
	Static []string // names of labels that sources set
	Dir    string   // where dead-letter.jsonl is written, and what is known of the server

	Log     *zap.Logger      // default: none
	Metrics *Metrics         // default: none are exported
	Now     func() time.Time // default: time.Now
}

// A Shipper brings stored lines to Loki, one request at a time.
type Shipper struct {
	cfg     Config
	deps    Deps
	url     string
	client  *http.Client
	labeler *labeler
	encoder encoder
	m       *Metrics
	dead    deadLetters

	size    int       // bytes of a push; shrinks to what the server takes, and grows again
	sizedAt time.Time // when it changed last

	plain       *plainServer // nil: the server takes structured metadata
	serverPath  string
	asked       time.Time // for the server's version
	interrupted bool      // pushes failed since: it may be another server now

	fresh, old *lane // old: nil without a backlog
	oldDue     time.Time
	aside      []*batch
	asideBytes int
	streams    map[string]known // what Loki has taken, by labels
	shouted    map[string]time.Time
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
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(nil)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	s := &Shipper{
		cfg: cfg, deps: deps, url: url, client: client, labeler: newLabeler(&cfg), m: deps.Metrics,
		dead: deadLetters{filepath.Join(deps.Dir, "dead-letter.jsonl")}, size: int(cfg.BatchSize),
		serverPath: filepath.Join(deps.Dir, "loki-server.json"),
		streams:    map[string]known{}, shouted: map[string]time.Time{},
	}
	s.m.pushBytes.Set(float64(s.size))
	s.loadServer()
	return s, nil
}

// Run ships lines until ctx ends, and then ends at once; what Loki has not confirmed is shipped after the next start.
// It is called once.
func (s *Shipper) Run(ctx context.Context, lines pipeline.Deliveries) error {
	s.fresh = &lane{lines: lines}
	defer s.client.CloseIdleConnections()
	pause := backoff.New(ctx, s.cfg.Backoff)
	for ctx.Err() == nil {
		if err := s.turn(ctx); err != nil && ctx.Err() == nil {
			s.shout("lines cannot be taken from the spool", zap.Error(err))
			s.sleep(ctx, pause.NextDelay())
			continue
		}
		pause.Reset()
	}
	return nil
}

// ship brings b to Loki. It returns when every line of b is stored, refused, or put aside; an error is the end of
// ctx, or a fault of ours.
func (s *Shipper) ship(ctx context.Context, b *batch) error {
	body, err := s.encoder.encode(b)
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
			s.stored(b)
			return nil
		case partly:
			return s.partly(ctx, b, a)
		case limited:
			return s.limited(ctx, b, a)
		}
		s.interrupted = true
		done, err := s.reduce(ctx, b, a, failures[a.verdict])
		if done || err != nil {
			return err
		}
		s.m.retries.WithLabelValues(a.verdict.String()).Inc()
		s.wait(ctx, pause, a)
	}
	return ctx.Err()
}

func (s *Shipper) shipAll(ctx context.Context, batches ...*batch) error {
	for _, b := range batches {
		if err := s.ship(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// stored notes that Loki has b. What it takes now it may take more of: the size of a push grows back by an eighth
// of the configured one a minute.
func (s *Shipper) stored(b *batch) {
	now := s.deps.Now()
	b.load.shipped += b.lines
	b.load.left -= b.lines
	s.remember(b, now)
	if s.size < int(s.cfg.BatchSize) && now.Sub(s.sizedAt) >= growEvery {
		s.resize(s.size+int(s.cfg.BatchSize)/8, now)
	}
}

func (s *Shipper) resize(size int, now time.Time) {
	s.size, s.sizedAt = min(max(size, minBatch), int(s.cfg.BatchSize)), now
	s.m.pushBytes.Set(float64(s.size))
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
		s.resize(min(s.size, b.bytes/2), s.deps.Now())
	} else if !s.canary(ctx) {
		return false, nil // it is not the lines, it is the server
	}
	if ok {
		return true, s.shipAll(ctx, first, second)
	}
	s.bury(b, reason, a)
	return true, nil
}

// partly deals with an answer that names entries. Where it does not tell exactly which, b is sent again in halves:
// of what is stored already that makes identical repeats, which Loki folds.
func (s *Shipper) partly(ctx context.Context, b *batch, a answer) error {
	f, exact := b.find(a.text)
	if !exact {
		if first, second, ok := b.halves(); ok {
			return s.shipAll(ctx, first, second)
		}
		reason := refusals(a.text)[0].reason
		if f = (finding{off: b}); reason != metadataOff || len(b.parts[0].entries[0].StructuredMetadata) == 0 {
			f = finding{refused: []refusedLines{{reason, b}}}
		}
	}
	for _, r := range f.refused {
		if r.reason == metadataOff {
			r.reason = refusedMetadata
		}
		s.bury(r.lines, r.reason, a)
	}
	if f.rest != nil && !f.hidden {
		s.stored(f.rest)
		f.rest = nil
	}
	if f.off != nil {
		s.learnPlain(ctx, a)
		if err := s.ship(ctx, f.off.withoutMetadata()); err != nil {
			return err
		}
	}
	if f.rest != nil {
		return s.ship(ctx, f.rest)
	}
	return nil
}

// bury counts the lines of b as refused and writes them to the dead-letter file. A full disk must not hold the
// others up: what the file does not take is counted, too.
func (s *Shipper) bury(b *batch, reason string, a answer) {
	b.load.refused[reason] += b.lines
	b.load.left -= b.lines
	s.shout("Loki refuses lines: see the dead-letter file", zap.String("reason", reason), zap.Int("status", a.status),
		zap.Int("lines", b.lines), zap.String("answer", cut(a.text, maxDeadText)))
	letter := deadLetter{At: s.deps.Now().UTC(), Reason: reason, Status: a.status, Answer: a.text}
	for _, p := range b.parts {
		if err := s.dead.write(letter, p.labels, p.entries); err != nil {
			s.m.deadLettersLost.Add(float64(len(p.entries)))
			s.shout("the dead-letter file cannot be written: refused lines are lost", zap.Int("lines", len(p.entries)), zap.Error(err))
			continue
		}
		s.m.deadLetters.Add(float64(len(p.entries)))
	}
}

// canary sends one harmless line, to tell a push that cannot be taken from a server that takes none.
func (s *Shipper) canary(ctx context.Context) bool {
	now := s.deps.Now()
	b := (&batch{}).with([]part{{canaryLabels, []push.Entry{{Timestamp: now, Line: "squall asks whether lines are taken"}}}})
	body, err := s.encoder.encode(b)
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
	s.sleep(ctx, d)
}

func (s *Shipper) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// shout logs a trouble that lasts, once a minute. text is a constant.
func (s *Shipper) shout(text string, fields ...zap.Field) {
	now := s.deps.Now()
	if last, ok := s.shouted[text]; ok && now.Sub(last) < shoutEvery {
		return
	}
	s.shouted[text] = now
	s.deps.Log.Error(text, fields...)
}

// push sends body once.
func (s *Shipper) push(ctx context.Context, body []byte) answer {
	status, header, text, err := s.do(ctx, http.MethodPost, s.url, body)
	if err != nil {
		return answer{verdict: busy, text: err.Error()}
	}
	return classify(status, header, string(text), s.deps.Now())
}

// do makes one request. An answer that is cut off is an error, unless it had nothing more to say.
func (s *Shipper) do(ctx context.Context, method, url string, body []byte) (status int, header http.Header, text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("make a request: %w", err)
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
		return 0, nil, nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil && resp.StatusCode != http.StatusNoContent {
		return 0, nil, nil, fmt.Errorf("read the answer: %w", err)
	}
	return resp.StatusCode, resp.Header, text, nil
}

package loki

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/loki/lokitest"
)

// A clock is the real one, put forward.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *clock) use(w *setup) { w.deps.Now = c.now }

// After a rate limit has made pushes small they grow again, an eighth a minute.
func TestPushesGrowBackAfterARateLimit(t *testing.T) {
	s := lokitest.NewServer(t)
	s.Limits.Burst = 20_000
	var c clock
	r := start(t, t.TempDir(), quick(s.URL), c.use)
	r.append(logged("a", 0, 2000))
	r.shipped()
	r.expect(s, 2000)
	whole := r.sum("squall_loki_push_bytes")
	if whole > 40_000 {
		t.Fatalf("pushes have %v bytes where 20000 pass", whole)
	}
	s.Change(func(s *lokitest.Server) { s.Limits.Burst = 6 << 20 })
	at, steps := int64(2000), 0
	for ; r.sum("squall_loki_push_bytes") < float64(r.shipper.cfg.BatchSize) && steps < 20; steps++ {
		c.ahead.Add(int64(growEvery))
		r.append(logged("a", at, 10))
		at += 10
		r.shipped()
	}
	if steps < 7 || steps > 9 {
		t.Errorf("pushes had their size again after %d minutes, want about 8", steps)
	}
	r.expect(s, int(at))
}

func TestRetryAfterDelaysTheNextPush(t *testing.T) {
	for name, header := range map[string]func() string{
		"seconds": func() string { return "1" },
		"date":    func() string { return time.Now().Add(2 * time.Second).UTC().Format(http.TimeFormat) },
	} {
		t.Run(name, func(t *testing.T) {
			s := lokitest.NewServer(t)
			var mu sync.Mutex
			var told, came time.Time
			s.Intercept = func(n int, _ *http.Request, _ []byte) lokitest.Reply {
				mu.Lock()
				defer mu.Unlock()
				if n > 1 {
					came = time.Now()
					return lokitest.Reply{}
				}
				h := header()
				if told = time.Now().Add(time.Second); name == "date" {
					told, _ = http.ParseTime(h)
				}
				return lokitest.Reply{Status: 429, Text: "ingestion rate limit exceeded", Header: http.Header{"Retry-After": {h}}}
			}
			r := start(t, t.TempDir(), quick(s.URL))
			r.append(logged("a", 0, 10))
			r.shipped()
			r.expect(s, 10)
			mu.Lock()
			defer mu.Unlock()
			if came.Before(told) {
				t.Errorf("the push came again %s before it was asked for", told.Sub(came))
			}
		})
	}
}

func site(name string, from int64, n int) *pipeline.Batch {
	b := logged(name, from, n)
	for i := range b.Entries {
		b.Entries[i].Site = name
	}
	return b
}

// New streams over the limit wait; those that Loki has go on; in the end the new ones' lines are refused and counted.
func TestStreamLimitHoldsUpNobodyElse(t *testing.T) {
	s := lokitest.NewServer(t)
	s.Limits.MaxStreams = 2
	var c clock
	r := start(t, t.TempDir(), quick(s.URL), c.use)
	r.append(site("a.example", 0, 10))
	r.append(site("b.example", 0, 10))
	r.shipped()
	r.append(site("new.example", 0, 7))
	r.until("the new stream is limited", func() bool { return r.sum("squall_loki_aside_lines") == 7 })
	for i := range int64(5) {
		r.append(site("a.example", 10+10*i, 10))
		r.append(site("b.example", 10+10*i, 10))
		want := int(20 * (i + 2))
		r.until("the others go on", func() bool { return len(s.Entries()) == want })
	}
	if n := r.lines.Waiting(); n < 7 {
		t.Errorf("%d lines wait in the spool although 7 are not shipped", n)
	}
	c.ahead.Add(int64(limitPatience) + int64(time.Second))
	r.shipped()
	r.expect(s, 120)
	if got := r.value(refusedStreamLimit); got != 7 || len(r.letters()) != 7 || r.letters()[0].Reason != refusedStreamLimit {
		t.Errorf("%v lines are refused, %d dead letters, want 7", got, len(r.letters()))
	}
}

func TestStreamLimitThatPasses(t *testing.T) {
	s := lokitest.NewServer(t)
	s.Limits.MaxStreams = 1
	r := start(t, t.TempDir(), quick(s.URL))
	r.append(site("a.example", 0, 10))
	r.shipped()
	r.append(site("new.example", 0, 7))
	r.until("the new stream is limited", func() bool { return r.sum("squall_loki_aside_lines") == 7 })
	s.Change(func(s *lokitest.Server) { s.Limits.MaxStreams = 5 })
	r.shipped()
	r.expect(s, 17)
}

// The rate of a stream passes: its lines wait however long it takes.
func TestStreamRateLimitIsNoReasonToRefuse(t *testing.T) {
	s := lokitest.NewServer(t)
	s.Limited = func(stream string) bool { return strings.Contains(stream, "busy.example") }
	var c clock
	r := start(t, t.TempDir(), quick(s.URL), c.use)
	r.append(site("busy.example", 0, 7))
	r.append(site("a.example", 0, 10))
	r.until("the other stream goes on", func() bool { return len(s.Entries()) == 10 })
	c.ahead.Add(int64(time.Hour))
	tries := r.sum("squall_loki_retries_total")
	r.until("it is tried again", func() bool { return r.sum("squall_loki_retries_total") > tries+1 })
	s.Change(func(s *lokitest.Server) { s.Limited = nil })
	r.shipped()
	r.expect(s, 17)
}

// A wrong address or right stops sending, is told once a minute, and costs no line.
func TestHeldIsShoutedOnceAMinute(t *testing.T) {
	for _, status := range []int{401, 403, 404} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := lokitest.NewServer(t)
			var open atomic.Bool
			s.Intercept = func(int, *http.Request, []byte) lokitest.Reply {
				if open.Load() {
					return lokitest.Reply{}
				}
				return lokitest.Reply{Status: status, Text: "no"}
			}
			log, seen := observer.New(zapcore.ErrorLevel)
			var c clock
			r := start(t, t.TempDir(), quick(s.URL), c.use, func(w *setup) { w.deps.Log = zap.New(log) })
			r.append(logged("a", 0, 50))
			told := func() int { return seen.FilterMessageSnippet("Loki cannot be used").Len() }
			for minute := range 3 {
				r.until("it is told", func() bool { return told() == minute+1 })
				requests := s.Requests()
				r.until("it is tried again", func() bool { return s.Requests() > requests+2 })
				if told() != minute+1 {
					t.Errorf("told %d times in minute %d", told(), minute+1)
				}
				c.ahead.Add(int64(time.Minute))
			}
			if r.lines.Waiting() != 50 || r.sum("squall_loki_held") != 1 {
				t.Errorf("%d lines wait, held is %v", r.lines.Waiting(), r.sum("squall_loki_held"))
			}
			bodies := s.Bodies()
			if i := slices.IndexFunc(bodies, func(b []byte) bool { return !bytes.Equal(b, bodies[0]) }); i >= 0 {
				t.Error("something else was sent while sending is held")
			}
			open.Store(true)
			r.shipped()
			r.expect(s, 50)
			if r.sum("squall_loki_held") != 0 {
				t.Error("still held")
			}
		})
	}
}

// Structured metadata that a version of the server refuses is not tried again after a restart, but with the next
// version.
func TestMetadataIsTriedAgainAfterAnUpgrade(t *testing.T) {
	s := lokitest.NewServer(t)
	s.Version, s.Limits.NoMetadata = "2.9.1", true
	dir := t.TempDir()
	r := start(t, dir, quick(s.URL))
	b := logged("a", 0, 10)
	b.Entries[3].Time -= int64(8 * 24 * time.Hour) // refused for another reason, in the same answer
	r.append(b)
	r.shipped()
	r.expect(s, 9)
	if got := r.value(refusedTooOld); got != 1 || s.Requests() != 2 {
		t.Errorf("%v lines are refused in %d requests", got, s.Requests())
	}
	r.stop()
	var c clock
	r = start(t, dir, quick(s.URL), c.use)
	r.append(logged("a", 10, 10))
	r.shipped()
	if s.Requests() != 3 {
		t.Errorf("after a restart it was tried again: %d requests", s.Requests())
	}
	c.ahead.Add(int64(askVersionEvery))
	r.append(logged("a", 20, 10))
	r.shipped()
	if s.Requests() != 4 {
		t.Errorf("the same version was tried again: %d requests", s.Requests())
	}
	s.Change(func(s *lokitest.Server) { s.Version, s.Limits.NoMetadata = "3.7.6", false })
	c.ahead.Add(int64(askVersionEvery))
	r.append(logged("a", 30, 10))
	r.shipped()
	r.append(logged("a", 40, 10))
	r.shipped()
	if e := s.Entries(); len(e) != 49 || e[48].Metadata["method"] != "HEAD" || testutil.ToFloat64(r.shipper.m.shipped) != 40 {
		t.Errorf("%d lines, the last with %v; %v counted as shipped", len(e), e[len(e)-1], testutil.ToFloat64(r.shipper.m.shipped))
	}
}

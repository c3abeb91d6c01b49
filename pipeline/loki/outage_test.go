package loki

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/loki/lokitest"
)

// random makes n lines of 1000 bytes that cannot be compressed.
func random(r *rand.Rand, from int64, n int) *pipeline.Batch {
	b := logged("a", from, n)
	for i := range b.Entries {
		line := fmt.Appendf(nil, "%06d ", from+int64(i))
		for len(line) < 1000 {
			line = append(line, byte('!'+r.IntN(90)))
		}
		b.Entries[i].Line = line
	}
	return b
}

// Loki is away for hours: the spool grows to its limit, and the oldest lines go and are counted. When Loki is back,
// what was kept is shipped in its order and not too fast, and fresh lines do not wait for it; a restart amid that
// changes nothing.
func TestOutageOfHours(t *testing.T) {
	s := lokitest.NewServer(t)
	var away atomic.Bool
	s.Intercept = func(int, *http.Request, []byte) lokitest.Reply {
		if away.Load() {
			return lokitest.Reply{Status: 503}
		}
		return lokitest.Reply{}
	}
	cfg := quick(s.URL)
	cfg.BatchSize, cfg.BacklogRate = 32<<10, 200<<10
	var c clock
	small := func(w *setup) { w.spool.MaxBytes = 1 << 20 }
	dir := t.TempDir()
	r := start(t, dir, cfg, c.use, small)
	r.append(logged("a", 0, 10))
	r.shipped()

	away.Store(true)
	noise := rand.New(rand.NewPCG(1, 2))
	at := int64(10)
	for range 40 {
		r.append(random(noise, at, 64))
		at += 64
		flushed(r)
	}
	r.until("the oldest lines are counted as lost", func() bool { return r.sum("squall_lines_lost_total") > 0 })
	r.closes()
	c.ahead.Add(int64(2 * time.Hour))
	away.Store(false)
	begin := time.Now()
	r.until("there is a backlog", func() bool { return r.sum("squall_loki_backlog") == 1 })
	for i := range int64(3) {
		r.append(site("fresh.example", 10*i, 10))
		want := int(10 * (i + 1))
		r.until("fresh lines are there", func() bool { return len(of(s, "fresh.example")) == want })
	}
	if r.sum("squall_loki_backlog") != 1 {
		t.Error("the backlog was shipped before the fresh lines")
	}
	r.stop()
	lost, bytes := r.sum("squall_lines_lost_total"), r.sum("squall_spool_lost_bytes_total")
	r = start(t, dir, cfg, c.use, small)
	r.shipped()
	lost += r.sum("squall_lines_lost_total") // fresh lines made room, too
	bytes += r.sum("squall_spool_lost_bytes_total")
	if lost == 0 || bytes != lost*1000 {
		t.Errorf("%v lines of %v bytes are counted as lost", lost, bytes)
	}
	seconds := time.Since(begin).Seconds()
	kept := of(s, `backlog="1"`)
	if size := float64(1000 * len(kept)); size > float64(cfg.BacklogRate)*seconds+64<<10 {
		t.Errorf("%v bytes of the backlog were shipped in %v s", size, seconds)
	}
	if !slices.IsSortedFunc(kept, func(a, b lokitest.Entry) int { return strings.Compare(a.Line[:6], b.Line[:6]) }) {
		t.Error("the backlog was not shipped in its order")
	}
	if len(kept) < 100 || kept[len(kept)-1].Line[:6] != fmt.Sprintf("%06d", at-1) {
		t.Errorf("%d lines of the backlog were shipped, and not up to the newest", len(kept))
	}
	if got, want := len(s.Entries())-len(of(s, "canary")), 10+40*64+30-int(lost); got != want {
		t.Errorf("Loki has %d lines, want %d", got, want)
	}
}

func flushed(r *rig) {
	r.t.Helper()
	if err := r.spool.Flush(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// of gives the entries whose labels contain text.
func of(s *lokitest.Server, text string) []lokitest.Entry {
	return slices.DeleteFunc(s.Entries(), func(e lokitest.Entry) bool { return !strings.Contains(e.Labels, text) })
}

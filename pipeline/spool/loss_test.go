package spool

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/pipeline"
)

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// lost gives the lines counted under a reason.
func lost(s *Spool, reason string) int {
	return int(testutil.ToFloat64(s.m.dropped.WithLabelValues("", reason)))
}

func next(t *testing.T, c pipeline.Deliveries) *pipeline.Delivery {
	t.Helper()
	d, err := c.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Somebody deletes the spool's files while it runs: what was not shipped is lost and counted, positions are never
// ahead of what is stored, shipped or counted, and what comes afterwards is stored, shipped, and there after a restart.
func TestFilesDeletedWhileRunning(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	c, err := s.Consumer(t.Context(), "loki")
	if err != nil {
		t.Fatal(err)
	}
	at := int64(0)
	for range 5 {
		b := batch("a", at, 10)
		at = b.To
		mustAppend(t, s, b)
		flush(t, s)
	}
	d := next(t, c)
	if err := c.Ack(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	next(t, c) // read, and not acknowledged: the shipper has it in memory
	if err := os.RemoveAll(filepath.Join(dir, "store")); err != nil {
		t.Fatal(err)
	}
	until(t, "the loss is noticed", func() bool { return lost(s, dropLost) > 0 })
	if n := lost(s, dropLost); n != 30 {
		t.Errorf("%d lines are counted as lost, want 30", n)
	}
	// More messages than were there before: their sequences are given again.
	for range 8 {
		b := batch("a", at, 10)
		at = b.To
		mustAppend(t, s, b)
		flush(t, s)
	}
	lines := 0
	for lines < 80 {
		d = next(t, c)
		for _, b := range d.Batches {
			lines += len(b.Entries)
		}
	}
	if lines != 80 {
		t.Errorf("%d lines came after the loss, want 80", lines)
	}
	if err := c.Ack(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if n := c.Waiting(); n != 0 {
		t.Errorf("%d lines wait", n)
	}
	c.Close()
	closeSpool(t, s)
	s = open(t, Config{Dir: dir})
	if to, ok := s.Position("a"); !ok || to != at {
		t.Errorf("position %d %v after a restart, want %d", to, ok, at)
	}
	if c, err = s.Consumer(t.Context(), "loki"); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n := c.Waiting(); n != 0 {
		t.Errorf("%d lines wait after a restart", n)
	}
}

// The newest messages are torn off while the process is down: they are counted when the consumer gets there, and no
// message that comes in their place is passed over.
func TestTornEndIsCounted(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	c, err := s.Consumer(t.Context(), "loki")
	if err != nil {
		t.Fatal(err)
	}
	at := int64(0)
	for range 6 {
		b := batch("a", at, 10)
		at = b.To
		mustAppend(t, s, b)
		flush(t, s)
	}
	for range 3 {
		if err := c.Ack(t.Context(), next(t, c)); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	closeSpool(t, s)
	lines := filepath.Join("streams", streamLines)
	damage(t, dir, filepath.Join(lines, "msgs"), half)

	s = open(t, Config{Dir: dir})
	if c, err = s.Consumer(t.Context(), "loki"); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	back, _ := s.Position("a")
	b := batch("a", back, 10)
	mustAppend(t, s, b)
	flush(t, s)
	came, missed := 0, 0
	for {
		d := next(t, c)
		missed += int(d.Missed)
		for _, b := range d.Batches {
			came += len(b.Entries)
		}
		if d.Batches[len(d.Batches)-1].To == b.To {
			break
		}
	}
	if came < 10 || came-10+missed != 30 || missed == 0 {
		t.Errorf("%d lines came and %d are missed, want 30 with the 10 new ones", came, missed)
	}
	if n := lost(s, dropLost) + lost(s, dropLimit) + lost(s, dropCorrupt); n != missed {
		t.Errorf("%d lines are counted as lost, %d were missed", n, missed)
	}
}

// A backlog is handed out beside what is stored later, over restarts, and what of it is lost is counted once.
func TestBacklogBesideFreshLines(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir, MaxBytes: 1 << 20}
	s := open(t, cfg)
	c, err := s.Consumer(t.Context(), "loki")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Fork(t.Context()); err != nil || c.Backlog() != nil {
		t.Fatalf("fork of nothing: %v", err)
	}
	random := rand.NewChaCha8([32]byte{7})
	put := func(from int64) {
		mustAppend(t, s, noise(random, from)) // 4 lines, 256 KiB
		flush(t, s)
	}
	put(0)
	put(1)
	if err := c.Fork(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Fork(t.Context()); err == nil {
		t.Error("a second fork before the first backlog is dealt with")
	}
	put(2)
	if d := next(t, c); d.Batches[0].From != 2 || c.Ack(t.Context(), d) != nil {
		t.Errorf("the fresh line is from %d", d.Batches[0].From)
	}
	if n := c.Waiting(); n != 8 {
		t.Errorf("%d lines wait, want 8", n)
	}
	c.Close()
	closeSpool(t, s)
	s = open(t, cfg)
	if c, err = s.Consumer(t.Context(), "loki"); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := c.Backlog()
	if b == nil {
		t.Fatal("the backlog is forgotten after a restart")
	}
	d := next(t, b)
	if d.Batches[0].From != 0 || b.Ack(t.Context(), d) != nil {
		t.Errorf("the backlog begins at %d", d.Batches[0].From)
	}
	for i := int64(3); i < 9; i++ { // the rest of the backlog makes room
		put(i)
	}
	d = next(t, b)
	if d.Missed != 4 || len(d.Batches) != 0 || b.Ack(t.Context(), d) != nil {
		t.Errorf("the end of the backlog: %d missed, %d batches", d.Missed, len(d.Batches))
	}
	if c.Backlog() != nil {
		t.Error("the backlog is dealt with and still there")
	}
	got := 0
	for got < 9 {
		d = next(t, c)
		got = int(d.Batches[0].To)
	}
	if err := c.Ack(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if n := c.Waiting(); n != 0 {
		t.Errorf("%d lines wait", n)
	}
}

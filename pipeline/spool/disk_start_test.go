package spool

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
)

// A spool whose disk has no room opens: lines wait in memory, and are stored as soon as there is room.
func TestOpenOnAFullDisk(t *testing.T) {
	dir := smallDisk(t, 12<<20)
	hog := filepath.Join(dir, "hog")
	fillUp(t, hog)
	s := open(t, Config{Dir: dir, MinFree: 1})
	c := openConsumer(t, s, "loki")
	random := rand.NewChaCha8([32]byte{6})
	mustAppend(t, s, noise(random, 0))
	if to, ok := s.Position("a"); ok {
		t.Errorf("a position %d on a full disk", to)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	flushWhenOpen(t, s)
	if to, _ := s.Position("a"); to != 1 {
		t.Errorf("position %d, want 1", to)
	}
	if d := next(t, c); len(d.Batches) != 1 || d.Missed != 0 {
		t.Errorf("the consumer gets %+v", d)
	}
	if n := testutil.ToFloat64(s.m.corrupt); n != 0 {
		t.Errorf("%v stores are said to be corrupt", n)
	}
}

// What is stored is known over a start on a disk that somebody has filled to the last byte.
func TestOpenWhatIsStoredOnAFullDisk(t *testing.T) {
	dir := smallDisk(t, 24<<20)
	cfg := Config{Dir: dir, MinFree: 1}
	s := open(t, cfg)
	random := rand.NewChaCha8([32]byte{7})
	at := int64(0)
	for ; at < 8; at++ {
		mustAppend(t, s, noise(random, at))
	}
	c := openConsumer(t, s, "loki")
	d := next(t, c)
	if err := c.Ack(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	flush(t, s)
	c.Close()
	closeSpool(t, s)
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	fillUp(t, filepath.Join(dir, "hog"))

	cfg.MaxBytes = 1 << 30 // other limits than before: there is no room to note them
	s = open(t, cfg)
	c = openConsumer(t, s, "loki")
	defer c.Close()
	if to, _ := s.Position("a"); to != at {
		t.Errorf("position %d, want %d", to, at)
	}
	if got := next(t, c); got.Sequence != d.Sequence+1 || got.Missed != 0 {
		t.Errorf("the consumer goes on with message %d behind %d, and has missed %d lines", got.Sequence, d.Sequence, got.Missed)
	}
	if err := os.Remove(filepath.Join(dir, "hog")); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, s, noise(random, at))
	flush(t, s)
	if n := testutil.ToFloat64(s.m.corrupt); n != 0 {
		t.Errorf("%v stores are said to be corrupt", n)
	}
}

// A spool on a file system that can only be read opens, and finds what is stored there when it can be written again.
func TestOpenOnAReadOnlyDisk(t *testing.T) {
	dir := smallDisk(t, 24<<20)
	cfg := Config{Dir: filepath.Join(dir, "spool")}
	readOnly := func(flag uintptr) {
		t.Helper()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flag, ""); err != nil {
			t.Fatal(err)
		}
	}
	readOnly(unix.MS_RDONLY) // there is not even a directory
	s := open(t, cfg)
	mustAppend(t, s, batch("a", 0, 100))
	readOnly(0)
	flushWhenOpen(t, s)
	to, _ := s.Position("a")
	closeSpool(t, s)

	readOnly(unix.MS_RDONLY)
	s = open(t, cfg)
	c := openConsumer(t, s, "loki")
	defer c.Close()
	if _, ok := s.Position("a"); ok {
		t.Error("a position is known of a store that is not open")
	}
	b := batch("a", to, 100)
	mustAppend(t, s, b)
	readOnly(0)
	flushWhenOpen(t, s)
	if got, _ := s.Position("a"); got != b.To {
		t.Errorf("position %d, want %d", got, b.To)
	}
	lines := 0
	for lines < 200 {
		d := next(t, c)
		for _, b := range d.Batches {
			lines += len(b.Entries)
		}
	}
	if lines != 200 || testutil.ToFloat64(s.m.dropped.WithLabelValues("", dropLimit)) != 0 {
		t.Errorf("%d lines of 200 are shipped", lines)
	}
}

// A spool that was never open closes in time, and says what it did not store.
func TestCloseOnAFullDisk(t *testing.T) {
	dir := smallDisk(t, 8<<20)
	fillUp(t, filepath.Join(dir, "hog"))
	s, err := Open(t.Context(), Config{Dir: dir, MinFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, s, batch("a", 0, 100))
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("it took %s", d)
	}
	if n := testutil.ToFloat64(s.m.dropped.WithLabelValues("", dropClosed)); n != 100 {
		t.Errorf("%v lines are counted", n)
	}
}

func openConsumer(t *testing.T, s *Spool, name string) *Consumer {
	t.Helper()
	c, err := s.Consumer(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// flushWhenOpen waits until the disk takes lines again.
func flushWhenOpen(t *testing.T, s *Spool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := s.Flush(t.Context())
		if err == nil {
			return
		}
		if !errors.Is(err, ErrNotOpen) || time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

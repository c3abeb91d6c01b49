package spool

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// balance fails the test when the lines that came into the spool are not those that left it, wait or are kept.
func balance(t *testing.T, s *Spool, dealt float64, want ...float64) {
	t.Helper()
	lost := 0.0
	for _, r := range []string{dropLimit, dropDiskFull, dropLost, dropClosed, dropCorrupt} {
		lost += testutil.ToFloat64(s.m.dropped.WithLabelValues("", r))
	}
	recovered, kept, waiting := testutil.ToFloat64(s.m.recoveredLines), testutil.ToFloat64(s.m.keptLines), s.waiting()
	came := testutil.ToFloat64(s.m.appendedLines) + recovered
	if became := dealt + lost + kept + waiting; came != became {
		t.Errorf("%v lines came and %v are accounted for: %v dealt with, %v lost, %v kept, %v waiting", came, became, dealt, lost, kept, waiting)
	}
	if got := [3]float64{recovered, kept, waiting}; got != [3]float64(want) {
		t.Errorf("recovered, kept and waiting: %v, want %v", got, want)
	}
}

// Loki is configured, taken out, and configured again, by reloads and by restarts: no line is counted twice or not at
// all.
func TestAccountOverConsumers(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	add := func(from int64) {
		t.Helper()
		mustAppend(t, s, batch("a", from, 100))
		flush(t, s)
	}
	add(0)
	balance(t, s, 0, 0, 100, 0)
	c, err := s.Consumer(t.Context(), "loki")
	if err != nil {
		t.Fatal(err)
	}
	balance(t, s, 0, 100, 100, 100)
	add(batch("a", 0, 100).To)
	d := next(t, c)
	if err := c.Ack(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	balance(t, s, 100, 100, 100, 100)
	next(t, c) // a reload comes while it is being shipped
	old := c
	if c, err = s.Consumer(t.Context(), "loki"); err != nil {
		t.Fatal(err)
	}
	old.Close()
	balance(t, s, 100, 100, 100, 100)
	c.Close()
	balance(t, s, 100, 100, 200, 0)
	closeSpool(t, s)

	s = open(t, Config{Dir: dir})
	balance(t, s, 0, 0, 0, 0)
	if c, err = s.Consumer(t.Context(), "loki"); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	balance(t, s, 0, 100, 0, 100)
}

// A store that cannot be opened is moved aside, and its lines are counted, not only the store.
func TestLinesOfAStoreMovedAsideAreCounted(t *testing.T) {
	for name, shipping := range map[string]bool{"waiting for Loki": true, "kept": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, Config{Dir: dir})
			if shipping {
				c, err := s.Consumer(t.Context(), "loki")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			}
			mustAppend(t, s, batch("a", 0, 100))
			flush(t, s)
			closeSpool(t, s)
			damage(t, dir, "LINES/meta", func([]byte) []byte { return []byte("{") })
			s = open(t, Config{Dir: dir})
			if n := testutil.ToFloat64(s.m.corrupt); n != 1 {
				t.Fatalf("%v stores are moved aside", n)
			}
			if n := lost(s, dropCorrupt); n != 100 {
				t.Errorf("%d lines are counted as lost, want 100", n)
			}
			balance(t, s, 0, 100, 0, 0)
		})
	}
}

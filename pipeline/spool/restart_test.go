package spool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestRestartKeepsPositionsAndConsumers(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	first := batch("a", 0, 10)
	mustAppend(t, s, first)
	flush(t, s)
	second := batch("a", first.To, 10)
	mustAppend(t, s, second)
	flush(t, s)
	c, err := s.Consumer(t.Context(), "loki")
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.Next(t.Context())
	if err != nil || d.Batches[0].From != 0 {
		t.Fatalf("first delivery: %v %v", d, err)
	}
	if err := c.Ack(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if d, err = c.Next(t.Context()); err != nil || d.Batches[0].From != first.To {
		t.Fatalf("second delivery: %v %v", d, err)
	}
	c.Close()
	closeSpool(t, s)

	s = open(t, Config{Dir: dir})
	if to, ok := s.Position("a"); !ok || to != second.To {
		t.Errorf("position after a restart: %d %v, want %d", to, ok, second.To)
	}
	mustAppend(t, s, second)
	if c, err = s.Consumer(t.Context(), "loki"); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if d, err = c.Next(t.Context()); err != nil || d.Batches[0].From != first.To || d.Missed != 0 {
		t.Fatalf("what was not acknowledged did not come again: %v %v", d, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	if d, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a repeat was stored: %v %v", d, err)
	}
	if n := c.Waiting(); n != 10 {
		t.Errorf("%d lines wait, want 10", n)
	}
}

// Positions outlive the lines: those expire or make room for others.
func TestPositionsOutliveTheLines(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	b := batch("old", 0, 10)
	mustAppend(t, s, b)
	flush(t, s)
	closeSpool(t, s)
	st, err := openStore(t.Context(), &Config{Dir: dir, MaxBytes: 2 << 30, MaxAge: time.Hour, Log: s.cfg.Log})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.lines.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	st.close()
	s = open(t, Config{Dir: dir})
	if got := read(t, s, Range{}); len(got) != 0 {
		t.Fatalf("%d batches are left", len(got))
	}
	if to, ok := s.Position("old"); !ok || to != b.To {
		t.Errorf("position %d %v, want %d", to, ok, b.To)
	}
}

// appendForEver is the body of a process that is killed: it appends, and prints what is on disk.
func appendForEver(dir string) {
	s, err := Open(context.Background(), Config{Dir: dir})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	at, _ := s.Position("a")
	for {
		b := batch("a", at, 200)
		at = b.To
		if err := s.Append(b); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		to, _ := s.Position("a")
		fmt.Println("stored", to)
	}
}

func TestKilledProcessLosesNothingThatItStored(t *testing.T) {
	dir := t.TempDir()
	told := int64(0)
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "SPOOL_TEST_CHILD="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		goal := told + 1<<20
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			n, ok := strings.CutPrefix(lines.Text(), "stored ")
			if !ok {
				t.Errorf("round %d: %s", round, lines.Text())
				break
			}
			if told, _ = strconv.ParseInt(n, 10, 64); told > goal {
				break
			}
		}
		_ = cmd.Process.Kill()
		for lines.Scan() { // what it said before it died
			if n, ok := strings.CutPrefix(lines.Text(), "stored "); ok {
				if v, err := strconv.ParseInt(n, 10, 64); err == nil {
					told = max(told, v)
				}
			}
		}
		_ = cmd.Wait()
	}
	s := open(t, Config{Dir: dir})
	position, ok := s.Position("a")
	if !ok || position < told {
		t.Errorf("position %d %v, but %d was reported as stored", position, ok, told)
	}
	at := int64(0)
	for _, b := range read(t, s, Range{}) {
		if b.From != at {
			t.Fatalf("a batch begins at %d where the last one ended at %d", b.From, at)
		}
		at = b.To
	}
	if at != position {
		t.Errorf("the position is %d and the lines end at %d", position, at)
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// A screen is a terminal, and all that was written to it.
type screen struct {
	terminal *os.File
	output
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{}
	if s.terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	var read sync.WaitGroup
	read.Go(func() { _, _ = io.Copy(&s.output, master) }) // it ends with an error when the terminal is closed
	t.Cleanup(func() {
		if err := s.terminal.Close(); err != nil {
			t.Error(err)
		}
		read.Wait()
		if err := master.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestProgressOnATerminal: a replay that takes long tells how far it is, in one line that is gone at the end; what is
// told on the same terminal stays whole.
func TestProgressOnATerminal(t *testing.T) {
	path, _ := simulated(t, simulate.Options{Scenario: scenario(t, "demo"), Format: "nginx_extended", Seed: 7})
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	in, to := io.Pipe()
	s := newScreen(t)
	done := make(chan error, 1)
	root := newRootCommand()
	root.SetArgs([]string{"replay", "-"})
	root.SetIn(in)
	root.SetOut(s.terminal)
	root.SetErr(s.terminal)
	go func() { done <- root.ExecuteContext(t.Context()) }()
	if _, err := to.Write(log); err != nil {
		t.Fatal(err)
	}
	want := binaryBytes(float64(len(log)))
	eventually(t, "the terminal shows how far it is", func() bool {
		return strings.Contains(s.String(), "\r"+want+", ") && strings.Contains(s.String(), "B/s; at 20")
	})
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end is told", func() bool { return strings.Contains(s.String(), "\r\nalerts: ") })
	for line := range strings.SplitSeq(s.String(), "\n") {
		if i := strings.LastIndex(line, "\x1b[K"); i >= 0 && strings.Contains(line[i:], "B/s") || strings.Count(line, "FIRING") > 1 {
			t.Errorf("the line is not gone, or in another's way: %q", line)
		}
	}
}

// TestProgressElsewhere: nothing where standard error is no terminal, lines when they are asked for.
func TestProgressElsewhere(t *testing.T) {
	var out bytes.Buffer
	var a advance
	for _, when := range []string{progressAuto, progressNever} {
		if newProgress(when, &out, &a) != nil {
			t.Errorf("--progress %s shows progress on what is no terminal", when)
		}
	}
	if err := checkProgress("perhaps"); exitCode(err) != exitUsage {
		t.Errorf("--progress perhaps: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newProgress(progressAlways, &out, &a)
		if err := p.during(t.Context(), func(context.Context) error {
			a.files.Store(3)
			a.looked.Store(2)
			<-time.After(3 * time.Second) // of the bubble
			a.total.Store(100 << 20)
			a.read.Store(25 << 20)
			a.at.Store(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).UnixNano())
			<-time.After(5 * time.Second)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
	check(t, "lines", out.String(), "looked at 2 of 3 files\n25.0 MiB of 100 MiB (25 %), 3.6 MiB/s, 21s left; at 2026-11-30T12:00:00Z\n")
}

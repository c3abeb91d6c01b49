package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
)

// serviceManager is a socket such as systemd's, and what arrives at it.
func serviceManager(t *testing.T) *net.UnixConn {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("NOTIFY_SOCKET", name)
	return conn
}

func received(t *testing.T, conn *net.UnixConn, wait time.Duration) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

func TestSystemdStates(t *testing.T) {
	conn := serviceManager(t)
	s := systemd{turned: func() bool { return true }, log: zap.NewNop()}
	for _, row := range []struct {
		tell func() error
		want string
	}{
		{s.Ready, `^READY=1$`},
		{s.Reloading, `^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*\n$`},
		{s.Stopping, `^STOPPING=1$`},
		{func() error { return s.Status("2 sources, 1 storm\nREADY=1\x1b") }, `^STATUS=2 sources, 1 storm READY=1 $`},
		{func() error { return s.Status(strings.Repeat("x", 10_000)) }, `^STATUS=x{256}$`},
		{s.feed, `^WATCHDOG=1$`},
	} {
		if err := row.tell(); err != nil {
			t.Fatal(err)
		}
		if got := received(t, conn, 5*time.Second); !regexp.MustCompile(row.want).MatchString(got) {
			t.Errorf("%q is not like %s", got, row.want)
		}
	}
}

// The watchdog is fed while the pipeline turns and starves when it stands, though squall's own timer goes on.
func TestSystemdWatchdogFollowsThePipeline(t *testing.T) {
	conn := serviceManager(t)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(int((20 * time.Millisecond).Microseconds())))
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	var turns, asked atomic.Int64
	turns.Store(3)
	s := systemd{log: zap.NewNop(), turned: func() bool {
		asked.Add(1)
		return turns.Add(-1) >= 0
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range 3 {
		check(t, "fed", received(t, conn, 5*time.Second), "WATCHDOG=1")
	}
	stood := asked.Load()
	deadline := time.Now().Add(10 * time.Second)
	for asked.Load() < stood+5 && time.Now().Before(deadline) { // the timer goes on asking
		if got := received(t, conn, 20*time.Millisecond); got != "" {
			t.Fatalf("fed while the pipeline stands: %q", got)
		}
	}
	if asked.Load() < stood+5 {
		t.Fatal("nobody looks at the pipeline any more")
	}
	turns.Store(1)
	check(t, "fed again", received(t, conn, 5*time.Second), "WATCHDOG=1")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Without systemd nothing is sent and nothing fails.
func TestSystemdAbsent(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	s := systemd{turned: func() bool { return true }, log: zap.NewNop()}
	for _, tell := range []func() error{s.Ready, s.Reloading, s.Stopping, s.feed} {
		if err := tell(); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if err := s.Run(ctx); err == nil {
		t.Error("a malformed WATCHDOG_USEC is accepted")
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	if err := s.Ready(); err == nil {
		t.Error("a socket that is not there is not told")
	}
}

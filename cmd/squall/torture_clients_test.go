package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// crowd opens n connections to squall's own port and begins a request on each that never ends.
func crowd(t *testing.T, address string, n int) (conns []net.Conn) {
	t.Helper()
	for range n {
		c, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return conns
}

// Many clients hold connections open and send a byte now and then. squall holds a bounded number of them, for a
// bounded time, goes on detecting, and answers others.
func TestTortureSlowClients(t *testing.T) {
	t.Parallel()
	dir, h := t.TempDir(), startHook(t)
	log := filepath.Join(dir, "access.log")
	write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), fmt.Sprintf("notify: [{type: webhook, url: %q}]\n", h.URL)))
	squall := runSquall(t, dir, surroundings{})
	quiet, routines := squall.usage(), squall.metric("go_goroutines")
	conns := crowd(t, strings.TrimPrefix(squall.base, "http://"), 1000)
	heads := startLogger(t, log, http.MethodHead, 50*time.Millisecond)
	worst := 0
	eventually(t, "the storm is told", func() bool {
		squall.alive()
		worst = max(worst, squall.usage().descriptors)
		for _, c := range conns {
			_, _ = c.Write([]byte("x")) // most are closed
		}
		return len(h.told("/")) > 0
	})
	if worst > quiet.descriptors+webMaxConnections+16 {
		t.Errorf("it held %d descriptors, and %d before", worst, quiet.descriptors)
	}
	eventually(t, "it answers others", func() bool { code, _ := squall.get("/-/healthy"); return code == http.StatusOK })
	closed := func() bool {
		for _, c := range conns {
			if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1<<10)); errors.Is(err, os.ErrDeadlineExceeded) {
				return false
			}
		}
		return true
	}
	eventually(t, "every slow client is let go", closed)
	eventually(t, "nothing is left of them", func() bool {
		now := squall.usage()
		return now.descriptors <= quiet.descriptors+8 && squall.metric("go_goroutines") <= routines+16
	})
	heads.stop()
	tortureTable.add(tortureRow{name: "slow clients", lines: len(lines(t, log)), lost: -1, duplicates: -1, page: len(h.told("/")), rss: squall.usage().rss, delay: h.told("/")[0].at.Sub(h.told("/")[0].startsAt)})
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

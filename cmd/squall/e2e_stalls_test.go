package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Nobody empties the pipe behind standard error any more: a container's runtime hangs, or a pager stands still. squall
// goes on detecting and telling, and ends when it is asked to.
func TestStandardErrorIsNotTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	hook := startHook(t)
	config := fileYAML(log, filepath.Join(dir, "spool"), fmt.Sprintf("notify: [{type: webhook, url: %q}]\n", hook.URL))
	write(t, filepath.Join(dir, "squall.yaml"), config)
	people := startLogger(t, log, http.MethodGet, 100*time.Millisecond)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(writer.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	squall := runSquall(t, dir, surroundings{stderr: writer, taken: reader})
	write(t, filepath.Join(dir, "squall.yaml"), "nonsense")
	squall.stops()
	for range 100 {
		if code, _ := squall.reload(); code < 400 {
			t.Fatalf("nonsense is answered %d", code)
		}
	}
	heads := startLogger(t, log, http.MethodHead, 20*time.Millisecond)
	eventually(t, "the storm is told", func() bool { return len(hook.told("/")) > 0 })
	people.stop()
	heads.stop()
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// squall is frozen in the middle of a storm: a snapshot of the machine, a control group that is paused. What was written
// meanwhile is not late, and the storm that goes on is one.
func TestFrozenInAStorm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	hook := startHook(t)
	write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"),
		fmt.Sprintf("notify: [{type: webhook, url: %q}]\n", hook.URL)))
	startLogger(t, log, http.MethodHead, 20*time.Millisecond)
	squall := runSquall(t, dir, surroundings{})
	eventually(t, "the storm is told", func() bool { return len(hook.told("/")) > 0 })
	told := func() (n map[string]int) {
		n = map[string]int{}
		for _, g := range hook.told("/") {
			n[g.status+" "+g.name]++
		}
		return n
	}
	squall.signal(syscall.SIGSTOP)
	<-time.After(25 * time.Second) // longer than the window and what the alert is kept for
	squall.signal(syscall.SIGCONT)
	all := float64(len(lines(t, log)))
	eventually(t, "what was written meanwhile is read", func() bool { return squall.metric(`squall_lines_read_total{source="balancer"}`) >= all })
	panes := squall.metric("squall_panes_closed_total")
	eventually(t, "detection goes on", func() bool { return squall.metric("squall_panes_closed_total") > panes+3 })
	check(t, "late lines", squall.metric(`squall_lines_late_total{source="balancer"}`), 0.0)
	for what, n := range told() {
		if n > 1 || strings.HasPrefix(what, "resolved") {
			t.Errorf("%s was told %d times", what, n)
		}
	}
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// A source that has said nothing yet, and whose lines may come minutes late, does not hold up the others for as long.
func TestSilentSourceHoldsNothingUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hook := startHook(t)
	quiet, log := filepath.Join(dir, "quiet.log"), filepath.Join(dir, "access.log")
	write(t, quiet, "")
	write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf("sources: [{name: balancer, type: file, paths: [%q], lateness: 1s}, "+
		"{name: quiet, type: file, paths: [%q], lateness: 1h}]\nspool: {dir: %q}\nnotify: [{type: webhook, url: %q}]\n",
		log, quiet, filepath.Join(dir, "spool"), hook.URL)+compressed)
	startLogger(t, log, http.MethodHead, 20*time.Millisecond)
	squall := runSquall(t, dir, surroundings{})
	eventually(t, "the storm is told", func() bool { return len(hook.told("/")) > 0 })
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// stops lets nobody take what squall writes to standard error from now on.
func (p *program) stops() { close(p.untaken) }

// take keeps what comes until it stops.
func (p *program) take(from io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		_, _ = p.stderr.Write(buf[:n]) // it is kept in memory
		select {
		case <-p.untaken:
			return
		default:
		}
		if err != nil {
			return
		}
	}
}

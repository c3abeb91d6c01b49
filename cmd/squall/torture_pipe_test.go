package main

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A reader of standard output that dies does not take squall with it: Go raises SIGPIPE for a write to descriptor 1.
func TestTortureReaderOfStandardOutputDies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), "notify: [{type: stdout}]\n"))
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	startLogger(t, log, http.MethodHead, 50*time.Millisecond)
	squall := runSquall(t, dir, surroundings{stdout: writer})
	for _, end := range []*os.File{writer, reader} {
		if err := end.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "an alert cannot be told", func() bool {
		squall.alive()
		return squall.metric(`squall_notify_failures_total{notifier="stdout-1",reason="unavailable"}`) > 0
	})
	panes := squall.metric("squall_panes_closed_total")
	eventually(t, "detection goes on", func() bool { squall.alive(); return squall.metric("squall_panes_closed_total") > panes+2 })
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

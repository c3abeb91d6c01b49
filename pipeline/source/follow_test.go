package source

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func (f *files) untilFollowing(t *testing.T, n float64) {
	t.Helper()
	until(t, func() bool { return testutil.ToFloat64(f.meter.following) == n }, func() string {
		return fmt.Sprintf("%v files are followed, want %v", testutil.ToFloat64(f.meter.following), n)
	})
}

// following gives a file that the library follows, after a few lines.
func following(t *testing.T, s *spool, path string, lines []string) (*files, *os.File) {
	t.Helper()
	w := opened(t, path)
	t.Cleanup(func() { w.Close() })
	f, _ := start(t, s, path)
	s.untilState(f, path, "idle")
	put(t, w, text(lines))
	f.untilFollowing(t, 1)
	s.want(lines)
	return f, w
}

func TestFollowsSlowFile(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	f, w := following(t, s, path, lines[:100])
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for i := 100; i < len(lines); i += 100 {
		<-pace.C
		put(t, w, text(lines[i:i+100]))
	}
	s.want(lines)
	if n := s.streams[s.Streams("")[0]].blocks; n > 2000 {
		t.Errorf("%d blocks for %d lines", n, len(lines))
	}
	put(t, w, "90000000 after\n")
	f.untilFollowing(t, 1)
	s.want(append(lines, "90000000 after"))
}

// What comes faster than the library reads is read in blocks.
func TestFollowerFallsBehind(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 100000)
	f, w := following(t, s, path, lines[:100])
	put(t, w, text(lines[100:90000]))
	s.want(lines[:90000])
	f.untilFollowing(t, 0)
	put(t, w, text(lines[90000:90100]))
	f.untilFollowing(t, 1)
	put(t, w, text(lines[90100:]))
	s.want(lines)
}

// A line without an end is taken from the library, which has no limit.
func TestFollowedLineOutgrowsLimit(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	f, w := following(t, s, path, lines[:100])
	for range 40 {
		put(t, w, strings.Repeat("e", 32<<10))
	}
	f.untilFollowing(t, 0)
	put(t, w, "\n"+text(lines[100:]))
	want := append(append([]string{}, lines[:100]...), strings.Repeat("e", cutAt))
	s.want(append(want, lines[100:]...))
}

// Truncation under the library: it starts again from 0 by itself, which is not for it to decide.
func TestTruncationWhileFollowed(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	_, w := following(t, s, path, lines[:300])
	copyFile(t, path, path+".1")
	truncate(t, path)
	put(t, w, text(lines[300:310]))
	s.want(lines[:310])
	put(t, w, text(lines[310:]))
	s.want(lines)
}

// The library exits the process when stat fails. Here the log's directory loses its permissions, and then is
// removed, under a followed file. Permissions mean nothing to root: the test runs itself as nobody.
func TestFollowedWithoutPermission(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t)
		return
	}
	dir := filepath.Join(t.TempDir(), "log")
	mkdir(t, dir)
	path, s := filepath.Join(dir, "access.log"), newSpool(t)
	lines := number(0, 20000)
	f, w := following(t, s, path, lines[:100])
	chmod(t, dir, 0)
	s.untilState(f, path, "unreadable")
	put(t, w, text(lines[100:200]))
	s.want(lines[:200])
	chmod(t, path, 0, dir)
	s.untilState(f, path, "idle")
	put(t, w, text(lines[200:10000]))
	s.want(lines[:10000])
	remove(t, dir)
	s.untilState(f, path, "missing")
	put(t, w, text(lines[10000:12000]))
	s.want(lines[:12000])

	// A file that is made without permission and gets it later, as logrotate's create does.
	mkdir(t, dir)
	made, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	put(t, made, text(lines[12000:]))
	s.untilState(f, path, "unreadable")
	chmod(t, path, 0o600)
	s.want(lines)
}

// chmod changes one path; with inside, while that directory is opened for it.
func chmod(t *testing.T, path string, mode os.FileMode, inside ...string) {
	t.Helper()
	for _, dir := range inside {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func asNobody(t *testing.T) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp", "HOME=/nonexistent")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("as nobody: %v\n%s", err, out)
	}
	t.Logf("as nobody:\n%s", out)
}

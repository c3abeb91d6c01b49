package source

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/squall-sre/squall/pipeline"
)

// inState tells whether a path, or a file that was found there and is still read, is in a state.
func inState(f *files, path, state string) bool {
	return slices.ContainsFunc(f.States(), func(s pipeline.InputState) bool { return s.Path == path && s.State == state })
}

func (s *spool) untilState(f *files, path, state string) {
	s.t.Helper()
	until(s.t, func() bool { return inState(f, path, state) }, func() string {
		return fmt.Sprintf("states %v, want %q", f.States(), state)
	})
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// The directory is made, the file is made in it, both go and come back.
func TestFileAppearsLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	path, globbed := filepath.Join(dir, "access.log"), filepath.Join(dir, "pods", "a", "0.log")
	s := newSpool(t)
	core, logs := observer.New(zapcore.DebugLevel)
	rt := testRuntime()
	rt.Logger = zap.New(core)
	f := newFiles(testConfig(path, filepath.Join(dir, "pods", "*", "*.log")), rt, nil)
	run(t, f, s)
	s.untilState(f, path, "missing")
	lines := number(0, 40000)
	mkdir(t, dir)
	write(t, path, text(lines[:10000]))
	s.want(lines[:10000])
	mkdir(t, filepath.Dir(globbed))
	write(t, globbed, text(lines[10000:20000]))
	s.want(lines[:20000])
	remove(t, dir)
	s.untilState(f, path, "missing")
	mkdir(t, dir)
	write(t, path, text(lines[20000:]))
	s.want(lines)
	if n := logs.FilterMessage("file is missing").Len(); n != 2 {
		t.Errorf("logged %d times that the file is missing, want one for each time it was", n)
	}
	s.untilState(f, filepath.Join(dir, "pods", "*", "*.log"), pipeline.StateUnmatched)
	if n := logs.FilterMessage("no file matches, looking on").Len(); n != 2 {
		t.Errorf("logged %d times that no file matches the glob, want one for each time it was so", n)
	}
}

// What is excluded is not read, nor what was rotated from it; it is as if it did not match.
func TestExcludedFileIsNotRead(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	lines := number(0, 30)
	write(t, filepath.Join(dir, "a.log"), text(lines[:10]))
	for _, name := range []string{"error.log", "error.log.1", "b-debug.log"} {
		write(t, filepath.Join(dir, name), "not to be read\n")
	}
	f := newFiles(testConfig(filepath.Join(dir, "*")), testRuntime(), nil)
	f.cfg.Exclude = []string{filepath.Join(dir, "error.log"), filepath.Join(dir, "*-debug.log")}
	run(t, f, s)
	s.want(lines[:10])
	write(t, filepath.Join(dir, "c-debug.log"), "not to be read\n")
	write(t, filepath.Join(dir, "c.log"), text(lines[10:20]))
	s.want(lines[:20])
	rename(t, filepath.Join(dir, "error.log"), filepath.Join(dir, "error.log.2"))
	write(t, filepath.Join(dir, "error.log"), "not to be read\n")
	appendTo(t, filepath.Join(dir, "a.log"), text(lines[20:]))
	s.want(lines)
	for _, state := range f.States() {
		if strings.Contains(state.Path, "error") || strings.Contains(state.Path, "debug") {
			t.Errorf("%+v is followed", state)
		}
	}
}

// A file is deleted while nothing of it was read, and its writer goes on.
func TestDeletedWhileUnread(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	s.block = make(chan struct{})
	lines := number(0, 20000)
	w := opened(t, path)
	defer w.Close()
	put(t, w, text(lines[:10000]))
	f, _ := start(t, s, path)
	s.untilState(f, path, "reading")
	remove(t, path)
	s.untilState(f, path, "missing")
	put(t, w, text(lines[10000:]))
	until(t, func() bool { return testutil.ToFloat64(f.meter.deleted) == 1 }, func() string { return "deleted_open_files is not 1" })
	close(s.block)
	s.want(lines)
	until(t, func() bool { return s.ended() == 1 && testutil.ToFloat64(f.meter.open) == 0 }, func() string { return "not let go" })
}

// The file system gives the inode of a deleted file to the next one; what was read of the first says nothing.
func TestInodeReuse(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	write(t, path, text(lines[:15000]))
	before, _ := os.Stat(path)
	_, stop := start(t, s, path)
	s.want(lines[:15000])
	stop()
	remove(t, path)
	for range 200 { // a new inode is kept by a name, so that the next one is another
		write(t, path, text(lines[15000:]))
		if info, _ := os.Stat(path); os.SameFile(info, before) {
			break
		}
		rename(t, path, filepath.Join(t.TempDir(), "other"))
	}
	if _, err := os.Stat(path); err != nil { // a file system that does not reuse: the rest holds as well
		write(t, path, text(lines[15000:]))
	}
	start(t, s, path)
	s.want(lines)
}

func TestSymlinkSwap(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	link := filepath.Join(dir, "current.log")
	lines := number(0, 30000)
	f, _ := start(t, s, link)
	for i := range 3 {
		target := filepath.Join(dir, fmt.Sprintf("log-%d", i))
		write(t, target, text(lines[i*10000:i*10000+5000]))
		if err := os.Symlink(target, link+".new"); err != nil {
			t.Fatal(err)
		}
		rename(t, link+".new", link)
		s.want(lines[:i*10000+5000])
		appendTo(t, target, text(lines[i*10000+5000:(i+1)*10000]))
		s.want(lines[:(i+1)*10000])
	}
	s.untilState(f, link, "idle")
}

func TestFileReplacedByDirectory(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	write(t, path, text(lines[:10000]))
	f, _ := start(t, s, path)
	s.want(lines[:10000])
	w := opened(t, path)
	defer w.Close()
	rename(t, path, path+".1")
	mkdir(t, path)
	s.untilState(f, path, "unreadable")
	put(t, w, text(lines[10000:20000]))
	s.want(lines[:20000])
	remove(t, path)
	write(t, path, text(lines[20000:]))
	s.want(lines)
}

// Two names of one inode, and globs that overlap, are one file.
func TestOneInodeIsReadOnce(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	path := filepath.Join(dir, "access.log")
	lines := number(0, 20000)
	write(t, path, text(lines[:10000]))
	if err := os.Link(path, filepath.Join(dir, "hard.log")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(dir, "soft.log")); err != nil {
		t.Fatal(err)
	}
	start(t, s, path, filepath.Join(dir, "*.log"), filepath.Join(dir, "*"))
	s.want(lines[:10000])
	appendTo(t, path, text(lines[10000:]))
	s.want(lines)
	if n := len(s.Streams("")); n != 1 {
		t.Errorf("%d streams, want 1", n)
	}
}

// A glob that matches the rotated files too reads each line once, and no copy again.
func TestGlobMatchesRotatedFiles(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 40000)
	start(t, s, path+"*")
	appendTo(t, path, text(lines[:10000]))
	s.want(lines[:10000])
	shift(t, path, 3)
	write(t, path, text(lines[10000:20000]))
	s.want(lines[:20000])
	copyFile(t, path, path+"-20260101")
	truncate(t, path)
	appendTo(t, path, text(lines[20000:30000]))
	s.want(lines[:30000])
	pack(t, "gzip", path+".1")
	shift(t, path, 1)
	write(t, path, text(lines[30000:]))
	s.want(lines)
}

// Two thousand files and one that has far more to say: the others do not wait for it.
func TestManyFiles(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	const count = 2000
	big := text(number(0, 200000))
	write(t, filepath.Join(dir, "a.log"), big)
	for i := range count {
		write(t, filepath.Join(dir, fmt.Sprintf("b%d.log", i)), fmt.Sprintf("b%d 1\nb%d 2\n", i, i))
	}
	cfg := testConfig(filepath.Join(dir, "*.log"))
	cfg.MaxFiles = count + 1
	f := newFiles(cfg, testRuntime(), nil)
	f.limits.turn = blockSize
	stop := run(t, f, s)
	until(t, func() bool { return s.count() >= 200000+2*count }, func() string { return fmt.Sprint(s.count()) })
	s.mu.Lock()
	place := len(s.order)
	s.mu.Unlock()
	if place != count+1 {
		t.Errorf("%d streams, want %d", place, count+1)
	}
	if got := s.lastIndex("b"); got > 195000 {
		t.Errorf("the last small file was read after %d lines: it waited for the big one", got)
	}
	stop()
	if n := testutil.ToFloat64(f.meter.open); n != 0 {
		t.Errorf("%v files are open after the end", n)
	}
}

func (s *spool) lastIndex(prefix string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.lines) - 1; i >= 0; i-- {
		if s.lines[i][:len(prefix)] == prefix {
			return i
		}
	}
	return -1
}

func TestMaxFiles(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	for i := range 4 {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.log", i)), fmt.Sprintf("%d\n", i))
	}
	cfg := testConfig(filepath.Join(dir, "*.log"))
	cfg.MaxFiles = 3
	f := newFiles(cfg, testRuntime(), nil)
	run(t, f, s)
	s.untilState(f, filepath.Join(dir, "3.log"), "unreadable")
	remove(t, filepath.Join(dir, "0.log"))
	until(t, func() bool { return s.count() == 4 }, func() string { return fmt.Sprint(f.States()) })
}

package source

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/pipeline"
)

func truncate(t *testing.T, path string) {
	t.Helper()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(data))
}

// copytruncate while the road is full: the unread lines are in the copy alone.
func TestTruncationWithCopy(t *testing.T) {
	for _, packed := range []bool{false, true} {
		t.Run(fmt.Sprintf("packed=%v", packed), func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			lines := number(0, 30000)
			appendTo(t, path, text(lines[:10000]))
			start(t, s, path)
			s.want(lines[:10000])
			hold := make(chan struct{})
			s.hold(hold)
			appendTo(t, path, text(lines[10000:20000]))
			copyFile(t, path, path+".1")
			if packed {
				pack(t, "gzip", path+".1")
			}
			truncate(t, path)
			appendTo(t, path, text(lines[20000:]))
			close(hold)
			s.want(lines)
			until(t, func() bool { return s.ended() == 1 }, func() string { return "the copy was not let go" })
			want := []pipeline.Skip{{At: int64(len(text(lines[:20000]))), Bytes: pipeline.Unknown, Reason: pipeline.SkipTruncated, Lost: true}}
			if got := s.skips(); !slices.Equal(got, want) { // its writer may have written between the copy and the truncation
				t.Errorf("skips %v, want %v", got, want)
			}
		})
	}
}

// What is written between the copy and the truncation is in no file any more. It is counted: in bytes as far as
// it was seen, else as a gap of unknown length, unless nobody had written for long.
func TestTruncationLosesWhatComesAfterTheCopy(t *testing.T) {
	lines := number(0, 30000)
	lost := int64(len(text(lines[10000:10500])))
	for kind, want := range map[string][]int64{"seen": {lost}, "unseen": {pipeline.Unknown}, "quiet": nil} {
		t.Run(kind, func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			f, now, looks := stepwise(t, s, path)
			appendTo(t, path, text(lines[:10000]))
			looks()
			copyFile(t, path, path+".1")
			switch kind {
			case "quiet":
				*now = now.Add(time.Hour)
			case "seen":
				appendTo(t, path, text(lines[10000:10500]))
				f.look(&hint{})
			case "unseen":
				appendTo(t, path, text(lines[10000:10500]))
			}
			truncate(t, path)
			appendTo(t, path, text(lines[10500:10600]))
			looks()
			s.want(append(slices.Clone(lines[:10000]), lines[10500:10600]...))
			var got []int64
			for _, skip := range s.skips() {
				if skip.Lost {
					got = append(got, skip.Bytes)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("lost runs of %v bytes, want %v", got, want)
			}
			if n := testutil.ToFloat64(f.meter.all.skips.WithLabelValues("test", pipeline.SkipTruncated)); n != float64(len(want)) {
				t.Errorf("counted %v", n)
			}
		})
	}
}

// copytruncate twice between two looks: what stood in the file in between is in a copy alone, and behind each copy
// something may be missing.
func TestTruncationTwiceBetweenLooks(t *testing.T) {
	for _, packed := range []bool{false, true} {
		t.Run(fmt.Sprintf("packed=%v", packed), func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			lines := number(0, 40000)
			f, now, looks := stepwise(t, s, path)
			appendTo(t, path, text(lines[:10000]))
			looks()
			appendTo(t, path, text(lines[10000:20000]))
			copyFile(t, path, path+".1")
			appendTo(t, path, "00000000 in no file any more\n")
			truncate(t, path)
			appendTo(t, path, text(lines[20000:30000]))
			rename(t, path+".1", path+".2")
			copyFile(t, path, path+".1")
			appendTo(t, path, "00000000 in no file any more\n")
			truncate(t, path)
			appendTo(t, path, text(lines[30000:]))
			if packed {
				pack(t, "gzip", path+".1")
			}
			looks()
			s.want(lines)
			*now = now.Add(f.cfg.Quiet)
			looks()
			s.wantGaps(2, pipeline.SkipTruncated)
		})
	}
}

// A copy gets its next name between the look that found it and the one that takes it up, and another stands under its
// name then.
func TestTruncationCopyIsRotatedOn(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 3000)
	f, _, looks := stepwise(t, s, path)
	appendTo(t, path, text(lines[:1000]))
	looks()
	copyFile(t, path, path+".2")
	truncate(t, path)
	appendTo(t, path, text(lines[1000:2000]))
	copyFile(t, path, path+".1")
	truncate(t, path)
	appendTo(t, path, text(lines[2000:]))
	f.look(&hint{})
	drain(t, f, newCutter())
	rename(t, path+".2", path+".3")
	rename(t, path+".1", path+".2")
	copyFile(t, path, path+".1")
	looks()
	s.want(lines)
	s.wantGaps(0, pipeline.SkipUnread)
}

// The file was truncated and then grew beyond where it was read to, between two looks.
func TestTruncationRegrown(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 50000)
	f := newFiles(testConfig(path), testRuntime(), nil)
	f.prepare(s, s.keep)
	c := newCutter()
	appendTo(t, path, text(lines[:10000]))
	f.look(&hint{})
	drain(t, f, c)
	truncate(t, path)
	appendTo(t, path, text(lines[10000:]))
	for range 6 {
		f.look(&hint{})
		drain(t, f, c)
	}
	s.want(lines)
	if skips := s.skips(); len(skips) != 1 || !skips[0].Lost || skips[0].Reason != pipeline.SkipTruncated {
		t.Errorf("skips %v, want one, lost", skips)
	}
	f.release()
}

// Truncated without a copy, again and again, and begun with the same line each time: every line of every
// life is read, and each life is a stream of its own.
func TestTruncationSameContent(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	var want []string
	f, _ := start(t, s, path)
	for life := range 4 {
		truncateOrCreate(t, path)
		until(t, func() bool { return f.emptyAt(path) }, func() string { return fmt.Sprint(f.States()) })
		appendTo(t, path, text(lines))
		want = append(want, lines...)
		s.want(want)
		if n := s.ended(); n > life {
			t.Errorf("%d streams ended in life %d", n, life)
		}
	}
	if got := len(s.Streams("")); got != 4 {
		t.Errorf("%d streams, want 4", got)
	}
}

func truncateOrCreate(t *testing.T, path string) {
	t.Helper()
	w, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
}

// emptyAt tells whether the look has seen that the file at path is empty.
func (f *files) emptyAt(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.paths[path]
	return p != nil && p.gen != nil && p.gen.size == 0 && p.gen.stream == nil && !p.gen.busy
}

// A writer that does not append leaves a hole of NULs when the file is truncated under it.
func TestTruncationLeavesHole(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 40000)
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	f, _ := start(t, s, path)
	put(t, w, text(lines[:20000]))
	s.want(lines[:20000])
	truncate(t, path)
	until(t, func() bool { return f.emptyAt(path) }, func() string { return fmt.Sprint(f.States()) })
	if _, err := w.Seek(1<<30, 0); err != nil { // as if it had written 1 GiB before
		t.Fatal(err)
	}
	put(t, w, text(lines[20000:]))
	s.want(lines)
	var nuls int64
	for _, skip := range s.skips() {
		if skip.Reason == pipeline.SkipNUL {
			nuls += skip.Bytes
		}
	}
	if nuls != 1<<30 {
		t.Errorf("%d NULs skipped, want %d", nuls, 1<<30)
	}
}

// A hole in the middle of a line ends it.
func TestHoleWithinLine(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	put(t, w, "first\nhalf a li")
	if _, err := w.Seek(3<<20, 0); err != nil {
		t.Fatal(err)
	}
	put(t, w, "after\nshort\x00run\n")
	start(t, s, path)
	s.want([]string{"first", "half a li", "after", "short\x00run"})
}

// pack compresses a file with the system's own tool, as logrotate does.
func pack(t *testing.T, tool, path string) {
	t.Helper()
	args := []string{path}
	if tool == "zstd" {
		args = []string{"-q", "--rm", path}
	}
	if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v %s", tool, filepath.Base(path), err, out)
	}
}

// Between two looks a file is copied and written over, and is as long as it was before.
func TestTruncatedAndGrownToTheSameSize(t *testing.T) {
	for name, followers := range map[string]int64{"read in turns": 0, "followed": 1} {
		t.Run(name, func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			var lines []string
			for i := range 600 {
				lines = append(lines, fmt.Sprintf("%08d of equal length", i))
			}
			write(t, path, text(lines[:200]))
			if err := os.Chtimes(path, time.Time{}, time.Now().Add(-time.Minute)); err != nil {
				t.Fatal(err)
			}
			f := newFiles(testConfig(path), testRuntime(), nil)
			f.limits.followers = followers
			run(t, f, s)
			s.want(lines[:200])
			until(t, func() bool { return f.followers.Load() == followers }, func() string { return "it is not followed" })
			until(t, func() bool { return testutil.ToFloat64(f.meter.lag) == 0 }, func() string { return "it was not looked at" })
			appendTo(t, path, text(lines[200:400]))
			copyFile(t, path, path+".1")
			truncate(t, path)
			appendTo(t, path, text(lines[400:]))
			s.want(lines)
		})
	}
}

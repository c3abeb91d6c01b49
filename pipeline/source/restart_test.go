package source

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// squall is stopped in the middle of a file, which is renamed, grows, and is renamed again.
func TestRestartInTheMiddle(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 40000)
	w := opened(t, path)
	defer w.Close()
	put(t, w, text(lines[:10000])+"00010000 half")
	_, stop := start(t, s, path)
	s.want(lines[:10000])
	stop()
	lines[10000] = "00010000 half and whole"
	put(t, w, " and whole\n"+text(lines[10001:20000]))
	_, stop = start(t, s, path)
	s.want(lines[:20000])
	stop()
	rename(t, path, path+".1")
	put(t, w, text(lines[20000:30000]))
	write(t, path, text(lines[30000:]))
	_, stop = start(t, s, path)
	s.want(lines)
	stop()
	if n := len(s.Streams("")); n != 2 {
		t.Errorf("%d streams, want 2", n)
	}
	_, stop = start(t, s, path)
	defer stop()
	appendTo(t, path, "90000000 after\n")
	s.want(append(lines, "90000000 after"))
}

// While squall is down the file is rotated several times, and what was rotated is packed.
func TestRestartAfterRotations(t *testing.T) {
	for _, tool := range []string{"", "gzip", "zstd", "bzip2"} {
		t.Run("packed by "+tool, func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			lines := number(0, 40000)
			write(t, path+".1", "00000000 history that was there before the first start\n")
			write(t, path, text(lines[:5000]))
			_, stop := start(t, s, path)
			s.want(lines[:5000])
			stop()
			appendTo(t, path, text(lines[5000:10000]))
			for i := 1; i < 4; i++ {
				shift(t, path, 8)
				write(t, path, text(lines[i*10000:(i+1)*10000]))
			}
			if tool != "" {
				for i := 2; i < 5; i++ {
					pack(t, tool, fmt.Sprintf("%s.%d", path, i))
				}
				write(t, path+".1.gz.tmp", "half a")
			}
			_, stop = start(t, s, path)
			s.want(lines)
			stop()
			_, stop = start(t, s, path) // and nothing twice
			appendTo(t, path, "90000000 after\n")
			s.want(append(lines, "90000000 after"))
			stop()
			for _, skip := range s.skips() {
				t.Errorf("skip %+v", skip)
			}
		})
	}
}

func TestRestartAfterCopytruncate(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	write(t, path, text(lines[:5000]))
	_, stop := start(t, s, path)
	s.want(lines[:5000])
	stop()
	appendTo(t, path, text(lines[5000:20000]))
	copyFile(t, path, path+"-20260101")
	truncate(t, path)
	appendTo(t, path, text(lines[20000:]))
	start(t, s, path)
	s.want(lines)
}

// Kubelet's names, and the newest of them packed.
func TestRestartAfterKubeletRotation(t *testing.T) {
	path, s := t.TempDir()+"/0.log", newSpool(t)
	lines := number(0, 30000)
	write(t, path, text(lines[:10000]))
	_, stop := start(t, s, path)
	s.want(lines[:10000])
	stop()
	appendTo(t, path, text(lines[10000:15000]))
	rename(t, path, path+".20260101-000000")
	write(t, path, text(lines[15000:20000]))
	rename(t, path, path+".20260101-001000")
	write(t, path, text(lines[20000:]))
	pack(t, "gzip", path+".20260101-000000")
	start(t, s, path)
	s.want(lines)
}

// What was being read is gone with all that could tell: that is told once, as lost.
func TestRestartVanished(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	write(t, path, text(lines[:10000]))
	_, stop := start(t, s, path)
	s.want(lines[:10000])
	stop()
	keep := opened(t, path) // so that its inode is not given again
	defer keep.Close()
	remove(t, path)
	write(t, path, text(lines[10000:]))
	start(t, s, path)
	s.want(lines)
	if skips := s.skips(); len(skips) != 1 || skips[0].Reason != pipeline.SkipVanished || !skips[0].Lost {
		t.Errorf("skips %v", skips)
	}
}

// A file that was truncated while squall was down, and begins as it did before.
func TestRestartTruncatedBegunAlike(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	write(t, path, text(lines))
	_, stop := start(t, s, path)
	s.want(lines)
	stop()
	truncate(t, path)
	appendTo(t, path, text(lines[:100]))
	_, stop = start(t, s, path)
	want := append(append([]string{}, lines...), lines[:100]...)
	s.want(want)
	stop()
	appendTo(t, path, text(lines[100:200]))
	start(t, s, path)
	s.want(append(want, lines[100:200]...))
	if skips := s.skips(); len(skips) != 1 || skips[0].Reason != pipeline.SkipTruncated {
		t.Errorf("skips %v", skips)
	}
}

// from: end leaves out what was there at the very first start, and nothing after it.
func TestFromEnd(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	write(t, path, text(lines[:10000])+"00010000 half")
	cfg := testConfig(path, path+".later")
	cfg.From = "end"
	stop := run(t, newFiles(cfg, testRuntime(), nil), s)
	until(t, func() bool { return len(s.Streams("")) == 1 }, func() string { return "no place was kept" })
	stop()
	lines[10000] = "00010000 half and whole"
	appendTo(t, path, " and whole\n"+text(lines[10001:15000]))
	run(t, newFiles(cfg, testRuntime(), nil), s)
	s.want(lines[10000:15000])
	write(t, path+".later", text(lines[15000:]))
	s.want(lines[10000:])
}

// A source with from: end gets another name: nothing is left out between the two.
func TestFromEndUnderAnotherName(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 3000)
	write(t, path, text(lines[:1000]))
	cfg := testConfig(path)
	cfg.From = "end"
	stop := run(t, newFiles(cfg, testRuntime(), nil), s)
	until(t, func() bool { return len(s.Streams("")) == 1 }, func() string { return "no place was kept" })
	appendTo(t, path, text(lines[1000:2000]))
	s.want(lines[1000:2000])
	stop()
	appendTo(t, path, text(lines[2000:2500]))
	cfg.Name = "another"
	run(t, newFiles(cfg, testRuntime(), nil), s)
	s.want(lines[1000:2500])
	appendTo(t, path, text(lines[2500:]))
	s.want(lines[1000:])
}

// The ID of a stream is the same however much of the file is there, and under whatever name.
func TestStreamIDIsStable(t *testing.T) {
	path := logPath(t)
	id := func() string {
		f := newFiles(testConfig(path), testRuntime(), nil)
		f.prepare(newSpool(t), nil)
		g, _, err := f.open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.release()
		if g.stream == nil {
			return ""
		}
		return g.stream.ID
	}
	for _, part := range []string{"", "#Version: 1.0\n#Fields: a b\n", "first li"} {
		appendTo(t, path, part)
		if got := id(); got != "" {
			t.Errorf("ID %s before the first line is whole", got)
		}
	}
	appendTo(t, path, "ne\n")
	want := id()
	for range 4 {
		appendTo(t, path, text(number(0, 1000)))
		if got := id(); got != want || got == "" {
			t.Errorf("ID %q, want %q", got, want)
		}
	}
	rename(t, path, path+".1")
	path += ".1"
	if got := id(); got != want {
		t.Errorf("ID %q after a rename, want %q", got, want)
	}
	before, _ := os.Stat(path)
	truncate(t, path)
	appendTo(t, path, "#Version: 1.0\n#Fields: a b\nanother line\n")
	if after, _ := os.Stat(path); !os.SameFile(before, after) || id() == want {
		t.Errorf("the same ID for other content on the same inode")
	}
}

// Run ends within a second while the road is full, and all its goroutines with it.
func TestStopWhileRoadIsFull(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	s.block = make(chan struct{})
	write(t, path, text(number(0, 50000)))
	f, stop := start(t, s, path)
	s.untilState(f, path, "reading")
	began := time.Now()
	stop()
	if took := time.Since(began); took > time.Second {
		t.Errorf("took %s", took)
	}
	if got := s.count(); got != 0 {
		t.Errorf("%d lines", got)
	}
}

// One log of several is gone with its unread end: that is told of it alone, and once. A second one was read to its end
// and has ended.
func TestRestartVanishedAmongOthers(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	glob := filepath.Join(dir, "*.log")
	lines := number(0, 5000)
	for i, name := range []string{"a.log", "b.log", "c.log"} {
		write(t, filepath.Join(dir, name), text(lines[i*1000:(i+1)*1000]))
	}
	_, stop := start(t, s, glob)
	s.wantSet(lines[:3000])
	remove(t, filepath.Join(dir, "c.log"))
	until(t, func() bool { return s.ended() == 1 }, func() string { return "c.log does not end" })
	stop()
	keep := opened(t, filepath.Join(dir, "b.log")) // so that its inode is not given again
	defer keep.Close()
	remove(t, filepath.Join(dir, "b.log"))
	write(t, filepath.Join(dir, "b.log"), text(lines[3000:4000]))
	for run := range 2 {
		appendTo(t, filepath.Join(dir, "a.log"), text(lines[4000+run*500:4500+run*500]))
		_, stop = start(t, s, glob)
		s.wantSet(lines[:4500+run*500])
		until(t, func() bool { return len(s.skips()) > 0 }, func() string { return "nothing is told to be missing" })
		stop()
		if skips := s.skips(); len(skips) != 1 || skips[0].Reason != pipeline.SkipVanished || !skips[0].Lost {
			t.Errorf("run %d: skips %v, want one, vanished", run, skips)
		}
	}
}

// A log that is only being written anew is no loss: its rotated file waits for it.
func TestRestartWhileTheLogIsMissing(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 3000)
	write(t, path, text(lines[:1000]))
	f, _, looks := stepwise(t, s, path)
	looks()
	f.release()
	var now *time.Time
	appendTo(t, path, text(lines[1000:2000]))
	rename(t, path, path+".1")
	f, now, looks = stepwise(t, s, path)
	looks()
	*now = now.Add(2 * vanishWait)
	looks()
	write(t, path, text(lines[2000:]))
	looks()
	f.wg.Wait()
	s.want(lines)
	if skips := s.skips(); len(skips) > 0 {
		t.Errorf("skips %v, want none", skips)
	}
}

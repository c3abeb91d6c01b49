package source

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/pipeline"
)

// shift rotates as logrotate does: access.log.1 becomes .2 and so on.
func shift(t *testing.T, path string, upTo int) {
	t.Helper()
	for n := upTo; n > 0; n-- {
		from := fmt.Sprintf("%s.%d", path, n)
		if _, err := os.Stat(from); err == nil {
			rename(t, from, fmt.Sprintf("%s.%d", path, n+1))
		}
	}
	rename(t, path, path+".1")
}

// A writer goes on for a while with the file that was renamed under it, as nginx does until it gets USR1.
func TestRotationWithSlowWriter(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	w := opened(t, path)
	start(t, s, path)
	written, each := 0, 250
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	var next *os.File
	for burst := 0; written < len(lines); burst++ {
		<-pace.C
		switch burst % 24 {
		case 20:
			shift(t, path, 8)
			next = opened(t, path)
		case 23:
			w.Close()
			w = next
		}
		n := min(each, len(lines)-written)
		put(t, w, text(lines[written:written+n]))
		written += n
	}
	defer w.Close()
	s.wantSet(lines)
	if n := len(s.skips()); n > 0 {
		t.Errorf("%d skips, want none", n)
	}
}

// While the road is full the file rotates three times; nobody looks away meanwhile.
func TestRotationWhileRoadIsFull(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	s.block = make(chan struct{})
	lines := number(0, 20000)
	write(t, path, text(lines[:5000]))
	f, _ := start(t, s, path)
	for i := 1; i < 4; i++ {
		until(t, func() bool { return len(f.States()) == i }, func() string { return fmt.Sprint(f.States()) })
		shift(t, path, 8)
		write(t, path, text(lines[i*5000:(i+1)*5000]))
	}
	close(s.block)
	s.want(lines)
}

// Two rotations happen between two looks: a whole file came and went unseen.
func TestRotationTwiceBetweenLooks(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	write(t, path, text(lines[:10000]))
	rt := testRuntime()
	rt.Poll = time.Hour
	f := newFiles(testConfig(path), rt, nil)
	hint := &hint{}
	f.prepare(s, s.keep)
	f.look(hint)
	shift(t, path, 8)
	write(t, path, text(lines[10000:20000]))
	shift(t, path, 8)
	write(t, path, text(lines[20000:]))
	c := newCutter()
	for range 8 {
		f.look(hint)
		drain(t, f, c)
	}
	s.want(lines)
	f.release()
}

// drain takes the turns that are due.
func drain(t *testing.T, f *files, c *cutter) {
	t.Helper()
	for len(f.ready)+len(f.archives) > 0 {
		var err error
		select {
		case g := <-f.ready:
			err = f.turn(t.Context(), g, c)
		case g := <-f.archives:
			err = f.readArchive(t.Context(), g, c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// stepwise gives files whose looks and turns are the test's to take, and whose clock stands still.
func stepwise(t *testing.T, s *spool, path string) (f *files, now *time.Time, looks func()) {
	t.Helper()
	at := time.Now()
	rt := testRuntime()
	rt.Now = func() time.Time { return at }
	f = newFiles(testConfig(path), rt, nil)
	f.prepare(s, s.keep)
	f.limits.followers = 0
	t.Cleanup(f.release)
	c := newCutter()
	return f, &at, func() {
		for range 8 {
			f.look(&hint{})
			drain(t, f, c)
		}
	}
}

// The file that came and went between two looks was packed at once.
func TestRotationTwiceBetweenLooksPacked(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	_, _, looks := stepwise(t, s, path)
	write(t, path, text(lines[:10000]))
	looks()
	shift(t, path, 8)
	write(t, path, text(lines[10000:20000]))
	shift(t, path, 8)
	pack(t, "gzip", path+".1")
	write(t, path, text(lines[20000:]))
	looks()
	s.want(lines)
}

// What was rotated is packed while it is being read: gzip takes its name away, not what we hold.
func TestRotatedFilePackedWhileRead(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	s.block = make(chan struct{})
	lines := number(0, 30000)
	write(t, path, text(lines[:20000]))
	f, _ := start(t, s, path+"*")
	s.untilState(f, path, "reading")
	shift(t, path, 8)
	pack(t, "gzip", path+".1")
	write(t, path, text(lines[20000:]))
	until(t, func() bool { return len(f.States()) == 2 }, func() string { return fmt.Sprint(f.States()) })
	close(s.block)
	s.want(lines)
}

// A file was seen while it was empty. Before the next look it is written, rotated and packed: what is held and the
// archive are one.
func TestFileSeenEmptyIsPackedBeforeNextLook(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	_, _, looks := stepwise(t, s, path)
	write(t, path, "")
	looks()
	appendTo(t, path, text(lines[:10000]))
	shift(t, path, 8)
	write(t, path, text(lines[10000:]))
	pack(t, "gzip", path+".1")
	looks()
	s.want(lines)
}

// An archive waits for its turn while rotation goes on: its name is another archive's by then.
func TestArchiveRotatedBeforeItIsRead(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 40000)
	f, _, looks := stepwise(t, s, path)
	write(t, path, text(lines[:10000]))
	looks()
	for i := 1; i < 3; i++ {
		shift(t, path, 8)
		write(t, path, text(lines[i*10000:(i+1)*10000]))
	}
	pack(t, "gzip", path+".1")
	f.look(&hint{})
	rename(t, path+".1.gz", path+".2.gz")
	shift(t, path, 0)
	write(t, path, text(lines[30000:]))
	pack(t, "gzip", path+".1")
	looks()
	s.want(lines)
}

// A file was read to its end and let go. Its last line is younger than all of the next file, which had little to
// say: when that one is rotated, the archive of the first looks as if it had come meanwhile.
func TestArchiveOfReadFileIsNotReadAgain(t *testing.T) {
	for _, how := range []string{"gzip", "copy", ""} {
		t.Run("kept by "+how, func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			lines := number(0, 30000)
			f, now, looks := stepwise(t, s, path)
			w := opened(t, path)
			defer w.Close()
			put(t, w, text(lines[:10000]))
			looks()
			shift(t, path, 8)
			write(t, path, text(lines[20000:20001]))
			early := time.Now().Add(-time.Hour)
			if err := os.Chtimes(path, early, early); err != nil {
				t.Fatal(err)
			}
			put(t, w, text(lines[10000:20000])) // its writer was late
			looks()
			*now = now.Add(time.Hour)
			looks()
			if n := s.ended(); n != 1 {
				t.Fatalf("%d files were let go, want 1: %v", n, f.States())
			}
			switch how {
			case "gzip":
				pack(t, how, path+".1")
				rename(t, path+".1.gz", path+".2.gz")
			case "copy":
				copyFile(t, path+".1", path+".2")
				remove(t, path+".1")
			}
			shift(t, path, 8)
			write(t, path, text(lines[20001:]))
			looks()
			s.wantSet(lines)
		})
	}
}

// Files that begin with the same line are not copies of each other.
func TestRotatedFilesBeginAlike(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	lines[10000], lines[20000] = lines[0], lines[0]
	_, _, looks := stepwise(t, s, path)
	write(t, path, text(lines[:10000]))
	looks()
	shift(t, path, 8)
	write(t, path, text(lines[10000:20000]))
	shift(t, path, 8)
	write(t, path, text(lines[20000:]))
	looks()
	s.want(lines)
}

// The clock of a file system stands still for milliseconds: a file that came and went within them is not older
// than what was last seen.
func TestRotationWithinOneTick(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	_, _, looks := stepwise(t, s, path)
	write(t, path, text(lines[:10000]))
	looks()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	shift(t, path, 8)
	write(t, path, text(lines[10000:20000]))
	shift(t, path, 8)
	if err := os.Chtimes(path+".1", info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	write(t, path, text(lines[20000:]))
	looks()
	s.want(lines)
}

// Between the listing of rotated files and the opening of one, it gets the next name, and then is packed.
func TestRotationGoesOnWhileLooking(t *testing.T) {
	path := logPath(t)
	f := newFiles(testConfig(path), testRuntime(), nil)
	write(t, path+".1", text(number(0, 1000)))
	listed := siblings(path)[0]
	hash, _ := siblingHash(listed, f.limits)
	rename(t, path+".1", path+".2")
	write(t, path+".1", text(number(1000, 2000)))
	at, file, err := f.locate(path, listed, hash)
	if err != nil || at.path != path+".2" || at.id != listed.id {
		t.Fatalf("found at %s, %v, want it at .2", at.path, err)
	}
	file.Close()
	pack(t, "gzip", path+".2")
	if at, file, err = f.locate(path, listed, hash); err != nil || at.path != path+".2.gz" {
		t.Fatalf("found at %s, %v, want it at .2.gz", at.path, err)
	}
	file.Close()
	remove(t, path+".2.gz")
	if _, _, err = f.locate(path, listed, hash); err == nil {
		t.Fatal("another file was taken for it")
	}
}

// /var/log/containers holds links; kubelet renames what they lead to and makes it anew a moment later.
func TestKubeletRotationThroughSymlink(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	pod := filepath.Join(dir, "pods", "shop_web-1_0")
	mkdir(t, pod)
	mkdir(t, filepath.Join(dir, "containers"))
	target, link := filepath.Join(pod, "0.log"), filepath.Join(dir, "containers", "web.log")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	lines := number(0, 40000)
	f, _ := start(t, s, filepath.Join(dir, "containers", "*.log"))
	for i := range 4 {
		if i > 0 {
			rename(t, target, fmt.Sprintf("%s.20260101-00000%d", target, i))
			s.untilState(f, link, "missing")
		}
		write(t, target, text(lines[i*10000:(i+1)*10000]))
		s.want(lines[:(i+1)*10000])
	}
}

// A file server forgot an open file: the path is opened anew and read on from where it was. Where another file is there,
// the end of the first may be lost.
func TestStaleHandle(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	f, _, looks := stepwise(t, s, path)
	write(t, path, text(lines[:10000]))
	looks()
	f.fail(f.paths[path].gen, fmt.Errorf("read: %w", unix.ESTALE))
	appendTo(t, path, text(lines[10000:]))
	looks()
	f.wg.Wait()
	s.want(lines)
	if skips := s.skips(); len(skips) > 0 {
		t.Errorf("skips %v, want none", skips)
	}
	f.fail(f.paths[path].gen, fmt.Errorf("read: %w", unix.ESTALE))
	keep := opened(t, path) // so that its inode is not given again
	defer keep.Close()
	remove(t, path)
	write(t, path, text(number(20000, 20100)))
	looks()
	f.wg.Wait()
	s.want(append(lines, number(20000, 20100)...))
	if skips := s.skips(); len(skips) != 1 || skips[0].Reason != pipeline.SkipVanished {
		t.Errorf("skips %v, want one: the file is gone", skips)
	}
}

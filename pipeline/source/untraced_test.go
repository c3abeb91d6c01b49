package source

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// wantGaps waits until so many gaps of a reason are told.
func (s *spool) wantGaps(n int, reason string) {
	s.t.Helper()
	count := func() (found int) {
		for _, skip := range s.skips() {
			if skip.Lost && skip.Reason == reason {
				found++
			}
		}
		return found
	}
	until(s.t, func() bool { return count() >= n }, func() string { return "no gap is told" })
	if got := count(); got != n {
		s.t.Errorf("%d gaps as %s, want %d", got, reason, n)
	}
}

// A file came, was rotated and was packed so badly that it cannot be read, all between two looks: it is a gap, not only
// an error.
func TestRotatedFileThatCannotBeOpened(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 300)
	write(t, path, text(lines[:100]))
	f, stop := start(t, s, path)
	defer stop()
	s.want(lines[:100])
	f.mu.Lock() // no look ends meanwhile
	rename(t, path, path+".2")
	write(t, path+".1.gz", "\x1f\x8b\x08 torn")
	write(t, path, text(lines[200:]))
	f.mu.Unlock()
	s.want(append(append([]string{}, lines[:100]...), lines[200:]...))
	s.wantGaps(1, pipeline.SkipUnread)
}

// The same while squall was away: the broken archive is newer than what was read last.
func TestRotatedFileThatCannotBeOpenedAfterARestart(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 300)
	write(t, path, text(lines[:100]))
	_, stop := start(t, s, path)
	s.want(lines[:100])
	stop()
	rename(t, path, path+".2")
	write(t, path+".1.gz", "\x1f\x8b\x08 torn")
	write(t, path, text(lines[200:]))
	_, stop = start(t, s, path)
	defer stop()
	s.want(append(append([]string{}, lines[:100]...), lines[200:]...))
	s.wantGaps(1, pipeline.SkipUnread)
}

// A squall that is starved first sees a log when it was rotated already: a new container writes much.
func TestRotatedBeforeItWasSeen(t *testing.T) {
	for name, restart := range map[string]bool{"first run": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			root, s := t.TempDir(), newSpool(t)
			glob := filepath.Join(root, "*", "access.log")
			lines := number(0, 3000)
			mkdir(t, filepath.Join(root, "a"))
			write(t, filepath.Join(root, "a", "access.log"), text(lines[:1000]))
			_, stop := start(t, s, glob)
			s.wantSet(lines[:1000])
			if restart {
				stop()
				_, stop = start(t, s, glob)
			}
			defer stop()
			appendTo(t, filepath.Join(root, "a", "access.log"), "00000999 it looks\n")
			s.wantSet(append([]string{"00000999 it looks"}, lines[:1000]...))
			aside := t.TempDir() // where no look sees it
			write(t, filepath.Join(aside, "access.log.1"), text(lines[1000:2000]))
			write(t, filepath.Join(aside, "access.log"), text(lines[2000:]))
			// Written in their place they would be newer than every look that did not see them. Here a look may end between
			// the writing and the renaming.
			later := time.Now().Add(time.Minute)
			for _, name := range []string{"access.log.1", "access.log"} {
				if err := os.Chtimes(filepath.Join(aside, name), later, later); err != nil {
					t.Fatal(err)
				}
			}
			rename(t, aside, filepath.Join(root, "b"))
			s.wantSet(append([]string{"00000999 it looks"}, lines...))
		})
	}
}

// A rotated file is packed while squall looks: between the listing and the opening its name goes.
func TestPackedBetweenListingAndOpening(t *testing.T) {
	path := logPath(t)
	f := newFiles(testConfig(path), testRuntime(), nil)
	s := newSpool(t)
	f.positions = s
	write(t, path+".1", text(number(0, 100)))
	listed := siblings(path)[0]
	data, err := os.ReadFile(path + ".1")
	if err != nil {
		t.Fatal(err)
	}
	remove(t, path+".1")
	if _, ok, err := f.unread(listed); ok || !isMissing(err) {
		t.Fatalf("unread: %v %v, want that it is missing", ok, err)
	}
	out, err := os.Create(path + ".1.gz")
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(out)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	// bzip2 and others keep whole seconds of the time.
	at := listed.mtime.Truncate(1e9)
	if err := os.Chtimes(path+".1.gz", at, at); err != nil {
		t.Fatal(err)
	}
	if g := f.missed(&followed{path: path}, &generation{}, nil, listed.mtime); g == nil || g.pack == nil {
		t.Fatal("the archive was not taken up")
	}
	f.release()
}

// A rotated file is rotated on while it is compared with what is held: it is looked for again, not taken for a copy.
func TestRotatedOnWhileCompared(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	f, _, looks := stepwise(t, s, path)
	write(t, path, "")
	looks() // an empty file is held: it may become a copy of anything
	if len(f.gens) != 1 {
		t.Fatalf("%d files are held", len(f.gens))
	}
	if held, err := f.copyOfHeld(sibling{path: path + ".1", size: 9}, 1); held || !isMissing(err) {
		t.Errorf("a file that is not there any more: a copy %v, error %v", held, err)
	}
	write(t, path+".1", "a line\n")
	listed := siblings(path)[0]
	rename(t, path+".1", path+".2")
	write(t, path, "a line\nof another\n")
	looks()
	copyFile(t, path, path+".1") // of what is held
	if hash, ok, err := f.unread(listed); ok || !isMissing(err) {
		t.Errorf("another has its name: hash %x, unread %v, error %v", hash, ok, err)
	}
	if reaches, err := f.reaches(sibling{rotatedName: rotatedName{packed: true}, path: listed.path, id: listed.id}, 18); reaches || !isMissing(err) {
		t.Errorf("another that took its name: is as long %v, error %v", reaches, err)
	}
}

// A log is rotated twice in the moment in which its file is opened: what is newer than that file does not come before it.
func TestRotatedAwayWhileItArrives(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 4000)
	f, _, looks := stepwise(t, s, path)
	write(t, path, text(lines[:1000]))
	looks()
	remove(t, path) // no trace of what came before
	write(t, path, text(lines[1000:2000]))
	p := f.paths[path]
	g, fresh, err := f.open(path)
	if err != nil || !fresh {
		t.Fatalf("fresh %v, error %v", fresh, err)
	}
	shift(t, path, 8)
	write(t, path, text(lines[2000:3000]))
	shift(t, path, 8)
	if !f.comeAfter(p, g) {
		t.Fatal("it has to wait")
	}
	f.lead(p, g)
	p.lastSeen = g.mtime
	write(t, path, text(lines[3000:]))
	looks()
	s.want(lines)
	if skips := s.skips(); len(skips) > 0 {
		t.Errorf("gaps %v, nothing is missing", skips)
	}
}

// The permission to look into a directory goes in the moment in which the file after a rotation is opened: what was
// rotated away is neither missed nor told to be missing.
func TestDirectoryDeniedWhileAFileArrives(t *testing.T) {
	if os.Getuid() == 0 { // whom no permission keeps out
		asNobody(t)
		return
	}
	path, s := logPath(t), newSpool(t)
	lines := number(0, 4000)
	f, _, looks := stepwise(t, s, path)
	write(t, path, text(lines[:1000]))
	looks()
	for _, part := range []int{1000, 2000, 3000} {
		shift(t, path, 8)
		write(t, path, text(lines[part:part+1000]))
	}
	g, _, err := f.open(path)
	if err != nil {
		t.Fatal(err)
	}
	permit := func(mode os.FileMode) {
		if err := os.Chmod(filepath.Dir(path), mode); err != nil {
			t.Fatal(err)
		}
	}
	permit(0)
	if f.comeAfter(f.paths[path], g) || f.holding(g.id) != nil {
		t.Error("a file is taken up though what comes before it cannot be looked for")
	}
	permit(0o755)
	looks()
	s.want(lines)
	if skips := s.skips(); len(skips) > 0 {
		t.Errorf("gaps %v, nothing is missing", skips)
	}
}

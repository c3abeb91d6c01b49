package spool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/pipeline"
)

// smallDisk mounts a file system of that many bytes, which needs root.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Fatalf("mount a small disk: %v: run this test as root, for example in a container with CAP_SYS_ADMIN", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// noise is one batch of lines that cannot be compressed.
func noise(random *rand.ChaCha8, from int64) *pipeline.Batch {
	b := &pipeline.Batch{Stream: batch("a", 0, 0).Stream, From: from, To: from + 1}
	for i := range 4 {
		line := make([]byte, 64<<10)
		_, _ = random.Read(line)
		b.Entries = append(b.Entries, pipeline.Entry{Time: eventStart + from*10 + int64(i), Line: line})
	}
	return b
}

// The oldest lines go, they are counted, and storing goes on.
func TestFullDiskDropsTheOldest(t *testing.T) {
	s := open(t, Config{Dir: smallDisk(t, 24<<20), MaxBytes: 1 << 30})
	random := rand.NewChaCha8([32]byte{3})
	const n = 140 // 35 MiB
	for i := range int64(n) {
		mustAppend(t, s, noise(random, i))
	}
	flush(t, s)
	checkKept(t, s, n)
}

// checkKept checks that the newest lines are there, without a gap, and all others counted.
func checkKept(t *testing.T, s *Spool, n int64) {
	t.Helper()
	if to, ok := s.Position("a"); !ok || to != n {
		t.Errorf("position %d %v, want %d", to, ok, n)
	}
	got := read(t, s, Range{})
	if len(got) == 0 || got[len(got)-1].To != n {
		t.Fatalf("%d batches are kept, and not the newest", len(got))
	}
	lines := 0
	for i, b := range got {
		lines += len(b.Entries)
		if i > 0 && b.From != got[i-1].To {
			t.Errorf("a gap from %d to %d", got[i-1].To, b.From)
		}
	}
	if dropped := int(testutil.ToFloat64(s.m.dropped.WithLabelValues("", dropDiskFull))); dropped+lines != int(n)*4 || dropped == 0 {
		t.Errorf("%d lines are kept and %d counted as dropped, of %d", lines, dropped, n*4)
	}
}

// Somebody else fills the disk to the last byte: the store fails in the middle of a write.
func TestDiskFilledByOthers(t *testing.T) {
	dir := smallDisk(t, 32<<20)
	s := open(t, Config{Dir: dir, MaxBytes: 1 << 30, MinFree: 1})
	random := rand.NewChaCha8([32]byte{4})
	at := int64(0)
	for ; at < 60; at++ {
		mustAppend(t, s, noise(random, at))
	}
	flush(t, s)
	fillUp(t, filepath.Join(dir, "hog"))
	for ; at < 90; at++ {
		mustAppend(t, s, noise(random, at))
	}
	flush(t, s)
	checkKept(t, s, at)
}

// With nothing left to remove the spool refuses, and comes back as soon as there is room.
func TestDiskWithoutAnyRoom(t *testing.T) {
	dir := smallDisk(t, 12<<20)
	s := open(t, Config{Dir: dir, MaxBytes: 1 << 30, QueueBytes: 1 << 20, MinFree: 1})
	hog := filepath.Join(dir, "hog")
	random := rand.NewChaCha8([32]byte{5})
	at, refused := int64(0), false
	for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit) && !refused; at++ {
		fillUp(t, hog)
		refused = errors.Is(s.Append(noise(random, at)), ErrStalled)
	}
	if !refused {
		t.Fatal("a spool on a disk without room did not refuse")
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	flush(t, s)
	mustAppend(t, s, noise(random, at))
	flush(t, s)
	if to, _ := s.Position("a"); to != at+1 {
		t.Errorf("position %d, want %d", to, at+1)
	}
}

// fillUp writes to the file at path until the disk takes no more.
func fillUp(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("fill the disk: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

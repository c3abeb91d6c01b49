package spool

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/squall-sre/squall/pipeline"
)

// stopped opens a directory for reading alone.
func stopped(t testing.TB, dir string) *Stopped {
	t.Helper()
	s, err := OpenStopped(dir, new(atomic.Int64))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readStopped gives all batches of a stopped spool, and the error that tells of damage.
func readStopped(t testing.TB, s *Stopped) ([]*pipeline.Batch, error) {
	t.Helper()
	var got []*pipeline.Batch
	err := s.Read(t.Context(), func(m *Stored) error {
		batches, err := m.Batches()
		for _, b := range batches {
			for i := range b.Entries {
				if at := b.Entries[i].Time; at < m.Oldest || at > m.Newest {
					t.Errorf("message %d is of [%d, %d] and has a line of %d", m.Sequence, m.Oldest, m.Newest, at)
				}
			}
		}
		got = append(got, batches...)
		return err
	})
	return got, err
}

// tree tells of all files below a directory what they hold and when they were written.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().IsRegular() {
			var text []byte
			text, err = os.ReadFile(path)
			all[path] = string(text)
		}
		all[path] += info.ModTime().String()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// blocksOf lists the message blocks of a spool.
func blocksOf(t testing.TB, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "store", "jetstream", "$G", "streams", streamLines, "msgs", "*.blk"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no message blocks: %v", err)
	}
	return found
}

// kept makes a spool of several blocks, whose first messages its limit has removed, and closes it.
func kept(t *testing.T) (dir string, want []*pipeline.Batch) {
	t.Helper()
	dir = t.TempDir()
	s := open(t, Config{Dir: dir, MaxBytes: 100_000})
	at := int64(0)
	for i := range 64 {
		b := batch("stream", at, 40)
		for k := range b.Entries { // what cannot be compressed fills blocks
			b.Entries[k].Line = fmt.Appendf(b.Entries[k].Line, " %x", scatter(i, k))
		}
		at = b.To
		mustAppend(t, s, b)
		if i%4 == 3 {
			flush(t, s)
		}
	}
	want = read(t, s, Range{})
	closeSpool(t, s)
	return dir, want
}

func scatter(i, k int) []byte {
	var b []byte
	x := uint64(i)<<20 ^ uint64(k)
	for range 6 {
		x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
		b = binary.BigEndian.AppendUint64(b, x^x>>31)
	}
	return b
}

// TestStoppedSpoolIsReadAsItIs: every line that the server gives, in its order, and not a byte is changed.
func TestStoppedSpoolIsReadAsItIs(t *testing.T) {
	dir, want := kept(t)
	before := tree(t, dir)
	s := stopped(t, dir)
	got, err := readStopped(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(blocksOf(t, dir)) < 2 || want[0].From == 0 {
		t.Errorf("%d blocks from offset %d: the spool has neither several nor lost its first lines", len(blocksOf(t, dir)), want[0].From)
	}
	for len(got) > 0 && got[0].From < want[0].From { // removed by the limit, and still there
		got = got[1:]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what is read differs from what the server gives (-want +got):\n%.2000s", diff)
	}
	if n := s.read.Load(); n != s.Size() {
		t.Errorf("%d of %d bytes were counted", n, s.Size())
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("reading changed the directory:\n%.2000s", diff)
	}
}

func TestStoppedSpoolInUseOrMissing(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenStopped(dir, new(atomic.Int64)); err == nil || !strings.Contains(err.Error(), "holds no spool") {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := OpenStopped(filepath.Join(dir, "none"), new(atomic.Int64)); err == nil {
		t.Error("a directory that is not there is opened")
	}
	s := open(t, Config{Dir: dir})
	mustAppend(t, s, batch("a", 0, 3))
	flush(t, s)
	want := fmt.Sprintf("in use by process %d", os.Getpid())
	if _, err := OpenStopped(dir, new(atomic.Int64)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a spool in use: %v", err)
	}
	closeSpool(t, s)
	reader := stopped(t, dir)
	again := open(t, Config{Dir: dir}) // whoever reads is in nobody's way
	if err := reader.Unused(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("used while it is read: %v", err)
	}
	closeSpool(t, again)
}

// TestStoppedSpoolDamaged: what is whole is read, and what is not is told.
func TestStoppedSpoolDamaged(t *testing.T) {
	dir, want := kept(t)
	blocks := blocksOf(t, dir)
	for name, row := range map[string]struct {
		block   int
		harm    func(b []byte) []byte
		message string
	}{
		"torn at the end":      {len(blocks) - 1, func(b []byte) []byte { return b[:len(b)-100] }, "ends within a message"},
		"torn in the middle":   {0, func(b []byte) []byte { return b[:len(b)-100] }, "is damaged from byte"},
		"a length overwritten": {0, func(b []byte) []byte { copy(b, "\xff\xff\xff\x7f"); return b }, "is damaged from byte 0 on"},
		"a line overwritten":   {0, func(b []byte) []byte { b[len(b)/2] ^= 0x20; return b }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			copied := filepath.Join(t.TempDir(), "copy")
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			path := strings.Replace(blocks[row.block], dir, copied, 1)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, row.harm(text), 0o600); err != nil {
				t.Fatal(err)
			}
			lines, broken := 0, 0
			err = stopped(t, copied).Read(t.Context(), func(m *Stored) error {
				batches, err := m.Batches()
				if err != nil {
					broken++
				}
				for _, b := range batches {
					lines += len(b.Entries)
				}
				return nil
			})
			if row.message != "" && (err == nil || !strings.Contains(err.Error(), row.message)) {
				t.Errorf("it tells %v", err)
			}
			if row.message == "" && broken != 1 {
				t.Errorf("%d messages are broken, not one: %v", broken, err)
			}
			if all := 40 * len(want); lines == 0 || lines < all/4 {
				t.Errorf("%d of %d lines were read", lines, all)
			}
		})
	}
}

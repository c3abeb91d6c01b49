package spool

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// filled makes a closed spool with lines of two streams and gives its directory and the end of one stream.
func filled(t *testing.T) (dir string, end int64) {
	t.Helper()
	dir = t.TempDir()
	s := open(t, Config{Dir: dir})
	for i := 0; i < 20; i++ {
		b := batch("a", end, 100)
		end = b.To
		mustAppend(t, s, b)
		if i%5 == 0 {
			flush(t, s)
		}
	}
	flush(t, s)
	closeSpool(t, s)
	return dir, end
}

// damage changes every file under dir whose path contains part.
func damage(t *testing.T, dir, part string, change func([]byte) []byte) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, part) {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || len(data) == 0 {
			return err
		}
		n++
		return os.WriteFile(path, change(data), 0o600)
	})
	if err != nil || n == 0 {
		t.Fatalf("damage %s: %d files, %v", part, n, err)
	}
}

func garbage(data []byte) []byte {
	for i := range data {
		data[i] = byte(i * 7)
	}
	return data
}

func half(data []byte) []byte { return data[:len(data)/2] }

// Whatever is broken, the spool opens, stores, and is never ahead of what it has.
func TestDamagedStoreOpens(t *testing.T) {
	lines := filepath.Join("streams", streamLines)
	for name, c := range map[string]struct {
		part   string
		change func([]byte) []byte
	}{
		"lines garbage":     {filepath.Join(lines, "msgs"), garbage},
		"lines torn":        {filepath.Join(lines, "msgs"), half},
		"lines empty":       {filepath.Join(lines, "msgs"), func([]byte) []byte { return nil }},
		"block torn":        {".blk", half},
		"index garbage":     {"index.db", garbage},
		"meta garbage":      {"meta.inf", garbage},
		"lines' meta gone":  {filepath.Join(lines, "meta"), func([]byte) []byte { return nil }},
		"positions garbage": {filepath.Join("streams", streamPositions), garbage},
		"everything":        {"store", garbage},
	} {
		t.Run(name, func(t *testing.T) {
			dir, end := filled(t)
			damage(t, dir, c.part, c.change)
			s := open(t, Config{Dir: dir})
			got := read(t, s, Range{})
			kept := int64(0)
			if len(got) > 0 {
				kept = got[len(got)-1].To
			}
			at, _ := s.Position("a")
			if at > kept {
				t.Errorf("the position is %d and the lines end at %d", at, kept)
			}
			if at > end {
				t.Errorf("the position %d is beyond the end %d", at, end)
			}
			b := batch("a", at, 10)
			mustAppend(t, s, b)
			flush(t, s)
			if to, _ := s.Position("a"); to != b.To {
				t.Errorf("after storing again: position %d, want %d", to, b.To)
			}
			aside, err := filepath.Glob(filepath.Join(dir, "store.corrupt-*"))
			if err != nil {
				t.Fatal(err)
			}
			if n := int(testutil.ToFloat64(s.m.corrupt)); n != len(aside) {
				t.Errorf("%d stores counted as corrupt, %d moved aside", n, len(aside))
			}
		})
	}
}

func TestOldCorruptStoresAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for range 4 {
		store := filepath.Join(dir, "store")
		if err := os.Mkdir(store, 0o750); err != nil {
			t.Fatal(err)
		}
		if _, err := moveAside(store); err != nil {
			t.Fatal(err)
		}
	}
	got, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(got) != 2 || filepath.Base(got[1]) != "store.corrupt-4" {
		t.Errorf("left: %q %v", got, err)
	}
}

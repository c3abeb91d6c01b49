package source

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// Files that wait for a descriptor and are deleted before they get one are a loss that is known.
func TestDeletedBeforeItCouldBeOpened(t *testing.T) {
	for name, limit := range map[string]func(f *files){
		"max_files": func(f *files) { f.cfg.MaxFiles = 3 },
		"the process's limit": func(f *files) {
			f.rt.Descriptors = &Descriptors{most: 3}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, s := t.TempDir(), newSpool(t)
			for i := range 5 {
				write(t, filepath.Join(dir, fmt.Sprintf("%d.log", i)), fmt.Sprintf("line %d\n", i))
			}
			f, now, looks := stepwise(t, s, filepath.Join(dir, "*.log"))
			limit(f)
			looks()
			if n := len(f.gens); s.count() != 3 || n != 3 {
				t.Fatalf("%d lines of %d files, want 3 of 3", s.count(), n)
			}
			remove(t, filepath.Join(dir, "3.log"))
			looks()
			looks()
			remove(t, filepath.Join(dir, "0.log"))
			looks()
			*now = now.Add(f.cfg.Quiet)
			looks() // and 4.log has its place
			f.wg.Wait()
			if n := s.count(); n != 4 {
				t.Errorf("%d lines, want 4", n)
			}
			skips := s.skips()
			if len(skips) != 1 || skips[0] != (pipeline.Skip{Bytes: 7, Reason: pipeline.SkipVanished, Lost: true}) {
				t.Errorf("skips %v, want one of 7 bytes, vanished", skips)
			}
			if d := f.rt.Descriptors; d != nil && d.used.Load() != int64(len(f.gens)) {
				t.Errorf("%d descriptors are taken for %d files", d.used.Load(), len(f.gens))
			}
		})
	}
}

// A file that could not be opened and is rotated is read when there is room for it.
func TestRotatedBeforeItCouldBeOpened(t *testing.T) {
	t.Run("as it is", func(t *testing.T) { rotatedUnopened(t, func(string) {}) })
	t.Run("packed", func(t *testing.T) { rotatedUnopened(t, func(path string) { pack(t, "gzip", path) }) })
}

func rotatedUnopened(t *testing.T, then func(path string)) {
	dir, s := t.TempDir(), newSpool(t)
	first, path := filepath.Join(dir, "a.log"), filepath.Join(dir, "b.log")
	write(t, first, "line 1\n")
	write(t, path, "line 2\n")
	f, now, looks := stepwise(t, s, filepath.Join(dir, "*.log"))
	f.cfg.MaxFiles = 1
	looks()
	rename(t, path, path+".1")
	then(path + ".1")
	looks()
	remove(t, first)
	looks()
	*now = now.Add(f.cfg.Quiet)
	f.cfg.MaxFiles = 3
	write(t, path, "line 3\n")
	looks()
	f.wg.Wait()
	if got := strings.Join(s.all(), ","); got != "line 1,line 2,line 3" || len(s.skips()) > 0 {
		t.Errorf("lines %s, skips %v", got, s.skips())
	}
}

// However little a process may open, a part of it is left to what pages and ships.
func TestDescriptorsLeaveAReserve(t *testing.T) {
	for limit, most := range map[uint64]int{1: 1, 64: 16, 1024: 768, 65536: 65280, 1 << 63: 1<<30 - 256} {
		if got := NewDescriptors(limit).Most(); got != most {
			t.Errorf("of %d: %d files, want %d", limit, got, most)
		}
	}
	dir, s := t.TempDir(), newSpool(t)
	rt := testRuntime()
	rt.Descriptors = &Descriptors{most: 4}
	for i := range 8 {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.log", i)), fmt.Sprintf("line %d\n", i))
	}
	f := newFiles(testConfig(filepath.Join(dir, "*.log")), rt, nil)
	before := openDescriptors(t)
	stop := run(t, f, s)
	until(t, func() bool { return s.count() == 4 && len(f.States()) == 8 }, func() string { return fmt.Sprint(f.States()) })
	if n := openDescriptors(t) - before; n > 4+8 { // and the kernel's events, and names being looked at
		t.Errorf("%d descriptors are open, 4 files are allowed", n)
	}
	stop()
	if n := rt.Descriptors.used.Load(); n != 0 {
		t.Errorf("%d descriptors are taken at the end", n)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

package source

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/squall-sre/squall/pipeline"
)

// Archives are known by their first bytes: here all have lost their endings.
func TestOpenByContent(t *testing.T) {
	lines := number(0, 20000)
	for tool, suffix := range map[string]string{"": "", "gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2"} {
		t.Run("packed by "+tool, func(t *testing.T) {
			path := logPath(t)
			write(t, path, text(lines))
			if tool != "" {
				pack(t, tool, path)
				rename(t, path+suffix, path)
			}
			first, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			appendTo(t, path, string(first)) // a second member
			r, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			s := newSpool(t)
			if err := ReadAll(t.Context(), &pipeline.Stream{ID: path}, r, s.keep); err != nil {
				t.Fatal(err)
			}
			s.want(append(slices.Clone(lines), lines...))
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil {
		t.Error("a directory was opened")
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	path := filepath.Join(dir, "bad.gz")
	write(t, path, "\x1f\x8bnothing")
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not name the file", err)
	}
}

func gzipped(t *testing.T, data []byte) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A bomb is left at the limit, at once and with little memory: the rest is unread and told to be.
func TestBomb(t *testing.T) {
	path := logPath(t)
	write(t, path, gzipped(t, make([]byte, 16<<20)))
	l := limits{archive: 1 << 20, ratio: 10}
	r, err := openLimited(path, l)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n, err := io.Copy(io.Discard, r)
	if !errors.Is(err, ErrTooBig) || n > 2<<20 {
		t.Errorf("read %d bytes, error %v", n, err)
	}
}

// While squall was down a file was rotated and packed, and the archive is damaged or a bomb. What follows is
// read all the same.
func TestRestartWithDamagedArchive(t *testing.T) {
	for _, kind := range []string{"damaged", "bomb"} {
		t.Run(kind, func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			lines := number(0, 40000)
			write(t, path, text(lines[:5000]))
			_, stop := start(t, s, path)
			s.want(lines[:5000])
			stop()
			remove(t, path)
			packed := gzipped(t, []byte(text(lines[:20000])))
			want := slices.Clone(lines[:5000])
			if kind == "damaged" {
				packed = packed[:len(packed)/2]
			} else {
				packed = gzipped(t, append([]byte(text(lines[:20000])), make([]byte, 16<<20)...))
				want = slices.Clone(lines[:20000])
			}
			write(t, path+".1.gz", packed)
			write(t, path, text(lines[20000:]))
			f := newFiles(testConfig(path), testRuntime(), nil)
			f.limits.archive, f.limits.ratio = 4<<20, 1
			stop = run(t, f, s)
			defer stop()
			until(t, func() bool { return slices.Contains(s.all(), lines[39999]) }, func() string { return "not read on" })
			if kind == "bomb" {
				s.want(append(want, lines[20000:]...))
			}
			got := s.all()
			if !slices.Equal(got[len(got)-20000:], lines[20000:]) {
				t.Error("what follows the archive is not as it was written")
			}
			var lost []string
			for _, skip := range s.skips() {
				if skip.Lost {
					lost = append(lost, skip.Reason)
				}
			}
			if !cmp.Equal(lost, []string{pipeline.SkipUnread}) {
				t.Errorf("lost %v", lost)
			}
		})
	}
}

func TestExpand(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b/2.log", "b/1.log", "a.log", "b/.hidden", "b/3.log.tmp", "c/d/e.gz", ".git/x"} {
		mkdir(t, filepath.Dir(filepath.Join(dir, name)))
		write(t, filepath.Join(dir, name), "x\n")
	}
	got, err := Expand([]string{filepath.Join(dir, "b", "*2.log"), "-", dir, filepath.Join(dir, "[ac]*")})
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i] = strings.TrimPrefix(got[i], dir+"/")
	}
	if want := []string{"b/2.log", "-", "a.log", "b/1.log", "c/d/e.gz"}; !cmp.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, none := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "*.none"), "[", filepath.Join(dir, "a.log", "x")} {
		if got, err := Expand([]string{none}); err == nil {
			t.Errorf("%s gives %v, want an error", none, got)
		}
	}
}

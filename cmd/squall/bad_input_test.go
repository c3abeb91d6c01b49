package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
)

// combined are n lines of nginx, a second apart, with the given zone.
func combined(at time.Time, n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "203.0.113.%d - - [%s] \"GET /a/%d HTTP/1.1\" 200 612 \"-\" \"curl/8.5.0\"\n",
			i%250, at.Add(time.Duration(i)*time.Second).Format("02/Jan/2006:15:04:05 -0700"), i)
	}
	return b.Bytes()
}

var monday = time.Date(2026, 3, 23, 12, 0, 0, 0, time.UTC)

// TestBadInput: whatever lies between good lines, the good ones count, the bad ones are told, and nobody falls.
func TestBadInput(t *testing.T) {
	good, more := combined(monday, 100), combined(monday.Add(100*time.Second), 100)
	future := bytes.Replace(combined(monday.Add(100*time.Second), 1), []byte("2026"), []byte("2096"), 1)
	noise := make([]byte, 200<<10)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for name, c := range map[string]struct {
		between []byte
		parsed  int // of what is between
		failed  int // at least
		gaps    int
	}{
		"a line of 10 MB":      {append(bytes.Repeat([]byte("x"), 10<<20), '\n'), 0, 1, 0},
		"a path of 10 MB":      {bytes.Replace(combined(monday, 1), []byte("/a/0"), append([]byte("/"), bytes.Repeat([]byte("a"), 10<<20)...), 1), 0, 1, 0},
		"a hole of NULs":       {bytes.Repeat([]byte{0}, 100_000), 0, 0, 0},
		"NULs in a line":       {bytes.Replace(combined(monday.Add(99*time.Second), 1), []byte("/a/0"), []byte("/a\x00b"), 1), 1, 0, 0},
		"invalid UTF-8":        {bytes.Replace(combined(monday.Add(99*time.Second), 1), []byte("/a/0"), []byte("/\xff\xfe\xc3\x28"), 1), 1, 0, 0},
		"a time in the future": {future, 1, 0, 0},
		"noise":                {append(noise, '\n'), 0, 1, 0},
		"empty lines":          {[]byte("\n\n\r\n"), 0, 1, 0},
		"another tongue":       {[]byte("level=info msg=\"hello world\" user=7\n"), 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			path := placeLog(t, t.TempDir(), "x.log", bytes.Join([][]byte{good, c.between, more}, nil))
			v := replayed(t, path)
			failed := 0
			for _, n := range v.summary.Failed {
				failed += int(n)
			}
			if int(v.summary.Parsed) != 200+c.parsed || failed < c.failed || v.summary.Late != 0 || len(v.summary.Gaps) != c.gaps {
				t.Errorf("replay: %+v", v.summary)
			}
			out, told, err := execute(t.Context(), nil, "parse", path)
			if err != nil || strings.Count(out, "\n") != 200+c.parsed || strings.Count(told, "\n") != failed {
				t.Errorf("parse: %v, %d records, %d failures told, %d counted", err, strings.Count(out, "\n"), strings.Count(told, "\n"), failed)
			}
			for line := range strings.Lines(told) {
				if len(line) > 2000 || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }) {
					t.Errorf("told on a terminal: %q", line)
				}
			}
		})
	}
}

// TestUnreadableFiles: a file that cannot be read fails the command after all others were read.
func TestUnreadableFiles(t *testing.T) {
	good := placeLog(t, t.TempDir(), "good.log", combined(monday, 100))
	packed := gzipped(t, bytes.Repeat(combined(monday, 2000), 3))
	bomb := packedBomb(t)
	for name, c := range map[string]struct {
		data []byte
		says string
		gaps int
	}{
		"half.gz":    {packed[:len(packed)/2], "unexpected EOF", 1},
		"damaged.gz": {append([]byte{0x1f, 0x8b}, bytes.Repeat([]byte("?"), 300)...), "invalid header", 0},
		"bomb.gz":    {bomb, "unpacks to too much", 1},
	} {
		if testing.Short() && name == "bomb.gz" {
			continue
		}
		path := placeLog(t, t.TempDir(), name, c.data)
		out, _, err := execute(t.Context(), nil, "replay", "--json", "-", path, good)
		if err == nil || exitCode(err) != exitFailed || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if gaps := strings.Count(out, `"reason":"unreadable"`); gaps != c.gaps || !strings.Contains(out, `{"summary":{"lines":`) {
			t.Errorf("%s: %d gaps: %s", name, gaps, out)
		}
		if strings.Contains(out, `"lines":0,`) {
			t.Errorf("%s: the good file was not read: %s", name, out)
		}
		out, _, err = execute(t.Context(), nil, "parse", path, good)
		if exitCode(err) != exitFailed || strings.Count(out, `"path":"/a/99"`) == 0 {
			t.Errorf("parse %s: %v", name, err)
		}
	}
}

// packedBomb unpacks to 1.2 GiB: members of one archive follow each other.
func packedBomb(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(bytes.Repeat([]byte("0"), 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.Repeat(b.Bytes(), 20)
}

// TestNothingToRead: an empty file is no failure and says nothing.
func TestNothingToRead(t *testing.T) {
	path := placeLog(t, t.TempDir(), "empty.log", nil)
	v := replayed(t, path)
	if v.summary.Lines != 0 || v.summary.First != nil || len(v.alerts) > 0 {
		t.Errorf("%+v", v.summary)
	}
	if out, told, err := execute(t.Context(), nil, "parse", path); err != nil || out+told != "" {
		t.Errorf("%v %q %q", err, out, told)
	}
}

// TestZonesAndSummerTime: files of several zones, and one whose zone changes in the night, are one line of time.
func TestZonesAndSummerTime(t *testing.T) {
	rome, err := time.LoadLocation("Europe/Rome")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []time.Time{
		time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC),  // 02:00 becomes 03:00
		time.Date(2026, 10, 25, 1, 0, 0, 0, time.UTC), // 03:00 becomes 02:00 again
	} {
		from := change.Add(-10 * time.Minute)
		dir := t.TempDir()
		paths := []string{
			placeLog(t, dir, "rome.log", combined(from.In(rome), 1200)),
			placeLog(t, dir, "nepal.log", combined(from.In(time.FixedZone("", 20700)), 1200)),
			placeLog(t, dir, "utc.log", combined(from, 1200)),
		}
		v := replayed(t, paths...)
		last := from.Add(1199 * time.Second).Format("2006-01-02T15:04:05Z")
		if v.summary.Parsed != 3600 || v.summary.Late != 0 || *v.summary.Last != last {
			t.Errorf("%+v, last %s", v.summary, *v.summary.Last)
		}
	}
}

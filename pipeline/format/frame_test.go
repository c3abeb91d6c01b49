package format

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

func mustFramer(t *testing.T, name string) pipeline.Framer {
	t.Helper()
	f, err := NewFramer(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFramerKeepsStreamsApart(t *testing.T) {
	f := mustFramer(t, "cri")
	steps := []struct {
		physical string
		line     string
		start    int64
	}{
		{"2026-03-28T23:26:24.1Z stdout P out-", "", 0},
		{"2026-03-28T23:26:24.2Z stderr P err-", "", 100},
		{"2026-03-28T23:26:24.3Z stdout F 1", "out-1", 0},
		{"2026-03-28T23:26:24.4Z stderr F 2", "err-2", 100},
		{"2026-03-28T23:26:24.5Z stdout F whole", "whole", 400},
	}
	for i, s := range steps {
		line, start, at, reason := f.Next([]byte(s.physical), int64(i*100))
		if string(line) != s.line || reason != "" || line != nil && (start != s.start || at == 0) {
			t.Errorf("%s: %q from %d at %d, %q", s.physical, line, start, at, reason)
		}
		if offset, waiting := f.Pending(); i == 2 && (!waiting || offset != 100) {
			t.Errorf("pending %d %v", offset, waiting)
		}
	}
	if _, waiting := f.Pending(); waiting {
		t.Error("something still waits")
	}
}

func TestFramerBoundsAnEndlessLine(t *testing.T) {
	f := mustFramer(t, "cri")
	part := []byte("2026-03-28T23:26:24.1Z stdout P " + strings.Repeat("x", 16<<10))
	for i := range 100 {
		if line, _, _, reason := f.Next(part, int64(i)); line != nil || reason != "" {
			t.Fatal("a part ended the line")
		}
	}
	line, start, _, _ := f.Next([]byte("2026-03-28T23:26:24.1Z stdout F end"), 100)
	if len(line) != pipeline.MaxLine || start != 0 {
		t.Errorf("%d bytes from %d", len(line), start)
	}
	if line, _, _, _ := f.Next([]byte("2026-03-28T23:26:24.1Z stdout F next"), 101); string(line) != "next" {
		t.Errorf("the next line is %.20q", line)
	}
}

func TestFlushGivesWhatWaitsInOrder(t *testing.T) {
	f := mustFramer(t, "container")
	f.Next([]byte(`{"log":"b","stream":"stderr","time":"2026-03-28T23:26:24Z"}`), 10)
	f.Next([]byte(`{"log":"c","stream":"stdout","time":"2026-03-28T23:26:24Z"}`), 20)
	var got []string
	for {
		line, start, _, ok := f.Flush()
		if !ok {
			break
		}
		got = append(got, fmt.Sprintf("%s@%d", line, start))
	}
	if strings.Join(got, " ") != "b@10 c@20" {
		t.Errorf("%v", got)
	}
}

func TestFramerSkipsHoles(t *testing.T) {
	for name, line := range map[string]string{
		"cri":    "2026-03-28T23:26:24.1Z stdout F x",
		"docker": `{"log":"x\n","stream":"stdout","time":"2026-03-28T23:26:24Z"}`,
	} {
		f := mustFramer(t, name)
		physical := append(bytes.Repeat([]byte{0}, 4096), line...)
		if got, _, _, reason := f.Next(physical, 0); string(got) != "x" {
			t.Errorf("%s: %q %q", name, got, reason)
		}
	}
}

func TestUnknownFraming(t *testing.T) {
	if _, err := NewFramer("podman"); err == nil {
		t.Error("podman was accepted")
	}
}

package format

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

var update = flag.Bool("update", false, "write the .golden files")

// TestGoldens reads testdata/formats/KIND/*.log with the format KIND (which may name a framing) and compares
// what is printed. A .log_format file beside a log is its log_format. Every kind has at least one.
func TestGoldens(t *testing.T) {
	seen := map[string]bool{}
	logs, err := filepath.Glob("testdata/formats/*/*.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range logs {
		name := filepath.Base(filepath.Dir(path))
		seen[name] = true
		t.Run(strings.TrimPrefix(path, "testdata/formats/"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			logFormat, _ := os.ReadFile(strings.TrimSuffix(path, ".log") + ".log_format")
			got := golden(t, Config{Name: name, LogFormat: string(logFormat), Year: 2026}, data)
			twin := strings.TrimSuffix(path, ".log") + ".golden"
			if *update {
				if err := os.WriteFile(twin, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(twin)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
	for _, name := range Names() {
		if !seen[name] {
			t.Errorf("format %s has no testdata/formats/%s/*.log", name, name)
		}
	}
}

// golden prints a log line by line: objects, or what became of the line.
func golden(t *testing.T, cfg Config, data []byte) []byte {
	framing, name := SplitFraming(cfg.Name)
	cfg.Name = name
	framer, err := NewFramer(framing)
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var item pipeline.Item
	offset := int64(0)
	for i, physical := range bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
		line, start, _, reason := framer.Next(physical, offset)
		switch {
		case reason != "":
			fmt.Fprintf(&out, "line %d: frame: %s\n", i+1, reason)
		case line == nil:
			fmt.Fprintf(&out, "line %d: part\n", i+1)
		default:
			for ; line != nil; line = item.Rest {
				item.Reset()
				f.Parse(line, &item)
				switch item.Kind {
				case pipeline.Failed:
					fmt.Fprintf(&out, "line %d: %s at %d\n", i+1, item.Reason, item.Column)
				case pipeline.Ignored:
					fmt.Fprintf(&out, "line %d: ignored\n", i+1)
				default:
					if start != offset {
						fmt.Fprintf(&out, "line %d: begins at %d\n", i+1, start)
					}
					out.Write(AppendJSON(nil, &item))
				}
			}
		}
		offset += int64(len(physical) + 1)
	}
	for {
		line, start, _, ok := framer.Flush()
		if !ok {
			return out.Bytes()
		}
		fmt.Fprintf(&out, "flushed from %d: %q\n", start, line)
	}
}

package format

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// corpusEntry is a line of testdata/corpus/formats.jsonl.
type corpusEntry struct {
	ID        string          `json:"id"`
	Format    string          `json:"format"`
	Line      string          `json:"line"`
	LineB64   string          `json:"line_b64"`
	LogFormat string          `json:"log_format"`
	Expect    json.RawMessage `json:"expect"`
	Why       string          `json:"why"`
}

func corpus(t testing.TB) []corpusEntry {
	t.Helper()
	file, err := os.Open("testdata/corpus/formats.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var entries []corpusEntry
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e corpusEntry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	if lines.Err() != nil || len(entries) == 0 {
		t.Fatalf("%d entries, %v", len(entries), lines.Err())
	}
	return entries
}

func (e *corpusEntry) bytes(t testing.TB) []byte {
	if e.LineB64 == "" {
		return []byte(e.Line)
	}
	b, err := base64.StdEncoding.DecodeString(e.LineB64)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parseAll reads data as a file of a format: physical lines through the framer, logical ones through the
// format. It gives the printed objects and the reasons of what failed.
func parseAll(t testing.TB, cfg Config, data []byte) (printed []string, failed []pipeline.Reason) {
	t.Helper()
	framing, name := SplitFraming(cfg.Name)
	unfinished := strings.HasPrefix(cfg.Name, "file+")
	cfg.Name = name
	framer, err := NewFramer(framing)
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var item pipeline.Item
	take := func(line []byte) {
		for ; line != nil; line = item.Rest {
			item.Reset()
			f.Parse(line, &item)
			if item.Kind == pipeline.Failed {
				failed = append(failed, item.Reason)
			}
			for _, object := range bytes.Split(bytes.TrimSuffix(AppendJSON(nil, &item), []byte("\n")), []byte("\n")) {
				if len(object) > 0 {
					printed = append(printed, string(object))
				}
			}
		}
	}
	offset := int64(0)
	for rest := data; ; {
		line, after, more := bytes.Cut(rest, []byte("\n"))
		if !more && unfinished {
			break // a tail waits for the line end
		}
		logical, _, _, reason := framer.Next(line, offset)
		switch {
		case reason != "":
			failed = append(failed, reason)
		case logical != nil:
			take(logical)
		}
		if !more {
			break
		}
		offset += int64(len(line) + 1)
		rest = after
	}
	for {
		if _, _, _, ok := framer.Flush(); !ok {
			return printed, failed
		}
		failed = append(failed, pipeline.ReasonPartial)
	}
}

// supported tells whether the table has the format of a corpus entry.
func supported(name string) bool {
	_, inner := SplitFraming(name)
	_, ok := kinds[inner]
	return ok || inner == autoName || inner == mixedName
}

func TestCorpus(t *testing.T) {
	for _, e := range corpus(t) {
		if !supported(e.Format) {
			continue
		}
		t.Run(e.ID, func(t *testing.T) {
			log := e.LogFormat
			if strings.HasPrefix(log, "(") {
				log = ""
			}
			checkCorpus(t, &e, Config{Name: e.Format, LogFormat: log})
		})
	}
}

// TestCorpusAuto reads what auto can know without help: everything but lines of a custom log_format.
func TestCorpusAuto(t *testing.T) {
	for _, e := range corpus(t) {
		if !supported(e.Format) || e.LogFormat != "" {
			continue
		}
		t.Run(e.ID, func(t *testing.T) {
			framing, _ := SplitFraming(e.Format)
			name := "auto"
			if framing != "" {
				name = framing + "+auto"
			} else if strings.HasPrefix(e.Format, "file+") {
				name = "file+auto"
			}
			checkCorpus(t, &e, Config{Name: name})
		})
	}
}

// TestCorpusWithoutLogFormat reads the extended lines by the layouts that squall knows.
func TestCorpusWithoutLogFormat(t *testing.T) {
	for _, e := range corpus(t) {
		if e.Format == "nginx_extended" {
			t.Run(e.ID, func(t *testing.T) {
				checkCorpus(t, &e, Config{Name: "nginx_extended"})
				checkCorpus(t, &e, Config{Name: "nginx"})
				checkCorpus(t, &e, Config{Name: "auto"})
			})
		}
	}
}

func checkCorpus(t *testing.T, e *corpusEntry, cfg Config) {
	t.Helper()
	printed, failed := parseAll(t, cfg, e.bytes(t))
	var want any
	if err := json.Unmarshal(e.Expect, &want); err != nil {
		t.Fatal(err)
	}
	if object, ok := want.(map[string]any); ok {
		if code, isError := object["error"]; isError {
			// auto may know what a line is that the entry's own format has to refuse.
			understood := strings.HasSuffix(cfg.Name, autoName) && code == "not_access_log"
			if len(printed) > 0 || len(failed) == 0 && !understood {
				t.Fatalf("%s: want an error (%v), got %v and %v", cfg.Name, code, printed, failed)
			}
			if cfg.Name == e.Format && string(failed[0]) != code {
				t.Errorf("%s: want reason %v, got %v", cfg.Name, code, failed)
			}
			return
		}
		want = []any{want}
	}
	list := want.([]any)
	if len(printed) != len(list) {
		t.Fatalf("%s: want %d objects, got %v (failed %v)\n%s\n%s", cfg.Name, len(list), printed, failed, e.Why, e.bytes(t))
	}
	for i, w := range list {
		var got map[string]any
		if err := json.Unmarshal([]byte(printed[i]), &got); err != nil {
			t.Fatalf("%s: %v", printed[i], err)
		}
		for key, value := range w.(map[string]any) {
			if !same(value, got[key]) && !(key == "time" && sameInstant(value, got[key])) {
				t.Errorf("%s: %s is %s, want %s (%s)\n%s", cfg.Name, key, show(got[key]), show(value), e.Why, printed[i])
			}
		}
	}
}

// same compares as the corpus asks: "" and null are equal, malformed false is no malformed.
func same(want, got any) bool {
	empty := func(v any) bool { return v == nil || v == "" || v == false }
	if _, isBool := want.(bool); isBool && got != nil {
		return want == got
	}
	if want == nil || want == "" {
		return empty(got)
	}
	return reflect.DeepEqual(want, got)
}

// sameInstant compares times: the corpus writes some with the zeros at the end that their lines have.
func sameInstant(want, got any) bool {
	a, aText := want.(string)
	b, bText := got.(string)
	t, err := time.Parse(time.RFC3339Nano, a)
	u, err2 := time.Parse(time.RFC3339Nano, b)
	return aText && bText && err == nil && err2 == nil && t.Equal(u)
}

func show(v any) string { return fmt.Sprintf("%T(%v)", v, v) }

package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline/format"
)

// corpusLine is an entry of the formats' corpus: a line of a kind of log, and what it says.
type corpusLine struct {
	ID        string `json:"id"`
	Format    string `json:"format"`
	Line      string `json:"line"`
	LineB64   string `json:"line_b64"`
	LogFormat string `json:"log_format"`
	Expect    any    `json:"expect"`
}

func corpusLines(t *testing.T) []corpusLine {
	t.Helper()
	file, err := os.Open("../../pipeline/format/testdata/corpus/formats.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() // it was only read
	var all []corpusLine
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e corpusLine
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.LineB64 != "" {
			line, err := base64.StdEncoding.DecodeString(e.LineB64)
			if err != nil {
				t.Fatal(err)
			}
			e.Line = string(line)
		}
		all = append(all, e)
	}
	if lines.Err() != nil || len(all) == 0 {
		t.Fatalf("%d entries, %v", len(all), lines.Err())
	}
	return all
}

// TestParseTheCorpus reads every entry whose format exists with `squall parse --format`, framing and all.
func TestParseTheCorpus(t *testing.T) {
	names, read := format.Names(), map[string]bool{}
	for _, e := range corpusLines(t) {
		asked := strings.TrimPrefix(e.Format, "file+") // how a file ends is no format
		if _, inner := format.SplitFraming(asked); inner != "" && inner != "mixed" && inner != "auto" && !slices.Contains(names, inner) {
			continue
		}
		read[asked] = true
		t.Run(e.ID, func(t *testing.T) {
			if asked == e.Format {
				e.Line += "\n"
			}
			path := placeLog(t, t.TempDir(), "x.log", []byte(e.Line))
			args := []string{"parse", "--format", asked}
			if e.LogFormat != "" && !strings.HasPrefix(e.LogFormat, "(") {
				args = append(args, "--log-format", e.LogFormat)
			}
			out, told, err := execute(t.Context(), nil, append(args, path)...)
			if err != nil {
				t.Fatalf("%v: %s", err, told)
			}
			checkParsed(t, &e, out, told)
		})
	}
	for _, name := range []string{"nginx_combined", "nginx_extended", "ingress_nginx", "alb", "cri+nginx_combined", "docker+nginx_combined"} {
		if !read[name] {
			t.Errorf("nothing of %s was read", name)
		}
	}
}

// checkParsed compares standard output with what the corpus expects; a refusal is told on standard error.
func checkParsed(t *testing.T, e *corpusLine, out, told string) {
	t.Helper()
	want, ok := e.Expect.([]any)
	if !ok {
		object := e.Expect.(map[string]any)
		if reason, refused := object["error"].(string); refused {
			if out != "" || !strings.Contains(told, ": "+reason+": ") {
				t.Errorf("want it refused as %s, got %q and %q", reason, out, told)
			}
			return
		}
		want = []any{object}
	}
	got := bytes.Split(bytes.TrimSuffix([]byte(out), []byte("\n")), []byte("\n"))
	if len(want) == 0 && out == "" {
		return
	}
	if len(got) != len(want) {
		t.Fatalf("want %d objects, got\n%s%s\nof %q", len(want), out, told, e.Line)
	}
	for i, w := range want {
		var object map[string]any
		if err := json.Unmarshal(got[i], &object); err != nil {
			t.Fatalf("%v: %s", err, got[i])
		}
		for key, value := range w.(map[string]any) {
			if !alike(value, object[key]) {
				t.Errorf("%s is %v, want %v, of %q", key, object[key], value, e.Line)
			}
		}
	}
}

// alike compares as the corpus asks: null, "" and absent are one, and an absent flag is false.
func alike(want, got any) bool {
	nothing := func(v any) bool { return v == nil || v == "" || v == false }
	return reflect.DeepEqual(want, got) || nothing(want) && nothing(got) && (got == nil || reflect.TypeOf(want) != reflect.TypeOf(false))
}

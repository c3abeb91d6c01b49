package format

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// hostileLines are lines that somebody made to hurt.
func hostileLines(size int) map[string][]byte {
	repeat := func(s string) string { return strings.Repeat(s, size/len(s)) }
	head := `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /`
	return map[string][]byte{
		"NUL":          bytes.Repeat([]byte{0}, size),
		"quotes":       []byte(repeat(`"`)),
		"backslashes":  []byte(head + repeat(`\`) + `" 200 1 "-" "-"`),
		"escapes":      []byte(head + repeat(`\x22`) + ` HTTP/1.1" 200 1 "-" "-"`),
		"hidden quote": []byte(head + repeat(`\"`) + ` HTTP/1.1" 200 1 "-" "-"`),
		"spaces":       []byte(repeat(" ")),
		"pairs":        []byte(head + ` HTTP/1.1" 200 1 "-" "-"` + repeat(" a=1")),
		"tries":        []byte(head + ` HTTP/1.1" 200 1 "-" "-" 1 0.1 [a] [] ` + strings.Repeat("a, ", size/10) + "a " + strings.Repeat("0, ", size/10) + "0 " + strings.Repeat("9.000, ", size/10) + "9.000 " + strings.Repeat("502, ", size/10) + "502"),
		"deep arrays":  []byte(`{"a":` + repeat("[")),
		"deep objects": []byte(repeat(`{"a":`)),
		"long string":  []byte(`{"kind":"Event","reason":"` + repeat("x") + `"}`),
		"klog pairs":   []byte(kubeletLineText + repeat(` a="b"`)),
		"php":          []byte(`WARNING: [pool www] child 1, script '` + repeat(`' (request: "`) + `") execution timed out (1.0 sec), terminating`),
		"bad utf-8":    append([]byte(head), bytes.Repeat([]byte{0xff, 0xc3}, size/2)...),
		"tabs":         []byte(repeat("a\t")),
		"alb":          []byte("https 2026-03-29T00:59:59.186641Z a 1.2.3.4:1 - 1 1 1 200 200 1 1 " + repeat(`"a" `)),
	}
}

// TestHostileLines bounds what such a line costs: memory in proportion to the line, and nothing large kept.
func TestHostileLines(t *testing.T) {
	sizes := map[string]int{"auto": 10 << 20} // auto tries them all
	for _, name := range Names() {
		for what, line := range hostileLines(max(sizes[name], 1<<20)) {
			f, err := New(Config{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			item := &pipeline.Item{}
			item.Reset()
			f.Parse(line, item)
			runtime.ReadMemStats(&after)
			if item.Kind == pipeline.Failed && item.Reason == "" {
				t.Errorf("%s of %s: failed without a reason", name, what)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 12*uint64(len(line)) {
				t.Errorf("%s of %s: %d MB taken for %d MB", name, what, grown>>20, len(line)>>20)
			}
			if len(item.Record.UpstreamTimes) > maxTries || len(item.Record.UpstreamStatuses) > maxTries {
				t.Errorf("%s of %s: %d tries listed", name, what, len(item.Record.UpstreamTimes))
			}
			for _, e := range item.Events {
				if n := len(e.Message) + len(e.Script) + len(e.Request) + len(e.Pod) + len(e.Container); n > 5*(maxText+4) {
					t.Errorf("%s of %s: an event of %d bytes", name, what, n)
				}
			}
		}
	}
}

// TestEscapedOutput shows that nothing of a line reaches a terminal as a control or a bidi override.
func TestEscapedOutput(t *testing.T) {
	f, err := New(Config{Name: "nginx_combined"})
	if err != nil {
		t.Fatal(err)
	}
	item := parse(f, `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /\x1B[2J\xE2\x80\xAE\xFF\x7F\xC2\x9B HTTP/1.1" 200 1 "-" "`+"\xff\xe2\x80\xa8"+`"`)
	out := AppendJSON(nil, item)
	if item.Kind != pipeline.IsRecord || !bytes.Contains(out, []byte(`"path":"/\u001b[2J\u202e`+"\ufffd"+`\u007f\u009b"`)) {
		t.Errorf("%s", out)
	}
	for _, r := range string(bytes.TrimSuffix(out, []byte("\n"))) {
		if r < 0x20 || r == 0x7f || hidden(r) {
			t.Errorf("%U was printed raw", r)
		}
	}
}

// TestItemsOutliveTheFormat shows that what one item holds is not changed by the next line of the same format:
// a block's items live together.
func TestItemsOutliveTheFormat(t *testing.T) {
	f, err := New(Config{Name: "nginx_combined"})
	if err != nil {
		t.Fatal(err)
	}
	line := func(c string) string {
		return `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /\x22` + c + ` HTTP/1.1" 200 1 "-" "\x22` + c + `"`
	}
	var items []*pipeline.Item
	for _, c := range []string{"a", "b", "c"} {
		items = append(items, parse(f, line(c)))
	}
	for i, c := range []string{"a", "b", "c"} {
		if r := &items[i].Record; string(r.Path) != `/"`+c || string(r.UserAgent) != `"`+c {
			t.Errorf("item %d is now %s %s", i, r.Path, r.UserAgent)
		}
	}
}

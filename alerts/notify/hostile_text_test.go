package notify

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// hostile is what a client can put into a log line.
const hostile = "\x1b[2J\x1b]0;x\x07\r\nFIRING [page] Forged {}\u202e\u2028\u200b\x00\x7f\x9b\xff</script><!channel>*_`~[a](http://evil) \",\"status\":\"resolved"

// outputs are all that an alert can leave by; each gives the bytes that left.
var outputs = map[string]func(t *testing.T, a alerts.Alert) []byte{
	"stdout text": func(t *testing.T, a alerts.Alert) []byte { return written(t, "text", a) },
	"stdout json": func(t *testing.T, a alerts.Alert) []byte { return written(t, "json", a) },
	"webhook": func(t *testing.T, a alerts.Alert) []byte {
		return posted(t, "{type: webhook, url: 'URL'}", a)
	},
	"alertmanager": func(t *testing.T, a alerts.Alert) []byte {
		return posted(t, "{type: alertmanager, urls: ['URL']}", a)
	},
}

func written(t *testing.T, format string, a alerts.Alert) []byte {
	t.Helper()
	var out bytes.Buffer
	peer := build(t, "{type: stdout, format: "+format+"}", Runtime{Stdout: &out})[0]
	if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{a}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func posted(t *testing.T, config string, a alerts.Alert) []byte {
	t.Helper()
	var body bytes.Buffer
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = body.ReadFrom(r.Body) }))
	defer server.Close()
	peer := build(t, strings.Replace(config, "URL", server.URL, 1), Runtime{})[0]
	if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{a}); err != nil {
		t.Fatal(err)
	}
	return body.Bytes()
}

// Whatever a log line held, in no output is there a character that changes how the rest is shown, a line that was not
// ours, a broken document, a label that is text of a log at length, or more than a bounded size.
func TestHostileTextInEveryOutput(t *testing.T) {
	long := hostile + strings.Repeat("𝕏", 2000)
	a := page("StormHurting")
	a.Labels = detectors.Labels{{Name: "site", Value: long}, {Name: "x\n\x1b", Value: hostile}}
	a.Cause = alerts.Cause{Verdict: alerts.Proven, Text: hostile, Missing: []string{hostile}}
	a.Advice = []alerts.Advice{{Layer: "edge", Text: hostile, Snippet: hostile, Verify: hostile}}
	a.Evidence.Route, a.Evidence.Samples = long, []string{hostile}
	a.Evidence.TopAgents = []detectors.Count{{Key: hostile, Count: 1}}
	a.Annotations = map[string]string{"summary": hostile, "evidence": hostile, "y\x1b\n": hostile}
	for _, kind := range Kinds() {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(outputs)), func(name string) bool { return name == kind || strings.HasPrefix(name, kind+" ") }) {
			t.Errorf("the notifier %s has no row in outputs", kind)
		}
	}
	for name, output := range outputs {
		out := output(t, a)
		if len(out) > 64<<10 {
			t.Errorf("%s: %d bytes", name, len(out))
		}
		if !utf8.Valid(out) {
			t.Errorf("%s: not UTF-8", name)
		}
		for _, r := range string(out) {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%s: %U is in it", name, r)
				break
			}
		}
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "FIRING [page] Forged") {
				t.Errorf("%s: a line was forged: %s", name, line)
			}
		}
		if name == "stdout text" {
			continue
		}
		if n := bytes.Count(out, []byte("\n")); n > 1 {
			t.Errorf("%s: %d lines", name, n)
		}
		var doc any
		if err := json.Unmarshal(out, &doc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name != "stdout json" {
			for label, value := range labelsIn(doc) {
				if len(value) > 2*maxLabel || strings.ContainsFunc(label+value, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%s: label %q is %q", name, label, value)
				}
			}
		}
	}
}

// labelsIn gives the labels of the only alert of a message.
func labelsIn(doc any) map[string]string {
	if m, ok := doc.(map[string]any); ok {
		doc = m["alerts"]
	}
	list, _ := doc.([]any)
	alert, _ := list[0].(map[string]any)
	set, _ := alert["labels"].(map[string]any)
	out := map[string]string{}
	for k, v := range set {
		out[k], _ = v.(string)
	}
	return out
}

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline/format"
)

// TestTraceTheCorpus holds that a field with a plain value is traced to a piece of the line that shows this value.
func TestTraceTheCorpus(t *testing.T) {
	plain := map[string]int{"client_ip": 0, "status": 0, "method": 0, "proto": 0, "user_agent": 0}
	for _, e := range corpusLines(t) {
		framing, name := format.SplitFraming(e.Format)
		settings := formatSettings{LogFormat: e.LogFormat}
		if strings.HasPrefix(e.LogFormat, "(") {
			settings = formatSettings{}
		}
		f, err := formatChoice{name: name, settings: settings}.open(time.UTC)
		if framing != "" || err != nil || strings.Contains(e.Line, "\n") {
			continue // those have lines of their own in TestParseTheCorpus
		}
		was, _ := tracer{format: f}.parse([]byte(e.Line))
		spans := tracer{format: f}.fields([]byte(e.Line))
		for field := range plain {
			var value any
			if json.Unmarshal(was[field], &value) != nil || value == nil {
				continue
			}
			text := strings.Trim(string(was[field]), `"`)
			from, to := strings.Index(e.Line, text), 0
			if from < 0 || text == "" {
				continue // spelled otherwise: escaped, or an address in another form
			}
			var pieces []string
			for _, s := range spans[field] {
				pieces = append(pieces, e.Line[s.From:s.To])
				to = max(to, s.To)
			}
			shown := strings.Join(pieces, " ")
			first := strings.FieldsFunc(text, func(r rune) bool { return !('0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') })
			if len(first) == 0 {
				continue
			}
			plain[field]++
			if !strings.Contains(shown, first[0]) {
				t.Errorf("%s: %s is %q, traced to %q", e.ID, field, text, pieces)
			}
		}
	}
	for field, n := range plain {
		if n < 40 {
			t.Errorf("%s was traced in %d lines", field, n)
		}
	}
}

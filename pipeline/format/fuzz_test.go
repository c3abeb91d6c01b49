package format

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/squall-sre/squall/pipeline"
)

// checkItem holds what every Item must be, whatever the line was.
func checkItem(t *testing.T, name string, line []byte, item *pipeline.Item) {
	t.Helper()
	if n := len(item.Rest); item.Rest != nil && (n == 0 || n >= len(line) || !bytes.HasSuffix(bytes.TrimRight(line, "\r\n"), item.Rest)) {
		t.Fatalf("%s: %q left of %q", name, item.Rest, line)
	}
	switch item.Kind {
	case pipeline.Failed:
		if !slices.Contains(pipeline.Reasons, item.Reason) {
			t.Fatalf("%s: reason %q is not in the list, for %q", name, item.Reason, line)
		}
		if item.Column < 0 || item.Column > len(line) {
			t.Fatalf("%s: column %d of %d", name, item.Column, len(line))
		}
	case pipeline.IsRecord:
		checkRecord(t, name, line, &item.Record)
	case pipeline.IsEvents:
		if len(item.Events) == 0 {
			t.Fatalf("%s: no events in %q", name, line)
		}
		for _, e := range item.Events {
			if e.Kind == "" || len(e.Message) > maxText+utf8.UTFMax || !utf8.ValidString(e.Message) {
				t.Fatalf("%s: event %+v", name, e)
			}
		}
	}
	for _, object := range bytes.Split(bytes.TrimSuffix(AppendJSON(nil, item), []byte("\n")), []byte("\n")) {
		if len(object) > 0 && (!json.Valid(object) || !utf8.Valid(object)) {
			t.Fatalf("%s: printed %q", name, object)
		}
	}
}

func checkRecord(t *testing.T, name string, line []byte, r *pipeline.Record) {
	t.Helper()
	switch {
	case r.Start > r.End:
		t.Fatalf("%s: start %d behind end %d in %q", name, r.Start, r.End, line)
	case r.Status != 0 && (r.Status < 100 || r.Status > 999):
		t.Fatalf("%s: status %d", name, r.Status)
	case r.Bytes < pipeline.Unknown, r.RequestTime < pipeline.Unknown, r.UpstreamTime < pipeline.Unknown:
		t.Fatalf("%s: negative in %+v", name, r)
	case r.Malformed && r.Method != nil && r.Path != nil:
		t.Fatalf("%s: malformed with a request: %q", name, line)
	case r.Time != 0 && r.Resolution <= 0:
		t.Fatalf("%s: resolution %d", name, r.Resolution)
	}
}

func FuzzFormats(f *testing.F) {
	for _, e := range corpus(f) {
		f.Add(e.bytes(f))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range Names() {
			format, err := New(Config{Name: name, Zone: time.UTC, Year: 2026})
			if err != nil {
				t.Fatal(err)
			}
			var item pipeline.Item
			for line := range bytes.SplitSeq(data, []byte("\n")) {
				kept := bytes.Clone(line)
				for rest := line; rest != nil; rest = item.Rest {
					item.Reset()
					format.Parse(rest, &item)
					checkItem(t, name, rest, &item)
				}
				if !bytes.Equal(kept, line) {
					t.Fatalf("%s wrote into its line", name)
				}
			}
		}
	})
}

func FuzzFramer(f *testing.F) {
	for _, e := range corpus(f) {
		if framing, _ := SplitFraming(e.Format); framing != "" {
			f.Add(e.bytes(f))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for name := range framers {
			framer, err := NewFramer(name)
			if err != nil {
				t.Fatal(err)
			}
			offset := int64(0)
			for physical := range bytes.SplitSeq(data, []byte("\n")) {
				line, start, _, reason := framer.Next(physical, offset)
				if start < 0 || start > offset || line != nil && reason != "" || reason != "" && !slices.Contains(pipeline.Reasons, reason) {
					t.Fatalf("%s: %q from %d at %d, %q", name, line, start, offset, reason)
				}
				if at, waiting := framer.Pending(); waiting && (at < 0 || at > offset) {
					t.Fatalf("%s: pending %d at %d", name, at, offset)
				}
				offset += int64(len(physical) + 1)
			}
			for flushed := 0; ; flushed++ {
				line, _, _, ok := framer.Flush()
				if !ok {
					break
				}
				if flushed > 2 || len(line) > pipeline.MaxLine {
					t.Fatalf("%s: flush %d of %d bytes", name, flushed, len(line))
				}
			}
		}
	})
}

func FuzzLogFormat(f *testing.F) {
	for _, e := range corpus(f) {
		if e.LogFormat != "" {
			f.Add(e.LogFormat, e.bytes(f))
		}
	}
	f.Add(`log_format x escape=none '$remote_addr$host$request_uri' "$is_args$args";`, []byte("203.0.113.7shop.example/a?b"))
	f.Add(`${status}`, []byte("200"))
	f.Fuzz(func(t *testing.T, logFormat string, line []byte) {
		format, err := New(Config{Name: "nginx", LogFormat: logFormat})
		if logFormat == "" || err != nil {
			return
		}
		var item pipeline.Item
		item.Reset()
		format.Parse(line, &item)
		checkItem(t, logFormat, line, &item)
	})
}

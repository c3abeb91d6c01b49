package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
)

const (
	// maxTraced bounds, in bytes, what of a line is traced: every byte costs a parse or two.
	maxTraced = 8 << 10
	// maxJoint is how many bytes of punctuation may lie within one piece of a line.
	maxJoint = 3
)

// A span is the piece of a line, [From, To) in bytes, that a field was read from.
type span struct{ From, To int }

// traceFields finds out which bytes of a line each field of its Record was read from: a byte belongs to the fields
// that change when it is exchanged for another of its kind (a digit, a letter). It asks the format itself and so
// needs nothing of how the format is written. The fields are named as `squall parse` names them.
func traceFields(f pipeline.Format, line []byte) map[string][]span {
	was := parsedFields(f, line)
	if was == nil {
		return nil
	}
	spans := map[string][]span{}
	changed := bytes.Clone(line)
	for i := range min(len(line), maxTraced) {
		for _, other := range othersOf(line[i]) {
			changed[i] = other
			is := parsedFields(f, changed)
			if is == nil {
				continue // without this byte it is no such line
			}
			for _, key := range touched(was, is) {
				spans[key] = extend(spans[key], line, i)
			}
		}
		changed[i] = line[i]
	}
	return spans
}

// othersOf gives what a byte is exchanged for: two digits, of which one at least keeps a month, an hour or a class of
// status what it may be; a letter. Punctuation is what holds a line together and stays.
func othersOf(c byte) []byte {
	switch {
	case c >= '0' && c <= '9':
		return []byte{'0' + (c-'0'+1)%10, '0' + (c-'0'+9)%10}
	case c >= 'a' && c <= 'z':
		return []byte{'a' + (c-'a'+1)%26}
	case c >= 'A' && c <= 'Z':
		return []byte{'A' + (c-'A'+1)%26}
	case c == '-':
		return []byte{'7'} // the word for nothing, in most formats
	}
	return nil
}

// parsedFields gives the fields of a line as JSON, nil when it is neither one request nor events.
func parsedFields(f pipeline.Format, line []byte) map[string]json.RawMessage {
	var item pipeline.Item
	item.Reset()
	f.Parse(line, &item)
	if item.Kind != pipeline.IsRecord && (item.Kind != pipeline.IsEvents || len(item.Events) != 1) {
		return nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(format.AppendJSON(nil, &item), &fields) != nil {
		return nil
	}
	return fields
}

// touched gives the fields that differ. Where a field is gone, the byte was what told it from its neighbour: one that
// grew by what was lost says nothing of itself.
func touched(was, is map[string]json.RawMessage) []string {
	var changed, gone, grown []string
	for key, v := range was {
		now, ok := is[key]
		switch {
		case bytes.Equal(v, now):
		case !ok || string(now) == "null":
			gone = append(gone, key)
		case len(now) > len(v) && v[0] == '"':
			grown = append(grown, key)
		default:
			changed = append(changed, key)
		}
	}
	if len(gone) == 0 {
		changed = append(changed, grown...)
	}
	return append(changed, gone...)
}

// extend adds byte i to spans, to the last of them where only punctuation lies between.
func extend(spans []span, line []byte, i int) []span {
	if n := len(spans); n > 0 {
		last := &spans[n-1]
		if i < last.To {
			return spans
		}
		if joint := line[last.To:i]; len(joint) <= maxJoint && !bytes.ContainsAny(joint, " \t\"") {
			last.To = i + 1
			return spans
		}
	}
	return append(spans, span{i, i + 1})
}

// explainFields tells of each field of the only Record or Event of a line where in the line it stands. skipped is how
// many bytes of framing were in front.
func explainFields(out io.Writer, f pipeline.Format, line []byte, skipped int) {
	spans := traceFields(f, line)
	var keys []string
	for key := range spans {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if spans[a][0].From != spans[b][0].From {
			return spans[a][0].From - spans[b][0].From
		}
		return strings.Compare(a, b)
	})
	for _, key := range keys {
		var pieces []string
		for _, s := range spans[key][:min(len(spans[key]), 4)] {
			pieces = append(pieces, fmt.Sprintf("column %d \"%s\"", skipped+s.From+1, excerpt(line[s.From:s.To])))
		}
		fmt.Fprintf(out, "from      %s: %s\n", key, strings.Join(pieces, ", "))
	}
	if len(line) > maxTraced {
		fmt.Fprintf(out, "from      fields beyond the first %d bytes were not traced\n", maxTraced)
	}
}

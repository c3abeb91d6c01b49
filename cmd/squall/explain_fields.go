package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/enrich"
	"github.com/squall-sre/squall/pipeline/format"
)

const (
	// maxTraced bounds, in bytes, what of a line is traced: every byte costs a parse or two.
	maxTraced = 8 << 10
	// maxJoint is how many bytes of punctuation may lie within one piece of a line.
	maxJoint = 3
	// maxPieces is how many pieces of a field are shown.
	maxPieces = 4
)

// A span is the piece of a line, [From, To) in bytes, that a field was read from.
type span struct{ From, To int }

// A tracer reads a line again and again, as the road does.
type tracer struct {
	format  pipeline.Format
	clients *clientTracer // nil: fields are those of the line alone
}

// fields traces each field of a line's Record to the bytes that it was read from: a byte belongs to the fields
// that change when it is exchanged for another of its kind (a digit, a letter). It asks the format itself and so
// needs nothing of how the format is written. The fields are named as `squall parse` names them.
func (t tracer) fields(line []byte) map[string][]span {
	was, source := t.parse(line)
	if was == nil {
		return nil
	}
	spans, within := map[string][]span{}, map[string]string{}
	for key, value := range was {
		within[key] = jointsOf(key, value)
	}
	changed := bytes.Clone(line)
	for i := range min(len(line), maxTraced) {
		for _, other := range othersOf(line[i]) {
			changed[i] = other
			is, now := t.parse(changed)
			if is == nil {
				continue // without this byte it is no such line
			}
			for _, key := range touched(was, is) {
				if key == clientField && now != source {
					continue // the byte decides where the address is taken from, and is none of its own
				}
				spans[key] = extend(spans[key], line, i, within[key])
			}
		}
		changed[i] = line[i]
	}
	for key := range spans {
		complete(spans[key], line, was[key])
	}
	return spans
}

// complete widens a piece to the value that it is part of: some bytes of an address, or of a year, have no other that
// could stand in their place.
func complete(pieces []span, line []byte, value json.RawMessage) {
	text := strings.Trim(string(value), `"`)
	for i := range pieces {
		p := &pieces[i]
		at := strings.Index(text, string(line[p.From:p.To]))
		if from := p.From - at; at >= 0 && from >= 0 && bytes.HasPrefix(line[from:], []byte(text)) && (i == 0 || pieces[i-1].To <= from) {
			p.From, p.To = from, from+len(text)
		}
	}
}

// clientField is the one field that enrichers change: the address that was reckoned.
const clientField = "client_ip"

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

// parse gives the fields of a line as JSON, nil when it is neither one request nor events, and what the client's
// address was taken from.
func (t tracer) parse(line []byte) (fields map[string]json.RawMessage, source enrich.ClientSource) {
	var item pipeline.Item
	item.Reset()
	t.format.Parse(line, &item)
	switch {
	case item.Kind == pipeline.IsRecord && t.clients != nil:
		source = t.clients.chain.ClientSource(&item.Record)
		t.clients.enricher.Enrich(&item.Record)
	case item.Kind == pipeline.IsRecord, item.Kind == pipeline.IsEvents && len(item.Events) == 1:
	default:
		return nil, 0
	}
	if json.Unmarshal(format.AppendJSON(nil, &item), &fields) != nil {
		return nil, 0
	}
	return fields, source
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

// jointsOf gives the spaces and quotes that may lie within one piece of a field: those that its value has. Times are
// spelled with a space before the zone, or between day and hour.
func jointsOf(key string, value json.RawMessage) string {
	var text, joints string
	if json.Unmarshal(value, &text) != nil {
		return ""
	}
	for _, c := range []string{" ", "\t", `"`} {
		if strings.Contains(text, c) || key == "time" && c == " " {
			joints += c
		}
	}
	return joints
}

// extend adds byte i to spans, to the last of them where only punctuation lies between, and of spaces and quotes those
// of within.
func extend(spans []span, line []byte, i int, within string) []span {
	if n := len(spans); n > 0 {
		last := &spans[n-1]
		if i < last.To {
			return spans
		}
		if joint := line[last.To:i]; len(joint) <= maxJoint && !bytes.ContainsFunc(joint, func(c rune) bool {
			return strings.ContainsRune(" \t\"", c) && !strings.ContainsRune(within, c)
		}) {
			last.To = i + 1
			return spans
		}
	}
	return append(spans, span{i, i + 1})
}

// explainFields tells of each field of the only Record or Event of a line where in the line it stands. skipped is how
// many bytes of framing were in front.
func explainFields(out io.Writer, t tracer, line []byte, skipped int) {
	spans := t.fields(line)
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
		for _, s := range spans[key][:min(len(spans[key]), maxPieces)] {
			pieces = append(pieces, fmt.Sprintf("column %d \"%s\"", skipped+s.From+1, excerpt(line[s.From:s.To])))
		}
		if more := len(spans[key]) - maxPieces; more > 0 {
			pieces = append(pieces, fmt.Sprintf("and %d more", more))
		}
		fmt.Fprintf(out, "from      %s: %s\n", key, strings.Join(pieces, ", "))
	}
	if len(line) > maxTraced {
		fmt.Fprintf(out, "from      fields beyond the first %d bytes were not traced\n", maxTraced)
	}
}

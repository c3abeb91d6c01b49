package loki

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golang/snappy"
	"github.com/grafana/loki/pkg/push"

	"github.com/squall-sre/squall/pipeline"
)

const (
	// maxStreamBytes is what one push holds of one stream: Loki recognises a repeated push only within the head
	// of a chunk, 256 KiB.
	maxStreamBytes = 200_000
	entryOverhead  = 32 // bytes of an entry beside its line and metadata, about
)

// A part is what one push holds of one stream, in ascending order of time.
type part struct {
	labels  string
	entries []push.Entry
}

// A load is what is taken from the spool at once; the spool is told when all its pushes are dealt with.
type load struct {
	parts []*part // in the order of their labels
	bytes int
	lines int
	last  *pipeline.Delivery
	index map[string]*part
}

func newLoad() *load { return &load{index: map[string]*part{}} }

func (l *load) add(lab *labeler, plain bool, d *pipeline.Delivery) {
	l.last = d
	for _, b := range d.Batches {
		for i := range b.Entries {
			e := &b.Entries[i]
			labels := lab.set(b.Stream, e.Site)
			p := l.index[labels]
			if p == nil {
				p = &part{labels: labels}
				l.index[labels] = p
				l.parts = append(l.parts, p)
			}
			entry := push.Entry{
				Timestamp: time.Unix(0, e.Time), Line: cut(strings.ToValidUTF8(string(e.Line), "\uFFFD"), pipeline.MaxLine),
				StructuredMetadata: lab.pairs(b.Stream, e),
			}
			if plain {
				entry = withoutMetadata(entry)
			}
			p.entries = append(p.entries, entry)
			l.bytes += entryBytes(&entry)
			l.lines++
		}
	}
}

func entryBytes(e *push.Entry) int {
	n := len(e.Line) + entryOverhead
	for _, m := range e.StructuredMetadata {
		n += len(m.Name) + len(m.Value) + 8
	}
	return n
}

// order sorts each stream by time and keeps equal lines at one time apart: Loki would fold them into one.
func (l *load) order() {
	slices.SortFunc(l.parts, func(a, b *part) int { return strings.Compare(a.labels, b.labels) })
	for _, p := range l.parts {
		slices.SortStableFunc(p.entries, func(a, b push.Entry) int { return a.Timestamp.Compare(b.Timestamp) })
		spread(p.entries)
	}
}

// spread moves a line that equals one before it at the same time on by the ns that make it the first of its kind,
// and keeps the order.
func spread(entries []push.Entry) {
	same := map[string]struct{}{}
	for i := range entries {
		e := &entries[i]
		if i == 0 || e.Timestamp.After(entries[i-1].Timestamp) {
			clear(same)
			same[e.Line] = struct{}{}
			continue
		}
		e.Timestamp = entries[i-1].Timestamp
		if _, ok := same[e.Line]; ok {
			e.Timestamp = e.Timestamp.Add(time.Nanosecond)
			clear(same)
		}
		same[e.Line] = struct{}{}
	}
}

// cut gives the pushes of a load: each of at most size bytes, and of one stream at most maxStreamBytes.
func (l *load) cut(size int) []*batch {
	l.order()
	var batches []*batch
	b := &batch{}
	flush := func() {
		if len(b.parts) > 0 {
			batches = append(batches, b)
			b = &batch{}
		}
	}
	for left := l.parts; len(left) > 0; {
		var rest []*part
		for _, p := range left {
			n, bytes := 0, len(p.labels)
			for n < len(p.entries) {
				e := entryBytes(&p.entries[n])
				if n > 0 && bytes+e > maxStreamBytes {
					break
				}
				bytes += e
				n++
			}
			if b.bytes > 0 && b.bytes+bytes > size {
				flush()
			}
			b.parts = append(b.parts, part{p.labels, p.entries[:n]})
			b.bytes += bytes
			b.lines += n
			if n < len(p.entries) {
				rest = append(rest, &part{p.labels, p.entries[n:]})
			}
		}
		flush()
		left = rest
	}
	return batches
}

// A batch is one push.
type batch struct {
	parts []part
	bytes int
	lines int
}

func newBatch(parts []part) *batch {
	b := &batch{parts: parts}
	for _, p := range parts {
		b.bytes += len(p.labels)
		b.lines += len(p.entries)
		for i := range p.entries {
			b.bytes += entryBytes(&p.entries[i])
		}
	}
	return b
}

// encode gives the bytes that are sent, and sent again.
func (b *batch) encode() ([]byte, error) {
	r := push.PushRequest{Streams: make([]push.Stream, len(b.parts))}
	for i, p := range b.parts {
		r.Streams[i] = push.Stream{Labels: p.labels, Entries: p.entries}
	}
	data, err := r.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode a push: %w", err)
	}
	return snappy.Encode(nil, data), nil
}

// halves splits a batch by stream, and one of a single stream by line. A batch of one line cannot be split.
func (b *batch) halves() (first, second *batch, ok bool) {
	if b.lines < 2 {
		return nil, nil, false
	}
	if n := len(b.parts); n > 1 {
		return newBatch(b.parts[:n/2]), newBatch(b.parts[n/2:]), true
	}
	p, n := b.parts[0], len(b.parts[0].entries)
	return newBatch([]part{{p.labels, p.entries[:n/2]}}), newBatch([]part{{p.labels, p.entries[n/2:]}}), true
}

// withoutMetadata gives the lines that carry structured metadata, with it written behind the line as logfmt; nil
// when there are none.
func (b *batch) withoutMetadata() *batch {
	var parts []part
	for _, p := range b.parts {
		q := part{labels: p.labels}
		for _, e := range p.entries {
			if len(e.StructuredMetadata) > 0 {
				q.entries = append(q.entries, withoutMetadata(e))
			}
		}
		if len(q.entries) > 0 {
			parts = append(parts, q)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return newBatch(parts)
}

func withoutMetadata(e push.Entry) push.Entry {
	if len(e.StructuredMetadata) == 0 {
		return e
	}
	var b strings.Builder
	for _, m := range e.StructuredMetadata {
		b.WriteByte(' ')
		b.WriteString(m.Name)
		b.WriteByte('=')
		if strings.ContainsFunc(m.Value, func(r rune) bool { return r <= ' ' || r == '"' || r == '=' || r == '\\' || r == 0x7f }) {
			fmt.Fprintf(&b, "%q", m.Value)
		} else {
			b.WriteString(m.Value)
		}
	}
	e.Line = cut(e.Line, pipeline.MaxLine-b.Len()) + b.String()
	e.StructuredMetadata = nil
	return e
}

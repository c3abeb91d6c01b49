package loki

import (
	"bytes"
	"encoding/binary"
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

// A load is what is taken from the spool at once; the spool is told when all its lines are dealt with.
type load struct {
	parts []*part // in the order of their labels
	bytes int
	lines int
	left  int // lines that are not dealt with
	last  *pipeline.Delivery
	index map[string]*part
	texts []*text        // of its deliveries
	lists [][]push.Entry // of its parts, once it is cut

	shipped int
	refused map[string]int // by reason
}

func newLoad() *load { return &load{index: map[string]*part{}, refused: map[string]int{}} }

// add takes a delivery. What becomes of its lines must not depend on the deliveries beside it: after a crash it
// comes in other company, and what is sent again must be the same.
func (l *load) add(lab *labeler, plain, backlog bool, d *pipeline.Delivery) {
	l.last = d
	text := lab.free.textOf(d, len(lab.metadata))
	l.texts = append(l.texts, text)
	begun := map[*part]int{} // where the delivery begins in each part
	for _, b := range d.Batches {
		var p *part // that of the line before: most have the same site
		for i := range b.Entries {
			e := &b.Entries[i]
			entry := push.Entry{
				Timestamp: time.Unix(0, e.Time), Line: text.line(e.Line), StructuredMetadata: lab.pairs(text, b.Stream, e),
			}
			if plain {
				entry = withoutMetadata(entry)
			}
			if i == 0 || e.Site != b.Entries[i-1].Site {
				p = l.part(lab.set(b.Stream, e.Site, backlog), lab)
				if _, ok := begun[p]; !ok {
					begun[p] = len(p.entries)
				}
			}
			p.entries = append(p.entries, entry)
			l.bytes += entryBytes(&entry)
		}
		l.lines += len(b.Entries)
		l.left += len(b.Entries)
	}
	for p, from := range begun {
		sortByTime(p.entries[from:])
		spread(p.entries[from:])
	}
}

func (l *load) part(labels string, lab *labeler) *part {
	p := l.index[labels]
	if p == nil {
		p = &part{labels: labels, entries: lab.free.entries.take(0)}
		l.index[labels] = p
		l.parts = append(l.parts, p)
	}
	return p
}

// release gives the memory back of a load that is dealt with: none of its lines is sent or looked at again.
func (l *load) release(lab *labeler) {
	for _, t := range l.texts {
		lab.free.written.give(t.written)
		lab.free.pairs.give(t.pairs)
	}
	for _, list := range l.lists {
		lab.free.entries.give(list)
	}
	l.texts, l.lists, l.parts, l.index = nil, nil, nil, nil
}

// sortByTime keeps the order of what has the same time. Mostly there is nothing to do.
func sortByTime(entries []push.Entry) {
	if !slices.IsSortedFunc(entries, byTime) {
		slices.SortStableFunc(entries, byTime)
	}
}

func byTime(a, b push.Entry) int { return a.Timestamp.Compare(b.Timestamp) }

func entryBytes(e *push.Entry) int {
	return len(e.Line) + entryOverhead + int(metadataBytes(e)) + 8*len(e.StructuredMetadata)
}

// spread moves a line that equals one before it at the same time on by the ns that make it the first of its kind,
// and keeps the order: Loki would fold them into one.
func spread(entries []push.Entry) {
	same := map[string]struct{}{} // of the last time
	first := 0                    // of the last time; the lines before next are in same
	next := 0
	for i := 1; i < len(entries); i++ {
		e, last := &entries[i], entries[i-1].Timestamp
		if e.Timestamp.After(last) {
			first = i
			continue
		}
		if next <= first {
			clear(same)
			next = first
		}
		for ; next < i; next++ {
			same[entries[next].Line] = struct{}{}
		}
		e.Timestamp = last
		if _, ok := same[e.Line]; ok {
			e.Timestamp = last.Add(time.Nanosecond)
			first = i
		}
	}
}

// cut gives the pushes of a load: each of at most size bytes, and of one stream at most maxStreamBytes.
//
// When an ingester of Loki refuses entries it tells what became of the last stream of a push; whether it refused
// those of another stays unsaid, and the answer may be 204. A part that it may refuse, which alone tells, therefore
// has a push of its own.
func (l *load) cut(size int, alone func(*part) bool) []*batch {
	slices.SortFunc(l.parts, func(a, b *part) int { return strings.Compare(a.labels, b.labels) })
	var batches []*batch
	b := &batch{load: l}
	flush := func() {
		if len(b.parts) > 0 {
			batches = append(batches, b)
			b = &batch{load: l}
		}
	}
	for _, p := range l.parts {
		sortByTime(p.entries)
		l.lists = append(l.lists, p.entries)
		own := alone(p)
		for len(p.entries) > 0 {
			n, bytes := 0, len(p.labels)
			for n < len(p.entries) {
				e := entryBytes(&p.entries[n])
				if n > 0 && bytes+e > min(maxStreamBytes, size) {
					break
				}
				bytes += e
				n++
			}
			if own || b.bytes > 0 && b.bytes+bytes > size || len(b.parts) > 0 && b.parts[len(b.parts)-1].labels == p.labels {
				flush()
			}
			b.parts = append(b.parts, part{p.labels, p.entries[:n]})
			b.bytes += bytes
			b.lines += n
			p.entries = p.entries[n:]
			if own {
				flush()
			}
		}
	}
	flush()
	return batches
}

// A batch is one push.
type batch struct {
	load  *load
	parts []part
	bytes int
	lines int

	since time.Time // when Loki first limited its stream; zero: it did not
	due   time.Time // when it is tried again
	tries int
}

// with makes another batch of the same load.
func (b *batch) with(parts []part) *batch {
	n := &batch{load: b.load, parts: parts, since: b.since, tries: b.tries}
	for _, p := range parts {
		n.bytes += len(p.labels)
		n.lines += len(p.entries)
		for i := range p.entries {
			n.bytes += entryBytes(&p.entries[i])
		}
	}
	return n
}

// An encoder makes pushes in memory of its own. It belongs to one goroutine.
type encoder struct{ plain, packed []byte }

// encode gives the bytes that are sent, and sent again: they are nobody else's, since what sends them may look at them
// after the answer. A push is its streams, one after the other; push.PushRequest would take the size of each three times.
func (c *encoder) encode(b *batch) ([]byte, error) {
	const streams = 1<<3 | 2 // the tag of PushRequest.streams
	c.plain = c.plain[:0]
	for _, p := range b.parts {
		s := push.Stream{Labels: p.labels, Entries: p.entries}
		n := s.Size()
		c.plain = append(c.plain, streams)
		c.plain = binary.AppendUvarint(c.plain, uint64(n))
		from := len(c.plain)
		c.plain = slices.Grow(c.plain, n)[:from+n]
		if _, err := s.MarshalToSizedBuffer(c.plain[from:]); err != nil {
			return nil, fmt.Errorf("encode a push: %w", err)
		}
	}
	c.packed = snappy.Encode(c.packed[:cap(c.packed)], c.plain)
	return bytes.Clone(c.packed), nil
}

// halves splits a batch by stream, and one of a single stream by line. A batch of one line cannot be split.
func (b *batch) halves() (first, second *batch, ok bool) {
	if b.lines < 2 {
		return nil, nil, false
	}
	if n := len(b.parts); n > 1 {
		return b.with(b.parts[:n/2]), b.with(b.parts[n/2:]), true
	}
	p, n := b.parts[0], len(b.parts[0].entries)
	return b.with([]part{{p.labels, p.entries[:n/2]}}), b.with([]part{{p.labels, p.entries[n/2:]}}), true
}

// withoutMetadata gives b with the structured metadata written behind the lines as logfmt.
func (b *batch) withoutMetadata() *batch {
	parts := make([]part, len(b.parts))
	for i, p := range b.parts {
		parts[i].labels = p.labels
		for _, e := range p.entries {
			parts[i].entries = append(parts[i].entries, withoutMetadata(e))
		}
	}
	return b.with(parts)
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

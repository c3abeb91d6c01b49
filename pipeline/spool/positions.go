package spool

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/squall-sre/squall/pipeline"
)

// maxPositions is how many streams are remembered; beyond it the ended and then the longest unused are forgotten.
const maxPositions = 1 << 16

type position struct {
	input  string
	stored int64           // To of the last stored batch
	queued int64           // To of the last accepted batch
	known  bool            // something was stored
	last   bool            // the stream has ended
	anchor pipeline.Anchor // of stored
	used   int64           // rises with every update
}

// positions knows where each stream is. It is safe for concurrent use.
type positions struct {
	mu      sync.Mutex
	streams map[string]*position
	clock   int64
	changed bool                 // since the last checkpoint
	inputs  map[string]time.Time // when this process last stored something of each
}

func newPositions() *positions {
	return &positions{streams: map[string]*position{}, inputs: map[string]time.Time{}}
}

func (p *positions) get(id string) (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.streams[id]
	if s == nil || !s.known {
		return 0, false
	}
	return s.stored, true
}

func (p *positions) ended(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.streams[id]
	return s != nil && s.last
}

func (p *positions) anchor(id string) pipeline.Anchor {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.streams[id]; s != nil && s.known {
		return s.anchor
	}
	return 0
}

func (p *positions) list(input string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids []string
	for id, s := range p.streams {
		if s.known && (input == "" || s.input == input) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// accept notes a batch that is about to be queued. It tells whether all of it was accepted before.
func (p *positions) accept(input, id string, from, to int64) (repeated bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.streams[id]
	if s == nil {
		s = &position{input: input, queued: from}
		p.streams[id] = s
	}
	if from < s.queued && to <= s.queued {
		return true
	}
	s.queued = to
	return false
}

// store notes what has reached the disk.
func (p *positions) store(marks []mark) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range marks {
		s := p.streams[m.id]
		if s == nil {
			s = &position{}
			p.streams[m.id] = s
		}
		p.clock++
		if m.anchor != 0 || m.to != s.stored { // nothing that a source tells at the same offset makes it less known
			s.anchor = m.anchor
		}
		s.input, s.stored, s.known, s.last, s.used = m.input, m.to, true, m.last, p.clock
		s.queued = max(s.queued, m.to)
		p.changed = true
	}
	if len(p.streams) > maxPositions {
		p.forget(maxPositions * 7 / 8)
	}
}

// note notes when marks were stored.
func (p *positions) note(marks []mark, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range marks {
		p.inputs[m.input] = at
	}
}

func (p *positions) storedAt(input string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inputs[input]
}

// forget keeps n streams: those that have not ended first, then those used last.
func (p *positions) forget(n int) {
	ids := slices.Collect(maps.Keys(p.streams))
	slices.SortFunc(ids, func(a, b string) int {
		x, y := p.streams[a], p.streams[b]
		if x.last != y.last {
			return int(bit(x.last)) - int(bit(y.last))
		}
		return cmp.Or(cmp.Compare(y.used, x.used), cmp.Compare(a, b))
	})
	for _, id := range ids[min(n, len(ids)):] {
		delete(p.streams, id)
	}
}

func (p *positions) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.streams)
}

// A checkpoint is "SP", a version, the sequence of LINES up to which it holds, how many lines and bytes were stored
// up to there, and the streams, longest unused first: input, id, stored, last and, since version 3, anchor (8 bytes); zstd.
const (
	checkpointVersion = 3
	firstCheckpoint   = 2 // is read, too
)

// maxCheckpoint bounds a checkpoint's body when it is read, in bytes.
const maxCheckpoint = 64 << 20

// checkpoint encodes the positions. It fits a message: what was unused longest is forgotten until it does.
func (p *positions) checkpoint(enc *zstd.Encoder, seq uint64, total place) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = false
	for {
		b := []byte{'S', 'P', checkpointVersion}
		b = binary.AppendUvarint(b, seq)
		b = binary.AppendUvarint(b, uint64(total.lines))
		b = binary.AppendUvarint(b, uint64(total.bytes))
		b = enc.EncodeAll(p.encode(), b)
		if len(b) <= maxBody {
			return b
		}
		p.forget(len(p.streams) / 2)
	}
}

func (p *positions) encode() []byte {
	ids := slices.Collect(maps.Keys(p.streams))
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(cmp.Compare(p.streams[a].used, p.streams[b].used), cmp.Compare(a, b))
	})
	var b []byte
	for _, id := range ids {
		s := p.streams[id]
		if !s.known {
			continue
		}
		b = appendString(b, s.input)
		b = appendString(b, id)
		b = binary.AppendVarint(b, s.stored)
		b = append(b, bit(s.last))
		b = binary.BigEndian.AppendUint64(b, uint64(s.anchor))
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// readCheckpoint gives the sequence, what was stored up to it, and the marks of a checkpoint.
func readCheckpoint(d *zstd.Decoder, msg []byte) (seq uint64, total place, marks []mark, err error) {
	if len(msg) < 3 || msg[0] != 'S' || msg[1] != 'P' || msg[2] < firstCheckpoint || msg[2] > checkpointVersion {
		return 0, place{}, nil, errFrame
	}
	r := reader{b: msg[3:]}
	seq, total = r.uvarint(), place{int64(r.uvarint()), int64(r.uvarint())}
	if r.bad || total.lines < 0 || total.bytes < 0 {
		return 0, place{}, nil, errFrame
	}
	body, err := d.DecodeAll(r.b, nil)
	if err != nil {
		return 0, place{}, nil, err
	}
	r = reader{b: body}
	for len(r.b) > 0 {
		m := mark{input: string(r.take()), id: string(r.take()), to: r.varint(), last: r.byte() == 1}
		if msg[2] >= 3 {
			m.anchor = r.anchor()
		}
		if r.bad {
			return 0, place{}, nil, errFrame
		}
		marks = append(marks, m)
	}
	return seq, total, marks, nil
}

func sortedKeys(m map[string]string) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

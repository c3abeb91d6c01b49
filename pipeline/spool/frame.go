package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/klauspost/compress/zstd"

	"github.com/squall-sre/squall/pipeline"
)

// A message is a head and a zstd frame:
//
//	"SQ" version(1)
//	uvarint  entries and, uvarint, bytes of lines stored before this message since the spool began
//	uvarint  entries and, uvarint, bytes of lines in this message
//	varint   time of the oldest and, varint, of the newest entry, ns
//	uvarint  length of the body, bytes
//	zstd     body
//
// The body is a run of batches. Strings are interned: uvarint 0, uvarint length and the bytes at the first use,
// uvarint index+1 after that. Numbers that may be negative are zigzag varints.
//
//	stream   uvarint 0 and its definition at the first use, else index+1
//	         definition: input, id, path, node, namespace, pod, container, uvarint n, n × (name, value)
//	flags    1 last, 2 part (the rest of the batch is in the next message; To is not reached), 4 anchor
//	from, to, lines     varint
//	anchor   8 bytes, big endian, if there is one
//	skips    uvarint n, n × (at, bytes varint, reason, lost byte)
//	entries  uvarint n, n × (Δtime varint, uvarint length and the line, kind byte, reason, site, route,
//	         method, uvarint status, request time varint, class byte, origin byte, abandoned byte)
const (
	frameVersion = 3
	firstVersion = 2 // is read, too: it has no anchors

	frameTarget = 1 << 20 // a frame of small batches is sealed at this many bytes,
	minFrames   = 8       // or at fewer, so that the spool holds this many
	maxBody     = 7 << 20 // bytes: a larger batch is split, so that what cannot be compressed fits a message
	maxString   = 4 << 10 // bytes of one name; longer ones are cut
	maxMessage  = 8 << 20 // bytes, the server's limit for a payload

	// The least bytes that a decoder needs for one of each; what claims more than fits is refused unread.
	minEntryBytes = 12
	minSkipBytes  = 4
	minLabelBytes = 2

	maxSkips  = 1 << 12 // of one batch: they are counted where they are found, here they are only told
	maxLabels = 1 << 8  // of one stream
)

const (
	flagLast = 1 << iota
	flagPart
	flagAnchor
)

// A mark is where a frame brings one stream.
type mark struct {
	input, id string
	to        int64
	last      bool
	anchor    pipeline.Anchor // of to
}

// A frame is a message being built or waiting to be stored. It belongs to whoever holds it.
type frame struct {
	body    []byte
	strings map[string]uint64
	streams map[string]uint64
	recent  [4]recent // reason, site, route and method of the last entry: most lines repeat them
	marks   []mark
	keyID   string // first batch, for the message ID
	keyFrom int64

	entries, bytes int64
	oldest, newest int64
	opened         int64 // ns, the clock's
	lent           bool  // body is kept for consumers
}

type recent struct {
	s     string
	index uint64 // as written; 0: none yet
}

// newFrame makes a frame in the memory of body.
func newFrame(now int64, body []byte) *frame {
	return &frame{
		body:    body[:0],
		strings: map[string]uint64{}, streams: map[string]uint64{},
		oldest: math.MaxInt64, newest: math.MinInt64, opened: now,
	}
}

// batchSize is about how many bytes b takes in a frame.
func batchSize(b *pipeline.Batch) int {
	n := 256 + len(b.Stream.ID) + len(b.Stream.Path) + 24*len(b.Skips)
	for i := range b.Entries {
		n += entrySize(&b.Entries[i])
	}
	return n
}

// entrySize is the most that an entry takes, bytes.
func entrySize(e *pipeline.Entry) int {
	return min(len(e.Line), pipeline.MaxLine) + min(len(e.Site), maxString) + min(len(e.Route), maxString) +
		min(len(e.Method), maxString) + len(e.Reason) + 64
}

// add encodes the entries of b from first up to end. A part is not the batch's last: it does not move the
// stream's position.
func (f *frame) add(b *pipeline.Batch, first, end int, part bool) {
	if f.keyID == "" {
		f.keyID, f.keyFrom = b.Stream.ID, b.From
	}
	f.stream(b.Stream)
	flags, to, lines, skips, anchor := byte(0), b.To, b.Lines, b.Skips[:min(len(b.Skips), maxSkips)], b.Anchor
	if part {
		flags, to, lines, skips, anchor = flagPart, b.From, 0, nil, 0
	} else {
		if b.Last {
			flags = flagLast
		}
		f.marks = append(f.marks, mark{b.Stream.Input, b.Stream.ID, b.To, b.Last, b.Anchor})
	}
	if anchor != 0 {
		flags |= flagAnchor
	}
	f.body = append(f.body, flags)
	f.body = binary.AppendVarint(f.body, b.From)
	f.body = binary.AppendVarint(f.body, to)
	f.body = binary.AppendVarint(f.body, int64(lines))
	if anchor != 0 {
		f.body = binary.BigEndian.AppendUint64(f.body, uint64(anchor))
	}
	f.body = binary.AppendUvarint(f.body, uint64(len(skips)))
	for _, s := range skips {
		f.body = binary.AppendVarint(f.body, s.At)
		f.body = binary.AppendVarint(f.body, s.Bytes)
		f.string(s.Reason)
		f.body = append(f.body, bit(s.Lost))
	}
	f.body = binary.AppendUvarint(f.body, uint64(end-first))
	last := int64(0)
	for i := first; i < end; i++ {
		f.entry(&b.Entries[i], last)
		last = b.Entries[i].Time
	}
	f.entries += int64(end - first)
}

func (f *frame) entry(e *pipeline.Entry, last int64) {
	f.oldest, f.newest = min(f.oldest, e.Time), max(f.newest, e.Time)
	line := e.Line[:min(len(e.Line), pipeline.MaxLine)]
	f.body = binary.AppendVarint(f.body, e.Time-last)
	f.body = binary.AppendUvarint(f.body, uint64(len(line)))
	f.body = append(f.body, line...)
	f.bytes += int64(len(line))
	f.body = append(f.body, byte(e.Kind))
	f.again(&f.recent[0], string(e.Reason))
	f.again(&f.recent[1], e.Site)
	f.again(&f.recent[2], e.Route)
	f.againBytes(&f.recent[3], e.Method)
	f.body = binary.AppendUvarint(f.body, uint64(e.Status))
	f.body = binary.AppendVarint(f.body, e.RequestTime)
	f.body = append(f.body, byte(e.Class), byte(e.Origin), byte(e.Abandoned))
}

func (f *frame) stream(s *pipeline.Stream) {
	if n, ok := f.streams[s.ID]; ok {
		f.body = binary.AppendUvarint(f.body, n+1)
		return
	}
	f.streams[s.ID] = uint64(len(f.streams))
	f.body = append(f.body, 0)
	for _, v := range [...]string{s.Input, s.ID, s.Path, s.Node, s.Namespace, s.Pod, s.Container} {
		f.string(v)
	}
	names := sortedKeys(s.Labels)
	names = names[:min(len(names), maxLabels)]
	f.body = binary.AppendUvarint(f.body, uint64(len(names)))
	for _, name := range names {
		f.string(name)
		f.string(s.Labels[name])
	}
}

func (f *frame) string(s string) { f.again(&recent{}, s) }

// again writes s; r is the most recent string of its kind and becomes s.
func (f *frame) again(r *recent, s string) {
	if r.index == 0 || r.s != s {
		s = s[:min(len(s), maxString)]
		n, ok := f.strings[s]
		if !ok {
			n = uint64(len(f.strings))
			f.strings[s] = n
			f.body = append(f.body, 0)
			f.body = binary.AppendUvarint(f.body, uint64(len(s)))
			f.body = append(f.body, s...)
		}
		r.s, r.index = s, n+1
		if !ok {
			return
		}
	}
	f.body = binary.AppendUvarint(f.body, r.index)
}

// againBytes is again without making a string of what is repeated.
func (f *frame) againBytes(r *recent, b []byte) {
	if r.index > 0 && r.s == string(b) {
		f.body = binary.AppendUvarint(f.body, r.index)
		return
	}
	f.again(r, string(b))
}

// message closes the frame: before is what was stored before it.
func (f *frame) message(enc *zstd.Encoder, before place) []byte {
	h := f.head(before)
	b := make([]byte, 0, 64+len(f.body)/4)
	b = append(b, 'S', 'Q', frameVersion)
	for _, n := range [...]int64{h.before.lines, h.before.bytes, h.entries, h.bytes} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.AppendVarint(b, h.oldest)
	b = binary.AppendVarint(b, h.newest)
	b = binary.AppendUvarint(b, h.size)
	return enc.EncodeAll(f.body, b)
}

// head is what the message tells without being decompressed.
func (f *frame) head(before place) head {
	h := head{before: before, entries: f.entries, bytes: f.bytes, size: uint64(len(f.body))}
	if f.entries > 0 {
		h.oldest, h.newest = f.oldest, f.newest
	}
	return h
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// errFrame says that a message is not what a spool wrote.
var errFrame = errors.New("not a spool message")

// A head is what a message tells without being decompressed.
type head struct {
	before         place
	entries, bytes int64
	oldest, newest int64 // ns
	size           uint64
	body           []byte // compressed
}

func readHead(msg []byte) (head, error) {
	if len(msg) < 3 || msg[0] != 'S' || msg[1] != 'Q' {
		return head{}, errFrame
	}
	if msg[2] < firstVersion || msg[2] > frameVersion {
		return head{}, fmt.Errorf("spool message of version %d, this program reads %d: %w", msg[2], frameVersion, errFrame)
	}
	r := reader{b: msg[3:]}
	h := head{
		before: place{int64(r.uvarint()), int64(r.uvarint())}, entries: int64(r.uvarint()), bytes: int64(r.uvarint()),
		oldest: r.varint(), newest: r.varint(), size: r.uvarint(),
	}
	h.body = r.b
	// A batch over maxBody is split, but one string or stream may follow the last entry that fitted.
	if r.bad || h.before.lines < 0 || h.before.bytes < 0 || h.entries < 0 || h.bytes < 0 || h.size > maxMessage {
		return head{}, errFrame
	}
	return h, nil
}

// through is what was stored with the message and before it.
func (h *head) through() place { return place{h.before.lines + h.entries, h.before.bytes + h.bytes} }

// A decoder reads messages. It belongs to one goroutine.
type decoder struct {
	zstd *zstd.Decoder
	// reuse tells that what it returns holds until it is asked again. Else each message has memory of its own, and may be
	// kept.
	reuse   bool
	body    []byte
	entries []pipeline.Entry
}

func newDecoder(reuse bool) (*decoder, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxMessage))
	if err != nil {
		return nil, fmt.Errorf("make a zstd decoder: %w", err)
	}
	return &decoder{zstd: z, reuse: reuse}, nil
}

func (d *decoder) close() { d.zstd.Close() }

func (d *decoder) decode(h head) ([]*pipeline.Batch, error) {
	room := d.body[:0]
	if !d.reuse || uint64(cap(room)) < h.size {
		room = make([]byte, 0, h.size)
	}
	body, err := d.zstd.DecodeAll(h.body, room)
	if err != nil {
		return nil, fmt.Errorf("decompress a spool message: %w", err)
	}
	if uint64(len(body)) != h.size {
		return nil, errFrame
	}
	if d.reuse {
		d.body = body
	}
	return d.batches(h, body)
}

// batches gives those of a body, which point into it.
func (d *decoder) batches(h head, body []byte) ([]*pipeline.Batch, error) {
	r := reader{b: body}
	if d.reuse {
		if n := int(min(h.entries, int64(len(body)/minEntryBytes))); n > cap(d.entries) {
			d.entries = make([]pipeline.Entry, n)
		}
		r.room = d.entries[:cap(d.entries)]
	}
	var batches []*pipeline.Batch
	for len(r.b) > 0 && !r.bad {
		batches = append(batches, r.batch())
	}
	if r.bad {
		return nil, errFrame
	}
	return batches, nil
}

// A reader takes a body apart. After the first fault everything reads as zero and bad is set.
type reader struct {
	b       []byte
	room    []pipeline.Entry // for those to come; where it is too small they get their own
	strings []string
	streams []*pipeline.Stream
	method  struct { // the last one
		name string
		text []byte
	}
	bad bool
}

func (r *reader) fail() { r.bad, r.b = true, nil }

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) anchor() pipeline.Anchor {
	if len(r.b) < 8 {
		r.fail()
		return 0
	}
	a := binary.BigEndian.Uint64(r.b)
	r.b = r.b[8:]
	return pipeline.Anchor(a)
}

func (r *reader) take() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	s := r.b[:n:n]
	r.b = r.b[n:]
	return s
}

// count reads how many things of at least size bytes follow.
func (r *reader) count(size int) int {
	n := r.uvarint()
	if n > uint64(len(r.b)/size) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) string() string {
	n := r.uvarint()
	if n == 0 {
		s := string(r.take())
		if !r.bad {
			r.strings = append(r.strings, s)
		}
		return s
	}
	if n > uint64(len(r.strings)) {
		r.fail()
		return ""
	}
	return r.strings[n-1]
}

func (r *reader) stream() *pipeline.Stream {
	if n := r.uvarint(); n > 0 || r.bad {
		if n > uint64(len(r.streams)) || r.bad {
			r.fail()
			return nil
		}
		return r.streams[n-1]
	}
	s := &pipeline.Stream{Input: r.string(), ID: r.string(), Path: r.string()}
	s.Node, s.Namespace, s.Pod, s.Container = r.string(), r.string(), r.string(), r.string()
	if n := r.count(minLabelBytes); n > 0 {
		s.Labels = make(map[string]string, n)
		for range n {
			name := r.string()
			s.Labels[name] = r.string()
		}
	}
	r.streams = append(r.streams, s)
	return s
}

func (r *reader) batch() *pipeline.Batch {
	b := &pipeline.Batch{Stream: r.stream()}
	flags := r.byte()
	b.Last = flags&flagLast != 0
	b.From, b.To, b.Lines = r.varint(), r.varint(), int(r.varint())
	if flags&flagAnchor != 0 {
		b.Anchor = r.anchor()
	}
	if n := r.count(minSkipBytes); n > 0 {
		b.Skips = make([]pipeline.Skip, n)
		for i := range b.Skips {
			b.Skips[i] = pipeline.Skip{At: r.varint(), Bytes: r.varint(), Reason: r.string(), Lost: r.byte() == 1}
		}
	}
	if n := r.count(minEntryBytes); n > 0 {
		b.Entries = r.entries(n)
		last := int64(0)
		for i := 0; i < n && !r.bad; i++ {
			r.entry(&b.Entries[i], last)
			last = b.Entries[i].Time
		}
	}
	return b
}

// entries makes room for n.
func (r *reader) entries(n int) []pipeline.Entry {
	if n > len(r.room) {
		return make([]pipeline.Entry, n)
	}
	list := r.room[:n:n]
	r.room = r.room[n:]
	clear(list)
	return list
}

func (r *reader) entry(e *pipeline.Entry, last int64) {
	e.Time = last + r.varint()
	e.Line = r.take()
	e.Kind = pipeline.ItemKind(r.byte())
	e.Reason = pipeline.Reason(r.string())
	e.Site, e.Route = r.string(), r.string()
	if m := r.string(); m != "" {
		if m != r.method.name {
			r.method.name, r.method.text = m, []byte(m)
		}
		e.Method = r.method.text
	}
	status := r.uvarint()
	e.Status, e.RequestTime = uint16(status), r.varint()
	class, origin, abandoned := r.byte(), r.byte(), r.byte()
	if status > math.MaxUint16 || class >= byte(pipeline.Classes) || origin >= byte(pipeline.Origins) ||
		abandoned > byte(pipeline.Yes) || e.Kind > pipeline.Ignored {
		r.fail()
		return
	}
	e.Class, e.Origin, e.Abandoned = pipeline.Class(class), pipeline.Origin(origin), pipeline.Tri(abandoned)
}

package pipeline

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Work is a Block after the road: its lines as Items for the detectors, and as the Batch for the spool. It is
// recycled by Release; nothing of it may be kept after that.
type Work struct {
	Input string
	Items []Item
	Batch Batch

	Bytes  int64          // of physical lines
	Failed map[Reason]int // lines that no format took, by reason

	// A physical line mostly makes one item. Lines + Split = Items + Joined, always.
	Joined int // physical lines that made none: parts of one that a later line completes
	Split  int // items beyond the first of a line, and those that were completed by no line of their own

	Behind bool // of the block

	data []byte // the block's bytes, since the source takes its own back
	text []byte // redacted lines
	home *Road
}

// keptWork is how many Works a road keeps for reuse: as many as are under way at once, of up to 2 MiB each.
const keptWork = 8

// Release gives the memory back to the road.
func (w *Work) Release() {
	r := w.home
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.free) < keptWork {
		r.free = append(r.free, w)
	}
}

// RoadConfig is what a Road needs.
type RoadConfig struct {
	Input string
	// Open makes the framer (nil for none) and the format of a stream, seeing its first line.
	Open     func(s *Stream, first []byte) (Framer, Format, error)
	Enricher Enricher
	Redactor Redactor     // nil: no entries are made; a replay stores nothing
	Now      func() int64 // ns: the time of lines that carry none, when no line before them did
	// Take gets the work. It is called from the goroutine of the source, and owns the work until it releases it.
	Take func(*Work) error
}

// Road carries the blocks of one input: it cuts them into lines, undoes the framing, parses, enriches, redacts,
// and hands on what became of them. Each stream has a lane of its own, so that streams run side by side.
type Road struct {
	cfg   RoadConfig
	mu    sync.Mutex
	free  []*Work
	lanes map[string]*lane

	newest atomic.Int64 // ns: the newest time that a line of any stream carried
}

// A lane is what the road keeps of one stream: it belongs to the goroutine that emits the stream.
type lane struct {
	stream *Stream
	framer Framer
	format Format
	last   int64 // ns: the time of the last line that had one
	step   int64 // ns: its resolution

	mark  uint64       // tells the stream's lines from equal ones of another: see EntryTime
	shown atomic.Int64 // last, for those who do not own it
}

// NewRoad makes a road.
func NewRoad(cfg RoadConfig) *Road {
	return &Road{cfg: cfg, lanes: map[string]*lane{}}
}

// Emit takes a block down the road: it is the Emit of a source.
func (r *Road) Emit(b *Block) error {
	w := r.work(b)
	if len(b.Data) == 0 && !b.Last {
		return r.cfg.Take(w) // a position or skips alone: the stream's first line is still to come
	}
	l, err := r.lane(b)
	if err != nil {
		return err
	}
	for start := 0; start < len(w.data); {
		line := w.data[start:]
		end := len(w.data)
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			end, line = start+i+1, line[:i:i]
		}
		if last := len(line) - 1; last >= 0 && line[last] == '\r' {
			line = line[:last:last]
		}
		n := len(w.Items)
		r.physical(l, w, line, b.From+int64(start))
		if n = len(w.Items) - n; n > 0 {
			w.Split += n - 1
		} else {
			w.Joined++
		}
		start = end
	}
	if b.Last && l.framer != nil {
		for {
			line, offset, t, ok := l.framer.Flush()
			if !ok {
				break
			}
			n := len(w.Items)
			r.logical(l, w, line, offset, t, ReasonPartial)
			w.Split += len(w.Items) - n
		}
	}
	if l.framer != nil {
		if pending, waiting := l.framer.Pending(); waiting {
			w.Batch.To, w.Batch.Anchor = pending, 0 // a half line is read again after a restart
		}
	}
	l.shown.Store(l.last)
	for at := r.newest.Load(); l.last > at && !r.newest.CompareAndSwap(at, l.last); at = r.newest.Load() {
	}
	if b.Last {
		r.mu.Lock()
		delete(r.lanes, b.Stream.ID)
		r.mu.Unlock()
	}
	return r.cfg.Take(w)
}

// Newest gives the time that the last line of a stream carried, or with "" the newest of all streams, ns; false when
// none came or none told one.
func (r *Road) Newest(streamID string) (ns int64, ok bool) {
	if streamID == "" {
		ns = r.newest.Load()
		return ns, ns != 0
	}
	r.mu.Lock()
	l := r.lanes[streamID]
	r.mu.Unlock()
	if l == nil {
		return 0, false
	}
	ns = l.shown.Load()
	return ns, ns != 0
}

// Replay takes a stored batch down the road again, up to the detectors: its lines are parsed anew, and what
// redaction may have hidden from the enrichers is taken from the entries.
func (r *Road) Replay(b *Batch) error {
	block := &Block{Stream: b.Stream, From: b.From, To: b.To, Skips: b.Skips, Last: b.Last}
	if len(b.Entries) > 0 {
		block.Data = b.Entries[0].Line
	}
	l, err := r.lane(block)
	if err != nil {
		return err
	}
	block.Data = nil
	w := r.work(block)
	for i := range b.Entries {
		e := &b.Entries[i]
		r.logical(l, w, e.Line, 0, e.Time, ReasonNone)
		if item := &w.Items[len(w.Items)-1]; item.Kind == IsRecord && e.Kind == IsRecord {
			rec := &item.Record
			rec.Site, rec.Route, rec.Origin, rec.Class = e.Site, e.Route, e.Origin, e.Class
		}
	}
	return r.cfg.Take(w)
}

func (r *Road) spare() *Work {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free); n > 0 {
		w := r.free[n-1]
		r.free = r.free[:n-1]
		return w
	}
	return &Work{home: r, Failed: map[Reason]int{}}
}

// work takes a recycled Work and copies the block into it.
func (r *Road) work(b *Block) *Work {
	w := r.spare()
	w.Input, w.Bytes, w.Joined, w.Split = r.cfg.Input, int64(len(b.Data)), 0, 0
	w.Items, w.data, w.text = w.Items[:0], append(w.data[:0], b.Data...), w.text[:0]
	w.Behind = b.Behind && !b.Last
	clear(w.Failed)
	w.Batch = Batch{
		Stream: b.Stream, From: b.From, To: b.To, Skips: b.Skips, Last: b.Last, Anchor: b.Anchor,
		Entries: w.Batch.Entries[:0],
	}
	return w
}

func (r *Road) lane(b *Block) (*lane, error) {
	r.mu.Lock()
	l := r.lanes[b.Stream.ID]
	r.mu.Unlock()
	if l != nil {
		return l, nil
	}
	first, _, _ := bytes.Cut(b.Data, []byte{'\n'})
	framer, format, err := r.cfg.Open(b.Stream, first)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", b.Stream.Path, err)
	}
	l = &lane{stream: b.Stream, framer: framer, format: format, step: 1, mark: xxhash.Sum64String(b.Stream.ID)}
	r.mu.Lock()
	r.lanes[b.Stream.ID] = l
	r.mu.Unlock()
	return l, nil
}

// physical takes one line as it lies in the file, without its end.
func (r *Road) physical(l *lane, w *Work, line []byte, offset int64) {
	w.Batch.Lines++
	if l.framer == nil {
		r.logical(l, w, line, offset, 0, ReasonNone)
		return
	}
	inner, start, t, reason := l.framer.Next(line, offset)
	switch {
	case reason != ReasonNone:
		r.logical(l, w, line, offset, 0, reason)
	case inner != nil:
		// The framer's memory is reused by its next line; this one must live as long as the work.
		n := len(w.text)
		w.text = append(w.text, inner...)
		r.logical(l, w, w.text[n:len(w.text):len(w.text)], start, t, ReasonNone)
	}
}

// logical parses, enriches and stores one line, which may hold several records. A reason says that the framing
// has already refused it.
func (r *Road) logical(l *lane, w *Work, line []byte, offset, frame int64, reason Reason) {
	for {
		rest := r.item(l, w, line, offset, frame, reason)
		if len(rest) == 0 {
			return
		}
		offset += int64(len(line) - len(rest))
		line = rest
	}
}

// item makes one Item of the line, and gives back what the line holds beyond it.
func (r *Road) item(l *lane, w *Work, line []byte, offset, frame int64, reason Reason) (rest []byte) {
	if len(w.Items) < cap(w.Items) {
		w.Items = w.Items[:len(w.Items)+1]
	} else {
		w.Items = append(w.Items, Item{})
	}
	item := &w.Items[len(w.Items)-1]
	item.Reset()
	item.Line, item.Offset, item.FrameSet, item.Number = line, offset, frame != 0, w.Batch.Lines
	switch {
	case reason != ReasonNone:
		item.Kind, item.Reason = Failed, reason
	default:
		item.Time = frame // a format that has no time of its own may look at it
		l.format.Parse(line, item)
		if n := len(item.Rest); n > 0 && n < len(line) {
			rest = item.Rest
			item.Line = line[: len(line)-n : len(line)-n]
		}
	}
	l.date(item, frame)
	switch item.Kind {
	case IsRecord:
		r.cfg.Enricher.Enrich(&item.Record)
	case IsEvents:
		for i := range item.Events {
			l.place(&item.Events[i], item.Time)
		}
	case Failed:
		w.Failed[item.Reason]++
	}
	if r.cfg.Redactor != nil {
		r.enter(l, w, item)
	}
	return rest
}

// date gives the item its time: its own, else the frame's, else that of the line before.
func (l *lane) date(item *Item, frame int64) {
	t, step := int64(0), int64(1)
	switch {
	case item.Kind == IsRecord && item.Record.Time != 0:
		t, step = item.Record.Time, item.Record.Resolution
	case item.Kind == IsEvents && len(item.Events) > 0 && item.Events[0].Time != 0:
		t = item.Events[0].Time
	case frame != 0:
		t = frame
	}
	if t == 0 {
		item.Time = l.last
		return
	}
	item.Time, l.last, l.step = t, t, step
	if item.Kind == IsRecord && item.Record.Time == 0 {
		item.Record.Time, item.Record.Start, item.Record.End = t, t, t
		if d := item.Record.RequestTime; d > 0 {
			item.Record.Start = t - d
		}
	}
}

// place adds to an event what its stream tells about where it happened.
func (l *lane) place(e *Event, t int64) {
	if e.Time == 0 {
		e.Time = t
	}
	s := l.stream
	if e.Pod == "" && e.Namespace == "" {
		e.Namespace, e.Pod = s.Namespace, s.Pod
		if e.Container == "" {
			e.Container = s.Container
		}
	}
	if e.Node == "" {
		e.Node = s.Node
	}
}

// enter adds the line to the batch for the spool.
func (r *Road) enter(l *lane, w *Work, item *Item) {
	t, rec := item.Time, (*Record)(nil)
	if item.Kind == IsRecord {
		rec = &item.Record
	}
	if t == 0 {
		t = r.cfg.Now()
	}
	step := l.step
	if rec == nil {
		step = max(step, int64(time.Millisecond)) // the time is another line's: equal lines must still differ
	}
	e := Entry{
		Time: EntryTime(t, step, item.Offset, l.mark), Line: w.redact(r.cfg.Redactor, item.Line, rec),
		Kind: item.Kind, Reason: item.Reason, RequestTime: Unknown,
	}
	if rec != nil {
		e.Site, e.Route, e.Method, e.Status = rec.Site, rec.Route, rec.Method, rec.Status
		e.RequestTime, e.Class, e.Origin, e.Abandoned = rec.RequestTime, rec.Class, rec.Origin, rec.Abandoned
	}
	w.Batch.Entries = append(w.Batch.Entries, e)
}

// redact has the line redacted in the work's own memory.
func (w *Work) redact(r Redactor, line []byte, rec *Record) []byte {
	if room := len(line) + 64; cap(w.text)-len(w.text) < room {
		w.text = make([]byte, 0, max(2*cap(w.text), room, 64<<10)) // what lies in the old memory stays there
	}
	free := w.text[len(w.text):cap(w.text)]
	out := r.Line(free[:0], line, rec)
	if len(out) > 0 && len(out) <= len(free) && &out[0] == &free[0] {
		w.text = w.text[:len(w.text)+len(out)]
	}
	return out
}

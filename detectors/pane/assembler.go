package pane

import (
	"math"
	"slices"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// Config bounds an Assembler. A zero number takes its default.
type Config struct {
	Pane           time.Duration // length of a pane; 10 s
	MaxSites       int           // sites a pane beside Other; 1,024
	MaxCells       int           // cells a site beside those of the route Other; 4,096
	MaxPaneCells   int           // cells of a pane over all its sites while it is open; 4,096
	MaxEvents      int           // Events a pane; 10,000
	AgentsPerSite  int           // 256: kept of Site.Agents when a pane closes; four times as many are exact
	ClientsPerSite int           // 256: likewise of Site.Clients
	AgentsPerCell  int           // 16: likewise of Cell.TopAgents
	MaxOpen        int           // panes that wait for the watermark; 512
	MaxAhead       time.Duration // a line this far over its source's newest and lateness does not move time alone; 1 min
	MaxGap         time.Duration // after so much of nothing, empty panes are left out; 1 h

	// Whole is given each closed pane before its lists of agents and clients are shortened, and keeps nothing of it: who
	// adds up panes shortens the sum. nil: nobody is.
	Whole func(*Pane)

	// Reclaim is after how many ns a site takes a worker back from a stuck request. nil: 60 s for all.
	Reclaim func(site string) time.Duration

	kept int // cells of a closed pane: see keptOf
}

// exactFactor is how many times more keys a Top holds while its pane is open, and a merge may list, than are
// kept of it: up to there no order of the lines can change what is kept.
const exactFactor = 4

// A closed pane is kept for as long as the longest window, some thirty of them with the runs merged of them, so
// that their number of cells, over all sites and beside those of the route Other, is what bounds the memory. What a
// detector could speak of is never among the lightest of so many.
const (
	keptCells = 1024 // of ten seconds,
	leastKept = 256  // and fewer of less, but so many
	keptTop   = 4096 // agents, and clients, of a pane over all its sites,
	minTop    = 16   // but so many of each site
)

// keptOf is how many cells are kept of a closed pane, or of the merge of some, of that length in ns. Of short panes there
// are as many more as they are shorter.
func keptOf(length int64) int {
	return int(max(leastKept, min(keptCells, keptCells*length/int64(10*time.Second))))
}

func (c *Config) fill() {
	for _, d := range []struct {
		v   *int
		def int
	}{
		{&c.MaxSites, 1024}, {&c.MaxCells, 4096}, {&c.MaxPaneCells, 4096}, {&c.MaxEvents, 10000},
		{&c.AgentsPerSite, 256}, {&c.ClientsPerSite, 256}, {&c.AgentsPerCell, 16}, {&c.MaxOpen, 512},
	} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	for _, d := range []struct{ v, def *time.Duration }{
		{&c.Pane, new(10 * time.Second)}, {&c.MaxAhead, new(time.Minute)}, {&c.MaxGap, new(time.Hour)},
	} {
		if *d.v <= 0 {
			*d.v = *d.def
		}
	}
	c.kept = keptOf(int64(c.Pane))
	if c.Reclaim == nil {
		c.Reclaim = func(string) time.Duration { return time.Minute }
	}
}

// Assembler sorts Records and Events of several sources into panes and closes the panes in order, as the
// watermark passes them. It reads no clock. Its memory is bounded by its Config. Not safe for concurrent use.
type Assembler struct {
	cfg      Config
	length   int64 // of a pane, ns
	marks    watermark
	frontier int64 // ns: panes that begin before it are closed

	open    map[int64]*openPane // by start
	last    *openPane           // where the last Record went
	started bool
	next    int64       // start of the next pane to hand out, once started
	empty   int         // empty panes handed out in a row
	pending Coverage    // of lines without a pane: goes to the next one handed out
	spare   []*openPane // to be counted in again
	closed  int         // panes since it was looked at how many of them are needed
	unused  int         // of spare, the first of them: no pane needed them since then
	ranks   []ranked    // scratch for seal
	tellers []teller
	names   map[string]int // of tellers
}

// NewAssembler returns an Assembler without sources.
func NewAssembler(cfg Config) *Assembler {
	cfg.fill()
	return &Assembler{
		cfg: cfg, length: int64(cfg.Pane), frontier: noTime,
		marks: watermark{holder: -1, at: noTime}, open: map[int64]*openPane{}, names: map[string]int{},
	}
}

// Source adds a source whose lines come at most lateness out of order, and returns its number. It holds the
// watermark back until it has had lines (three, unless Observe tells more), is Idle or is Done. The files of one log
// have one name; what has none is not listened to.
func (a *Assembler) Source(name string, lateness time.Duration) int {
	a.marks.clocks = append(a.marks.clocks, a.newClock(name, lateness))
	a.marks.settle()
	return len(a.marks.clocks) - 1
}

func (a *Assembler) newClock(name string, lateness time.Duration) clock {
	i := a.tell(name)
	a.tellers[i].awaited = max(a.tellers[i].awaited-1, 0)
	return clock{teller: i, lateness: int64(max(lateness, 0)), newest: noTime, hold: never}
}

// Add counts a Record in the pane of its End; without one, in that of the newest line of its source. It
// reports that the pane had been closed: then the Record is counted as late and nowhere else.
func (a *Assembler) Add(src int, r *pipeline.Record) (late bool) {
	t := a.timeOf(src, r.End)
	a.see(src, t)
	o, late := a.paneOf(t)
	if o != nil {
		o.pane.Coverage.Lines++
		if behind(r) {
			o = a.passed(o)
		}
		a.count(o, src, r)
	}
	return late
}

// AddEvent counts an Event, as Add does a Record. An Event without a time gets that of the newest line.
func (a *Assembler) AddEvent(src int, e pipeline.Event) (late bool) {
	e.Time = a.timeOf(src, e.Time)
	a.see(src, e.Time)
	o, late := a.paneOf(e.Time)
	if o == nil {
		return late
	}
	o.pane.Coverage.Lines++
	o.pane.Events = append(o.pane.Events, e)
	if len(o.pane.Events) >= 2*a.cfg.MaxEvents {
		o.pane.cutEvents(a.cfg.MaxEvents)
	}
	return false
}

// Gap counts lines lost at time t (ns; 0: at the newest line of the source).
func (a *Assembler) Gap(src int, t int64) {
	if o, _ := a.lookup(a.timeOf(src, t)); o != nil {
		o.pane.Coverage.Gaps++
		return
	}
	a.pending.Gaps++
}

// Observe promises that nothing older than t minus its lateness is to come from a source. It is trusted: no
// other line needs to agree.
func (a *Assembler) Observe(src int, t int64) {
	c := &a.marks.clocks[src]
	if t > c.newest {
		c.newest, c.waiting = t, 0
	}
	c.idle = false
	a.settle()
}

// Hold tells that lines of a source from t on (ns; math.MinInt64: it is not known from when) lie unread, of a file that
// is behind others of the same source: the watermark does not pass them. Release ends it. While half of MaxOpen panes
// wait, nothing is held: what was far ahead would be dropped.
func (a *Assembler) Hold(src int, t int64) {
	if 2*len(a.open) >= a.cfg.MaxOpen {
		t = never
	}
	if c := &a.marks.clocks[src]; c.hold != t {
		c.hold = t
		a.settle()
	}
}

// Release ends a Hold.
func (a *Assembler) Release(src int) { a.Hold(src, never) }

// Idle tells that a source has nothing to read for now, or has again. An idle source does not hold the
// watermark back; its next line ends the idleness.
func (a *Assembler) Idle(src int, idle bool) {
	if c := &a.marks.clocks[src]; c.idle != idle {
		c.idle = idle
		a.settle()
	}
}

// Done tells that a source has come to its end.
func (a *Assembler) Done(src int) {
	c := &a.marks.clocks[src]
	c.done = true
	a.tellers[c.teller].last = max(a.tellers[c.teller].last, c.newest)
	a.settle()
}

// Reuse gives the number of a source that is Done to a new one, so that a replay of many files needs few.
func (a *Assembler) Reuse(src int, name string, lateness time.Duration) {
	a.marks.clocks[src] = a.newClock(name, lateness)
	a.settle()
}

// Loosen tells that the times of a source are not believed: its lines are counted where they say, and hold and move
// nothing.
func (a *Assembler) Loosen(src int) {
	a.marks.clocks[src].loose = true
	a.settle()
}

// Refuse counts n lines that cannot be counted where they say they belong as late.
func (a *Assembler) Refuse(n uint64) { a.pending.Late += n }

// Advance moves the watermark to t, in ns, if no source holds it: live, with all sources idle, t is the wall
// time less what lines may still be on their way. Until some line has told a time there is nothing to move.
func (a *Assembler) Advance(t int64) {
	if a.marks.holder < 0 && a.marks.at != noTime && t > a.marks.at {
		a.marks.at = t
		a.moveFrontier()
	}
}

// Watermark is the time before which all is complete, in ns; math.MinInt64 until it is known.
func (a *Assembler) Watermark() int64 { return a.marks.at }

// Holder is the source that holds the watermark back: the one to read next when panes pile up.
func (a *Assembler) Holder() (src int, ok bool) { return a.marks.holder, a.marks.holder >= 0 }

// SourceName is the name that was given to Source.
func (a *Assembler) SourceName(src int) string { return a.tellers[a.marks.clocks[src].teller].name }

// Open is how many panes wait for the watermark. Over MaxOpen those farthest ahead are dropped and counted.
func (a *Assembler) Open() int { return len(a.open) }

// Flush closes every pane: the end of all input.
func (a *Assembler) Flush() {
	for start := range a.open {
		a.marks.at = max(a.marks.at, start+a.length)
	}
	a.moveFrontier()
}

// Next hands out the next closed pane, nil when there is none. Panes come in order and without holes, empty
// ones included; only after MaxGap of empty ones the rest of the hole is left out, and the pane behind it has
// Jump set. The pane belongs to the caller.
func (a *Assembler) Next() *Pane {
	if !a.started {
		start, ok := a.earliest()
		if !ok || start >= a.frontier {
			return nil
		}
		a.started, a.next = true, start
	}
	if a.next >= a.frontier {
		return nil
	}
	o, jump := a.open[a.next], false
	if o == nil && int64(a.empty)*a.length >= int64(a.cfg.MaxGap) {
		start, ok := a.earliest()
		if !ok || start >= a.frontier {
			return nil
		}
		o, jump, a.next = a.open[start], true, start
	}
	start := a.next
	a.next += a.length
	if o == nil {
		a.empty++
		return a.finish(&Pane{Start: start, End: a.next, Sites: map[string]*Site{}}, nil)
	}
	a.empty = 0
	delete(a.open, start)
	if a.last == o {
		a.last = nil
	}
	p := o.pane
	p.Jump = jump
	o.waits.close(p)
	o.join()
	a.finish(p, o.heard)
	a.recycle(o)
	return p
}

// finish brings a pane into its final, canonical form.
func (a *Assembler) finish(p *Pane, heard []uint64) *Pane {
	p.Coverage.add(&a.pending)
	a.pending = Coverage{}
	a.listen(p, heard)
	p.bound(&a.cfg)
	if a.cfg.Whole != nil {
		a.cfg.Whole(p)
	}
	a.seal(p)
	return p
}

// bound folds a pane to what is kept of it.
func (p *Pane) bound(cfg *Config) {
	p.cutEvents(cfg.MaxEvents)
	p.Fold(cfg.MaxSites, cfg.MaxCells)
	p.foldAll(cfg.kept)
}

// shorten cuts the lists of agents and clients to what is kept of them.
func (p *Pane) shorten(cfg *Config) {
	agents, clients := p.lists(cfg)
	for _, s := range p.Sites {
		s.Agents.trim(agents)
		s.Clients.trim(clients)
		for _, c := range s.cells {
			c.TopAgents.trim(cfg.AgentsPerCell)
		}
	}
}

// lists is how many agents, and clients, are kept of each site.
func (p *Pane) lists(cfg *Config) (agents, clients int) {
	share := max(keptTop/max(len(p.Sites), 1), minTop)
	return min(cfg.AgentsPerSite, share), min(cfg.ClientsPerSite, share)
}

func (t *Top) trim(n int) {
	if t != nil {
		t.Trim(n)
	}
}

func (a *Assembler) earliest() (start int64, ok bool) {
	start = math.MaxInt64
	for s := range a.open {
		start, ok = min(start, s), true
	}
	return start, ok
}

// timeOf gives a line its place in time where it carries none that can be right.
func (a *Assembler) timeOf(src int, t int64) int64 {
	const latest = 1 << 62 // ns, the year 2116: keeps sums of times from overflowing
	if t > 0 && t < latest {
		return t
	}
	if c := &a.marks.clocks[src]; c.newest != noTime {
		return c.newest
	}
	return max(a.marks.at, 0)
}

func (a *Assembler) see(src int, t int64) {
	c := &a.marks.clocks[src]
	moved := c.see(t, int64(a.cfg.MaxAhead)+c.lateness)
	switch {
	case c.idle:
		c.idle = false
		a.settle()
	case moved && src == a.marks.holder:
		a.settle()
	}
}

func (a *Assembler) settle() {
	a.marks.settle()
	a.moveFrontier()
}

func (a *Assembler) moveFrontier() {
	if a.marks.at != noTime {
		a.frontier = max(a.frontier, a.startOf(a.marks.at))
	}
}

func (a *Assembler) startOf(t int64) int64 {
	r := t % a.length
	if r < 0 {
		r += a.length
	}
	return t - r
}

// paneOf finds or opens the pane of a line and counts the line where it has none.
func (a *Assembler) paneOf(t int64) (o *openPane, late bool) {
	if o := a.last; o != nil && t >= o.pane.Start && t < o.pane.End && t >= a.frontier {
		return o, false
	}
	o, late = a.lookup(t)
	switch {
	case late:
		a.pending.Late++
	case o == nil:
		a.pending.Dropped++
	default:
		a.last = o
	}
	return o, late
}

func (a *Assembler) lookup(t int64) (o *openPane, late bool) {
	if t < a.frontier {
		return nil, true
	}
	start := a.startOf(t)
	if o := a.open[start]; o != nil {
		return o, false
	}
	if len(a.open) >= a.cfg.MaxOpen && !a.dropAfter(start) {
		return nil, false
	}
	if n := len(a.spare); n > 0 {
		o, a.spare = a.spare[n-1], a.spare[:n-1]
		a.unused = min(a.unused, n-1)
	} else {
		o = newOpenPane()
	}
	o.pane = &Pane{Start: start, End: start + a.length, Sites: map[string]*Site{}}
	a.open[start] = o
	if 2*len(a.open) == a.cfg.MaxOpen {
		for src := range a.marks.clocks {
			a.Release(src)
		}
	}
	return o, false
}

// dropAfter makes room by dropping the pane farthest ahead, if that is behind start.
func (a *Assembler) dropAfter(start int64) bool {
	farthest := start
	for s := range a.open {
		farthest = max(farthest, s)
	}
	if farthest == start {
		return false
	}
	o := a.open[farthest]
	a.pending.Dropped += o.pane.Coverage.Lines
	a.pending.Gaps += o.pane.Coverage.Gaps
	delete(a.open, farthest)
	if a.last == o {
		a.last = nil
	}
	return true
}

// cutEvents sorts the events and leaves the first limit of them, which no order of arrival changes.
func (p *Pane) cutEvents(limit int) {
	SortEvents(p.Events)
	if n := len(p.Events); n > limit {
		p.Coverage.EventsDropped += uint64(n - limit)
		p.Events = slices.Delete(p.Events, limit, n)
	}
}

package pane

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// UnionConfig bounds a Union. A zero number takes its default.
type UnionConfig struct {
	Pane     time.Duration // length of a pane; 10 s
	Lateness time.Duration // how long a pane waits for the nodes that have not told of it; 30 s
	Forget   time.Duration // after so much silence a node is known no more; 1 h
	Keep     time.Duration // the longest window: what of the past can be recalled; 1 h
	MaxNodes int           // 4,096
	MaxBytes int           // of reports that wait; over it, panes wait for nobody; 256 MiB
	MaxAhead time.Duration // a report this far over the time of its arrival is refused; 1 h
	Caps     Config        // of a merged pane: MaxSites, MaxCells, MaxEvents and the Per numbers
}

func (c *UnionConfig) fill() {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&c.Pane, 10 * time.Second}, {&c.Lateness, 30 * time.Second}, {&c.Forget, time.Hour}, {&c.Keep, time.Hour}, {&c.MaxAhead, time.Hour},
	} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	c.MaxNodes = cmp.Or(c.MaxNodes, 4096)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.Caps.Pane = c.Pane
	c.Caps.fill()
}

// A Union merges the panes of a fleet's nodes, as an Assembler counts the lines of one node's sources. It is a function
// of the sequence of reports and of the times at which their carrier took them, and of nothing else: whoever takes the
// same sequence hands out the same panes. It reads no clock. Not safe for concurrent use.
//
// A pane is handed out when all nodes that are counted have told of it, or Lateness after the first could. Who has not
// told by then is absent, and nobody waits for it, until it has caught up. Reports are kept by node and pane, the newest
// of each: what comes twice, or in another order, changes nothing.
type Union struct {
	cfg     UnionConfig
	length  int64
	members map[string]*member
	parts   [gatherings]map[string]*member // the members, by the part of a sum that they belong to
	open    map[int64]*gathering           // by start of the pane
	bytes   int                            // of open
	now     int64                          // ns: the newest time of arrival
	since   int64                          // ns: of the first
	back    int64                          // ns: when the carrier was back after it had been away
	seq     uint64                         // of the report at hand, by its carrier
	started bool
	next    int64 // start of the next pane to hand out, once started
	empty   int   // panes handed out in a row that nobody told of
	leads   []lead
	marks   []mark
	pending Coverage             // of reports that came too late
	past    map[int64]*gathering // reports that are read again, by start of a pane that was handed out
}

// member is what is known of one node.
type member struct {
	Boot, Seq uint64 // the last report up to which all came
	Frontier  int64  // ns: the end of its pane
	Ahead     map[uint64]int64
	First     int64 // ns: the start of the first pane that it told of
	Heard     int64 // ns: when its last report arrived
	Newest    int64 // ns: the end of the newest pane that it told of
	Absent    bool
	Late      uint64  // its reports that came too late
	Lacked    []int64 // starts of panes that were handed out without it, ascending
	Config    string
	Last      uint64  // the report that nothing follows; 0: none is known
	Refused   string  // why its last report was refused; "": it was not
	Broken    string  // why its last report that was to be merged was none
	Skews     []int64 // ns: of the last reports, how far Sent was ahead of their arrival
	Twin      int64   // ns: when a process told that began before the one that it is known by, and goes on; 0: none did
}

// lead is when the end of a pane was first told of.
type lead struct{ End, At int64 }

// mark is which reports a pane was made of.
type mark struct {
	Start         int64
	From, Through uint64 // the carrier's numbers
	Absent        int    // nodes
}

const (
	maxAheadReports = 64  // of one node, behind a hole
	maxLacked       = 720 // panes, of one node
	keptSkews       = 6
	twinsFor        = int64(5 * time.Minute) // ns: after the last that told of it
)

// NewUnion returns a Union that knows no node.
func NewUnion(cfg UnionConfig) *Union {
	cfg.fill()
	return &Union{
		cfg: cfg, length: int64(cfg.Pane), members: map[string]*member{}, open: map[int64]*gathering{},
	}
}

// Take takes the next report of a node, with the number that its carrier gave it and the time, in ns, at which it was
// taken there.
func (u *Union) Take(node string, r *Report, seq uint64, at int64) {
	u.seq = seq
	u.pass(at)
	if u.since == 0 {
		u.since = at
	}
	m := u.member(node, at)
	if m == nil {
		return
	}
	m.Heard, m.Config = at, r.Config
	m.Skews = append(m.Skews[max(0, len(m.Skews)+1-keptSkews):], r.Sent-at)
	if m.Refused = u.refuses(r, at); m.Refused != "" {
		return
	}
	current := !u.started || r.Start >= u.next
	timely := current || u.now < u.due(r.End)
	repeated := m.repeats(r)
	if r.Boot < m.Boot && r.Sent > int64(m.Boot)*int64(time.Millisecond)+2*u.length {
		m.Twin = at
	}
	switch {
	case r.Done:
	case current:
		u.keep(node, r)
	case m.Boot == 0 || m.lacked(r.Start):
		m.Late++
		u.pending.Late += r.Lines
	}
	if repeated {
		return
	}
	m.First, m.Newest = min(m.First, r.Start), max(m.Newest, r.End)
	if r.Boot > m.Boot {
		m.Last = 0
	}
	m.follow(r, timely)
	if r.Done {
		m.Last = r.Seq
	}
	if m.Frontier > u.lead() && !m.Absent {
		u.leads = append(u.leads, lead{m.Frontier, u.now})
	}
	u.gather(node, r.Start)
}

// Refuse notes that a message of a node could not be read.
func (u *Union) Refuse(node string, seq uint64, at int64, why string) {
	u.seq = seq
	u.pass(at)
	if m := u.member(node, at); m != nil {
		m.Heard, m.Refused = at, why
	}
}

// pass lets time come to an arrival. When nobody was heard for two panes it was the carrier that was away, and what nodes
// have to tell comes all at once, one node after another: they have their time to do so from now on.
func (u *Union) pass(at int64) {
	if u.now > 0 && at-u.now > 2*u.length {
		u.back = at
	}
	u.now = max(u.now, at)
}

// member finds a node, or makes it known.
func (u *Union) member(node string, at int64) *member {
	m := u.members[node]
	if m == nil {
		if len(u.members) >= u.cfg.MaxNodes {
			u.forget()
		}
		if len(u.members) >= u.cfg.MaxNodes {
			u.pending.Gaps++
			return nil
		}
		// Whoever comes when panes were handed out already has nothing to say of those.
		m = &member{Absent: u.started, First: math.MaxInt64, Heard: at}
		u.know(node, m)
	}
	return m
}

func (u *Union) know(node string, m *member) {
	u.members[node] = m
	part := partOf(node)
	if u.parts[part] == nil {
		u.parts[part] = map[string]*member{}
	}
	u.parts[part][node] = m
}

func (u *Union) refuses(r *Report, at int64) string {
	switch {
	case r.Length != u.length:
		return "its panes are " + time.Duration(r.Length).String() + " long, and those of the fleet " + u.cfg.Pane.String()
	case r.End > at+int64(u.cfg.MaxAhead):
		return "its clock is more than " + u.cfg.MaxAhead.String() + " ahead"
	}
	return ""
}

// left tells whether all came of what the node had to tell.
func (m *member) left() bool { return m.Last > 0 && m.Seq == m.Last }

// repeats tells whether the report, or one that took its place, was taken already.
func (m *member) repeats(r *Report) bool {
	_, ahead := m.Ahead[r.Seq]
	return r.Boot < m.Boot || r.Boot == m.Boot && (ahead || r.Seq <= m.Seq)
}

// lacked tells whether the pane was handed out without the node, once.
func (m *member) lacked(start int64) bool {
	i, found := slices.BinarySearch(m.Lacked, start)
	if found {
		m.Lacked = slices.Delete(m.Lacked, i, i+1)
	}
	return found
}

// keep holds a report until its pane is handed out: of one node and pane, the newest.
func (u *Union) keep(node string, r *Report) {
	g := u.open[r.Start]
	if g == nil {
		g = newGathering(r.Start, r.End, u.seq)
		u.open[r.Start] = g
	}
	u.bytes += g.put(node, r)
}

// gather adds up the part of a pane that a node belongs to, if all that are waited for have told.
func (u *Union) gather(node string, start int64) {
	g, part := u.open[start], partOf(node)
	if g == nil {
		return
	}
	for name, m := range u.parts[part] {
		if !m.Absent && !m.left() && m.First <= start && g.reports[name] == nil {
			return
		}
	}
	g.add(part, &u.cfg.Caps)
}

// follow moves the frontier over the reports that came without a hole. After a hole it waits for what is missing, unless
// the node is given up: then it begins with what comes in time again.
func (m *member) follow(r *Report, timely bool) {
	anew := m.Boot == 0 || r.Boot > m.Boot && r.Seq <= m.Seq || m.Absent && timely
	if !anew && r.Seq != m.Seq+1 {
		if m.Ahead == nil {
			m.Ahead = map[uint64]int64{}
		}
		if len(m.Ahead) < maxAheadReports {
			m.Ahead[r.Seq] = r.End
		}
		return
	}
	if anew {
		clear(m.Ahead)
	}
	m.Absent = m.Absent && !timely
	m.Boot, m.Seq, m.Frontier = r.Boot, r.Seq, max(m.Frontier, r.End)
	m.join()
}

// lead is the end of the newest pane that some node has told all before of.
func (u *Union) lead() int64 {
	if len(u.leads) == 0 {
		return math.MinInt64
	}
	return u.leads[len(u.leads)-1].End
}

// forget drops nodes that are silent for long.
func (u *Union) forget() {
	for name, m := range u.members {
		if u.now-m.Heard > int64(u.cfg.Forget) {
			delete(u.members, name)
			delete(u.parts[partOf(name)], name)
		}
	}
}

// Next hands out the next pane and the names of the nodes that it lacks, sorted; nil when there is none. Panes come in
// order and without holes, as an Assembler's do.
func (u *Union) Next() (p *Pane, absent []string) {
	if !u.begin() || !u.ready() {
		return nil, nil
	}
	jump := false
	if u.open[u.next] == nil && int64(u.empty)*u.length >= int64(u.cfg.Caps.MaxGap) {
		start, ok := u.earliest()
		if !ok {
			return nil, nil
		}
		jump = start != u.next
		u.next = start
		if !u.ready() {
			return nil, nil
		}
	}
	start := u.next
	u.next += u.length
	for len(u.leads) > 1 && u.leads[0].End < u.next+u.length && u.leads[0].At+int64(u.cfg.Lateness) < u.now {
		u.leads = u.leads[1:]
	}
	g := u.open[start]
	if u.empty++; g != nil {
		u.empty = 0
	} else {
		g = newGathering(start, u.next, u.seq)
	}
	u.bytes -= g.size()
	u.forget()
	p, absent = u.merge(g)
	u.note(mark{start, g.first, u.seq, len(absent)})
	delete(u.open, start)
	p.Jump = jump
	p.Coverage.add(&u.pending)
	u.pending = Coverage{}
	return p, absent
}

// begin finds the first pane. A fleet that is new waits until its nodes had time to speak.
func (u *Union) begin() bool {
	if u.started {
		return true
	}
	start, ok := u.earliest()
	if !ok || u.now < u.since+int64(u.cfg.Lateness) && !u.allLeft() {
		return false
	}
	u.started, u.next = true, start
	return true
}

func (u *Union) allLeft() bool {
	for _, m := range u.members {
		if !m.left() {
			return false
		}
	}
	return true
}

func (u *Union) earliest() (start int64, ok bool) {
	start = math.MaxInt64
	for s := range u.open {
		start, ok = min(start, s), true
	}
	return start, ok
}

// ready tells whether the next pane may be handed out, and gives up those that it has waited for long enough.
func (u *Union) ready() bool {
	end := u.next + u.length
	patient := u.now < u.due(end) && u.bytes <= u.cfg.MaxBytes
	told, absent := false, false
	var waiting []*member
	for _, m := range u.members {
		switch {
		case m.Frontier >= end:
			told = true
		case m.Absent && !m.left():
			absent = true
		case !m.left():
			if patient { // one is enough: this is asked after each report
				return false
			}
			waiting = append(waiting, m)
		}
	}
	if !told || absent && len(waiting) == 0 && u.ahead(end) {
		return false
	}
	for _, m := range waiting {
		m.Absent = !m.skip() || m.Frontier < end
	}
	return true
}

// ahead tells whether a pane has not ended yet, by the clocks of most nodes: who tells of it alone has one that is ahead,
// and must not lead the fleet to where nobody else can follow.
func (u *Union) ahead(end int64) bool {
	if u.now >= end {
		return false
	}
	skews := make([]int64, 0, len(u.members))
	for _, m := range u.members {
		if len(m.Skews) > 0 {
			skews = append(skews, slices.Max(m.Skews))
		}
	}
	slices.Sort(skews)
	return u.now+skews[len(skews)/2] < end
}

// skip goes on behind a hole in the reports, if any came from there.
func (m *member) skip() bool {
	if len(m.Ahead) == 0 {
		return false
	}
	m.Seq = slices.Min(slices.Collect(maps.Keys(m.Ahead))) - 1
	m.join()
	return true
}

// join takes in the reports that came before those they follow.
func (m *member) join() {
	for end, ok := m.Ahead[m.Seq+1]; ok; end, ok = m.Ahead[m.Seq+1] {
		m.Seq++
		m.Frontier = max(m.Frontier, end)
		delete(m.Ahead, m.Seq)
	}
}

// due is until when, in ns, a pane waits. A node whose clock is ahead tells of it too early: nobody is late before it
// has ended.
func (u *Union) due(end int64) int64 {
	at := int64(math.MaxInt64 / 2)
	if i := slices.IndexFunc(u.leads, func(l lead) bool { return l.End >= end }); i >= 0 {
		at = max(u.leads[i].At, end, u.back)
	}
	return at + int64(u.cfg.Lateness)
}

func (u *Union) note(m mark) {
	u.marks = append(u.marks, m)
	old := 0
	for u.marks[old].Start+int64(u.cfg.Keep)+u.length < u.next {
		old++
	}
	u.marks = slices.Delete(u.marks, 0, old)
}

// merge adds up the reports of one pane, and notes who has not told.
func (u *Union) merge(g *gathering) (p *Pane, absent []string) {
	p, broken := g.sum(&u.cfg.Caps)
	for _, name := range slices.Sorted(maps.Keys(u.members)) {
		m := u.members[name]
		switch why := broken[name]; {
		case why != "":
			m.Broken = why
		case g.reports[name] != nil:
			m.Broken = ""
			continue
		case m.left(), g.start < m.First && m.Refused == "": // who was always refused told of no pane, and has traffic
			continue
		}
		absent = append(absent, name)
		m.Lacked = append(m.Lacked[max(0, len(m.Lacked)+1-maxLacked):], g.start)
	}
	p.Coverage.Absent = uint64(len(absent))
	return p, absent
}

// A NodeState is what a Union knows of a node.
type NodeState struct {
	Node    string
	State   string // one of NodeStates
	Newest  int64  // ns: the end of the newest pane that it told of
	Heard   int64  // ns: when its last report arrived
	Late    uint64 // its reports that came too late
	Config  string // the hash of what shapes its panes
	Skew    int64  // ns: how far its clock is ahead, by what it last told; the way of a report is within
	Refused string // why its last report was refused
	Twins   bool   // two processes tell by its name
}

// The states of a node.
const (
	NodeCounted = "counted" // panes wait for it
	NodeLate    = "late"    // what it tells comes too late: nobody waits for it
	NodeMissing = "missing" // it tells nothing
	NodeRefused = "refused" // what it tells cannot be counted
	NodeLeft    = "left"    // its logs have ended
)

// NodeStates lists the states of a node.
var NodeStates = []string{NodeCounted, NodeLate, NodeMissing, NodeRefused, NodeLeft}

// Nodes lists what is known of the nodes, by name.
func (u *Union) Nodes() []NodeState {
	out := make([]NodeState, 0, len(u.members))
	for name, m := range u.members {
		s := NodeState{
			Node: name, State: NodeCounted, Newest: m.Newest, Heard: m.Heard, Late: m.Late, Config: m.Config, Refused: cmp.Or(m.Refused, m.Broken),
		}
		s.Twins = m.Twin > 0 && u.now-m.Twin < twinsFor
		if len(m.Skews) > 0 {
			s.Skew = slices.Max(m.Skews)
		}
		silent := u.now-m.Heard > 3*u.length+int64(u.cfg.Lateness)
		switch {
		case m.left():
			s.State = NodeLeft
		case silent || m.Absent && u.now-m.Heard > 3*u.length:
			s.State = NodeMissing
		case s.Refused != "":
			s.State = NodeRefused
		case m.Absent:
			s.State = NodeLate
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b NodeState) int { return strings.Compare(a.Node, b.Node) })
	return out
}

// Now is the newest time, in ns, at which a report arrived.
func (u *Union) Now() int64 { return u.now }

// Seq is the carrier's number of the report that was taken last.
func (u *Union) Seq() uint64 { return u.seq }

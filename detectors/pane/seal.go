package pane

import "slices"

// A pane is counted in with room to spare, and kept for as long as the longest window. When it closes, what is kept of it
// is copied into a few slices that fit, and what it was counted in is emptied for the pane after the next: in steady traffic
// nothing is taken from the heap for a line, and little for a pane.
const (
	maxSpare = 4  // open panes that are kept to be counted in again
	maxIdle  = 30 // panes after which a place is given up that no line came for
)

// sealedCell is a cell of a closed pane.
type sealedCell struct {
	Key
	Cell
}

// slabs are what a closed pane consists of.
type slabs struct {
	cells     []sealedCell
	tops      []Top
	entries   []entry
	addresses [][16]byte
	numbers   []uint64
	codes     []codeCount
	bins      []bin
	shares    []share
	samples   []sample
	text      []byte
	ranks     []ranked // scratch
}

// put copies a list into a slab; nil for an empty one.
func put[T any](slab *[]T, list []T) []T {
	from := len(*slab)
	*slab = append(*slab, list...)
	return since(*slab, from)
}

// since is what was put into a slab from a place on.
func since[T any](slab []T, from int) []T {
	if from == len(slab) {
		return nil
	}
	return slab[from:len(slab):len(slab)]
}

// seal puts copies that fit in the place of all that the pane was counted in, with the lists of agents and clients cut to
// what is kept of them.
func (a *Assembler) seal(p *Pane) {
	agents, clients := p.lists(&a.cfg)
	var n need
	for _, s := range p.Sites {
		n.top(s.Agents, agents)
		n.top(s.Clients, clients)
		for _, c := range s.cells {
			n.cell(c, a.cfg.AgentsPerCell)
		}
	}
	b := n.slabs()
	b.ranks = a.ranks
	sites := make(map[string]*Site, len(p.Sites))
	for name, s := range p.Sites {
		sealed := &Site{Waits: s.Waits}
		sealed.Agents, sealed.Clients = b.top(s.Agents, agents), b.top(s.Clients, clients)
		from := len(b.cells)
		for key, c := range s.cells {
			b.cell(key, c, a.cfg.AgentsPerCell)
		}
		sealed.sealed = since(b.cells, from)
		sites[name] = sealed
	}
	p.Sites, a.ranks = sites, b.ranks
}

// need is how large the slabs have to be.
type need struct{ cells, tops, entries, addresses, numbers, codes, bins, shares, samples, text int }

func (n *need) slabs() *slabs {
	return &slabs{
		cells: make([]sealedCell, 0, n.cells), tops: make([]Top, 0, n.tops), entries: make([]entry, 0, n.entries),
		addresses: make([][16]byte, 0, n.addresses), numbers: make([]uint64, 0, n.numbers+1), // and room for a free slot
		codes: make([]codeCount, 0, n.codes), bins: make([]bin, 0, n.bins), shares: make([]share, 0, n.shares),
		samples: make([]sample, 0, n.samples), text: make([]byte, 0, n.text),
	}
}

func (n *need) top(t *Top, keep int) {
	if t == nil {
		return
	}
	n.tops++
	n.entries += min(len(t.entries), keep)
	n.numbers += min(len(t.entries), keep)
	n.addresses += min(len(t.addresses), keep)
}

func (n *need) cell(c *Cell, agents int) {
	n.cells++
	n.top(c.TopAgents, agents)
	n.codes += len(c.Codes.counts)
	n.shares += len(c.Busy.past) + len(c.Busy.future)
	for _, d := range c.sets() {
		n.numbers += d.n
	}
	if low, high, bins := c.Latency.extent(); bins > sparseBins {
		n.numbers += high - low
	} else {
		n.bins += bins
	}
	n.samples += len(c.Samples.kept)
	for i := range c.Samples.kept {
		n.text += len(c.Samples.kept[i].text)
	}
}

// sets are all the sets of a cell.
func (c *Cell) sets() [5]*Distinct {
	return [5]*Distinct{&c.Clients, &c.Agents, &c.URLs, &c.Missed, &c.Refused.Clients}
}

func (b *slabs) top(t *Top, keep int) *Top {
	if t == nil {
		return nil
	}
	b.tops = append(b.tops, *t)
	sealed := &b.tops[len(b.tops)-1]
	sealed.index, sealed.capacity = nil, keep
	if len(t.entries) <= keep {
		sealed.entries, sealed.hashes, sealed.addresses = put(&b.entries, t.entries), put(&b.numbers, t.hashes), put(&b.addresses, t.addresses)
		return sealed
	}
	b.ranks = sealed.choose(b.ranks[:0])
	entries, numbers, addresses := len(b.entries), len(b.numbers), len(b.addresses)
	for i := range b.ranks {
		at := b.ranks[i].at
		b.entries, b.numbers = append(b.entries, t.entries[at]), append(b.numbers, t.hashes[at])
		if len(t.addresses) > 0 {
			b.addresses = append(b.addresses, t.addresses[at])
		}
	}
	sealed.entries, sealed.hashes, sealed.addresses = since(b.entries, entries), since(b.numbers, numbers), since(b.addresses, addresses)
	return sealed
}

func (b *slabs) cell(key Key, c *Cell, agents int) {
	b.cells = b.cells[:len(b.cells)+1]
	at := &b.cells[len(b.cells)-1]
	sealed := &at.Cell
	at.Key, *sealed = key, *c
	sealed.Codes.counts = put(&b.codes, c.Codes.counts)
	sealed.Busy.past, sealed.Busy.future = put(&b.shares, c.Busy.past), put(&b.shares, c.Busy.future)
	for _, d := range sealed.sets() {
		d.slots = b.set(d.slots)
	}
	b.durations(&sealed.Latency)
	sealed.TopAgents = b.top(c.TopAgents, agents)
	sealed.Samples = Samples{kept: put(&b.samples, c.Samples.kept)}
	for i := range sealed.Samples.kept {
		x := &sealed.Samples.kept[i]
		x.text = put(&b.text, x.text)
	}
}

// set leaves out the free slots.
func (b *slabs) set(slots []uint64) []uint64 {
	from, n := len(b.numbers), 0
	room := b.numbers[from:cap(b.numbers)]
	for _, hash := range slots {
		room[n] = hash // without a branch: which slots are free is a matter of chance
		if hash != 0 {
			n++
		}
	}
	b.numbers = b.numbers[:from+n]
	return since(b.numbers, from)
}

func (b *slabs) durations(q *Quantiles) {
	low, high, n := q.extent()
	if n > sparseBins {
		q.first, q.dense = q.first+low, put(&b.numbers, q.dense[low:high])
		return
	}
	from := len(b.bins)
	q.bins(func(index int, n uint64) bool {
		b.bins = append(b.bins, bin{int32(index), n})
		return true
	})
	*q = Quantiles{count: q.count, zeros: q.zeros, pairs: since(b.bins, from)}
}

// recycle keeps what a closed pane was counted in for another one. The last one is used first; what a flood of panes left
// beneath, and none has needed since, is given up with all the memory that the flood had taken.
func (a *Assembler) recycle(o *openPane) {
	if a.closed++; a.closed >= maxIdle {
		a.spare = slices.Delete(a.spare, 0, a.unused)
		a.closed, a.unused = 0, len(a.spare)
	}
	if len(a.spare) < maxSpare {
		o.empty(&a.cfg)
		a.spare = append(a.spare, o)
	}
}

// empty makes a pane's counters ready for another pane. Of those that no place had need of, some are given up.
func (o *openPane) empty(cfg *Config) {
	if o.passed != nil && o.passed.pane != nil {
		o.passed.empty(cfg)
	}
	o.free = slices.Delete(o.free, 0, (o.least+maxIdle/2-1)/(maxIdle/2))
	kept := o.slots[:0]
	for _, s := range o.slots {
		if s.idle++; s.live {
			s.cell.empty(cfg)
			s.site.empty(cfg)
			s.live, s.idle = false, 0
		}
		if s.idle > maxIdle || len(kept) >= keptCells {
			o.release(s)
			continue
		}
		kept = append(kept, s)
	}
	clear(o.slots[len(kept):])
	o.slots = kept
	if n := len(o.free) - keptCells; n > 0 {
		o.free = slices.Delete(o.free, 0, n)
	}
	o.least = len(o.free)
	o.pane, o.cells, o.full = nil, 0, false
	clear(o.heard)
	o.stray = slot{}
}

func (s *Site) empty(cfg *Config) {
	if len(s.cells) == 0 {
		return // with another slot of it
	}
	clear(s.cells)
	s.Agents.empty(exactFactor * cfg.AgentsPerSite)
	s.Clients.empty(exactFactor * cfg.ClientsPerSite)
	*s = Site{cells: s.cells, Agents: s.Agents, Clients: s.Clients}
}

func (c *Cell) empty(cfg *Config) {
	c.TopAgents.empty(exactFactor * cfg.AgentsPerCell)
	for _, d := range c.sets() {
		d.empty()
	}
	c.Latency.empty()
	if c.Samples.merged {
		c.Samples = Samples{}
	}
	*c = Cell{
		Codes: Codes{c.Codes.counts[:0]}, Refused: Refused{Clients: c.Refused.Clients},
		Latency: c.Latency, Busy: Busy{past: c.Busy.past[:0], future: c.Busy.future[:0]},
		Clients: c.Clients, Agents: c.Agents, URLs: c.URLs, Missed: c.Missed,
		TopAgents: c.TopAgents, Samples: Samples{kept: c.Samples.kept[:0]},
	}
}

// wasteful tells that counters have far more room than the pane needed: then they begin anew with little.
func wasteful(used, room int) bool { return room > 16*max(used, scanLimit) }

func (t *Top) empty(capacity int) {
	if wasteful(len(t.entries), max(len(t.index), cap(t.entries))) {
		*t = Top{capacity: capacity}
		return
	}
	clear(t.index)
	*t = Top{capacity: capacity, entries: t.entries[:0], hashes: t.hashes[:0], index: t.index, addresses: t.addresses[:0]}
}

func (d *Distinct) empty() {
	switch {
	case d.sketch != nil:
		d.slots = make([]uint64, 4*exactDistinct)
	case wasteful(d.n, len(d.slots)):
		d.slots = nil
	default:
		clear(d.slots)
	}
	*d = Distinct{slots: d.slots}
}

func (q *Quantiles) empty() {
	if wasteful(int(q.count), len(q.dense)) {
		*q = Quantiles{}
		return
	}
	clear(q.dense)
	*q = Quantiles{pairs: q.pairs[:0], first: q.first, dense: q.dense}
}

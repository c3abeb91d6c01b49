package pane

// later are the cells that one cell of a window is merged of, as far as nobody has asked. Counts and durations are
// added at once, since detectors look at them in every window; of the sets, rankings and samples most are looked at in
// storms alone, and they are most of the work. Each of them is merged when it is first asked for. The parts may not
// change any more.
type later struct {
	cells  []*Cell
	tops   []*Top
	few    [4]*Cell // room for cells
	agents Top      // of the cells
}

// cellsAtOnce is how many cells of windows are made at a time.
const cellsAtOnce = 16

// windowCell is a cell of a window with room for what is postponed.
type windowCell struct {
	Cell
	later
}

// windowCells hands out cells of windows. They are made some at a time: a window has a hundred, and one is merged for
// every pane.
type windowCells struct {
	rest []windowCell
	lent [][]windowCell // since the last reclaim
	free [][]windowCell
}

func (w *windowCells) next() *Cell {
	if len(w.rest) == 0 {
		if n := len(w.free); n > 0 {
			w.rest, w.free = w.free[n-1], w.free[:n-1]
			clear(w.rest)
		} else {
			w.rest = make([]windowCell, cellsAtOnce)
		}
		w.lent = append(w.lent, w.rest)
	}
	c, l := &w.rest[0].Cell, &w.rest[0].later
	w.rest = w.rest[1:]
	l.cells = l.few[:0]
	c.Clients.later, c.Clients.of = l, func(o *Cell) *Distinct { return &o.Clients }
	c.Agents.later, c.Agents.of = l, func(o *Cell) *Distinct { return &o.Agents }
	c.URLs.later, c.URLs.of = l, func(o *Cell) *Distinct { return &o.URLs }
	c.Samples.later = l
	return c
}

// reclaim takes back all cells, to hand them out again. What was handed out before and is not needed any more goes.
func (w *windowCells) reclaim() {
	w.rest, w.free, w.lent = nil, w.lent, w.free[:0]
}

// postpone has the sets, the ranking and the samples of o merged into those of c, a cell of a window, when they are
// asked for.
func (c *Cell) postpone(o *Cell) {
	l := c.Samples.later
	l.cells = append(l.cells, o)
	if !o.Missed.none() { // as most are: detectors that look at all of them have little to do
		c.Missed.later, c.Missed.of = l, func(o *Cell) *Distinct { return &o.Missed }
	}
	if !o.Refused.Clients.none() {
		c.Refused.Clients.later, c.Refused.Clients.of = l, func(o *Cell) *Distinct { return &o.Refused.Clients }
	}
	if c.TopAgents == nil && o.TopAgents != nil {
		c.TopAgents, l.agents.later = &l.agents, l
	}
}

// postponeTop is mergeTop for what nobody may ask for.
func postponeTop(dst, src *Top) *Top {
	if src == nil {
		return dst
	}
	if dst == nil {
		dst = &Top{later: &later{}}
	}
	dst.later.tops = append(dst.later.tops, src)
	return dst
}

// none tells that nothing was added, nor is to be merged.
func (d *Distinct) none() bool { return d.n == 0 && d.later == nil && d.sketch == nil }

func (d *Distinct) settle() {
	l, of := d.later, d.of
	if l == nil {
		return
	}
	d.later, d.of = nil, nil
	for _, c := range l.cells {
		d.Merge(of(c))
	}
}

func (t *Top) settle() {
	if t == nil {
		return
	}
	if len(t.addresses) > 0 {
		t.spell()
	}
	if t.later == nil {
		return
	}
	l := t.later
	t.later = nil
	for _, c := range l.cells {
		t.begin(c.TopAgents)
	}
	for _, o := range l.tops {
		t.begin(o)
	}
}

// begin is Merge for a Top that may have no capacity yet: then it becomes o's copy.
func (t *Top) begin(o *Top) {
	if t.capacity == 0 && o != nil {
		*t = *o.Clone()
		return
	}
	t.Merge(o)
}

func (s *Samples) settle() {
	l := s.later
	if l == nil {
		return
	}
	s.later = nil
	for _, c := range l.cells {
		s.Merge(&c.Samples)
	}
}

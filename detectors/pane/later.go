package pane

// later are the cells that one cell of a window is merged of, as far as nobody has asked. Counts and durations are
// added at once, since detectors look at them in every window; of the sets, rankings and samples most are looked at in
// storms alone, and they are most of the work. Each of them is merged when it is first asked for. The parts may not
// change any more.
type later struct {
	cells []*Cell
	tops  []*Top
	few   [4]*Cell // room for cells
}

// postpone has the sets, the ranking and the samples of o merged into those of c when they are asked for.
func (c *Cell) postpone(o *Cell) {
	l := c.Clients.later
	if l == nil {
		l = &later{}
		l.cells = l.few[:0]
		for _, d := range []struct {
			set *Distinct
			of  func(*Cell) *Distinct
		}{
			{&c.Clients, func(o *Cell) *Distinct { return &o.Clients }},
			{&c.Agents, func(o *Cell) *Distinct { return &o.Agents }},
			{&c.URLs, func(o *Cell) *Distinct { return &o.URLs }},
			{&c.Missed, func(o *Cell) *Distinct { return &o.Missed }},
			{&c.Refused.Clients, func(o *Cell) *Distinct { return &o.Refused.Clients }},
		} {
			d.set.later, d.set.of = l, d.of
		}
		c.Samples.later = l
	}
	l.cells = append(l.cells, o)
	if c.TopAgents == nil && o.TopAgents != nil {
		c.TopAgents = &Top{later: l}
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
	if t == nil || t.later == nil {
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

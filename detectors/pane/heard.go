package pane

import "slices"

// A teller is a name under which sources tell: the files of one log, rotated, are several sources and one teller.
type teller struct {
	name    string
	awaited int   // sources of the name that are still to come
	last    int64 // ns: the newest line of those that are done; noTime for none
}

// tell gives the number of a name.
func (a *Assembler) tell(name string) int {
	i, known := a.names[name]
	if !known {
		i = len(a.tellers)
		a.names[name] = i
		a.tellers = append(a.tellers, teller{name: name, last: noTime})
	}
	return i
}

// Await tells that n more sources of a name are to come: until then the name is open, though those before are done.
func (a *Assembler) Await(name string, n int) { a.tellers[a.tell(name)].awaited += n }

// hear notes which teller told of a site.
func (o *openPane) hear(teller int, s *Site) {
	for teller >= len(o.heard) {
		o.heard = append(o.heard, 0)
	}
	o.heard[teller]++
	s.tellers |= 1 << (uint(teller) % 64)
}

// listen fills in which tellers were open in a pane, and what they told.
func (a *Assembler) listen(p *Pane, heard []uint64) {
	told := make([]Heard, len(a.tellers)) // in one piece: there may be thousands, and mostly they tell of little
	p.Heard = make(map[string]*Heard, len(told))
	for i := range a.tellers {
		if t := &a.tellers[i]; t.name != "" && (t.awaited > 0 || t.last >= p.Start) {
			p.Heard[t.name] = &told[i]
		}
	}
	for i := range a.marks.clocks {
		if c := &a.marks.clocks[i]; !c.done && a.tellers[c.teller].name != "" {
			p.Heard[a.tellers[c.teller].name] = &told[c.teller]
		}
	}
	for i, n := range heard {
		if n == 0 || a.tellers[i].name == "" {
			continue
		}
		h := &told[i]
		h.Records = n
		for _, name := range p.SiteNames() {
			if p.Sites[name].tellers>>(uint(i)%64)&1 == 1 {
				h.Sites = append(h.Sites, name)
			}
		}
		p.Heard[a.tellers[i].name] = h
	}
}

// mergeHeard adds what was told in another pane.
func mergeHeard(dst, src map[string]*Heard) map[string]*Heard {
	if dst == nil && len(src) > 0 {
		dst = map[string]*Heard{}
	}
	for name, s := range src {
		d := dst[name]
		if d == nil {
			d = &Heard{}
			dst[name] = d
		}
		d.Records += s.Records
		for _, site := range s.Sites {
			if i, known := slices.BinarySearch(d.Sites, site); !known {
				d.Sites = slices.Insert(slices.Clip(d.Sites), i, site)
			}
		}
	}
	return dst
}

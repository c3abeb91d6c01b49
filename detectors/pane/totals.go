package pane

import (
	"iter"

	"github.com/squall-sre/squall/pipeline"
)

// Totals are the sums over the cells of a site that detectors look at in every window: where they are far from any
// threshold, as nearly always, the cells need not be merged.
type Totals struct {
	Clients, Probes Sums
	Heads           uint64 // HEAD requests of clients
	Own             uint64 // requests of clients that the site made itself
	Limited         uint64 // refused by a limiter, probes too
	LimitedStatic   uint64 // of them, static files with a query string
}

// Sums are those over some of a site's cells.
type Sums struct {
	Requests, Abandoned uint64
	Errors5xx           uint64 // answers of 5xx, a limiter's too
	Missed, Cached      uint64 // MISS and EXPIRED by what the cache told, and all that it told, BYPASS left out
	Busy                Busy

	latency Quantiles
	site    *Site   // whose cells' durations are still to be added up; nil for none
	probes  bool    // those of its probes
	parts   []*Sums // that have durations to be added
}

// Totals gives the sums over the cells. They are not to be changed.
func (s *Site) Totals() *Totals {
	if s.totals != nil {
		return s.totals
	}
	t := &Totals{Clients: Sums{site: s}, Probes: Sums{site: s, probes: true}}
	for k, c := range s.All() {
		of := &t.Clients
		if k.Probe {
			of = &t.Probes
		}
		of.add(c)
		t.Limited += c.Limited
		t.LimitedStatic += c.Refused.StaticQuery
		switch {
		case k.Probe:
			continue
		case k.Method == "HEAD":
			t.Heads += c.Requests
		}
		if k.Origin == pipeline.Own {
			t.Own += c.Requests
		}
	}
	return t
}

// add adds a cell of the same span, but not its durations.
func (s *Sums) add(c *Cell) {
	s.Requests += c.Requests
	s.Abandoned += c.Abandoned
	s.Errors5xx += c.Codes.Class(5)
	missed, told := c.Cached()
	s.Missed, s.Cached = s.Missed+missed, s.Cached+told
	s.Busy.mergeSame(&c.Busy)
}

// Cached counts what the cache told: misses and all. What bypassed it on purpose is neither.
func (c *Cell) Cached() (misses, told uint64) {
	for i, n := range c.Cache {
		if s := pipeline.CacheStatus(i); s != pipeline.CacheUnsaid && s != pipeline.CacheBypass {
			told += n
		}
	}
	return c.Cache[pipeline.CacheMiss] + c.Cache[pipeline.CacheExpired], told
}

// Latency is the durations of the requests. They are added up when they are first asked for.
func (s *Sums) Latency() *Quantiles {
	if s.site != nil {
		for k, c := range s.site.All() {
			if k.Probe == s.probes {
				s.latency.Merge(&c.Latency)
			}
		}
	}
	for _, o := range s.parts {
		s.latency.Merge(o.Latency())
	}
	s.site, s.parts = nil, nil
	return &s.latency
}

// merge adds o of the pane src to those of the window dst.
func (t *Totals) merge(dst *Pane, o *Totals, src *Pane) {
	t.Clients.merge(dst, &o.Clients, src)
	t.Probes.merge(dst, &o.Probes, src)
	t.Heads += o.Heads
	t.Own += o.Own
	t.Limited += o.Limited
	t.LimitedStatic += o.LimitedStatic
}

func (s *Sums) merge(dst *Pane, o *Sums, src *Pane) {
	s.Requests += o.Requests
	s.Abandoned += o.Abandoned
	s.Errors5xx += o.Errors5xx
	s.Missed += o.Missed
	s.Cached += o.Cached
	s.Busy.merge(dst.Start, dst.End, &o.Busy, src.Start, src.End)
	if o.Requests > 0 {
		s.parts = append(s.parts, o)
	}
}

// A sitePart is the site of one of the panes that a window is merged of.
type sitePart struct {
	site *Site
	pane *Pane
}

// cellsLater is how the cells of a window are merged when somebody asks for those of a site. Its parts may not change
// any more.
type cellsLater struct {
	pane  *Pane
	fresh *windowCells
	kept  int // cells over all sites; 0: all
}

// postponeCells has the cells of a site of p merged when they are asked for.
func (s *Site) postponeCells(part *Site, p *Pane) {
	s.parts = append(s.parts, sitePart{part, p})
	switch {
	case part.totals == nil: // nor has the sum any
		s.totals = nil
		return
	case len(s.parts) == 1:
		s.totals = &Totals{}
	case s.totals == nil:
		return
	}
	s.totals.merge(s.window.pane, part.totals, p)
}

// Cells are the measures by key. In a window they are merged when they are first asked for, and in a closed pane they are
// brought into a map then.
func (s *Site) Cells() map[Key]*Cell {
	s.settle()
	if s.cells == nil {
		s.cells = make(map[Key]*Cell, len(s.sealed))
		for i := range s.sealed {
			s.cells[s.sealed[i].Key] = &s.sealed[i].Cell
		}
		s.sealed = nil
	}
	return s.cells
}

// All ranges over the cells in no particular order.
func (s *Site) All() iter.Seq2[Key, *Cell] {
	return func(yield func(Key, *Cell) bool) {
		s.settle()
		for i := range s.sealed {
			if !yield(s.sealed[i].Key, &s.sealed[i].Cell) {
				return
			}
		}
		for k, c := range s.cells {
			if !yield(k, c) {
				return
			}
		}
	}
}

// Len is how many cells there are.
func (s *Site) Len() int {
	s.settle()
	return len(s.sealed) + len(s.cells)
}

// settle merges the cells of a window.
func (s *Site) settle() {
	switch w := s.window; {
	case w == nil:
	case w.kept == 0:
		s.mergeParts()
	default: // which cells are the heaviest is a matter of all sites
		for _, site := range w.pane.Sites {
			site.mergeParts()
		}
		w.pane.foldAll(w.kept)
	}
}

func (s *Site) mergeParts() {
	w, parts := s.window, s.parts
	s.window, s.parts = nil, nil
	for _, x := range parts {
		mergeCells(s, x.site, w.pane, x.pane, w.fresh.next, (*Cell).postpone)
	}
}

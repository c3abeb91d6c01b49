package pane

import (
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/squall-sre/squall/pipeline"
)

// OtherMethod stands for every method that is not one of the known ones, and for none.
const OtherMethod = "OTHER"

// methodName gives the known methods as constants: nothing of the line is kept and no log can invent keys.
func methodName(method []byte) string {
	switch string(method) {
	case "GET":
		return "GET"
	case "HEAD":
		return "HEAD"
	case "POST":
		return "POST"
	case "PUT":
		return "PUT"
	case "DELETE":
		return "DELETE"
	case "OPTIONS":
		return "OPTIONS"
	case "PATCH":
		return "PATCH"
	case "CONNECT":
		return "CONNECT"
	case "TRACE":
		return "TRACE"
	case "PROPFIND":
		return "PROPFIND"
	case "PURGE":
		return "PURGE"
	}
	return OtherMethod
}

// openPane is a pane that is being counted in. What it counts in is used again for another pane when this one is
// closed (see seal): the cells of one pane are those of the next.
type openPane struct {
	pane  *Pane
	index map[place]*slot // cells that have their own key
	slots []*slot         // of index
	free  []*slot         // of no place, with empty cells
	least int             // how many of free were left when fewest were
	cells int
	full  bool // folding left little room: it is not tried again
	waits waiters
	heard []uint64 // Records by teller
	stray slot     // the last cell that is not the place's own

	passed *openPane // what an edge let pass; nil for nothing

	recent [64]*slot // the last slot of each fold of a key: most lines are of few keys
}

func newOpenPane() *openPane { return &openPane{index: map[place]*slot{}} }

// place is where a Record is counted.
type place struct {
	site string
	key  Key
}

type slot struct {
	place
	site    *Site
	cell    *Cell
	reclaim int64 // ns
	live    bool  // the place is one of the pane's
	idle    uint8 // panes since it last was
}

// find gives the cell of a place.
func (a *Assembler) find(o *openPane, at place) *slot {
	n := len(at.key.Route)
	h := uint(len(at.site))*7 + uint(n)*31 + uint(at.key.Method[0])*5 + uint(at.key.Origin)*3
	if n > 1 {
		h += uint(at.key.Route[1])*13 + uint(at.key.Route[n/2])
	}
	recent := &o.recent[h%uint(len(o.recent))]
	s := *recent
	if s == nil || s.place != at {
		s = o.index[at]
	}
	if s == nil || !s.live {
		own := false
		if s, own = a.newSlot(o, at, s); !own {
			return s
		}
	}
	*recent = s
	return s
}

// newSlot makes a cell, or folds the place into another where a cap is reached. Up to twice the caps of sites
// and cells all are held, so that what is left at the close depends on their weights and not on their order. s is what an
// earlier pane counted the place in, nil for nothing. own is false for a cell that is not the place's own.
func (a *Assembler) newSlot(o *openPane, at place, s *slot) (_ *slot, own bool) {
	p := o.pane
	site, known := p.Sites[at.site]
	var cell *Cell
	if known {
		cell = site.cells[at.key]
	}
	own = true
	if cell == nil && o.cells >= a.cfg.MaxPaneCells && !o.full { // the light ones go: a storm that begins late finds a place
		p.foldAll(a.cfg.kept)
		o.recount(&a.cfg)
		o.full = o.cells > a.cfg.MaxPaneCells/2 // many sites, each with its Other: else every line would fold
		if site != nil {
			cell = site.cells[at.key] // the fold makes cells of the route Other
		}
	}
	if cell == nil && o.cells >= a.cfg.MaxPaneCells {
		if p.Coverage.CellsFolded++; !known {
			p.Coverage.SitesFolded++
		}
		own, at = false, place{Other, Key{at.key.Method, Other, at.key.Origin, at.key.Probe}}
		site = p.Sites[Other]
		if site != nil {
			cell = site.cells[at.key]
		}
	}
	if site == nil {
		if len(p.Sites) >= 2*a.cfg.MaxSites {
			p.Fold(a.cfg.MaxSites, 2*a.cfg.MaxCells)
			o.recount(&a.cfg)
		}
		if own && s != nil && len(s.site.cells) == 0 {
			p.Sites[at.site] = s.site
		}
		site = p.Site(at.site)
	}
	if site.Agents == nil {
		site.Agents = NewTop(exactFactor * a.cfg.AgentsPerSite)
		site.Clients = NewTop(exactFactor * a.cfg.ClientsPerSite)
	}
	if cell == nil {
		if len(site.cells) >= 2*a.cfg.MaxCells && at.key.Route != Other {
			p.Coverage.CellsFolded += site.fold(a.cfg.MaxCells)
			o.recount(&a.cfg)
		}
		if n := len(o.free); own && s == nil && n > 0 {
			s, o.free = o.free[n-1], o.free[:n-1]
			o.least = min(o.least, n-1)
		}
		if own && s != nil {
			cell = s.cell
		} else {
			cell = &Cell{TopAgents: NewTop(exactFactor * a.cfg.AgentsPerCell)}
		}
		site.cells[at.key] = cell
		o.cells++
	}
	return o.put(s, slot{at, site, cell, int64(a.cfg.Reclaim(at.site)), true, 0}, own), own
}

// put notes the slot of a place: s, unless there is none.
func (o *openPane) put(s *slot, x slot, own bool) *slot {
	if !own {
		o.stray = x
		return &o.stray
	}
	if s == nil {
		s = &slot{}
	}
	if s.place != x.place {
		o.index[x.place] = s
		o.slots = append(o.slots, s)
	}
	*s = x
	return s
}

// recount is needed after cells were folded, which are counted in again.
func (o *openPane) recount(cfg *Config) {
	o.cells = 0
	for _, s := range o.pane.Sites {
		o.cells += len(s.cells)
	}
	kept := o.slots[:0]
	for _, s := range o.slots {
		if !s.live || o.pane.Sites[s.place.site] == s.site && s.site.cells[s.key] == s.cell {
			kept = append(kept, s)
			continue
		}
		s.cell.empty(cfg)
		s.cell.Samples = Samples{} // their texts are another's now
		o.release(s)
	}
	clear(o.slots[len(kept):])
	o.slots = kept
}

// release takes a slot, whose cell is empty, from its place.
func (o *openPane) release(s *slot) {
	delete(o.index, s.place)
	*s = slot{cell: s.cell}
	o.free = append(o.free, s)
}

// count adds a Record to its cell and site.
func (a *Assembler) count(o *openPane, src int, r *pipeline.Record) {
	probe := r.Class == pipeline.Probe
	s := a.find(o, place{r.Site, Key{methodName(r.Method), r.Route, r.Origin, probe}})
	o.hear(a.marks.clocks[src].teller, s.site)
	s.site.origin = s.site.origin || !r.Edge
	c := s.cell
	c.Requests++
	c.Codes.Add(r.Status)
	if r.Cache < pipeline.CacheStatuses {
		c.Cache[r.Cache]++
	}
	if r.Class < pipeline.Classes {
		c.Classes[r.Class]++
	}
	c.countFacts(r)
	// What answers a health check before the application tells nothing of the time that the application takes.
	if !r.Streaming && !(probe && r.Reached == pipeline.No) {
		switch {
		case r.RequestTime >= 0:
			c.Latency.Add(r.RequestTime)
		case r.UpstreamTime >= 0:
			c.Latency.Add(r.UpstreamTime)
		}
	}
	c.Busy.add(o.pane.Start, o.pane.End, r, s.reclaim)

	url := xxhash.Sum64(r.Path)
	if len(r.Query) > 0 {
		url = mix(url, xxhash.Sum64(r.Query))
	}
	c.URLs.Add(url)
	if r.Cache == pipeline.CacheMiss || r.Cache == pipeline.CacheExpired {
		c.Missed.Add(url)
	}
	var agent, client uint64
	if r.UserAgent != nil {
		name := r.Agent
		if agent = r.AgentHash; name == "" {
			text := r.UserAgent[:min(len(r.UserAgent), pipeline.AgentMax)]
			name, agent = string(text), xxhash.Sum64(text)
		}
		if !c.TopAgents.addString(name, agent, 1) {
			c.Agents.Add(agent)
		}
		if !probe {
			s.site.Agents.addString(name, agent, 1)
		}
	}
	if r.Client.IsValid() {
		address := r.Client.As16()
		client = xxhash.Sum64(address[:])
		c.Clients.Add(client)
		if r.Limited && r.Static && len(r.Query) > 0 {
			c.Refused.Clients.Add(client)
		}
		if !probe {
			s.site.Clients.addAddress(address, client, 1)
			if waited(r) {
				o.waits.add(r, methodName(r.Method), client)
			}
		}
	}
	c.Samples.Add(mix(mix(url, client), mix(agent, uint64(r.End)^uint64(r.Status)<<48^uint64(r.RequestTime))), r)
}

// countFacts adds what is said or not said of a request.
func (c *Cell) countFacts(r *pipeline.Record) {
	if r.Abandoned == pipeline.Yes {
		c.Abandoned++
	}
	if r.Limited {
		c.Limited++
		c.Refused.count(r)
	}
	switch r.Reached {
	case pipeline.Yes:
		c.Reached++
	case pipeline.No:
		c.NotReached++
	}
	if r.Static {
		c.Static++
		if len(r.Query) > 0 {
			c.StaticQuery++
		}
		if r.Limited {
			c.StaticLimit++
		}
	}
	if r.Bytes > 0 {
		c.Bytes += uint64(min(r.Bytes, 1<<48)) // a hostile number must not make the sum wrap
	}
}

// mix joins two hashes (the finaliser of MurmurHash3).
func mix(a, b uint64) uint64 {
	h := a ^ bits.RotateLeft64(b, 32)*0x9e3779b97f4a7c15
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

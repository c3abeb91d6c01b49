package pane

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// Merge adds src to dst, whose Start and End are the window's and hold src. src is not changed, and dst shares
// no memory with it that either could change. Bounds of the worker time are clipped to the window; those of the
// other measures belong to requests by their end.
func Merge(dst, src *Pane) {
	for _, name := range src.SiteNames() {
		mergeSite(dst.Site(name), src.Sites[name], dst, src)
	}
	dst.cutWaits()
	if len(src.Events) > 0 {
		dst.Events = append(slices.Clip(dst.Events), src.Events...)
		SortEvents(dst.Events)
	}
	dst.Coverage.add(&src.Coverage)
	dst.Heard = mergeHeard(dst.Heard, src.Heard)
}

// MergeAll gives the window [start, end) of panes, which may not change any more: what of it is seldom asked for is
// merged when it is. It belongs to one goroutine, with all other windows that are made of it or of the same windows.
func MergeAll(start, end int64, panes []*Pane) *Pane {
	return mergeAll(start, end, panes, &cellsLater{fresh: &windowCells{}})
}

// mergeAll is MergeAll that is told how the cells are merged.
func mergeAll(start, end int64, panes []*Pane, later *cellsLater) *Pane {
	dst := &Pane{Start: start, End: end, Sites: map[string]*Site{}}
	later.pane = dst
	var events int
	for _, p := range panes {
		events += len(p.Events)
	}
	if events > 0 {
		dst.Events = make([]pipeline.Event, 0, events)
	}
	for _, p := range panes {
		for name, part := range p.Sites {
			s := dst.Sites[name]
			if s == nil {
				s = &Site{window: later}
				dst.Sites[name] = s
			}
			s.postponeCells(part, p)
			s.Agents = postponeTop(s.Agents, part.Agents)
			s.Clients = postponeTop(s.Clients, part.Clients)
			s.Waits = mergeWaits(s.Waits, part.Waits)
		}
		dst.Events = append(dst.Events, p.Events...)
		dst.Coverage.add(&p.Coverage)
		dst.Heard = mergeHeard(dst.Heard, p.Heard)
	}
	SortEvents(dst.Events)
	dst.cutWaits()
	return dst
}

func (c *Coverage) add(o *Coverage) {
	c.Lines += o.Lines
	c.Late += o.Late
	c.Gaps += o.Gaps
	c.Dropped += o.Dropped
	c.EventsDropped += o.EventsDropped
	c.SitesFolded += o.SitesFolded
	c.CellsFolded += o.CellsFolded
	c.Nodes += o.Nodes
	c.Absent += o.Absent
}

// Site returns a site of the pane and makes it when there is none.
func (p *Pane) Site(name string) *Site {
	if s := p.Sites[name]; s != nil {
		return s
	}
	if p.Sites == nil {
		p.Sites = map[string]*Site{}
	}
	s := &Site{cells: map[Key]*Cell{}}
	p.Sites[name] = s
	return s
}

// SiteNames lists the sites, sorted.
func (p *Pane) SiteNames() []string { return slices.Sorted(maps.Keys(p.Sites)) }

// Widen moves the bounds of the pane outwards, to whole panes, and takes in the worker time of its requests
// that fell between the old bounds and the new ones: for a view that grows pane by pane.
func (p *Pane) Widen(start, end int64) {
	start, end = min(start, p.Start), max(end, p.End)
	for _, s := range p.Sites {
		s.totals = nil
		for _, c := range s.Cells() {
			if step := c.Busy.step; step > 0 {
				c.Busy.widen(int((p.Start-start)/step), int((end-p.End)/step))
			}
		}
	}
	p.Start, p.End = start, end
}

func mergeSite(dst, src *Site, dstPane, srcPane *Pane) {
	dst.totals = nil
	mergeCells(dst, src, dstPane, srcPane, func() *Cell { return &Cell{} }, (*Cell).mergeSketches)
	dst.Agents = mergeTop(dst.Agents, src.Agents)
	dst.Clients = mergeTop(dst.Clients, src.Clients)
	dst.Waits = mergeWaits(dst.Waits, src.Waits)
}

// mergeCells adds the cells of a site. fresh makes a cell, and sketches is how what is no plain count is added.
func mergeCells(dst, src *Site, dstPane, srcPane *Pane, fresh func() *Cell, sketches func(dst, src *Cell)) {
	cells := dst.Cells()
	if len(cells) == 0 {
		cells = make(map[Key]*Cell, src.Len())
		dst.cells = cells
	}
	for k, c := range src.All() {
		d := cells[k]
		if d == nil {
			d = fresh()
			cells[k] = d
		}
		d.count(c)
		sketches(d, c)
		d.Busy.merge(dstPane.Start, dstPane.End, &c.Busy, srcPane.Start, srcPane.End)
	}
}

func mergeTop(dst, src *Top) *Top {
	if dst == nil {
		return src.Clone()
	}
	dst.Merge(src)
	return dst
}

// count adds the counts and the durations of o, but not its Busy, which needs the spans.
func (c *Cell) count(o *Cell) {
	c.Requests += o.Requests
	c.Codes.Merge(&o.Codes)
	for i, n := range o.Cache {
		c.Cache[i] += n
	}
	for i, n := range o.Classes {
		c.Classes[i] += n
	}
	c.Abandoned += o.Abandoned
	c.Limited += o.Limited
	c.Reached += o.Reached
	c.NotReached += o.NotReached
	c.Static += o.Static
	c.StaticQuery += o.StaticQuery
	c.StaticLimit += o.StaticLimit
	c.Refused.add(&o.Refused)
	c.Bytes += o.Bytes
	c.Latency.Merge(&o.Latency)
}

// mergeSketches adds what count leaves out.
func (c *Cell) mergeSketches(o *Cell) {
	c.Refused.Clients.Merge(&o.Refused.Clients)
	c.Clients.Merge(&o.Clients)
	c.Agents.Merge(&o.Agents)
	c.URLs.Merge(&o.URLs)
	c.Missed.Merge(&o.Missed)
	c.TopAgents = mergeTop(c.TopAgents, o.TopAgents)
	c.Samples.Merge(&o.Samples)
}

// mergeSame adds o, which has the same span, with its Busy.
func (c *Cell) mergeSame(o *Cell) {
	c.count(o)
	c.mergeSketches(o)
	c.Busy.mergeSame(&o.Busy)
}

// mergeSame adds o, which has the same span.
func (b *Busy) mergeSame(x *Busy) {
	b.Untimed += x.Untimed
	b.Lower += x.Lower
	b.Upper += x.Upper
	b.step = max(b.step, x.step)
	for i, s := range x.past {
		b.placeShare(-i-1, s)
	}
	for i, s := range x.future {
		b.placeShare(i+1, s)
	}
}

// Keys lists the keys of the cells, sorted by route, method, origin, and probes last.
func (s *Site) Keys() []Key { return slices.SortedFunc(maps.Keys(s.Cells()), compareKeys) }

func compareKeys(a, b Key) int {
	if c := strings.Compare(a.Route, b.Route); c != 0 {
		return c
	}
	if c := strings.Compare(a.Method, b.Method); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Origin, b.Origin), compareBool(a.Probe, b.Probe))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Sum merges the cells whose keys match into a new one.
func (s *Site) Sum(match func(Key) bool) Cell {
	var sum Cell
	for _, k := range s.Keys() {
		if match(k) {
			sum.mergeSame(s.Cells()[k])
		}
	}
	return sum
}

// Fold merges the lightest sites and cells, by requests, into Other until at most maxSites sites beside Other
// and maxCells cells a site beside those of the route Other are left. What stays depends on counts and keys
// alone. It bounds views that grow for hours; panes come folded.
func (p *Pane) Fold(maxSites, maxCells int) {
	for _, s := range p.Sites {
		p.Coverage.CellsFolded += s.fold(maxCells)
	}
	if len(p.Sites) <= maxSites {
		return
	}
	type weighed struct {
		name     string
		requests uint64
	}
	list := make([]weighed, 0, len(p.Sites))
	for name, s := range p.Sites {
		if name != Other {
			list = append(list, weighed{name, s.requests()})
		}
	}
	slices.SortFunc(list, func(a, b weighed) int {
		return cmp.Or(cmp.Compare(b.requests, a.requests), strings.Compare(a.name, b.name))
	})
	for _, w := range list[min(maxSites, len(list)):] {
		other, s := p.Site(Other), p.Sites[w.name]
		for _, k := range s.Keys() {
			other.take(Key{k.Method, Other, k.Origin, k.Probe}, s.Cells()[k])
		}
		other.Agents = mergeTop(other.Agents, s.Agents)
		other.Clients = mergeTop(other.Clients, s.Clients)
		other.Waits = mergeWaits(other.Waits, s.Waits)
		other.tellers |= s.tellers
		delete(p.Sites, w.name)
		p.Coverage.SitesFolded += w.requests
	}
}

func (s *Site) requests() uint64 {
	var sum uint64
	for _, c := range s.All() {
		sum += c.Requests
	}
	return sum
}

// take merges a cell of the same span under a key.
func (s *Site) take(k Key, c *Cell) {
	d := s.Cells()[k]
	if d == nil {
		d = &Cell{}
		s.Cells()[k] = d
	}
	d.mergeSame(c)
}

// fold merges the lightest cells into the route Other and gives the number of their requests.
func (s *Site) fold(maxCells int) (folded uint64) {
	if s.Len() <= maxCells {
		return 0
	}
	type keyed struct {
		key  Key
		cell *Cell
	}
	list := make([]keyed, 0, len(s.Cells()))
	for k, c := range s.Cells() {
		if k.Route != Other {
			list = append(list, keyed{k, c})
		}
	}
	slices.SortFunc(list, func(a, b keyed) int {
		if a.cell.Requests != b.cell.Requests {
			return cmp.Compare(b.cell.Requests, a.cell.Requests)
		}
		return compareKeys(a.key, b.key)
	})
	for _, x := range list[min(maxCells, len(list)):] {
		folded += x.cell.Requests
		s.take(Key{x.key.Method, Other, x.key.Origin, x.key.Probe}, x.cell)
		delete(s.Cells(), x.key)
	}
	return folded
}

// weight is what a cell would be missed for: its requests, and the time that it held workers, a tenth of a second of
// which counts like a request.
func (c *Cell) weight() uint64 { return c.Requests + uint64(max(c.Busy.Upper, 0)/1e8) }

// foldAll merges the lightest cells of all sites each into the route Other of its site, until at most kept are left
// beside those. What stays depends on counts, sites and keys alone.
func (p *Pane) foldAll(kept int) {
	total := 0
	for _, s := range p.Sites {
		total += s.Len()
	}
	if total <= kept {
		return
	}
	type keyed struct {
		name string
		key  Key
		cell *Cell
	}
	list := make([]keyed, 0, total)
	for name, s := range p.Sites {
		for k, c := range s.Cells() {
			if k.Route != Other {
				list = append(list, keyed{name, k, c})
			}
		}
	}
	slices.SortFunc(list, func(a, b keyed) int {
		return cmp.Or(cmp.Compare(b.cell.weight(), a.cell.weight()), strings.Compare(a.name, b.name), compareKeys(a.key, b.key))
	})
	for _, x := range list[min(kept, len(list)):] {
		s := p.Sites[x.name]
		p.Coverage.CellsFolded += x.cell.Requests
		s.take(Key{x.key.Method, Other, x.key.Origin, x.key.Probe}, x.cell)
		delete(s.Cells(), x.key)
	}
}

// SortEvents puts events into canonical order: by time, kind, and then every other field.
func SortEvents(events []pipeline.Event) { slices.SortFunc(events, compareEvents) }

func compareEvents(a, b pipeline.Event) int {
	if a.Time != b.Time {
		return cmp.Compare(a.Time, b.Time)
	}
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Node, b.Node), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
		cmp.Compare(a.UID, b.UID), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Image, b.Image),
		cmp.Compare(a.Probe, b.Probe), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.ExitCode, b.ExitCode),
		compareBool(a.HasExit, b.HasExit), cmp.Compare(a.Count, b.Count), cmp.Compare(a.Restarts, b.Restarts),
		cmp.Compare(a.Grace, b.Grace), cmp.Compare(a.FinishedAt, b.FinishedAt), comparePopulations(a.Population, b.Population), cmp.Compare(a.Pool, b.Pool),
		cmp.Compare(a.PID, b.PID), cmp.Compare(a.Script, b.Script), cmp.Compare(a.Request, b.Request),
		cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Signal, b.Signal),
		cmp.Compare(a.Process, b.Process), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Excess, b.Excess),
		cmp.Compare(a.Message, b.Message),
	)
}

func comparePopulations(a, b pipeline.Population) int {
	return cmp.Or(cmp.Compare(a.All, b.All), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Image, b.Image))
}

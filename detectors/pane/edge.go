package pane

import "github.com/squall-sre/squall/pipeline"

// A request that a layer in front of the origin (a CDN, a firewall) let pass stands in that layer's log and in the
// origin's. Where both are read it counts once, as the origin tells it: what the edge says of its time is the origin's and
// the wait for it. What only the edge knows stays: clients that left it, answers that it failed to give, what its cache had
// to ask for, and whose requests they were.

// behind tells that a Record is of an edge's log and of a request that went on, or may have.
func behind(r *pipeline.Record) bool { return r.Edge && r.Reached != pipeline.No }

// passed is where the requests that an edge let pass are counted until the pane closes.
func (a *Assembler) passed(o *openPane) *openPane {
	if o.passed == nil {
		o.passed = newOpenPane()
	}
	if o.passed.pane == nil {
		o.passed.pane = &Pane{Start: o.pane.Start, End: o.pane.End, Sites: map[string]*Site{}}
	}
	return o.passed
}

// join brings what the edge let pass into the pane: whole for sites of which the origin told nothing in it.
func (o *openPane) join() {
	if o.passed == nil || o.passed.pane == nil {
		return
	}
	p, edge := o.pane, o.passed.pane
	o.passed.waits.close(edge)
	for _, name := range edge.SiteNames() {
		s, passed := p.Site(name), edge.Sites[name]
		s.tellers |= passed.tellers
		if !s.origin {
			mergeSite(s, passed, p, edge)
			continue
		}
		for k, c := range passed.cells {
			if d := s.cells[k]; d != nil {
				d.learn(c)
			}
		}
	}
	p.Coverage.add(&edge.Coverage)
	for teller, n := range o.passed.heard {
		for teller >= len(o.heard) {
			o.heard = append(o.heard, 0)
		}
		o.heard[teller] += n
	}
}

// learn adds what the edge alone knows of the same requests.
func (c *Cell) learn(edge *Cell) {
	c.Abandoned = max(c.Abandoned, min(edge.Abandoned, c.Requests))
	edge.Codes.All(func(code uint16, n uint64) {
		if known := c.Codes.Get(code); code >= 500 && n > known {
			c.Codes.add(code, n-known)
		}
	})
	for status, n := range edge.Cache {
		if pipeline.CacheStatus(status) != pipeline.CacheUnsaid {
			c.Cache[status] += n
		}
	}
	c.Missed.Merge(&edge.Missed)
	c.Clients.Merge(&edge.Clients)
	c.Agents.Merge(&edge.Agents)
}

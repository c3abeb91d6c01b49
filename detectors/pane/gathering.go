package pane

import (
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// gatherings is in how many parts the reports of one pane are added up. Which part a node belongs to follows from its
// name: the sum is a function of the reports, and not of when they came.
const gatherings = 64

// A gathering holds what nodes told of one pane. Parts of it are added up as soon as all have told that belong to them,
// so that little is left to do when the last one has.
type gathering struct {
	start, end int64
	first      uint64 // the carrier's number of the first report
	reports    map[string]*Report
	parts      [gatherings]*gathered
}

// gathered is the sum of one part, and which of its reports are none, and why.
type gathered struct {
	sum    *Pane
	broken map[string]string
}

func newGathering(start, end int64, seq uint64) *gathering {
	return &gathering{start: start, end: end, first: seq, reports: map[string]*Report{}}
}

func partOf(node string) int { return int(xxhash.Sum64String(node) % gatherings) }

// put takes a report, unless a newer one of its node is there. It returns by how many bytes more is held.
func (g *gathering) put(node string, r *Report) (bytes int) {
	if old := g.reports[node]; old != nil {
		if old.Boot > r.Boot || old.Boot == r.Boot && old.Seq >= r.Seq {
			return 0
		}
		bytes -= old.Size()
	}
	g.reports[node] = r
	g.parts[partOf(node)] = nil
	return bytes + r.Size()
}

// size is how many bytes its reports hold.
func (g *gathering) size() (bytes int) {
	for _, r := range g.reports {
		bytes += r.Size()
	}
	return bytes
}

// add adds up a part, in the order of the nodes' names: a summary of heavy hitters depends on it.
func (g *gathering) add(part int, caps *Config) {
	if g.parts[part] != nil {
		return
	}
	x := &gathered{sum: &Pane{Start: g.start, End: g.end, Sites: map[string]*Site{}, Heard: map[string]*Heard{}}}
	var names []string
	for name := range g.reports {
		if partOf(name) == part {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var wire []byte
	for _, name := range names {
		var p *Pane
		var err error
		if p, wire, err = g.reports[name].unpack(wire); err != nil {
			if x.broken == nil {
				x.broken = map[string]string{}
			}
			x.broken[name] = err.Error()
			continue
		}
		heard := p.Heard
		p.Heard = make(map[string]*Heard, len(heard))
		for source, h := range heard {
			p.Heard[name+"/"+source] = h
		}
		p.Coverage.Nodes, p.Coverage.Absent = 1, 0
		Merge(x.sum, p)
	}
	x.sum.bound(caps)
	g.parts[part] = x
}

// sum adds up all parts.
func (g *gathering) sum(caps *Config) (p *Pane, broken map[string]string) {
	p, broken = &Pane{Start: g.start, End: g.end, Sites: map[string]*Site{}, Heard: map[string]*Heard{}}, map[string]string{}
	told := [gatherings]bool{}
	for name := range g.reports {
		told[partOf(name)] = true
	}
	for part := range g.parts {
		if !told[part] {
			continue
		}
		g.add(part, caps)
		Merge(p, g.parts[part].sum)
		maps.Copy(broken, g.parts[part].broken)
	}
	p.bound(caps)
	p.shorten(caps)
	return p, broken
}

package detectors

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/squall-sre/squall/detectors/pane"
)

// A Silence is a time in which a source told of no request although it nearly always does: nobody asked, or lines are
// missing. No verdict over that time is proven.
type Silence struct {
	Source   string
	Sites    []string // of which it tells, sorted
	From, To int64    // ns; To is 0 while it lasts
}

const (
	// silentOdds is how unlikely, by what is usual of the source, so many panes without a request must be.
	silentOdds = 1e-6
	// usualCap keeps a source that is never silent from being one after a pane: six panes of nothing are the least.
	usualCap = 0.9
	// usualPanes is how many panes the share of those with requests looks back on, by exponential weights.
	usualPanes = 60
	leastPanes = 12
	// Sources and sites that are remembered.
	maxListened   = 1024
	maxSilentSite = 64
)

// listening is what is usual of one source.
type listening struct {
	Usual  float64 // share of panes with requests, EWMA (Roberts, Technometrics 1959)
	Panes  int     // that were learned from
	Empty  int     // panes without a request in a row
	From   int64   // ns: where the row begins
	Sites  []string
	Silent bool
}

// A listener notices when sources fall silent.
type listener struct {
	sources map[string]*listening
	over    []Silence // lately
}

func newListener() *listener { return &listener{sources: map[string]*listening{}} }

// hear takes what each source told in the next pane.
func (l *listener) hear(p *pane.Pane, keep int64) {
	if p.Jump {
		l.sources = map[string]*listening{}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Heard)) {
		s := l.sources[name]
		if s == nil {
			if len(l.sources) >= maxListened {
				continue
			}
			s = &listening{}
			l.sources[name] = s
		}
		if h := p.Heard[name]; h.Records > 0 {
			l.told(name, s, h, p.Start)
			continue
		}
		if s.Empty == 0 {
			s.From = p.Start
		}
		s.Empty++
		s.Silent = s.Panes >= leastPanes && math.Pow(1-s.usual(), float64(s.Empty)) <= silentOdds
	}
	maps.DeleteFunc(l.sources, func(name string, _ *listening) bool { return p.Heard[name] == nil })
	l.over = slices.DeleteFunc(l.over, func(s Silence) bool { return s.To <= p.End-keep })
}

// told ends a row of empty panes: a silence is noted and not learned from, anything shorter is usual.
func (l *listener) told(name string, s *listening, h *pane.Heard, at int64) {
	if s.Silent {
		l.over = append(l.over, Silence{name, s.Sites, s.From, at})
	} else {
		for range min(s.Empty, 10*usualPanes) {
			s.learn(0)
		}
	}
	s.learn(1)
	s.Empty, s.Silent = 0, false
	for _, site := range h.Sites {
		if i, known := slices.BinarySearch(s.Sites, site); !known && len(s.Sites) < maxSilentSite {
			s.Sites = slices.Insert(slices.Clip(s.Sites), i, site)
		}
	}
}

// learn takes one pane into what is usual: the mean of the first, then an EWMA.
func (s *listening) learn(told float64) {
	s.Panes = min(s.Panes+1, usualPanes)
	s.Usual += (told - s.Usual) / float64(s.Panes)
}

// usual is the share of panes with requests, cautious while few were seen (Laplace's rule of succession).
func (s *listening) usual() float64 {
	n := float64(s.Panes)
	return min(s.Usual*n/(n+2), usualCap)
}

// silences lists those that last and those that were over lately, by source and time.
func (l *listener) silences() []Silence {
	out := slices.Clone(l.over)
	for name, s := range l.sources {
		if s.Silent {
			out = append(out, Silence{name, s.Sites, s.From, 0})
		}
	}
	slices.SortFunc(out, func(a, b Silence) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), cmp.Compare(a.From, b.From))
	})
	return out
}

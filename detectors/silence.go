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
	// usualCap keeps a source that is never silent from being one after a pane: six panes of nothing are the least, and
	// three of one that told much in each pane for as long as usualPanes.
	usualCap, steadyCap = 0.9, 0.995
	// manyRecords of a pane are so many that a pane without any is no chance (e^-20, were they independent).
	manyRecords = 20
	// A hole is up to holePanes without a request, in the middle of panes with many: lines are missing, unless more come
	// behind it than before, since what all requests wait for hung.
	holePanes, holeCatch = 6, 2
	// lowPanes is how long it takes, by exponential weights, until the lowest usual share is forgotten: a log that nobody
	// asked for but a crawler is not silent when the crawl is over.
	lowPanes = 2160
	// endedPanes is how long a log that came to its end, as others go on, is missed.
	endedPanes = 360
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
	Low    float64 // the lowest that Usual was; rises to it slowly
	Panes  int     // that were learned from
	First  int64   // ns: the first pane with requests
	Many   int     // panes with many requests in a row, empty ones left out
	Last   uint64  // requests in the last pane that had some
	Empty  int     // panes without a request in a row
	Ended  int     // of them behind the end of the log
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
	l.admit(p.Heard)
	for name, s := range l.sources {
		h := p.Heard[name]
		switch {
		case h == nil:
			s.miss(p.Start)
			s.Ended++
			continue
		case h.Records > 0:
			l.told(name, s, h, p.Start)
		default:
			s.miss(p.Start)
		}
		s.Ended = 0
	}
	slices.SortFunc(l.over, compareSilences)
	maps.DeleteFunc(l.sources, func(_ string, s *listening) bool {
		return s.Ended > endedPanes || s.Ended > 0 && (s.Panes < leastPanes || l.succeeded(s, p.End-p.Start))
	})
	l.over = slices.DeleteFunc(l.over, func(s Silence) bool { return s.To <= p.End-keep })
}

// admit notes the sources that are new, the first of them by name where they are too many.
func (l *listener) admit(heard map[string]*pane.Heard) {
	if len(l.sources) >= maxListened {
		return
	}
	var fresh []string
	for name := range heard {
		if l.sources[name] == nil {
			fresh = append(fresh, name)
		}
	}
	slices.Sort(fresh)
	for _, name := range fresh[:min(len(fresh), maxListened-len(l.sources))] {
		l.sources[name] = &listening{}
	}
}

// miss takes a pane in which the source told of nothing.
func (s *listening) miss(at int64) {
	if s.Empty == 0 {
		s.From = at
	}
	s.Empty++
	s.Silent = s.Panes >= leastPanes && math.Pow(1-s.usual(), float64(s.Empty)) <= silentOdds
}

// succeeded tells that a log which came to its end has one that goes on in its place: of another day, or of the
// container that replaced its own.
func (l *listener) succeeded(s *listening, length int64) bool {
	for _, next := range l.sources {
		if next.Ended == 0 && next.First >= s.From-2*length &&
			slices.ContainsFunc(next.Sites, func(site string) bool { return slices.Contains(s.Sites, site) }) {
			return true
		}
	}
	return false
}

// told ends a row of empty panes: a silence is noted and not learned from, anything shorter is usual.
func (l *listener) told(name string, s *listening, h *pane.Heard, at int64) {
	switch {
	case s.Silent || s.hole(h.Records):
		l.over = append(l.over, Silence{name, s.Sites, s.From, at})
	case s.Empty > 0:
		for range min(s.Empty, 10*usualPanes) {
			s.learn(0)
		}
		s.Many = 0
	}
	s.learn(1)
	if s.First == 0 {
		s.First = at
	}
	s.Many++
	if h.Records < manyRecords {
		s.Many = 0
	}
	s.Empty, s.Silent, s.Last = 0, false, h.Records
	for _, site := range h.Sites {
		if i, known := slices.BinarySearch(s.Sites, site); !known && len(s.Sites) < maxSilentSite {
			s.Sites = slices.Insert(slices.Clip(s.Sites), i, site)
		}
	}
}

// hole tells that the row of empty panes which n requests end is one in the middle of many.
func (s *listening) hole(n uint64) bool {
	return s.Empty > 0 && s.Empty <= holePanes && s.Many >= holePanes && n >= manyRecords && n <= holeCatch*s.Last
}

// learn takes one pane into what is usual: the mean of the first, then an EWMA.
func (s *listening) learn(told float64) {
	s.Panes = min(s.Panes+1, usualPanes)
	s.Usual += (told - s.Usual) / float64(s.Panes)
	if s.Panes <= leastPanes {
		s.Low = s.Usual
	}
	s.Low = min(s.Low+(s.Usual-s.Low)/lowPanes, s.Usual)
}

// usual is the share of panes with requests, cautious while few were seen (Laplace's rule of succession).
func (s *listening) usual() float64 {
	if s.Many >= usualPanes {
		return min(s.Low, steadyCap)
	}
	n := float64(s.Panes)
	return min(s.Low*n/(n+2), usualCap)
}

// silences lists those that last and those that were over lately, by source and time.
func (l *listener) silences() []Silence {
	out := slices.Clone(l.over)
	for name, s := range l.sources {
		if s.Silent {
			out = append(out, Silence{name, s.Sites, s.From, 0})
		}
	}
	slices.SortFunc(out, compareSilences)
	return out
}

func compareSilences(a, b Silence) int {
	return cmp.Or(strings.Compare(a.Source, b.Source), cmp.Compare(a.From, b.From))
}

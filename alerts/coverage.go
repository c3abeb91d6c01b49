package alerts

import (
	"maps"
	"slices"

	"github.com/squall-sre/squall/detectors"
)

// A Coverage is the ledger of what an alert's evidence rests on, from the alert's beginning: which sources were read and
// what is missing of them. A verdict is proven only by what was read.
type Coverage struct {
	Sources []SourceRead // by name
	Lines   uint64       // requests and events that were counted
	Late    uint64       // came after their pane was closed, or too far ahead of all others
	Lost    []string     // sources that lost lines, sorted
	Quiet   []detectors.Silence
}

// SourceRead is how many requests one source told of.
type SourceRead struct {
	Source   string
	Requests uint64
}

// requests is how many were read, of all sources.
func (in *incident) requests() (n uint64) {
	for _, of := range in.Heard {
		n += of
	}
	return n
}

func (in *incident) covered() Coverage {
	c := Coverage{Lines: in.Rests.Lines, Late: in.Rests.Late + in.Rests.Dropped, Lost: in.Gaps, Quiet: in.Quiet}
	for _, name := range slices.Sorted(maps.Keys(in.Heard)) {
		c.Sources = append(c.Sources, SourceRead{name, in.Heard[name]})
	}
	return c
}

// coverageLine is the JSON of a Coverage, without the names of what was read: how lines are spread over files must not
// change an alert. Who wants to know them finds them in a replay's summary.
type coverageLine struct {
	Lines  uint64        `json:"lines"`
	Late   uint64        `json:"late,omitempty"`
	Lost   []string      `json:"lost,omitempty"`
	Silent []silenceLine `json:"silent,omitempty"`
}

type silenceLine struct {
	Source string  `json:"source"`
	From   string  `json:"from"`
	To     *string `json:"to"` // null while it lasts
}

func (c *Coverage) line() coverageLine {
	l := coverageLine{Lines: c.Lines, Late: c.Late, Lost: c.Lost}
	for _, q := range c.Quiet {
		s := silenceLine{Source: q.Source, From: stamp(q.From)}
		if q.To != 0 {
			to := stamp(q.To)
			s.To = &to
		}
		l.Silent = append(l.Silent, s)
	}
	return l
}

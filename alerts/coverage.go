package alerts

import (
	"slices"

	"github.com/squall-sre/squall/detectors"
)

// A Coverage is the ledger of what an alert's evidence rests on, from the alert's beginning: how much was read, and what
// is missing. A verdict is proven only by what was read.
type Coverage struct {
	Lines uint64   // requests and events that were counted
	Late  uint64   // came after their pane was closed, or too far ahead of all others
	Lost  []string // sources that lost lines, sorted
	Quiet []detectors.Silence
}

// covered is a copy: the alert is told and stored while the history goes on.
func (h *history) covered() Coverage {
	return Coverage{Lines: h.Rests.Lines, Late: h.Rests.Late + h.Rests.Dropped, Lost: slices.Clone(h.Gaps), Quiet: slices.Clone(h.Quiet)}
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

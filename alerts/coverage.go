package alerts

import (
	"math"
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
	// Nodes of a fleet that did not tell, sorted, and the share of what all nodes had to tell that is missing, 0–1.
	Away   []string
	Absent float64
}

// covered is a copy: the alert is told and stored while the history goes on.
func (h *history) covered() Coverage {
	c := Coverage{
		Lines: h.Rests.Lines, Late: h.Rests.Late + h.Rests.Dropped, Lost: slices.Clone(h.Gaps), Quiet: slices.Clone(h.Quiet),
		Away: slices.Clone(h.Away),
	}
	if all := h.Rests.Nodes + h.Rests.Absent; all > 0 {
		c.Absent = float64(h.Rests.Absent) / float64(all)
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
	Away   []string      `json:"nodes_absent,omitempty"`
	Absent float64       `json:"nodes_absent_ratio,omitempty"`
}

type silenceLine struct {
	Source string  `json:"source"`
	From   string  `json:"from"`
	To     *string `json:"to"` // null while it lasts
}

func (c *Coverage) line() coverageLine {
	l := coverageLine{Lines: c.Lines, Late: c.Late, Lost: c.Lost, Away: c.Away, Absent: math.Round(1e4*c.Absent) / 1e4}
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

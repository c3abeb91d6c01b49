package pane

import (
	"fmt"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// TestCountedInAgain: a pane is what its lines are, whatever panes before it were counted in the same memory, and whatever
// was folded in it.
func TestCountedInAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		vary  func(r *pipeline.Record, i int)
		folds bool
	}{
		{"few routes", func(r *pipeline.Record, i int) { r.Route = fmt.Sprint("/", i%50) }, false},
		{"other routes in each pane", func(r *pipeline.Record, i int) { r.Route = fmt.Sprint("/", i/50) }, false},
		{"more routes than a pane may hold", func(r *pipeline.Record, i int) { r.Route = fmt.Sprint("/", i*7919%2900) }, true},
		{"more sites than a pane may have", func(r *pipeline.Record, i int) { r.Site = fmt.Sprint("s", i*7919%900, ".example") }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			records := traffic(41, 9000, 33e5) // 3 panes of 3,000
			cfg := Config{MaxPaneCells: 2100, MaxSites: 400}
			byPane := map[int64][]pipeline.Record{}
			for i := range records {
				r := &records[i]
				c.vary(r, i)
				r.Class = pipeline.Class(i % 3)
				start := r.End - r.End%(10*second)
				byPane[start] = append(byPane[start], *r)
			}
			folded := false
			for _, p := range assemble(cfg, 0, records) {
				alone := assemble(cfg, 0, byPane[p.Start])
				differ(t, p.String(), alone[0].String())
				folded = folded || p.Coverage.CellsFolded+p.Coverage.SitesFolded > 0
			}
			if folded != c.folds {
				t.Errorf("folded: %v", folded)
			}
		})
	}
}

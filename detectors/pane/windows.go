package pane

import "time"

// Windows keeps the newest panes and merges windows of them. Runs of 2, 4, 8, … panes that begin at a multiple
// of their length are merged once and used again, so that a window of n panes costs about 2·log₂n merges
// instead of n. The runs are fixed by time, so that a view is a function of its panes alone, and not of when
// the first of them came. A run holds as many cells as a pane, the heaviest. Not safe for concurrent use.
type Windows struct {
	length, keep int64 // ns
	runs         map[run]*Pane
	end          int64       // of the newest pane; 0 before the first
	cells        windowCells // of the views since the last Push
	merges       int         // of panes into runs and views, for the test of their number
}

// run is 2^level panes from start on. A nil in the map stands for a run without anything in it.
type run struct {
	level uint
	start int64
}

// NewWindows keeps panes of one length for as long as the longest window.
func NewWindows(pane, keep time.Duration) *Windows {
	return &Windows{length: int64(pane), keep: int64(max(keep, pane)), runs: map[run]*Pane{}}
}

// Push takes the next pane, which must not change any more, and ends all views. A pane that has Jump set begins anew.
func (w *Windows) Push(p *Pane) {
	w.cells.reclaim()
	for _, s := range p.Sites {
		s.totals = s.Totals()
	}
	if p.Jump {
		clear(w.runs)
	}
	w.runs[run{0, p.Start}] = p
	w.end = p.End
	for r := range w.runs {
		if r.start+w.length<<r.level <= w.end-w.keep {
			delete(w.runs, r)
		}
	}
}

// View merges the panes within [start, end), both ends of panes. What is not kept is empty. The view belongs
// to the caller until the next Push, which uses its memory again.
func (w *Windows) View(start, end int64) *Pane {
	var parts []*Pane
	last := min(end, w.end)
	for at := max(start, w.end-w.keep); at+w.length <= last; {
		r := run{0, at}
		for size := 2 * w.length; at%size == 0 && at+size <= last; size *= 2 {
			r.level++
		}
		if p := w.run(r); p != nil {
			parts = append(parts, p)
		}
		at += w.length << r.level
	}
	w.merges += len(parts)
	return mergeAll(start, end, parts, &cellsLater{fresh: &w.cells})
}

// run gives a run and merges it when that was not done yet. All its panes have come.
func (w *Windows) run(r run) *Pane {
	p, known := w.runs[r]
	if known || r.level == 0 {
		return p
	}
	half := w.length << (r.level - 1)
	var halves []*Pane
	for _, start := range []int64{r.start, r.start + half} {
		if h := w.run(run{r.level - 1, start}); h != nil {
			halves = append(halves, h)
		}
	}
	if len(halves) > 0 {
		p = mergeAll(r.start, r.start+2*half, halves, &cellsLater{fresh: &windowCells{}, kept: keptOf(2 * half)})
		w.merges += len(halves)
	}
	w.runs[r] = p
	return p
}

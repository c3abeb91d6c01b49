package detectors

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// Result is what the engine makes of one pane.
type Result struct {
	At         int64       // ns, the end of the pane: "now" in event time
	Pane       *pane.Pane  // what was judged; it is not to be changed
	Detections []Detection // the active ones, sorted by detector, then labels
	Changes    []Detection // those that became active or were over in this pane, in the same order
	Coverage   pane.Coverage
	GapSources []string // sources with lost lines in the window, sorted
	Absent     []string // nodes of the fleet that did not tell in the window, sorted
	Heard      map[string]*pane.Heard
	Silences   []Silence // that last, or were over within the longest window
	Busy       []Busy    // of the busiest sites in the last minute, sorted by site
	Spans      []Span    // those that ended in this pane, sorted by site
}

// Busy is the mean number of busy workers of a site's origin, as an interval.
type Busy struct {
	Site         string
	Lower, Upper float64
}

const (
	busySpan  = time.Minute
	busySites = 100
)

// busiest gives the busy workers of the sites of a view, those with most when there are many. A site whose log does
// not tell the origin's time has none.
func (w *Window) busiest() []Busy {
	list := make([]Busy, 0, len(w.Sites))
	for _, name := range w.Sites {
		t := w.totals(name)
		if all := &t.Clients; all.Requests == 0 || float64(all.Busy.Untimed) > 0.01*float64(all.Requests) {
			continue
		}
		lower, upper := w.busyClients(t)
		list = append(list, Busy{name, lower, upper})
	}
	slices.SortFunc(list, func(a, b Busy) int { return cmp.Or(cmp.Compare(b.Upper, a.Upper), strings.Compare(a.Site, b.Site)) })
	list = list[:min(len(list), busySites)]
	slices.SortFunc(list, func(a, b Busy) int { return strings.Compare(a.Site, b.Site) })
	return list
}

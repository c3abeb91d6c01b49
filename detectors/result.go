package detectors

import "github.com/squall-sre/squall/detectors/pane"

// Result is what the engine makes of one pane.
type Result struct {
	At         int64       // ns, the end of the pane: "now" in event time
	Detections []Detection // the active ones, sorted by detector, then labels
	Changes    []Detection // those that became active or were over in this pane, in the same order
	Coverage   pane.Coverage
	GapSources []string // sources with lost lines in the window, sorted
}

// Package detectors turns panes into Detections.
//
// A detector is a pure function of merged panes: it reads the view of the last minutes and says for which
// keys something is wrong, how much, and by which evidence. The Engine keeps what lasts longer than a window:
// since when a key has been over its threshold, what the whole episode added up to, and the baselines. Nothing
// here reads a clock, a file or the network; time is the event time of the panes.
package detectors

import (
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

// Labels identify what a detection is about, sorted by name. They are few and bounded (site, cluster); nothing
// of a line but a checked host name ever becomes a label.
type Labels []Label

// A Label is one name and value of Labels.
type Label struct{ Name, Value string }

// Get returns the value of a label, "" when it is not set.
func (l Labels) Get(name string) string {
	for _, x := range l {
		if x.Name == name {
			return x.Value
		}
	}
	return ""
}

// With gives the labels with one more.
func (l Labels) With(name, value string) Labels {
	at, _ := slices.BinarySearchFunc(l, name, func(x Label, name string) int { return strings.Compare(x.Name, name) })
	return slices.Insert(slices.Clone(l), at, Label{name, value})
}

// String renders labels as {site="shop.example"}; equal labels give equal strings.
func (l Labels) String() string {
	b := []byte{'{'}
	for i, x := range l {
		if i > 0 {
			b = append(b, ',', ' ')
		}
		b = append(b, x.Name...)
		b = append(b, '=', '"')
		b = append(b, x.Value...)
		b = append(b, '"')
	}
	return string(append(b, '}'))
}

// Level is how far a key is over.
type Level uint8

// The levels. Between Leave and Enter an active detection goes on and an inactive one does not begin.
const (
	Below   Level = iota // under the leave threshold
	Between              // hysteresis
	Over                 // at or over the threshold
)

// A Finding is what a detector says of one key in one window.
type Finding struct {
	Labels    Labels
	Level     Level
	Value     float64 // in the detector's unit: requests per minute, seconds, a ratio 0–1, a count
	Threshold float64 // in the same unit
	Evidence  Evidence
	Began     int64 // ns: since when, where the detector knows better than pane by pane; 0: it does not
}

// A Detector looks at a window and finds. It is called from one goroutine, keeps no state between calls, and
// returns findings in the order of their labels, at least all that are not Below.
type Detector interface {
	// Span is how much event time Detect wants to see; a multiple of the pane.
	Span() time.Duration
	// Scope is what it judges: each site by its requests, or the cluster by its events. A window holds only that; one
	// of sites has beside them the events of limiters, probes and killed requests, at most 1,000 a pane.
	Scope() Scope
	// Detect looks at the merged panes of one window.
	Detect(w *Window) []Finding
	// Touch tells in words what the single line in w adds to what the detector watches and when that fires; "" when
	// the line does not concern it.
	Touch(w *Window) string
	// Evidence explains one key over any window: the engine calls it with the merged panes of a whole episode.
	Evidence(w *Window, key Labels) Evidence
	// Help tells people what it watches, when it fires and what to do then.
	Help() Help
}

// Scope is what a detector judges.
type Scope uint8

// The scopes.
const (
	PerSite Scope = iota
	Cluster
	PerClient // each site by its Waits alone, so that a long window stays small
)

// Pool is the origin's capacity as configured.
type Pool struct {
	Workers int           // over all tasks; 0: unknown
	Reclaim time.Duration // what a stuck request may hold a worker
	Learned bool          // Workers is what php-fpm told, not what is configured
}

// A Window is what a Detector sees.
type Window struct {
	View      *pane.Pane                               // merged; its Start and End bound the window
	Sites     []string                                 // the sites to judge, sorted
	Cluster   string                                   // for detections that are about no site
	Pane      int64                                    // ns: the length of a pane
	SitesOnly bool                                     // another variant of the detector speaks of the cluster
	Pool      func(site string) Pool                   // capacity
	Baseline  func(site string, key pane.Key) Baseline // what is usual
	Heads     func(site string) Baseline               // what is usual of HEAD on all routes together
	Agents    func(site string) AgentBaseline          // what one agent usually makes
	Cache     func(site string) CacheBaseline          // what the cache usually misses
	Onsets    func(site string) []int64                // ns: when the detector's last episodes there began, oldest first

	// Newest merges the panes of the window's last length of time; nil where the window is no part of the present.
	Newest func(length time.Duration) *pane.Pane

	Controls     func(site string) []Control // what is in place
	Dependencies Dependencies                // of the cluster's namespaces
}

// Minutes is the window's length.
func (w *Window) Minutes() float64 { return float64(w.View.End-w.View.Start) / float64(time.Minute) }

// A Detection is a key that is, or was, over its threshold.
type Detection struct {
	Detector  string
	Labels    Labels
	Active    bool
	Onset     int64 // ns: the start of the first pane that belongs to the episode
	Since     int64 // ns: the end of the pane at which it became active
	Until     int64 // ns: the end of the pane at which it was over; 0 while active
	Unknown   bool  // whether it was over then: a source that told of its site had fallen silent
	Value     float64
	Threshold float64
	Peak      float64
	Evidence  Evidence // of the last window while active, of the whole episode when it is over
}

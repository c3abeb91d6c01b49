// Package pane cuts event time into panes and counts in them.
//
// A Pane is a small cube: site × method × route × origin class, each Cell holding measures that merge. Every
// detector reads the merge of the last panes and nothing else, so the cost of a line does not grow with the
// number of detectors, and the same panes merged from many nodes give the view of the cluster ("No pane, no
// gain", Li et al., SIGMOD Record 2005). There is no I/O and no clock here; all sums are integers, so that the
// order in which lines arrive changes nothing.
package pane

import "github.com/squall-sre/squall/pipeline"

// Other is the route and the site under which what is over a cap is counted.
const Other = "other"

// Pane is the sum of what ended within [Start, End). A merge of panes is a Pane too, with a longer span.
type Pane struct {
	Start, End int64 // ns since the epoch
	Sites      map[string]*Site
	Events     []pipeline.Event // in canonical order; at most MaxEvents
	Coverage   Coverage
	Heard      map[string]*Heard // by source: those that were open at the time, heard or not
	// Jump tells that this pane does not follow the one before it: nothing was logged for longer than MaxGap,
	// and the empty panes of the rest of the hole were left out. Whoever keeps windows starts them anew.
	Jump bool
}

// Coverage counts what a pane rests on and what is missing from it.
type Coverage struct {
	Lines         uint64 // Records and Events counted in the pane
	Late          uint64 // came when their pane was closed: shipped, not counted
	Gaps          uint64 // Skips with Lost set that fell into this span
	Dropped       uint64 // Records and Events too far ahead of all others to be kept: MaxOpen panes were open
	EventsDropped uint64 // over MaxEvents
	SitesFolded   uint64 // Records of sites over MaxSites, counted under Other
	CellsFolded   uint64 // Records of keys over MaxCells of their site, counted under Other
	Nodes         uint64 // of a fleet that told, each counted in every pane; 0 where a node counts for itself
	Absent        uint64 // likewise those that are known and did not tell, or too late
}

// Heard is what one source told in a pane. A source that is open and tells nothing has one of zeros: what is missing
// can be told from what was not asked.
type Heard struct {
	Records uint64
	Sites   []string // of the Records, sorted; with more than 64 sources it may have others too
}

// Key is a cell's place in a site. Health checks have cells of their own, so that no detector counts them as
// clients by mistake.
type Key struct {
	Method, Route string
	Origin        pipeline.Origin
	Probe         bool
}

// Site holds the cells of one site, with the heavy hitters among its agents and clients.
type Site struct {
	Agents  *Top     // User-Agent, probes left out
	Clients *Top     // client address, as text; for analysis, never shown in an alert
	Waits   []*Waits // requests in vain by client and path, in the order of a hash; probes left out

	cells  map[Key]*Cell // see Cells
	sealed []sealedCell  // of a closed pane, instead of cells
	parts  []sitePart    // of a site of a window: what its cells are merged of when somebody asks for them
	window *cellsLater   // how; nil once they are merged
	totals *Totals       // of a site of Windows; nil: nobody has added up

	origin  bool   // the origin told of it, and not an edge alone, while the pane is open
	tellers uint64 // a bit for each teller modulo 64 that told of the site, while the pane is open
}

// Cell holds the measures of one key.
type Cell struct {
	Requests    uint64
	Codes       Codes // by status code; 0 for none sent
	Cache       [pipeline.CacheStatuses]uint64
	Classes     [pipeline.Classes]uint64
	Abandoned   uint64 // the client gave up
	Limited     uint64 // refused by a limiter
	Reached     uint64 // an upstream was contacted
	NotReached  uint64 // answered without an upstream; Requests-Reached-NotReached: the log does not say
	Static      uint64 // a static file by its path
	StaticQuery uint64 // a static file asked for with a query string
	StaticLimit uint64 // a static file that a limiter refused
	Refused     Refused
	Bytes       uint64 // sent, where logged
	Latency     Quantiles
	Busy        Busy
	Clients     Distinct // by address
	Agents      Distinct
	URLs        Distinct // by path and query
	Missed      Distinct // likewise, of what a cache had to ask the origin for
	TopAgents   *Top     // a small one
	Samples     Samples
}

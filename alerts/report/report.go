// Package report makes the incident report: which requests pinned the origin, which layer should answer them, what was
// hurt meanwhile and what is not known.
//
// A Collector is fed the result of each pane and the transitions of alerts; it knows event time only, so that the same
// lines give the same report. It judges nothing anew: causes, advice, incidents and numbers are those of the packages
// alerts and detectors.
package report

import (
	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// Schema is the version of the JSON. It is raised when a field changes its meaning or goes away.
const Schema = 1

// A Report is all that there is to say of a replay. Times are event time; numbers are exact unless a name or a flag says
// otherwise, and what is not known is absent or null.
type Report struct {
	Schema    int                 `json:"schema"`
	Verdict   Verdict             `json:"verdict"`
	From      Time                `json:"from"`
	To        Time                `json:"to"`
	Input     Input               `json:"input"`
	Incidents []Incident          `json:"incidents"` // the worst first
	Sites     []Series            `json:"sites"`     // with an incident first, then by requests
	Layers    []Layers            `json:"layers,omitempty"`
	Restarts  *Restarts           `json:"restarts,omitempty"`    // of containers; absent: no log tells of any
	Ledger    []alerts.Entry      `json:"ledger"`                // the incidents as squall incidents compare reads them; where there is none, the busiest site
	Compared  []alerts.Comparison `json:"compared,omitempty"`    // with the last incident of the same kind that is known
	Marks     []alerts.Mark       `json:"annotations,omitempty"` // that were noted, by time
	Detected  []Detection         `json:"detections"`
	Dropped   int                 `json:"dropped,omitempty"` // alerts, spans and detections over the limit
	Missing   []string            `json:"missing,omitempty"` // that would be needed to say more
	Next      []Command           `json:"next_commands,omitempty"`
	Settings  string              `json:"settings,omitempty"` // in effect, as YAML, without secrets
}

// An Outcome is the kind of a Verdict.
type Outcome string

// The outcomes.
const (
	Hurt         Outcome = "hurt"         // clients were hurt, and what did it is known to some degree
	Undetermined Outcome = "undetermined" // clients were hurt, and the logs do not show by what
	Noted        Outcome = "noted"        // something is wrong that hurt no client
	Calm         Outcome = "calm"         // nothing hurt anybody
)

// A Verdict is the report in one sentence, with the requests it is about and what to do.
type Verdict struct {
	Outcome  Outcome         `json:"outcome"`
	Proof    alerts.Verdict  `json:"proof,omitempty"` // of the cause
	Sentence string          `json:"sentence"`
	Incident string          `json:"incident,omitempty"`
	Culprit  string          `json:"culprit,omitempty"` // the class of requests, or the cause in words
	Cause    string          `json:"cause,omitempty"`
	Fix      *alerts.Advice  `json:"fix,omitempty"`
	Others   []alerts.Advice `json:"other_fixes,omitempty"`
	GivenUp  detectors.Num   `json:"abandoned_requests,omitzero"`
}

// Input is what was read, and what is missing from it.
type Input struct {
	Lines   uint64            `json:"lines"`
	Parsed  uint64            `json:"parsed"`
	Failed  map[string]uint64 `json:"failed,omitempty"` // by reason
	Late    uint64            `json:"late,omitempty"`
	Bytes   int64             `json:"bytes"`
	Sources []Source          `json:"sources"`
	Gaps    []Gap             `json:"gaps,omitempty"`
}

// A Source is what one log told of requests.
type Source struct {
	Name     string    `json:"source"`
	Requests uint64    `json:"requests"`
	Silent   []Between `json:"silent,omitempty"`
}

// Between is a span of time; without an end it lasts.
type Between struct {
	From string  `json:"from"`
	To   *string `json:"to"`
}

// A Gap is a place where log lines are missing.
type Gap struct {
	Source string `json:"source"`
	At     string `json:"at"`
	Reason string `json:"reason"`
	Bytes  *int64 `json:"bytes,omitempty"`
}

// An Incident is what belongs together: alerts, the detections they come from, and the requests of that time.
type Incident struct {
	ID       string             `json:"id"`
	From     Time               `json:"from"`
	To       Time               `json:"to"`      // of the last alert's end, or where the log ends
	Ongoing  bool               `json:"ongoing"` // it was not over when the log ended
	Severity alerts.Severity    `json:"severity"`
	Sites    []string           `json:"sites"`
	Members  []Member           `json:"members"`
	Merged   []Merged           `json:"merged,omitempty"` // incidents that turned out to be this one
	Apart    []alerts.Apart     `json:"apart,omitempty"`  // of the same time, and another
	Alerts   []Alert            `json:"alerts"`
	Windows  []Window           `json:"windows"`
	Compared *alerts.Comparison `json:"compared,omitempty"` // with the last one of its kind; absent: none is known
}

// Merged is an incident that was told under an ID of its own until something showed that it is a part of another.
type Merged struct {
	ID      string `json:"id"`
	At      Time   `json:"at"` // when it showed
	Because string `json:"because"`
}

// A Member is one detection of an incident.
type Member struct {
	Detector string `json:"detector"`
	About    string `json:"about"`
	Onset    Time   `json:"onset"`
	After    string `json:"after,omitempty"`
	Because  string `json:"because,omitempty"`
}

// An Alert is one that fired, in its last state: its evidence is of the whole incident when it is over.
type Alert struct {
	Name       string             `json:"alert"`
	Severity   alerts.Severity    `json:"severity"`
	Suppressed string             `json:"suppressed,omitempty"`
	About      string             `json:"about"`
	From       Time               `json:"from"`
	To         *Time              `json:"to"` // null: it still fired when the log ended
	Value      detectors.Num      `json:"value"`
	Threshold  detectors.Num      `json:"threshold"`
	Cause      alerts.Cause       `json:"cause"`
	Detectors  []string           `json:"detectors"`
	Incomplete bool               `json:"evidence_incomplete,omitempty"` // lines were lost, or a source was silent
	Evidence   detectors.Evidence `json:"evidence"`
	Advice     []alerts.Advice    `json:"advice,omitempty"`
}

// A Window is the requests of one site while something was wrong with it.
type Window struct {
	Site       string             `json:"site"`
	From       Time               `json:"from"`
	To         Time               `json:"to"`
	Total      detectors.Evidence `json:"total"` // of all clients
	Classes    []Class            `json:"classes"`
	Left       int                `json:"classes_not_listed,omitempty"`
	Dashboards []Panel            `json:"dashboards"`
	Timeouts   Timeouts           `json:"timeouts"`
	Series     *Series            `json:"series,omitempty"` // pane by pane, where the whole timeline is coarser
}

// A Class is a row of the table of requests that pinned the origin.
type Class struct {
	Method   string             `json:"method"`
	Route    string             `json:"route"`
	Origin   string             `json:"origin"` // external, own or allowed
	Evidence detectors.Evidence `json:"evidence"`
	Cache    []detectors.Count  `json:"cache,omitempty"`
	Answer   string             `json:"answered_by,omitempty"` // the layer that should
	Rule     string             `json:"rule,omitempty"`
	Why      string             `json:"why,omitempty"`
	Advice   []alerts.Advice    `json:"advice,omitempty"`
}

// A Panel is what a usual dashboard would have shown.
type Panel struct {
	Name   string `json:"panel"`
	Showed string `json:"showed"`
	Silent bool   `json:"silent"` // it would have stayed green
}

// Timeouts are those that pile-ups of durations tell of, and whether their order lets inner layers give up first.
type Timeouts struct {
	Found     []Timeout `json:"found,omitempty"`
	Faults    []string  `json:"faults,omitempty"`
	Suspected []string  `json:"suspected,omitempty"` // faults if an assumed timeout holds
	Verdict   string    `json:"verdict"`             // in_order, out_of_order or undetermined
	Missing   []string  `json:"missing,omitempty"`
}

// A Timeout is one layer's.
type Timeout struct {
	Layer    string        `json:"layer"` // worker, proxy, client, or undetermined
	Seconds  detectors.Num `json:"seconds"`
	Requests uint64        `json:"requests,omitempty"` // that ended there
	From     string        `json:"from"`               // how it is known
	Assumed  bool          `json:"assumed,omitempty"`  // from the configuration or its defaults: nothing was seen of it
}

// A Detection is a detector's episode, for the timeline.
type Detection struct {
	Detector string        `json:"detector"`
	About    string        `json:"about"`
	From     Time          `json:"from"`
	To       Time          `json:"to"`
	Peak     detectors.Num `json:"peak"`
	Limit    detectors.Num `json:"threshold"`
}

// Restarts counts the restarts of containers by step.
type Restarts struct {
	Start  Time     `json:"start"`
	Step   float64  `json:"step_seconds"`
	Counts []uint64 `json:"restarts"`
}

// A Command is what to look at next.
type Command struct {
	Why  string `json:"why"`
	Line string `json:"command"`
}

// Time is event time in ns. It is written as RFC 3339 in UTC.
type Time int64

// String writes the time.
func (t Time) String() string { return alerts.Stamp(int64(t)) }

// MarshalText writes the time for JSON.
func (t Time) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// MarshalJSON writes the time as a string.
func (t Time) MarshalJSON() ([]byte, error) { return []byte(`"` + t.String() + `"`), nil }

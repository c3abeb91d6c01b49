// Package alerts turns Detections into Alerts: rules join detections into what is worth a person's time, a
// state machine gives each alert a beginning and an end, and cause and advice say why it happened and which
// layer should answer.
//
// Grouping, routing, silencing and inhibition are Alertmanager's. Time here is event time: the end of the pane
// that was just evaluated.
package alerts

import (
	"context"
	"errors"
	"time"

	"github.com/squall-sre/squall/detectors"
)

// Severity is how urgent an alert is.
type Severity string

// The severities. Only Page wakes a person.
const (
	Page    Severity = "page"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// State is where an alert is in its life.
type State string

// The states that leave this package. Pending alerts (waiting for `for`) stay inside.
const (
	Firing     State = "firing"
	Suppressed State = "suppressed" // held back: recorded and shown, and no receiver is told
	Resolved   State = "resolved"
)

// Verdict is how well a cause is proven.
type Verdict string

// The verdicts.
const (
	Proven       Verdict = "proven"
	Probable     Verdict = "probable"
	Undetermined Verdict = "undetermined"
)

// A Cause says why, or that it is not known, and what is missing to know it.
type Cause struct {
	Verdict Verdict  `json:"verdict"`
	Text    string   `json:"text"`
	Missing []string `json:"missing,omitempty"`
}

// Advice names the layer that should answer the requests, in order of preference.
type Advice struct {
	Layer   string `json:"layer"` // edge, waf, nginx, cdn, application or kubernetes
	Text    string `json:"text"`  // what to do and the facts that matched
	Snippet string `json:"snippet,omitempty"`
	Verify  string `json:"verify,omitempty"` // how to see that it works
}

// An Alert is one condition from its onset to its end. Labels are its identity and never change; everything
// else is evidence. Strings from log lines are raw: a Notifier escapes them for its medium.
type Alert struct {
	Name       string
	State      State
	Suppressed string // who holds it back, or did until its end; "": it was told
	Severity   Severity
	Labels     detectors.Labels // without alertname and severity
	// StartsAt (ns) is the beginning of the first pane from which the rule's condition held without a break. That is when
	// what it asks for was there together, not when the first of it came, and before At by `for` and by what a detector
	// needs to see.
	StartsAt    int64
	EndsAt      int64 // ns: 0 while firing
	At          int64 // ns: the event time of this transition or of the last evaluation
	Value       float64
	Threshold   float64
	Detectors   []string // that took part, sorted
	Cause       Cause
	Advice      []Advice
	Incident    *Incident          // that it is a part of; nil: none is known
	Coverage    Coverage           // what its evidence rests on
	Evidence    detectors.Evidence // of the last window; of the whole incident when resolved
	Annotations map[string]string  // rendered: summary, description, cause, evidence, advice, runbook, loki_query, …
}

// A Notifier sends alerts somewhere. It does that one thing: the queue, the retries, the re-sending and the
// metrics are done around it. It is called from one goroutine at a time with whole alerts and may block until
// ctx ends; it keeps nothing of what it gets. An error is retried with the newest state unless it wraps
// ErrPermanent.
type Notifier interface {
	Notify(ctx context.Context, batch []Alert) error
	// Resend is how often a firing alert is sent again, and resolved ones for 15 minutes; 0: transitions only.
	Resend() time.Duration
}

// ErrPermanent marks what a retry cannot cure: a refused alert.
var ErrPermanent = errors.New("permanent")

package alerts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors"
)

// A FixVerdict tells whether what was done after one incident helped in the next.
type FixVerdict string

// The verdicts.
const (
	Held          FixVerdict = "held"            // it came again, and nobody was hurt
	MovedTheCost  FixVerdict = "moved the cost"  // a request costs less, and there were enough of them to hurt all the same
	StormMoved    FixVerdict = "the storm moved" // other requests of the same site did it this time
	DidNotHold    FixVerdict = "did not hold"    // the same again
	NotComparable FixVerdict = "undetermined"    // why is said
)

const (
	sameStorm    = 0.5 // of the rate of before: a smaller storm proves nothing
	cheaper      = 0.7 // of the worker time of a request: something was won; less will do where far more of them did less harm
	mostBetween  = 20  // marks that a comparison lists
	sinceUnknown = "what was changed between the two is not noted (squall annotate \"what was done\")"
)

// A Comparison holds a later incident against an earlier one. Factors are later ÷ earlier; what is not known is absent.
type Comparison struct {
	Earlier      string        `json:"earlier"`
	Later        string        `json:"later"`
	Verdict      FixVerdict    `json:"verdict"`
	Why          string        `json:"why"`
	Rate         detectors.Num `json:"rate_times,omitzero"` // of the site's busiest minute, else of all requests
	RateOf       string        `json:"rate_of,omitempty"`
	Requests     detectors.Num `json:"requests_times,omitzero"`
	WorkerLower  detectors.Num `json:"worker_seconds_times_lower,omitzero"`
	WorkerUpper  detectors.Num `json:"worker_seconds_times_upper,omitzero"`
	CostTimes    detectors.Num `json:"worker_seconds_per_request_times,omitzero"`
	Abandons     detectors.Num `json:"abandons_times,omitzero"`
	Before       Numbers       `json:"before"`
	After        Numbers       `json:"after"`
	NewControls  []string      `json:"controls_added,omitempty"`
	GoneControls []string      `json:"controls_removed,omitempty"`
	Between      []Mark        `json:"between,omitempty"` // changes that were noted between the two
}

// Compare holds b against a, the earlier. marks are the changes that were noted; those between the two are told.
func Compare(a, b *Entry, marks []Mark) Comparison {
	if b.From < a.From {
		a, b = b, a
	}
	c := Comparison{
		Earlier: a.ID, Later: b.ID, Before: a.Numbers, After: b.Numbers,
		Requests: times(b.Numbers.Requests, a.Numbers.Requests), Abandons: times(b.Numbers.Abandoned, a.Numbers.Abandoned),
		WorkerLower: times(b.Numbers.WorkerSecondsLower, a.Numbers.WorkerSecondsUpper),
		WorkerUpper: times(b.Numbers.WorkerSecondsUpper, a.Numbers.WorkerSecondsLower),
		CostTimes:   times(b.cost(), a.cost()),
	}
	c.Rate, c.RateOf = times(b.Numbers.PeakPerMinute, a.Numbers.PeakPerMinute), "the busiest minute"
	if !c.Rate.Known() {
		c.Rate, c.RateOf = times(b.perMinute(), a.perMinute()), "the mean a minute"
	}
	if !c.Rate.Known() {
		c.RateOf = ""
	}
	c.NewControls, c.GoneControls = without(b.Controls, a.Controls), without(a.Controls, b.Controls)
	for _, m := range marks {
		if m.At > a.From && m.At <= b.From && m.Concerns(b.Sites) && len(c.Between) < mostBetween {
			c.Between = append(c.Between, m)
		}
	}
	c.judge(a, b)
	return c
}

// Noted tells that something is known to have been changed between the two.
func (c *Comparison) Noted() bool { return len(c.Between)+len(c.NewControls) > 0 }

// judge gives the verdict, by the first rule that matches.
func (c *Comparison) judge(a, b *Entry) {
	say := func(v FixVerdict, format string, args ...any) { c.Verdict, c.Why = v, fmt.Sprintf(format, args...) }
	worse := c.Rate.Get()
	same := a.Fingerprint == b.Fingerprint || a.Requests != "" && a.Requests == b.Requests
	switch {
	case a.ID == b.ID && a.From == b.From:
		say(NotComparable, "it is one and the same incident")
	case len(a.Sites) > 0 && len(b.Sites) > 0 && len(without(a.Sites, b.Sites)) == len(a.Sites):
		say(NotComparable, "they are of different sites (%s, %s)", strings.Join(a.Sites, ", "), strings.Join(b.Sites, ", "))
	case b.Ongoing:
		say(NotComparable, "the later one goes on: what it costs is not known yet")
	case !b.hurt() && !a.hurt():
		say(NotComparable, "neither of the two hurt anybody")
	case !b.hurt() && b.Incomplete:
		say(NotComparable, "lines of the later one are missing: that nobody was hurt is not known")
	case !b.hurt() && !c.Rate.Known():
		say(NotComparable, "nobody was hurt, and how large the two were the logs do not tell")
	case !b.hurt() && worse < sameStorm:
		say(NotComparable, "nobody was hurt, and it was only %s times as large: too small to tell", short(worse))
	case b.Severity == "" && worse < 1:
		say(NotComparable, "no alert fired, and the busiest minute was only %s times as busy: whether the same requests came is not known", short(worse))
	case b.Severity == "":
		say(Held, "its busiest minute was %s times as busy, and no alert fired; that the same requests were among them is not known", short(worse))
	case !b.hurt():
		say(Held, "it was %s times as large and hurt nobody", short(worse))
	case !a.hurt() && !c.Noted():
		say(NotComparable, "the earlier one hurt nobody, this one did, and no fix between the two is noted")
	case !a.hurt():
		say(DidNotHold, "the earlier one hurt nobody, this one did")
	case !same && a.Requests != "" && b.Requests != "":
		say(StormMoved, "then it was %s, now %s", a.Requests, b.Requests)
	case c.CostTimes.Get() <= cheaper || worse >= 2 && c.CostTimes.Get() < 0.9 && c.Abandons.Get() < 1:
		say(MovedTheCost, "a request held %s of the worker time of before, and still a worker: %s times as many a minute hurt again",
			percent(c.CostTimes.Get()), short(worse))
	case !same:
		say(NotComparable, "which requests did it is not known of both")
	default:
		say(DidNotHold, "the same requests hurt again%s", c.worse())
	}
}

// worse tells by how much.
func (c *Comparison) worse() string {
	if !c.Abandons.Known() {
		return ""
	}
	return fmt.Sprintf(": clients gave up %s times as often", short(c.Abandons.Get()))
}

// hurt tells that clients were: an alert that pages says so.
func (e *Entry) hurt() bool { return e.Severity == Page }

// Hurt tells that clients were hurt.
func (e *Entry) Hurt() bool { return e.hurt() }

// cost is the worker time of a request of the class that did it, by the upper bound; where that is not known, of all.
func (e *Entry) cost() detectors.Num {
	w := e.worst()
	if w == nil {
		return detectors.Num{}
	}
	for i := range w.Routes {
		if r := &w.Routes[i]; r.Name() == e.Requests {
			return times(r.WorkerSecondsUpper, r.Requests)
		}
	}
	return times(w.Numbers.WorkerSecondsUpper, w.Numbers.Requests)
}

func (e *Entry) perMinute() detectors.Num {
	minutes := time.Duration(e.To - e.From).Minutes()
	if !e.Numbers.Requests.Known() || minutes <= 0 {
		return detectors.Num{}
	}
	return detectors.N(e.Numbers.Requests.Get() / minutes)
}

// times is b ÷ a, unknown where a is 0.
func times(b, a detectors.Num) detectors.Num {
	if !b.Known() || !(a.Get() > 0) {
		return detectors.Num{}
	}
	return detectors.N(b.Get() / a.Get())
}

func without(list, these []string) (out []string) {
	for _, s := range list {
		if !slices.Contains(these, s) {
			out = append(out, s)
		}
	}
	return out
}

// Earlier finds the last incident before e that was of the same kind: of the same fingerprint, else with the same
// detector or requests at the same site. nil: none is known.
func (e *Entry) Earlier(known []Entry) *Entry {
	var out *Entry
	near := func(x *Entry) int {
		switch {
		case x.Fingerprint == e.Fingerprint && e.Fingerprint != "":
			return 2
		case x.Lead == e.Lead && e.Lead != "" && slices.Equal(x.Sites, e.Sites):
			return 1
		}
		return 0
	}
	for i := range known {
		x := &known[i]
		if x.From >= e.From || x.ID == e.ID || near(x) == 0 {
			continue
		}
		if out == nil || near(x) > near(out) || near(x) == near(out) && x.From > out.From {
			out = x
		}
	}
	return out
}

// Lines tells a comparison to people, escaped.
func (c *Comparison) Lines() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, Escape(fmt.Sprintf(format, args...))) }
	add("%s: %s", c.Verdict, c.Why)
	factor := func(name string, n detectors.Num) {
		if n.Known() {
			add("%s × %s", name, short(n.Get()))
		}
	}
	if c.Rate.Known() {
		add("rate × %s (%s%s)", short(c.Rate.Get()), c.RateOf, fromTo(c.Before.PeakPerMinute, c.After.PeakPerMinute, ""))
	}
	factor("requests", c.Requests)
	if c.WorkerLower.Known() || c.WorkerUpper.Known() {
		add("worker-seconds × %s to %s", shortNum(c.WorkerLower), shortNum(c.WorkerUpper))
	}
	factor("worker-seconds of one request", c.CostTimes)
	factor("abandons", c.Abandons)
	if c.Before.Abandoned.Known() && c.After.Abandoned.Known() {
		add("abandoned: %s, then %s", short(c.Before.Abandoned.Get()), short(c.After.Abandoned.Get()))
	}
	add("p99: %s, then %s", c.Before.p99(), c.After.p99())
	add("recovery: %s, then %s", lasting(c.Before.RecoverySeconds), lasting(c.After.RecoverySeconds))
	if len(c.NewControls) > 0 {
		add("in place since: %s", strings.Join(c.NewControls, ", "))
	}
	if len(c.GoneControls) > 0 {
		add("no longer in place: %s", strings.Join(c.GoneControls, ", "))
	}
	for _, m := range c.Between {
		add("between: %s %s", m.At, m.Text)
	}
	if !c.Noted() {
		add("%s", sinceUnknown)
	}
	return out
}

func fromTo(a, b detectors.Num, unit string) string {
	if !a.Known() || !b.Known() {
		return ""
	}
	return ": " + short(a.Get()) + unit + ", then " + short(b.Get()) + unit
}

func shortNum(n detectors.Num) string {
	if !n.Known() {
		return "?"
	}
	return short(n.Get())
}

func (n *Numbers) p99() string {
	switch {
	case !n.P99Seconds.Known():
		return "not known"
	case n.P99Censored:
		return "≥ " + short(n.P99Seconds.Get()) + " s"
	}
	return short(n.P99Seconds.Get()) + " s"
}

func lasting(n detectors.Num) string {
	if !n.Known() {
		return "not known"
	}
	return (time.Duration(n.Get()) * time.Second).String()
}

// Lasted is how long an incident lasted so far.
func (e *Entry) Lasted() string {
	s := time.Duration(e.To - e.From).Round(time.Second).String()
	if e.Ongoing {
		s += ", goes on"
	}
	return s
}

// Lines tells an incident to people, escaped.
func (e *Entry) Lines() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, Escape(fmt.Sprintf(format, args...))) }
	add("%s: %s, %s to %s (%s)", e.ID, string(e.Severity), e.From, e.To, e.Lasted())
	if e.Fingerprint != "" {
		add("what: %s", e.Fingerprint)
	}
	if e.Cause.Text != "" {
		add("cause (%s): %s", e.Cause.Verdict, e.Cause.Text)
	}
	n := &e.Numbers
	for _, x := range []struct {
		name string
		n    detectors.Num
	}{
		{"requests", n.Requests}, {"busiest minute", n.PeakPerMinute}, {"abandoned", n.Abandoned}, {"answered 5xx", n.Errors5xx}, {"containers restarted", n.Restarts},
	} {
		if x.n.Known() {
			add("%s: %s", x.name, short(x.n.Get()))
		}
	}
	if n.WorkerSecondsUpper.Known() {
		add("worker-seconds: %s to %s", shortNum(n.WorkerSecondsLower), shortNum(n.WorkerSecondsUpper))
	}
	add("p99: %s; recovery: %s", n.p99(), lasting(n.RecoverySeconds))
	for i := range e.Windows {
		w := &e.Windows[i]
		for j := range w.Routes {
			r := &w.Routes[j]
			add("  %s %s: %s requests, %s to %s worker-seconds", w.Site, r.Name(), shortNum(r.Requests), shortNum(r.WorkerSecondsLower), shortNum(r.WorkerSecondsUpper))
		}
	}
	if len(e.Controls) > 0 {
		add("in place: %s", strings.Join(e.Controls, ", "))
	}
	for i := range e.Alerts {
		a := &e.Alerts[i]
		to := "now"
		if a.To != nil {
			to = a.To.String()
		}
		add("  %s (%s) on %s, %s to %s", a.Name, a.Severity, a.About, a.From, to)
	}
	return out
}

// NumberOf is Number for what may not be known: ? then.
func NumberOf(n detectors.Num) string { return shortNum(n) }

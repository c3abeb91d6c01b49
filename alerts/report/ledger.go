package report

import (
	"math"
	"slices"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// remember puts the ledger's entries to the incidents, and holds each against the last one of its kind that is known.
func (r *Report) remember(own, earlier []alerts.Entry) {
	known := slices.Concat(own, earlier)
	r.Ledger = []alerts.Entry{}
	for i := range r.Incidents {
		in := &r.Incidents[i]
		k := slices.IndexFunc(own, func(e alerts.Entry) bool { return e.ID == in.ID })
		if k < 0 {
			continue
		}
		e := own[k]
		r.Ledger = append(r.Ledger, e)
		if before := e.Earlier(known); before != nil {
			c := alerts.Compare(before, &e, r.Marks)
			in.Compared = &c
			r.Compared = append(r.Compared, c)
		}
	}
	if len(r.Ledger) > 0 || len(r.Sites) == 0 {
		return
	}
	quiet := r.Sites[0].entry(r.From, r.To)
	r.Ledger = append(r.Ledger, quiet)
	var last *alerts.Entry
	for i := range earlier {
		if e := &earlier[i]; e.From < quiet.From && e.Severity != "" && slices.Contains(e.Sites, quiet.Sites[0]) && (last == nil || e.From > last.From) {
			last = e
		}
	}
	if last != nil {
		r.Compared = append(r.Compared, alerts.Compare(last, &quiet, r.Marks))
	}
}

// entry is a time without an incident as the ledger tells one: a storm that hurt nobody is compared by it.
func (s *Series) entry(from, to Time) alerts.Entry {
	e := alerts.Entry{
		Version: alerts.LedgerVersion, ID: "quiet-" + from.String() + "-" + s.Site, From: alerts.Instant(from), To: alerts.Instant(to), Sites: []string{s.Site},
	}
	n := &e.Numbers
	var abandoned, errors uint64
	var busiest, lower, upper float64
	width := max(1, int(60/s.Step))
	for i := range s.Len() {
		var sum uint64
		for k := i; k < min(i+width, s.Len()); k++ {
			for _, list := range s.Requests {
				sum += list[k]
			}
		}
		busiest = max(busiest, float64(sum)*60/(s.Step*float64(width)))
		abandoned, errors = abandoned+s.Abandoned[i], errors+s.Errors[i]
		if p := s.P99[i]; p.Known() && !(n.P99Seconds.Get() >= p.Get()) {
			n.P99Seconds, n.P99Censored = p, s.Censored[i]
		}
		if s.BusyUpper[i].Known() {
			lower, upper = lower+s.Step*s.BusyLower[i].Get(), upper+s.Step*s.BusyUpper[i].Get()
		}
	}
	n.Requests, n.PeakPerMinute = detectors.N(float64(s.Total)), detectors.N(math.Round(busiest))
	n.Abandoned, n.Errors5xx = detectors.N(float64(abandoned)), detectors.N(float64(errors))
	if upper > 0 && width > 1 { // the busy workers are means of a minute: in steps shorter than one they add up
		n.WorkerSecondsLower, n.WorkerSecondsUpper = detectors.N(math.Round(lower)), detectors.N(math.Round(upper))
	}
	if s.Pool > 0 {
		n.PoolWorkers = detectors.N(float64(s.Pool))
	}
	return e
}

// knows tells that an incident is one of the report's own.
func (r *Report) knows(id string) bool {
	return slices.ContainsFunc(r.Ledger, func(e alerts.Entry) bool { return e.ID == id })
}

// held tells in a sentence whether the last fix held, "" when no incident of its kind is known.
func (r *Report) held() string {
	var c *alerts.Comparison
	switch {
	case len(r.Incidents) > 0:
		c = r.Incidents[0].Compared
	case len(r.Compared) > 0:
		c = &r.Compared[0]
	}
	if c == nil || !c.Noted() && r.knows(c.Earlier) {
		return "" // two of one log, and nobody says that anything was done between them: no fix is known
	}
	switch c.Verdict {
	case alerts.Held:
		return " The last fix held: " + c.Why + "."
	case alerts.DidNotHold:
		return " The last fix did not hold: " + c.Why + "."
	case alerts.MovedTheCost:
		return " The last fix moved the cost: " + c.Why + "."
	case alerts.StormMoved:
		return " The storm moved since the last fix: " + c.Why + "."
	}
	return " Whether the last fix held is undetermined: " + c.Why + "."
}

package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/common/model"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
)

// An eventRange is the part of event time that a replay tells of, [since, until) in ns. What is logged before it is judged
// all the same, as whoever had watched would have: it fills the windows and teaches what is usual. What is logged after it
// does not exist.
type eventRange struct{ since, until int64 }

// always is a range without bounds.
var always = eventRange{math.MinInt64, math.MaxInt64}

// parseRange reads --since and --until: each a time, or how long before now.
func parseRange(since, until string, now time.Time) (eventRange, error) {
	r := always
	for _, x := range []struct {
		flag, text string
		to         *int64
	}{{"since", since, &r.since}, {"until", until, &r.until}} {
		if x.text == "" {
			continue
		}
		at, err := parseMoment(x.text, now)
		if err != nil {
			return r, usageError(fmt.Errorf("--%s: %w", x.flag, err))
		}
		*x.to = at.UnixNano()
	}
	if r.since >= r.until {
		return r, usageError(errors.New("--since is not before --until: nothing lies between them"))
	}
	return r, nil
}

// parseMoment reads 2026-11-30T12:00:00Z, or 90m or 3d, which are before now.
func parseMoment(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if d, err := model.ParseDuration(text); err == nil {
		return now.Add(-time.Duration(d)), nil
	}
	return time.Time{}, fmt.Errorf("%q is no time: write 2006-01-02T15:04:05Z, or how long before now, as in 90m or 3d", text)
}

// beyond tells that a time is at the range's end or after it.
func (r eventRange) beyond(at int64) bool { return at >= r.until }

// cut takes out of the work what was logged at the range's end or after it, and tells how many lines lie before its
// beginning.
func (r eventRange) cut(w *pipeline.Work) (before uint64) {
	if r == always {
		return 0
	}
	kept := 0
	for i := range w.Items {
		it := &w.Items[i]
		if r.beyond(it.Time) {
			w.Batch.Lines--
			w.Bytes -= int64(len(it.Line)) + 1
			if it.Kind == pipeline.Failed {
				w.Failed[it.Reason]--
			}
			continue
		}
		if it.Time < r.since && it.Time != 0 {
			before++
		}
		w.Items[kept], w.Items[i] = w.Items[i], w.Items[kept] // an item's memory must stay its own
		kept++
	}
	w.Items, w.Batch.Lines, w.Bytes = w.Items[:kept], max(w.Batch.Lines, 0), max(w.Bytes, 0)
	return before
}

// within makes a judge's settled hand on the panes of the range alone. What began before it and lasts is told when it
// begins.
func (r eventRange) within(j *judge, settled func(*detectors.Result, []alerts.Alert)) func(*detectors.Result, []alerts.Alert) {
	if r.since == math.MinInt64 {
		return settled
	}
	var lasting []alerts.Alert
	begun := false
	return func(res *detectors.Result, transitions []alerts.Alert) {
		if res.At <= r.since {
			lasting = append(j.manager.Active(), j.manager.Suppressed()...)
			return
		}
		if !begun {
			begun = true
			transitions = append(lasting, transitions...)
			res = withLasting(res)
			lasting = nil
		}
		settled(res, transitions)
	}
}

// withLasting adds to the changes of a result what was active before it.
func withLasting(res *detectors.Result) *detectors.Result {
	out := *res
	out.Changes = nil
	for _, d := range res.Detections {
		if d.Since < res.At {
			out.Changes = append(out.Changes, d)
		}
	}
	out.Changes = append(out.Changes, res.Changes...)
	return &out
}

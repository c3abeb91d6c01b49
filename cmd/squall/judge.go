package main

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/source"
)

// judge is the part that run and replay share: it takes work in, counts it into panes, lets the engine and the
// rules look at every pane that closes, and hands the transitions out. It knows event time only, so that the
// same lines give the same alerts however they came. It belongs to one goroutine.
type judge struct {
	panes   *pane.Assembler
	engine  *detectors.Engine
	manager *alerts.Manager
	ledger  *alerts.Ledger
	store   pipeline.Store // nil: nothing is kept
	label   string         // the metrics' source label for all inputs; "": each input has its own
	metrics *judgeMetrics

	sources map[string]int // assembler's number of each input
	inputs  map[string]punctuality
	behind  map[string]map[string]int64 // by input and stream of which more lies unread: the newest line so far, ns
	loose   map[string]int              // assembler's number of what of an input is not believed
	trust   trust                       // of the work at hand
	gaps    map[string]int64            // when an input last lost lines, in event time
	absent  map[string]int64            // when a node of the fleet last did not tell, in event time
	closed  int64                       // ns: the end of the last pane that was evaluated
	total   tally

	// watch is told of every record before it is counted; nil for nobody.
	watch func(r *pipeline.Record)
	// whole is given each pane before it is judged, with all that was counted; nil for nobody.
	whole func(p *pane.Pane)
	// settled is called after each evaluated pane, with what changed in it.
	settled func(res *detectors.Result, transitions []alerts.Alert)
}

// punctuality is how many lines of an input came, and how many of them too late to be detected.
type punctuality struct{ lines, late uint64 }

// tally is what a replay's summary and the accounting of a run need.
type tally struct {
	lines, parsed, late uint64
	before              uint64 // of lines: those before --since
	bytes               int64
	failed              map[string]uint64
	first, last         int64 // ns: the span of event time that was seen
	gaps                []gap
	heard               map[string]*heard // by log
}

// heard is what one log told of requests.
type heard struct {
	Source   string    `json:"source"`
	Requests uint64    `json:"requests"`
	Silent   []silence `json:"silent,omitempty"`
}

// silence is a time without a request of a log that nearly always has some.
type silence struct {
	From string  `json:"from"`
	To   *string `json:"to"` // null: to the end
}

// gap is a place where log lines are missing.
type gap struct {
	Input  string `json:"source"`
	At     string `json:"at"`
	Reason string `json:"reason"`
	Bytes  *int64 `json:"bytes,omitempty"`
}

// judgeMetrics counts what passed.
type judgeMetrics struct {
	lines, bytes, parsed, late *prometheus.CounterVec
	joined, split              *prometheus.CounterVec
	failed, lost               *prometheus.CounterVec
	gaps, gapBytes             *prometheus.CounterVec
	watermark                  prometheus.Gauge
	panes                      prometheus.Counter
}

func newJudgeMetrics(reg prometheus.Registerer) *judgeMetrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "squall_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	m := &judgeMetrics{
		lines:    counter("lines_read_total", "Physical log lines read.", "source"),
		bytes:    counter("bytes_read_total", "Bytes of log lines read.", "source"),
		parsed:   counter("lines_parsed_total", "Lines that became a record, events, or were understood as neither.", "source"),
		late:     counter("lines_late_total", "Lines whose pane was closed already: shipped, not detected.", "source"),
		failed:   counter("lines_failed_total", "Lines that fit no format, by reason: shipped, not detected.", "source", "reason"),
		joined:   counter("lines_joined_total", "Physical lines that are a part of an entry which a later line completes.", "source"),
		split:    counter("lines_split_total", "Entries beyond the first of a physical line, and those that were ended by no line.", "source"),
		lost:     pipeline.LostLines(reg),
		gaps:     counter("gaps_total", "Places where log lines were gone before they could be read, by reason.", "source", "reason"),
		gapBytes: counter("gap_bytes_total", "Bytes that are gone in those gaps whose size is known, by reason.", "source", "reason"),
		watermark: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "squall_watermark_timestamp_seconds", Help: "Event time up to which everything was evaluated.",
		}),
		panes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "squall_panes_closed_total", Help: "Panes evaluated.",
		}),
	}
	reg.MustRegister(m.watermark, m.panes)
	return m
}

// source makes an input known before its first line: until it says otherwise it holds the watermark back.
func (j *judge) source(input string, lateness time.Duration) int {
	n, known := j.sources[input]
	if !known {
		n = j.panes.Source(input, lateness)
		j.sources[input] = n
		if j.label != "" {
			return n
		}
		for _, c := range []*prometheus.CounterVec{j.metrics.lines, j.metrics.bytes, j.metrics.parsed, j.metrics.late, j.metrics.joined, j.metrics.split} {
			c.WithLabelValues(input)
		}
		for _, r := range pipeline.Reasons {
			j.metrics.failed.WithLabelValues(input, string(r))
		}
		for _, r := range source.Skips {
			j.metrics.gaps.WithLabelValues(input, r)
			j.metrics.gapBytes.WithLabelValues(input, r)
		}
		j.metrics.lost.WithLabelValues(input, lostStalled)
	}
	return n
}

// feed counts the items of the work in their panes.
func (j *judge) feed(w *pipeline.Work) {
	src := j.sources[w.Input]
	if j.trust.astray {
		src = j.looseSource(w.Input)
	}
	for i := range w.Items {
		it := &w.Items[i]
		if it.Time > j.trust.ceiling {
			it.Late = true
			j.panes.Refuse(1)
			continue
		}
		switch it.Kind {
		case pipeline.IsRecord:
			if it.Record.End == 0 {
				continue // no line of this stream ever said when
			}
			j.total.see(it.Record.End)
			if j.watch != nil {
				j.watch(&it.Record)
			}
			it.Late = j.panes.Add(src, &it.Record)
		case pipeline.IsEvents:
			for _, e := range it.Events {
				if e.Time != 0 {
					j.total.see(e.Time)
					it.Late = j.panes.AddEvent(src, e) || it.Late
				}
			}
		}
	}
}

// looseSource is where the lines of an input are counted whose times are not believed.
func (j *judge) looseSource(input string) int {
	n, known := j.loose[input]
	if !known {
		n = j.panes.Source(input, 0)
		j.panes.Loosen(n)
		j.loose[input] = n
	}
	return n
}

// done tells that an input has come to its end.
func (j *judge) done(input string) {
	j.panes.Done(j.sources[input])
	if n, known := j.loose[input]; known {
		j.panes.Done(n)
	}
}

// follow lets event time wait for the files of an input that are behind its others: after an outage one may have little
// to catch up on and another much.
func (j *judge) follow(w *pipeline.Work) {
	of, id := j.behind[w.Input], w.Batch.Stream.ID
	at, was := of[id]
	switch {
	case w.Behind:
		if !was {
			at = math.MinInt64
		}
		for i := range w.Items {
			at = max(at, w.Items[i].Time)
		}
		if of == nil {
			of = map[string]int64{}
			j.behind[w.Input] = of
		}
		of[id] = at
	case was:
		delete(of, id)
	default:
		return
	}
	j.wait(w.Input)
}

// wait holds event time at the line up to which all files of an input were read.
func (j *judge) wait(input string) {
	least := int64(math.MaxInt64)
	for _, at := range j.behind[input] {
		least = min(least, at)
	}
	j.panes.Hold(j.sources[input], least)
}

// account counts what became of the lines of the work.
func (j *judge) account(w *pipeline.Work) {
	label := cmp.Or(j.label, w.Input)
	parsed, late := 0, 0
	for i := range w.Items {
		if w.Items[i].Kind != pipeline.Failed {
			parsed++
		}
		if w.Items[i].Late {
			late++
		}
	}
	j.total.lines += uint64(w.Batch.Lines)
	j.total.parsed += uint64(parsed)
	j.total.late += uint64(late)
	if j.label == "" {
		was := j.inputs[w.Input]
		j.inputs[w.Input] = punctuality{was.lines + uint64(w.Batch.Lines), was.late + uint64(late)}
	}
	j.total.bytes += w.Bytes
	j.metrics.lines.WithLabelValues(label).Add(float64(w.Batch.Lines))
	j.metrics.bytes.WithLabelValues(label).Add(float64(w.Bytes))
	j.metrics.joined.WithLabelValues(label).Add(float64(w.Joined))
	j.metrics.split.WithLabelValues(label).Add(float64(w.Split))
	j.metrics.parsed.WithLabelValues(label).Add(float64(parsed))
	j.metrics.late.WithLabelValues(label).Add(float64(late))
	for reason, n := range w.Failed {
		j.total.failed[string(reason)] += uint64(n)
		j.metrics.failed.WithLabelValues(label, string(reason)).Add(float64(n))
	}
	for _, s := range w.Batch.Skips {
		j.skip(w, s)
	}
}

func (t *tally) see(at int64) {
	if t.first == 0 || at < t.first {
		t.first = at
	}
	t.last = max(t.last, at)
}

// listen adds up what each log told, and notes where one was silent.
func (t *tally) listen(res *detectors.Result) {
	if len(t.heard) < maxGaps {
		for _, name := range slices.Sorted(maps.Keys(res.Heard)) {
			if t.heard[name] == nil && len(t.heard) < maxGaps {
				t.heard[name] = &heard{Source: name}
			}
		}
	}
	for name, x := range t.heard {
		if h := res.Heard[name]; h != nil {
			x.Requests += h.Records
		}
	}
	for _, s := range res.Silences {
		x := t.heard[s.Source]
		if x == nil {
			continue
		}
		now := silence{From: formatTime(s.From)}
		if s.To != 0 {
			to := formatTime(s.To)
			now.To = &to
		}
		i := slices.IndexFunc(x.Silent, func(old silence) bool { return old.From == now.From })
		switch {
		case i >= 0:
			x.Silent[i] = now
		case len(x.Silent) < maxGaps:
			x.Silent = append(x.Silent, now)
		}
	}
}

// sources lists what was heard of each log, by name.
func (t *tally) sources() []heard {
	out := []heard{}
	for _, name := range slices.Sorted(maps.Keys(t.heard)) {
		out = append(out, *t.heard[name])
	}
	return out
}

// maxGaps bounds the gaps, and the logs, that a summary lists.
const maxGaps = 100

// skip notes what a source read over. Where lines are gone, no verdict over that time is proven.
func (j *judge) skip(w *pipeline.Work, s pipeline.Skip) {
	if !s.Lost {
		return
	}
	at := j.closed
	if n := len(w.Items); n > 0 && w.Items[n-1].Time != 0 {
		at = w.Items[n-1].Time
	}
	j.panes.Gap(j.sources[w.Input], at)
	j.gaps[w.Input] = max(j.gaps[w.Input], at)
	j.metrics.gaps.WithLabelValues(cmp.Or(j.label, w.Input), s.Reason).Inc()
	j.metrics.gapBytes.WithLabelValues(cmp.Or(j.label, w.Input), s.Reason).Add(float64(max(s.Bytes, 0)))
	if len(j.total.gaps) < maxGaps {
		g := gap{Input: w.Input, At: formatTime(at), Reason: s.Reason}
		if s.Bytes != pipeline.Unknown {
			g.Bytes = &s.Bytes
		}
		j.total.gaps = append(j.total.gaps, g)
	}
}

// take counts the work, stores it and evaluates the panes that it closed.
func (j *judge) take(w *pipeline.Work) {
	j.feed(w)
	j.follow(w)
	j.account(w)
	j.keep(w)
	w.Release()
	j.settle()
}

// leave gives work back unjudged: the process ends. A file is read on from there by the next one; what came over a
// socket is lost, and all of it is counted so.
func (j *judge) leave(w *pipeline.Work) {
	j.account(w)
	j.metrics.lost.WithLabelValues(w.Input, lostStalled).Add(float64(len(w.Batch.Entries)))
	w.Release()
}

// lostStalled is why lines are lost that the spool did not take: it stood still and its queue was full.
const lostStalled = "spool_stalled"

func (j *judge) keep(w *pipeline.Work) {
	b := &w.Batch
	if j.store == nil || len(b.Entries) == 0 && b.Skips == nil && !b.Last && b.From == b.To { // it only told that more lies unread
		return
	}
	if err := j.store.Append(b); err != nil {
		j.metrics.lost.WithLabelValues(w.Input, lostStalled).Add(float64(len(w.Batch.Entries)))
	}
}

// settle evaluates every pane that has closed.
func (j *judge) settle() {
	for p := j.panes.Next(); p != nil; p = j.panes.Next() {
		if p.End <= j.closed {
			j.engine.Preload(p)
			continue
		}
		j.evaluate(p)
	}
}

// pass hands a pane on that is to be judged next.
func (j *judge) pass(p *pane.Pane) {
	if j.whole != nil && p.End > j.closed {
		j.whole(p)
	}
}

// evaluate lets the engine, the rules and the ledger look at the next pane.
func (j *judge) evaluate(p *pane.Pane) {
	j.closed = p.End
	res := j.engine.Close(p)
	window := p.End - int64(j.engine.Span())
	res.GapSources, res.Absent = since(j.gaps, window), since(j.absent, window)
	j.total.listen(res)
	transitions := j.manager.Evaluate(res)
	j.ledger.Observe(res, transitions, slices.Concat(j.manager.Active(), j.manager.Suppressed()))
	j.metrics.panes.Inc()
	j.metrics.watermark.Set(float64(p.End) / 1e9)
	if j.settled != nil {
		j.settled(res, transitions)
	}
}

// since lists what happened last after a time, sorted, and forgets the rest.
func since(last map[string]int64, after int64) []string {
	maps.DeleteFunc(last, func(_ string, at int64) bool { return at <= after })
	return slices.Sorted(maps.Keys(last))
}

// snapshot is what a judge must remember over a restart; it is kept in the spool.
type snapshot struct {
	Version int
	Closed  int64 // ns: event time
	Engine  []byte
	Alerts  []byte
	Gaps    map[string]int64
	Absent  map[string]int64
	Fleet   []byte // what is known of the nodes, and of their panes that wait
	Ledger  []byte // what it counts; its incidents are kept one by one
	Live    []byte // what the live page draws
}

const snapshotVersion = 1

func (j *judge) snapshot() (snapshot, error) {
	engine, err := j.engine.Snapshot()
	state, err2 := j.manager.Snapshot()
	counts, err3 := j.ledger.Snapshot()
	return snapshot{
		Version: snapshotVersion, Closed: j.closed, Engine: engine, Alerts: state, Gaps: maps.Clone(j.gaps), Absent: maps.Clone(j.absent), Ledger: counts,
	}, errors.Join(err, err2, err3)
}

// restore sets a new judge to a snapshot. It returns from when the lines have to be read again, in ns.
func (j *judge) restore(s snapshot) (from int64, err error) {
	if s.Version != snapshotVersion {
		return 0, errors.New("the saved state is of another version")
	}
	if j.closed, from, err = j.engine.Restore(s.Engine); err != nil {
		return 0, err
	}
	if err := j.manager.Restore(s.Alerts); err != nil {
		return 0, err
	}
	maps.Copy(j.gaps, s.Gaps)
	maps.Copy(j.absent, s.Absent)
	j.ledger.Restore(s.Ledger)
	return from, nil
}

func formatTime(ns int64) string {
	return time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.999Z")
}

package pane

import (
	"math"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

func at(t int64) *pipeline.Record {
	r := request(t, second/10)
	return &r
}

// begin gives an Assembler with one source that had lines up to t.
func begin(cfg Config, t int64) (*Assembler, int) {
	a := NewAssembler(cfg)
	src := a.Source("balancer", 5*time.Second)
	for range confirm {
		a.Add(src, at(t))
	}
	return a, src
}

func TestLateLine(t *testing.T) {
	a, src := begin(Config{}, base+second)
	a.Add(src, at(base+14*second)) // the watermark is at 9 s: the pane is open
	if a.Add(src, at(base+2*second)) {
		t.Error("a line within the lateness is late")
	}
	a.Add(src, at(base+15*second)) // 10 s: closed
	if !a.Add(src, at(base+9*second)) || !a.AddEvent(src, pipeline.Event{Time: base, Kind: pipeline.OOM}) {
		t.Error("a line of a closed pane is not late, whether or not the pane was taken")
	}
	first := a.Next()
	if first == nil || first.Start != base || first.Coverage.Lines != 4 {
		t.Fatalf("first pane %v", first)
	}
	if first.Coverage.Late != 2 {
		t.Errorf("%d late lines in the pane handed out next, want 2", first.Coverage.Late)
	}
	a.Add(src, at(base+9*second))
	a.Gap(src, base)
	a.Gap(src, base+11*second)
	a.Flush()
	rest := drain(a, nil)
	if len(rest) != 1 || rest[0].Coverage != (Coverage{Lines: 2, Late: 1, Gaps: 2}) {
		t.Errorf("the rest: %d panes, %+v", len(rest), rest[0].Coverage)
	}
}

func TestOneFutureLineMovesNothing(t *testing.T) {
	const ahead = base + 86400*second
	a, src := begin(Config{}, base)
	for range 10 {
		a.Add(src, at(ahead))
		a.Add(src, at(base+second)) // a line in between: no three in a row
		a.Add(src, at(ahead))
		if got := a.Watermark(); got != base-4*second {
			t.Fatalf("watermark %d s after a future line, want -4 s", (got-base)/second)
		}
		a.Add(src, at(base+second))
	}
	a.Add(src, at(base+16*second))
	if p := a.Next(); p == nil || p.Start != base {
		t.Fatalf("the pane that is complete: %v", p)
	}
	a.Flush()
	panes := drain(a, nil)
	last := panes[len(panes)-1]
	if !last.Jump || last.Start != ahead || last.Coverage.Lines != 20 {
		t.Errorf("the future's pane: jump %t at %d, %+v", last.Jump, (last.Start-base)/second, last.Coverage)
	}

	a, src = begin(Config{}, base)
	for i := range int64(3) {
		a.Add(src, at(ahead+i*second))
	}
	if got := a.Watermark(); got != ahead+2*second-5*second {
		t.Errorf("watermark %d s over the jump after three lines that agree", (got-ahead)/second)
	}
}

// A host whose clock is ten minutes ahead writes a line among those of the others: none of theirs is late for it.
func TestOneLineAheadMakesNoneLate(t *testing.T) {
	a, src := begin(Config{}, base)
	for i := range int64(600) {
		if i == 300 {
			a.Add(src, at(base+(i+600)*second))
		}
		if a.Add(src, at(base+i*second)) {
			t.Fatalf("line %d is late", i)
		}
		for a.Next() != nil {
		}
	}
	if got := a.Watermark(); got != base+594*second {
		t.Errorf("watermark at %d s, want 594", (got-base)/second)
	}
}

func TestOpenPanesAreBounded(t *testing.T) {
	a, src := begin(Config{MaxOpen: 8}, base)
	dropped := uint64(0)
	for i := range int64(100) {
		a.Add(src, at(base+(i+1)*86400*second))
		a.Add(src, at(base+i*second/10))
		if a.Open() > 8 {
			t.Fatalf("%d open panes", a.Open())
		}
	}
	a.Flush()
	lines := uint64(0)
	for _, p := range drain(a, nil) {
		lines += p.Coverage.Lines
		dropped += p.Coverage.Dropped
	}
	if lines+dropped != 203 || dropped != 93 {
		t.Errorf("%d lines kept and %d dropped of 203, want 93 dropped", lines, dropped)
	}
}

func TestSlowestSourceHoldsUntilIdleOrDone(t *testing.T) {
	a := NewAssembler(Config{})
	file, s3 := a.Source("file", 5*time.Second), a.Source("s3", 10*time.Minute)
	for i := range int64(120) {
		a.Add(file, at(base+i*10*second))
	}
	if a.Watermark() != math.MinInt64 || a.Next() != nil {
		t.Error("a source that said nothing yet does not hold")
	}
	if src, ok := a.Holder(); !ok || a.SourceName(src) != "s3" {
		t.Errorf("holder %d %t", src, ok)
	}
	a.Observe(s3, base+900*second)
	if got := a.Watermark(); got != base+300*second {
		t.Errorf("watermark %d s, want the promise of s3, 300 s", (got-base)/second)
	}
	if n := len(drain(a, nil)); n != 30 {
		t.Errorf("%d panes, want 30", n)
	}
	a.Advance(base + 1e6*second)
	if a.Watermark() != base+300*second {
		t.Error("wall time passes a source that holds")
	}
	a.Idle(s3, true)
	if got := a.Watermark(); got != base+1185*second {
		t.Errorf("watermark %d s with s3 idle, want 1185", (got-base)/second)
	}
	if a.Add(s3, at(base+1191*second)) {
		t.Error("a line over the watermark is late")
	}
	if src, ok := a.Holder(); !ok || src != s3 {
		t.Error("a line does not end idleness")
	}
	a.Done(s3)
	a.Done(file)
	if _, ok := a.Holder(); ok {
		t.Error("sources hold at their end")
	}
	a.Advance(base + 1300*second)
	if n := len(drain(a, nil)); n != 100 {
		t.Errorf("%d panes up to the wall time, want 100", n)
	}
}

// Live, the silent night closes its panes by wall time; in a replay it is one jump. Both give the same panes.
func TestSilentNight(t *testing.T) {
	morning := base + 9*3600*second
	run := func(live bool) []*Pane {
		a, src := begin(Config{}, base+second)
		var panes []*Pane
		if live {
			a.Idle(src, true)
			for wall := base; wall < morning; wall += 7 * second {
				a.Advance(wall - 5*second)
				panes = drain(a, panes)
			}
			if len(panes) < 300 {
				t.Errorf("%d panes while silent", len(panes))
			}
		}
		for i := range int64(60) {
			if a.Add(src, at(morning+i*second)) {
				t.Errorf("line %d of the morning is late", i)
			}
			panes = drain(a, panes)
		}
		a.Flush()
		return drain(a, panes)
	}
	replay := run(false)
	differ(t, dump(run(true)), dump(replay))
	if len(replay) != 1+360+6 {
		t.Errorf("%d panes: one of the evening, an hour of empty ones and six of the morning are 367", len(replay))
	}
	for i, p := range replay {
		if jump := i == 361; p.Jump != jump || jump && p.Start != morning || i > 0 && !jump && p.Start != replay[i-1].End {
			t.Errorf("pane %d starts at %d s, jump %t", i, (p.Start-base)/second, p.Jump)
		}
	}
}

func TestLineWithoutTimeGoesToTheNewestPane(t *testing.T) {
	a, src := begin(Config{}, base+31*second)
	for _, end := range []int64{0, -5, math.MinInt64, math.MaxInt64} {
		r := at(base)
		r.End = end
		a.Add(src, r)
	}
	a.AddEvent(src, pipeline.Event{Kind: pipeline.OOM})
	a.Flush()
	panes := drain(a, nil)
	if len(panes) != 1 || panes[0].Coverage.Lines != 8 || panes[0].Events[0].Time != base+31*second {
		t.Errorf("%d panes, %s", len(panes), dump(panes))
	}
}

// A file that has much to catch up on holds event time for its source, so that its lines are not late because another
// file of the source was read first.
func TestHold(t *testing.T) {
	a := NewAssembler(Config{MaxOpen: 100})
	src := a.Source("balancer", 5*time.Second)
	a.Hold(src, noTime) // there is a file, and nothing of it was read
	add := func(at int64) bool {
		r := request(at*second, 0)
		return a.Add(src, &r)
	}
	for at := int64(1000); at < 1300; at++ {
		add(at)
	}
	if p := a.Next(); p != nil {
		t.Fatalf("a pane from %d closed before the first line of the file behind", p.Start)
	}
	for at := int64(1000); at < 1300; at += 10 {
		if add(at) {
			t.Fatalf("the line at %d is late", at)
		}
		a.Hold(src, at*second)
	}
	got := drain(a, nil)
	if len(got) == 0 || got[0].Coverage.Lines != 11 || got[len(got)-1].End > 1290*second {
		t.Fatalf("%d panes, the first %+v", len(got), got)
	}
	a.Release(src)
	if got = drain(a, nil); len(got) == 0 {
		t.Error("nothing closes behind what caught up")
	}
	// While too many panes wait, nobody is waited for.
	a.Hold(src, 1300*second)
	for at := int64(1300); at < 2000; at++ {
		add(at)
	}
	if got = drain(a, nil); len(got) == 0 {
		t.Error("a file that is behind for long blinds detection")
	}
}

// Before any line has told a time, the wall's moves nothing: a source that was idle at first, and told only that it has
// lines, made all of them late.
func TestAdvanceBeforeTheFirstLine(t *testing.T) {
	a := NewAssembler(Config{})
	src := a.Source("balancer", 5*time.Second)
	a.Idle(src, true)
	a.Advance(a.Watermark() + second)
	r := request(1000*second, 0)
	if a.Add(src, &r) {
		t.Error("the first line is late")
	}
}

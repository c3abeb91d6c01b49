package pane

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

// request is one of site "s" that ended at end (ns) and took its duration wholly upstream.
func request(end, duration int64) pipeline.Record {
	var r pipeline.Record
	r.Reset()
	r.Site, r.Route, r.Method, r.Path = "s", "/", []byte("GET"), []byte("/")
	r.Start, r.End, r.RequestTime, r.UpstreamTime = end-duration, end, duration, duration
	r.Reached, r.Status = pipeline.Yes, 200
	return r
}

// busyOf sums the worker time of a window over panes, of which it may hold only some.
func busyOf(start, end int64, panes []*Pane) Busy {
	s := MergeAll(start, end, panes).Sites["s"]
	if s == nil {
		return Busy{}
	}
	return s.Sum(func(Key) bool { return true }).Busy
}

func TestBusyRules(t *testing.T) {
	const reclaim = 60 * second
	for _, c := range []struct {
		name         string
		set          func(r *pipeline.Record)
		lower, upper int64
		untimed      uint64
	}{
		{"upstream time known", func(r *pipeline.Record) {}, 2 * second, 2 * second, 0},
		{"upstream shorter than the request", func(r *pipeline.Record) { r.UpstreamTime = second }, second, second, 0},
		{"no upstream", func(r *pipeline.Record) { r.Reached = pipeline.No }, 0, 0, 0},
		{"abandoned, time unknown", func(r *pipeline.Record) {
			r.Abandoned, r.UpstreamTime = pipeline.Yes, pipeline.Unknown
		}, 2 * second, reclaim, 0},
		{"abandoned, not told whether reached", func(r *pipeline.Record) {
			r.Abandoned, r.UpstreamTime, r.Reached = pipeline.Yes, pipeline.Unknown, pipeline.Unsaid
		}, 0, reclaim, 0},
		{"abandoned, time logged", func(r *pipeline.Record) { r.Abandoned = pipeline.Yes }, 2 * second, reclaim, 0},
		{"abandoned after the reclaim timeout", func(r *pipeline.Record) {
			r.Abandoned, r.Start, r.RequestTime, r.UpstreamTime = pipeline.Yes, r.End-90*second, 90*second, pipeline.Unknown
		}, 90 * second, 90 * second, 0},
		{"abandoned, nothing reached", func(r *pipeline.Record) {
			r.Abandoned, r.Reached = pipeline.Yes, pipeline.No
		}, 0, 0, 0},
		{"request time alone", func(r *pipeline.Record) {
			r.UpstreamTime, r.Reached = pipeline.Unknown, pipeline.Unsaid
		}, 0, 2 * second, 0},
		{"request time over the reclaim timeout", func(r *pipeline.Record) {
			r.UpstreamTime, r.RequestTime, r.Start = pipeline.Unknown, 300*second, r.End-300*second
		}, 0, reclaim, 0},
		{"nothing logged", func(r *pipeline.Record) {
			r.UpstreamTime, r.RequestTime, r.Start = pipeline.Unknown, pipeline.Unknown, r.End
		}, 0, 0, 1},
	} {
		r := request(base+3*second, 2*second)
		c.set(&r)
		got := busyOf(base-1000*second, base+1000*second, assemble(Config{}, 0, []pipeline.Record{r}))
		if got.Lower != c.lower || got.Upper != c.upper || got.Untimed != c.untimed {
			t.Errorf("%s: [%d, %d] untimed %d, want [%d, %d] untimed %d",
				c.name, got.Lower, got.Upper, got.Untimed, c.lower, c.upper, c.untimed)
		}
	}
}

// Whatever is cut at panes adds up again, and each pane's share is the overlap.
func TestBusySharesAddUp(t *testing.T) {
	const length = 10 * second
	rapid.Check(t, func(t *rapid.T) {
		end := base + rapid.Int64Range(0, 60*second).Draw(t, "end")
		duration := rapid.Int64Range(0, 200*second).Draw(t, "duration")
		r := request(end, duration)
		left := rapid.Bool().Draw(t, "abandoned")
		upper := end
		if left {
			r.Abandoned = pipeline.Yes
			upper = max(end, r.Start+60*second)
		}
		panes := assemble(Config{}, 0, []pipeline.Record{r})
		var sumLower, sumUpper int64
		for start := base - 300*second; start < base+300*second; start += length {
			got := busyOf(start, start+length, panes)
			wantLower := max(0, min(end, start+length)-max(r.Start, start))
			wantUpper := max(0, min(upper, start+length)-max(r.Start, start))
			if got.Lower != wantLower || got.Upper != wantUpper {
				t.Fatalf("[%d, %d] in the pane at %d, want [%d, %d]", got.Lower, got.Upper, start-base, wantLower, wantUpper)
			}
			sumLower += got.Lower
			sumUpper += got.Upper
		}
		if sumLower != duration || sumUpper != upper-r.Start {
			t.Fatalf("shares add up to [%d, %d], want [%d, %d]", sumLower, sumUpper, duration, upper-r.Start)
		}
	})
}

// Little's law: with λ requests a second of W seconds each, λW workers are busy.
func TestBusyLittlesLaw(t *testing.T) {
	for _, c := range []struct{ rate, seconds float64 }{{20, 0.5}, {3, 25}, {40, 0.004}, {1, 70}} {
		var records []pipeline.Record
		for i := range int(600 * c.rate) {
			records = append(records, request(base+int64(float64(i)/c.rate*1e9), int64(c.seconds*1e9)))
		}
		panes := assemble(Config{}, 0, records)
		// Requests of the window that end after it are not known when it closes: at most W of its length.
		start, end := base+100*second, base+400*second
		var inside, all []*Pane
		for _, p := range panes {
			if all = append(all, p); p.Start >= start && p.End <= end {
				inside = append(inside, p)
			}
		}
		want := c.rate * c.seconds
		window := float64(end - start)
		if got := float64(busyOf(start, end, all).Lower) / window; math.Abs(got-want) > 0.01*want {
			t.Errorf("λ=%v W=%v: %.4f workers with later panes, want %.4f", c.rate, c.seconds, got, want)
		}
		got := float64(busyOf(start, end, inside).Lower) / window
		if missing := want * c.seconds / 2 / (window / 1e9); got < want-missing*1.05-0.01*want || got > want*1.001 {
			t.Errorf("λ=%v W=%v: %.4f workers from closed panes, want %.4f less at most %.4f", c.rate, c.seconds, got, want, missing)
		}
	}
}

// A view that grows pane by pane is the merge of them all.
func TestWidenEqualsMergeAll(t *testing.T) {
	records := traffic(11, 3000, 50e6)
	panes := assemble(Config{}, 5*time.Second, records)
	view := MergeAll(panes[0].Start, panes[0].End, panes[:1])
	for _, p := range panes[1:] {
		view.Widen(p.Start, p.End)
		Merge(view, p)
	}
	want := MergeAll(panes[0].Start, panes[len(panes)-1].End, panes)
	if got := view.String(); got != want.String() {
		t.Errorf("views differ:\n%.2000s\n%.2000s", got, want.String())
	}
}

func TestBusyHostileTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		extreme := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{
			math.MinInt64, -1, 0, 1, 1 << 61, math.MaxInt64, base,
		}))
		r := request(0, 0)
		r.Start, r.End = extreme.Draw(t, "start"), extreme.Draw(t, "end")
		r.RequestTime, r.UpstreamTime = extreme.Draw(t, "request"), extreme.Draw(t, "upstream")
		r.Abandoned = rapid.SampledFrom([]pipeline.Tri{pipeline.Unsaid, pipeline.No, pipeline.Yes}).Draw(t, "abandoned")
		for _, p := range assemble(Config{}, 0, []pipeline.Record{r}) {
			for _, s := range p.Sites {
				for _, c := range s.Cells() {
					limit := p.End - p.Start
					if b := &c.Busy; b.Lower < 0 || b.Lower > limit || b.Upper < b.Lower || b.Upper > limit || len(b.past)+len(b.future) > 2*maxShares {
						t.Fatalf("one request keeps [%d, %d] ns of a pane of %d", b.Lower, b.Upper, limit)
					}
				}
			}
		}
	})
}

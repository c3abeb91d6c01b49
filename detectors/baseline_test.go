package detectors

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/squall-sre/squall/detectors/pane"
)

// quiet gives a pane's site with n GETs of one route.
func quiet(n uint64) *pane.Site {
	s := new(pane.Pane).Site("")
	s.Cells()[root] = &pane.Cell{Requests: n}
	return s
}

var root = pane.Key{Method: "GET", Route: "/"}

// learn feeds minutes of six panes with rate requests a minute each.
func learn(b *Baselines, from int64, minutes int, rate func(minute int) uint64) int64 {
	at := from
	for m := range minutes {
		for p := range 6 {
			n := rate(m) / 6
			if p == 0 {
				n += rate(m) % 6
			}
			b.learn("s", at, quiet(n))
			at += 10 * second
		}
	}
	return at
}

func TestBaselineOfASteadyRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Uint64Range(1, 100000).Draw(t, "rate")
		minutes := rapid.IntRange(2, 300).Draw(t, "minutes")
		b := newBaselines()
		at := learn(b, base, minutes, func(int) uint64 { return rate })
		got := b.get("s", root, at)
		if math.Abs(got.PerMinute-float64(rate)) > 1e-6*float64(rate) {
			t.Fatalf("%v a minute after %d minutes of %d", got.PerMinute, minutes, rate)
		}
		if got.Minutes != float64(minutes-1) {
			t.Fatalf("learned from %v minutes of %d", got.Minutes, minutes)
		}
	})
}

func TestBaselineRatio(t *testing.T) {
	for _, c := range []struct {
		base     Baseline
		x, least float64
		most     float64
	}{
		{Baseline{}, 300, 301, 301},                              // nothing was learned: c is 1
		{Baseline{Minutes: 10080}, 10, 1e5, 1.1e5},               // never seen in a week
		{Baseline{PerMinute: 5, Minutes: 10080}, 2305, 460, 462}, // 461 times, and c does not blur it
		{Baseline{PerMinute: 0.8, Minutes: 10080}, 980, 1224, 1226},
		{Baseline{PerMinute: 100, Minutes: 60}, 100, 1, 1},
	} {
		if got := c.base.Ratio(c.x); got < c.least || got > c.most {
			t.Errorf("%+v: %v is %v times, want %v to %v", c.base, c.x, got, c.least, c.most)
		}
	}
}

func TestBaselineForgetsByHalfLife(t *testing.T) {
	b := newBaselines()
	at := learn(b, base, 300, func(int) uint64 { return 600 })
	at = learn(b, at, halfLife, func(int) uint64 { return 0 })
	if got := b.get("s", root, at).PerMinute; got < 290 || got > 320 {
		t.Errorf("%v a minute, want about half of 600", got)
	}
}

func TestBaselineOfTheHourOfTheWeek(t *testing.T) {
	b := newBaselines()
	week := 7 * 24 * 60
	start := base - base%(3600*second)
	busy := func(m int) bool { return m%week >= 60 && m%week < 120 } // the second hour of each week
	at := learn(b, start, 3*week+60, func(m int) uint64 {
		if busy(m) {
			return 900
		}
		return 60
	})
	if got := b.get("s", root, at).PerMinute; got != 900 {
		t.Errorf("%v a minute for the busy hour, want 900", got)
	}
	if got := b.get("s", root, at+3600*second).PerMinute; got != 60 {
		t.Errorf("%v a minute for the hour after, want 60", got)
	}
}

func TestBaselineIsBounded(t *testing.T) {
	b := newBaselines()
	for i := range 3 * maxSeries / 1000 {
		s := new(pane.Pane).Site("")
		for j := range 1000 {
			s.Cells()[pane.Key{Method: "GET", Route: string(rune(i)) + "/" + string(rune(j))}] = &pane.Cell{Requests: 1}
		}
		b.learn("s", base, s)
	}
	if b.Count > maxSeries || len(b.Sites["s"].Series) > maxSeries {
		t.Errorf("%d series", b.Count)
	}
	// What was seen once is forgotten in the course of a day.
	learn(b, base, 24*60, func(int) uint64 { return 60 })
	if b.Count > 10 {
		t.Errorf("%d series are left", b.Count)
	}
}

// TestStormsAreNotLearned holds that an incident leaves the baseline as it was.
func TestStormsAreNotLearned(t *testing.T) {
	first, _ := stage{length: 3600, flows: []flow{{0, 3600, 240, nil}, {1200, 1500, 6000, head("/x", 50)}, {3000, 3300, 6000, head("/x", 50)}}}.play(t)
	var ratios []float64
	for _, d := range first {
		if d.Detector == "head_storm" && d.Active {
			ratios = append(ratios, d.Evidence.BaselinePerMinute.Get())
		}
	}
	if len(ratios) != 2 || ratios[0] != 0 || ratios[1] != 0 {
		t.Errorf("baselines of the two storms: %v, want 0 and 0", ratios)
	}
}

// TestSnapshot holds that an engine that was stopped and restored goes on as one that was not.
func TestSnapshot(t *testing.T) {
	whole := stage{length: 1500, flows: []flow{organic, {0, 1500, 30, slow(2)}, {600, 900, 2000, head("/c", 250)}, {640, 980, 600, gaveUp(9)}}}
	want, _ := whole.play(t)
	for _, cut := range []int{30, 61, 63, 70, 89, 95, 104, 120} {
		got := whole.playWithRestart(t, cut)
		if len(got) != len(want) {
			t.Fatalf("cut after pane %d: %d changes, want %d", cut, len(got), len(want))
		}
		for i := range want {
			a, b := want[i], got[i]
			if a.Detector != b.Detector || a.Active != b.Active || a.Onset != b.Onset || a.Since != b.Since || a.Until != b.Until ||
				a.Value != b.Value || a.Evidence.Requests != b.Evidence.Requests || a.Evidence.Abandoned != b.Evidence.Abandoned ||
				a.Evidence.BaselineRatio != b.Evidence.BaselineRatio || a.Evidence.CounterfactualBusyWorkers != b.Evidence.CounterfactualBusyWorkers {
				t.Errorf("cut after pane %d: change %d is\n%+v, want\n%+v", cut, i, b, a)
			}
		}
	}
}

// playWithRestart plays the stage with one engine up to a pane, and with another, restored from its snapshot and
// the panes since then, from there on.
func (s stage) playWithRestart(t *testing.T, cut int) (changes []Detection) {
	t.Helper()
	panes := s.panes()
	engine := s.engine(t)
	for i := 0; i < len(panes); i++ {
		changes = append(changes, engine.Close(panes[i]).Changes...)
		if i != cut {
			continue
		}
		state, err := engine.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		engine = s.engine(t)
		at, from, err := engine.Restore(state)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range panes {
			if p.Start >= from && p.End <= at {
				engine.Preload(p)
			}
		}
	}
	return changes
}

// TestAMinuteGoesOnAfterARestart: what a minute had when a snapshot was taken in it, and all minutes behind it, are learned.
func TestAMinuteGoesOnAfterARestart(t *testing.T) {
	e := stage{}.engine(t)
	at := learn(e.baselines, base, 30, func(int) uint64 { return 600 })
	for range 3 {
		e.baselines.learn("s", at, quiet(100))
		at += 10 * second
	}
	state, err := e.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	e = stage{}.engine(t)
	if _, _, err := e.Restore(state); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		e.baselines.learn("s", at, quiet(100))
		at += 10 * second
	}
	at = learn(e.baselines, at, 30, func(int) uint64 { return 600 })
	if got := e.baselines.get("s", root, at).PerMinute; math.Abs(got-600) > 0.001 {
		t.Errorf("%v a minute of 600 are learned", got)
	}
}

package detectors

import (
	"slices"
	"testing"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
)

const testPane = 10 * time.Second

// listened feeds a listener one count of requests a pane and gives what it says at the end.
func listened(counts []uint64) []Silence {
	l := newListener()
	for i, n := range counts {
		at := base + int64(i)*int64(testPane)
		h := &pane.Heard{Records: n}
		if n > 0 {
			h.Sites = []string{"shop.example"}
		}
		l.hear(&pane.Pane{Start: at, End: at + int64(testPane), Heard: map[string]*pane.Heard{"ingress": h}}, int64(5*time.Minute))
	}
	return l.silences()
}

// talking gives n panes; every one of each many has requests.
func talking(n, each int) (counts []uint64) {
	for i := range n {
		if i%each == 0 {
			counts = append(counts, 7)
		} else {
			counts = append(counts, 0)
		}
	}
	return counts
}

func TestSilenceOfABusySource(t *testing.T) {
	counts := append(talking(60, 1), make([]uint64, 5)...)
	if got := listened(counts); len(got) != 0 {
		t.Errorf("50 s of nothing: %v", got)
	}
	counts = append(counts, 0)
	got := listened(counts)
	from := base + 60*int64(testPane)
	if len(got) != 1 || got[0].Source != "ingress" || got[0].From != from || got[0].To != 0 || len(got[0].Sites) != 1 {
		t.Fatalf("a minute of nothing: %v", got)
	}
	got = listened(append(append(counts, 0, 0, 0), 5, 5))
	if len(got) != 1 || got[0].From != from || got[0].To != base+69*int64(testPane) {
		t.Errorf("over: %v", got)
	}
	if got := listened(append(append(counts, 5), talking(40, 1)...)); len(got) != 0 {
		t.Errorf("over for longer than any window: %v", got)
	}
}

// rated gives n panes with so many requests each.
func rated(n int, each uint64) []uint64 { return slices.Repeat([]uint64{each}, n) }

// A hole in the middle of many requests is noticed when it is over, however short; of a busy log soon.
func TestHolesInAStorm(t *testing.T) {
	hole := slices.Concat(rated(12, 50), rated(1, 0), rated(3, 60))
	got := listened(hole)
	if from := base + 12*int64(testPane); len(got) != 1 || got[0].From != from || got[0].To != from+int64(testPane) {
		t.Errorf("ten seconds without a line in a storm: %v", got)
	}
	for name, counts := range map[string][]uint64{
		"what hung and came later": slices.Concat(rated(12, 50), rated(1, 0), rated(1, 110), rated(3, 60)),
		"few requests":             slices.Concat(rated(12, 9), rated(1, 0), rated(3, 9)),
		"bursts":                   slices.Repeat([]uint64{50, 50, 50, 0, 0, 0}, 20),
		"a busy log, for 20 s":     slices.Concat(rated(60, 50), rated(2, 0)),
	} {
		if got := listened(counts); len(got) != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := listened(slices.Concat(rated(60, 50), rated(3, 0))); len(got) != 1 || got[0].To != 0 {
		t.Errorf("a busy log, for half a minute: %v", got)
	}
}

// A log that few ask for is not silent when a crawl is over.
func TestAfterACrawl(t *testing.T) {
	for _, crawl := range []int{18, 60, 600} {
		if got := listened(slices.Concat(talking(60, 12), rated(crawl, 80), talking(180, 12))); len(got) != 0 {
			t.Errorf("after a crawl of %d panes: %v", crawl, got)
		}
	}
}

// A log that ends while others go on is missed, unless another goes on in its place.
func TestLogsThatEnd(t *testing.T) {
	play := func(next string) []Silence {
		l := newListener()
		var p *pane.Pane
		for i := range int64(120) {
			p = &pane.Pane{Start: base + i*int64(testPane), End: base + (i+1)*int64(testPane), Heard: map[string]*pane.Heard{
				"other": {Records: 7, Sites: []string{"other.example"}},
			}}
			if i < 60 {
				p.Heard["first"] = &pane.Heard{Records: 7, Sites: []string{"shop.example"}}
			} else if next != "" {
				p.Heard[next] = &pane.Heard{Records: 7, Sites: []string{"shop.example"}}
			}
			l.hear(p, int64(5*time.Minute))
		}
		return l.silences()
	}
	if got := play(""); len(got) != 1 || got[0].Source != "first" || got[0].From != base+60*int64(testPane) || got[0].To != 0 {
		t.Errorf("ten minutes after its end: %v", got)
	}
	if got := play("second"); len(got) != 0 {
		t.Errorf("with another in its place: %v", got)
	}
}

// A source that speaks now and then is not silent as long as it would be often.
func TestQuietIsNoSilence(t *testing.T) {
	for _, each := range []int{2, 6, 30} { // one pane in 30 is one request in five minutes
		if got := listened(talking(600, each)); len(got) != 0 {
			t.Errorf("one pane of %d has requests: %v", each, got)
		}
	}
	if got := listened(append(talking(600, 6), make([]uint64, 200)...)); len(got) != 1 {
		t.Errorf("half an hour of nothing after a request a minute: %v", got)
	}
	if got := listened(append(talking(11, 1), make([]uint64, 50)...)); len(got) != 0 {
		t.Errorf("two minutes are not enough to know what is usual: %v", got)
	}
	// The night comes slowly.
	var falling []uint64
	for _, each := range []int{1, 2, 3, 5, 8, 12, 20} {
		falling = append(falling, talking(120, each)...)
	}
	if got := listened(falling); len(got) != 0 {
		t.Errorf("a site that falls asleep: %v", got)
	}
}

// What was silent is not learned as usual.
func TestSilenceIsNotLearned(t *testing.T) {
	counts := append(talking(120, 1), make([]uint64, 300)...)
	counts = append(append(counts, talking(10, 1)...), make([]uint64, 7)...)
	if got := listened(counts); len(got) != 2 || got[0].To == 0 || got[1].To != 0 {
		t.Errorf("the second silence: %v", got)
	}
}

// A log whose files end is silent only as long as more of it is to come.
func TestSourcesThatAreOver(t *testing.T) {
	heard := func(more int) *pane.Pane {
		a := pane.NewAssembler(pane.Config{Pane: testPane})
		a.Await("access.log", 1+more)
		first, other := a.Source("access.log", 0), a.Source("other", 0)
		r := request(base)
		a.Add(first, &r)
		a.Observe(first, base)
		a.Done(first)
		a.Observe(other, base+int64(time.Minute))
		var last *pane.Pane
		for p := a.Next(); p != nil; p = a.Next() {
			last = p
		}
		return last
	}
	if p := heard(0); p.Heard["access.log"] != nil || p.Heard["other"] == nil {
		t.Errorf("over: %v", p.Heard)
	}
	if p := heard(1); p.Heard["access.log"] == nil {
		t.Errorf("another file of it is to come: %v", p.Heard)
	}
}

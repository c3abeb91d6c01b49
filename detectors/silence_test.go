package detectors

import (
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

package pane

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWindowsEqualMergeAll(t *testing.T) {
	const length = 10 * second
	panes := assemble(roomy, 5*time.Second, traffic(21, 300, second)) // 30 panes
	rapid.Check(t, func(t *rapid.T) {
		w := NewWindows(10*time.Second, 2*time.Minute)
		first := rapid.IntRange(0, len(panes)-1).Draw(t, "first")
		for i := first; i < min(first+20, len(panes)); i++ {
			w.Push(panes[i])
			if rapid.IntRange(0, 3).Draw(t, "look") > 0 {
				continue
			}
			n := rapid.IntRange(1, 12).Draw(t, "panes")
			end := panes[i].End
			start := end - int64(n)*length
			want := MergeAll(start, end, panes[max(first, i+1-n):i+1])
			differ(t, w.View(start, end).String(), want.String())
		}
	})
}

func TestWindowsMergeFewPanes(t *testing.T) {
	panes := assemble(Config{}, 5*time.Second, traffic(22, 3000, 333e6)) // 100 panes
	w := NewWindows(10*time.Second, 5*time.Minute)
	for _, p := range panes {
		w.Push(p)
		w.View(p.End-300*second, p.End)
	}
	if plain := 30 * len(panes); w.merges > plain/2 {
		t.Errorf("%d merges for windows of 30 panes, %d without runs", w.merges, plain)
	}
	if len(w.runs) > 70 {
		t.Errorf("%d runs kept", len(w.runs))
	}
	t.Logf("%.1f merges a window of 30 panes, %d runs kept", float64(w.merges)/float64(len(panes)), len(w.runs))
	jump := &Pane{Start: panes[0].Start + 1e6*second, End: panes[0].Start + 1e6*second + 10*second, Jump: true}
	w.Push(jump)
	if v := w.View(jump.End-300*second, jump.End); len(v.Sites) != 0 {
		t.Errorf("sites from before the jump: %v", v.SiteNames())
	}
}

// TestViewsLeaveThePanesAlone: what is merged when it is asked for changes neither the panes nor a view of the same time.
func TestViewsLeaveThePanesAlone(t *testing.T) {
	panes := assemble(Config{}, 5*time.Second, traffic(6, 20000, 5e6))
	before := fmt.Sprint(panes)
	w := NewWindows(10*time.Second, time.Minute)
	for _, p := range panes {
		w.Push(p)
		first := w.View(p.End-int64(time.Minute), p.End)
		again := w.View(p.End-int64(time.Minute), p.End)
		if first.String() != again.String() {
			t.Fatalf("two views of the minute before %d differ", p.End)
		}
	}
	if fmt.Sprint(panes) != before {
		t.Error("views changed their panes")
	}
}

func TestShortPanesKeepFewerCells(t *testing.T) {
	for length, want := range map[time.Duration]int{
		time.Millisecond: 256, time.Second: 256, 5 * time.Second: 512, 10 * time.Second: 1024, time.Minute: 1024, 1000 * time.Hour: 1024,
	} {
		if got := keptOf(int64(length)); got != want {
			t.Errorf("%s: %d cells are kept, not %d", length, got, want)
		}
	}
}

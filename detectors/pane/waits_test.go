package pane

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// inVain gives n requests of as many clients that gave up, in one pane, some of them twice.
func inVain(n int) []pipeline.Record {
	list := make([]pipeline.Record, 0, 2*n)
	for i := range n {
		r := at(base + int64(i%1000)*1e6)
		r.Start, r.Abandoned, r.Site = r.End-3*second, pipeline.Yes, []string{"a.example", "b.example"}[i%2]
		r.Client = netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		list = append(list, *r)
		if i%3 == 0 {
			list = append(list, *r)
		}
	}
	return list
}

// Over the limit a sample is kept that no order and no split over nodes changes, with whole counts.
func TestWaitsOverTheLimitDependOnNoOrder(t *testing.T) {
	records := inVain(3 * maxWaiters)
	want := assemble(Config{}, 10*time.Second, records)[0]
	kept := 0
	for _, s := range want.Sites {
		kept += len(s.Waits)
	}
	if kept != maxWaiters {
		t.Fatalf("%d waiters", kept)
	}
	random := rand.New(rand.NewPCG(7, 7))
	other := slices.Clone(records)
	random.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
	half := len(other) / 2
	whole := assemble(Config{}, 10*time.Second, other)[0]
	nodes := []*Pane{assemble(Config{}, 10*time.Second, other[:half])[0], assemble(Config{}, 10*time.Second, other[half:])[0]}
	for _, got := range []*Pane{whole, MergeAll(want.Start, want.End, nodes)} {
		for name, s := range want.Sites {
			is := got.Sites[name].Waits
			if !slices.EqualFunc(is, s.Waits, func(a, b *Waits) bool {
				return a.compare(b) == 0 && a.Count == b.Count && slices.Equal(a.Spans, b.Spans)
			}) {
				t.Errorf("%s: another sample: %d and %d waiters", name, len(is), len(s.Waits))
			}
		}
	}
}

// Of one waiter the earliest waits are kept, and all are counted.
func TestWaitsOfOneClientAreBounded(t *testing.T) {
	var records []pipeline.Record
	for i := range 3 * maxWaits {
		r := inVain(1)[0]
		r.End += int64(i) * 1e6
		records = append(records, r)
	}
	x := assemble(Config{}, 10*time.Second, records)[0].Sites["a.example"].Waits[0]
	if x.Count != 3*maxWaits || len(x.Spans) != maxWaits || x.Spans[0].End != records[0].End || x.Spans[maxWaits-1].End != records[maxWaits-1].End {
		t.Errorf("%d waits, %d kept: %v", x.Count, len(x.Spans), x.Spans)
	}
}

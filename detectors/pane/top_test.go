package pane

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// checkTop holds a summary against the true sums.
func checkTop(t interface{ Fatalf(string, ...any) }, top *Top, truth map[string]uint64, total uint64) {
	if top.Total() != total {
		t.Fatalf("total %d, want %d", top.Total(), total)
	}
	listed := map[string]bool{}
	for _, item := range top.Items() {
		listed[item.Key] = true
		if want := truth[item.Key]; want > item.Count || want < item.Count-item.Error {
			t.Fatalf("%q: %d is not within [%d, %d]", item.Key, want, item.Count-item.Error, item.Count)
		}
	}
	if len(listed) != top.Len() {
		t.Fatalf("%d different keys among %d", len(listed), top.Len())
	}
	for key, n := range truth {
		if !listed[key] && n > top.Floor() {
			t.Fatalf("%q weighs %d and is not listed, floor %d", key, n, top.Floor())
		}
	}
}

func TestTopBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 40).Draw(t, "capacity")
		kinds := rapid.IntRange(1, 80).Draw(t, "kinds")
		merged, total := NewTop(capacity), uint64(0)
		truth := map[string]uint64{}
		for range rapid.IntRange(1, 6).Draw(t, "parts") {
			part, sum, seen := NewTop(capacity), uint64(0), map[string]uint64{}
			for range rapid.IntRange(0, 300).Draw(t, "n") {
				key := fmt.Sprint(rapid.IntRange(1, kinds).Draw(t, "key"))
				weight := uint64(rapid.IntRange(0, 9).Draw(t, "weight"))
				part.Add([]byte(key), weight)
				seen[key] += weight
				sum += weight
			}
			checkTop(t, part, seen, sum)
			if part.Len() > capacity {
				t.Fatalf("%d keys, capacity %d", part.Len(), capacity)
			}
			for _, item := range part.Items() {
				if item.Error > sum/uint64(capacity) || len(seen) <= capacity && item.Error > 0 {
					t.Fatalf("error %d of %d with capacity %d and %d keys", item.Error, sum, capacity, len(seen))
				}
			}
			for key, n := range seen {
				truth[key] += n
			}
			total += sum
			if rapid.Bool().Draw(t, "trim") {
				part.Trim(max(capacity/2, 1))
				checkTop(t, part, seen, sum)
			}
			before := fmt.Sprint(part.Items())
			merged.Merge(part)
			if fmt.Sprint(part.Items()) != before {
				t.Fatalf("Merge changed its argument")
			}
			checkTop(t, merged, truth, total)
			if merged.Len() > exactFactor*capacity {
				t.Fatalf("%d keys after a merge, capacity %d", merged.Len(), capacity)
			}
		}
	})
}

func TestTopFindsHeavyHittersOverNodes(t *testing.T) {
	const nodes, capacity = 8, 256
	random := rand.New(rand.NewPCG(7, 7))
	zipf := rand.NewZipf(random, 1.1, 4, 50000)
	truth, total := map[string]uint64{}, uint64(0)
	parts := make([]*Top, nodes)
	for i := range parts {
		parts[i] = NewTop(capacity)
	}
	for i := range 200000 {
		key := fmt.Sprintf("agent %d", zipf.Uint64())
		parts[i%nodes].AddString(key, 3)
		truth[key] += 3
		total += 3
	}
	merged := parts[0].Clone()
	for _, part := range parts[1:] {
		merged.Merge(part)
	}
	checkTop(t, merged, truth, total)
	items := merged.Items()
	for rank := range 20 {
		if want := fmt.Sprintf("agent %d", rank); !contains(items[:24], want) {
			t.Errorf("%q, rank %d of the truth, is not among the first 24", want, rank)
		}
	}
	for _, item := range items[:20] {
		if off := float64(item.Count-truth[item.Key]) / float64(total); off > 1.0/capacity {
			t.Errorf("%q is off by %.3f %% of the total", item.Key, 100*off)
		}
	}
}

func contains(items []Item, key string) bool {
	for _, item := range items {
		if item.Key == key {
			return true
		}
	}
	return false
}

func TestTopMergeInAnyOrderWhileExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) *Top {
			top := NewTop(60)
			for _, n := range rapid.SliceOf(rapid.IntRange(0, 50)).Draw(t, name) {
				top.AddString(fmt.Sprint(n), 1)
			}
			return top
		}
		a, b, c := draw("a"), draw("b"), draw("c")
		left, right := a.Clone(), c.Clone()
		left.Merge(b)
		left.Merge(c)
		bc := b.Clone()
		bc.Merge(a)
		right.Merge(bc)
		if fmt.Sprint(left.Items()) != fmt.Sprint(right.Items()) || left.Floor() != 0 {
			t.Fatalf("%v\n%v", left.Items(), right.Items())
		}
	})
}

func TestTopAllocatesForNewKeysOnly(t *testing.T) {
	for _, n := range []int{1, scanLimit, scanLimit + 1, 500} {
		top, keys := NewTop(1000), make([][]byte, n)
		for i := range keys {
			keys[i] = fmt.Appendf(nil, "key %d", i)
			top.Add(keys[i], 1)
		}
		i := 0
		if got := testing.AllocsPerRun(1000, func() { top.Add(keys[i%n], 1); i++ }); got != 0 {
			t.Errorf("%d keys: %v allocations", n, got)
		}
	}
	long := make([]byte, 1000)
	top := NewTop(2)
	top.Add(long, math.MaxUint32)
	top.AddString(string(long[:300]), 1)
	if items := top.Items(); len(items) != 1 || len(items[0].Key) != maxKey {
		t.Errorf("keys that agree in %d bytes are not one: %d", maxKey, len(items))
	}
}

// TestTopTrimsAndListsTheHeaviest: a part of the order is that of the whole.
func TestTopTrimsAndListsTheHeaviest(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for _, weights := range []int{1, 3, 1000} { // all equal, mostly equal, mostly different
		whole := NewTop(2000)
		for range 1500 {
			whole.AddString(fmt.Sprint("key ", random.IntN(1e6)), uint64(1+random.IntN(weights)))
		}
		want := whole.Items()
		for _, n := range []int{1, 2, 16, 700, len(want) - 1, len(want), len(want) + 1} {
			kept := min(n, len(want))
			if got := whole.Heaviest(n); !slices.Equal(got, want[:kept]) {
				t.Fatalf("the heaviest %d of weights to %d: %v", n, weights, got[:min(3, len(got))])
			}
			trimmed := whole.Clone()
			trimmed.Trim(n)
			if !slices.Equal(trimmed.Items(), want[:kept]) {
				t.Fatalf("trimmed to %d of weights to %d: %v", n, weights, trimmed.Items()[:1])
			}
			if kept < len(want) && trimmed.Floor() != want[kept].Count {
				t.Errorf("trimmed to %d: floor %d, the next weighs %d", n, trimmed.Floor(), want[kept].Count)
			}
			for _, x := range want[:kept] {
				if got, ok := trimmed.Get(x.Key); !ok || got != x {
					t.Fatalf("trimmed to %d: %v is found as %v", n, x, got)
				}
			}
		}
	}
}

package pane

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

func TestQuantilesWithinOnePercent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		durations := rapid.SliceOfN(rapid.OneOf(
			rapid.Int64Range(-1, 1000), rapid.Int64Range(0, 60*second), rapid.Int64Range(0, maxDuration),
			rapid.SampledFrom([]int64{0, 1e6, 5e6, 10 * second}),
		), 1, 400).Draw(t, "durations")
		var whole, left, right Quantiles
		for i, d := range durations {
			whole.Add(d)
			if i%3 == 0 {
				left.Add(d)
			} else {
				right.Add(d)
			}
		}
		merged := right
		merged.pairs, merged.dense = slices.Clone(right.pairs), slices.Clone(right.dense)
		merged.Merge(&left)
		slices.Sort(durations)
		for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 1} {
			want := math.Max(float64(durations[int(q*float64(len(durations)-1))])/1e9, 0)
			for _, sketch := range []*Quantiles{&whole, &merged} {
				got, ok := sketch.Quantile(q)
				if !ok || math.Abs(got-want) > accuracy*want*(1+1e-9) {
					t.Fatalf("quantile %v is %v, want %v within 1 %%", q, got, want)
				}
			}
		}
		if whole.Count() != uint64(len(durations)) || merged.Count() != whole.Count() {
			t.Fatalf("counts %d and %d, want %d", whole.Count(), merged.Count(), len(durations))
		}
	})
}

func TestQuantilesHostileDurations(t *testing.T) {
	var q Quantiles
	if _, ok := q.Quantile(0.5); ok {
		t.Error("nothing has a median")
	}
	for _, ns := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
		q.Add(ns)
	}
	for i := range int64(2000) {
		q.Add(1 + i*i*i*i*i)
	}
	if len(q.dense) > 2048 {
		t.Errorf("%d bins", len(q.dense))
	}
	for _, ratio := range []float64{-1, 2, math.NaN()} {
		if _, ok := q.Quantile(ratio); ok {
			t.Errorf("quantile %v is given", ratio)
		}
	}
}

func hashOf(n uint64) uint64 { return xxhash.Sum64(binary.LittleEndian.AppendUint64(nil, n)) }

func TestDistinctIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) []uint64 {
			list := rapid.SliceOfN(rapid.Uint64Range(0, 400), 0, 300).Draw(t, name)
			for i, n := range list {
				if n > 0 { // 0 stays: a hash like any other
					list[i] = hashOf(n)
				}
			}
			return list
		}
		x, y, z := draw("x"), draw("y"), draw("z")
		set := func(lists ...[]uint64) *Distinct {
			d := &Distinct{}
			for _, list := range lists {
				for _, h := range list {
					d.Add(h)
				}
			}
			return d
		}
		want := set(x, y, z)
		xy := set(x)
		xy.Merge(set(y))
		xy.Merge(set(z))
		zy := set(z, z)
		zy.Merge(set(y, x))
		zy.Merge(set(x))
		zy.Merge(&Distinct{})
		for _, got := range []*Distinct{xy, zy} {
			if got.fingerprint() != want.fingerprint() {
				t.Fatalf("merges differ from the set")
			}
		}
		different := map[uint64]bool{}
		for _, h := range slices.Concat(x, y, z) {
			different[h] = true
		}
		n, exact := want.Count()
		if exact != (len(different) <= exactDistinct) || exact && int(n) != len(different) {
			t.Fatalf("%v (exact: %t) of %d", n, exact, len(different))
		}
	})
}

func TestDistinctErrorAndMemory(t *testing.T) {
	worst := 0.0
	for _, n := range []int{129, 500, 1229, 5000, 15834, 100000} {
		for run := range uint64(10) {
			var d Distinct
			for i := range uint64(n) {
				d.Add(hashOf(run<<40 | i))
			}
			got, _ := d.Count()
			worst = max(worst, math.Abs(got-float64(n))/float64(n))
		}
	}
	if worst > 0.055 { // 60 draws with a standard error of 1.6 %: beyond 3.4 of them something is wrong
		t.Errorf("worst error %.1f %%", 100*worst)
	}
	t.Logf("worst error of 60 runs: %.2f %%", 100*worst)
	var d Distinct
	for i := range uint64(1000) {
		d.Add(hashOf(i))
	}
	i := uint64(1000)
	if got := testing.AllocsPerRun(1000, func() { d.Add(i * 0x9e3779b97f4a7c15); i++ }); got != 0 {
		t.Errorf("%v allocations a hash", got)
	}
}

func TestSamplesAreASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hashes := rapid.SliceOf(rapid.Uint64Range(0, 20)).Draw(t, "hashes")
		add := func(s *Samples, h uint64) {
			s.Add(h, &pipeline.Record{Method: []byte("GET"), Path: fmt.Appendf(nil, "/%d", h), RequestTime: pipeline.Unknown})
		}
		var whole, left, right Samples
		for i, h := range hashes {
			add(&whole, h)
			if i%2 == 0 {
				add(&left, h)
			} else {
				add(&right, h)
			}
		}
		left.Merge(&right)
		left.Merge(&whole)
		slices.Sort(hashes)
		hashes = slices.Compact(hashes)
		var want []string
		for _, h := range hashes[:min(len(hashes), maxSamples)] {
			want = append(want, fmt.Sprintf(`GET /%d 0 - ""`, h))
		}
		if !slices.Equal(whole.Strings(), want) || !slices.Equal(left.Strings(), want) {
			t.Fatalf("%q and %q, want %q", whole.Strings(), left.Strings(), want)
		}
	})
}

func TestSampleHidesQueryAndAddress(t *testing.T) {
	r := traffic(3, 1, 1)[0]
	r.Method, r.Path, r.Query = []byte("HEAD"), []byte("/reset"), []byte("token=secret")
	r.Status, r.RequestTime = 499, 9_900_000_000
	r.UserAgent = []byte("Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120 Safari")
	var s Samples
	s.Add(1, &r)
	want := `HEAD /reset?… 499 9.900s "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko)…"`
	if got := s.Strings(); len(got) != 1 || got[0] != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestCodes(t *testing.T) {
	var c, o Codes
	random := rand.New(rand.NewPCG(1, 1))
	want := map[uint16]uint64{}
	for range 3000 {
		code := uint16(random.IntN(700))
		c.Add(code)
		o.Add(code)
		if code < 100 || code > 599 {
			code = 0
		}
		want[code] += 2
	}
	c.Merge(&o)
	last, classes := -1, uint64(0)
	c.All(func(code uint16, n uint64) {
		if int(code) <= last || n != want[code] || c.Get(code) != n {
			t.Errorf("%d after %d: %d, want %d", code, last, n, want[code])
		}
		last = int(code)
	})
	for class := range 6 {
		classes += c.Class(class)
	}
	if classes != 6000 || c.Class(0) != want[0] || len(c.counts) != len(want) {
		t.Errorf("classes sum to %d, none sent %d, %d codes", classes, c.Class(0), len(c.counts))
	}
}

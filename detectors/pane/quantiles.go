package pane

import (
	"math"
	"slices"

	"github.com/DataDog/sketches-go/ddsketch/mapping"
)

const (
	accuracy    = 0.01    // relative error of a quantile
	maxDuration = 1 << 47 // ns, 39 hours: longer ones count as this
	sparseBins  = 32      // up to this many bins are kept as pairs
)

var durationBins = newDurationBins()

func newDurationBins() *mapping.CubicallyInterpolatedMapping {
	m, err := mapping.NewCubicallyInterpolatedMapping(accuracy)
	if err != nil {
		panic("pane: " + err.Error()) // accuracy is a constant between 0 and 1
	}
	return m
}

// Quantiles is a DDSketch (Masson, Rim, Lee, VLDB 2019) of durations with integer counts: bins of the library's
// cubic mapping, so that quantiles are within 1 % and merges are exact in any order. The library's own stores
// count in floats and allocate while adding. The zero value is empty.
type Quantiles struct {
	count uint64
	zeros uint64   // durations of 0, or below
	pairs []bin    // sorted by index while few
	first int      // index of dense[0]
	dense []uint64 // nil while pairs do
}

type bin struct {
	index int32
	n     uint64
}

// Add counts a duration in ns.
func (q *Quantiles) Add(ns int64) {
	q.count++
	if ns <= 0 {
		q.zeros++
		return
	}
	q.addBin(durationBins.Index(float64(min(ns, maxDuration))), 1)
}

func (q *Quantiles) addBin(index int, n uint64) {
	if q.dense != nil {
		q.addDense(index, n)
		return
	}
	at := len(q.pairs)
	for i := range q.pairs {
		if q.pairs[i].index == int32(index) {
			q.pairs[i].n += n
			return
		}
		if q.pairs[i].index > int32(index) {
			at = i
			break
		}
	}
	if len(q.pairs) < sparseBins {
		q.pairs = slices.Insert(q.pairs, at, bin{int32(index), n})
		return
	}
	low, high := min(index, int(q.pairs[0].index)), max(index, int(q.pairs[sparseBins-1].index))
	q.first, q.dense = low, make([]uint64, high-low+1)
	for _, b := range q.pairs {
		q.dense[int(b.index)-low] = b.n
	}
	q.pairs = nil
	q.addDense(index, n)
}

func (q *Quantiles) addDense(index int, n uint64) {
	at := index - q.first
	if uint(at) < uint(len(q.dense)) {
		q.dense[at] += n
		return
	}
	const margin = 16 // bins grown beyond the need, so that few steps are needed
	first, end := q.first, q.first+len(q.dense)
	if at < 0 {
		first = max(index-margin, 0)
	} else {
		end = index + margin
	}
	grown := make([]uint64, end-first)
	copy(grown[q.first-first:], q.dense)
	q.first, q.dense = first, grown
	q.dense[index-first] += n
}

// bins calls f for every bin in use, ascending, until f returns false.
func (q *Quantiles) bins(f func(index int, n uint64) bool) {
	for _, b := range q.pairs {
		if !f(int(b.index), b.n) {
			return
		}
	}
	for i, n := range q.dense {
		if n > 0 && !f(q.first+i, n) {
			return
		}
	}
}

// extent is how many bins are in use, and which part of dense holds them.
func (q *Quantiles) extent() (low, high, n int) {
	for i, in := range q.dense {
		if in == 0 {
			continue
		}
		if n++; n == 1 {
			low = i
		}
		high = i + 1
	}
	return low, high, n + len(q.pairs)
}

// Merge adds the durations of o, which is not changed. It is exact.
func (q *Quantiles) Merge(o *Quantiles) {
	q.count += o.count
	q.zeros += o.zeros
	if len(q.pairs) == 0 && q.dense == nil { // most cells of a window are of one pane
		q.pairs, q.first, q.dense = slices.Clone(o.pairs), o.first, slices.Clone(o.dense)
		return
	}
	o.bins(func(index int, n uint64) bool {
		q.addBin(index, n)
		return true
	})
}

// Count is how many durations were added.
func (q *Quantiles) Count() uint64 { return q.count }

// Sum is that of all durations in seconds, within 1 %.
func (q *Quantiles) Sum() (seconds float64) {
	q.bins(func(index int, n uint64) bool {
		seconds += float64(n) * durationBins.Value(index) / 1e9
		return true
	})
	return seconds
}

// From is how many durations were at least ns, within 1 % of it.
func (q *Quantiles) From(ns int64) (n uint64) {
	if ns <= 0 {
		return q.count
	}
	least := durationBins.Index(float64(min(ns, maxDuration)))
	q.bins(func(index int, in uint64) bool {
		if index >= least {
			n += in
		}
		return true
	})
	return n
}

// Quantile gives the q-quantile (0–1) in seconds, within 1 % of the duration at rank ⌊q·(count−1)⌋. ok is
// false when nothing was added or q is no ratio.
func (q *Quantiles) Quantile(ratio float64) (seconds float64, ok bool) {
	if q.count == 0 || math.IsNaN(ratio) || ratio < 0 || ratio > 1 {
		return 0, false
	}
	rank := uint64(ratio * float64(q.count-1))
	if rank < q.zeros {
		return 0, true
	}
	seen := q.zeros
	q.bins(func(index int, n uint64) bool {
		seen += n
		seconds = durationBins.Value(index) / 1e9
		return seen <= rank
	})
	return seconds, true
}

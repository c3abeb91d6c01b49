package pane

// A Pileup is a duration at which far more requests ended than at those around it: where a timeout is.
type Pileup struct {
	Seconds float64 // within 1 %
	Count   uint64  // requests that ended there
}

// What makes a pile-up.
const (
	pileupLeast  = 1.0  // seconds: a timeout is no shorter
	pileupCount  = 20   // requests
	pileupShare  = 0.01 // of all
	pileupHeight = 5    // times the mean of the bins around it
	pileupAround = 8    // bins on each side that it is held against: a sixth of the duration
	pileupWidth  = 2    // bins on each side that belong to it
	maxPileups   = 6
)

// Pileups finds the durations that many requests share, shortest first.
func (q *Quantiles) Pileups() []Pileup {
	bins := map[int]uint64{}
	var order []int
	q.bins(func(index int, n uint64) bool {
		if durationBins.Value(index) >= pileupLeast*1e9 {
			bins[index] = n
			order = append(order, index)
		}
		return true
	})
	var found []Pileup
	for _, at := range order {
		if !q.piled(bins, at) {
			continue
		}
		p := Pileup{Seconds: durationBins.Value(at) / 1e9}
		for i := at - pileupWidth; i <= at+pileupWidth; i++ {
			p.Count += bins[i]
		}
		found = append(found, p)
	}
	return found[:min(len(found), maxPileups)]
}

// piled tells whether a bin is the highest of those near it, and stands out from those around.
func (q *Quantiles) piled(bins map[int]uint64, at int) bool {
	n := bins[at]
	var near, around uint64
	for i := at - pileupAround; i <= at+pileupAround; i++ {
		if bins[i] > n || bins[i] == n && i < at {
			return false
		}
		if i < at-pileupWidth || i > at+pileupWidth {
			around += bins[i]
		} else {
			near += bins[i]
		}
	}
	if near < pileupCount || float64(near) < pileupShare*float64(q.count) {
		return false
	}
	const (
		nearBins   = 2*pileupWidth + 1
		aroundBins = 2*pileupAround + 1 - nearBins
	)
	return float64(near)/nearBins >= pileupHeight*float64(around)/aroundBins
}

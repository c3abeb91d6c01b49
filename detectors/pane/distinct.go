package pane

import (
	"slices"

	"github.com/axiomhq/hyperloglog"
	"github.com/cespare/xxhash/v2"
)

const (
	exactDistinct = 128 // hashes that are kept one by one
	precision     = 12  // 4,096 registers of a byte; standard error 1.04/√4096 = 1.6 %
)

// Distinct counts different hashes: exactly up to 128, then by HyperLogLog (Flajolet et al. 2007). The zero
// value is empty. The result depends on the set of hashes alone, not on order or repetition. Hashes must be
// uniformly distributed over 64 bits.
type Distinct struct {
	slots  []uint64 // open addressing, at most half full, or a bare list in closed panes; 0 is a free slot
	n      int      // used slots, and one more for the hash 0
	zero   bool
	sketch *hyperloglog.Sketch // dense, so that reading it changes nothing; nil while exact

	later *later // what is still to be merged, nil for nothing,
	of    func(*Cell) *Distinct
}

// Add counts a hash.
func (d *Distinct) Add(hash uint64) {
	switch {
	case d.sketch != nil:
		d.sketch.InsertHash(hash)
		return
	case hash == 0:
		if d.zero {
			return
		}
		d.zero = true
	default:
		if 2*(d.n+1) > len(d.slots) {
			d.grow(d.n + 1)
		}
		mask := uint64(len(d.slots) - 1)
		at := hash & mask
		for d.slots[at] != 0 {
			if d.slots[at] == hash {
				return
			}
			at = (at + 1) & mask
		}
		d.slots[at] = hash
	}
	if d.n++; d.n > exactDistinct {
		d.estimate()
	}
}

// grow makes room for n hashes.
func (d *Distinct) grow(n int) {
	old := d.slots
	size := 8
	for 2*n > size {
		size *= 2
	}
	d.slots = make([]uint64, size)
	mask := uint64(len(d.slots) - 1)
	for _, hash := range old {
		if hash == 0 {
			continue
		}
		at := hash & mask
		for d.slots[at] != 0 {
			at = (at + 1) & mask
		}
		d.slots[at] = hash
	}
}

// estimate goes over from the exact set to a sketch.
func (d *Distinct) estimate() {
	sketch, err := hyperloglog.NewSketch(precision, false)
	if err != nil {
		return // only for a precision outside 4–18: the exact set stays
	}
	if d.zero {
		sketch.InsertHash(0)
	}
	for _, hash := range d.slots {
		if hash != 0 {
			sketch.InsertHash(hash)
		}
	}
	*d = Distinct{sketch: sketch}
}

// hashes lists the exact set in ascending order.
func (d *Distinct) hashes() []uint64 {
	d.settle()
	list := make([]uint64, 0, d.n)
	if d.zero {
		list = append(list, 0)
	}
	for _, hash := range d.slots {
		if hash != 0 {
			list = append(list, hash)
		}
	}
	slices.Sort(list)
	return list
}

// Merge adds the hashes of o, which stays what it is.
func (d *Distinct) Merge(o *Distinct) {
	d.settle()
	o.settle()
	if d.n == 0 && d.sketch == nil {
		*d = Distinct{slots: slices.Clone(o.slots), n: o.n, zero: o.zero}
		if o.sketch != nil {
			d.sketch = o.sketch.Clone()
		}
		return
	}
	if o.sketch == nil {
		if d.sketch == nil && o.n > d.n {
			d.grow(o.n) // at once what is needed at least
		}
		if o.zero {
			d.Add(0)
		}
		for _, hash := range o.slots {
			if hash != 0 {
				d.Add(hash)
			}
		}
		return
	}
	if d.sketch == nil {
		d.estimate()
	}
	// Sketches differ in nothing but their registers, so that this cannot fail: one precision, both dense.
	_ = d.sketch.Merge(o.sketch)
}

// Count gives the number of different hashes, and whether it is exact.
func (d *Distinct) Count() (n float64, exact bool) {
	d.settle()
	if d.sketch == nil {
		return float64(d.n), true
	}
	return float64(d.sketch.Estimate()), false
}

// fingerprint is equal for equal content.
func (d *Distinct) fingerprint() uint64 {
	d.settle()
	if d.sketch != nil {
		// Registers in order: of a dense sketch, equal content gives equal bytes.
		registers, err := d.sketch.MarshalBinary()
		if err != nil {
			return 0
		}
		return xxhash.Sum64(registers)
	}
	var sum uint64
	for _, hash := range d.hashes() {
		sum = mix(sum, hash)
	}
	return sum
}

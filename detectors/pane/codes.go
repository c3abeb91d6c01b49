package pane

import "slices"

// Codes counts by status code. The zero value is empty.
type Codes struct {
	counts []codeCount // ascending by code
}

type codeCount struct {
	code uint16
	n    uint64
}

// Add counts a response; code 0 stands for none sent.
func (c *Codes) Add(code uint16) { c.add(code, 1) }

// add keeps codes outside 100–599 under 0: a hostile log cannot make the list long.
func (c *Codes) add(code uint16, n uint64) {
	if code < 100 || code > 599 {
		code = 0
	}
	for i := range c.counts {
		if c.counts[i].code == code {
			c.counts[i].n += n
			return
		}
		if c.counts[i].code > code {
			c.counts = slices.Insert(c.counts, i, codeCount{code, n})
			return
		}
	}
	c.counts = append(c.counts, codeCount{code, n})
}

// Merge adds the counts of o, which is not changed.
func (c *Codes) Merge(o *Codes) {
	if len(c.counts) == 0 {
		c.counts = slices.Clone(o.counts)
		return
	}
	for _, x := range o.counts {
		c.add(x.code, x.n)
	}
}

// Get is the count of one code.
func (c *Codes) Get(code uint16) uint64 {
	for _, x := range c.counts {
		if x.code == code {
			return x.n
		}
	}
	return 0
}

// Class is the count of a class: 1 for 100–199 up to 5 for 500–599, 0 for none sent.
func (c *Codes) Class(n int) uint64 {
	var sum uint64
	for _, x := range c.counts {
		if int(x.code/100) == n {
			sum += x.n
		}
	}
	return sum
}

// All calls f for every code seen, ascending.
func (c *Codes) All(f func(code uint16, n uint64)) {
	for _, x := range c.counts {
		f(x.code, x.n)
	}
}

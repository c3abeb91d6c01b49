package pane

import "math"

const (
	noTime  = math.MinInt64
	never   = math.MaxInt64
	confirm = 3 // consecutive lines far ahead that make a source's time jump
)

// clock is how far the event time of one source has come.
type clock struct {
	teller   int // who it tells for
	lateness int64
	newest   int64 // ns; noTime until known
	hold     int64 // ns: from where lines of the source lie unread; never for none
	idle     bool
	done     bool
	loose    bool
	ahead    [confirm]int64 // ascending: times of consecutive lines too far over newest
	waiting  int            // how many of ahead are set
}

// see notes the time of a line and tells whether newest moved. A line more than maxAhead over the newest one
// moves it only as one of three in a row: a clock that was wrong for one line must not close all panes.
func (c *clock) see(t, maxAhead int64) (moved bool) {
	if c.newest != noTime && t-c.newest <= maxAhead {
		c.waiting = 0
		if t <= c.newest {
			return false
		}
		c.newest = t
		return true
	}
	at := c.waiting
	for at > 0 && c.ahead[at-1] > t {
		c.ahead[at] = c.ahead[at-1]
		at--
	}
	c.ahead[at] = t
	if c.waiting++; c.waiting < confirm {
		return false
	}
	c.newest = c.ahead[0]
	rest := c.ahead[1:c.waiting]
	for len(rest) > 0 && rest[0]-c.newest <= maxAhead {
		c.newest, rest = rest[0], rest[1:]
	}
	c.waiting = copy(c.ahead[:], rest)
	return true
}

// promise is the time before which nothing of the source is to come.
func (c *clock) promise() int64 {
	t := min(c.newest, c.hold)
	if t == noTime {
		return noTime
	}
	return t - c.lateness
}

// watermark is the least promise of the sources that hold it. It never goes back.
type watermark struct {
	clocks []clock
	holder int   // the source with the least promise; -1 for none
	at     int64 // ns; noTime until all holding sources promised something
}

// settle finds the holder anew.
func (w *watermark) settle() {
	w.holder = -1
	least := int64(math.MaxInt64)
	for i := range w.clocks {
		c := &w.clocks[i]
		if c.idle || c.done || c.loose {
			continue
		}
		if p := c.promise(); p < least || w.holder < 0 {
			least, w.holder = p, i
		}
	}
	if w.holder >= 0 {
		w.at = max(w.at, least)
	}
}

package pane

import "github.com/squall-sre/squall/pipeline"

// maxShares is how many panes before and after its own a request's time is spread over: an hour of 10 s panes.
// Time beyond is not counted; no window reaches that far.
const maxShares = 360

// Busy is worker time by overlap, as an interval (Little's law; an abandoned request hides the origin's time).
// A request is counted in the pane in which it ended, together with its shares of the panes before, and for
// the upper bound of those after, so that closed panes alone give a window's worker time. The mean number of
// busy workers in a window is Lower or Upper divided by its length. The zero value is empty.
type Busy struct {
	Lower, Upper int64  // ns of worker time within the span of the pane or of the merged window
	Untimed      uint64 // requests that may have reached an upstream and whose log tells no time at all

	step         int64   // ns: the length of a pane; 0 while there are no shares
	past, future []share // of the panes before the span, nearest first, and after it
}

type share struct{ lower, upper int64 }

// Add counts one worker held over [start, lowerEnd) at least and over [start, upperEnd) at most, times in ns.
// paneStart and paneEnd bound the pane that the Busy belongs to.
func (b *Busy) Add(paneStart, paneEnd, start, lowerEnd, upperEnd int64) {
	b.spread(paneStart, paneEnd, start, lowerEnd, true)
	b.spread(paneStart, paneEnd, start, upperEnd, false)
}

// Total is the time for which the counted requests held workers, in ns, before and after the span too.
func (b *Busy) Total() (lower, upper int64) {
	lower, upper = b.Lower, b.Upper
	for _, shares := range [][]share{b.past, b.future} {
		for _, s := range shares {
			lower, upper = lower+s.lower, upper+s.upper
		}
	}
	return lower, upper
}

func (b *Busy) spread(paneStart, paneEnd, from, to int64, lower bool) {
	if to <= from {
		return
	}
	if from >= paneStart && to <= paneEnd {
		b.place(0, to-from, lower)
		return
	}
	length := paneEnd - paneStart
	b.step = length
	if n := overlap(from, to, paneStart, paneEnd); n > 0 {
		b.place(0, n, lower)
	}
	for i := 1; i <= maxShares; i++ {
		end := paneStart - int64(i-1)*length
		if end <= from {
			break
		}
		if n := overlap(from, to, end-length, end); n > 0 {
			b.place(-i, n, lower)
		}
	}
	for i := 1; i <= maxShares; i++ {
		begin := paneEnd + int64(i-1)*length
		if begin >= to {
			break
		}
		if n := overlap(from, to, begin, begin+length); n > 0 {
			b.place(i, n, lower)
		}
	}
}

// overlap is how many ns [from, to) and [begin, end) share; it compares before it subtracts, since a line may
// claim any time.
func overlap(from, to, begin, end int64) int64 {
	from, to = max(from, begin), min(to, end)
	if to <= from {
		return 0
	}
	return to - from
}

// place adds n ns to the pane at an offset from the span: -1 is the one before, 1 the one after.
func (b *Busy) place(offset int, n int64, lower bool) {
	if lower {
		b.placeShare(offset, share{lower: n})
	} else {
		b.placeShare(offset, share{upper: n})
	}
}

func (b *Busy) placeShare(offset int, s share) {
	list := &b.future
	switch {
	case offset == 0:
		b.Lower += s.lower
		b.Upper += s.upper
		return
	case offset < 0:
		list, offset = &b.past, -offset
	}
	for len(*list) < offset {
		*list = append(*list, share{})
	}
	at := &(*list)[offset-1]
	at.lower += s.lower
	at.upper += s.upper
}

// merge adds o, whose span is [start, end), to b, whose span [bStart, bEnd) holds it or is disjoint from it.
func (b *Busy) merge(bStart, bEnd int64, o *Busy, start, end int64) {
	b.Untimed += o.Untimed
	if o.step == 0 && start >= bStart && end <= bEnd {
		b.Lower += o.Lower
		b.Upper += o.Upper
		return
	}
	step := o.step
	if step == 0 {
		step = end - start
	}
	b.step = step
	put := func(at int64, s share) {
		if s == (share{}) {
			return
		}
		switch {
		case at < bStart:
			b.placeShare(-int((bStart-at+step-1)/step), s)
		case at >= bEnd:
			b.placeShare(int((at-bEnd)/step)+1, s)
		default:
			b.placeShare(0, s)
		}
	}
	put(start, share{o.Lower, o.Upper})
	for i, s := range o.past {
		put(start-int64(i+1)*step, s)
	}
	for i, s := range o.future {
		put(end+int64(i)*step, s)
	}
}

// widen takes the shares of n panes before and m panes after the span into it.
func (b *Busy) widen(before, after int) {
	take := func(list []share, n int) []share {
		n = min(n, len(list))
		for _, s := range list[:n] {
			b.Lower += s.lower
			b.Upper += s.upper
		}
		return list[n:]
	}
	b.past = take(b.past, before)
	b.future = take(b.future, after)
}

// add counts a record that ended within [paneStart, paneEnd). reclaim is after how many ns a worker is taken
// back from a request that nobody waits for.
func (b *Busy) add(paneStart, paneEnd int64, r *pipeline.Record, reclaim int64) {
	if r.Reached == pipeline.No {
		return
	}
	upstream := max(r.UpstreamTime, 0)
	switch {
	case r.UpstreamTime < 0 && r.RequestTime < 0:
		b.Untimed++
	case r.Abandoned == pipeline.Yes:
		// The log stops at the client's patience; the worker goes on until it is done or taken back. A log that
		// names the upstream and not its time (ALB's 460) still tells how long the client waited for it.
		if r.UpstreamTime < 0 && r.Reached == pipeline.Yes {
			upstream = max(r.RequestTime, 0)
		}
		from := min(r.Start, r.End-upstream)
		b.spread(paneStart, paneEnd, r.End-upstream, r.End, true)
		b.spread(paneStart, paneEnd, from, max(r.End, r.Start+reclaim), false)
	case r.UpstreamTime >= 0:
		b.Add(paneStart, paneEnd, r.End-upstream, r.End, r.End)
	default:
		b.spread(paneStart, paneEnd, r.Start, r.Start+min(r.RequestTime, reclaim), false)
	}
}

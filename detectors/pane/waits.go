package pane

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/squall-sre/squall/pipeline"
)

const (
	// MinWait is the shortest wait, in ns, that Waits tell of: whoever left, or was answered 5xx, sooner than
	// this did not run into a timeout.
	MinWait = int64(2 * time.Second)

	maxWaiters = 1024 // of a pane or a merge, over all its sites
	maxWaits   = 24   // of one waiter: the earliest
)

// Waits are the requests of one client for one path that came to nothing after a long wait: the client gave up, or
// the answer was a 5xx. A client that asks again as soon as its own request timed out is a chain of them. Waits of
// closed panes are never changed.
type Waits struct {
	Client        netip.Addr
	Method, Route string
	Path          uint64 // hash
	Count         uint64 // all of them
	Spans         []Wait // the earliest, by End; at most 24

	hash uint64
}

// Wait is one request in vain, from start to end, ns.
type Wait struct{ Start, End int64 }

// waiter is the key of Waits.
type waiter struct {
	site, method, route string
	client              netip.Addr
	path                uint64
}

// waiters are the Waits of an open pane. Over maxWaiters those with the smallest hashes are kept, all of their
// waits and none of the others': a sample that no order of the lines changes, and the same clients and paths in
// every pane.
type waiters struct {
	of    map[waiter]*Waits
	limit uint64 // no hash above it can be among the smallest any more; 0: none was dropped yet
}

// waited tells whether a request ended in vain after a long wait.
func waited(r *pipeline.Record) bool {
	return (r.Abandoned == pipeline.Yes || r.Status >= 500) && r.End-r.Start >= MinWait && r.Client.IsValid()
}

// add counts a request in vain; client is the hash of its address.
func (w *waiters) add(r *pipeline.Record, method string, client uint64) {
	path := xxhash.Sum64(r.Path)
	hash := mix(mix(path, client), mix(xxhash.Sum64String(r.Site), xxhash.Sum64String(r.Route)^uint64(len(method))))
	if w.limit > 0 && hash > w.limit {
		return
	}
	key := waiter{r.Site, method, r.Route, r.Client.Unmap().WithZone(""), path}
	x := w.of[key]
	if x == nil {
		if w.of == nil {
			w.of = map[waiter]*Waits{}
		}
		if len(w.of) >= 2*maxWaiters {
			w.cut()
		}
		x = &Waits{Client: key.client, Method: method, Route: r.Route, Path: path, hash: hash}
		w.of[key] = x
	}
	x.Count++
	x.put(Wait{r.Start, r.End})
}

// put keeps the earliest waits in order.
func (x *Waits) put(span Wait) {
	at, _ := slices.BinarySearchFunc(x.Spans, span, compareWaits)
	if at >= maxWaits {
		return
	}
	if len(x.Spans) == maxWaits {
		x.Spans = x.Spans[:maxWaits-1]
	}
	x.Spans = slices.Insert(x.Spans, at, span)
}

// cut leaves the keys with the smallest hashes.
func (w *waiters) cut() {
	if len(w.of) <= maxWaiters {
		return
	}
	hashes := make([]uint64, 0, len(w.of))
	for _, x := range w.of {
		hashes = append(hashes, x.hash)
	}
	slices.Sort(hashes)
	w.limit = hashes[maxWaiters-1]
	for key, x := range w.of {
		if x.hash > w.limit {
			delete(w.of, key)
		}
	}
}

// close hands the Waits to the sites of the pane.
func (w *waiters) close(p *Pane) {
	w.cut()
	for key, x := range w.of {
		s := p.Sites[key.site]
		if s == nil {
			s = p.Sites[Other]
		}
		if s != nil {
			s.Waits = append(s.Waits, x)
		}
	}
	for _, s := range p.Sites {
		slices.SortFunc(s.Waits, (*Waits).compare)
	}
	*w = waiters{}
}

func compareWaits(a, b Wait) int {
	return cmp.Or(cmp.Compare(a.End, b.End), cmp.Compare(a.Start, b.Start))
}

func (x *Waits) compare(o *Waits) int {
	if x.hash != o.hash {
		return cmp.Compare(x.hash, o.hash)
	}
	return cmp.Or(x.Client.Compare(o.Client), strings.Compare(x.Route, o.Route), strings.Compare(x.Method, o.Method),
		cmp.Compare(x.Path, o.Path))
}

// mergeWaits joins two sorted lists into a new one; it changes neither.
func mergeWaits(a, b []*Waits) []*Waits {
	if len(a) == 0 || len(b) == 0 {
		return slices.Clip(slices.Concat(a, b))
	}
	out := make([]*Waits, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch order := a[0].compare(b[0]); {
		case order < 0:
			out, a = append(out, a[0]), a[1:]
		case order > 0:
			out, b = append(out, b[0]), b[1:]
		default:
			sum := *a[0]
			sum.Count += b[0].Count
			sum.Spans = slices.Concat(a[0].Spans, b[0].Spans)
			slices.SortFunc(sum.Spans, compareWaits)
			sum.Spans = sum.Spans[:min(len(sum.Spans), maxWaits)]
			out, a, b = append(out, &sum), a[1:], b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// cutWaits leaves as many Waits over all sites as a pane may hold, those with the smallest hashes.
func (p *Pane) cutWaits() {
	total := 0
	for _, s := range p.Sites {
		total += len(s.Waits)
	}
	if total <= maxWaiters {
		return
	}
	hashes := make([]uint64, 0, total)
	for _, s := range p.Sites {
		for _, x := range s.Waits {
			hashes = append(hashes, x.hash)
		}
	}
	slices.Sort(hashes)
	limit := hashes[maxWaiters-1]
	for _, s := range p.Sites {
		n, _ := slices.BinarySearchFunc(s.Waits, limit, func(x *Waits, limit uint64) int {
			if x.hash <= limit {
				return -1
			}
			return 1
		})
		s.Waits = s.Waits[:n:n]
	}
}

package simulate

// kind is whose request it is.
type kind uint8

const (
	organic kind = iota
	storm
	monitor
	blip
	asset
	own // what a page fetches from its own site
	loop
)

// request is one request from its arrival to its line. Times are ns since the epoch.
type request struct {
	arrival, end int64 // as the client sees it
	seq          uint64
	id           uint64 // random: port, trace id, request id
	site         *siteRun
	route        *routeRun
	url          *url
	method       string
	agent        string
	referer      string // "" for none
	client       string
	bytes        int
	status       int // what the application answers
	kind         kind
	layer        Layer
	abandoned    bool
	patience     bool // abandoned because it took too long
	refused      bool
	reclaimed    bool
	internal     bool     // a health check of the balancer's own
	person       bool     // not a crawler
	cache        string   // what the cache in front said, as nginx writes it; "" for nothing
	limit        string   // what the limiter did, as nginx writes it; "" when none was asked
	excess       int64    // over the limiter's rate, in thousandths of a request; of a refused request
	page         *request // that waits for this one; nil: none does
}

// reached tells whether an upstream was contacted.
func (r *request) reached() bool { return r.layer == App }

// limited tells whether a limiter refused it.
func (r *request) limited() bool { return r.limit == "REJECTED" }

// random gives the n-th number derived from the request's id (splitmix64).
func (r *request) random(n uint64) uint64 {
	z := r.id + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// port is the client's, from the ephemeral range.
func (r *request) port() uint64 { return 32768 + r.random(0)%28232 }

// order holds requests until their end has come: a heap by end, then by arrival. It holds what is in flight.
type order struct {
	heap []*request
	free []*request
}

func (o *order) get() *request {
	if n := len(o.free); n > 0 {
		r := o.free[n-1]
		o.free = o.free[:n-1]
		*r = request{}
		return r
	}
	return &request{}
}

func (o *order) put(r *request) { o.free = append(o.free, r) }

func less(a, b *request) bool { return a.end < b.end || a.end == b.end && a.seq < b.seq }

func (o *order) push(r *request) {
	o.heap = append(o.heap, r)
	for i := len(o.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !less(o.heap[i], o.heap[up]) {
			return
		}
		o.heap[i], o.heap[up] = o.heap[up], o.heap[i]
		i = up
	}
}

// pop takes the request that ended first, if it ended at or before t.
func (o *order) pop(t int64) *request {
	if len(o.heap) == 0 || o.heap[0].end > t {
		return nil
	}
	r, last := o.heap[0], len(o.heap)-1
	o.heap[0], o.heap[last] = o.heap[last], nil
	o.heap = o.heap[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && less(o.heap[c+1], o.heap[c]) {
			c++
		}
		if !less(o.heap[c], o.heap[i]) {
			break
		}
		o.heap[i], o.heap[c] = o.heap[c], o.heap[i]
		i = c
	}
	return r
}

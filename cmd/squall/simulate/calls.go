package simulate

// Self is a site whose pages fetch parts of themselves by their public addresses, so that each render makes requests
// out of the application, over the balancer and back. A part that is refused makes the page an error.
type Self struct {
	Addresses []string // of the hosts that the application runs on, as the balancer sees them
	Agent     string   // "" as PHP's file_get_contents sends it
	Files     []Route  // what each page fetches, one after the other; nginx answers
}

// A call is a request that follows from another one.
type call struct {
	at             int64
	kind           kind
	route          *routeRun
	client         string
	agent, referer string
	page           *request // that waits for it; nil: none does
}

// calls is the stream of calls: a heap by time, then in the order in which they were made.
type calls struct {
	heap []call
	made uint64
	seq  []uint64 // of heap
}

func (c *calls) less(i, j int) bool {
	return c.heap[i].at < c.heap[j].at || c.heap[i].at == c.heap[j].at && c.seq[i] < c.seq[j]
}

func (c *calls) swap(i, j int) {
	c.heap[i], c.heap[j] = c.heap[j], c.heap[i]
	c.seq[i], c.seq[j] = c.seq[j], c.seq[i]
}

func (c *calls) push(x call) {
	c.heap, c.seq = append(c.heap, x), append(c.seq, c.made)
	c.made++
	for i := len(c.heap) - 1; i > 0 && c.less(i, (i-1)/2); i = (i - 1) / 2 {
		c.swap(i, (i-1)/2)
	}
}

func (c *calls) pop() call {
	x, last := c.heap[0], len(c.heap)-1
	c.swap(0, last)
	c.heap, c.seq = c.heap[:last], c.seq[:last]
	for i := 0; ; {
		least := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < last && c.less(child, least) {
				least = child
			}
		}
		if least == i {
			return x
		}
		c.swap(i, least)
		i = least
	}
}

func (c *calls) next() int64 {
	if len(c.heap) == 0 {
		return never
	}
	return c.heap[0].at
}

func (c *calls) fill(r *request) (service, leave int64) {
	x := c.pop()
	r.kind, r.layer, r.route, r.url = x.kind, Nginx, x.route, &x.route.urls[0]
	r.method, r.status, r.bytes = "GET", 200, x.route.Bytes
	r.client, r.agent, r.referer, r.page = x.client, x.agent, x.referer, x.page
	return 0, never / 4
}

// later makes a call. Its time is not before that of the request that is being settled.
func (s *siteRun) later(x call) {
	if x.at >= s.ledger.cut {
		return
	}
	s.calls.push(x)
	s.feeds[len(s.feeds)-1].at = s.calls.next()
}

// callItself lets a page that a worker makes fetch the site's own files. The worker goes on when the client has left.
func (s *siteRun) callItself(page *request, f fate) {
	if len(s.self) == 0 || page.method != "GET" || page.kind == own {
		return
	}
	step := (f.finish - f.start) / int64(len(s.self)+1)
	for i, file := range s.self {
		x := call{
			at: f.start + step*int64(i+1), kind: own, route: file, agent: s.Self.Agent,
			client: s.Self.Addresses[page.random(8)%uint64(len(s.Self.Addresses))],
		}
		if x.at < page.end {
			x.page = page
		}
		s.later(x)
	}
}

package simulate

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

const never = math.MaxInt64

// arrivals is one stream of requests in order of time.
type arrivals interface {
	// next draws the time of the next arrival, ns since the epoch; never when there is none.
	next() int64
	// fill describes the request that arrives at the time next gave; leave is how long, in ns, its client waits.
	fill(r *request) (service, leave int64)
}

// shapes holds, for each Shape, the quantile function of a request's place in the storm: [0,1) to [0,1).
var shapes = map[Shape]func(u float64) float64{
	Flat:  func(u float64) float64 { return u },
	Ramp:  math.Sqrt,
	Blast: func(u float64) float64 { return -math.Log(1-u*(1-math.Exp(-4))) / 4 },
}

// spread draws n times within [from, from+length) in order, exactly n: the order statistics of the uniform
// distribution, one after the other, so that nothing is kept.
type spread struct {
	from, length float64
	left         int
	u            float64
	shape        func(float64) float64
	rng          *rand.Rand
}

func newSpread(from int64, length time.Duration, n int, shape func(float64) float64, rng *rand.Rand) spread {
	return spread{from: float64(from), length: float64(length), left: n, shape: shape, rng: rng}
}

func (s *spread) next() int64 {
	if s.left == 0 {
		return never
	}
	s.u += (1 - s.u) * (1 - math.Pow(1-s.rng.Float64(), 1/float64(s.left)))
	s.left--
	return int64(s.from) + int64(s.length*min(s.shape(s.u), 1-1e-12))
}

// people is the organic traffic: a Poisson process thinned to the rate of the hour.
type people struct {
	spec     Organic
	slows    []Slow
	start    int64
	zone     *time.Location
	offset   int64 // of the zone at the start, ns
	highest  float64
	now      int64
	routes   []*routeRun
	by       picker
	visitors []visitor
	rng      *rand.Rand
}

func newPeople(s *siteRun, spec Organic, slows []Slow, start time.Time, zone *time.Location, rng *rand.Rand) *people {
	p := &people{spec: spec, slows: slows, start: start.UnixNano(), now: start.UnixNano(), zone: zone, rng: rng}
	_, seconds := start.In(zone).Zone()
	p.offset = int64(seconds) * 1e9
	for _, r := range spec.Routes {
		p.routes = append(p.routes, s.route(r, rng))
	}
	p.by, p.visitors = pickRoutes(p.routes), visitors(spec, rng)
	p.highest = spec.PerSecond * (1 + spec.Rhythm)
	for _, g := range spec.Surges {
		p.highest = max(p.highest, spec.PerSecond*(1+spec.Rhythm)*g.Factor)
	}
	return p
}

// rate is the number of page views a second at t.
func (p *people) rate(t int64) float64 {
	rate := p.spec.PerSecond
	if p.spec.Rhythm > 0 {
		hours := float64((t+p.offset)%(24*3600e9)) / 3600e9
		rate *= 1 + p.spec.Rhythm*math.Cos(2*math.Pi*(hours-15)/24)
	}
	for _, g := range p.spec.Surges {
		if within(t-p.start, g.At, g.For) {
			return rate * g.Factor
		}
	}
	return rate
}

func within(offset int64, at, length time.Duration) bool {
	return offset >= int64(at) && offset < int64(at+length)
}

func (p *people) next() int64 {
	if p.highest <= 0 {
		return never
	}
	for {
		p.now += int64(p.rng.ExpFloat64() / p.highest * 1e9)
		if p.rng.Float64()*p.highest <= p.rate(p.now) {
			return p.now
		}
	}
}

func (p *people) fill(r *request) (service, leave int64) {
	route := p.routes[p.by.pick(p.rng)]
	v := &p.visitors[p.rng.IntN(len(p.visitors))]
	r.kind, r.layer, r.route, r.url = organic, App, route, &route.urls[p.rng.IntN(len(route.urls))]
	r.method, r.status, r.bytes = route.Method, route.Status, vary(route.Bytes, p.rng)
	r.client, r.agent = v.address, v.agent
	service, leave = route.draw(p.rng), p.spec.Patience.draw(p.rng)
	for _, s := range p.slows {
		if within(r.arrival-p.start, s.At, s.For) && p.rng.Float64() < s.Ratio {
			if s.Factor > 0 {
				service = int64(float64(service) * s.Factor)
			}
			if s.Add.Mean > 0 {
				service += s.Add.draw(p.rng)
			}
			if s.Hang {
				service += p.start + int64(s.At+s.For) - r.arrival
			}
		}
	}
	if p.spec.Leave > 0 && p.rng.Float64() < p.spec.Leave {
		leave = int64(float64(service) * (0.2 + 0.7*p.rng.Float64()))
		r.kind = blip // its leaving tells nothing about the site
	}
	if r.person = !v.bot; r.person {
		r.referer = p.referer()
	}
	return service, leave
}

// referer is none for a third of the pages, another site's for a sixth, else a page of this site.
func (p *people) referer() string {
	switch n := p.rng.IntN(6); {
	case n < 2:
		return ""
	case n < 3:
		return foreignReferers[p.rng.IntN(len(foreignReferers))]
	}
	from := p.routes[p.by.pick(p.rng)]
	return from.urls[p.rng.IntN(len(from.urls))].full
}

func vary(bytes int, rng *rand.Rand) int {
	return int(float64(bytes) * (0.8 + 0.4*rng.Float64()))
}

// scan is a storm.
type scan struct {
	spread
	spec      Storm
	routes    []*routeRun
	by        picker
	addresses []string
	agents    []string
}

func newScan(s *siteRun, spec Storm, start int64, rng *rand.Rand) *scan {
	c := &scan{spec: spec, addresses: addresses(spec.Addresses, rng), agents: agents(max(1, spec.Agents), rng)}
	if len(spec.From) > 0 {
		c.addresses = spec.From
	}
	if spec.Agent != "" {
		c.agents = []string{spec.Agent}
	}
	c.spread = newSpread(start+int64(spec.At), spec.For, spec.Count, shapes[spec.Shape], rng)
	for _, r := range spec.Routes {
		r.Method = spec.Method
		c.routes = append(c.routes, s.route(r, rng))
	}
	c.by = pickRoutes(c.routes)
	return c
}

func (c *scan) fill(r *request) (service, leave int64) {
	route := c.routes[c.by.pick(c.rng)]
	r.kind, r.layer, r.route, r.url = storm, c.spec.Layer, route, &route.urls[c.rng.IntN(len(route.urls))]
	r.method, r.status = route.Method, route.Status
	if r.method != "HEAD" {
		r.bytes = vary(route.Bytes, c.rng)
	}
	r.client, r.agent = c.addresses[c.rng.IntN(len(c.addresses))], c.agents[c.rng.IntN(len(c.agents))]
	return route.draw(c.rng), c.spec.Patience.draw(c.rng)
}

// watch is a monitor: a fixed interval with a little jitter.
type watch struct {
	spec      Monitor
	at        int64
	route     *routeRun
	addresses []string
	n         int
	rng       *rand.Rand
}

func newWatch(s *siteRun, spec Monitor, start int64, rng *rand.Rand) *watch {
	route := s.route(Route{Method: spec.Method, Template: spec.Path, Service: spec.Service, Bytes: 2}, rng)
	at := start + int64(rng.Float64()*float64(spec.Every)) - int64(spec.Every)
	return &watch{spec: spec, at: at, route: route, addresses: stations(spec.Addresses, spec.Internal, rng), rng: rng}
}

func (w *watch) next() int64 {
	w.at += int64(w.spec.Every)
	return w.at + int64(w.rng.Float64()*float64(w.spec.Every)*0.05)
}

func (w *watch) fill(r *request) (service, leave int64) {
	r.kind, r.layer, r.route, r.url, r.internal = monitor, w.spec.Layer, w.route, &w.route.urls[0], w.spec.Internal
	r.method, r.status, r.agent = w.route.Method, 200, w.spec.Agent
	if r.method != "HEAD" {
		r.bytes = w.route.Bytes
	}
	r.client = w.addresses[w.n%len(w.addresses)]
	w.n++
	return w.route.draw(w.rng), int64(cmp.Or(w.spec.Timeout, 30*time.Second))
}

// flock is a Blip: people who lose their connection.
type flock struct {
	*people
	spread
	left, abandon int
}

func newFlock(p *people, spec Blip, start int64, rng *rand.Rand) *flock {
	own := *p
	own.rng, own.spec.Leave = rng, 0
	return &flock{
		people: &own, left: spec.Requests, abandon: spec.Abandon,
		spread: newSpread(start+int64(spec.At), spec.For, spec.Requests, shapes[Flat], rng),
	}
}

func (f *flock) next() int64 { return f.spread.next() }

// fill lets exactly abandon of the flock leave, each before its page can be there.
func (f *flock) fill(r *request) (service, leave int64) {
	service, leave = f.people.fill(r)
	r.kind = blip
	if f.spread.rng.Float64()*float64(f.left) < float64(f.abandon) {
		f.abandon--
		leave = int64(float64(service) * (0.2 + 0.7*f.spread.rng.Float64()))
	}
	f.left--
	return service, leave
}

// repeat is a Loop. Its next request follows from what became of the last.
type repeat struct {
	spec     Loop
	route    *routeRun
	from, to int64
	last     *request
	rng      *rand.Rand
}

func newRepeat(s *siteRun, spec Loop, start int64, rng *rand.Rand) *repeat {
	route := s.route(Route{Method: spec.Method, Template: spec.Path, Service: spec.Service, Bytes: 9000}, rng)
	return &repeat{spec: spec, route: route, from: start + int64(spec.At), to: start + int64(spec.At+spec.For), rng: rng}
}

func (l *repeat) next() int64 {
	at := l.from
	if l.last != nil {
		at = l.last.end + int64(l.spec.Pause) + 1e6
	}
	if at >= l.to {
		return never
	}
	return at
}

func (l *repeat) fill(r *request) (service, leave int64) {
	l.last = r
	r.kind, r.layer, r.route, r.url = loop, App, l.route, &l.route.urls[0]
	r.method, r.status, r.agent, r.client, r.bytes = l.route.Method, 200, l.spec.Agent, l.spec.From, l.route.Bytes
	return l.route.draw(l.rng), l.spec.Patience.draw(l.rng)
}

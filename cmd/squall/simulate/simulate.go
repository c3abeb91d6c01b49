// Package simulate makes access logs by simulating the queue that writes them: requests arrive, a pool of
// workers serves them first come, first served, and clients give up when their patience ends while the worker
// goes on. A storm then looks as it does in life: no 5xx, a ceiling at the clients' patience, other pages
// given up with the storm's own, and a tail that outlives the last request of the storm.
//
// Everything follows from the Scenario and the seed: the same Options give the same bytes.
package simulate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"
)

// Options say what to simulate and how to write it. Zero values keep what the scenario says.
type Options struct {
	Scenario Scenario
	Format   string // one of Formats(); default nginx_extended
	Seed     uint64

	Host           string        // of the first site
	Path           string        // template that replaces the first storm's route, in the organic traffic as well
	Pool           int           // workers of every pool
	Rate           float64       // factor on people, storms and blips
	Patience       time.Duration // of a storm's clients
	PeoplePatience time.Duration
	Reclaim        time.Duration
	Backlog        int
	DropAbandoned  bool
	Layer          Layer // where storms are answered
	Zone           *time.Location
	Start          time.Time

	// Pace, when given, is called with the event time t before lines of that time are written, at most every
	// 20 ms of event time: it returns when the time has come. See LivePace.
	Pace func(ctx context.Context, t time.Time) error
}

// LivePace paces a run so that its event time is the time of the day: what lies in the past is written at
// once, what lies ahead waits. now and sleep are the caller's clock; sleep ends early with ctx.
func LivePace(now func() time.Time, sleep func(ctx context.Context, d time.Duration) error) func(context.Context, time.Time) error {
	return func(ctx context.Context, t time.Time) error {
		if d := t.Sub(now()); d > 0 {
			return sleep(ctx, d)
		}
		return ctx.Err()
	}
}

const paceStep = 20 * int64(time.Millisecond)

// Run simulates and writes the log to w, in order of the log's own time (the end of a request), as one
// balancer would. It returns when the scenario is over, ctx ends or w fails; memory is what is in flight and
// the Truth. The log is cut at the end of the scenario: requests in flight are not in it.
func Run(ctx context.Context, o Options, w io.Writer) (*Truth, error) {
	return RunNodes(ctx, o, []io.Writer{w})
}

// RunNodes is Run with a balancer of several nodes: each connection is logged by one of them.
func RunNodes(ctx context.Context, o Options, nodes []io.Writer) (*Truth, error) {
	if len(nodes) == 0 {
		return nil, errors.New("a balancer of no nodes")
	}
	out := make([]*bufio.Writer, len(nodes))
	for i, w := range nodes {
		out[i] = bufio.NewWriterSize(w, 64<<10)
	}
	flush := func() error {
		for i := range out {
			if err := out[i].Flush(); err != nil {
				return fmt.Errorf("write the log: %w", err)
			}
		}
		return nil
	}
	write := func(r *request, line []byte) error {
		_, err := out[r.node(len(out))].Write(line)
		return err
	}
	return run(ctx, o, write, flush)
}

// node spreads connections over n nodes.
func (r *request) node(n int) int { return int(r.random(1) % uint64(n)) }

// siteRun is a site at work.
type siteRun struct {
	Site
	pool   *pool
	ledger *ledger
	feeds  []feed
	routes []*RouteTruth
	by     map[[2]string]*RouteTruth
	assets *rand.Rand
	files  []*routeRun // of assetPaths
}

// feed is a stream of arrivals and its next time.
type feed struct {
	arrivals
	at int64
}

// route makes a routeRun; equal methods and paths share one truth.
func (s *siteRun) route(r Route, rng *rand.Rand) *routeRun {
	run := newRouteRun(r, s.Host, rng)
	path, _, _ := strings.Cut(r.Template, "?")
	key := [2]string{run.Method, path}
	if s.by[key] == nil {
		s.by[key] = &RouteTruth{Method: run.Method, Route: path}
		s.routes = append(s.routes, s.by[key])
	}
	run.truth = s.by[key]
	return run
}

func newSiteRun(site Site, sc *Scenario, seed uint64) *siteRun {
	start := sc.Start.UnixNano()
	s := &siteRun{Site: site, pool: newPool(site.Pool), by: map[[2]string]*RouteTruth{}}
	s.ledger = newLedger(&site, start, start+int64(sc.Duration))
	// Every stream has its own random numbers, so that one more storm leaves the others as they were.
	stream := func(family, i int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(family)<<32|uint64(i))) }
	s.assets = stream(1, 0)
	crowd := newPeople(s, site.Organic, site.Slows, sc.Start, sc.Zone, stream(2, 0))
	all := []arrivals{crowd}
	for i, st := range site.Storms {
		all = append(all, newScan(s, st, start, stream(3, i)))
	}
	for i, m := range site.Monitors {
		all = append(all, newWatch(s, m, start, stream(4, i)))
	}
	for i, b := range site.Blips {
		all = append(all, newFlock(crowd, b, start, stream(5, i)))
	}
	for _, a := range all {
		s.feeds = append(s.feeds, feed{arrivals: a, at: a.next()})
	}
	return s
}

// simulation is the state of a run.
type simulation struct {
	sites  []*siteRun
	writer writer
	order  order
	seq    uint64
	ids    *rand.Rand
	truth  Truth
	line   []byte
	paced  int64
	pace   func(context.Context, time.Time) error
	write  func(*request, []byte) error
	flush  func() error
}

func run(ctx context.Context, o Options, write func(*request, []byte) error, flush func() error) (*Truth, error) {
	sc, err := o.scenario()
	if err != nil {
		return nil, err
	}
	if o.Format == "" {
		o.Format = "nginx_extended"
	}
	build, ok := formats[o.Format]
	if !ok {
		return nil, fmt.Errorf("no format %q to write: there are %v", o.Format, Formats())
	}
	end := sc.Start.Add(sc.Duration)
	m := &simulation{
		writer: build(sc.Zone), ids: rand.New(rand.NewPCG(o.Seed, 0)), pace: o.Pace, write: write, flush: flush,
		truth: Truth{
			Scenario: sc.Name, Format: o.Format, Seed: o.Seed, Zone: sc.Zone.String(),
			Start: sc.Start.UTC(), End: end.UTC(),
		},
	}
	for i := range sc.Sites {
		m.sites = append(m.sites, newSiteRun(sc.Sites[i], &sc, o.Seed+uint64(i)*0x9e3779b97f4a7c15))
	}
	if err := m.loop(ctx, end.UnixNano()); err != nil {
		return nil, err
	}
	for _, s := range m.sites {
		m.truth.Sites = append(m.truth.Sites, s.ledger.close(s.routes))
	}
	return &m.truth, m.flush()
}

// loop takes the arrivals in order of time. A request that ends before the next arrival has its final place in
// the log: whatever arrives later ends later.
func (m *simulation) loop(ctx context.Context, cut int64) error {
	for {
		s, f := m.earliest()
		if f == nil || f.at >= cut {
			return m.drain(ctx, cut-1)
		}
		if m.seq%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := m.drain(ctx, f.at); err != nil {
			return err
		}
		m.arrive(s, f)
		f.at = max(f.at, f.next())
	}
}

func (m *simulation) earliest() (*siteRun, *feed) {
	var site *siteRun
	var first *feed
	for _, s := range m.sites {
		for i := range s.feeds {
			if f := &s.feeds[i]; f.at != never && (first == nil || f.at < first.at) {
				site, first = s, f
			}
		}
	}
	return site, first
}

// request gives an empty one that arrives at t.
func (m *simulation) request(s *siteRun, t int64) *request {
	r := m.order.get()
	m.seq++
	r.arrival, r.seq, r.id, r.site = t, m.seq, m.ids.Uint64(), s
	return r
}

// arrive settles what becomes of the next request of f.
func (m *simulation) arrive(s *siteRun, f *feed) {
	r := m.request(s, f.at)
	service, patience := f.fill(r)
	leave := r.arrival + patience
	var fate fate
	switch r.layer {
	case App:
		fate = s.pool.admit(r.arrival, service, leave)
		r.refused, r.reclaimed, r.end = fate.refused, fate.reclaimed, fate.finish
		if r.kind == blip && patience < service {
			leave = r.arrival + min(patience, fate.finish-r.arrival-1) // it leaves whether or not it is slow
		}
		if !r.refused && (fate.dropped || leave < fate.finish) {
			r.abandoned, r.end = true, leave
			r.patience = r.kind == organic || r.kind == storm
		}
	case Nginx:
		r.end = r.arrival + 2e6 + int64(r.random(2)%4)*2e5 // 2 ms, as measured
	case Edge:
		r.end = r.arrival + 1e6
	}
	s.ledger.arrive(r, fate)
	m.order.push(r)
	if r.kind == organic && r.person && !r.abandoned && r.status == 200 {
		m.assets(s, r)
	}
}

var assetPaths = []string{"/assets/app.css?v=2.41.0", "/assets/app.js?v=2.41.0", "/img/hero.webp", "/assets/inter.woff2"}

// assets lets a page that was got ask for static files, which nginx answers without a worker. A page that was
// given up asks for none.
func (m *simulation) assets(s *siteRun, page *request) {
	n := int(s.Organic.Assets + s.assets.Float64())
	for i := range n {
		r := m.request(s, page.end+int64(20e6+s.assets.Float64()*280e6))
		r.kind, r.layer, r.method, r.status = asset, Nginx, "GET", 200
		r.client, r.agent, r.referer = page.client, page.agent, page.url.full
		pick := s.assetRoute(i + s.assets.IntN(len(assetPaths)))
		r.route, r.url, r.bytes = pick, &pick.urls[0], vary(pick.Bytes, s.assets)
		if s.assets.IntN(3) == 0 {
			r.status, r.bytes = 304, 0
		}
		r.end = r.arrival + int64(s.assets.Float64()*1.2e6)
		if r.end >= s.ledger.cut {
			m.order.put(r)
			return
		}
		s.ledger.arrive(r, fate{})
		m.order.push(r)
	}
}

// drain writes what ended at or before t.
func (m *simulation) drain(ctx context.Context, t int64) error {
	for r := m.order.pop(t); r != nil; r = m.order.pop(t) {
		if m.pace != nil && r.end >= m.paced+paceStep {
			if err := m.flush(); err != nil {
				return err
			}
			m.paced = r.end
			if err := m.pace(ctx, time.Unix(0, r.end)); err != nil {
				return err
			}
		}
		status := m.writer.status(r)
		logged := m.writer.logs(r)
		r.site.ledger.leave(r, status, logged)
		if logged {
			m.line = m.writer.append(m.line[:0], r)
			if err := m.write(r, m.line); err != nil {
				return fmt.Errorf("write the log: %w", err)
			}
			m.count(r.end)
		}
		m.order.put(r)
	}
	return nil
}

func (m *simulation) count(end int64) {
	if m.truth.Lines++; m.truth.Lines == 1 {
		m.truth.FirstLine = time.Unix(0, end).UTC()
	}
	m.truth.LastLine = time.Unix(0, end).UTC()
}

// assetRoute gives the i-th static file, made at its first use.
func (s *siteRun) assetRoute(i int) *routeRun {
	i %= len(assetPaths)
	if s.files == nil {
		s.files = make([]*routeRun, len(assetPaths))
	}
	if s.files[i] == nil {
		s.files[i] = s.route(Route{Template: assetPaths[i], Bytes: 14000 * (i + 1)}, s.assets)
	}
	return s.files[i]
}

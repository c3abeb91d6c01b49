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

	"github.com/cespare/xxhash/v2"
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
	return run(ctx, o, onlyMain(write), flush)
}

// A sink takes the lines of one log. r is nil for a line that no request wrote.
type sink func(r *request, line []byte) error

// onlyMain drops all logs but the first.
func onlyMain(write sink) func(i int, l Log) (sink, error) {
	return func(i int, _ Log) (sink, error) {
		if i > 0 {
			return func(*request, []byte) error { return nil }, nil
		}
		return write, nil
	}
}

// RunFiles is Run with all logs of the scenario: create opens each by its name.
func RunFiles(ctx context.Context, o Options, create func(name string) (io.WriteCloser, error)) (*Truth, error) {
	var files []io.WriteCloser
	var out []*bufio.Writer
	flush := func() error {
		for i := range out {
			if err := out[i].Flush(); err != nil {
				return fmt.Errorf("write the log: %w", err)
			}
		}
		return nil
	}
	truth, err := run(ctx, o, func(_ int, l Log) (sink, error) {
		f, err := create(l.File)
		if err != nil {
			return nil, err
		}
		w := bufio.NewWriterSize(f, 64<<10)
		files, out = append(files, f), append(out, w)
		return func(_ *request, line []byte) error {
			_, err := w.Write(line)
			return err
		}, nil
	}, flush)
	for _, f := range files {
		if e := f.Close(); e != nil && err == nil {
			err = fmt.Errorf("write the log: %w", e)
		}
	}
	if err != nil {
		return nil, err
	}
	return truth, nil
}

// node spreads connections over n nodes. What belongs to no request is the first one's.
func (r *request) node(n int) int {
	if r == nil {
		return 0
	}
	return int(r.random(1) % uint64(n))
}

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
	seed   uint64
	calls  *calls // requests that follow from others
	cache  *cacheRun
	limit  *limiter
	self   []*routeRun
}

// feed is a stream of arrivals and its next time.
type feed struct {
	arrivals
	at int64
}

// route makes a routeRun; equal methods and paths share one truth.
func (s *siteRun) route(r Route, rng *rand.Rand) *routeRun {
	if r.Shared {
		rng = rand.New(rand.NewPCG(s.seed, xxhash.Sum64String(r.Template)))
	}
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
	s := &siteRun{Site: site, pool: newPool(site.Pool), by: map[[2]string]*RouteTruth{}, seed: seed, calls: &calls{}}
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
	for i, l := range site.Loops {
		all = append(all, newRepeat(s, l, start, stream(6, i)))
	}
	if site.Self != nil {
		for i, f := range site.Self.Files {
			s.self = append(s.self, s.route(f, stream(7, i)))
		}
	}
	if site.Cache != nil {
		s.cache = newCacheRun(*site.Cache, start)
	}
	if site.Limit != nil {
		s.limit = newLimiter(*site.Limit)
	}
	all = append(all, s.calls) // the last: see later
	for _, a := range all {
		s.feeds = append(s.feeds, feed{arrivals: a, at: a.next()})
	}
	return s
}

// simulation is the state of a run.
type simulation struct {
	sites   []*siteRun
	outputs []output
	notices []notice // of the cluster, in order of time
	order   order
	seq     uint64
	ids     *rand.Rand
	truth   Truth
	line    []byte
	paced   int64
	pace    func(context.Context, time.Time) error
	flush   func() error
}

// An output is one log at work.
type output struct {
	Log

	writer   writer // nil: it is the cluster's
	write    sink
	from, to int64 // ns: what was lost of it
}

// lost tells that nobody ever read what was written at t.
func (o *output) lost(t int64) bool { return t >= o.from && t < o.to }

func run(ctx context.Context, o Options, open func(i int, l Log) (sink, error), flush func() error) (*Truth, error) {
	sc, err := o.scenario()
	if err != nil {
		return nil, err
	}
	end := sc.Start.Add(sc.Duration)
	m := &simulation{
		ids: rand.New(rand.NewPCG(o.Seed, 0)), pace: o.Pace, flush: flush,
		truth: Truth{
			Scenario: sc.Name, Format: sc.Logs[0].Format, Seed: o.Seed, Zone: sc.Zone.String(),
			Start: sc.Start.UTC(), End: end.UTC(),
		},
	}
	if err := m.open(&sc, open); err != nil {
		return nil, err
	}
	for i := range sc.Sites {
		m.sites = append(m.sites, newSiteRun(sc.Sites[i], &sc, o.Seed+uint64(i)*0x9e3779b97f4a7c15))
	}
	if sc.Cluster != nil {
		m.notices, m.truth.Cluster = sc.Cluster.run(&sc, o.Seed)
	}
	if err := m.loop(ctx, end.UnixNano()); err != nil {
		return nil, err
	}
	for _, s := range m.sites {
		m.truth.Sites = append(m.truth.Sites, s.ledger.close(s.routes))
	}
	m.truth.Lines = m.truth.Logs[0].Lines
	return &m.truth, m.flush()
}

// open makes the logs of a scenario.
func (m *simulation) open(sc *Scenario, open func(i int, l Log) (sink, error)) error {
	start := sc.Start.UnixNano()
	for i, l := range sc.Logs {
		build, ok := formats[l.Format]
		if !ok {
			build, ok = beside[l.Format]
		}
		if _, told := reports[l.Format]; !ok && !told {
			return fmt.Errorf("no format %q to write: there are %v", l.Format, Formats())
		}
		out := output{Log: l, from: start + int64(l.LostFrom), to: start + int64(l.LostTo)}
		if ok {
			out.writer = build(sc.Zone)
		}
		var err error
		if out.write, err = open(i, l); err != nil {
			return err
		}
		if h, ok := out.writer.(interface{ header() string }); ok {
			if err := out.write(nil, []byte(h.header())); err != nil {
				return fmt.Errorf("write the log: %w", err)
			}
		}
		m.outputs = append(m.outputs, out)
		m.truth.Logs = append(m.truth.Logs, LogTruth{File: l.File, Format: l.Format})
	}
	return nil
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

// arrive takes the next request of f.
func (m *simulation) arrive(s *siteRun, f *feed) {
	r := m.request(s, f.at)
	service, patience := f.fill(r)
	leave := r.arrival + patience
	var fate fate
	if s.front(r, leave) {
		fate = s.admit(r, service, patience)
	}
	s.ledger.arrive(r, fate)
	m.order.push(r)
	if fate.finish > fate.start {
		s.callItself(r, fate)
	}
	if r.kind == organic && r.person && !r.abandoned && r.status == 200 {
		m.assets(s, r)
	}
}

// front settles what is answered before the application, if it is; else it is the application's to do.
func (s *siteRun) front(r *request, leave int64) bool {
	if s.limit != nil && r.layer != Edge && !s.limit.pass(r) {
		r.layer, r.status, r.bytes = Nginx, 429, 162
	}
	switch r.layer {
	case App:
		return s.cache == nil || !s.cache.answer(r, leave)
	case Nginx:
		r.end = r.arrival + 2e6 + int64(r.random(2)%4)*2e5 // 2 ms, as measured
	case Edge:
		r.end = r.arrival + 1e6
	}
	return false
}

// admit sends the request to the pool.
func (s *siteRun) admit(r *request, service, patience int64) fate {
	leave := r.arrival + patience
	fate := s.pool.admit(r.arrival, service, leave)
	r.refused, r.reclaimed, r.end = fate.refused, fate.reclaimed, fate.finish
	if r.kind == blip && patience < service {
		leave = r.arrival + min(patience, fate.finish-r.arrival-1) // it leaves whether or not it is slow
	}
	if !r.refused && (fate.dropped || leave < fate.finish) {
		r.abandoned, r.end = true, leave
		r.patience = r.kind == organic || r.kind == storm
	}
	if s.cache != nil {
		s.cache.keep(r, fate)
	}
	return fate
}

var assetPaths = []string{"/assets/app.css?v=2.41.0", "/assets/app.js?v=2.41.0", "/img/hero.webp", "/assets/inter.woff2"}

// assets lets a page that was got ask for static files, which nginx answers without a worker. A page that was
// given up asks for none.
func (m *simulation) assets(s *siteRun, page *request) {
	n := int(s.Organic.Assets + s.assets.Float64())
	for i := range n {
		at := page.end + int64(20e6+s.assets.Float64()*280e6)
		if s.limit != nil { // which has to see requests in order of time
			s.later(call{
				at: at, kind: asset, route: s.assetRoute(i + s.assets.IntN(len(assetPaths))),
				client: page.client, agent: page.agent, referer: page.url.full,
			})
			continue
		}
		r := m.request(s, at)
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
		if err := m.log(r); err != nil {
			return err
		}
		m.order.put(r)
	}
	return m.tell(t)
}

// log writes the request into the logs of its balancer. What the first of them says is what the ledger believes.
func (m *simulation) log(r *request) error {
	told := false
	for i := range m.outputs {
		out := &m.outputs[i]
		if out.writer == nil || out.Balancer != r.site.Balancer {
			continue
		}
		logged := out.writer.logs(r) && !out.lost(r.end)
		if !told {
			r.site.ledger.leave(r, out.writer.status(r), logged)
			told = true
		}
		if !logged {
			continue
		}
		m.line = out.writer.append(m.line[:0], r)
		if err := out.write(r, m.line); err != nil {
			return fmt.Errorf("write the log: %w", err)
		}
		m.count(i, r.end)
	}
	return nil
}

// tell writes what the cluster told up to t.
func (m *simulation) tell(t int64) error {
	n := 0
	for ; n < len(m.notices) && m.notices[n].at <= t; n++ {
		for i := range m.outputs {
			out, x := &m.outputs[i], &m.notices[n]
			if out.Format != x.format || out.lost(x.at) {
				continue
			}
			if err := out.write(nil, x.line); err != nil {
				return fmt.Errorf("write the log: %w", err)
			}
			m.count(i, x.at)
		}
	}
	m.notices = m.notices[n:]
	return nil
}

// count notes a line of the i-th log.
func (m *simulation) count(i int, end int64) {
	if m.truth.Logs[i].Lines++; i > 0 {
		return
	}
	if m.truth.FirstLine.IsZero() {
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

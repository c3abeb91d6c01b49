package detectors

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// base is a Monday at noon.
var base = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC).UnixNano()

const (
	second = int64(time.Second)
	minute = 60 * second
)

// A flow is requests of one kind at an even rate.
type flow struct {
	from, to  int64   // seconds since base
	perMinute float64 // 0: none
	edit      func(i int, r *pipeline.Record)
}

// request is an ordinary request that ends at t.
func request(t int64) pipeline.Record {
	r := pipeline.Record{}
	r.Reset()
	r.Time, r.End, r.Start, r.Resolution = t, t, t-200*second/1000, second/1000
	r.Site, r.Route, r.Path = "shop.example", "/", []byte("/")
	r.Method, r.Status, r.Class = []byte("GET"), 200, pipeline.Browser
	r.RequestTime, r.UpstreamTime, r.Reached = 200*second/1000, 200*second/1000, pipeline.Yes
	r.Abandoned = pipeline.No
	r.Client = netip.AddrFrom4([4]byte{198, 18, 0, byte(t / second)})
	r.UserAgent = []byte("Mozilla/5.0 (X11; Linux x86_64)")
	return r
}

// stage plays flows and events to an engine and collects all changes.
type stage struct {
	flows  []flow
	events []pipeline.Event
	length int64 // seconds
	cfg    Config
	fleet  func(at int64) (nodes, absent uint64) // of the pane that begins at so many seconds; nil: there is none
}

func (s stage) play(t *testing.T) (changes []Detection, last *Result) {
	t.Helper()
	engine := s.engine(t)
	for _, p := range s.panes() {
		if s.fleet != nil {
			p.Coverage.Nodes, p.Coverage.Absent = s.fleet((p.Start - base) / second)
		}
		last = engine.Close(p)
		changes = append(changes, last.Changes...)
	}
	return changes, last
}

func (s stage) engine(t *testing.T) *Engine {
	t.Helper()
	s.cfg.Pane, s.cfg.Cluster = 10*time.Second, "default"
	if s.cfg.Pool == nil {
		s.cfg.Pool = func(string) Pool { return Pool{Workers: 25, Reclaim: time.Minute} }
	}
	engine, err := NewEngine(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// panes counts the flows and events into panes.
func (s stage) panes() (out []*pane.Pane) {
	panes := pane.NewAssembler(pane.Config{Pane: s.cfg.Pane})
	src := panes.Source("test", 0)
	for at := int64(0); at < s.length; at++ {
		for _, f := range s.flows {
			if at < f.from || at >= f.to {
				continue
			}
			// An even rate: as many in this second as the whole rate reaches in it.
			first := int(math.Floor(float64(at-f.from) * f.perMinute / 60))
			next := int(math.Floor(float64(at-f.from+1) * f.perMinute / 60))
			for i := first; i < next; i++ {
				r := request(base + at*second + int64(i-first)*1000)
				if f.edit != nil {
					f.edit(i, &r)
				}
				panes.Add(src, &r)
			}
		}
		for _, e := range s.events {
			if e.Time >= base+at*second && e.Time < base+(at+1)*second {
				panes.AddEvent(src, e)
			}
		}
		panes.Observe(src, base+(at+1)*second)
		for p := panes.Next(); p != nil; p = panes.Next() {
			out = append(out, p)
		}
	}
	return out
}

func head(route string, clients int) func(int, *pipeline.Record) {
	return func(i int, r *pipeline.Record) {
		r.Method, r.Route, r.Path = []byte("HEAD"), route, []byte(route)
		r.Class = pipeline.Scanner
		r.Client = netip.AddrFrom4([4]byte{198, 19, byte(i % clients >> 8), byte(i % clients)})
	}
}

// links are as many links, each asked for in its turn.
func links(n, clients int) func(int, *pipeline.Record) {
	return func(i int, r *pipeline.Record) {
		head(fmt.Sprintf("/mail/%c%c", 'a'+i%n/26, 'a'+i%n%26), clients)(i, r)
	}
}

// ramp is a flow whose rate grows evenly, minute by minute.
func ramp(from, to int64, perMinute float64, edit func(int, *pipeline.Record)) (flows []flow) {
	for at := from; at < to; at += 60 {
		flows = append(flows, flow{at, at + 60, perMinute * float64(at-from) / float64(to-from), edit})
	}
	return flows
}

// gaveUp is a client that left after d seconds; in ms.
func gaveUp(d int64) func(int, *pipeline.Record) {
	return func(_ int, r *pipeline.Record) {
		r.Status, r.Abandoned = 499, pipeline.Yes
		r.RequestTime, r.UpstreamTime = d*second, d*second
		r.Start = r.End - d*second
	}
}

func slow(d int64) func(int, *pipeline.Record) {
	return func(_ int, r *pipeline.Record) {
		r.RequestTime, r.UpstreamTime, r.Start = d*second, d*second, r.End-d*second
	}
}

func own(path string, limited int) func(int, *pipeline.Record) {
	return func(i int, r *pipeline.Record) {
		r.Origin, r.Path, r.Route, r.Query, r.Static = pipeline.Own, []byte(path), path, []byte("v=1"), true
		r.Client = netip.MustParseAddr("203.0.113.9")
		r.UserAgent, r.Class = nil, pipeline.Empty
		if i%limited == 0 {
			r.Status, r.Limited, r.Reached, r.UpstreamTime = 429, true, pipeline.No, pipeline.Unknown
		}
	}
}

func manyAgents(i int, r *pipeline.Record) {
	r.UserAgent = fmt.Appendf(nil, "Mozilla/5.0 (%d)", i*7919%12)
}

func probe(_ int, r *pipeline.Record) {
	r.Method, r.Class, r.Route, r.Path = []byte("HEAD"), pipeline.Probe, "/health", []byte("/health")
}

var organic = flow{0, 1200, 240, nil}

func restarted(at int64, pod string, node string, reason string, code int) pipeline.Event {
	return pipeline.Event{
		Time: base + at*second, FinishedAt: base + at*second, Kind: pipeline.ContainerRestart, Namespace: "ns-" + pod[:1], Pod: pod,
		Container: "app", Node: node, Reason: reason, ExitCode: code, HasExit: true, Restarts: 1,
	}
}

func decided(at int64, pod string) pipeline.Event {
	return pipeline.Event{
		Time: base + at*second, Kind: pipeline.LivenessRestart, Namespace: "ns-" + pod[:1], Pod: pod, Container: "app", Probe: "Liveness",
	}
}

// pods gives one event for each of n pods, a second apart.
func pods(n int, make func(i int) pipeline.Event) []pipeline.Event {
	var out []pipeline.Event
	for i := range n {
		out = append(out, make(i))
	}
	return out
}

// shareOf finds a share of the evidence.
func shareOf(e Evidence, kind, name string) Share {
	for _, s := range e.Scope {
		if s.Kind == kind && s.Name == name {
			return s
		}
	}
	return Share{}
}

// harness is the family's: a row a case, at least one that fires and one that does not for each detector.
var harness = []struct {
	name     string
	detector string
	stage    stage
	active   int64               // seconds since base by which it must be active; -1: never
	onset    int64               // seconds since base, ± one pane
	over     int64               // by which it must be over; -1: not within the stage
	evidence func(Evidence) bool // of the detection when it was over, or active at the end
}{
	{
		"a storm of HEADs", "head_storm",
		stage{length: 1200, flows: []flow{organic, {600, 720, 2000, head("/checkout/{id}", 250)}}},
		620, 600, 800, func(e Evidence) bool {
			return e.Requests.Get() == 4000 && e.Method == "HEAD" && e.Route == "/checkout/{id}" &&
				e.BaselineRatio.Get() > 1000 && e.ReachedUpstreamRatio.Get() == 1 && e.DistinctClients.Get() > 240 && e.DistinctClients.Get() < 260 &&
				e.RequestsPerMinute.Get() >= 1990 && e.RequestsPerMinute.Get() <= 2010
		},
	},
	{
		"HEADs on every link of a mailing", "head_storm",
		stage{length: 1200, flows: []flow{organic, {0, 1200, 12, head("/", 4)}, {600, 720, 1800, links(90, 250)}}},
		620, 600, 800, func(e Evidence) bool {
			return e.Requests.Get() == 3600 && e.DistinctRoutes.Get() == 90 && len(e.TopRoutes) == toldRoutes && e.BaselineOfAll &&
				e.BaselinePerMinute.Get() > 11 && e.BaselinePerMinute.Get() < 13 && e.BaselineRatio.Get() > 140 && e.BaselineRatio.Get() < 155
		},
	},
	{
		"one link, then all of them", "head_storm",
		stage{length: 1200, flows: []flow{organic, {600, 660, 1800, head("/a", 250)}, {660, 720, 1800, links(90, 250)}}},
		620, 600, 800, func(e Evidence) bool { return e.Requests.Get() == 3600 && e.DistinctRoutes.Get() == 91 },
	},
	{
		"a storm that costs nothing beside a monitor that trembles", "head_storm",
		stage{length: 1200, flows: []flow{organic, {0, 600, 4, head("/", 4)}, {600, 720, 9, head("/", 4)}, {600, 720, 1800, func(i int, r *pipeline.Record) {
			head("/checkout/{id}", 250)(i, r)
			r.UpstreamTime, r.Reached = pipeline.Unknown, pipeline.No
		}}}},
		620, 600, 800, func(e Evidence) bool { return e.DistinctRoutes.Get() == 1 && e.ReachedUpstreamRatio.Get() == 0 },
	},
	{"HEADs on many links that are usual", "head_storm", stage{length: 3600, flows: []flow{organic, {0, 3600, 600, links(90, 9)}, {3000, 3600, 1200, links(90, 9)}}}, -1, 0, 0, nil},
	{
		"a storm that grows for two hours", "head_storm",
		stage{length: 9600, flows: append(ramp(1800, 9000, 1800, head("/checkout/{id}", 250)), flow{0, 9600, 60, nil})},
		3070, 3000, 9100, func(e Evidence) bool { return e.BaselinePerMinute.Get() < 10 && e.BaselineRatio.Get() > 150 },
	},
	{
		"a log that begins inside a storm", "head_storm",
		stage{length: 600, flows: []flow{organic, {0, 120, 2000, head("/checkout/{id}", 250)}}},
		20, 0, 200, func(e Evidence) bool {
			return !e.BaselineRatio.Known() && !e.BaselinePerMinute.Known() && !e.TopRoutes[0].BaselineRatio.Known() && e.RequestsPerMinute.Get() > 1900
		},
	},
	{"HEADs that are usual", "head_storm", stage{length: 3600, flows: []flow{organic, {0, 3000, 250, head("/", 3)}, {3000, 3600, 500, head("/", 3)}}}, -1, 0, 0, nil},
	{"health checks by HEAD", "head_storm", stage{length: 900, flows: []flow{organic, {0, 900, 900, probe}}}, -1, 0, 0, nil},
	{"GETs are no HEADs", "head_storm", stage{length: 900, flows: []flow{organic, {600, 900, 5000, nil}}}, -1, 0, 0, nil},
	{
		"clients give up", "client_abandon",
		stage{length: 1200, flows: []flow{organic, {600, 700, 120, gaveUp(8)}}},
		620, 600, 800, func(e Evidence) bool {
			return e.Abandoned.Get() == 200 && e.Status["499"] == 200 && e.AbandonRatio.Get() > 0.2 && e.AbandonRatio.Get() < 0.3 && e.P99Censored && e.Collateral.Get() == 0
		},
	},
	{
		"one spoofed agent from many addresses", "agent_flood",
		stage{length: 1800, flows: []flow{
			{0, 1800, 240, manyAgents}, {1200, 1320, 3000, func(i int, r *pipeline.Record) {
				r.UserAgent = []byte("Mozilla/5.0 spoofed")
				r.Client = netip.AddrFrom4([4]byte{198, 19, byte(i % 1229 >> 8), byte(i % 1229)})
			}},
		}},
		1220, 1200, 1400, func(e Evidence) bool {
			return e.Requests.Get() == 6000 && e.TopAgents[0].Key == "Mozilla/5.0 spoofed" && e.BaselinePerMinute.Get() < 30
		},
	},
	{"a flash sale raises every agent alike", "agent_flood", stage{length: 1800, flows: []flow{{0, 1200, 240, manyAgents}, {1200, 1800, 4800, manyAgents}}}, -1, 0, 0, nil},
	{"nothing was learned yet", "agent_flood", stage{length: 240, flows: []flow{{0, 240, 3000, nil}}}, -1, 0, 0, nil},
	{"few among many", "client_abandon", stage{length: 900, flows: []flow{{0, 900, 3000, nil}, {600, 900, 60, gaveUp(8)}}}, -1, 0, 0, nil},
	{"many of very few", "client_abandon", stage{length: 900, flows: []flow{{600, 900, 12, gaveUp(8)}}}, -1, 0, 0, nil},
	{
		"everything is slow", "latency",
		stage{length: 1200, flows: []flow{{0, 600, 240, nil}, {600, 700, 240, slow(7)}, {700, 1200, 240, nil}}},
		610, 600, 780, func(e Evidence) bool { return e.P99Seconds.Get() > 6.9 && e.P99Seconds.Get() < 7.1 && !e.P99Censored },
	},
	{"one slow request at night", "latency", stage{length: 900, flows: []flow{{0, 900, 10, slow(9)}}}, -1, 0, 0, nil},
	{"long-lived responses are no latency", "latency", stage{length: 900, flows: []flow{{0, 900, 240, func(i int, r *pipeline.Record) {
		slow(60)(i, r)
		r.Status, r.Streaming = 101, true
	}}}}, -1, 0, 0, nil},
	{
		"few requests of four seconds pin the pool", "saturation",
		stage{length: 1200, flows: []flow{{0, 1200, 60, nil}, {600, 800, 540, func(i int, r *pipeline.Record) {
			slow(4)(i, r)
			r.Route, r.Path = "/feeds/{name}.xml", []byte("/feeds/a.xml")
		}}}},
		660, 600, 900, func(e Evidence) bool {
			return e.Route == "/feeds/{name}.xml" && e.PoolWorkers.Get() == 25 && e.BusyWorkersLower.Get() > 30 &&
				e.CounterfactualBusyWorkers.Get() < 1 && e.WorkerSecondsShare.Get() > 0.9
		},
	},
	{"the upper bound alone fires nothing", "saturation", stage{length: 900, flows: []flow{organic, {300, 900, 60, gaveUp(1)}}}, -1, 0, 0, nil},
	{"an unknown pool stays silent", "saturation", stage{
		length: 900, flows: []flow{{0, 900, 900, slow(9)}},
		cfg: Config{Pool: func(string) Pool { return Pool{Reclaim: time.Minute} }},
	}, -1, 0, 0, nil},
	{
		"a site that calls itself", "self_loop",
		stage{length: 1200, flows: []flow{organic, {600, 800, 480, own("/assets/a.css", 2)}}},
		620, 600, 900, func(e Evidence) bool {
			return e.StaticShare.Get() == 1 && e.Limited.Get() == 800 && e.FanOut.Get() > 1 && e.Status["429"] == 800
		},
	},
	{"a monitor of ours", "self_loop", stage{length: 900, flows: []flow{organic, {0, 900, 6, own("/", 100)}}}, -1, 0, 0, nil},
	{
		"liveness kills, proven by kubelet's word", "restart_burst",
		stage{length: 1200, events: append(
			pods(24, func(i int) pipeline.Event { return decided(600+int64(i), fmt.Sprintf("%c%d", 'a'+i%7, i)) }),
			append(pods(24, func(i int) pipeline.Event {
				return restarted(605+int64(i), fmt.Sprintf("%c%d", 'a'+i%7, i), fmt.Sprintf("node-%d", i%9), "Completed", 0)
			}), restarted(620, "z1", "node-1", "OOMKilled", 137))...)},
		610, 600, 1000, func(e Evidence) bool {
			return e.Restarts.Get() == 25 && e.OOMKilled.Get() == 1 && e.Reasons["liveness"] == 24 && e.Reasons["oom"] == 1 &&
				e.Nodes.Get() == 9 && e.Namespaces.Get() == 8
		},
	},
	{
		"clean exits together without a word from kubelet", "restart_burst",
		stage{length: 1200, events: pods(6, func(i int) pipeline.Event {
			return restarted(600+int64(i), fmt.Sprintf("a%d", i), "node-1", "Completed", 0)
		})},
		610, 600, 1000, func(e Evidence) bool { return e.Reasons["liveness_probable"] == 6 && e.Reasons["liveness"] == 0 },
	},
	{"the same restart told again and again", "restart_burst", stage{length: 900, events: pods(40, func(i int) pipeline.Event {
		e := restarted(600+int64(i), "a1", "node-1", "Completed", 0)
		e.FinishedAt = base + 600*second
		return e
	})}, -1, 0, 0, nil},
	{
		"entries expire together", "cache_stampede",
		stage{length: 2400, flows: []flow{{0, 1200, 600, hits(20)}, {1200, 1300, 600, hits(1)}, {1300, 2400, 600, hits(20)}}},
		1230, 1200, 1400, func(e Evidence) bool {
			return e.MissShare.Get() > 0.9 && e.UsualMissShare.Get() > 0.04 && e.UsualMissShare.Get() < 0.06 && e.MissedURLs.Get() > 90 &&
				e.UsualMissesPerMinute.Get() > 25 && e.RepeatFactor.Get() > 8 && !e.TTLSeconds.Known()
		},
	},
	{
		"bursts in the rhythm of a TTL", "cache_stampede",
		stage{length: 6000, flows: []flow{{0, 6000, 600, func(i int, r *pipeline.Record) {
			hits(20)(i, r)
			if at := (r.End - base) / second; at > 900 && at%1200 < 60 {
				r.Cache = pipeline.CacheExpired
			}
		}}}},
		1230, 1200, 5000, func(e Evidence) bool { return e.TTLSeconds.Get() > 1170 && e.TTLSeconds.Get() < 1230 },
	},
	{"a cold start", "cache_stampede", stage{length: 500, flows: []flow{{0, 60, 600, hits(1)}, {60, 500, 600, hits(20)}}}, -1, 0, 0, nil},
	{"a site that never hits", "cache_stampede", stage{length: 2400, flows: []flow{{0, 1200, 200, hits(1)}, {1200, 2400, 2000, hits(1)}}}, -1, 0, 0, nil},
	{"what bypasses the cache", "cache_stampede", stage{length: 2400, flows: []flow{{0, 2400, 600, hits(20)}, {1200, 2400, 3000, bypasses}}}, -1, 0, 0, nil},
	{"a slow crawl", "cache_stampede", stage{length: 2400, flows: []flow{{0, 2400, 600, hits(20)}, {1200, 2400, 50, hits(1)}}}, -1, 0, 0, nil},
	{
		"one page that all wait for", "cache_stampede",
		stage{length: 2400, flows: []flow{{0, 2400, 600, hits(200)}, {1200, 1320, 900, func(_ int, r *pipeline.Record) {
			r.Path, r.Route, r.Cache = []byte("/"), "/", pipeline.CacheExpired
		}}}},
		1220, 1200, 1400, func(e Evidence) bool {
			return e.MissedURLs.Get() < 30 && e.MissedRoutes.Get() == 2 && e.RepeatFactor.Get() > 60
		},
	},
	{"one page that misses while others do as usual", "cache_stampede", stage{length: 2400, flows: []flow{
		{0, 2400, 3000, hits(40)}, {1200, 2400, 3000, func(i int, r *pipeline.Record) {
			hits(1)(i, r)
			r.Path = []byte("/page/1")
		}},
	}}, -1, 0, 0, nil},
	{"one page that misses", "cache_stampede", stage{length: 2400, flows: []flow{{0, 1200, 600, hits(200)}, {1200, 2400, 600, func(i int, r *pipeline.Record) {
		hits(1)(i, r)
		r.Path = []byte("/page/1")
	}}}}, -1, 0, 0, nil},
	{
		"one client asks again after each timeout", "retry_loop",
		stage{length: 1800, flows: []flow{organic, {600, 900, 3, retries(20, 7)}}},
		730, 600, 1300, func(e Evidence) bool {
			return e.Route == "/admin/search" && e.Method == "GET" && e.RetryingClients.Get() == 1 && e.Retries.Get() >= 13 &&
				e.Requests.Get() > e.Retries.Get() && e.PeriodSeconds.Get() == 20
		},
	},
	{"many clients give up once each", "retry_loop", stage{length: 900, flows: []flow{organic, {300, 900, 600, func(i int, r *pipeline.Record) {
		gaveUp(8)(i, r)
		r.Client = netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})
	}}}}, -1, 0, 0, nil},
	{"many behind one address wait at the same time", "retry_loop", stage{length: 900, flows: []flow{organic, {300, 900, 60, retries(8, 7)}}}, -1, 0, 0, nil},
	{"a storm of HEADs that give up", "retry_loop", stage{length: 900, flows: []flow{organic, {300, 720, 2000, func(i int, r *pipeline.Record) {
		head("/checkout/{id}", 250)(i, r)
		gaveUp(10)(i, r)
	}}}}, -1, 0, 0, nil},
	{"many that wait at random follow each other now and then", "retry_loop", stage{length: 900, flows: []flow{organic, {300, 900, 900, func(i int, r *pipeline.Record) {
		rng := rand.New(rand.NewPCG(7, uint64(i)))
		gaveUp(8)(i, r)
		r.Client = netip.AddrFrom4([4]byte{198, 19, 0, byte(rng.IntN(200))})
	}}}}, -1, 0, 0, nil},
	{"one that asks again at no rhythm", "retry_loop", stage{length: 900, flows: []flow{organic, {300, 900, 60, func(i int, r *pipeline.Record) {
		retries(7, 7)(i, r)
		if at := (r.End-base)/second - 300; at%20 != 0 && at%20 != 8 {
			r.Client, r.Path = netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)}), []byte("/other")
		}
	}}}}, -1, 0, 0, nil},
	{"one loop in a storm of others that give up", "retry_loop", stage{length: 900, flows: []flow{organic, {300, 900, 3, retries(20, 7)}, {300, 900, 120, func(i int, r *pipeline.Record) {
		retries(20, 7)(i, r)
		r.Client = netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})
	}}}}, -1, 0, 0, nil},
	{"somebody presses reload twice", "retry_loop", stage{length: 900, flows: []flow{organic, {300, 360, 3, retries(20, 7)}}}, -1, 0, 0, nil},
	{"a monitor whose probe times out", "retry_loop", stage{length: 900, flows: []flow{organic, {300, 900, 6, func(i int, r *pipeline.Record) {
		retries(10, 7)(i, r)
		r.Class = pipeline.Probe
	}}}}, -1, 0, 0, nil},
	{"a monitor that pauses", "retry_loop", stage{length: 900, flows: []flow{organic, {0, 900, 2, retries(10, 7)}}}, -1, 0, 0, nil},
	{
		"a pool whose size php-fpm tells", "saturation",
		stage{length: 900, cfg: Config{Pool: func(string) Pool { return Pool{Reclaim: time.Minute} }}, flows: []flow{organic, {600, 700, 300, slow(4)}}, events: []pipeline.Event{
			{Kind: pipeline.PHPMaxChildren, Time: base + 610*second, Pool: "www", Limit: 20},
		}},
		660, 600, 800, func(e Evidence) bool { return e.PoolWorkers.Get() == 20 && e.PoolLearned },
	},
	{
		"full pools of many pods tell of themselves alone", "saturation",
		stage{length: 900, cfg: Config{Pool: func(string) Pool { return Pool{Reclaim: time.Minute} }}, flows: []flow{organic, {600, 700, 300, slow(4)}}, events: []pipeline.Event{
			{Kind: pipeline.PHPMaxChildren, Time: base + 610*second, Pool: "www", Limit: 20, Pod: "web-0", Namespace: "shop"},
		}},
		-1, 0, 0, nil,
	},
	{"a crash loop of one pod is no burst", "restart_burst", stage{length: 1200, events: pods(8, func(i int) pipeline.Event {
		return restarted(600+int64(i)*30, "a1", "node-1", "Error", 1)
	})}, -1, 0, 0, nil},
	{
		"one node of ten goes down", "restart_burst",
		stage{length: 1200, events: pods(8, func(i int) pipeline.Event {
			e := restarted(600+int64(i), fmt.Sprintf("%c1", 'a'+i), "node-3", "Completed", 0)
			e.Population = pipeline.Population{All: 100, Node: 10, Namespace: 12, Image: 1}
			return e
		})},
		610, 600, 1000, func(e Evidence) bool {
			node := shareOf(e, "node", "node-3")
			return e.Scope[0].Kind == "node" && node.Explains && node.Coverage.Get() == 1 && node.Lift.Get() == 10 && node.Count == 8 &&
				!shareOf(e, "namespace", "ns-a").Explains && !e.Looping.Known()
		},
	},
	{
		"a database that half of the sites share explains, their namespace does not", "restart_burst",
		stage{length: 1200, cfg: Config{Dependencies: Dependencies{
			"ns-a": {"mysql": "db-3"}, "ns-b": {"mysql": "db-3"}, "ns-c": {"mysql": "db-1"}, "ns-d": {"mysql": "db-1"},
		}}, events: pods(8, func(i int) pipeline.Event {
			return restarted(600+int64(i), fmt.Sprintf("%c%d", 'a'+i%2, i), fmt.Sprintf("node-%d", i), "Completed", 0)
		})},
		610, 600, 1000, func(e Evidence) bool {
			db := shareOf(e, "mysql", "db-3")
			ns := shareOf(e, "namespace", "ns-a")
			return db.Explains && db.Lift.Get() == 2 && ns.Coverage.Get() == 0.5 && !ns.Explains && !ns.Lift.Known()
		},
	},
	{
		"containers that loop among others that do not", "restart_burst",
		stage{length: 1200, events: append(pods(6, func(i int) pipeline.Event {
			return restarted(600+int64(i), fmt.Sprintf("b%d", i), "node-1", "Completed", 0)
		}), pods(4, func(i int) pipeline.Event { return restarted(600+int64(i)*30, "a1", "node-1", "Error", 1) })...)},
		610, 600, 1100, func(e Evidence) bool { return e.Looping.Get() == 1 && e.Restarts.Get() == 10 },
	},
	{
		"a limiter that refuses the site's own hosts", "ratelimit_backfire",
		stage{length: 1200, flows: []flow{organic, {600, 800, 480, own("/assets/a.css", 2)}, {600, 800, 300, elsewhere}}, events: append(
			pods(200, func(i int) pipeline.Event {
				return limiting(600+int64(i), "site_dynamic", "shop.example", 5+float64(i)/10)
			}),
			pods(200, func(i int) pipeline.Event { return limiting(600+int64(i), "other", "other.example", 99) })...)},
		620, 600, 900, func(e Evidence) bool {
			return e.LimitedOwn.Get() == 800 && e.LimitedAllowed.Get() == 0 && e.LimitedStaticQuery.Get() == 800 && e.LimitedByUpstream.Get() == 0 &&
				e.Route == "/assets/a.css" && len(e.Zones) == 1 && e.Zones[0].Key == "site_dynamic" && e.Excess.Get() > 24 && e.Excess.Get() < 25
		},
	},
	{
		"an office behind one address", "ratelimit_backfire",
		stage{length: 1800, flows: []flow{organic, {600, 1500, 60, office(3)}}},
		640, 600, 1600, func(e Evidence) bool {
			return e.LimitedAllowed.Get() == 300 && e.LimitedOwn.Get() == 0 && e.DistinctAgents.Get() == 60 && e.Route == "/lists" &&
				!e.Excess.Known() && len(e.Zones) == 0
		},
	},
	{
		"versioned files of visitors are refused and others are not", "ratelimit_backfire",
		stage{length: 1200, flows: []flow{organic, {0, 1200, 120, styled("", false)}, {600, 700, 300, styled("v=1", true)}}},
		620, 600, 800, func(e Evidence) bool {
			return e.LimitedStaticQuery.Get() == 500 && e.LimitedStaticPlain.Get() == 0 && e.StaticPlain.Get() > 150 && e.LimitedClients.Get() > 50
		},
	},
	{"a limiter that makes no exception for static files", "ratelimit_backfire", stage{length: 900, flows: []flow{
		organic, {300, 900, 300, styled("", true)}, {300, 900, 300, styled("v=1", true)},
	}}, -1, 0, 0, nil},
	{"one address that fetches versioned files without end", "ratelimit_backfire", stage{length: 900, flows: []flow{
		organic, {300, 900, 3000, func(i int, r *pipeline.Record) {
			styled("v=1", true)(i, r)
			r.Client = netip.MustParseAddr("198.18.9.9")
		}},
	}}, -1, 0, 0, nil},
	{"strangers who are refused pages", "ratelimit_backfire", stage{length: 900, flows: []flow{organic, {300, 900, 3000, refusedPage}}}, -1, 0, 0, nil},
	{"own hosts that are let through", "ratelimit_backfire", stage{length: 900, flows: []flow{organic, {300, 900, 600, own("/assets/a.css", 1<<30)}}}, -1, 0, 0, nil},
	{
		"php-fpm kills in the rhythm of a probe", "worker_timeout",
		stage{length: 1200, events: append(pods(30, func(i int) pipeline.Event { return phpKilled(600+10*int64(i), 34.4+float64(i%2)*5) }),
			pods(20, func(i int) pipeline.Event { return probeFailed(605+10*int64(i), "a1", "Readiness") })...)},
		640, 600, 1000, func(e Evidence) bool {
			return e.PHPTimeouts.Get() == 30 && e.MaxChildrenReached.Get() == 0 && e.PeriodSeconds.Get() == 10 && e.Probe == "Readiness" &&
				e.ProbePeriodSeconds.Get() == 10 && e.StallSeconds.Get() == 39.4 && e.TopRoutes[0].Key == "GET /index.php"
		},
	},
	{
		"php-fpm kills of many pods, each in its own phase", "worker_timeout",
		stage{length: 1200, events: pods(60, func(i int) pipeline.Event {
			e := phpKilled(600+10*int64(i/4)+int64(i%4*i%4), 34.4)
			e.Namespace, e.Pod = "shop", fmt.Sprint(i%4)
			return e
		})},
		610, 600, 1000, func(e Evidence) bool { return e.Containers.Get() == 4 && e.PeriodSeconds.Get() == 10 },
	},
	{
		"pools without an idle child", "worker_timeout",
		stage{length: 1200, events: pods(12, func(i int) pipeline.Event {
			return pipeline.Event{Time: base + (600+int64(i))*second, Kind: pipeline.PHPMaxChildren, Pool: "www", Limit: 25, Pod: fmt.Sprint(i), Namespace: "shop"}
		})},
		620, 600, 800, func(e Evidence) bool {
			return e.MaxChildrenReached.Get() == 12 && e.MaxChildren.Get() == 25 && e.Containers.Get() == 12 && !e.StallSeconds.Known() && !e.PeriodSeconds.Known()
		},
	},
	{"two kills an hour, and slow requests", "worker_timeout", stage{length: 1200, events: append(
		pods(2, func(i int) pipeline.Event { return phpKilled(600+int64(i), 30) }),
		pods(300, func(i int) pipeline.Event {
			return pipeline.Event{Time: base + (600+int64(i))*second, Kind: pipeline.PHPSlow, Seconds: 5}
		})...)}, -1, 0, 0, nil},
	{
		"health checks that wait with everybody else", "probe_failure",
		stage{length: 1200, flows: []flow{organic, {0, 1200, 12, probe}, {600, 800, 12, probing(4, 200)}}},
		630, 600, 900, func(e Evidence) bool {
			return e.ProbesFailed.Get() == 40 && e.Route == "/health" && e.ReachedUpstreamRatio.Get() == 1 && e.StallSeconds.Get() > 3.9 &&
				e.StallSeconds.Get() < 4.1 && !e.KillBudgetSeconds.Known()
		},
	},
	{
		"health checks that the application answers with 503", "probe_failure",
		stage{length: 1200, flows: []flow{organic, {600, 800, 12, probing(0, 503)}}},
		630, 600, 900, func(e Evidence) bool { return e.ProbesFailed.Get() == 40 && e.Status["503"] == 40 },
	},
	{
		"probes fail in many containers until kubelet kills them", "probe_failure",
		stage{length: 1200, events: slices.Concat(
			pods(24, func(i int) pipeline.Event {
				return probeFailed(600+10*int64(i%3), fmt.Sprintf("%c%d", 'a'+i%8, i/3), "Liveness")
			}),
			pods(24, func(i int) pipeline.Event { return probeFailed(600+10*int64(i/8), fmt.Sprintf("b%d", i%8), "Liveness") }),
			pods(8, func(i int) pipeline.Event { return decided(620, fmt.Sprintf("b%d", i)) }),
			pods(3, func(i int) pipeline.Event { return phpKilled(600+10*int64(i), 39.4) }))},
		620, 600, 800, func(e Evidence) bool {
			return e.ProbesFailed.Get() == 48 && e.Reasons["Liveness"] == 48 && e.ProbePeriodSeconds.Get() == 10 && e.KillBudgetSeconds.Get() == 30 &&
				e.StallSeconds.Get() == 39.4
		},
	},
	{"health checks that the application answers in time", "probe_failure", stage{length: 900, flows: []flow{organic, {0, 900, 60, probe}}}, -1, 0, 0, nil},
	{"slow health checks that reach no upstream", "probe_failure", stage{length: 900, flows: []flow{organic, {0, 900, 60, func(i int, r *pipeline.Record) {
		probing(4, 200)(i, r)
		r.Reached, r.UpstreamTime = pipeline.No, pipeline.Unknown
	}}}}, -1, 0, 0, nil},
	{"slow health checks that reach no upstream beside quick ones that do", "probe_failure", stage{length: 900, flows: []flow{
		organic, {0, 900, 60, probe}, {0, 900, 60, func(i int, r *pipeline.Record) {
			probing(4, 503)(i, r)
			r.Reached, r.UpstreamTime = pipeline.No, pipeline.Unknown
		}},
	}}, -1, 0, 0, nil},
	{"visitors wait and health checks do not", "probe_failure", stage{length: 900, flows: []flow{{0, 900, 240, slow(9)}, {0, 900, 12, probe}}}, -1, 0, 0, nil},
	{"containers that start", "probe_failure", stage{length: 900, events: pods(60, func(i int) pipeline.Event {
		return probeFailed(600+int64(i), fmt.Sprintf("a%d", i%20), "Startup")
	})}, -1, 0, 0, nil},
	{"one container that is not ready", "probe_failure", stage{length: 1200, events: pods(60, func(i int) pipeline.Event {
		return probeFailed(600+10*int64(i), "a1", "Readiness")
	})}, -1, 0, 0, nil},
	{
		"pages fail while their own calls are refused", "error_burst",
		stage{length: 1200, flows: []flow{organic, {600, 800, 60, answering(500)}, {600, 800, 120, own("/assets/a.css", 2)}}},
		640, 600, 900, func(e Evidence) bool {
			return e.Errors5xx.Get() == 200 && e.ErrorRatio.Get() > 0.12 && e.ErrorRatio.Get() < 0.16 && e.LimitedOwn.Get() == 200 &&
				e.Route == "/lists" && e.TopRoutes[0].Count == 200
		},
	},
	{"three of eight nodes are cut off for five minutes", "nodes_absent", stage{length: 900, flows: []flow{organic}, fleet: func(at int64) (uint64, uint64) {
		if at >= 300 && at < 600 {
			return 5, 3
		}
		return 8, 0
	}}, 350, 300, 680, func(e Evidence) bool {
		return e.Nodes.Get() == 8 && e.NodesAbsent.Get() > 1 && e.NodesAbsent.Get() <= 3
	}},
	{"one of forty nodes is cut off", "nodes_absent", stage{length: 900, flows: []flow{organic}, fleet: func(int64) (uint64, uint64) { return 39, 1 }}, -1, 0, 0, nil},
	{"a limiter that answers 503", "error_burst", stage{length: 900, flows: []flow{organic, {300, 900, 600, func(i int, r *pipeline.Record) {
		refusedPage(i, r)
		r.Status = 503
	}}}}, -1, 0, 0, nil},
	{"health checks that fail", "error_burst", stage{length: 900, flows: []flow{organic, {300, 900, 120, probing(0, 503)}}}, -1, 0, 0, nil},
	{"one in a hundred fails", "error_burst", stage{length: 900, flows: []flow{{0, 900, 6000, nil}, {300, 900, 60, answering(502)}}}, -1, 0, 0, nil},
	{"a small site fails now and then", "error_burst", stage{length: 900, flows: []flow{{0, 900, 60, nil}, {300, 900, 15, answering(502)}}}, -1, 0, 0, nil},
}

// hits answers from the cache but every n-th request, over many pages.
func hits(n int) func(int, *pipeline.Record) {
	return func(i int, r *pipeline.Record) {
		r.Path, r.Route = fmt.Appendf(nil, "/page/%d", i*31%97), "/page/{int}"
		if r.Cache = pipeline.CacheHit; i%n == 0 {
			r.Cache = pipeline.CacheMiss
		}
	}
}

func bypasses(i int, r *pipeline.Record) {
	hits(1)(i, r)
	r.Cache = pipeline.CacheBypass
}

// retries is one client that asks again as soon as it gave up after d seconds.
func retries(d int64, last byte) func(int, *pipeline.Record) {
	return func(i int, r *pipeline.Record) {
		gaveUp(d)(i, r)
		r.Route, r.Path, r.Client = "/admin/search", []byte("/admin/search"), netip.AddrFrom4([4]byte{192, 0, 2, last})
	}
}

func TestDetectors(t *testing.T) {
	tried := map[string][2]bool{}
	for _, c := range harness {
		seen := tried[c.detector]
		seen[0], seen[1] = seen[0] || c.active >= 0, seen[1] || c.active < 0
		tried[c.detector] = seen
		t.Run(c.detector+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			changes, last := c.stage.play(t)
			var began, ended *Detection
			for i := range changes {
				if d := &changes[i]; d.Detector == c.detector {
					if d.Active && began == nil {
						began = d
					} else if !d.Active {
						ended = d
					}
				}
			}
			if c.active < 0 {
				if began != nil {
					t.Fatalf("active at %d s: %+v", (began.Since-base)/second, began)
				}
				return
			}
			if began == nil || began.Since > base+c.active*second {
				t.Fatalf("not active by %d s: %+v", c.active, began)
			}
			if off := (began.Onset - base) / second; off < c.onset-10 || off > c.onset+10 {
				t.Errorf("onset %d s, want %d ± 10", off, c.onset)
			}
			if ended == nil || ended.Until > base+c.over*second {
				t.Fatalf("not over by %d s: %+v", c.over, ended)
			}
			if c.evidence != nil && !c.evidence(ended.Evidence) {
				t.Errorf("evidence %+v", ended.Evidence)
			}
			for _, d := range last.Detections {
				if d.Detector == c.detector {
					t.Errorf("still active at the end: %+v", d)
				}
			}
		})
	}
	for _, name := range Names() {
		if tried[name] != [2]bool{true, true} {
			t.Errorf("%s needs a case that fires and one that does not", name)
		}
	}
}

// TestGarbage has every detector look at panes of senseless records and events.
func TestGarbage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		b := make([]byte, rng.IntN(40))
		for i := range b {
			b[i] = byte(rng.IntN(256))
		}
		return string(b)
	}
	junk := func(_ int, r *pipeline.Record) {
		r.Site, r.Route, r.Path, r.Method = text(), text(), []byte(text()), []byte(text())
		r.Status, r.Origin, r.Class = uint16(rng.IntN(1<<16)), pipeline.Origin(rng.IntN(3)), pipeline.Class(rng.IntN(int(pipeline.Classes)))
		r.RequestTime, r.UpstreamTime = rng.Int64()-1<<62, rng.Int64()-1<<62
		r.Start, r.Bytes = rng.Int64()-1<<62, rng.Int64()-1<<62
		r.Abandoned, r.Reached, r.Cache = pipeline.Tri(rng.IntN(3)), pipeline.Tri(rng.IntN(3)), pipeline.CacheStatus(rng.IntN(8))
		r.UserAgent, r.Client = []byte(text()), netip.Addr{}
		r.Limited, r.Static, r.Query = rng.IntN(2) == 0, rng.IntN(2) == 0, []byte(text())
	}
	var events []pipeline.Event
	kinds := []pipeline.EventKind{
		pipeline.ContainerRestart, pipeline.LivenessRestart, pipeline.PHPTimeout, pipeline.OOM, "no such kind",
		pipeline.PHPMaxChildren, pipeline.ProbeFailed, pipeline.LimitRequest,
	}
	numbers := []float64{0, -1, 1e300, math.NaN(), math.Inf(1), math.Inf(-1)}
	for i := range 500 {
		events = append(events, pipeline.Event{
			Time: base + int64(i)*second, Kind: kinds[rng.IntN(len(kinds))], Namespace: text(), Pod: text(), Container: text(),
			Zone: text(), Host: text(), Probe: text(), Request: text(), Script: text(), Message: text(), Limit: rng.IntN(1<<62) - 1<<61,
			Seconds: numbers[rng.IntN(len(numbers))], Excess: numbers[rng.IntN(len(numbers))],
			Reason: text(), ExitCode: rng.IntN(512) - 256, HasExit: rng.IntN(2) == 0, FinishedAt: rng.Int64() - 1<<62,
		})
	}
	_, last := stage{length: 600, flows: []flow{{0, 600, 600, junk}}, events: events}.play(t)
	for _, d := range last.Detections {
		if math.IsNaN(d.Value) || math.IsInf(d.Value, 0) {
			t.Errorf("%s has the value %v", d.Detector, d.Value)
		}
	}
}

func TestSettingsOverride(t *testing.T) {
	set := func(v float64) func(any) error {
		return func(x any) error { x.(*clientAbandon).PerMinute = v; return nil }
	}
	flows := []flow{organic, {600, 700, 120, gaveUp(8)}, {600, 700, 120, func(i int, r *pipeline.Record) {
		gaveUp(8)(i, r)
		r.Site = "other.example"
	}}}
	changes, _ := stage{length: 900, flows: flows, cfg: Config{Settings: []Setting{{
		Name: "client_abandon", Decode: set(20), Sites: map[string]func(any) error{"shop.example": set(100000)},
	}}}}.play(t)
	for _, d := range changes {
		if d.Detector == "client_abandon" && d.Labels.Get("site") == "shop.example" {
			t.Errorf("the site's own threshold was not used: %+v", d)
		}
	}
	if len(changes) == 0 {
		t.Error("the other site was not judged")
	}
	for _, bad := range []Setting{
		{Name: "head_storms"},
		{Name: "latency", Decode: func(x any) error { x.(*latency).P99 = 0; return nil }},
		{Name: "latency", Decode: func(x any) error { x.(*latency).Window = time.Millisecond; return nil }},
		{Name: "latency", Decode: func(x any) error { x.(*latency).Window = 45 * time.Second; return nil }},
	} {
		if _, err := NewEngine(Config{Pane: 10 * time.Second, Settings: []Setting{bad}}); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// TestEachSiteForItself holds that a stampede and a loop of one site are no other's.
func TestEachSiteForItself(t *testing.T) {
	at := func(site string, edit func(int, *pipeline.Record)) func(int, *pipeline.Record) {
		return func(i int, r *pipeline.Record) { edit(i, r); r.Site = site }
	}
	changes, _ := stage{length: 1800, flows: []flow{
		{0, 1800, 600, at("calm.example", hits(20))}, {600, 900, 3, at("loop.example", retries(20, 7))},
		{0, 1200, 600, at("cold.example", hits(20))}, {1200, 1300, 600, at("cold.example", hits(1))}, {1300, 1800, 600, at("cold.example", hits(20))},
	}}.play(t)
	told := map[string]int{}
	for _, d := range changes {
		if d.Detector == "cache_stampede" || d.Detector == "retry_loop" {
			told[d.Detector+" "+d.Labels.Get("site")]++
		}
	}
	if len(told) != 2 || told["cache_stampede cold.example"] != 2 || told["retry_loop loop.example"] != 2 {
		t.Errorf("%v", told)
	}
}

package pane

import (
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// Pane after pane of the same traffic costs no memory for a line, and for a pane what is kept of it, in few pieces. A
// set that is large goes over to a sketch in every pane anew. Requests in vain after a long wait are not in this traffic:
// they are kept one by one.
func TestCountingAllocatesNothing(t *testing.T) {
	for _, c := range []struct {
		name         string
		lines        int
		counting     uint64 // allocations of a pane's lines
		opening, end uint64 // and at most before and behind them
	}{
		{"a shop's", 500, 0, 4, 50},
		{"a storm's", 20000, 2 * 2 * 3 * 8 * 3, 4, 50 + 2*3*8*3}, // two of a sketch, for clients and URLs, three sites, eight routes, three methods
	} {
		t.Run(c.name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			records := traffic(1, c.lines, 10*second/int64(c.lines))
			for i := range records {
				records[i].Start = max(records[i].Start, records[i].End-MinWait+1)
			}
			a := NewAssembler(Config{})
			src := a.Source("balancer", 5*time.Second)
			for pane := range 9 {
				opening := mallocs(func() { a.Add(src, &records[0]) })
				counting := mallocs(func() {
					for i := range records[1:] {
						a.Add(src, &records[1+i])
					}
				})
				for i := range records {
					records[i].Start, records[i].End = records[i].Start+10*second, records[i].End+10*second
				}
				end := mallocs(func() { a.Next() })
				if pane < 4 {
					continue
				}
				if opening > c.opening || counting > c.counting || end > c.end {
					t.Errorf("pane %d: %d allocations to open it, %d for its lines, %d to close one; expected %d, %d, %d at most",
						pane, opening, counting, end, c.opening, c.counting, c.end)
				}
			}
		})
	}
}

// A flood fills many panes at a time; what it took is given back when quiet traffic needs few of them.
func TestMemoryOfAFloodIsGivenBack(t *testing.T) {
	a := NewAssembler(Config{})
	src := a.Source("balancer", time.Minute)
	var r pipeline.Record
	r.Reset()
	r.Site, r.Method = "shop.example", []byte("GET")
	add := func(route string, client, end int64) {
		r.Route, r.Client = route, netip.AddrFrom4([4]byte{10, 1, byte(client >> 8), byte(client)})
		r.Time, r.Start, r.End = end, end, end
		a.Add(src, &r)
	}
	before, now := heap(), 1_800_000_000*second
	for range 6 {
		for i := range int64(20000) {
			add("/"+strconv.FormatInt(i%500, 10), i, now)
		}
		now += 10 * second
	}
	a.Observe(src, now+120*second)
	drain(a, nil)
	now += 180 * second
	for range 4 * maxIdle {
		add("/", 1, now)
		now += 10 * second
		a.Observe(src, now+60*second)
		drain(a, nil)
	}
	if held := heap() - before; held > 1<<20 {
		t.Errorf("%d KiB are held of a flood that was over long ago", held>>10)
	}
	runtime.KeepAlive(a)
}

// mallocs is how many pieces of memory are taken from the heap.
func mallocs(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A million requests, each with a path, an agent and an address of its own, and fewer with a route, a host or
// a method of its own, all in one pane: the memory does not follow.
func TestCapsHoldAgainstAMillionKeys(t *testing.T) {
	for _, c := range []struct {
		name  string
		n     int
		limit int64 // bytes
		vary  func(r *pipeline.Record, i int)
	}{
		{"paths, agents, addresses", 1_000_000, 2 << 20, func(*pipeline.Record, int) {}},
		{"routes", 60_000, 64 << 20, func(r *pipeline.Record, i int) { r.Route = "/" + strconv.Itoa(i) }},
		{"hosts", 60_000, 64 << 20, func(r *pipeline.Record, i int) { r.Site = "h" + strconv.Itoa(i) + ".example" }},
		{"methods", 60_000, 8 << 20, func(r *pipeline.Record, i int) { r.Method = strconv.AppendInt(nil, int64(i), 36) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := heap()
			a, src := begin(Config{}, base)
			r := *at(base)
			var path, agent []byte
			for i := range c.n {
				path = strconv.AppendInt(append(path[:0], "/p/"...), int64(i), 10)
				agent = strconv.AppendInt(append(agent[:0], "agent "...), int64(i), 10)
				r.Path, r.Query, r.UserAgent = path, path, agent
				r.Client = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
				c.vary(&r, i)
				// Every tenth is of one storm, which must stay visible.
				if i%10 == 0 {
					r.Site, r.Route, r.Method, r.UserAgent = "shop.example", "/storm", []byte("HEAD"), []byte("storm")
				}
				a.Add(src, &r)
				r.Site, r.Route, r.Method = "s", "/", []byte("GET")
			}
			open := heap() - before
			a.Flush()
			panes := drain(a, nil)
			runtime.KeepAlive(a)
			t.Logf("%d KiB open, %d sites", open>>10, len(panes[0].Sites))
			if open > c.limit {
				t.Errorf("%d MiB held, at most %d expected", open>>20, c.limit>>20)
			}
			checkStorm(t, panes, c.n)
		})
	}
}

func checkStorm(t *testing.T, panes []*Pane, n int) {
	var requests uint64
	p := panes[0]
	for _, s := range p.Sites {
		if len(s.Cells()) > 4096+2*3*12 {
			t.Errorf("%d cells", len(s.Cells()))
		}
		for _, c := range s.Cells() {
			requests += c.Requests
		}
	}
	if len(panes) != 1 || requests != uint64(n+confirm) || p.Coverage.Lines != requests || len(p.Sites) > 1025 {
		t.Fatalf("%d panes, %d requests, %d lines, %d sites", len(panes), requests, p.Coverage.Lines, len(p.Sites))
	}
	storm := p.Sites["shop.example"].Cells()[Key{Method: "HEAD", Route: "/storm"}]
	if storm == nil || storm.Requests < uint64(n)/10*99/100 {
		t.Fatalf("the storm has gone: %+v", storm)
	}
	if top := storm.TopAgents.Items(); top[0].Key != "storm" || top[0].Count != storm.Requests {
		t.Errorf("its agent: %v", top[0])
	}
	if clients, exact := storm.Clients.Count(); exact || clients < float64(n)/10*0.93 || clients > float64(n)/10*1.07 {
		t.Errorf("%v clients, exact: %t", clients, exact)
	}
}

// Up to twice the caps, what is kept is told by weight and not by order.
func TestFoldKeepsTheHeaviestInAnyOrder(t *testing.T) {
	var records []pipeline.Record
	for route := range 19 {
		for range route + 1 {
			r := request(base+int64(len(records))*second/100, second)
			r.Route = fmt.Sprintf("/r%02d", route)
			r.Site = fmt.Sprintf("s%d", route%7)
			records = append(records, r)
		}
	}
	cfg := Config{MaxCells: 2, MaxSites: 4}
	want := assemble(cfg, time.Minute, records)
	for i, j := 0, len(records)-1; i < j; i, j = i+1, j-1 {
		records[i], records[j] = records[j], records[i]
	}
	differ(t, dump(assemble(cfg, time.Minute, records)), dump(want))
	// 19 routes with 1 to 19 requests over 7 sites: s2 to s4 and s1 have most; of each two routes stay.
	names := fmt.Sprint(want[0].SiteNames())
	if c := want[0].Coverage; names != "[other s1 s2 s3 s4]" || c.CellsFolded != 15 || c.SitesFolded != 64 {
		t.Errorf("%s %+v", names, c)
	}
	for _, s := range want[0].Sites {
		if len(s.Cells()) > 3 {
			t.Errorf("%v", s.Keys())
		}
	}
}

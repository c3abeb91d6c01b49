package pane

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/squall-sre/squall/pipeline"
)

// base is a Thursday morning, on a pane's start: 2026-11-26 09:00:00 UTC.
const base = int64(1795683600) * 1e9

const second = int64(time.Second)

// traffic gives n records, step ns apart, as a shop behind a balancer logs them: three sites, few routes, many
// addresses.
func traffic(seed uint64, n int, step int64) []pipeline.Record {
	random := rand.New(rand.NewPCG(seed, 1))
	sites := []string{"shop.example", "www.example", "api.example"}
	routes := []string{"/", "/product/{id}", "/checkout/{id}", "/search", "/feeds/{name}.xml", "/cart", "/login", "/media/{file}"}
	methods := []string{"GET", "GET", "GET", "HEAD", "POST"}
	agents := make([][]byte, 40)
	for i := range agents {
		agents[i] = fmt.Appendf(nil, "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.0.0 Safari/537.36", 90+i)
	}
	list := make([]pipeline.Record, n)
	for i := range list {
		r := &list[i]
		r.Reset()
		duration := int64(random.ExpFloat64()*0.3*1e3) * 1e6
		r.End = base + int64(i)*step
		r.Start, r.RequestTime = r.End-duration, duration
		r.Site, r.Route = sites[random.IntN(3)], routes[random.IntN(8)]
		r.Method = []byte(methods[random.IntN(5)])
		r.Path = fmt.Appendf(nil, "/product/%d", random.IntN(500))
		if random.IntN(3) == 0 {
			r.Query = fmt.Appendf(nil, "utm_id=%d", random.IntN(50))
		}
		r.Client = netip.AddrFrom4([4]byte{198, 51, byte(random.IntN(4)), byte(random.IntN(250))})
		r.UserAgent = agents[min(random.IntN(40), random.IntN(40))]
		r.Agent, r.AgentHash = string(r.UserAgent), xxhash.Sum64(r.UserAgent)
		r.Status, r.Bytes = 200, int64(random.IntN(50000))
		r.Reached = pipeline.Yes
		r.UpstreamTime = duration
		switch random.IntN(20) {
		case 0:
			r.Status, r.Abandoned, r.UpstreamTime = 499, pipeline.Yes, pipeline.Unknown
		case 1:
			r.Reached, r.Cache, r.UpstreamTime = pipeline.No, pipeline.CacheHit, pipeline.Unknown
		case 2:
			r.Status, r.Limited = 429, true
		}
	}
	return list
}

func BenchmarkAdd(b *testing.B) {
	records := traffic(1, 1<<12, 5e6) // 20 s: the records of one pane and its neighbours, again and again
	a := NewAssembler(Config{Pane: time.Minute})
	src := a.Source("balancer", 5*time.Second)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		a.Add(src, &records[i&(1<<12-1)])
	}
}

func BenchmarkAddOneKey(b *testing.B) {
	records := traffic(1, 1<<12, 5e6)
	for i := range records {
		records[i].Site, records[i].Route, records[i].Method = "shop.example", "/", []byte("HEAD")
	}
	a := NewAssembler(Config{Pane: time.Minute})
	src := a.Source("balancer", 5*time.Second)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		a.Add(src, &records[i&(1<<12-1)])
	}
}

// BenchmarkPanes counts lines as a day of a shop has them, 50 a second, into one pane of 10 s after the other.
func BenchmarkPanes(b *testing.B) {
	records := traffic(3, 1<<14, 20e6)
	for i := range records {
		records[i].Site = "shop.example"
	}
	span := int64(1<<14) * 20e6
	a := NewAssembler(Config{})
	src := a.Source("balancer", 5*time.Second)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := &records[i&(1<<14-1)]
		a.Add(src, r)
		r.Start, r.End = r.Start+span, r.End+span
		for p := a.Next(); p != nil; p = a.Next() {
		}
	}
}

func BenchmarkQuantilesAdd(b *testing.B) {
	var q Quantiles
	for i := 0; b.Loop(); i++ {
		q.Add(int64(i%1000) * 1e6)
	}
}

func BenchmarkTopAddNew(b *testing.B) {
	keys := make([][]byte, 1<<16)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "agent %d", i)
	}
	t := NewTop(1024)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		t.Add(keys[i&(1<<16-1)], 1)
	}
}

// BenchmarkMergeAll merges five minutes of panes, as a detector's window does.
func BenchmarkMergeAll(b *testing.B) {
	panes := assemble(Config{}, 5*time.Second, traffic(2, 60000, 5e6))
	b.ReportAllocs()
	for b.Loop() {
		MergeAll(panes[0].Start, panes[len(panes)-1].End, panes)
	}
}

// assemble runs records of one source through an Assembler.
func assemble(cfg Config, lateness time.Duration, records []pipeline.Record) []*Pane {
	a := NewAssembler(cfg)
	src := a.Source("balancer", lateness)
	var panes []*Pane
	for i := range records {
		a.Add(src, &records[i])
		panes = drain(a, panes)
	}
	a.Flush()
	return drain(a, panes)
}

func drain(a *Assembler, panes []*Pane) []*Pane {
	for p := a.Next(); p != nil; p = a.Next() {
		panes = append(panes, p)
	}
	return panes
}

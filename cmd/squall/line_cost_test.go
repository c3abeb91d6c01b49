package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/pipeline"
)

// lineCost takes one block of a log down the whole road, from bytes to pane, again and again.
type lineCost struct {
	block *pipeline.Block
	lines int
	road  *pipeline.Road
	judge *judge
}

func newLineCost(tb testing.TB, format, name string) *lineCost {
	tb.Helper()
	scenario, err := simulate.Named("S03")
	if err != nil {
		tb.Fatal(err)
	}
	var log bytes.Buffer
	if _, err := simulate.Run(context.Background(), simulate.Options{Scenario: scenario, Format: format, Seed: 1}, &log); err != nil {
		tb.Fatal(err)
	}
	data := log.Bytes()[log.Len()/2:]
	data = data[bytes.IndexByte(data, '\n')+1:]
	data = data[:bytes.LastIndexByte(data[:256<<10], '\n')+1]
	c := &lineCost{lines: bytes.Count(data, []byte{'\n'})}
	if c.judge, err = newJudge(Default(), nil, 0); err != nil {
		tb.Fatal(err)
	}
	c.judge.label = "bench"
	c.judge.source("bench", time.Hour) // the block is counted again and again, and never late
	chain, err := newChain(Default(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	c.road = pipeline.NewRoad(pipeline.RoadConfig{
		Input: "bench", Open: opener{format: formatChoice{name: name}, zone: time.UTC}.open, Enricher: chain.For(""),
		Take: func(w *pipeline.Work) error {
			c.judge.feed(w)
			w.Release()
			return nil
		},
	})
	c.block = &pipeline.Block{Stream: &pipeline.Stream{Input: "bench", ID: "bench", Path: "bench"}, Data: data, To: int64(len(data))}
	return c
}

func (c *lineCost) pass(tb testing.TB) {
	if err := c.road.Emit(c.block); err != nil {
		tb.Fatal(err)
	}
}

var lineCostFormats = []struct{ format, name string }{
	{"nginx", "nginx_combined"}, {"nginx_extended", "nginx_extended"}, {"nginx_extended", "auto"},
	{"ingress_nginx", "ingress_nginx"}, {"alb", "alb"}, {"traefik_json", "traefik_json"}, {"caddy_json", "caddy_json"},
	{"envoy_json", "envoy_json"},
}

// BenchmarkLine is the cost of a line from bytes to pane: frame, parse, enrich, count.
func BenchmarkLine(b *testing.B) {
	for _, f := range lineCostFormats {
		b.Run(f.format+"/"+f.name, func(b *testing.B) {
			c := newLineCost(b, f.format, f.name)
			c.pass(b)
			b.ReportAllocs()
			b.SetBytes(int64(len(c.block.Data) / c.lines))
			for n := 0; n < b.N; n += c.lines { // an operation is a line
				c.pass(b)
			}
		})
	}
}

// TestNoAllocationPerLine holds that a line costs no memory once its route, agent and address have been seen.
func TestNoAllocationPerLine(t *testing.T) {
	for _, f := range lineCostFormats {
		t.Run(f.format+"/"+f.name, func(t *testing.T) {
			c := newLineCost(t, f.format, f.name)
			for range 3 {
				c.pass(t)
			}
			// More runs at a time would be averaged, and rounded down. What other goroutines of the process allocate is
			// counted, too, but not in every pass; what a line costs is.
			got := testing.AllocsPerRun(1, func() { c.pass(t) })
			for tries := 0; got > 0 && tries < 10; tries++ {
				got = min(got, testing.AllocsPerRun(1, func() { c.pass(t) }))
			}
			if got > 0 {
				t.Errorf("%.0f allocations in a pass of %d lines", got, c.lines)
			}
		})
	}
}

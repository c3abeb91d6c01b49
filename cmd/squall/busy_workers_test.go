package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
)

// TestBusyWorkersOfALog holds that the gauge follows the origin: an interval, higher in a storm, and gone with the site.
func TestBusyWorkersOfALog(t *testing.T) {
	scenario, err := simulate.Named("S01")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if _, err := simulate.Run(context.Background(), simulate.Options{Scenario: scenario, Format: "nginx_extended", Seed: 1}, &log); err != nil {
		t.Fatal(err)
	}
	j, err := newJudge(Default(), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := newChain(Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b := newBusyWorkers(prometheus.NewRegistry())
	first, most, series := -1.0, 0.0, 0
	j.label = "test"
	src := j.source("test", 5*time.Second)
	j.settled = func(res *detectors.Result, _ []alerts.Alert) {
		b.set(res.Busy)
		for _, s := range res.Busy {
			if s.Lower > s.Upper || s.Lower < 0 {
				t.Errorf("%+v is no interval", s)
			}
			if first < 0 {
				first = s.Upper
			}
			most = max(most, s.Upper)
		}
		series = max(series, testutil.CollectAndCount(b.gauge))
	}
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: "test", Open: opener{format: formatChoice{name: "nginx_extended"}, zone: time.UTC}.open, Enricher: chain.For(""),
		Take: func(w *pipeline.Work) error { j.take(w); return nil },
	})
	data := log.Bytes()
	stream := &pipeline.Stream{Input: "test", ID: "test", Path: "test"}
	if err := road.Emit(&pipeline.Block{Stream: stream, Data: data, To: int64(len(data)), Last: true}); err != nil {
		t.Fatal(err)
	}
	j.panes.Done(src)
	j.panes.Flush()
	j.settle()
	if series != 2 || first < 0 || most < 25 || most < 3*first {
		t.Errorf("%d series, %.1f workers before and %.1f in the storm", series, first, most)
	}
	b.set(nil)
	if n := testutil.CollectAndCount(b.gauge); n != 0 {
		t.Errorf("%d series of a site that has gone", n)
	}
}

// TestBusyWorkersFollowTheSites holds that a site's series go when it does and that others stay.
func TestBusyWorkersFollowTheSites(t *testing.T) {
	reg := prometheus.NewRegistry()
	b := newBusyWorkers(reg)
	var many []detectors.Busy
	for i := range 100 {
		many = append(many, detectors.Busy{Site: fmt.Sprintf("s%d.example", i), Lower: 1, Upper: 2})
	}
	b.set(many)
	check(t, "series", testutil.CollectAndCount(b.gauge), 200)
	b.set([]detectors.Busy{{Site: "s7.example", Lower: 3.5, Upper: 4.5}})
	want := `
# HELP squall_origin_busy_workers Mean number of busy workers of a site's origin in the last minute of event time: at least (lower), at most (upper).
# TYPE squall_origin_busy_workers gauge
squall_origin_busy_workers{bound="lower",site="s7.example"} 3.5
squall_origin_busy_workers{bound="upper",site="s7.example"} 4.5
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "squall_origin_busy_workers"); err != nil {
		t.Error(err)
	}
}

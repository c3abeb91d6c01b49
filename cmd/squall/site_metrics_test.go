package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// paneOf is a pane of ten seconds with the requests given.
func paneOf(t *testing.T, set ...func(r *pipeline.Record)) *pane.Pane {
	t.Helper()
	a := pane.NewAssembler(pane.Config{Pane: 10 * time.Second, Reclaim: func(string) time.Duration { return time.Minute }})
	src := a.Source("test", time.Second)
	const end = 1_700_000_009 * int64(time.Second)
	for _, change := range set {
		var r pipeline.Record
		r.Reset()
		r.Site, r.Route, r.Method, r.Path, r.Status = "shop.example", "/", []byte("GET"), []byte("/"), 200
		r.Start, r.End, r.RequestTime, r.UpstreamTime = end-2e9, end, 2e9, 2e9
		r.Reached = pipeline.Yes
		change(&r)
		a.Add(src, &r)
	}
	a.AddEvent(src, pipeline.Event{Time: end, Kind: pipeline.PHPTimeout})
	a.Done(src)
	a.Flush()
	return a.Next()
}

// TestSiteMetricsCountPanes holds that each request is counted once in each family, health checks in none but their own.
func TestSiteMetricsCountPanes(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newSiteMetrics(reg)
	m.count(paneOf(t,
		func(r *pipeline.Record) {},
		func(r *pipeline.Record) { // it began two panes ago: all of its time counts
			r.Start, r.RequestTime, r.UpstreamTime = r.End-25e9, 25e9, 25e9
		},
		func(r *pipeline.Record) {
			r.Method, r.Abandoned, r.Status, r.UpstreamTime = []byte("HEAD"), pipeline.Yes, 499, pipeline.Unknown
		},
		func(r *pipeline.Record) {
			r.Method, r.Limited, r.Origin, r.Status, r.Reached = []byte("BREW"), true, pipeline.Own, 429, pipeline.No
			r.RequestTime, r.UpstreamTime, r.Cache = 1e6, pipeline.Unknown, pipeline.CacheHit
		},
		func(r *pipeline.Record) { r.Class = pipeline.Probe },
	))
	var want strings.Builder
	family := func(name, kind string, series ...string) {
		fmt.Fprintf(&want, "# TYPE %s %s\n", name, kind)
		for _, s := range series {
			want.WriteString(name + s + "\n")
		}
	}
	names := []string{"squall_site_abandoned_total", "squall_site_probes_total", "squall_site_upstream_total", "squall_site_request_duration_seconds"}
	const site = `site="shop.example"`
	family(names[0], "counter", `{method="GET",`+site+`} 0`, `{method="HEAD",`+site+`} 1`, `{method="POST",`+site+`} 0`, `{method="other",`+site+`} 0`)
	family(names[1], "counter", `{reached="no",`+site+`} 0`, `{reached="unknown",`+site+`} 0`, `{reached="yes",`+site+`} 1`)
	family(names[2], "counter", `{reached="no",`+site+`} 1`, `{reached="unknown",`+site+`} 0`, `{reached="yes",`+site+`} 3`)
	text, err := testutil.CollectAndFormat(m.durations, expfmt.TypeTextPlain, names[3])
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`le="0.05"} 1`, `le="1"} 1`, `le="2.5"} 3`, `le="20"} 3`, `le="30"} 4`, `le="+Inf"} 4`} {
		if !strings.Contains(string(text), line) {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	checkFamilies(t, reg, want.String(), names[:3]...)

	for series, is := range map[string]float64{
		"requests GET external": testutil.ToFloat64(m.requests.WithLabelValues("shop.example", "GET", "external")),
		"requests other own":    testutil.ToFloat64(m.requests.WithLabelValues("shop.example", "other", "own")),
		"limited own":           testutil.ToFloat64(m.limited.WithLabelValues("shop.example", "own")),
		"4xx":                   testutil.ToFloat64(m.responses.WithLabelValues("shop.example", "4xx")),
		"hits":                  testutil.ToFloat64(m.cache.WithLabelValues("shop.example", "hit")),
		"events":                testutil.ToFloat64(m.events.WithLabelValues("php_timeout")),
		"seconds of GET":        testutil.ToFloat64(m.workerSeconds.WithLabelValues("shop.example", "GET", "lower")),
		"seconds of HEAD":       testutil.ToFloat64(m.workerSeconds.WithLabelValues("shop.example", "HEAD", "upper")),
	} {
		wanted := map[string]float64{
			"requests GET external": 2, "requests other own": 1, "limited own": 1, "4xx": 2, "hits": 1, "events": 1,
			"seconds of GET": 27, "seconds of HEAD": 60,
		}[series]
		check(t, series, is, wanted)
	}
}

// checkFamilies compares families without their help.
func checkFamilies(t *testing.T, reg prometheus.Gatherer, want string, names ...string) {
	t.Helper()
	found, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var is strings.Builder
	for _, name := range names {
		for _, f := range found {
			if f.GetName() != name {
				continue
			}
			fmt.Fprintf(&is, "# TYPE %s counter\n", name)
			for _, s := range f.GetMetric() {
				var labels []string
				for _, l := range s.GetLabel() {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
				fmt.Fprintf(&is, "%s{%s} %v\n", name, strings.Join(labels, ","), s.GetCounter().GetValue())
			}
		}
	}
	check(t, "families", is.String(), want)
}

// TestSiteMetricsAreBounded holds that who invents sites fills no memory, and takes no series from those configured.
func TestSiteMetricsAreBounded(t *testing.T) {
	m := newSiteMetrics(prometheus.NewRegistry())
	c := Default()
	c.Sites = []SiteConfig{{Name: "shop.example", Pool: PoolConfig{Workers: 25}}, {Name: "unknown-pool.example"}}
	m.declare(c)
	var invented []func(r *pipeline.Record)
	for i := range 3 * shownSites {
		invented = append(invented, func(r *pipeline.Record) { r.Site = fmt.Sprintf("invented-%d.example", i) })
	}
	p := paneOf(t, invented...)
	m.count(p)
	m.count(paneOf(t, func(r *pipeline.Record) {}))
	if n, each := testutil.CollectAndCount(m.limited), int(pipeline.Origins); n != (shownSites+3)*each { // two of the configuration, and the rest
		t.Errorf("%d series", n)
	}
	check(t, "the rest", testutil.ToFloat64(m.requests.WithLabelValues(pane.Other, "GET", "external")), 2.0*shownSites)
	check(t, "of the configuration", testutil.ToFloat64(m.requests.WithLabelValues("shop.example", "GET", "external")), 1.0)
	check(t, "pool", testutil.ToFloat64(m.pool.WithLabelValues("shop.example")), 25.0)
	check(t, "pools", testutil.CollectAndCount(m.pool), 1)

	m.show([]detectors.Detection{{Detector: "head_storm", Labels: detectors.Labels{{Name: "site", Value: "shop.example"}}}},
		[]alerts.Alert{{Name: "HeadStorm", Severity: alerts.Warning, Labels: detectors.Labels{{Name: "site", Value: "shop.example"}}}})
	check(t, "detection", testutil.ToFloat64(m.detections.WithLabelValues("head_storm", "shop.example")), 1.0)
	check(t, "alert", testutil.ToFloat64(m.firing.WithLabelValues("HeadStorm", "warning", "shop.example", "")), 1.0)
	m.show(nil, nil)
	check(t, "alerts after the storm", testutil.CollectAndCount(m.firing), 0)
	check(t, "detections after the storm", testutil.CollectAndCount(m.detections), len(detectors.Names()))
}

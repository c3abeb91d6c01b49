package main

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// shownSites bounds the sites that are not configured and have series of their own; the rest count as pane.Other.
// Whoever sends a Host header invents a site: those of the configuration always have theirs.
const shownSites = 100

var (
	shownMethods = []string{"GET", "HEAD", "POST", otherMethod}
	cacheNames   = [...]string{
		"none", "hit", "miss", "expired", "stale", "updating", "revalidated", "bypass", "refresh_hit",
	}
	// durationBounds are the upper bounds of the durations' buckets. The higher ones are where clients, balancers
	// and pools give up.
	durationBounds = []time.Duration{
		50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
		2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute,
	}
)

const otherMethod = "other"

// siteMetrics are what dashboards show of sites: what the closed panes counted. They go on over reloads. Health
// checks are in none of them but their own.
type siteMetrics struct {
	requests, abandoned, limited *prometheus.CounterVec
	responses, upstream, cache   *prometheus.CounterVec
	workerSeconds, probes        *prometheus.CounterVec
	events                       *prometheus.CounterVec
	pool, detections, firing     *prometheus.GaugeVec
	durations                    *durations

	mu       sync.Mutex
	declared map[string]bool // sites of the configuration
	shown    map[string]bool // the others that have series
}

func newSiteMetrics(reg prometheus.Registerer) *siteMetrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "squall_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "squall_" + name, Help: help}, labels)
		reg.MustRegister(g)
		return g
	}
	m := &siteMetrics{
		requests:      counter("site_requests_total", "Requests of evaluated panes, by who sent them: own, allowed or external.", "site", "method", "origin"),
		abandoned:     counter("site_abandoned_total", "Requests whose client gave up.", "site", "method"),
		limited:       counter("site_limited_total", "Requests that a limiter refused.", "site", "origin"),
		responses:     counter("site_responses_total", "Requests by class of status; none: nothing was sent.", "site", "class"),
		upstream:      counter("site_upstream_total", "Requests by whether an upstream was reached: yes, no, or unknown.", "site", "reached"),
		cache:         counter("site_cache_total", "Requests by what a cache did; none: the log does not say.", "site", "status"),
		workerSeconds: counter("site_worker_seconds_total", "Time for which workers of the origin were held, at least (lower) and at most (upper). Its rate is the mean number of busy workers.", "site", "method", "bound"),
		probes:        counter("site_probes_total", "Health checks, by whether an upstream was reached.", "site", "reached"),
		events:        counter("events_total", "What logs told beside requests, by kind: restarts, failed probes, killed workers.", "kind"),
		pool:          gauge("origin_pool_workers", "Workers of a site's origin as configured (pool.workers).", "site"),
		detections:    gauge("detections_active", "Detections that are active, by detector and site; the cluster's have no site.", "detector", "site"),
		firing:        gauge("alert_firing", "1 for each alert that fires.", "alertname", "severity", "site", "cluster"),
		durations:     newDurations(),
		declared:      map[string]bool{}, shown: map[string]bool{},
	}
	reg.MustRegister(m.durations)
	for _, kind := range pipeline.EventKinds {
		m.events.WithLabelValues(string(kind))
	}
	return m
}

// declare makes the configured sites known, each with its series at 0.
func (m *siteMetrics) declare(c *Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pool.Reset()
	clear(m.declared)
	for _, s := range c.Sites {
		m.declared[s.Name] = true
		m.zero(s.Name)
		if s.Pool.Workers > 0 {
			m.pool.WithLabelValues(s.Name).Set(float64(s.Pool.Workers))
		}
	}
}

// zero makes the series of a site.
func (m *siteMetrics) zero(site string) {
	for _, method := range shownMethods {
		for o := range pipeline.Origins {
			m.requests.WithLabelValues(site, method, o.String())
		}
		m.abandoned.WithLabelValues(site, method)
		m.workerSeconds.WithLabelValues(site, method, "lower")
		m.workerSeconds.WithLabelValues(site, method, "upper")
	}
	for o := range pipeline.Origins {
		m.limited.WithLabelValues(site, o.String())
	}
	for n := range 6 {
		m.responses.WithLabelValues(site, statusClass(n))
	}
	for _, reached := range []string{"yes", "no", "unknown"} {
		m.upstream.WithLabelValues(site, reached)
		m.probes.WithLabelValues(site, reached)
	}
	for _, status := range cacheNames {
		m.cache.WithLabelValues(site, status)
	}
	m.durations.add(site, &pane.Quantiles{})
}

// statusClass is 2xx for 2, and none for 0.
func statusClass(n int) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(n) + "xx"
}

// label is the site under which a site is shown.
func (m *siteMetrics) label(site string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if site == "" || m.declared[site] || m.shown[site] {
		return site
	}
	if len(m.shown) >= shownSites {
		if site = pane.Other; m.shown[site] {
			return site
		}
	}
	m.shown[site] = true
	m.zero(site)
	return site
}

// count adds what a closed pane counted.
func (m *siteMetrics) count(p *pane.Pane) {
	for _, name := range slices.Sorted(maps.Keys(p.Sites)) {
		site := m.label(name)
		var took pane.Quantiles
		for k, c := range p.Sites[name].All() {
			if k.Probe {
				reached(m.probes, site, c)
				continue
			}
			m.cell(site, k, c)
			took.Merge(&c.Latency)
		}
		m.durations.add(site, &took)
	}
	for i := range p.Events {
		m.events.WithLabelValues(string(p.Events[i].Kind)).Inc()
	}
}

func (m *siteMetrics) cell(site string, k pane.Key, c *pane.Cell) {
	method := k.Method
	if !slices.Contains(shownMethods, method) {
		method = otherMethod
	}
	origin := k.Origin.String()
	m.requests.WithLabelValues(site, method, origin).Add(float64(c.Requests))
	m.abandoned.WithLabelValues(site, method).Add(float64(c.Abandoned))
	m.limited.WithLabelValues(site, origin).Add(float64(c.Limited))
	for n := range 6 {
		if of := c.Codes.Class(n); of > 0 {
			m.responses.WithLabelValues(site, statusClass(n)).Add(float64(of))
		}
	}
	reached(m.upstream, site, c)
	for status, n := range c.Cache {
		if n > 0 {
			m.cache.WithLabelValues(site, cacheNames[status]).Add(float64(n))
		}
	}
	lower, upper := c.Busy.Total()
	m.workerSeconds.WithLabelValues(site, method, "lower").Add(max(0, time.Duration(lower).Seconds()))
	m.workerSeconds.WithLabelValues(site, method, "upper").Add(max(0, time.Duration(upper).Seconds()))
}

func reached(v *prometheus.CounterVec, site string, c *pane.Cell) {
	v.WithLabelValues(site, "yes").Add(float64(c.Reached))
	v.WithLabelValues(site, "no").Add(float64(c.NotReached))
	v.WithLabelValues(site, "unknown").Add(float64(c.Requests - c.Reached - c.NotReached))
}

// show replaces what is detected and what fires.
func (m *siteMetrics) show(found []detectors.Detection, firing []alerts.Alert) {
	m.detections.Reset()
	for _, name := range detectors.Names() {
		m.detections.WithLabelValues(name, "")
	}
	for i := range found {
		m.detections.WithLabelValues(found[i].Detector, m.label(found[i].Labels.Get("site"))).Inc()
	}
	m.fire(firing)
}

// fire replaces what fires.
func (m *siteMetrics) fire(firing []alerts.Alert) {
	m.firing.Reset()
	for i := range firing {
		a := &firing[i]
		m.firing.WithLabelValues(a.Name, string(a.Severity), m.label(a.Labels.Get("site")), a.Labels.Get("cluster")).Set(1)
	}
}

// durations is a histogram of how long requests took, made of the panes' sketches: a bucket's edge is exact to 1 %.
type durations struct {
	desc *prometheus.Desc

	mu    sync.Mutex
	sites map[string]*spread
}

// spread is the histogram of one site.
type spread struct {
	count  uint64
	sum    float64 // seconds
	within []uint64
}

func newDurations() *durations {
	return &durations{
		desc: prometheus.NewDesc("squall_site_request_duration_seconds",
			"How long requests took by their log, those that clients gave up included: a lower bound for them.", []string{"site"}, nil),
		sites: map[string]*spread{},
	}
}

func (d *durations) add(site string, q *pane.Quantiles) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sites[site]
	if s == nil {
		s = &spread{within: make([]uint64, len(durationBounds))}
		d.sites[site] = s
	}
	s.count += q.Count()
	s.sum += q.Sum()
	for i, bound := range durationBounds {
		s.within[i] += q.Count() - q.From(int64(bound)+1)
	}
}

// Describe implements prometheus.Collector.
func (d *durations) Describe(ch chan<- *prometheus.Desc) { ch <- d.desc }

// Collect implements prometheus.Collector.
func (d *durations) Collect(ch chan<- prometheus.Metric) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for site, s := range d.sites {
		buckets := make(map[float64]uint64, len(durationBounds))
		for i, bound := range durationBounds {
			buckets[bound.Seconds()] = s.within[i]
		}
		ch <- prometheus.MustNewConstHistogram(d.desc, s.count, s.sum, buckets, site)
	}
}

package alerts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/detectors"
)

// seen is a detection of a site, or of the cluster where the place is "cluster", with its onset in seconds.
func seen(detector, place string, onset int64, edit ...func(*detectors.Evidence)) detectors.Detection {
	name := "site"
	if place == "cluster" {
		name = place
	}
	d := detectors.Detection{Detector: detector, Labels: detectors.Labels{{Name: name, Value: place}}, Active: true, Onset: epoch + onset*second}
	for _, e := range edit {
		e(&d.Evidence)
	}
	return d
}

func ranges(names ...string) func(*detectors.Evidence) {
	return func(e *detectors.Evidence) {
		for _, n := range names {
			e.TopPrefixes = append(e.TopPrefixes, detectors.Count{Key: n, Count: 100})
		}
	}
}

func reached(ratio float64) func(*detectors.Evidence) {
	return func(e *detectors.Evidence) { e.ReachedUpstreamRatio = n(ratio) }
}

func inNamespaces(names ...string) func(*detectors.Evidence) {
	return func(e *detectors.Evidence) {
		for _, n := range names {
			e.Scope = append(e.Scope, detectors.Share{Kind: "namespace", Name: n, Count: 3, Coverage: detectors.N(0.5)})
		}
	}
}

var declaredSites = map[string]Site{
	"a.example": {Dependencies: map[string]string{"mysql": "db-3", "redis": "r-1"}, Namespaces: []string{"shop-a"}},
	"b.example": {Dependencies: map[string]string{"mysql": "db-3"}},
	"c.example": {Dependencies: map[string]string{"mysql": "db-9"}},
}

func correlated(lists ...[]detectors.Detection) *correlator {
	dropped := prometheus.NewCounter(prometheus.CounterOpts{Name: "dropped"})
	c := newCorrelator(func(s string) Site { return declaredSites[s] }, dropped)
	for i, list := range lists {
		c.observe(epoch+int64(i+6)*10*second, list, nil)
	}
	return c
}

// groups writes the incidents as sets of detections, and why they are apart.
func groups(c *correlator) string {
	var lines []string
	for _, o := range c.incidents {
		in := c.incident(o)
		var members []string
		for _, m := range in.Members {
			text := m.Detector + "@" + m.Labels[0].Value
			if m.After != "" {
				text += "<" + m.After
			}
			members = append(members, text)
		}
		line := strings.Join(members, " ")
		for _, a := range in.Apart {
			line += " | " + a.Because
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestIncidents(t *testing.T) {
	self, refused := seen("self_loop", "a.example", 0), seen("ratelimit_backfire", "a.example", 10)
	broken, burst := seen("error_burst", "a.example", 10), seen("restart_burst", "cluster", 30, inNamespaces("shop-x", "monitoring"))
	for name, c := range map[string]struct {
		list []detectors.Detection
		want string
	}{
		"one site is one incident, in the order of what leads to what": {
			[]detectors.Detection{broken, refused, self},
			"self_loop@a.example ratelimit_backfire@a.example<self_loop error_burst@a.example<ratelimit_backfire",
		},
		"the same time joins nothing": {
			[]detectors.Detection{self, burst},
			"restart_burst@cluster | no container of a.example (namespace shop-a) is among those that restart_burst names\n" +
				"self_loop@a.example | no container of a.example (namespace shop-a) is among those that restart_burst names",
		},
		"a site whose containers are restarted after their probes failed": {
			[]detectors.Detection{seen("probe_failure", "a.example", 0), seen("restart_burst", "cluster", 60, inNamespaces("shop-a"))},
			"probe_failure@a.example restart_burst@cluster<probe_failure",
		},
		"sites that hurt and depend on one database": {
			[]detectors.Detection{seen("latency", "a.example", 0), seen("latency", "b.example", 0), seen("latency", "c.example", 0)},
			"latency@a.example latency@b.example | different sites (a.example, c.example); they depend on different things\n" +
				"latency@c.example | different sites (a.example, c.example); they depend on different things",
		},
		"a storm does not travel along a dependency": {
			[]detectors.Detection{seen("head_storm", "a.example", 0), seen("head_storm", "b.example", 0)},
			"head_storm@a.example | different sites (a.example, b.example); they share mysql db-3, but a storm does not travel along it\n" +
				"head_storm@b.example | different sites (a.example, b.example); they share mysql db-3, but a storm does not travel along it",
		},
		"a storm that is answered in front leads to nothing": {
			[]detectors.Detection{seen("head_storm", "a.example", 0, reached(0.04)), seen("saturation", "a.example", 60), seen("latency", "a.example", 70)},
			"head_storm@a.example saturation@a.example latency@a.example<saturation",
		},
		"a storm that reaches the origin leads to saturation": {
			[]detectors.Detection{seen("head_storm", "a.example", 0, reached(0.06)), seen("saturation", "a.example", 60)},
			"head_storm@a.example saturation@a.example<head_storm",
		},
		"storms of the same address ranges": {
			[]detectors.Detection{seen("head_storm", "x.example", 0, ranges("20.1.7.0/24", "20.1.8.0/24")), seen("head_storm", "y.example", 20, ranges("20.1.8.0/24", "20.1.7.0/24"))},
			"head_storm@x.example head_storm@y.example",
		},
		"storms of other address ranges": {
			[]detectors.Detection{seen("head_storm", "x.example", 0, ranges("20.1.7.0/24", "20.1.8.0/24", "20.1.9.0/24")), seen("head_storm", "y.example", 20, ranges("20.1.9.0/24", "40.1.7.0/24", "40.2.7.0/24"))},
			"head_storm@x.example | different sites (x.example, y.example); no dependency that they share is declared; 33.3 % of the requests come from address ranges of both\n" +
				"head_storm@y.example | different sites (x.example, y.example); no dependency that they share is declared; 33.3 % of the requests come from address ranges of both",
		},
		"restarts and killed requests of one cluster": {
			[]detectors.Detection{seen("worker_timeout", "cluster", 0), burst},
			"worker_timeout@cluster restart_burst@cluster<worker_timeout",
		},
	} {
		if got := groups(correlated(c.list)); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
		}
		slices.Reverse(c.list)
		if got := groups(correlated(c.list)); got != c.want {
			t.Errorf("%s, in another order:\n%s", name, got)
		}
	}
}

// What joins two incidents later makes one of them, under the name of the first.
func TestIncidentsAreBridged(t *testing.T) {
	storm := seen("head_storm", "x.example", 0, ranges("20.1.7.0/24"))
	slow := seen("latency", "y.example", 10)
	c := correlated([]detectors.Detection{slow, storm})
	if len(c.incidents) != 2 {
		t.Fatal(groups(c))
	}
	c.observe(epoch+90*second, []detectors.Detection{slow, storm, seen("head_storm", "y.example", 60, ranges("20.1.7.0/24"))}, nil)
	if got := groups(c); got != "head_storm@x.example latency@y.example head_storm@y.example" {
		t.Error(got)
	}
	if c.incidents["20260701T000000Z-x.example"] == nil {
		t.Errorf("%v", c.incidents)
	}
}

// The incident that was told first keeps its name, also where the other turns out to have begun before it; the other is
// told as merged, when and why, and is so after a restart.
func TestMergedIncidentsKeepTheFirstName(t *testing.T) {
	storm := seen("head_storm", "x.example", 40, ranges("20.1.7.0/24"))
	c := correlated([]detectors.Detection{storm}) // told at 60 s
	slow := seen("latency", "y.example", 10)      // noticed later, began earlier
	c.observe(epoch+70*second, []detectors.Detection{storm, slow}, nil)
	if len(c.incidents) != 2 {
		t.Fatal(groups(c))
	}
	var s snapshot
	c.observe(epoch+90*second, []detectors.Detection{slow, storm, seen("head_storm", "y.example", 60, ranges("20.1.7.0/24"))}, nil)
	s.At = c.at
	c.store(&s)
	restored := newCorrelator(c.site, c.dropped)
	restored.load(&s)
	for _, c := range []*correlator{c, restored} {
		in := c.of(&slow)
		if in == nil || in.ID != "20260701T000040Z-x.example" || in.StartsAt != epoch+10*second || len(in.Members) != 3 {
			t.Fatalf("%+v", in)
		}
		want := Merged{"20260701T000010Z-y.example", epoch + 90*second, "100 % of the requests come from address ranges of both"}
		if len(in.Merged) != 1 || in.Merged[0] != want {
			t.Errorf("%+v", in.Merged)
		}
		if text := in.text(); !strings.Contains(text, "\nmerged with 20260701T000010Z-y.example at 2026-07-01T00:01:30Z: 100 % of the requests") {
			t.Error(text)
		}
	}
	// What came together from the beginning has no other name.
	c = correlated([]detectors.Detection{storm, seen("head_storm", "y.example", 60, ranges("20.1.7.0/24"))})
	if in := c.of(&storm); len(in.Merged) > 0 {
		t.Errorf("%+v", in.Merged)
	}
}

// An incident goes on over a breath of its detections and ends with the last of them.
func TestIncidentsEnd(t *testing.T) {
	c := correlated([]detectors.Detection{seen("latency", "a.example", 0)})
	c.observe(epoch+120*second, nil, nil)
	c.observe(epoch+150*second, []detectors.Detection{seen("latency", "a.example", 130)}, nil)
	if len(c.incidents) != 1 || c.incidents["20260701T000000Z-a.example"] == nil {
		t.Errorf("a breath of 90 s: %v", c.incidents)
	}
	c.observe(epoch+280*second, nil, nil)
	if len(c.incidents)+len(c.nodes) != 0 {
		t.Errorf("over for 130 s: %v", c.incidents)
	}
	c.observe(epoch+300*second, []detectors.Detection{seen("latency", "a.example", 290)}, nil)
	if c.incidents["20260701T000450Z-a.example"] == nil {
		t.Errorf("another: %v", c.incidents)
	}
}

func TestCorrelationIsBounded(t *testing.T) {
	var list []detectors.Detection
	for i := range 2 * maxCorrelated {
		list = append(list, seen("head_storm", fmt.Sprintf("%04d.example", i), 0))
	}
	c := correlated(list)
	if len(c.nodes) != maxCorrelated || testutil.ToFloat64(c.dropped) != maxCorrelated {
		t.Errorf("%d kept, %v dropped", len(c.nodes), testutil.ToFloat64(c.dropped))
	}
	for _, o := range c.incidents {
		if in := c.incident(o); len(in.Apart) > maxApart {
			t.Fatalf("%d refusals told", len(in.Apart))
		}
		break
	}
}

func TestAlertsTellTheirIncident(t *testing.T) {
	a := raise(t, "StormHurting", result(stormDetections()...))
	if a.Incident == nil || a.Incident.ID != "20260701T000000Z-shop.example" {
		t.Fatalf("%+v", a.Incident)
	}
	if text := a.Annotations["incident"]; !strings.Contains(text, "client_abandon (after head_storm: clients give up behind the storm)") {
		t.Error(text)
	}
}

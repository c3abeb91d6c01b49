package simulate

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

// TestNothingHangsOnTheExample: another host, path, pool, rate, patience, zone and time give the same shape.
func TestNothingHangsOnTheExample(t *testing.T) {
	zone := time.FixedZone("-0330", -12600)
	for _, o := range []Options{
		{Host: "tickets.example.org", Path: "/unsubscribe/{id}", Pool: 60, Rate: 2.4, Seed: 3},
		{Host: "a.example.net", Path: "/e/{name}", Pool: 10, Rate: 0.4, Zone: zone, Start: time.Date(2027, 12, 31, 23, 55, 0, 0, time.UTC)},
		{Pool: 25, Patience: 5 * time.Second, PeoplePatience: 4 * time.Second, Seed: 99},
	} {
		o.Scenario = named(t, "S01")
		var log bytes.Buffer
		truth := simulate(t, o, &log)
		s := &truth.Sites[0]
		near(t, "L over ρ times the patience", s.PeakSystem/float64(s.PoolWorkers), 14.7*stormPatience(o)/10, 2)
		near(t, "p99", s.P99Seconds, stormPatience(o), 0.005)
		if lost := float64(s.StormOrganicLost) / float64(s.StormOrganic); lost < 0.94 || serverErrors(s) > 0 {
			t.Errorf("%.3f of the people lost, %d server errors", lost, serverErrors(s))
		}
		near(t, "tail in minutes", s.HarmEnd.Sub(*s.HeadsEnd).Minutes(), 3.5, 0.5)
		route, host := "/checkout/{id}", "shop.example"
		if o.Path != "" {
			route, host = o.Path, o.Host
		}
		if s.Site != host || share(s, "HEAD", route) < 0.85 || share(s, "GET", route) == 0 {
			t.Errorf("site %s: HEAD %s took %.2f, GET %.2f", s.Site, route, share(s, "HEAD", route), share(s, "GET", route))
		}
		first, _, _ := strings.Cut(log.String(), "\n")
		if !strings.Contains(first, ` host="`+host+`"`) || o.Zone != nil && !strings.Contains(first, " -0330]") {
			t.Errorf("first line %s", first)
		}
		if !o.Start.IsZero() && !truth.Start.Equal(o.Start) {
			t.Errorf("starts %s", truth.Start)
		}
	}
}

func stormPatience(o Options) float64 {
	if o.Patience > 0 {
		return o.Patience.Seconds()
	}
	return 10
}

// TestBacklogAndReclaim: a short backlog turns the stall into 502s, a proxy that drops who left spares the tail,
// and reclaiming stuck workers gives 502s too.
func TestBacklogAndReclaim(t *testing.T) {
	whole := simulate(t, Options{Scenario: named(t, "S01"), Seed: 1}, io.Discard).Sites[0]
	short := simulate(t, Options{Scenario: named(t, "S01"), Seed: 1, Backlog: 100}, io.Discard).Sites[0]
	if short.Refused == 0 || short.Refused != serverErrors(&short) || short.AbandonedPatience > whole.AbandonedPatience/10 {
		t.Errorf("backlog 100: %d refused, %d server errors, %d gave up", short.Refused, serverErrors(&short), short.AbandonedPatience)
	}
	drop := simulate(t, Options{Scenario: named(t, "S01"), Seed: 1, DropAbandoned: true}, io.Discard).Sites[0]
	if tail := drop.HarmEnd.Sub(*drop.HeadsEnd); tail > 30*time.Second || drop.WorkerSecs >= whole.WorkerSecs {
		t.Errorf("dropping who left: a tail of %s, %.0f worker-seconds of %.0f", tail, drop.WorkerSecs, whole.WorkerSecs)
	}
	killed := simulate(t, Options{Scenario: named(t, "S08"), Seed: 1, Reclaim: 3 * time.Second}, io.Discard).Sites[0]
	if killed.Reclaimed == 0 || killed.Reclaimed != killed.Requests["GET"][502] {
		t.Errorf("reclaim after 3 s: %d killed, %v", killed.Reclaimed, killed.Requests)
	}
	for _, busy := range killed.BusyService {
		if busy > 25.001 {
			t.Errorf("%.3f workers busy", busy)
		}
	}
}

// TestEdge: what the edge answers is not in nginx's log; an ALB with a firewall shows it without a target.
func TestEdge(t *testing.T) {
	nginx := simulate(t, Options{Scenario: named(t, "S01"), Layer: Edge}, io.Discard).Sites[0]
	if len(nginx.Requests["HEAD"]) != 0 || nginx.AnsweredBy[Edge] != 14000 || nginx.Abandoned != 0 {
		t.Errorf("nginx: HEADs %v, answered by %v, %d gave up", nginx.Requests["HEAD"], nginx.AnsweredBy, nginx.Abandoned)
	}
	var log bytes.Buffer
	simulate(t, Options{Scenario: named(t, "S01"), Layer: Edge, Format: "alb"}, &log)
	near(t, "blocked lines", float64(strings.Count(log.String(), ` "waf" `)), 14000, 0)
}

// TestTwoSites keep apart: the storm of one does not change the other.
func TestTwoSites(t *testing.T) {
	calm := shop()
	calm.Host = "blog.example"
	alone := Scenario{Name: "two", Start: day(2026, 1, 2, 3), Duration: 10 * minute, Sites: []Site{shop(), calm}}
	stormy := alone
	stormy.Sites = []Site{shop(), calm}
	stormy.Sites[0].Storms = []Storm{checkoutHeads(minute, 3*minute, 6000, cart)}
	a := simulate(t, Options{Scenario: alone, Seed: 1}, io.Discard)
	b := simulate(t, Options{Scenario: stormy, Seed: 1}, io.Discard)
	if a.Sites[1].WorkerSecs != b.Sites[1].WorkerSecs || a.Sites[1].Arrivals != b.Sites[1].Arrivals || b.Sites[1].Abandoned != 0 {
		t.Errorf("the neighbour had %.3f worker-seconds, with the storm %.3f", a.Sites[1].WorkerSecs, b.Sites[1].WorkerSecs)
	}
	if b.Sites[0].Abandoned == 0 {
		t.Error("the storm hurt nobody")
	}
}

package simulate

import (
	"bytes"
	"io"
	"math"
	"testing"
	"time"
)

// seeds are few, so that the tests are quick, and more than one, so that no number hangs on a seed.
var seeds = []uint64{1, 2, 20260602}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: %.4g, want %.4g ± %.2g", what, got, want, tolerance)
	}
}

// mean is the mean of panes in [from, to), offsets from the start.
func mean(panes []float64, from, to time.Duration) float64 {
	lo, hi := int(from/(PaneSeconds*time.Second)), int(to/(PaneSeconds*time.Second))
	sum := 0.0
	for _, v := range panes[lo:hi] {
		sum += v
	}
	return sum / float64(hi-lo)
}

func serverErrors(s *SiteTruth) int {
	n := 0
	for _, by := range s.Requests {
		for status, count := range by {
			if status >= 500 && status < 600 {
				n += count
			}
		}
	}
	return n
}

// share is the part of the worker-seconds that went to a method and route.
func share(s *SiteTruth, method, route string) float64 {
	for _, r := range s.WorkerRoutes {
		if r.Method == method && r.Route == route {
			return r.Seconds / s.WorkerSecs
		}
	}
	return 0
}

func TestFirstIncident(t *testing.T) {
	for _, seed := range seeds {
		truth := simulate(t, Options{Scenario: named(t, "S01"), Format: "alb", Seed: seed}, io.Discard)
		s := &truth.Sites[0]
		near(t, "abandoned", float64(s.Abandoned), 15912, 200)
		near(t, "460 lines", float64(s.Requests["HEAD"][460]+s.Requests["GET"][460]+s.Requests["POST"][460]), float64(s.Abandoned), 0)
		near(t, "5xx", float64(serverErrors(s)), 0, 0)
		near(t, "p99", s.P99Seconds, 10, 0.005)
		near(t, "L over the pool", mean(s.BusySystem, 6*minute, 12*minute)/25, 14.7, 0.3)
		near(t, "busy workers", mean(s.BusyService, 6*minute, 15*minute), 25, 0.01)
		near(t, "organic given up during the storm", float64(s.StormOrganicLost)/float64(s.StormOrganic), 0.97, 0.015)
		near(t, "tail in minutes", s.HarmEnd.Sub(*s.HeadsEnd).Minutes(), 3.5, 0.35)
		near(t, "storm in minutes", s.HeadsEnd.Sub(*s.Onset).Minutes(), 7, 0.01)
		heads := 0
		for _, n := range s.Requests["HEAD"] {
			heads += n
		}
		near(t, "HEADs", float64(heads), 14000, 0)
		if got := share(s, "HEAD", "/checkout/{id}"); got < 0.85 {
			t.Errorf("the HEADs took %.3f of the worker-seconds", got)
		}
		for _, m := range s.Minutes {
			if at := m.Start.Sub(truth.Start); at >= 6*minute && at < 12*minute {
				near(t, "p99 of "+m.Start.String(), m.P99Seconds, 10, 0.005)
			}
		}
	}
}

// TestFirstIncidentAnsweredByNginx: the same arrivals cost nothing.
func TestFirstIncidentAnsweredByNginx(t *testing.T) {
	for _, seed := range seeds {
		s := simulate(t, Options{Scenario: named(t, "S01"), Layer: Nginx, Seed: seed}, io.Discard).Sites[0]
		near(t, "abandoned", float64(s.Abandoned), 0, 0)
		near(t, "p99", s.P99Seconds, 0.4, 0.1)
		near(t, "L over the pool", mean(s.BusySystem, 5*minute, 12*minute)/25, 0.04, 0.005)
		if got := share(&s, "HEAD", "/checkout/{id}"); got != 0 {
			t.Errorf("the HEADs took %.3f of the worker-seconds", got)
		}
	}
}

func TestShortCircuitInPHP(t *testing.T) {
	for _, seed := range seeds {
		s := simulate(t, Options{Scenario: named(t, "S02"), Seed: seed}, io.Discard).Sites[0]
		near(t, "HEADs", float64(s.Requests["HEAD"][200]+s.Requests["HEAD"][499]), 15600, 0)
		near(t, "erlang of the HEADs", share(&s, "HEAD", "/checkout/{id}")*s.WorkerSecs/60, 39, 0.3)
		near(t, "busy workers", mean(s.BusyService, 5*minute+10*time.Second, 6*minute), 25, 0.01)
		near(t, "5xx", float64(serverErrors(&s)), 0, 0)
		if s.AbandonedPatience < 5000 || s.HarmEnd.Sub(*s.FirstHurt) < 45*time.Second {
			t.Errorf("%d gave up from %s to %s: no stall of a minute", s.AbandonedPatience, s.FirstHurt, s.HarmEnd)
		}
	}
}

func TestShortCircuitInNginx(t *testing.T) {
	var log bytes.Buffer
	truth := simulate(t, Options{Scenario: named(t, "S03"), Seed: 20}, &log)
	heads, short := 0, 0
	for line := range bytes.Lines(log.Bytes()) {
		if !bytes.Contains(line, []byte(`] "HEAD /checkout/`)) {
			continue
		}
		heads++
		tail := ` uaddr="-" us="-" urt="-" ul="-" cs=- lrs=-` + "\n"
		if bytes.HasSuffix(line, []byte(" rt=0.002"+tail)) || bytes.HasSuffix(line, []byte(" rt=0.003"+tail)) {
			short++
		}
	}
	s := truth.Sites[0]
	near(t, "HEADs", float64(heads), 92000, 0)
	near(t, "answered by nginx in about 2 ms", float64(short), 92000, 0)
	near(t, "with 200", float64(s.Requests["HEAD"][200]), 92000, 0)
	near(t, "abandoned", float64(s.Abandoned), 0, 0)
	near(t, "worker-seconds of the HEADs", share(&s, "HEAD", "/checkout/{id}"), 0, 0)
}

func TestExpensiveCrawl(t *testing.T) {
	for _, seed := range seeds {
		truth := simulate(t, Options{Scenario: named(t, "S08"), Seed: seed}, io.Discard)
		s := truth.Sites[0]
		arrivals := 0
		for _, r := range s.WorkerRoutes {
			arrivals += r.Arrivals
		}
		near(t, "requests a minute", float64(7200+s.StormOrganic)/15, 600, 15)
		near(t, "busy workers", mean(s.BusyService, 11*minute, 25*minute), 25, 0.1)
		near(t, "arrivals by route", float64(arrivals), float64(s.Arrivals), 0)
		if s.AbandonedPatience < 1000 || s.HarmEnd.Sub(*s.FirstHurt) < 14*minute {
			t.Errorf("%d gave up from %s to %s: no stall of 15 minutes", s.AbandonedPatience, s.FirstHurt, s.HarmEnd)
		}
	}
}

func TestBiggerStormNoStall(t *testing.T) {
	for _, seed := range seeds {
		truth := simulate(t, Options{Scenario: named(t, "S09"), Seed: seed}, io.Discard)
		s := truth.Sites[0]
		near(t, "requests a minute", float64(truth.Lines)/15, 2281, 15)
		near(t, "p99", s.P99Seconds, 1.13, 0.03)
		near(t, "abandoned", float64(s.Abandoned), 7, 0)
		near(t, "given up because slow", float64(s.AbandonedPatience), 0, 0)
		if l := s.PeakSystem / 25; l >= 0.8 {
			t.Errorf("the pool reached %.2f", l)
		}
	}
}

// TestHalvesOfTheComposite: five blips and five slow nights, and never both.
func TestHalvesOfTheComposite(t *testing.T) {
	for _, seed := range seeds[:1] {
		s := simulate(t, Options{Scenario: named(t, "S11"), Seed: seed}, io.Discard).Sites[0]
		blips, nights := episodes(s.Minutes, func(m MinuteTruth) bool {
			return m.Abandoned >= 20 && float64(m.Abandoned) >= 0.05*float64(m.Lines)
		}), episodes(s.Minutes, func(m MinuteTruth) bool { return m.P99Seconds >= 5 })
		near(t, "bursts of clients that leave", float64(len(blips)), 5, 0)
		near(t, "slow nights", float64(len(nights)), 5, 0)
		for _, b := range blips {
			for _, n := range nights {
				if b.Sub(n).Abs() < time.Hour {
					t.Errorf("a blip at %s and a slow night at %s: they meet", b, n)
				}
			}
		}
		near(t, "given up because slow", float64(s.AbandonedPatience), 0, 0)
		near(t, "abandoned", float64(s.Abandoned), 350, 0)
	}
}

// episodes gives the starts of runs of minutes that hold, with less than ten minutes between.
func episodes(minutes []MinuteTruth, holds func(MinuteTruth) bool) []time.Time {
	var starts []time.Time
	var last time.Time
	for _, m := range minutes {
		if !holds(m) {
			continue
		}
		if m.Start.Sub(last) > 10*minute {
			starts = append(starts, m.Start)
		}
		last = m.Start
	}
	return starts
}

// TestQuietControls: nothing in them hurts anybody.
func TestQuietControls(t *testing.T) {
	for _, name := range []string{"quiet_day", "uptime_monitor", "flash_sale"} {
		for _, seed := range seeds[:1] {
			truth := simulate(t, Options{Scenario: named(t, name), Seed: seed}, io.Discard)
			s := &truth.Sites[0]
			if s.AbandonedPatience != 0 || s.FirstHurt != nil || serverErrors(s) != 0 {
				t.Errorf("%s: %d gave up, %d server errors", name, s.AbandonedPatience, serverErrors(s))
			}
			if l := s.PeakSystem / float64(s.PoolWorkers); l >= 0.6 {
				t.Errorf("%s: the pool reached %.2f", name, l)
			}
			if truth.Lines > 400_000 {
				t.Errorf("%s: %d lines", name, truth.Lines)
			}
			for _, m := range s.Minutes {
				if m.Abandoned >= 20 || m.P99Seconds >= 2 {
					t.Errorf("%s at %s: %d abandoned, p99 %.3f s", name, m.Start, m.Abandoned, m.P99Seconds)
				}
			}
		}
	}
}

// TestDailyRhythm: three in the afternoon, local time, is the busiest hour; the night is not.
func TestDailyRhythm(t *testing.T) {
	zone := time.FixedZone("+0900", 9*3600)
	s := named(t, "quiet_day")
	s.Sites[0].Organic.Surges, s.Sites[0].Monitors = nil, nil
	truth := simulate(t, Options{Scenario: s, Seed: 4, Zone: zone, Rate: 0.3}, io.Discard)
	var hours [24]int
	for _, m := range truth.Sites[0].Minutes {
		hours[m.Start.In(zone).Hour()] += m.Lines
	}
	ratio := float64(hours[14]+hours[15]) / float64(hours[2]+hours[3])
	near(t, "day over night", ratio, 1.7/0.3, 1.2)
}

// TestSaleIsTenfold: and the agents stay below what a person's agent reaches.
func TestSaleIsTenfold(t *testing.T) {
	var log bytes.Buffer
	truth := simulate(t, Options{Scenario: named(t, "flash_sale"), Seed: 9}, &log)
	minutes := truth.Sites[0].Minutes
	near(t, "sale over calm", float64(minutes[25].Lines)/float64(minutes[5].Lines), 10, 2)
	agents := map[string]int{}
	for line := range bytes.Lines(log.Bytes()) {
		f := bytes.Split(line, []byte{'"'})
		agents[string(f[5])]++
	}
	for agent, n := range agents {
		if perMinute := float64(n) / 20; perMinute > 111 {
			t.Errorf("%.0f a minute of %s", perMinute, agent)
		}
	}
}

func TestUptimeMonitors(t *testing.T) {
	s := simulate(t, Options{Scenario: named(t, "uptime_monitor"), Seed: 1}, io.Discard).Sites[0]
	want := map[string]float64{"HEAD /": 12, "HEAD /events/1": 60, "HEAD /health": 375, "GET /health": 353}
	for _, r := range s.WorkerRoutes {
		if perMinute, ok := want[r.Method+" "+r.Route]; ok {
			near(t, r.Method+" "+r.Route+" a minute", float64(r.Arrivals)/60, perMinute, 1)
			delete(want, r.Method+" "+r.Route)
		}
	}
	if len(want) > 0 {
		t.Errorf("never asked: %v", want)
	}
	alb := simulate(t, Options{Scenario: named(t, "uptime_monitor"), Format: "alb", Seed: 1}, io.Discard).Sites[0]
	near(t, "HEADs in the ALB's log, a minute", float64(alb.Requests["HEAD"][200])/60, 72, 1)
}

// TestDemo is quiet for ten minutes, hurts, and recovers before its end.
func TestDemo(t *testing.T) {
	truth := simulate(t, Options{Scenario: named(t, "demo"), Seed: 1}, io.Discard)
	s := truth.Sites[0]
	near(t, "onset in minutes", s.Onset.Sub(truth.Start).Minutes(), 10, 0.1)
	if left := truth.End.Sub(*s.HarmEnd); left < 3*minute {
		t.Errorf("the demo ends %s after the harm", left)
	}
	if s.FirstHurt.Before(*s.Onset) || s.HarmEnd.Before(*s.HeadsEnd) {
		t.Errorf("hurt from %s to %s, storm from %s to %s", s.FirstHurt, s.HarmEnd, s.Onset, s.HeadsEnd)
	}
}

package detectors

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// limiting is a line of nginx's error log.
func limiting(at int64, zone, host string, excess float64) pipeline.Event {
	return pipeline.Event{
		Time: base + at*second, Kind: pipeline.LimitRequest, Reason: "limited", Zone: zone, Host: host, Excess: excess, Client: "203.0.113.9",
	}
}

func phpKilled(at int64, ran float64) pipeline.Event {
	return pipeline.Event{
		Time: base + at*second, Kind: pipeline.PHPTimeout, Pool: "www", PID: 120, Script: "/app/public/index.php", Request: "GET /index.php", Seconds: ran,
	}
}

func probeFailed(at int64, pod, kind string) pipeline.Event {
	return pipeline.Event{
		Time: base + at*second, Kind: pipeline.ProbeFailed, Namespace: "ns-" + pod[:1], Pod: pod, Container: "app", Probe: kind, Message: "context deadline exceeded",
	}
}

// elsewhere is traffic of another site.
func elsewhere(_ int, r *pipeline.Record) { r.Site = "other.example" }

// refuse makes a limiter's answer of a request.
func refuse(r *pipeline.Record) {
	r.Status, r.Limited, r.Reached, r.UpstreamTime, r.RequestTime, r.Start = 429, true, pipeline.No, pipeline.Unknown, 0, r.End
}

// office is an allowed address with many people behind it, one in some of whose requests is refused.
func office(limited int) func(int, *pipeline.Record) {
	return func(i int, r *pipeline.Record) {
		r.Origin, r.Route, r.Path, r.Client = pipeline.Allowed, "/lists", []byte("/lists"), netip.MustParseAddr("192.0.2.8")
		r.UserAgent = fmt.Appendf(nil, "Mozilla/5.0 (%d)", i%61%60)
		if i%limited == 0 {
			refuse(r)
		}
	}
}

// styled is a style sheet, of many visitors.
func styled(query string, refused bool) func(int, *pipeline.Record) {
	return func(i int, r *pipeline.Record) {
		r.Route, r.Path, r.Static = "/assets/a.css", []byte("/assets/a.css"), true
		r.Client = netip.AddrFrom4([4]byte{198, 18, 7, byte(i)})
		r.Reached, r.UpstreamTime = pipeline.No, pipeline.Unknown
		if query != "" {
			r.Query = []byte(query)
		}
		if refused {
			refuse(r)
		}
	}
}

func refusedPage(i int, r *pipeline.Record) {
	r.Route, r.Path = "/login", []byte("/login")
	r.Client = netip.AddrFrom4([4]byte{198, 18, 8, byte(i)})
	refuse(r)
}

// probing is a health check that the application answers after d seconds.
func probing(d int64, status uint16) func(int, *pipeline.Record) {
	return func(i int, r *pipeline.Record) {
		probe(i, r)
		slow(d)(i, r)
		r.Status = status
	}
}

func answering(status uint16) func(int, *pipeline.Record) {
	return func(_ int, r *pipeline.Record) { r.Route, r.Path, r.Status = "/lists", []byte("/lists"), status }
}

// protection are the detectors of this file with what makes them fire, at a rate, in a minute.
var protection = []struct {
	detector  string
	threshold float64 // a minute
	edit      func(int, *pipeline.Record)
	event     func(at int64) pipeline.Event // instead
	settings  []Setting
}{
	{"ratelimit_backfire", 10, office(1), nil, nil},
	{"error_burst", 20, answering(500), nil, nil},
	{"probe_failure", 20, probing(4, 200), nil, []Setting{{
		Name: "probe_failure", Decode: func(v any) error { v.(*probeFailure).Count = 20; return nil }, // so few as 3 tremble by a third
	}}},
	{"worker_timeout", 3, nil, func(at int64) pipeline.Event { return phpKilled(at, 30) }, nil},
}

// TestHoldsBetweenTheThresholds: a rate that falls to seven tenths of the threshold goes on, and a rate that never
// reaches it does not begin; what trembles is one episode.
func TestHoldsBetweenTheThresholds(t *testing.T) {
	for _, c := range protection {
		t.Run(c.detector, func(t *testing.T) {
			t.Parallel()
			play := func(parts ...float64) (begun, over int) {
				s := stage{length: 300 * int64(len(parts)+1), cfg: Config{Settings: c.settings}}
				s.flows = append(s.flows, flow{0, s.length, 60, nil})
				for i, share := range parts {
					from, rate := 300*int64(i), c.threshold*share
					if c.event == nil {
						s.flows = append(s.flows, flow{from, from + 300, rate, c.edit})
						continue
					}
					for k := range int64(math.Floor(5 * rate)) {
						s.events = append(s.events, c.event(from+k*300/int64(math.Floor(5*rate))))
					}
				}
				changes, _ := s.play(t)
				for _, d := range changes {
					switch {
					case d.Detector != c.detector:
					case d.Active:
						begun++
					default:
						over++
						if at := (d.Until - base) / second; len(parts) > 1 && at < 300*int64(len(parts)) {
							t.Errorf("over at second %d", at)
						}
					}
				}
				return begun, over
			}
			if begun, over := play(1.4, 0.7, 1.4, 0.7); begun != 1 || over != 1 {
				t.Errorf("%d episodes begun and %d over, not one", begun, over)
			}
			if begun, _ := play(0.7); begun != 0 {
				t.Error("it begins below its threshold")
			}
		})
	}
}

// TestSitesAreJudgedApart: what happens on one site is said of it alone, with its numbers, and its own settings hold.
func TestSitesAreJudgedApart(t *testing.T) {
	for _, c := range protection {
		if c.edit == nil {
			continue
		}
		t.Run(c.detector, func(t *testing.T) {
			t.Parallel()
			on := func(site string) func(int, *pipeline.Record) {
				return func(i int, r *pipeline.Record) {
					c.edit(i, r)
					r.Site = site
				}
			}
			s := stage{length: 900, cfg: Config{Settings: c.settings}, flows: []flow{
				{0, 900, 60, nil}, {0, 900, 60, elsewhere}, {300, 600, 6 * c.threshold, on("b.example")}, {400, 600, 3 * c.threshold, on("a.example")},
			}}
			changes, _ := s.play(t)
			got := map[string]float64{}
			for _, d := range changes {
				if d.Detector == c.detector && !d.Active {
					got[d.Labels.String()] = d.Evidence.Requests.Get()
				}
			}
			want := map[string]float64{`{site="a.example"}`: 10 * c.threshold, `{site="b.example"}`: 30 * c.threshold}
			if len(got) != len(want) {
				t.Fatalf("got %v, want %v", got, want)
			}
			for k, n := range want {
				if got[k] != n {
					t.Errorf("%s: %v requests, want %v", k, got[k], n)
				}
			}
		})
	}
}

// TestClusterIsJudgedOnce: a site with settings of its own does not make the cluster's failed probes count twice.
func TestClusterIsJudgedOnce(t *testing.T) {
	s := stage{
		length: 900, flows: []flow{organic},
		events: pods(40, func(i int) pipeline.Event { return probeFailed(600+int64(i), fmt.Sprintf("a%d", i%8), "Liveness") }),
		cfg: Config{Settings: []Setting{{Name: "probe_failure", Sites: map[string]func(any) error{
			"shop.example": func(v any) error { v.(*probeFailure).Count = 9; return nil },
		}}}},
	}
	changes, _ := s.play(t)
	n := 0
	for _, d := range changes {
		if d.Detector == "probe_failure" {
			n++
			if d.Labels.String() != `{cluster="default"}` {
				t.Error(d.Labels)
			}
		}
	}
	if n != 2 {
		t.Errorf("%d changes, not one beginning and one end", n)
	}
}

// TestKillBudgetIsConfigured: what the pod says of its probe is taken from the configuration before it is guessed.
func TestKillBudgetIsConfigured(t *testing.T) {
	s := stage{length: 900, flows: []flow{organic, {300, 600, 12, probing(4, 200)}}, cfg: Config{Settings: []Setting{{
		Name: "probe_failure", Decode: func(v any) error {
			v.(*probeFailure).Period, v.(*probeFailure).FailureThreshold = 30*1e9, 3
			return nil
		},
	}}}}
	changes, _ := s.play(t)
	i := slices.IndexFunc(changes, func(d Detection) bool { return d.Detector == "probe_failure" })
	if i < 0 || changes[i].Evidence.KillBudgetSeconds.Get() != 90 {
		t.Fatalf("%+v", changes)
	}
}

// TestEventsOfASiteAreBounded: a limiter that logs without end fills neither window nor incident.
func TestEventsOfASiteAreBounded(t *testing.T) {
	s := stage{length: 600, flows: []flow{organic, {60, 600, 60, office(1)}}}
	e := s.engine(t)
	for _, p := range s.panes() {
		for i := range int64(5000) {
			x := limiting(0, "z", "shop.example", 1)
			x.Time = p.Start + i
			p.Events = append(p.Events, x)
		}
		pane.SortEvents(p.Events)
		e.Close(p)
	}
	if view := e.incidents["shop.example"]; view == nil || len(view.Events) == 0 || len(view.Events) > maxSiteIncidentEvents {
		t.Fatalf("the incident's view: %v", view)
	}
	if n := len(e.sites.View(e.at-minute, e.at).Events); n != 6*maxSiteEvents {
		t.Errorf("%d events in a window", n)
	}
}

// TestTouchOfProtection tells what one line means.
func TestTouchOfProtection(t *testing.T) {
	one := func(edit func(int, *pipeline.Record), events ...pipeline.Event) map[string]bool {
		p := &pane.Pane{}
		s := stage{length: 10, events: events}
		if edit != nil {
			s.flows = []flow{{0, 1, 60, edit}}
		}
		for _, x := range s.panes() {
			p.Start, p.End = x.Start, x.End
			pane.Merge(p, x)
		}
		said := map[string]bool{}
		for _, x := range s.engine(t).Touch(p) {
			said[x.Detector] = true
		}
		return said
	}
	for _, c := range []struct {
		detector string
		touches  bool
		said     map[string]bool
	}{
		{"ratelimit_backfire", true, one(office(1))},
		{"ratelimit_backfire", true, one(styled("v=1", true))},
		{"ratelimit_backfire", false, one(styled("", true))},
		{"ratelimit_backfire", false, one(nil)},
		{"error_burst", true, one(answering(500))},
		{"error_burst", false, one(answering(404))},
		{"probe_failure", true, one(probing(0, 200))},
		{"probe_failure", true, one(nil, probeFailed(1, "a1", "Liveness"))},
		{"probe_failure", false, one(answering(500))},
		{"worker_timeout", true, one(nil, phpKilled(1, 30))},
		{"worker_timeout", false, one(answering(500))},
	} {
		if c.said[c.detector] != c.touches {
			t.Errorf("%s: %v", c.detector, c.said)
		}
	}
}

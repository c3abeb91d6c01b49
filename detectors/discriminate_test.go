package detectors

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// mailing is HEAD on two routes that people visit by GET, under as many agents and from as many addresses as given.
func mailing(agents, clients int) func(int, *pipeline.Record) {
	return func(i int, r *pipeline.Record) {
		r.Method, r.Route, r.Path = []byte("HEAD"), "/unsubscribe/{id}", []byte("/unsubscribe/1")
		if i%3 == 0 {
			r.Route, r.Path = "/subscription/{id}", []byte("/subscription/1")
		}
		r.UserAgent = fmt.Appendf(nil, "Mozilla/5.0 (Windows NT 10.0) Chrome/%d", i%agents)
		r.Client = netip.AddrFrom4([4]byte{20, byte(i % clients), 7, 9})
	}
}

// readers visit the storm's routes and others.
func readers(i int, r *pipeline.Record) {
	if i%4 == 0 {
		r.Route, r.Path = "/unsubscribe/{id}", []byte("/unsubscribe/2")
	}
	r.UserAgent = fmt.Appendf(nil, "Mozilla/5.0 (X11) Firefox/%d", i%20)
	r.Client = netip.AddrFrom4([4]byte{198, 51, 100, byte(i % 50)})
}

// found plays a stage and gives the evidence of a detector's episode, over.
func found(t *testing.T, detector string, s stage) Evidence {
	t.Helper()
	changes, _ := s.play(t)
	for _, c := range changes {
		if c.Detector == detector && !c.Active {
			return c.Evidence
		}
	}
	t.Fatalf("%s found nothing", detector)
	return Evidence{}
}

func by(t *testing.T, e Evidence, dimension string) Discriminator {
	t.Helper()
	for _, d := range e.Discriminators {
		if d.By == dimension {
			return d
		}
	}
	t.Fatalf("no discriminator by %s: %+v", dimension, e.Discriminators)
	return Discriminator{}
}

func TestMethodAndRouteTellAStormOfManyAgentsApart(t *testing.T) {
	e := found(t, "head_storm", stage{length: 1200, flows: []flow{{0, 1200, 240, readers}, {600, 900, 2400, mailing(300, 200)}}})
	var order []string
	for _, d := range e.Discriminators {
		order = append(order, d.By)
		if d.CaughtLower.Get() > d.CaughtUpper.Get() || d.FalseLower.Get() > d.FalseUpper.Get() || d.CaughtUpper.Get() > 1 || d.FalseUpper.Get() > 1 {
			t.Errorf("no interval of shares: %+v", d)
		}
	}
	rank := func(dimension string) int {
		for i, o := range order {
			if o == dimension {
				return i
			}
		}
		return len(order)
	}
	if rank("method+route") != 0 && rank("method") != 0 || rank("method+route") > rank("route") || rank("route") > rank("agent") || rank("route") > rank("address") {
		t.Errorf("ranked %v", order)
	}
	both, route, agent := by(t, e, "method+route"), by(t, e, "route"), by(t, e, "agent")
	if len(both.Keys) != 2 || both.Keys[0] != "HEAD /unsubscribe/{id}" || both.CaughtLower.Get() < 0.99 || both.FalseUpper.Get() > 0.01 {
		t.Errorf("method and route: %+v", both)
	}
	if route.FalseLower.Get() < 0.2 || route.FalseUpper.Get() > 0.3 {
		t.Errorf("a quarter of the readers is on the storm's routes: %+v", route)
	}
	if agent.CaughtUpper.Get() > 0.1 || agent.Entropy.Get() < 7.5 || agent.Entropy.Get() > 8.5 {
		t.Errorf("300 agents are log2(300) = 8.2 bits: %+v", agent)
	}
	if p := by(t, e, "prefix"); p.CaughtUpper.Get() > 0.15 {
		t.Errorf("200 ranges, and readers of one: %+v", p)
	}
}

func TestOneAgentTellsItsFloodApart(t *testing.T) {
	flood := func(i int, r *pipeline.Record) {
		r.Route, r.Path = fmt.Sprintf("/p/%d", i%7), fmt.Appendf(nil, "/p/%d", i%7)
		r.UserAgent = []byte("Mozilla/5.0 (compatible)")
		r.Client = netip.AddrFrom4([4]byte{20, byte(i % 5), byte(i), 9})
	}
	e := found(t, "agent_flood", stage{length: 1500, flows: []flow{{0, 1500, 240, readers}, {900, 1200, 3000, flood}}})
	d := e.Discriminators[0]
	if d.By != "agent" || d.Keys[0] != "Mozilla/5.0 (compatible)" || d.CaughtLower.Get() != 1 || d.FalseUpper.Get() != 0 || d.Entropy.Get() != 0 {
		t.Errorf("%+v", d)
	}
}

// TestRoutesOfAStorm: the costliest is named, all of them are counted, and what is usual is none of them.
func TestRoutesOfAStorm(t *testing.T) {
	front := func(i int, r *pipeline.Record) {
		head("/unsubscribe/{id}", 250)(i, r)
		r.Reached, r.UpstreamTime = pipeline.No, pipeline.Unknown
	}
	costly := func(i int, r *pipeline.Record) { head("/checkout/{id}", 250)(i, r); slow(1)(i, r) }
	feeds := head("/feed", 3)
	flows := []flow{{0, 3000, 240, readers}, {0, 3000, 200, feeds}, {2400, 2700, 3600, front}, {2400, 2700, 600, costly}}
	e := found(t, "head_storm", stage{length: 3000, flows: flows})
	if e.Route != "/checkout/{id}" || len(e.TopRoutes) != 2 || e.TopRoutes[0].Key != "HEAD /unsubscribe/{id}" || e.TopRoutes[1].Count != 3000 {
		t.Errorf("%s of %v", e.Route, e.TopRoutes)
	}
	if e.Requests.Get() != 21000 || e.ReachedUpstreamRatio.Get() < 0.14 || e.ReachedUpstreamRatio.Get() > 0.15 || e.WorkerSecondsShare.Get() < 0.75 {
		t.Errorf("%v requests, %v reached, %v of the worker-seconds", e.Requests, e.ReachedUpstreamRatio, e.WorkerSecondsShare)
	}
	untimed := func(i int, r *pipeline.Record) {
		costly(i, r)
		r.RequestTime, r.UpstreamTime = pipeline.Unknown, pipeline.Unknown
	}
	flows[3].edit = untimed
	if e := found(t, "head_storm", stage{length: 3000, flows: flows}); e.Route != "/unsubscribe/{id}" || len(e.TopRoutes) != 2 {
		t.Errorf("without times %s of %v", e.Route, e.TopRoutes)
	}
}

// TestBoundsHoldTheTruth: HEAD is usual on the storm's route, and how much of the route's requests the storm makes is
// known within bounds alone.
func TestBoundsHoldTheTruth(t *testing.T) {
	usual := func(i int, r *pipeline.Record) {
		head("/checkout/{id}", 9)(i, r)
		r.UserAgent = []byte("Feeds/1")
	}
	storm := func(i int, r *pipeline.Record) {
		head("/checkout/{id}", 250)(i, r)
		r.UserAgent = fmt.Appendf(nil, "Mozilla/5.0 (Windows NT 10.0) Chrome/%d", i%3)
	}
	e := found(t, "head_storm", stage{
		length: 2700, flows: []flow{{0, 2700, 240, readers}, {0, 2700, 60, usual}, {1800, 2400, 900, storm}},
		cfg: Config{Controls: func(string) []Control { return []Control{{Name: "one agent", Agent: "Chrome/1"}} }},
	})
	d := by(t, e, "method+route") // catches all of the storm, and the usual: 60 of 300 others a minute
	if d.CaughtUpper.Get() != 1 || d.FalseLower.Get() > 0.2 || d.FalseUpper.Get() < 0.2 || d.FalseUpper.Get() > 0.3 || d.FalseLower.Get() == d.FalseUpper.Get() {
		t.Errorf("%+v", d)
	}
	if c := e.RuleCoverage[0]; c.Lower.Get() > 0.333 || c.Upper.Get() < 0.334 || c.Upper.Get() > 0.5 {
		t.Errorf("a third of the storm: %+v", c)
	}
}

// TestFloodAmongVisitors: the addresses of its routes are not the agent's, and a bot is told by its class.
func TestFloodAmongVisitors(t *testing.T) {
	bot := func(i int, r *pipeline.Record) {
		r.Route, r.Path = "/unsubscribe/{id}", fmt.Appendf(nil, "/unsubscribe/%d", i)
		r.UserAgent, r.Class = []byte("BadBot/1.0"), pipeline.Bot
		r.Client = netip.AddrFrom4([4]byte{66, 249, 66, 1})
	}
	for _, c := range []struct {
		name  string
		share float64 // of the readers that are elsewhere
		known bool
	}{{"among visitors", 0, false}, {"alone on its route", 1, true}} {
		visitors := func(i int, r *pipeline.Record) {
			readers(i, r)
			if c.share > 0 {
				r.Route, r.Path = "/", []byte("/")
			}
		}
		e := found(t, "agent_flood", stage{length: 1500, flows: []flow{{0, 1500, 480, visitors}, {900, 1200, 600, bot}}})
		if e.DistinctClients.Known() != c.known || e.RequestsPerClientPerMinute.Known() != c.known || e.BotShare.Get() != 1 {
			t.Errorf("%s: %v addresses, %v bots", c.name, e.DistinctClients, e.BotShare)
		}
		d := by(t, e, "agent")
		if d.CaughtLower.Get() != 1 || d.CaughtUpper.Get() != 1 || d.FalseLower.Get() != 0 || d.FalseUpper.Get() != 0 {
			t.Errorf("%s: the storm is the agent: %+v", c.name, d)
		}
	}
}

func TestOneRangeTellsAStormApart(t *testing.T) {
	near := func(i int, r *pipeline.Record) {
		mailing(300, 1)(i, r)
		r.Client = netip.AddrFrom4([4]byte{20, 1, 7, byte(i % 100)})
	}
	e := found(t, "head_storm", stage{length: 1200, flows: []flow{{0, 1200, 240, readers}, {600, 900, 2400, near}}})
	p := by(t, e, "prefix")
	if p.Keys[0] != "20.1.7.0/24" || p.CaughtLower.Get() < 0.85 || p.CaughtUpper.Get() != 1 {
		t.Errorf("%+v", p)
	}
	if len(e.TopPrefixes) == 0 || e.TopPrefixes[0].Key != "20.1.7.0/24" {
		t.Errorf("%v", e.TopPrefixes)
	}
}

func TestRulesInPlaceCoverAPartOfTheDamage(t *testing.T) {
	controls := []Control{
		{Name: "origin_shield"},
		{Name: "checkout", Method: "HEAD", Path: "/checkout/*"},
		{Name: "subscriptions", Method: "HEAD", Path: "/subscription/*"},
		{Name: "one agent", Agent: "Chrome/7"},
		{Name: "everything by POST", Method: "POST"},
	}
	e := found(t, "head_storm", stage{
		length: 1200, flows: []flow{{0, 1200, 240, readers}, {600, 900, 2400, mailing(8, 200)}},
		cfg: Config{Controls: func(string) []Control { return controls }},
	})
	got := map[string][2]float64{}
	for _, c := range e.RuleCoverage {
		got[c.Rule] = [2]float64{c.Lower.Get(), c.Upper.Get()}
	}
	within := func(rule string, lowest, highest float64) {
		if x, ok := got[rule]; !ok || x[0] < lowest || x[1] > highest {
			t.Errorf("%s caught %v, want between %v and %v", rule, x, lowest, highest)
		}
	}
	within("checkout", 0, 0)
	within("everything by POST", 0, 0)
	within("subscriptions", 0.32, 0.35)
	within("one agent", 0.12, 0.13)
	if _, ok := got["origin_shield"]; ok {
		t.Error("a control that names no requests has a coverage")
	}
	// Both rules that match overlap in a part that the panes do not tell: 1/3, and 1/8 somewhere.
	if e.RulesCaughtLower.Get() < 0.4 || e.RulesCaughtUpper.Get() > 0.46 {
		t.Errorf("together %v to %v", e.RulesCaughtLower, e.RulesCaughtUpper)
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"/checkout/*", "/checkout/{id}", true}, {"/checkout/*", "/checkout", false}, {"*", "", true}, {"/a*b*c", "/aXbYc", true},
		{"/a*b*c", "/aXcYb", false}, {"/feeds/*.xml", "/feeds/{name}.xml", true}, {"/a", "/a", true}, {"/a", "/ab", false}, {"a*a", "a", false},
	} {
		if glob(c.pattern, c.text) != c.want {
			t.Errorf("glob(%q, %q) is not %v", c.pattern, c.text, c.want)
		}
	}
}

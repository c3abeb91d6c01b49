package alerts

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/squall-sre/squall/detectors"
)

// Whatever takes part in a storm by HEAD is named, answered by the snippets and asked for in Loki.
func TestStormOfSeveralRoutesNamesThem(t *testing.T) {
	ds := stormDetections()
	e := &ds[1].Evidence
	e.Route, e.ReachedUpstreamRatio = "/subscription/{int}", n(0.34)
	e.TopRoutes = []detectors.Count{{Key: "HEAD /unsubscribe/{int}", Count: 1500}, {Key: "HEAD /subscription/{int}", Count: 500}}
	a := raise(t, "StormHurting", result(ds...))
	both := "/subscription/{int} and /unsubscribe/{int}"
	wantCause(t, a, Proven, "HEAD requests on "+both+" pinned the origin: 34 % of them reached an upstream")
	if s := a.Annotations["summary"]; !strings.Contains(s, "2,000 HEAD a minute on "+both) {
		t.Error(s)
	}
	if s := a.Annotations["evidence"]; !strings.Contains(s, "2,001 times what is usual on /subscription/{int}") {
		t.Error(s)
	}
	var rule any
	if err := json.Unmarshal([]byte(a.Advice[0].Snippet), &rule); err != nil {
		t.Fatalf("%v: %s", err, a.Advice[0].Snippet)
	}
	for i, want := range []string{"OrStatement", "location ~ ^/unsubscribe/[^/]+$ {"} {
		if s := a.Advice[i].Snippet; !strings.Contains(s, want) || !strings.Contains(s, "^/subscription/[^/]+$") || !strings.Contains(s, "^/unsubscribe/[^/]+$") {
			t.Errorf("%s covers one route alone: %s", a.Advice[i].Layer, s)
		}
	}
	if q := lokiQuery(&a); q != `{site="shop.example"} | method="HEAD" | route=~"/subscription/\\{int\\}|/unsubscribe/\\{int\\}"` {
		t.Error(q)
	}
	e.TopRoutes = append(e.TopRoutes, detectors.Count{Key: "HEAD /a"}, detectors.Count{Key: "HEAD /b"}, detectors.Count{Key: "GET /c"})
	wantCause(t, raise(t, "StormHurting", result(ds...)), Proven, "/subscription/{int}, /unsubscribe/{int}, /a and 1 other pinned")
}

func TestSearchBotIsNotThrottled(t *testing.T) {
	d := detection("agent_flood", 430)
	d.Evidence = detectors.Evidence{RequestsPerMinute: n(430), BotShare: n(1), TopAgents: []detectors.Count{{Key: "Mozilla/5.0 (compatible; Googlebot/2.1)", Count: 430}}}
	a := raise(t, "AgentFlood", result(d))
	if text := adviceText(&a); !strings.Contains(text, "robots.txt") || !strings.Contains(text, "Search Console") || strings.Contains(text, "limit_req") || strings.Contains(text, "per-address") {
		t.Error(text)
	}
	d.Evidence.TopAgents[0].Key = "BadBot/1.0"
	a = raise(t, "AgentFlood", result(d))
	if text := adviceText(&a); !strings.Contains(text, "limit_req") {
		t.Error(text)
	}
}

// The site whose detection led to restarts is named as far as its containers are among them.
func TestRestartsNameTheSiteThatLedToThem(t *testing.T) {
	for namespace, want := range map[string]string{
		"shop": "consistent with saturation of shop.example, whose containers are among them: it came first, and probes wait with everybody else and fail",
		"pay":  "what made the probes fail is undetermined",
	} {
		m, err := NewManager(Config{Detectors: detectors.Names(), Sites: func(site string) Site {
			if site == "shop.example" {
				return Site{Namespaces: []string{"shop"}}
			}
			return Site{}
		}})
		if err != nil {
			t.Fatal(err)
		}
		burst := seen("restart_burst", "cluster", 60, inNamespaces(namespace))
		burst.Evidence.Reasons, burst.Evidence.Nodes, burst.Evidence.Namespaces = map[string]int{"liveness": 6}, n(1), n(1)
		r := result(seen("saturation", "shop.example", 0), burst)
		r.At = epoch + 90*second
		told := false
		for _, a := range m.Evaluate(&r) {
			if a.Name != "RestartBurst" {
				continue
			}
			told = true
			wantCause(t, a, Proven, want, "on 1 node in 1 namespace;")
			if all := causeText(&a); namespace == "shop" && (strings.Contains(all, "none is known") || strings.Contains(all, "undetermined")) {
				t.Error(all)
			}
		}
		if !told {
			t.Fatal("no RestartBurst")
		}
	}
}

// A reason that restarts share is said, and how many share it.
func TestReasonsThatRestartsShare(t *testing.T) {
	for _, c := range []struct {
		reasons map[string]int
		verdict Verdict
		want    string
	}{
		{map[string]int{"oom": 5}, Proven, "all ran out of memory"},
		{map[string]int{"oom": 4, "crash": 2}, Proven, "most ran out of memory"},
		{map[string]int{"node": 8}, Probable, "all have no known end (ContainerStatusUnknown), consistent with the loss of their node"},
		{map[string]int{"unknown": 6, "crash": 1}, Undetermined, "most are told without how the container ended"},
		{map[string]int{"crash": 7}, Undetermined, "all ended with an error of their own"},
		{map[string]int{"crash": 2, "unknown": 2, "oom": 2}, Undetermined, "a reason that most of the restarts share"},
	} {
		d := seen("restart_burst", "cluster", 0)
		total := 0
		for _, k := range c.reasons {
			total += k
		}
		d.Evidence = detectors.Evidence{Restarts: n(float64(total)), OOMKilled: n(float64(c.reasons["oom"])), Reasons: c.reasons}
		a := raise(t, "RestartBurst", result(d))
		wantCause(t, a, c.verdict, c.want)
		if _, shares := shared(&d.Evidence); shares > 0 && strings.Contains(causeText(&a)+adviceText(&a), "no shared reason") {
			t.Errorf("%v: %s", c.reasons, causeText(&a))
		}
	}
}

func TestPeopleBehindNATAreNoProofOfALoop(t *testing.T) {
	d := detection("self_loop", 400)
	d.Evidence = detectors.Evidence{RequestsPerMinute: n(400), DistinctAgents: n(14), BrowserShare: n(0.97)}
	a := raise(t, "SelfLoop", result(d))
	wantCause(t, a, Probable, "14 user agents", "people behind your NAT")
	d.Evidence.DistinctAgents = n(2)
	wantCause(t, raise(t, "SelfLoop", result(d)), Proven, "the site calls itself")
}

// What is not known of a loop is left out.
func TestRetriesThatAreNotKnownAreLeftOut(t *testing.T) {
	d := detection("retry_loop", 7)
	d.Evidence = detectors.Evidence{Method: "GET", Route: "/admin/search"}
	a := raise(t, "RetryLoop", result(d))
	wantCause(t, a, Probable, "clients ask for GET /admin/search again within seconds of its own timeout;")
	if all := causeText(&a) + adviceText(&a); strings.Contains(all, "unknown") || strings.Contains(all, "storm of visitors") {
		t.Error(all)
	}
}

// A flood is told as what it is; of harm nobody has seen nothing is said.
func TestFloodThatHurtsNobody(t *testing.T) {
	d := detection("agent_flood", 2281)
	d.Evidence = detectors.Evidence{RequestsPerMinute: n(2281), BaselinePerMinute: n(111), DistinctClients: n(1229), TopAgents: []detectors.Count{{Key: "Mozilla/5.0", Count: 2281}},
		TopRoutes: []detectors.Count{{Key: "GET /a", Count: 2000}}, WorkerSecondsUpper: n(90)}
	a := raise(t, "AgentFlood", result(d))
	wantCause(t, a, Proven, "a flood of one agent at 2,281 requests a minute from ≈1,229 addresses; no client is hurt: the busiest agent that people use is known to make 111")
	for _, harm := range []string{"holds the origin", "broad", "worker-seconds", "pinned"} {
		if text := causeText(&a); strings.Contains(text, harm) {
			t.Errorf("%q: %s", harm, text)
		}
	}
}

// Of mail that was sent nothing is known without a calendar, and so it is said of what looks like its scanners.
func TestNoSendTimeIsKnown(t *testing.T) {
	a := raise(t, "HeadStorm", result(stormDetections()[1]))
	if !strings.HasSuffix(a.Cause.Text, "consistent with link-protection scanners; no client is hurt: 100 % of them reached an upstream; 89 % of the worker-seconds; 8 requests per address and minute from ≈250 addresses: a per-address limit cannot help; no send time is known: there is no calendar of mail (campaigns)") {
		t.Error(a.Cause.Text)
	}
	few := stormDetections()[1]
	few.Evidence.DistinctClients = n(3)
	if a := raise(t, "HeadStorm", result(few)); strings.Contains(a.Cause.Text, "send time") {
		t.Error(a.Cause.Text)
	}
}

// What is asked for again and again is found by class, not by the mean of the site, and beside a costlier class that is not.
func TestRepeatedReadsAreFoundByClass(t *testing.T) {
	sat := detection("saturation", 1.2)
	sat.Evidence = detectors.Evidence{Method: "GET", Route: "/city/{name}", WorkerSecondsShare: n(0.41), PoolWorkers: n(25), RepeatFactor: n(1.2), RequestsPerMinute: n(600),
		Costs: []detectors.ClassCost{
			{Method: "GET", Route: "/city/{name}", Routes: 1, Share: n(0.41), RepeatFactor: n(1.2)},
			{Method: "GET", Route: "/feeds/*.xml", Routes: 150, Share: n(0.35), RepeatFactor: n(24)},
			{Method: "POST", Route: "/search", Routes: 1, Share: n(0.2), RepeatFactor: n(9)},
		}}
	a := raise(t, "WorkersExhausted", result(stormDetections()[0], sat))
	if layers := layersOf(a.Advice); !slices.Equal(layers, []string{"application", "nginx", "application", "cdn"}) {
		t.Fatalf("%v %+v", layers, a.Advice)
	}
	for i, want := range []string{"GET /city/{name} holds 41 %", "", "600 requests a minute are few for their cost, and an autoscaler on request count stays silent", "cache GET /feeds/*.xml at the edge"} {
		if !strings.Contains(a.Advice[i].Text, want) {
			t.Errorf("%q is not in %s", want, a.Advice[i].Text)
		}
	}
	if !strings.Contains(a.Advice[3].Text, "asked for 24 times within the first minutes, so up to 95.8 %") || strings.Contains(adviceText(&a), "/search at the edge") {
		t.Error(adviceText(&a))
	}
	// It comes first where it is the costliest, and leaves a broad stall its own advice.
	sat.Evidence.Costs = []detectors.ClassCost{{Method: "GET", Route: "/", Routes: 1, Share: n(0.18), RepeatFactor: n(25)}}
	a = raise(t, "WorkersExhausted", result(stormDetections()[0], sat))
	if layers := layersOf(a.Advice); !slices.Equal(layers, []string{"cdn", "application"}) || !strings.Contains(a.Advice[1].Text, "shared dependency") {
		t.Errorf("%+v", a.Advice)
	}
	if got := (class{route: "/feeds/*.xml", routes: 150}).pattern(); got != `^/feeds/[^/]+\.xml$` {
		t.Error(got)
	}
	if got := (class{route: "/feeds/*.xml", routes: 1}).pattern(); got != "" {
		t.Errorf("a client's * got into a pattern: %s", got)
	}
}

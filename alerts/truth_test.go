package alerts

import (
	"encoding/json"
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

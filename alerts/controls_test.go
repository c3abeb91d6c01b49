package alerts

import (
	"slices"
	"strings"
	"testing"

	"github.com/squall-sre/squall/detectors"
)

var checkoutHead = detectors.Control{Name: "co", Method: "HEAD", Path: "/checkout/*"}

// caughtBy puts into a storm what rules in place would have caught of it.
func caughtBy(e *detectors.Evidence, lower, upper float64, rules ...detectors.RuleCoverage) {
	e.RulesCaughtLower, e.RulesCaughtUpper, e.RuleCoverage = n(lower), n(upper), rules
}

// A rule that covers the storm is not advised anew: it is in place and does not act.
func TestRuleInPlaceIsNotAdvisedAnew(t *testing.T) {
	ds := stormDetections()
	caughtBy(&ds[1].Evidence, 0.998, 1, detectors.RuleCoverage{Rule: "co", Lower: n(0.998), Upper: n(1)})
	a := raiseWith(t, "StormHurting", result(ds...), checkoutHead, detectors.Control{Name: "origin_shield"})
	if len(a.Advice) != 1 || a.Advice[0].Layer != "edge" || a.Advice[0].Snippet != "" || a.Advice[0].Verify == "" {
		t.Fatalf("%+v", a.Advice)
	}
	for _, want := range []string{"co (HEAD /checkout/*) is in place and would have caught 99.8–100 % of the damage",
		"but 100 % of these requests reached an upstream: it does not act on them", "(in place already: origin_shield)"} {
		if !strings.Contains(a.Advice[0].Text, want) {
			t.Errorf("%q is not said: %s", want, a.Advice[0].Text)
		}
	}
	if strings.Contains(a.Advice[0].Text, "answer HEAD by method") {
		t.Error(a.Advice[0].Text)
	}

	// Of a log that tells no upstream, nobody knows whether the rule acted.
	e := &ds[1].Evidence
	e.ReachedUpstreamRatio, e.WorkerSecondsShare = detectors.Num{}, detectors.Num{}
	a = raiseWith(t, "StormHurting", result(ds...), checkoutHead)
	if len(a.Advice) != 1 || !strings.Contains(a.Advice[0].Text, "whether it acted on them the log does not tell") {
		t.Errorf("%+v", a.Advice)
	}
}

// What a rule leaves is advised, and nothing else.
func TestRuleInPlaceIsExtendedByWhatItLeaves(t *testing.T) {
	ds := stormDetections()
	e := &ds[1].Evidence
	e.TopRoutes = []detectors.Count{{Key: "HEAD /checkout/{id}", Count: 1200}, {Key: "HEAD /seat/{int}", Count: 800}}
	caughtBy(e, 0.6, 0.62, detectors.RuleCoverage{Rule: "co", Lower: n(0.6), Upper: n(0.62)})
	a := raiseWith(t, "StormHurting", result(ds...), checkoutHead)
	if layers := layersOf(a.Advice); !slices.Equal(layers, []string{"edge", "waf", "nginx"}) {
		t.Fatalf("%v %+v", layers, a.Advice)
	}
	if !strings.Contains(a.Advice[0].Text, "would have caught 60–62 % of the damage") || !strings.Contains(a.Advice[0].Text, "what they leave is on /seat/{int}") {
		t.Error(a.Advice[0].Text)
	}
	for _, ad := range a.Advice[1:] {
		if !strings.Contains(ad.Snippet, "^/seat/[^/]+$") || strings.Contains(ad.Snippet, "checkout") {
			t.Errorf("%s: %s", ad.Layer, ad.Snippet)
		}
	}

	// Rules that are for next to nothing of it are told, and the storm is advised as without them.
	e.TopRoutes = []detectors.Count{{Key: "HEAD /seat/{int}", Count: 2000}}
	e.Route = "/seat/{int}"
	caughtBy(e, 0, 0.011, detectors.RuleCoverage{Rule: "co", Lower: n(0), Upper: n(0.011)})
	a = raiseWith(t, "StormHurting", result(ds...), checkoutHead)
	if layers := layersOf(a.Advice); !slices.Equal(layers, []string{"waf", "nginx"}) || !strings.Contains(a.Advice[0].Text, "what is in place (co) would have caught at most 1.1 % of the damage") {
		t.Errorf("%+v", a.Advice)
	}
}

func layersOf(list []Advice) (layers []string) {
	for _, ad := range list {
		layers = append(layers, ad.Layer)
	}
	return layers
}

// A throttle that is in place, and a cache rule for the costly class, are not advised anew either.
func TestThrottleAndCacheInPlace(t *testing.T) {
	d := detection("agent_flood", 430)
	d.Evidence = detectors.Evidence{RequestsPerMinute: n(430), TopAgents: []detectors.Count{{Key: "BadBot/1.0", Count: 430}}, ReachedUpstreamRatio: n(0.97)}
	caughtBy(&d.Evidence, 1, 1, detectors.RuleCoverage{Rule: "bots", Lower: n(1), Upper: n(1)})
	a := raiseWith(t, "AgentFlood", result(d), detectors.Control{Name: "bots", Agent: "BadBot"})
	if len(a.Advice) != 1 || a.Advice[0].Snippet != "" || !strings.Contains(a.Advice[0].Text, "bots (agent BadBot) is in place and would have caught 100 % of the damage, but 97 % of these requests reached an upstream") {
		t.Errorf("%+v", a.Advice)
	}
	sat := detection("saturation", 1.2)
	sat.Evidence = detectors.Evidence{Method: "GET", Route: "/feeds/{name}.xml", WorkerSecondsShare: n(0.7), PoolWorkers: n(25), RepeatFactor: n(24)}
	a = raiseWith(t, "WorkersExhausted", result(stormDetections()[0], sat), detectors.Control{Name: "feeds", Method: "GET", Path: "/feeds/*"})
	if !strings.HasPrefix(a.Advice[0].Text, "feeds (GET /feeds/*) is in place and these requests came all the same") {
		t.Errorf("%+v", a.Advice)
	}
}

package alerts

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/squall-sre/squall/detectors"
)

func decodeRules(t testing.TB, text string) ([]Rule, error) {
	t.Helper()
	var rules []Rule
	err := yaml.UnmarshalWithOptions([]byte(text), &rules, yaml.Strict())
	return rules, err
}

func TestShippedRulesCompile(t *testing.T) {
	rules, err := compileRules(nil, detectors.Names())
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) != len(ShippedRules()) {
		t.Fatalf("%d rules compiled, %d shipped", len(rules), len(ShippedRules()))
	}
}

// A fault is named with its rule, its place and what was probably meant.
func TestFaultsAreLocated(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{"detector", `[{name: A, severity: page, when: "latency and\n  head_strom"}]`,
			`rule "A": when: line 2, column 3: unknown detector "head_strom": did you mean "head_storm"?`},
		{"field", `[{name: A, severity: page, when: "latency.valeu > 3"}]`,
			`rule "A": when: line 1, column 9: unknown field of latency "valeu": did you mean "value"?`},
		{"far away", `[{name: A, severity: page, when: "xyzzyplugh"}]`,
			`rule "A": when: line 1, column 1: unknown detector "xyzzyplugh"`},
		{"syntax", `[{name: A, severity: page, when: "latency and and"}]`, `rule "A": when: line 1, column 13: `},
		{"type", `[{name: A, severity: page, when: "latency + 3"}]`, `rule "A": when: line 1, column 9: invalid operation`},
		{"not bool", `[{name: A, severity: page, when: "latency.value"}]`, `rule "A": when: `},
		{"bool as number", `[{name: A, severity: page, when: "latency > 3"}]`, `rule "A": when: line 1, column 9: invalid operation`},
		{"percentage", `[{name: A, severity: page, when: "latency and\n client_abandon.abandon_ratio >= 20"}]`,
			`rule "A": when: line 2, column 34: abandon_ratio is a ratio of 0 to 1 and never 20: write 0.2 for 20 %`},
		{"percentage first", `[{name: A, severity: page, when: "1.5 < saturation.worker_seconds_share"}]`,
			`rule "A": when: line 1, column 1: worker_seconds_share is a ratio of 0 to 1 and never 1.5: write 0.015 for 1.5 %`},
		{"percentage in a severity", `[{name: A, severity: 'latency.static_share == 500 ? "page" : "info"', when: latency}]`,
			`rule "A": severity: must be page, warning, info or an expression that gives one of them: line 1, column 25: static_share is a ratio of 0 to 1 and never 500`},
		{"field of a list", `[{name: A, severity: page, when: "latency and head_storm[\"abandon_ratio\"] > 2"}]`,
			`rule "A": when: line 1, column 43: abandon_ratio is a ratio`},
		{"always", `[{name: A, severity: page, when: "not latency"}]`, `rule "A": when and while must be false while every detector is silent`},
		{"while", `[{name: A, severity: page, when: latency, while: latenzy}]`, `rule "A": while: line 1, column 1: unknown detector "latenzy": did you mean "latency"?`},
		{"severity word", `[{name: A, severity: pager, when: latency}]`, `rule "A": severity: must be page, warning, info or an expression`},
		{"severity result", `[{name: A, severity: 'latency.value > 8 ? "page" : "warn"', when: latency}]`, `rule "A": severity: every result must be`},
		{"severity open", `[{name: A, severity: 'latency.route', when: latency}]`, `rule "A": severity: every result must be`},
		{"no when", `[{name: A, severity: page}]`, `rule "A": when is missing`},
		{"name", `[{name: "a\nb", severity: page, when: latency}]`, `name must be`},
		{"twice", `[{name: A, severity: page, when: latency},{name: A, severity: page, when: latency}]`, `rule "A": there are two`},
		{"disabled", `[{name: HeadStrom, disabled: true}]`, `rule "HeadStrom": disabled, but no shipped rule has this name`},
		{"label", `[{name: A, severity: page, when: latency, labels: {severity: x}}]`, `rule "A": labels: "severity" cannot be set`},
		{"by", `[{name: A, severity: page, when: latency, by: [si-te]}]`, `rule "A": by: "si-te"`},
		{"template", `[{name: A, severity: page, when: latency, annotations: {summary: "{{ .Nope }}"}}]`, `rule "A": annotations: `},
		{"template syntax", `[{name: A, severity: page, when: latency, annotations: {summary: "{{ if }}"}}]`, `rule "A": annotations: `},
		{"negative", `[{name: A, severity: page, when: latency, for: -1s}]`, `rule "A": within, for and keep_firing_for must not be negative`},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules, err := decodeRules(t, c.yaml)
			if err != nil {
				t.Fatal(err)
			}
			err = CheckRules(rules, detectors.Names())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestRulesMerge(t *testing.T) {
	configured, err := decodeRules(t, `
- {name: HeadStorm, disabled: true}
- {name: SelfLoop, when: self_loop.value > 100, severity: page}
- name: CheckoutHurting
  when: client_abandon.value > 0.2 and latency.value > 8
  by: [site]
  for: 1m
  keep_firing_for: 2m
  severity: page
  annotations: {summary: "{{ .Labels.site }}: checkout is being given up"}
`)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(Config{Rules: configured, Detectors: detectors.Names()})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(m.RuleNames(), " ")
	if want := "ClientsGivingUp StormHurting WorkersExhausted AgentFlood SelfLoop LimiterBackfires ProbeThroughApp RetryLoop ErrorBurst WorkerTimeouts CacheStampede RestartBurst SquallBlind CheckoutHurting"; got != want {
		t.Fatalf("got %s", got)
	}
	if m.rules[4].When != "self_loop.value > 100" || m.rules[len(m.rules)-1].For != time.Minute {
		t.Fatal("a configured rule did not take its place")
	}
}

// Bare names are booleans, fields numbers, and what is unknown compares false both ways.
func TestExpressions(t *testing.T) {
	on := map[string]*detectors.Detection{
		"latency":    {Detector: "latency", Active: true, Value: 9, Threshold: 5, Peak: 12},
		"head_storm": {Detector: "head_storm", Active: true, Value: 2000, Evidence: detectors.Evidence{Method: "HEAD", Requests: detectors.N(2000)}},
	}
	for text, want := range map[string]bool{
		"latency":                                                   true,
		"latency and head_storm":                                    true,
		"latency and self_loop":                                     false,
		"latency or self_loop":                                      true,
		"latency and not self_loop":                                 true,
		"latency.value > 8":                                         true,
		"latency.peak >= 12":                                        true,
		"latency.value / latency.threshold > 1.7":                   true,
		"head_storm.baseline_ratio > 10 or latency":                 true,
		"saturation.worker_seconds_share >= 1 or latency":           true,
		"latency.active":                                            true,
		"head_storm.requests == 2000":                               true,
		"head_storm.reached_upstream_ratio == 0":                    false,
		"head_storm.reached_upstream_ratio > 0":                     false,
		"head_storm.reached_upstream_ratio <= 0":                    false,
		"self_loop.value < 1":                                       false,
		"self_loop.value > 1":                                       false,
		`head_storm.method == "HEAD"`:                               true,
		"let v = latency.value; v > 8":                              true,
		"max(latency.value, self_loop.value) > 8 or latency":        true,
		"(latency ? head_storm.requests : self_loop.requests) > 10": true,
		"[latency, self_loop, head_storm] | count(#) >= 2":          true,
		"all([latency, self_loop], #)":                              false,
		`latency["value"] > 8`:                                      true,
		"(head_storm and (client_abandon or saturation)) or latency.p99_seconds > 1": false,
	} {
		e, err := compile(text, detectors.Names(), reflectBool)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := e.holds(on)
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestEveryNumberOfTheEvidenceCanBeRead(t *testing.T) {
	if len(numberFields) < 25 {
		t.Fatalf("only %d numbers found in Evidence", len(numberFields))
	}
	silent := inactive()
	for name := range numberFields {
		if !math.IsNaN(silent[name].(float64)) {
			t.Errorf("%s of a silent detector is not NaN", name)
		}
		if _, err := compile("latency."+name+" > 0", detectors.Names(), reflectBool); err != nil {
			t.Error(err)
		}
	}
	for name := range mergings {
		if _, ok := numberFields[name]; !ok {
			t.Errorf("%s is merged but is no number of Evidence", name)
		}
	}
}

func FuzzRules(f *testing.F) {
	f.Add("latency and (head_storm or not saturation.value > 3)", `saturation ? "page" : "info"`, "{{ .Labels.site }}")
	f.Add("[1, 2] | filter(# > latency.value) | len() > 0", "page", "{{ range .Evidence.TopAgents }}{{ .Key }}{{ end }}")
	f.Add("let x = latency; x", "info", "{{ .Value | printf \"%5.1f\" }}")
	f.Add("latency.value in 1..1000000", "info", "")
	f.Fuzz(func(t *testing.T, when, severity, annotation string) {
		m, err := NewManager(Config{Detectors: detectors.Names(), Rules: []Rule{{
			Name: "Fuzzed", When: when, Severity: severity, Annotations: map[string]string{"text": annotation},
		}}})
		if err != nil {
			if !strings.Contains(err.Error(), "Fuzzed") {
				t.Fatalf("the error does not name the rule: %v", err)
			}
			return
		}
		for _, a := range m.Evaluate(&detectors.Result{At: 1e9, Detections: []detectors.Detection{detection("latency", 9)}}) {
			if a.Severity.rank() == 0 {
				t.Fatalf("severity %q", a.Severity)
			}
		}
	})
}

// A rule that can never fire is refused, and one that may is not.
func TestRulesThatNothingJoins(t *testing.T) {
	for _, c := range []struct {
		when string
		by   []string
		want string // "": it is taken
	}{
		{"latency", []string{"sites"}, `by: no detection has a label "sites": there are cluster and site: did you mean "site"?`},
		{"restart_burst and latency", nil, "when: by site it never holds, since no label joins detections of a site with those of the cluster: restart_burst (cluster), latency (site)"},
		{"restart_burst.restarts > 3 and latency.value > 2", []string{"cluster"}, "when: by cluster it never holds"},
		{"restart_burst and latency", []string{}, ""},
		{"restart_burst or latency", nil, ""},
		{"restart_burst and not latency", nil, ""},
		{"restart_burst and probe_failure and worker_timeout", []string{"cluster"}, ""},
		{"probe_failure and latency", nil, ""},
		{"(restart_burst or client_abandon) and latency", nil, ""},
	} {
		err := CheckRules([]Rule{{Name: "A", When: c.when, By: c.by, Severity: "info"}}, detectors.Names())
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s by %v: %v", c.when, c.by, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s by %v: %v", c.when, c.by, err)
		}
	}
}

package alerts

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

var n = detectors.N

// stormDetections is the first incident of the field: HEAD on a checkout, 250 addresses, a pool of 25.
func stormDetections() []detectors.Detection {
	head := detection("head_storm", 2000)
	head.Evidence = detectors.Evidence{
		Requests: n(2000), RequestsPerMinute: n(2000), DistinctClients: n(250), RequestsPerClientPerMinute: n(8),
		Method: "HEAD", Route: "/checkout/{id}", WorkerSecondsShare: n(0.89), ReachedUpstreamRatio: n(1),
		PoolWorkers: n(25), CounterfactualBusyWorkers: n(4.4), BaselinePerMinute: n(0), BaselineRatio: n(2001),
	}
	abandon := detection("client_abandon", 1500)
	abandon.Evidence = detectors.Evidence{
		Requests: n(2240), Abandoned: n(1500), AbandonRatio: n(0.67), P99Seconds: n(10), P99Censored: true,
		BusyWorkersLower: n(25), BusyWorkersUpper: n(360),
	}
	return []detectors.Detection{abandon, head}
}

// raise evaluates one pane with every shipped rule and returns the alert of one name.
func raise(t *testing.T, name string, r detectors.Result, names ...string) Alert {
	t.Helper()
	controls := make([]detectors.Control, len(names))
	for i := range names {
		controls[i].Name = names[i]
	}
	return raiseWith(t, name, r, controls...)
}

// raiseWith is raise with rules in place.
func raiseWith(t *testing.T, name string, r detectors.Result, controls ...detectors.Control) Alert {
	t.Helper()
	m, err := NewManager(Config{Detectors: detectors.Names(), Sites: func(string) Site { return Site{Controls: controls} },
		Rules: []Rule{{Name: "ClientsGivingUp", When: "client_abandon and latency", Severity: "page"},
			{Name: "WorkersExhausted", When: "saturation and (client_abandon or latency)", Severity: "page"}}})
	if err != nil {
		t.Fatal(err)
	}
	r.At = epoch + 60*second
	for _, a := range m.Evaluate(&r) {
		if a.Name == name {
			return a
		}
	}
	t.Fatalf("%s did not fire", name)
	return Alert{}
}

func result(ds ...detectors.Detection) detectors.Result {
	return detectors.Result{Detections: ds, Coverage: pane.Coverage{Lines: 100000}}
}

func wantCause(t *testing.T, a Alert, v Verdict, parts ...string) {
	t.Helper()
	all := a.Cause.Text + "\n" + strings.Join(a.Cause.Missing, "\n")
	for _, p := range parts {
		if !strings.Contains(all, p) {
			t.Errorf("cause does not say %q:\n%s", p, all)
		}
	}
	if a.Cause.Verdict != v {
		t.Errorf("verdict %s, want %s: %s", a.Cause.Verdict, v, all)
	}
}

func TestStormIsProven(t *testing.T) {
	a := raise(t, "StormHurting", result(stormDetections()...))
	wantCause(t, a, Proven, "HEAD requests on /checkout/{id} pinned the origin", "89 % of the worker-seconds",
		"8 requests per address and minute from ≈250 addresses: a per-address limit cannot help",
		"without them 4.4 of 25 workers would have been busy")
	if len(a.Advice) != 2 || a.Advice[0].Layer != "waf" || a.Advice[1].Layer != "nginx" {
		t.Fatalf("%+v", a.Advice)
	}
	if s := a.Annotations["summary"]; s != "shop.example: 2,000 HEAD a minute on /checkout/{id}, 1,500 clients gave up" {
		t.Error(s)
	}
	if !strings.Contains(a.Annotations["evidence"], "p99 ≥ 10.0 s (client limit)") {
		t.Error(a.Annotations["evidence"])
	}
	for _, vendor := range []string{"Microsoft", "Safe Links", "Barracuda", "Proofpoint", "Mimecast", "attack"} {
		if strings.Contains(string(AppendText(nil, &a)), vendor) {
			t.Errorf("%s is claimed", vendor)
		}
	}
}

func TestLostLinesTakeTheProof(t *testing.T) {
	r := result(stormDetections()...)
	r.GapSources, r.Coverage.Gaps = []string{"balancer"}, 1
	wantCause(t, raise(t, "StormHurting", r), Probable, "the lines that balancer lost in the window")
	for _, c := range []pane.Coverage{
		{Lines: 1000, Late: 11}, {Lines: 1000, Dropped: 11}, {Lines: 1000, CellsFolded: 11}, {Lines: 1000, SitesFolded: 11},
		{Lines: 1000, EventsDropped: 1}, {Lines: 1000, Gaps: 1},
	} {
		r = result(stormDetections()...)
		r.Coverage = c
		if a := raise(t, "StormHurting", r); a.Cause.Verdict != Probable || len(a.Cause.Missing) == 0 {
			t.Errorf("%+v: %+v", c, a.Cause)
		}
	}
}

func TestWithoutTimesItIsProbable(t *testing.T) {
	ds := stormDetections()
	ds[1].Evidence.WorkerSecondsShare, ds[1].Evidence.ReachedUpstreamRatio = detectors.Num{}, detectors.Num{}
	wantCause(t, raise(t, "StormHurting", result(ds...)), Probable, "$upstream_response_time")
}

// HEADs that nginx answers cannot be what hurts.
func TestAnsweredHeadsAreNotTheCause(t *testing.T) {
	ds := stormDetections()
	ds[1].Evidence.ReachedUpstreamRatio, ds[1].Evidence.WorkerSecondsShare = n(0), n(0)
	a := raise(t, "StormHurting", result(ds...))
	if a.Cause.Verdict != Undetermined || strings.Contains(a.Cause.Text, "HEAD") {
		t.Fatalf("%+v", a.Cause)
	}
	alone := ds[1]
	a = raise(t, "HeadStorm", result(alone))
	if a.Severity != Info {
		t.Errorf("severity %s", a.Severity)
	}
	wantCause(t, a, Proven, "answered before the origin, none reached an upstream")
	if !strings.Contains(a.Advice[0].Text, "nothing to do") {
		t.Errorf("%+v", a.Advice)
	}
}

func TestNothingStandsOut(t *testing.T) {
	sat := detection("saturation", 1.2)
	sat.Evidence = detectors.Evidence{Method: "GET", Route: "/city/{name}", WorkerSecondsShare: n(0.2), PoolWorkers: n(25), BusyWorkersLower: n(24), WorkerSecondsUpper: n(1500)}
	a := raise(t, "WorkersExhausted", result(stormDetections()[0], sat))
	wantCause(t, a, Undetermined, "no class of requests holds more than 30 %", "GET /city/{name}")
	if len(a.Advice) != 1 || !strings.Contains(a.Advice[0].Text, "capacity") {
		t.Errorf("%+v", a.Advice)
	}
	bare := detection("latency", 8)
	bare.Evidence = detectors.Evidence{}
	abandon := detection("client_abandon", 90)
	a = raise(t, "ClientsGivingUp", result(abandon, bare))
	wantCause(t, a, Undetermined, "request and upstream times", "pool.workers")
}

// Where all routes are slow, what the pool would have done without one of them proves nothing of that one.
func TestSmallClassDoesNotExplainABroadStall(t *testing.T) {
	sat := detection("saturation", 1.2)
	sat.Evidence = detectors.Evidence{Method: "GET", Route: "/p/{int}", WorkerSecondsShare: n(0.319), PoolWorkers: n(25), BusyWorkersLower: n(24.4),
		CounterfactualBusyWorkers: n(1.1)}
	a := raise(t, "WorkersExhausted", result(stormDetections()[0], sat))
	wantCause(t, a, Probable, "holds 31.9 % of the worker-seconds", "a share that alone used up the pool")
	if strings.Contains(a.Cause.Text, "without it") {
		t.Error(a.Cause.Text)
	}
}

// A pool that is configured is not asked for, whether or not it is used up.
// TestTwoClassesOfOneStorm: what the pool would have done without one of two that hold the origin together proves nothing of
// it; that one agent asks for both does, where next to all of their requests are its own.
func TestTwoClassesOfOneStorm(t *testing.T) {
	sat := detection("saturation", 4)
	sat.Evidence = detectors.Evidence{
		Method: "GET", Route: "/events/{int}", WorkerSecondsShare: n(0.52), CounterfactualBusyWorkers: n(0.2), PoolWorkers: n(25),
		Costs: []detectors.ClassCost{{Method: "GET", Route: "/events/{int}", Share: n(0.52)}, {Method: "GET", Route: "/news/{int}", Share: n(0.46)}},
	}
	latency := detection("latency", 9)
	two := raise(t, "WorkersExhausted", detectors.Result{Detections: []detectors.Detection{latency, sat}})
	if two.Cause.Verdict != Probable || !strings.Contains(two.Cause.Text, "GET /news/{int} holds 46 %") || strings.Contains(two.Cause.Text, "without it") {
		t.Errorf("%+v", two.Cause)
	}
	flood := detection("agent_flood", 9000)
	flood.Evidence = detectors.Evidence{
		RequestsPerMinute: n(9000), Requests: n(9000), WorkerSecondsShare: n(0.98), CounterfactualBusyWorkers: n(0.3), PoolWorkers: n(25),
		TopRoutes: []detectors.Count{{Key: "GET /events/{int}", Count: 5000}, {Key: "GET /news/{int}", Count: 4000}},
	}
	all := detectors.Result{Detections: []detectors.Detection{latency, sat, flood}}
	if a := raise(t, "StormHurting", all); a.Cause.Verdict != Probable || len(a.Cause.Missing) == 0 {
		t.Errorf("others ask for the same: %+v", a.Cause)
	}
	all.Detections[2].Evidence.DistinctClients, all.Detections[2].Evidence.RequestsPerClientPerMinute = n(1229), n(7.3)
	if a := raise(t, "StormHurting", all); a.Cause.Verdict != Proven || !strings.Contains(a.Cause.Text, "GET /events/{int}, GET /news/{int}, holds 98 %") ||
		!strings.Contains(a.Cause.Text, "without them 0.3 of 25 workers") || strings.Contains(a.Advice[0].Text, "if you started it") {
		t.Errorf("one agent's: %+v %+v", a.Cause, a.Advice)
	}
	all.Detections[2].Evidence.DistinctClients = n(7)
	if a := raise(t, "StormHurting", all); !strings.HasPrefix(a.Advice[0].Text, "it comes from 7 addresses: if you started it") {
		t.Errorf("perhaps one's own: %+v", a.Advice)
	}
}

func TestConfiguredPoolIsNotMissing(t *testing.T) {
	flood := detection("agent_flood", 430)
	flood.Evidence = detectors.Evidence{Method: "HEAD", Route: "/checkout/{id}", WorkerSecondsShare: n(0.6), PoolWorkers: n(25), BusyWorkersLower: n(17.1), BaselinePerMinute: n(0.3)}
	a := raise(t, "AgentFlood", result(flood))
	if text := a.Annotations["cause"] + a.Annotations["evidence"]; strings.Contains(text, "pool.workers") || !strings.Contains(text, "usual are fewer than 1 a minute") {
		t.Error(text)
	}
}

// The costly class that is no storm: feeds of 3.6 seconds, each address asked for 24 times.
func TestCostlyReadsAreCached(t *testing.T) {
	sat := detection("saturation", 1.2)
	sat.Evidence = detectors.Evidence{Method: "GET", Route: "/feeds/{name}.xml", WorkerSecondsShare: n(0.7), PoolWorkers: n(25),
		CounterfactualBusyWorkers: n(8), RepeatFactor: n(24)}
	a := raise(t, "WorkersExhausted", result(stormDetections()[0], sat))
	wantCause(t, a, Proven, "GET /feeds/{name}.xml holds 70 %")
	if a.Advice[0].Layer != "cdn" || !strings.Contains(a.Advice[0].Text, "95.8 %") {
		t.Errorf("%+v", a.Advice)
	}
	sat.Evidence.RepeatFactor = n(1.1)
	a = raise(t, "WorkersExhausted", result(stormDetections()[0], sat))
	if a.Advice[0].Layer != "application" || a.Advice[1].Layer != "nginx" {
		t.Errorf("%+v", a.Advice)
	}
}

func TestSelfLoopIsTheApplications(t *testing.T) {
	self := detection("self_loop", 400)
	self.Evidence = detectors.Evidence{RequestsPerMinute: n(400), StaticShare: n(0.98), Limited: n(120), FanOut: n(4), DistinctClients: n(1)}
	a := raise(t, "SelfLoop", result(self))
	wantCause(t, a, Proven, "the site calls itself", "refused 120 of them", "$request_uri")
	if a.Advice[0].Layer != "application" || !strings.Contains(a.Advice[1].Snippet, "map $uri ") {
		t.Errorf("%+v", a.Advice)
	}
	if a.Annotations["pattern"] != "self_protection_backfire" {
		t.Errorf("%q", a.Annotations)
	}
	for _, ad := range a.Advice {
		if strings.Contains(ad.Snippet, "deny") || strings.Contains(ad.Snippet, "Block") {
			t.Errorf("the minion would be blocked: %s", ad.Snippet)
		}
	}
}

func TestRestartsAndTheirTrigger(t *testing.T) {
	d := detection("restart_burst", 24)
	d.Labels = detectors.Labels{{Name: "cluster", Value: "prod"}}
	d.Evidence = detectors.Evidence{Restarts: n(24), OOMKilled: n(1), Nodes: n(9), Namespaces: n(7), PeriodSeconds: n(10),
		Reasons: map[string]int{"liveness": 24, "oom": 1}}
	a := raise(t, "RestartBurst", result(d))
	wantCause(t, a, Proven, "24 × liveness", "9 nodes in 7 namespaces", "what made the probes fail is undetermined", "every 10 s")
	if a.Advice[0].Layer != "kubernetes" || !strings.Contains(a.Advice[0].Snippet, "/fpm-ping") {
		t.Errorf("%+v", a.Advice)
	}
	d.Evidence.Reasons = map[string]int{"liveness_probable": 24, "oom": 1}
	wantCause(t, raise(t, "RestartBurst", result(d)), Probable, "consistent with", "Killing")
	r := result(d)
	r.GapSources = []string{"ingress"}
	a = raise(t, "RestartBurst", r)
	wantCause(t, a, Undetermined, "the trigger is undetermined", "the lines that ingress lost")
}

func TestControlsInPlaceAreLookedPast(t *testing.T) {
	a := raise(t, "StormHurting", result(stormDetections()...), "origin_shield", "waf_head_rule")
	if a.Advice[0].Layer != "nginx" || a.Advice[1].Layer != "waf" {
		t.Fatalf("%+v", a.Advice)
	}
	if !strings.Contains(a.Advice[0].Text, "in place already: origin_shield, waf_head_rule") ||
		!strings.HasPrefix(a.Advice[1].Text, "waf_head_rule is in place") {
		t.Errorf("%+v", a.Advice)
	}
}

// The snippets are what their programs take.
func TestSnippets(t *testing.T) {
	var rule map[string]any
	if err := json.Unmarshal([]byte(wafHead("/checkout/{id}")), &rule); err != nil {
		t.Fatal(err)
	}
	if both, one := wafHead("/a/{int}", "/a/{uuid}"), wafHead("/a/{int}"); both != one { // they differ in what no pattern tells apart
		t.Error(both)
	}
	if !strings.Contains(wafHead("/checkout/{id}"), `^/checkout/[^/]+$`) {
		t.Error(wafHead("/checkout/{id}"))
	}
	for _, hostile := range []string{
		"", "/a b", "/a;}", "/a\"", "/a'", "/a\n", "/a$uri", "/a)|(", "/{id", "/a#", "/a\\", "/é", "/a\u202e", "relative", "/" + strings.Repeat("a", 999),
	} {
		if s := wafHead(hostile) + nginxHead(hostile); s != "" {
			t.Errorf("%q got into a snippet: %s", hostile, s)
		}
	}
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatal("nginx is needed to try the snippets: apt-get install nginx-light")
	}
	dir := t.TempDir()
	conf := "pid " + dir + "/pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n" + limiterSnippet +
		"\nlimit_req_zone $site_dynamic_key zone=site:1m rate=300r/m;\nserver {\nlisten 127.0.0.1:1;\n" +
		nginxHead("/checkout/{id}") + "\n" + nginxHead("/feeds/{name}.xml") + "\n}\n" + nginxThrottle(111) + "\n}\n"
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(nginx, "-t", "-p", dir, "-c", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, conf)
	}
}

// Whatever the log held: texts are bounded, shown as they are, and nothing hides in them.
func TestHostileEvidence(t *testing.T) {
	evil := "/a\x00\x1b[31m\u202eevil\u2028\x7f\xff\"{{.}}%s%n" + strings.Repeat("𝕏x", 20000)
	ds := stormDetections()
	for i := range ds {
		e := &ds[i].Evidence
		e.Route, e.Method = evil, evil
		e.TopAgents = slices.Repeat([]detectors.Count{{Key: evil, Count: 1}}, 100)
		e.Samples = slices.Repeat([]string{evil}, 100)
	}
	a := raise(t, "StormHurting", result(ds...))
	size := 0
	for name, text := range a.Annotations {
		size += len(name) + len(text)
		for _, r := range text {
			if r != '\n' && hidden(r) {
				t.Fatalf("%s holds %U", name, r)
			}
		}
	}
	if size > maxAnnotations {
		t.Errorf("%d bytes of annotations", size)
	}
	if lines := strings.Split(a.Annotations["evidence"], "\n"); len(lines) > maxEvidenceLines {
		t.Errorf("%d lines of evidence", len(lines))
	}
	line := string(AppendJSON(nil, &a))
	if !json.Valid([]byte(line)) || strings.Count(line, "\n") != 1 {
		t.Error("not one line of JSON")
	}
	for _, out := range []string{line, string(AppendText(nil, &a)), a.Title()} {
		for _, r := range out {
			if r != '\n' && (hidden(r) || r == unicode.ReplacementChar && out != line) {
				if r != unicode.ReplacementChar {
					t.Fatalf("%U is shown", r)
				}
			}
		}
	}
	if strings.Contains(a.Annotations["loki_query"], "evil") {
		t.Error(a.Annotations["loki_query"])
	}
	for _, ad := range a.Advice {
		if ad.Snippet != "" {
			t.Errorf("a hostile route got into a snippet: %s", ad.Snippet)
		}
	}
}

// What a client sends is no markup where a receiver shows annotations raw, in what an operator made of it neither; the
// operator's own markup is left alone.
func TestTextOfALogIsNoMarkup(t *testing.T) {
	evil := "<!channel> <http://evil.example|click> <script>alert(1)</script>"
	ds := stormDetections()
	for i := range ds {
		e := &ds[i].Evidence
		e.Route, e.Method = evil, "<b>"
		e.TopAgents = []detectors.Count{{Key: evil, Count: 1}}
		e.TopRoutes = []detectors.Count{{Key: evil, Count: 1}}
		e.Samples = []string{evil}
	}
	m, err := NewManager(Config{Detectors: detectors.Names(), Rules: []Rule{{
		Name: "Storm", When: "head_storm", Severity: "page", Annotations: map[string]string{
			"slack": "<https://wiki.example|wiki> {{.Evidence.Route}} {{range .Evidence.TopAgents}}{{.Key}}{{end}} {{.Evidence.Samples}} {{.Evidence.Method}} {{.Cause.Text}}",
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	r := result(ds...)
	r.At = epoch + 60*second
	seen := 0
	for _, a := range m.Evaluate(&r) {
		for name, text := range a.Annotations {
			rest := strings.ReplaceAll(text, "<https://wiki.example|wiki>", "")
			if strings.Contains(rest, "<") {
				t.Errorf("%s: %s", name, text)
			}
			if name == "slack" && len(rest) == len(text) {
				t.Errorf("the operator's link is gone: %s", text)
			}
			seen += strings.Count(text, "evil.example")
		}
	}
	if seen < 4 {
		t.Errorf("the evidence is gone: it is seen %d times", seen)
	}
}

func TestJSONContract(t *testing.T) {
	a := raise(t, "StormHurting", result(stormDetections()...))
	var keys map[string]json.RawMessage
	line := AppendJSON(nil, &a)
	if err := json.Unmarshal(line, &keys); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"at", "alert", "state", "severity", "labels", "starts_at", "ends_at", "value", "threshold", "cause", "incident", "coverage", "evidence", "advice"} {
		if keys[key] == nil {
			t.Errorf("%s is missing", key)
		}
		delete(keys, key)
	}
	if len(keys) > 0 {
		t.Errorf("beside the contract: %v", keys)
	}
	if want := `{"at":"2026-07-01T00:01:00Z","alert":"StormHurting","state":"firing","severity":"page","labels":{"site":"shop.example"},` +
		`"starts_at":"2026-07-01T00:00:00Z","ends_at":null,"value":2000,"threshold":5,"cause":{"verdict":"proven","text":"`; !strings.HasPrefix(string(line), want) {
		t.Errorf("%s", line)
	}
	d := stormDetections()[0]
	if got := string(AppendDetectionJSON(nil, epoch, &d)); !strings.HasPrefix(got,
		`{"at":"2026-07-01T00:00:00Z","detection":"client_abandon","state":"active","labels":{"site":"shop.example"},"value":1500,"evidence":{"requests":2240,`) {
		t.Error(got)
	}
}

func TestTemplatesOfRules(t *testing.T) {
	m, err := NewManager(Config{Detectors: detectors.Names(), Rules: []Rule{{
		Name: "Mine", When: "latency", Severity: "page", Runbook: "https://wiki/x", Labels: map[string]string{"team": "web"},
		Annotations: map[string]string{
			"summary": "{{ .Labels.site }}: {{ .Value }} of {{ .Threshold }}{{ .Labels.nope }}",
			"long":    `{{ range .Evidence.TopAgents }}{{ .Key }}{{ end }}`,
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	d := detection("latency", 9)
	d.Evidence.TopAgents = slices.Repeat([]detectors.Count{{Key: strings.Repeat("a", 500)}}, 10)
	r := result(d)
	r.At = epoch + second
	a := m.Evaluate(&r)[0]
	if a.Annotations["summary"] != "shop.example: 9 of 5" || a.Annotations["runbook"] != "https://wiki/x" || len(a.Annotations["long"]) > maxAnnotation {
		t.Errorf("%q", a.Annotations)
	}
	if a.Labels.String() != `{site="shop.example", team="web"}` {
		t.Error(a.Labels)
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain /é 中": "plain /é 中", "a\nb\tc": `a\nb\tc`, "\x1b[0m": `\u{001b}[0m`, "\u202e": `\u{202e}`, "\xff": `\xff`,
		"\U000e0041": `\u{e0041}`, "\u200b": `\u{200b}`, "\x7f\u0085": `\u{007f}\u{0085}`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("%q: %s", in, got)
		}
	}
	if got := string(appendJSONSafe(nil, []byte("\"\u202e\U000e0041é\x7f\""))); got != `"\u202e\udb40\udc41é\u007f"` {
		t.Error(got)
	}
}

func TestRetryLoopIsTheApplications(t *testing.T) {
	d := detection("retry_loop", 12)
	d.Evidence = detectors.Evidence{Method: "GET", Route: "/admin/search", Retries: n(12), RetryingClients: n(1), PeriodSeconds: n(20.2), WorkerSecondsShare: n(0.3)}
	a := raise(t, "RetryLoop", result(d))
	wantCause(t, a, Probable, "one client asks for GET /admin/search again within seconds of its own timeout: 12 times, one every 20.2 s", "30 % of the worker-seconds",
		"the calling application's own log")
	if a.Severity != Warning || a.Labels.Get("owner") != "application" || len(a.Advice) != 1 || a.Advice[0].Layer != "application" {
		t.Errorf("%s %v %+v", a.Severity, a.Labels, a.Advice)
	}
	if s := a.Annotations["summary"]; s != "shop.example: 12 retries of GET /admin/search within seconds of a timeout" {
		t.Error(s)
	}
}

func TestStampedeTellsTTLAndCrawl(t *testing.T) {
	d := detection("cache_stampede", 600)
	d.Evidence = detectors.Evidence{
		Requests: n(600), MissesPerMinute: n(600), MissShare: n(0.9), UsualMissesPerMinute: n(30), UsualMissShare: n(0.05),
		MissedURLs: n(97), RepeatFactor: n(6.2), DistinctAgents: n(9), TopAgents: []detectors.Count{{Key: "Crawler", Count: 400}},
	}
	a := raise(t, "CacheStampede", result(d))
	wantCause(t, a, Probable, "600 requests a minute missed the cache, 90 % of all; usual are 30 a minute, 5 %; 97 URLs, on average asked for 6.2 times",
		"one agent makes 66.7 % of the requests", "a crawl after a clear")
	if a.Severity != Warning || len(a.Advice) != 2 || !strings.Contains(a.Advice[0].Snippet, "proxy_cache_use_stale updating") || !strings.Contains(a.Advice[1].Text, "clear by URL") {
		t.Errorf("%s %+v", a.Severity, a.Advice)
	}
	d.Evidence.TTLSeconds = n(1800)
	a = raise(t, "CacheStampede", result(d))
	wantCause(t, a, Probable, "every ≈1,800 s", "a TTL of ≈1,800 s", "the TTL as configured")
	if len(a.Advice) != 1 {
		t.Errorf("%+v", a.Advice)
	}
}

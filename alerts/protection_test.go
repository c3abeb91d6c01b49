package alerts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/squall-sre/squall/detectors"
)

// raiseBy evaluates one pane with a rule of its own for a detector.
func raiseBy(t *testing.T, detector, by string, ds ...detectors.Detection) Alert {
	t.Helper()
	m, err := NewManager(Config{Detectors: detectors.Names(), Rules: []Rule{{Name: "Mine", When: detector, Severity: "warning", By: []string{by}}}})
	if err != nil {
		t.Fatal(err)
	}
	r := result(ds...)
	r.At = epoch + 60*second
	for _, a := range m.Evaluate(&r) {
		if a.Name == "Mine" {
			return a
		}
	}
	t.Fatal("the rule did not fire")
	return Alert{}
}

func ofCluster(d detectors.Detection) detectors.Detection {
	d.Labels = detectors.Labels{{Name: "cluster", Value: "prod"}}
	return d
}

func limiterDetection() detectors.Detection {
	d := detection("ratelimit_backfire", 120)
	d.Evidence = detectors.Evidence{
		Requests: n(400), LimitedOwn: n(120), LimitedAllowed: n(30), LimitedStaticQuery: n(110), StaticQuery: n(160), StaticPlain: n(40),
		LimitedStaticPlain: n(0), LimitedByUpstream: n(0), Zones: []detectors.Count{{Key: "site_a_dynamic", Count: 150}}, Excess: n(5.4), Route: "/a.css",
	}
	return d
}

func TestLimiterBackfires(t *testing.T) {
	d := limiterDetection()
	a := raise(t, "LimiterBackfires", result(d))
	wantCause(t, a, Proven, "refused 120 requests of the site's own hosts, 30 requests of allowed addresses, 110 of 160 requests for static files",
		"zone site_a_dynamic, excess up to 5.4", "none of 40 without one was refused: the limiter's key uses $request_uri")
	if len(a.Cause.Missing) > 0 || a.Severity != Warning || a.Labels.Get("pattern") != "self_protection_backfire" {
		t.Errorf("%+v", a)
	}
	if len(a.Advice) != 3 || !strings.Contains(a.Advice[0].Snippet, "map $uri ") || !strings.HasPrefix(a.Advice[1].Snippet, "geo ") {
		t.Errorf("%+v", a.Advice)
	}
	for _, ad := range a.Advice {
		if strings.Contains(ad.Snippet, "deny") || strings.Contains(ad.Snippet, "Block") {
			t.Errorf("own addresses would be blocked: %s", ad.Snippet)
		}
	}

	// Without files to compare with, and without the error log, the key is not shown.
	d.Evidence.StaticPlain, d.Evidence.Zones = n(3), nil
	a = raise(t, "LimiterBackfires", result(d))
	wantCause(t, a, Proven, "consistent with a limiter whose key uses $request_uri", "that it does is not shown (fewer than 20 static files")
	if len(a.Cause.Missing) > 0 || !strings.Contains(adviceText(&a), "which zone it is nginx's error log tells") {
		t.Errorf("proven, and yet something is missing: %+v", a)
	}
	d.Evidence.LimitedOwn, d.Evidence.LimitedAllowed = n(0), n(0)
	wantCause(t, raise(t, "LimiterBackfires", result(d)), Probable, "consistent with", "20 static files that were asked for without a query string", "nginx's error log")

	// An application's own limiter has no zone.
	d.Evidence = detectors.Evidence{LimitedAllowed: n(60), LimitedByUpstream: n(60), LimitedOwn: n(0), LimitedStaticQuery: n(0)}
	a = raise(t, "LimiterBackfires", result(d))
	wantCause(t, a, Proven, "60 of them by the application itself")
	if strings.Contains(a.Cause.Text+strings.Join(a.Cause.Missing, ""), "zone") || len(a.Advice) != 1 {
		t.Errorf("%+v", a)
	}

	failing := detection("error_burst", 40)
	failing.Evidence = detectors.Evidence{Errors5xx: n(40), ErrorRatio: n(0.1), LimitedOwn: n(120)}
	wantCause(t, raise(t, "LimiterBackfires", result(limiterDetection(), failing)), Proven, "40 answers were 5xx, consistent with pages whose own calls were refused")
	if a := raise(t, "LimiterBackfires", result(limiterDetection()), "limiter_uri_key"); !strings.HasPrefix(a.Advice[2].Text, "limiter_uri_key is in place") {
		t.Errorf("%+v", a.Advice)
	}
}

// People behind a NAT that is configured as own are not taken for hosts that call themselves.
func TestOfficeThatIsConfiguredAsOwn(t *testing.T) {
	d, self := limiterDetection(), detection("self_loop", 360)
	d.Evidence = detectors.Evidence{LimitedOwn: n(240), LimitedAllowed: n(0), LimitedStaticQuery: n(0), LimitedByUpstream: n(0)}
	self.Evidence = detectors.Evidence{RequestsPerMinute: n(360), DistinctAgents: n(60), BrowserShare: n(1), Limited: n(240)}
	for _, name := range []string{"LimiterBackfires", "SelfLoop"} {
		a := raise(t, name, result(d, self))
		wantCause(t, a, Probable, "60 user agents", "people behind", "whether people share these addresses")
		if text := adviceText(&a); !strings.Contains(text, "if these are people behind your NAT, put its address into allowed; else don't call yourself") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

func TestProbeThroughApp(t *testing.T) {
	d := detection("probe_failure", 40)
	d.Evidence = detectors.Evidence{Requests: n(44), ReachedUpstreamRatio: n(1), ProbesFailed: n(40), Route: "/liveness", StallSeconds: n(12.5)}
	a := raise(t, "ProbeThroughApp", result(d))
	wantCause(t, a, Proven, "100 % of 44 on /liveness reached an upstream, and 40 were slow", "the slowest took 12.5 s", "what made them wait is undetermined",
		"periodSeconds × failureThreshold (probe_failure: {period, failure_threshold})")
	if a.Severity != Warning || a.Annotations["pattern"] != "self_protection_backfire" || a.Advice[0].Layer != "kubernetes" || a.Advice[1].Layer != "nginx" {
		t.Errorf("%+v", a)
	}
	d.Evidence.KillBudgetSeconds = n(10)
	wantCause(t, raise(t, "ProbeThroughApp", result(append(stormDetections(), d)...)), Proven, "they wait with everybody else's requests",
		"a stall is longer than what the probe allows")
	d.Evidence.KillBudgetSeconds = n(90)
	wantCause(t, raise(t, "ProbeThroughApp", result(d)), Proven, "kills after 90 s", "the longest stall was 12.5 s")

	// What kubelet alone tells is not said of a site.
	c := ofCluster(d)
	c.Evidence = detectors.Evidence{ProbesFailed: n(30), Containers: n(9), KillBudgetSeconds: n(90), StallSeconds: n(39.4)}
	m, err := NewManager(Config{Detectors: detectors.Names()})
	if err != nil {
		t.Fatal(err)
	}
	r := result(c)
	r.At = epoch + 60*second
	if told := m.Evaluate(&r); len(told) > 0 {
		t.Errorf("%+v", told)
	}
	wantCause(t, raiseBy(t, "probe_failure", "cluster", c), Undetermined, "30 probes failed in 9 containers", "what made the probes fail")
	killed := ofCluster(detection("worker_timeout", 6))
	killed.Evidence = detectors.Evidence{PHPTimeouts: n(6), MaxChildrenReached: n(0), PeriodSeconds: n(10), StallSeconds: n(39.4)}
	wantCause(t, raiseBy(t, "probe_failure", "cluster", c, killed), Probable, "php-fpm killed 6 requests")

	burst := ofCluster(detection("restart_burst", 24))
	burst.Evidence = detectors.Evidence{Restarts: n(24), Reasons: map[string]int{"liveness": 24}}
	c.Evidence.KillBudgetSeconds = n(30)
	wantCause(t, raise(t, "RestartBurst", result(burst, c)), Proven, "the probe kills after 30 s", "a request may hold a worker 39.4 s")
}

func TestKilledRequestsAndErrors(t *testing.T) {
	d := ofCluster(detection("worker_timeout", 6))
	d.Evidence = detectors.Evidence{PHPTimeouts: n(6), MaxChildrenReached: n(2), StallSeconds: n(34.4)}
	a := raiseBy(t, "worker_timeout", "cluster", d)
	wantCause(t, a, Undetermined, "killed 6 requests", "the longest had run 34.4 s", "request_slowlog_timeout")
	if len(a.Advice) != 1 || a.Advice[0].Layer != "application" {
		t.Errorf("%+v", a.Advice)
	}
	d.Evidence.PeriodSeconds = n(10)
	a = raiseBy(t, "worker_timeout", "cluster", d)
	wantCause(t, a, Probable, "one every 10 s, the rhythm of a probe", "kubelet's log")
	if a.Advice[0].Layer != "kubernetes" {
		t.Errorf("%+v", a.Advice)
	}
	d.Evidence.Probe = "Readiness"
	wantCause(t, raiseBy(t, "worker_timeout", "cluster", d), Probable, "as failures of the readiness probe follow each other")

	e := detection("error_burst", 60)
	e.Evidence = detectors.Evidence{Errors5xx: n(60), ErrorRatio: n(0.2), Method: "GET", Route: "/lists", LimitedOwn: n(0), Status: map[string]int{"500": 60}}
	wantCause(t, raiseBy(t, "error_burst", "site", e), Undetermined, "60 answers were 5xx, 20 % of all, most on GET /lists", "the application's log")
	e.Evidence.Status = map[string]int{"502": 50, "500": 10}
	wantCause(t, raiseBy(t, "error_burst", "site", e), Undetermined, "the upstream did not answer", "php-fpm's error logs")
	e.Evidence.LimitedOwn = n(200)
	a = raiseBy(t, "error_burst", "site", e)
	wantCause(t, a, Probable, "a limiter refused 200 requests of the site's own hosts")
	if len(a.Advice) != 1 || !strings.Contains(a.Advice[0].Text, "GET /lists") {
		t.Errorf("%+v", a.Advice)
	}
}

// The names of zones and what php-fpm was asked are text of a log: short and no markup.
func TestHostileZone(t *testing.T) {
	d := limiterDetection()
	evil := "<!channel>\x1b[31m" + strings.Repeat("z", 9000)
	d.Evidence.Zones, d.Evidence.Route = []detectors.Count{{Key: evil, Count: 9}}, evil
	a := raise(t, "LimiterBackfires", result(d))
	for name, text := range a.Annotations {
		if strings.Contains(text, "<") && name != "advice" || strings.ContainsRune(text, 0x1b) || len(text) > maxAnnotation {
			t.Errorf("%s: %q", name, text)
		}
	}
	for _, ad := range a.Advice {
		if strings.Contains(ad.Snippet, "zzz") {
			t.Errorf("a zone's name got into a snippet: %s", ad.Snippet)
		}
	}
}

// The snippets are what nginx takes.
func TestProtectionSnippets(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatal("nginx is needed to try the snippets: apt-get install nginx-light")
	}
	dir := t.TempDir()
	conf := "pid " + dir + "/pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n" + limiterExempt +
		"\nserver {\nlisten 127.0.0.1:1;\nlimit_req zone=outside;\n" + probeStatic + "\n}\n}\n"
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(nginx, "-t", "-p", dir, "-c", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, conf)
	}
}

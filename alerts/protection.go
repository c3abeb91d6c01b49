package alerts

import (
	"fmt"
	"strings"

	"github.com/squall-sre/squall/detectors"
)

// Protection that turns on its owner: limiters that refuse their own side, and probes that kill what is only busy.

// plainFiles is how many static files without a query string must have been let through for the difference to prove
// that the query string is what made the limiter refuse.
const plainFiles = 20

// byQuery tells that static files were refused because of their query string, and whether that is shown.
func byQuery(e *detectors.Evidence) (suspected, shown bool) {
	if e.LimitedStaticQuery.Get() < 1 {
		return false, false
	}
	plain, refused := e.StaticPlain.Get(), e.LimitedStaticPlain.Get()
	return true, plain >= plainFiles && refused == 0
}

// limiterCause: that requests were refused and whose they were the log states; which key the zone has it does not, but
// files that are let through without a query string and refused with one leave little else.
func limiterCause(f *facts) Cause {
	e := f.limiter
	var whom []string
	for _, x := range []struct {
		n    detectors.Num
		what string
	}{{e.LimitedOwn, "of the site's own hosts"}, {e.LimitedAllowed, "of allowed addresses"}} {
		if x.n.Get() > 0 {
			whom = append(whom, short(x.n.Get())+" requests "+x.what)
		}
	}
	stated := len(whom) > 0
	suspected, shown := byQuery(e)
	if suspected {
		whom = append(whom, fmt.Sprintf("%s of %s requests for static files with a query string", short(e.LimitedStaticQuery.Get()), short(e.StaticQuery.Get())))
	}
	text := "a limiter of the site refused " + strings.Join(whom, ", ")
	if len(e.Zones) > 0 {
		text += "; zone " + cut(e.Zones[0].Key, 80)
		if e.Excess.Known() {
			text += ", excess up to " + short(e.Excess.Get())
		}
	}
	c := Cause{Verdict: Proven, Text: text}
	switch {
	case shown:
		c.Text += fmt.Sprintf("; none of %s without one was refused: the limiter's key uses $request_uri, which keeps the query string, instead of $uri",
			short(e.StaticPlain.Get()))
	case suspected && !stated:
		c.Verdict = Probable
		c.Text += "; consistent with a limiter whose key uses $request_uri, which keeps the query string, instead of $uri"
		c.Missing = append(c.Missing, fmt.Sprintf("%d static files that were asked for without a query string and let through", plainFiles))
	case suspected:
		c.Text += fmt.Sprintf("; consistent with a limiter whose key uses $request_uri, which keeps the query string, instead of $uri: that it does is not shown (fewer than %d static files without one were let through)",
			plainFiles)
	case e.LimitedByUpstream.Get() > 0:
		c.Text += fmt.Sprintf("; %s of them by the application itself", short(e.LimitedByUpstream.Get()))
	}
	if f.natted() && e.LimitedOwn.Get() > 0 {
		c.Verdict = Probable
		c.Text += fmt.Sprintf("; they come under %s user agents, most of them browsers': the site's hosts, or people behind its NAT", approx(agentsOf(f)))
		c.Missing = append(c.Missing, sharedNAT)
	}
	if c.Verdict != Proven && !f.zoned() {
		c.Missing = append(c.Missing, "the limiter's zone: nginx's error log (limiting requests, excess … by zone)")
	}
	if f.failing != nil && e.LimitedOwn.Get() > 0 {
		c.Text += fmt.Sprintf("; at the same time %s answers were 5xx, consistent with pages whose own calls were refused", short(f.failing.Errors5xx.Get()))
	}
	return c
}

// sharedNAT is what would tell people from hosts.
const sharedNAT = "whether people share these addresses (then they belong into allowed)"

// natted tells that the own addresses look like those of many people.
func (f *facts) natted() bool {
	return f.self != nil && behindNAT(f.self)
}

func agentsOf(f *facts) float64 { return f.self.DistinctAgents.Get() }

// zoned tells that the limiter's zone is known, or that it has none: it is the application's.
func (f *facts) zoned() bool {
	e := f.limiter
	return len(e.Zones) > 0 || e.LimitedByUpstream.Get() >= e.LimitedOwn.Get()+e.LimitedAllowed.Get()+e.LimitedStaticQuery.Get()
}

// budget compares what a probe waits before it kills with how long requests held their workers.
func budget(e *detectors.Evidence) string {
	if e == nil || !e.KillBudgetSeconds.Known() {
		return ""
	}
	text := fmt.Sprintf("; the probe kills after %s s (period × failureThreshold)", short(e.KillBudgetSeconds.Get()))
	if !e.StallSeconds.Known() {
		return text
	}
	if e.StallSeconds.Get() >= e.KillBudgetSeconds.Get() {
		return text + fmt.Sprintf(" and a request may hold a worker %s s: a stall is longer than what the probe allows", short(e.StallSeconds.Get()))
	}
	return text + fmt.Sprintf("; the longest stall was %s s", short(e.StallSeconds.Get()))
}

// withoutBudget is what is missing for that comparison.
func withoutBudget(e *detectors.Evidence) []string {
	if e.KillBudgetSeconds.Known() {
		return nil
	}
	return []string{"the liveness probe's periodSeconds × failureThreshold (probe_failure: {period, failure_threshold})"}
}

// probeCause: that probes reach the application and wait there the log states. Why the application is slow is asked
// of the other detectors.
func probeCause(f *facts) Cause {
	e := f.probe
	text := fmt.Sprintf("health checks pass through the application: %s of %s on %s reached an upstream, and %s were slow, given up or answered 5xx",
		percent(e.ReachedUpstreamRatio.Get()), short(e.Requests.Get()), routeText(e), short(e.ProbesFailed.Get()))
	if e.StallSeconds.Known() {
		text += fmt.Sprintf("; the slowest took %s s", short(e.StallSeconds.Get()))
	}
	text += budget(e)
	missing := withoutBudget(e)
	if !f.hurting {
		return Cause{Proven, text + "; what made them wait is undetermined", append(missing, "a detector that shows slow answers or a used-up pool of the site at the time")}
	}
	return Cause{Proven, text + "; they wait with everybody else's requests, so that a busy application looks like a dead one", missing}
}

func routeText(e *detectors.Evidence) string {
	if e.Route == "" {
		return "several routes"
	}
	return e.Route
}

func failedProbesCause(f *facts) Cause {
	e := f.probe
	text := fmt.Sprintf("%s failed in %s", counted("probe")(e.ProbesFailed.Get()), counted("container")(e.Containers.Get())) + budget(e)
	missing := append([]string{"what made the probes fail: the access log of the ingress for the window, and the load of nodes, databases and file servers"},
		withoutBudget(e)...)
	if f.timeouts != nil && f.timeouts.PHPTimeouts.Get() > 0 {
		return Cause{Probable, text + fmt.Sprintf("; php-fpm killed %s requests at the time, consistent with probes that wait for a worker",
			short(f.timeouts.PHPTimeouts.Get())), missing}
	}
	return Cause{Undetermined, text, missing}
}

// timeoutCause tells what php-fpm did; a steady rhythm tells whose requests they were, not why they ran so long.
func timeoutCause(f *facts) Cause {
	e := f.timeouts
	text := fmt.Sprintf("php-fpm killed %s requests", short(e.PHPTimeouts.Get()))
	if e.MaxChildrenReached.Get() > 0 {
		text += fmt.Sprintf(" and told %s times that all its children are busy", short(e.MaxChildrenReached.Get()))
	}
	if e.StallSeconds.Known() {
		text += fmt.Sprintf("; the longest had run %s s", short(e.StallSeconds.Get()))
	}
	missing := []string{"what the killed requests waited for (php-fpm's slow log: request_slowlog_timeout)"}
	switch {
	case e.PeriodSeconds.Known() && e.Probe != "":
		return Cause{Probable, text + fmt.Sprintf("; one every %s s, as failures of the %s probe follow each other: the probe's own requests are killed",
			short(e.PeriodSeconds.Get()), strings.ToLower(e.Probe)), missing}
	case e.PeriodSeconds.Known():
		return Cause{Probable, text + fmt.Sprintf("; one every %s s, the rhythm of a probe", short(e.PeriodSeconds.Get())),
			append(missing, "kubelet's log or events: a probe that fails in this rhythm")}
	}
	return Cause{Undetermined, text, missing}
}

// errorCause: an access log shows errors and what happened beside them, hardly ever why.
func errorCause(f *facts) Cause {
	e := f.failing
	text := fmt.Sprintf("%s answers were 5xx, %s of all, most on %s %s", short(e.Errors5xx.Get()), percent(e.ErrorRatio.Get()), e.Method, routeText(e))
	missing := []string{"the application's log"}
	if e.LimitedOwn.Get() > 0 {
		return Cause{Probable, text + fmt.Sprintf("; at the same time a limiter refused %s requests of the site's own hosts: pages whose own calls are refused fail",
			short(e.LimitedOwn.Get())), []string{"the application's log: an error of a call to the site itself"}}
	}
	gateway := e.Status["502"] + e.Status["503"] + e.Status["504"]
	if float64(gateway) > pinShare*e.Errors5xx.Get() {
		text += fmt.Sprintf("; %d of them 502, 503 or 504: the upstream did not answer", gateway)
		missing = []string{"nginx's and php-fpm's error logs"}
	}
	return Cause{Undetermined, text, missing}
}

// limiterExempt keeps own and allowed ranges out of a zone. The addresses are examples.
const limiterExempt = `geo $counted {
    default         1;
    127.0.0.0/8     0;
    192.0.2.0/24    0;    # your own hosts and NAT, and the ranges that you allow
}
map $counted $outside_key {
    1       $binary_remote_addr;
    default "";           # an empty key is not counted
}
limit_req_zone $outside_key zone=outside:10m rate=300r/m;`

func adviseLimiter(f *facts) []option {
	e := f.limiter
	var options []option
	own := ""
	if suspected, _ := byQuery(e); suspected {
		options = append(options, option{Advice{
			Layer: layerNginx,
			Text: fmt.Sprintf("let the limiter count by $uri, so that versioned static files are exempt: it refused %s of %s",
				short(e.LimitedStaticQuery.Get()), short(e.StaticQuery.Get())),
			Snippet: limiterSnippet,
			Verify:  "after nginx -t and a reload, many parallel requests for a static file with ?v= from outside must all get 200",
		}, []string{"limiter_uri_key"}})
	}
	if ours := e.LimitedOwn.Get() + e.LimitedAllowed.Get(); ours > 0 {
		zone := ""
		if !f.zoned() {
			zone = "; which zone it is nginx's error log tells"
		}
		options = append(options, option{Advice{
			Layer: layerNginx,
			Text: fmt.Sprintf("leave the site's own and allowed addresses out of the limiter, and never block them: it refused %s of their requests; behind one address may be a whole office%s",
				short(ours), zone),
			Snippet: limiterExempt,
			Verify:  "limited_own and limited_allowed must fall to 0, and strangers still be refused",
		}, []string{"limiter_exempt_own"}})
	}
	if e.LimitedOwn.Get() > 0 {
		if f.natted() {
			own = "if these are people behind your NAT, put its address into allowed; else "
		}
		options = append(options, option{Advice{
			Layer:   layerApplication,
			Text:    own + "don't call yourself over HTTP: read the file from disk (public_path()) or link it (<link>)",
			Snippet: "grep -rnE \"file_get_contents\\(.*(asset|url|route)\\(\" app resources",
			Verify:  "self_loop must end while pages are rendered",
		}, nil})
	}
	return options
}

const probeStatic = `# answered by nginx: it tells that nginx is alive, whatever PHP does
location = /healthz { default_type text/plain; return 200 "ok\n"; }`

func adviseProbes(f *facts) []option {
	return []option{
		{Advice{
			Layer:   layerKubernetes,
			Text:    "let the liveness probe ask php-fpm's ping or nginx only, not the application: that no database is asked must hold on the entire path, sessions included. Keep periodSeconds × failureThreshold longer than the longest PHP request; the database belongs into readiness",
			Snippet: probeSnippet,
			Verify:  "with every PHP worker busy the probe must still be answered, and no container be restarted",
		}, []string{"liveness_ping"}},
		{Advice{
			Layer: layerNginx, Text: "for a balancer's check of the web server, answer it in nginx",
			Snippet: probeStatic, Verify: "the check's line in the access log must have no upstream",
		}, []string{"nginx_health"}},
	}
}

func adviseTimeouts(f *facts) []option {
	text := "find what the killed requests wait for: php-fpm's slow log names the line of code"
	if f.timeouts.PeriodSeconds.Known() {
		return append(adviseProbes(f), option{Advice{Layer: layerApplication, Text: text, Snippet: slowLog}, []string{"php_slowlog"}})
	}
	return []option{{Advice{Layer: layerApplication, Text: text, Snippet: slowLog,
		Verify: "php_timeouts must fall to 0"}, []string{"php_slowlog"}}}
}

const slowLog = `; php-fpm pool
request_slowlog_timeout = 5s
slowlog = /proc/self/fd/2
request_terminate_timeout = 30s`

func adviseErrors(f *facts) []option {
	text := "read the application's log for " + strings.TrimSpace(f.failing.Method+" "+routeText(f.failing))
	if f.failing.LimitedOwn.Get() > 0 {
		text = "don't let a page fail because a call to the site itself is refused: read the file from disk, or catch the error. " + text
	}
	return []option{{Advice{Layer: layerApplication, Text: text, Verify: "error_ratio must fall under its threshold"}, nil}}
}

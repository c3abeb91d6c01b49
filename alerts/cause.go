package alerts

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/squall-sre/squall/detectors"
)

// causeRules leads from facts to a verdict: the first that matches speaks. What it says holds for what it matched
// and no more; what it would need to say more is its list of what is missing.
var causeRules = []struct {
	name  string
	match func(*facts) bool
	cause func(*facts) Cause
}{
	{"absent nodes", func(f *facts) bool { return f.alert.reads("nodes_absent") }, absentCause},
	{"restarts", func(f *facts) bool { return f.restart != nil && f.alert.reads("restart_burst") }, restartCause},
	{"limiter", func(f *facts) bool { return f.limiter != nil && f.alert.reads("ratelimit_backfire") }, limiterCause},
	{"probes of a site", func(f *facts) bool {
		return f.probe != nil && f.alert.reads("probe_failure") && f.probe.ReachedUpstreamRatio.Known()
	}, probeCause},
	{"failed probes", func(f *facts) bool { return f.probe != nil && f.alert.reads("probe_failure") }, failedProbesCause},
	{"killed requests", func(f *facts) bool { return f.timeouts != nil && f.alert.reads("worker_timeout") }, timeoutCause},
	{"errors", func(f *facts) bool { return f.failing != nil && f.alert.reads("error_burst") }, errorCause},
	{"retries", func(f *facts) bool { return f.retry != nil && f.alert.reads("retry_loop") }, retryCause},
	{"stampede", func(f *facts) bool { return f.stampede != nil && f.alert.reads("cache_stampede") }, stampedeCause},
	{"self loop", func(f *facts) bool { return f.self != nil && f.alert.reads("self_loop") }, selfCause},
	{"head storm answered before the origin", func(f *facts) bool {
		return f.head != nil && f.head.ReachedUpstreamRatio.Known() && f.head.ReachedUpstreamRatio.Get() == 0 && !f.hurting
	}, answeredCause},
	{"head storm", func(f *facts) bool { return f.head != nil && !contradicted(f) }, headCause},
	{"flood that hurts nobody", func(f *facts) bool { return f.flood != nil && f.alert.reads("agent_flood") && !f.hurting }, floodCause},
	{"flood that holds the origin", func(f *facts) bool {
		return f.flood != nil && f.hurting && f.flood.WorkerSecondsShare.Get() >= pinShare
	}, floodHurtCause},
	{"self loop beside", func(f *facts) bool { return f.self != nil && f.hurting }, selfCause},
	{"one class", func(f *facts) bool { return f.class.share > broadShare }, classCause},
	{"nothing stands out", func(*facts) bool { return true }, undeterminedCause},
}

// cause explains the alert.
func (f *facts) cause() Cause {
	for _, r := range causeRules {
		if r.match(f) {
			return f.capped(r.cause(f))
		}
	}
	return undeterminedCause(f)
}

// capped takes the proof away when lines are missing: what was lost may say otherwise.
func (f *facts) capped(c Cause) Cause {
	lossy := f.lossy()
	if len(lossy) > 0 && c.Verdict == Proven {
		c.Verdict = Probable
	}
	c.Missing = append(c.Missing, lossy...)
	return c
}

// absentCause tells what is known of nodes that do not tell, which is not why.
func absentCause(*facts) Cause {
	return Cause{Undetermined, "nodes of the fleet tell its aggregator nothing, or too late to be counted: a storm that is spread over all of them looks smaller than it is",
		[]string{"whether they are down, cut off or behind"}}
}

// reads tells whether a detector took part in the alert itself.
func (a *Alert) reads(detector string) bool { return slices.Contains(a.Detectors, detector) }

// contradicted tells that the HEAD requests cannot have hurt: next to nothing of them reached the origin, or they
// hold next to none of its time.
func contradicted(f *facts) bool {
	reached, share := f.head.ReachedUpstreamRatio, f.head.WorkerSecondsShare
	return f.hurting && (reached.Known() && reached.Get() < reachedAtAll || share.Known() && share.Get() < 0.1)
}

func headCause(f *facts) Cause {
	share, reached := f.head.WorkerSecondsShare, f.head.ReachedUpstreamRatio
	facts := []string{perAddress(f.head), agents(f)}
	var missing []string
	if share.Known() {
		facts = append([]string{percent(share.Get()) + " of the worker-seconds"}, facts...)
	} else {
		missing = append(missing, "request and upstream times ($request_time, $upstream_response_time)")
	}
	if reached.Known() {
		facts = append([]string{percent(reached.Get()) + " of them reached an upstream"}, facts...)
	} else {
		missing = append(missing, "whether an upstream was contacted ($upstream_addr, $upstream_response_time)")
	}
	numbers := sentence(facts...)
	switch {
	case !f.hurting:
		return Cause{statedBy(missing), fmt.Sprintf("a storm of %s at %s a minute%s; no client is hurt: %s",
			f.storm(), short(f.head.RequestsPerMinute.Get()), scanners(f), numbers), missing}
	case share.Get() >= pinShare && reached.Get() >= reachedAtAll:
		return Cause{Proven, fmt.Sprintf("HEAD requests on %s pinned the origin: %s%s%s", routeOf(f), numbers, counterfactual(f.head), scanners(f)), nil}
	}
	if share.Known() && share.Get() < pinShare {
		missing = append(missing, "a share of the worker-seconds of at least "+percent(pinShare)+": others take part")
	}
	return Cause{Probable, fmt.Sprintf("HEAD requests on %s came while clients were hurt: %s%s", routeOf(f), numbers, scanners(f)), missing}
}

// floodCause: what one agent makes the log states. While no client waits or leaves there is nothing to explain.
func floodCause(f *facts) Cause {
	e := f.flood
	usual := ""
	if e.BaselinePerMinute.Get() > 0 {
		usual = fmt.Sprintf("the busiest agent that people use is known to make %s", short(e.BaselinePerMinute.Get()))
	}
	return Cause{Proven, fmt.Sprintf("a flood of one agent at %s requests a minute%s; no client is hurt", short(e.RequestsPerMinute.Get()),
		known(e.DistinctClients.Known(), func() string { return from(e) })) +
		known(usual != "", func() string { return ": " + usual }), nil}
}

// floodHurtCause: the routes on which an agent is the busiest hold the origin; they are its own where next to all of their
// requests are.
func floodHurtCause(f *facts) Cause {
	e := f.flood
	var routes []string
	for _, r := range e.TopRoutes[:min(len(e.TopRoutes), named)] {
		routes = append(routes, cut(r.Key, 120))
	}
	on := "several routes"
	if len(routes) > 0 {
		on = strings.Join(routes, ", ")
	}
	text := fmt.Sprintf("a flood of one agent at %s requests a minute pinned the origin: what it asks for most, %s, holds %s of the worker-seconds",
		short(e.RequestsPerMinute.Get()), on, percent(e.WorkerSecondsShare.Get()))
	if !e.DistinctClients.Known() {
		return Cause{Probable, text, []string{"whether the other clients of these routes took no part"}}
	}
	return Cause{Proven, sentence(text, perAddress(e)) + counterfactual(e), nil}
}

// scanners says what many addresses with few requests each look like. Whose they are no log tells.
func scanners(f *facts) string {
	if f.head.DistinctClients.Get() >= 50 && f.head.RequestsPerClientPerMinute.Get() < 2*fewRequests {
		return ", consistent with link-protection scanners"
	}
	return ""
}

// statedBy: what the log states is proven when no field is missing for it.
func statedBy(missing []string) Verdict {
	if len(missing) > 0 {
		return Probable
	}
	return Proven
}

func routeOf(f *facts) string { return routesText(f.head) }

func routeIn(e *detectors.Evidence) string {
	if e.Route == "" {
		return "several routes"
	}
	return e.Route
}

// agents says why the User-Agent is no key: a fleet rotates it, or takes a browser's.
func agents(f *facts) string {
	n := f.head.DistinctAgents
	if !n.Known() {
		return ""
	}
	if n.Get() > 10 {
		return approx(n.Get()) + " user agents: method and route are the key, not the agent"
	}
	return ""
}

// counterfactual is what the origin would have been without these requests.
func counterfactual(e *detectors.Evidence) string {
	without, pool := e.CounterfactualBusyWorkers, e.PoolWorkers
	if !without.Known() || !pool.Known() || pool.Get() <= 0 {
		return ""
	}
	s := fmt.Sprintf("; without them %s of %s workers would have been busy", short(without.Get()), short(pool.Get()))
	if without.Get()/pool.Get() >= calmRatio {
		s += ", still too many: they are not all of it"
	}
	return s
}

func answeredCause(f *facts) Cause {
	return Cause{Proven, fmt.Sprintf("%s: all %s requests of the %s were answered before the origin, none reached an upstream",
		f.storm(), short(f.head.Requests.Get()), f.span()), nil}
}

func selfCause(f *facts) Cause {
	e := f.self
	text := fmt.Sprintf("the site calls itself: %s requests a minute come from its own addresses", short(e.RequestsPerMinute.Get()))
	if behindNAT(e) {
		text = fmt.Sprintf("%s requests a minute come from the site's own addresses under %s user agents, %s of them browsers': the site calls itself, or people behind your NAT visit it",
			short(e.RequestsPerMinute.Get()), approx(e.DistinctAgents.Get()), percent(e.BrowserShare.Get()))
	}
	if e.FanOut.Known() {
		text += fmt.Sprintf(", %s for each page rendered", short(e.FanOut.Get()))
	}
	if e.StaticShare.Known() {
		text += fmt.Sprintf("; %s of them for static files", percent(e.StaticShare.Get()))
	}
	c := Cause{Verdict: Proven, Text: text}
	if e.Limited.Get() > 0 {
		c.Text += fmt.Sprintf("; the site's own limiter refused %s of them", short(e.Limited.Get()))
		if e.StaticShare.Get() >= pinShare {
			c.Text += ", consistent with a limiter whose key uses $request_uri, which keeps the query string, instead of $uri"
		}
	}
	if behindNAT(e) {
		c.Verdict = Probable
		c.Missing = append(c.Missing, sharedNAT)
	}
	if !f.alert.reads("self_loop") {
		c.Verdict = Probable
		c.Missing = append(c.Missing, "proof that the site's calls to itself are what holds the workers")
	}
	return c
}

// behindNAT tells that own addresses look like those of people: browsers of several makes. A program that calls its own
// site has one agent or none.
func behindNAT(e *detectors.Evidence) bool {
	return e.DistinctAgents.Get() >= 3 && e.BrowserShare.Get() >= 0.5
}

// restartCause names how the containers ended; why their probes failed is another question, which the events do
// not answer.
func restartCause(f *facts) Cause {
	e := f.restart
	total := 0
	for _, n := range e.Reasons {
		total += n
	}
	var told []string
	for _, reason := range slices.SortedFunc(maps.Keys(e.Reasons), func(a, b string) int {
		return compareCounts(e.Reasons[a], e.Reasons[b], a, b)
	}) {
		told = append(told, fmt.Sprintf("%d × %s", e.Reasons[reason], reason))
	}
	text := fmt.Sprintf("%d restarts: %s", total, strings.Join(told, ", "))
	var places []string
	if e.Nodes.Known() {
		places = append(places, "on "+counted("node")(e.Nodes.Get()))
	}
	if e.Namespaces.Known() {
		places = append(places, "in "+counted("namespace")(e.Namespaces.Get()))
	}
	if len(places) > 0 {
		text += "; " + strings.Join(places, " ")
	}
	text += scopeText(e)
	if e.Looping.Get() > 0 {
		text += fmt.Sprintf("; %s of them again and again, which is a crash loop", short(e.Looping.Get()))
	}
	if e.PeriodSeconds.Known() {
		text += fmt.Sprintf("; php-fpm killed requests every %s s, the rhythm of a probe", short(e.PeriodSeconds.Get()))
	}
	text += budget(f.probe)
	trigger := "what made the probes fail: the access log of the ingress " + f.window() + ", and the load of nodes, databases and file servers"
	untold := "what made the probes fail is undetermined"
	m, how := f.led()
	switch {
	case how != "":
		site := m.Labels.Get("site")
		untold = fmt.Sprintf("consistent with %s of %s, whose containers are among them: it came first, and %s", m.Detector, site, how)
		trigger = "what made the probes fail: whether they asked " + site + "'s workers (the probe's path), or the load of nodes, databases and file servers"
	case f.requests > 0:
		trigger = "what made the probes fail: the load of nodes, databases and file servers; of the sites whose requests were read, none is known to be theirs (namespaces of the site)"
	}
	liveness, probable := e.Reasons["liveness"], e.Reasons["liveness_probable"]
	switch {
	case len(f.lossy()) > 0:
		return Cause{Undetermined, text + "; the trigger is undetermined", []string{trigger}}
	case total > 0 && 2*e.Reasons["oom"] >= total:
		return Cause{Proven, text + "; " + share(e.Reasons["oom"], total) + " ran out of memory", nil}
	case total > 0 && 2*liveness >= total:
		return Cause{Proven, text + "; kubelet killed them after failed liveness probes; " + untold, []string{trigger}}
	case total > 0 && 2*(liveness+probable) >= total:
		text += "; consistent with kills after failed liveness probes"
		if how != "" {
			text += "; these are " + untold
		}
		return Cause{Probable, text,
			[]string{"kubelet's Killing events or its log", trigger}}
	}
	if reason, n := shared(e); n > 0 {
		x := endings[reason]
		return Cause{x.verdict, text + "; " + share(n, total) + " " + x.text, []string{x.missing}}
	}
	return Cause{Undetermined, text, []string{"a reason that most of the restarts share"}}
}

// endings are what reasons besides probes and memory tell, and what they do not.
var endings = map[string]struct {
	verdict       Verdict
	text, missing string
}{
	"node":      {Probable, "have no known end (ContainerStatusUnknown), consistent with the loss of their node", "the node's own state: kubectl describe node, its kernel's log"},
	"unknown":   {Undetermined, "are told without how the container ended", "the status of the pods, kubelet's events or its log"},
	"crash":     {Undetermined, "ended with an error of their own", "the last log of the ended containers"},
	"self_exit": {Undetermined, "ended by themselves with 0", "the last log of the ended containers"},
}

// shared is the reason that half of the restarts have at least; 0 when there is none.
func shared(e *detectors.Evidence) (reason string, n int) {
	total := 0
	for _, k := range slices.Sorted(maps.Keys(e.Reasons)) {
		total += e.Reasons[k]
		if _, known := endings[k]; known && e.Reasons[k] > n {
			reason, n = k, e.Reasons[k]
		}
	}
	if 2*n < total {
		return "", 0
	}
	return reason, n
}

// unshared says that restarts have no reason in common, where they have none.
func unshared(e *detectors.Evidence) string {
	if _, n := shared(e); n > 0 {
		return ""
	}
	return ": no shared reason is known"
}

func share(n, total int) string {
	if n == total {
		return "all"
	}
	return "most"
}

// led is the detection of a site that is known to lead to the restarts, with how: it came before them, and the
// site's containers are among them.
func (f *facts) led() (m Member, how string) {
	if f.alert.Incident == nil || f.site == nil {
		return Member{}, ""
	}
	for _, l := range leads {
		for _, m := range f.alert.Incident.Members {
			if l.to != "restart_burst" || m.Detector != l.from || m.Onset > f.alert.StartsAt {
				continue
			}
			if slices.ContainsFunc(f.site(m.Labels.Get("site")).Namespaces, func(name string) bool { return restartedIn(f.restart, name) }) {
				return m, l.how
			}
		}
	}
	return Member{}, ""
}

// restartedIn tells whether containers of a namespace were restarted.
func restartedIn(e *detectors.Evidence, namespace string) bool {
	return slices.ContainsFunc(e.Scope, func(s detectors.Share) bool { return s.Kind == "namespace" && s.Name == namespace })
}

// scopeText says what the restarted containers share. What is no more common among them than among all explains nothing.
func scopeText(e *detectors.Evidence) string {
	if len(e.Scope) == 0 {
		return ""
	}
	var explains []string
	var widest detectors.Share
	var kinds []string
	unknown := false
	for _, s := range e.Scope {
		if !slices.Contains(kinds, s.Kind) {
			kinds = append(kinds, s.Kind)
		}
		if s.Explains {
			explains = append(explains, fmt.Sprintf("%s of them share %s %s, %s times what chance would give", percent(s.Coverage.Get()), s.Kind, s.Name, short(s.Lift.Get())))
		}
		if s.Coverage.Get() > widest.Coverage.Get() || !widest.Coverage.Known() {
			widest = s
		}
		unknown = unknown || !s.Lift.Known() && s.Coverage.Get() >= wideShare
	}
	switch {
	case len(explains) > 0:
		return "; " + strings.Join(explains, "; ")
	case unknown:
		return fmt.Sprintf("; %s of them share %s %s, as may those that were not restarted", percent(widest.Coverage.Get()), widest.Kind, widest.Name)
	}
	return fmt.Sprintf("; broader than any one %s: %s %s, the widest, has %s of them", strings.Join(kinds, ", "), widest.Kind, widest.Name, percent(widest.Coverage.Get()))
}

func compareCounts(a, b int, nameA, nameB string) int {
	if a != b {
		return b - a
	}
	return strings.Compare(nameA, nameB)
}

func classCause(f *facts) Cause {
	c := f.class
	text := fmt.Sprintf("%s holds %s of the worker-seconds", c, percent(c.share))
	switch {
	case f.sat == nil && !f.alert.Evidence.PoolWorkers.Known():
		return Cause{Probable, text, []string{"the size of the worker pool (pool.workers of the site)"}}
	case c.share < pinShare:
		// What the pool would have done without a small class supposes that the others cost what they usually do;
		// where they cost more too, that says nothing of the class.
		if ranked := f.costs(); ranked != "" {
			text += "; by worker-seconds: " + ranked
		}
		return Cause{Probable, text, []string{"a share that alone used up the pool"}}
	case f.sat == nil:
		return Cause{Probable, text, []string{"a pool that is used up"}}
	case len(f.costly) > 1 && f.costly[1].share > broadShare: // what the pool would have done without one of two is no proof
		return Cause{Probable, fmt.Sprintf("%s; %s holds %s", text, f.costly[1], percent(f.costly[1].share)), []string{"a share that alone used up the pool"}}
	}
	without, pool := f.sat.CounterfactualBusyWorkers, f.sat.PoolWorkers
	if without.Known() && pool.Get() > 0 {
		text += fmt.Sprintf("; without it %s of %s workers would have been busy", short(without.Get()), short(pool.Get()))
		if without.Get()/pool.Get() < calmRatio {
			return Cause{Proven, text, nil}
		}
		return Cause{Probable, text, []string{"a share that alone used up the pool"}}
	}
	return Cause{Probable, text, []string{"the usual cost of the other routes (no baseline yet)"}}
}

func undeterminedCause(f *facts) Cause {
	var missing []string
	if !f.knowsWork() {
		missing = append(missing, "request and upstream times ($request_time, $upstream_response_time)")
	}
	if f.sat == nil && !f.alert.Evidence.PoolWorkers.Known() {
		missing = append(missing, "the size of the worker pool (pool.workers of the site)")
	}
	if f.class.share <= broadShare {
		return Cause{Undetermined, fmt.Sprintf("broad: no class of requests holds more than %s of the worker-seconds (the largest, %s, %s)",
			percent(broadShare), f.class, percent(f.class.share)), append(missing, "the load of what all requests depend on (database, cache, file server)")}
	}
	missing = append(missing, "a class of requests that holds the origin's time")
	return Cause{Undetermined, "the numbers do not show what holds the origin", missing}
}

// knowsWork tells whether the log carries times.
func (f *facts) knowsWork() bool {
	for _, d := range f.seen {
		if d.Evidence.WorkerSecondsUpper.Known() || d.Evidence.P99Seconds.Known() {
			return true
		}
	}
	return false
}

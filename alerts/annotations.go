package alerts

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/squall-sre/squall/detectors"
)

// The bounds of what is sent with an alert, in bytes.
const (
	maxAnnotations   = 8 << 10 // all of them, names and values
	maxAnnotation    = 3 << 10 // one value
	maxEvidenceLine  = 240
	maxEvidenceLines = 10
)

// TemplateData is what an annotation's template reads.
type TemplateData struct {
	Name      string
	Labels    map[string]string
	Severity  string
	State     string
	Value     float64
	Threshold float64
	StartsAt  time.Time // UTC
	Cause     Cause
	Evidence  detectors.Evidence
	Detectors []string
}

// annotation is one configured annotation.
type annotation struct {
	name string
	tmpl *template.Template
}

// compileAnnotations parses the templates and tries each with an empty alert, so that a name that does not exist
// is found at load.
func compileAnnotations(texts map[string]string) ([]annotation, error) {
	var out []annotation
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if !labelName.MatchString(name) {
			return nil, fmt.Errorf("annotations: %q is not a name", name)
		}
		t, err := template.New(name).Option("missingkey=zero").Parse(texts[name])
		if err != nil {
			return nil, fmt.Errorf("annotations: %w", err)
		}
		if err := t.Execute(&bounded{}, TemplateData{Labels: map[string]string{}}); err != nil {
			return nil, fmt.Errorf("annotations: %w", err)
		}
		out = append(out, annotation{name, t})
	}
	return out, nil
}

// bounded keeps the beginning of what a template writes.
type bounded struct{ text []byte }

func (b *bounded) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), max(0, maxAnnotation-len(b.text)))]...)
	return len(p), nil
}

// annotate renders everything that is said about an alert.
func annotate(r *rule, a *Alert, f *facts) map[string]string {
	out := map[string]string{
		"summary":     summary(a),
		"description": description(a),
		"cause":       causeText(a),
		"evidence":    strings.Join(evidenceLines(a), "\n"),
		"advice":      adviceText(a),
		"pattern":     pattern(f),
		"incident":    a.Incident.text(),
	}
	for name, text := range out {
		out[name] = plain(text)
	}
	out["runbook"], out["loki_query"], out["dashboard"] = r.Runbook, lokiQuery(a), f.dashboard(r)
	cause := a.Cause
	cause.Text = plain(cause.Text)
	data := TemplateData{
		Name: a.Name, Labels: labelMap(a.Labels), Severity: string(a.Severity), State: string(a.State), Value: a.Value,
		Threshold: a.Threshold, StartsAt: time.Unix(0, a.StartsAt).UTC(), Cause: cause, Evidence: plainEvidence(a.Evidence), Detectors: a.Detectors,
	}
	for _, t := range r.templates {
		var b bounded
		if err := t.tmpl.Execute(&b, data); err != nil {
			b.text = []byte("template: " + err.Error())
		}
		out[t.name] = string(b.text)
	}
	return bound(out)
}

// plain keeps text with parts of log lines from being markup where Alertmanager's receivers show it raw: in Slack's
// messages <!channel> wakes everybody and <address|text> is a link, and elsewhere a tag begins so. What an operator
// configures may have both.
func plain(s string) string { return strings.ReplaceAll(s, "<", "‹") }

func plainEvidence(e detectors.Evidence) detectors.Evidence {
	e.Route, e.Method = plain(e.Route), plain(e.Method)
	top := func(counts []detectors.Count) []detectors.Count {
		counts = slices.Clone(counts)
		for i := range counts {
			counts[i].Key = plain(counts[i].Key)
		}
		return counts
	}
	e.TopAgents, e.TopRoutes, e.Zones = top(e.TopAgents), top(e.TopRoutes), top(e.Zones)
	e.TopPrefixes = top(e.TopPrefixes)
	e.Costs = slices.Clone(e.Costs)
	for i := range e.Costs {
		e.Costs[i].Method, e.Costs[i].Route = plain(e.Costs[i].Method), plain(e.Costs[i].Route)
	}
	e.Discriminators = slices.Clone(e.Discriminators)
	for i := range e.Discriminators {
		keys := slices.Clone(e.Discriminators[i].Keys)
		for j := range keys {
			keys[j] = plain(keys[j])
		}
		e.Discriminators[i].Keys = keys
	}
	e.Scope = slices.Clone(e.Scope)
	for i := range e.Scope {
		e.Scope[i].Kind, e.Scope[i].Name = plain(e.Scope[i].Kind), plain(e.Scope[i].Name)
	}
	e.Samples = slices.Clone(e.Samples)
	for i := range e.Samples {
		e.Samples[i] = plain(e.Samples[i])
	}
	return e
}

// bound escapes and cuts. When all together is too long, the longest texts of our own give way last to first.
func bound(texts map[string]string) map[string]string {
	size := 0
	for name, text := range texts {
		if text == "" {
			delete(texts, name)
			continue
		}
		texts[name] = cut(escapeLines(cut(text, maxAnnotation)), maxAnnotation)
		size += len(name) + len(texts[name])
	}
	order := sortedKeys(texts)
	giving := []string{"advice", "evidence", "incident", "description", "cause", "loki_query", "pattern"}
	slices.SortStableFunc(order, func(a, b string) int { return rankOf(giving, a) - rankOf(giving, b) })
	for _, name := range order {
		if size <= maxAnnotations {
			break
		}
		old := len(texts[name])
		keep := max(64, old-(size-maxAnnotations))
		texts[name] = cut(texts[name], keep)
		size -= old - len(texts[name])
	}
	for _, name := range order {
		if size <= maxAnnotations {
			break
		}
		size -= len(name) + len(texts[name])
		delete(texts, name)
	}
	return texts
}

// rankOf puts what is not listed, the configured annotations and the summary, behind what is.
func rankOf(list []string, name string) int {
	if i := slices.Index(list, name); i >= 0 {
		return i
	}
	return len(list)
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// where is what the alert is about.
func where(a *Alert) string {
	if site := a.Labels.Get("site"); site != "" {
		return site
	}
	if cluster := a.Labels.Get("cluster"); cluster != "" {
		return "cluster " + cluster
	}
	if len(a.Labels) > 0 {
		return a.Labels.String()
	}
	return "all sites"
}

// summary is one sentence with the numbers that are known.
func summary(a *Alert) string {
	e := &a.Evidence
	var parts []string
	add := func(n detectors.Num, format string, write func(float64) string) {
		if n.Known() {
			parts = append(parts, fmt.Sprintf(format, write(n.Get())))
		}
	}
	if a.reads("restart_burst") {
		add(e.Restarts, "%s of containers", counted("restart"))
		if e.OOMKilled.Get() > 0 {
			add(e.OOMKilled, "%s of them out of memory", short)
		}
	}
	if a.reads("nodes_absent") {
		add(e.NodesAbsent, "%s of "+short(e.Nodes.Get())+" nodes of the fleet do not tell", short)
	}
	if a.reads("head_storm") {
		add(e.RequestsPerMinute, "%s HEAD a minute on "+strings.ReplaceAll(routesText(e), "%", "%%"), short)
	}
	if a.reads("self_loop") {
		add(e.RequestsPerMinute, "%s requests a minute from the site's own addresses", short)
	}
	some := func(n detectors.Num, format string, write func(float64) string) {
		if n.Get() > 0 {
			add(n, format, write)
		}
	}
	if a.reads("ratelimit_backfire") {
		some(e.LimitedOwn, "a limiter refused %s requests of the site's own hosts", short)
		some(e.LimitedAllowed, "a limiter refused %s requests of allowed addresses", short)
		some(e.LimitedStaticQuery, "a limiter refused %s static files with a query string", short)
	}
	if a.reads("probe_failure") {
		add(e.ProbesFailed, "%s health checks failed or waited", short)
	}
	if a.reads("worker_timeout") {
		add(e.PHPTimeouts, "php-fpm killed %s requests", short)
		some(e.MaxChildrenReached, "all its children were busy %s times", short)
	}
	if a.reads("error_burst") {
		add(e.Errors5xx, "%s answers were 5xx", short)
		add(e.ErrorRatio, "%s of all", percent)
	}
	if a.reads("retry_loop") {
		add(e.Retries, "%s retries of "+strings.ReplaceAll(e.Method+" "+e.Route, "%", "%%")+" within seconds of a timeout", short)
	}
	if a.reads("cache_stampede") {
		add(e.MissesPerMinute, "%s requests a minute missed the cache", short)
		add(e.MissShare, "%s of all", percent)
	}
	if a.reads("client_abandon") {
		add(e.Abandoned, "%s clients gave up", short)
		if !a.reads("head_storm") {
			add(e.AbandonRatio, "%s of all", percent)
		}
	}
	if a.reads("latency") && e.P99Seconds.Known() {
		parts = append(parts, "p99 "+p99(e))
	}
	if a.reads("saturation") && e.PoolWorkers.Known() {
		parts = append(parts, busyWorkers(e)+" of "+short(e.PoolWorkers.Get())+" workers busy")
	}
	if len(parts) == 0 {
		parts = append(parts, fmt.Sprintf("%s is at %s, the threshold is %s", strings.Join(a.Detectors, ", "), short(a.Value), short(a.Threshold)))
	}
	if a.State == Resolved {
		return where(a) + ": over; " + strings.Join(parts, ", ")
	}
	return where(a) + ": " + strings.Join(parts, ", ")
}

// p99 is the 99th percentile; where clients gave up it is only a lower bound.
func p99(e *detectors.Evidence) string {
	v := strconv.FormatFloat(e.P99Seconds.Get(), 'f', 1, 64)
	if e.P99Seconds.Get() < 1 {
		v = strconv.FormatFloat(e.P99Seconds.Get(), 'f', 3, 64)
	}
	if e.P99Censored {
		return "≥ " + v + " s (client limit)"
	}
	return v + " s"
}

// busyWorkers is an interval: what was logged, and what workers may have done behind clients that left.
func busyWorkers(e *detectors.Evidence) string {
	lower, upper := e.BusyWorkersLower, e.BusyWorkersUpper
	if !lower.Known() {
		return "an unknown number"
	}
	if !upper.Known() || short(upper.Get()) == short(lower.Get()) {
		return short(lower.Get())
	}
	return short(lower.Get()) + "–" + short(upper.Get())
}

func description(a *Alert) string {
	text := fmt.Sprintf("%s on %s since %s.", a.Name, where(a), stamp(a.StartsAt))
	if a.State == Resolved {
		text = fmt.Sprintf("%s on %s from %s to %s, %s.", a.Name, where(a), stamp(a.StartsAt), stamp(a.EndsAt),
			time.Duration(a.EndsAt-a.StartsAt))
	}
	return text + " Detectors: " + strings.Join(a.Detectors, ", ") + "."
}

func causeText(a *Alert) string {
	text := string(a.Cause.Verdict) + ": " + a.Cause.Text
	for _, m := range a.Cause.Missing {
		text += "\nmissing: " + m
	}
	return text
}

func adviceText(a *Alert) string {
	var b strings.Builder
	for i, ad := range a.Advice {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(ad.Layer + ": " + ad.Text)
		if ad.Snippet != "" {
			b.WriteString("\n" + ad.Snippet)
		}
		if ad.Verify != "" {
			b.WriteString("\nverify: " + ad.Verify)
		}
	}
	return b.String()
}

// usualText says of what the usual rate is, or that none is known.
func usualText(a *Alert) (of, unknown string) {
	e := &a.Evidence
	switch {
	case !a.reads("head_storm"):
	case !e.BaselineRatio.Known():
		return "", "what is usual is not known: nothing was read from before"
	case e.BaselineOfAll:
		return " on all routes together", ""
	case len(routesOf(e)) > 1: // the requests are those of all routes
		return " on " + strings.ReplaceAll(e.Route, "%", "%%"), ""
	}
	return "", ""
}

// evidenceLines says what the alert rests on in at most ten lines.
func evidenceLines(a *Alert) []string {
	e := &a.Evidence
	var lines []string
	add := func(parts ...string) {
		parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
		if len(parts) > 0 {
			lines = append(lines, strings.Join(parts, ", "))
		}
	}
	num := func(n detectors.Num, format string, write func(float64) string) string {
		if !n.Known() {
			return ""
		}
		return fmt.Sprintf(format, write(n.Get()))
	}
	usual, unknown := usualText(a)
	add(num(e.Requests, "%s requests", short), num(e.RequestsPerMinute, "%s a minute", short),
		num(e.BaselineRatio, "%s times what is usual"+usual, short), num(e.BaselinePerMinute, "usual are %s a minute", rate), unknown)
	add(num(e.DistinctClients, "%s addresses", approx), num(e.RequestsPerClientPerMinute, "%s requests per address and minute", short),
		num(e.DistinctAgents, "%s user agents", approx))
	add(num(e.Abandoned, "%s abandoned", short), num(e.AbandonRatio, "%s of the requests", percent),
		num(e.Collateral, "%s of them not on the worst route", short), num(e.Errors5xx, "%s answered 5xx", short))
	if e.P99Seconds.Known() {
		add("p99 " + p99(e))
	}
	if e.BusyWorkersLower.Known() {
		of := "of %s"
		if e.PoolLearned {
			of = "of %s (php-fpm's max_children)"
		}
		add("busy workers "+busyWorkers(e), num(e.PoolWorkers, of, short), num(e.CounterfactualBusyWorkers, "without the class %s", short))
	}
	add(num(e.WorkerSecondsShare, "%s of the worker-seconds", percent), num(e.ReachedUpstreamRatio, "%s reached an upstream", percent),
		num(e.Limited, "%s refused by a limiter", short), num(e.StaticShare, "%s static", percent), num(e.FanOut, "%s for each page", short))
	add(num(e.Restarts, "%s", counted("restart")), num(e.Nodes, "%s", counted("node")), num(e.Namespaces, "%s", counted("namespace")),
		num(e.OOMKilled, "%s of them out of memory", short), num(e.Looping, "%s in a crash loop", short), num(e.PeriodSeconds, "rhythm %s s", short))
	add(num(e.LimitedOwn, "refused: %s of own hosts", short), num(e.LimitedAllowed, "%s of allowed addresses", short),
		num(e.LimitedStaticQuery, "%s static with a query string", short), num(e.StaticQuery, "of %s", short),
		num(e.LimitedStaticPlain, "%s static without", short), num(e.StaticPlain, "of %s", short))
	if len(e.Scope) > 0 {
		add("shared: " + shares(e.Scope))
	}
	if len(e.Zones) > 0 {
		add("limiter zones by lines of the error log: "+ranking(e.Zones), num(e.Excess, "highest excess %s", short))
	}
	add(num(e.PHPTimeouts, "%s requests killed by php-fpm", short), num(e.MaxChildrenReached, "all children busy %s times", short),
		num(e.MaxChildren, "max_children %s", short), num(e.ProbesFailed, "%s probes failed or waited", short),
		num(e.Containers, "in %s", counted("container")), num(e.StallSeconds, "longest stall %s s", short),
		num(e.ProbePeriodSeconds, "probe period %s s", short), num(e.KillBudgetSeconds, "kill budget %s s", short))
	add(num(e.MissesPerMinute, "%s cache misses a minute", short), num(e.MissShare, "%s of all", percent),
		num(e.UsualMissesPerMinute, "usual %s a minute", rate), num(e.UsualMissShare, "%s", percent),
		num(e.MissedURLs, "%s URLs", approx), num(e.RepeatFactor, "each URL asked for %s times on average", short), num(e.TTLSeconds, "TTL ≈%s s", short))
	add(num(e.Retries, "%s retries after a timeout", short), num(e.RetryingClients, "by %s", counted("client")))
	if len(e.Discriminators) > 0 {
		add("told apart by " + toldApart(e.Discriminators))
	}
	if e.RulesCaughtUpper.Known() {
		add("rules in place would have caught " + span(e.RulesCaughtLower, e.RulesCaughtUpper) + " of the damage" + eachRule(e.RuleCoverage))
	}
	if len(e.TopRoutes) > 0 {
		add("routes: " + ranking(e.TopRoutes))
	}
	if len(e.TopAgents) > 0 {
		add("agents: " + ranking(e.TopAgents))
	}
	for _, s := range e.Samples {
		add("line: " + s)
	}
	lines = lines[:min(len(lines), maxEvidenceLines)]
	for i, l := range lines {
		lines[i] = cut(Escape(l), maxEvidenceLine)
	}
	return lines
}

// span writes an interval of a share.
func span(lower, upper detectors.Num) string {
	a, b := percent(lower.Get()), percent(upper.Get())
	switch {
	case a == b:
		return a
	case lower.Get() <= 0:
		return "at most " + b
	}
	return strings.TrimSuffix(a, " %") + "–" + b
}

// toldApart writes what tells a storm from the rest, the best first.
func toldApart(list []detectors.Discriminator) string {
	var parts []string
	for _, d := range list[:min(len(list), 4)] {
		parts = append(parts, fmt.Sprintf("%s %s (%s of it, %s of the rest)", d.By, cut(strings.Join(d.Keys, ", "), 60),
			span(d.CaughtLower, d.CaughtUpper), span(d.FalseLower, d.FalseUpper)))
	}
	return strings.Join(parts, " ≻ ")
}

func eachRule(list []detectors.RuleCoverage) string {
	var parts []string
	for _, c := range list[:min(len(list), 3)] {
		parts = append(parts, c.Rule+" "+span(c.Lower, c.Upper))
	}
	if len(parts) < 2 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// shares writes the widest of each kind.
func shares(scope []detectors.Share) string {
	var parts []string
	kind := ""
	for _, s := range scope {
		if s.Kind == kind {
			continue
		}
		kind = s.Kind
		text := fmt.Sprintf("%s %s %s", s.Kind, cut(s.Name, 80), percent(s.Coverage.Get()))
		if s.Lift.Known() {
			text += " (lift " + short(s.Lift.Get()) + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func ranking(top []detectors.Count) string {
	var parts []string
	for _, c := range top[:min(len(top), 3)] {
		n := short(c.Count)
		if c.Approx {
			n = "≈" + n
		}
		parts = append(parts, cut(c.Key, 80)+" ("+n+")")
	}
	return strings.Join(parts, ", ")
}

// What is shown of an alert's time: the quiet before it, and how it drained.
const (
	dashboardBefore = int64(30 * time.Minute)
	dashboardAfter  = int64(15 * time.Minute)
	stormDashboard  = "squall-storm" // of rules that name none
)

// dashboard is the address of the rule's dashboard, at the alert's site and time; "" where Grafana's is not known.
func (f *facts) dashboard(r *rule) string {
	a, base := f.alert, cmp.Or(r.Dashboard, stormDashboard)
	if !strings.Contains(base, "://") {
		if f.grafana == "" {
			return ""
		}
		base = strings.TrimSuffix(f.grafana, "/") + "/d/" + url.PathEscape(base)
	}
	to := "now"
	if a.State == Resolved {
		to = strconv.FormatInt((a.EndsAt+dashboardAfter)/1e6, 10)
	}
	query := "from=" + strconv.FormatInt((a.StartsAt-dashboardBefore)/1e6, 10) + "&to=" + to
	if site := a.Labels.Get("site"); site != "" {
		query += "&var-site=" + url.QueryEscape(site)
	}
	if strings.Contains(base, "?") {
		return base + "&" + query
	}
	return base + "?" + query
}

// lokiQuery finds the lines in Loki.
func lokiQuery(a *Alert) string {
	site := a.Labels.Get("site")
	if site == "" {
		return ""
	}
	q := "{site=" + strconv.Quote(site) + "}"
	if a.reads("head_storm") {
		q += ` | method="HEAD"`
		routes := routesOf(&a.Evidence)
		switch {
		case slices.ContainsFunc(routes, func(r string) bool { return !safeRoute.MatchString(r) }):
		case len(routes) == 1:
			q += " | route=" + strconv.Quote(routes[0])
		case len(routes) > 1:
			for i := range routes {
				routes[i] = regexp.QuoteMeta(routes[i])
			}
			q += " | route=~" + strconv.Quote(strings.Join(routes, "|"))
		}
	}
	return q
}

// pattern names what kind of incident it is, where the facts show it.
func pattern(f *facts) string {
	switch {
	case f.self != nil && f.self.Limited.Get() > 0, f.limiter != nil, f.probe != nil && f.alert.reads("probe_failure"):
		return backfire
	case f.restart != nil && f.alert.reads("restart_burst") && f.restart.Reasons["liveness"]+f.restart.Reasons["liveness_probable"] > 0:
		return backfire
	}
	return ""
}

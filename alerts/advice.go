package alerts

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/squall-sre/squall/detectors"
)

// The layers, from the client to the origin.
const (
	layerEdge        = "edge"
	layerWAF         = "waf"
	layerNginx       = "nginx"
	layerCDN         = "cdn"
	layerApplication = "application"
	layerKubernetes  = "kubernetes"
)

// adviceRules says which layer should answer a class of requests: the first that matches speaks. squall blocks
// nothing itself, and no rule blocks an address: own and allowed ones are never at risk.
var adviceRules = []struct {
	name   string
	match  func(*facts) bool
	advise func(*facts) []option
}{
	{"restarts", func(f *facts) bool { return f.restart != nil && f.alert.reads("restart_burst") }, adviseProbe},
	{"limiter", func(f *facts) bool { return f.limiter != nil && f.alert.reads("ratelimit_backfire") }, adviseLimiter},
	{"probes", func(f *facts) bool { return f.probe != nil && f.alert.reads("probe_failure") }, adviseProbes},
	{"killed requests", func(f *facts) bool { return f.timeouts != nil && f.alert.reads("worker_timeout") }, adviseTimeouts},
	{"errors", func(f *facts) bool { return f.failing != nil && f.alert.reads("error_burst") }, adviseErrors},
	{"retries", func(f *facts) bool { return f.retry != nil && f.alert.reads("retry_loop") }, adviseRetry},
	{"stampede", func(f *facts) bool { return f.stampede != nil && f.alert.reads("cache_stampede") }, adviseStampede},
	{"own host", func(f *facts) bool { return f.self != nil && (f.alert.reads("self_loop") || f.head == nil) }, adviseSelf},
	{"HEAD that reaches the origin", func(f *facts) bool { return f.head != nil && !answered(f) && !contradicted(f) }, adviseHead},
	{"HEAD that is answered", func(f *facts) bool { return f.head != nil && answered(f) && !f.hurting }, adviseNothing},
	{"one agent", func(f *facts) bool { return f.flood != nil }, adviseThrottle},
	{"repeated reads", func(f *facts) bool { return f.hurting && len(f.repeated()) > 0 }, adviseReads},
	{"one costly class", func(f *facts) bool { return f.class.share > broadShare }, func(f *facts) []option {
		return append(adviseCostly(f), adviseScale(f)...)
	}},
	{"broad", func(f *facts) bool { return f.hurting }, adviseBroad},
}

// option is an advice with the names of the controls that make it superfluous.
type option struct {
	Advice
	controls []string
}

// advice lists what to do, the best layer first. What the site has in place is said and looked past.
func (f *facts) advice() []Advice {
	for _, r := range adviceRules {
		if r.match(f) {
			return f.beside(r.advise(f))
		}
	}
	return nil
}

func answered(f *facts) bool {
	r := f.head.ReachedUpstreamRatio
	return r.Known() && r.Get() < reachedAtAll
}

func adviseHead(f *facts) []option {
	e := f.head
	why := sentence(
		fmt.Sprintf("%s HEAD a minute on %s", short(e.RequestsPerMinute.Get()), routeOf(f)),
		known(e.ReachedUpstreamRatio.Known(), func() string { return percent(e.ReachedUpstreamRatio.Get()) + " reached an upstream" }),
		perAddress(e), agents(f),
	)
	verify := "curl -I and curl -sD- -o /dev/null must show the same status and headers on " + routeOf(f) +
		"; then reached_upstream_ratio of the next storm must be near 0"
	repair, routes, done := f.repair(e, "HEAD", routesOf(e))
	if done {
		return []option{{repair(why, verify), nil}}
	}
	why = sentence(why, f.small(e))
	waf := Advice{Layer: layerWAF, Verify: verify, Snippet: wafHead(routes...),
		Text: "answer HEAD by method and path, whatever its address and agent, by a rule whose Priority is free in the web ACL; answers must look identical to nginx's and the application's. " + why}
	nginx := Advice{Layer: layerNginx, Verify: verify, Snippet: nginxHead(routes...),
		Text: "where there is no such layer, answer HEAD in nginx before PHP exists; answers must look identical. " + why}
	options := []option{
		{waf, []string{"waf_head_rule", "head_rule", "edge_head_rule"}},
		{nginx, []string{"nginx_head", "nginx_head_rule"}},
	}
	if repair != nil {
		options = slices.Insert(options, 0, option{repair(why, verify), nil})
	}
	return options
}

func known(ok bool, text func() string) string {
	if !ok {
		return ""
	}
	return text()
}

// searchBots are what the crawlers of search engines call themselves. One that only says so is found by a reverse look-up.
var searchBots = []string{"Googlebot", "bingbot", "DuckDuckBot", "YandexBot", "Baiduspider", "Applebot", "Yahoo! Slurp", "Qwantify", "SeznamBot"}

// searchBot tells that a flood's agent is a search engine's.
func searchBot(e *detectors.Evidence) bool {
	return e.BotShare.Get() >= botShare && len(e.TopAgents) > 0 &&
		slices.ContainsFunc(searchBots, func(name string) bool { return strings.Contains(e.TopAgents[0].Key, name) })
}

// botShare is the share of an agent's requests from which its class is a search bot's.
const botShare = 0.9

// adviseThrottle keys on the agent while it is one: the storm's next one may bring hundreds.
func adviseThrottle(f *facts) []option {
	e := f.flood
	if searchBot(e) {
		return []option{{Advice{Layer: layerApplication, Text: fmt.Sprintf(
			"slow the search bot by its own means, robots.txt (Crawl-delay) or the crawl rate in its operator's console (Google Search Console), and answer it no 429 or 5xx for long: that costs the site its place in the index. It makes %s requests a minute; whether it is who it says a reverse look-up of its addresses tells",
			short(e.RequestsPerMinute.Get())), Verify: "the bot's requests must fall within a day, and its pages stay in the index"}, nil}}
	}
	verify := "the agent's requests are answered 429 above the limit, and no other agent's are"
	repair, _, done := f.repair(e, "", nil)
	if done {
		return []option{{repair(fmt.Sprintf("%s requests a minute of one agent", short(e.RequestsPerMinute.Get())), verify), nil}}
	}
	text := fmt.Sprintf("throttle by User-Agent, with 429 and Retry-After, as long as the storm keeps to one agent: this one makes %s requests a minute",
		short(e.RequestsPerMinute.Get()))
	if e.BaselinePerMinute.Get() > 0 {
		text += fmt.Sprintf("; the busiest agent that people use is known to make %s", short(e.BaselinePerMinute.Get()))
	}
	options := []option{{Advice{Layer: layerNginx, Text: sentence(perhapsYou(e)+text, perAddress(e), f.small(e)), Snippet: nginxThrottle(e.BaselinePerMinute.Get()),
		Verify: verify}, []string{"agent_throttle", "ua_throttle"}}}
	if repair != nil {
		options = slices.Insert(options, 0, option{repair("", verify), nil})
	}
	return options
}

// fewAddresses is up to how many addresses a flood may be a crawl, a monitor or an office of the site's own side. A fleet of
// scanners has hundreds.
const fewAddresses = 16

// perhapsYou asks first whether a flood from few addresses is the site's own, "" where it has many.
func perhapsYou(e *detectors.Evidence) string {
	if n := e.DistinctClients; !n.Known() || n.Get() > fewAddresses {
		return ""
	}
	return "it comes" + from(e) + ": if you started it (a crawl, a monitor, a test from your office), slow it where it runs to 5 to 10 requests a second and name its addresses under allowed or own; else "
}

// nginxThrottle limits each User-Agent to a margin over the most that people are known to make a minute.
func nginxThrottle(usual float64) string {
	limit := 200.0
	if usual*1.8 > limit {
		limit = math.Ceil(usual * 1.8)
	}
	return fmt.Sprintf("limit_req_zone $http_user_agent zone=agent:10m rate=%.0fr/m;\n"+
		"map $status $agent_retry_after {\n    default \"\";   # an empty header is not sent\n    429     60;\n}\n"+
		"server {\n    limit_req zone=agent burst=50 nodelay;\n    limit_req_status 429;\n    add_header Retry-After $agent_retry_after always;   # again in each location that has an add_header of its own\n    # what the server has now\n}", limit)
}

const nothingToDo = "nothing to do"

// NothingToDo tells that an advice is to leave things as they are.
func NothingToDo(a *Advice) bool { return strings.HasPrefix(a.Text, nothingToDo) }

func adviseNothing(f *facts) []option {
	return []option{{Advice{Layer: layerNginx, Text: fmt.Sprintf(
		nothingToDo+": %s is answered before the origin (%s of %s requests reached an upstream)", f.storm(),
		percent(f.head.ReachedUpstreamRatio.Get()), short(f.head.Requests.Get()))}, nil}}
}

const limiterSnippet = `map $uri $site_dynamic_key {   # keep the name of the running zone's variable, so that nginx can reload
    default                                      $binary_remote_addr;
    ~*\.(css|js|mjs|json|woff2?|ttf|otf|eot)$    "";
    ~*\.(jpg|jpeg|png|gif|svg|ico|webp|avif)$    "";
}`

func adviseSelf(f *facts) []option {
	e := f.self
	why := fmt.Sprintf("%s requests a minute from the site's own addresses", short(e.RequestsPerMinute.Get()))
	if e.StaticShare.Known() {
		why += ", " + percent(e.StaticShare.Get()) + " for static files"
	}
	text := ""
	if behindNAT(e) {
		text = "if these are people behind your NAT, put its address into allowed; else "
	}
	options := []option{{Advice{
		Layer:   layerApplication,
		Text:    text + "don't call yourself over HTTP: read the file from disk (public_path()) or link it (<link>); never block these addresses, they are yours. " + why,
		Snippet: "grep -rnE \"file_get_contents\\(.*(asset|url|route)\\(\" app resources",
		Verify:  "self_loop must end while pages are rendered",
	}, nil}}
	if e.Limited.Get() > 0 {
		options = append(options, option{Advice{
			Layer:   layerNginx,
			Text:    fmt.Sprintf("let the limiter count by $uri, so that versioned static files are exempt: it refused %s of the site's own requests", short(e.Limited.Get())),
			Snippet: limiterSnippet,
			Verify:  "after nginx -t and a reload, many parallel requests for a static file with ?v= from outside must all get 200",
		}, []string{"limiter_uri_key"}})
	}
	return options
}

const probeSnippet = `# php-fpm pool
ping.path = /fpm-ping
ping.response = pong

# nginx inside the container
location = /fpm-ping { allow 127.0.0.1; deny all; include fastcgi_params; fastcgi_pass 127.0.0.1:9000; }

# Deployment
livenessProbe:
  httpGet: {path: /fpm-ping, port: 80}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6        # about 2 minutes`

func adviseProbe(f *facts) []option {
	e := f.restart
	liveness := e.Reasons["liveness"] + e.Reasons["liveness_probable"]
	if liveness == 0 {
		if e.OOMKilled.Get() > 0 {
			return []option{{Advice{Layer: layerKubernetes, Text: fmt.Sprintf("raise the memory limit or find the leak: %s after a container ran out of memory",
				counted("restart")(e.OOMKilled.Get())), Verify: "no OOMKilled in kubectl get pods -A -o json at the next peak"}, nil}}
		}
		return []option{{Advice{Layer: layerKubernetes, Text: "read the last log of the ended containers" + unshared(e),
			Snippet: "kubectl logs --previous"}, nil}}
	}
	return []option{{Advice{
		Layer: layerKubernetes,
		Text: fmt.Sprintf("let the liveness probe ask only whether the process is alive, and keep periodSeconds × failureThreshold longer than the longest PHP request; the database belongs into readiness. %d of the restarts are liveness kills or look like it",
			liveness),
		Snippet: probeSnippet,
		Verify:  "with every PHP worker busy the probe must still be answered, and no container be restarted",
	}, []string{"liveness_ping"}}}
}

// repeated are the classes of the origin that are read again and again and hold a part of its time that is worth a cache.
func (f *facts) repeated() []class {
	var out []class
	for _, c := range f.costly {
		if (c.method == "GET" || c.method == "HEAD") && c.share >= minorShare && c.repeats >= f.enough() {
			out = append(out, c)
		}
	}
	return out
}

// soonRepeated is how often an address must have been asked for within the first minutes to be one that is asked for
// again and again.
const (
	soonRepeated = 2.0
	soon         = int64(3 * time.Minute)
)

// enough is how often an address must have been asked for until now.
func (f *facts) enough() float64 {
	if f.early() {
		return soonRepeated
	}
	return cacheable
}

func (f *facts) early() bool {
	return f.alert.State != Resolved && f.alert.StartsAt > 0 && f.alert.At-f.alert.StartsAt < soon
}

// adviseReads caches what is asked for again and again, each class by its own numbers, beside what else is to be done of
// the costliest. It comes first where it is the costliest.
func adviseReads(f *facts) []option {
	var cached, rest []option
	top, read := f.costly[0], f.repeated()
	for _, c := range read {
		cached = append(cached, f.about(c, adviseCache)...)
	}
	switch {
	case !(top.share > broadShare):
		rest = adviseBroad(f)
	case !slices.Contains(read, top):
		rest = append(f.about(top, adviseCostly), adviseScale(f)...)
	default:
		rest = adviseScale(f)
	}
	if slices.Contains(read, top) {
		return append(cached, rest...)
	}
	return append(rest, cached...)
}

// about is the advice for a class as if it were the costliest.
func (f *facts) about(c class, advise func(*facts) []option) []option {
	of := *f
	of.class = c
	return advise(&of)
}

// adviseScale: what hurts by its cost is not seen by its number.
func adviseScale(f *facts) []option {
	if f.sat == nil || f.head != nil || f.flood != nil || !f.sat.RequestsPerMinute.Known() {
		return nil
	}
	return []option{{Advice{Layer: layerApplication, Text: fmt.Sprintf(
		"scale by busy workers (squall_origin_busy_workers): %s requests a minute are few for their cost, and an autoscaler on request count stays silent",
		short(f.sat.RequestsPerMinute.Get())), Verify: "the number of workers must rise with squall_origin_busy_workers"}, nil}}
}

func adviseCache(f *facts) []option {
	c, times := f.class, " times"
	if f.early() {
		times = " times within the first minutes"
	}
	return []option{{Advice{
		Layer: layerCDN,
		Text: fmt.Sprintf("cache %s at the edge and serve stale while revalidating, unless it sets a cookie or depends on a session (the log does not say): each address is asked for %s%s, so up to %s of these requests would not reach the origin. It holds %s of the worker-seconds",
			c, short(c.repeats), times, percent(1-1/c.repeats), percent(c.share)),
		Snippet: "Cache-Control: public, max-age=60, stale-while-revalidate=600",
		Verify:  "the cache status of a second request must be HIT, and worker_seconds_share of the route fall",
	}, f.covering("edge_cache", "stale_while_revalidate")}}
}

func adviseCostly(f *facts) []option {
	why := fmt.Sprintf("%s holds %s of the worker-seconds", f.class, percent(f.class.share))
	options := []option{{Advice{
		Layer:  layerApplication,
		Text:   "make the route cheaper or answer it asynchronously, and release a stuck worker at every layer in order (PHP before nginx before CDN). " + why,
		Verify: "its worker_seconds_share must fall",
	}, nil}}
	if pattern := f.class.pattern(); pattern != "" {
		options = append(options, option{Advice{
			Layer: layerNginx,
			Text:  "until then let it use only a part of the pool: a limit of concurrent requests for the route, not for each address. " + why,
			Snippet: "# in http\nlimit_conn_zone $server_name:$server_port zone=costly:1m;   # never empty: an empty key is not counted\n# in server\n" +
				"location ~ " + pattern + " {\n    limit_conn costly 10;   # under half of the pool\n    # what the location has now\n}",
			Verify: "busy workers must stay below the pool while the route is slow",
		}, f.covering("route_concurrency_limit")})
	}
	return options
}

func adviseBroad(f *facts) []option {
	text := "no class of requests stands out: look for a shared dependency (database, cache, file server) that is slow, or add capacity by busy workers: an autoscaler on request count stays silent"
	if f.class.share <= broadShare {
		text += fmt.Sprintf("; the largest class, %s, holds %s of the worker-seconds", f.class, percent(f.class.share))
	}
	if ranked := f.costs(); ranked != "" {
		text += "; by worker-seconds: " + ranked
	}
	return []option{{Advice{Layer: layerApplication, Text: text,
		Verify: "the latency of the dependency must rise and fall with p99_seconds"}, nil}}
}

// safeRoute is what may stand in a configuration: the literal characters of a path and the placeholders of a
// template. A route with anything else comes from a hostile path and is not put into a snippet.
var safeRoute = regexp.MustCompile(`^/(?:[A-Za-z0-9/_.~-]|\{[a-z0-9_-]+\}){0,200}$`)

// nginxPattern is the route as a regular expression for a location, "" when it cannot be.
func nginxPattern(route string) string {
	if !safeRoute.MatchString(route) {
		return ""
	}
	var b strings.Builder
	b.WriteString("^")
	for rest := route; rest != ""; {
		before, after, found := strings.Cut(rest, "{")
		b.WriteString(strings.ReplaceAll(before, ".", `\.`))
		if !found {
			break
		}
		b.WriteString("[^/]+")
		_, rest, _ = strings.Cut(after, "}")
	}
	return b.String() + "$"
}

// nginxPatterns are those of the routes that can be in a configuration.
func nginxPatterns(routes []string) (patterns []string) {
	for _, route := range routes {
		if p := nginxPattern(route); p != "" && !slices.Contains(patterns, p) { // routes that differ in a segment's type are one
			patterns = append(patterns, p)
		}
	}
	return patterns
}

func nginxHead(routes ...string) string {
	var locations []string
	for _, p := range nginxPatterns(routes) {
		locations = append(locations, "location ~ "+p+" {\n    if ($request_method = HEAD) { return 200; }\n    # what the location has now\n}")
	}
	return strings.Join(locations, "\n")
}

// wafHead is a rule for AWS WAF that answers HEAD on routes with an empty 200.
func wafHead(routes ...string) string {
	var matches []string
	for _, p := range nginxPatterns(routes) {
		quoted, err := json.Marshal(p)
		if err != nil {
			return ""
		}
		matches = append(matches, fmt.Sprintf(wafMatch, quoted))
	}
	switch len(matches) {
	case 0:
		return ""
	case 1:
		return wafNamed(routes[0], 1, matches[0])
	}
	return wafNamed(routes[0], len(matches), `{"OrStatement": {"Statements": [`+"\n   "+strings.Join(matches, ",\n   ")+"]}}")
}

// wafNamed gives a rule a name of its own, and a priority that other rules of squall do not have: in a web ACL both
// must be unique.
func wafNamed(route string, routes int, match string) string {
	name := "squall-head-" + strings.Trim(notInName.ReplaceAllString(route, "-"), "-")
	name = strings.Trim(name[:min(len(name), 100)], "-")
	if routes > 1 {
		name += fmt.Sprintf("-and-%d-more", routes-1)
	}
	return fmt.Sprintf(wafRule, name, 100+xxhash.Sum64String(name+match)%9000, match, name)
}

// notInName is what a name of AWS WAF cannot hold.
var notInName = regexp.MustCompile(`[^A-Za-z0-9_]+`)

// HeadSnippets are one rule for AWS WAF, and one configuration of nginx, that answer HEAD on several routes.
func HeadSnippets(routes ...string) (waf, nginx string) {
	return wafHead(routes...), nginxHead(routes...)
}

// AnswersHead tells whether a class's rule is the one by which its HEADs are to be answered before the origin.
func AnswersHead(rule string) bool { return rule == ruleHead }

const wafMatch = `{"RegexMatchStatement": {"RegexString": %s, "FieldToMatch": {"UriPath": {}},
   "TextTransformations": [{"Priority": 0, "Type": "NONE"}]}}`

// wafRule is the rule as AWS WAF's console takes it. A block with status 200 and no body is the answer that a HEAD
// expects.
const wafRule = `{"Name": %q, "Priority": %d,
 "Action": {"Block": {"CustomResponse": {"ResponseCode": 200}}},
 "Statement": {"AndStatement": {"Statements": [
  {"ByteMatchStatement": {"SearchString": "HEAD", "FieldToMatch": {"Method": {}},
   "PositionalConstraint": "EXACTLY", "TextTransformations": [{"Priority": 0, "Type": "NONE"}]}},
  %s]}},
 "VisibilityConfig": {"SampledRequestsEnabled": true, "CloudWatchMetricsEnabled": true, "MetricName": %q}}`

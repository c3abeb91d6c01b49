package alerts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
)

// A ClassAdvice says which layer should answer one class of requests.
type ClassAdvice struct {
	Rule   string   // that matched, "" when none did
	Why    string   // the facts that matched
	Advice []Advice // the best layer first; none: the class itself needs nothing
}

// RuleStaticLimit is the rule of static files that a limiter refuses.
const RuleStaticLimit = "static file that a limiter refuses"

// ruleHead is the rule of HEADs that the origin should never see.
const ruleHead = "HEAD that reaches the origin"

// Shares that a class must have before it is worth an advice of its own.
const (
	minorShare   = 0.1  // of the worker-seconds: below it a class waits for the others
	mostly       = 0.9  // of a class's requests: as good as all
	missingShare = 0.5  // of the answers are 404 or 410
	expiredShare = 0.05 // of what the cache told
	cacheable    = 3.0  // requests for each address
	floodRate    = 200  // requests a minute of one agent
)

// classRules say who should answer a class of requests, as adviceRules do for an alert: the first that matches speaks.
var classRules = []struct {
	name   string
	match  func(*classFacts) bool
	advise func(*facts) []option
}{
	{"the site's own host", func(c *classFacts) bool { return c.Origin == pipeline.Own }, adviseSelf},
	{"HEAD that is answered before the origin", func(c *classFacts) bool { return c.Method == "HEAD" && c.answered() }, adviseNothing},
	{ruleHead, func(c *classFacts) bool { return c.Method == "HEAD" && (c.heavy() || c.frequent()) }, adviseHead},
	{RuleStaticLimit, func(c *classFacts) bool { return c.static() && c.Evidence.Limited.Get() > 0 }, adviseStaticLimit},
	{"the origin had workers left", func(c *classFacts) bool { return c.calm() }, nil},
	{"small: it waits behind the others", func(c *classFacts) bool { return !c.heavy() }, nil},
	{"static file", (*classFacts).static, adviseStatic},
	{"missing page that is asked for again and again", func(c *classFacts) bool {
		return c.read() && c.missing() >= missingShare && c.Evidence.RepeatFactor.Get() >= cacheable
	}, adviseMissing},
	{"cached page that expired", func(c *classFacts) bool { return c.read() && c.Evidence.MissShare.Get() >= expiredShare }, adviseStampede},
	{"repeated read", func(c *classFacts) bool { return c.read() && c.Evidence.RepeatFactor.Get() >= cacheable }, adviseCache},
	{"a crawl of your own", func(c *classFacts) bool { return c.oneAgent() && c.Origin == pipeline.Allowed }, adviseCrawl},
	{"one agent", (*classFacts).oneAgent, adviseThrottle},
	{"costly class", func(c *classFacts) bool { return c.Evidence.WorkerSecondsShare.Get() > broadShare }, adviseCostly},
}

// classFacts is a class with the facts that the advice for it reads.
type classFacts struct {
	detectors.Class
	span *detectors.Span
}

// AdviseClass says which layer should answer a class of requests of a span.
func AdviseClass(s *detectors.Span, class detectors.Class) ClassAdvice {
	class.Evidence = clean(&detectors.Detection{Evidence: class.Evidence}).Evidence
	c := &classFacts{class, s}
	e := &c.Evidence
	f := &facts{
		alert: &Alert{}, head: e, flood: e, self: e, sat: e, stampede: e,
		class: c.costs(), controls: s.Controls,
	}
	for _, r := range classRules {
		if !r.match(c) {
			continue
		}
		out := ClassAdvice{Rule: r.name, Why: c.why()}
		if r.advise != nil {
			out.Advice = f.beside(r.advise(f))
		}
		return out
	}
	return ClassAdvice{Why: c.why()}
}

func (c *classFacts) costs() class {
	return class{cut(c.Method, 32), cut(c.Route, maxText), 1, c.Evidence.WorkerSecondsShare.Get(), c.Evidence.RepeatFactor.Get(), "span"}
}

// heavy tells that a class holds a part of the origin that is worth looking at; where that is not known, of the requests.
func (c *classFacts) heavy() bool {
	share := c.Evidence.WorkerSecondsShare
	if !share.Known() {
		return c.Evidence.Requests.Get() >= minorShare*c.span.Total.Requests.Get()
	}
	return share.Get() >= minorShare
}

// calm tells that the origin was not short of workers: no class kept another from one.
func (c *classFacts) calm() bool {
	busy := c.span.Total.BusyWorkersUpper
	return c.span.Pool.Workers > 0 && busy.Known() && busy.Get() < calmRatio*float64(c.span.Pool.Workers)
}

// frequent tells that a class is far more than usual, whatever it cost.
func (c *classFacts) frequent() bool { return c.Evidence.BaselineRatio.Get() >= 10 }

func (c *classFacts) answered() bool {
	r := c.Evidence.ReachedUpstreamRatio
	return r.Known() && r.Get() < 0.05
}

func (c *classFacts) read() bool { return c.Method == "GET" || c.Method == "HEAD" }

func (c *classFacts) static() bool { return c.Evidence.StaticShare.Get() >= mostly }

func (c *classFacts) missing() float64 {
	return float64(c.Evidence.Status["404"]+c.Evidence.Status["410"]) / c.Evidence.Requests.Get()
}

func (c *classFacts) oneAgent() bool {
	e := &c.Evidence
	return len(e.TopAgents) > 0 && e.TopAgents[0].Count >= mostly*e.Requests.Get() && e.RequestsPerMinute.Get() >= floodRate
}

// why are the facts that the rules look at.
func (c *classFacts) why() string {
	e := &c.Evidence
	return sentence(
		known(e.WorkerSecondsShare.Known(), func() string { return percent(e.WorkerSecondsShare.Get()) + " of the worker-seconds" }),
		known(e.ReachedUpstreamRatio.Known(), func() string { return percent(e.ReachedUpstreamRatio.Get()) + " reached an upstream" }),
		known(e.RepeatFactor.Get() >= cacheable, func() string { return "each address is asked for " + short(e.RepeatFactor.Get()) + " times" }),
		known(e.MissShare.Known(), func() string { return percent(e.MissShare.Get()) + " missed the cache" }),
		known(c.Origin != pipeline.External, func() string { return "the clients are of " + c.Origin.String() + " ranges" }),
		known(c.static(), func() string { return "static files" }),
		perAddress(e),
	)
}

func adviseStaticLimit(f *facts) []option {
	return []option{{Advice{
		Layer:   layerNginx,
		Text:    fmt.Sprintf("let the limiter count by $uri, so that static files are exempt whatever their query string: it refused %s of them", short(f.self.Limited.Get())),
		Snippet: limiterSnippet,
		Verify:  "after nginx -t and a reload, many parallel requests for a static file with ?v= from outside must all get 200",
	}, []string{"limiter_uri_key"}}}
}

func adviseCrawl(f *facts) []option {
	return []option{{Advice{
		Layer: layerApplication,
		Text: fmt.Sprintf("let this crawl of an allowed range make 5 to 10 pages a second, and never right after the cache was cleared; don't block it: it makes %s requests a minute",
			short(f.flood.RequestsPerMinute.Get())),
		Verify: "its requests a minute must fall",
	}, nil}}
}

const staticSnippet = `location ~* \.(?:css|js|mjs|woff2?|jpe?g|png|gif|svg|ico|webp|avif)$ {
    root /srv/www/public;                 # where the files are
    try_files $uri =404;                  # never to PHP
    expires 30d;
    add_header Cache-Control "public, immutable";
}`

func adviseStatic(f *facts) []option {
	return []option{{Advice{
		Layer:   layerCDN,
		Text:    fmt.Sprintf("answer static files at the edge or from nginx's disk, never by the application: they hold %s of the worker-seconds", percent(f.class.share)),
		Snippet: staticSnippet,
		Verify:  "their lines must have no upstream",
	}, f.covering("edge_cache")}}
}

func adviseMissing(f *facts) []option {
	factor := f.sat.RepeatFactor.Get()
	return []option{{Advice{
		Layer: layerCDN,
		Text: fmt.Sprintf("cache the 404 of %s at the edge for some minutes: each address is asked for %s times, so up to %s of these requests would not reach the origin",
			f.class, short(factor), percent(1-1/math.Max(factor, 1))),
		Snippet: "proxy_cache_valid 404 410 5m;   # fastcgi_cache_valid where PHP is behind nginx itself; the CDN: error caching TTL",
		Verify:  "the cache status of a second request must be HIT",
	}, f.covering("edge_cache")}}
}

// Number writes a number for people: three significant digits below 1,000 and whole above, with separators.
func Number(v float64) string { return short(v) }

// Percent writes a ratio for people.
func Percent(ratio float64) string { return percent(ratio) }

// Stamp writes event time (ns) as people and tools read it.
func Stamp(ns int64) string { return stamp(ns) }

// AppendJSONDocument appends a value as indented JSON in which no character of a log line can change how it is shown.
func AppendJSONDocument(dst []byte, v any) ([]byte, error) {
	var plain, indented bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst, err
	}
	if err := json.Indent(&indented, appendJSONSafe(nil, plain.Bytes()), "", " "); err != nil {
		return dst, err
	}
	return append(dst, indented.Bytes()...), nil
}

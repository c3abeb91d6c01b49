package enrich

import (
	"bytes"
	"net/netip"

	"github.com/cespare/xxhash/v2"

	"github.com/squall-sre/squall/pipeline"
)

// agentMax is how much of an agent is looked at, in bytes.
const agentMax = 512

// probeAgents begin the agents of health checks by which a balancer, a service registry or a kubelet decides
// about the target. They are kept apart from clients, as nobody waits for their answer. Monitors from outside
// (Pingdom, UptimeRobot, StatusCake, check_http) are bots: they ask as a client would, and what they suffer
// clients suffer.
var probeAgents = [][]byte{
	[]byte("elb-healthchecker/"), []byte("kube-probe/"), []byte("googlehc/"), []byte("consul health check"),
	[]byte("envoy/hc"), []byte("amazon-route53-health-check"), []byte("edge health probe"), []byte("azure traffic manager endpoint monitor"),
	[]byte("load balancer agent"), []byte("istio-probe"), []byte("hetzner/load-balancer"),
}

// botWords occur in the agents of programs that say what they are. All are in lower case.
var botWords = [][]byte{
	[]byte("bot"), []byte("crawl"), []byte("spider"), []byte("slurp"), []byte("screaming frog"), []byte("curl/"), []byte("wget"),
	[]byte("python"), []byte("go-http-client"), []byte("okhttp"), []byte("java/"), []byte("apache-httpclient"), []byte("httpclient"),
	[]byte("libwww"), []byte("lwp"), []byte("php/"), []byte("guzzle"), []byte("node-fetch"), []byte("axios"), []byte("undici"), []byte("ruby"),
	[]byte("scrapy"), []byte("httpie"), []byte("postman"), []byte("grpc-"), []byte("feedfetcher"), []byte("feedly"), []byte("facebookexternalhit"),
	[]byte("whatsapp"), []byte("bingpreview"), []byte("google-"), []byte("googleother"), []byte("mediapartners"), []byte("pingdom"),
	[]byte("statuscake"), []byte("uptime"), []byte("monitor"), []byte("check_http"), []byte("blackbox"), []byte("prometheus"), []byte("lighthouse"),
	[]byte("headless"), []byte("phantomjs"), []byte("nikto"), []byte("sqlmap"), []byte("nmap"), []byte("masscan"), []byte("zgrab"), []byte("nuclei"),
	[]byte("ahrefs"), []byte("semrush"), []byte("archive.org"), []byte("wordpress/"), []byte("dataprovider"), []byte("scanner"), []byte("internal dummy connection"),
	[]byte("ia_archiver"), []byte("embedly"), []byte("validator"), []byte("k6/"), []byte("apachebench"), []byte("vegeta"), []byte("+http"),
}

// agent is what is remembered of an agent.
type agent struct {
	class pipeline.Class
	name  string // of which no more matters
	hash  uint64
}

// classify judges the client by its agent and, for one that says it is a browser, by what browsers never do.
//
// A browser sends HEAD only from a script of a page, and then with a Referer; it sends OPTIONS as a preflight,
// often without one, so OPTIONS proves nothing; TRACE and WebDAV's methods it does not send at all.
func (c *Chain) classify(r *pipeline.Record) pipeline.Class {
	a := c.agent(r.UserAgent)
	r.Agent, r.AgentHash = a.name, a.hash
	class := a.class
	if class != pipeline.Browser {
		return class
	}
	switch string(r.Method) {
	case "HEAD":
		if len(r.Referer) == 0 || len(r.Referer) == 1 && r.Referer[0] == '-' {
			return pipeline.Scanner
		}
	case "TRACE", "TRACK", "PROPFIND", "DEBUG":
		return pipeline.Scanner
	}
	return pipeline.Browser
}

func (c *Chain) agent(text []byte) agent {
	if len(text) == 0 || len(text) == 1 && text[0] == '-' {
		return agent{class: pipeline.Empty}
	}
	if len(text) > agentMax {
		text = text[:agentMax]
	}
	h := c.agents.hash(0, text)
	if a, ok := c.agents.get(h, 0, text); ok {
		return a
	}
	name := text[:min(len(text), pipeline.AgentMax)]
	a := agent{judgeAgent(text), string(name), xxhash.Sum64(name)}
	c.agents.put(h, 0, text, a)
	return a
}

// ClassOf judges a User-Agent alone, as far as it says what it is.
func ClassOf(agent string) pipeline.Class {
	if agent == "" || agent == "-" {
		return pipeline.Empty
	}
	return judgeAgent([]byte(agent[:min(len(agent), agentMax)]))
}

func judgeAgent(agent []byte) pipeline.Class {
	var buf [agentMax]byte
	low := buf[:len(agent)]
	for i, c := range agent {
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c == '+':
			c = ' ' // CloudFront and IIS write spaces so, except in "+http"
			if bytes.HasPrefix(agent[i+1:], []byte("http")) {
				c = '+'
			}
		}
		low[i] = c
	}
	for _, p := range probeAgents {
		if bytes.HasPrefix(low, p) {
			return pipeline.Probe
		}
	}
	for _, w := range botWords {
		// CUBOT is a make of telephones.
		if i := bytes.Index(low, w); i >= 0 && !bytes.HasSuffix(low[:i+len(w)], []byte("cubot")) {
			return pipeline.Bot
		}
	}
	if bytes.HasPrefix(low, []byte("mozilla/")) || bytes.HasPrefix(low, []byte("opera/")) {
		return pipeline.Browser
	}
	return pipeline.OtherAgent
}

// isStatic tells whether a raw path ends in an extension of the static files that a site's limiter should let
// pass: styles, scripts, fonts and images.
func isStatic(path []byte) bool {
	if len(path) > 8 {
		path = path[len(path)-8:]
	}
	dot := bytes.LastIndexByte(path, '.')
	if dot < 0 {
		return false
	}
	var buf [8]byte
	return isStaticExtension(lower(buf[:0], path[dot+1:]))
}

// isStaticExtension judges an extension in lower case.
func isStaticExtension(ext []byte) bool {
	switch string(ext) {
	case "css", "js", "mjs", "json", "woff", "woff2", "ttf", "otf", "eot",
		"jpg", "jpeg", "png", "gif", "svg", "ico", "webp", "avif":
		return true
	}
	return false
}

func lower(dst, b []byte) []byte {
	for _, c := range b {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}

// healthCheckers are the public addresses from which a load balancer checks: Google Cloud's documented ranges
// (cloud.google.com/load-balancing/docs/health-check-concepts). All others check from within the network.
var healthCheckers = []netip.Prefix{netip.MustParsePrefix("35.191.0.0/16"), netip.MustParsePrefix("130.211.0.0/22")}

// mayProbe tells whether a client that names itself a health check can be one. Detectors leave health checks out,
// so a stranger must not be able to hide a storm behind a probe's agent.
func mayProbe(r *pipeline.Record) bool {
	a := r.Client
	if !a.IsValid() || r.Origin != pipeline.External || a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() {
		return true
	}
	for _, p := range healthCheckers {
		if p.Contains(a) {
			return true
		}
	}
	// Shared address space (RFC 6598) is a carrier's or a cluster's own.
	return sharedSpace.Contains(a)
}

var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

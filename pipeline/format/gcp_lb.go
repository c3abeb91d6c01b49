package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newGCPLoadBalancer reads the LogEntry objects of Google Cloud's application load balancers. The time is when
// the request was received ("timestamp" of "What is logged"). Exports through a bucket come hourly.
func newGCPLoadBalancer(cfg Config) (pipeline.Format, error) {
	o := &gcpObject{}
	o.clock.iso.zone = cfg.Zone
	return &jsonRecords{object: o}, nil
}

type gcpObject struct {
	clock stampClock
	line  gcpLine
}

type gcpLine struct {
	url, details                       []byte
	server                             []byte
	cacheHit, cacheLookup, validated   bool
	hasRequest, otherResource, trouble bool
}

func (o *gcpObject) read(s *jsonScanner, r *pipeline.Record) pipeline.Reason {
	o.line = gcpLine{}
	l := &o.line
	badTime := false
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return s.bad
		}
		switch string(key) {
		case "timestamp":
			t, _, ok := o.clock.parse(kind, val)
			r.Time, r.Resolution, badTime = t, 1e3, !ok
		case "httpRequest":
			if kind == jsonObject {
				o.request(s, r)
				continue
			}
		case "jsonPayload":
			if kind == jsonObject {
				o.payload(s)
				continue
			}
		case "resource":
			if kind == jsonObject {
				o.resource(s)
				continue
			}
		}
		s.pass(kind)
	}
	switch {
	case !l.hasRequest || l.otherResource || l.url == nil:
		return pipeline.ReasonNotAccess
	case badTime || r.Time == 0:
		return pipeline.ReasonBadTime
	case l.trouble:
		return pipeline.ReasonMalformed
	}
	o.finish(r)
	return ""
}

// resource tells balancers from other services, whose entries have an httpRequest too.
func (o *gcpObject) resource(s *jsonScanner) {
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return
		}
		s.pass(kind)
		if string(key) == "type" {
			o.line.otherResource = !bytes.Contains(val, []byte("_lb_")) && !bytes.HasSuffix(val, []byte("load_balancer")) &&
				!bytes.HasSuffix(val, []byte("_lb_rule"))
		}
	}
}

func (o *gcpObject) payload(s *jsonScanner) {
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return
		}
		s.pass(kind)
		if string(key) == "statusDetails" {
			o.line.details = someOf(kind, val)
		}
	}
}

func (o *gcpObject) request(s *jsonScanner, r *pipeline.Record) {
	l := &o.line
	l.hasRequest = true
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return
		}
		s.pass(kind)
		ok := true
		switch string(key) {
		case "requestMethod":
			r.Method = someOf(kind, val)
		case "requestUrl":
			l.url = someOf(kind, val)
		case "status":
			r.Status, ok = statusOf(kind, val)
		case "responseSize":
			r.Bytes, ok = countOf(kind, val)
		case "remoteIp":
			r.Client, r.ClientPort = addrAnyPort(val)
		case "serverIp":
			l.server = someOf(kind, val)
		case "userAgent":
			r.UserAgent = textOf(kind, val)
		case "referer":
			r.Referer = textOf(kind, val)
		case "protocol":
			r.Proto = someOf(kind, val)
		case "latency":
			r.RequestTime = secondsOf(val)
		case "cacheHit":
			l.cacheHit = kind == jsonTrue
		case "cacheLookup":
			l.cacheLookup = kind == jsonTrue
		case "cacheValidatedWithOriginServer":
			l.validated = kind == jsonTrue
		}
		l.trouble = l.trouble || !ok
	}
}

func (o *gcpObject) finish(r *pipeline.Record) {
	l := &o.line
	host, nginx := hostBefore(l.url)
	switch {
	case !setTarget(r, l.url[len(host):]):
		r.Malformed, r.Method, r.Path = true, nil, nil
	case nginx:
		r.Host = hostOf(host)
	}
	if nginx { // it logs at the end
		setTimes(r)
	} else {
		setTimesFromStart(r)
	}
	r.Upstreams = l.server
	switch {
	case l.cacheHit && l.validated:
		r.Cache = pipeline.CacheRevalidated
	case l.cacheHit:
		r.Cache = pipeline.CacheHit
	case l.cacheLookup:
		r.Cache = pipeline.CacheMiss
	}
	switch string(l.details) {
	case "response_sent_by_backend", "backend_connection_closed_after_partial_response_sent", "backend_timeout",
		"backend_connection_closed_before_data_sent_to_client", "response_from_cache_validated":
		r.Reached = pipeline.Yes
	case "response_from_cache", "denied_by_security_policy", "redirected_by_security_policy", "failed_to_pick_backend",
		"direct_response", "handled_by_identity_aware_proxy", "client_timed_out", "body_not_allowed", "denied_by_edge_security_policy",
		"throttled_by_security_policy", "rate_based_ban_by_security_policy", "failed_to_connect_to_backend":
		r.Reached = pipeline.No
	default:
		if l.server != nil {
			r.Reached = pipeline.Yes
		}
	}
	if string(l.details) == "response_sent_by_backend" && r.Status != 0 {
		r.UpstreamStatuses = append(r.UpstreamStatuses, r.Status)
	}
	r.Limited = r.Status == 429 || bytes.HasPrefix(l.details, []byte("throttled_by")) || bytes.HasPrefix(l.details, []byte("rate_based_ban"))
	r.Streaming = r.Status == 101
	switch {
	case bytes.HasPrefix(l.details, []byte("client_disconnected_")):
		r.Abandoned = pipeline.Yes
	case r.Status == 0:
		r.Abandoned = pipeline.Unsaid
	default:
		r.Abandoned = pipeline.No
	}
}

// hostBefore gives the host at the front of a URL without a scheme. So ingress-nginx writes it, in the usual log format
// that imitates Google's: "requestUrl": "$host$request_uri".
func hostBefore(url []byte) (host []byte, ok bool) {
	i := bytes.IndexByte(url, '/')
	if i < 1 || bytes.HasPrefix(url[i-1:], []byte("://")) {
		return nil, false
	}
	return url[:i], true
}

// secondsOf reads "0.107341s", or "0.107 s" as nginx imitates it.
func secondsOf(val []byte) int64 {
	if n := len(val); n > 1 && val[n-1] == 's' {
		if val = bytes.TrimSuffix(val[:n-1], []byte(" ")); len(val) > 0 && val[len(val)-1] >= '0' && val[len(val)-1] <= '9' {
			return spanOf(jsonString, val, 0)
		}
	}
	return pipeline.Unknown
}

package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newEnvoyJSON reads Envoy's json_format and typed_json_format with the keys that Istio, Envoy Gateway and
// Contour give by default. The time is the request's start, durations are ms.
func newEnvoyJSON(cfg Config) (pipeline.Format, error) {
	o := &envoyObject{}
	o.clock.iso.zone = cfg.Zone
	return &jsonRecords{object: o}, nil
}

type envoyObject struct {
	clock stampClock
	line  envoyFields
}

type envoyFields struct {
	flags, details          []byte
	original, target        []byte
	authority               []byte
	upstream                []byte
	peerPort                uint16
	hasStatus, hasUpstream  bool
	hasMethod, hasPath, own bool // own: a key that no other program's log has
}

func (o *envoyObject) read(s *jsonScanner, r *pipeline.Record) pipeline.Reason {
	o.line = envoyFields{}
	if wrong := members(s, r, o); wrong != "" {
		return wrong
	}
	return o.finish(r)
}

func (o *envoyObject) set(r *pipeline.Record, key []byte, kind jsonKind, val []byte) pipeline.Reason {
	l, ok := &o.line, true
	switch string(key) {
	case "start_time", "@timestamp", "timestamp", "time":
		t, step, valid := o.clock.parse(kind, val)
		if valid && (r.Time == 0 || key[0] == 's') {
			r.Time, r.Resolution = t, step
		} else if !valid && key[0] == 's' && someOf(kind, val) != nil {
			return pipeline.ReasonBadTime
		}
	case "method", ":method", "request_method":
		r.Method, l.hasMethod = someOf(kind, val), true
	case "path", ":path":
		l.target, l.hasPath = someOf(kind, val), true
	case "x-envoy-origin-path", "x-envoy-original-path", "x_envoy_original_path", "x_envoy_origin_path", "original_path":
		l.original, l.hasPath, l.own = someOf(kind, val), true, l.own || key[0] == 'x'
	case "protocol":
		r.Proto = someOf(kind, val)
	case "authority", ":authority", "host":
		l.authority = someOf(kind, val)
	case "response_code", "status", "response_status":
		r.Status, ok = statusOf(kind, val)
		l.hasStatus = true
	case "response_flags":
		l.flags, l.own = someOf(kind, val), true
	case "response_code_details":
		l.details, l.own = someOf(kind, val), true
	case "bytes_sent":
		r.Bytes, ok = countOf(kind, val)
	case "duration":
		r.RequestTime = spanOf(kind, val, 3)
	case "upstream_service_time", "x-envoy-upstream-service-time", "x_envoy_upstream_service_time":
		r.UpstreamTime = spanOf(kind, val, 3)
	case "upstream_host":
		l.upstream, l.hasUpstream, l.own = someOf(kind, val), true, true
	default:
		o.setClient(r, key, kind, val)
	}
	if !ok {
		return pipeline.ReasonMalformed
	}
	return ""
}

func (o *envoyObject) setClient(r *pipeline.Record, key []byte, kind jsonKind, val []byte) {
	switch string(key) {
	case "downstream_remote_address":
		if addr, port := addrPort(someOf(kind, val)); addr.IsValid() {
			r.Client, r.ClientPort, r.Claimed = addr, port, port == 0
		}
	case "downstream_remote_address_without_port":
		if !r.Client.IsValid() {
			r.Client, r.Claimed = addrOf(someOf(kind, val)), true
		}
	case "downstream_direct_remote_address":
		r.Peer, o.line.peerPort = addrPort(someOf(kind, val))
	case "x-forwarded-for", "x_forwarded_for", "xff":
		r.Forwarded = someOf(kind, val)
	case "user-agent", "user_agent":
		r.UserAgent = textOf(kind, val)
	case "referer", "x-referer", "http_referer":
		r.Referer = textOf(kind, val)
	case "upstream_cluster":
		r.Upstream, o.line.own = someOf(kind, val), true
	case "grpc_status", "grpc-status", "response_grpc_status":
		if numeric(kind, val) {
			r.Streaming = true
		}
	}
}

func (o *envoyObject) finish(r *pipeline.Record) pipeline.Reason {
	l := &o.line
	if !l.own || !l.hasStatus || !l.hasMethod && !l.hasPath {
		return pipeline.ReasonNotAccess
	}
	if r.Time == 0 {
		return pipeline.ReasonBadTime
	}
	if l.original == nil {
		l.original = l.target
	}
	if r.Method == nil && l.original == nil {
		if r.Proto == nil { // a TCP proxy's connection, by the same template
			return pipeline.ReasonNotAccess
		}
		r.Malformed = true
	}
	if l.original != nil && !setTarget(r, l.original) {
		r.Malformed, r.Method, r.Path = true, nil, nil
	}
	if l.authority != nil {
		r.Host = hostOf(l.authority)
	}
	if l.hasUpstream {
		r.Reached = pipeline.No
		if l.upstream != nil {
			r.Reached, r.Upstreams = pipeline.Yes, bytes.TrimPrefix(l.upstream, []byte("tcp://"))
		}
	}
	if r.Status != 0 && (r.UpstreamTime >= 0 || string(l.details) == "via_upstream") {
		r.UpstreamStatuses = append(r.UpstreamStatuses, r.Status)
	}
	switch {
	case !r.Client.IsValid() && r.Peer.IsValid():
		r.Client, r.ClientPort = r.Peer, l.peerPort
	case !r.Client.IsValid() && r.Forwarded != nil:
		r.Client, r.Claimed = lastHop(r.Forwarded), true
	case r.Peer.IsValid(): // downstream_remote_address may be X-Forwarded-For's last hop, or the PROXY protocol's
		r.Claimed = r.Client != r.Peer
	}
	setTimesFromStart(r)
	r.Streaming = r.Streaming || r.Status == 101
	r.Limited = r.Status == 429 || hasFlag(l.flags, "RL") || hasFlag(l.flags, "RateLimited")
	r.Abandoned = envoyAbandoned(r.Status, l.flags, l.details)
	return ""
}

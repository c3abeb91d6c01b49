package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newTraefikJSON reads Traefik's access log in JSON. Its time is the request's start.
func newTraefikJSON(cfg Config) (pipeline.Format, error) {
	o := &traefikObject{}
	o.start.iso.zone, o.end.iso.zone = cfg.Zone, cfg.Zone
	return &jsonRecords{object: o}, nil
}

type traefikObject struct {
	start, end stampClock // StartUTC and time step at different seconds
	line       traefikLine
}

// traefikLine is what one line holds until all of it is known: the order of keys is not fixed.
type traefikLine struct {
	peer, clientHost, target, forwarded []byte
	host, authority                     []byte
	service, server, serverURL          []byte
	contentType                         []byte
	logged, loggedStep                  int64 // the time of the log line, ns
	originStatus                        uint16
	hasStatus, hasOrigin, hasOverhead   bool
	hasRequest                          bool
}

func (o *traefikObject) read(s *jsonScanner, r *pipeline.Record) pipeline.Reason {
	o.line = traefikLine{}
	if wrong := members(s, r, o); wrong != "" {
		return wrong
	}
	return o.finish(r)
}

func (o *traefikObject) set(r *pipeline.Record, key []byte, kind jsonKind, val []byte) pipeline.Reason {
	l, ok := &o.line, true
	switch string(key) {
	case "StartUTC", "StartLocal":
		if t, _, valid := o.start.parse(kind, val); valid && (r.Time == 0 || key[5] == 'U') {
			r.Time, r.Resolution = t, 1 // Go trims the zeros of its ns
		} else if !valid && kind == jsonString && !absent(val) {
			return pipeline.ReasonBadTime
		}
	case "time":
		l.logged, l.loggedStep, _ = o.end.parse(kind, val)
	case "ClientAddr":
		l.peer = someOf(kind, val)
	case "ClientHost":
		l.clientHost = someOf(kind, val)
	case "RequestHost":
		l.host = someOf(kind, val)
	case "RequestAddr":
		l.authority = someOf(kind, val)
	case "RequestMethod":
		r.Method, l.hasRequest = someOf(kind, val), true
	case "RequestPath":
		l.target, l.hasRequest = someOf(kind, val), true
	case "RequestProtocol":
		r.Proto = someOf(kind, val)
	case "DownstreamStatus":
		r.Status, ok = statusOf(kind, val)
		l.hasStatus = true
	case "DownstreamContentSize":
		r.Bytes, ok = countOf(kind, val)
	case "Duration":
		r.RequestTime = traefikSpan(kind, val)
	case "OriginDuration":
		r.UpstreamTime = traefikSpan(kind, val)
	case "OriginStatus":
		l.originStatus, ok = statusOf(kind, val)
		l.hasOrigin = true
	case "Overhead":
		l.hasOverhead = true
	case "ServiceName":
		l.service = someOf(kind, val)
	case "ServiceAddr":
		l.server = someOf(kind, val)
	case "ServiceURL":
		l.serverURL = someOf(kind, val)
	default:
		o.header(r, key, kind, val)
	}
	if !ok {
		return pipeline.ReasonMalformed
	}
	return ""
}

// traefikSpan reads a duration: ns, or the text that a shipper made of it.
func traefikSpan(kind jsonKind, val []byte) int64 {
	if t := spanOf(kind, val, 9); t != pipeline.Unknown || kind != jsonString {
		return t
	}
	return goSpan(val)
}

// header reads the headers that Traefik was told to keep.
func (o *traefikObject) header(r *pipeline.Record, key []byte, kind jsonKind, val []byte) {
	switch string(key) {
	case "request_User-Agent":
		r.UserAgent = textOf(kind, val)
	case "request_Referer":
		r.Referer = textOf(kind, val)
	case "request_X-Forwarded-For":
		o.line.forwarded = someOf(kind, val)
	case "downstream_Content-Type":
		o.line.contentType = textOf(kind, val)
	}
}

func (o *traefikObject) finish(r *pipeline.Record) pipeline.Reason {
	l := &o.line
	if !l.hasRequest || !l.hasStatus && !l.hasOrigin && r.RequestTime == pipeline.Unknown {
		return pipeline.ReasonNotAccess
	}
	switch {
	case r.Time != 0:
		setTimesFromStart(r)
	case l.logged != 0: // without the start fields only the end is known
		r.Time, r.Resolution = l.logged, l.loggedStep
		setTimes(r)
	default:
		return pipeline.ReasonBadTime
	}
	setTraefikClient(r, l.peer, l.clientHost)
	if l.forwarded != nil {
		r.Forwarded, r.Hearsay = l.forwarded, 0
	}
	if l.target != nil && !setTarget(r, l.target) {
		r.Malformed, r.Method, r.Path = true, nil, nil
	}
	if l.host == nil {
		l.host = l.authority
	}
	if l.host != nil {
		r.Host = hostOf(l.host)
	}
	o.finishOrigin(r)
	r.Limited = r.Status == 429
	r.Streaming = streamed(r.Status, l.contentType)
	r.Abandoned = traefikAbandoned(r.Status)
	return ""
}

// setTraefikClient sets the client from the peer's address. ClientHost is the first of a request's X-Forwarded-For
// headers: a client that sends one of its own before the proxy's chooses it, so it is hearsay, whoever the peer is.
func setTraefikClient(r *pipeline.Record, peer, clientHost []byte) {
	if peer != nil {
		r.Client, r.ClientPort = addrPort(peer)
	}
	if clientHost == nil {
		return
	}
	last := clientHost
	if i := bytes.LastIndexByte(last, ','); i >= 0 {
		last = bytes.TrimLeft(last[i+1:], " ")
	}
	if !r.Client.IsValid() {
		r.Client, r.Claimed = addrOf(last), true
	}
	if len(last) != len(clientHost) || addrOf(last) != r.Client {
		r.Forwarded, r.Hearsay = clientHost, len(clientHost)
	}
}

// finishOrigin sets what is known of the server. Of several tries Traefik logs the last alone. Its own 499 and
// a status that was never written stand in OriginStatus too: the server sent neither.
func (o *traefikObject) finishOrigin(r *pipeline.Record) {
	l := &o.line
	r.Upstreams, r.Upstream = l.server, l.service
	if r.Upstreams == nil {
		r.Upstreams = l.serverURL
	}
	switch {
	case l.hasOrigin || r.Upstreams != nil || r.UpstreamTime > 0:
		r.Reached = pipeline.Yes
	case l.hasOverhead: // all fields are there, and none of a service
		r.Reached = pipeline.No
		r.UpstreamTime = pipeline.Unknown
	}
	if l.hasOrigin {
		status := l.originStatus
		if status == 499 {
			status = 0
		}
		r.UpstreamStatuses = append(r.UpstreamStatuses, status)
	}
}

// traefikAbandoned: 499 is the client's; without a status nobody wrote one, for whatever reason.
func traefikAbandoned(status uint16) pipeline.Tri {
	switch status {
	case 499:
		return pipeline.Yes
	case 0:
		return pipeline.Unsaid
	}
	return pipeline.No
}

package format

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// A jsonTarget is what a member of an application's object means.
type jsonTarget uint8

const (
	toTime jsonTarget = iota
	toStart
	toHost
	toClient
	toClientPort
	toPeer
	toForwarded
	toMethod
	toPath
	toQuery
	toRequest
	toProto
	toStatus
	toBytes
	toDuration
	toUpstreamTime
	toUpstreamStatus
	toUpstreamAddr
	toUpstream
	toCache
	toAgent
	toReferer
	jsonTargets
)

// targetNames are the names that a configuration gives to the targets: the keys that `squall parse` prints, and
// those of a Record. The first of a line is what errors call it.
var targetNames = [jsonTargets]string{
	toTime: "time", toStart: "start_time", toHost: "site host", toClient: "client_ip client", toClientPort: "client_port", toPeer: "peer",
	toForwarded: "forwarded", toMethod: "method", toPath: "path url uri", toQuery: "query", toRequest: "request",
	toProto: "proto", toStatus: "status", toBytes: "bytes", toDuration: "request_time duration",
	toUpstreamTime: "upstream_time", toUpstreamStatus: "upstream_status upstream_statuses", toUpstreamAddr: "upstream_addr",
	toUpstream: "upstream", toCache: "cache_status", toAgent: "user_agent", toReferer: "referer",
}

// usualNames are the paths that applications and their log libraries give to the targets, in lower case, the
// surest first: plain names, pino's and express-winston's req and res, the Elastic Common Schema, OpenTelemetry.
var usualNames = [jsonTargets]string{
	toTime:  "@timestamp timestamp time ts datetime date t",
	toStart: "start_time starttime startutc start_timestamp",
	toHost:  "vhost http_host url.domain http.host request.host req.host req.headers.host request.headers.host domain server_name host",
	toClient: "client_ip clientip remote_ip remoteip remote_address remoteaddress client.ip client.address " +
		"source.ip source.address http.client_ip network.client.ip request.remote_ip req.remoteaddress req.ip ip client peer",
	toPeer:       "remote_addr remoteaddr",
	toClientPort: "client_port remote_port source.port client.port req.remoteport",
	toForwarded: "x_forwarded_for x-forwarded-for http_x_forwarded_for forwarded_for xff req.headers.x-forwarded-for " +
		"request.headers.x-forwarded-for",
	toMethod: "method request_method http_method http.request.method http.method request.method req.method verb cs-method",
	toPath: "request_uri url.original url.full http.target http.url request.uri request.url req.url req.originalurl request_url " +
		"originalurl url uri url.path http.path request.path req.path request_path path",
	toQuery:   "query query_string querystring url.query request.query args",
	toRequest: "request request_line",
	toProto:   "proto protocol server_protocol http_version http.version request.proto request.protocol req.httpversion",
	toStatus: "status status_code statuscode http_status httpstatus http.response.status_code http.status_code http.status " +
		"response.status response.statuscode response.status_code res.statuscode res.status response_status response_code responsecode code",
	toBytes: "body_bytes_sent bytes_sent http.response.body.bytes http.response.bytes response_size response_bytes bytes_out " +
		"network.bytes_written res.contentlength res.headers.content-length response.size content_length size bytes",
	toUpstreamStatus: "upstream_status",
	toUpstreamAddr:   "upstream_addr upstream_host backend_addr",
	toUpstream:       "upstream upstream_name upstream_cluster backend",
	toCache:          "cache_status upstream_cache_status cache",
	toAgent: "user_agent.original http_user_agent user_agent useragent http.user_agent http.useragent req.headers.user-agent " +
		"request.headers.user-agent agent ua",
	toReferer: "referer referrer http_referer http_referrer http.request.referrer http.referer req.headers.referer " +
		"request.headers.referer",
}

// usualSpans are the names of durations, to which a unit may be appended.
var usualSpans = map[jsonTarget]string{
	toDuration:     "latency_human request_time requesttime response_time duration request_duration latency elapsed time_taken took rt",
	toUpstreamTime: "upstream_response_time upstream_time upstream_duration backend_time",
}

// spanUnits are how a name tells the unit of its duration, by the power of ten that a second has of it.
var spanUnits = []struct {
	suffix string
	digits int8
}{
	{"_s", 0}, {"_sec", 0}, {"_secs", 0}, {"_seconds", 0}, {"_ms", 3}, {"ms", 3}, {"_msec", 3}, {"_millis", 3}, {"millis", 3},
	{"_milliseconds", 3}, {"_us", 6}, {"us", 6}, {"_micros", 6}, {"_microseconds", 6}, {"_ns", 9}, {"ns", 9}, {"nano", 9},
	{"_nanos", 9}, {"_nanoseconds", 9},
}

// A jsonPlace is what stands at a path.
type jsonPlace struct {
	target jsonTarget
	rank   uint8 // 0: the surest name of the target
	digits int8  // of a duration's unit; -1: the name does not tell
}

var usualTable = usualPlaces()

// usualPlaces makes the table of the usual names.
func usualPlaces() map[string]jsonPlace {
	places := map[string]jsonPlace{}
	add := func(name string, p jsonPlace) {
		if _, known := places[name]; !known {
			places[name] = p
		}
	}
	for target, names := range usualNames {
		for rank, name := range strings.Fields(names) {
			add(name, jsonPlace{jsonTarget(target), uint8(rank), -1})
		}
	}
	for target, names := range usualSpans {
		for rank, name := range strings.Fields(names) {
			for _, u := range spanUnits {
				add(name+u.suffix, jsonPlace{target, uint8(rank), u.digits})
			}
			add(name, jsonPlace{target, uint8(rank + 16), -1})
		}
	}
	add("responsetime", jsonPlace{toDuration, 40, 3}) // pino-http, express-winston
	add("event.duration", jsonPlace{toDuration, 0, 9})
	return places
}

// mappedPlaces makes the table of a configured map from targets to paths.
func mappedPlaces(fields map[string]string) (map[string]jsonPlace, error) {
	places := map[string]jsonPlace{}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		path := fields[name]
		p, ok := targetOf(name)
		switch {
		case !ok:
			return nil, fmt.Errorf("fields: %q is unknown; there are %s", name, targetList())
		case path == "" || len(path) > maxJSONPath || strings.Count(path, ".") > maxNesting:
			return nil, fmt.Errorf("fields: %s: %q is no path of at most %d names", name, path, maxNesting+1)
		}
		if other, taken := places[path]; taken && other.target != p.target {
			return nil, fmt.Errorf("fields: %s: %q is taken", name, path)
		}
		places[path] = p
	}
	return places, nil
}

// targetOf reads a configured name: a target's, for durations with its unit.
func targetOf(name string) (jsonPlace, bool) {
	for target, names := range targetNames {
		for known := range strings.FieldsSeq(names) {
			p := jsonPlace{target: jsonTarget(target), digits: -1}
			rest, ok := strings.CutPrefix(name, known)
			switch {
			case !ok:
			case rest == "":
				return p, true
			case p.target == toDuration || p.target == toUpstreamTime:
				if digits, known := unitDigits[strings.TrimPrefix(rest, "_")]; known && rest[0] == '_' {
					p.digits = int8(digits)
					return p, true
				}
			}
		}
	}
	return jsonPlace{}, false
}

func targetList() string {
	return strings.Join(strings.Fields(strings.Join(targetNames[:], " ")), ", ")
}

// maxJSONPath bounds the path of a member, in bytes.
const maxJSONPath = 128

// newJSON reads any application's access log in JSON. A map of fields (target to path, nested names parted by
// dots) says where the values stand; without one the usual names are looked for, in any case of letters. The time
// is the response's end, unless it is the start_time.
func newJSON(cfg Config) (pipeline.Format, error) {
	digits, err := durationDigits(cfg.DurationUnit)
	if err != nil {
		return nil, err
	}
	o := &jsonMap{digits: digits}
	if len(cfg.Fields) > 0 {
		if o.places, err = mappedPlaces(cfg.Fields); err != nil {
			return nil, err
		}
	} else {
		o.places, o.usual = usualTable, true
	}
	o.clock.iso.zone, o.start.iso.zone = cfg.Zone, cfg.Zone
	return &jsonRecords{object: o}, nil
}

type jsonMap struct {
	places       map[string]jsonPlace
	usual        bool
	digits       int // of the unit of durations whose name tells none; -1: judged number by number
	clock, start stampClock
	path         [maxJSONPath]byte
	line         jsonMapLine
}

type jsonMapLine struct {
	rank             [jsonTargets]uint8 // of the name that was taken, from 1; 0: none was seen
	started, step    int64              // start_time, ns
	request, target  []byte
	host             []byte
	upstreamNamed    bool // a value that only a contacted upstream has
	peerPort         uint16
	bad              pipeline.Reason
	upstreamStatuses []byte
}

func (o *jsonMap) read(s *jsonScanner, r *pipeline.Record) pipeline.Reason {
	o.line = jsonMapLine{}
	o.members(s, r, 0, 0)
	if s.bad != "" {
		return s.bad
	}
	return o.finish(r)
}

// members reads the members of an object whose own path takes n bytes of o.path.
func (o *jsonMap) members(s *jsonScanner, r *pipeline.Record, n, depth int) {
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return
		}
		end := o.join(n, key)
		if kind == jsonObject && depth < maxNesting && end >= 0 {
			o.members(s, r, end, depth+1)
			continue
		}
		p, known := jsonPlace{}, false
		if end >= 0 {
			p, known = o.places[string(o.path[:end])]
		}
		if known && kind == jsonArray { // headers: ["value"]
			val = s.firstText(kind, nil)
			if kind = jsonString; val == nil {
				kind = jsonNull
			}
		} else {
			s.pass(kind)
		}
		if known {
			o.place(r, p, kind, val)
		}
	}
}

// join writes a name behind the path of its object; -1 when it does not fit.
func (o *jsonMap) join(n int, key []byte) int {
	if n > 0 {
		if n == len(o.path) {
			return -1
		}
		o.path[n] = '.'
		n++
	}
	if n+len(key) > len(o.path) {
		return -1
	}
	end := n + copy(o.path[n:], key)
	if o.usual {
		for i := n; i < end; i++ {
			if c := o.path[i]; c >= 'A' && c <= 'Z' {
				o.path[i] = c | 0x20
			}
		}
	}
	return end
}

// place sets a value, unless a surer name has set it.
func (o *jsonMap) place(r *pipeline.Record, p jsonPlace, kind jsonKind, val []byte) {
	l := &o.line
	if kind != jsonString && kind != jsonNumber {
		return
	}
	if seen := l.rank[p.target]; seen != 0 && p.rank >= seen {
		return
	}
	reason := o.set(r, p, kind, val)
	if reason == "" {
		l.rank[p.target] = p.rank + 1
		return
	}
	// A usual name may be another thing of the application's; what was configured is meant.
	if l.bad == "" && (!o.usual || p.rank == 0) {
		l.bad = reason
	}
}

func (o *jsonMap) set(r *pipeline.Record, p jsonPlace, kind jsonKind, val []byte) pipeline.Reason {
	l, ok := &o.line, true
	switch p.target {
	case toTime:
		t, step, valid := o.clock.parse(kind, val)
		if !valid {
			return pipeline.ReasonBadTime
		}
		r.Time, r.Resolution = t, step
	case toStart:
		if l.started, l.step, ok = o.start.parse(kind, val); !ok {
			return pipeline.ReasonBadTime
		}
	case toStatus:
		r.Status, ok = statusOf(kind, val)
	case toBytes:
		r.Bytes, ok = countOf(kind, val)
	case toDuration:
		r.RequestTime = o.span(p, kind, val)
	case toUpstreamTime:
		r.UpstreamTime = o.span(p, kind, val)
		l.upstreamNamed = l.upstreamNamed || r.UpstreamTime >= 0
	case toMethod:
		r.Method = someOf(kind, val)
		ok = r.Method == nil || isMethod(r.Method)
	case toPath:
		l.target = someOf(kind, val)
	case toRequest:
		l.request = someOf(kind, val)
		ok = l.request == nil || bytes.IndexByte(l.request, ' ') > 0 || !o.usual
	default:
		o.setText(r, p.target, kind, val)
	}
	if !ok {
		return pipeline.ReasonMalformed
	}
	return ""
}

func (o *jsonMap) setText(r *pipeline.Record, target jsonTarget, kind jsonKind, val []byte) {
	l, some := &o.line, someOf(kind, val)
	switch target {
	case toHost:
		l.host = some
	case toClient:
		if addr, port := addrPort(some); addr.IsValid() {
			r.Client, r.ClientPort = addr, port
		}
		if addr := addrOf(some); addr.IsValid() { // IPv6 without a port
			r.Client, r.ClientPort = addr, 0
		}
	case toPeer:
		r.Peer, l.peerPort = addrAnyPort(some)
	case toClientPort:
		if n, ok := uintOf(val); ok && n <= 65535 {
			r.ClientPort = uint16(n)
		}
	case toForwarded:
		r.Forwarded = some
	case toQuery:
		r.Query = bytes.TrimPrefix(some, []byte("?"))
	case toProto:
		r.Proto = some
	case toUpstreamStatus:
		l.upstreamStatuses = val
		l.upstreamNamed = l.upstreamNamed || numeric(kind, val)
	case toUpstreamAddr:
		r.Upstreams = some
		l.upstreamNamed = l.upstreamNamed || some != nil
	case toUpstream:
		r.Upstream = some
	case toCache:
		r.Cache = cacheOf(bytes.ToUpper(val[:min(len(val), 16)]))
	case toAgent:
		r.UserAgent = textOf(kind, val)
	case toReferer:
		r.Referer = textOf(kind, val)
	}
}

// span reads a duration: with its unit in the text, by its name, as configured; else a fraction is of seconds,
// and a whole number could be of any unit.
func (o *jsonMap) span(p jsonPlace, kind jsonKind, val []byte) int64 {
	if kind == jsonString && len(val) > 0 && val[len(val)-1] == 's' {
		return goSpan(val)
	}
	digits := int(p.digits)
	if digits < 0 {
		digits = o.digits
	}
	if digits < 0 {
		if bytes.IndexByte(val, '.') < 0 {
			return pipeline.Unknown
		}
		digits = 0
	}
	return spanOf(kind, val, digits)
}

func (o *jsonMap) seen(target jsonTarget) bool { return o.line.rank[target] != 0 }

// finish tells whether the object is a request. By the usual names it must hold a time, a status and a path: any
// line of an application would pass otherwise.
func (o *jsonMap) finish(r *pipeline.Record) pipeline.Reason {
	l := &o.line
	named := l.target != nil || l.request != nil
	if o.usual && (!o.seen(toStatus) || !named || r.Time == 0 && l.started == 0 || r.Method == nil && l.request == nil) {
		return pipeline.ReasonNotAccess
	}
	if l.bad != "" {
		return l.bad
	}
	if !o.seen(toStatus) && !named && !o.seen(toMethod) {
		return pipeline.ReasonNotAccess
	}
	o.finishRequest(r)
	o.finishClient(r)
	switch {
	case r.Time != 0:
		setTimes(r)
	case l.started != 0:
		r.Time, r.Resolution = l.started, l.step
		setTimesFromStart(r)
	}
	switch {
	case l.upstreamNamed:
		r.Reached = pipeline.Yes
	case o.seen(toUpstreamAddr) || o.seen(toUpstreamStatus):
		r.Reached = pipeline.No
	}
	if l.upstreamNamed && !readStatuses(r, l.upstreamStatuses) {
		return pipeline.ReasonMalformed
	}
	r.Limited = r.Status == 429
	r.Streaming = r.Status == 101
	switch r.Status {
	case 499, 460:
		r.Abandoned = pipeline.Yes
	case 0:
		r.Abandoned = pipeline.Unsaid
	default:
		r.Abandoned = pipeline.No
	}
	return ""
}

// finishClient tells a client that the application reckoned, from whichever header, from the peer. By the usual names
// none but the peer's says who opened the connection; a configured client is who the configuration says that it is.
func (o *jsonMap) finishClient(r *pipeline.Record) {
	switch {
	case !r.Client.IsValid():
		r.Client = r.Peer
		if r.ClientPort == 0 {
			r.ClientPort = o.line.peerPort
		}
	case r.Peer.IsValid():
		r.Claimed = r.Client != r.Peer
	default:
		r.Claimed = o.usual
	}
}

// finishRequest puts the request together from its line or its parts.
func (o *jsonMap) finishRequest(r *pipeline.Record) {
	l := &o.line
	query := r.Query
	switch {
	case l.target != nil:
		if !setTarget(r, l.target) {
			r.Malformed, r.Method, r.Path, r.Query = true, nil, nil, nil
		}
	case l.request != nil:
		setRequest(r, l.request)
	}
	if r.Query == nil && r.Path != nil && len(query) > 0 {
		r.Query = query
	}
	if l.host != nil {
		r.Host = hostOf(l.host)
	}
}

package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newAzureGateway reads the access log of Azure's Application Gateway (both generations) and of Application
// Gateway for Containers: records of a diagnostic setting, one a line or in the {"records":[…]} of a blob. The
// time is the response's end. Blobs are written minutes late.
func newAzureGateway(cfg Config) (pipeline.Format, error) {
	digits, err := durationDigits(cfg.DurationUnit)
	if err != nil {
		return nil, err
	}
	o := &azureObject{digits: digits}
	o.clock.iso.zone = cfg.Zone
	return &jsonRecords{object: o, list: true}, nil
}

type azureObject struct {
	clock  stampClock
	digits int // of the unit of timeTaken; -1: judged by the record
	line   azureLine
}

type azureLine struct {
	category, operation               []byte
	original, uri, query              []byte
	originalHost, host                []byte
	taken, latency                    []byte
	takenKind, latencyKind            jsonKind
	routed, serverStatus, errorInfo   []byte
	origin, cache, firstByte          []byte
	firstByteKind                     jsonKind
	hasRequest, hasStatus, hasRouted  bool
	hasOrigin                         bool
	second, containers, wrong, badDay bool // second: a field that the first generation mostly does not have
	first                             bool // it says itself that it is of the first generation
}

func (o *azureObject) read(s *jsonScanner, r *pipeline.Record) pipeline.Reason {
	o.line = azureLine{}
	l := &o.line
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		switch string(key) {
		case "timeStamp", "time", "timestamp":
			t, step, ok := o.clock.parse(kind, val)
			switch {
			case ok && (r.Time == 0 || len(key) == len("timeStamp")):
				r.Time, r.Resolution = t, step
			case !ok:
				l.badDay = true
			}
		case "category":
			l.category = someOf(kind, val)
		case "operationName":
			l.operation = someOf(kind, val)
		case "properties":
			if kind == jsonObject {
				o.properties(s, r)
				continue
			}
		}
		if kind == jsonNone {
			return s.bad
		}
		s.pass(kind)
	}
	return o.finish(r)
}

// value reads a property. The first generation writes "clientPort":- without quotes.
func (o *azureObject) value(s *jsonScanner) (key []byte, kind jsonKind, val []byte) {
	key = s.key()
	if s.bad == "" && s.peek() == '-' && s.pos+1 < len(s.text) && (s.text[s.pos+1] == ',' || s.text[s.pos+1] == '}') {
		s.pos++
		return key, jsonNull, nil
	}
	if s.bad == "" {
		kind, val = s.scalar()
	}
	return key, kind, val
}

func (o *azureObject) properties(s *jsonScanner, r *pipeline.Record) {
	l := &o.line
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := o.value(s)
		if kind == jsonNone {
			return
		}
		s.pass(kind)
		ok := true
		switch string(key) {
		case "clientIP":
			r.Client = addrOf(val)
		case "clientIp": // Front Door's, which takes it from X-Forwarded-For if there is one; for containers it has the port
			var port uint16
			if r.Client, port = addrAnyPort(val); port != 0 {
				r.ClientPort = port
			}
			r.Claimed = port == 0
		case "socketIp", "socketIP":
			r.Peer, _ = addrAnyPort(val)
		case "clientPort":
			if n, valid := uintOf(val); valid && n <= 65535 {
				r.ClientPort = uint16(n)
			}
		case "httpMethod":
			r.Method, l.hasRequest = someOf(kind, val), true
		case "requestUri":
			l.uri, l.hasRequest = someOf(kind, val), true
		case "requestQuery":
			l.query = someOf(kind, val)
		case "httpVersion":
			r.Proto = azureProto(someOf(kind, val))
		case "userAgent":
			r.UserAgent = textOf(kind, val)
		case "referer", "referrer":
			r.Referer = textOf(kind, val)
		case "httpStatus", "httpStatusCode":
			r.Status, ok = statusOf(kind, val)
			l.hasStatus = true
		case "sentBytes", "responseBodyBytes", "responseBytes":
			r.Bytes, ok = countOf(kind, val)
		case "timeTaken":
			l.taken, l.takenKind = val, kind
		default:
			o.server(key, kind, val)
		}
		l.wrong = l.wrong || !ok
	}
}

// server reads what tells of the server and of the generation.
func (o *azureObject) server(key []byte, kind jsonKind, val []byte) {
	l := &o.line
	switch string(key) {
	case "instanceId":
		l.first = bytes.HasPrefix(val, firstInstance)
	case "serverRouted":
		l.routed, l.hasRouted, l.second = someOf(kind, val), true, true
	case "serverStatus":
		l.serverStatus, l.second = val, true
	case "serverResponseLatency":
		l.latency, l.latencyKind, l.second = val, kind, true
	case "originalRequestUriWithArgs":
		l.original, l.second = someOf(kind, val), true
	case "originalHost":
		l.originalHost, l.second = someOf(kind, val), true
	case "host":
		l.host = someOf(kind, val)
	case "error_info", "errorInfo":
		l.errorInfo = someOf(kind, val)
	case "hostName":
		l.host, l.containers = someOf(kind, val), true
	case "backendHost":
		l.routed, l.hasRouted, l.containers = someOf(kind, val), true, true
	case "backendResponseLatency":
		l.latency, l.latencyKind, l.containers = val, kind, true
	default:
		o.door(key, kind, val)
	}
}

// door reads what Front Door alone writes. N/A is its word for nothing.
func (o *azureObject) door(key []byte, kind jsonKind, val []byte) {
	l := &o.line
	switch string(key) {
	case "originIp", "originIP":
		l.origin, l.hasOrigin = someOf(kind, val), true
	case "cacheStatus":
		l.cache = someOf(kind, val)
	case "timeToFirstByte":
		l.firstByte, l.firstByteKind = val, kind
	}
}

// azureProto gives the protocol in the words of a request line: Front Door writes 2.0.0.0, or 2.0.
func azureProto(v []byte) []byte {
	if len(v) < 3 || v[1] != '.' {
		return v
	}
	switch string(v[:3]) {
	case "1.0":
		return proto10
	case "1.1":
		return proto11
	case "2.0":
		return proto20
	case "3.0":
		return proto30
	}
	return v
}

var proto10, proto11, proto20, proto30 = []byte("HTTP/1.0"), []byte("HTTP/1.1"), []byte("HTTP/2.0"), []byte("HTTP/3.0")

// gatewayNote begins what the first generation appends to the query.
var gatewayNote = []byte("X-AzureApplicationGateway-CACHE-HIT=")

func (o *azureObject) finish(r *pipeline.Record) pipeline.Reason {
	l := &o.line
	switch {
	case !l.hasRequest || !l.hasStatus || l.category == nil && l.operation == nil && !l.second:
		return pipeline.ReasonNotAccess
	case l.category != nil && !bytes.HasSuffix(l.category, []byte("AccessLog")) && !bytes.HasSuffix(l.category, []byte("AccessLogs")):
		return pipeline.ReasonNotAccess
	case r.Time == 0:
		return pipeline.ReasonBadTime
	case l.wrong:
		return pipeline.ReasonMalformed
	}
	r.Claimed = r.Claimed && r.Client != r.Peer
	if i := bytes.Index(l.query, gatewayNote); i >= 0 {
		o.note(l.query[i:])
		l.query = bytes.TrimSuffix(l.query[:i], []byte("&"))
	}
	target := l.original
	if target == nil {
		target = l.uri
	}
	if target == nil || !setTarget(r, target) {
		r.Malformed, r.Method, r.Path = true, nil, nil
	} else if r.Query == nil && len(l.query) > 0 {
		r.Query = l.query
	}
	if l.originalHost == nil {
		l.originalHost = l.host
	}
	if l.originalHost != nil {
		r.Host = hostOf(l.originalHost)
	}
	digits := o.takenDigits()
	r.RequestTime = spanOf(l.takenKind, l.taken, digits)
	r.UpstreamTime = spanOf(l.latencyKind, l.latency, digits)
	setTimes(r)
	o.judge(r)
	return ""
}

// note reads SERVER-ROUTED=10.0.0.4&…&SERVER-STATUS=200.
func (o *azureObject) note(note []byte) {
	l := &o.line
	for len(note) > 0 {
		pair, rest, _ := bytes.Cut(note, []byte("&"))
		note = rest
		if v, ok := bytes.CutPrefix(pair, []byte("SERVER-ROUTED=")); ok {
			l.hasRouted = true
			if !absent(v) {
				l.routed = v
			}
		} else if v, ok := bytes.CutPrefix(pair, []byte("SERVER-STATUS=")); ok {
			l.serverStatus = v
		}
	}
}

// takenDigits tells the unit of a record's durations: the second generation and Front Door write seconds, the first
// and the one for containers ms.
func (o *azureObject) takenDigits() int {
	l := &o.line
	switch {
	case o.digits >= 0:
		return o.digits
	case bytes.HasPrefix(l.category, frontDoor): // it has hostName, too
		return unitDigits["s"]
	case l.containers, l.first:
		return unitDigits["ms"]
	case l.second || bytes.IndexByte(l.taken, '.') >= 0:
		return unitDigits["s"]
	}
	return unitDigits["ms"]
}

var (
	frontDoor = []byte("FrontDoor")
	// firstInstance begins the names of the first generation's instances; the second's are appgw_N.
	firstInstance = []byte("ApplicationGatewayRole_IN_")
	notThere      = []byte("N/A")
)

// judgeDoor sets what Front Door's cache did, and its origin. What a part of came from the origin is a miss.
func (o *azureObject) judgeDoor(r *pipeline.Record) {
	l := &o.line
	asked := pipeline.Unsaid
	switch string(l.cache) {
	case "HIT", "REMOTE_HIT":
		r.Cache, asked = pipeline.CacheHit, pipeline.No
	case "MISS", "PARTIAL_HIT":
		r.Cache, asked = pipeline.CacheMiss, pipeline.Yes
	case "CACHE_NOCONFIG", "PRIVATE_NOSTORE":
		r.Cache = pipeline.CacheBypass
	}
	switch {
	case l.hasOrigin && l.origin != nil && !bytes.Equal(l.origin, notThere):
		r.Reached, r.Upstreams = pipeline.Yes, l.origin
	case l.hasOrigin:
		r.Reached = pipeline.No
	default:
		r.Reached = asked
	}
	if r.Reached == pipeline.Yes {
		r.UpstreamTime = spanOf(l.firstByteKind, l.firstByte, unitDigits["s"]) // the edge's own share of it is a few ms
	}
}

func (o *azureObject) judge(r *pipeline.Record) {
	l := &o.line
	if l.routed != nil {
		r.Reached, r.Upstreams = pipeline.Yes, l.routed
	} else if l.hasRouted {
		r.Reached = pipeline.No
	}
	if bytes.HasPrefix(l.category, frontDoor) {
		o.judgeDoor(r)
	}
	for rest := l.serverStatus; len(rest) > 0; { // "502, 200" after a retry
		var item []byte
		item, rest = nextItem(rest)
		if n, ok := uintOf(item); ok && n >= 100 && n <= 999 && len(r.UpstreamStatuses) < maxTries {
			r.UpstreamStatuses = append(r.UpstreamStatuses, uint16(n))
		}
	}
	r.Limited = r.Status == 429
	r.Streaming = r.Status == 101
	switch {
	case r.Status == 499 || string(l.errorInfo) == "ERRORINFO_CLIENT_CLOSED_REQUEST" || string(l.errorInfo) == "ClientDisconnected":
		r.Abandoned = pipeline.Yes
	case r.Status == 0:
		r.Abandoned = pipeline.Unsaid
	default:
		r.Abandoned = pipeline.No
	}
}

package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newCaddyJSON reads the access log of Caddy 2: the layouts before 2.5, of 2.5 and 2.6, and since. The time is
// the request's end.
func newCaddyJSON(cfg Config) (pipeline.Format, error) {
	o, err := newCaddyObject(cfg)
	if err != nil {
		return nil, err
	}
	return &jsonRecords{object: o}, nil
}

func newCaddyObject(cfg Config) (*caddyObject, error) {
	digits, err := durationDigits(cfg.DurationUnit)
	if err != nil {
		return nil, err
	}
	o := &caddyObject{digits: digits}
	o.clock.iso.zone = cfg.Zone
	return o, nil
}

type caddyObject struct {
	clock  stampClock
	digits int // of the unit of durations; -1: judged number by number
	line   caddyLine
	stamp  caddyStamp
}

// caddyStamp is what the console encoder writes before the object.
type caddyStamp struct {
	time, step      int64
	logger, message []byte
}

type caddyLine struct {
	caddyStamp
	hasRequest, hasStatus         bool
	remote, client, port, address []byte
	target, host                  []byte
	length                        int64 // Content-Length
	contentType                   []byte
	durationZero, upgraded, via   bool
}

func (o *caddyObject) read(s *jsonScanner, r *pipeline.Record) pipeline.Reason {
	o.line = caddyLine{caddyStamp: o.stamp, length: pipeline.Unknown}
	var wrong pipeline.Reason
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		var reason pipeline.Reason
		switch {
		case kind == jsonNone:
			return s.bad
		case kind == jsonObject && string(key) == "request":
			o.request(s, r)
		case kind == jsonObject && (string(key) == "resp_headers" || string(key) == "headers"):
			o.headers(s, r, false)
		case kind == jsonObject || kind == jsonArray:
			s.skip()
		default:
			reason = o.set(r, key, kind, val)
		}
		if wrong == "" {
			wrong = reason
		}
	}
	if s.bad == "" && !o.isAccess() {
		return pipeline.ReasonNotAccess
	}
	if wrong == "" {
		wrong = o.finish(r)
	}
	return wrong
}

var (
	accessLogger = []byte("http.log.access")
	handled      = []byte("handled request")
	noHandler    = []byte("NOP")
)

// isAccess tells access entries from those that name a request beside something else: http.log.error repeats
// the request and its status. Where the encoder's keys were changed the message tells.
func (o *caddyObject) isAccess() bool {
	l := &o.line
	if !l.hasRequest || !l.hasStatus {
		return false
	}
	if l.logger != nil {
		return bytes.HasPrefix(l.logger, accessLogger)
	}
	return l.message == nil || bytes.Equal(l.message, handled) || bytes.Equal(l.message, noHandler)
}

// set reads a member beside the request. log_append may repeat a name with a value of its own kind: what cannot
// be the field's value changes nothing.
func (o *caddyObject) set(r *pipeline.Record, key []byte, kind jsonKind, val []byte) pipeline.Reason {
	l := &o.line
	switch string(key) {
	case "ts", "time", "timestamp", "@timestamp":
		if t, step, ok := o.clock.parse(kind, val); ok {
			l.time, l.step = t, step
		} else if l.time == 0 && key[len(key)-1] == 's' {
			return pipeline.ReasonBadTime
		}
	case "logger":
		l.logger = textOf(kind, val)
	case "msg":
		l.message = textOf(kind, val)
	case "status":
		status, ok := statusOf(kind, val)
		switch {
		case ok:
			r.Status, l.hasStatus = status, true
		case !l.hasStatus:
			l.hasStatus = true
			return pipeline.ReasonMalformed
		}
	case "size":
		if n, ok := countOf(kind, val); ok {
			r.Bytes = n
		}
	case "duration":
		o.duration(r, kind, val)
	}
	return ""
}

// duration reads the unit off the number where none is configured. Caddy writes seconds with a fraction, ms and
// ns whole (zap's encoders). Whole numbers in between can be either, and 0 is no duration unless the unit
// is coarse.
func (o *caddyObject) duration(r *pipeline.Record, kind jsonKind, val []byte) {
	if kind == jsonString {
		if t := goSpan(val); t != pipeline.Unknown {
			r.RequestTime = t
			return
		}
	}
	digits := o.digits
	if digits < 0 {
		if digits = plausibleDigits(val); digits < 0 {
			o.line.durationZero = len(val) == 1 && val[0] == '0'
			r.RequestTime = pipeline.Unknown
			return
		}
	}
	r.RequestTime = spanOf(kind, val, digits)
	o.line.durationZero = r.RequestTime == 0
	if r.RequestTime == 0 && digits == 0 {
		r.RequestTime = pipeline.Unknown
	}
}

// The whole durations of which the unit is plain: nothing takes less than 10 µs, and few wait for 10 s and an
// exact number of ms.
const (
	maxWholeMillis = 10_000
	minWholeNanos  = 10_000_000
)

// plausibleDigits judges the unit of a number; -1 when it could be several.
func plausibleDigits(val []byte) int {
	if bytes.IndexByte(val, '.') >= 0 || bytes.ContainsAny(val, "eE") {
		return unitDigits["s"]
	}
	n, ok := uintOf(val)
	switch {
	case !ok || n == 0:
		return -1
	case n < maxWholeMillis:
		return unitDigits["ms"]
	case n >= minWholeNanos:
		return unitDigits["ns"]
	}
	return -1
}

func (o *caddyObject) request(s *jsonScanner, r *pipeline.Record) {
	l := &o.line
	l.hasRequest = true
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		switch string(key) {
		case "client_ip":
			l.client = someOf(kind, val)
		case "remote_ip":
			l.remote = someOf(kind, val)
		case "remote_port":
			l.port = someOf(kind, val)
		case "remote_addr": // before 2.5, with the port
			l.address = someOf(kind, val)
		case "proto":
			r.Proto = someOf(kind, val)
		case "method":
			r.Method = someOf(kind, val)
		case "host":
			l.host = someOf(kind, val)
		case "uri":
			l.target = someOf(kind, val)
		case "headers":
			if kind == jsonObject {
				o.headers(s, r, true)
				continue
			}
		}
		if kind == jsonNone {
			return
		}
		s.pass(kind)
	}
}

// headers reads {"Name":["value",…],…} of the request or the response.
func (o *caddyObject) headers(s *jsonScanner, r *pipeline.Record, request bool) {
	l := &o.line
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return
		}
		name := borrow(key)
		switch {
		case request && name == "User-Agent":
			r.UserAgent = s.firstText(kind, val)
		case request && name == "Referer":
			r.Referer = s.firstText(kind, val)
		case request && name == "X-Forwarded-For":
			r.Forwarded = s.joined(kind, val)
		case request && name == "Upgrade":
			l.upgraded = s.firstText(kind, val) != nil
		case !request && name == "Content-Length":
			l.length, _ = countOf(jsonString, s.firstText(kind, val))
		case !request && name == "Content-Type":
			l.contentType = s.firstText(kind, val)
		case !request && name == "Via":
			l.via = bytes.HasSuffix(s.firstText(kind, val), caddyVia)
		default:
			s.pass(kind)
		}
	}
}

// caddyVia is what reverse_proxy adds to the server's response.
var caddyVia = []byte(" Caddy")

// firstText gives a string, or the first string of an array; nil when there is none.
func (s *jsonScanner) firstText(kind jsonKind, val []byte) (first []byte) {
	if kind != jsonArray {
		s.pass(kind)
		return textOf(kind, val)
	}
	for more := s.open('['); more; more = s.next('[') {
		kind, val := s.scalar()
		if kind == jsonNone {
			return nil
		}
		s.pass(kind)
		if first == nil {
			first = textOf(kind, val)
		}
	}
	return first
}

// joined gives the strings of an array as one list, as headers of one name mean.
func (s *jsonScanner) joined(kind jsonKind, val []byte) (all []byte) {
	if kind != jsonArray {
		s.pass(kind)
		return someOf(kind, val)
	}
	for more := s.open('['); more; more = s.next('[') {
		kind, val := s.scalar()
		if kind == jsonNone {
			return nil
		}
		s.pass(kind)
		if kind != jsonString || len(val) == 0 {
			continue
		}
		if all == nil {
			all = val
			continue
		}
		list := append(s.mem.take(len(all)+2+len(val)), all...)
		all = append(append(list, ", "...), val...)
	}
	return all
}

func (o *caddyObject) finish(r *pipeline.Record) pipeline.Reason {
	l := &o.line
	if l.time == 0 {
		return pipeline.ReasonBadTime
	}
	r.Time, r.Resolution = l.time, l.step
	switch {
	case l.client != nil:
		r.Client, r.Peer = addrOf(l.client), addrOf(l.remote)
		r.Claimed = r.Client != r.Peer // by Caddy's trusted_proxies: the leftmost hop, unless it is told to be strict
	case l.remote != nil:
		r.Client = addrOf(l.remote)
	case l.address != nil:
		r.Client, r.ClientPort = addrPort(l.address)
	}
	if port, ok := uintOf(l.port); ok && port <= 65535 && (l.client == nil || bytes.Equal(l.client, l.remote)) {
		r.ClientPort = uint16(port)
	}
	if l.target == nil || !setTarget(r, l.target) {
		r.Malformed, r.Method, r.Path = true, nil, nil
	}
	if l.host != nil {
		r.Host = hostOf(l.host)
	}
	setTimes(r)
	if l.via {
		r.Reached = pipeline.Yes
	}
	r.Limited = r.Status == 429
	r.Streaming = streamed(r.Status, l.contentType) || r.Status == 0 && l.upgraded
	r.Abandoned = o.abandoned(r)
	return ""
}

// abandoned: 499 since the middle of 2026; before that no status after a real wait. No status in no time, or
// NOP, means that no handler wrote. A client that leaves during the body leaves a duration of 0 and fewer
// bytes than announced.
func (o *caddyObject) abandoned(r *pipeline.Record) pipeline.Tri {
	l := &o.line
	short := l.length > 0 && r.Bytes >= 0 && r.Bytes < l.length && r.Status >= 200 && r.Status <= 299 &&
		string(r.Method) != "HEAD"
	switch {
	case r.Status == 499:
		return pipeline.Yes
	case r.Status == 0 && (r.Streaming || r.RequestTime == pipeline.Unknown):
		return pipeline.Unsaid
	case r.Status == 0:
		if bytes.Equal(l.message, noHandler) || r.RequestTime < 1e6 {
			return pipeline.No
		}
		return pipeline.Yes
	case short && l.durationZero:
		return pipeline.Yes
	case short:
		return pipeline.Unsaid
	}
	return pipeline.No
}

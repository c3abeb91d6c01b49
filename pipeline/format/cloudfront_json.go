package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newCloudFrontJSON reads CloudFront's standard log (v2) in JSON: every value a string, any choice and order of
// fields. The time is the response's end, in UTC whatever zone is configured. It is delivered minutes late.
func newCloudFrontJSON(Config) (pipeline.Format, error) {
	return &jsonRecords{object: &cloudFrontObject{}}, nil
}

type cloudFrontObject struct{ fields cloudFrontFields }

func (o *cloudFrontObject) read(s *jsonScanner, r *pipeline.Record) pipeline.Reason {
	f := &o.fields
	f.reset(s.mem)
	var wrong pipeline.Reason
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return s.bad
		}
		s.pass(kind)
		if kind != jsonString && kind != jsonNumber {
			continue
		}
		if reason := f.set(r, key, val); reason != "" && wrong == "" {
			wrong = reason
		}
	}
	if wrong == "" {
		wrong = f.finish(r)
	}
	return wrong
}

// cloudFrontFields reads fields by the names that CloudFront gives them in every form of its log.
type cloudFrontFields struct {
	clock stampClock
	mem   *arena
	line  cloudFrontLine
}

type cloudFrontLine struct {
	date, clock                     []byte
	host, distribution              []byte
	stem, contentType               []byte
	result, response, detailed      []byte
	firstByte, originFirst          int64
	hasStatus, hasRequest, anyFront bool
	hasMethod, otherServer          bool // otherServer: a field of IIS, whose names are those of W3C, too
	stamp                           [isoLen]byte
}

func (f *cloudFrontFields) reset(mem *arena) {
	f.line, f.mem = cloudFrontLine{firstByte: pipeline.Unknown, originFirst: pipeline.Unknown}, mem
}

func (f *cloudFrontFields) set(r *pipeline.Record, name, val []byte) pipeline.Reason {
	l, ok := &f.line, true
	switch string(name) {
	case "date":
		l.date = val
	case "time":
		l.clock = val
	case "timestamp", "timestamp(ms)":
		t, step, valid := epoch(val)
		if !valid {
			return pipeline.ReasonBadTime
		}
		if r.Time == 0 || step < r.Resolution {
			r.Time, r.Resolution = t, step
		}
		l.anyFront = l.anyFront || len(name) > len("timestamp") // so does nobody else spell it
	case "sc-bytes":
		r.Bytes, ok = countOf(jsonString, val)
	case "c-ip":
		r.Client = addrOf(val)
	case "c-port":
		if n, valid := uintOf(val); valid && n <= 65535 {
			r.ClientPort = uint16(n)
		}
	case "cs-method":
		r.Method, l.hasRequest, l.hasMethod = someOf(jsonString, val), true, true
	case "cs-uri-stem":
		l.stem, l.hasRequest = someOf(jsonString, val), true
	case "cs-uri-query":
		r.Query = someOf(jsonString, val)
	case "sc-status":
		r.Status, ok = statusOf(jsonString, val)
		l.hasStatus = true
	case "time-taken":
		r.RequestTime = spanOf(jsonString, val, 0)
	case "time-to-first-byte":
		l.firstByte = spanOf(jsonString, val, 0)
	case "origin-fbl":
		l.originFirst, l.anyFront = spanOf(jsonString, val, 0), true
	default:
		f.setText(r, name, val)
	}
	if !ok {
		return pipeline.ReasonMalformed
	}
	return ""
}

func (f *cloudFrontFields) setText(r *pipeline.Record, name, val []byte) {
	l := &f.line
	switch string(name) {
	case "cs(Host)":
		l.distribution = someOf(jsonString, val)
	case "x-host-header":
		l.host = someOf(jsonString, val)
	case "cs(Referer)":
		r.Referer = f.decoded(val)
	case "cs(User-Agent)":
		r.UserAgent = f.decoded(val)
	case "x-forwarded-for":
		r.Forwarded = f.decoded(val)
	case "cs-protocol-version":
		r.Proto = someOf(jsonString, val)
	case "sc-content-type":
		l.contentType = someOf(jsonString, val)
	case "x-edge-result-type":
		l.result, l.anyFront = someOf(jsonString, val), true
	case "x-edge-response-result-type":
		l.response, l.anyFront = someOf(jsonString, val), true
	case "x-edge-detailed-result-type":
		l.detailed, l.anyFront = someOf(jsonString, val), true
	case "x-edge-location", "x-edge-request-id", "cs-protocol":
		l.anyFront = true
	case "s-ip", "s-port", "s-sitename", "s-computername", "sc-substatus", "sc-win32-status", "cs-username":
		l.otherServer = true
	}
}

// decoded undoes the percent-encoding of a header, once more where the result is encoded all through.
func (f *cloudFrontFields) decoded(val []byte) []byte {
	if absent(val) {
		return nil
	}
	once := percentDecoded(f.mem, val)
	if bytes.IndexByte(once, '%') >= 0 && bytes.IndexByte(once, ' ') < 0 && !sameBytes(once, val) {
		return percentDecoded(f.mem, once)
	}
	return once
}

func sameBytes(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// percentDecoded undoes %XX; what is none stays. Without one it returns s itself.
func percentDecoded(mem *arena, s []byte) []byte {
	i := bytes.IndexByte(s, '%')
	if i < 0 {
		return s
	}
	out := mem.take(len(s))
	for i >= 0 {
		out = append(out, s[:i]...)
		if v := hex(s[i+1:], 2); v >= 0 {
			out, s = append(out, byte(v)), s[i+3:]
		} else {
			out, s = append(out, '%'), s[i+1:]
		}
		i = bytes.IndexByte(s, '%')
	}
	return append(out, s...)
}

func (f *cloudFrontFields) finish(r *pipeline.Record) pipeline.Reason {
	l := &f.line
	if !l.hasRequest || !l.hasStatus || !l.anyFront && l.distribution == nil && (!l.hasMethod || l.otherServer) {
		return pipeline.ReasonNotAccess
	}
	if r.Time == 0 {
		if len(l.date) != len("2026-03-29") || len(l.clock) != len("00:26:24") {
			return pipeline.ReasonBadTime
		}
		copy(l.stamp[:], l.date)
		l.stamp[10] = 'T'
		copy(l.stamp[11:], l.clock)
		t, ok := f.clock.iso.parse(l.stamp[:])
		if !ok {
			return pipeline.ReasonBadTime
		}
		r.Time, r.Resolution = t, 1e9
	}
	if l.stem != nil && !setTarget(r, l.stem) {
		r.Malformed, r.Method, r.Path, r.Query = true, nil, nil, nil
	}
	if l.host == nil {
		l.host = l.distribution
	}
	if l.host != nil {
		r.Host = hostOf(l.host)
	}
	setTimes(r)
	f.judge(r)
	return ""
}

// judge reads the result types: what was asked of the cache, what became of it, and why.
func (f *cloudFrontFields) judge(r *pipeline.Record) {
	l := &f.line
	r.Edge = true
	switch result := borrow(l.result); {
	case result == "Hit" || result == "RefreshHit" || result == "Miss" || result == "OriginShieldHit":
		r.Cache = cloudFrontCache(l.result)
	case l.response != nil:
		r.Cache = cloudFrontCache(l.response)
	}
	switch {
	case r.Cache == pipeline.CacheHit, string(l.result) == "Redirect", string(l.result) == "LimitExceeded":
		r.Reached = pipeline.No
	case r.Cache != pipeline.CacheUnsaid:
		r.Reached = pipeline.Yes
		r.UpstreamTime = l.firstByte // the edge's own share of it is a few ms
	}
	if l.originFirst >= 0 {
		r.Reached, r.UpstreamTime = pipeline.Yes, l.originFirst
	}
	r.Limited = r.Status == 429 || string(l.result) == "LimitExceeded" || string(l.detailed) == "LimitExceeded"
	r.Streaming = streamed(r.Status, l.contentType)
	r.Abandoned = cloudFrontAbandoned(r.Status, l)
}

func cloudFrontCache(v []byte) pipeline.CacheStatus {
	switch string(v) {
	case "Hit", "OriginShieldHit":
		return pipeline.CacheHit
	case "RefreshHit":
		return pipeline.CacheRefreshHit
	case "Miss":
		return pipeline.CacheMiss
	}
	return pipeline.CacheUnsaid
}

// cloudFrontAbandoned: the viewer left before the response (000), or in the middle of it: the result is an
// error, the response was none.
func cloudFrontAbandoned(status uint16, l *cloudFrontLine) pipeline.Tri {
	switch string(l.detailed) {
	case "ClientCommError", "ClientHungUpRequest":
		return pipeline.Yes
	}
	switch {
	case status == 0:
		return pipeline.Yes
	case string(l.result) == "Error" && l.response != nil && string(l.response) != "Error" && status < 400:
		return pipeline.Yes
	}
	return pipeline.No
}

package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newALB reads the access log of an AWS Application Load Balancer (34 fields and counting; unknown ones at
// the end are passed over, as AWS asks) and of the Classic one, which has no type in front.
func newALB(cfg Config) (pipeline.Format, error) {
	f := &alb{}
	f.clock.zone, f.created.zone = cfg.Zone, cfg.Zone
	return f, nil
}

type alb struct {
	clock   isoClock
	created isoClock // request_creation_time: seconds earlier, so it has its own cache
	mem     arena
}

// albLine is one line being read.
type albLine struct{ words }

// quoted takes a quoted field without its quotes; an unquoted one is taken as it is.
func (l *albLine) quoted() []byte {
	if l.pos >= len(l.line) || l.line[l.pos] != '"' {
		return l.next()
	}
	end := closingQuote(l.line, l.pos+1)
	if end < 0 {
		l.cut, l.pos = true, len(l.line)
		return nil
	}
	v := l.line[l.pos+1 : end]
	if l.pos = end + 1; l.pos < len(l.line) && l.line[l.pos] == ' ' {
		l.pos++
	}
	return v
}

// albTimers are the three phases, ns; Unknown for -1.
type albTimers struct{ request, target, response int64 }

func (t albTimers) sum() int64 {
	if t.request < 0 || t.target < 0 || t.response < 0 {
		return pipeline.Unknown
	}
	return t.request + t.target + t.response
}

// Parse reads the fields from left to right.
func (f *alb) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	l := albLine{words{line: line}}
	if reason := f.read(&l, &item.Record); reason != "" {
		fail(item, reason, l.pos+skip)
		return
	}
	item.Kind = pipeline.IsRecord
}

func (f *alb) read(l *albLine, r *pipeline.Record) pipeline.Reason {
	var kind []byte
	classic := len(l.line) > isoLen && l.line[4] == '-' && l.line[10] == 'T'
	if !classic {
		kind = l.next()
	}
	at := l.pos
	t, ok := f.clock.parse(l.next())
	if !ok {
		cut := l.pos >= len(l.line) && len(l.line)-at < len("2026-03-29T00:59:59.186641Z") && isALBType(kind)
		l.pos = 0
		if cut {
			return pipeline.ReasonTruncated
		}
		return pipeline.ReasonNotAccess
	}
	r.Time, r.Resolution = t, 1e3
	l.next() // the balancer
	r.Client, r.ClientPort = addrPort(l.next())
	target := l.next()
	timers, ok := f.timers(l)
	if !ok {
		return l.reason()
	}
	status, targetStatus := l.next(), l.next()
	received, sent := l.next(), l.next()
	request := l.quoted()
	var agent []byte
	if !classic || l.pos < len(l.line) { // the first Classic layout ended here
		agent = l.quoted()
		l.next() // ssl_cipher
	}
	if l.cut {
		return pipeline.ReasonTruncated
	}
	if !setStatus(r, status) || !albNumber(received) || !albNumber(sent) {
		return pipeline.ReasonMalformed
	}
	if n, ok := uintOf(sent); ok {
		r.Bytes = n
	}
	setURLRequest(r, f.mem.unescape(request))
	r.UserAgent = text(f.mem.unescape(agent))
	return f.rest(l, r, albTail{kind: kind, target: target, targetStatus: targetStatus, timers: timers, classic: classic})
}

func isALBType(kind []byte) bool {
	switch string(kind) {
	case "http", "https", "h2", "h3", "grpc", "grpcs", "ws", "wss":
		return true
	}
	return false
}

// reason tells whether a field was wrong or missing.
func (l *albLine) reason() pipeline.Reason {
	if l.cut || l.pos >= len(l.line) {
		return pipeline.ReasonTruncated
	}
	return pipeline.ReasonNotAccess
}

// timers reads the three phases.
func (f *alb) timers(l *albLine) (t albTimers, ok bool) {
	for _, d := range [3]*int64{&t.request, &t.target, &t.response} {
		w := l.next()
		*d = pipeline.Unknown
		if len(w) > 0 && w[0] == '-' {
			continue
		}
		if *d, ok = span(w); !ok {
			return t, false
		}
	}
	return t, true
}

func albNumber(w []byte) bool {
	_, ok := uintOf(w)
	return ok || absent(w) || w[0] == '-'
}

// setStatus reads a status; "-" and 000 are none.
func setStatus(r *pipeline.Record, w []byte) bool {
	if absent(w) {
		return true
	}
	n, ok := uintOf(w)
	if !ok || n > 999 {
		return false
	}
	if n >= 100 {
		r.Status = uint16(n)
	}
	return true
}

// setURLRequest reads METHOD scheme://host:port/path HTTP/x. A malformed request stands as
// "- http://balancer:80- -", which still tells the host.
func setURLRequest(r *pipeline.Record, req []byte) {
	if len(req) > 2 && req[0] == '-' && req[1] == ' ' {
		r.Malformed = true
		if i := bytes.Index(req, schemeEnd); i > 0 {
			authority := req[i+3:]
			if url := gluedURL(authority); url != nil {
				authority = url
			}
			if end := bytes.IndexAny(authority, "/? "); end >= 0 {
				authority = authority[:end]
			}
			authority = bytes.TrimSuffix(authority, []byte("-"))
			r.Host = hostOf(authority)
		}
		return
	}
	setRequest(r, req)
}

// albTail is what the rest of the line is judged with.
type albTail struct {
	kind, target, targetStatus []byte
	timers                     albTimers
	classic                    bool
	targetStatuses             []byte // of all the targets that were tried
}

// albStatusList is the place of target_status_code_list behind request_creation_time: after actions_executed,
// redirect_url, error_reason and target:port_list.
const albStatusList = 4

// rest reads what follows the cipher and sets what depends on it.
func (f *alb) rest(l *albLine, r *pipeline.Record, t albTail) pipeline.Reason {
	var created int64
	if !t.classic {
		l.next()               // ssl_protocol
		l.next()               // target_group_arn
		if l.quoted(); l.cut { // trace_id: the last field of the oldest layout
			return pipeline.ReasonTruncated
		}
		domain := l.quoted()
		l.quoted() // chosen_cert_arn
		l.next()   // matched_rule_priority
		created, _ = f.created.parse(l.next())
		l.cut = false // older layouts end before these
		if r.Host == nil && !absent(domain) {
			r.Host = hostOf(domain)
		}
		for i := 0; l.pos < len(l.line); i++ {
			if v := l.quoted(); i == albStatusList {
				t.targetStatuses = v
			}
		}
		if l.cut {
			return pipeline.ReasonTruncated
		}
	}
	r.RequestTime = t.timers.sum()
	if r.RequestTime < 0 && created > 0 && created <= r.Time {
		r.RequestTime = r.Time - created
	}
	r.End, r.Start = r.Time, r.Time-max(r.RequestTime, 0)
	if created > 0 && created <= r.Time {
		r.Start = created
	}
	f.judge(r, t)
	return ""
}

// judge sets what follows from target, status and type.
func (f *alb) judge(r *pipeline.Record, t albTail) {
	if t.timers.target >= 0 {
		r.UpstreamTime = t.timers.target
	}
	list := t.targetStatuses
	if bytes.IndexByte(list, ' ') < 0 {
		list = t.targetStatus
	}
	for len(list) > 0 && len(r.UpstreamStatuses) < maxTries {
		var status []byte
		status, list, _ = bytes.Cut(list, []byte(" "))
		if n, ok := uintOf(status); ok && n >= 100 && n <= 999 {
			r.UpstreamStatuses = append(r.UpstreamStatuses, uint16(n))
		}
	}
	switch {
	case !absent(t.target):
		r.Reached, r.Upstreams = pipeline.Yes, t.target
	case t.timers.target >= 0 || len(r.UpstreamStatuses) > 0: // a Lambda function has no address
		r.Reached = pipeline.Yes
	default:
		r.Reached = pipeline.No
	}
	r.Limited = r.Status == 429
	switch string(t.kind) {
	case "ws", "wss", "grpc", "grpcs":
		r.Streaming = true
	}
	r.Streaming = r.Streaming || r.Status == 101
	switch {
	case r.Status == 460:
		r.Abandoned = pipeline.Yes
	case r.Status == 0 || r.Status == 400 && !r.Malformed && absent(t.targetStatus): // perhaps left while sending a body
		r.Abandoned = pipeline.Unsaid
	default:
		r.Abandoned = pipeline.No
	}
}

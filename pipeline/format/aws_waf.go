package format

import "github.com/squall-sre/squall/pipeline"

// newAWSWAF reads the log of AWS WAF, which tells of each request what the web ACL did with it. What it blocked
// was answered at the edge: nothing behind it was reached. Of what it let pass the log has no status; the log of
// the balancer or the CDN behind it has. The time is the request's start. It is delivered minutes late.
func newAWSWAF(Config) (pipeline.Format, error) { return &jsonRecords{object: &wafObject{}}, nil }

type wafObject struct{ line wafLine }

type wafLine struct {
	action, ruleType      []byte
	uri, host             []byte
	sent, captcha, puzzle uint16 // response codes: of a custom response, of CAPTCHA, of Challenge
	hasACL, hasRequest    bool
	hosted                bool // host is a header's
}

func (o *wafObject) read(s *jsonScanner, r *pipeline.Record) pipeline.Reason {
	o.line = wafLine{}
	l := &o.line
	var wrong pipeline.Reason
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return s.bad
		}
		switch string(key) {
		case "timestamp":
			t, step, ok := epoch(val)
			if !ok || !numeric(kind, val) {
				wrong = pipeline.ReasonBadTime
			}
			r.Time, r.Resolution = t, step
		case "action":
			l.action = someOf(kind, val)
		case "webaclId", "webAclId":
			l.hasACL = true
		case "terminatingRuleType":
			l.ruleType = someOf(kind, val)
		case "responseCodeSent":
			l.sent, _ = statusOf(kind, val)
		case "captchaResponse":
			l.captcha = responseCode(s, kind)
			continue
		case "challengeResponse":
			l.puzzle = responseCode(s, kind)
			continue
		case "httpRequest":
			if kind == jsonObject {
				o.request(s, r)
				continue
			}
		}
		s.pass(kind)
	}
	switch {
	case !l.hasRequest || l.action == nil || !l.hasACL:
		return pipeline.ReasonNotAccess
	case wrong != "":
		return wrong
	case r.Time == 0:
		return pipeline.ReasonBadTime
	}
	o.finish(r)
	return ""
}

// responseCode reads {"responseCode":405,…}; 0 when the action let the request pass.
func responseCode(s *jsonScanner, kind jsonKind) (code uint16) {
	if kind != jsonObject {
		s.pass(kind)
		return 0
	}
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return 0
		}
		if string(key) == "responseCode" {
			code, _ = statusOf(kind, val)
		}
		s.pass(kind)
	}
	return code
}

func (o *wafObject) request(s *jsonScanner, r *pipeline.Record) {
	l := &o.line
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		switch string(key) {
		case "clientIp":
			r.Client = addrOf(val)
		case "uri":
			l.uri, l.hasRequest = someOf(kind, val), true
		case "args":
			r.Query = someOf(kind, val)
		case "httpVersion":
			r.Proto = someOf(kind, val)
		case "httpMethod":
			r.Method, l.hasRequest = someOf(kind, val), true
		case "host":
			if l.host == nil {
				l.host = someOf(kind, val)
			}
		case "headers":
			if kind == jsonArray {
				o.headers(s, r)
				continue
			}
		}
		if kind == jsonNone {
			return
		}
		s.pass(kind)
	}
}

// headers reads [{"name":"Host","value":"shop.example"},…]; names are as the client wrote them.
func (o *wafObject) headers(s *jsonScanner, r *pipeline.Record) {
	for more := s.open('['); more; more = s.next('[') {
		kind, _ := s.scalar()
		if kind != jsonObject {
			s.pass(kind)
			continue
		}
		var name, value []byte
		for more := s.open('{'); more; more = s.next('{') {
			key, kind, val := s.member()
			if kind == jsonNone {
				return
			}
			s.pass(kind)
			switch string(key) {
			case "name":
				name = textOf(kind, val)
			case "value":
				value = textOf(kind, val)
			}
		}
		switch {
		case value == nil:
		case equalFold(name, "host"):
			if !o.line.hosted { // of several the first counts
				o.line.host, o.line.hosted = value, true
			}
		case equalFold(name, "user-agent"):
			r.UserAgent = value
		case equalFold(name, "referer"):
			r.Referer = value
		case equalFold(name, "x-forwarded-for"):
			r.Forwarded = value
		}
	}
}

// equalFold compares with a lower-case ASCII name.
func equalFold(s []byte, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i, c := range s {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// finish sets what the action means. Without a code in the log a block answers 403, CAPTCHA 405 and Challenge 202
// (AWS WAF developer guide, "Log fields", and its pages on CAPTCHA and Challenge).
func (o *wafObject) finish(r *pipeline.Record) {
	l := &o.line
	query := r.Query
	if l.uri == nil || !setTarget(r, l.uri) {
		r.Malformed, r.Method, r.Path, r.Query = true, nil, nil, nil
	} else if r.Query == nil {
		r.Query = query
	}
	if l.host != nil {
		r.Host = hostOf(l.host)
	}
	r.Start, r.End, r.Edge = r.Time, r.Time, true
	r.Status = l.sent
	var status uint16
	switch string(l.action) {
	case "BLOCK":
		status = 403
	case "CAPTCHA":
		status = max(l.captcha, 405)
	case "CHALLENGE":
		status = max(l.puzzle, 202)
	default: // ALLOW
		return
	}
	if r.Status == 0 {
		r.Status = status
	}
	r.Reached, r.Abandoned = pipeline.No, pipeline.No
	r.Limited = r.Status == 429 || string(l.ruleType) == "RATE_BASED"
}

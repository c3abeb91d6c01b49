package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// isMethod tells whether s is a method: letters, then letters, digits, - and _ (WebDAV and invented ones).
func isMethod(s []byte) bool {
	if len(s) == 0 || len(s) > 32 {
		return false
	}
	if string(s) == "GET" || string(s) == "POST" {
		return true
	}
	for i, c := range s {
		letter := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c != '-' && c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return true
}

func isProto(s []byte) bool {
	if len(s) < 6 || string(s[:5]) != "HTTP/" {
		return false
	}
	if string(s[5:]) == "1.1" || string(s[5:]) == "2.0" {
		return true
	}
	for _, c := range s[5:] {
		if c != '.' && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// setRequest takes a request line apart: METHOD target [HTTP/x]. The target may hold spaces, so the cuts
// are the first and the last space. What is no request (TLS on a plain port, a PROXY header, one word)
// makes the record Malformed, with none of the parts set.
func setRequest(r *pipeline.Record, req []byte) {
	if !splitRequest(r, req) {
		r.Malformed = true
		r.Method, r.Path, r.Query, r.Proto = nil, nil, nil, nil
	}
}

func splitRequest(r *pipeline.Record, req []byte) bool {
	space := find(req, 0, ' ')
	if space <= 0 || !isMethod(req[:space]) {
		return false
	}
	r.Method = req[:space]
	target := req[space+1:]
	if n := len(target); n > 8 && target[n-9] == ' ' && isProto(target[n-8:]) {
		r.Proto, target = target[n-8:], target[:n-9]
	} else if i := bytes.LastIndexByte(target, ' '); i >= 0 && isProto(target[i+1:]) {
		r.Proto, target = target[i+1:], target[:i]
	}
	target = bytes.TrimRight(target, " ")
	return setTarget(r, target)
}

var schemeEnd = []byte("://")

// setTarget sets path, query and, from the absolute form, the host. It refuses what is no request target.
func setTarget(r *pipeline.Record, target []byte) bool {
	switch {
	case len(target) == 0:
		return false
	case target[0] == '/':
		setPath(r, target)
		return true
	case len(target) == 1 && target[0] == '*':
		r.Path = target
		return true
	case string(r.Method) == "CONNECT":
		r.Host = hostOf(target)
		return r.Host != nil
	}
	i := bytes.Index(target, schemeEnd)
	if i <= 0 || i > 16 || !isMethod(target[:i]) {
		return false
	}
	return setURL(r, target[i+3:])
}

// setURL takes what follows scheme:// apart.
func setURL(r *pipeline.Record, rest []byte) bool {
	if url := gluedURL(rest); url != nil {
		rest = url
	}
	end := 0
	for end < len(rest) && rest[end] != '/' && rest[end] != '?' {
		end++
	}
	if end == len(rest) && end > 1 && rest[end-1] == '*' { // OPTIONS https://www.example.com:443*
		r.Host, r.Path = hostOf(rest[:end-1]), rest[end-1:]
		return r.Host != nil
	}
	r.Host = hostOf(rest[:end])
	switch rest = rest[end:]; {
	case len(rest) == 0:
		r.Path = root
	case rest[0] == '?':
		r.Path, r.Query = root, rest[1:]
	default:
		setPath(r, rest)
	}
	return r.Host != nil
}

// gluedURL finds a second URL right behind the first one's port: so does an ALB print what came in absolute form
// (https://www.example.com:443https://www.example.com/a).
func gluedURL(rest []byte) []byte {
	i := bytes.IndexByte(rest, ':') + 1
	for i > 0 && i < len(rest) && rest[i] >= '0' && rest[i] <= '9' {
		i++
	}
	if i == 0 || !bytes.HasPrefix(rest[i:], []byte("http")) {
		return nil
	}
	url := bytes.TrimPrefix(rest[i+len("http"):], []byte("s"))
	if url, ok := bytes.CutPrefix(url, schemeEnd); ok && len(url) > 0 && url[0] != '/' {
		return url
	}
	return nil
}

var root = []byte("/")

// setPath cuts a path and its query at the first question mark.
func setPath(r *pipeline.Record, target []byte) {
	if i := bytes.IndexByte(target, '?'); i >= 0 {
		r.Path, r.Query = target[:i:i], target[i+1:]
		return
	}
	r.Path = target
}

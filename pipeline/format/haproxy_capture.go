package format

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// A capture is what squall takes from one captured header.
type capture uint8

const (
	captureSkip capture = iota
	captureHost
	captureAgent
	captureReferer
	captureForwarded
	captureContentType
)

var captureNames = map[string]capture{
	"host": captureHost, "user-agent": captureAgent, "referer": captureReferer,
	"x-forwarded-for": captureForwarded, "content-type": captureContentType,
}

// haproxyCaptures tells what stands in the braces: the request's headers in the first group, the response's in
// the second. Lines have one group alone where only one of the two is configured.
type haproxyCaptures struct {
	groups [][]capture // nil: unknown
}

// readCaptures reads "{Host|User-Agent} {Content-Type}".
func readCaptures(s string) (c haproxyCaptures, err error) {
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		group, rest, ok := strings.Cut(strings.TrimPrefix(s, "{"), "}")
		if s[0] != '{' || !ok || len(c.groups) == 2 {
			return c, fmt.Errorf("log_format %.40q: for HAProxy it names the captured headers, as {Host|User-Agent} {Content-Type}", s)
		}
		slots := []capture{}
		if group != "" {
			for name := range strings.SplitSeq(group, "|") {
				slots = append(slots, captureNames[strings.ToLower(strings.TrimSpace(name))])
			}
		}
		c.groups = append(c.groups, slots)
		s = rest
	}
	return c, nil
}

// set takes the captures of one group.
func (c *haproxyCaptures) set(mem *arena, r *pipeline.Record, text []byte, group int) {
	for i, more := 0, true; more; i++ {
		var val []byte
		val, text, more = bytes.Cut(text, []byte("|"))
		if len(val) == 0 {
			continue
		}
		setCapture(mem, r, c.kind(val, group, i), val)
	}
}

func setCapture(mem *arena, r *pipeline.Record, kind capture, val []byte) {
	switch kind {
	case captureHost:
		r.Host = hostOf(mem.unhash(val))
	case captureAgent:
		r.UserAgent = mem.unhash(val)
	case captureReferer:
		r.Referer = mem.unhash(val)
	case captureForwarded:
		r.Forwarded = mem.unhash(val)
	case captureContentType:
		r.Streaming = r.Streaming || bytes.HasPrefix(val, eventStream) || bytes.HasPrefix(val, grpcType)
	}
}

// kind tells what the i-th capture of a group is.
func (c *haproxyCaptures) kind(val []byte, group, i int) capture {
	switch {
	case c.groups != nil:
		if group < len(c.groups) && i < len(c.groups[group]) {
			return c.groups[group][i]
		}
	case group > 0:
	case i == 0 && isHostName(val):
		return captureHost
	case bytes.HasPrefix(val, []byte("Mozilla/")):
		return captureAgent
	}
	return captureSkip
}

// isHostName tells whether s is a domain name of at least two labels, with or without a port; an address is none.
func isHostName(s []byte) bool {
	if i := bytes.IndexByte(s, ':'); i >= 0 {
		if _, ok := uintOf(s[i+1:]); !ok {
			return false
		}
		s = s[:i]
	}
	if len(s) < 3 || len(s) > 253 || s[0] == '.' || s[0] == '-' {
		return false
	}
	dot := bytes.LastIndexByte(s, '.')
	if dot <= 0 || dot == len(s)-1 {
		return false
	}
	letter := false
	for i, c := range s {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			letter = letter || i > dot
		case c >= '0' && c <= '9' || c == '-' || c == '_':
		case c == '.' && s[i-1] != '.':
		default:
			return false
		}
	}
	return letter
}

package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newTraefikCLF reads Traefik's access log in its common format, and genericCLF, which stops behind the agent:
//
//	client - user [start] "METHOD path PROTOCOL" status size "referer" "agent" count "router" "server URL" 12ms
//
// The client is X-Forwarded-For where the request had one. Quotes are written \", backslashes as they are.
func newTraefikCLF(Config) (pipeline.Format, error) { return &traefikCLF{}, nil }

type traefikCLF struct {
	clock clfClock
	mem   arena
}

// Parse finds the date and reads from there to the right, then the client before it.
func (f *traefikCLF) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	pos, reason := f.read(line, &item.Record)
	if reason != "" {
		fail(item, reason, pos+skip)
		return
	}
	item.Kind = pipeline.IsRecord
}

var (
	dateRequest = []byte(`] "`)
	beforeDate  = []byte(" [")
)

// clfDate finds [date] "; at is behind the opening bracket. -1: there is none.
func clfDate(line []byte) (at int) {
	for at = 0; ; {
		i := bytes.Index(line[at:], beforeDate)
		if i < 0 {
			return -1
		}
		at += i + len(beforeDate)
		if end := at + clfLen; end < len(line) && line[at+2] == '/' && bytes.HasPrefix(line[end:], dateRequest) {
			return at
		}
	}
}

func (f *traefikCLF) read(line []byte, r *pipeline.Record) (pos int, reason pipeline.Reason) {
	at := clfDate(line)
	if at < 0 {
		return 0, clfCut(line)
	}
	t, ok := f.clock.parse(line[at : at+clfLen])
	if !ok {
		return at, pipeline.ReasonBadTime
	}
	r.Time, r.Resolution = t, 1e9
	client, _, ok := bytes.Cut(line[:at-len(beforeDate)], []byte(" - "))
	if !ok || len(client) == 0 {
		return 0, pipeline.ReasonNotAccess
	}
	r.Claimed = true // the line does not tell whether it is the header
	if r.Client = lastHop(client); bytes.IndexByte(client, ',') >= 0 {
		r.Forwarded = client
	}
	w := words{line: line, pos: at + clfLen + len(dateRequest) - 1}
	req, ok := w.quoted()
	pos = w.pos
	if !ok {
		return pos, w.reason()
	}
	status, size := w.next(), w.next()
	if !setStatus(r, status) || len(status) == 0 {
		return pos, cutOr(line, w.pos, pipeline.ReasonMalformed)
	}
	if n, ok := uintOf(size); ok {
		r.Bytes = n
	} else if !absent(size) || len(size) == 0 {
		return pos, cutOr(line, w.pos, pipeline.ReasonMalformed)
	}
	setRequest(r, req)
	return f.rest(line, w.pos, r)
}

// clfCut tells whether a line without a date and a request is the beginning of one that has them.
func clfCut(line []byte) pipeline.Reason {
	client, rest, ok := bytes.Cut(line[:min(len(line), maxFront)], []byte(" - "))
	if !ok || !lastHop(client).IsValid() {
		return pipeline.ReasonNotAccess
	}
	if i := bytes.LastIndex(rest, beforeDate); i >= 0 && len(rest)-i > clfLen+len(beforeDate)+len(dateRequest) {
		return pipeline.ReasonBadTime
	}
	return pipeline.ReasonTruncated
}

// rest reads referer, agent and what Traefik adds. A backslash before a quote may be the value's own last byte, so
// the end is read from the right.
func (f *traefikCLF) rest(line []byte, pos int, r *pipeline.Record) (int, pipeline.Reason) {
	end := len(line)
	if line[end-1] != '"' {
		var ok bool
		if end, ok = f.tail(line, pos, r); !ok {
			return pos, traefikCut(line)
		}
	} else if routed(line, pos) {
		return len(line), pipeline.ReasonTruncated // cut behind the router or the server
	}
	r.Start, r.End = r.Time, r.Time+max(r.RequestTime, 0)
	both := line[pos:end]
	if len(both) == 1 {
		return pos, pipeline.ReasonTruncated
	}
	if len(both) < 2 || both[0] != '"' || both[len(both)-1] != '"' {
		return pos, pipeline.ReasonFields
	}
	quote := closingQuote(both, 1)
	if quote < 0 || !bytes.HasPrefix(both[quote:], betweenQuotes) {
		i := bytes.Index(both[1:], betweenQuotes)
		if i < 0 {
			return pos, pipeline.ReasonTruncated
		}
		quote = 1 + i
	}
	if quote+len(betweenQuotes) > len(both)-1 {
		return pos, pipeline.ReasonTruncated
	}
	agent := both[quote+len(betweenQuotes) : len(both)-1]
	if bytes.Contains(agent, betweenQuotes) { // more quoted values behind the agent: another program's format
		return pos, pipeline.ReasonFields
	}
	r.Referer = text(f.unquote(both[1:quote]))
	r.UserAgent = text(f.unquote(agent))
	switch r.Status {
	case 499:
		r.Abandoned = pipeline.Yes
	case 0:
		r.Abandoned = pipeline.Unsaid
	default:
		r.Abandoned = pipeline.No
	}
	r.Limited, r.Streaming = r.Status == 429, r.Status == 101
	return len(line), ""
}

// routed tells whether a line that ends in a quote has a count and a router behind the agent: the end of a cut
// line of the common format, not of genericCLF.
func routed(line []byte, pos int) bool {
	for range 2 { // referer and agent
		if pos >= len(line) || line[pos] != '"' {
			return false
		}
		end := closingQuote(line, pos+1)
		if end < 0 {
			return false
		}
		pos = end + 2
	}
	word, _ := token(line, pos)
	_, ok := uintOf(word)
	return ok
}

// tail reads, from the right: count "router" "URL" 12ms. end is behind the agent's quote.
func (f *traefikCLF) tail(line []byte, pos int, r *pipeline.Record) (end int, ok bool) {
	space := bytes.LastIndexByte(line, ' ')
	if space < pos || !bytes.HasSuffix(line, []byte("ms")) {
		return 0, false
	}
	if r.RequestTime, ok = millis(line[space+1 : len(line)-2]); !ok {
		return 0, false
	}
	rest := line[pos:space]
	if len(rest) < 2 || rest[len(rest)-1] != '"' {
		return 0, false
	}
	rest = rest[:len(rest)-1]
	i := bytes.LastIndex(rest, betweenQuotes)
	if i < 0 {
		return 0, false
	}
	server := rest[i+len(betweenQuotes):]
	rest = rest[:i]
	i = bytes.LastIndex(rest, []byte(` "`))
	if i < 0 {
		return 0, false
	}
	router := rest[i+2:]
	rest = rest[:i]
	i = bytes.LastIndexByte(rest, ' ')
	if i < 1 || !envoyNumber(rest[i+1:]) {
		return 0, false
	}
	if !absent(router) {
		r.Upstream = router
	}
	r.Reached = pipeline.No
	if !absent(server) {
		r.Reached, r.Upstreams = pipeline.Yes, server
	}
	return pos + i, true
}

// traefikCut tells why a line has no end: it was cut, or ends in what Traefik does not write.
func traefikCut(line []byte) pipeline.Reason {
	if bytes.HasSuffix(line, []byte("ms")) {
		return pipeline.ReasonFields
	}
	return pipeline.ReasonTruncated
}

// unquote undoes \", the only escape.
func (f *traefikCLF) unquote(s []byte) []byte {
	i := bytes.Index(s, []byte(`\"`))
	if i < 0 {
		return s
	}
	out := f.mem.take(len(s))
	for ; i >= 0; i = bytes.Index(s, []byte(`\"`)) {
		out = append(append(out, s[:i]...), '"')
		s = s[i+2:]
	}
	return append(out, s...)
}

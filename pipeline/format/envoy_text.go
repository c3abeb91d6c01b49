package format

import (
	"bytes"
	"net/netip"

	"github.com/squall-sre/squall/pipeline"
)

// newEnvoyText reads Envoy's default access log ("Default Format String" in its documentation).
func newEnvoyText(cfg Config) (pipeline.Format, error) { return makeEnvoyText(cfg, false), nil }

// newIstioText reads Istio's default: Envoy's with response details behind the flags and addresses at the end.
// The forms of Istio 1.6 to 1.8, with fewer details, are read too.
func newIstioText(cfg Config) (pipeline.Format, error) { return makeEnvoyText(cfg, true), nil }

func makeEnvoyText(cfg Config, istio bool) *envoyText {
	f := &envoyText{istio: istio}
	f.clock.zone = cfg.Zone
	return f
}

type envoyText struct {
	istio bool
	clock isoClock
}

// An envoyLine is a line taken apart. Nothing in it is escaped, not even quotes: the request, X-Forwarded-For and
// the agent are the client's own text. So the front is read from the left, the end from the right, and the
// numbers between them find each other.
type envoyLine struct {
	start, request, code, flags, details []byte
	sent, duration, service              []byte
	forwarded, agent, authority, server  []byte
	remote                               []byte // Istio: the client's address
	extended                             bool   // has Istio's fields
}

// Parse reads a line.
func (f *envoyText) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	var l envoyLine
	pos, reason := l.split(line)
	r := &item.Record
	if reason == "" && string(l.request) == "- - -" {
		item.Kind = pipeline.Ignored // a TCP connection
		return
	}
	if reason == "" {
		if l.extended != f.istio {
			reason = pipeline.ReasonFields
		} else if t, ok := f.clock.parse(l.start); ok {
			r.Time, r.Resolution = t, isoResolution(l.start)
			pos, reason = 0, l.set(r)
		} else {
			pos, reason = 0, pipeline.ReasonBadTime
		}
	}
	if reason != "" {
		fail(item, reason, pos+skip)
		return
	}
	item.Kind = pipeline.IsRecord
}

// isoResolution gives the step in ns of an ISO time's fraction.
func isoResolution(s []byte) int64 {
	if len(s) > isoLen && (s[isoLen] == '.' || s[isoLen] == ',') {
		return fractionStep(s[isoLen+1:])
	}
	return 1e9
}

// maxEnvoyQuotes is among how many quotes the request's end is looked for.
const maxEnvoyQuotes = 64

// split takes the line apart. pos is how far it fits.
func (l *envoyLine) split(line []byte) (pos int, reason pipeline.Reason) {
	if line[0] != '[' || len(line) > isoLen && (line[5] != '-' || line[8] != '-') {
		return 0, pipeline.ReasonNotAccess
	}
	end := bytes.IndexByte(line[:min(len(line), 64)], ']')
	if end < 0 {
		return 0, envoyCut(len(line) > isoLen || len(line) > 5 && num(line[1:5]) > 0)
	}
	l.start = line[1:end]
	pos = end + 1
	if !bytes.HasPrefix(line[pos:], []byte(` "`)) {
		if pos < len(line) && line[pos] == '[' { // Envoy's own log: [time][thread][level]…
			return 0, pipeline.ReasonNotAccess
		}
		return pos, envoyCut(len(line) < pos+2)
	}
	pos += 2
	numbers := pos
	for range maxEnvoyQuotes {
		i := bytes.Index(line[numbers:], []byte(`" `))
		if i < 0 {
			break
		}
		l.request = line[pos : numbers+i]
		numbers += i + 2
		if after, ok := l.numbers(line, numbers); ok {
			return l.texts(line, after)
		}
	}
	return pos, envoyCut(line[len(line)-1] != '"')
}

// envoyCut gives the reason of a line that ended too early, or else.
func envoyCut(cut bool) pipeline.Reason {
	if cut {
		return pipeline.ReasonTruncated
	}
	return pipeline.ReasonFields
}

// maxEnvoyDetails is how many of Istio's fields stand between the flags and the sizes.
const maxEnvoyDetails = 3

// numbers reads: code flags [details…] received sent duration service. It stops behind the quote that opens
// X-Forwarded-For.
func (l *envoyLine) numbers(line []byte, pos int) (int, bool) {
	w := words{line: line, pos: pos}
	l.code, l.flags = w.next(), w.next()
	if n, ok := uintOf(l.code); !ok || n > 999 || len(l.flags) == 0 || w.cut {
		return pos, false
	}
	l.extended, l.details = false, nil
	for i := 0; ; i++ {
		at := w
		received := at.next()
		l.sent, l.duration, l.service = at.next(), at.next(), at.next()
		if envoyNumber(received) && envoyNumber(l.sent) && envoyNumber(l.duration) && envoyNumber(l.service) &&
			at.pos < len(line) && line[at.pos] == '"' {
			return at.pos + 1, true
		}
		if i == maxEnvoyDetails || w.pos >= len(line) {
			return pos, false
		}
		l.extended = true
		if line[w.pos] == '"' {
			if _, ok := w.quoted(); !ok {
				return pos, false
			}
		} else if d := w.next(); i == 0 {
			l.details = d
		}
	}
}

func envoyNumber(s []byte) bool {
	_, ok := uintOf(s)
	return ok || len(s) == 1 && s[0] == '-'
}

var betweenQuotes = []byte(`" "`)

// texts reads: XFF" "agent" "id" "authority" "upstream"[ cluster local local remote sni route]. The last three are
// found from the right, X-Forwarded-For from the left; the agent is what is left.
func (l *envoyLine) texts(line []byte, pos int) (int, pipeline.Reason) {
	last := bytes.LastIndexByte(line, '"')
	if last < pos {
		return pos, pipeline.ReasonTruncated
	}
	if tail := line[last+1:]; len(tail) > 0 {
		w := words{line: tail, pos: 1}
		w.next() // the cluster
		w.next() // two local addresses
		w.next()
		l.remote = w.next()
		w.next() // SNI and route
		w.next()
		if tail[0] != ' ' || w.cut {
			return last, envoyCut(w.cut)
		}
		l.extended = true
	}
	rest := line[pos:last]
	for _, field := range [3]*[]byte{&l.server, &l.authority, nil} {
		i := bytes.LastIndex(rest, betweenQuotes)
		if i < 0 {
			return pos, pipeline.ReasonTruncated
		}
		if field != nil {
			*field = rest[i+len(betweenQuotes):]
		}
		rest = rest[:i]
	}
	i := bytes.Index(rest, betweenQuotes)
	if i < 0 {
		return pos, pipeline.ReasonTruncated
	}
	l.forwarded, l.agent = rest[:i], rest[i+len(betweenQuotes):]
	return len(line), ""
}

// set fills the record. The line's time is the request's start.
func (l *envoyLine) set(r *pipeline.Record) pipeline.Reason {
	if !setStatus(r, l.code) {
		return pipeline.ReasonMalformed
	}
	if n, ok := uintOf(l.sent); ok {
		r.Bytes = n
	}
	var ok bool
	if r.RequestTime, ok = millis(l.duration); !ok {
		return pipeline.ReasonMalformed
	}
	if r.UpstreamTime, ok = millis(l.service); !ok {
		return pipeline.ReasonMalformed
	}
	r.Start, r.End = r.Time, r.Time+max(r.RequestTime, 0)
	setEnvoyRequest(r, l.request)
	if !absent(l.authority) {
		r.Host = hostOf(l.authority)
	}
	r.UserAgent = text(l.agent)
	setEnvoyClient(r, l.forwarded, l.remote)
	r.Reached = pipeline.No
	if !absent(l.server) {
		r.Reached, r.Upstreams = pipeline.Yes, bytes.TrimPrefix(l.server, []byte("tcp://"))
		if r.UpstreamTime >= 0 && r.Status != 0 {
			r.UpstreamStatuses = append(r.UpstreamStatuses, r.Status)
		}
	}
	r.Streaming = r.Status == 101
	r.Limited = r.Status == 429 || hasFlag(l.flags, "RL") || hasFlag(l.flags, "RateLimited")
	r.Abandoned = envoyAbandoned(r.Status, l.flags, l.details)
	return ""
}

// millis reads whole milliseconds into ns; "-" is Unknown.
func millis(s []byte) (int64, bool) {
	if len(s) == 1 && s[0] == '-' {
		return pipeline.Unknown, true
	}
	n, ok := uintOf(s)
	return n * 1e6, ok && n <= maxSpan/1e6
}

// setEnvoyRequest reads METHOD PATH PROTOCOL, each of which may be "-".
func setEnvoyRequest(r *pipeline.Record, req []byte) {
	if i := bytes.LastIndexByte(req, ' '); i > 0 && absent(req[i+1:]) {
		req = req[:i]
	}
	setRequest(r, req)
	if i := bytes.LastIndexByte(req, ' '); r.Malformed && i >= 0 && isProto(req[i+1:]) {
		r.Proto = req[i+1:]
	}
}

// setEnvoyClient takes the peer where Istio logs it, which without a port is what Envoy took from X-Forwarded-For; else the last of X-Forwarded-For, which is the peer if Envoy
// itself put it there (use_remote_address), and otherwise what anybody sent.
func setEnvoyClient(r *pipeline.Record, forwarded, remote []byte) {
	if !absent(forwarded) {
		r.Forwarded = forwarded
	}
	if !absent(remote) {
		r.Client, r.ClientPort = addrPort(remote)
		r.Claimed = r.ClientPort == 0
		return
	}
	r.Client, r.Claimed = lastHop(forwarded), true
}

// lastHop gives the last address of an X-Forwarded-For.
func lastHop(list []byte) netip.Addr {
	return addrOf(bytes.TrimSpace(list[bytes.LastIndexByte(list, ',')+1:]))
}

// hasFlag tells whether one of the flags between commas is the given one.
func hasFlag(flags []byte, flag string) bool {
	for more := true; more; {
		var f []byte
		if f, flags, more = bytes.Cut(flags, []byte(",")); string(f) == flag {
			return true
		}
	}
	return false
}

var remoteDisconnect = []byte("downstream_remote_disconnect")

// envoyAbandoned reads whether the client gave up: the flag DC, the detail, or no status without a flag that gives
// another reason (Envoy's "Access logging" says of code 0 that the client generally disconnected; DC is not
// always set). 499 is what some meshes make of it.
func envoyAbandoned(status uint16, flags, details []byte) pipeline.Tri {
	switch {
	case status == 499, hasFlag(flags, "DC"), hasFlag(flags, "DownstreamConnectionTermination"):
		return pipeline.Yes
	case bytes.HasPrefix(details, remoteDisconnect):
		return pipeline.Yes
	case status != 0, hasFlag(flags, "DPE"), hasFlag(flags, "DownstreamProtocolError"):
		return pipeline.No
	case absent(flags):
		return pipeline.Yes
	}
	return pipeline.Unsaid
}

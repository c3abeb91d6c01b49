package format

import (
	"bytes"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// The forms of HAProxy's access lines, as a set (configuration manual, 8.2).
const (
	haproxyHTTP  uint8 = 1 << iota // option httplog
	haproxyHTTPS                   // option httpslog, or another log-format with more behind the request
	haproxyCLF                     // option httplog clf
	haproxyTCP                     // option tcplog: connections, no requests
)

// newHAProxy makes the family: it finds the form line by line, and passes over what HAProxy says besides (TCP
// connections, failed handshakes, servers going up and down).
//
// A Config's LogFormat names the captured headers, since the lines do not: {Host|User-Agent} {Content-Type}.
// Without it a first capture that looks like a host, and one that looks like a browser's agent, are taken as such.
func newHAProxy(cfg Config) (pipeline.Format, error) {
	return makeHAProxy(cfg, haproxyHTTP|haproxyHTTPS|haproxyCLF, true)
}

// newHAProxyHTTP reads option httplog. More fields behind the request are passed over.
func newHAProxyHTTP(cfg Config) (pipeline.Format, error) {
	return makeHAProxy(cfg, haproxyHTTP|haproxyHTTPS, false)
}

// newHAProxyHTTPS reads option httpslog.
func newHAProxyHTTPS(cfg Config) (pipeline.Format, error) {
	return makeHAProxy(cfg, haproxyHTTPS, false)
}

// newHAProxyCLF reads option httplog clf.
func newHAProxyCLF(cfg Config) (pipeline.Format, error) { return makeHAProxy(cfg, haproxyCLF, false) }

// newHAProxyTCP is for logs of TCP frontends: their lines tell of no request and are refused as such, those of
// HTTP frontends beside them are read.
func newHAProxyTCP(cfg Config) (pipeline.Format, error) {
	return makeHAProxy(cfg, haproxyHTTP|haproxyHTTPS|haproxyCLF, false)
}

func makeHAProxy(cfg Config, forms uint8, others bool) (pipeline.Format, error) {
	captures, err := readCaptures(cfg.LogFormat)
	if err != nil {
		return nil, err
	}
	return &haproxy{forms: forms, others: others, captures: captures, clock: haproxyClock{zone: cfg.Zone, wall: wallClock{near: cfg.Near}}}, nil
}

type haproxy struct {
	forms    uint8
	others   bool // what is no request is passed over; else it fails
	captures haproxyCaptures
	clock    haproxyClock
	clf      clfClock
	mem      arena
}

const haproxyDateLen = len("06/Mar/2026:12:14:14")

// A haproxyClock reads dates without a zone: they are local to the balancer.
type haproxyClock struct {
	zone *time.Location
	wall wallClock
	raw  [haproxyDateLen]byte
	last int64
}

func (c *haproxyClock) parse(s []byte) (int64, bool) {
	if len(s) < haproxyDateLen+2 || s[haproxyDateLen] != '.' {
		return 0, false
	}
	frac, n := fraction(s[haproxyDateLen+1:])
	if n != len(s)-haproxyDateLen-1 {
		return 0, false
	}
	if *(*[haproxyDateLen]byte)(s) == c.raw {
		return c.last + frac, true
	}
	d, mo, y := num(s[:2]), monthOf(s[3:6]), num(s[7:11])
	h, mi, sec := num(s[12:14]), num(s[15:17]), num(s[18:20])
	if !validDate(y, mo, d, h, mi, sec) {
		return 0, false
	}
	c.last = c.wall.unix(c.zone, y, mo, d, h, mi, sec) * 1e9
	c.raw = [haproxyDateLen]byte(s)
	return c.last + frac, true
}

// maxFront bounds what may stand in front of the date: a syslog header and the client, in bytes.
const maxFront = 512

// findDate gives the index of the bracket before the date; -1 when there is none. clf tells whether the date has
// a zone instead of milliseconds.
func findDate(line []byte) (at int, clf bool) {
	for at = 0; at < len(line) && at < maxFront; at++ {
		if line[at] != '[' {
			if i := bytes.IndexByte(line[at:min(len(line), maxFront)], '['); i >= 0 {
				at += i
			} else {
				return -1, false
			}
		}
		s := line[at+1:]
		if len(s) <= haproxyDateLen || s[2] != '/' || s[6] != '/' || s[11] != ':' || s[14] != ':' || s[17] != ':' {
			continue
		}
		switch s[haproxyDateLen] {
		case '.':
			return at, false
		case ' ':
			return at, true
		}
	}
	return -1, false
}

// syslogFront tells whether what stands before the message can be the header of a syslog line: any of the RFC
// 3164 and RFC 5424 ones, with or without priority, or none.
func syslogFront(front []byte) bool {
	n := len(front)
	switch {
	case n == 0:
		return true
	case n < 2 || front[n-1] != ' ' && front[n-1] != '>':
		return false
	}
	return front[0] == '<' || bytes.HasSuffix(front, []byte(": ")) || bytes.HasSuffix(front, []byte(" - "))
}

// Parse finds the date, which tells the form, and reads from there.
func (f *haproxy) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	at, clf := findDate(line)
	var pos int
	var reason pipeline.Reason
	form := haproxyCLF
	switch {
	case at < 0 && f.others && isHAProxyMessage(line):
		item.Kind = pipeline.Ignored
		return
	case at < 0:
		reason = haproxyCut(line)
	case clf:
		pos, reason = f.readCLF(line, at, &item.Record)
	default:
		pos, form, reason = f.read(line, at, &item.Record)
	}
	switch {
	case reason == pipeline.ReasonNotAccess && form == haproxyTCP && f.others:
		again(item)
		item.Kind = pipeline.Ignored
	case reason != "":
		fail(item, reason, pos+skip)
	case form&f.forms == 0:
		fail(item, pipeline.ReasonFields, pos+skip)
	default:
		item.Kind = pipeline.IsRecord
	}
}

// haproxyCut tells why no date was found: the line of a HAProxy may be cut before it.
func haproxyCut(line []byte) pipeline.Reason {
	i := bytes.LastIndexByte(line, ' ')
	if i < 0 || len(line) > maxFront || len(line)-i > haproxyDateLen+1 || i+1 < len(line) && line[i+1] != '[' {
		return pipeline.ReasonNotAccess
	}
	if client, _ := haproxyClient(line, i+1); client != nil {
		if a, port := addrPort(client); a.IsValid() && port > 0 {
			return pipeline.ReasonTruncated
		}
	}
	return pipeline.ReasonNotAccess
}

// haproxyClient gives the word before the date; nil when what stands before it is no syslog header.
func haproxyClient(line []byte, at int) (client []byte, start int) {
	if at < 2 || line[at-1] != ' ' {
		return nil, 0
	}
	start = bytes.LastIndexByte(line[:at-1], ' ') + 1
	if start == 0 && line[0] == '<' {
		start = bytes.IndexByte(line[:at], '>') + 1
	}
	if !syslogFront(line[:start]) {
		return nil, start
	}
	return bytes.TrimPrefix(line[start:at-1], bom), start
}

// read reads the lines of httplog, httpslog and tcplog, from the date's bracket on.
func (f *haproxy) read(line []byte, at int, r *pipeline.Record) (pos int, form uint8, reason pipeline.Reason) {
	client, pos := haproxyClient(line, at)
	if client == nil {
		return pos, haproxyHTTP, pipeline.ReasonNotAccess
	}
	stamp, pos := token(line, at)
	if stamp[len(stamp)-1] != ']' {
		return at, haproxyHTTP, cutOr(line, pos, pipeline.ReasonBadTime)
	}
	t, ok := f.clock.parse(stamp[1 : len(stamp)-1])
	if !ok {
		return at, haproxyHTTP, pipeline.ReasonBadTime
	}
	r.Time, r.Resolution = t, fractionStep(stamp[haproxyDateLen+2:])
	r.Client, r.ClientPort = addrPort(client)
	w := words{line: line, pos: pos}
	frontend := w.next()
	if n := len(frontend); n > 1 && frontend[n-1] == ':' && bytes.IndexByte(frontend, '/') > 0 {
		return pos, haproxyTCP, pipeline.ReasonNotAccess // fe/1: SSL handshake failure
	}
	server := w.next()
	pos = w.pos
	timers, n, ok := haproxyTimers(w.next())
	switch {
	case w.cut:
		return len(line), haproxyHTTP, pipeline.ReasonTruncated
	case !ok || bytes.IndexByte(server, '/') < 0:
		return pos, haproxyHTTP, pipeline.ReasonNotAccess
	case n == 3:
		return pos, haproxyTCP, pipeline.ReasonNotAccess
	}
	pos = w.pos
	if !haproxyStatus(r, w.next()) || !haproxyBytes(r, w.next()) {
		return pos, haproxyHTTP, cutOr(line, w.pos, pipeline.ReasonNotAccess)
	}
	pos = w.pos
	flags := haproxyFlags(&w)
	if flags == nil {
		return pos, haproxyHTTP, cutOr(line, w.pos, pipeline.ReasonFields)
	}
	f.judge(r, server, timers, flags)
	return f.request(&w, r)
}

// words takes words off a line.
type words struct {
	line []byte
	pos  int
	cut  bool // a word was asked for behind the line's end
}

func (w *words) next() []byte {
	start := w.pos
	end := find(w.line, start, ' ')
	if end < 0 {
		w.cut, w.pos = w.cut || start >= len(w.line), len(w.line)
		return w.line[start:]
	}
	w.pos = end + 1
	return w.line[start:end]
}

// quoted takes a text in quotes that holds no quote; ok is false when there is none.
func (w *words) quoted() (val []byte, ok bool) {
	if w.pos >= len(w.line) || w.line[w.pos] != '"' {
		w.cut = w.cut || w.pos >= len(w.line)
		return nil, false
	}
	end := bytes.IndexByte(w.line[w.pos+1:], '"')
	if end < 0 {
		w.cut = true
		return nil, false
	}
	val = w.line[w.pos+1 : w.pos+1+end]
	if w.pos += end + 2; w.pos < len(w.line) && w.line[w.pos] == ' ' {
		w.pos++
	}
	return val, true
}

// haproxyTimers reads milliseconds between slashes: TR, Tw, Tc, Tr, Ta. -1 is Unknown, + a lower bound.
func haproxyTimers(w []byte) (t [5]int64, n int, ok bool) {
	for more := true; more; n++ {
		var s []byte
		if s, w, more = bytes.Cut(w, []byte("/")); n == len(t) {
			return t, n, false
		}
		if t[n], ok = haproxyTimer(s); !ok {
			return t, n, false
		}
	}
	return t, n, n == 5 || n == 3
}

func haproxyTimer(s []byte) (int64, bool) {
	if len(s) == 2 && s[0] == '-' && s[1] == '1' {
		return pipeline.Unknown, true
	}
	if len(s) > 1 && s[0] == '+' {
		s = s[1:]
	}
	ms, ok := uintOf(s)
	return ms * 1e6, ok && ms <= maxSpan/1e6
}

// haproxyStatus reads a status; -1 is none.
func haproxyStatus(r *pipeline.Record, w []byte) bool {
	if len(w) == 2 && w[0] == '-' && w[1] == '1' {
		return true
	}
	return len(w) > 0 && !absent(w) && setStatus(r, w)
}

// haproxyBytes reads a size; + is a lower bound (option logasap).
func haproxyBytes(r *pipeline.Record, w []byte) bool {
	if len(w) > 1 && w[0] == '+' {
		w = w[1:]
	}
	n, ok := uintOf(w)
	r.Bytes = n
	return ok
}

// maxCookieWords is among how many words behind the size the flags are looked for: captured cookies may hold spaces.
const maxCookieWords = 32

// haproxyFlags passes over the captured cookies and gives the termination flags, with the counters behind them read.
func haproxyFlags(w *words) []byte {
	start := w.pos
	w.next()
	w.next()
	for range maxCookieWords {
		flags := w.next()
		if w.cut {
			return nil
		}
		if !isHAProxyFlags(flags) {
			continue
		}
		after := *w
		if slashed(after.next(), 5) && slashed(after.next(), 2) {
			*w = after
			return flags
		}
		if after.cut || after.pos >= len(w.line) {
			w.pos = len(w.line)
			return nil
		}
	}
	w.pos = start
	return nil
}

func isHAProxyFlags(s []byte) bool {
	if len(s) != 4 {
		return false
	}
	for _, c := range s {
		if c != '-' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// slashed tells whether s is n counters between slashes.
func slashed(s []byte, n int) bool {
	for ; n > 0; n-- {
		digits := 0
		if len(s) > 0 && s[0] == '+' { // retries with a redispatch
			s = s[1:]
		}
		for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
			digits++
		}
		if digits == 0 || n > 1 && (digits == len(s) || s[digits] != '/') {
			return false
		}
		if s = s[digits:]; n > 1 {
			s = s[1:]
		}
	}
	return len(s) == 0
}

// judge sets what follows from the server, the timers and the flags. The line's time is that of the request's
// first byte. The origin's time is Tr, from the connection to the response's headers: waiting for a free slot
// (Tw) and connecting (Tc) are none of its work, and the body is sent in the client's own time.
func (f *haproxy) judge(r *pipeline.Record, server []byte, t [5]int64, flags []byte) {
	r.RequestTime, r.UpstreamTime = t[4], t[3]
	r.Start, r.End = r.Time, r.Time+max(t[4], 0)
	backend, name, _ := bytes.Cut(server, []byte("/"))
	r.Upstream = backend
	r.Reached = pipeline.No
	tried := t[2] >= 0 || flags[1] != 'R' && flags[1] != 'Q' && flags[1] != 'T' // no connection while reading, queued, in the tarpit
	if tried && len(name) > 0 && name[0] != '<' {                               // <NOSRV>, <STATS>, <PROMEX>
		r.Reached, r.Upstreams = pipeline.Yes, server
		if t[3] >= 0 && r.Status != 0 {
			r.UpstreamStatuses = append(r.UpstreamStatuses, r.Status)
		}
	} else {
		r.UpstreamTime = pipeline.Unknown
	}
	r.Limited = r.Status == 429
	r.Streaming = r.Status == 101
	r.Abandoned = pipeline.No
	if flags[0] == 'C' && !r.Streaming { // c is a timeout on the client's side; a tunnel is closed by whom it serves
		r.Abandoned = pipeline.Yes
	}
}

// request reads the captures, the request, and the handshake's fields behind it.
func (f *haproxy) request(w *words, r *pipeline.Record) (pos int, form uint8, reason pipeline.Reason) {
	for group := 0; w.pos < len(w.line) && w.line[w.pos] == '{' && group < 2; group++ {
		end := bytes.IndexByte(w.line[w.pos:], '}')
		if end < 0 {
			return w.pos, haproxyHTTP, pipeline.ReasonTruncated
		}
		f.captures.set(&f.mem, r, w.line[w.pos+1:w.pos+end], group)
		if w.pos += end + 1; w.pos < len(w.line) && w.line[w.pos] == ' ' {
			w.pos++
		}
	}
	pos = w.pos
	req, ok := w.quoted()
	if !ok && w.cut {
		return f.cutRequest(w, r, pos)
	}
	if !ok {
		return pos, haproxyHTTP, cutOr(w.line, pos, f.noRequest(w))
	}
	setHAProxyRequest(r, f.mem.unhash(req))
	if w.pos >= len(w.line) {
		return w.pos, haproxyHTTP, ""
	}
	return f.handshake(w, r)
}

// handshake reads what httpslog has behind the request: five error codes, then SNI, version and cipher. Fields of
// another log-format are passed over.
func (f *haproxy) handshake(w *words, r *pipeline.Record) (pos int, form uint8, reason pipeline.Reason) {
	pos = w.pos
	codes, names := w.next(), w.next()
	if bytes.Count(codes, []byte("/")) == 4 && bytes.Count(names, []byte("/")) == 2 {
		if sni, _, _ := bytes.Cut(names, []byte("/")); r.Host == nil && !absent(sni) {
			r.Host = hostOf(f.mem.unhash(sni))
		}
	} else if f.forms&haproxyHTTP == 0 {
		return pos, haproxyHTTPS, w.reason()
	}
	return len(w.line), haproxyHTTPS, ""
}

// cutRequest reads a request whose end the line lacks: HAProxy cuts a line at 1024 bytes unless told otherwise, and
// relays of syslog do, too. Status and times stand before it. Of the target there must be a beginning.
func (f *haproxy) cutRequest(w *words, r *pipeline.Record, pos int) (end int, form uint8, reason pipeline.Reason) {
	if pos >= len(w.line) || w.line[pos] != '"' {
		return pos, haproxyHTTP, pipeline.ReasonTruncated
	}
	req, whole := w.line[pos+1:], false
	if i := bytes.LastIndexByte(req, ' '); i >= 0 && bytes.HasPrefix(protoStart, req[i+1:min(len(req), i+1+len(protoStart))]) {
		req, whole = req[:i], true // the cut is in the protocol
	}
	if setHAProxyRequest(r, f.mem.unhash(req)); r.Path == nil || sameBytes(r.Path, root) { // cut within the host
		return pos, haproxyHTTP, pipeline.ReasonTruncated
	}
	r.Cut = !whole
	return len(w.line), haproxyHTTP, ""
}

var protoStart = []byte("HTTP/")

func (f *haproxy) noRequest(w *words) pipeline.Reason {
	if w.cut {
		return pipeline.ReasonTruncated
	}
	return pipeline.ReasonFields
}

// setHAProxyRequest reads a request line. HAProxy's Kubernetes controller logs host and path in the target's place.
func setHAProxyRequest(r *pipeline.Record, req []byte) {
	host := r.Host
	setRequest(r, req)
	if r.Host == nil {
		r.Host = host
	}
	if !r.Malformed {
		return
	}
	method, target, ok := bytes.Cut(req, []byte(" "))
	if !ok || !isMethod(method) {
		return
	}
	i := bytes.LastIndexByte(target, ' ')
	if i < 0 || !isProto(target[i+1:]) {
		return
	}
	slash := bytes.IndexByte(target[:i], '/')
	if slash <= 0 || !isHostName(target[:slash]) {
		return
	}
	r.Malformed, r.Method, r.Proto, r.Host = false, method, target[i+1:], hostOf(target[:slash])
	setPath(r, target[slash:i])
}

// unhash undoes HAProxy's #XX. Without a # it returns s itself.
func (a *arena) unhash(s []byte) []byte {
	i := bytes.IndexByte(s, '#')
	if i < 0 {
		return s
	}
	out := append(a.take(len(s)), s[:i]...)
	for i < len(s) {
		if s[i] == '#' {
			if v := hex(s[i+1:], 2); v >= 0 {
				out = append(out, byte(v))
				i += 3
				continue
			}
		}
		out = append(out, s[i])
		i++
	}
	return out
}

// isHAProxyMessage tells whether a line without a request's date is one of HAProxy's own: behind its syslog tag,
// or by what it says of servers, backends and proxies.
func isHAProxyMessage(line []byte) bool {
	near := line[:min(len(line), maxFront)]
	if bytes.Contains(near, []byte(" haproxy[")) || bytes.HasPrefix(near, []byte("haproxy[")) {
		return true
	}
	for _, level := range [...]string{"[NOTICE] ", "[WARNING] ", "[ALERT] ", "[INFO] "} {
		if bytes.HasPrefix(near, []byte(level)) && bytes.Contains(near, []byte(") : ")) {
			return true
		}
	}
	if bytes.HasPrefix(near, []byte("Server ")) && bytes.IndexByte(near, '/') > 0 {
		return bytes.Contains(near, []byte(" is DOWN")) || bytes.Contains(near, []byte(" is UP")) ||
			bytes.Contains(near, []byte(" is going DOWN"))
	}
	return bytes.HasPrefix(near, []byte("backend ")) && bytes.Contains(near, []byte(" has no server available"))
}

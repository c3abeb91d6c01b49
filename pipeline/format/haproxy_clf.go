package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// readCLF reads a line of option httplog clf, from the date's bracket on:
//
//	client - - [date] "request" status size "" "" port ms "frontend" "backend" "server" TR Tw Tc Tr Ta flags
//	ac fc bc sc rc sq bq "cookie" "cookie" captures
func (f *haproxy) readCLF(line []byte, at int, r *pipeline.Record) (pos int, reason pipeline.Reason) {
	const dashes = " - - "
	if at < len(dashes)+1 || string(line[at-len(dashes):at]) != dashes {
		return 0, pipeline.ReasonNotAccess
	}
	client, _ := haproxyClient(line, at-len(dashes)+1)
	if client == nil {
		if client = line[:at-len(dashes)]; bytes.IndexByte(client, ' ') >= 0 {
			return 0, pipeline.ReasonNotAccess
		}
	}
	if at+1+clfLen+2 > len(line) {
		return at, pipeline.ReasonTruncated
	}
	t, ok := f.clf.parse(line[at+1 : at+1+clfLen])
	if !ok || line[at+1+clfLen] != ']' {
		return at, pipeline.ReasonBadTime
	}
	r.Time, r.Resolution = t, 1e9
	r.Client = addrOf(client)
	w := words{line: line, pos: at + clfLen + 3}
	req, ok := w.quoted()
	pos = w.pos
	if !ok || !haproxyStatus(r, w.next()) || !haproxyBytes(r, w.next()) {
		return pos, w.reason()
	}
	pos = w.pos
	for range 2 { // referer and agent are always empty
		if v, ok := w.quoted(); !ok || len(v) > 0 {
			return pos, w.reason()
		}
	}
	port, okPort := uintOf(w.next())
	_, okMillis := uintOf(w.next())
	if !okPort || !okMillis || port > 65535 {
		return pos, w.reason()
	}
	r.ClientPort = uint16(port)
	return f.restCLF(&w, r, req)
}

// reason tells whether a line ended, or has something else than was looked for.
func (w *words) reason() pipeline.Reason {
	if w.cut || w.pos >= len(w.line) {
		return pipeline.ReasonTruncated
	}
	return pipeline.ReasonNotAccess
}

// restCLF reads the names, the timers and what is behind them.
func (f *haproxy) restCLF(w *words, r *pipeline.Record, req []byte) (pos int, reason pipeline.Reason) {
	pos = w.pos
	_, ok1 := w.quoted()
	start := w.pos
	backend, ok2 := w.quoted()
	server, ok3 := w.quoted()
	if !ok1 || !ok2 || !ok3 {
		return pos, w.reason()
	}
	end := w.pos
	var timers [5]int64
	for i := range timers {
		var ok bool
		pos = w.pos
		if timers[i], ok = haproxyTimer(w.next()); !ok {
			return pos, w.reason()
		}
	}
	pos = w.pos
	flags := bytes.Trim(w.next(), `"`) // quoted where the log-format's +Q is in effect
	if !isHAProxyFlags(flags) {
		return pos, w.reason()
	}
	for range 7 {
		pos = w.pos
		if counter := w.next(); !slashed(counter, 1) {
			return pos, w.reason()
		}
	}
	names := f.mem.take(end - start)
	names = append(append(append(names, backend...), '/'), server...)
	f.judge(r, names, timers, flags)
	for range 2 { // the cookies
		pos = w.pos
		if _, ok := w.quoted(); !ok {
			return pos, w.reason()
		}
	}
	for i := 0; ; i++ {
		val, ok := w.quoted()
		if !ok {
			break
		}
		if len(val) > 0 && f.captures.groups != nil {
			setCapture(&f.mem, r, f.captures.flat(i), val)
		} else if len(val) > 0 {
			setCapture(&f.mem, r, f.captures.kind(val, 0, i), val)
		}
	}
	setHAProxyRequest(r, f.mem.unhash(req))
	return len(w.line), ""
}

// flat tells what the i-th capture is where both groups stand in a row.
func (c *haproxyCaptures) flat(i int) capture {
	for _, group := range c.groups {
		if i < len(group) {
			return group[i]
		}
		i -= len(group)
	}
	return captureSkip
}

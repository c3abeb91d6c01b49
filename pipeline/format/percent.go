package format

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// A percentKind is how a directive's value is read where that differs from nginx's variable of the same meaning.
type percentKind uint8

const (
	percentPlain      percentKind = iota
	percentSize                   // "-" is 0
	percentWhole                  // a duration as a whole number of units
	percentDecimal                // a duration as a decimal number of units
	percentEpoch                  // a time as a whole number of units since 1970
	percentConnection             // Apache's %X
	percentPort                   // digits
	percentQuery                  // with its question mark
	percentNumber                 // any number
	percentIdent                  // identd's user: no address and no host
	percentUser                   // the user who logged in
)

// A percentElement is what one directive of a format in Apache's manner (%h, %{Referer}i) means.
type percentElement struct {
	v             variable
	kind          percentKind
	unit          int64  // ns
	end           bool   // a time: the request's end, not its start
	before, after string // literals that the directive prints itself
}

// A percentLayout is such a format, compiled.
type percentLayout struct {
	layout
	own []percentElement // one for each of the layout's elements
}

// readPercentFormat takes the directive's name, its quotes and the name of the format off.
func readPercentFormat(s, directive string) (string, error) {
	if rest, ok := strings.CutPrefix(s, directive); ok && rest != "" && strings.ContainsRune(" \t=", rune(rest[0])) {
		s = strings.TrimLeft(rest, " \t=")
	}
	if quote := s[:min(1, len(s))]; quote == `"` && !strings.HasPrefix(s, `"%`) || quote == `"` && closedQuote(s) || quote == `'` {
		end := strings.LastIndex(s, quote)
		if end == 0 {
			return "", fmt.Errorf("log_format: a quote is not closed in %.40q", s)
		}
		s = s[1:end]
	}
	s = strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\t`, "\t").Replace(s)
	if s == "" {
		return "", errors.New("log_format: empty")
	}
	return s, nil
}

// closedQuote tells whether the quote that opens s is the directive's own: the quotes within are hidden by a
// backslash then, and its end is followed by the format's name or by nothing.
func closedQuote(s string) bool {
	end := closingQuote([]byte(s), 1)
	return end > 0 && !strings.ContainsAny(s[end+1:], `%"`)
}

// maxDirectives bounds a format.
const maxDirectives = maxElements

// compileAll makes layouts of several formats. What it gives is not changed by reading, so streams may share it.
func compileAll(formats []string, raw bool, meaning func(name byte, arg string) percentElement) ([]*percentLayout, error) {
	out := make([]*percentLayout, 0, len(formats))
	for _, s := range formats {
		l, err := compilePercent(s, raw, meaning)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// compilePercent makes a layout. meaning tells what a directive is; raw says that values are not escaped.
func compilePercent(format string, raw bool, meaning func(name byte, arg string) percentElement) (*percentLayout, error) {
	l := &percentLayout{layout: layout{raw: raw}}
	var literal []byte
	known := false
	var names []string
	for s := format; s != ""; {
		if s[0] != '%' {
			literal = append(literal, s[0])
			s = s[1:]
			continue
		}
		name, arg, rest, ok := cutDirective(s)
		if !ok {
			return nil, fmt.Errorf("log_format: %.20q is no directive", s)
		}
		directive := strings.TrimSuffix(s, rest)
		s = rest
		if name == '%' {
			literal = append(literal, '%')
			continue
		}
		e := meaning(name, arg)
		known = known || !e.v.isIdle()
		l.literal(append(literal, e.before...))
		literal = []byte(e.after)
		l.elements = append(l.elements, element{v: e.v})
		l.own, names = append(l.own, e), append(names, directive)
	}
	l.literal(literal)
	switch {
	case len(l.elements) > maxDirectives:
		return nil, fmt.Errorf("log_format: %d directives; at most %d", len(l.elements), maxDirectives)
	case !known:
		return nil, errors.New("log_format: none of its directives is known to squall")
	}
	if i := l.inseparable(); i >= 0 {
		return nil, inseparable(names[i], names[i+1])
	}
	l.setStops()
	return l, nil
}

// literal puts text behind the last element, or at the head.
func (l *percentLayout) literal(text []byte) {
	if n := len(l.elements); n > 0 {
		l.elements[n-1].literal = text
	} else {
		l.head = text
	}
}

// cutDirective takes %>s, %{Referer}i, %!200,304{User-Agent}i, %^FB or %% off the front of s.
func cutDirective(s string) (name byte, arg, rest string, ok bool) {
	s = strings.TrimLeft(s[1:], "<>!,0123456789")
	if strings.HasPrefix(s, "{") {
		var found bool
		if arg, s, found = strings.Cut(s[1:], "}"); !found {
			return 0, "", "", false
		}
	}
	if strings.HasPrefix(s, "^") && len(s) >= 3 {
		return '^', s[1:3], s[3:], true
	}
	if s == "" {
		return 0, "", "", false
	}
	return s[0], arg, s[1:], true
}

// strftimeVariable tells which of the times that squall can read a format of strftime prints.
func strftimeVariable(format string) variable {
	format = strings.Trim(format, "[]")
	switch {
	case format == "%s":
		return varMsec
	case strings.HasPrefix(format, "%d/%b/%Y:") && strings.HasSuffix(format, " %z"):
		return varTimeLocal
	case strings.HasPrefix(format, "%Y-%m-%d") || strings.HasPrefix(format, "%F"):
		return varTimeISO
	}
	return varSkip
}

// percentReader reads the values of one line. It belongs to one goroutine.
type percentReader struct {
	nginx      nginxReader
	connection byte  // Apache's %X; 0: not logged
	endTime    bool  // the time is the request's end
	unit       int64 // of the duration that was read: the finest counts
	anonymous  bool  // an address, and "-" for identd's user
	guessed    bool  // the layouts are not the configuration's own
	site       []byte
}

// read matches a whole line against a layout and sets what the values mean together.
func (p *percentReader) read(l *percentLayout, line []byte, r *pipeline.Record) (pos int, reason pipeline.Reason) {
	n := &p.nginx
	n.req, n.raw, n.plain = nginxRequest{}, l.raw, bytes.IndexByte(line, '\\') < 0
	p.connection, p.endTime, p.unit, p.anonymous, p.site = 0, false, 0, false, nil
	if !bytes.HasPrefix(line, l.head) {
		return 0, pipeline.ReasonNotAccess
	}
	pos = len(l.head)
	for i := range l.elements {
		e := &l.elements[i]
		end := l.valueEnd(line, pos, i)
		if end < 0 {
			return pos, l.missing(line, pos, r, i)
		}
		if e.end != stopLiteral && !e.follows(line, end) {
			if bytes.HasPrefix(e.literal, line[end:]) {
				return len(line), pipeline.ReasonTruncated
			}
			return end, pipeline.ReasonMalformed
		}
		if reason := p.set(r, &l.own[i], line[pos:end]); reason != "" {
			return pos, reason
		}
		pos = end + len(e.literal)
	}
	if pos != len(line) {
		return pos, pipeline.ReasonFields
	}
	return pos, n.finish(r)
}

// set takes one value.
func (p *percentReader) set(r *pipeline.Record, e *percentElement, val []byte) pipeline.Reason {
	p.endTime = p.endTime || e.end
	switch e.kind {
	case percentSize:
		if len(val) == 1 && val[0] == '-' {
			r.Bytes, p.nginx.req.bytesRank = 0, rankOfBytes(varBodyBytes) // as if it were written: no size behind it counts
			return ""
		}
	case percentWhole, percentDecimal:
		return p.setDuration(r, e, val)
	case percentEpoch:
		t, ok := uintOf(val)
		if !ok || t > maxSeconds*1e9/e.unit {
			return pipeline.ReasonBadTime
		}
		r.Time, r.Resolution = t*e.unit, e.unit
		return ""
	case percentConnection:
		if len(val) != 1 || val[0] != 'X' && val[0] != '+' && val[0] != '-' {
			return pipeline.ReasonFields
		}
		p.connection = val[0]
		return ""
	case percentPort:
		if port, ok := uintOf(val); !ok || port > 65535 {
			return pipeline.ReasonFields
		}
		return ""
	case percentIdent:
		if bytes.ContainsAny(val, ".: ") {
			return pipeline.ReasonFields
		}
		p.anonymous = absent(val) && r.Client.IsValid()
		return ""
	case percentUser:
		// A name may hold spaces; with the marks of two absent values it is the beginning of another log's line, behind
		// a header that somebody put in front, unless an address and "-" for identd's user stand before it.
		if bytes.Contains(val, []byte(" - ")) && !p.anonymous {
			return pipeline.ReasonFields
		}
		return ""
	case percentNumber:
		if _, ok := nanos(val); !ok {
			return pipeline.ReasonFields
		}
		return ""
	case percentQuery:
		if len(val) > 1 && val[0] == '?' {
			p.nginx.req.args, p.nginx.req.hasArgs = val[1:], true
		}
		return ""
	}
	switch e.v {
	case varSkip:
		return ""
	case varStatus:
		if len(val) < 3 && !absent(val) {
			return pipeline.ReasonMalformed
		}
	case varServerName:
		if bytes.ContainsAny(val, " [,") { // a comma: the first of several addresses
			return pipeline.ReasonFields
		}
		p.site = val
	case varClient:
		// The client behind a site: else the first is the client of a line without a site, and this a part of its user.
		if p.guessed && p.site != nil && !addrOf(val).IsValid() && (addrOf(p.site).IsValid() || !isHostName(val)) {
			return pipeline.ReasonFields
		}
	}
	return p.nginx.set(r, e.v, val)
}

func (p *percentReader) setDuration(r *pipeline.Record, e *percentElement, val []byte) pipeline.Reason {
	if len(val) == 1 && val[0] == '-' {
		return ""
	}
	var t int64
	var ok bool
	if e.kind == percentWhole {
		if t, ok = uintOf(val); ok {
			ok, t = t <= maxSpan/e.unit, t*e.unit
		}
	} else if t, ok = nanos(val); ok {
		ok, t = t/1e9 <= maxSpan/e.unit, t/(1e9/e.unit)
	}
	if !ok {
		return pipeline.ReasonFields
	}
	if p.unit == 0 || e.unit < p.unit {
		r.RequestTime, p.unit = t, e.unit
	}
	return ""
}

// percentLines reads the lines of some layouts.
type percentLines struct {
	layouts []*percentLayout
	reader  percentReader
	guess   *forwardedGuess // nil: the layouts are the configuration's own
	last    int             // which layout fitted last
	judge   func(*percentReader, *pipeline.Record)
}

// newPercentLines makes a format of compiled layouts. judge sets what a program means by what was read.
func newPercentLines(cfg Config, layouts []*percentLayout, judge func(*percentReader, *pipeline.Record)) *percentLines {
	f := &percentLines{layouts: layouts, judge: judge}
	f.reader.nginx.iso.zone = cfg.Zone
	return f
}

// Parse tries the layout that fitted last, then the others.
func (f *percentLines) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	pos, reason := 0, pipeline.ReasonNone
	for i := range f.layouts {
		k := (f.last + i) % len(f.layouts)
		item.Record.Reset()
		p, why := f.reader.read(f.layouts[k], line, &item.Record)
		if why == "" {
			f.last = k
			f.reader.span(&item.Record)
			f.judge(&f.reader, &item.Record)
			if f.guess != nil {
				f.guess.judge(&item.Record)
			}
			item.Kind = pipeline.IsRecord
			return
		}
		if reason == "" || p > pos || p == pos && why == pipeline.ReasonTruncated {
			pos, reason = p, why
		}
	}
	fail(item, reason, pos+skip)
}

// span dates the request: %t is when it came in, unless the layout says that it is the end.
func (p *percentReader) span(r *pipeline.Record) {
	r.Start, r.End = r.Time, r.Time
	if p.endTime {
		r.Start = r.Time - max(r.RequestTime, 0)
	} else {
		r.End = r.Time + max(r.RequestTime, 0)
	}
}

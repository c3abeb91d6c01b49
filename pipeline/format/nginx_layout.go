package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// Combined is nginx's built-in log_format.
const Combined = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`

// RecommendedNginx is the log_format that squall asks for: combined, so that every other tool goes on reading
// it, and behind it what detection needs, by name, so that the order does not matter. What nginx prints as a
// list, with ", " and " : " between its items, stands in quotes. $limit_req_status needs nginx 1.17.6.
const RecommendedNginx = Combined + ` msec=$msec host="$host" xff="$http_x_forwarded_for" rt=$request_time` +
	` uaddr="$upstream_addr" us="$upstream_status" urt="$upstream_response_time" ul="$upstream_response_length"` +
	` cs=$upstream_cache_status lrs=$limit_req_status`

// A stop is how the end of a variable's value is found.
type stop uint8

const (
	stopLiteral stop = iota // where the literal behind it begins
	stopEnd                 // at the end of the line
	stopQuote               // at the closing quote: the literal begins with one
	stopList                // where a list of nginx ends
	stopNext                // another variable follows at once: the value's own alphabet ends it
	stopRight               // text that may hold spaces, ended by " PROTOCOL" before a quote
	stopUser                // a name that its bearer chose: found from the request's quote to the left
)

// An element is a variable and the literal behind it.
type element struct {
	v       variable
	end     stop
	short   bool // see isShort
	literal []byte
	fence   int // of stopUser: the element whose literal has the first quote behind the name; 0: there is none
	width   int // of values that are mostly as long, in bytes, and hold what may begin the literal; 0: there is none

	word, mask uint64 // the literal, and which bytes of a word it has; no mask: it is longer
}

// prepare sets what follows from the variable and its literal.
func (e *element) prepare() {
	e.short = e.v.isShort()
	switch {
	case e.v == varTimeLocal:
		e.width = clfLen
	case e.v == varTimeISO && e.literal[0] == ' ': // with a space before the hours and no zone
		e.width = isoLen
	}
	var word, mask [8]byte
	if copy(word[:], e.literal) == len(e.literal) {
		for i := range e.literal {
			mask[i] = 0xff
		}
		e.word, e.mask = binary.LittleEndian.Uint64(word[:]), binary.LittleEndian.Uint64(mask[:])
	}
}

// follows tells whether the literal stands at a place of the line: it is compared as one word.
func (e *element) follows(line []byte, at int) bool {
	if e.mask == 0 || at+8 > len(line) {
		return bytes.HasPrefix(line[at:], e.literal)
	}
	return (binary.LittleEndian.Uint64(line[at:])^e.word)&e.mask == 0
}

// search gives where the literal stands next; -1 for nowhere.
func (e *element) search(line []byte, at int) int {
	for {
		if at = find(line, at, e.literal[0]); at < 0 || e.follows(line, at) {
			return at
		}
		at++
	}
}

// A layout is a compiled log_format.
type layout struct {
	head     []byte
	elements []element
	raw      bool // escape=none
	json     bool // the format prints a JSON object
}

// A logFormat is the text of a log_format directive, taken apart.
type logFormat struct {
	text   string
	escape string // default, json or none
}

// readLogFormat reads what people paste: the format itself, its quoted pieces, or the whole directive.
func readLogFormat(s string) (logFormat, error) {
	f := logFormat{escape: "default"}
	s = strings.TrimSpace(s)
	directive := false
	if rest, ok := strings.CutPrefix(s, "log_format"); ok && rest != "" && strings.ContainsRune(" \t\r\n", rune(rest[0])) {
		_, rest, ok = strings.Cut(strings.TrimSpace(rest)+" ", " ")
		if !ok {
			return f, errors.New("log_format: no format behind the name")
		}
		directive, s = true, strings.TrimSpace(rest)
	}
	if rest, ok := strings.CutPrefix(s, "escape="); ok {
		end := strings.IndexAny(rest, " \t\r\n")
		if end < 0 {
			end = len(rest)
		}
		f.escape, s = rest[:end], strings.TrimSpace(rest[end:])
	}
	switch f.escape {
	case "default", "json", "none":
	default:
		return f, fmt.Errorf("log_format: escape=%s is not default, json or none", f.escape)
	}
	if s == "combined" {
		s = Combined
	}
	if strings.HasPrefix(s, "'") || directive && strings.HasPrefix(s, `"`) {
		joined, err := joinQuoted(s)
		if err != nil {
			return f, err
		}
		s = joined
	} else if directive {
		s = strings.TrimSuffix(s, ";")
	}
	if s == "" {
		return f, errors.New("log_format: empty")
	}
	f.text = s
	return f, nil
}

// joinQuoted concatenates the quoted strings of a directive, up to its semicolon.
func joinQuoted(s string) (string, error) {
	var out strings.Builder
	for s = strings.TrimSpace(s); s != "" && s[0] != ';'; s = strings.TrimSpace(s) {
		quote := s[0]
		if quote != '\'' && quote != '"' {
			return "", fmt.Errorf("log_format: %.20q stands outside the quotes", s)
		}
		i := 1
		for ; i < len(s) && s[i] != quote; i++ {
			if s[i] == '\\' && i+1 < len(s) {
				i++
				switch s[i] {
				case '"', '\'', '\\':
				case 't':
					out.WriteByte('\t')
					continue
				case 'n':
					out.WriteByte('\n')
					continue
				case 'r':
					out.WriteByte('\r')
					continue
				default:
					out.WriteByte('\\')
				}
			}
			out.WriteByte(s[i])
		}
		if i == len(s) {
			return "", errors.New("log_format: a quote is not closed")
		}
		s = s[i+1:]
	}
	return out.String(), nil
}

// maxElements bounds a log_format: nobody logs so much.
const maxElements = 256

// compile makes a layout of a log_format.
func compile(f logFormat) (*layout, error) {
	l := &layout{raw: f.escape == "none", json: strings.HasPrefix(strings.TrimSpace(f.text), "{")}
	known := 0
	var names []string
	pending := false
	var literal []byte
	flush := func() {
		if pending {
			l.elements[len(l.elements)-1].literal = literal
		} else {
			l.head = literal
		}
		literal = nil
	}
	for s := f.text; s != ""; {
		name, rest := cutVariable(s)
		if name == "" {
			literal = append(literal, s[0])
			s = s[1:]
			continue
		}
		flush()
		v := variableOf(name)
		if !v.isIdle() {
			known++
		}
		l.elements, names = append(l.elements, element{v: v}), append(names, "$"+name)
		pending = true
		s = rest
	}
	flush()
	if len(l.elements) > maxElements {
		return nil, fmt.Errorf("log_format: %d variables; at most %d", len(l.elements), maxElements)
	}
	if known == 0 {
		return nil, errors.New("log_format: none of its variables is known to squall")
	}
	if i := l.inseparable(); i >= 0 && !l.json {
		return nil, inseparable(names[i], names[i+1])
	}
	l.setStops()
	return l, nil
}

// inseparable finds two values that stand together with nothing between them and nothing in them that tells where one
// ends, of which one at least is of use; -1: there are none.
func (l *layout) inseparable() int {
	for i := range len(l.elements) - 1 {
		a, b := l.elements[i].v, l.elements[i+1].v
		if len(l.elements[i].literal) > 0 || a.isIdle() && b.isIdle() {
			continue
		}
		switch b {
		case varURI, varRequestURI: // begin with a slash
		case varIsArgs: // is a question mark
		case varArgs:
			if a != varIsArgs {
				return i
			}
		default:
			return i
		}
	}
	return -1
}

func inseparable(a, b string) error {
	return fmt.Errorf("log_format: nothing tells where %s ends and %s begins: put a space, or quotes, between them", a, b)
}

// cutVariable takes $name or ${name} off the front of s; no name when there is none.
func cutVariable(s string) (name, rest string) {
	if s[0] != '$' || len(s) < 2 {
		return "", s
	}
	brace := s[1] == '{'
	start := 1
	if brace {
		start = 2
	}
	end := start
	for end < len(s) && (s[end] == '_' || s[end] >= '0' && s[end] <= '9' || s[end] >= 'a' && s[end] <= 'z' || s[end] >= 'A' && s[end] <= 'Z') {
		end++
	}
	if end == start || brace && (end == len(s) || s[end] != '}') {
		return "", s
	}
	if brace {
		return s[start:end], s[end+1:]
	}
	return s[start:end], s[end:]
}

func (l *layout) setStops() {
	for i := range l.elements {
		e := &l.elements[i]
		if len(e.literal) > 0 {
			e.prepare()
		}
		last := i == len(l.elements)-1
		switch {
		case len(e.literal) == 0 && last:
			e.end = stopEnd
		case len(e.literal) == 0:
			e.end = stopNext
		case e.literal[0] == '"' && !l.raw:
			e.end = stopQuote
		case e.v.isList():
			e.end = stopList
		case !last && string(e.literal) == " " && (e.v == varURI || e.v == varRequestURI) && l.elements[i+1].v == varProto &&
			bytes.HasPrefix(l.elements[i+1].literal, []byte(`"`)):
			e.end = stopRight
		case !last && e.v == varUser:
			e.end, e.fence = stopUser, l.fenceOf(i)
		}
	}
}

// fenceOf finds the first literal behind element i that has a quote. A name has none: nginx and Apache escape it.
func (l *layout) fenceOf(i int) int {
	for k := i; k < len(l.elements); k++ {
		switch literal := l.elements[k].literal; {
		case len(literal) == 0:
			return 0
		case bytes.IndexByte(literal, '"') >= 0:
			return k
		}
	}
	return 0
}

// userEnd ends the name of the user who logged in, which is that user's own text: brackets, spaces and dates in it are
// no part of the layout. What follows is found from the request's quote to the left. Mostly the first end that is seen
// is followed by a date and that quote, and is the one.
func (l *layout) userEnd(line []byte, pos, i int) int {
	e, next := &l.elements[i], &l.elements[i+1]
	first := e.search(line, pos)
	if first < 0 || e.fence == i {
		return first
	}
	if e.fence == 0 {
		return l.userBeforeTime(line, pos, first, i)
	}
	if at := first + len(e.literal) + clfLen; e.fence == i+1 && next.v == varTimeLocal && at < len(line) && next.follows(line, at) {
		return first
	}
	from := pos
	for range maxUserQuotes {
		quote := closingQuote(line, from)
		if quote < 0 {
			break
		}
		if end := l.userBefore(line, pos, quote, i); end >= 0 {
			return end
		}
		from = quote + 1
	}
	return first
}

// maxUserQuotes is how many quotes are looked at: where nothing is escaped a name may have some.
const maxUserQuotes = 8

// userBefore ends a name that is followed by the layout up to a quote; -1: what stands there does not fit.
func (l *layout) userBefore(line []byte, pos, quote, i int) int {
	fence := l.elements[i].fence
	to := quote - bytes.IndexByte(l.elements[fence].literal, '"')
	if to < pos || !bytes.HasPrefix(line[to:], l.elements[fence].literal) {
		return -1
	}
	for k := fence; k > i; k-- {
		before := l.elements[k-1].literal
		at := bytes.LastIndex(line[pos:to], before)
		if l.elements[k].v == varTimeLocal { // holds a space
			for at >= 0 && !isCLFDate(line[pos+at+len(before):to]) {
				at = bytes.LastIndex(line[pos:pos+at], before)
			}
		}
		if at < 0 {
			return -1
		}
		to = pos + at
	}
	return to
}

// userBeforeTime ends a name where no quote follows it: before the first date, if a date is what comes next.
func (l *layout) userBeforeTime(line []byte, pos, first, i int) int {
	e, next := &l.elements[i], &l.elements[i+1]
	if next.v != varTimeLocal {
		return first
	}
	for at := first; at >= 0; at = e.search(line, at+1) {
		from := at + len(e.literal)
		if to := from + clfLen; to <= len(line) && isCLFDate(line[from:to]) && bytes.HasPrefix(line[to:], next.literal) {
			return at
		}
	}
	return first
}

// isCLFDate tells whether s looks like 29/Mar/2026:00:26:24 +0100.
func isCLFDate(s []byte) bool {
	return len(s) == clfLen && s[2] == '/' && s[6] == '/' && s[11] == ':' && s[20] == ' '
}

// listEnd gives where a list that begins at pos ends: an item holds no space, so it ends at a space that
// belongs to no separator. A list may end in a separator, with nothing behind it.
func listEnd(line []byte, pos int) int {
	for i := pos; i < len(line); i++ {
		if line[i] != ' ' {
			continue
		}
		switch {
		case i > pos && line[i-1] == ',' && i+1 < len(line):
			continue
		case i+2 < len(line) && line[i+1] == ':' && line[i+2] == ' ':
			i += 2
			if i+1 < len(line) && line[i+1] == ' ' { // an empty last item
				return i + 1
			}
			continue
		}
		return i
	}
	return len(line)
}

// valueEnd gives where the value of element i, which begins at pos, ends; -1 when the line has no such end.
func (l *layout) valueEnd(line []byte, pos, i int) int {
	e := &l.elements[i]
	switch e.end {
	case stopEnd:
		return len(line)
	case stopQuote:
		return closingQuote(line, pos)
	case stopList:
		if e.literal[0] == ' ' { // which a list holds too
			return listEnd(line, pos)
		}
		return e.search(line, pos)
	case stopNext:
		return l.beforeNext(line, pos, i)
	case stopUser:
		return l.userEnd(line, pos, i)
	case stopRight:
		quote := closingQuote(line, pos)
		if quote < 0 {
			return -1
		}
		if i := bytes.LastIndexByte(line[pos:quote], ' '); i >= 0 {
			return pos + i
		}
		return -1
	}
	if end := pos + e.width; e.width > 0 && end < len(line) && e.follows(line, end) {
		return end
	}
	if e.v == varRequest && e.literal[0] == ' ' {
		if end := e.requestEnd(line, pos); end >= 0 {
			return end
		}
	}
	if e.short {
		line = line[:min(len(line), pos+maxShort)]
	}
	return e.search(line, pos)
}

// requestEnd ends a request that stands without quotes by its protocol. -1: find the end as for any other value.
func (e *element) requestEnd(line []byte, pos int) int {
	proto := bytes.Index(line[pos:], []byte(" HTTP/"))
	if proto < 0 {
		return -1
	}
	_, next := token(line, pos+proto+1)
	if end := next - 1; end > pos && end < len(line) && e.follows(line, end) {
		return end
	}
	return -1
}

// maxShort bounds the search for the end of a value that is never long, in bytes: a hostile line costs each
// layout little.
const maxShort = 4 << 10

// beforeNext ends a value that another variable follows without anything between: a host before a path, a
// path before $is_args. Elsewhere the first takes all there is.
func (l *layout) beforeNext(line []byte, pos, i int) int {
	var enders string
	switch l.elements[i+1].v {
	case varURI, varRequestURI:
		enders = "/"
	case varIsArgs:
		enders = "? \""
	case varArgs:
		if pos < len(line) && line[pos] == '?' {
			return pos + 1
		}
		return pos
	}
	if enders != "" {
		if j := bytes.IndexAny(line[pos:], enders); j >= 0 {
			return pos + j
		}
	}
	for j := i + 1; j < len(l.elements); j++ {
		if e := &l.elements[j]; len(e.literal) > 0 {
			return e.search(line, pos)
		}
	}
	return len(line)
}

// read matches the line from pos on against the layout and sets what it finds. It returns how far it came; a
// reason when the line does not fit.
func (l *layout) read(n *nginxReader, line []byte, pos int, r *pipeline.Record) (int, pipeline.Reason) {
	if !bytes.HasPrefix(line[pos:], l.head) {
		return pos, pipeline.ReasonNotAccess
	}
	n.plain = bytes.IndexByte(line, '\\') < 0
	pos += len(l.head)
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
		if n.exact && e.v == varHost && e.end == stopLiteral && bytes.ContainsAny(line[pos:end], `, "`) {
			return pos, pipeline.ReasonFields // the first of several addresses, or a request, in a layout that is guessed
		}
		if n.exact && i == 1 && e.v == varClient && l.elements[0].v == varHost && !isPeer(line[pos:end]) {
			return pos, pipeline.ReasonFields // the first is the client then, and this a part of its user
		}
		if e.v != varSkip {
			if reason := n.set(r, e.v, line[pos:end]); reason != "" {
				return pos, reason
			}
		}
		pos = end + len(e.literal)
	}
	return pos, ""
}

// isPeer tells whether val is what nginx writes for a peer: an address, or a socket's name.
func isPeer(val []byte) bool {
	return addrOf(val).IsValid() || bytes.HasPrefix(val, []byte("unix:"))
}

// missing tells why the end of a value was not found: the line was cut, or it is of another kind. It was cut
// when what came before fits, an address or a time among it.
func (l *layout) missing(line []byte, pos int, r *pipeline.Record, i int) pipeline.Reason {
	if i > 0 && (r.Client.IsValid() || r.Time != 0) {
		return pipeline.ReasonTruncated
	}
	first := line
	if j := bytes.IndexByte(line, ' '); j >= 0 {
		first = line[:j]
	}
	if addrOf(first).IsValid() && l.elements[0].v == varClient {
		return pipeline.ReasonTruncated
	}
	return pipeline.ReasonNotAccess
}

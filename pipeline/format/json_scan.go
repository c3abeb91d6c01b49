package format

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"github.com/squall-sre/squall/pipeline"
)

// maxDepth is how deep JSON may nest before a line is refused.
const maxDepth = 64

// A jsonScanner walks over JSON text in place. It is strict (RFC 8259) but for bytes that are no UTF-8,
// which nginx and others write as they came.
type jsonScanner struct {
	text []byte
	pos  int
	mem  *arena
	bad  pipeline.Reason // why the walk ended early
}

// jsonKind is what a value is.
type jsonKind uint8

const (
	jsonNone jsonKind = iota
	jsonString
	jsonNumber
	jsonTrue
	jsonFalse
	jsonNull
	jsonObject
	jsonArray
)

func (s *jsonScanner) fail(reason pipeline.Reason) jsonKind {
	if s.bad == "" {
		s.bad = reason
	}
	return jsonNone
}

func (s *jsonScanner) space() {
	for s.pos < len(s.text) && s.text[s.pos] <= ' ' {
		switch s.text[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// expect takes the byte c; the end of the text is a cut line, anything else is not JSON.
func (s *jsonScanner) expect(c byte) bool {
	s.space()
	if s.pos >= len(s.text) {
		s.fail(pipeline.ReasonTruncated)
		return false
	}
	if s.text[s.pos] != c {
		s.fail(pipeline.ReasonBadJSON)
		return false
	}
	s.pos++
	return true
}

// peek gives the next byte that is no space, 0 at the end.
func (s *jsonScanner) peek() byte {
	s.space()
	if s.pos >= len(s.text) {
		return 0
	}
	return s.text[s.pos]
}

// open enters an object or array; more tells whether it has a first member.
func (s *jsonScanner) open(c byte) (more bool) {
	if !s.expect(c) {
		return false
	}
	if s.peek() == c+2 { // '{'+2 == '}', '['+2 == ']'
		s.pos++
		return false
	}
	return true
}

// next passes the comma between members, or the end of the object or array that c opened.
func (s *jsonScanner) next(c byte) (more bool) {
	if s.pos < len(s.text) && s.text[s.pos] == ',' && s.bad == "" {
		s.pos++
		return true
	}
	return s.after(c)
}

// after is next for what is not the comma itself.
func (s *jsonScanner) after(c byte) (more bool) {
	if s.bad != "" {
		return false
	}
	switch s.peek() {
	case ',':
		s.pos++
		return true
	case c + 2:
		s.pos++
	case 0:
		if s.pos >= len(s.text) {
			s.fail(pipeline.ReasonTruncated)
			return false
		}
		s.fail(pipeline.ReasonBadJSON)
	default:
		s.fail(pipeline.ReasonBadJSON)
	}
	return false
}

// key reads a member's name and its colon.
func (s *jsonScanner) key() []byte {
	if i := s.pos; i < len(s.text) && s.text[i] == '"' { // mostly without spaces and escapes
		if end := special(s.text, i+1); end+1 < len(s.text) && s.text[end] == '"' && s.text[end+1] == ':' {
			s.pos = end + 2
			return s.text[i+1 : end : end]
		}
	}
	if !s.expect('"') {
		return nil
	}
	k, ok := s.str()
	if !ok || !s.expect(':') {
		return nil
	}
	return k
}

// str reads a string whose opening quote was taken, with its escapes undone.
func (s *jsonScanner) str() ([]byte, bool) {
	start := s.pos
	raw, escaped, ok := s.raw()
	if !ok || !escaped {
		return raw, ok
	}
	out, ok := s.unescape(raw)
	if !ok {
		s.pos = start
		s.fail(pipeline.ReasonBadJSON)
	}
	return out, ok
}

// raw reads a string whose opening quote was taken, as it stands.
func (s *jsonScanner) raw() (raw []byte, escaped, ok bool) {
	start := s.pos
	for i := s.pos; ; {
		i = special(s.text, i)
		if i >= len(s.text) {
			s.pos = len(s.text)
			s.fail(pipeline.ReasonTruncated)
			return nil, false, false
		}
		switch s.text[i] {
		case '"':
			s.pos = i + 1
			return s.text[start:i:i], escaped, true
		case '\\':
			escaped = true
			i += 2
		default:
			s.pos = i
			s.fail(pipeline.ReasonBadJSON)
			return nil, false, false
		}
	}
}

// ones and highs have the lowest and the highest bit of each byte of a word.
const ones, highs = 0x0101010101010101, 0x8080808080808080

// special finds the first quote, backslash or control character from i on; len(text) or more when there is none.
// It looks at eight bytes at a time: a byte less than n borrows into its highest bit from x-n, and only a byte
// behind the first can do so wrongly. With one bit turned the quote is the first byte behind the control characters,
// and what was there is behind it.
func special(text []byte, i int) int {
	const turn = '"' ^ ' '
	for i+8 <= len(text) {
		x := binary.LittleEndian.Uint64(text[i:])
		quote, backslash := x^(ones*turn), x^(ones*'\\')
		found := ((quote-ones*(' '+1))&^quote | (backslash-ones)&^backslash) & highs
		if found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
		i += 8
	}
	for i < len(text) && text[i] >= 0x20 && text[i] != '"' && text[i] != '\\' {
		i++
	}
	return i
}

func (s *jsonScanner) unescape(raw []byte) ([]byte, bool) {
	out := s.mem.take(len(raw))
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(out, raw...), true
		}
		out = append(out, raw[:i]...)
		raw = raw[i:]
		if len(raw) < 2 {
			return nil, false
		}
		switch e := raw[1]; {
		case e == 'u' && hex(raw[2:], 4) >= 0:
			r, n := unicodeEscape(raw)
			out = utf8.AppendRune(out, r)
			raw = raw[n:]
		case e != 'v' && plainEscapes[e] != 0:
			out = append(out, plainEscapes[e])
			raw = raw[2:]
		default:
			return nil, false
		}
	}
	return out, true
}

// scalar reads a value. Objects and arrays are left unread, at their opening byte.
func (s *jsonScanner) scalar() (jsonKind, []byte) {
	c := s.peek()
	switch {
	case c == '"':
		s.pos++
		if end := special(s.text, s.pos); end < len(s.text) && s.text[end] == '"' {
			v := s.text[s.pos:end:end]
			s.pos = end + 1
			return jsonString, v
		}
		v, ok := s.str()
		if !ok {
			return jsonNone, nil
		}
		return jsonString, v
	case c == '{':
		return jsonObject, nil
	case c == '[':
		return jsonArray, nil
	case c == 't':
		return s.word("true", jsonTrue)
	case c == 'f':
		return s.word("false", jsonFalse)
	case c == 'n':
		return s.word("null", jsonNull)
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case s.pos >= len(s.text):
		return s.fail(pipeline.ReasonTruncated), nil
	}
	return s.fail(pipeline.ReasonBadJSON), nil
}

func (s *jsonScanner) word(w string, kind jsonKind) (jsonKind, []byte) {
	rest := s.text[s.pos:]
	if len(rest) >= len(w) && string(rest[:len(w)]) == w {
		s.pos += len(w)
		return kind, rest[:len(w)]
	}
	if len(rest) < len(w) && string(rest) == w[:len(rest)] {
		return s.fail(pipeline.ReasonTruncated), nil
	}
	return s.fail(pipeline.ReasonBadJSON), nil
}

func (s *jsonScanner) number() (jsonKind, []byte) {
	start, i := s.pos, s.pos+1
	for i < len(s.text) && s.text[i] >= '0' && s.text[i] <= '9' {
		i++
	}
	plain := s.text[start] != '-' && i < len(s.text) && s.text[i] != '.' && s.text[i]|0x20 != 'e' && s.text[i] != '-' && s.text[i] != '+'
	for i < len(s.text) && !plain {
		c := s.text[i]
		if (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c|0x20 != 'e' {
			break
		}
		i++
	}
	s.pos = i
	if i >= len(s.text) {
		return s.fail(pipeline.ReasonTruncated), nil
	}
	v := s.text[start:i:i]
	if !plain && !validNumber(v) {
		s.pos = start
		return s.fail(pipeline.ReasonBadJSON), nil
	}
	return jsonNumber, v
}

// validNumber checks the grammar -?digits[.digits][e[+-]digits]. Leading zeros pass: nginx prints 000.
func validNumber(v []byte) bool {
	i := 0
	run := func() bool {
		start := i
		for i < len(v) && v[i] >= '0' && v[i] <= '9' {
			i++
		}
		return i > start
	}
	if v[0] == '-' {
		i++
	}
	if !run() {
		return false
	}
	if i < len(v) && v[i] == '.' {
		i++
		if !run() {
			return false
		}
	}
	if i < len(v) && (v[i] == 'e' || v[i] == 'E') {
		i++
		if i < len(v) && (v[i] == '+' || v[i] == '-') {
			i++
		}
		if !run() {
			return false
		}
	}
	return i == len(v)
}

// skip passes over a value of any kind, without recursion.
func (s *jsonScanner) skip() bool {
	var opened [maxDepth]byte
	depth := 0
	for {
		kind := s.pastScalar()
		more := false
		switch kind {
		case jsonNone:
			return false
		case jsonObject, jsonArray:
			if depth == maxDepth {
				s.fail(pipeline.ReasonBadJSON)
				return false
			}
			c := s.text[s.pos]
			if more = s.open(c); more {
				opened[depth] = c
				depth++
			}
		}
		for depth > 0 && !more {
			if more = s.next(opened[depth-1]); !more {
				depth--
			}
			if s.bad != "" {
				return false
			}
		}
		if s.bad != "" {
			return false
		}
		if depth == 0 {
			return true
		}
		if opened[depth-1] == '{' && s.key() == nil && s.bad != "" {
			return false
		}
	}
}

// pastScalar is scalar for a value that nobody wants: escapes are checked, and not undone.
func (s *jsonScanner) pastScalar() jsonKind {
	if s.peek() != '"' {
		kind, _ := s.scalar()
		return kind
	}
	s.pos++
	start := s.pos
	raw, escaped, ok := s.raw()
	if ok && escaped && !validEscapes(raw) {
		s.pos = start
		return s.fail(pipeline.ReasonBadJSON)
	}
	if !ok {
		return jsonNone
	}
	return jsonString
}

func validEscapes(raw []byte) bool {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return true
		}
		if raw = raw[i+1:]; len(raw) == 0 {
			return false
		}
		switch e := raw[0]; {
		case e == 'u' && hex(raw[1:], 4) >= 0:
		case e != 'v' && plainEscapes[e] != 0:
		default:
			return false
		}
		raw = raw[1:]
	}
}

// end demands that nothing but space follows.
func (s *jsonScanner) end() bool {
	s.space()
	if s.bad == "" && s.pos < len(s.text) {
		s.fail(pipeline.ReasonBadJSON)
	}
	return s.bad == ""
}

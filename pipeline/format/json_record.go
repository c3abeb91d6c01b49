package format

import (
	"bytes"
	"fmt"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// An objectReader is one kind of object that tells of a request.
type objectReader interface {
	// read takes the object at which s stands, to its end or to s.bad, and sets r. A reason says why it is none
	// of its kind, or holds what cannot be.
	read(s *jsonScanner, r *pipeline.Record) pipeline.Reason
}

// jsonRecords reads lines of JSON objects. Two writers of one file, or a lost line end, put several on a line:
// each becomes an Item. Objects of another kind before a record on the same line belong to it.
type jsonRecords struct {
	object objectReader
	list   bool // a list may stand around the objects: {"records":[{…},{…}]}, on one line or on several
	scan   jsonScanner
	mem    arena
}

// Parse reads the line's first record. item.Rest is what follows it.
func (f *jsonRecords) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	s := &f.scan
	*s = jsonScanner{text: line, mem: &f.mem}
	if f.list && !f.enter(s) {
		item.Kind = pipeline.Ignored // the list's beginning or end
		return
	}
	if s.peek() != '{' {
		fail(item, pipeline.ReasonNotAccess, s.pos+skip)
		return
	}
	var first pipeline.Reason
	for {
		reason := f.object.read(s, &item.Record)
		at := s.pos
		if s.bad == "" {
			f.between(s)
		}
		switch {
		case s.bad != "":
			fail(item, s.bad, s.pos+skip)
			return
		case reason == "":
			item.Kind = pipeline.IsRecord
			if s.pos < len(line) {
				item.Rest = line[s.pos:]
			}
			return
		case first == "":
			first = reason
			item.Column = at + skip
		}
		if s.pos >= len(line) {
			fail(item, first, item.Column)
			return
		}
		item.Record.Reset()
	}
}

// between passes what may stand between two objects, or behind the last one.
func (f *jsonRecords) between(s *jsonScanner) {
	for f.list {
		c := s.peek()
		if c != ',' && c != ']' && c != '}' {
			break
		}
		s.pos++
	}
	if s.peek() != '{' {
		s.end()
	}
}

var recordsKey = []byte("records")

// enter passes the beginning of a list; false when the line holds nothing but that, or its end.
func (f *jsonRecords) enter(s *jsonScanner) bool {
	start := s.pos
	if s.peek() == '{' {
		s.pos++
		if s.peek() != '"' || !bytes.Equal(s.key(), recordsKey) || s.peek() != '[' {
			*s = jsonScanner{text: s.text, pos: start, mem: s.mem}
			return true
		}
	}
	for {
		switch s.peek() {
		case '[', ',', ']', '}':
			s.pos++
		case 0:
			return s.pos < len(s.text)
		default:
			return true
		}
	}
}

// member reads a member's name and its value. Objects and arrays are left at their opening byte, and are the
// caller's to read or to skip.
func (s *jsonScanner) member() (key []byte, kind jsonKind, val []byte) {
	key = s.key()
	if s.bad != "" {
		return nil, jsonNone, nil
	}
	kind, val = s.scalar()
	return key, kind, val
}

// pass skips a value that member left unread.
func (s *jsonScanner) pass(kind jsonKind) {
	if kind == jsonObject || kind == jsonArray {
		s.skip()
	}
}

// textOf gives the text of a string; nil for "-", null and anything else.
func textOf(kind jsonKind, val []byte) []byte {
	if kind != jsonString {
		return nil
	}
	return text(val)
}

// someOf is textOf with "" as nil too.
func someOf(kind jsonKind, val []byte) []byte {
	if kind != jsonString || absent(val) {
		return nil
	}
	return val
}

// numeric tells whether a value is a number, or a string in the place of one; "-" and "" are none.
func numeric(kind jsonKind, val []byte) bool {
	return kind == jsonNumber || kind == jsonString && !absent(val)
}

// countOf reads a size; Unknown when there is none. ok is false for what is no size.
func countOf(kind jsonKind, val []byte) (n int64, ok bool) {
	if !numeric(kind, val) {
		return pipeline.Unknown, kind != jsonObject && kind != jsonArray
	}
	if n, ok = uintOf(val); ok {
		return n, true
	}
	n, ok = scaled(val, 0)
	if !ok || n < 0 {
		return pipeline.Unknown, false
	}
	return n, true
}

// statusOf reads a status, as a number or a string; 0 when none was sent.
func statusOf(kind jsonKind, val []byte) (status uint16, ok bool) {
	n, ok := countOf(kind, val)
	if !ok || n > 999 {
		return 0, false
	}
	if n < 100 { // Unknown, 0, 000
		return 0, true
	}
	return uint16(n), true
}

// spanOf reads a duration in units of 10^-digits seconds; Unknown when there is none or it cannot be one.
func spanOf(kind jsonKind, val []byte, digits int) int64 {
	if !numeric(kind, val) {
		return pipeline.Unknown
	}
	t, ok := scaled(val, 9-digits)
	if !ok || t < 0 || t > maxSpan {
		return pipeline.Unknown
	}
	return t
}

// unitDigits gives the power of ten that a second has of a unit.
var unitDigits = map[string]int{"s": 0, "ms": 3, "us": 6, "ns": 9}

// durationDigits reads a configured unit; -1 for none.
func durationDigits(unit string) (int, error) {
	if unit == "" {
		return -1, nil
	}
	digits, ok := unitDigits[unit]
	if !ok {
		return 0, fmt.Errorf("duration_unit %q is none of s, ms, us, ns", unit)
	}
	return digits, nil
}

// goSpan reads a duration as Go prints it: 1m30.5s, 107.341ms.
func goSpan(val []byte) int64 {
	if len(val) == 0 || len(val) > 32 {
		return pipeline.Unknown
	}
	if c := val[len(val)-1]; c != 's' && c != 'm' && c != 'h' {
		return pipeline.Unknown
	}
	d, err := time.ParseDuration(borrow(val))
	if err != nil || d < 0 || d > maxSpan {
		return pipeline.Unknown
	}
	return int64(d)
}

// scaled reads a decimal number, with fraction and exponent, times 10^power, cut to a whole number.
func scaled(s []byte, power int) (int64, bool) {
	negative := len(s) > 0 && s[0] == '-'
	if negative {
		s = s[1:]
	}
	var n uint64
	digits, i, point := 0, 0, false
	for ; i < len(s); i++ {
		c := s[i]
		if c == '.' && !point {
			point = true
			continue
		}
		if c < '0' || c > '9' {
			break
		}
		digits++
		if n > 999_999_999_999_999_999 { // 18 digits are kept
			if !point {
				power++
			}
			continue
		}
		n = n*10 + uint64(c-'0')
		if point {
			power--
		}
	}
	if digits == 0 {
		return 0, false
	}
	if i < len(s) {
		exponent, ok := exponentOf(s[i:])
		if !ok {
			return 0, false
		}
		power += exponent
	}
	switch {
	case n == 0 || power == 0:
	case power >= len(powers) || power > 0 && n > (1<<63-1)/powers[power]:
		return 0, false
	case power > 0:
		n *= powers[power]
	case -power >= len(powers):
		n = 0
	default:
		n /= powers[-power]
	}
	if n > 1<<63-1 {
		return 0, false
	}
	if negative {
		return -int64(n), true
	}
	return int64(n), true
}

// powers are those of ten that n has room for.
var powers = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19}

// exponentOf reads e+09.
func exponentOf(s []byte) (int, bool) {
	if s[0] != 'e' && s[0] != 'E' {
		return 0, false
	}
	s = s[1:]
	sign := 1
	if len(s) > 0 && (s[0] == '+' || s[0] == '-') {
		if s[0] == '-' {
			sign = -1
		}
		s = s[1:]
	}
	if len(s) == 0 || len(s) > 4 {
		return 0, false
	}
	n := num(s)
	return sign * n, n >= 0
}

// A stampClock reads a time in whatever form JSON logs write it.
type stampClock struct {
	iso isoClock
	clf clfClock
}

// parse gives ns since the epoch and the smallest step that the form can tell, in ns.
func (c *stampClock) parse(kind jsonKind, val []byte) (t, step int64, ok bool) {
	if kind == jsonNumber {
		return epoch(val)
	}
	if kind != jsonString || len(val) < 9 {
		return 0, 0, false
	}
	switch {
	case val[4] == '-':
		t, ok = c.iso.parse(val)
		step = isoStep(val)
	case val[2] == '/':
		t, ok = c.clf.parse(val)
		step = 1e9
	case val[4] == '/':
		t, ok = c.wall(val)
		step = isoStep(val)
	default:
		return epoch(val)
	}
	return t, step, ok
}

// isoStep gives the step of a time whose fraction may follow the seconds.
func isoStep(val []byte) int64 {
	if len(val) > isoLen && (val[isoLen] == '.' || val[isoLen] == ',') {
		return fractionStep(val[isoLen+1:])
	}
	return 1e9
}

// wall reads 2026/03/29 00:26:24.310.
func (c *stampClock) wall(val []byte) (int64, bool) {
	var dashed [40]byte
	if len(val) < isoLen || len(val) > len(dashed) || val[7] != '/' || val[10] != ' ' {
		return 0, false
	}
	n := copy(dashed[:], val)
	dashed[4], dashed[7] = '-', '-'
	return c.iso.parse(dashed[:n])
}

// epoch reads a number of seconds, ms, µs or ns since 1970. Which, its size tells: the ranges of the years 1973
// to 5138 do not meet.
func epoch(val []byte) (t, step int64, ok bool) {
	whole, ok := scaled(val, 0)
	if !ok || whole < 0 {
		return 0, 0, false
	}
	power := 9
	for limit := int64(1e11); whole >= limit && power > 0; limit *= 1e3 {
		power -= 3
		if power == 0 {
			break
		}
	}
	t, ok = scaled(val, power)
	if !ok || t > maxSeconds*1e9 {
		return 0, 0, false
	}
	step = int64(1)
	for range power {
		step *= 10
	}
	if i := bytes.IndexByte(val, '.'); i >= 0 {
		for _, d := range val[i+1:] {
			if d < '0' || d > '9' || step == 1 {
				break
			}
			step /= 10
		}
	}
	return t, step, true
}

// setTimes sets start and end of a record whose log names the end.
func setTimes(r *pipeline.Record) {
	r.End, r.Start = r.Time, r.Time-max(r.RequestTime, 0)
}

// setTimesFromStart sets start and end of a record whose log names the start.
func setTimesFromStart(r *pipeline.Record) {
	r.Start, r.End = r.Time, r.Time+max(r.RequestTime, 0)
}

// streamed tells whether a response lasts as long as its client wants it to.
func streamed(status uint16, contentType []byte) bool {
	return status == 101 || bytes.HasPrefix(contentType, eventStream) || bytes.HasPrefix(contentType, grpcType)
}

// A setter takes one member of an object at a time.
type setter interface {
	set(r *pipeline.Record, key []byte, kind jsonKind, val []byte) pipeline.Reason
}

// members hands an object's members to o, and gives the first reason why one of them was refused.
func members(s *jsonScanner, r *pipeline.Record, o setter) (wrong pipeline.Reason) {
	for more := s.open('{'); more; more = s.next('{') {
		key, kind, val := s.member()
		if kind == jsonNone {
			return s.bad
		}
		s.pass(kind)
		if reason := o.set(r, key, kind, val); reason != "" && wrong == "" {
			wrong = reason
		}
	}
	return wrong
}

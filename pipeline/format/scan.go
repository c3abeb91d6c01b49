package format

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/squall-sre/squall/pipeline"
)

// arenaChunk is how much memory an arena takes at a time, in bytes.
const arenaChunk = 64 << 10

// An arena gives out memory for values that differ from their bytes in the line (escapes undone). What it
// gave out is never reused, so it holds as long as anything refers to it; a chunk serves thousands of lines.
type arena struct{ free []byte }

// take returns an empty slice with room for n bytes.
func (a *arena) take(n int) []byte {
	if n > len(a.free) {
		a.free = make([]byte, max(n, arenaChunk))
	}
	s := a.free[0:0:n]
	a.free = a.free[n:]
	return s
}

// again makes item ready for another try at the same line: what the road set stays.
func again(item *pipeline.Item) {
	item.Kind, item.Reason, item.Column, item.Rest = pipeline.Failed, "", 0, nil
	item.Events = item.Events[:0]
	item.Record.Reset()
}

var bom = []byte("\xef\xbb\xbf")

// trimLine takes off what is around a line and not of it: NUL holes that copytruncate or a power loss left
// in front, a byte order mark, a carriage return. skip is how many bytes went in front.
func trimLine(line []byte) (rest []byte, skip int) {
	rest = line
	if len(rest) > 0 && rest[0] == 0 {
		rest = bytes.TrimLeft(rest, "\x00")
	}
	if len(rest) > 0 && rest[0] == bom[0] {
		rest = bytes.TrimPrefix(rest, bom)
	}
	skip = len(line) - len(rest)
	for len(rest) > 0 && (rest[len(rest)-1] == '\r' || rest[len(rest)-1] == '\n') {
		rest = rest[:len(rest)-1]
	}
	return rest, skip
}

// fail makes item Failed.
func fail(item *pipeline.Item, reason pipeline.Reason, column int) {
	item.Kind, item.Reason, item.Column = pipeline.Failed, reason, column
}

// near is for how many bytes find looks itself before it asks bytes.IndexByte, whose call costs as much.
const near = 16

// find gives the index of the first c from i on, or -1. Most values of a log are short: eight bytes at a time are
// compared in place (see special).
func find(b []byte, i int, c byte) int {
	pattern := ones * uint64(c)
	for end := i + near; i < end && i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:]) ^ pattern
		if found := (x - ones) &^ x & highs; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	if i >= len(b) {
		return -1
	}
	j := bytes.IndexByte(b[i:], c)
	if j < 0 {
		return -1
	}
	return i + j
}

// closingQuote gives the index of the quote that ends the quoted text beginning at pos, or -1. A backslash
// hides the byte behind it: nginx's default escaping writes \xXX and never \", so that one rule serves
// it, escape=json, ALB and Apache.
func closingQuote(line []byte, pos int) int {
	for {
		i := find(line, pos, '"')
		if i < 0 {
			return -1
		}
		hidden := false
		for j := i - 1; j >= pos && line[j] == '\\'; j-- {
			hidden = !hidden
		}
		if !hidden {
			return i
		}
		pos = i + 1
	}
}

// hexValues holds each hexadecimal digit's value and one; 0 is for what is none.
var hexValues = [256]uint8{
	'0': 1, '1': 2, '2': 3, '3': 4, '4': 5, '5': 6, '6': 7, '7': 8, '8': 9, '9': 10,
	'a': 11, 'b': 12, 'c': 13, 'd': 14, 'e': 15, 'f': 16, 'A': 11, 'B': 12, 'C': 13, 'D': 14, 'E': 15, 'F': 16,
}

// unhex gives the value of a hexadecimal digit, -1 for what is none.
func unhex(c byte) int { return int(hexValues[c]) - 1 }

// hex reads n hexadecimal digits at the start of s, or gives -1.
func hex(s []byte, n int) int {
	if len(s) < n {
		return -1
	}
	v := 0
	for _, c := range s[:n] {
		d := unhex(c)
		if d < 0 {
			return -1
		}
		v = v<<4 | d
	}
	return v
}

// plainEscapes are the escapes of one letter; 0 is none.
var plainEscapes = [256]byte{
	'"': '"', '\\': '\\', '/': '/', 'n': '\n', 'r': '\r', 't': '\t', 'b': '\b', 'f': '\f', 'v': '\v',
}

// unescape undoes the escapes of a text log: \xXX in either case, the letters, \uXXXX. What is none of
// these stays as it is. Without a backslash it returns s itself.
func (a *arena) unescape(s []byte) []byte {
	i := bytes.IndexByte(s, '\\')
	if i < 0 {
		return s
	}
	out := append(a.take(len(s)), s[:i]...)
	for i < len(s) {
		c := s[i]
		if c != '\\' || i+1 == len(s) {
			out = append(out, c)
			i++
			continue
		}
		switch e := s[i+1]; {
		case e == 'x' && hex(s[i+2:], 2) >= 0:
			out = append(out, byte(hex(s[i+2:], 2)))
			i += 4
		case e == 'u' && hex(s[i+2:], 4) >= 0:
			r, n := unicodeEscape(s[i:])
			out = utf8.AppendRune(out, r)
			i += n
		case e != '/' && plainEscapes[e] != 0:
			out = append(out, plainEscapes[e])
			i += 2
		default:
			out = append(out, c)
			i++
		}
	}
	return out
}

// unicodeEscape reads \uXXXX, or a pair of surrogates, at the start of s; n is its length.
func unicodeEscape(s []byte) (r rune, n int) {
	r, n = rune(hex(s[2:], 4)), 6
	if utf16.IsSurrogate(r) {
		if len(s) >= 12 && s[6] == '\\' && s[7] == 'u' {
			if low := hex(s[8:], 4); low >= 0 {
				if pair := utf16.DecodeRune(r, rune(low)); pair != utf8.RuneError {
					return pair, 12
				}
			}
		}
		return utf8.RuneError, n
	}
	return r, n
}

// absent tells whether a logged value says that there is none: "-" or nothing.
func absent(v []byte) bool { return len(v) == 0 || len(v) == 1 && v[0] == '-' }

// text gives a value, nil for "-".
func text(v []byte) []byte {
	if len(v) == 1 && v[0] == '-' {
		return nil
	}
	return v
}

// uintOf reads a whole decimal number of up to 18 digits.
func uintOf(s []byte) (int64, bool) {
	if len(s) == 0 || len(s) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// nanos reads seconds with an optional fraction into ns. It knows no sign and no exponent.
func nanos(s []byte) (int64, bool) {
	i, whole := 0, int64(0)
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		if i == 10 {
			return 0, false
		}
		whole = whole*10 + int64(s[i]-'0')
		i++
	}
	if i == 0 || whole > maxSeconds {
		return 0, false
	}
	if i == len(s) {
		return whole * 1e9, true
	}
	if s[i] != '.' || i+1 == len(s) {
		return 0, false
	}
	frac, n := fraction(s[i+1:])
	if n != len(s)-i-1 {
		return 0, false
	}
	return whole*1e9 + frac, true
}

// maxSeconds bounds epoch times, so that their nanoseconds stay inside int64.
const maxSeconds = 8_000_000_000

// maxSpan bounds durations, in ns: a year. What says more is no duration.
const maxSpan = 366 * 86400 * 1e9

// span reads a duration in seconds into ns.
func span(s []byte) (int64, bool) {
	t, ok := nanos(s)
	return t, ok && t <= maxSpan
}

// fraction reads the digits behind a decimal point as ns; n is how many bytes it took. Digits behind the
// ninth are passed over.
func fraction(s []byte) (ns int64, n int) {
	unit := int64(1e8)
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		ns += int64(s[n]-'0') * unit
		unit /= 10
		n++
	}
	return ns, n
}

// borrow gives the bytes as a string without copying: for look-ups that keep nothing.
func borrow(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// addrOf reads an IP address, or gives an invalid one for a host name, "unix:" or "-". Brackets are
// allowed around IPv6; a zone is left out, since it is a name of the sender's.
func addrOf(s []byte) netip.Addr {
	if len(s) < 2 {
		return netip.Addr{}
	}
	if a, ok := ipv4(s); ok {
		return a
	}
	if a, ok := ipv6(s); ok {
		return a
	}
	if s[0] == '[' && s[len(s)-1] == ']' {
		s = s[1 : len(s)-1]
	}
	if i := bytes.IndexByte(s, '%'); i > 0 && isZone(s[i+1:]) {
		s = s[:i]
	}
	if len(s) > 45 || bytes.IndexByte(s, ':') < 0 || s[0] == 'u' {
		return netip.Addr{}
	}
	for _, c := range s {
		if unhex(c) < 0 && c != ':' && c != '.' {
			return netip.Addr{}
		}
	}
	a, err := netip.ParseAddr(borrow(s))
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap()
}

// maxZone is how long the name of an interface may be, in bytes.
const maxZone = 32

// isZone tells whether s can be the name or number of an interface behind an address.
func isZone(s []byte) bool {
	for _, c := range s {
		if c != '-' && c != '_' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return len(s) > 0 && len(s) <= maxZone
}

// ipv4 reads four numbers without zeros in front, which are octal to some.
func ipv4(s []byte) (netip.Addr, bool) {
	var out [4]byte
	i := 0
	for field := range out {
		if field > 0 {
			if i >= len(s) || s[i] != '.' {
				return netip.Addr{}, false
			}
			i++
		}
		start, value := i, 0
		for i < len(s) && i-start < 4 && s[i]-'0' <= 9 {
			value = value*10 + int(s[i]-'0')
			i++
		}
		if n := i - start; n == 0 || value > 255 || n > 1 && s[start] == '0' {
			return netip.Addr{}, false
		}
		out[field] = byte(value)
	}
	return netip.AddrFrom4(out), i == len(s)
}

// ipv6 reads groups of hexadecimal digits. What is no address to it may still be one (::ffff:10.1.2.3).
func ipv6(s []byte) (netip.Addr, bool) {
	var out [16]byte
	n, gap, i := 0, -1, 0 // gap: how many bytes stand before the two colons
	if len(s) >= 2 && s[0] == ':' && s[1] == ':' {
		gap, i = 0, 2
	}
	for i < len(s) {
		start, group := i, 0
		for i < len(s) && hexValues[s[i]] != 0 {
			group = group<<4 | unhex(s[i])
			i++
		}
		if i == start || i > start+4 || n == len(out) {
			return netip.Addr{}, false
		}
		out[n], out[n+1] = byte(group>>8), byte(group)
		if n += 2; i == len(s) {
			break
		}
		if s[i] != ':' || i+1 == len(s) {
			return netip.Addr{}, false
		}
		if i++; s[i] == ':' {
			if gap >= 0 {
				return netip.Addr{}, false
			}
			gap = n
			i++
		}
	}
	switch {
	case gap < 0 && n < len(out) || gap >= 0 && n == len(out):
		return netip.Addr{}, false
	case gap >= 0:
		copy(out[len(out)-(n-gap):], out[gap:n])
		clear(out[gap : len(out)-(n-gap)])
	}
	return netip.AddrFrom16(out).Unmap(), true
}

// addrPort cuts address:port at the last colon: balancers print IPv6 without brackets, so that the whole
// may look like an address of its own.
func addrPort(s []byte) (netip.Addr, uint16) {
	i := bytes.LastIndexByte(s, ':')
	if i < 0 {
		return addrOf(s), 0
	}
	port, ok := uintOf(s[i+1:])
	if !ok || port > 65535 {
		return addrOf(s), 0
	}
	return addrOf(s[:i]), uint16(port)
}

// addrAnyPort reads an address with a port or without: what is an address as a whole is one.
func addrAnyPort(s []byte) (netip.Addr, uint16) {
	if a := addrOf(s); a.IsValid() {
		return a, 0
	}
	return addrPort(s)
}

func isHex(s []byte) bool {
	for _, c := range s {
		if unhex(c) < 0 {
			return false
		}
	}
	return true
}

// hostOf takes user information, port and brackets off an authority; nil when nothing is left.
func hostOf(s []byte) []byte {
	if i := bytes.LastIndexByte(s, '@'); i >= 0 {
		s = s[i+1:]
	}
	if len(s) > 0 && s[0] == '[' {
		if i := bytes.IndexByte(s, ']'); i > 0 {
			return text(s[1:i])
		}
	}
	if i := bytes.IndexByte(s, ':'); i >= 0 && (bytes.IndexByte(s[i+1:], ':') < 0 || !isHex(s[:i])) {
		s = s[:i] // else it is IPv6 without brackets
	}
	if absent(s) {
		return nil
	}
	return s
}

// maxText bounds the strings of an Event, in bytes.
const maxText = 512

// clip copies s for an Event: at most maxText bytes, cut at a rune, valid UTF-8.
func clip(s string) string {
	if len(s) > maxText {
		cut := maxText
		for cut > maxText-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	return strings.ToValidUTF8(strings.Clone(s), "\ufffd")
}

package format

import (
	"bytes"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// A syslogFramer takes off the header of RFC 5424, or what goes by the name of RFC 3164, and in front of it the
// time at which the source syslog received the message (@, µs since the epoch). The time is the header's own; its year,
// and all of it when the header tells none, is that of the receipt. Without that one too it stays unknown.
type syslogFramer struct {
	bare
	iso   isoClock
	short yearless
}

func newSyslogFramer(zone *time.Location) pipeline.Framer {
	return &syslogFramer{iso: isoClock{zone: zone}, short: yearless{zone: zone}}
}

// Next unwraps a message.
func (f *syslogFramer) Next(physical []byte, offset int64) ([]byte, int64, int64, pipeline.Reason) {
	line, _ := trimLine(physical)
	line, received := receipt(line)
	f.short.know(received)
	message := priority(line)
	rest, t, ok := f.rfc5424(message)
	if !ok {
		rest, t = f.rfc3164(message, len(message) < len(line))
	}
	if t == 0 {
		t = received
	}
	rest, _ = trimLine(rest)
	if len(rest) == 0 {
		return nil, offset, 0, pipeline.ReasonEmpty
	}
	return rest, offset, t, ""
}

// receipt takes off "@1774743984000000 ".
func receipt(line []byte) (rest []byte, ns int64) {
	if len(line) == 0 || line[0] != '@' {
		return line, 0
	}
	end := bytes.IndexByte(line[:min(len(line), 20)], ' ')
	if end < 0 {
		return line, 0
	}
	us, ok := uintOf(line[1:end])
	if !ok || us > maxSeconds*1e6 {
		return line, 0
	}
	return line[end+1:], us * 1e3
}

// priority takes off "<134>".
func priority(line []byte) []byte {
	if len(line) < 3 || line[0] != '<' {
		return line
	}
	end := bytes.IndexByte(line[:min(len(line), 5)], '>')
	if end < 2 || num(line[1:end]) < 0 {
		return line
	}
	return line[end+1:]
}

// rfc5424 reads VERSION TIME HOST APP PROCID MSGID SD MESSAGE.
func (f *syslogFramer) rfc5424(line []byte) (rest []byte, t int64, ok bool) {
	if len(line) < 4 || line[0] != '1' || line[1] != ' ' {
		return nil, 0, false
	}
	stamp, pos := token(line, 2)
	if string(stamp) != "-" {
		if t, ok = f.iso.parse(stamp); !ok {
			return nil, 0, false
		}
	}
	for range 4 {
		var word []byte
		if word, pos = token(line, pos); len(word) == 0 {
			return nil, 0, false
		}
	}
	if pos >= len(line) {
		return nil, 0, false
	}
	rest = structured(line[pos:])
	if len(rest) > 0 && rest[0] == ' ' {
		rest = rest[1:]
	}
	return rest, t, true
}

// structured passes over the structured data: - or [id key="value" …]…. A ] in a value is escaped.
func structured(s []byte) []byte {
	if s[0] == '-' {
		return s[1:]
	}
	i := 0
	for i < len(s) && s[i] == '[' {
		quoted := false
		for i++; i < len(s) && (quoted || s[i] != ']'); i++ {
			switch {
			case s[i] == '\\' && quoted:
				i++
			case s[i] == '"':
				quoted = !quoted
			}
		}
		i = min(i+1, len(s))
	}
	return s[i:]
}

const shortStamp = len("Mar 29 00:26:24")

// rfc3164 reads TIME [HOST] [TAG:] MESSAGE. TIME is "Mar 29 00:26:24", with a fraction in some programs, or ISO 8601.
// Without a priority in front, a tag without a time may be the message's own first word.
func (f *syslogFramer) rfc3164(line []byte, header bool) (rest []byte, t int64) {
	word, pos := token(line, 0)
	if len(line) > shortStamp && monthOf(word) > 0 && line[6] == ' ' && line[9] == ':' && line[12] == ':' {
		word, pos = token(line, 7)
		var frac int64
		if len(word) > len("00:26:24.") && word[8] == '.' {
			frac, _ = fraction(word[9:])
		}
		day := leadingInt(bytes.TrimLeft(line[4:6], " "))
		t = f.short.resolve(monthOf(line[:3]), day, num(line[7:9]), num(line[10:12]), num(line[13:15]), frac)
	} else if iso, ok := f.iso.parse(word); ok {
		t = iso
	} else if header {
		return withoutTag(line), 0
	} else {
		return line, 0
	}
	rest = line[pos:]
	if message := withoutTag(rest); len(message) < len(rest) {
		return message, t
	}
	_, host := token(rest, 0)
	if message := withoutTag(rest[host:]); len(message) < len(rest[host:]) {
		return message, t
	}
	return rest, t
}

// maxTag bounds a tag, in bytes. RFC 3164 has 32; programs have longer names, and a process number behind.
const maxTag = 128

// withoutTag takes off "program[pid]: ".
func withoutTag(s []byte) []byte {
	word, next := token(s[:min(len(s), maxTag)], 0)
	n := len(word)
	if n < 2 || word[n-1] != ':' {
		return s
	}
	name := word[:n-1]
	if i := bytes.IndexByte(name, '['); i > 0 && name[len(name)-1] == ']' {
		name = name[:i]
	}
	if string(name) == "kernel" {
		return s // by this tag kernel_oom knows who says it
	}
	for i, c := range name {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '-' && c != '.' && c != '/') {
			return s
		}
	}
	return s[next:]
}

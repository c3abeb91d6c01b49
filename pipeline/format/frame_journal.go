package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// A journalFramer takes the message and its time out of the objects of journalctl -o json. A message's line feeds
// become spaces, since what follows takes lines. An entry's place is its sequence number.
type journalFramer struct {
	bare
	mem  arena
	text []byte
	said []byte // a kernel's message with its tag
}

var cursorNumber = []byte(";i=")

// Next unwraps an entry. One without a message is no line of a log.
func (f *journalFramer) Next(physical []byte, offset int64) ([]byte, int64, int64, pipeline.Reason) {
	line, _ := trimLine(physical)
	if len(line) == 0 {
		return nil, offset, 0, pipeline.ReasonEmpty
	}
	s := jsonScanner{text: line, mem: &f.mem}
	var message []byte
	var us int64
	kernel := false
	for more := s.open('{'); more; more = s.next('{') {
		key := s.key()
		if s.bad != "" {
			break
		}
		kind, val := s.scalar()
		switch {
		case kind == jsonArray && string(key) == "MESSAGE":
			message = f.list(&s)
		case kind == jsonObject || kind == jsonArray:
			s.skip()
		case kind != jsonString:
		case string(key) == "MESSAGE":
			message = val
		case string(key) == "__REALTIME_TIMESTAMP":
			if n, ok := uintOf(val); ok && n <= maxSeconds*1e6 {
				us = n
			}
		case string(key) == "_TRANSPORT":
			kernel = string(val) == "kernel"
		case string(key) == "__CURSOR":
			offset = cursorPlace(val, offset)
		}
	}
	switch {
	case !s.end():
		return nil, offset, 0, s.bad
	case us == 0:
		return nil, offset, 0, pipeline.ReasonMalformed
	}
	message, _ = trimLine(message)
	if len(message) == 0 {
		return nil, offset, 0, pipeline.ReasonEmpty
	}
	message = f.oneLine(message)
	if kernel { // syslog's tag: nobody else's message counts as the kernel's
		f.said = append(append(f.said[:0], kernelTag...), message...)
		message = f.said
	}
	return message, offset, us * 1e3, ""
}

// list reads the numbers of a message that is not UTF-8, or holds what UTF-8 does not print.
func (f *journalFramer) list(s *jsonScanner) []byte {
	f.text = f.text[:0]
	for more := s.open('['); more; more = s.next('[') {
		kind, val := s.scalar()
		n, ok := uintOf(val)
		if kind != jsonNumber || !ok || n > 255 {
			s.fail(pipeline.ReasonBadJSON)
			break
		}
		f.text = append(f.text, byte(n))
	}
	return f.text
}

// oneLine puts spaces for line feeds, in memory of its own.
func (f *journalFramer) oneLine(message []byte) []byte {
	if bytes.IndexByte(message, '\n') < 0 {
		return message
	}
	f.text = append(f.text[:0], message...)
	for i, c := range f.text {
		if c == '\n' {
			f.text[i] = ' '
		}
	}
	return f.text
}

// cursorPlace reads the sequence number of s=…;i=…;b=…, in hexadecimal digits.
func cursorPlace(cursor []byte, otherwise int64) int64 {
	_, rest, ok := bytes.Cut(cursor, cursorNumber)
	digits, _, _ := bytes.Cut(rest, []byte{';'})
	if !ok || len(digits) == 0 || len(digits) > 15 {
		return otherwise
	}
	n := hex(digits, len(digits))
	if n < 0 {
		return otherwise
	}
	return int64(n)
}

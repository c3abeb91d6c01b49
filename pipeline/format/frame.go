package format

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// framers are the wrappings of container runtimes (container finds out which, line by line), of the journal and of
// syslog. The zone is that of times which carry none.
var framers = map[string]func(zone *time.Location) pipeline.Framer{
	"cri":       func(*time.Location) pipeline.Framer { return &framer{unwrap: (*framer).cri} },
	"docker":    func(*time.Location) pipeline.Framer { return &framer{unwrap: (*framer).docker} },
	"container": func(*time.Location) pipeline.Framer { return &framer{unwrap: (*framer).container} },
	"journal":   func(*time.Location) pipeline.Framer { return &journalFramer{} },
	"syslog":    newSyslogFramer,
	"file":      func(*time.Location) pipeline.Framer { return &bare{} },
	"":          func(*time.Location) pipeline.Framer { return &bare{} },
}

// NewFramer is NewFramerIn for a writer whose clock is UTC.
func NewFramer(name string) (pipeline.Framer, error) { return NewFramerIn(name, time.UTC) }

// NewFramerIn makes a framer: cri, docker, container (either of the two), journal, syslog, or "" for lines that nothing
// wraps.
//
// A line that Flush gives lacks its end: the container was stopped, or its log was rotated away, within it.
// It is to be shipped and counted as ReasonPartial, not parsed: a cut line reads as a wrong record (a size
// without its last digits), not as none.
func NewFramerIn(name string, zone *time.Location) (pipeline.Framer, error) {
	newFramer, ok := framers[name]
	if !ok {
		return nil, fmt.Errorf("framing %q is not one of cri, docker, container, journal, syslog", name)
	}
	return newFramer(zone), nil
}

// SplitFraming parts cri+X, journal+X and the like; file+X is X. cri and the like alone mean cri+auto.
func SplitFraming(name string) (framing, format string) {
	framing, format, ok := strings.Cut(name, "+")
	switch _, known := framers[framing]; {
	case ok && known:
	case !ok && known && framing != "" && framing != "file":
		format = "auto"
	default:
		return "", name
	}
	if framing == "file" {
		framing = ""
	}
	return framing, format
}

// bare is the framer of lines that nothing wraps.
type bare struct{}

func (bare) Next(physical []byte, offset int64) ([]byte, int64, int64, pipeline.Reason) {
	if physical == nil {
		physical = []byte{}
	}
	return physical, offset, 0, ""
}
func (bare) Flush() ([]byte, int64, int64, bool) { return nil, 0, 0, false }
func (bare) Pending() (int64, bool)              { return 0, false }

// A part is one physical line without its wrapping.
type part struct {
	stream int // 0 stdout, 1 stderr
	text   []byte
	time   int64
	ends   bool // the logical line is complete with it
}

// framer joins the parts of each of a container's two streams. What waits is bounded by MaxLine: the rest
// of a longer line is passed over up to its end.
type framer struct {
	unwrap  func(*framer, []byte) (part, pipeline.Reason)
	clock   isoClock
	mem     arena
	pending [2]pendingLine
}

// keptPart is how much memory a stream keeps for its next split line, in bytes: one long line is no reason to
// hold a quarter of a MiB for each of thousands of containers.
const keptPart = 64 << 10

type pendingLine struct {
	text    []byte
	waiting bool
	start   int64
	time    int64
}

// Next unwraps a physical line.
func (f *framer) Next(physical []byte, offset int64) ([]byte, int64, int64, pipeline.Reason) {
	trimmed, _ := trimLine(physical)
	if len(trimmed) == 0 {
		return nil, offset, 0, pipeline.ReasonEmpty
	}
	p, reason := f.unwrap(f, trimmed)
	if reason != "" {
		return nil, offset, 0, reason
	}
	w := &f.pending[p.stream]
	if p.ends && !w.waiting {
		if p.text == nil {
			p.text = []byte{}
		}
		return p.text, offset, p.time, ""
	}
	if !w.waiting {
		if cap(w.text) > keptPart {
			w.text = nil
		}
		w.waiting, w.start, w.time, w.text = true, offset, p.time, w.text[:0]
	}
	w.text = append(w.text, p.text[:min(len(p.text), pipeline.MaxLine-len(w.text))]...)
	if !p.ends {
		return nil, w.start, w.time, ""
	}
	w.waiting = false
	return w.text, w.start, w.time, ""
}

// Flush gives the earlier of the lines that wait.
func (f *framer) Flush() ([]byte, int64, int64, bool) {
	w := f.earliest()
	if w == nil {
		return nil, 0, 0, false
	}
	w.waiting = false
	return w.text, w.start, w.time, true
}

// Pending gives where the earliest line that waits began.
func (f *framer) Pending() (int64, bool) {
	w := f.earliest()
	if w == nil {
		return 0, false
	}
	return w.start, true
}

func (f *framer) earliest() *pendingLine {
	var first *pendingLine
	for i := range f.pending {
		if w := &f.pending[i]; w.waiting && (first == nil || w.start < first.start) {
			first = w
		}
	}
	return first
}

// container unwraps either framing: Docker's lines are JSON objects, CRI's begin with a time.
func (f *framer) container(line []byte) (part, pipeline.Reason) {
	if line[0] == '{' {
		return f.docker(line)
	}
	return f.cri(line)
}

// cri reads "TIME stdout|stderr TAGS TEXT"; the first of the tags is P (more to come) or F.
func (f *framer) cri(line []byte) (p part, reason pipeline.Reason) {
	stamp, next := token(line, 0)
	t, ok := f.clock.parse(stamp)
	if !ok {
		if len(stamp) == len(line) && len(line) < len("2026-03-28T23:26:24.310841000+00:00") && line[0] >= '0' && line[0] <= '9' {
			return p, pipeline.ReasonTruncated
		}
		return p, pipeline.ReasonMalformed
	}
	p.time = t
	stream, next2 := token(line, next)
	switch string(stream) {
	case "stdout":
	case "stderr":
		p.stream = 1
	default:
		return p, cutOr(line, next2, pipeline.ReasonMalformed)
	}
	if next2 >= len(line) {
		return p, pipeline.ReasonTruncated
	}
	tags, start := token(line, next2)
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	switch string(tag) {
	case "F":
		p.ends = true
	case "P":
	default:
		return p, pipeline.ReasonMalformed
	}
	p.text = line[start:]
	return p, ""
}

// docker reads {"log":"…\n","stream":"stdout","attrs":{…},"time":"…"}. A part without a line end is followed
// by more.
func (f *framer) docker(line []byte) (p part, reason pipeline.Reason) {
	s := jsonScanner{text: line, mem: &f.mem}
	timed := false
	for more := s.open('{'); more; more = s.next('{') {
		key := s.key()
		if s.bad != "" {
			break
		}
		kind, val := s.scalar()
		switch kind {
		case jsonObject, jsonArray:
			s.skip()
		case jsonString:
			switch string(key) {
			case "log":
				p.text = val
			case "stream":
				if string(val) == "stderr" {
					p.stream = 1
				}
			case "time":
				p.time, timed = f.clock.parse(val)
			}
		}
	}
	if !s.end() {
		return p, s.bad
	}
	if !timed {
		return p, pipeline.ReasonMalformed
	}
	if n := len(p.text); n > 0 && p.text[n-1] == '\n' {
		p.ends = true
		p.text = p.text[:n-1]
	} else if n == 0 { // an empty write: log is left out
		p.ends = !f.pending[p.stream].waiting
	}
	return p, ""
}

package format

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// newKubelet reads kubelet's log: klog text (no year in its times, local to the node), klog's JSON, either
// behind a syslog prefix or in the objects of journalctl -o json.
func newKubelet(cfg Config) (pipeline.Format, error) {
	f := &kubelet{}
	f.clock = yearless{zone: cfg.Zone, year: cfg.Year, near: cfg.Near}
	f.iso.zone = cfg.Zone
	return f, nil
}

type kubelet struct {
	clock yearless
	iso   isoClock
	mem   arena
	open  bool // the line before ended in output=<: its text goes on, up to a line " >"
}

// Parse unwraps journal objects and syslog prefixes, then reads the message.
func (f *kubelet) Parse(line []byte, item *pipeline.Item) {
	if item.FrameSet {
		f.clock.know(item.Time)
	}
	line, skip := trimLine(line)
	switch {
	case len(line) == 0:
		fail(item, pipeline.ReasonEmpty, skip)
	case line[0] == '{':
		f.object(line, item)
	default:
		f.text(line, item)
	}
}

// isKlog tells whether s begins with klog's header: L, month and day, and the time.
func isKlog(s []byte) bool {
	return len(s) >= 21 && bytes.IndexByte([]byte("IWEF"), s[0]) >= 0 && num(s[1:5]) > 0 && s[5] == ' ' && s[8] == ':' && s[11] == ':' && s[14] == '.'
}

// text reads a line that may carry a syslog prefix.
func (f *kubelet) text(line []byte, item *pipeline.Item) {
	body, stamp := line, int64(0)
	if !isKlog(body) {
		var ok bool
		if body, stamp, ok = f.syslog(line); !ok {
			if f.open {
				f.open = !bytes.HasPrefix(line, []byte(" >"))
				item.Kind = pipeline.Ignored
				return
			}
			fail(item, pipeline.ReasonNotAccess, 0)
			return
		}
		f.clock.know(stamp)
	}
	if !isKlog(body) {
		item.Kind = pipeline.Ignored // kubelet's own text without a header, or a continued line
		return
	}
	f.klog(body, stamp, item)
}

var kubeletTag = []byte("kubelet[")

// syslog takes "Mar 29 00:26:24 node-1 kubelet[2480]: " off, or the same with an RFC 3339 time.
func (f *kubelet) syslog(line []byte) (body []byte, stamp int64, ok bool) {
	i := bytes.Index(line, kubeletTag)
	if i < 0 || i > 320 {
		return nil, 0, false
	}
	end := bytes.Index(line[i:], []byte("]: "))
	if end < 0 || end > 32 {
		return nil, 0, false
	}
	word, _ := token(line, 0)
	if t, full := f.iso.parse(word); full {
		stamp = t
	} else if i > 15 && monthOf(word) > 0 && line[6] == ' ' && line[9] == ':' {
		day := leadingInt(bytes.TrimLeft(line[4:6], " "))
		stamp = f.clock.resolve(monthOf(word), day, num(line[7:9]), num(line[10:12]), num(line[13:15]), 0)
	}
	return line[i+end+3:], stamp, true
}

// klog reads: L0102 15:04:05.000000 PID file.go:1] message.
func (f *kubelet) klog(s []byte, stamp int64, item *pipeline.Item) {
	f.open = bytes.HasSuffix(s, []byte("=<"))
	frac, _ := fraction(s[15:])
	t := f.clock.resolve(num(s[1:3]), num(s[3:5]), num(s[6:8]), num(s[9:11]), num(s[12:14]), frac)
	if t == 0 {
		t = stamp
	}
	end := bytes.Index(s, []byte("] "))
	if end < 0 {
		fail(item, pipeline.ReasonTruncated, len(s))
		return
	}
	body := s[end+2:]
	if len(body) == 0 || body[0] != '"' {
		f.emit(item, t, oldKlog(body))
		return
	}
	message, rest := goQuoted(body)
	if rest == nil {
		fail(item, pipeline.ReasonTruncated, len(s))
		return
	}
	f.emit(item, t, kubeletEvent(message, klogPairs(rest)))
}

func (f *kubelet) emit(item *pipeline.Item, t int64, e pipeline.Event) {
	if e.Kind == "" {
		item.Kind = pipeline.Ignored
		return
	}
	e.Time = t
	item.Kind = pipeline.IsEvents
	item.Events = append(item.Events, e)
}

// goQuoted reads a Go string literal at the start of s; rest is nil when it has no end.
func goQuoted(s []byte) (value string, rest []byte) {
	end := closingQuote(s, 1)
	if end < 0 {
		return "", nil
	}
	raw := string(s[:end+1])
	value, err := strconv.Unquote(raw)
	if err != nil {
		value = raw[1 : len(raw)-1]
	}
	return value, s[end+1:]
}

// maxPairs bounds how many key=value pairs of a line are looked at.
const maxPairs = 64

// klogPairs reads key="value", key=value and key={…}.
func klogPairs(s []byte) map[string]string {
	pairs := map[string]string{}
	for len(pairs) < maxPairs {
		s = bytes.TrimLeft(s, " ")
		equals := bytes.IndexByte(s, '=')
		if equals <= 0 {
			return pairs
		}
		key := string(s[:equals])
		s = s[equals+1:]
		switch {
		case len(s) == 0:
			return pairs
		case s[0] == '"':
			value, rest := goQuoted(s)
			if rest == nil { // cut; what was read before counts
				return pairs
			}
			pairs[key], s = value, rest
		case s[0] == '{' || s[0] == '[':
			n := bracketed(s)
			pairs[key], s = string(s[:n]), s[n:]
		case s[0] == '<': // output=<, on the lines that follow
			return pairs
		default:
			word, next := token(s, 0)
			pairs[key], s = string(word), s[next:]
		}
	}
	return pairs
}

// bracketed gives the length of the JSON or Go value at the start of s, by its brackets.
func bracketed(s []byte) int {
	depth, inString := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case inString:
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

// kubeletEvent reads a structured message. The texts are kubelet's own (pkg/kubelet/prober,
// pkg/kubelet/kuberuntime, pkg/kubelet/oom).
func kubeletEvent(message string, p map[string]string) pipeline.Event {
	e := pipeline.Event{UID: clip(p["podUID"]), Container: clip(p["containerName"]), Message: clip(message)}
	e.Namespace, e.Pod = podOf(p["pod"])
	switch {
	case strings.HasPrefix(message, "Killing container with a grace period"):
		e.Kind = pipeline.ContainerKill
		e.Grace = leadingInt([]byte(p["gracePeriod"]))
	case message == "Probe failed":
		e.Kind, e.Probe = pipeline.ProbeFailed, clip(p["probeType"])
		e.Message = clip(p["output"])
	case restartProbe(p["containerMessage"]) != "":
		e.Kind, e.Probe = pipeline.LivenessRestart, restartProbe(p["containerMessage"])
		e.Message = clip(p["containerMessage"])
	case strings.Contains(p["err"], "with CrashLoopBackOff:"):
		e.Kind, e.Message = pipeline.BackOff, clip(p["err"])
		_, rest, _ := strings.Cut(p["err"], "failed container=")
		e.Container, _, _ = strings.Cut(rest, " ")
		e.Container = clip(e.Container)
	case strings.HasPrefix(message, "Got sys oom event"):
		e.Kind = pipeline.OOM
		var victim struct {
			Pid         int
			ProcessName string
		}
		if json.Unmarshal([]byte(p["event"]), &victim) == nil {
			e.PID, e.Process = victim.Pid, clip(victim.ProcessName)
		}
	}
	return e
}

// restartProbe reads "Container app failed liveness probe, will be restarted".
func restartProbe(s string) string {
	if !strings.HasPrefix(s, "Container ") || !strings.HasSuffix(s, "will be restarted") {
		return ""
	}
	switch {
	case strings.Contains(s, " failed liveness probe"):
		return "Liveness"
	case strings.Contains(s, " failed startup probe"):
		return "Startup"
	}
	return ""
}

// podOf cuts namespace/name.
func podOf(s string) (namespace, pod string) {
	namespace, pod, ok := strings.Cut(s, "/")
	if !ok {
		return "", clip(namespace)
	}
	return clip(namespace), clip(pod)
}

// oldKlog reads the unstructured messages of kubelet before 1.20:
// Liveness probe for "shop-0_default(uid):app" failed (failure): …
func oldKlog(s []byte) (e pipeline.Event) {
	probe, _ := token(s, 0)
	rest, ok := bytes.CutPrefix(s[len(probe):], []byte(` probe for "`))
	if !ok {
		return e
	}
	switch string(probe) {
	case "Liveness", "Readiness", "Startup":
	default:
		return e
	}
	name, output, ok := bytes.Cut(rest, []byte(`" failed`))
	if !ok {
		return e
	}
	e.Kind, e.Probe, e.Message = pipeline.ProbeFailed, string(probe), clip(string(output))
	pod, rest2, _ := strings.Cut(string(name), "_")
	namespace, rest2, _ := strings.Cut(rest2, "(")
	uid, container, _ := strings.Cut(rest2, "):")
	e.Pod, e.Namespace, e.UID, e.Container = clip(pod), clip(namespace), clip(uid), clip(container)
	return e
}

// kubeletObject is a line of klog's JSON (ts in ms) or of journalctl -o json.
type kubeletObject struct {
	Message  json.RawMessage `json:"MESSAGE"`
	Realtime string          `json:"__REALTIME_TIMESTAMP"`
	Host     string          `json:"_HOSTNAME"`
	Unit     string          `json:"_SYSTEMD_UNIT"`
	Tag      string          `json:"SYSLOG_IDENTIFIER"`
	TS       json.RawMessage `json:"ts"`
	Msg      *string         `json:"msg"`
}

func (f *kubelet) object(line []byte, item *pipeline.Item) {
	var o kubeletObject
	if reason := checkJSON(line, &f.mem); reason != "" {
		fail(item, reason, len(line))
		return
	}
	if err := json.Unmarshal(line, &o); err != nil || o.Message == nil && o.Msg == nil {
		fail(item, pipeline.ReasonNotAccess, 0)
		return
	}
	if o.Message != nil {
		f.journal(&o, item)
		return
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil || o.TS == nil || fields["v"] == nil && fields["err"] == nil && fields["caller"] == nil && fields["logger"] == nil && fields["pod"] == nil {
		fail(item, pipeline.ReasonNotAccess, 0)
		return
	}
	pairs := map[string]string{}
	for k, raw := range fields {
		pairs[k] = jsonText(raw)
	}
	f.emit(item, f.stamp(o.TS), kubeletEvent(*o.Msg, pairs))
}

// jsonText gives a string's value, the pod of an object {name, namespace}, or the JSON itself.
func jsonText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var ref struct{ Name, Namespace string }
	if json.Unmarshal(raw, &ref) == nil && ref.Name != "" {
		return ref.Namespace + "/" + ref.Name
	}
	return string(raw)
}

// stamp reads ts: ms since the epoch with a fraction, or RFC 3339.
func (f *kubelet) stamp(raw json.RawMessage) int64 {
	s := bytes.Trim(raw, `"`)
	if t, ok := f.iso.parse(s); ok {
		return t
	}
	ms, err := strconv.ParseFloat(string(s), 64)
	if err != nil || ms < 0 || ms > maxSeconds*1e3 {
		return 0
	}
	return time.UnixMilli(int64(ms)).UnixNano() + int64((ms-float64(int64(ms)))*1e3)*1e3
}

// journal reads the MESSAGE of a journal entry; the entry's own time completes klog's.
func (f *kubelet) journal(o *kubeletObject, item *pipeline.Item) {
	var us int64
	if n, ok := uintOf([]byte(o.Realtime)); ok && n <= maxSeconds*1e6 {
		us = n
	}
	f.clock.know(us * 1e3)
	message := journalText(o.Message)
	message = bytes.TrimRight(message, "\r\n")
	if len(message) == 0 || !isKlog(message) && message[0] != '{' {
		if o.Unit == "kubelet.service" || o.Tag == "kubelet" { // its own text without a header
			item.Kind = pipeline.Ignored
			return
		}
		fail(item, pipeline.ReasonNotAccess, 0) // another unit's
		return
	}
	if message[0] == '{' {
		f.inner(message, item)
	} else {
		f.klog(message, us*1e3, item)
	}
	for i := range item.Events {
		if item.Events[i].Time == 0 {
			item.Events[i].Time = us * 1e3
		}
		item.Events[i].Node = clip(o.Host)
	}
}

// inner reads klog's JSON within a journal entry; an entry within an entry is refused.
func (f *kubelet) inner(message []byte, item *pipeline.Item) {
	var o kubeletObject
	if json.Unmarshal(message, &o) != nil || o.Message != nil {
		item.Kind = pipeline.Ignored
		return
	}
	f.object(message, item)
}

// journalText reads MESSAGE, which journald writes as a list of bytes when it is not UTF-8.
func journalText(raw json.RawMessage) []byte {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return []byte(s)
	}
	var list []uint8
	var numbers []int
	if json.Unmarshal(raw, &numbers) == nil {
		for _, n := range numbers {
			list = append(list, byte(n))
		}
	}
	return list
}

// checkJSON tells whether line is one JSON object that is complete and not nested absurdly.
func checkJSON(line []byte, mem *arena) pipeline.Reason {
	s := jsonScanner{text: line, mem: mem}
	if s.peek() != '{' {
		return pipeline.ReasonNotAccess
	}
	s.skip()
	s.end()
	return s.bad
}

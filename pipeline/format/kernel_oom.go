package format

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// newKernelOOM reads the kernel's messages about processes that it killed for lack of memory, as dmesg (also -T
// and --time-format iso), /dev/kmsg, syslog and journalctl -o json write them. One kill is several lines; the one
// that names the process counts. The line before it names the pod.
func newKernelOOM(cfg Config) (pipeline.Format, error) {
	f := &kernelOOM{}
	f.clock = yearless{zone: cfg.Zone, year: cfg.Year, near: cfg.Near}
	f.iso.zone = cfg.Zone
	return f, nil
}

type kernelOOM struct {
	clock yearless
	iso   isoClock
	mem   arena
	cause oomCause
}

// oomCause is what "oom-kill:constraint=…" told of the kill that the next lines are about.
type oomCause struct {
	pid            int
	uid, container string
}

// Parse takes off what stands before the kernel's message, and reads that.
func (f *kernelOOM) Parse(line []byte, item *pipeline.Item) {
	if item.FrameSet {
		f.clock.know(item.Time)
	}
	line, skip := trimLine(line)
	switch {
	case len(line) == 0:
		fail(item, pipeline.ReasonEmpty, skip)
		return
	case line[0] == '{':
		f.journal(line, item)
		return
	}
	message, at, node, ok := f.front(line)
	if !ok {
		fail(item, pipeline.ReasonNotAccess, skip)
		return
	}
	f.message(message, at, node, item)
}

// front reads the forms of a kernel line's beginning: <4>, [337533.314412], [Sun Mar 29 00:26:24 2026],
// 6,1234,337533314412,-; and a time with host and "kernel:". t is 0 where the time counts from the boot.
func (f *kernelOOM) front(line []byte) (message []byte, t int64, node string, ok bool) {
	if line[0] == '<' {
		if i := bytes.IndexByte(line[:min(len(line), 6)], '>'); i > 1 && num(line[1:i]) >= 0 {
			line = bytes.TrimLeft(line[i+1:], " ")
		}
	}
	if len(line) == 0 {
		return nil, 0, "", false
	}
	switch {
	case line[0] == '[':
		message, t, ok = f.bracket(line)
	case line[0] >= '0' && line[0] <= '9' && bytes.IndexByte(line[:min(len(line), 4)], ',') > 0:
		head, rest, found := bytes.Cut(line, []byte(";"))
		message, ok = rest, found && bytes.Count(head, []byte(",")) >= 3 && len(head) < 80
	default:
		message, t, node, ok = f.syslog(line)
	}
	return message, t, node, ok
}

// bracket takes dmesg's stamp off. More than one may stand there.
func (f *kernelOOM) bracket(line []byte) (message []byte, t int64, ok bool) {
	for len(line) > 0 && line[0] == '[' {
		end := bytes.IndexByte(line[:min(len(line), 48)], ']')
		if end < 0 {
			return nil, 0, false
		}
		stamp := bytes.TrimLeft(line[1:end], " ")
		switch {
		case len(stamp) > 1 && (stamp[0] == 'T' || stamp[0] == 'C') && num(stamp[1:]) >= 0: // CONFIG_PRINTK_CALLER
		case isBootTime(stamp):
		default:
			if t = f.ctime(stamp); t == 0 {
				return nil, 0, false
			}
		}
		ok = true
		line = bytes.TrimLeft(line[end+1:], " ")
	}
	return line, t, ok
}

// isBootTime tells whether s is seconds and a fraction since the boot: µs, unless somebody passed the line on.
func isBootTime(s []byte) bool {
	whole, frac, ok := bytes.Cut(s, []byte("."))
	return ok && len(whole) > 0 && num(whole) >= 0 && len(frac) > 0 && len(frac) <= 9 && num(frac) >= 0
}

// ctime reads Sun Mar 29 00:26:24 2026, in the zone of the node.
func (f *kernelOOM) ctime(s []byte) int64 {
	if len(s) != len("Sun Mar 29 00:26:24 2026") || s[13] != ':' || s[16] != ':' {
		return 0
	}
	mo, d, y := monthOf(s[4:7]), leadingInt(bytes.TrimLeft(s[8:10], " ")), num(s[20:])
	h, mi, sec := num(s[11:13]), num(s[14:16]), num(s[17:19])
	if !validDate(y, mo, d, h, mi, sec) {
		return 0
	}
	t := unix(f.clock.zone, y, mo, d, h, mi, sec) * 1e9
	f.clock.know(t)
	return t
}

var kernelTag = []byte("kernel: ")

// syslog takes "Mar 29 00:26:24 node-1 kernel: [337533.314412] " off, or the same with an RFC 3339 time, or the
// time of dmesg --time-format iso alone.
func (f *kernelOOM) syslog(line []byte) (message []byte, t int64, node string, ok bool) {
	word, next := token(line, 0)
	full := false
	if t, full = f.iso.parse(word); full {
		f.clock.know(t)
	}
	i := bytes.Index(line[:min(len(line), 320)], kernelTag)
	if i < 0 {
		return line[min(next, len(line)):], t, "", full && bytes.IndexByte(word, ',') > 0
	}
	host := bytes.TrimRight(line[:i], " ")
	if j := bytes.LastIndexByte(host, ' '); j >= 0 {
		node = clip(string(host[j+1:]))
	}
	if !full && i > 15 && monthOf(word) > 0 && line[6] == ' ' && line[9] == ':' && line[12] == ':' {
		day := leadingInt(bytes.TrimLeft(line[4:6], " "))
		t = f.clock.resolve(monthOf(word), day, num(line[7:9]), num(line[10:12]), num(line[13:15]), 0)
	}
	message = line[i+len(kernelTag):]
	if rest, _, stamped := f.bracket(message); stamped {
		message = rest
	}
	return message, t, node, true
}

var (
	oomKill    = []byte("oom-kill:constraint=")
	oomReaper  = []byte("oom_reaper: reaped process ")
	memcgKill  = []byte("Memory cgroup out of memory: ")
	globalKill = []byte("Out of memory: ")
	sysrqKill  = []byte("Out of memory (oom_kill_allocating_task): ")
)

// message reads the kernel's own text.
func (f *kernelOOM) message(s []byte, t int64, node string, item *pipeline.Item) {
	cgroup := pipeline.No
	switch {
	case bytes.HasPrefix(s, oomKill):
		f.remember(string(s[:min(len(s), 4096)]))
		item.Kind = pipeline.Ignored
		return
	case bytes.HasPrefix(s, oomReaper): // the same kill once more
		fail(item, pipeline.ReasonNotAccess, 0)
		return
	case bytes.HasPrefix(s, memcgKill):
		cgroup = pipeline.Yes
	case bytes.HasPrefix(s, globalKill), bytes.HasPrefix(s, sysrqKill):
	default: // of the kernel, about something else; before 5.3 the kill's own line follows that of the choice
		item.Kind = pipeline.Ignored
		return
	}
	text := string(s[:min(len(s), 4096)])
	e := pipeline.Event{Kind: pipeline.OOM, Time: t, Node: node, Cgroup: cgroup, Message: clip(text)}
	e.Process, e.PID = oomVictim(text)
	if e.Process == "" {
		fail(item, pipeline.ReasonTruncated, len(s))
		return
	}
	if f.cause.pid == e.PID {
		e.UID, e.Container = f.cause.uid, f.cause.container
	}
	f.cause = oomCause{}
	item.Kind = pipeline.IsEvents
	item.Events = append(item.Events, e)
}

// remember reads constraint=…,task_memcg=/kubepods.slice/…-pod<uid>.slice/cri-containerd-<id>.scope,task=…,pid=….
// Names of cgroups and tasks may hold commas, the keys do not repeat.
func (f *kernelOOM) remember(s string) {
	f.cause = oomCause{}
	_, rest, ok := strings.Cut(s, ",task_memcg=")
	if !ok {
		return
	}
	group, task, ok := strings.Cut(rest, ",task=")
	if !ok {
		return
	}
	if i := strings.LastIndex(task, ",pid="); i >= 0 {
		f.cause.pid = leadingInt([]byte(task[i+len(",pid="):]))
	}
	f.cause.uid = podUID(group)
	f.cause.container = clip(containerID(group))
}

// podUID finds pod<uid> in a cgroup's path. systemd's driver writes the uid with _ for -.
func podUID(group string) string {
	for {
		i := strings.Index(group, "pod")
		if i < 0 {
			return ""
		}
		group = group[i+len("pod"):]
		end := strings.IndexAny(group, "./")
		if end < 0 {
			end = len(group)
		}
		uid := strings.ReplaceAll(group[:end], "_", "-")
		if len(uid) == len("25cb986c-3d6c-4ed0-abf3-ee59ed6175f9") && uid[8] == '-' || len(uid) == 32 && hex([]byte(uid), 8) >= 0 {
			return clip(uid)
		}
	}
}

// containerID gives the last element of a cgroup's path without the runtime's name around it; the id stands for
// the container, whose name the kernel does not know.
func containerID(group string) string {
	last := strings.TrimSuffix(group[strings.LastIndexByte(group, '/')+1:], ".scope")
	id := last[strings.LastIndexByte(last, '-')+1:]
	if len(id) != 64 || hex([]byte(id), 8) < 0 {
		return ""
	}
	return id
}

// journal reads an entry of the kernel in journalctl -o json.
func (f *kernelOOM) journal(line []byte, item *pipeline.Item) {
	var o struct {
		Message   json.RawMessage `json:"MESSAGE"`
		Realtime  string          `json:"__REALTIME_TIMESTAMP"`
		Host      string          `json:"_HOSTNAME"`
		Transport string          `json:"_TRANSPORT"`
		Tag       string          `json:"SYSLOG_IDENTIFIER"`
	}
	if reason := checkJSON(line, &f.mem); reason != "" {
		fail(item, reason, len(line))
		return
	}
	if json.Unmarshal(line, &o) != nil || o.Message == nil || o.Transport != "kernel" && o.Tag != "kernel" {
		fail(item, pipeline.ReasonNotAccess, 0)
		return
	}
	var us int64
	if n, ok := uintOf([]byte(o.Realtime)); ok && n <= maxSeconds*1e6 {
		us = n
	}
	f.clock.know(us * 1e3)
	f.message(journalText(o.Message), us*1e3, clip(o.Host), item)
}

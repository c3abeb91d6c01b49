package format

import (
	"encoding/json"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// newK8sEvent reads Events of Kubernetes as JSON lines: core/v1 and events.k8s.io/v1, alone, in a watch's
// envelope, or in a list.
func newK8sEvent(cfg Config) (pipeline.Format, error) {
	f := &k8sEvent{}
	f.iso.zone = cfg.Zone
	return f, nil
}

type k8sEvent struct {
	iso isoClock
	mem arena
}

// objectRef is involvedObject or regarding.
type objectRef struct {
	Kind, Namespace, Name, UID, FieldPath string
}

// eventObject holds the fields of both APIs.
type eventObject struct {
	Kind     string
	Type     string          // an Event's Normal or Warning; a watch's ADDED, MODIFIED, DELETED, …
	Object   json.RawMessage // of a watch
	Items    []json.RawMessage
	Metadata struct{ Namespace, CreationTimestamp string }

	InvolvedObject, Regarding     objectRef
	Reason, Message, Note         string
	Source, DeprecatedSource      struct{ Component, Host string }
	ReportingInstance             string
	Count, DeprecatedCount        int
	FirstTimestamp, LastTimestamp string
	DeprecatedLastTimestamp       string
	DeprecatedFirstTimestamp      string
	EventTime                     string
	Series                        struct {
		Count            int
		LastObservedTime string
	}
}

// Parse refuses objects that are no Event, and passes over Events of no interest.
func (f *k8sEvent) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	if reason := checkJSON(line, &f.mem); reason != "" {
		at := len(line) + skip
		if reason == pipeline.ReasonNotAccess {
			at = skip // it is no object from its first byte on
		}
		fail(item, reason, at)
		return
	}
	if !f.object(line, item, 0) {
		fail(item, pipeline.ReasonNotAccess, skip)
	}
}

// object reads an Event, or what holds Events; false when it is something else.
func (f *k8sEvent) object(raw []byte, item *pipeline.Item, depth int) bool {
	var o eventObject
	if json.Unmarshal(raw, &o) != nil || depth > 2 {
		return false
	}
	switch {
	case o.Object != nil:
		switch o.Type {
		case "DELETED", "BOOKMARK", "ERROR": // an Event's time to live ended; nothing happened
			var inner eventObject
			if o.Type == "DELETED" && (json.Unmarshal(o.Object, &inner) != nil || !inner.isEvent()) {
				return false
			}
			item.Kind = pipeline.Ignored
			return true
		}
		return f.object(o.Object, item, depth+1)
	case o.Items != nil:
		found := len(o.Items) == 0
		for _, raw := range o.Items {
			found = f.object(raw, item, depth+1) || found
		}
		return found
	case !o.isEvent():
		return false
	}
	if item.Kind != pipeline.IsEvents {
		item.Kind = pipeline.Ignored
	}
	if e := f.event(&o); e.Kind != "" {
		item.Kind = pipeline.IsEvents
		item.Events = append(item.Events, e)
	}
	return true
}

func (o *eventObject) isEvent() bool {
	return (o.Kind == "Event" || o.Kind == "") && o.Reason != "" && (o.InvolvedObject.Kind != "" || o.Regarding.Kind != "")
}

func (f *k8sEvent) event(o *eventObject) (e pipeline.Event) {
	ref := o.InvolvedObject
	if ref.Kind == "" {
		ref = o.Regarding
	}
	message := firstOf(o.Message, o.Note)
	e.Kind, e.Probe = eventKind(o.Reason, message)
	if e.Kind == "" {
		return e
	}
	e.Message = clip(message)
	e.Node = clip(firstOf(o.Source.Host, o.DeprecatedSource.Host))
	if ref.Kind == "Node" {
		e.Node = clip(ref.Name)
	} else {
		e.Namespace, e.Pod, e.UID = clip(firstOf(ref.Namespace, o.Metadata.Namespace)), clip(ref.Name), clip(ref.UID)
	}
	e.Container = clip(containerOf(ref.FieldPath))
	e.Count = max(o.Count, o.DeprecatedCount, o.Series.Count)
	for _, s := range []string{o.Series.LastObservedTime, o.LastTimestamp, o.DeprecatedLastTimestamp, o.EventTime,
		o.FirstTimestamp, o.DeprecatedFirstTimestamp, o.Metadata.CreationTimestamp} {
		if t, ok := f.iso.parse([]byte(s)); ok {
			e.Time = t
			break
		}
	}
	if e.Kind == pipeline.OOM {
		e.Process, e.PID = oomVictim(message)
	}
	return e
}

// eventKind reads a reason and the message's beginning, as kubelet and node-problem-detector write them.
func eventKind(reason, message string) (kind pipeline.EventKind, probe string) {
	switch reason {
	case "Unhealthy":
		probe, _, ok := strings.Cut(message, " probe ")
		if ok && (probe == "Liveness" || probe == "Readiness" || probe == "Startup") {
			return pipeline.ProbeFailed, probe
		}
		return pipeline.ProbeFailed, ""
	case "Killing":
		if probe := restartProbe(message); probe != "" {
			return pipeline.LivenessRestart, probe
		}
		return pipeline.NormalStop, ""
	case "BackOff":
		if strings.HasPrefix(message, "Back-off restarting failed container") {
			return pipeline.BackOff, ""
		}
	case "OOMKilling", "SystemOOM":
		return pipeline.OOM, ""
	}
	return "", ""
}

// containerOf reads spec.containers{app}.
func containerOf(path string) string {
	_, name, _ := strings.Cut(path, "{")
	return strings.TrimSuffix(name, "}")
}

// maxComm is how many bytes of a process' name the kernel tells (TASK_COMM_LEN, less the end).
const maxComm = 15

// oomVictim reads "Killed process 2811 (php-fpm) …", "Kill process 2811 (php-fpm) score …" and kubelet's
// "victim process: php-fpm, pid: 2811". A name may hold parentheses, and is short: the last one within maxComm bytes is its end.
func oomVictim(message string) (process string, pid int) {
	for _, verb := range []string{"Killed process ", "Kill process "} {
		if _, rest, ok := strings.Cut(message, verb); ok {
			pid = leadingInt([]byte(rest))
			_, rest, _ = strings.Cut(rest, "(")
			end := strings.LastIndexByte(rest[:min(len(rest), maxComm+1)], ')')
			if end < 0 {
				end = max(strings.IndexByte(rest, ')'), 0)
			}
			return clip(rest[:end]), pid
		}
	}
	if _, rest, ok := strings.Cut(message, "victim process: "); ok {
		process, rest, _ = strings.Cut(rest, ", pid: ")
		return clip(process), leadingInt([]byte(rest))
	}
	return "", 0
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

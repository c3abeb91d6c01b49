package format

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// newPodStatus reads what the status of Pods tells of restarts: a Pod, a watch's envelope or a list as one JSON
// line, and the table that
//
//	kubectl get pods -A -o json | jq -r '… [$ns, .reason, .exitCode, .finishedAt] | @tsv'
//
// prints, with pod and container before the reason where the query names them.
//
// An envelope of type RESTARTED is the source kubernetes' word that each container in it was restarted: how often
// since the last look, and when it was started again. Only the last of these restarts has a reason.
func newPodStatus(cfg Config) (pipeline.Format, error) {
	f := &podStatus{}
	f.iso.zone = cfg.Zone
	return f, nil
}

type podStatus struct {
	iso isoClock
	mem arena
}

type terminated struct {
	Reason     string
	ExitCode   int
	Signal     int
	FinishedAt string
	Message    string
}

type containerStatus struct {
	Name         string
	Image        string
	RestartCount int
	LastState    struct{ Terminated *terminated }
}

type podObject struct {
	Kind     string
	Type     string
	Time     string // of RESTARTED
	Restarts int    // of RESTARTED

	Population pipeline.Population // of RESTARTED

	Object   json.RawMessage
	Items    []json.RawMessage
	Metadata struct{ Name, Namespace, UID string }
	Spec     struct{ NodeName string }
	Status   struct {
		ContainerStatuses, InitContainerStatuses []containerStatus
	}
}

// A growth is how often a container was restarted between two looks, when it was started last, in ns, and how many
// containers there were then.
type growth struct {
	restarts int
	at       int64
	of       census
}

// A census tells how many containers there are around one; nil where that is not known.
type census func(node, namespace, image string) pipeline.Population

func (c census) around(node, namespace, image string) pipeline.Population {
	if c == nil {
		return pipeline.Population{}
	}
	return c(node, namespace, image)
}

// censusOf counts the containers of a list of Pods.
func censusOf(items []json.RawMessage) census {
	n := map[[2]string]int{}
	for _, raw := range items {
		var o podObject
		if json.Unmarshal(raw, &o) != nil {
			continue
		}
		for i := range o.Status.ContainerStatuses {
			n[[2]string{}]++
			n[[2]string{"node", o.Spec.NodeName}]++
			n[[2]string{"namespace", o.Metadata.Namespace}]++
			n[[2]string{"image", o.Status.ContainerStatuses[i].Image}]++
		}
	}
	return func(node, namespace, image string) pipeline.Population {
		return pipeline.Population{
			All: n[[2]string{}], Node: n[[2]string{"node", node}],
			Namespace: n[[2]string{"namespace", namespace}], Image: n[[2]string{"image", image}],
		}
	}
}

// maxGrowth bounds the restarts that one line may tell of: kubelet's back-off lets no container have more in an hour.
const maxGrowth = 64

// Parse gives one event for every container that ended and was started again.
func (f *podStatus) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	switch {
	case len(line) == 0:
		fail(item, pipeline.ReasonEmpty, skip)
	case line[0] != '{':
		f.row(line, skip, item)
	default:
		if reason := checkJSON(line, &f.mem); reason != "" {
			fail(item, reason, len(line)+skip)
		} else if !f.object(line, item, growth{}, 0) {
			fail(item, pipeline.ReasonNotAccess, skip)
		}
	}
}

func (f *podStatus) object(raw []byte, item *pipeline.Item, g growth, depth int) bool {
	var o podObject
	if json.Unmarshal(raw, &o) != nil || depth > 2 {
		return false
	}
	switch {
	case o.Object != nil:
		if o.Type == "RESTARTED" {
			g.restarts = min(max(o.Restarts, 1), maxGrowth)
			g.at, _ = f.iso.parse([]byte(o.Time))
			told := o.Population
			g.of = func(string, string, string) pipeline.Population { return told }
		}
		return f.object(o.Object, item, g, depth+1)
	case o.Items != nil && o.Kind != "Pod":
		if g.of == nil {
			g.of = censusOf(o.Items)
		}
		found := len(o.Items) == 0 && (o.Kind == "PodList" || o.Kind == "List")
		for _, raw := range o.Items {
			found = f.object(raw, item, g, depth+1) || found
		}
		if found && item.Kind == pipeline.Failed {
			item.Kind = pipeline.Ignored
		}
		return found
	case o.Kind != "Pod" && (o.Kind != "" || o.Status.ContainerStatuses == nil):
		return false
	}
	if item.Kind == pipeline.Failed {
		item.Kind = pipeline.Ignored
	}
	for _, list := range [][]containerStatus{o.Status.InitContainerStatuses, o.Status.ContainerStatuses} {
		for i := range list {
			if g.restarts > 0 || list[i].LastState.Terminated != nil {
				item.Kind = pipeline.IsEvents
				f.events(&o, &list[i], g, item)
			}
		}
	}
	return true
}

// events adds the restarts of a container, the last one last. Those before it are known by number only: the API keeps
// one last state.
func (f *podStatus) events(o *podObject, c *containerStatus, g growth, item *pipeline.Item) {
	e := pipeline.Event{
		Kind: pipeline.ContainerRestart, Time: g.at,
		Node: clip(o.Spec.NodeName), Namespace: clip(o.Metadata.Namespace), Pod: clip(o.Metadata.Name), UID: clip(o.Metadata.UID),
		Container: clip(c.Name), Image: clip(c.Image),
		Population: g.of.around(o.Spec.NodeName, o.Metadata.Namespace, c.Image),
	}
	t := c.LastState.Terminated
	unknown, finished := g.restarts, int64(0)
	if t != nil {
		unknown--
		finished, _ = f.iso.parse([]byte(t.FinishedAt))
		if e.Time == 0 {
			e.Time = finished
		}
	}
	for before := unknown; before > 0; before-- {
		e.Restarts = c.RestartCount - before
		if t == nil {
			e.Restarts++
		}
		item.Events = append(item.Events, e)
	}
	if t == nil {
		return
	}
	e.Restarts, e.FinishedAt = c.RestartCount, finished
	e.Reason, e.ExitCode, e.HasExit, e.Signal, e.Message = clip(t.Reason), t.ExitCode, true, t.Signal, clip(t.Message)
	item.Events = append(item.Events, e)
}

// row reads a row of the table: it is known by a time behind an exit code behind a reason.
func (f *podStatus) row(line []byte, skip int, item *pipeline.Item) {
	if bytes.IndexByte(line, '\t') < 0 || len(line) > 4096 {
		fail(item, pipeline.ReasonNotAccess, skip)
		return
	}
	cells := strings.Split(string(line), "\t")
	at := -1
	for i := 3; i < len(cells) && i < 8; i++ {
		if _, ok := f.iso.parse([]byte(cells[i])); ok {
			at = i
			break
		}
	}
	if at < 0 {
		fail(item, pipeline.ReasonFields, skip)
		return
	}
	code, reason := cells[at-1], cells[at-2]
	if n := num([]byte(code)); code == "" || len(code) > 3 || n < 0 || !isWord(reason) {
		fail(item, pipeline.ReasonMalformed, skip)
		return
	}
	e := pipeline.Event{Kind: pipeline.ContainerRestart, Namespace: clip(cells[0]), Reason: clip(reason),
		ExitCode: num([]byte(code)), HasExit: true}
	if at > 3 {
		e.Pod = clip(cells[1])
	}
	if at > 4 {
		e.Container = clip(cells[2])
	}
	for _, cell := range cells[at+1:] {
		if n := leadingInt([]byte(cell)); n > 0 && len(cell) < 10 && num([]byte(cell)) == n {
			e.Restarts = n
		} else if e.Node == "" {
			e.Node = clip(cell)
		}
	}
	e.FinishedAt, _ = f.iso.parse([]byte(cells[at]))
	e.Time = e.FinishedAt
	item.Kind = pipeline.IsEvents
	item.Events = append(item.Events, e)
}

// isWord tells whether s is a reason: one word of letters.
func isWord(s string) bool {
	for i := range len(s) {
		if c := s[i] | 0x20; c < 'a' || c > 'z' {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

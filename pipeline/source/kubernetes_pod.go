package source

import (
	"cmp"
	"slices"
	"time"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/squall-sre/squall/pipeline"
)

// A podObserver counts restarts by what restartCount has grown since it was last seen.
type podObserver struct {
	tell   *teller
	pods   map[types.UID]*seenPod // that there are
	census census
	begun  bool
}

// seenPod is what is remembered of a Pod.
type seenPod struct {
	containers      map[string]lastSeen
	node, namespace string
	images          []string // of its running containers
}

// lastSeen is what is remembered of a container.
type lastSeen struct {
	restarts int32
	finished int64 // ns: when its last state ended
}

// restarted is one or more restarts of one container between two looks.
type restarted struct {
	node, namespace, pod, uid, container string
	count                                int32 // restartCount now
	grown                                int32 // by how much
	at                                   int64 // ns
	init                                 bool
	object                               *core.Pod
	status                               *core.ContainerStatus
}

func newPodObserver(t *teller) *podObserver {
	return &podObserver{tell: t, pods: map[types.UID]*seenPod{}, census: census{}}
}

// trim implements onlooker.
func (o *podObserver) trim(x runtime.Object) runtime.Object {
	p, ok := x.(*core.Pod)
	if !ok {
		return x
	}
	p.ObjectMeta = metav1.ObjectMeta{
		Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion,
		CreationTimestamp: p.CreationTimestamp, OwnerReferences: p.OwnerReferences,
	}
	var sidecars []core.Container
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == core.ContainerRestartPolicyAlways {
			sidecars = append(sidecars, core.Container{Name: c.Name, RestartPolicy: c.RestartPolicy})
		}
	}
	p.Spec = core.PodSpec{NodeName: p.Spec.NodeName, InitContainers: sidecars}
	st := &p.Status
	p.Status = core.PodStatus{
		Phase: st.Phase, Reason: st.Reason, StartTime: st.StartTime, Conditions: st.Conditions,
		InitContainerStatuses: st.InitContainerStatuses, ContainerStatuses: st.ContainerStatuses,
	}
	return p
}

func (o *podObserver) gone(uid types.UID) {
	o.census.add(o.pods[uid], -1)
	delete(o.pods, uid)
}

func (o *podObserver) see(x runtime.Object) {
	if p, ok := x.(*core.Pod); ok {
		o.report(o.look(p))
	}
}

// all implements onlooker.
func (o *podObserver) all(list []runtime.Object) {
	var found []restarted
	there := map[types.UID]bool{}
	for _, x := range list {
		if p, ok := x.(*core.Pod); ok {
			there[p.UID] = true
			found = append(found, o.look(p)...)
		}
	}
	for uid := range o.pods {
		if !there[uid] {
			o.gone(uid)
		}
	}
	o.begun = true
	o.report(found)
}

func (o *podObserver) report(found []restarted) {
	slices.SortFunc(found, func(a, b restarted) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod),
			cmp.Compare(a.uid, b.uid), cmp.Compare(a.container, b.container))
	})
	for i := range found {
		r := &found[i]
		o.tell.restart(r, restartLine(r, o.census.around(r.node, r.namespace, r.status.Image)))
	}
}

// look compares a Pod with what was seen of it.
func (o *podObserver) look(p *core.Pod) (found []restarted) {
	seen := o.count(p).containers
	leaving := leaves(p)
	visit := func(list []core.ContainerStatus, init bool) {
		for i := range list {
			st := &list[i]
			now := lastSeen{restarts: st.RestartCount}
			if t := st.LastTerminationState.Terminated; t != nil && !t.FinishedAt.IsZero() {
				now.finished = t.FinishedAt.UnixNano()
			}
			before, known := seen[st.Name]
			grown := o.grown(p, st, before, known, now)
			if grown == 0 && known && now.restarts == before.restarts {
				now.finished = max(now.finished, before.finished)
			}
			seen[st.Name] = now
			if grown == 0 || leaving || init && !runsOn(p, st) {
				continue
			}
			found = append(found, restarted{
				node: p.Spec.NodeName, namespace: p.Namespace, pod: p.Name, uid: string(p.UID), container: st.Name,
				count: st.RestartCount, grown: grown, at: restartTime(p, st), init: init, object: p, status: st,
			})
		}
	}
	visit(p.Status.InitContainerStatuses, true)
	visit(p.Status.ContainerStatuses, false)
	return found
}

// grown tells how many restarts are new. What is seen for the first time was, in a list at the start, restarted
// before: what an earlier run told is taken from there, and where none did, only a last state that ended since then
// is news. Later a Pod is new with all its restarts.
func (o *podObserver) grown(p *core.Pod, st *core.ContainerStatus, before lastSeen, known bool, now lastSeen) int32 {
	switch {
	case known && now.restarts < before.restarts: // kubelet counts what the node still holds: it may start anew
		if now.finished > before.finished && now.restarts > 0 {
			return 1
		}
		return 0
	case known:
		return now.restarts - before.restarts
	case o.begun:
		return now.restarts
	}
	told, ok := o.tell.told[string(p.UID)+"/"+st.Name]
	untold := max(now.restarts-int32(told), 0)
	switch {
	case ok && !o.tell.shared:
		return untold
	case p.CreationTimestamp.UnixNano() >= o.tell.since && !p.CreationTimestamp.IsZero():
		return untold
	case now.restarts > 0 && now.finished >= o.tell.since:
		return min(untold, 1)
	}
	return 0
}

// leaves tells whether a Pod was evicted or preempted: its containers are stopped, not restarted.
func leaves(p *core.Pod) bool {
	if p.Status.Reason == "Evicted" || p.Status.Reason == "Preempting" {
		return true
	}
	return slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool {
		return c.Type == core.DisruptionTarget && c.Status == core.ConditionTrue
	})
}

// runsOn tells whether an init container is one that restarts are news of: a sidecar, which runs as long as the Pod,
// or one that failed. The others run again whenever the Pod's sandbox is made anew.
func runsOn(p *core.Pod, st *core.ContainerStatus) bool {
	sidecar := slices.ContainsFunc(p.Spec.InitContainers, func(c core.Container) bool { return c.Name == st.Name })
	t := st.LastTerminationState.Terminated
	return sidecar || t != nil && t.ExitCode != 0
}

// restartTime is when the container was started again, in ns. It ended up to five minutes earlier where kubelet
// backs off, and restartCount grows only now.
func restartTime(p *core.Pod, st *core.ContainerStatus) int64 {
	var at time.Time
	switch last := st.LastTerminationState.Terminated; {
	case st.State.Running != nil:
		at = st.State.Running.StartedAt.Time
	case st.State.Terminated != nil: // it has ended again
		at = st.State.Terminated.StartedAt.Time
	case last != nil:
		at = last.FinishedAt.Time
	}
	if at.IsZero() {
		for _, c := range p.Status.Conditions {
			if c.LastTransitionTime.After(at) {
				at = c.LastTransitionTime.Time
			}
		}
	}
	if at.IsZero() {
		at = p.CreationTimestamp.Time
	}
	return at.UnixNano()
}

// count brings what is remembered of a Pod up to date, but for its restarts.
func (o *podObserver) count(p *core.Pod) *seenPod {
	seen := o.pods[p.UID]
	if seen == nil {
		seen = &seenPod{containers: map[string]lastSeen{}}
		o.pods[p.UID] = seen
	}
	o.census.add(seen, -1)
	seen.node, seen.namespace, seen.images = p.Spec.NodeName, p.Namespace, seen.images[:0]
	if p.Status.Phase != core.PodSucceeded && p.Status.Phase != core.PodFailed {
		for i := range p.Status.ContainerStatuses {
			seen.images = append(seen.images, p.Status.ContainerStatuses[i].Image)
		}
	}
	o.census.add(seen, 1)
	return seen
}

// A census counts containers: all (the empty key), and by node, namespace and image.
type census map[[2]string]int

func (c census) add(p *seenPod, sign int) {
	if p == nil {
		return
	}
	for _, image := range p.images {
		for _, key := range [][2]string{{}, {"node", p.node}, {"namespace", p.namespace}, {"image", image}} {
			if c[key] += sign; c[key] == 0 {
				delete(c, key)
			}
		}
	}
}

// around is what a restart is held against.
func (c census) around(node, namespace, image string) pipeline.Population {
	return pipeline.Population{
		All: c[[2]string{}], Node: c[[2]string{"node", node}],
		Namespace: c[[2]string{"namespace", namespace}], Image: c[[2]string{"image", image}],
	}
}

// restartLine is the line of a restart: the Pod as kubectl prints it, with nothing but the one container, and how many
// containers there are around it.
func restartLine(r *restarted, of pipeline.Population) []byte {
	type owner struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	}
	type metadata struct {
		Name            string  `json:"name"`
		Namespace       string  `json:"namespace"`
		UID             string  `json:"uid"`
		OwnerReferences []owner `json:"ownerReferences,omitempty"`
	}
	type spec struct {
		NodeName string `json:"nodeName,omitempty"`
	}
	type container struct {
		Name         string         `json:"name"`
		Image        string         `json:"image,omitempty"`
		RestartCount int32          `json:"restartCount"`
		State        map[string]any `json:"state,omitempty"`
		LastState    map[string]any `json:"lastState,omitempty"`
	}
	type status struct {
		Reason                string      `json:"reason,omitempty"`
		InitContainerStatuses []container `json:"initContainerStatuses,omitempty"`
		ContainerStatuses     []container `json:"containerStatuses,omitempty"`
	}
	type pod struct {
		Kind     string   `json:"kind"`
		Metadata metadata `json:"metadata"`
		Spec     spec     `json:"spec"`
		Status   status   `json:"status"`
	}
	p := r.object
	object := pod{
		Kind: "Pod", Spec: spec{clipText(r.node, maxName)},
		Metadata: metadata{Name: clipText(r.pod, maxName), Namespace: clipText(r.namespace, maxName), UID: clipText(r.uid, maxName)},
		Status:   status{Reason: clipText(p.Status.Reason, maxName)},
	}
	for _, o := range p.OwnerReferences[:min(len(p.OwnerReferences), 4)] {
		object.Metadata.OwnerReferences = append(object.Metadata.OwnerReferences, owner{clipText(o.Kind, maxName), clipText(o.Name, maxName)})
	}
	c := []container{{
		clipText(r.container, maxName), clipText(r.status.Image, maxMessage), r.count, stateOf(r.status.State),
		stateOf(r.status.LastTerminationState),
	}}
	if r.init {
		object.Status.InitContainerStatuses = c
	} else {
		object.Status.ContainerStatuses = c
	}
	return jsonLine(struct {
		Type       string              `json:"type"`
		Time       metav1.Time         `json:"time"`
		Restarts   int32               `json:"restarts"`
		Population pipeline.Population `json:"population"`
		Object     pod                 `json:"object"`
	}{"RESTARTED", metav1.Unix(0, r.at), r.grown, of, object})
}

// stateOf is a container's state without its identifiers.
func stateOf(s core.ContainerState) map[string]any {
	switch {
	case s.Running != nil:
		return map[string]any{"running": map[string]any{"startedAt": stamp(s.Running.StartedAt)}}
	case s.Waiting != nil:
		return map[string]any{"waiting": map[string]any{"reason": clipText(s.Waiting.Reason, maxName)}}
	case s.Terminated != nil:
		t := s.Terminated
		m := map[string]any{"exitCode": t.ExitCode, "reason": clipText(t.Reason, maxName), "finishedAt": stamp(t.FinishedAt)}
		if t.Signal != 0 {
			m["signal"] = t.Signal
		}
		if t.Message != "" {
			m["message"] = clipText(t.Message, maxMessage)
		}
		return map[string]any{"terminated": m}
	}
	return nil
}

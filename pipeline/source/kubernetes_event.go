package source

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const killing = "Killing"

// eventSorts are the Events that tell of trouble. A field selector knows no "or", so each sort is a watch of its own.
// Kubelet's "failed liveness probe, will be restarted" is of type Normal.
var eventSorts = []struct {
	name, fields string
	wanted       func(*core.Event) bool
}{
	{"warnings", "type=" + core.EventTypeWarning, func(e *core.Event) bool { return e.Type == core.EventTypeWarning }},
	{
		"kills", "type!=" + core.EventTypeWarning + ",reason=" + killing,
		func(e *core.Event) bool { return e.Type != core.EventTypeWarning && e.Reason == killing },
	},
}

// An eventObserver tells of Events, and again whenever their count grows.
type eventObserver struct {
	tell   *teller
	wanted func(*core.Event) bool
	told   map[types.UID]occurrence // of the Events that there are: the API forgets them after an hour
	begun  bool
}

// An occurrence is how far a repeated Event has come.
type occurrence struct {
	count int32
	last  int64 // ns
}

func newEventObserver(t *teller, wanted func(*core.Event) bool) *eventObserver {
	return &eventObserver{tell: t, wanted: wanted, told: map[types.UID]occurrence{}}
}

const (
	maxMessage = 1024 // bytes of the text of an event, of a termination message, of an image's name
	maxName    = 253  // bytes of a name: the API allows no more
)

// trim implements onlooker.
func (o *eventObserver) trim(x runtime.Object) runtime.Object {
	if e, ok := x.(*core.Event); ok {
		e.ManagedFields, e.Annotations, e.Labels, e.OwnerReferences, e.Related = nil, nil, nil, nil, nil
		e.Message = clipText(e.Message, maxMessage)
		for _, text := range []*string{
			&e.Name, &e.Namespace, &e.Type, &e.Reason, &e.InvolvedObject.Kind, &e.InvolvedObject.Namespace, &e.InvolvedObject.Name,
			&e.InvolvedObject.FieldPath, &e.Source.Component, &e.Source.Host, &e.ReportingController, &e.ReportingInstance,
		} {
			*text = clipText(*text, maxName)
		}
	}
	return x
}

func (o *eventObserver) gone(uid types.UID) { delete(o.told, uid) }

func (o *eventObserver) see(x runtime.Object) {
	if e, ok := x.(*core.Event); ok {
		o.one(e)
	}
}

// all implements onlooker: at the start, events of before are told only when no run before told them.
func (o *eventObserver) all(list []runtime.Object) {
	events, there := make([]*core.Event, 0, len(list)), map[types.UID]bool{}
	for _, x := range list {
		if e, ok := x.(*core.Event); ok {
			events, there[e.UID] = append(events, e), true
		}
	}
	for uid := range o.told {
		if !there[uid] {
			delete(o.told, uid)
		}
	}
	slices.SortFunc(events, func(a, b *core.Event) int {
		return cmp.Or(cmp.Compare(eventTime(a), eventTime(b)), cmp.Compare(a.UID, b.UID))
	})
	for _, e := range events {
		if !o.begun && eventTime(e) < o.tell.since {
			if o.wanted(e) {
				o.told[e.UID] = occurred(e)
			}
			continue
		}
		o.one(e)
	}
	o.begun = true
}

func (o *eventObserver) one(e *core.Event) {
	now := occurred(e)
	if before, known := o.told[e.UID]; !o.wanted(e) || known && before == now {
		return
	}
	o.told[e.UID] = now
	o.tell.event(now.last, eventLine(e))
}

func occurred(e *core.Event) occurrence {
	n := occurrence{count: e.Count, last: eventTime(e)}
	if e.Series != nil {
		n.count = max(n.count, e.Series.Count)
	}
	return n
}

// eventTime is when an Event last happened, in ns since the epoch; 0 when it does not say.
func eventTime(e *core.Event) int64 {
	times := []time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.FirstTimestamp.Time, e.CreationTimestamp.Time}
	if e.Series != nil {
		times = append([]time.Time{e.Series.LastObservedTime.Time}, times...)
	}
	for _, t := range times {
		if !t.IsZero() {
			return t.UnixNano()
		}
	}
	return 0
}

// eventLine is an Event as kubectl prints it, in one line and without what nobody reads.
func eventLine(e *core.Event) []byte {
	type reference struct {
		Kind      string `json:"kind,omitempty"`
		Namespace string `json:"namespace,omitempty"`
		Name      string `json:"name,omitempty"`
		UID       string `json:"uid,omitempty"`
		FieldPath string `json:"fieldPath,omitempty"`
	}
	type metadata struct {
		Name              string       `json:"name"`
		Namespace         string       `json:"namespace,omitempty"`
		UID               string       `json:"uid,omitempty"`
		CreationTimestamp *metav1.Time `json:"creationTimestamp,omitempty"`
	}
	type component struct {
		Component string `json:"component,omitempty"`
		Host      string `json:"host,omitempty"`
	}
	type series struct {
		Count            int32             `json:"count"`
		LastObservedTime *metav1.MicroTime `json:"lastObservedTime,omitempty"`
	}
	of := e.InvolvedObject
	line := struct {
		Kind           string            `json:"kind"`
		Metadata       metadata          `json:"metadata"`
		InvolvedObject reference         `json:"involvedObject"`
		Type           string            `json:"type,omitempty"`
		Reason         string            `json:"reason"`
		Message        string            `json:"message,omitempty"`
		Source         component         `json:"source"`
		Count          int32             `json:"count,omitempty"`
		FirstTimestamp *metav1.Time      `json:"firstTimestamp,omitempty"`
		LastTimestamp  *metav1.Time      `json:"lastTimestamp,omitempty"`
		EventTime      *metav1.MicroTime `json:"eventTime,omitempty"`
		Series         *series           `json:"series,omitempty"`
	}{
		Kind:           "Event",
		Metadata:       metadata{e.Name, e.Namespace, string(e.UID), stamp(e.CreationTimestamp)},
		InvolvedObject: reference{of.Kind, of.Namespace, of.Name, string(of.UID), of.FieldPath},
		Type:           e.Type, Reason: e.Reason, Message: e.Message,
		Source: component{cmp.Or(e.Source.Component, e.ReportingController), cmp.Or(e.Source.Host, e.ReportingInstance)},
		Count:  e.Count, FirstTimestamp: stamp(e.FirstTimestamp), LastTimestamp: stamp(e.LastTimestamp),
		EventTime: microStamp(e.EventTime),
	}
	if e.Series != nil {
		line.Series = &series{e.Series.Count, microStamp(e.Series.LastObservedTime)}
	}
	return jsonLine(line)
}

func stamp(t metav1.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func microStamp(t metav1.MicroTime) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	return &t
}

// jsonLine encodes what cannot fail: structs of texts, numbers and times.
func jsonLine(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return append(b, '\n')
}

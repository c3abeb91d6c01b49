package source

import (
	"context"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	// pageSize is how many objects one page of a list holds.
	pageSize = 500
	// listTimeout bounds one page, so that an API that hangs becomes a state.
	listTimeout = time.Minute
)

// A clusterWatch follows the objects of one kind: by the reflector of client-go, the half of an informer that lists,
// watches and lists again when the watch was too long away. The other half, a cache of the objects with a queue
// before it, is left out: what is remembered of an object are a few numbers, and a road that is full slows the watch
// down instead of filling a queue.
type clusterWatch struct {
	path   string
	kind   runtime.Object
	list   func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch  func(context.Context, metav1.ListOptions) (watch.Interface, error)
	fields string // field selector
	seen   onlooker
	client any // says itself when it cannot stream a list
	state  func(state string, err error)
	now    func() time.Time
}

// An onlooker takes the objects of a watch, from one goroutine. Objects are its own.
type onlooker interface {
	// trim drops from an object what the onlooker does not look at.
	trim(runtime.Object) runtime.Object
	see(runtime.Object)
	gone(types.UID)
	// all gives every object that there is: at the start, and when a watch could not be resumed.
	all([]runtime.Object)
}

// watches lists what is followed.
func (k *kubernetes) watches(client clusterAPI, t *teller) []*clusterWatch {
	namespaces := k.cfg.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var all []*clusterWatch
	add := func(w *clusterWatch) {
		w.client, w.now = client, k.rt.Now
		w.state = func(state string, err error) { k.changed(w.path, state, err) }
		all = append(all, w)
	}
	for _, ns := range namespaces {
		in := ""
		if ns != metav1.NamespaceAll {
			in = ns + "/"
		}
		pods, events := client.Pods(ns), client.Events(ns)
		add(&clusterWatch{
			path: in + "pods", kind: &core.Pod{}, seen: newPodObserver(t),
			list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) },
			watch: pods.Watch,
		})
		for _, sort := range eventSorts {
			add(&clusterWatch{
				path: in + "events/" + sort.name, kind: &core.Event{}, seen: newEventObserver(t, sort.wanted), fields: sort.fields,
				list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return events.List(ctx, o) },
				watch: events.Watch,
			})
		}
	}
	return all
}

const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 15 * time.Second
)

// run lists and watches until ctx ends. The reflector's own loop hands errors to handlers that are global to the
// process, so the loop is here.
func (w *clusterWatch) run(ctx context.Context) {
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: w.listPage, WatchFuncWithContext: w.open,
	}, w.client)
	r := cache.NewReflectorWithOptions(lw, w.kind, reflected{w.seen}, cache.ReflectorOptions{
		Name:    w.path,
		Backoff: &wait.Backoff{Duration: firstRetry, Cap: lastRetry, Steps: 10, Factor: 2, Jitter: 1},
	})
	r.WatchListPageSize = pageSize
	for delay := firstRetry; ctx.Err() == nil; delay = min(2*delay, lastRetry) {
		began := w.now()
		if err := r.ListAndWatchWithContext(ctx); err != nil {
			w.tell(ctx, err)
		}
		if w.now().Sub(began) > lastRetry {
			delay = firstRetry
		}
		retry := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			retry.Stop()
		case <-retry.C:
		}
	}
}

func (w *clusterWatch) listPage(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	o.FieldSelector = w.fields
	page, err := w.list(ctx, o)
	if err == nil { // a whole list is held at once: each page is made small as it comes
		err = meta.EachListItem(page, func(item runtime.Object) error { w.seen.trim(item); return nil })
	}
	w.tell(ctx, err)
	return page, err
}

func (w *clusterWatch) open(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector = w.fields
	opened, err := w.watch(ctx, o)
	if o.SendInitialEvents == nil || !apierrors.IsInvalid(err) { // else it is an API that cannot stream a list
		w.tell(ctx, err)
	}
	return opened, err
}

// tell notes how the API answered. That a watch is too old is no fault: the list that follows tells all.
func (w *clusterWatch) tell(ctx context.Context, err error) {
	switch {
	case err == nil:
		w.state("reading", nil)
	case ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err),
		ctx.Err() == context.DeadlineExceeded:
		w.state("unreadable", err)
	}
}

// reflected is an onlooker as a reflector's store. The reflector would pass over errors: there are none.
type reflected struct{ onlooker }

// Transformer makes the objects small that a streamed list collects.
func (r reflected) Transformer() cache.TransformFunc {
	return func(x any) (any, error) {
		if o, ok := x.(runtime.Object); ok {
			return r.trim(o), nil
		}
		return x, nil
	}
}

func (r reflected) Add(x any) error { return r.Update(x) }

func (r reflected) Update(x any) error {
	if o, ok := x.(runtime.Object); ok {
		r.see(r.trim(o))
	}
	return nil
}

func (r reflected) Delete(x any) error {
	if o, ok := x.(metav1.Object); ok {
		r.gone(o.GetUID())
	}
	return nil
}

func (r reflected) Replace(list []any, _ string) error {
	objects := make([]runtime.Object, 0, len(list))
	for _, x := range list {
		o, ok := x.(runtime.Object)
		if !ok {
			return fmt.Errorf("a list holds %T", x)
		}
		objects = append(objects, r.trim(o))
	}
	r.all(objects)
	return nil
}

func (reflected) Resync() error { return nil }

package source

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
)

// A cluster is client-go's own stand-in for an API, with watches that can be cut.
type cluster struct {
	t    *testing.T
	set  *fake.Clientset
	logs *observer.ObservedLogs
	src  *kubernetes

	mu    sync.Mutex
	open  []watch.Interface
	watch error // what the next watches answer
	list  error
}

// plainLists says that the stand-in cannot stream a list.
type plainLists struct {
	core   typedcore.CoreV1Interface
	leases func(namespace string) leaseAPI
}

func (p plainLists) Pods(namespace string) watchable[*core.PodList] { return p.core.Pods(namespace) }

func (p plainLists) Events(namespace string) watchable[*core.EventList] {
	return p.core.Events(namespace)
}

func (p plainLists) Leases(namespace string) leaseAPI { return p.leases(namespace) }

func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

func newCluster(t *testing.T, config string) *cluster {
	t.Helper()
	c := &cluster{t: t, set: fake.NewClientset()}
	level, logs := observer.New(zap.InfoLevel)
	c.logs = logs
	rt := testRuntime()
	rt.Logger = zap.New(level)
	src, err := New(strict(config), rt)
	if err != nil {
		t.Fatal(err)
	}
	c.src = src.(*kubernetes)
	c.src.connect = func() (clusterAPI, error) {
		return plainLists{c.set.CoreV1(), func(ns string) leaseAPI { return c.set.CoordinationV1().Leases(ns) }}, nil
	}
	c.set.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.list != nil, nil, c.list
	})
	c.set.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.watch != nil {
			return true, nil, c.watch
		}
		w, err := c.set.Tracker().Watch(a.GetResource(), a.GetNamespace())
		c.open = append(c.open, w)
		return true, w, err
	})
	return c
}

// answer makes lists and watches fail, or work again with nil.
func (c *cluster) answer(list, watch error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.watch = list, watch
}

// cut ends all watches.
func (c *cluster) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.open {
		w.Stop()
	}
	c.open = nil
}

// put creates or updates objects, and waits until the source has seen them.
func (c *cluster) put(objects ...any) {
	c.t.Helper()
	ctx := context.Background()
	for _, x := range objects {
		var err error
		switch o := x.(type) {
		case *core.Pod:
			pods := c.set.CoreV1().Pods(o.Namespace)
			if _, err = pods.Update(ctx, o.DeepCopy(), metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
				_, err = pods.Create(ctx, o.DeepCopy(), metav1.CreateOptions{})
			}
		case *core.Event:
			events := c.set.CoreV1().Events(o.Namespace)
			if _, err = events.Update(ctx, o.DeepCopy(), metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
				_, err = events.Create(ctx, o.DeepCopy(), metav1.CreateOptions{})
			}
		}
		if err != nil {
			c.t.Fatal(err)
		}
		synctest.Wait()
	}
}

func (c *cluster) remove(p *core.Pod) {
	c.t.Helper()
	if err := c.set.CoreV1().Pods(p.Namespace).Delete(context.Background(), p.Name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// start runs the source until stop; it is watching when start returns.
func (c *cluster) start(s *spool) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.src.Run(ctx, s, s.emit(ctx)) }()
	synctest.Wait()
	return func() {
		c.t.Helper()
		began := time.Now()
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("Run: %v", err)
		}
		if d := time.Since(began); d > time.Second {
			c.t.Errorf("stopped after %s", d)
		}
	}
}

// told parses the spool's lines as the daemon does.
func told(t *testing.T, s *spool) (out []string) {
	t.Helper()
	f, err := format.New(format.Config{Name: "kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	var item pipeline.Item
	for _, line := range s.all() {
		item.Reset()
		f.Parse([]byte(line), &item)
		if item.Kind == pipeline.Failed {
			t.Errorf("%s: %s", item.Reason, line)
		}
		for _, e := range item.Events {
			if e.Time == 0 {
				t.Errorf("no time: %s", line)
			}
			text := fmt.Sprintf("%s %s/%s %s", e.Kind, e.Namespace, e.Pod, e.Container)
			switch {
			case e.Kind != pipeline.ContainerRestart:
				text += fmt.Sprintf(" ×%d", e.Count)
			case e.HasExit:
				text += fmt.Sprintf(" #%d %s/%d", e.Restarts, e.Reason, e.ExitCode)
			default:
				text += fmt.Sprintf(" #%d unknown", e.Restarts)
			}
			out = append(out, text)
		}
	}
	return out
}

func wantTold(t *testing.T, s *spool, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, told(t, s)); diff != "" {
		t.Error(diff)
	}
}

// wantSorted is wantTold where Pods and events are told at the same time: each watch has its own goroutine and streams.
func wantSorted(t *testing.T, s *spool, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(told(t, s)))); diff != "" {
		t.Error(diff)
	}
}

// pod gives a running Pod, an hour old, with one container.
func pod(name string, changes ...func(*core.Pod)) *core.Pod {
	old := metav1.NewTime(time.Now().Add(-time.Hour))
	p := &core.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: old,
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5d9"}},
		},
		Spec: core.PodSpec{NodeName: "node-1"},
		Status: core.PodStatus{Phase: core.PodRunning, ContainerStatuses: []core.ContainerStatus{{
			Name: "php", Image: "php:8", State: core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: old}},
		}}},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

// endedAs says that the container has been restarted, count times so far, and how it ended last, just now.
func endedAs(count int32, reason string, code int32) func(*core.Pod) {
	return func(p *core.Pod) { end(&p.Status.ContainerStatuses[0], count, reason, code, time.Now()) }
}

func end(st *core.ContainerStatus, count int32, reason string, code int32, at time.Time) {
	st.RestartCount = count
	st.State.Running = &core.ContainerStateRunning{StartedAt: metav1.NewTime(at)}
	st.LastTerminationState.Terminated = &core.ContainerStateTerminated{
		Reason: reason, ExitCode: code, FinishedAt: metav1.NewTime(at), ContainerID: "containerd://" + strings.Repeat("a", 64),
	}
}

// init0 makes an init container, or a sidecar, that was restarted.
func init0(sidecar bool, count int32, reason string, code int32) func(*core.Pod) {
	return func(p *core.Pod) {
		c := core.Container{Name: "setup"}
		if sidecar {
			always := core.ContainerRestartPolicyAlways
			c = core.Container{Name: "proxy", RestartPolicy: &always}
		}
		p.Spec.InitContainers = []core.Container{c}
		st := core.ContainerStatus{Name: c.Name}
		if count > 0 {
			end(&st, count, reason, code, time.Now())
		}
		p.Status.InitContainerStatuses = []core.ContainerStatus{st}
	}
}

func TestKubernetesRestarts(t *testing.T) {
	renamed := func(uid types.UID) func(*core.Pod) { return func(p *core.Pod) { p.UID = uid } }
	waiting := func(p *core.Pod) {
		st := &p.Status.ContainerStatuses[0]
		st.State = core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	}
	evicted := func(p *core.Pod) { p.Status.Phase, p.Status.Reason = core.PodFailed, "Evicted" }
	disrupted := func(p *core.Pod) {
		p.Status.Conditions = []core.PodCondition{{Type: core.DisruptionTarget, Status: core.ConditionTrue}}
	}
	for _, c := range []struct {
		name  string
		steps func(c *cluster)
		want  []string
	}{
		{"once", func(c *cluster) { c.put(pod("a"), pod("a", endedAs(1, "Completed", 0))) },
			[]string{"container_restart shop/a php #1 Completed/0"}},
		{"out of memory", func(c *cluster) { c.put(pod("a"), pod("a", endedAs(1, "OOMKilled", 137))) },
			[]string{"container_restart shop/a php #1 OOMKilled/137"}},
		{"twice between two looks: one reason is known", func(c *cluster) { c.put(pod("a"), pod("a", endedAs(2, "Error", 143))) },
			[]string{"container_restart shop/a php #1 unknown", "container_restart shop/a php #2 Error/143"}},
		{"the last state was collected", func(c *cluster) {
			c.put(pod("a"), pod("a", endedAs(1, "", 0), func(p *core.Pod) {
				p.Status.ContainerStatuses[0].LastTerminationState = core.ContainerState{}
			}))
		}, []string{"container_restart shop/a php #1 unknown"}},
		{"one after the other", func(c *cluster) {
			c.put(pod("a"), pod("a", endedAs(1, "Error", 1)), pod("a", endedAs(1, "Error", 1)), pod("a", endedAs(2, "Error", 2)))
		}, []string{"container_restart shop/a php #1 Error/1", "container_restart shop/a php #2 Error/2"}},
		{"back-off: the end shows before restartCount grows", func(c *cluster) {
			c.put(pod("a"), pod("a", endedAs(0, "Error", 1), waiting), pod("a", endedAs(1, "Error", 1)), pod("a", endedAs(1, "Error", 1), waiting))
		}, []string{"container_restart shop/a php #1 Error/1"}},
		{"node lost", func(c *cluster) {
			c.put(pod("a"), pod("a", endedAs(1, "ContainerStatusUnknown", 137), func(p *core.Pod) {
				p.Status.ContainerStatuses[0].LastTerminationState.Terminated.FinishedAt = metav1.Time{}
			}))
		}, []string{"container_restart shop/a php #1 ContainerStatusUnknown/137"}},
		{"a sidecar", func(c *cluster) { c.put(pod("a", init0(true, 0, "", 0)), pod("a", init0(true, 1, "Completed", 0))) },
			[]string{"container_restart shop/a proxy #1 Completed/0"}},
		{"an init container that fails", func(c *cluster) { c.put(pod("a", init0(false, 0, "", 0)), pod("a", init0(false, 1, "Error", 1))) },
			[]string{"container_restart shop/a setup #1 Error/1"}},
		{"an init container that runs again in a new sandbox", func(c *cluster) {
			c.put(pod("a", init0(false, 0, "", 0)), pod("a", init0(false, 1, "Completed", 0)))
		}, nil},
		{"kubelet counts anew", func(c *cluster) {
			c.put(pod("a"), pod("a", endedAs(5, "Error", 1)))
			<-time.After(time.Minute)
			c.put(pod("a", endedAs(1, "Error", 2)))
		}, []string{
			"container_restart shop/a php #1 unknown", "container_restart shop/a php #2 unknown", "container_restart shop/a php #3 unknown",
			"container_restart shop/a php #4 unknown", "container_restart shop/a php #5 Error/1", "container_restart shop/a php #1 Error/2",
		}},
		{"a rollout", func(c *cluster) { c.put(pod("a"), pod("b")); c.remove(pod("a")) }, nil},
		{"an eviction", func(c *cluster) { c.put(pod("a"), pod("a", endedAs(1, "Error", 137), evicted)) }, nil},
		{"a disruption", func(c *cluster) { c.put(pod("a"), pod("a", endedAs(1, "Error", 137), disrupted)) }, nil},
		{"a new Pod of the same name", func(c *cluster) {
			c.put(pod("a"), pod("a", endedAs(1, "Error", 1)))
			c.remove(pod("a"))
			c.put(pod("a", renamed("second")), pod("a", renamed("second"), endedAs(1, "Error", 2)))
		}, []string{"container_restart shop/a php #1 Error/1", "container_restart shop/a php #1 Error/2"}},
		{"a new Pod that was replaced between two looks", func(c *cluster) {
			c.put(pod("a", endedAs(1, "Error", 1)), pod("a", renamed("second")))
		}, []string{"container_restart shop/a php #1 Error/1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, s := newCluster(t, "{type: kubernetes}"), newSpool(t)
				stop := api.start(s)
				c.steps(api)
				stop()
				wantTold(t, s, c.want...)
			})
		})
	}
}

func event(name, kind, reason, message string, count int32) *core.Event {
	now := metav1.NewTime(time.Now())
	return &core.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("event-" + name)},
		InvolvedObject: core.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "a", FieldPath: "spec.containers{php}"},
		Type:           kind, Reason: reason, Message: message, Count: count, LastTimestamp: now,
		Source: core.EventSource{Component: "kubelet", Host: "node-1"},
	}
}

func TestKubernetesEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := newCluster(t, "{type: kubernetes}"), newSpool(t)
		api.put(event("old", "Warning", "Unhealthy", "Liveness probe failed: before squall", 1))
		<-time.After(time.Hour)
		stop := api.start(s)
		probe := func(n int32) *core.Event {
			return event("probe", "Warning", "Unhealthy", "Liveness probe failed: x", n)
		}
		api.put(
			probe(1), probe(2), probe(2),
			event("pulled", "Normal", "Pulled", "Container image is present", 1),
			event("kill", "Normal", "Killing", "Container php failed liveness probe, will be restarted", 1),
			event("stop", "Normal", "Killing", "Stopping container php", 1),
			event("long", "Warning", "BackOff", "Back-off restarting failed container "+strings.Repeat("ü", 5000), 1),
		)
		<-time.After(2 * time.Minute)
		probe3 := probe(3)
		api.put(probe3)
		// The watch is cut and too old to be resumed: what the list repeats is not told again, what was missed is.
		api.answer(nil, apierrors.NewResourceExpired("too old"))
		api.cut()
		api.put(probe(4))
		<-time.After(time.Minute)
		api.answer(nil, nil)
		<-time.After(time.Minute)
		stop()
		wantTold(t, s,
			"probe_failed shop/a php ×1", "probe_failed shop/a php ×2", "liveness_restart shop/a php ×1", "stop shop/a php ×1",
			"backoff shop/a php ×1", "probe_failed shop/a php ×3", "probe_failed shop/a php ×4")
		for _, line := range s.all() {
			if len(line) > 2000 {
				t.Errorf("a line of %d bytes", len(line))
			}
		}
		if n, all := s.ended(), len(s.Streams("test")); n != all || all != 2 {
			t.Errorf("%d of %d streams are at their end, want both minutes'", n, all)
		}
	})
}

// A watch that is cut goes on where it was; one that was away too long lists, and what happened meanwhile is told.
func TestKubernetesWatchDropped(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "https://10.0.0.1", Err: syscall.ECONNREFUSED}
	synctest.Test(t, func(t *testing.T) {
		api, s := newCluster(t, "{type: kubernetes}"), newSpool(t)
		api.put(pod("a"), pod("b"))
		stop := api.start(s)
		api.put(pod("a", endedAs(1, "Error", 1)))
		api.cut()
		<-time.After(time.Minute)
		api.put(pod("a", endedAs(2, "Error", 2)))
		api.answer(refused, refused)
		api.cut()
		<-time.After(time.Minute)
		if st := api.src.States(); len(st) != 3 || st[0].State != "unreadable" || !strings.Contains(st[0].Err, "refused") {
			t.Errorf("states %+v", st)
		}
		api.put(pod("a", endedAs(4, "Error", 4)), pod("c", endedAs(1, "OOMKilled", 137)))
		api.remove(pod("b"))
		api.answer(nil, apierrors.NewResourceExpired("too old"))
		<-time.After(time.Minute)
		api.answer(nil, nil)
		<-time.After(time.Minute)
		if st := api.src.States(); len(st) != 3 || st[0].State != "reading" || st[0].Err != "" {
			t.Errorf("states %+v", st)
		}
		api.put(pod("c", endedAs(2, "OOMKilled", 137)))
		stop()
		wantTold(t, s,
			"container_restart shop/a php #1 Error/1", "container_restart shop/a php #2 Error/2",
			"container_restart shop/a php #3 unknown", "container_restart shop/a php #4 Error/4",
			"container_restart shop/c php #1 OOMKilled/137", "container_restart shop/c php #2 OOMKilled/137")
	})
}

// At the very first start what ended long ago is history. After a further start nothing is told twice, and what
// happened meanwhile is told.
func TestKubernetesStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t)
		api := newCluster(t, "{type: kubernetes}")
		api.put(pod("a", endedAs(7, "Error", 1)), pod("b"), pod("old", endedAs(3, "Error", 1)), event("e1", "Warning", "Unhealthy", "Liveness probe failed: x", 1))
		<-time.After(10 * time.Minute)
		api.put(pod("fresh", endedAs(2, "OOMKilled", 137)))
		stop := api.start(s)
		first := []string{"container_restart shop/fresh php #2 OOMKilled/137"}
		wantTold(t, s, first...)
		api.put(pod("a", endedAs(8, "Error", 8)), event("e2", "Warning", "Unhealthy", "Liveness probe failed: x", 1))
		stop()
		first = append(first, "container_restart shop/a php #8 Error/8", "probe_failed shop/a php ×1")
		wantTold(t, s, first...)

		<-time.After(3 * time.Hour)
		api.put(pod("a", endedAs(10, "Error", 10)), pod("b", endedAs(1, "Error", 1)), event("e3", "Warning", "Unhealthy", "Liveness probe failed: x", 1))
		<-time.After(3 * time.Hour)
		created := pod("new", endedAs(2, "Error", 2))
		api.put(created)
		again := newSpool(t)
		again.streams, again.order = s.streams, s.order
		stop = api.start(again)
		stop()
		wantSorted(t, again,
			"container_restart shop/a php #10 Error/10", "container_restart shop/a php #9 unknown",
			"container_restart shop/b php #1 Error/1",
			"container_restart shop/new php #1 unknown", "container_restart shop/new php #2 Error/2",
			"probe_failed shop/a php ×1", // of the last minute before: it may be told twice
			"probe_failed shop/a php ×1")
	})
}

// What the API answers is a state: told once for each change, retried, never the end of Run.
func TestKubernetesRefuses(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	synctest.Test(t, func(t *testing.T) {
		api, s := newCluster(t, "{type: kubernetes, namespaces: [shop, web]}"), newSpool(t)
		unauthorized, forbidden := apierrors.NewUnauthorized("Unauthorized"), apierrors.NewForbidden(pods, "", errors.New("no rights"))
		api.answer(unauthorized, unauthorized)
		stop := api.start(s)
		<-time.After(time.Hour)
		wantStates(t, api, "unreadable", "Unauthorized")
		api.answer(forbidden, forbidden)
		<-time.After(time.Hour)
		wantStates(t, api, "unreadable", "forbidden")
		api.answer(nil, nil)
		<-time.After(time.Minute)
		wantStates(t, api, "reading", "")
		api.put(pod("a", endedAs(1, "Error", 1)))
		stop()
		wantTold(t, s, "container_restart shop/a php #1 Error/1")
		if n := api.logs.Len(); n != 3*6 {
			t.Errorf("%d log entries for 3 changes of 6 watches: %v", n, api.logs.All())
		}
		if st := api.src.States(); len(st) != 0 {
			t.Errorf("states of a source that ended: %v", st)
		}
	})
}

func wantStates(t *testing.T, api *cluster, state, text string) {
	t.Helper()
	states := api.src.States()
	if len(states) != 6 {
		t.Errorf("%d watches, want pods and two sorts of events of two namespaces", len(states))
	}
	if !slices.IsSortedFunc(states, func(a, b pipeline.InputState) int { return strings.Compare(a.Path, b.Path) }) {
		t.Error("states are not sorted")
	}
	for _, st := range states {
		if st.State != state || !strings.Contains(st.Err, text) || st.Input != "test" {
			t.Errorf("%+v, want %s %q", st, state, text)
		}
	}
}

// Access that is missing is looked for again.
func TestKubernetesWithoutAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "kubeconfig")
		api := newCluster(t, "{type: kubernetes, kubeconfig: "+missing+"}")
		api.src.connect = api.src.client
		stop := api.start(newSpool(t))
		<-time.After(time.Hour)
		if st := api.src.States(); len(st) != 1 || st[0].State != "missing" || !strings.Contains(st[0].Err, "no such file") {
			t.Errorf("states %+v", st)
		}
		if err := os.WriteFile(missing, []byte("not: a kubeconfig\nclusters: 5\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if st := api.src.States(); len(st) != 1 || st[0].State != "missing" || strings.Contains(st[0].Err, "no such file") {
			t.Errorf("states %+v", st)
		}
		if n := api.logs.Len(); n != 2 {
			t.Errorf("%d log entries for two states", n)
		}
		stop()
	})
}

// The error of emit is what Run returns; a road that is full holds the source and does not lose its lines.
func TestKubernetesRoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := newCluster(t, "{type: kubernetes}"), newSpool(t)
		api.put(pod("a"))
		free := make(chan struct{})
		s.hold(free)
		stop := api.start(s)
		for i := range int32(20) {
			api.put(pod("a", endedAs(i+1, "Error", 1)))
		}
		if n := s.count(); n != 0 {
			t.Errorf("%d lines on a full road", n)
		}
		close(free)
		synctest.Wait()
		stop()
		if n := len(told(t, s)); n != 20 {
			t.Errorf("%d restarts after the road was free, want 20", n)
		}

		broken := errors.New("the road has ended")
		done := make(chan error, 1)
		go func() {
			done <- api.src.Run(context.Background(), newSpool(t), func(*pipeline.Block) error { return broken })
		}()
		synctest.Wait()
		api.put(pod("a", endedAs(21, "Error", 1)))
		if err := <-done; !errors.Is(err, broken) {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestKubernetesConfig(t *testing.T) {
	for _, c := range []struct{ config, wrong string }{
		{"{type: kubernetes}", ""},
		{"{type: kubernetes, kubeconfig: /etc/kube, context: prod, namespaces: [a, b], qps: 1, burst: 1}", ""},
		{"{type: kubernetes, qps: 0}", "qps"},
		{"{type: kubernetes, burst: 0}", "burst"},
		{"{type: kubernetes, context: prod}", "without kubeconfig"},
		{"{type: kubernetes, namespaces: [a, a]}", "twice"},
		{"{type: kubernetes, namespaces: ['']}", "empty"},
		{"{type: kubernetes, resync: 1m}", "resync"},
	} {
		_, err := New(strict(c.config), testRuntime())
		if (c.wrong == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: error %v, want one with %q", c.config, err, c.wrong)
		}
	}
	src, err := New(strict("{type: kubernetes}"), testRuntime())
	if err != nil {
		t.Fatal(err)
	}
	if got := src.Common(); got.Format != "kubernetes" || got.Lateness != 15*time.Second {
		t.Errorf("%+v", got)
	}
}

// Whatever a cluster's objects hold, a line stays one line of bounded length.
func TestKubernetesHostileTexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, s := newCluster(t, "{type: kubernetes}"), newSpool(t)
		stop := api.start(s)
		evil := "\n\x00\xff\"}{" + strings.Repeat("\u2028\x1b[31m", 1<<16)
		api.put(
			pod("a", endedAs(1<<30, evil, 1), func(p *core.Pod) {
				st := &p.Status.ContainerStatuses[0]
				st.Image, st.LastTerminationState.Terminated.Message, p.Status.Reason = evil, evil, evil
				for range 1000 {
					p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{Kind: "x", Name: evil})
				}
			}),
			event("e", "Warning", "Unhealthy", evil, 1),
		)
		stop()
		lines := s.all()
		if len(lines) != 2 {
			t.Fatalf("%d lines", len(lines))
		}
		for _, line := range lines {
			if len(line) > 64<<10 {
				t.Errorf("a line of %d bytes", len(line))
			}
		}
		if n := len(told(t, s)); n != 65 {
			t.Errorf("%d events, want 64 restarts at most and the probe's", n)
		}
	})
}

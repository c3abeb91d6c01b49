package source

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/squall-sre/squall/pipeline"
)

// leaseView is the stand-in's Leases as one squall reaches them: client-go's does not refuse what was changed meanwhile,
// as the API does, and the way to it may be cut.
type leaseView struct {
	leaseAPI
	mu  *sync.Mutex // of all views
	cut bool
}

var errCut = errors.New("connection refused")

func (v *leaseView) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordination.Lease, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cut {
		return nil, errCut
	}
	return v.leaseAPI.Get(ctx, name, o)
}

func (v *leaseView) Create(ctx context.Context, l *coordination.Lease, o metav1.CreateOptions) (*coordination.Lease, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cut {
		return nil, errCut
	}
	l.ResourceVersion = "1"
	return v.leaseAPI.Create(ctx, l, o)
}

func (v *leaseView) Update(ctx context.Context, l *coordination.Lease, o metav1.UpdateOptions) (*coordination.Lease, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cut {
		return nil, errCut
	}
	now, err := v.leaseAPI.Get(ctx, l.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if now.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, l.Name, errors.New("it was changed"))
	}
	version, err := strconv.Atoi(now.ResourceVersion)
	if err != nil {
		return nil, err
	}
	l.ResourceVersion = strconv.Itoa(version + 1)
	return v.leaseAPI.Update(ctx, l, o)
}

func (v *leaseView) reach(cut bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cut = cut
}

// A rival is one of several squall with the same Lease, each with positions of its own.
type rival struct {
	c    *cluster
	view *leaseView
	src  *kubernetes
	s    *spool
	stop func()
}

func (c *cluster) rival(host string, mu *sync.Mutex) *rival {
	c.t.Helper()
	rt := testRuntime()
	made, err := New(strict("{type: kubernetes, lease: squall/watch}"), rt)
	if err != nil {
		c.t.Fatal(err)
	}
	r := &rival{c: c, src: made.(*kubernetes), s: newSpool(c.t)}
	r.view = &leaseView{leaseAPI: c.set.CoordinationV1().Leases("squall"), mu: mu}
	r.src.host = host
	r.src.connect = func() (clusterAPI, error) {
		return plainLists{c.set.CoreV1(), func(string) leaseAPI { return r.view }}, nil
	}
	r.start()
	return r
}

func (r *rival) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.src.Run(ctx, r.s, r.s.emit(ctx)) }()
	synctest.Wait()
	r.stop = func() {
		r.c.t.Helper()
		cancel()
		if err := <-done; err != nil {
			r.c.t.Errorf("Run: %v", err)
		}
	}
}

// leads tells whether it watches Pods.
func (r *rival) leads() bool {
	return slices.ContainsFunc(r.src.States(), func(s pipeline.InputState) bool { return s.Path == "pods" && s.State == "reading" })
}

// within lets time pass until what is expected is so, and fails when both lead meanwhile.
func within(t *testing.T, limit time.Duration, a, b *rival, is func() bool) (took time.Duration) {
	t.Helper()
	for took = 0; took <= limit; took += 100 * time.Millisecond {
		if a.leads() && b.leads() {
			t.Fatalf("both lead after %s", took)
		}
		if is() {
			return took
		}
		<-time.After(100 * time.Millisecond)
		synctest.Wait()
	}
	t.Fatalf("not so after %s: %+v %+v", limit, a.src.States(), b.src.States())
	return took
}

// TestKubernetesLease: of two squall one watches. One that is cut off gives up before the other begins, what happened
// between is told by the other, and what was told before is told by nobody again, neither when the first is back.
func TestKubernetesLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "{type: kubernetes}")
		var mu sync.Mutex
		a, b := c.rival("pod-a", &mu), c.rival("pod-b", &mu)
		c.put(pod("x"), pod("y"))
		within(t, time.Minute, a, b, a.leads)
		if st := b.src.States(); len(st) != 1 || st[0].Path != "lease" || st[0].State != "idle" {
			t.Errorf("who stands by says %+v", st)
		}
		c.put(pod("x", endedAs(1, "Error", 1)))
		wantTold(t, a.s, "container_restart shop/x php #1 Error/1")
		for end := time.Now().Add(3 * leaseDuration); time.Now().Before(end); { // it is renewed
			if within(t, 0, a, b, a.leads); b.leads() {
				t.Fatal("both lead")
			}
			<-time.After(time.Second)
			synctest.Wait()
		}

		a.view.reach(true)
		gone := within(t, leaseDeadline+leaseRetry, a, b, func() bool { return !a.leads() })
		c.put(pod("y", endedAs(1, "OOMKilled", 137))) // nobody watches
		took := gone + within(t, leaseDuration+2*leaseRetry, a, b, b.leads)
		if took < leaseDuration-leaseRetry {
			t.Errorf("taken over after %s", took)
		}
		c.put(pod("x", endedAs(2, "Error", 2)))
		wantTold(t, a.s, "container_restart shop/x php #1 Error/1")
		wantTold(t, b.s, "container_restart shop/y php #1 OOMKilled/137", "container_restart shop/x php #2 Error/2")

		// Back again it stands by; when the other stops it goes on within seconds, and does not tell what that one told.
		a.view.reach(false)
		<-time.After(time.Minute)
		synctest.Wait()
		if a.leads() || !b.leads() {
			t.Fatalf("%+v %+v", a.src.States(), b.src.States())
		}
		b.stop()
		within(t, 2*leaseRetry+leaseRetry/2, a, b, a.leads)
		c.put(pod("y", endedAs(2, "Error", 3)))
		a.stop()
		wantTold(t, a.s, "container_restart shop/x php #1 Error/1", "container_restart shop/y php #2 Error/3")
		wantTold(t, b.s, "container_restart shop/y php #1 OOMKilled/137", "container_restart shop/x php #2 Error/2")
	})
}

// TestKubernetesLeaseRestart: who starts again on its host and finds that nobody else held the Lease goes on where its
// positions are, as without a Lease.
func TestKubernetesLeaseRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "{type: kubernetes}")
		a := c.rival("pod-a", new(sync.Mutex))
		c.put(pod("x"), pod("x", endedAs(1, "Error", 1)))
		a.stop()
		<-time.After(time.Hour)
		c.put(pod("x", endedAs(3, "Error", 2)))
		<-time.After(time.Hour)
		a.start()
		within(t, 2*leaseRetry, a, &rival{src: &kubernetes{}}, a.leads)
		a.stop()
		wantTold(t, a.s, "container_restart shop/x php #1 Error/1", "container_restart shop/x php #2 unknown", "container_restart shop/x php #3 Error/2")
	})
}

// TestKubernetesLeaseLostWhileTelling: what comes after the deadline is not told, whatever the watch still brings.
func TestKubernetesLeaseLostWhileTelling(t *testing.T) {
	held := true
	s := newSpool(t)
	k := &kubernetes{rt: testRuntime()}
	k.cfg.Name = "test"
	told := newTeller(k, s, s.emit(t.Context()), func() {})
	told.holds = func() bool { return held }
	told.event(1, []byte("first\n"))
	held = false
	told.event(2, []byte("second\n"))
	if err := told.end(); err != nil || !slices.Equal(s.all(), []string{"first"}) {
		t.Errorf("%v: %q", err, s.all())
	}
}

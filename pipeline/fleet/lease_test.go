package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline/loki/faultproxy"
)

// contend lets l ask for the lease until the returned function is called.
func contendFor(l *testLink, ttl time.Duration, held func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Lease(ctx, "webhook", ttl, held)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	l.t.Cleanup(stop)
	return stop
}

// A lease that is given back is taken at once, and one whose holder is cut off after its time.
func TestLeaseIsHandedOn(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	proxy := faultproxy.New(t, srv.Addr())
	first, second, third := connect(t, srv.Addr(), "a"), connect(t, proxy.Addr, "b"), connect(t, srv.Addr(), "c")
	first.declare(StreamConfig{MaxAge: time.Hour})
	holder := make(chan string, 8)
	hold := func(name string) func(context.Context) {
		return func(ctx context.Context) { holder <- name; <-ctx.Done(); holder <- "not " + name }
	}
	expect := func(want string) {
		t.Helper()
		timer := time.NewTimer(20 * time.Second)
		defer timer.Stop()
		select {
		case got := <-holder:
			if got != want {
				t.Fatalf("%s holds the lease instead of %s", got, want)
			}
		case <-timer.C:
			t.Fatalf("%s does not hold the lease", want)
		}
	}
	const ttl = 2 * time.Second
	stop := contendFor(first, ttl, hold("a"))
	expect("a")
	stopSecond := contendFor(second, ttl, hold("b"))
	began := time.Now()
	stop()
	expect("not a")
	expect("b")
	if d := time.Since(began); d >= ttl {
		t.Errorf("what was given back was taken after %s", d)
	}
	contendFor(third, ttl, hold("c"))
	proxy.Set(faultproxy.Refuse)
	expect("not b") // by its own clock
	expect("c")
	if n := third.metric("leases"); n != 1 || second.metric("leases") != 0 {
		t.Errorf("c holds %d leases, b %d", n, second.metric("leases"))
	}
	stopSecond()

	for _, err := range []error{
		first.Lease(t.Context(), "a.b", ttl, nil), first.Lease(t.Context(), "", ttl, nil), first.Lease(t.Context(), "webhook", time.Millisecond, nil),
	} {
		if err == nil {
			t.Error("an impossible lease is no error")
		}
	}
	// Who is done gives it back, and is not asked again.
	began = time.Now()
	for _, l := range []*testLink{first, third, first} {
		if err := l.Lease(t.Context(), "once", ttl, func(context.Context) {}); err != nil {
			t.Error(err)
		}
	}
	if d := time.Since(began); d >= ttl {
		t.Errorf("three held a lease for no time within %s", d)
	}
}

// A holder that was stopped and goes on sees, before it does anything, that its time has passed.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	l := connect(t, srv.Addr(), "b")
	l.declare(StreamConfig{MaxAge: time.Hour})
	p := spawn(t, "holder", task{Link: &Config{URL: "nats://" + srv.Addr(), Cluster: cluster, Node: "a"}})
	if got := p.line(t); got != "held <nil>" {
		t.Fatalf("it says %q", got)
	}
	taken := make(chan struct{})
	contendFor(l, time.Second, func(ctx context.Context) { close(taken); <-ctx.Done() })
	<-taken
	if err := p.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := p.line(t); got != "after context canceled" {
		t.Errorf("after it was stopped it says %q", got)
	}
}

// Three that ask for a lease over a network that breaks and hangs as it likes: never two hold it.
func TestNeverTwoHolders(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	connect(t, srv.Addr(), "d").declare(StreamConfig{MaxAge: time.Hour})
	var holders, terms atomic.Int32
	var proxies []*faultproxy.Proxy
	for i := range 3 {
		p := faultproxy.New(t, srv.Addr())
		proxies = append(proxies, p)
		contendFor(connect(t, p.Addr, fmt.Sprint("a", i)), time.Second, func(ctx context.Context) {
			if n := holders.Add(1); n != 1 {
				t.Errorf("%d hold the lease", n)
			}
			terms.Add(1)
			<-ctx.Done()
			holders.Add(-1)
		})
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	faults := []faultproxy.Fault{faultproxy.Through, faultproxy.Refuse, faultproxy.Blackhole, faultproxy.AnswerStalls}
	deadline, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	for deadline.Err() == nil {
		proxies[rnd.IntN(3)].Set(faults[rnd.IntN(len(faults))])
		pause(deadline, time.Duration(rnd.IntN(300))*time.Millisecond)
	}
	for _, p := range proxies {
		p.Set(faultproxy.Through)
	}
	eventually(t, func() string { return "nobody holds the lease" }, func() bool { return holders.Load() == 1 && terms.Load() > 1 })
}

package source

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/squall-sre/squall/pipeline"
)

// The times of client-go's leader election: who holds a Lease gives up before another may take it.
const (
	leaseDuration = 15 * time.Second // unchanged for so long, a Lease may be taken
	leaseDeadline = 10 * time.Second // not renewed for so long, it is given up
	leaseRetry    = 2 * time.Second
)

// leasePath names a Lease among the states.
const leasePath = "lease"

// A lease is held by one of several squall. The protocol is that of client-go's leader election, whose packages bring
// the whole API into the program. The clocks of others are not believed: an observer waits until a Lease has not
// changed for its duration by the observer's own clock.
type lease struct {
	api             leaseAPI
	namespace, name string
	identity        string
	now             func() time.Time

	seen     coordination.LeaseSpec // as it was last read
	seenAt   time.Time              // when it became so
	known    bool
	deadline atomic.Pointer[time.Time] // until when it is held without another renewal; nil: it is not
}

// leaseAPI is what is asked of the Leases of a namespace.
type leaseAPI interface {
	Get(context.Context, string, metav1.GetOptions) (*coordination.Lease, error)
	Create(context.Context, *coordination.Lease, metav1.CreateOptions) (*coordination.Lease, error)
	Update(context.Context, *coordination.Lease, metav1.UpdateOptions) (*coordination.Lease, error)
}

// A predecessor is who held a Lease before.
type predecessor struct {
	other bool  // not this host's squall, which knows from its positions what it told
	until int64 // ns: when it last renewed
}

// leaseName splits namespace/name.
func leaseName(text string) (namespace, name string, err error) {
	namespace, name, _ = strings.Cut(text, "/")
	if namespace == "" || name == "" || strings.ContainsAny(name, "/ \t\n") || strings.ContainsAny(namespace, " \t\n") {
		return "", "", fmt.Errorf("lease %q: write namespace/name", text)
	}
	return namespace, name, nil
}

// leaseIdentity is the host's name, which in a Pod is the Pod's, and what sets this run apart from others of the name.
func leaseIdentity(host string, now time.Time) string {
	return cmp.Or(host, "squall") + "_" + strconv.FormatInt(now.UnixNano(), 36)
}

func leaseHost(identity string) string {
	host, _, _ := strings.Cut(identity, "_") // no host's name has one
	return host
}

// holds tells whether it is held now, by both clocks: that of the wall may be set back, the other stands still while a
// machine sleeps. It is safe for concurrent use.
func (l *lease) holds() bool { return l.left() > 0 }

// left is for how long it is held without another renewal.
func (l *lease) left() time.Duration {
	until := l.deadline.Load()
	if until == nil {
		return 0
	}
	now := l.now()
	return min(until.Sub(now), until.Round(0).Sub(now.Round(0)))
}

// hold notes that it was taken or renewed by what was asked then.
func (l *lease) hold(asked time.Time) {
	until := asked.Add(leaseDeadline)
	l.deadline.Store(&until)
}

// try takes or renews it; false without an error when another holds it.
func (l *lease) try(ctx context.Context) (before predecessor, ok bool, err error) {
	asked := l.now()
	got, err := l.api.Get(ctx, l.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		made := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: l.name}}
		l.fill(&made.Spec, asked)
		if _, err := l.api.Create(ctx, made, metav1.CreateOptions{}); err != nil {
			return before, false, ignoreRace(err)
		}
		l.hold(asked)
		return before, true, nil
	case err != nil:
		return before, false, err
	}
	if !l.known || !sameHolder(&l.seen, &got.Spec) {
		l.seen, l.seenAt, l.known = *got.Spec.DeepCopy(), asked, true
	}
	holder := spelled(got.Spec.HolderIdentity)
	if holder != l.identity {
		l.deadline.Store(nil) // another took it
		if holder != "" && asked.Sub(l.seenAt) <= seconds(got.Spec.LeaseDurationSeconds) {
			return before, false, nil
		}
		before.other = leaseHost(holder) != leaseHost(l.identity)
	}
	if got.Spec.RenewTime != nil {
		before.until = got.Spec.RenewTime.UnixNano()
	}
	l.fill(&got.Spec, asked)
	if _, err := l.api.Update(ctx, got, metav1.UpdateOptions{}); err != nil {
		return before, false, ignoreRace(err)
	}
	l.hold(asked)
	return before, true, nil
}

// fill writes that it is held.
func (l *lease) fill(s *coordination.LeaseSpec, now time.Time) {
	at, duration := metav1.NewMicroTime(now), int32(leaseDuration/time.Second)
	if spelled(s.HolderIdentity) != l.identity {
		transitions := int32(0)
		if s.LeaseTransitions != nil {
			transitions = *s.LeaseTransitions + 1
		}
		s.HolderIdentity, s.AcquireTime, s.LeaseTransitions = &l.identity, &at, &transitions
	}
	s.RenewTime, s.LeaseDurationSeconds = &at, &duration
}

// release lets others take it after a second instead of all of its duration. The holder's name stays, so that who comes
// next knows who told what was before.
func (l *lease) release(ctx context.Context) {
	if !l.holds() {
		return
	}
	l.deadline.Store(nil)
	ctx, cancel := context.WithTimeout(ctx, leaseRetry)
	defer cancel()
	got, err := l.api.Get(ctx, l.name, metav1.GetOptions{})
	if err != nil || spelled(got.Spec.HolderIdentity) != l.identity {
		return
	}
	at, soon := metav1.NewMicroTime(l.now()), int32(1)
	got.Spec.RenewTime, got.Spec.LeaseDurationSeconds = &at, &soon
	_, _ = l.api.Update(ctx, got, metav1.UpdateOptions{}) // else the others wait
}

// keep renews it until ctx ends or it is lost.
func (l *lease) keep(ctx context.Context) {
	retry := time.NewTicker(leaseRetry)
	defer retry.Stop()
	for l.holds() {
		lost := time.NewTimer(l.left())
		select {
		case <-ctx.Done():
		case <-lost.C:
		case <-retry.C:
			within, cancel := context.WithTimeout(ctx, l.left())
			_, _, _ = l.try(within) // until the deadline it is tried again
			cancel()
		}
		lost.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// ignoreRace passes over that another was faster.
func ignoreRace(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func sameHolder(a, b *coordination.LeaseSpec) bool {
	return spelled(a.HolderIdentity) == spelled(b.HolderIdentity) && a.RenewTime.Equal(b.RenewTime) && seconds(a.LeaseDurationSeconds) == seconds(b.LeaseDurationSeconds)
}

func spelled(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func seconds(n *int32) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Second
}

// stand watches whenever it is this squall that holds the Lease, until ctx ends or the road has ended.
func (k *kubernetes) stand(ctx context.Context, core clusterAPI, positions pipeline.Positions, emit pipeline.Emit) error {
	namespace, name, err := leaseName(k.cfg.Lease)
	if err != nil {
		return err
	}
	l := &lease{api: core.Leases(namespace), namespace: namespace, name: name, identity: leaseIdentity(k.host, k.rt.Now()), now: k.rt.Now}
	for {
		before, ok := k.await(ctx, l)
		if !ok {
			return nil
		}
		k.states.forget(leasePath)
		k.log.Info("this squall holds the Lease and watches the Kubernetes API", zap.String("lease", k.cfg.Lease), zap.String("identity", l.identity))
		held, lose := context.WithCancel(ctx)
		kept := make(chan struct{})
		go func() {
			defer close(kept)
			defer lose()
			l.keep(held)
		}()
		err := k.lead(held, core, positions, emit, l, before)
		lose()
		<-kept
		k.states.clear()
		l.release(context.WithoutCancel(ctx))
		if err != nil || ctx.Err() != nil {
			return err
		}
		k.log.Warn("the Lease is lost: another squall watches the Kubernetes API", zap.String("lease", k.cfg.Lease))
	}
}

// await stands by until the Lease is held; false when ctx ended before.
func (k *kubernetes) await(ctx context.Context, l *lease) (before predecessor, ok bool) {
	for {
		within, cancel := context.WithTimeout(ctx, leaseDeadline)
		before, ok, err := l.try(within)
		cancel()
		switch {
		case ctx.Err() != nil:
			if ok {
				l.release(context.WithoutCancel(ctx))
			}
			return before, false
		case ok:
			return before, true
		case err != nil:
			k.changed(leasePath, "unreadable", err)
		case k.states.set(leasePath, "idle", nil):
			k.log.Info("another squall holds the Lease: standing by", zap.String("lease", k.cfg.Lease), zap.String("holder", spelled(l.seen.HolderIdentity)))
		}
		retry := time.NewTimer(leaseRetry)
		select {
		case <-ctx.Done():
			retry.Stop()
			return before, false
		case <-retry.C:
		}
	}
}

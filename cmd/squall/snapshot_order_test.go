package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline/spool"
)

// watchedKV is the outbox's place on disk; it looks at the state's whenever the outbox is written.
type watchedKV struct {
	bucketKV
	fail   error
	before []string // the saved state at each write
}

func (k *watchedKV) Put(ctx context.Context, key string, value []byte) error {
	state, _, err := k.Get(ctx, stateKey)
	if err != nil {
		return err
	}
	k.before = append(k.before, string(state))
	if k.fail != nil {
		return k.fail
	}
	return k.bucketKV.Put(ctx, key, value)
}

// A state that knows of a page must never be on disk without what receivers are owed: after a crash between the two the
// page would be lost. So the outbox goes first, and without it the old state stays.
func TestOutboxIsSavedBeforeTheState(t *testing.T) {
	store, err := spool.Open(t.Context(), spool.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	kv := &watchedKV{bucketKV: bucketKV{store, stateBucket}}
	outbox, err := notify.OpenOutbox(t.Context(), kv, nil)
	if err != nil {
		t.Fatal(err)
	}
	pages := notify.NewDispatcher(notify.Config{Outbox: outbox, Now: time.Now})
	fire := func(n int64) {
		labels := detectors.Labels{{Name: "alertname", Value: "HeadStorm"}, {Name: "site", Value: string(rune('a' + n))}}
		a := alerts.Alert{Name: "HeadStorm", State: alerts.Firing, StartsAt: n, Labels: labels}
		pages.Update(n, []alerts.Alert{a}, []alerts.Alert{a})
	}
	d := &service{store: store, outbox: outbox, kept: newIncidentBook(store)}
	saved := func() string {
		state, _, err := kv.Get(t.Context(), stateKey)
		if err != nil {
			t.Fatal(err)
		}
		return string(state)
	}
	fire(1)
	if err := d.put(t.Context(), []byte("first")); err != nil {
		t.Fatal(err)
	}
	fire(2)
	if err := d.put(t.Context(), []byte("second")); err != nil {
		t.Fatal(err)
	}
	check(t, "the state when the outbox was written", kv.before, []string{"", "first"})
	check(t, "the state", saved(), "second")
	kv.fail = errors.New("the disk is broken")
	fire(3)
	if err := d.put(t.Context(), []byte("third")); !errors.Is(err, kv.fail) {
		t.Errorf("%v, want the outbox's error", err)
	}
	check(t, "the state without an outbox", saved(), "second")
}

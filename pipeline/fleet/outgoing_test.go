package fleet

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline/loki/faultproxy"
)

// What a node adds stands in the stream in its order, once, with its name; who reads from a place gets the rest.
func TestPanesReachTheStream(t *testing.T) {
	srv := serve(t)
	node, agg := connect(t, srv.Addr(), "lb1.fra"), connect(t, srv.Addr(), "agg")
	agg.declare(StreamConfig{MaxAge: time.Hour, MaxBytes: 64 << 20})
	o := node.outgoing(openKV(t, t.TempDir()))
	r := agg.follow(0)
	for range 50 { // a backlog
		o.Add(pane(100))
	}
	stop := run(t, o)
	for range 50 {
		o.Add(pane(20000))
	}
	got := r.wait(100)
	if seqs := r.panes(); !slices.Equal(seqs, span(1, 100)) {
		t.Errorf("the panes came as %v", seqs)
	}
	for i, m := range got {
		if m.Seq != uint64(i+1) || m.Node != "lb1.fra" || m.Missed != 0 || m.Reset || time.Since(time.Unix(0, m.At)).Abs() > time.Minute {
			t.Errorf("message %d: seq %d of %q at %d, missed %d, reset %v", i, m.Seq, m.Node, m.At, m.Missed, m.Reset)
		}
	}
	drained(t, o)
	stop()
	if last, err := agg.Last(t.Context()); err != nil || last != 100 {
		t.Errorf("the last is %d: %v", last, err)
	}
	if seqs := agg.follow(91).wait(10); seqs[0].Seq != 91 || len(seqs) != 10 {
		t.Errorf("from 91 on came %d, the first %d", len(seqs), seqs[0].Seq)
	}
	if n := node.metric("published_panes_total"); n != 100 {
		t.Errorf("%d are counted as published", n)
	}
	// An error of take's is the end, and its pane is not gone on from.
	enough := errors.New("enough")
	if err := agg.Follow(t.Context(), 0, func(Message) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("an error of take's gives %v", err)
	}
	collected(t, node)
}

// Whoever is started anew before it has saved what the stream has sends that again, and the stream refuses it. The
// same sequence with other bytes is something else: a node whose disk was wiped begins anew.
func TestRepeatsAreRefused(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	agg := connect(t, srv.Addr(), "agg")
	agg.declare(StreamConfig{MaxAge: time.Minute, MaxBytes: 64 << 20})
	kv := &faultyKV{KV: openKV(t, t.TempDir())}
	first := connect(t, srv.Addr(), "lb1")
	o := first.outgoing(kv)
	stop := run(t, o)
	for range 20 {
		o.Add(pane(10))
	}
	drained(t, o)
	kv.failing.Store(true) // the acknowledgements are not saved
	stop()
	kv.failing.Store(false)

	second := connect(t, srv.Addr(), "lb1")
	o = second.outgoing(kv)
	if n := o.Waiting(); n != 20 {
		t.Fatalf("%d wait after the restart", n)
	}
	o.Add(pane(10))
	stop = run(t, o)
	drained(t, o)
	stop()
	if last, err := agg.Last(t.Context()); err != nil || last != 21 {
		t.Errorf("the stream has %d messages of 21: %v", last, err)
	}
	if n := connect(t, srv.Addr(), "lb1").outgoing(kv).Waiting(); n != 0 {
		t.Errorf("%d wait after an orderly end", n)
	}

	// What was sent and is not on the disk leaves its sequence to something else.
	for size := 11; size <= 12; size++ {
		o = connect(t, srv.Addr(), "lb1").outgoing(kv)
		stop = run(t, o)
		kv.failing.Store(true)
		o.Add(pane(size))
		drained(t, o)
		stop()
		kv.failing.Store(false)
	}

	third := connect(t, srv.Addr(), "lb1")
	o = third.outgoing(openKV(t, t.TempDir()))
	stop = run(t, o)
	o.Add(pane(10))
	drained(t, o)
	stop()
	if seqs := agg.follow(0); !slices.Equal(paneSeqs(seqs.wait(24)), append(span(1, 21), 22, 22, 1)) {
		t.Errorf("the stream has %v", seqs.panes())
	}
}

func paneSeqs(got []Message) []uint64 {
	var seqs []uint64
	for _, m := range got {
		seqs = append(seqs, seqOf(m.Data))
	}
	return seqs
}

// A ring that is full loses its oldest, which is counted; with the server come the rest, in their order, also after a
// restart.
func TestRingOverflows(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	proxy := faultproxy.New(t, srv.Addr())
	proxy.Set(faultproxy.Refuse)
	kv := newMapKV()
	node := connect(t, proxy.Addr, "lb1")
	o := node.outgoing(kv)
	stop := run(t, o)
	for range ringSize + 80 {
		o.Add(pane(10))
	}
	if n, dropped := o.Waiting(), node.metric("dropped_panes_total"); n != ringSize || dropped != 80 || node.metric("waiting_panes") != n {
		t.Errorf("%d wait and %d were dropped", n, dropped)
	}
	stop()
	again := connect(t, proxy.Addr, "lb1")
	o = again.outgoing(kv)
	if n := o.Waiting(); n != ringSize {
		t.Errorf("%d wait after the restart", n)
	}
	run(t, o)
	o.Add(pane(10))
	agg := connect(t, srv.Addr(), "agg")
	agg.declare(StreamConfig{MaxAge: time.Hour})
	proxy.Set(faultproxy.Through)
	r := agg.follow(0)
	r.wait(ringSize)
	drained(t, o)
	if seqs := r.panes(); !slices.Equal(seqs, span(82, ringSize+81)) {
		t.Errorf("the stream has %d panes: %v…", len(seqs), seqs[:10])
	}
	if n := again.metric("dropped_panes_total"); n != 1 {
		t.Errorf("%d were dropped after the restart", n)
	}
}

// What no server takes is left out and counted; what is behind it goes on.
func TestTooLargeIsLeftOut(t *testing.T) {
	srv := serve(t)
	agg, node := connect(t, srv.Addr(), "agg"), connect(t, srv.Addr(), "lb1")
	agg.declare(StreamConfig{MaxAge: time.Hour})
	o := node.outgoing(newMapKV())
	o.Add(pane(10))
	o.Add(pane(2 << 20))
	o.Add(pane(node.MaxPayload() - 8))
	run(t, o)
	r := agg.follow(0)
	r.wait(2)
	drained(t, o)
	if seqs := r.panes(); !slices.Equal(seqs, []uint64{1, 3}) || node.metric("refused_panes_total") != 1 || node.metric("dropped_panes_total") != 0 {
		t.Errorf("the stream has %v, refused are %d", seqs, node.metric("refused_panes_total"))
	}
}

// A faultyKV is a real one whose disk fails, or hangs, when the test says so.
type faultyKV struct {
	KV
	failing atomic.Bool
	hangs   atomic.Pointer[chan struct{}] // until it is closed, whatever a context says
	puts    atomic.Int64
}

var errFull = errors.New("no space left on device")

func (k *faultyKV) Put(ctx context.Context, key string, value []byte) error {
	k.puts.Add(1)
	if c := k.hangs.Load(); c != nil {
		<-*c
	}
	if k.failing.Load() {
		return errFull
	}
	return k.KV.Put(ctx, key, value)
}

// A disk that takes nothing holds Add up once; the newest panes are in memory, and on the disk when it is well again.
func TestSickDisk(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	proxy := faultproxy.New(t, srv.Addr())
	proxy.Set(faultproxy.Refuse)
	kv := &faultyKV{KV: openKV(t, filepath.Join(t.TempDir(), "node"))}
	node := connect(t, proxy.Addr, "lb1")
	o := node.outgoing(kv)
	o.Add(pane(10))
	stop := run(t, o)
	well := make(chan struct{})
	kv.hangs.Store(&well)
	before := kv.puts.Load()
	for range inMemory + 10 {
		o.Add(pane(10))
	}
	if n := kv.puts.Load() - before; n != 1 {
		t.Errorf("a disk that hangs was tried %d times", n)
	}
	kv.hangs.Store(nil)
	kv.failing.Store(true)
	close(well)
	eventually(t, func() string { return "the disk is not tried" }, func() bool { return kv.puts.Load() > before+1 })
	kv.failing.Store(false)
	eventually(t, func() string { return "the disk is not tried again" }, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return !o.isSick
	})
	stop()
	if n := node.metric("unkept_panes_total"); n != inMemory+10 {
		t.Errorf("%d are counted as not kept", n)
	}

	// 2 … 11 were only in memory, and had to leave it: they are missed when it is their turn.
	again := connect(t, proxy.Addr, "lb1")
	o = again.outgoing(kv)
	agg := connect(t, srv.Addr(), "agg")
	agg.declare(StreamConfig{MaxAge: time.Hour})
	proxy.Set(faultproxy.Through)
	run(t, o)
	drained(t, o)
	r := agg.follow(0)
	r.wait(1 + inMemory)
	if seqs := r.panes(); !slices.Equal(seqs, append([]uint64{1}, span(12, inMemory+11)...)) || again.metric("dropped_panes_total") != 10 {
		t.Errorf("the stream has %v, %d were dropped", seqs, again.metric("dropped_panes_total"))
	}
}

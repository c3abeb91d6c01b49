package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/squall-sre/squall/pipeline/loki/faultproxy"
)

// publish adds n panes and waits until the stream has them.
func publish(t *testing.T, o *Outgoing, n int) {
	t.Helper()
	for range n {
		o.Add(pane(100))
	}
	drained(t, o)
}

// What was removed before it was read is counted, and a stream that was made anew is read from its beginning.
func TestFollowOverRemovals(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	agg, node := connect(t, srv.Addr(), "agg"), connect(t, srv.Addr(), "lb1")
	agg.patience = 300 * time.Millisecond
	agg.declare(StreamConfig{MaxAge: 500 * time.Millisecond})
	o := node.outgoing(newMapKV())
	run(t, o)
	publish(t, o, 10)
	eventually(t, func() string { return "nothing gets too old" }, func() bool {
		info, err := agg.streamInfo(t.Context())
		return err == nil && info.State.Msgs == 0
	})
	agg.declare(StreamConfig{MaxAge: time.Hour})
	r := agg.follow(3)
	publish(t, o, 2)
	got := r.wait(2)
	if got[0].Seq != 11 || got[0].Missed != 8 || got[1].Missed != 0 || agg.metric("missed_messages_total") != 8 {
		t.Errorf("the first is %d, missed %d, then %d", got[0].Seq, got[0].Missed, got[1].Missed)
	}
	if again := agg.follow(0).wait(2); again[0].Seq != 11 || again[0].Missed != 0 {
		t.Errorf("from the oldest on the first is %d, missed %d", again[0].Seq, again[0].Missed)
	}

	if err := agg.js.DeleteStream(t.Context(), streamName(cluster)); err != nil {
		t.Fatal(err)
	}
	o.Add(pane(100))
	agg.declare(StreamConfig{MaxAge: time.Hour})
	publish(t, o, 1)
	got = r.wait(4)
	if got[2].Seq != 1 || !got[2].Reset || seqOf(got[2].Data) != 13 || got[3].Reset || seqOf(got[3].Data) != 14 {
		t.Errorf("after the stream was made anew came %d of the node's %d, reset %v", got[2].Seq, seqOf(got[2].Data), got[2].Reset)
	}
	// One that comes with a place that the stream does not have learns it, too.
	if got := agg.follow(12).wait(2); got[0].Seq != 1 || !got[0].Reset || got[1].Reset {
		t.Errorf("from a place that is not there came %d, reset %v", got[0].Seq, got[0].Reset)
	}
}

// A server that lost what it wrote last puts other messages in its place: they are not taken for what was read.
func TestStreamLosesItsEnd(t *testing.T) {
	t.Parallel()
	dir, copied := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "copy")
	srv := serve(t, func(c *ServerConfig) { c.Dir = dir })
	again := func() {
		t.Helper()
		srv = serve(t, func(c *ServerConfig) { c.Dir, c.Listen = dir, srv.Addr() })
	}
	agg, node := connect(t, srv.Addr(), "agg"), connect(t, srv.Addr(), "lb1")
	agg.declare(StreamConfig{MaxAge: time.Hour})
	o := node.outgoing(newMapKV())
	run(t, o)
	r := agg.follow(0)
	publish(t, o, 5)
	srv.Shutdown()
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	again()
	publish(t, o, 5)
	r.wait(10)
	srv.Shutdown()
	if err := errors.Join(os.RemoveAll(dir), os.Rename(copied, dir)); err != nil {
		t.Fatal(err)
	}
	again()
	publish(t, o, 7)
	got := r.wait(22)
	if len(got) != 22 || !got[10].Reset || got[10].Seq != 1 || seqOf(got[14].Data) != 5 || seqOf(got[15].Data) != 11 || seqOf(got[21].Data) != 17 {
		t.Errorf("the end came as %v", r.panes()[10:])
	}
}

// One node's messages are limited without those of others.
func TestLimitOfOneNode(t *testing.T) {
	srv := serve(t)
	agg := connect(t, srv.Addr(), "agg")
	agg.declare(StreamConfig{MaxAge: time.Hour, MaxPerNode: 5})
	for _, name := range []string{"calm", "mad"} {
		o := connect(t, srv.Addr(), name).outgoing(newMapKV())
		run(t, o)
		publish(t, o, map[string]int{"calm": 3, "mad": 40}[name])
	}
	count := map[string]int{}
	for _, m := range agg.follow(0).wait(8) {
		count[m.Node]++
	}
	if count["calm"] != 3 || count["mad"] != 5 {
		t.Errorf("the stream has %v", count)
	}
}

// What an operator has set beside what squall wants stays.
func TestDeclareKeepsWhatIsNotIts(t *testing.T) {
	srv := serve(t)
	agg := connect(t, srv.Addr(), "agg")
	agg.declare(StreamConfig{MaxAge: time.Hour, MaxBytes: 1 << 20})
	info, err := agg.streamInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg := info.Config
	cfg.Description, cfg.AllowRollup = "of the shop", true
	if _, err := agg.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	agg.declare(StreamConfig{MaxAge: 2 * time.Hour, MaxBytes: 1 << 20})
	if info, err = agg.streamInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := info.Config; c.Description != "of the shop" || c.AllowRollup || c.MaxAge != 2*time.Hour || c.MaxBytes != 1<<20 ||
		c.Duplicates != duplicateWindow || c.Discard != jetstream.DiscardOld || c.Storage != jetstream.FileStorage {
		t.Errorf("the stream is %+v", c)
	}
}

// A server that is started anew, connections that break or hang, a node and a reader that go on: nothing is lost,
// nothing comes twice, and no goroutine is left behind.
func TestServerAndNetworkFail(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	srv := serve(t, func(c *ServerConfig) { c.Dir = dir })
	proxy := faultproxy.New(t, srv.Addr())
	agg, node := connect(t, proxy.Addr, "agg"), connect(t, proxy.Addr, "lb1")
	agg.declare(StreamConfig{MaxAge: time.Hour})
	o := node.outgoing(newMapKV())
	run(t, o)
	r := agg.follow(0)
	publish(t, o, 20)
	r.wait(20)
	before := runtime.NumGoroutine()

	for range 10 {
		proxy.Set(faultproxy.Through) // resets what is open
		for range 5 {
			o.Add(pane(1000))
		}
	}
	drained(t, o)
	proxy.Set(faultproxy.Fault{RequestBytes: 300000, AnswerBytes: -1, Then: faultproxy.Reset})
	for range 20 {
		o.Add(pane(50000))
	}
	drained(t, o)
	proxy.Set(faultproxy.AnswerStalls)
	for range 5 {
		o.Add(pane(10))
	}
	proxy.Set(faultproxy.Through)
	drained(t, o)
	proxy.Set(faultproxy.Refuse)
	for range 5 {
		o.Add(pane(10))
	}
	srv.Shutdown()
	address := srv.Addr()
	serve(t, func(c *ServerConfig) { c.Dir, c.Listen = dir, address })
	proxy.Set(faultproxy.Through)
	publish(t, o, 5)

	got := r.wait(105)
	for i, m := range got {
		if m.Seq != uint64(i+1) || m.Missed != 0 || m.Reset {
			t.Fatalf("message %d of the stream came as the %dth, missed %d, reset %v", m.Seq, i+1, m.Missed, m.Reset)
		}
	}
	seen := map[uint64]bool{}
	for _, m := range got {
		if seen[seqOf(m.Data)] {
			t.Errorf("pane %d came twice", seqOf(m.Data))
		}
		seen[seqOf(m.Data)] = true
	}
	if len(got) != 105 {
		t.Errorf("%d messages came of 105", len(got))
	}
	eventually(t, func() string {
		return fmt.Sprintf("there were %d goroutines, and are %d", before, runtime.NumGoroutine())
	},
		func() bool { return runtime.NumGoroutine() <= before+8 })
	if node.metric("connected") != 1 || node.metric("dropped_panes_total") != 0 {
		t.Errorf("connected %d, dropped %d", node.metric("connected"), node.metric("dropped_panes_total"))
	}
}

// A heartbeat is for those who listen.
func TestHeartbeats(t *testing.T) {
	srv := serve(t)
	hears(t, connect(t, srv.Addr(), "agg.a"), connect(t, srv.Addr(), "lb1"))
	away := connect(t, "127.0.0.1:1", "agg")
	if err := away.Tell([]byte("x")); err == nil {
		t.Error("nobody is there, and it is no error")
	}
	if n := away.MaxPayload(); n != 1<<20-4<<10 || away.Connected() {
		t.Errorf("without a server a message may have %d bytes", n)
	}
}

// Values are kept beside the stream, and what they replace is removed.
func TestBlobs(t *testing.T) {
	srv := serve(t)
	agg := connect(t, srv.Addr(), "agg")
	if _, err := agg.Blobs(t.Context(), "state"); err == nil {
		t.Error("there is no stream, and it is no error")
	}
	agg.declare(StreamConfig{MaxAge: time.Hour})
	b, err := agg.Blobs(t.Context(), "state")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := b.Get(t.Context(), "a"); ok || err != nil {
		t.Errorf("what is not there: %v %v", ok, err)
	}
	for i := range 5 {
		want := make([]byte, 1<<20+i)
		want[i] = byte(i)
		if err := b.Put(t.Context(), "a", want); err != nil {
			t.Fatal(err)
		}
		other, err := connect(t, srv.Addr(), "agg2").Blobs(t.Context(), "state")
		if err != nil {
			t.Fatal(err)
		}
		if got, ok, err := other.Get(t.Context(), "a"); !ok || err != nil || string(got) != string(want) {
			t.Errorf("%d bytes of %d came: %v %v", len(got), len(want), ok, err)
		}
	}
	if err := b.Put(t.Context(), "none", nil); err != nil {
		t.Error(err)
	}
	if got, ok, err := b.Get(t.Context(), "none"); !ok || err != nil || len(got) != 0 {
		t.Errorf("nothing came as %d bytes: %v %v", len(got), ok, err)
	}
	if b.Put(t.Context(), "", nil) == nil || b.Put(t.Context(), "a", make([]byte, maxBlob+1)) == nil {
		t.Error("a value without a key, or of more than 64 MiB, is taken")
	}
	// A process that was killed has left a part, and one is on its way.
	part := func(name string) {
		t.Helper()
		if _, err := agg.js.Publish(t.Context(), "$O.squall_"+cluster+"_state.C."+name, make([]byte, 1<<19)); err != nil {
			t.Fatal(err)
		}
	}
	bytes := func() uint64 {
		t.Helper()
		info, err := b.(*blobs).stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Bytes
	}
	part("left")
	if err := b.(*blobs).sweep(t.Context(), orphanAge); err != nil || bytes() < 3<<19 {
		t.Errorf("what is on its way is removed: %d bytes are there: %v", bytes(), err)
	}
	if err := b.(*blobs).sweep(t.Context(), 0); err != nil || bytes() > 5<<18 {
		t.Errorf("the bucket has %d bytes for a value of 1 MiB: %v", bytes(), err)
	}
	if got, ok, err := b.Get(t.Context(), "a"); !ok || err != nil || len(got) != 1<<20+4 {
		t.Errorf("%d bytes of the last value came: %v %v", len(got), ok, err)
	}
}

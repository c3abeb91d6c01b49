package fleet

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/squall-sre/squall/pipeline/spool"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("FLEET_TEST_CHILD"); role != "" {
		if err := child(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const cluster = "shop"

// serve starts a server that is alone, and that the test's end stops.
func serve(t testing.TB, change ...func(*ServerConfig)) *Server {
	t.Helper()
	cfg := ServerConfig{Name: "a", Listen: "127.0.0.1:0", Dir: t.TempDir(), Cluster: cluster, Log: zaptest.NewLogger(t)}
	for _, c := range change {
		c(&cfg)
	}
	s, err := StartServer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// A testLink is a Link with its metrics.
type testLink struct {
	*Link
	t   testing.TB
	reg *prometheus.Registry
}

// connect makes a Link to the server at address, as the node.
func connect(t testing.TB, address, node string, change ...func(*Config)) *testLink {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	cfg := Config{URL: "nats://" + address, Cluster: cluster, Node: node, Log: zaptest.NewLogger(t), Registerer: reg}
	for _, c := range change {
		c(&cfg)
	}
	l, err := Connect(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return &testLink{l, t, reg}
}

// metric gives the value of squall_fleet_….
func (l *testLink) metric(name string) int {
	l.t.Helper()
	families, err := l.reg.Gather()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "squall_fleet_"+name {
			m := f.GetMetric()[0]
			return int(m.GetCounter().GetValue() + m.GetGauge().GetValue())
		}
	}
	l.t.Fatalf("there is no metric %s", name)
	return 0
}

// declare makes the stream, once there is a server that can.
func (l *testLink) declare(cfg StreamConfig) {
	l.t.Helper()
	var err error
	eventually(l.t, func() string { return fmt.Sprint("declare: ", err) }, func() bool {
		ctx, cancel := context.WithTimeout(l.t.Context(), time.Second)
		defer cancel()
		err = l.Declare(ctx, cfg)
		return err == nil
	})
}

// openKV opens the KV of a node's disk.
func openKV(t testing.TB, dir string) *spool.KV {
	t.Helper()
	s, err := spool.Open(t.Context(), spool.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	kv, err := s.KV(t.Context(), "fleet")
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// outgoing opens a ring; run runs it until the returned function is called.
func (l *testLink) outgoing(kv KV) *Outgoing {
	l.t.Helper()
	o, err := l.Outgoing(l.t.Context(), kv)
	if err != nil {
		l.t.Fatal(err)
	}
	return o
}

func run(t testing.TB, o *Outgoing) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = o.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	eventually(t, func() string { return "it does not run" }, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.jobs != nil
	})
	return stop
}

// pane is what the tests publish: a sequence, and size bytes.
func pane(size int) func(seq uint64) []byte {
	return func(seq uint64) []byte {
		return append(binary.BigEndian.AppendUint64(nil, seq), make([]byte, size)...)
	}
}

func seqOf(data []byte) uint64 { return binary.BigEndian.Uint64(data) }

// A reader collects what a Follow gives.
type reader struct {
	t    testing.TB
	mu   sync.Mutex
	got  []Message
	stop func() error
}

func (l *testLink) follow(from uint64) *reader {
	r := &reader{t: l.t}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- l.Follow(ctx, from, func(m Message) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.got = append(r.got, m)
			return nil
		})
	}()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	l.t.Cleanup(func() { _ = r.stop() })
	return r
}

func (r *reader) messages() []Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// panes are the sequences that the nodes gave.
func (r *reader) panes() []uint64 {
	var seqs []uint64
	for _, m := range r.messages() {
		seqs = append(seqs, seqOf(m.Data))
	}
	return seqs
}

// wait waits for n messages, and sees that they came strictly in the stream's order.
func (r *reader) wait(n int) []Message {
	r.t.Helper()
	var got []Message
	eventually(r.t, func() string { return fmt.Sprintf("%d messages of %d came", len(got), n) }, func() bool {
		got = r.messages()
		return len(got) >= n
	})
	for i := 1; i < len(got); i++ {
		if got[i].Seq <= got[i-1].Seq && !got[i].Reset {
			r.t.Fatalf("message %d came after %d", got[i].Seq, got[i-1].Seq)
		}
	}
	return got
}

// eventually polls until ok, or fails with what says.
func eventually(t testing.TB, says func() string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal(says())
		}
	}
}

// drained waits until nothing waits any more.
func drained(t testing.TB, o *Outgoing) {
	t.Helper()
	eventually(t, func() string { return fmt.Sprintf("%d panes wait still", o.Waiting()) }, func() bool { return o.Waiting() == 0 })
}

// span is from, …, to.
func span(from, to uint64) []uint64 {
	var seqs []uint64
	for seq := from; seq <= to; seq++ {
		seqs = append(seqs, seq)
	}
	return seqs
}

func collected(t *testing.T, l *testLink) {
	t.Helper()
	if problems, err := testutil.GatherAndLint(l.reg); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
}

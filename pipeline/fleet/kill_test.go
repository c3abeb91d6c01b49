package fleet

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// A node that is killed, again and again, loses no pane that Add has returned for, and no pane stands in the stream
// twice or before its time.
func TestNodeIsKilled(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	agg := connect(t, srv.Addr(), "agg")
	agg.declare(StreamConfig{MaxAge: time.Hour})
	dir := t.TempDir()
	told := uint64(0)
	for round := range 2 {
		p := spawn(t, "node", task{Dir: dir, Link: &Config{URL: "nats://" + srv.Addr(), Cluster: cluster, Node: "lb1"}})
		for range 40 + 13*round {
			seq, err := strconv.ParseUint(p.line(t), 10, 64)
			if err != nil || seq <= told {
				t.Fatalf("pane %d follows %d: %v", seq, told, err)
			}
			told = seq
		}
		p.kill()
		for p.lines.Scan() { // what it told before it died
			if seq, err := strconv.ParseUint(p.lines.Text(), 10, 64); err == nil {
				told = seq
			}
		}
	}
	node := connect(t, srv.Addr(), "lb1")
	o := node.outgoing(openKV(t, dir))
	run(t, o)
	o.Add(pane(100))
	drained(t, o)
	r := agg.follow(0)
	eventually(t, func() string { return "the last is missing" }, func() bool { return slices.Contains(r.panes(), told+1) })
	got := r.panes()
	if len(got) < int(told)+1 || !slices.Equal(got, span(1, uint64(len(got)))) {
		t.Errorf("%d panes were safe, and the stream has %v", told, got)
	}
}

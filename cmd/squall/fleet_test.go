package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

// A fleetReport is what a node told, and when the stream took it.
type fleetReport struct {
	node    string
	report  pane.Report
	at      int64
	refused bool // it is of a newer version
}

// reportsOf replays a log on a node of its own and gives what the node tells its fleet, with its last word.
func reportsOf(t *testing.T, c *Config, node, path string, first int64) (reports []fleetReport) {
	t.Helper()
	r, err := newReplayer(c, formatChoice{name: "auto"}, "", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	closed := int64(0)
	var tell func(p *pane.Pane)
	tell = func(p *pane.Pane) {
		if p != nil && len(reports) == 0 && first > 0 && first < p.Start { // a node that runs tells of empty panes, too
			begin := first
			first = 0
			for start := begin; start < p.Start; start += int64(c.Pane) {
				tell(&pane.Pane{Start: start, End: start + int64(c.Pane)})
			}
		}
		x := pane.Report{Boot: 1, Seq: uint64(len(reports) + 1), Length: int64(c.Pane), Config: c.hash(paneSections)}
		at := closed + int64(6*time.Second)
		if p != nil {
			at = p.End + int64(6*time.Second)
		}
		if x.Sent = at; p == nil {
			x.Done, x.Start, x.End = true, closed, closed
		} else if err := x.Pack(p, 1<<20); err != nil {
			t.Fatal(err)
		}
		wire, err := x.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		var read pane.Report
		if err := read.UnmarshalBinary(wire); err != nil {
			t.Fatal(err)
		}
		reports = append(reports, fleetReport{node: node, report: read, at: at})
	}
	r.judge.whole = func(p *pane.Pane) { closed = p.End; tell(p) }
	if err := r.run(t.Context(), []string{path}, nil); err != nil {
		t.Fatal(err)
	}
	tell(nil)
	return reports
}

// judgeFleet judges reports in the order of their arrival, as an aggregator does, and gives the transitions, and what is
// known of the nodes at a time of arrival.
func judgeFleet(t *testing.T, c *Config, reports []fleetReport, look int64) (transcript string, nodes []pane.NodeState) {
	t.Helper()
	sortReports(reports)
	j, err := newJudge(c, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	j.settled = func(_ *detectors.Result, transitions []alerts.Alert) {
		for i := range transitions {
			b.Write(alerts.AppendJSON(nil, &transitions[i]))
		}
	}
	union := pane.NewUnion(pane.UnionConfig{Pane: c.Pane, Lateness: c.Fleet.Lateness, Keep: c.Fleet.MaxAge})
	for i := range reports {
		x := &reports[i]
		if x.refused {
			union.Refuse(x.node, uint64(i+1), x.at, pane.ErrVersion.Error())
		} else {
			union.Take(x.node, &x.report, uint64(i+1), x.at)
		}
		if nodes == nil && x.at >= look {
			nodes = union.Nodes()
		}
		for p, absent := union.Next(); p != nil; p, absent = union.Next() {
			for _, name := range absent {
				j.absent[name] = p.End
			}
			j.evaluate(p)
		}
	}
	return b.String(), nodes
}

func sortReports(reports []fleetReport) {
	slices.SortStableFunc(reports, func(a, b fleetReport) int { return int(a.at - b.at) })
}

// overNodes writes the lines of a log to as many, each line to one of them.
func overNodes(t *testing.T, path string, nodes int, seed uint64) (paths []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(seed, 7))
	parts := make([]bytes.Buffer, nodes)
	for line := range bytes.Lines(text) {
		parts[random.IntN(nodes)].Write(line)
	}
	dir := t.TempDir()
	for i := range parts {
		file := filepath.Join(dir, fmt.Sprintf("n%d.log", i))
		if err := os.WriteFile(file, parts[i].Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, file)
	}
	return paths
}

// TestFleetIsOneNode is S23 without faults: a storm that is spread over eight nodes gives the alerts of one node that
// has all of it, to the byte, as long as what one node holds of agents is exact.
func TestFleetIsOneNode(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"S01", "S13"} {
		t.Run(name, func(t *testing.T) {
			path, _ := simulated(t, simulate.Options{Scenario: scenario(t, name), Format: "nginx_extended", Seed: 7, Rate: 0.5})
			c := Default()
			c.SiteDefaults.Pool.Workers = 25
			alone := reportsOf(t, c, "alone", path, 0)
			first := alone[0].report.Start
			want, _ := judgeFleet(t, c, alone, 0)
			var reports []fleetReport
			for i, part := range overNodes(t, path, 8, 1) {
				reports = append(reports, reportsOf(t, c, fmt.Sprintf("n%d", i), part, first)...)
			}
			got, _ := judgeFleet(t, c, reports, 0)
			if want == "" {
				t.Fatal("the storm raised nothing")
			}
			sameLines(t, "the fleet", got, want)
		})
	}
}

func lineAt(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return "none"
}

// TestDriftIsNamed: others that judge or count by other settings, and clocks that are off, are told of once and shown.
func TestDriftIsNamed(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	reg := prometheus.NewRegistry()
	a := &aggregator{config: FleetConfig{Node: "a"}, log: zap.New(core), m: newFleetMetrics(reg), judges: map[string]heardCover{}, own: "x"}
	hear := func(from, judges string) {
		data, err := json.Marshal(cover{Judges: judges})
		if err != nil {
			t.Fatal(err)
		}
		a.hear(data, from)
	}
	for range 3 {
		hear("b", "y")
		hear("a", "z") // itself
		a.hear([]byte("garbage"), "c")
	}
	if n := testutil.ToFloat64(a.m.other); n != 1 || logs.FilterMessageSnippet("another aggregator").Len() != 1 {
		t.Errorf("%v aggregators differ, told %d times", n, logs.Len())
	}
	hear("b", "x")
	if n := testutil.ToFloat64(a.m.other); n != 0 {
		t.Errorf("%v aggregators differ", n)
	}
	nodes := []pane.NodeState{
		{Node: "n0", State: pane.NodeCounted, Config: "c"},
		{Node: "n1", State: pane.NodeCounted, Config: "d", Skew: int64(2 * time.Minute)},
		{Node: "n2", State: pane.NodeMissing, Config: "c", Skew: int64(-3 * time.Second)},
	}
	for range 2 {
		a.see(nodes, "c", int64(10*time.Second))
	}
	for what, n := range map[string]int{"its clock is off": 1, "it counts by other settings": 1, pane.NodeCounted: 1, pane.NodeMissing: 1} {
		if got := logs.FilterField(zap.String("state", what)).Len(); got != n {
			t.Errorf("%q was told %d times", what, got)
		}
	}
	if s, d, m := testutil.ToFloat64(a.m.skewed), testutil.ToFloat64(a.m.drifted), testutil.ToFloat64(a.m.nodes.WithLabelValues(pane.NodeMissing)); s != 1 || d != 1 || m != 1 {
		t.Errorf("%v clocks, %v settings, %v missing", s, d, m)
	}
	if got := a.sources(); len(got) != 3 || got[2].State != pane.NodeMissing {
		t.Errorf("%+v", got)
	}
}

// TestLeaseIsAskedBeforeEachSend: who lost the lease while it was stopped sends nothing any more.
func TestLeaseIsAskedBeforeEachSend(t *testing.T) {
	t.Parallel()
	lease, lose := context.WithCancel(t.Context())
	sent := &sentAlerts{}
	n := leased{sent, lease}
	if err := n.Notify(t.Context(), make([]alerts.Alert, 1)); err != nil || sent.n != 1 {
		t.Fatal(err, sent.n)
	}
	lose()
	if err := n.Notify(t.Context(), make([]alerts.Alert, 1)); err == nil || sent.n != 1 {
		t.Errorf("sent without the lease: %v, %d", err, sent.n)
	}
}

// sentAlerts counts what it is told.
type sentAlerts struct{ n int }

func (s *sentAlerts) Notify(_ context.Context, batch []alerts.Alert) error {
	s.n += len(batch)
	return nil
}

func (*sentAlerts) Resend() time.Duration { return 0 }

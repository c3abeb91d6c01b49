package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

// A fleetReport is what a node told, and when the stream took it.
type fleetReport struct {
	node   string
	report pane.Report
	at     int64
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
		x := pane.Report{Boot: 1, Seq: uint64(len(reports) + 1), Length: int64(c.Pane), Config: c.hash(paneSections)}
		if p != nil && len(reports) == 0 && first > 0 && first < p.Start { // a node that runs tells of empty panes, too
			begin := first
			first = 0
			for start := begin; start < p.Start; start += int64(c.Pane) {
				tell(&pane.Pane{Start: start, End: start + int64(c.Pane)})
			}
		}
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
		reports = append(reports, fleetReport{node, read, at})
	}
	r.judge.whole = func(p *pane.Pane) { closed = p.End; tell(p) }
	if err := r.run(t.Context(), []string{path}, nil); err != nil {
		t.Fatal(err)
	}
	tell(nil)
	return reports
}

// judgeFleet judges reports in the order of their arrival, as an aggregator does, and gives the transitions.
func judgeFleet(t *testing.T, c *Config, reports []fleetReport) string {
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
		union.Take(reports[i].node, &reports[i].report, uint64(i+1), reports[i].at)
		for p, absent := union.Next(); p != nil; p, absent = union.Next() {
			for _, name := range absent {
				j.absent[name] = p.End
			}
			j.evaluate(p)
		}
	}
	return b.String()
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
			path, _ := simulated(t, simulate.Options{Scenario: scenario(t, name), Format: "nginx_extended", Seed: 7})
			c := Default()
			c.SiteDefaults.Pool.Workers = 25
			alone := reportsOf(t, c, "alone", path, 0)
			first := alone[0].report.Start
			want := judgeFleet(t, c, alone)
			var reports []fleetReport
			for i, part := range overNodes(t, path, 8, 1) {
				reports = append(reports, reportsOf(t, c, fmt.Sprintf("n%d", i), part, first)...)
			}
			got := judgeFleet(t, c, reports)
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

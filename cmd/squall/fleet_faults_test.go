package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors/pane"
)

// A fleetFault is what befalls one node of a fleet in mid-storm, or what it tells.
type fleetFault struct {
	clock   time.Duration // its clock is ahead by so much
	befalls func(reports []fleetReport, storm int64) []fleetReport
	state   string // of the node in mid-storm; "": counted
	away    bool   // alerts tell that it is absent
}

// fleetFaults are the faults of a network, a clock or a release that a fleet must live through. Times are event time, so
// that they have their whole length.
var fleetFaults = map[string]fleetFault{
	"cut off for ten minutes and back": {
		befalls: func(reports []fleetReport, storm int64) []fleetReport {
			back := storm + int64(10*time.Minute)
			for i := range reports {
				if x := &reports[i]; storm <= x.at && x.at < back {
					x.at = back + int64(i)
				}
			}
			return reports
		},
		state: pane.NodeMissing, away: true,
	},
	"a pane forty seconds late": {
		befalls: func(reports []fleetReport, storm int64) []fleetReport {
			i := slices.IndexFunc(reports, func(x fleetReport) bool { return x.at >= storm })
			reports[i].at += int64(40 * time.Second)
			return reports
		},
		away: true,
	},
	"twice and in any order": {
		befalls: func(reports []fleetReport, _ int64) []fleetReport {
			random := rand.New(rand.NewPCG(5, 9))
			reports = slices.Concat(reports, reports)
			for i := range reports {
				reports[i].at += random.Int64N(int64(15 * time.Second))
			}
			return reports
		},
	},
	"its clock is 3 s ahead":      {clock: 3 * time.Second},
	"its clock is 3 s behind":     {clock: -3 * time.Second},
	"its clock is 2 min ahead":    {clock: 2 * time.Minute},
	"its clock is 2 min behind":   {clock: -2 * time.Minute, state: pane.NodeLate, away: true},
	"of a newer version of panes": {befalls: newerFrom, state: pane.NodeRefused, away: true},
}

// newerFrom has a node upgraded in mid-storm, before those who add up.
func newerFrom(reports []fleetReport, storm int64) []fleetReport {
	for i := range reports {
		reports[i].refused = reports[i].at >= storm
	}
	return reports
}

// TestFleetFaults: whatever befalls one of eight nodes in mid-storm, the fleet tells of what it told of without it: no
// page twice, and none lost; and it says of whom it knew nothing.
func TestFleetFaults(t *testing.T) {
	t.Parallel()
	path, _ := simulated(t, simulate.Options{Scenario: scenario(t, "S01"), Format: "nginx_extended", Seed: 7, Rate: 0.5, Pool: 12})
	c := Default()
	c.SiteDefaults.Pool.Workers = 12
	parts := overNodes(t, path, 8, 1)
	const struck = "n3"
	var others, own []fleetReport
	first := reportsOf(t, c, struck, parts[3], 0)[0].report.Start - int64(5*time.Minute) // the fleet is not new
	for i, part := range parts {
		name := fmt.Sprintf("n%d", i)
		told := reportsOf(t, c, name, part, first)
		if name == struck {
			own = told
		} else {
			others = append(others, told...)
		}
	}
	want, _ := judgeFleet(t, c, slices.Concat(others, own), 0)
	pages := pagesOf(want)
	if len(pages) < 3 {
		t.Fatalf("the storm raised %q", pages)
	}
	storm := stormed(t, want) - int64(time.Minute)
	for name, fault := range fleetFaults {
		t.Run(name, func(t *testing.T) {
			told := slices.Clone(own)
			if fault.clock != 0 {
				told = reportsOf(t, c, struck, skewedLog(t, parts[3], fault.clock), first)
				for i := range told {
					told[i].at -= int64(fault.clock)
				}
			}
			if fault.befalls != nil {
				told = fault.befalls(told, storm)
			}
			got, nodes := judgeFleet(t, c, slices.Concat(others, told), storm+int64(4*time.Minute))
			if b := pagesOf(got); !slices.Equal(b, pages) {
				t.Errorf("told of\n%q, and without the fault of\n%q", b, pages)
			}
			if began, over := strings.Count(got, `"state":"firing"`), strings.Count(got, `"state":"resolved"`); began != over {
				t.Errorf("told of %d beginnings and %d ends:\n%s", began, over, got)
			}
			if away := strings.Contains(got, `"nodes_absent":["`+struck+`"]`); away != fault.away {
				t.Errorf("told that the node is absent: %v, want %v:\n%s", away, fault.away, got)
			}
			i := slices.IndexFunc(nodes, func(n pane.NodeState) bool { return n.Node == struck })
			if n := nodes[i]; n.State != cmp.Or(fault.state, pane.NodeCounted) {
				t.Errorf("in mid-storm it is %+v", n)
			}
			if skew := time.Duration(nodes[i].Skew); fault.clock != 0 && (skew-fault.clock).Abs() > 2*time.Second {
				t.Errorf("its clock is said to be ahead by %s", skew)
			}
		})
	}
}

// pagesOf lists what woke somebody, sorted: what does so twice is there twice.
func pagesOf(transcript string) (list []string) {
	for line := range strings.Lines(transcript) {
		if _, after, _ := strings.Cut(line, `"alert":"`); strings.Contains(line, `"state":"firing","severity":"page"`) {
			name, _, _ := strings.Cut(after, `"`)
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

var (
	localTime = regexp.MustCompile(`\[[^\]]+\]`)
	unixTime  = regexp.MustCompile(`msec=(\d+)\.`)
)

// skewedLog is a log as a machine writes it whose clock is ahead by so much.
func skewedLog(t *testing.T, path string, by time.Duration) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const layout = "[02/Jan/2006:15:04:05 -0700]"
	text = localTime.ReplaceAllFunc(text, func(b []byte) []byte {
		at, err := time.Parse(layout, string(b))
		if err != nil {
			return b
		}
		return []byte(at.Add(by).Format(layout))
	})
	text = unixTime.ReplaceAllFunc(text, func(b []byte) []byte {
		n, err := strconv.ParseInt(string(b[len("msec="):len(b)-1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Appendf(nil, "msec=%d.", n+int64(by/time.Second))
	})
	out := filepath.Join(t.TempDir(), "skewed.log")
	write(t, out, string(text))
	return out
}

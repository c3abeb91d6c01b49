package detectors

import (
	"errors"
	"time"
)

// nodesAbsent watches the fleet that the panes are of: nodes that tell nothing, or too late to be counted. A node that
// counts for itself has none.
type nodesAbsent struct {
	Ratio  float64       `yaml:"ratio"` // of the nodes, 0–1
	Window time.Duration `yaml:"window"`
}

func newNodesAbsent(decode func(any) error) (Detector, error) {
	d := &nodesAbsent{Ratio: 0.25, Window: time.Minute}
	if err := decode(d); err != nil {
		return nil, err
	}
	return d, errors.Join(span(d.Window), share("ratio", d.Ratio))
}

func (d *nodesAbsent) Span() time.Duration { return d.Window }

func (d *nodesAbsent) Scope() Scope { return Cluster }

func (d *nodesAbsent) Detect(w *Window) []Finding {
	c := &w.View.Coverage
	if c.Absent == 0 {
		return nil
	}
	ratio := float64(c.Absent) / float64(c.Nodes+c.Absent)
	lvl := level(ratio, d.Ratio, leave)
	if lvl == Below {
		return nil
	}
	labels := Labels{{"cluster", w.Cluster}}
	return []Finding{{Labels: labels, Level: lvl, Value: ratio, Threshold: d.Ratio, Evidence: d.Evidence(w, labels)}}
}

// Evidence tells how many nodes are known, and how many of them did not tell in the mean.
func (d *nodesAbsent) Evidence(w *Window, _ Labels) Evidence {
	c := &w.View.Coverage
	var e Evidence
	if panes := float64(w.View.End-w.View.Start) / float64(max(w.Pane, 1)); panes > 0 && c.Nodes+c.Absent > 0 {
		e.Nodes, e.NodesAbsent = N(float64(c.Nodes+c.Absent)/panes), N(float64(c.Absent)/panes)
	}
	return e
}

func (d *nodesAbsent) Touch(*Window) string { return "" }

// Help tells of the detector.
func (*nodesAbsent) Help() Help {
	return Help{
		Watches:  "The nodes of a fleet that tell its aggregator nothing, or too late to be counted. One node alone has no fleet.",
		Formula:  "nodes absent ÷ nodes known within `window` >= `ratio`",
		Evidence: []string{"nodes", "nodes_absent"},
		FalsePositives: []string{
			"nodes that were taken out of service: they are forgotten after an hour",
		},
		Runbook: []string{
			"the page of squall aggregate lists the nodes, since when each is absent and why",
			"on an absent node: squall_fleet_connected, squall_fleet_waiting_panes, and its log",
			"meanwhile each of them detects for itself and pages with its own thresholds",
		},
	}
}

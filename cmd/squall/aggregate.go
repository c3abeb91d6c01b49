package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/fleet"
)

// newAggregateCommand makes `squall aggregate`: the daemon that judges what the nodes of a fleet count.
func newAggregateCommand() *cobra.Command {
	o := runOptions{aggregate: true}
	cmd := &cobra.Command{
		Use:   "aggregate --config FILE",
		Short: "judge a whole fleet: add up what its nodes count, detect, and page",
		Long: "aggregate adds up the panes that the nodes of a fleet (squall run with fleet.nats) tell, and runs the same\n" +
			"detectors, rules and receivers over the sum as a node does over its own lines. One to three of it may run\n" +
			"side by side: their alerts are equal, and receivers that cannot fold equal ones are told by one of them.\n" +
			"Sources and Loki of the configuration are the nodes' business and stay unused.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.config == "" {
				return usageError(errNoConfig)
			}
			load := func() (*Config, error) {
				c, err := loadConfig(o.config, os.LookupEnv)
				if err != nil {
					return nil, err
				}
				if o.listen != "" {
					c.Web.Listen = o.listen
				}
				if !c.Fleet.on() {
					return nil, usageError(errors.New("fleet.nats is empty: an aggregator reads there what the nodes tell; or set fleet.embedded to be the server"))
				}
				return c, nil
			}
			return serve(cmd.Context(), o, load, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	o.flags(cmd)
	return cmd
}

// joinFleet makes this process a node or the aggregator of a fleet, where it is configured to be one.
func (s *server) joinFleet(ctx context.Context, c *Config, reg prometheus.Registerer) (err error) {
	switch {
	case s.options.aggregate:
		s.aggregator, err = newAggregator(ctx, s, c, reg)
	case c.Fleet.NATS != "":
		s.node, err = newFleetNode(c, s.store, s.log, reg)
	case c.Fleet.Embedded:
		s.log.Warn("fleet.embedded is the aggregators': without fleet.nats this node detects alone")
	}
	return err
}

func (s *server) leaveFleet() {
	if s.aggregator != nil {
		s.aggregator.close()
	}
}

// An aggregator is what an aggregating process holds of its fleet. It outlives reloads.
type aggregator struct {
	config FleetConfig
	server *fleet.Server // nil: the servers are others
	link   *fleet.Link
	log    *zap.Logger
	lone   *loneSender
	m      fleetMetrics

	mu     sync.Mutex
	states fleet.KV // nil until the fleet's servers are there
	nodes  []pane.NodeState
	judges map[string]heardCover // the other aggregators
	own    string                // the hash of what this one judges by
}

// fleetMetrics tell of a fleet what its aggregator sees.
type fleetMetrics struct {
	nodes                  *prometheus.GaugeVec
	skewed, drifted, other prometheus.Gauge
	delay                  prometheus.Gauge
	reports, late, merged  prometheus.Counter
}

func newFleetMetrics(reg prometheus.Registerer) fleetMetrics {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "squall_fleet_" + name, Help: help})
		reg.MustRegister(g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "squall_fleet_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	m := fleetMetrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "squall_fleet_nodes", Help: "Nodes of the fleet, by state.",
		}, []string{"state"}),
		skewed:  gauge("skewed_nodes", "Nodes whose clock is off by more than half a pane."),
		drifted: gauge("drifted_nodes", "Nodes that count by other settings than the aggregator has."),
		other:   gauge("drifted_aggregators", "Other aggregators that judge by other settings."),
		delay:   gauge("delay_seconds", "From the end of the last pane until it was judged, by the stream's clock."),
		reports: counter("reports_total", "Reports that were read from the stream."),
		late:    counter("late_reports_total", "Reports whose pane was judged without them."),
		merged:  counter("merged_panes_total", "Panes of the fleet that were judged."),
	}
	reg.MustRegister(m.nodes)
	for _, state := range pane.NodeStates {
		m.nodes.WithLabelValues(state)
	}
	return m
}

// newAggregator starts the embedded server, if there is to be one, and connects. A server that is away is no error.
func newAggregator(ctx context.Context, s *server, c *Config, reg prometheus.Registerer) (*aggregator, error) {
	a := &aggregator{config: c.Fleet, log: s.log.Named("fleet"), m: newFleetMetrics(reg), judges: map[string]heardCover{}}
	cfg := c.Fleet.link()
	cfg.Log, cfg.Registerer = a.log, reg
	if c.Fleet.Embedded {
		own := c.embedded()
		own.Log = a.log
		srv, err := fleet.StartServer(ctx, own)
		if err != nil {
			return nil, err
		}
		a.server, cfg.Server = srv, srv
	}
	var err error
	if a.link, err = fleet.Connect(cfg); err != nil {
		a.close()
		return nil, usageError(err)
	}
	a.lone = newLoneSender(s, a.link)
	return a, nil
}

func (a *aggregator) close() {
	if a.link != nil {
		a.link.Close()
	}
	if a.server != nil {
		a.server.Shutdown()
	}
}

// run listens to the other aggregators, and tells those receivers that one of all is to tell.
func (a *aggregator) run(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() { a.link.Listen(ctx, a.hear) })
	defer group.Wait()
	if err := a.lone.run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// replicas is how many servers keep the stream.
func (a *aggregator) replicas() int {
	switch n := len(a.config.Server.Routes); {
	case a.config.Replicas > 0:
		return a.config.Replicas
	case a.config.Embedded && n >= 2:
		return 3
	}
	return 1
}

// open waits until the fleet's servers are there and have a stream.
func (a *aggregator) open(ctx context.Context, length time.Duration) error {
	told := false
	for {
		err := a.declare(ctx, length)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if !told {
			a.log.Warn("the fleet's servers are not there yet", zap.Error(err))
			told = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// perNode is how many times more panes than it has time for a node may have on the stream.
const perNode = 4

func (a *aggregator) declare(ctx context.Context, length time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := a.link.Declare(ctx, fleet.StreamConfig{
		MaxAge: a.config.MaxAge, MaxBytes: int64(a.config.MaxBytes), Replicas: a.replicas(), MaxPerNode: perNode * int64(a.config.MaxAge/length),
	})
	if err != nil {
		return err
	}
	states, err := a.link.Blobs(ctx, "state")
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.states = states
	a.mu.Unlock()
	return nil
}

// Get implements fleet.KV: the state that the replicas share.
func (a *aggregator) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	kv := a.kept()
	if kv == nil {
		return nil, false, errNoFleet
	}
	return kv.Get(ctx, key)
}

// Put implements fleet.KV.
func (a *aggregator) Put(ctx context.Context, key string, value []byte) error {
	kv := a.kept()
	if kv == nil {
		return errNoFleet
	}
	return kv.Put(ctx, key, value)
}

var errNoFleet = errors.New("the fleet's servers are not there yet")

func (a *aggregator) kept() fleet.KV {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.states
}

// sources tells of the nodes as a node tells of its logs.
func (a *aggregator) sources() (out []pipeline.InputState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.nodes {
		s := pipeline.InputState{Input: n.Node, Path: "panes", State: n.State, Err: n.Refused, Behind: n.State == pane.NodeLate}
		if n.Refused == "" && n.Heard > 0 {
			s.Err = fmt.Sprintf("its newest pane ended %s", formatTime(n.Newest))
		}
		if n.Twins {
			s.Err = twinWords
		}
		out = append(out, s)
	}
	return out
}

const twinWords = "two processes tell by its name: give each a fleet.node of its own, and start it again"

// away lists the nodes that are not counted.
func away(nodes []pane.NodeState) (names []string) {
	for _, n := range nodes {
		if n.State != pane.NodeCounted && n.State != pane.NodeLeft {
			names = append(names, n.Node)
		}
	}
	return names
}

// hear takes what another aggregator tells.
func (a *aggregator) hear(data []byte, sender string) {
	if sender == a.config.name() {
		return
	}
	c, ok := readCover(data)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before, known := a.judges[sender]
	if !known && len(a.judges) >= maxCovers {
		return
	}
	a.judges[sender] = heardCover{c, time.Now()}
	if a.own != "" && c.Judges != a.own && (!known || before.Judges != c.Judges) {
		a.log.Warn("another aggregator judges by other settings: their alerts differ, and receivers are told twice",
			zap.String("aggregator", sender), zap.String("its_settings", c.Judges), zap.String("own_settings", a.own))
	}
	a.countDrift()
}

// countDrift shows how many others judge by other settings. The caller holds mu.
func (a *aggregator) countDrift() {
	n := 0
	for sender, h := range a.judges {
		switch {
		case time.Since(h.at) > time.Hour:
			delete(a.judges, sender)
		case h.Judges != a.own:
			n++
		}
	}
	a.m.other.Set(float64(n))
}

// see shows what is known of the nodes, and tells what has changed.
func (a *aggregator) see(nodes []pane.NodeState, config string, length int64) {
	counts := map[string]int{}
	changes := map[string][]string{}
	skewed, drifted := 0, []string(nil)
	a.mu.Lock()
	before := map[string]pane.NodeState{}
	for _, n := range a.nodes {
		before[n.Node] = n
	}
	a.nodes = nodes
	a.mu.Unlock()
	for _, n := range nodes {
		counts[n.State]++
		old, known := before[n.Node]
		if !known || old.State != n.State {
			changes[n.State] = append(changes[n.State], n.Node)
		}
		if off(n.Skew, length) {
			if skewed++; !off(old.Skew, length) {
				changes["its clock is off"] = append(changes["its clock is off"], fmt.Sprintf("%s by %s", n.Node, time.Duration(n.Skew).Round(time.Second)))
			}
		}
		if n.Twins && !old.Twins {
			changes[twinWords] = append(changes[twinWords], n.Node)
		}
		if n.Config != "" && n.Config != config {
			if drifted = append(drifted, n.Node); old.Config != n.Config {
				changes["it counts by other settings"] = append(changes["it counts by other settings"], n.Node)
			}
		}
	}
	for _, state := range pane.NodeStates {
		a.m.nodes.WithLabelValues(state).Set(float64(counts[state]))
	}
	a.m.skewed.Set(float64(skewed))
	a.m.drifted.Set(float64(len(drifted)))
	for _, what := range slices.Sorted(maps.Keys(changes)) {
		a.log.Info("nodes of the fleet have changed", zap.String("state", what), zap.Int("count", len(changes[what])),
			zap.Strings("nodes", changes[what][:min(len(changes[what]), 20)]))
	}
}

// off tells whether a clock that is ahead by so much puts lines into a wrong pane.
func off(skew, length int64) bool { return skew > length/2 || skew < -length/2 }

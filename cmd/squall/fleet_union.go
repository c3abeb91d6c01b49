package main

import (
	"context"
	"encoding/json"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline/fleet"
)

// A fleetUnion is what one configuration makes of the fleet's panes.
type fleetUnion struct {
	*aggregator
	panes   *pane.Union
	config  pane.UnionConfig
	counts  string // the hash of what shapes panes
	judges  string // and of what is made of them
	from    uint64 // the stream's sequence to read from; 0: the oldest that is kept
	through uint64 // reports up to here are read again
	late    uint64 // as counted last
	shown   uint64 // the last report that is shown
}

func newFleetUnion(a *aggregator, c *Config) *fleetUnion {
	config := pane.UnionConfig{Pane: c.Pane, Lateness: c.Fleet.Lateness, Keep: c.Fleet.MaxAge}
	u := &fleetUnion{
		aggregator: a, config: config, panes: pane.NewUnion(config), counts: c.hash(paneSections), judges: c.hash(judgeSections),
	}
	a.mu.Lock()
	a.own = u.judges
	a.mu.Unlock()
	return u
}

// rejoin brings the judge to where it, or another replica, was.
func (d *service) rejoin(ctx context.Context) error {
	u := d.union
	if err := u.open(ctx, d.config.Pane); err != nil {
		return err
	}
	if err := d.kept.load(ctx); err != nil && ctx.Err() == nil {
		d.unreadable.WithLabelValues(ledgerBucket).Inc()
		d.log.Error("the incidents of before cannot be read: they are not compared with", zap.Error(err))
	}
	d.judge.ledger.Load(d.kept.Entries())
	state, from, found, err := d.restoreState(ctx)
	if err == nil && found {
		if u.from, err = u.panes.Restore(state.Fleet, from); err == nil {
			u.through = u.panes.Seq()
			d.resume()
			return nil
		}
		u.panes = pane.NewUnion(u.config)
	}
	if err != nil && ctx.Err() == nil {
		d.forsake(err)
	}
	return ctx.Err()
}

// unite reads what the nodes tell and judges what it adds up to, until ctx ends.
func (d *service) unite(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages, ended := make(chan fleet.Message), make(chan error, 1)
	go func() {
		ended <- d.union.link.Follow(ctx, d.union.from, func(m fleet.Message) error {
			select {
			case messages <- m:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for {
		select {
		case m := <-messages:
			d.hear(m)
		case <-clock.C:
			d.union.show(int64(d.config.Pane))
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		d.beat.Store(true)
	}
}

// hear takes one message of a node, and judges the panes that it completes.
func (d *service) hear(m fleet.Message) {
	u := d.union
	u.m.reports.Inc()
	if m.Reset { // the stream was made anew: its sequence has nothing to do with what was read
		u.log.Error("the fleet's stream was made anew: what was on it and not judged yet is gone")
		u.panes, u.through = pane.NewUnion(u.config), 0
	}
	if m.Missed > 0 {
		u.log.Warn("reports were removed from the fleet's stream before they were read", zap.Uint64("reports", m.Missed))
	}
	var r pane.Report
	err := r.UnmarshalBinary(m.Data)
	switch {
	case m.Seq <= u.through:
		if err == nil {
			u.panes.Recall(m.Node, &r, m.Seq)
		}
		return
	case u.through > 0:
		u.through = 0
		u.panes.Recalled(d.judge.engine.Preload)
	}
	if err != nil {
		u.panes.Refuse(m.Node, m.Seq, m.At, err.Error())
	} else {
		u.panes.Take(m.Node, &r, m.Seq, m.At)
	}
	judged := false
	for p, absent := u.panes.Next(); p != nil; p, absent = u.panes.Next() {
		if p.End <= d.judge.closed {
			continue
		}
		for _, name := range absent {
			d.judge.absent[name] = p.End
		}
		d.judge.evaluate(p)
		u.m.merged.Inc()
		judged = true
	}
	if judged {
		d.judged()
	}
}

// judged tells the nodes, and whoever looks, up to where the fleet is judged.
func (d *service) judged() {
	u := d.union
	nodes := u.panes.Nodes()
	u.m.delay.Set(float64(u.panes.Now()-d.judge.closed) / 1e9)
	if time.Now().UnixNano()-u.panes.Now() > int64(d.config.Pane) {
		return // it reads what lies behind: nobody is to rely on it yet
	}
	c := cover{Closed: d.judge.closed, Absent: away(nodes), Judges: u.judges, States: map[string]uint64{}}
	for _, n := range nodes {
		c.States[n.State]++
	}
	data, err := json.Marshal(c)
	if err == nil {
		err = u.link.Tell(data)
	}
	if err != nil {
		u.log.Debug("the nodes are not told", zap.Error(err))
	}
}

// show shows what is known of the nodes, if any has told something since.
func (u *fleetUnion) show(length int64) {
	if u.shown == u.panes.Seq() {
		return
	}
	u.shown = u.panes.Seq()
	nodes := u.panes.Nodes()
	u.see(nodes, u.counts, length)
	late := uint64(0)
	for _, n := range nodes {
		late += n.Late
	}
	if late > u.late { // a node that is forgotten takes its count with it
		u.m.late.Add(float64(late - u.late))
	}
	u.late = late
}

// readCover believes nothing.
func readCover(data []byte) (c cover, ok bool) {
	return c, len(data) <= maxCoverBytes && json.Unmarshal(data, &c) == nil
}

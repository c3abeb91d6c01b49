package main

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline/fleet"
	"github.com/squall-sre/squall/pipeline/spool"
)

// A cover is what an aggregator tells the nodes after each pane: up to where it has judged, and of whom it has nothing.
type cover struct {
	Closed int64             `json:"closed"` // ns: the end of the pane
	Absent []string          `json:"absent,omitempty"`
	Judges string            `json:"judges"` // the hash of what it judges by
	States map[string]uint64 `json:"nodes"`  // how many are in each state
}

// A fleetNode tells the fleet of every pane that this node has judged, and listens for whoever judges the fleet. It
// outlives reloads.
type fleetNode struct {
	link *fleet.Link
	log  *zap.Logger
	name string
	boot uint64
	kv   fleet.KV

	mu       sync.Mutex
	out      *fleet.Outgoing // nil until the spool tells what it holds
	early    []*pane.Report  // until then
	heard    map[string]heardCover
	covered  prometheus.Gauge
	sent     prometheus.Counter
	tooLarge prometheus.Counter
	pane     time.Duration
	patience time.Duration // how long one cover lasts
	began    time.Time     // on the monotonic clock
	behind   time.Time     // since when too many panes wait; zero: they do not
}

// heardCover is the newest of one aggregator.
type heardCover struct {
	cover
	at time.Time // on the monotonic clock
}

// Bounds of what a node holds of its fleet.
const (
	maxEarly      = 64
	maxCovers     = 16
	maxCoverBytes = 1 << 20
	fleetBucket   = "fleet"
	bootKey       = "began"
)

// newFleetNode connects; a server that is away is no error. A node is quiet for three panes and the lateness before
// nobody counts on it, and so is an aggregator.
func newFleetNode(c *Config, store *spool.Spool, log *zap.Logger, reg prometheus.Registerer) (*fleetNode, error) {
	cfg := c.Fleet.link()
	cfg.Log, cfg.Registerer = log.Named("fleet"), reg
	link, err := fleet.Connect(cfg)
	if err != nil {
		return nil, usageError(err)
	}
	n := &fleetNode{
		link: link, log: cfg.Log, name: cfg.Node, boot: uint64(time.Now().UnixMilli()), kv: bucketKV{store, fleetBucket},
		heard: map[string]heardCover{}, pane: c.Pane, patience: 3*c.Pane + c.Fleet.Lateness, began: time.Now(),
		covered: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "squall_fleet_covered", Help: "Whether an aggregator judges what this node counts: then the node's own alerts are not told.",
		}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "squall_fleet_panes_total", Help: "Panes that were made ready to be told to the fleet.",
		}),
		tooLarge: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "squall_fleet_unpackable_panes_total", Help: "Panes that did not fit into a message, even without their lightest routes.",
		}),
	}
	reg.MustRegister(n.covered, n.sent, n.tooLarge)
	return n, nil
}

// run sends what is told and listens, until ctx ends.
func (n *fleetNode) run(ctx context.Context) error {
	defer n.link.Close()
	var listening sync.WaitGroup
	listening.Go(func() { n.link.Listen(ctx, n.listen) })
	defer listening.Wait()
	for {
		err := n.open(ctx)
		if err == nil {
			return n.send(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// send sends until ctx ends, and then what waits still, for a moment: the rest is sent after the next start.
func (n *fleetNode) send(ctx context.Context) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		<-ctx.Done()
		look, enough := time.NewTicker(20*time.Millisecond), time.After(stopGrace)
		defer look.Stop()
		for late := false; n.out.Waiting() > 0 && !late; {
			select {
			case <-look.C:
			case <-enough:
				late = true
			}
		}
		stop()
	}()
	return n.out.Run(sending)
}

// open finds what was left to tell. A node that starts anew has a higher boot than before, whatever its clock says.
func (n *fleetNode) open(ctx context.Context) error {
	var began struct{ Boot uint64 }
	value, ok, err := n.kv.Get(ctx, bootKey)
	if err != nil {
		return err
	}
	if ok && json.Unmarshal(value, &began) == nil {
		n.boot = max(n.boot, began.Boot+1)
	}
	began.Boot = n.boot
	if value, err = json.Marshal(began); err != nil {
		return err
	}
	if err := n.kv.Put(ctx, bootKey, value); err != nil {
		n.log.Warn("the start is not noted", zap.Error(err))
	}
	out, err := n.link.Outgoing(ctx, n.kv)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.early {
		n.add(out, r)
	}
	n.out, n.early = out, nil
	return nil
}

// tell hands a closed pane on. It never waits for the network.
func (n *fleetNode) tell(p *pane.Pane, length time.Duration, config string) {
	r := &pane.Report{Sent: time.Now().UnixNano(), Config: config, Length: int64(length)}
	if err := r.Pack(p, n.link.MaxPayload()-reportHead); err != nil {
		n.tooLarge.Inc()
		n.log.Error("a pane cannot be told to the fleet", zap.Error(err))
		return
	}
	n.pass(r)
}

// reportHead is room in a message for what a report has beside its pane, in bytes.
const reportHead = 1 << 10

// end tells that nothing follows.
func (n *fleetNode) end(length time.Duration, config string, at int64) {
	n.pass(&pane.Report{Sent: time.Now().UnixNano(), Config: config, Length: int64(length), Start: at, End: at, Done: true})
}

func (n *fleetNode) pass(r *pane.Report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent.Inc()
	if n.out == nil {
		n.early = append(n.early[max(0, len(n.early)+1-maxEarly):], r)
		return
	}
	n.add(n.out, r)
}

func (n *fleetNode) add(out *fleet.Outgoing, r *pane.Report) {
	out.Add(func(seq uint64) []byte {
		r.Boot, r.Seq = n.boot, seq
		data, err := r.AppendBinary(nil)
		if err != nil {
			n.log.Error("a pane cannot be told to the fleet", zap.Error(err))
		}
		return data
	})
}

// listen takes what an aggregator tells.
func (n *fleetNode) listen(data []byte, sender string) {
	c, ok := readCover(data)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.heard[sender]; known || len(n.heard) < maxCovers {
		n.heard[sender] = heardCover{c, time.Now()}
	}
}

// isCovered tells whether an aggregator judges what this node counts: it was heard lately, and has what the node told.
func (n *fleetNode) isCovered(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for sender, h := range n.heard {
		if now.Sub(h.at) > n.patience {
			delete(n.heard, sender)
		}
	}
	if n.out == nil || n.out.Waiting() <= waitingAtMost {
		n.behind = time.Time{}
	} else if n.behind.IsZero() {
		n.behind = now
	}
	is := false
	if n.out != nil && (n.behind.IsZero() || now.Sub(n.behind) < waitingAtMost*n.pane) { // what is caught up on is on its way at once
		for _, h := range n.heard {
			is = is || !slices.Contains(h.Absent, n.name)
		}
	}
	n.covered.Set(map[bool]float64{true: 1}[is])
	return is
}

// isNew tells whether this node has not run for long enough to know that nobody judges what it counts: what it reads first
// may be minutes of a storm that its fleet was told of long ago.
func (n *fleetNode) isNew(now time.Time) bool { return now.Sub(n.began) < n.patience }

const maxHeld = 1 << 10 // transitions

// waitingAtMost is how many panes may be on their way to the stream while a node counts as covered: more of them are for
// as long as it takes to count so many.
const waitingAtMost = 3

// localAlerts decides what of its own alerts a node of a fleet tells: none while an aggregator judges for it. They bear
// the node's name, so that nobody takes them for the fleet's.
type localAlerts struct {
	node    *fleetNode
	fires   func(*alerts.Alert) bool // receivers are told that it does, by this process or the one before
	covered bool
	told    []alerts.Alert // fire, as of the last pane at which they were told
	held    []alerts.Alert // transitions of a node that is new
}

// take gives what is to be told of what fires and of what began or ended.
func (l *localAlerts) take(at int64, now time.Time, active, transitions []alerts.Alert) (tell, news []alerts.Alert) {
	was := l.covered
	l.covered = l.node.isCovered(now)
	switch {
	case !l.covered && l.node.isNew(now):
		others := func(a alerts.Alert) bool { return !l.fires(&a) }
		l.told = slices.DeleteFunc(l.named(active), others)
		l.held = append(l.held, slices.DeleteFunc(l.named(transitions), func(a alerts.Alert) bool { return !others(a) })...)
		l.held = l.held[max(0, len(l.held)-maxHeld):]
		return l.told, slices.DeleteFunc(l.named(transitions), others)
	case !l.covered:
		l.told = l.named(active)
		news = slices.Concat(l.held, l.named(transitions))
		l.held = nil
		return l.told, news
	case !was:
		for _, a := range l.told {
			a.State, a.At, a.EndsAt = alerts.Resolved, at, at
			news = append(news, a)
		}
		l.told, l.held = nil, nil
	}
	return nil, news
}

// named gives alerts the node's name as a label.
func (l *localAlerts) named(list []alerts.Alert) []alerts.Alert {
	out := slices.Clone(list)
	for i := range out {
		out[i].Labels = out[i].Labels.With("node", l.node.name)
	}
	return out
}

// bucketKV is a bucket of the spool, opened when it is used: a disk that fails at the start may recover.
type bucketKV struct {
	store  *spool.Spool
	bucket string
}

// Get implements notify.KV and fleet.KV.
func (b bucketKV) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	kv, err := b.store.KV(ctx, b.bucket)
	if err != nil {
		return nil, false, err
	}
	return kv.Get(ctx, key)
}

// Put implements notify.KV and fleet.KV.
func (b bucketKV) Put(ctx context.Context, key string, value []byte) error {
	kv, err := b.store.KV(ctx, b.bucket)
	if err != nil {
		return err
	}
	return kv.Put(ctx, key, value)
}

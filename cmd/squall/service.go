package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/alerts/report"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/fleet"
	"github.com/squall-sre/squall/pipeline/loki"
	"github.com/squall-sre/squall/pipeline/source"
	"github.com/squall-sre/squall/pipeline/spool"
)

// service is all that one configuration makes. Its parts are built by server.build, which starts nothing; run
// starts them from the page back to the line, and stops them from the line to the page.
type service struct {
	log        *zap.Logger
	config     *Config
	registry   *prometheus.Registry
	store      *spool.Spool
	judge      *judge
	busy       *busyWorkers
	sites      *siteMetrics   // the server's
	live       *report.Live   // of the service before, while panes are as long
	outbox     *notify.Outbox // the server's
	kept       *incidentBook  // the server's
	dispatcher *notify.Dispatcher
	shipper    *loki.Shipper // nil: no Loki is configured
	shipping   *spool.Consumer
	inputs     []*inputRoad
	work       chan *pipeline.Work
	ended      chan string // inputs that came to their end

	node  *fleetNode   // the server's; nil: this is no node of a fleet
	local *localAlerts // of the node
	shape string       // the hash of what shapes its panes
	union *fleetUnion  // nil: it judges its own lines

	unreadable *prometheus.CounterVec // the server's

	beat    atomic.Bool // the judge's loop has turned since it was last asked
	reading atomic.Bool // the state is restored and lines are read
	saves   chan []byte // the newest snapshot to save

	mu       sync.Mutex
	active   []alerts.Alert // as of the last pane
	held     []alerts.Alert // back by suppressors, as of the last pane
	resolved []alerts.Alert // the last ones, newest first

	saved    int64 // ns of event time: the last snapshot
	lateness lateWatch
	fits     fitWatch
	clocks   clockWatch
	began    time.Time // the reading
	ticked   time.Time // when the loop last looked at the clock
	arrived  time.Time
	mark     int64 // ns: the watermark when it last moved, at arrived
}

// inputRoad is one configured source with its road.
type inputRoad struct {
	name     string
	lateness time.Duration
	source   source.Source
	config   pipeline.RoadConfig
	road     *pipeline.Road
	last     time.Time // when its last work came, on the wall
	idle     bool
	silent   bool                 // it has said nothing yet
	behind   map[string]time.Time // when the last work came of each stream of which more lies unread
	format   string               // as configured
	zone     *time.Location
	fits     sync.Map // stream ID → *fit
}

// liveSpan is how much event time the live page draws.
const liveSpan = time.Hour

// keptResolved is how many resolved alerts the page shows.
const keptResolved = 50

// build makes a service of a configuration. All that can be wrong with it is found here.
func (s *server) build(c *Config) (*service, error) {
	reg := prometheus.NewRegistry()
	d := &service{
		log: s.log, config: c, registry: reg, store: s.store, work: make(chan *pipeline.Work, 4), ended: make(chan string),
		saves: make(chan []byte, 1), outbox: s.outbox, unreadable: s.unreadable, kept: s.kept, sites: s.accounts.sites,
		node: s.node, shape: c.hash(paneSections),
	}
	var err error
	if d.judge, err = newJudge(c, reg, 0); err != nil {
		return nil, err
	}
	d.judge.store, d.judge.settled, d.judge.metrics, d.busy = s.store, d.settled, s.accounts.judge, newBusyWorkers(reg)
	if old := s.current.Load(); old != nil && old.live.Step() == c.Pane {
		d.live = old.live
	} else {
		d.live = report.NewLive(c.Pane, liveSpan)
	}
	if s.node != nil {
		d.local = &localAlerts{node: s.node, fires: s.outbox.Fires}
		d.judge.whole = func(p *pane.Pane) { s.node.tell(p, c.Pane, d.shape) }
	}
	if d.dispatcher, err = s.newDispatcher(c, reg); err != nil {
		return nil, err
	}
	reg.MustRegister(newInputStates(d))
	if s.aggregator != nil {
		d.union = newFleetUnion(s.aggregator, c)
		return d, nil
	}
	if c.Loki.URL != "" {
		if d.shipper, err = s.newShipper(c); err != nil {
			return nil, err
		}
	}
	return d, s.buildInputs(d, c, reg)
}

func (s *server) newDispatcher(c *Config, reg prometheus.Registerer) (*notify.Dispatcher, error) {
	peers, err := s.peers(c)
	if err != nil {
		return nil, err
	}
	if s.aggregator != nil {
		peers = s.aggregator.lone.part(peers)
	}
	return notify.NewDispatcher(notify.Config{
		Peers: peers, Outbox: s.outbox, Logger: s.log, Registerer: reg, Now: time.Now, Drain: stopGrace,
	}), nil
}

// peers are the places that alerts are sent to.
func (s *server) peers(c *Config) ([]notify.Peer, error) {
	var peers []notify.Peer
	for i, n := range c.Notify {
		made, err := notify.New(n.Kind.Decode, notify.Runtime{
			Name: fmt.Sprintf("%s-%d", n.Type, i+1), Now: time.Now, Stdout: s.stdout, ExternalURL: "http://" + c.Web.Listen,
		})
		if err != nil {
			return nil, fmt.Errorf("notifier %s: %w", n.Type, err)
		}
		peers = append(peers, made...)
	}
	return peers, nil
}

// lokiConsumer is the name under which the spool remembers what Loki has.
const lokiConsumer = "loki"

func (s *server) newShipper(c *Config) (*loki.Shipper, error) {
	var static []string
	for _, sc := range c.Sources {
		static = append(static, slices.Sorted(maps.Keys(sc.Labels))...)
	}
	return loki.New(c.Loki, loki.Deps{
		Static: static, Dir: c.Spool.Dir, Log: s.log.Named("loki"), Metrics: s.accounts.loki, Now: time.Now,
	})
}

func (s *server) buildInputs(d *service, c *Config, reg prometheus.Registerer) error {
	chain, err := newChain(c, reg)
	if err != nil {
		return err
	}
	redactor, err := newRedactor(c)
	if err != nil {
		return err
	}
	for _, sc := range c.Sources {
		src, err := source.New(sc.Kind.Decode, source.Runtime{
			Name: sc.Name, Logger: s.log, Metrics: s.accounts.sources, Now: time.Now, Stdin: s.stdin,
			Descriptors: s.descriptors,
		})
		if err != nil {
			return fmt.Errorf("source %s: %w", sc.Name, err)
		}
		choice, err := chooseFormat(sc.Format.Type, sc.Format.Decode)
		if err != nil {
			return fmt.Errorf("source %s: %w", sc.Name, err)
		}
		in := &inputRoad{
			name: sc.Name, lateness: sc.Lateness, source: src, format: cmp.Or(sc.Format.Type, "auto"), zone: sc.Timezone.Location,
			behind: map[string]time.Time{},
		}
		o := opener{format: choice, zone: sc.Timezone.Location, framing: framings[sc.Type]}
		o.opened = in.opened
		in.config = pipeline.RoadConfig{
			Input: sc.Name, Open: o.open, Enricher: chain.For(sc.Site), Redactor: redactor,
			Now:  func() int64 { return time.Now().UnixNano() },
			Take: func(w *pipeline.Work) error { return d.take(in, w) },
		}
		in.road = pipeline.NewRoad(in.config)
		d.judge.source(sc.Name, sc.Lateness)
		d.inputs = append(d.inputs, in)
	}
	return nil
}

// run restores the state, reads until ctx ends or every input does, and stops in order. ready is called when
// lines are being read.
func (d *service) run(ctx context.Context, ready func()) error {
	sending, stopSending := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSending()
	var senders sync.WaitGroup
	senders.Go(func() { d.report("notifying", d.dispatcher.Run(sending)) })
	if d.shipper != nil {
		opened := make(chan struct{})
		senders.Go(func() { d.report("shipping", d.ship(sending, opened)) })
		<-opened
	}
	saved := make(chan struct{})
	storing, stored := outlive(ctx, storeGrace)
	defer stored()
	go func() { defer close(saved); d.save(storing) }()

	d.sites.declare(d.config)
	restore, read := d.restore, d.read
	if d.union != nil {
		restore, read = d.rejoin, d.unite
	}
	err := restore(ctx)
	if err == nil {
		d.reading.Store(true)
		ready()
		err = read(ctx)
	}
	// The last pages go out while the last lines are stored: each has a few seconds, and together they must not
	// take longer than a service manager waits.
	stopSending()
	d.snapshot()
	close(d.saves)
	<-saved
	err = errors.Join(err, d.flush(storing)) // the next service's sources begin where the spool ends
	senders.Wait()
	return err
}

// ship brings lines to Loki until ctx ends. opened is closed when the spool was asked for them: what is stored later
// waits for Loki.
func (d *service) ship(ctx context.Context, opened chan<- struct{}) error {
	asked := sync.OnceFunc(func() { close(opened) })
	defer asked()
	for {
		lines, err := d.store.Consumer(ctx, lokiConsumer)
		asked()
		if err == nil {
			d.shipping = lines
			return d.shipper.Run(ctx, lines)
		}
		d.log.Warn("what Loki has is not known yet, trying on", zap.Error(err))
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// abandon gives up what the service holds of the spool, when no service comes that ships on.
func (d *service) abandon() {
	if d.shipping != nil {
		d.shipping.Close()
	}
}

// report tells of a part that ended before its time: detection goes on without it.
func (d *service) report(part string, err error) {
	if err != nil {
		d.log.Error(part+" has ended", zap.Error(err))
	}
}

// read runs the sources and judges their work, until all of them have ended.
func (d *service) read(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.began = time.Now()
	var sources sync.WaitGroup
	errs := make([]error, len(d.inputs))
	for i, in := range d.inputs {
		in.last, in.silent = time.Now(), true
		sources.Go(func() {
			err := in.source.Run(ctx, d.store, func(b *pipeline.Block) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return in.road.Emit(b)
			})
			if err != nil && ctx.Err() == nil {
				errs[i] = fmt.Errorf("source %s: %w", in.name, err)
				cancel()
			}
			select {
			case d.ended <- in.name:
			case <-ctx.Done():
			}
		})
	}
	done := make(chan struct{})
	go func() { sources.Wait(); close(d.work); close(done) }()
	d.loop(ctx)
	<-done
	if ctx.Err() == nil { // every input came to its end: nothing can follow
		d.judge.panes.Flush()
		d.judge.settle()
		if d.node != nil {
			d.node.end(d.config.Pane, d.shape, d.judge.closed)
		}
	}
	return errors.Join(errs...)
}

// take is the end of every road: it hands the work to the loop.
func (d *service) take(in *inputRoad, w *pipeline.Work) error {
	if v, ok := in.fits.Load(w.Batch.Stream.ID); ok {
		f := v.(*fit)
		d.announce(in, w.Batch.Stream, f)
		f.count(w)
	}
	d.work <- w // the loop takes work until the roads have ended
	return nil
}

// tick is how often the loop looks at the clock.
const tick = 200 * time.Millisecond

// loop judges the work until there is no more. After a stop the roads hand on what they hold, and a disk that does not
// get on takes each batch late or never: what it did not take in time is left in its file.
func (d *service) loop(ctx context.Context) {
	clock := time.NewTicker(tick)
	defer clock.Stop()
	patient, ended := outlive(ctx, workGrace)
	defer ended()
	for {
		select {
		case w, more := <-d.work:
			if !more {
				return
			}
			if patient.Err() != nil {
				d.judge.leave(w)
				continue
			}
			d.arrive(w, time.Now())
			d.judge.take(w)
			d.moved()
		case name := <-d.ended:
			d.judge.done(name)
			d.judge.settle()
		case now := <-clock.C:
			d.rest(now)
		}
		d.beat.Store(true)
	}
}

// arrive notes that an input is at work. One whose times are not believed counts as resting.
func (d *service) arrive(w *pipeline.Work, now time.Time) {
	i := slices.IndexFunc(d.inputs, func(in *inputRoad) bool { return in.name == w.Input })
	in := d.inputs[i]
	d.judge.trust = d.clocks.see(w, in.lateness, now, now.Sub(d.began))
	if !d.judge.trust.astray {
		in.last, in.idle, in.silent = now, false, false
	}
	if w.Behind {
		in.behind[w.Batch.Stream.ID] = now
	} else {
		delete(in.behind, w.Batch.Stream.ID)
	}
}

// stuckAfter is how long event time waits for a file whose next lines do not come: a disk may hang.
const stuckAfter = 10 * time.Second

// pass lets event time pass the files of an input that are behind and do not get on.
func (d *service) pass(in *inputRoad, now time.Time) {
	for id, last := range in.behind {
		if now.Sub(last) > stuckAfter {
			delete(in.behind, id)
			delete(d.judge.behind[in.name], id)
			d.judge.wait(in.name)
		}
	}
}

// thaw notices that the process stood still: frozen, stopped, starved. What was written meanwhile lies unread, so that
// nothing may have passed before the sources have looked.
func (d *service) thaw(now time.Time) {
	if still := now.Sub(d.ticked); !d.ticked.IsZero() && still > time.Second {
		for _, in := range d.inputs {
			in.last = in.last.Add(still)
			for id, last := range in.behind {
				in.behind[id] = last.Add(still)
			}
		}
		if !d.arrived.IsZero() {
			d.arrived = d.arrived.Add(still)
		}
	}
	d.ticked = now
}

// firstWord is how long an input is waited for that has said nothing yet: its first lines may be old.
const firstWord = 15 * time.Second

// patience is how long an input may say nothing until time passes it by.
func (in *inputRoad) patience() time.Duration {
	if in.silent {
		return min(max(in.lateness, time.Second), firstWord)
	}
	return max(in.lateness, time.Second)
}

// moved notes when the watermark moved.
func (d *service) moved() {
	if at := d.judge.panes.Watermark(); at != d.mark && at != math.MinInt64 {
		d.mark, d.arrived = at, time.Now()
	}
}

// rest lets time pass for inputs that have nothing to say: they hold the watermark back no longer, and when none
// has, event time goes on as the wall's does. It goes on from the last line, not from the wall's own time: a
// host whose clock is an hour off must not have all its lines come too late.
func (d *service) rest(now time.Time) {
	d.thaw(now)
	for _, in := range d.inputs {
		if !in.idle && now.Sub(in.last) > in.patience() {
			in.idle = true
			d.judge.panes.Idle(d.judge.sources[in.name], true)
		}
		d.pass(in, now)
	}
	if !d.arrived.IsZero() {
		d.judge.panes.Advance(d.mark + int64(now.Sub(d.arrived)))
	}
	d.judge.settle()
	d.lateness.look(now, d.judge.inputs, d.log)
	d.fits.look(now, d.inputs, d.log)
	d.clocks.look(now, d.log)
}

// lateWatch tells of which inputs lines come too late to be detected: their clock went back, or their order is not
// time's.
type lateWatch struct {
	at    time.Time              // of the last look
	until map[string]punctuality // by input
}

// lateShare of an input's lines of a minute is worth a warning.
const lateShare = 0.1

func (l *lateWatch) look(now time.Time, inputs map[string]punctuality, log *zap.Logger) {
	if now.Sub(l.at) < time.Minute {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		lines, late := inputs[name].lines-l.until[name].lines, inputs[name].late-l.until[name].late
		if float64(late) > lateShare*float64(lines) {
			log.Warn("lines come too late to be detected: they are shipped, and a storm in them is not seen until their times have caught up",
				zap.String("input", name), zap.Uint64("late", late), zap.Uint64("lines", lines))
		}
	}
	l.at, l.until = now, maps.Clone(inputs)
}

// settled follows each evaluated pane: the alerts go out, and what must outlive a crash is saved.
func (d *service) settled(res *detectors.Result, transitions []alerts.Alert) {
	d.busy.set(res.Busy)
	active := d.judge.manager.Active()
	d.sites.count(res.Pane)
	d.sites.show(res.Detections, active)
	d.tell(res, active, transitions)
	d.live.Observe(res, active, d.judge.engine.Pool)
	d.mu.Lock()
	d.active, d.held = active, d.judge.manager.Suppressed()
	for _, a := range transitions {
		if a.State == alerts.Resolved {
			d.resolved = slices.Insert(d.resolved, 0, a)
		}
	}
	d.resolved = d.resolved[:min(len(d.resolved), keptResolved)]
	d.mu.Unlock()
	d.kept.update(d.judge.ledger)
	if len(transitions) > 0 || res.At-d.saved >= int64(time.Minute) {
		d.snapshot()
		d.saved = res.At
	}
}

// tell lets receivers know, and the fleet.
func (d *service) tell(res *detectors.Result, active, transitions []alerts.Alert) {
	if d.node != nil {
		active, transitions = d.local.take(res.At, time.Now(), active, transitions)
	}
	d.dispatcher.Update(res.At, active, transitions)
	if d.union != nil {
		d.union.lone.update(res.At, active, transitions)
	}
}

// shown lists what fires, what is held back and what was over lately.
func (d *service) shown() []alerts.Alert {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Concat(d.active, d.held, d.resolved)
}

// snapshot hands the judge's state to the saver. A newer state replaces one that was not saved yet.
func (d *service) snapshot() {
	if d.judge.closed == 0 {
		return
	}
	state, err := d.judge.snapshot()
	drawn, err2 := d.live.Snapshot()
	state.Live = drawn
	if d.union != nil {
		var err3 error
		state.Fleet, err3 = d.union.panes.Snapshot()
		err = errors.Join(err, err3)
	}
	var b bytes.Buffer
	if err = errors.Join(err, err2, gob.NewEncoder(&b).Encode(state)); err != nil {
		d.log.Error("the state was not saved", zap.Error(err))
		return
	}
	select {
	case <-d.saves:
	default:
	}
	d.saves <- b.Bytes()
}

// The snapshot's place in the spool.
const (
	stateBucket = "state"
	stateKey    = "judge"
)

// save stores snapshots, each after what receivers are owed by then, and after all lines that it is made of: what a
// snapshot knows can then be read again.
func (d *service) save(ctx context.Context) {
	failing := false
	for state := range d.saves {
		err := d.put(ctx, state)
		switch {
		case err != nil && !failing:
			d.log.Warn("the state cannot be saved: a crash would lose what happened since", zap.Error(err))
		case err == nil && failing:
			d.log.Info("the state is saved again")
		}
		failing = err != nil
	}
}

func (d *service) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := d.store.Flush(ctx); err != nil {
		return fmt.Errorf("store the last lines: %w", err)
	}
	return nil
}

func (d *service) put(ctx context.Context, state []byte) error {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := errors.Join(d.outbox.Save(ctx), d.store.Flush(ctx)); err != nil {
		return err
	}
	if err := d.kept.save(ctx); err != nil {
		return err
	}
	return d.states().Put(ctx, stateKey, state)
}

// states is where the judge's state is kept: what judges a fleet shares it with its replicas.
func (d *service) states() fleet.KV {
	if d.union != nil {
		return d.union.aggregator
	}
	return bucketKV{d.store, stateBucket}
}

// rereadWithoutState is how far back stored lines are read again when the state is lost: what goes on now is within.
const rereadWithoutState = time.Hour

// restore brings the judge to where it was: its state from the last snapshot, and the lines since then, and of
// the windows before, from the spool. What cannot be read of either costs that, not the start: a torn file of the
// spool is no reason to be blind.
func (d *service) restore(ctx context.Context) error {
	if err := d.kept.load(ctx); err != nil && ctx.Err() == nil {
		d.unreadable.WithLabelValues(ledgerBucket).Inc()
		d.log.Error("the incidents of before cannot be read: they are not compared with", zap.Error(err))
	}
	d.judge.ledger.Load(d.kept.Entries())
	_, from, found, err := d.restoreState(ctx)
	if err != nil && ctx.Err() == nil {
		d.forsake(err)
		from = time.Now().Add(-rereadWithoutState).UnixNano()
	}
	if err := d.reread(ctx, from); err != nil && ctx.Err() == nil {
		d.log.Error("not all stored lines could be read again: what they told is not known", zap.Error(err))
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("read the saved state: %w", err)
	}
	if found {
		d.resume()
	}
	return nil
}

// forsake notes that the saved state is not used.
func (d *service) forsake(err error) {
	d.unreadable.WithLabelValues(stateKey).Inc()
	d.log.Error("the saved state cannot be used: detection begins anew", zap.Error(err))
}

// restoreState brings the judge to the last snapshot. It returns from when on stored lines are to be read again, in
// ns; where no pane was judged yet, all that is stored counts.
func (d *service) restoreState(ctx context.Context) (state snapshot, from int64, found bool, err error) {
	data, found, err := d.states().Get(ctx, stateKey)
	if err != nil || !found {
		return state, 0, false, err
	}
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&state); err != nil {
		return state, 0, false, err
	}
	if limit := time.Now().Add(neverAhead); state.Closed > limit.UnixNano() {
		return state, 0, false, fmt.Errorf("its time is %s, and now is %s: a log's clock was wrong", formatTime(state.Closed), formatTime(limit.Add(-neverAhead).UnixNano()))
	}
	if from, err = d.judge.restore(state); err != nil {
		return state, from, false, err
	}
	d.live.Restore(state.Live, d.judge.engine.Pool)
	return state, from, true, nil
}

// resume tells what fires: no line may come for a while, and Alertmanager forgets what is not sent again.
func (d *service) resume() {
	active := d.judge.manager.Active()
	d.sites.fire(active)
	d.mu.Lock()
	d.active, d.held = active, d.judge.manager.Suppressed()
	d.mu.Unlock()
	if d.local != nil {
		active, _ = d.local.take(d.judge.closed, time.Now(), active, nil)
	}
	d.dispatcher.Update(d.judge.closed, active, nil)
}

// reread takes the stored lines since an event time down their roads again, into the panes and no further.
func (d *service) reread(ctx context.Context, from int64) error {
	roads := map[string]*pipeline.Road{}
	d.judge.trust.ceiling = time.Now().Add(neverAhead).UnixNano()
	for _, in := range d.inputs {
		cfg := in.config
		cfg.Redactor = nil
		cfg.Take = func(w *pipeline.Work) error {
			d.judge.feed(w)
			w.Release()
			d.judge.settle()
			return nil
		}
		roads[in.name] = pipeline.NewRoad(cfg)
	}
	return d.store.Read(ctx, spool.Range{Events: from}, func(b *pipeline.Batch) error {
		d.beat.Store(true)
		road := roads[b.Stream.Input]
		if road == nil {
			return nil // the source is configured no more
		}
		return road.Replay(b)
	})
}

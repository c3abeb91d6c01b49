package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
)

// resolvedFor is how long an end is told again: the receiver may have been away when it was told first.
const resolvedFor = 15 * time.Minute

// Config is what a Dispatcher is made of.
type Config struct {
	Peers      []Peer
	Outbox     *Outbox // what receivers were told and are owed; nil: known in memory alone
	Logger     *zap.Logger
	Registerer prometheus.Registerer // nil: no metrics are shown
	Now        func() time.Time      // wall clock, for what is shown alone: it may step. nil: time.Now

	Queue      int           // transitions kept for a peer that does not answer; the oldest are dropped. Default 1000
	Timeout    time.Duration // of one attempt: a receiver that is slow is not one that is down. Default 30s
	Drain      time.Duration // of the last attempts when Run ends. Default 5s
	MaxBackoff time.Duration // between two attempts; the first waits a second. Default 30s
}

// A Dispatcher keeps every peer informed. Update hands it the newest state; Run sends.
type Dispatcher struct {
	outbox  *Outbox
	log     *zap.Logger
	metrics *metrics
	workers []*worker
	attach  sync.Once
}

// NewDispatcher builds the queues. Nothing is sent before Run, and nothing of what is owed is changed before Run or
// Update: another Dispatcher of the same Outbox may run until then.
func NewDispatcher(c Config) *Dispatcher {
	c.Queue = cmp.Or(c.Queue, 1000)
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.Drain = cmp.Or(c.Drain, 5*time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 30*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Outbox == nil {
		c.Outbox, _ = OpenOutbox(context.Background(), nil, c.Logger) // without a KV there is nothing to read
	}
	c.Peers = slices.Clone(c.Peers)
	keys := map[string]int{}
	for i := range c.Peers {
		p := &c.Peers[i]
		p.Key, p.Group = cmp.Or(p.Key, p.Name), cmp.Or(p.Group, p.Name)
		if keys[p.Key]++; keys[p.Key] > 1 { // the same address twice
			p.Key = fmt.Sprintf("%s#%d", p.Key, keys[p.Key])
		}
	}
	d := &Dispatcher{outbox: c.Outbox, log: c.Logger.With(zap.String("component", "notify")), metrics: newMetrics(c.Registerer, c.Peers)}
	for _, p := range c.Peers {
		d.workers = append(d.workers, &worker{
			Config: c, dispatcher: d, peer: p, metrics: d.metrics, log: d.log.With(zap.String("notifier", p.Name)),
			wake: make(chan struct{}, 1), sent: map[string]bool{}, lacks: map[string]bool{},
		})
	}
	return d
}

// Update takes over what fires at an event time (ns) and what began or ended since the last call. It never blocks,
// and keeps the alerts, which must not be changed afterwards. It may be called before Run and by one goroutine at a
// time. Alerts that are held back go nowhere. What the receivers know already, because lines were read again after a crash, is not told again.
func (d *Dispatcher) Update(at int64, active, transitions []alerts.Alert) {
	d.attach.Do(d.open)
	transitions = slices.DeleteFunc(slices.Clone(transitions), func(a alerts.Alert) bool { return a.Suppressed != "" })
	o := d.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range d.workers {
		w.welcome(active)
	}
	fires, news := o.take(at, active, transitions)
	for _, w := range d.workers {
		w.update(fires, news)
	}
	d.gauges()
}

// open takes over what each peer is owed. What a receiver was owed that is configured no more is dropped.
func (d *Dispatcher) open() {
	o := d.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	keep := map[string]*box{}
	for _, w := range d.workers {
		w.box = o.boxes[w.peer.Key]
		if w.box == nil {
			w.box = &box{fresh: true}
		}
		keep[w.peer.Key] = w.box
		delete(o.boxes, w.peer.Key)
		w.resume()
	}
	for _, b := range o.boxes {
		owed := 0
		for i := range b.letters {
			if !b.letters[i].Told {
				owed++
			}
		}
		if owed > 0 {
			d.log.Warn("a receiver is configured no more: what it was owed is dropped", zap.Int("alerts", owed))
		}
		o.changes++
	}
	o.boxes = keep
	d.gauges()
}

// gauges shows what is owed: to each peer, and by each notifier as a whole, where one peer that took it is enough.
// The caller holds the outbox.
func (d *Dispatcher) gauges() {
	least := map[string]int{}
	for _, w := range d.workers {
		n := w.owed()
		d.metrics.owed.WithLabelValues(w.peer.Name).Set(float64(n))
		if old, ok := least[w.peer.Group]; !ok || n < old {
			least[w.peer.Group] = n
		}
	}
	for group, n := range least {
		d.metrics.undelivered.WithLabelValues(group).Set(float64(n))
	}
}

// Run sends until ctx ends, then tries once more to send what is left, stores what is owed still, and returns when
// every peer is done.
func (d *Dispatcher) Run(ctx context.Context) error {
	d.attach.Do(d.open)
	var group sync.WaitGroup
	for _, w := range d.workers {
		group.Go(func() { w.run(ctx) })
	}
	group.Wait()
	return d.outbox.Save(context.WithoutCancel(ctx))
}

// worker informs one peer.
type worker struct {
	Config
	dispatcher *Dispatcher
	peer       Peer
	metrics    *metrics
	log        *zap.Logger
	wake       chan struct{}

	// Guarded by the outbox.
	box    *box
	active []alerts.Alert
	sent   map[string]bool // identities that fire and were sent
	lacks  map[string]bool // of them those that were refused
	news   bool            // the peer does not know the newest transitions

	failures int // in a row; of the worker's goroutine
}

// states tells whether the peer is told the state again and again, rather than each transition once.
func (w *worker) states() bool { return w.peer.Notifier.Resend() > 0 }

// resume goes on with what was owed: ends are told again as long as if they had just come.
func (w *worker) resume() {
	if !w.states() {
		w.box.letters = slices.DeleteFunc(w.box.letters, func(l letter) bool { return l.Told })
		w.news = len(w.box.letters) > 0
	} else {
		// What a peer that was told each transition is owed to begin with comes with the state now.
		w.box.letters = slices.DeleteFunc(w.box.letters, func(l letter) bool { return l.Alert.State == alerts.Firing })
		for i := range w.box.letters {
			w.box.letters[i].until = time.Now().Add(resolvedFor)
			w.news = true
		}
	}
	w.awake()
}

func (w *worker) awake() {
	if !w.news {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// welcome owes a new peer what fires already.
func (w *worker) welcome(active []alerts.Alert) {
	if !w.box.fresh {
		return
	}
	w.box.fresh = false
	w.Outbox.changes++
	for _, a := range active {
		if e := w.Outbox.episodes[identity(&a)]; e != nil && e.fires() && !w.states() {
			a.StartsAt = e.Alert.StartsAt
			w.take(a)
		}
	}
}

func (w *worker) update(active, transitions []alerts.Alert) {
	w.active = slices.Clone(active)
	for _, a := range transitions {
		w.take(a)
	}
	for i := range active { // a state that was restored has alerts without a transition
		if w.states() && !w.sent[identity(&active[i])] {
			w.news = true
		}
	}
	w.awake()
}

func (w *worker) take(a alerts.Alert) {
	w.news = true
	l := letter{Alert: a}
	if w.states() {
		key := identity(&a)
		w.box.letters = slices.DeleteFunc(w.box.letters, func(l letter) bool { return identity(&l.Alert) == key })
		if a.State == alerts.Firing {
			return
		}
		delete(w.sent, key)
		delete(w.lacks, key)
		l.until = time.Now().Add(resolvedFor)
	}
	if len(w.box.letters) >= w.Queue {
		w.log.Error("too much is owed: the oldest is dropped", zap.String("alert", w.box.letters[0].Alert.Title()))
		w.box.letters = slices.Delete(w.box.letters, 0, 1)
		w.metrics.dropped.WithLabelValues(w.peer.Name, droppedFull).Inc()
	}
	w.box.letters = append(w.box.letters, l)
}

// owed counts what the peer does not know yet.
func (w *worker) owed() int {
	n := 0
	for i := range w.box.letters {
		if !w.box.letters[i].Told {
			n++
		}
	}
	if w.states() {
		for i := range w.active {
			if id := identity(&w.active[i]); !w.sent[id] || w.lacks[id] {
				n++
			}
		}
	}
	return n
}

func (w *worker) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	waiting := false // for the end of a backoff: news do not shorten it
	for {
		select {
		case <-ctx.Done():
			w.drain()
			return
		case <-w.wake:
			if waiting {
				continue
			}
		case <-timer.C:
		}
		next := w.attempt(ctx)
		waiting = w.failures > 0
		if next > 0 {
			timer.Reset(next)
		} else {
			timer.Stop()
		}
	}
}

// attempt sends what is due and returns when to come again without news, 0 for never.
func (w *worker) attempt(ctx context.Context) time.Duration {
	var err error
	next := time.Duration(0)
	if w.states() {
		var again bool
		if again, err = w.sendState(ctx); again {
			next = w.peer.Notifier.Resend()
		}
	} else {
		err = w.sendQueue(ctx)
		next = w.rests()
	}
	w.report(err)
	w.Outbox.mu.Lock()
	w.dispatcher.gauges()
	w.Outbox.mu.Unlock()
	if err != nil && !errors.Is(err, alerts.ErrPermanent) {
		w.failures++
		return max(min(time.Second<<min(w.failures-1, 16), w.MaxBackoff), askedToWait(err))
	}
	w.failures = 0
	return next
}

// sendQueue sends each transition by itself and in order, so that none is sent twice because the next one failed.
// After a failure a firing one is told with the newest evidence. Each is on disk before it leaves, and off it before
// the next one does. What is refused holds nothing up and is tried again: more often than the alert it is the receiver
// that is set up wrongly, and somebody mends it.
func (w *worker) sendQueue(ctx context.Context) error {
	var refused error
	for {
		a, ok := w.head()
		if !ok {
			return refused
		}
		w.save(ctx)
		err := w.notify(ctx, []alerts.Alert{a})
		if err != nil && !errors.Is(err, alerts.ErrPermanent) {
			return err
		}
		if err != nil {
			refused = err
			if w.rest(&a) {
				w.log.Error("an alert was refused: it is tried again", zap.String("alert", a.Title()), zap.Error(err))
				continue
			}
			w.metrics.dropped.WithLabelValues(w.peer.Name, droppedRefused).Inc()
			w.log.Error("an alert was refused for an hour and is not told", zap.String("alert", a.Title()), zap.Error(err))
		}
		w.strike(&a)
		w.save(ctx)
	}
}

// A refused alert is tried again after one minute, two, four …, maxRest at most, and given up at the last of maxRefusals.
const (
	firstRest   = time.Minute
	maxRest     = 10 * time.Minute
	maxRefusals = 9 // within 55 minutes
)

// rest lays what was refused aside for a while; false when it was refused often enough.
func (w *worker) rest(a *alerts.Alert) bool {
	w.Outbox.mu.Lock()
	defer w.Outbox.mu.Unlock()
	for i := range w.box.letters {
		if l := &w.box.letters[i]; l.same(a) {
			l.refusals++
			l.rest = time.Now().Add(min(firstRest<<(l.refusals-1), maxRest))
			return l.refusals < maxRefusals
		}
	}
	return true
}

// rests is how long until the first of what was laid aside is due, 0 when nothing is.
func (w *worker) rests() (next time.Duration) {
	w.Outbox.mu.Lock()
	defer w.Outbox.mu.Unlock()
	for i := range w.box.letters {
		if l := &w.box.letters[i]; !l.rest.IsZero() {
			if wait := max(time.Until(l.rest), time.Millisecond); next == 0 || wait < next {
				next = wait
			}
		}
	}
	return next
}

// save stores what is owed. It tells itself of a failure: a page does not wait for a disk that does not answer.
func (w *worker) save(ctx context.Context) { _ = w.Outbox.save(context.WithoutCancel(ctx), false) }

// strike takes out what was told. The queue may have lost it to a newer transition meanwhile.
func (w *worker) strike(a *alerts.Alert) {
	o := w.Outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.IndexFunc(w.box.letters, func(l letter) bool { return l.same(a) }); i >= 0 {
		w.box.letters = slices.Delete(w.box.letters, i, i+1)
		o.changes++
	}
	w.dispatcher.gauges()
}

// head gives the oldest transition that is due. One of an alert of which an older one rests comes after that.
func (w *worker) head() (alerts.Alert, bool) {
	w.Outbox.mu.Lock()
	defer w.Outbox.mu.Unlock()
	resting := map[string]bool{}
	i := slices.IndexFunc(w.box.letters, func(l letter) bool {
		id := identity(&l.Alert)
		resting[id] = resting[id] || !l.rest.IsZero() && time.Now().Before(l.rest)
		return !resting[id]
	})
	if i < 0 {
		w.news = false
		return alerts.Alert{}, false
	}
	l := &w.box.letters[i]
	if w.failures > 0 || l.refusals > 0 {
		for i := range w.active {
			if l.same(&w.active[i]) {
				return w.active[i], true
			}
		}
	}
	return l.Alert, true
}

// sendState sends all that fires and all that is over and still told.
func (w *worker) sendState(ctx context.Context) (again bool, err error) {
	batch := w.state()
	if len(batch) == 0 {
		return false, nil
	}
	err = w.notify(ctx, batch)
	o := w.Outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && !errors.Is(err, alerts.ErrPermanent) {
		w.news = true
		return true, err
	}
	clear(w.lacks)
	for _, id := range refusedOf(err, batch) {
		w.lacks[id] = true
	}
	for i := range batch {
		if batch[i].State == alerts.Firing {
			if w.fires(&batch[i]) {
				w.sent[identity(&batch[i])] = true
			}
			continue
		}
		for j := range w.box.letters {
			if l := &w.box.letters[j]; !l.Told && l.same(&batch[i]) {
				l.Told = true
				o.changes++
			}
		}
	}
	return true, err
}

func (w *worker) fires(a *alerts.Alert) bool {
	return slices.ContainsFunc(w.active, func(b alerts.Alert) bool { return identity(&b) == identity(a) })
}

// state is the batch to send: what fires, then what is over, each in a fixed order.
func (w *worker) state() []alerts.Alert {
	o := w.Outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	w.news = false
	batch := slices.Clone(w.active)
	now := time.Now() // monotonic: a clock that is set does not cut this short
	before := len(w.box.letters)
	w.box.letters = slices.DeleteFunc(w.box.letters, func(l letter) bool { return l.Told && !now.Before(l.until) })
	if len(w.box.letters) < before {
		o.changes++
	}
	for i := range w.box.letters {
		batch = append(batch, w.box.letters[i].Alert)
	}
	return batch
}

func (w *worker) notify(ctx context.Context, batch []alerts.Alert) error {
	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	err := w.peer.Notifier.Notify(ctx, batch)
	taken := len(batch)
	if err != nil {
		w.metrics.failed.WithLabelValues(w.peer.Name, reason(err)).Inc()
		if taken -= len(refusedOf(err, batch)); taken <= 0 {
			return err
		}
	}
	w.metrics.sent.WithLabelValues(w.peer.Name).Add(float64(taken))
	w.metrics.success.WithLabelValues(w.peer.Name).Set(float64(w.Now().Unix()))
	return err
}

// The reasons of a failure.
const (
	reasonRefused     = "refused"     // no retry cures it
	reasonTurnedAway  = "turned_away" // the address or the credentials are wrong
	reasonTimeout     = "timeout"     // no answer in time
	reasonUnavailable = "unavailable" // no connection, or an answer that says later
)

func reason(err error) string {
	var n net.Error
	switch {
	case errors.Is(err, alerts.ErrPermanent):
		return reasonRefused
	case errors.Is(err, errTurnedAway):
		return reasonTurnedAway
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &n) && n.Timeout():
		return reasonTimeout
	}
	return reasonUnavailable
}

// report logs changes only: the first failure, the first success behind it, and clocks that differ. A receiver that
// turns squall away is told of each time, since that needs a hand.
func (w *worker) report(err error) {
	permanent := errors.Is(err, alerts.ErrPermanent)
	switch {
	case permanent && w.states(): // the others tell which one
		w.log.Error("alerts were refused", zap.Error(err))
	case permanent:
	case errors.Is(err, errTurnedAway):
		w.log.Error("the receiver turns squall away: alerts wait", zap.Error(err))
	case err != nil && w.failures == 0:
		w.log.Warn("alerts cannot be sent, trying again", zap.Error(err))
	case err == nil && w.failures > 0:
		w.log.Info("alerts can be sent again")
	}
	if w.peer.Skew == nil {
		return
	}
	skew := w.peer.Skew()
	if old := w.metrics.setSkew(w.peer.Name, skew); (old == 0) != (skew == 0) && skew != 0 {
		w.log.Warn("the receiver's clock differs, its time is used", zap.Duration("ahead", skew))
	}
}

// drain makes the last attempt.
func (w *worker) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), w.Drain)
	defer cancel()
	w.Outbox.mu.Lock()
	due := w.news
	w.Outbox.mu.Unlock()
	if due {
		w.attempt(ctx)
	}
}

package notify

import (
	"cmp"
	"context"
	"errors"
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
	Logger     *zap.Logger
	Registerer prometheus.Registerer // nil: no metrics are shown
	Now        func() time.Time      // wall clock; nil: time.Now

	Queue      int           // transitions kept for a peer that does not answer; the oldest are dropped. Default 1000
	Timeout    time.Duration // of one attempt. Default 10s
	Drain      time.Duration // of the last attempts when Run ends. Default 5s
	MaxBackoff time.Duration // between two attempts; the first waits a second. Default 30s
}

// A Dispatcher keeps every peer informed. Update hands it the newest state; Run sends.
type Dispatcher struct {
	workers []*worker
}

// NewDispatcher builds the queues. Nothing is sent before Run.
func NewDispatcher(c Config) *Dispatcher {
	c.Queue = cmp.Or(c.Queue, 1000)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.Drain = cmp.Or(c.Drain, 5*time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 30*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	m := newMetrics(c.Registerer, c.Peers)
	d := &Dispatcher{}
	for _, p := range c.Peers {
		d.workers = append(d.workers, &worker{
			Config: c, peer: p, metrics: m, log: c.Logger.With(zap.String("component", "notify"), zap.String("notifier", p.Name)),
			wake: make(chan struct{}, 1), ended: map[string]*ended{}, sent: map[string]bool{},
		})
	}
	return d
}

// Update takes over what fires and what began or ended since the last call. It never blocks, and keeps the alerts,
// which must not be changed afterwards. It may be called before Run and by one goroutine at a time.
func (d *Dispatcher) Update(active, transitions []alerts.Alert) {
	for _, w := range d.workers {
		w.update(active, transitions)
	}
}

// Run sends until ctx ends, then tries once more to send what is left and returns when every peer is done.
func (d *Dispatcher) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for _, w := range d.workers {
		group.Go(func() { w.run(ctx) })
	}
	group.Wait()
	return nil
}

// worker informs one peer.
type worker struct {
	Config
	peer    Peer
	metrics *metrics
	log     *zap.Logger
	wake    chan struct{}

	mu     sync.Mutex
	active []alerts.Alert
	queue  []alerts.Alert    // transitions, for a peer that gets each once
	ended  map[string]*ended // what is over, for a peer that gets the state again and again
	sent   map[string]bool   // identities that fire and were sent
	news   bool              // the peer does not know the newest transitions

	failures int // in a row; of the worker's goroutine
}

// ended is an alert that is over and is still told.
type ended struct {
	alert alerts.Alert
	until time.Time
	told  bool
}

func (w *worker) update(active, transitions []alerts.Alert) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active = slices.Clone(active)
	for i := range transitions {
		w.take(&transitions[i])
	}
	for i := range active { // a state that was restored has alerts without a transition
		if w.peer.Notifier.Resend() > 0 && !w.sent[identity(&active[i])] {
			w.news = true
		}
	}
	w.metrics.queue.WithLabelValues(w.peer.Name).Set(float64(len(w.queue)))
	if w.news {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (w *worker) take(a *alerts.Alert) {
	w.news = true
	if w.peer.Notifier.Resend() == 0 {
		if len(w.queue) >= w.Queue {
			w.queue = slices.Delete(w.queue, 0, 1)
			w.metrics.dropped.WithLabelValues(w.peer.Name).Inc()
		}
		w.queue = append(w.queue, *a)
		return
	}
	key := identity(a)
	if a.State == alerts.Firing {
		delete(w.ended, key)
		return
	}
	delete(w.sent, key)
	if len(w.ended) >= w.Queue && w.ended[key] == nil {
		w.dropOldestEnd()
	}
	w.ended[key] = &ended{alert: *a, until: w.Now().Add(resolvedFor)}
}

func (w *worker) dropOldestEnd() {
	oldest := ""
	for key, e := range w.ended {
		if o := w.ended[oldest]; o == nil || e.until.Before(o.until) || e.until.Equal(o.until) && key < oldest {
			oldest = key
		}
	}
	delete(w.ended, oldest)
	w.metrics.dropped.WithLabelValues(w.peer.Name).Inc()
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
	resend := w.peer.Notifier.Resend()
	var err error
	again := false
	if resend == 0 {
		err = w.sendQueue(ctx)
	} else {
		again, err = w.sendState(ctx)
	}
	w.report(err)
	if err != nil && !errors.Is(err, alerts.ErrPermanent) {
		w.failures++
		return min(time.Second<<min(w.failures-1, 16), w.MaxBackoff)
	}
	w.failures = 0
	if again {
		return resend
	}
	return 0
}

// sendQueue sends each transition by itself and in order, so that none is sent twice because the next one failed.
// After a failure a firing one is told with the newest evidence.
func (w *worker) sendQueue(ctx context.Context) error {
	var refused error
	for {
		a, ok := w.head()
		if !ok {
			return refused
		}
		err := w.notify(ctx, []alerts.Alert{a})
		if err != nil && !errors.Is(err, alerts.ErrPermanent) {
			return err
		}
		if err != nil {
			refused = err
		}
		w.mu.Lock()
		// The queue may have lost its head to a newer transition meanwhile.
		if len(w.queue) > 0 && identity(&w.queue[0]) == identity(&a) && w.queue[0].State == a.State {
			w.queue = slices.Delete(w.queue, 0, 1)
		}
		w.metrics.queue.WithLabelValues(w.peer.Name).Set(float64(len(w.queue)))
		w.mu.Unlock()
	}
}

func (w *worker) head() (alerts.Alert, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.news = false
		return alerts.Alert{}, false
	}
	a := w.queue[0]
	if w.failures > 0 && a.State == alerts.Firing {
		for i := range w.active {
			if identity(&w.active[i]) == identity(&a) && w.active[i].StartsAt == a.StartsAt {
				a = w.active[i]
			}
		}
	}
	return a, true
}

// sendState sends all that fires and all that is over and still told.
func (w *worker) sendState(ctx context.Context) (again bool, err error) {
	batch, over := w.state()
	if len(batch) == 0 {
		return false, nil
	}
	err = w.notify(ctx, batch)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !errors.Is(err, alerts.ErrPermanent) {
		w.news = true
		return true, err
	}
	for _, e := range over {
		e.told = true
	}
	for i := range batch {
		if batch[i].State == alerts.Firing && w.fires(&batch[i]) {
			w.sent[identity(&batch[i])] = true
		}
	}
	return true, err
}

func (w *worker) fires(a *alerts.Alert) bool {
	return slices.ContainsFunc(w.active, func(b alerts.Alert) bool { return identity(&b) == identity(a) })
}

// state is the batch to send: what fires, then what is over, each in a fixed order.
func (w *worker) state() ([]alerts.Alert, []*ended) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.news = false
	now := w.Now()
	batch := slices.Clone(w.active)
	var keys []string
	for key, e := range w.ended {
		if e.told && !now.Before(e.until) {
			delete(w.ended, key)
			continue
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var over []*ended
	for _, key := range keys {
		over = append(over, w.ended[key])
		batch = append(batch, w.ended[key].alert)
	}
	return batch, over
}

func (w *worker) notify(ctx context.Context, batch []alerts.Alert) error {
	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	err := w.peer.Notifier.Notify(ctx, batch)
	if err != nil {
		w.metrics.failed.WithLabelValues(w.peer.Name, reason(err)).Inc()
		return err
	}
	w.metrics.sent.WithLabelValues(w.peer.Name).Add(float64(len(batch)))
	w.metrics.success.WithLabelValues(w.peer.Name).Set(float64(w.Now().Unix()))
	return nil
}

// The reasons of a failure.
const (
	reasonRefused     = "refused"     // no retry cures it
	reasonTimeout     = "timeout"     // no answer in time
	reasonUnavailable = "unavailable" // no connection, or an answer that says later
)

func reason(err error) string {
	var n net.Error
	switch {
	case errors.Is(err, alerts.ErrPermanent):
		return reasonRefused
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &n) && n.Timeout():
		return reasonTimeout
	}
	return reasonUnavailable
}

// report logs changes only: the first failure, the first success behind it, and clocks that differ.
func (w *worker) report(err error) {
	permanent := errors.Is(err, alerts.ErrPermanent)
	switch {
	case permanent:
		w.log.Warn("alerts were refused", zap.Error(err))
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
	w.mu.Lock()
	due := w.news
	w.mu.Unlock()
	if due {
		w.attempt(ctx)
	}
}

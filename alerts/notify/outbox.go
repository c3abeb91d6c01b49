package notify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
)

// KV keeps small values on disk. A value that was put is there after a crash.
type KV interface {
	Get(ctx context.Context, key string) (value []byte, ok bool, err error)
	Put(ctx context.Context, key string, value []byte) error
}

const (
	outboxKey     = "outbox"
	outboxVersion = 1
	// maxStored bounds the stored form, in bytes: less than a KV takes.
	maxStored = 3 << 20
	// maxEpisodes bounds what is remembered; what fires is bounded by the rules.
	maxEpisodes = 2000
	maxBefore   = 16
	// vanished is how long, in ns of event time, an alert that was told must be gone without an end before it is
	// ended here: after a crash its lines may have to be read again first. Alertmanager waits a little longer.
	vanished = int64(3 * time.Minute)
	// saveTimeout bounds a save, and savePause is how long none is tried after one that failed: a page does not
	// wait for a disk that hangs, or only once.
	saveTimeout = 2 * time.Second
	savePause   = 30 * time.Second
)

// An Outbox knows which alerts the receivers are told to fire and what each is still owed, over reloads, stops and
// crashes. The same transition that is made again, because lines are read again after a crash, is owed once.
//
// A page to a receiver that is told each transition once leaves after its place here is on disk, and is struck out
// when it was taken: it is lost at no moment, and told twice only when the crash falls between the receiver's
// answer and the disk's. Such a repeat has the same fingerprint, startsAt and idempotency key. When the disk fails,
// pages leave without it.
type Outbox struct {
	kv  KV // nil: nothing is kept over a stop
	log *zap.Logger

	saving chan struct{} // holds one while a save runs

	mu       sync.Mutex // guards all below, and what the workers of a Dispatcher know
	failing  bool       // the last save failed
	pause    time.Time  // no save before, unless it must
	episodes map[string]*episode
	boxes    map[string]*box // by Peer.Key
	changes  uint64
	saved    uint64 // changes that are on disk
}

// episode is the newest alert of an identity from its beginning to its end, as receivers are told of it.
type episode struct {
	Alert   alerts.Alert // without evidence
	At      int64        // ns: event time of its last transition
	Before  []int64      // ns: when the alerts of this identity before it began; the newest maxBefore
	missing int64        // ns: since when it fires no more although no end came; 0: it does
}

func (e *episode) fires() bool { return e.Alert.State == alerts.Firing }

// box is what one peer is owed.
type box struct {
	letters []letter
	fresh   bool // the peer is new: it is owed what fires already
}

// letter is one transition that a peer is owed. A peer that is told the state again and again has letters for
// ends alone, and they stay for a while when they were told.
type letter struct {
	Alert alerts.Alert
	Told  bool
	until time.Time // on the monotonic clock; zero: counted from when the outbox was read

	refusals int       // how often it was refused
	rest     time.Time // on the monotonic clock: not tried again before
}

// same tells whether both are the same transition.
func (l *letter) same(a *alerts.Alert) bool {
	return l.Alert.State == a.State && l.Alert.StartsAt == a.StartsAt && identity(&l.Alert) == identity(a)
}

// OpenOutbox reads what was owed. The Outbox can be used in any case: an error says that what was owed is not known.
func OpenOutbox(ctx context.Context, kv KV, log *zap.Logger) (*Outbox, error) {
	if log == nil {
		log = zap.NewNop()
	}
	o := &Outbox{
		kv: kv, log: log.With(zap.String("component", "notify")), saving: make(chan struct{}, 1),
		episodes: map[string]*episode{}, boxes: map[string]*box{},
	}
	if kv == nil {
		return o, nil
	}
	data, ok, err := kv.Get(ctx, outboxKey)
	if err != nil {
		return o, fmt.Errorf("read the outbox: %w", err)
	}
	if !ok {
		return o, nil
	}
	doc, err := decodeOutbox(data)
	if err != nil {
		return o, fmt.Errorf("read the outbox: %w", err)
	}
	if doc.Episodes != nil {
		o.episodes = doc.Episodes
	}
	for key, letters := range doc.Letters {
		o.boxes[key] = &box{letters: letters}
	}
	return o, nil
}

// take compares what fires at an event time with what receivers are told, and returns what fires, as they are told
// it, and what they do not know yet: beginnings and ends. The caller holds mu.
func (o *Outbox) take(at int64, active, transitions []alerts.Alert) (fires, news []alerts.Alert) {
	for i := range transitions {
		if a, ok := o.transition(transitions[i]); ok {
			news = append(news, a)
		}
	}
	present := map[string]bool{}
	for _, a := range active {
		key := identity(&a)
		present[key] = true
		e := o.episodes[key]
		if e == nil || !e.fires() {
			if e != nil && e.repeats(at, &a) {
				continue // its end was told: the past is being read again
			}
			e = o.begin(key, &a, at)
			news = append(news, a)
		}
		e.missing = 0
		a.StartsAt = e.Alert.StartsAt
		fires = append(fires, a)
	}
	for _, key := range slices.Sorted(maps.Keys(o.episodes)) {
		if e := o.episodes[key]; e.fires() && !present[key] && at > e.At {
			e.missing = cmp.Or(e.missing, at)
			if at-e.missing >= vanished {
				news = append(news, o.end(e, lost(e, at)))
			}
		}
	}
	if len(news) > 0 {
		o.changes++
		o.forget(at)
	}
	return fires, news
}

// Fires tells whether receivers are told that a fires.
func (o *Outbox) Fires(a *alerts.Alert) bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.episodes[identity(a)]
	return e != nil && e.fires()
}

// transition takes one over, unless it is known.
func (o *Outbox) transition(a alerts.Alert) (alerts.Alert, bool) {
	key := identity(&a)
	e := o.episodes[key]
	if a.State == alerts.Firing {
		if e != nil && (e.fires() || e.repeats(a.At, &a)) {
			return a, false
		}
		o.begin(key, &a, a.At)
		return a, true
	}
	switch {
	case e == nil: // nothing is known of its beginning
		e = &episode{}
		o.episodes[key] = e
		e.Alert = slim(&a)
	case !e.fires(), a.At < e.At:
		return a, false
	}
	return o.end(e, a), true
}

// repeats tells whether an alert at an event time belongs to the past that this episode has seen already.
func (e *episode) repeats(at int64, a *alerts.Alert) bool {
	return at <= e.At && (a.StartsAt >= e.Alert.StartsAt || slices.Contains(e.Before, a.StartsAt))
}

func (o *Outbox) begin(key string, a *alerts.Alert, at int64) *episode {
	e := &episode{Alert: slim(a), At: at}
	if old := o.episodes[key]; old != nil {
		e.Before = slices.Concat(old.Before[max(0, len(old.Before)+1-maxBefore):], []int64{old.Alert.StartsAt})
	}
	o.episodes[key] = e
	return e
}

// end ends an episode: the beginning that was told stays.
func (o *Outbox) end(e *episode, a alerts.Alert) alerts.Alert {
	a.StartsAt = e.Alert.StartsAt
	a.EndsAt = max(a.EndsAt, a.StartsAt)
	e.Alert.State, e.Alert.EndsAt, e.At, e.missing = alerts.Resolved, a.EndsAt, a.At, 0
	return a
}

// slim is what identifies an alert.
func slim(a *alerts.Alert) alerts.Alert {
	return alerts.Alert{
		Name: a.Name, State: a.State, Severity: a.Severity, Labels: a.Labels, StartsAt: a.StartsAt, EndsAt: a.EndsAt, At: a.At,
	}
}

// lost is the end of an alert whose state was lost.
func lost(e *episode, at int64) alerts.Alert {
	a := e.Alert
	a.State, a.At, a.EndsAt = alerts.Resolved, at, e.missing
	a.Cause = alerts.Cause{Verdict: alerts.Undetermined, Text: "its state was lost: when it ended is not known"}
	a.Annotations = map[string]string{"summary": a.Name + " is over; its state was lost"}
	return a
}

// forget drops episodes that nothing can repeat any more.
func (o *Outbox) forget(at int64) {
	over := slices.DeleteFunc(slices.Sorted(maps.Keys(o.episodes)), func(key string) bool { return o.episodes[key].fires() })
	slices.SortStableFunc(over, func(a, b string) int { return cmp.Compare(o.episodes[a].At, o.episodes[b].At) })
	for _, key := range over {
		if len(o.episodes) > maxEpisodes || at-o.episodes[key].At > int64(24*time.Hour) {
			delete(o.episodes, key)
		}
	}
}

// Save puts what changed on disk. It returns at once when nothing did, and within seconds when the disk hangs.
func (o *Outbox) Save(ctx context.Context) error { return o.save(ctx, true) }

// put gives the disk what is left of its time, of which encoding takes none.
func (o *Outbox) put(ctx context.Context, data []byte, left time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	return o.kv.Put(ctx, outboxKey, data)
}

// save does so; unless it must, it does not try soon after a save that failed, nor wait for one that tries.
func (o *Outbox) save(ctx context.Context, must bool) error {
	if o.kv == nil {
		return nil
	}
	o.mu.Lock()
	paused := !must && time.Now().Before(o.pause)
	o.mu.Unlock()
	if paused {
		return errPaused
	}
	began := time.Now()
	turn, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	select {
	case o.saving <- struct{}{}:
		defer func() { <-o.saving }()
	case <-turn.Done():
		return fmt.Errorf("store the outbox: %w", turn.Err())
	}
	left := saveTimeout - time.Since(began)
	o.mu.Lock()
	doc, changes := o.document(), o.changes
	clean := o.changes == o.saved
	o.mu.Unlock()
	if clean {
		return nil
	}
	data, err := doc.encode()
	if err == nil {
		err = o.put(ctx, data, left)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		if !o.failing {
			o.log.Error("what receivers are owed cannot be stored: pages go on, a crash may lose or repeat one", zap.Error(err))
		}
		o.failing, o.pause = true, time.Now().Add(savePause)
		return fmt.Errorf("store the outbox: %w", err)
	}
	if o.failing {
		o.log.Info("what receivers are owed is stored again")
	}
	o.failing, o.pause, o.saved = false, time.Time{}, changes
	return nil
}

var errPaused = errors.New("store the outbox: it failed just now")

// document is the stored form.
type document struct {
	Version  int
	Episodes map[string]*episode
	Letters  map[string][]letter
}

// document copies what is to be stored; alerts do not change. The caller holds mu.
func (o *Outbox) document() *document {
	d := &document{Version: outboxVersion, Episodes: make(map[string]*episode, len(o.episodes)), Letters: map[string][]letter{}}
	for key, e := range o.episodes {
		known := *e
		d.Episodes[key] = &known
	}
	for key, b := range o.boxes {
		if !b.fresh {
			d.Letters[key] = slices.Clone(b.letters)
		}
	}
	return d
}

// encode writes a document. What is too much even when compressed loses its evidence first, then the oldest letters:
// they are told if no crash comes.
func (d *document) encode() ([]byte, error) {
	for step := 0; ; step++ {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true))
		if err != nil {
			return nil, fmt.Errorf("make a zstd encoder: %w", err)
		}
		if err := errors.Join(gob.NewEncoder(z).Encode(d), z.Close()); err != nil {
			return nil, fmt.Errorf("encode the outbox: %w", err)
		}
		if b.Len() <= maxStored {
			return b.Bytes(), nil
		}
		for key, letters := range d.Letters {
			if step > 0 {
				d.Letters[key] = letters[(len(letters)+1)/2:]
				continue
			}
			for i := range letters {
				small := slim(&letters[i].Alert)
				small.Annotations = map[string]string{"summary": letters[i].Alert.Annotations["summary"]}
				letters[i].Alert = small
			}
		}
	}
}

func decodeOutbox(data []byte) (*document, error) {
	z, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("make a zstd decoder: %w", err)
	}
	defer z.Close()
	var d document
	if err := gob.NewDecoder(z).Decode(&d); err != nil {
		return nil, err
	}
	if d.Version != outboxVersion {
		return nil, fmt.Errorf("version %d is not %d", d.Version, outboxVersion)
	}
	return &d, nil
}

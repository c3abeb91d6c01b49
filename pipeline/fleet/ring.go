package fleet

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	ringSize = 720 // panes: two hours of 10 s each
	inMemory = 64  // of them, the newest, so that a fresh one is not read back and a sick disk costs little

	keyBoot, keyMarks = "boot", "marks"

	keepTimeout = 2 * time.Second
	minKeep     = time.Second
	maxKeep     = 30 * time.Second
	saveEvery   = 10 * time.Second // how old the saved marks may be: what they lack is sent again, and refused
)

var (
	errNotRunning = errors.New("nobody puts panes on the disk yet")
	errSick       = errors.New("the disk did not take what it was given last")
)

// A KV keeps small values over a restart; what was put is synced. It is safe for concurrent use, and gives up when
// the context ends.
type KV interface {
	Get(ctx context.Context, key string) (value []byte, ok bool, err error)
	Put(ctx context.Context, key string, value []byte) error
}

// An Outgoing is what this node has to tell and the stream does not have yet: a ring of 720 places in a KV. Panes
// have sequences from 1, over restarts. Add may be called before, during and after Run.
type Outgoing struct {
	l  *Link
	kv KV

	// boot is in the identity of each message: it differs after the KV was wiped, when sequences begin anew. It is
	// secret, so that no other node can send under an identity of this one's and have the true message refused.
	boot string

	adding sync.Mutex

	mu      sync.Mutex
	first   uint64 // the oldest that the stream is not known to have
	last    uint64 // the newest, 0 when there was none
	slots   [ringSize]slot
	isSick  bool          // the KV did not take the last that it was given: Run puts
	jobs    chan putting  // to Run, which puts; nil while it does not run
	ended   chan struct{} // closed when Run takes no more of them; nil before it runs
	keptID  bool          // boot is in the KV
	saved   marks         // in the KV
	wake    chan struct{}
	mustPut chan struct{}
}

// A putting is a pane on its way to the KV.
type putting struct {
	seq  uint64
	data []byte
	done chan error // has room
}

type slot struct {
	seq  uint64
	data []byte // nil: only in the KV
	kept bool   // it is in the KV, or need not be
	done bool   // the stream has it, or nobody ever will
}

// Outgoing opens the ring that kv holds. The error is kv's: it cannot be read now.
func (l *Link) Outgoing(ctx context.Context, kv KV) (*Outgoing, error) {
	o := &Outgoing{l: l, kv: kv, first: 1, wake: make(chan struct{}, 1), mustPut: make(chan struct{}, 1)}
	boot, ok, err := kv.Get(ctx, keyBoot)
	if err != nil {
		return nil, fmt.Errorf("fleet: open the ring of panes: %w", err)
	}
	o.boot, o.keptID = string(boot), true
	if !ok || !isToken(boot) {
		o.boot = rand.Text()
		o.keptID = o.putValue(ctx, keyBoot, []byte(o.boot)) == nil
		if !o.keptID {
			o.isSick = true
			poke(o.mustPut)
		}
	}
	if o.keptID && ok { // a KV without it has nothing of ours
		if err := o.load(ctx); err != nil {
			return nil, fmt.Errorf("fleet: open the ring of panes: %w", err)
		}
	}
	o.l.m.waiting.Set(float64(o.Waiting()))
	return o, nil
}

// load finds what is in the KV. There are no gaps of any length behind the saved marks: a disk that was sick has them
// saved when it is well again.
func (o *Outgoing) load(ctx context.Context) error {
	value, _, err := o.kv.Get(ctx, keyMarks)
	if err != nil {
		return err
	}
	o.saved = decodeMarks(value)
	from := o.saved.acked + 1
	o.last = max(o.saved.acked, o.saved.last)
	if o.last >= ringSize {
		from = max(from, o.last-ringSize+1)
	}
	for i := range uint64(ringSize) {
		seq := from + i
		if seq > o.last+inMemory {
			break
		}
		value, ok, err := o.kv.Get(ctx, slotKey(seq%ringSize))
		if err != nil {
			return err
		}
		if has, _, right := decodeSlot(value); ok && right && has%ringSize == seq%ringSize {
			o.slots[has%ringSize] = slot{seq: has, kept: true}
			o.last = max(o.last, has)
		}
	}
	o.first = o.saved.acked + 1
	if o.last >= ringSize {
		o.first = max(o.first, o.last-ringSize+1)
	}
	return nil
}

// marks are what a ring has beside its panes.
type marks struct {
	acked uint64 // the stream has all up to here, or they are gone
	last  uint64
}

func (m marks) encode() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, m.acked), m.last)
}

// decodeMarks gives none for what is no marks: the ring itself is looked at then.
func decodeMarks(value []byte) marks {
	if len(value) != 16 {
		return marks{}
	}
	return marks{binary.BigEndian.Uint64(value), binary.BigEndian.Uint64(value[8:])}
}

// isToken tells whether a boot identity is one that Outgoing made.
func isToken(boot []byte) bool {
	for _, c := range boot {
		if !isWord(c) {
			return false
		}
	}
	return len(boot) > 0 && len(boot) <= 64
}

func slotKey(i uint64) string { return "pane." + strconv.FormatUint(i, 10) }

func encodeSlot(seq uint64, data []byte) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(data)), seq), data...)
}

func decodeSlot(value []byte) (seq uint64, data []byte, ok bool) {
	if len(value) < 8 {
		return 0, nil, false
	}
	seq = binary.BigEndian.Uint64(value)
	return seq, value[8:], seq > 0
}

// poke wakes whoever waits for c, or will.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Add appends what build makes, given its sequence, and keeps the bytes. It knows no network. While Run runs it waits
// for the disk, but for no longer than 2 s, and not again before the disk has taken something. What is added before
// is in memory until then.
func (o *Outgoing) Add(build func(seq uint64) []byte) {
	o.adding.Lock()
	defer o.adding.Unlock()
	o.mu.Lock()
	seq := o.last + 1
	if seq-o.first >= ringSize {
		o.first++
		o.l.m.dropped.Inc()
	}
	isSick := o.isSick
	o.mu.Unlock()
	data := build(seq)
	if data == nil {
		data = []byte{}
	}
	err := errSick
	if !isSick {
		err = o.putWithin(seq, data)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = seq
	o.slots[seq%ringSize] = slot{seq: seq, data: data, kept: err == nil}
	if err != nil {
		poke(o.mustPut)
	}
	if err != nil && !errors.Is(err, errNotRunning) {
		o.l.m.unkept.Inc()
		o.isSick = true
	}
	if seq > inMemory {
		o.forget(seq - inMemory)
	}
	o.l.m.waiting.Set(float64(o.last + 1 - o.first))
	poke(o.wake)
}

// putWithin has Run put a pane: a disk that hangs may hold up whatever is called, for longer than any context says.
func (o *Outgoing) putWithin(seq uint64, data []byte) error {
	o.mu.Lock()
	jobs, ended := o.jobs, o.ended
	o.mu.Unlock()
	if ended == nil {
		return errNotRunning
	}
	if jobs == nil {
		return o.put(context.Background(), seq, data)
	}
	timer := time.NewTimer(keepTimeout)
	defer timer.Stop()
	job := putting{seq, data, make(chan error, 1)}
	select {
	case jobs <- job:
	case <-ended:
		return o.put(context.Background(), seq, data)
	case <-timer.C:
		return context.DeadlineExceeded
	}
	select {
	case err := <-job.done:
		return err
	case <-timer.C:
		return context.DeadlineExceeded
	}
}

// forget takes a pane out of memory, where it may be the only one there is: when its turn comes it is missing then, and
// counted.
func (o *Outgoing) forget(seq uint64) {
	if s := &o.slots[seq%ringSize]; s.seq == seq {
		s.data = nil
	}
}

func (o *Outgoing) put(ctx context.Context, seq uint64, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	return o.kv.Put(ctx, slotKey(seq%ringSize), encodeSlot(seq, data))
}

// Waiting is how many panes the stream is not known to have.
func (o *Outgoing) Waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return int(o.last + 1 - o.first)
}

// get gives a pane that waits. ok is false when there is none of that sequence any more.
func (o *Outgoing) get(ctx context.Context, seq uint64) (data []byte, ok bool, err error) {
	o.mu.Lock()
	s := o.slots[seq%ringSize]
	if seq < o.first || s.seq == seq && s.done {
		o.mu.Unlock()
		return nil, false, nil
	}
	if s.seq != seq {
		o.lose(seq)
		o.mu.Unlock()
		return nil, false, nil
	}
	o.mu.Unlock()
	if s.data != nil {
		return s.data, true, nil
	}
	value, ok, err := o.kv.Get(ctx, slotKey(seq%ringSize))
	if err != nil {
		return nil, false, err
	}
	has, data, right := decodeSlot(value)
	if ok && right && has == seq {
		return data, true, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if seq >= o.first { // not overwritten meanwhile, which was counted
		o.lose(seq)
	}
	return nil, false, nil
}

// lose counts a pane that is not there, once.
func (o *Outgoing) lose(seq uint64) {
	o.slots[seq%ringSize] = slot{seq: seq, kept: true, done: true}
	o.l.m.dropped.Inc()
}

// settle notes that seq is dealt with, although some before it may not be.
func (o *Outgoing) settle(seq uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := &o.slots[seq%ringSize]; s.seq == seq {
		s.data, s.kept, s.done = nil, true, true
	}
}

// done notes that all up to seq are dealt with.
func (o *Outgoing) done(seq uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.first = max(o.first, seq+1)
	o.l.m.waiting.Set(float64(o.last + 1 - o.first))
}

// bounds are the first that waits and the last.
func (o *Outgoing) bounds() (first, last uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.first, o.last
}

// keep puts what Add hands over, brings what the KV did not take at once into it, and saves how far the stream has
// what was sent, until ctx ends; then it does so once more.
func (o *Outgoing) keep(ctx context.Context) {
	jobs, ended := make(chan putting), make(chan struct{})
	o.mu.Lock()
	o.jobs, o.ended = jobs, ended
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		o.jobs = nil
		o.mu.Unlock()
		close(ended)
	}()
	failures := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wake := o.mustPut
		if failures > 0 {
			wake = nil // the next try has its time
		}
		select {
		case job := <-jobs:
			job.done <- o.put(ctx, job.seq, job.data)
			continue
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
			defer cancel()
			if err := o.catchUp(last); err != nil {
				o.l.log.Warn("panes that wait for the fleet were not stored before the end", zap.Error(err))
			}
			return
		}
		again := saveEvery
		if err := o.catchUp(ctx); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			if failures++; failures == 1 {
				o.l.log.Warn("panes that wait for the fleet cannot be stored: the newest are kept in memory", zap.Error(err))
			}
			again = backoff(failures-1, minKeep, maxKeep)
		}
		timer.Reset(again)
	}
}

// catchUp puts what is only in memory, the oldest first, and then what is known of the stream.
func (o *Outgoing) catchUp(ctx context.Context) error {
	if !o.keptID {
		if err := o.putValue(ctx, keyBoot, []byte(o.boot)); err != nil {
			return err
		}
		o.keptID = true
	}
	for {
		seq, data, ok := o.nextUnkept()
		if !ok {
			break
		}
		if err := o.put(ctx, seq, data); err != nil {
			return err
		}
		o.mu.Lock()
		if s := &o.slots[seq%ringSize]; s.seq == seq {
			s.kept = true
		}
		o.mu.Unlock()
	}
	first, last := o.bounds()
	now := marks{first - 1, last}
	if now == o.saved {
		return nil
	}
	if err := o.putValue(ctx, keyMarks, now.encode()); err != nil {
		return err
	}
	o.saved = now
	return nil
}

func (o *Outgoing) putValue(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	return o.kv.Put(ctx, key, value)
}

// nextUnkept gives the oldest that is only in memory; when there is none the KV is thought to be well.
func (o *Outgoing) nextUnkept() (seq uint64, data []byte, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for seq := max(o.first, o.last-min(o.last, inMemory)+1); seq <= o.last; seq++ {
		if s := o.slots[seq%ringSize]; s.seq == seq && !s.kept && s.data != nil {
			return seq, s.data, true
		}
	}
	o.isSick = false
	return 0, nil, false
}

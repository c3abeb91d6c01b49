package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	window = 4 // messages on their way to the disk; compression overlaps with the sync

	ackTimeout      = 10 * time.Second
	checkpointAfter = 5 * time.Second
	gaugesAfter     = time.Second
	maxRepairWait   = 5 * time.Second
	finishTimeout   = time.Second
	suspectAfter    = 5 // failed repairs on a full disk, until the files are thought to be corrupt
)

// A pending message is sent and not known to be stored. It is kept until then.
type pending struct {
	f      *frame
	before place // what was stored before it
	msg    []byte
	id     string
	future jetstream.PubAckFuture
	err    error // of sending
}

// A writer takes frames from the queue and stores them. It is the only publisher of LINES: the sequence of every
// message is known before it is sent, and a message is refused unless the one before it was stored.
type writer struct {
	s        *Spool
	enc      *zstd.Encoder
	inflight []pending

	failures    int   // repairs since something was stored
	uncovered   int64 // bytes stored since the last checkpoint
	checkpoints struct {
		size int64
		at   time.Time
	}
	gaugesAt   time.Time
	asked      jetstream.StreamState // what the store held when it was asked last
	lasting    time.Time             // until then it holds that still, if nothing is stored
	lookedAt   time.Time
	first      uint64 // the oldest message that is kept
	repairedAt time.Time
	held       int64 // lines, as noted last
	noted      bool
}

func (w *writer) run(ctx context.Context) {
	defer w.finish()
	for ctx.Err() == nil {
		if w.s.st == nil {
			if w.s.queue.drained() {
				return
			}
			w.repair(ctx, errors.New("the store is not open"))
			continue
		}
		f, next, closed := w.s.queue.take()
		if f != nil {
			w.send(ctx, f)
			if len(w.inflight) < window {
				continue
			}
		}
		switch {
		case len(w.inflight) > 0:
			if err := w.settle(ctx); err != nil && ctx.Err() == nil {
				w.repair(ctx, err)
			}
		case closed:
			return
		default:
			w.idle(ctx, next)
		}
		w.keep(ctx)
	}
}

func (w *writer) idle(ctx context.Context, next time.Duration) {
	if next <= 0 || next > gaugesAfter {
		next = gaugesAfter
	}
	timer := time.NewTimer(next)
	defer timer.Stop()
	select {
	case <-w.s.queue.filled:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *writer) send(ctx context.Context, f *frame) {
	before := w.s.total
	for _, p := range w.inflight {
		before.lines += p.f.entries
		before.bytes += p.f.bytes
	}
	msg := f.message(w.enc, before)
	p := pending{f: f, before: before, msg: msg}
	p.id = fmt.Sprintf("%016x-%d-%016x", xxhash.Sum64String(f.keyID), f.keyFrom, xxhash.Sum64(msg))
	if w.s.disk.short(int64(len(msg))) {
		if err := w.purge(ctx, w.s.st, int64(len(msg))); err != nil {
			w.s.cfg.Log.Warn("the disk is full and the oldest lines could not be removed", zap.Error(err))
		}
	}
	w.publish(&p, w.s.last+uint64(len(w.inflight)))
	w.inflight = append(w.inflight, p)
}

// publish sends p, to be stored right behind the message last.
func (w *writer) publish(p *pending, last uint64) {
	p.future, p.err = w.s.st.js.PublishMsgAsync(&nats.Msg{Subject: subjectLines, Data: p.msg},
		jetstream.WithMsgID(p.id), jetstream.WithExpectLastSequence(last), jetstream.WithRetryAttempts(0))
}

// settle waits for the oldest message on its way.
func (w *writer) settle(ctx context.Context) error {
	p := &w.inflight[0]
	if p.err != nil {
		return p.err
	}
	timer := time.NewTimer(ackTimeout)
	defer timer.Stop()
	select {
	case ack := <-p.future.Ok():
		w.commit(ack.Sequence)
		return nil
	case err := <-p.future.Err():
		return err
	case err := <-w.s.st.failed:
		return err
	case <-timer.C:
		return fmt.Errorf("store a message: no answer within %s", ackTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// commit notes that the oldest message on its way is stored.
func (w *writer) commit(seq uint64) {
	p := w.inflight[0]
	w.inflight[0] = pending{}
	w.inflight = w.inflight[1:]
	s := w.s
	now := s.cfg.Now()
	s.positions.store(p.f.marks)
	s.positions.note(p.f.marks, now)
	s.mu.Lock()
	s.last = seq
	s.total.lines += p.f.entries
	s.total.bytes += p.f.bytes
	for _, c := range s.consumers {
		c.stored(p.f.entries)
	}
	kept := len(s.consumers) == 0
	var old [][]byte
	if p.f.lent = !kept; !kept {
		body := p.f.body
		if 2*len(body) < cap(body) { // of a trickle a consumer that is away would hold many times what was stored
			body, p.f.lent = bytes.Clone(body), false
		}
		old = s.fresh.add(freshMessage{seq, now, p.f.head(p.before), body})
	}
	s.signal()
	s.mu.Unlock()
	s.m.storedBytes.Add(float64(len(p.msg)))
	s.m.storedLines.Add(float64(p.f.entries))
	if kept {
		s.m.keptLines.Add(float64(p.f.entries))
	}
	w.uncovered += int64(len(p.msg))
	w.failures = 0
	s.queue.done(p.f, true)
	s.queue.recycle(old...)
}

// repair opens the store anew, makes room if the disk is full, and sends again what was not stored. It tries
// once: while the store stays sick, run comes back here with growing pauses, the queue fills, and Append refuses.
func (w *writer) repair(ctx context.Context, cause error) {
	s := w.s
	need := int64(frameTarget)
	if len(w.inflight) > 0 {
		need = int64(len(w.inflight[0].msg))
	}
	full := isFull(cause) || s.disk.short(need)
	tell := w.failures&(w.failures+1) == 0 // attempt 1, 2, 4, 8, …: a disk may be away for long
	if tell {
		s.cfg.Log.Warn("the spool opens its store anew", zap.Error(cause), zap.Bool("disk_full", full), zap.Int("attempt", w.failures+1))
	}
	s.m.recoveries.Inc()
	w.pause(ctx)
	w.failures++
	w.repairedAt = s.cfg.Now()
	s.mu.Lock()
	old := s.st
	s.st = nil
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
	if full {
		s.disk.release()
	}
	st, state, err := w.reopen(ctx)
	opened := s.current().opened
	if err == nil && !opened {
		w.oldest(ctx, st, state)
	}
	if err == nil && full {
		err = w.purge(ctx, st, need)
	}
	if st != nil && !opened {
		if restoreErr := s.restore(ctx, st); restoreErr != nil {
			err = errors.Join(err, restoreErr)
			st.close()
			st = nil
		} else {
			s.cfg.Log.Info("the disk takes lines now, and what is stored there is known")
		}
	}
	if err != nil && tell {
		s.cfg.Log.Warn("the spool could not be repaired", zap.Error(err))
	}
	if st == nil {
		for i := range w.inflight {
			w.inflight[i].future, w.inflight[i].err = nil, err
		}
		return
	}
	w.resume(ctx, st, state)
	s.disk.reserve()
}

func (w *writer) pause(ctx context.Context) {
	if w.failures == 0 {
		return
	}
	timer := time.NewTimer(min(sealAfter<<min(w.failures, 8), maxRepairWait))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *writer) reopen(ctx context.Context) (*store, jetstream.StreamState, error) {
	s := w.s
	if s.lock == nil {
		if err := s.occupy(); err != nil {
			return nil, jetstream.StreamState{}, err
		}
	}
	st, err := openStore(ctx, &s.cfg)
	if isCorrupt(err) && (w.failures > suspectAfter || !s.disk.short(0)) {
		if _, moveErr := moveAside(filepath.Join(s.cfg.Dir, "store")); moveErr != nil {
			return nil, jetstream.StreamState{}, errors.Join(err, moveErr)
		}
		s.forsake()
		st, err = openStore(ctx, &s.cfg)
	}
	if err != nil {
		return nil, jetstream.StreamState{}, err
	}
	state, err := st.state(ctx)
	if err != nil {
		st.close()
		return nil, state, err
	}
	return st, state, nil
}

// resume takes st into use: what it has already of the messages on their way is stored, the rest is sent again.
func (w *writer) resume(ctx context.Context, st *store, state jetstream.StreamState) {
	s, last := w.s, state.LastSeq
	s.mu.Lock()
	s.st = st
	known := s.last
	if last < known {
		s.epoch++
		s.fresh = fresh{}
	}
	s.signal()
	s.mu.Unlock()
	if last < known && state.Msgs == 0 {
		s.cfg.Log.Error("the spool's files are gone: what was not shipped is lost")
		s.removed(s.total, dropLost)
	}
	for known < last && len(w.inflight) > 0 {
		known++
		w.commit(known)
	}
	s.mu.Lock()
	s.last = last
	s.mu.Unlock()
	w.first = 0
	if last < known {
		w.checkpoint(ctx) // the positions were among the files
	}
	for i := range w.inflight {
		w.publish(&w.inflight[i], last+uint64(i))
	}
}

// purge removes the oldest lines to make room for need bytes and more.
func (w *writer) purge(ctx context.Context, st *store, need int64) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	state, err := st.state(ctx)
	if err != nil || state.Msgs == 0 {
		return err
	}
	// Only whole files are given back to the disk, and they have up to 8 MiB.
	target := max(2*uint64(need), state.Bytes/8, 8<<20)
	n := min(state.Msgs, target/max(state.Bytes/state.Msgs, 1)+1)
	keep := state.FirstSeq + n
	if err := st.lines.Purge(ctx, jetstream.WithPurgeSequence(keep)); err != nil {
		return fmt.Errorf("remove the oldest lines: %w", err)
	}
	to, err := w.before(ctx, st, keep)
	if err != nil {
		return err
	}
	w.s.removed(to, dropDiskFull)
	return nil
}

// before tells what was stored before the message seq, or in all when there is none.
func (w *writer) before(ctx context.Context, st *store, seq uint64) (place, error) {
	msg, err := st.at(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return w.s.total, nil
	}
	if err != nil {
		return place{}, fmt.Errorf("read message %d: %w", seq, err)
	}
	h, err := readHead(msg.Data)
	return h.before, err
}

// keep does what is due: gauges, a checkpoint, and a repair when a small write failed while no lines come.
func (w *writer) keep(ctx context.Context) {
	s, now := w.s, w.s.cfg.Now()
	if now.Sub(w.lookedAt) >= gaugesAfter {
		w.lookedAt = now
		if s.st != nil && !s.st.exists() {
			w.repair(ctx, errors.New("the store's files are gone"))
		}
	}
	if s.sick.Load() && now.Sub(w.repairedAt) >= maxRepairWait {
		s.sick.Store(false)
		w.repair(ctx, errors.New("a position or a value could not be written"))
	}
	if s.st == nil || ctx.Err() != nil {
		return
	}
	if now.Sub(w.gaugesAt) >= gaugesAfter {
		w.gauges(ctx)
	}
	due := min(max(8<<20, 16*w.checkpoints.size), max(s.cfg.MaxBytes/8, 1<<10))
	if w.uncovered > 0 && (w.uncovered >= due || now.Sub(w.checkpoints.at) >= checkpointAfter) {
		w.checkpoint(ctx)
	}
}

// checkpoint writes all positions. When it fails, the next start reads more.
func (w *writer) checkpoint(ctx context.Context) {
	s := w.s
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	msg := s.positions.checkpoint(w.enc, s.last, s.total)
	w.checkpoints.at = s.cfg.Now()
	if _, err := s.st.js.Publish(ctx, subjectPosition, msg); err != nil {
		s.m.checkpointErrors.Inc()
		s.sick.Store(true)
		return
	}
	w.uncovered, w.checkpoints.size = 0, int64(len(msg))
}

func (w *writer) gauges(ctx context.Context) {
	s := w.s
	w.gaugesAt = s.cfg.Now()
	s.m.queueBytes.Set(float64(s.queue.bytes()))
	s.m.streams.Set(float64(s.positions.size()))
	if s.last != w.asked.LastSeq || w.first == 0 || !w.gaugesAt.Before(w.lasting) {
		if err := w.ask(ctx); err != nil {
			return
		}
	}
	age := 0.0
	if w.asked.Msgs > 0 {
		age = max(w.gaugesAt.Sub(w.asked.FirstTime).Seconds(), 0)
	}
	s.m.oldestSeconds.Set(age)
	w.noteHeld()
}

// ask learns what the store holds, which changes when something is stored or grows too old.
func (w *writer) ask(ctx context.Context) error {
	s := w.s
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	state, err := s.st.state(ctx)
	if err != nil {
		return err
	}
	w.asked, w.lasting = state, w.gaugesAt
	if age := s.st.lines.CachedInfo().Config.MaxAge; state.Msgs > 0 && age > 0 {
		w.lasting = state.FirstTime.Add(age)
	}
	s.m.streamBytes.Set(float64(state.Bytes))
	w.oldest(ctx, s.st, state)
	return nil
}

// oldest notes what the limits have removed.
func (w *writer) oldest(ctx context.Context, st *store, state jetstream.StreamState) {
	if state.FirstSeq == w.first {
		return
	}
	if to, err := w.before(ctx, st, state.FirstSeq); err == nil {
		w.first = state.FirstSeq
		w.s.removed(to, dropLimit)
	}
}

// finish counts what could not be stored and writes the last checkpoint.
func (w *writer) finish() {
	s := w.s
	lost := place{}
	for _, p := range w.inflight {
		lost.lines += p.f.entries
		lost.bytes += p.f.bytes
		s.queue.done(p.f, false)
	}
	for {
		f, _, _ := s.queue.take()
		if f == nil {
			break
		}
		lost.lines += f.entries
		lost.bytes += f.bytes
		s.queue.done(f, false)
	}
	if lost.lines > 0 {
		s.m.lose(dropClosed, lost.lines, lost.bytes)
		s.cfg.Log.Error("lines were still waiting when the spool was closed", zap.Int64("lines", lost.lines))
	}
	if s.st != nil {
		ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
		defer cancel()
		if w.uncovered > 0 {
			w.checkpoint(ctx)
		}
		w.gauges(ctx)
	}
	_ = w.enc.Close()
}

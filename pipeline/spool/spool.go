package spool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// Config says where and how much a Spool keeps, and hands in what it uses.
type Config struct {
	Dir        string        // made if missing; belongs to one process
	MaxBytes   int64         // of stored lines, compressed; the oldest go first. Default 2 GiB
	MaxAge     time.Duration // of stored lines. Default 72 h
	QueueBytes int64         // of lines in memory that wait to be stored. Default 32 MiB
	MinFree    int64         // bytes of disk to leave free, by removing the oldest lines. Default 64 MiB, at most 5 % of the disk

	Log        *zap.Logger           // default: none
	Registerer prometheus.Registerer // default: none
	Now        func() time.Time      // default: time.Now
}

func (c *Config) fill() error {
	if c.Dir == "" {
		return errors.New("the spool needs a directory")
	}
	if c.MaxBytes < 0 || c.MaxAge < 0 || c.QueueBytes < 0 || c.MinFree < 0 {
		return errors.New("the spool's limits must not be negative")
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 2 << 30
	}
	if c.MaxAge == 0 {
		c.MaxAge = 72 * time.Hour
	}
	if c.MaxAge < time.Second {
		return fmt.Errorf("the spool's max_age %s is less than a second", c.MaxAge)
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = 32 << 20
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// A Spool stores batches on disk, in order, and knows each stream's position. It is safe for concurrent use;
// the batches of one log stream must come from one goroutine at a time.
type Spool struct {
	cfg       Config
	m         *metrics
	lock      *os.File
	queue     *queue
	positions *positions
	disk      *disk

	mu     sync.Mutex
	st     *store        // nil while it is opened anew
	opened bool          // it was open once: what is stored is known
	stored chan struct{} // closed and replaced whenever something was stored or st changed
	last   uint64        // sequence of the last stored message
	epoch  int           // rises when messages were lost and their sequences are given again
	fresh  fresh         // what of it was stored last
	total  place         // what was stored since the spool began
	first  place         // what of it was removed
	before time.Time     // when the last message was stored that the store held when it was opened

	consumers map[string]*Consumer // by name

	stop    context.CancelFunc // ends the writer although frames are left
	done    chan struct{}      // closed when the writer has ended
	closing sync.Once
	err     error
	sick    atomic.Bool // a small write failed: the store must be opened anew
}

// Open takes the directory, recovers what is stored and starts to store. A directory that another process uses
// is an error; files that cannot be recovered are moved aside and counted, and the spool begins empty. A disk that
// takes nothing, because it is full, read-only or broken, is no error: until it does, no position is known, the
// lines wait in the queue, and what it does not hold is refused.
func Open(ctx context.Context, cfg Config) (*Spool, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &Spool{
		cfg: cfg, queue: newQueue(cfg.QueueBytes, int(min(frameTarget, cfg.MaxBytes/minFrames)), cfg.Now),
		positions: newPositions(), stored: make(chan struct{}), done: make(chan struct{}),
		disk: newDisk(cfg.Dir, cfg.MinFree), consumers: map[string]*Consumer{},
	}
	err := s.occupy()
	if err != nil && !isUnwritable(err) {
		return nil, err
	}
	s.m = newMetrics(cfg.Registerer, s.waiting)
	enc, encErr := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(frameTarget)) // it keeps twice as much in memory
	if encErr != nil {
		return nil, errors.Join(fmt.Errorf("make a zstd encoder: %w", encErr), s.leave())
	}
	w := &writer{s: s, enc: enc}
	if err == nil {
		err = s.start(ctx, w)
	}
	switch {
	case isUnwritable(err):
		cfg.Log.Error("the disk takes nothing: what is stored there is not known, and lines wait in memory until it does", zap.Error(err))
	case err != nil:
		return nil, errors.Join(err, s.leave())
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	go func() { defer close(s.done); w.run(run) }()
	return s, nil
}

// occupy makes the directory and takes it for this process.
func (s *Spool) occupy() error {
	if err := os.MkdirAll(s.cfg.Dir, 0o750); err != nil {
		return fmt.Errorf("make the spool's directory: %w", err)
	}
	lock, err := lockDir(s.cfg.Dir)
	s.lock = lock
	return err
}

// leave gives the directory back.
func (s *Spool) leave() error {
	if s.lock == nil {
		return nil
	}
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("give the spool's lock back: %w", err)
	}
	return nil
}

func (s *Spool) start(ctx context.Context, w *writer) error {
	st, err := openStore(ctx, &s.cfg)
	if err != nil && (isFull(err) || s.disk.short(0)) && s.disk.release() {
		st, err = openStore(ctx, &s.cfg)
	}
	if isCorrupt(err) {
		aside, moveErr := moveAside(filepath.Join(s.cfg.Dir, "store"))
		if moveErr != nil {
			return errors.Join(err, moveErr)
		}
		s.forsake()
		s.cfg.Log.Error("the spool could not be opened and begins empty", zap.String("kept_in", aside), zap.Error(err))
		st, err = openStore(ctx, &s.cfg)
	}
	if err != nil {
		return err
	}
	if err := s.restore(ctx, st); err != nil {
		st.close()
		return err
	}
	s.disk.reserve()
	w.checkpoint(ctx) // what was read is not read again at the next start
	w.gauges(ctx)
	return nil
}

// moveAside renames dir to dir.corrupt-N and keeps the newest two of them.
func moveAside(dir string) (string, error) {
	old, err := filepath.Glob(dir + ".corrupt-*")
	if err != nil {
		return "", err
	}
	var numbers []int
	for _, path := range old {
		if n, err := strconv.Atoi(path[len(dir)+len(".corrupt-"):]); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	next := 1
	if len(numbers) > 0 {
		next = numbers[len(numbers)-1] + 1
	}
	for len(numbers) > 1 {
		if err := os.RemoveAll(fmt.Sprintf("%s.corrupt-%d", dir, numbers[0])); err != nil {
			return "", fmt.Errorf("remove an old corrupt store: %w", err)
		}
		numbers = numbers[1:]
	}
	aside := fmt.Sprintf("%s.corrupt-%d", dir, next)
	if err := os.Rename(dir, aside); err != nil {
		return "", fmt.Errorf("move a corrupt store aside: %w", err)
	}
	return aside, nil
}

// Append copies b into the queue; it is stored in the order of the calls. It waits for room while the disk makes
// progress, else it returns ErrStalled at once and b is not taken. A batch that was taken before is refused
// silently and counted: it is stored already.
func (s *Spool) Append(b *pipeline.Batch) error {
	repeated := false
	n, err := s.queue.put(b, func() bool {
		repeated = s.positions.accept(b.Stream.Input, b.Stream.ID, b.From, b.To)
		return !repeated
	})
	switch {
	case errors.Is(err, ErrStalled):
		s.m.stalls.Inc()
		return err
	case err != nil:
		return err
	case repeated:
		s.m.repeatedLines.Add(float64(len(b.Entries)))
		return nil
	}
	s.m.appendedBytes.Add(float64(n))
	s.m.appendedLines.Add(float64(len(b.Entries)))
	return nil
}

// Position tells up to which offset a stream's lines are on disk.
func (s *Spool) Position(streamID string) (int64, bool) { return s.positions.get(streamID) }

// Ended tells whether the last batch of a stream was stored.
func (s *Spool) Ended(streamID string) bool { return s.positions.ended(streamID) }

// Anchor tells what stands right before the offset that Position gives; 0: not known.
func (s *Spool) Anchor(streamID string) pipeline.Anchor { return s.positions.anchor(streamID) }

// Stored tells when something of an input was last stored; before the first of this process, when the last message was
// that the store held when it was opened, whosever it was. Zero: there was none.
func (s *Spool) Stored(input string) time.Time {
	if at := s.positions.storedAt(input); !at.IsZero() {
		return at
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.before
}

// Streams lists the streams of an input whose position is known, sorted; "" those of all.
func (s *Spool) Streams(input string) []string { return s.positions.list(input) }

// Flush waits until everything that was appended before is on disk, but not for a disk that was never open.
func (s *Spool) Flush(ctx context.Context) error {
	for {
		if !s.current().opened {
			return fmt.Errorf("flush the spool: %w", ErrNotOpen)
		}
		s.queue.flush()
		empty, moved := s.queue.empty()
		if empty {
			return nil
		}
		select {
		case <-moved:
		case <-s.done:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("flush the spool: %w", ctx.Err())
		}
	}
}

// Close stores what is queued, writes the positions and gives the directory back. When ctx ends first, what is
// still queued is counted as dropped. Append must not be called any more.
func (s *Spool) Close(ctx context.Context) error {
	s.closing.Do(func() {
		s.queue.close()
		select {
		case <-s.done:
		case <-ctx.Done():
			s.err = fmt.Errorf("close the spool: %w", ctx.Err())
		}
		s.stop()
		<-s.done
		s.mu.Lock()
		st := s.st
		s.st = nil
		s.signal()
		s.mu.Unlock()
		if st != nil {
			st.close()
		}
		s.err = errors.Join(s.err, s.leave())
	})
	return s.err
}

// signal wakes those who wait for messages. The caller holds mu.
func (s *Spool) signal() {
	close(s.stored)
	s.stored = make(chan struct{})
}

// A view is what the spool holds at one moment.
type view struct {
	st      *store
	opened  bool
	last    uint64
	epoch   int
	total   place
	changed <-chan struct{} // closed when there is more to see
}

func (s *Spool) current() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return view{s.st, s.opened, s.last, s.epoch, s.total, s.stored}
}

// waiting tells how many lines are queued, or stored and not dealt with by a consumer.
func (s *Spool) waiting() float64 {
	n := s.queue.waiting()
	for _, c := range s.readers() {
		n += c.Waiting()
	}
	return float64(n)
}

func (s *Spool) readers() []*Consumer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.consumers))
}

// removed notes that what was stored before to is gone. Lost is what consumers had not read; where there are none
// the limits are the retention that was asked for.
func (s *Spool) removed(to place, reason string) {
	s.mu.Lock()
	lines, bytes := to.lines-s.first.lines, to.bytes-s.first.bytes
	if lines > 0 {
		s.first = to
	}
	s.mu.Unlock()
	consumers := s.readers()
	if len(consumers) == 0 && reason != dropLimit && lines > 0 {
		s.m.recoveredLines.Add(float64(lines)) // they were counted as kept
		s.m.lose(reason, lines, bytes)
	}
	for _, c := range consumers {
		c.pass(to, reason)
		c.mu.Lock()
		b := c.backlog
		c.mu.Unlock()
		if b != nil {
			b.pass(to, reason)
		}
	}
}

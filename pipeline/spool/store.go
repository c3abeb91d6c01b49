package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/squall-sre/squall/pipeline"
)

const (
	streamLines     = "LINES"
	streamPositions = "POSITIONS"
	subjectLines    = "lines"
	subjectPosition = "positions"

	// checkpoints is how many checkpoints of the positions are kept: when the last messages of LINES turn out
	// to be torn, an older one holds.
	checkpoints = 16

	// The publisher is alone, so that repeats come only from its own retries, which are seconds apart.
	duplicateWindow = 10 * time.Second

	startTimeout   = 60 * time.Second // a store of many GiB whose index is gone is read through
	requestTimeout = 10 * time.Second
)

// errCorrupt says that the files of the store cannot be opened by a server that is otherwise well.
var errCorrupt = errors.New("the store's files cannot be opened")

// A store is one run of the embedded server. After a failed write JetStream refuses everything until it is
// started anew; the spool then closes this store and opens another.
type store struct {
	dir   string
	srv   *server.Server
	conn  *nats.Conn
	js    jetstream.JetStream
	lines jetstream.Stream
	marks jetstream.Stream

	mu      sync.Mutex
	buckets map[string]jetstream.KeyValue // that were opened: to ask for one costs more than to put a value

	failed chan error // holds one when a write failed: JetStream then gives no answers to those who wait
	causes *serverLog // the server's answers often do not say why
}

func openStore(ctx context.Context, c *Config) (*store, error) {
	dir := filepath.Join(c.Dir, "store")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the spool's directory: %w", err)
	}
	// Whether there was a stream: when its files are there and JetStream does not know it, they are corrupt.
	_, statErr := os.Stat(filepath.Join(dir, "jetstream", "$G", "streams", streamLines))
	s := &store{dir: dir, failed: make(chan error, 1), buckets: map[string]jetstream.KeyValue{}}
	if err := s.start(ctx, c.Log); err != nil {
		return nil, err
	}
	if err := s.connect(ctx, c, statErr == nil); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *store) start(ctx context.Context, log *zap.Logger) error {
	srv, err := server.NewServer(&server.Options{
		ServerName: "squall-spool", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: s.dir, SyncAlways: true,
		// Each stream has its own limit; the account's must not be in their way.
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 1 << 60,
		MaxPayload: maxMessage, MaxPending: 8 * maxMessage, DisableJetStreamBanner: true,
	})
	if err != nil {
		return fmt.Errorf("make the embedded JetStream server: %w", err)
	}
	adapter := &serverLog{log: log, limit: rate.NewLimiter(1, 10), fatal: make(chan string, 1), failed: s.failed}
	s.causes = adapter
	srv.SetLoggerV2(adapter, false, false, false)
	started := make(chan struct{})
	go func() { defer close(started); srv.Start() }()
	select {
	case <-started:
	case <-ctx.Done():
		<-started // recovery cannot be cancelled
		err = ctx.Err()
	}
	select {
	case reason := <-adapter.fatal:
		err = fmt.Errorf("start the embedded JetStream server: %s: %w", reason, errCorrupt)
	default:
		if err == nil && !srv.ReadyForConnections(startTimeout) {
			err = fmt.Errorf("start the embedded JetStream server: not ready after %s", startTimeout)
		}
	}
	if err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return err
	}
	s.srv = srv
	return nil
}

func (s *store) connect(ctx context.Context, c *Config, existed bool) (err error) {
	s.conn, err = nats.Connect("", nats.InProcessServer(s.srv), nats.MaxReconnects(0), nats.NoReconnect())
	if err != nil {
		return fmt.Errorf("connect to the embedded server: %w", err)
	}
	s.js, err = jetstream.New(s.conn, jetstream.WithDefaultTimeout(requestTimeout), jetstream.WithPublishAsyncMaxPending(2*window))
	if err != nil {
		return fmt.Errorf("connect to the embedded server: %w", err)
	}
	if _, err := s.js.Stream(ctx, streamLines); errors.Is(err, jetstream.ErrStreamNotFound) && existed {
		return fmt.Errorf("stream %s was not recovered: %w", streamLines, errCorrupt)
	}
	s.lines, err = s.stream(ctx, c.Log, jetstream.StreamConfig{
		Name: streamLines, Subjects: []string{subjectLines},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage,
		MaxBytes: c.MaxBytes, MaxAge: c.MaxAge, Duplicates: min(duplicateWindow, c.MaxAge), AllowDirect: true,
	})
	if err != nil {
		return s.opened(fmt.Errorf("open the stream %s: %w", streamLines, err))
	}
	s.marks, err = s.stream(ctx, c.Log, jetstream.StreamConfig{
		Name: streamPositions, Subjects: []string{subjectPosition}, MaxMsgs: checkpoints,
		Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage, AllowDirect: true,
	})
	if err != nil {
		return s.opened(fmt.Errorf("open the stream %s: %w", streamPositions, err))
	}
	return nil
}

// stream opens a stream. One that is there is changed only where it must be, and when the disk has no room for that
// it stays as it is.
func (s *store) stream(ctx context.Context, log *zap.Logger, want jetstream.StreamConfig) (jetstream.Stream, error) {
	there, err := s.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.js.CreateStream(ctx, want)
	}
	if err != nil {
		return nil, err
	}
	has := there.CachedInfo().Config
	if has.MaxBytes == cmp.Or(want.MaxBytes, -1) && has.MaxMsgs == cmp.Or(want.MaxMsgs, -1) && has.MaxAge == want.MaxAge &&
		(has.Duplicates == want.Duplicates || want.Duplicates == 0) {
		return there, nil
	}
	changed, err := s.js.UpdateStream(ctx, want)
	if isFull(err) {
		log.Warn("the disk is full: the spool keeps its old limits", zap.String("stream", want.Name), zap.Error(err))
		return there, nil
	}
	return changed, err
}

// opened marks an error of opening as one of the files, with what the server said meanwhile.
func (s *store) opened(err error) error {
	if text := s.causes.last.Load(); text != nil {
		return fmt.Errorf("%w: %s: %w", err, *text, errCorrupt)
	}
	return fmt.Errorf("%w: %w", err, errCorrupt)
}

// isCorrupt tells that err speaks of the files, and not of a full disk, of rights, of limits or of a cancelled
// start: moving a good store aside would lose it.
func isCorrupt(err error) bool {
	if !errors.Is(err, errCorrupt) || isUnwritable(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	for _, sign := range []string{"permission denied", "too many open files", "cannot allocate memory"} {
		if strings.Contains(err.Error(), sign) {
			return false
		}
	}
	return true
}

// exists tells that the files of LINES lie where they were opened. JetStream would go on to write into what was
// deleted.
func (s *store) exists() bool {
	_, err := os.Stat(filepath.Join(s.dir, "jetstream", "$G", "streams", streamLines, "msgs"))
	return !errors.Is(err, os.ErrNotExist)
}

func (s *store) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}

// last gives the sequence of the last message of LINES, and state the whole.
func (s *store) state(ctx context.Context) (jetstream.StreamState, error) {
	info, err := s.lines.Info(ctx)
	if err != nil {
		return jetstream.StreamState{}, fmt.Errorf("ask for the state of %s: %w", streamLines, err)
	}
	return info.State, nil
}

// at gives the first message of LINES whose sequence is seq or higher.
func (s *store) at(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
	return s.lines.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subjectLines))
}

// bucket opens a bucket once.
func (s *store) bucket(ctx context.Context, name string, create bool) (jetstream.KeyValue, error) {
	s.mu.Lock()
	b := s.buckets[name]
	s.mu.Unlock()
	if b != nil {
		return b, nil
	}
	b, err := s.js.KeyValue(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) && create {
		b, err = s.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: name, History: 1, Storage: jetstream.FileStorage})
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.buckets[name] = b
	s.mu.Unlock()
	return b, nil
}

// isFull tells an error of a full disk or an exhausted quota; JetStream hands on only the words.
func isFull(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	for _, sign := range []string{"no space left", "quota exceeded", "file too large", "insufficient", "out of space"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// isUnwritable tells an error of a disk that takes nothing now: it is full, read-only or broken.
func isUnwritable(err error) bool {
	return err != nil && (isFull(err) || strings.Contains(err.Error(), "read-only file system") || strings.Contains(err.Error(), "input/output error"))
}

// serverLog hands the server's warnings to zap, at most one a second.
type serverLog struct {
	log   *zap.Logger
	limit *rate.Limiter
	fatal chan string

	failed chan<- error
	last   atomic.Pointer[string] // what it said last
}

func (l *serverLog) Noticef(string, ...any) {}
func (l *serverLog) Debugf(string, ...any)  {}
func (l *serverLog) Tracef(string, ...any)  {}

func (l *serverLog) Warnf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.last.Store(&text)
	if l.limit.Allow() {
		l.log.Warn("JetStream warns", zap.String("text", text))
	}
}

func (l *serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.last.Store(&text)
	// The server tells whoever waits for an answer nothing; its log is the only place that says so.
	if strings.Contains(text, "ritical write error") || strings.Contains(text, "failed to store a msg") || strings.Contains(text, "out of resources") {
		select {
		case l.failed <- errors.New(text):
		default:
		}
	}
	if l.limit.Allow() {
		l.log.Error("JetStream reports an error", zap.String("text", text))
	}
}

// Fatalf is how the server says that it cannot start; startServer makes it an error.
func (l *serverLog) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}

var _ pipeline.Store = (*Spool)(nil)
var _ pipeline.Positions = (*Spool)(nil)

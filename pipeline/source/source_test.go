package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A spool keeps what a source emits, as the real one does, and checks the contract of Emit on the way.
type spool struct {
	t     *testing.T
	block chan struct{} // when set, emit waits for it or for ctx

	mu      sync.Mutex
	streams map[string]*kept
	order   []string  // stream IDs by their first Block
	lines   []string  // of all streams, in order of arrival
	at      time.Time // when the last block came
}

type kept struct {
	input  string
	path   string
	to     int64
	last   bool
	anchor pipeline.Anchor
	lines  []string
	skips  []pipeline.Skip
	blocks int
}

func newSpool(t *testing.T) *spool { return &spool{t: t, streams: map[string]*kept{}} }

func (s *spool) emit(ctx context.Context) pipeline.Emit {
	return func(b *pipeline.Block) error {
		s.mu.Lock()
		block := s.block
		s.mu.Unlock()
		if block != nil {
			select {
			case <-block:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return s.keep(b)
	}
}

// hold makes the road full until until is closed.
func (s *spool) hold(until chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.block = until
}

func (s *spool) keep(b *pipeline.Block) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.streams[b.Stream.ID]
	if k == nil {
		k = &kept{input: b.Stream.Input, path: b.Stream.Path, to: b.From}
		s.streams[b.Stream.ID] = k
		s.order = append(s.order, b.Stream.ID)
	}
	var skipped int64
	for _, skip := range b.Skips {
		skipped += max(0, skip.Bytes)
	}
	switch {
	case b.From != k.to:
		s.t.Errorf("%s: a block begins at %d, the last ended at %d", b.Stream.ID, b.From, k.to)
	case b.To != b.From+int64(len(b.Data))+skipped:
		s.t.Errorf("%s: block %d–%d holds %d bytes and skips %d", b.Stream.ID, b.From, b.To, len(b.Data), skipped)
	case len(b.Data) > blockSize:
		s.t.Errorf("%s: a block of %d bytes", b.Stream.ID, len(b.Data))
	case len(b.Data) > 0 && !b.Last && b.Data[len(b.Data)-1] != '\n':
		s.t.Errorf("%s: a block ends in half a line", b.Stream.ID)
	}
	if b.Anchor != 0 || b.To != k.to {
		k.anchor = b.Anchor
	}
	k.to, k.last, s.at = b.To, b.Last, time.Now()
	k.blocks++
	k.skips = append(k.skips, b.Skips...)
	for line := range strings.Lines(string(b.Data)) {
		line = strings.TrimSuffix(line, "\n")
		k.lines = append(k.lines, line)
		s.lines = append(s.lines, line)
	}
	return nil
}

// Position implements pipeline.Positions.
func (s *spool) Position(id string) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.streams[id]
	if k == nil {
		return 0, false
	}
	return k.to, true
}

// Ended implements pipeline.Positions.
func (s *spool) Ended(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[id] != nil && s.streams[id].last
}

// Anchor implements pipeline.Positions.
func (s *spool) Anchor(id string) pipeline.Anchor {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.streams[id]; k != nil {
		return k.anchor
	}
	return 0
}

// Stored implements pipeline.Positions.
func (s *spool) Stored(string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// Streams implements pipeline.Positions.
func (s *spool) Streams(input string) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(slices.Values(s.order)) {
		if input == "" || s.streams[id].input == input {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s *spool) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

func (s *spool) skips() (skips []pipeline.Skip) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.order {
		skips = append(skips, s.streams[id].skips...)
	}
	return skips
}

func (s *spool) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lines)
}

func (s *spool) ended() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.streams {
		if k.last {
			n++
		}
	}
	return n
}

// want waits for lines and demands exactly these, in this order.
func (s *spool) want(lines []string) {
	s.t.Helper()
	until(s.t, func() bool { return s.count() >= len(lines) }, func() string {
		return fmt.Sprintf("%d of %d lines", s.count(), len(lines))
	})
	got := s.all()
	for i := range min(len(got), len(lines)) {
		if got[i] != lines[i] {
			s.t.Fatalf("line %d is %.120q, want %.120q (%d lines, want %d)", i, got[i], lines[i], len(got), len(lines))
		}
	}
	if len(got) != len(lines) {
		s.t.Fatalf("%d lines, want %d", len(got), len(lines))
	}
}

// wantSet is want for lines that come from several files at a time: every line once, in the order of each file.
func (s *spool) wantSet(lines []string) {
	s.t.Helper()
	until(s.t, func() bool { return s.count() >= len(lines) }, func() string {
		return fmt.Sprintf("%d of %d lines", s.count(), len(lines))
	})
	got := slices.Sorted(slices.Values(s.all()))
	if want := slices.Sorted(slices.Values(lines)); !slices.Equal(got, want) {
		s.t.Fatalf("%d lines, want %d, not the same", len(got), len(want))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, k := range s.streams {
		if !slices.IsSorted(k.lines) {
			s.t.Fatalf("stream %s is not in order", id)
		}
	}
}

const deadline = 30 * time.Second

func until(t *testing.T, ok func() bool, what func() string) {
	t.Helper()
	end := time.After(deadline)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end:
			t.Fatalf("waited %s: %s", deadline, what())
		case <-tick.C:
		}
	}
}

func testRuntime() Runtime {
	return Runtime{
		Name: "test", Logger: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry()),
		Now: time.Now, Poll: 20 * time.Millisecond,
	}
}

func testConfig(paths ...string) fileConfig {
	return fileConfig{
		Common: Common{Name: "test", Type: "file"}, Paths: paths,
		From: "start", Quiet: 600 * time.Millisecond, MaxFiles: 512,
	}
}

// run starts the source and gives a function that stops it and waits for it.
func run(t *testing.T, f *files, s *spool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, s, s.emit(ctx)) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func start(t *testing.T, s *spool, paths ...string) (f *files, stop func()) {
	t.Helper()
	f = newFiles(testConfig(paths...), testRuntime(), nil)
	return f, run(t, f, s)
}

// number gives lines n..m-1, each different, as long as log lines are, and sorted.
func number(n, m int) []string {
	lines := make([]string, 0, m-n)
	for i := n; i < m; i++ {
		lines = append(lines, fmt.Sprintf("%08d 192.0.2.%d HEAD /checkout/%d %s", i, i%250, i, strings.Repeat("x", i%173)))
	}
	return lines
}

func text(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

func write(t *testing.T, path, s string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
}

func appendTo(t *testing.T, path, s string) {
	t.Helper()
	w := opened(t, path)
	defer w.Close()
	put(t, w, s)
}

func opened(t *testing.T, path string) *os.File {
	t.Helper()
	w, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func put(t *testing.T, w *os.File, s string) {
	t.Helper()
	if _, err := w.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func logPath(t *testing.T) string { return filepath.Join(t.TempDir(), "access.log") }

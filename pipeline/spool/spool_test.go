package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/pipeline"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("SPOOL_TEST_CHILD"); dir != "" {
		appendForEver(dir)
	}
	goleak.VerifyTestMain(m)
}

// open opens a spool that the test's end closes.
func open(t testing.TB, cfg Config) *Spool {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
		if t, ok := t.(*testing.T); ok {
			cfg.Log = zaptest.NewLogger(t)
		}
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { closeSpool(t, s) })
	return s
}

func closeSpool(t testing.TB, s *Spool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func flush(t testing.TB, s *Spool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Flush(ctx); err != nil {
		t.Fatalf("flush: %v", err)
	}
}

const eventStart = 1_795_995_463_000_000_000

// batch makes n lines of a stream, starting at offset from; all follows from its arguments.
func batch(id string, from int64, n int) *pipeline.Batch {
	b := &pipeline.Batch{
		Stream: &pipeline.Stream{
			Input: "balancer", ID: id, Path: "/var/log/nginx/" + id + ".log", Labels: map[string]string{"role": "lb", "dc": "1"},
			Namespace: "web",
		},
		From: from, Lines: n,
	}
	at := from
	for i := range n {
		line := fmt.Sprintf(`203.0.113.%d - - "HEAD /checkout/%d HTTP/1.1" 200 0 "-" "scanner" id=%s at=%d`, i%250, i, id, at)
		e := pipeline.Entry{
			Time: pipeline.EntryTime(eventStart+at*1e6, 1e9, at, 0), Line: []byte(line), Kind: pipeline.IsRecord,
			Site: "shop.example", Route: "/checkout/{int}", Method: []byte("HEAD"), Status: 200, RequestTime: 1_500_000,
			Class: pipeline.Scanner, Origin: pipeline.Own, Abandoned: pipeline.Yes,
		}
		if i%10 == 9 {
			e = pipeline.Entry{Time: e.Time, Line: e.Line, Reason: pipeline.ReasonMalformed, RequestTime: pipeline.Unknown}
		}
		b.Entries = append(b.Entries, e)
		at += int64(len(line)) + 1
	}
	b.To = at
	return b
}

// read gives all stored batches; adjacent ones of the same stream stay apart.
func read(t testing.TB, s *Spool, r Range) []*pipeline.Batch {
	t.Helper()
	var got []*pipeline.Batch
	if err := s.Read(t.Context(), r, func(b *pipeline.Batch) error { got = append(got, b); return nil }); err != nil {
		t.Fatalf("read: %v", err)
	}
	return got
}

func mustAppend(t testing.TB, s *Spool, b *pipeline.Batch) {
	t.Helper()
	if err := s.Append(b); err != nil {
		t.Fatalf("append %s from %d: %v", b.Stream.ID, b.From, err)
	}
}

func TestStoredBatchesAreReadBack(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := open(t, Config{Registerer: reg})
	var want []*pipeline.Batch
	at := map[string]int64{}
	for i := range 40 {
		id := fmt.Sprintf("stream-%d", i%3)
		b := batch(id, at[id], 1+i)
		if i == 20 {
			b.Skips = []pipeline.Skip{{At: 7, Bytes: pipeline.Unknown, Reason: pipeline.SkipTruncated, Lost: true}}
			b.Last = true
		}
		at[id] = b.To
		want = append(want, b)
		mustAppend(t, s, b)
	}
	flush(t, s)
	if diff := cmp.Diff(want, read(t, s, Range{})); diff != "" {
		t.Errorf("what was read differs from what was appended (-want +got):\n%s", diff)
	}
	for id, offset := range at {
		if got, ok := s.Position(id); !ok || got != offset {
			t.Errorf("position of %s: got %d %v, want %d", id, got, ok, offset)
		}
	}
	if got := s.Streams("balancer"); !slices.Equal(got, []string{"stream-0", "stream-1", "stream-2"}) {
		t.Errorf("streams: %v", got)
	}
	if got := s.Streams("other"); got != nil {
		t.Errorf("streams of an unknown input: %v", got)
	}
	if n := testutil.ToFloat64(s.m.appendedLines); n != testutil.ToFloat64(s.m.storedLines) || n == 0 {
		t.Errorf("appended %v lines, stored %v", n, testutil.ToFloat64(s.m.storedLines))
	}
	if n := testutil.ToFloat64(s.m.storedBytes); n == 0 || n >= testutil.ToFloat64(s.m.appendedBytes) {
		t.Errorf("stored %v bytes of %v: nothing was compressed", n, testutil.ToFloat64(s.m.appendedBytes))
	}
}

// Small batches share a message: with a sync for each, thousands of files would stand in line for the disk.
func TestSmallBatchesShareAMessage(t *testing.T) {
	s := open(t, Config{})
	const streams = 300
	for i := range streams {
		mustAppend(t, s, batch(fmt.Sprintf("file-%d", i), 0, 2))
	}
	flush(t, s)
	if last := s.current().last; last > 5 {
		t.Errorf("%d batches took %d messages", streams, last)
	}
	if n := len(s.Streams("balancer")); n != streams {
		t.Errorf("%d positions of %d", n, streams)
	}
}

func TestRepeatsAreRefused(t *testing.T) {
	s := open(t, Config{})
	first := batch("a", 0, 10)
	second := batch("a", first.To, 10)
	for _, b := range []*pipeline.Batch{first, second, first, second} {
		mustAppend(t, s, b)
	}
	flush(t, s)
	mustAppend(t, s, second)
	end := &pipeline.Batch{Stream: second.Stream, From: second.To, To: second.To, Last: true}
	mustAppend(t, s, end)
	flush(t, s)
	if diff := cmp.Diff([]*pipeline.Batch{first, second, end}, read(t, s, Range{})); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	if n := testutil.ToFloat64(s.m.repeatedLines); n != 30 {
		t.Errorf("%v lines counted as repeated, want 30", n)
	}
}

// A batch over the size of a message is stored in parts; only the last part moves the position.
func TestLargeBatchIsSplit(t *testing.T) {
	s := open(t, Config{})
	random := rand.NewChaCha8([32]byte{1})
	b := &pipeline.Batch{Stream: batch("a", 0, 0).Stream, To: 1 << 20, Lines: 60, Last: true}
	for i := range 60 {
		line := make([]byte, pipeline.MaxLine)
		_, _ = random.Read(line)
		b.Entries = append(b.Entries, pipeline.Entry{Time: eventStart + int64(i), Line: line, Kind: pipeline.IsRecord})
	}
	mustAppend(t, s, b)
	flush(t, s)
	got := read(t, s, Range{})
	if len(got) < 3 {
		t.Fatalf("15 MiB that cannot be compressed took %d messages", len(got))
	}
	var entries []pipeline.Entry
	for i, part := range got {
		if whole := i == len(got)-1; whole != (part.To == b.To) || whole != part.Last || part.From != 0 {
			t.Errorf("part %d of %d: from %d to %d, last %v", i, len(got), part.From, part.To, part.Last)
		}
		entries = append(entries, part.Entries...)
	}
	if !slices.EqualFunc(entries, b.Entries, func(a, b pipeline.Entry) bool {
		return a.Time == b.Time && bytes.Equal(a.Line, b.Line)
	}) {
		t.Error("the parts together differ from the batch")
	}
}

func TestReadFrom(t *testing.T) {
	s := open(t, Config{})
	var bounds []time.Time
	var batches []*pipeline.Batch
	at := int64(0)
	for range 6 {
		bounds = append(bounds, time.Now())
		b := batch("a", at, 50)
		for i := range b.Entries { // lines of the last minutes
			b.Entries[i].Time += time.Now().Add(-5*time.Minute).Truncate(time.Minute).UnixNano() - eventStart
		}
		at = b.To
		batches = append(batches, b)
		mustAppend(t, s, b)
		flush(t, s)
	}
	if got := read(t, s, Range{Stored: bounds[3]}); !cmp.Equal(got, batches[3:]) {
		t.Errorf("by time of storing: %d batches, want 3", len(got))
	}
	if got := read(t, s, Range{Sequence: 5}); !cmp.Equal(got, batches[4:]) {
		t.Errorf("by sequence: %d batches, want 2", len(got))
	}
	if got := read(t, s, Range{Events: batches[2].Entries[49].Time}); !cmp.Equal(got, batches[2:]) {
		t.Errorf("by event time: %d batches, want 4", len(got))
	}
	if got := read(t, s, Range{Events: time.Now().Add(time.Hour).UnixNano()}); len(got) != 0 {
		t.Errorf("by an event time that is to come: %d batches", len(got))
	}
	stop := errors.New("enough")
	n := 0
	err := s.Read(t.Context(), Range{}, func(*pipeline.Batch) error { n++; return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Errorf("read went on after an error: %d calls, %v", n, err)
	}
}

func TestLimitsDropTheOldest(t *testing.T) {
	s := open(t, Config{MaxBytes: 1 << 20})
	c, err := s.Consumer(t.Context(), "loki")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	random := rand.NewChaCha8([32]byte{2})
	stream := batch("a", 0, 0).Stream
	const n = 64
	for i := range int64(n) {
		line := make([]byte, 64<<10)
		_, _ = random.Read(line)
		mustAppend(t, s, &pipeline.Batch{Stream: stream, From: i, To: i + 1, Entries: []pipeline.Entry{{Time: i, Line: line}}})
	}
	flush(t, s)
	got := read(t, s, Range{})
	if len(got) == 0 || len(got) > 16 || got[len(got)-1].To != n {
		t.Fatalf("%d batches of 64 KiB are kept in 1 MiB", len(got))
	}
	if to, ok := s.Position("a"); !ok || to != n {
		t.Errorf("position %d %v, want %d", to, ok, n)
	}
	d, err := c.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(n - len(got)); d.Missed != want {
		t.Errorf("the consumer missed %d lines, want %d", d.Missed, want)
	}
}

func TestDirectoryBelongsToOneProcess(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	_, err := Open(t.Context(), Config{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", os.Getpid())) {
		t.Errorf("a second spool in the same directory: %v", err)
	}
	closeSpool(t, s)
	if err := s.Append(batch("a", 0, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	open(t, Config{Dir: dir})
}

func TestBadConfiguration(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no directory": {}, "negative": {Dir: t.TempDir(), MaxBytes: -1}, "short": {Dir: t.TempDir(), MaxAge: time.Millisecond},
	} {
		if s, err := Open(t.Context(), cfg); err == nil {
			closeSpool(t, s)
			t.Errorf("%s: no error", name)
		}
	}
}

func TestKV(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	kv, err := s.KV(t.Context(), "baselines")
	if err != nil {
		t.Fatal(err)
	}
	hostile := "shop.example|HEAD|/a b/*.>\x00\xff"
	for _, key := range []string{hostile, "b", "c"} {
		if err := kv.Put(t.Context(), key, []byte("value of "+key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := kv.Delete(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if err := kv.Put(t.Context(), "", nil); err == nil {
		t.Error("an empty key was taken")
	}
	closeSpool(t, s)
	s = open(t, Config{Dir: dir})
	if kv, err = s.KV(t.Context(), "baselines"); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := kv.Get(t.Context(), hostile); err != nil || !ok || string(v) != "value of "+hostile {
		t.Errorf("after a restart: %q %v %v", v, ok, err)
	}
	if _, ok, err := kv.Get(t.Context(), "c"); err != nil || ok {
		t.Errorf("a deleted key: %v %v", ok, err)
	}
	if keys, err := kv.Keys(t.Context()); err != nil || !slices.Equal(keys, []string{"b", hostile}) {
		t.Errorf("keys: %q %v", keys, err)
	}
}

func BenchmarkStore(b *testing.B) {
	s := open(b, Config{Log: zap.NewNop()})
	const lines = 5000
	blk := batch("a", 0, lines)
	size := blk.To
	b.SetBytes(size)
	b.ReportAllocs()
	begin := cpu(b)
	for b.Loop() {
		mustAppend(b, s, blk)
		blk.From, blk.To = blk.To, blk.To+size
	}
	flush(b, s)
	b.ReportMetric(float64(cpu(b)-begin)/float64(b.N*lines), "cpu-ns/line")
}

// cpu gives the processor time of this process, ns.
func cpu(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func BenchmarkAppend(b *testing.B) {
	blk := batch("a", 0, 5000)
	f := newFrame(0, nil)
	b.SetBytes(blk.To)
	for b.Loop() {
		f.body = f.body[:0]
		f.add(blk, 0, len(blk.Entries), false)
		f.marks = f.marks[:0]
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*5000), "ns/line")
}

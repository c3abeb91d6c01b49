package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/spool"
)

// A minutes is a log of a few minutes with one storm in it, and the transcript of its replay in order.
type minutes struct {
	log   []byte
	lines [][]byte // with their ends
	times []int64  // ns, of the lines
	want  string   // the alerts' transitions
	last  int64    // ns: event time of the last of them
}

// stormOfMinutes is a storm whose alerts begin and end a while before the log does.
func stormOfMinutes(t testing.TB) *minutes {
	t.Helper()
	s := scenario(t, "demo")
	s.Duration = 10 * time.Minute
	s.Sites = slices.Clone(s.Sites)
	s.Sites[0].Storms = slices.Clone(s.Sites[0].Storms)
	storm := &s.Sites[0].Storms[0]
	storm.At, storm.For, storm.Count = 2*time.Minute, 100*time.Second, 3400
	var log bytes.Buffer
	if _, err := simulate.Run(t.Context(), simulate.Options{Scenario: s, Format: "nginx_extended", Seed: 5}, &log); err != nil {
		t.Fatal(err)
	}
	m := &minutes{log: log.Bytes()}
	for line := range bytes.Lines(m.log) {
		m.lines, m.times = append(m.lines, line), append(m.times, lineTime(t, line))
	}
	r := newRecorder()
	m.want = r.replay(t, placeLog(t, t.TempDir(), "access.log", m.log))
	m.last = r.last
	began, ended := strings.Count(m.want, `"state":"firing"`), strings.Count(m.want, `"state":"resolved"`)
	if began < 4 || began != ended || m.last > m.times[len(m.times)-1]-int64(70*time.Second) {
		t.Fatalf("the storm should begin and end four alerts before the log's last minute: %s", m.want)
	}
	return m
}

// lineTime is the msec of a line.
func lineTime(t testing.TB, line []byte) int64 {
	t.Helper()
	_, rest, found := bytes.Cut(line, []byte(" msec="))
	text, _, _ := bytes.Cut(rest, []byte(" "))
	ms, err := strconv.ParseInt(strings.Replace(string(text), ".", "", 1), 10, 64)
	if !found || err != nil {
		t.Fatalf("no time in %s", line)
	}
	return ms * int64(time.Millisecond)
}

func placeLog(t testing.TB, dir, name string, log []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, log, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A recorder writes down the alerts' transitions, as replay --json does.
type recorder struct {
	text []byte
	last int64      // ns: of the last transition
	at   int64      // ns: of the last pane
	seen chan int64 // nil: nobody waits
}

func newRecorder() *recorder { return &recorder{} }

func (r *recorder) settled(res *detectors.Result, transitions []alerts.Alert) {
	for i := range transitions {
		r.text = alerts.AppendJSON(r.text, &transitions[i])
		r.last = transitions[i].At
	}
	r.at = res.At
}

// minutesConfig is the configuration of all runs here.
func minutesConfig(t testing.TB, source string) *Config {
	t.Helper()
	path := placeLog(t, t.TempDir(), "squall.yaml", []byte("site_defaults: {pool: {workers: 25}}\nsources: ["+source+"]\nnotify: [{type: stdout}]\n"))
	c, err := loadConfig(path, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const anySource = "{type: stdin}"

// replayer makes a replay of which the transitions are recorded.
func (r *recorder) replayer(t testing.TB) *replayer {
	t.Helper()
	rep, err := newReplayer(minutesConfig(t, anySource), formatChoice{name: "auto"}, "", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	rep.judge.settled = r.settled
	return rep
}

func (r *recorder) replay(t testing.TB, paths ...string) string {
	t.Helper()
	rep := r.replayer(t)
	if err := rep.run(t.Context(), paths, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	return string(r.text)
}

// same fails with the first line that differs.
func same(t testing.TB, how, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	g, w := strings.SplitAfter(got, "\n"), strings.SplitAfter(want, "\n")
	for i := range max(len(g), len(w)) {
		a, b := "nothing\n", "nothing\n"
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			t.Fatalf("%s: transition %d of %d and %d differs:\n%s\n%s", how, i, len(g), len(w), a, b)
		}
	}
}

// tries is how often a random choice is made anew.
func tries(t *testing.T, n int) func(*testing.T, func(*rapid.T)) {
	if testing.Short() {
		n = (n + 2) / 3
	}
	return func(t *testing.T, property func(*rapid.T)) {
		t.Helper()
		done := 0
		rapid.Check(t, func(rt *rapid.T) {
			if done++; done <= n || rt.Failed() {
				property(rt)
			}
		})
	}
}

// TestOrderOfFilesAndLines: the same lines give the same alerts, shuffled within the lateness, spread over files
// in any order, some of them twice and some of them packed.
func TestOrderOfFilesAndLines(t *testing.T) {
	m := stormOfMinutes(t)
	tries(t, 10)(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		late := rapid.SampledFrom([]time.Duration{0, time.Second, 4900 * time.Millisecond}).Draw(rt, "late")
		n := rapid.IntRange(1, 8).Draw(rt, "files")
		files := make([][]byte, n)
		for _, i := range m.shuffled(late, rng) {
			at := rng.IntN(n)
			files[at] = append(files[at], m.lines[i]...)
		}
		dir := t.TempDir()
		var paths []string
		for i, data := range files {
			switch pack := rapid.SampledFrom([]string{"", "", ".gz", ".zst"}).Draw(rt, "packed"); pack {
			case ".gz":
				paths = append(paths, placeLog(t, dir, fmt.Sprintf("%d.gz", i), gzipped(t, data)))
			case ".zst":
				paths = append(paths, placeLog(t, dir, fmt.Sprintf("%d.zst", i), zstandard(t, data)))
			default:
				paths = append(paths, placeLog(t, dir, fmt.Sprintf("%d.log", i), data))
			}
			if rapid.IntRange(0, 3).Draw(rt, "delivered") == 0 {
				packed, err := os.ReadFile(paths[len(paths)-1])
				if err != nil {
					t.Fatal(err)
				}
				paths = append(paths, placeLog(t, dir, fmt.Sprintf("again-%d", i), packed))
			}
		}
		rng.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
		before := runtime.GOMAXPROCS(rapid.IntRange(1, 8).Draw(rt, "procs"))
		defer runtime.GOMAXPROCS(before)
		same(t, fmt.Sprintf("%d files, %s late", n, late), newRecorder().replay(t, paths...), m.want)
	})
}

// shuffled orders the lines so that none comes after one that is newer by more than late.
func (m *minutes) shuffled(late time.Duration, rng *rand.Rand) []int {
	order, key := make([]int, len(m.lines)), make([]int64, len(m.lines))
	for i := range order {
		order[i], key[i] = i, m.times[i]+rng.Int64N(int64(late)+1)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(key[a], key[b]) })
	return order
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstandard(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

// TestRotatedPieces: a log cut into pieces by rotation is one log, in whatever order its pieces are named.
func TestRotatedPieces(t *testing.T) {
	m := stormOfMinutes(t)
	tries(t, 6)(t, func(rt *rapid.T) {
		dir := t.TempDir()
		cuts := rapid.SliceOfNDistinct(rapid.IntRange(1, len(m.lines)-1), 1, 6, rapid.ID).Draw(rt, "cuts")
		slices.Sort(cuts)
		var paths []string
		from := 0
		for i, to := range append(cuts, len(m.lines)) {
			name, data := fmt.Sprintf("access.log.%d", len(cuts)-i), bytes.Join(m.lines[from:to], nil)
			if i == len(cuts) {
				name = "access.log"
			} else if rapid.Bool().Draw(rt, "packed") {
				name, data = name+".gz", gzipped(t, data)
			}
			paths, from = append(paths, placeLog(t, dir, name, data)), to
		}
		if rapid.Bool().Draw(rt, "as a directory") {
			paths = []string{dir}
		}
		same(t, fmt.Sprint(cuts), newRecorder().replay(t, rapid.Permutation(paths).Draw(rt, "order")...), m.want)
	})
}

// TestBlocks: where a source cuts its blocks changes nothing.
func TestBlocks(t *testing.T) {
	m := stormOfMinutes(t)
	tries(t, 6)(t, func(rt *rapid.T) {
		c, r := minutesConfig(t, anySource), newRecorder()
		j, err := newJudge(c, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		j.settled = r.settled
		j.source("x", defaultLateness)
		chain, err := newChain(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		road := pipeline.NewRoad(pipeline.RoadConfig{
			Input: "x", Open: opener{format: formatChoice{name: "auto"}, zone: time.UTC}.open, Enricher: chain.For(""),
			Take: func(w *pipeline.Work) error { j.take(w); return nil },
		})
		most := rapid.SampledFrom([]int{1, 7, 300, 5000}).Draw(rt, "lines a block")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		stream := &pipeline.Stream{Input: "x", ID: "x", Path: "x"}
		offset := int64(0)
		for rest := m.lines; len(rest) > 0; {
			n := min(1+rng.IntN(most), len(rest))
			data := bytes.Join(rest[:n], nil)
			rest = rest[n:]
			to := offset + int64(len(data))
			if err := road.Emit(&pipeline.Block{Stream: stream, Data: data, From: offset, To: to, Last: len(rest) == 0}); err != nil {
				t.Fatal(err)
			}
			offset = to
		}
		j.panes.Flush()
		j.settle()
		same(t, fmt.Sprintf("blocks of up to %d lines", most), string(r.text), m.want)
	})
}

// lives is squall run without its web server: one service after another over the same spool.
type lives struct {
	dir      string
	recorder *recorder
	config   *Config
	stdin    io.Reader
	stopWhen func(*spool.Spool) bool // nil: never; asked again and again while a service runs
}

// watched is a recorder that tells how far the daemon is, to whoever waits, without ever waiting itself.
func watched() *recorder { return &recorder{seen: make(chan int64, 1)} }

func (r *recorder) tell(at int64) {
	if r.seen == nil {
		return
	}
	select {
	case <-r.seen:
	default:
	}
	r.seen <- at
}

// run runs a service until it has judged a pane that ends at or after until, or its inputs have ended.
func (d *lives) run(t testing.TB, until int64) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	store, err := spool.Open(ctx, spool.Config{Dir: d.dir})
	if err != nil {
		t.Fatal(err)
	}
	outbox, err := notify.OpenOutbox(ctx, bucketKV{store, stateBucket}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{log: zap.NewNop(), store: store, outbox: outbox, stdin: d.stdin, stdout: io.Discard, reloads: make(chan chan error), kept: newIncidentBook(store), accounts: newAccounts(prometheus.NewRegistry())}
	service, err := s.build(d.config)
	if err != nil {
		t.Fatal(err)
	}
	inner, stopped := context.WithCancel(ctx)
	defer stopped()
	settled := service.judge.settled
	service.judge.settled = func(res *detectors.Result, transitions []alerts.Alert) {
		settled(res, transitions)
		d.recorder.settled(res, transitions)
		d.recorder.tell(res.At)
		if res.At >= until {
			stopped()
		}
	}
	if d.stopWhen != nil {
		go func() {
			defer stopped()
			for tick := time.Tick(10 * time.Millisecond); inner.Err() == nil && !d.stopWhen(store); <-tick {
			}
		}()
	}
	if err := service.run(inner, func() {}); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("the service had judged up to %s only", formatTime(d.recorder.at))
	}
	if err := store.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

const never = 1 << 62

// TestPipeEqualsReplay: the daemon reads the log from a pipe to its end, and tells what a replay tells.
func TestPipeEqualsReplay(t *testing.T) {
	m := stormOfMinutes(t)
	for _, procs := range []int{1, 4} {
		before := runtime.GOMAXPROCS(procs)
		d := lives{dir: t.TempDir(), recorder: newRecorder(), config: minutesConfig(t, anySource), stdin: bytes.NewReader(m.log)}
		d.run(t, never)
		runtime.GOMAXPROCS(before)
		same(t, fmt.Sprintf("at GOMAXPROCS %d", procs), string(d.recorder.text), m.want)
	}
}

// appendLog writes the log into a file in chunks that end anywhere. At some of them it waits until the daemon has
// judged what was written, less what the lateness holds back.
func (m *minutes) appendLog(ctx context.Context, path string, late time.Duration, seen <-chan int64, rng *rand.Rand) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // each write was checked
	line, written, offset, judged := 0, 0, 0, int64(0)
	for offset < len(m.log) {
		n := min(1+rng.IntN(120_000), len(m.log)-offset)
		if _, err := f.Write(m.log[offset : offset+n]); err != nil {
			return err
		}
		for offset += n; line < len(m.lines) && written+len(m.lines[line]) <= offset; line++ {
			written += len(m.lines[line])
		}
		if line == 0 || rng.IntN(3) > 0 {
			continue
		}
		for due := m.times[line-1] - int64(late) - int64(2*onePane); due > max(judged, m.times[0]); {
			select {
			case judged = <-seen:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// live is how far behind the newest line a live source here may be. While no line comes for as long, event time
// goes on with the wall's: that must not happen on a slow machine in the midst of a test.
const live = 50 * time.Second

// tailed runs a daemon over a growing file, with a new one at each of the given times.
func (m *minutes) tailed(t testing.TB, stops []int64, rng *rand.Rand) (*lives, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "access.log")
	d := &lives{dir: filepath.Join(dir, "spool"), recorder: watched()}
	d.config = minutesConfig(t, fmt.Sprintf("{type: file, paths: [%q], lateness: %s}", path, live))
	ctx, cancel := context.WithCancel(t.Context())
	wrote := make(chan error, 1)
	go func() { wrote <- m.appendLog(ctx, path, live, d.recorder.seen, rng) }()
	for _, at := range stops {
		d.run(t, at)
	}
	d.run(t, m.last)
	cancel()
	if err := <-wrote; err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	return d, string(d.recorder.text)
}

// TestTailEqualsReplay: a file that grows while it is read gives what its replay gives.
func TestTailEqualsReplay(t *testing.T) {
	m := stormOfMinutes(t)
	tries(t, 3)(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		_, got := m.tailed(t, nil, rng)
		same(t, "tailed", got, m.want)
	})
}

// TestRestartInMidStorm: however often the daemon is replaced, its services together tell what a replay tells, no
// more and no less; and the spool holds every line once.
func TestRestartInMidStorm(t *testing.T) {
	m := stormOfMinutes(t)
	tries(t, 4)(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		first := m.times[0] + int64(onePane)
		stops := rapid.SliceOfN(rapid.Int64Range(first, m.last-1), 1, 4).Draw(rt, "stops")
		slices.Sort(stops)
		d, got := m.tailed(t, stops, rng)
		same(t, fmt.Sprintf("stopped at %v", stops), got, m.want)
		m.checkSpool(t, d.dir)
	})
}

// TestRestartBeforeTheFirstPane: lines that were read and are in no pane yet are not forgotten.
func TestRestartBeforeTheFirstPane(t *testing.T) {
	m := stormOfMinutes(t)
	// The log begins in the storm: its first seconds count.
	begin := slices.IndexFunc(m.times, func(at int64) bool { return at >= m.times[0]+int64(130*time.Second) })
	lines := m.lines[begin:]
	few := slices.IndexFunc(m.times[begin:], func(at int64) bool { return at >= m.times[begin]+int64(4*time.Second) })
	dir := t.TempDir()
	path := placeLog(t, dir, "access.log", bytes.Join(lines, nil))
	r := newRecorder()
	want := r.replay(t, path)

	placeLog(t, dir, "access.log", bytes.Join(lines[:few], nil))
	d := &lives{dir: filepath.Join(dir, "spool"), recorder: newRecorder()}
	d.config = minutesConfig(t, fmt.Sprintf("{type: file, paths: [%q], lateness: %s}", path, live))
	d.stopWhen = func(store *spool.Spool) bool { return len(store.Streams("file-1")) > 0 }
	d.run(t, never)
	if d.recorder.at != 0 {
		t.Fatal("a pane was judged already")
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(bytes.Join(lines[few:], nil)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	d.stopWhen = nil
	d.run(t, r.last)
	same(t, "restarted at once", string(d.recorder.text), want)
}

// checkSpool reads back what was stored: the log's lines from its beginning, each once.
func (m *minutes) checkSpool(t testing.TB, dir string) {
	t.Helper()
	store, err := spool.Open(t.Context(), spool.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	next, lines := int64(0), 0
	if err := store.Read(t.Context(), spool.Range{}, func(b *pipeline.Batch) error {
		if b.From != next || len(b.Entries) != b.Lines {
			t.Errorf("a batch of %d entries and %d lines from %d to %d follows %d", len(b.Entries), b.Lines, b.From, b.To, next)
		}
		for i := range b.Entries {
			if want := bytes.TrimSuffix(m.lines[lines], []byte("\n")); !bytes.Equal(b.Entries[i].Line, want) {
				t.Fatalf("line %d is %s, not %s", lines, b.Entries[i].Line, want)
			}
			lines++
		}
		next = b.To
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if lines == 0 || m.times[lines-1] < m.last {
		t.Errorf("%d of %d lines are stored", lines, len(m.lines))
	}
	if err := store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestBatchTwice: what a source emits again after a restart is refused by its position.
func TestBatchTwice(t *testing.T) {
	m := stormOfMinutes(t)
	store, err := spool.Open(t.Context(), spool.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	c := minutesConfig(t, anySource)
	redactor, err := newRedactor(c)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := newChain(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: "x", Open: opener{format: formatChoice{name: "auto"}, zone: time.UTC}.open, Enricher: chain.For(""), Redactor: redactor,
		Now: func() int64 { return 1 }, Take: func(w *pipeline.Work) error { defer w.Release(); return store.Append(&w.Batch) },
	})
	stream := &pipeline.Stream{Input: "x", ID: "x", Path: "x"}
	var blocks []*pipeline.Block
	offset := int64(0)
	for i := 0; i+500 <= len(m.lines); i += 500 {
		data := bytes.Join(m.lines[i:i+500], nil)
		blocks = append(blocks, &pipeline.Block{Stream: stream, Data: data, From: offset, To: offset + int64(len(data))})
		offset += int64(len(data))
	}
	for i, b := range blocks {
		for range 1 + i%2 { // every second one comes again at once
			if err := road.Emit(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, b := range blocks { // and all of them after a restart that lost the position
		if err := road.Emit(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	stored := 0
	if err := store.Read(t.Context(), spool.Range{}, func(b *pipeline.Batch) error {
		stored += len(b.Entries)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	check(t, "lines stored", stored, 500*len(blocks))
	if at, known := store.Position("x"); !known || at != offset {
		t.Errorf("the position is %d, not %d", at, offset)
	}
	if err := store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

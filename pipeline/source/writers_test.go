package source

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// A victim is a log with a writer that goes on whatever is done to the log. Each line tells its log, its number
// and a checksum: a lineTally knows which are lost, twice there or torn.
type victim struct {
	t      *testing.T
	nth    int
	path   string
	rng    *rand.Rand
	linked bool                   // path is a symbolic link
	slow   time.Duration          // how long a writer keeps the old descriptor at most
	held   func(path string) bool // whether what happens next can be seen
	keep   int                    // rotated files

	w        *os.File
	written  int
	cut      int // times it was truncated
	target   int
	rotation string // the last
	history  []string
	kinds    []string // of what happens to it
}

func newVictim(t *testing.T, dir string, nth int, rng *rand.Rand) *victim {
	v := &victim{t: t, nth: nth, path: filepath.Join(dir, fmt.Sprintf("%02d", nth), "access.log"), rng: rng, slow: 2 * time.Second, keep: 8}
	mkdir(t, filepath.Dir(v.path))
	return v
}

func (v *victim) write(n int) {
	var b bytes.Buffer
	for range n {
		from := b.Len()
		fmt.Fprintf(&b, "%02d %08d 192.0.2.7 HEAD /checkout/%d ", v.nth, v.written, v.written%977)
		for range v.written % 61 {
			b.WriteByte('x')
		}
		fmt.Fprintf(&b, " %08x\n", crc32.ChecksumIEEE(b.Bytes()[from:]))
		v.written++
	}
	if _, err := v.w.Write(b.Bytes()); err != nil {
		v.t.Errorf("write %s: %v", v.path, err)
	}
}

func (v *victim) must(err error) {
	if err != nil && !os.IsNotExist(err) {
		v.t.Errorf("%s of %s: %v", v.rotation, v.path, err)
	}
}

// reopen goes on with the file that is at path now, or makes it.
func (v *victim) reopen() {
	if v.w != nil {
		v.w.Close()
	}
	var err error
	v.w, err = os.OpenFile(v.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	v.must(err)
}

// shift is logrotate's, with what was packed.
func (v *victim) shift() {
	for n := v.keep; n > 0; n-- {
		for _, packed := range []string{"", ".gz"} {
			from := fmt.Sprintf("%s.%d%s", v.path, n, packed)
			if n == v.keep {
				v.must(os.Remove(from))
			} else {
				v.must(os.Rename(from, fmt.Sprintf("%s.%d%s", v.path, n+1, packed)))
			}
		}
	}
	v.must(os.Rename(v.path, v.path+".1"))
}

// pack is gzip's, which keeps the time of the last change.
func (v *victim) pack(path string) {
	data, err := os.ReadFile(path)
	v.must(err)
	info, serr := os.Stat(path)
	if err != nil || serr != nil {
		return
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err = z.Write(data)
	v.must(err)
	v.must(z.Close())
	v.must(os.WriteFile(path+".gz", out.Bytes(), 0o644))
	v.must(os.Chtimes(path+".gz", info.ModTime(), info.ModTime()))
	v.must(os.Remove(path))
}

// A step is done after a while; writing goes on meanwhile.
type step struct {
	after time.Duration
	do    func()
}

// rotations are what happens to logs. Each gives the steps that finish it.
var rotations = map[string]func(v *victim, late time.Duration) []step{
	"rename, the writer comes late": func(v *victim, late time.Duration) []step {
		v.shift()
		return []step{{late, v.reopen}}
	},
	"rename and create, the writer comes late": func(v *victim, late time.Duration) []step {
		v.shift()
		v.must(os.WriteFile(v.path, nil, 0o644))
		return []step{{late, v.reopen}}
	},
	"twice between two looks": func(v *victim, _ time.Duration) []step {
		for range 2 {
			v.shift()
			v.reopen()
			v.write(5)
		}
		return nil
	},
	"twice, and packed": func(v *victim, _ time.Duration) []step {
		for range 2 {
			v.shift()
			v.reopen()
			v.write(5)
		}
		v.pack(v.path + ".1")
		return nil
	},
	"packed": func(v *victim, late time.Duration) []step {
		v.shift()
		return []step{{late, v.reopen}, {0, func() { v.pack(v.path + ".1") }}}
	},
	"deleted while unread": func(v *victim, late time.Duration) []step {
		v.write(50)
		v.must(os.Remove(v.path))
		return []step{{late, v.reopen}}
	},
	"deleted and made anew": func(v *victim, _ time.Duration) []step {
		v.shift()
		v.must(os.Remove(v.path + ".1"))
		v.reopen()
		return nil
	},
	"replaced by a directory": func(v *victim, late time.Duration) []step {
		v.shift()
		v.must(os.Mkdir(v.path, 0o755))
		return []step{{late, func() { v.must(os.Remove(v.path)); v.reopen() }}}
	},
	"directory without permission": func(v *victim, late time.Duration) []step {
		v.must(os.Chmod(filepath.Dir(v.path), 0))
		return []step{{late, func() { v.must(os.Chmod(filepath.Dir(v.path), 0o755)) }}}
	},
	"made without permission": func(v *victim, late time.Duration) []step {
		v.shift()
		v.reopen()
		v.must(os.Chmod(v.path, 0))
		return []step{{late, func() { v.must(os.Chmod(v.path, 0o644)) }}}
	},
}

const symlinkSwap = "symbolic link led elsewhere"

// swap leads a linked log to a new target.
func (v *victim) swap(late time.Duration) []step {
	v.target++
	target := fmt.Sprintf("%s-target.%c", strings.TrimSuffix(v.path, ".log"), 'a'+v.target%26)
	v.must(os.Remove(target))
	v.must(os.WriteFile(target, nil, 0o644))
	v.must(os.Symlink(target, v.path+".new"))
	v.must(os.Rename(v.path+".new", v.path))
	return []step{{late, v.reopen}}
}

// truncations lose what comes between the copy and the truncation; all of them count it.
var truncations = map[string]func(v *victim, late time.Duration) []step{
	"copytruncate": func(v *victim, late time.Duration) []step {
		v.must(os.Rename(v.path+".1", v.path+".2"))
		data, err := os.ReadFile(v.path)
		v.must(err)
		v.must(os.WriteFile(v.path+".1", data, 0o644))
		v.write(v.rng.IntN(3)) // what nobody may have
		v.must(os.Truncate(v.path, 0))
		v.cut++
		return nil
	},
	"truncated without a copy": func(v *victim, _ time.Duration) []step {
		v.write(v.rng.IntN(20))
		v.must(os.Truncate(v.path, 0))
		v.cut++
		return nil
	},
}

// live writes rate lines a second for a while and lets something happen every so often.
func (v *victim) live(length time.Duration, rate int, pause func() time.Duration) {
	const beat = 10 * time.Millisecond
	if v.linked {
		v.swap(0)
	}
	v.reopen()
	defer func() { v.w.Close() }()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	began := time.Now()
	var steps []step
	next := began.Add(pause())
	for now := range tick.C {
		if due := int(now.Sub(began).Seconds() * float64(rate)); due > v.written {
			v.write(due - v.written)
		}
		over := now.Sub(began) >= length
		switch {
		case len(steps) > 0 && (over || !now.Before(next)):
			steps[0].do()
			if steps = steps[1:]; len(steps) > 0 {
				next = now.Add(steps[0].after)
			} else {
				next = now.Add(pause())
			}
		case over:
			return
		case !now.Before(next) && v.held(v.path): // what leaves no trace must be seen once
			late := time.Duration(v.rng.Int64N(int64(v.slow)))
			steps = v.happen(v.kinds[v.rng.IntN(len(v.kinds))], late)
			next = now.Add(pause())
			if len(steps) > 0 {
				next = now.Add(steps[0].after)
			}
		}
	}
}

func (v *victim) happen(kind string, late time.Duration) []step {
	v.rotation = kind
	v.history = append(v.history, fmt.Sprintf("at line %d %s (%s)", v.written, kind, late))
	switch {
	case kind == symlinkSwap:
		return v.swap(late)
	case truncations[kind] != nil:
		return truncations[kind](v, late)
	}
	return rotations[kind](v, late)
}

// A lineTally counts the lines of victims as they arrive.
type lineTally struct {
	t *testing.T

	mu      sync.Mutex
	seen    map[int][]uint8 // times that each line of a victim came
	torn    map[int]int
	skips   map[int]int // that tell of lost lines
	stands  map[string]int64
	arrived int
}

func newLineTally(t *testing.T) *lineTally {
	return &lineTally{
		t: t, seen: map[int][]uint8{}, torn: map[int]int{}, skips: map[int]int{}, stands: map[string]int64{},
	}
}

func (l *lineTally) keep(b *pipeline.Block) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.stands[b.Stream.ID]; ok && at != b.From {
		l.t.Errorf("%s: a block begins at %d, the last ended at %d", b.Stream.ID, b.From, at)
	}
	l.stands[b.Stream.ID] = b.To
	nth, err := strconv.Atoi(filepath.Base(filepath.Dir(b.Stream.Path)))
	if err != nil {
		return err
	}
	for _, s := range b.Skips {
		if s.Lost {
			l.skips[nth]++
		}
	}
	for line := range bytes.Lines(b.Data) {
		l.line(nth, line)
	}
	return nil
}

func (l *lineTally) line(nth int, line []byte) {
	body, sum, ok := cutLast(line)
	want, err := strconv.ParseUint(sum, 16, 32)
	if !ok || err != nil || uint32(want) != crc32.ChecksumIEEE(body) || len(body) < 11 {
		l.torn[nth]++
		return
	}
	from, _ := strconv.Atoi(string(body[:2]))
	n, _ := strconv.Atoi(string(body[3:11]))
	for len(l.seen[from]) <= n {
		l.seen[from] = append(l.seen[from], make([]uint8, 4096)...)
	}
	l.seen[from][n]++
	l.arrived++
}

// cutLast takes the checksum off a line.
func cutLast(line []byte) (body []byte, sum string, ok bool) {
	line, ok = bytes.CutSuffix(line, []byte{'\n'})
	i := bytes.LastIndexByte(line, ' ')
	if !ok || i < 0 {
		return nil, "", false
	}
	return line[:i], string(line[i+1:]), true
}

// Position implements pipeline.Positions.
func (l *lineTally) Position(id string) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.stands[id]
	return at, ok
}

// Ended implements pipeline.Positions: no run of these tests goes on with another's.
func (l *lineTally) Ended(string) bool { return true }

// Anchor implements pipeline.Positions.
func (l *lineTally) Anchor(string) pipeline.Anchor { return 0 }

// Stored implements pipeline.Positions.
func (l *lineTally) Stored(string) time.Time { return time.Time{} }

// Streams implements pipeline.Positions.
func (l *lineTally) Streams(string) (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.stands {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (l *lineTally) firstLost(v *victim) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Index(l.seen[v.nth], 0)
}

// A verdict is what became of the lines of some victims.
type verdict struct{ lines, lost, runs, duplicates, torn, counted, cut int }

func (l *lineTally) judge(victims []*victim) (sum verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range victims {
		sum.lines += v.written
		sum.torn += l.torn[v.nth]
		sum.counted += l.skips[v.nth]
		sum.cut += v.cut
		before := true
		for n := range v.written {
			times := 0
			if n < len(l.seen[v.nth]) {
				times = int(l.seen[v.nth][n])
			}
			sum.duplicates += max(0, times-1)
			if times == 0 {
				sum.lost++
				if before {
					sum.runs++
				}
			}
			before = times > 0
		}
	}
	return sum
}

// torture lets things happen to victims under a source, and gives what became of the lines.
type torture struct {
	length time.Duration
	rate   int // lines a second of each victim
	pause  func(*rand.Rand) time.Duration
	quiet  time.Duration
	seed   uint64
}

// run gives the verdicts over the victims that were never truncated and over those that were.
func (c torture) run(t *testing.T, whole, truncated int) (renamed, cut verdict) {
	t.Helper()
	dir, l := t.TempDir(), newLineTally(t)
	lossless, cutting := names(rotations), names(truncations)
	var victims []*victim
	var paths []string
	cfg := testConfig()
	cfg.Quiet = c.quiet
	f := newFiles(cfg, testRuntime(), nil)
	for i := range whole + truncated {
		rng := rand.New(rand.NewPCG(c.seed, uint64(i)))
		v := newVictim(t, dir, i, rng)
		kinds := lossless
		switch {
		case i >= whole:
			kinds = cutting
		case i < whole/5:
			v.linked, kinds = true, []string{symlinkSwap}
		}
		victims = append(victims, v)
		path := v.path
		if i%2 == 0 && !v.linked {
			path += "*" // the rotated files, too
		}
		paths = append(paths, path)
		v.held, v.kinds = f.holdsPath, kinds
		if i >= whole {
			v.held = f.knowsPath
		}
	}
	f.cfg.Paths = paths
	var writers sync.WaitGroup
	for _, v := range victims {
		writers.Go(func() { v.live(c.length, c.rate, func() time.Duration { return c.pause(v.rng) }) })
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, l, l.keep) }()
	writers.Wait()
	until(t, func() bool { return l.judge(victims[:whole]).lost == 0 && f.rests() }, func() string {
		for _, v := range victims[:whole] {
			if sum := l.judge([]*victim{v}); sum.lost > 0 {
				t.Logf("%s: %+v, first lost %d: %q", v.path, sum, l.firstLost(v), v.history)
			}
		}
		return fmt.Sprintf("never truncated %+v, truncated %+v", l.judge(victims[:whole]), l.judge(victims[whole:]))
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return l.judge(victims[:whole]), l.judge(victims[whole:])
}

// rests tells whether everything that is no path's current file was read and let go.
func (f *files) rests() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for g := range f.gens {
		if !g.current && !g.rests || g.lag() > 0 {
			return false
		}
	}
	return true
}

// holdsPath tells whether the file at a path has been seen.
func (f *files) holdsPath(path string) bool {
	info, err := os.Stat(path)
	return err == nil && f.holding(idOf(info)) != nil
}

// knowsPath tells whether lines of the file at a path have been seen: without them a truncation leaves no trace.
func (f *files) knowsPath(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	g := f.holding(idOf(info))
	return g != nil && g.shown.Load() != nil
}

func names[T any](m map[string]T) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// check demands what is promised.
func check(t *testing.T, renamed, cut verdict) {
	t.Helper()
	if renamed.lost+renamed.duplicates+renamed.torn+renamed.counted > 0 {
		t.Errorf("never truncated: %+v, want nothing lost, nothing twice, nothing torn", renamed)
	}
	switch {
	case cut.duplicates > 0:
		t.Errorf("truncated: %+v, want nothing twice", cut)
	case cut.runs > cut.counted:
		t.Errorf("truncated: %+v: lines are missing in more places than were counted", cut)
	case cut.counted > cut.cut, cut.torn > cut.cut:
		t.Errorf("truncated: %+v: more gaps or torn lines than truncations", cut)
	}
}

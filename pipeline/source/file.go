package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nxadm/tail/watch"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// fileConfig is the configuration of the kinds file and container.
type fileConfig struct {
	Common `yaml:",inline"`

	Paths    []string      `yaml:"paths"`     // files and globs
	Exclude  []string      `yaml:"exclude"`   // files and globs that are not read, though a glob of paths matches them
	From     string        `yaml:"from"`      // start or end: where to begin in files that are there at the very first start
	Quiet    time.Duration `yaml:"quiet"`     // how long a rotated or deleted file must rest before it is let go
	MaxFiles int           `yaml:"max_files"` // files held open at a time; the rest waits
}

const minQuiet = 3 * time.Second

// newFile builds the kind file: logs that grow at their end and are rotated.
func newFile(decode func(any) error, rt Runtime) (Source, error) {
	cfg := fileConfig{Common: defaultCommon(rt), From: "start", Quiet: 5 * time.Second, MaxFiles: 8192}
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	return buildFiles(cfg, rt, nil)
}

// buildFiles checks the configuration. place fills in what the path of a file tells about it.
func buildFiles(cfg fileConfig, rt Runtime, place func(path string, s *pipeline.Stream)) (*files, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	switch {
	case len(cfg.Paths) == 0:
		return nil, errors.New("paths is missing: write paths: [/var/log/nginx/*access*.log]")
	case cfg.From != "start" && cfg.From != "end":
		return nil, fmt.Errorf("from %q: use start or end", cfg.From)
	case cfg.Quiet < minQuiet:
		return nil, fmt.Errorf("quiet %s: a writer needs at least %s to notice a rotation", cfg.Quiet, minQuiet)
	case cfg.MaxFiles < 1:
		return nil, fmt.Errorf("max_files %d is less than 1", cfg.MaxFiles)
	}
	for _, path := range slices.Concat(cfg.Paths, cfg.Exclude) {
		if _, err := filepath.Match(path, ""); err != nil {
			return nil, fmt.Errorf("path %q is no glob: a [ is not closed", path)
		}
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("path %q is not an absolute path or glob: it must begin with /", path)
		}
	}
	return newFiles(cfg, rt, place), nil
}

func newFiles(cfg fileConfig, rt Runtime, place func(path string, s *pipeline.Stream)) *files {
	return &files{
		cfg: cfg, rt: rt, place: place, meter: rt.Metrics.of(cfg.Name), limits: defaultLimits,
		log:   rt.Logger.With(zap.String("component", "source"), zap.String("input", cfg.Name)),
		paths: map[string]*followed{}, gens: map[*generation]struct{}{}, stems: map[string]bool{}, infixed: map[string]*infixedLog{}, unmatched: map[string]string{},
		fsType: fileSystem, local: map[string]bool{},
	}
}

// files reads the files of one input. One goroutine looks, at names and sizes alone; a few take turns at
// reading; one unpacks archives; and each file at its end may have one that follows it. So no slow disk and
// no full road keeps a rotation from being seen, and what was seen is held until it is read.
type files struct {
	cfg    fileConfig
	rt     Runtime
	place  func(path string, s *pipeline.Stream)
	meter  *meter
	log    *zap.Logger
	limits limits
	fsType func(path string) int64

	// Set by Run.
	positions pipeline.Positions
	emit      pipeline.Emit
	broken    context.CancelCauseFunc // ends the run with an error
	ready     chan *generation        // waits for a turn; first come, first served
	archives  chan *generation
	wg        sync.WaitGroup
	followers atomic.Int64
	unfollow  atomic.Int64 // when the library last stopped following, ns

	// Of the looking goroutine alone.
	known   map[uint64][]string // stream IDs of earlier runs, by the hash of their first bytes
	unfound map[string]bool     // streams that did not end and whose files were not found again
	infixed map[string]*infixedLog
	stems   map[string]bool // paths from which files were rotated that globs match
	first   []fileID        // where the paths led to at the first look
	stored  time.Time       // when the input's last line of an earlier run was stored
	looks   int
	seeking time.Time // since when the unfound are looked for
	looked  time.Time // when the last look began
	hintErr bool
	crowded bool            // that descriptors are used up was told
	local   map[string]bool // directories: all changes there are made by this kernel
	polled  int             // directories without events
	calm    bool            // nothing has changed for long: see pause

	telling sync.Mutex // of what waits for its first turn: held by the first look, so that nothing is read before

	mu        sync.Mutex
	paths     map[string]*followed
	gens      map[*generation]struct{}
	unmatched map[string]string // globs that match nothing → why, where that is known
	fresh     []*generation     // wait for their first turn and were not announced
	stale     []string          // the IDs of streams whose files a network file system has lost
}

// followed is a path that is looked at.
type followed struct {
	path     string
	gen      *generation // what the path leads to; nil while it leads nowhere
	last     *generation // what it last led to
	lastSeen time.Time   // when that had last been written, by the file system's clock
	since    time.Time   // when it was not there yet: the look before it was first seen
	unopened []unopened  // what could not be opened
	literal  bool        // configured as such: it is missed when it is not there
	state    string
	err      string
}

// limits bound what one file may do.
type limits struct {
	turn      int64 // bytes read in one turn
	followers int64
	archive   int64 // bytes that any archive may hold
	ratio     int64 // how many times its size an archive may hold beyond that
}

var defaultLimits = limits{turn: 8 << 20, followers: 64, archive: 1 << 30, ratio: 200}

// Common implements Source.
func (f *files) Common() Common { return f.cfg.Common }

// Run implements pipeline.Source.
func (f *files) Run(ctx context.Context, positions pipeline.Positions, emit pipeline.Emit) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	f.broken = end
	f.prepare(positions, emit)
	part := func(run func(context.Context) error) {
		f.wg.Go(func() {
			if err := run(ctx); err != nil {
				end(err)
			}
		})
	}
	f.telling.Lock() // until discover has looked once
	part(f.discover)
	part(f.unpack)
	for range max(2, min(4, runtime.GOMAXPROCS(0))) {
		part(f.read)
	}
	f.wg.Wait()
	f.release()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func (f *files) prepare(positions pipeline.Positions, emit pipeline.Emit) {
	f.positions, f.emit = positions, emit
	f.ready = make(chan *generation, 2*f.cfg.MaxFiles)
	f.archives = make(chan *generation, 2*f.cfg.MaxFiles)
	f.stored = positions.Stored(f.cfg.Name)
	f.known, f.unfound = map[uint64][]string{}, map[string]bool{}
	for _, id := range positions.Streams(f.cfg.Name) {
		if hash, ok := hashOf(id); ok {
			f.known[hash] = append(f.known[hash], id)
			if !positions.Ended(id) {
				f.unfound[id] = true
			}
		}
	}
}

// release closes what is open. The library's polling goroutine cannot be waited for: it ends within
// watch.POLL_DURATION after the tail did, and until then looks at a descriptor that must still be ours.
func (f *files) release() {
	rest := watch.POLL_DURATION + 50*time.Millisecond - time.Duration(f.rt.Now().UnixNano()-f.unfollow.Load())
	if f.unfollow.Load() > 0 && rest > 0 {
		<-time.After(rest)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for g := range f.gens {
		for _, file := range []*os.File{g.file, g.pack} {
			if file != nil {
				file.Close()
			}
		}
	}
	f.rt.Descriptors.add(-int64(len(f.gens)))
	clear(f.gens)
	clear(f.paths)
	f.meter.zero()
}

// States implements Source.
func (f *files) States() []pipeline.InputState {
	states, unread := f.statesNow()
	for i, u := range unread {
		states[i].Behind = u.whole()
	}
	slices.SortStableFunc(states, func(a, b pipeline.InputState) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.State, b.State), cmp.Compare(a.Lag, b.Lag))
	})
	return states
}

// statesNow gives the states, and what of each is unread.
func (f *files) statesNow() (states []pipeline.InputState, unread []unreadPart) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(f.paths)) {
		p := f.paths[path]
		s, u := pipeline.InputState{Input: f.cfg.Name, Path: path, State: p.state, Err: p.err}, unreadPart{}
		if g := p.gen; g != nil && p.err == "" {
			s = f.stateOf(g)
			s.Path = path
			u = unreadPart{g.file, g.size - s.Lag, s.Lag}
		}
		states, unread = append(states, s), append(unread, u)
	}
	for pattern, why := range f.unmatched {
		states = append(states, pipeline.InputState{Input: f.cfg.Name, Path: pattern, State: pipeline.StateUnmatched, Err: why})
		unread = append(unread, unreadPart{})
	}
	for g := range f.gens {
		if !g.current && !g.rests {
			s := f.stateOf(g)
			states, unread = append(states, s), append(unread, unreadPart{g.file, g.size - s.Lag, s.Lag})
		}
	}
	return states, unread
}

// unreadPart is the end of a file. It is looked at without files.mu: a slow disk must not keep a rotation from being
// seen.
type unreadPart struct {
	file         *os.File
	from, length int64 // bytes
}

// whole tells whether there is a whole line, as far as can be seen.
func (u unreadPart) whole() bool {
	if u.file == nil || u.length <= 0 || u.length >= pipeline.MaxLine {
		return u.length > 0
	}
	rest := make([]byte, u.length)
	n, err := u.file.ReadAt(rest, u.from)
	return err != nil && n == 0 || bytes.IndexByte(rest[:n], '\n') >= 0
}

func (f *files) stateOf(g *generation) pipeline.InputState {
	s := pipeline.InputState{Input: f.cfg.Name, Path: g.path, State: "idle", Lag: g.lag()}
	if stream := g.shown.Load(); stream != nil {
		s.Stream = stream.ID
	}
	switch {
	case g.failed != "":
		s.State, s.Err = "unreadable", g.failed
	case s.Lag > 0:
		s.State = "reading"
	}
	return s
}

func (g *generation) lag() int64 { return max(0, g.size-g.done.Load()) }

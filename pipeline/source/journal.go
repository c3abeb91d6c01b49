package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// journalConfig is the configuration of the kind journal.
type journalConfig struct {
	Common `yaml:",inline"`

	Units      []string `yaml:"units"`      // of systemd; globs may stand in them
	From       string   `yaml:"from"`       // start or end: where to begin in a journal that was never read
	Directory  string   `yaml:"directory"`  // where the journal's files are; "": this machine's journal
	Journalctl string   `yaml:"journalctl"` // the program that reads them
}

const (
	maxUnits    = 64
	maxUnitName = 255 // systemd's UNIT_NAME_MAX
)

// newJournal builds the kind journal: what units of systemd write into the journal, read by journalctl.
//
// Each unit has a child process of its own, so that a quiet one does not hold back where the others are read on.
// An entry's place is its sequence number, which journald never repeats nor sets back, whatever the clock does; each
// series of them (journald begins one anew where it found a damaged file) is a Stream. Lines are the
// objects of journalctl -o json, one an entry: the framing journal takes them off.
//
// What journald itself threw away (its rate limit, its size limit while nobody read) cannot be counted.
func newJournal(decode func(any) error, rt Runtime) (Source, error) {
	cfg := journalConfig{Common: defaultCommon(rt), From: "start", Journalctl: "journalctl"}
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	switch {
	case len(cfg.Units) == 0:
		return nil, errors.New("units is missing: write units: [kubelet, php8.2-fpm]")
	case len(cfg.Units) > maxUnits:
		return nil, fmt.Errorf("%d units: at most %d", len(cfg.Units), maxUnits)
	case cfg.From != "start" && cfg.From != "end":
		return nil, fmt.Errorf("from %q: use start or end", cfg.From)
	case cfg.Directory != "" && !filepath.IsAbs(cfg.Directory):
		return nil, fmt.Errorf("directory %q is not an absolute path", cfg.Directory)
	case cfg.Journalctl == "":
		return nil, errors.New("journalctl is empty")
	}
	for i, unit := range cfg.Units {
		if unit == "" || len(unit) > maxUnitName || strings.ContainsFunc(unit, func(r rune) bool { return r <= ' ' }) {
			return nil, fmt.Errorf("unit %.40q is not a unit's name", unit)
		}
		if slices.Contains(cfg.Units[:i], unit) {
			return nil, fmt.Errorf("unit %q is there twice", unit)
		}
	}
	return &journal{
		cfg: cfg, rt: rt, meter: rt.Metrics.of(cfg.Name), states: map[string]pipeline.InputState{},
		log: rt.Logger.With(zap.String("component", "source"), zap.String("input", cfg.Name)),
	}, nil
}

type journal struct {
	cfg   journalConfig
	rt    Runtime
	meter *meter
	log   *zap.Logger

	mu     sync.Mutex
	states map[string]pipeline.InputState // by unit
}

// Common implements Source.
func (j *journal) Common() Common { return j.cfg.Common }

// States implements Source.
func (j *journal) States() []pipeline.InputState {
	j.mu.Lock()
	defer j.mu.Unlock()
	var states []pipeline.InputState
	for _, unit := range slices.Sorted(maps.Keys(j.states)) {
		states = append(states, j.states[unit])
	}
	return states
}

// setState shows a unit's state, and logs when it becomes unreadable or readable again.
func (j *journal) setState(unit, state, why string) {
	j.mu.Lock()
	before := j.states[unit]
	j.states[unit] = pipeline.InputState{Input: j.cfg.Name, Path: journalPath(unit), State: state, Err: why}
	j.mu.Unlock()
	switch {
	case why != "" && before.Err == "":
		j.log.Warn("journal is not readable, trying on", zap.String("unit", unit), zap.String("err", why))
	case why == "" && before.Err != "":
		j.log.Info("journal is readable again", zap.String("unit", unit))
	}
}

func journalPath(unit string) string { return "journal:" + unit }

// Run implements pipeline.Source.
func (j *journal) Run(ctx context.Context, positions pipeline.Positions, emit pipeline.Emit) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var units sync.WaitGroup
	for _, unit := range j.cfg.Units {
		u := newJournalUnit(j, unit, positions, emit)
		units.Go(func() {
			if err := u.run(ctx); err != nil {
				end(err)
			}
		})
	}
	units.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// journalUnit reads one unit. It belongs to one goroutine.
type journalUnit struct {
	*journal
	unit    string
	emit    pipeline.Emit
	began   time.Time
	series  map[string]*journalSeries // by their ID
	newest  *journalSeries            // nil: nothing was ever read
	entries entryCutter
	block   []byte         // entries of current that were not handed on
	current *journalSeries // whose they are
	from    uint64         // where they begin
	skips   []pipeline.Skip
	first   time.Time // when the first of them came
	came    bool      // an entry came since the last try
	fresh   bool      // the unit was never read
	follows bool      // the child follows
}

// A journalSeries is one series of sequence numbers: what a cursor calls s.
type journalSeries struct {
	stream *pipeline.Stream
	id     string
	number uint64 // of series, in the order in which they were found
	begins uint64 // µs since the epoch: the time of the first entry that was seen of it
	next   uint64 // the sequence number behind the last that was read
	opened bool   // an entry was seen
}

func newJournalUnit(j *journal, unit string, positions pipeline.Positions, emit pipeline.Emit) *journalUnit {
	u := &journalUnit{journal: j, unit: unit, emit: emit, began: j.rt.Now(), series: map[string]*journalSeries{}}
	for _, id := range positions.Streams(j.cfg.Name) {
		s := u.known(id)
		if s == nil {
			continue
		}
		if at, ok := positions.Position(id); ok && at > 0 {
			s.next = uint64(at)
			u.series[s.id] = s
			if u.newest == nil || s.number > u.newest.number {
				u.newest = s
			}
		}
	}
	u.fresh = u.newest == nil
	return u
}

func (u *journalUnit) prefix() string { return "journal-" + u.cfg.Name + "-" + u.unit + "-" }

// known reads a Stream's ID; nil when it is not one of this unit.
func (u *journalUnit) known(id string) *journalSeries {
	rest, ok := strings.CutPrefix(id, u.prefix())
	parts := strings.Split(rest, "-")
	if !ok || len(parts) != 3 {
		return nil
	}
	number, ok1 := parseHex([]byte(parts[0]))
	begins, ok2 := parseHex([]byte(parts[1]))
	if !ok1 || !ok2 {
		return nil
	}
	return u.newSeries(parts[2], number, begins)
}

func (u *journalUnit) newSeries(id string, number, begins uint64) *journalSeries {
	return &journalSeries{
		id: id, number: number, begins: begins,
		stream: &pipeline.Stream{
			Input: u.cfg.Name, ID: fmt.Sprintf("%s%08x-%x-%s", u.prefix(), number, begins, id),
			Path: journalPath(u.unit), Labels: u.cfg.Labels,
		},
	}
}

// seriesOf finds the series of an entry.
func (u *journalUnit) seriesOf(e journalEntry) *journalSeries {
	s := u.series[string(e.series)]
	if s == nil {
		number := uint64(1)
		if u.newest != nil {
			number = u.newest.number + 1
		}
		s = u.newSeries(string(e.series), number, e.time)
		s.next = e.number
		u.series[s.id], u.newest = s, s
	}
	if !s.opened { // a Stream's fields do not change after its first Block
		s.opened, s.stream.Node = true, string(e.host)
	}
	return s
}

const (
	journalBatch = 250 * time.Millisecond // how long an entry may wait for others
	journalBlock = readSize               // bytes; with one more entry it is still at most blockSize
)

// take takes one line of journalctl: cut is how many of its bytes are missing between line and tail.
func (u *journalUnit) take(line, tail []byte, cut int64) error {
	e, ok := readEntry(line, tail, cut > 0)
	if !ok {
		u.meter.failed(errEntry)
		return nil
	}
	s := u.seriesOf(e)
	if e.number < s.next {
		return nil // it was read before
	}
	fresh := u.fresh
	u.came, u.fresh = true, false
	if fresh && u.cfg.From == "end" && e.time < uint64(max(0, u.began.UnixMicro())) {
		return u.passBy(s, e)
	}
	if s != u.current || len(u.block) >= journalBlock {
		if err := u.flush(); err != nil {
			return err
		}
	}
	if len(u.block) == 0 && len(u.skips) == 0 {
		u.current, u.from, u.first = s, s.next, u.rt.Now()
	}
	if cut > 0 {
		u.block = appendShortened(u.block, line, e)
		u.skips = append(u.skips, pipeline.Skip{At: int64(e.number), Bytes: cut, Reason: pipeline.SkipLongLine})
	} else {
		u.block = append(append(u.block, line...), '\n')
	}
	s.next = e.number + 1
	return nil
}

// passBy begins behind an entry that was there before the very first start.
func (u *journalUnit) passBy(s *journalSeries, e journalEntry) error {
	at := int64(e.number) + 1
	s.next = e.number + 1
	return u.emit(&pipeline.Block{Stream: s.stream, From: at, To: at})
}

// flush hands on what waits.
func (u *journalUnit) flush() error {
	if len(u.block) == 0 {
		return nil
	}
	b := &pipeline.Block{
		Stream: u.current.stream, Data: u.block, From: int64(u.from), To: int64(u.current.next), Skips: u.skips,
	}
	err := u.emit(b)
	if err == nil {
		u.meter.count(b)
	}
	u.block, u.skips = u.block[:0], u.skips[:0]
	return err
}

const journalPatience = 30 * time.Second // between two tries, at most

// run reads until ctx ends. The error is emit's.
func (u *journalUnit) run(ctx context.Context) error {
	u.setState(u.unit, "idle", "")
	wait := 4 * u.rt.Poll
	for ctx.Err() == nil {
		u.came = false
		err := u.pass(ctx)
		var broken putError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &broken):
			return broken.error
		}
		u.meter.failed(errRead)
		u.setState(u.unit, "unreadable", fmt.Sprint(err))
		if u.came {
			wait = 4 * u.rt.Poll
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, journalPatience)
	}
	return nil
}

// pass reads to the journal's end and then follows it. They are two children since journalctl --follow shows
// only the entries of the last boot.
func (u *journalUnit) pass(ctx context.Context) error {
	for _, u.follows = range [...]bool{false, true} {
		if err := u.child(ctx, u.arguments()); err != nil {
			return err
		}
	}
	return errors.New("journalctl ended")
}

// arguments are those of journalctl. --cursor and not --after-cursor: this one passes over the next entry
// when that of the cursor is gone (systemd 252). A cursor of these three keys names the entry in its series; journalctl
// finds the place in files of other series by the time.
func (u *journalUnit) arguments() []string {
	args := []string{
		"--output=json", "--all", "--no-pager", "--unit=" + u.unit,
		"--output-fields=MESSAGE,_HOSTNAME,_SYSTEMD_UNIT,SYSLOG_IDENTIFIER",
	}
	if u.cfg.Directory != "" {
		args = append(args, "--directory="+u.cfg.Directory)
	}
	switch s := u.newest; {
	case s != nil:
		args = append(args, fmt.Sprintf("--cursor=s=%s;i=%x;t=%x", s.id, s.next, s.begins))
	case u.cfg.From == "end" && !u.follows:
		args = append(args, "--lines=1")
	case u.cfg.From == "end":
		us := u.began.UnixMicro()
		args = append(args, fmt.Sprintf("--since=@%d.%06d", us/1e6, us%1e6))
	}
	if u.follows {
		args = append(args, "--follow", "--no-tail")
		if u.cfg.Directory != "" {
			args = append(args, "--merge") // of all machines and boots in it
		}
	}
	return args
}

package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// lookShare bounds what looking costs: the rest after a look is so many times as long as the look, up to
// maxRest: the first look at an archive takes long, and none may make squall look away for long.
const (
	lookShare = 20
	maxRest   = time.Second
)

// discover looks at paths and sizes until ctx ends. It reads nothing but first bytes.
func (f *files) discover(ctx context.Context) error {
	hint, err := newHint()
	if err != nil {
		f.noHint(err)
	}
	defer hint.close()
	f.wg.Go(hint.run)
	for first := true; ; first = false {
		began := f.rt.Now()
		f.look(hint)
		if first {
			f.telling.Unlock()
		}
		share := min(lookShare*f.rt.Now().Sub(began), maxRest)
		rest := time.NewTimer(max(f.pause(), share))
		least := time.NewTimer(max(f.rt.Poll/10, share))
		select {
		case <-ctx.Done():
			return nil
		case <-hint.changed:
			<-least.C
		case <-rest.C:
		}
	}
}

// calmAfter is for how many times Poll nothing may have changed until it is looked calmPause times less often. Many
// quiet logs are what a host mostly has, and looking is all that they cost.
const (
	calmAfter = 40
	calmPause = 4
)

// pause is the time from one look to the next when no event comes. While all is calm it is longer, but short beside the
// lateness: the first lines after it must not come too late. Names that change where there are no events are looked for
// as often as ever.
func (f *files) pause() time.Duration {
	if f.calm {
		return max(f.rt.Poll, min(calmPause*f.rt.Poll, f.cfg.Lateness/5))
	}
	return f.rt.Poll
}

// restless tells whether something is under way with a path that no event may tell the end of. f.mu is held.
func (f *files) restless() bool {
	for _, p := range f.paths {
		if p.gen == nil || p.state != "" {
			return true
		}
	}
	return f.polled > 0 || len(f.unfound) > 0 || len(f.stale) > 0 || len(f.unmatched) > 0
}

// restless is the same of a generation: what was read to its end and has not changed for long is not.
func (g *generation) restless(now time.Time, calm time.Duration) bool {
	return g.busy || g.failed != "" || len(g.lives) > 0 || !g.current && !g.rests || g.stream != nil && g.size != g.turned || now.Sub(g.changed) < calm
}

// noHint notes once that there are no (more) events of the kernel: polling alone finds everything, later.
func (f *files) noHint(err error) {
	if !f.hintErr {
		f.hintErr = true
		f.meter.failed(errInotify)
		f.log.Info("no inotify, polling alone", zap.Error(err))
	}
}

// hintAt watches the directories of the paths, and counts those where polling has to do.
func (f *files) hintAt(hint *hint, dirs map[string]bool) {
	polled := 0
	for dir := range dirs {
		local, asked := f.local[dir]
		if kind := int64(0); !asked {
			if kind = f.fsType(dir); kind == 0 { // it is not there
				continue
			}
			local = statSafe[kind]
			f.local[dir] = local
		}
		err := hint.watch(dir)
		if err == nil && !local {
			err = fmt.Errorf("%s: its file system may change without an event", dir)
		}
		if err != nil {
			polled++
			f.noHint(err)
		}
	}
	maps.DeleteFunc(f.local, func(dir string, _ bool) bool { return !dirs[dir] })
	f.polled = polled
	f.meter.polling.Set(float64(polled))
}

// look compares every path with what it led to, and every generation with its last size.
func (f *files) look(hint *hint) {
	began := f.rt.Now()
	if f.looks == 0 {
		f.seeking, f.looked = began, began
	}
	f.seek(began)
	seen := f.expand()
	if f.looks == 0 && len(f.known) > 0 {
		f.first = inodes(seen)
	}
	dirs := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(seen)) {
		p := f.paths[path]
		if p == nil {
			p = &followed{path: path, literal: seen[path], since: f.looked.Add(-clockTick)}
			f.mu.Lock()
			f.paths[path] = p
			f.mu.Unlock()
		}
		f.lookAt(p)
		dirs[filepath.Dir(path)] = true
	}
	f.hintAt(hint, dirs)
	f.missUnopened()
	gens := f.settle(seen)
	for _, g := range gens {
		f.examine(g)
	}
	f.missVanished()
	f.gauge(gens, began)
	f.looks++
	f.looked = began
}

// seek looks again for what a network file system has lost: under its name, or that of a rotated file.
func (f *files) seek(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range f.stale {
		f.unfound[id], f.seeking = true, now
	}
	f.stale = nil
}

// clockTick is how far the clock of a local file system is behind ours, at most: it ticks 100 times a second or more.
const clockTick = 10 * time.Millisecond

// settle decides which generations are current, and gives them all.
func (f *files) settle(seen map[string]bool) []*generation {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path, p := range f.paths {
		if _, ok := seen[path]; ok {
			continue
		}
		p.gen, p.state, p.err = nil, "missing", ""
		if _, held := f.gens[p.last]; (!held || p.last.rests) && len(p.unopened) == 0 { // else a new file of this name comes after it
			delete(f.paths, path)
			if _, err := os.Lstat(filepath.Dir(path)); isMissing(err) { // nor can rotated files come back
				delete(f.stems, path)
			}
		}
	}
	gens := slices.Collect(maps.Keys(f.gens))
	current := map[*generation]bool{}
	for _, p := range f.paths {
		current[p.gen] = true
	}
	for _, g := range gens {
		if g.current && !current[g] { // its writer does not know yet, however long it was quiet before
			g.changed = f.rt.Now()
		}
		g.current = current[g]
	}
	// What is to be read first is examined first: one that was empty may have its first lines now.
	slices.SortStableFunc(gens, func(a, b *generation) int { return cmp.Compare(a.depth(), b.depth()) })
	return gens
}

// depth is how many generations are to be read before it. files.mu is held.
func (g *generation) depth() (n int) {
	for at := g.after; at != nil && n < maxMoves; at = at.after {
		n++
	}
	return n
}

// expand gives the paths to follow; true for those that configuration names. Rotated files that a glob
// matches belong to the file that they were rotated from, once that was seen.
func (f *files) expand() map[string]bool {
	seen := map[string]bool{}
	for _, pattern := range f.cfg.Paths {
		if !isGlob(pattern) {
			seen[pattern] = true
			continue
		}
		matches, _ := filepath.Glob(pattern) // the pattern was checked, and what cannot be read is not there
		matches = slices.DeleteFunc(matches, f.excluded)
		f.match(pattern, len(matches) > 0)
		for _, path := range matches {
			if _, ok := seen[path]; !ok {
				seen[path] = false
			}
		}
	}
	rotated := map[string]bool{}
	for path, literal := range seen {
		r, ok := parseRotated(filepath.Base(path))
		if literal || !ok {
			continue
		}
		stem := filepath.Join(filepath.Dir(path), r.stem)
		if _, there := seen[stem]; there || f.paths[stem] != nil { // between a rename and a create it is not there
			f.stems[stem] = true
		}
		if (f.stems[stem] || r.packed || r.partial) && !(r.infix && f.growsAlone(path)) {
			delete(seen, path)
			rotated[path] = true
		}
	}
	maps.DeleteFunc(f.infixed, func(path string, _ *infixedLog) bool { _, ok := seen[path]; return !ok && !rotated[path] })
	for path := range f.paths { // what a glob found before and cannot list now may still be there
		if _, ok := seen[path]; ok || rotated[path] {
			continue
		}
		if _, err := os.Lstat(path); !isMissing(err) {
			seen[path] = false
		}
	}
	return seen
}

// excluded tells whether a path that a glob matches is one that the configuration leaves out, or was rotated from one.
func (f *files) excluded(path string) bool {
	if len(f.cfg.Exclude) == 0 {
		return false
	}
	stem := path
	if r, rotated := parseRotated(filepath.Base(path)); rotated {
		stem = filepath.Join(filepath.Dir(path), r.stem)
	}
	return slices.ContainsFunc(f.cfg.Exclude, func(pattern string) bool {
		fits, _ := filepath.Match(pattern, path) // the pattern was checked
		of, _ := filepath.Match(pattern, stem)
		return fits || of || pattern == path || pattern == stem
	})
}

// An infixedLog has a name like access.1.log beside an access.log.
type infixedLog struct {
	id    fileID
	size  int64
	grew  time.Time // when it was first seen to grow
	alone bool
}

// growsAlone tells whether access.1.log is a log of its own, and not what access.log was rotated to: it grows for longer
// than any copy is written, and is nothing that is held.
func (f *files) growsAlone(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	l := f.infixed[path]
	if l == nil || l.id != idOf(info) {
		l = &infixedLog{id: idOf(info), size: info.Size()}
		f.infixed[path] = l
	}
	grows, now := info.Size() > l.size, f.rt.Now()
	l.size = info.Size()
	if l.alone || !grows || f.holding(l.id) != nil {
		return l.alone
	}
	if l.grew.IsZero() {
		l.grew = now
	}
	if now.Sub(l.grew) < f.cfg.Quiet {
		return false
	}
	s := sibling{path: path, id: l.id, size: l.size}
	hash, err := siblingHash(s, f.limits)
	if err == nil {
		var copied bool
		copied, err = f.copyOfHeld(s, hash)
		l.alone = err == nil && !copied
	}
	return l.alone
}

// match notes whether a glob matches anything, and tells when it does not any more, and when it does again.
func (f *files) match(pattern string, any bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, before := f.unmatched[pattern]
	switch {
	case any && before:
		delete(f.unmatched, pattern)
		f.log.Info("a file matches", zap.String("path", pattern))
	case !any && !before:
		why := ""
		dir := filepath.Dir(pattern[:strings.IndexAny(pattern, `*?[\`)] + "x")
		if _, err := os.ReadDir(dir); err != nil {
			why = err.Error()
		}
		f.unmatched[pattern] = why
		f.log.Warn("no file matches, looking on", zap.String("path", pattern), zap.String("err", why))
	}
}

func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func isGlob(path string) bool { return strings.ContainsAny(path, `*?[\`) }

// lookAt sees where a path leads now.
func (f *files) lookAt(p *followed) {
	info, err := os.Stat(p.path)
	switch {
	case isMissing(err):
		f.lead(p, nil)
		f.setState(p, "missing", nil)
	case err != nil: // where it leads is not known: what it led to is kept
		f.meter.failed(errStat)
		f.setState(p, "unreadable", err)
	case !info.Mode().IsRegular():
		f.lead(p, nil)
		f.setState(p, "unreadable", fmt.Errorf("%s is not a regular file", p.path))
	case f.leadsTo(p, info):
		p.lastSeen = info.ModTime()
		f.setState(p, "", nil)
	default:
		f.arrive(p, info)
	}
}

// leadsTo tells whether a path leads to what it led to before. What was seen of the file then is not asked for again.
func (f *files) leadsTo(p *followed, info os.FileInfo) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.gen == nil || p.gen.id != idOf(info) {
		return false
	}
	p.gen.seen = info
	return true
}

func (f *files) lead(p *followed, g *generation) {
	f.mu.Lock()
	p.gen = g
	if g != nil {
		p.last = g
		g.current = true
	}
	f.mu.Unlock()
}

// arrive takes up the file that a path leads to since the last look, and before it the files that were
// rotated away in between.
func (f *files) arrive(p *followed, info os.FileInfo) {
	g, fresh, err := f.open(p.path)
	if err != nil {
		f.setState(p, "unreadable", err)
		if !isMissing(err) { // else it was rotated away this moment
			p.couldNotOpen(info)
		}
		return
	}
	f.setState(p, "", nil)
	if fresh && !f.comeAfter(p, g) { // else it comes after none that comes after it
		return
	}
	f.lead(p, g)
	p.lastSeen = g.mtime
}

// comeAfter places a file that a path leads to behind what was rotated away from it. Where its directory could not be
// looked into from a moment after it was opened, it is let go and false: it is found again, with what was not taken up yet.
func (f *files) comeAfter(p *followed, g *generation) bool {
	g.after = f.before(p, g)
	if !g.denied && !denied(p.path) {
		f.mayReplace(g, p.last)
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if g.after != nil {
		p.last = g.after
	}
	f.close(g)
	return false
}

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0) // a pipe must not block, a terminal not become ours
}

func (f *files) open(path string) (g *generation, fresh bool, err error) {
	file, err := openLog(path)
	if err != nil {
		f.meter.failed(errOpen)
		return nil, false, err
	}
	return f.take(path, file)
}

// take takes up a file. One that is held already, under whatever name, is the same generation.
func (f *files) take(path string, file *os.File) (g *generation, fresh bool, err error) {
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		file.Close()
		return nil, false, err
	}
	id := idOf(info)
	if held := f.holding(id); held != nil {
		file.Close()
		return held, false, nil
	}
	if !f.room() {
		file.Close()
		f.meter.failed(errLimit)
		if f.rt.Descriptors.full() {
			f.tellCrowded()
			return nil, false, fmt.Errorf("%d files are open: the limit of open files of the process", f.rt.Descriptors.Most())
		}
		return nil, false, fmt.Errorf("%d files are open: max_files", f.cfg.MaxFiles)
	}
	now := f.rt.Now()
	g = &generation{
		file: file, id: id, path: path, loner: !statSafe[f.fsType(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))],
		size: info.Size(), mtime: info.ModTime(), changed: now, grew: now, turned: -1,
	}
	f.identify(g, false)
	f.add(g)
	return g, true, nil
}

// room tells whether one more file may be held. Those that rest go first, the longest quiet of them.
func (f *files) room() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.gens) < f.cfg.MaxFiles && !f.rt.Descriptors.full() {
		return true
	}
	var oldest *generation
	for g := range f.gens {
		if g.rests && !g.current && !g.busy && (oldest == nil || g.changed.Before(oldest.changed)) {
			oldest = g
		}
	}
	if oldest != nil {
		f.close(oldest)
	}
	return oldest != nil
}

// tellCrowded tells once that files wait for descriptors.
func (f *files) tellCrowded() {
	if !f.crowded {
		f.crowded = true
		f.log.Warn("more files than the process may hold open: the rest waits; raise its limit of open files (ulimit -n, LimitNOFILE)",
			zap.Int("files", f.rt.Descriptors.Most()))
	}
}

// close lets a generation go. f.mu is held.
func (f *files) close(g *generation) {
	f.drop(g)
	g.file.Close()
}

func (f *files) add(g *generation) {
	f.mu.Lock()
	f.hold(g)
	f.mu.Unlock()
}

// hold and drop count the descriptors with the generations. f.mu is held.
func (f *files) hold(g *generation) {
	f.gens[g] = struct{}{}
	f.rt.Descriptors.add(1)
}

func (f *files) drop(g *generation) {
	if _, held := f.gens[g]; held {
		delete(f.gens, g)
		f.rt.Descriptors.add(-1)
	}
	g.ahead = true
}

func (f *files) holding(id fileID) *generation {
	f.mu.Lock()
	defer f.mu.Unlock()
	for g := range f.gens {
		if g.id == id && (g.file != nil || g.pack != nil) {
			return g
		}
	}
	return nil
}

// identify gives a generation its stream as soon as its first line is whole (or will never be), and its
// place in it: where an earlier run of squall stopped.
func (f *files) identify(g *generation, final bool) {
	complete, err := g.readIdentity()
	if err != nil {
		f.fail(g, err)
		return
	}
	if !complete && !final {
		return
	}
	next := 0
	if g.reborn && g.hash == g.past {
		next = g.nth + 1
	}
	off, last := int64(0), ""
	id := f.streamID(g.id, g.hash, next)
	for {
		at, known := f.positions.Position(id)
		if !known {
			break
		}
		delete(f.unfound, id)
		off, last, next = at, id, next+1
		id = f.streamID(g.id, g.hash, next)
	}
	if g.reborn {
		f.begin(g, id, next, 0)
		return
	}
	goesOn := last != "" && off <= g.size && f.provenAt(g.file, last, off)
	if !goesOn {
		off = 0
	}
	at, replaced := f.replaced(g, off)
	switch {
	case replaced:
		g.pending, off = []pipeline.Skip{}, at // an empty Block keeps the place
	case goesOn:
		id, next = last, next-1
	case last != "" && f.positions.Ended(last): // its inode was given to another file, which begins alike
	case last != "": // truncated since, and begun alike
		g.pending = append(g.pending, pipeline.Skip{Bytes: pipeline.Unknown, Reason: pipeline.SkipTruncated, Lost: true})
		g.doubted = last
	case f.movedDevice(g, &id, &off):
	case f.cfg.From == "end" && f.looks == 0 && len(f.known) == 0:
		off = f.firstPlace(g)
		g.pending = []pipeline.Skip{}
	}
	f.begin(g, id, next, off)
}

// begin places a generation in its stream.
func (f *files) begin(g *generation, id string, nth int, off int64) {
	g.nth = nth
	g.resumeAt(off)
	g.set(f.newStream(g.path, id))
}

// firstPlace is where a file that is there at the very first start is begun: at its end, or where another input was read
// to that has it or had it. That one may have been this, under another name.
func (f *files) firstPlace(g *generation) int64 {
	end, found := lineStart(g.file, g.size), int64(-1)
	for _, id := range f.positions.Streams("") {
		hash, ok := hashOf(id)
		if !ok || hash != g.hash || !sameInode(id, g.id) {
			continue
		}
		if at, known := f.positions.Position(id); known && at <= g.size && f.provenAt(g.file, id, at) {
			found = max(found, at)
		}
	}
	if found >= 0 {
		return found
	}
	return end
}

// movedDevice finds the stream of a generation whose device has another number since the machine booted, or whose ID
// was given by an older version.
func (f *files) movedDevice(g *generation, id *string, off *int64) bool {
	for _, old := range slices.Backward(f.known[g.hash]) {
		if at, ok := f.positions.Position(old); ok && sameInode(old, g.id) && at <= g.size && f.provenAt(g.file, old, at) {
			delete(f.unfound, old)
			*id, *off = old, at
			return true
		}
	}
	return false
}

// newStream describes what is found at path.
func (f *files) newStream(path, id string) *pipeline.Stream {
	s := &pipeline.Stream{Input: f.cfg.Name, ID: id, Path: path, Labels: f.cfg.Labels}
	if f.place != nil {
		f.place(path, s)
	}
	return s
}

// examine sees whether a generation grew, and gives it a turn when it did, or when its end has come.
func (f *files) examine(g *generation) {
	f.mu.Lock()
	file, info := g.file, g.seen
	if g.seen = nil; info != nil && idOf(info) != g.id { // a copy took its place since
		info = nil
	}
	if file == nil && !g.busy && f.mayRead(g) {
		f.enqueue(f.archives, g)
	}
	f.mu.Unlock()
	if file == nil {
		return
	}
	if len(g.lives) > 0 {
		if f.takeUpLives(g); len(g.lives) > 0 {
			return
		}
	}
	var err error
	if info == nil {
		info, err = file.Stat()
	}
	now := f.rt.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || g.file != file {
		return
	}
	if info.Size() > g.size {
		g.grew = now
	}
	if info.Size() == g.size && !info.ModTime().Equal(g.mtime) && !g.rests { // perhaps written over to the same size
		g.turned = -1
	}
	if info.Size() != g.size || !info.ModTime().Equal(g.mtime) {
		g.size, g.mtime, g.changed = info.Size(), info.ModTime(), now
	}
	g.peak = max(g.peak, g.size)
	g.unlinked = info.Sys().(*syscall.Stat_t).Nlink == 0
	if g.busy || now.Before(g.retry) {
		return
	}
	if g.rests && !f.wakes(g, now) {
		return
	}
	over := !g.current && now.Sub(g.changed) >= f.cfg.Quiet
	if over && g.size == 0 && g.stream == nil {
		f.close(g)
		return
	}
	if g.stream == nil && (g.size > 0 || over) {
		f.mu.Unlock()
		f.identify(g, over)
		f.mu.Lock()
		g.ahead = false
	}
	if g.stream == nil { // no line yet: nobody waits for it
		g.ahead = true
		return
	}
	if !f.mayRead(g) {
		return
	}
	if g.replaces != nil {
		f.mu.Unlock()
		ready := f.goOn(g)
		f.mu.Lock()
		if !ready {
			return
		}
	}
	if g.last = over && g.size == g.turned; g.last || g.size != g.turned {
		if g.turned < 0 && g.size > g.off {
			f.fresh = append(f.fresh, g)
		}
		f.enqueue(f.ready, g)
	}
}

// wakes tells whether a generation that rests has to be read on: it grew, or a path leads to it again. Otherwise it is let
// go in time. f.mu is held.
func (f *files) wakes(g *generation, now time.Time) bool {
	switch {
	case g.current || g.size > g.turned:
		g.rests = false
	case g.size < g.turned, g.unlinked, now.Sub(g.changed) >= resting: // nobody empties what he writes to
		f.close(g)
	}
	return !g.rests
}

// mayRead tells whether everything that comes before g was read to its end.
func (f *files) mayRead(g *generation) bool {
	if g.after != nil && g.after.ahead {
		g.after = nil
	}
	return g.after == nil
}

// setState logs each change of a path's condition once.
func (f *files) setState(p *followed, state string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.state == state && (state != "unreadable" || p.err == text) {
		return
	}
	had := p.state
	p.state, p.err = state, text
	switch {
	case state == "unreadable":
		f.log.Warn("cannot open file, trying on", zap.String("path", p.path), zap.Error(err))
	case state == "missing":
		f.log.Info("file is missing", zap.String("path", p.path))
	case had != "":
		f.log.Info("file is back", zap.String("path", p.path))
	}
}

func (f *files) gauge(gens []*generation, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calm = !f.restless()
	var lag, open, deleted int64
	for _, g := range gens {
		lag += g.lag()
		if g.file != nil {
			open++
		}
		if g.unlinked {
			deleted++
		}
		f.calm = f.calm && !g.restless(now, calmAfter*f.rt.Poll)
	}
	f.meter.lag.Set(float64(lag))
	f.meter.open.Set(float64(open))
	f.meter.deleted.Set(float64(deleted))
}

package source

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// rotatedName is what the name of a rotated file tells.
type rotatedName struct {
	stem    string // the name that it had
	number  int    // access.log.3: the higher, the older; -1 without
	date    string // access.log-20260101, 0.log.20260102-150405: in order of age
	packed  bool   // .gz, .zst, .bz2
	partial bool   // .tmp: being written
	infix   bool   // access.1.log: some logs have such names and were never rotated
}

var (
	infixed  = regexp.MustCompile(`^(.+?)\.(\d{1,5})(\.[A-Za-z]\w*)$`)
	numbered = regexp.MustCompile(`^(.+)\.(\d{1,5})$`)
	dated    = regexp.MustCompile(`^(.+?)[.-](\d{4}-?\d{2}-?\d{2}(?:[-_T.]?\d{2,10})?)(\.[A-Za-z]\w*)?$`)
)

// parseRotated reads the names that logrotate, kubelet and Docker give. ok is false for other names.
func parseRotated(name string) (r rotatedName, ok bool) {
	r.number = -1
	name, r.partial = strings.CutSuffix(name, ".tmp")
	for _, suffix := range []string{".gz", ".zst", ".bz2"} {
		if s, cut := strings.CutSuffix(name, suffix); cut {
			name, r.packed = s, true
		}
	}
	r.stem = name
	if m := numbered.FindStringSubmatch(name); m != nil {
		r.stem = m[1]
		r.number, _ = strconv.Atoi(m[2])
		return r, true
	}
	if m := dated.FindStringSubmatch(name); m != nil {
		r.stem, r.date = m[1]+m[3], m[2]
		return r, true
	}
	if m := infixed.FindStringSubmatch(name); m != nil {
		r.stem, r.infix = m[1]+m[3], true
		r.number, _ = strconv.Atoi(m[2])
		return r, true
	}
	return r, r.packed || r.partial
}

func unpackedName(name string) string { return strings.TrimSuffix(name, filepath.Ext(name)) }

// A sibling is a file that was rotated away from a followed path, or a copy of one.
type sibling struct {
	rotatedName
	path  string
	id    fileID
	size  int64
	mtime time.Time
}

// open opens it to be read, unpacked. fs.ErrNotExist says that its name is another's or nobody's by now: rotation goes on
// while squall looks, and what stands under its name then tells nothing of it.
func (s sibling) open(l limits) (io.ReadCloser, error) {
	file, err := os.Open(s.path)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || idOf(info) != s.id {
		file.Close()
		return nil, cmp.Or(err, fmt.Errorf("open %s: another file has its name: %w", s.path, fs.ErrNotExist))
	}
	return openFile(file, file, l)
}

// siblings lists them, oldest first. Where path is a link, they lie beside what it leads to or beside the link itself,
// and have the name of either: app.log leads to app-20260102.log, and led to app-20260101.log.
func siblings(path string) []sibling {
	found := siblingsIn(filepath.Split(path))
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		dir, stem := filepath.Split(real)
		found = append(found, siblingsIn(dir, stem)...)
		if link := filepath.Base(path); link != stem && dir != filepath.Dir(path)+"/" {
			found = append(found, siblingsIn(dir, link)...)
		}
	}
	slices.SortFunc(found, older)
	return slices.CompactFunc(found, func(a, b sibling) bool { return a.path == b.path })
}

// siblingsIn lists them in one directory. Rotation goes on meanwhile: a file may get the name of one that was listed
// already, and the directory is listed again then.
func siblingsIn(dir, stem string) (found []sibling) {
	for range maxMoves {
		before, err := os.Stat(dir)
		if err != nil {
			return nil
		}
		var whole bool
		if found, whole = listSiblings(dir, stem); !whole {
			continue
		}
		if after, err := os.Stat(dir); err != nil || after.ModTime().Equal(before.ModTime()) {
			break
		}
	}
	return found
}

// listSiblings lists them once; whole is false when one was gone before it was looked at.
func listSiblings(dir, stem string) (found []sibling, whole bool) {
	whole = true
	entries, _ := os.ReadDir(dir) // a directory that cannot be listed has none to offer
	plain := map[string]bool{}    // a file that is being packed is there twice
	for _, e := range entries {
		plain[e.Name()] = true
	}
	begin := strings.TrimSuffix(stem, filepath.Ext(stem)) // access.log: access-20260101.log
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), begin) { // others are many where many files are
			continue
		}
		r, ok := parseRotated(e.Name())
		if !ok || r.partial || r.stem != stem || e.Name() == stem || r.packed && plain[unpackedName(e.Name())] {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			whole = whole && !isMissing(err)
			continue
		}
		found = append(found, sibling{r, dir + e.Name(), idOf(info), info.Size(), info.ModTime()})
	}
	return found, whole
}

func older(a, b sibling) int {
	switch {
	case a.number >= 0 && b.number >= 0:
		return cmp.Or(cmp.Compare(b.number, a.number), cmp.Compare(a.path, b.path))
	case a.date != "" && b.date != "":
		return cmp.Or(cmp.Compare(a.date, b.date), cmp.Compare(a.path, b.path))
	}
	return cmp.Or(a.mtime.Compare(b.mtime), cmp.Compare(a.path, b.path))
}

// before finds what has to be read before the new file at a path, and gives the last of it.
func (f *files) before(p *followed, g *generation) *generation {
	f.mu.Lock()
	last := p.last
	f.mu.Unlock()
	if last != nil {
		return f.missed(p, g, last, p.lastSeen)
	}
	if len(f.known) > 0 {
		if prev := f.catchUp(p.path, g); prev != nil {
			return prev
		}
	}
	if f.looks > 0 { // it came, and perhaps was rotated, since the look before
		return f.missed(p, g, nil, p.since)
	}
	return nil // the first start ever: what was rotated away is history
}

// missed takes up the files that came and went between two looks: rotated files that were written since the
// last look at this path (the clock of a file system ticks in milliseconds: or at that look) and are unread. What is
// among them and cannot be read is a gap before g. So is what may have been deleted meanwhile: nothing proves that the
// oldest of them came next after the last file that was seen, unless that stands among them, too.
func (f *files) missed(p *followed, g, last *generation, since time.Time) *generation {
	path := p.path
	told := map[fileID]bool{}
	prev, linked := last, last == nil
	for moves := 1; ; moves++ {
		moved := false
		for _, s := range siblings(path) {
			if s.id == g.id { // rotated away itself by now: what comes after it is newer
				break
			}
			// bzip2 gives its archive the time of what it packs in whole seconds
			old := s.mtime.Before(since) && !(s.packed && !s.mtime.Before(since.Truncate(time.Second)))
			if old && !slices.ContainsFunc(p.unopened, func(u unopened) bool { return u.is(s) }) {
				continue
			}
			hash, ok, err := f.unread(s)
			if moved = isMissing(err) && moves < maxMoves; moved { // packed or rotated on meanwhile: it has another name
				break
			}
			linked = linked || s.id == last.id || hash == last.hash && err == nil
			switch {
			case err != nil && !told[s.id]:
				told[s.id] = true
				f.unreadable(g, s, err)
			case ok:
				prev = f.takeUp(path, s, hash, g, prev)
			}
		}
		if !moved {
			break
		}
	}
	if prev != last && !linked {
		f.log.Warn("rotated more often than files are kept: lines may be missing", zap.String("path", path))
		g.pending = append(g.pending, pipeline.Skip{
			At: g.off, Bytes: pipeline.Unknown, Reason: pipeline.SkipVanished, Lost: true,
		})
	}
	return prev
}

// unreadable notes before g that a rotated file which was not read cannot be. Where its directory cannot be looked into,
// nothing is known of it: g waits.
func (f *files) unreadable(g *generation, s sibling, err error) {
	f.meter.failed(errOpen)
	if denied(s.path) {
		g.denied = true
		return
	}
	f.log.Warn("cannot read a rotated file: its lines are missing", zap.String("path", s.path), zap.Error(err))
	skip := pipeline.Skip{At: g.off, Bytes: pipeline.Unknown, Reason: pipeline.SkipUnread, Lost: true}
	g.pending = append(g.pending, skip)
}

// denied tells whether what stands under a path cannot be known.
func denied(path string) bool {
	_, err := os.Lstat(path)
	return err != nil && !isMissing(err)
}

// unread tells whether a rotated file is neither held, nor a copy or an archive of what is held or was read to
// its end. The first line decides most of that; files that begin alike are compared. An error says that it cannot be
// read.
func (f *files) unread(s sibling) (hash uint64, ok bool, err error) {
	if f.holding(s.id) != nil {
		return 0, false, nil
	}
	hash, err = siblingHash(s, f.limits)
	if errors.Is(err, errNoLine) {
		return 0, false, nil
	}
	if err != nil {
		return hash, false, err
	}
	copied, err := f.copyOfHeld(s, hash)
	if !copied && err == nil {
		copied, err = f.copyOfRead(s, hash)
	}
	return hash, err == nil && !copied, err
}

const compareLimit = 64 << 10

func (f *files) copyOfHeld(s sibling, hash uint64) (bool, error) {
	var held []*os.File
	f.mu.Lock()
	for g := range f.gens {
		if g.file != nil && (g.stream == nil || g.hash == hash) { // without a stream it was empty when last seen
			held = append(held, g.file)
		}
	}
	f.mu.Unlock()
	if len(held) == 0 {
		return false, nil
	}
	mine, err := f.firstBytes(s)
	if err != nil {
		return false, err
	}
	theirs := make([]byte, len(mine))
	return slices.ContainsFunc(held, func(file *os.File) bool {
		n, _ := file.ReadAt(theirs, 0)
		return n == len(mine) && bytes.Equal(mine, theirs)
	}), nil
}

// firstBytes gives what a rotated file begins with. It had a line when it was listed: if it has none now, it is not that
// file any more.
func (f *files) firstBytes(s sibling) ([]byte, error) {
	r, err := s.open(f.limits)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data := make([]byte, compareLimit)
	n, err := io.ReadFull(r, data)
	if err = ignoreEOF(err); n == 0 && err == nil {
		err = fmt.Errorf("read %s: %w", s.path, fs.ErrNotExist)
	}
	return data[:n], err
}

// copyOfRead tells whether a stream that began alike, in another inode, was read exactly as far as s reaches.
// The inode's own stream goes on from where it was read to.
func (f *files) copyOfRead(s sibling, hash uint64) (bool, error) {
	for _, id := range f.positions.Streams(f.cfg.Name) {
		if h, ok := hashOf(id); !ok || h != hash || sameInode(id, s.id) && !s.packed {
			continue
		}
		if off, ok := f.positions.Position(id); ok {
			if ends, err := f.reaches(s, off); ends || isMissing(err) {
				return ends, err
			}
		}
	}
	return false, nil
}

// reaches tells whether s ends at off. An error says that an archive cannot be read that far.
func (f *files) reaches(s sibling, off int64) (bool, error) {
	if !s.packed {
		return s.size == off, nil
	}
	r, err := s.open(f.limits)
	if err != nil {
		return false, err
	}
	defer r.Close()
	n, err := io.Copy(io.Discard, io.LimitReader(r, off+1))
	return n == off, err
}

// catchUp takes up what was rotated away while squall was not running. The newest rotated file that an
// earlier run knew tells where to begin: in it, and then in all that are newer.
func (f *files) catchUp(path string, g *generation) (prev *generation) {
	all := f.listKnown(path, g)
	for moves := 1; moves < maxMoves && slices.ContainsFunc(all, knownFile.moved); moves++ {
		all = f.listKnown(path, g)
	}
	newest := len(all)
	for i, s := range all {
		if s.stream != "" {
			newest = i
		}
	}
	resumed := g.stream != nil && g.off > 0
	for i, s := range all {
		known := s.stream != ""
		switch {
		case known && (!s.packed || i == newest && !resumed):
			if s.packed || s.off < s.size {
				prev = f.takeUpFrom(path, s.sibling, s.hash, g, prev, s.stream, s.off)
			}
		case !known && (i > newest || newest == len(all) && f.sinceStored(s.sibling)) && !resumed && f.holding(s.id) == nil:
			switch {
			case s.err == nil:
				prev = f.takeUp(path, s.sibling, s.hash, g, prev)
			case !errors.Is(s.err, errNoLine):
				f.unreadable(g, s.sibling, s.err)
			}
		}
	}
	return prev
}

// knownFile is a rotated file with what an earlier run knew of it, if it did.
type knownFile struct {
	sibling
	hash   uint64
	stream string // the ID of the stream that it goes on; empty: no earlier run knew it
	off    int64  // how far that was read
	err    error  // why it cannot be read
}

// moved tells whether it had another name by the time that it was to be read.
func (k knownFile) moved() bool { return isMissing(k.err) }

// listKnown lists what was rotated away from path, oldest first.
func (f *files) listKnown(path string, g *generation) (all []knownFile) {
	for _, s := range siblings(path) {
		if s.id == g.id { // rotated away itself by now: what comes after it is newer
			break
		}
		known := knownFile{sibling: s}
		if f.holding(s.id) == nil {
			if known.hash, known.err = siblingHash(s, f.limits); known.err == nil {
				known.stream, known.off, _ = f.earlier(s, known.hash, g)
			}
		}
		if known.stream != "" {
			delete(f.unfound, known.stream)
			if known.stream == g.doubted { // here is what it was truncated to
				g.doubted, g.pending = "", nil
			}
		}
		all = append(all, known)
	}
	return all
}

// sinceStored tells whether a rotated file that no earlier run knew was written after the last one had stored its last
// line: it came and was rotated away while squall was down, and what would have led to it is gone.
func (f *files) sinceStored(s sibling) bool {
	return !f.stored.IsZero() && !s.mtime.Before(f.stored.Add(-clockTick))
}

// earlier finds the stream of an earlier run whose first bytes s has: the inode's own, else that of which s
// is a copy or an archive.
func (f *files) earlier(s sibling, hash uint64, current *generation) (id string, off int64, ok bool) {
	own := f.streamID(s.id, hash, 0)
	if off, ok := f.positions.Position(own); ok && f.siblingStands(s, own, off) {
		return own, off, true
	}
	for _, id := range slices.Backward(f.known[hash]) {
		if current.stream != nil && current.stream.ID == id {
			continue
		}
		if off, ok := f.positions.Position(id); ok && f.siblingStands(s, id, off) {
			return id, off, true
		}
	}
	return "", 0, false
}

// takeUp makes a file that was rotated away from path a generation that is read after prev and before next.
func (f *files) takeUp(path string, s sibling, hash uint64, next, prev *generation) *generation {
	return f.takeUpFrom(path, s, hash, next, prev, "", 0)
}

// takeUpFrom is takeUp for a file that goes on with the stream id at off. What cannot be opened is a gap before next.
func (f *files) takeUpFrom(path string, s sibling, hash uint64, next, prev *generation, id string, off int64) *generation {
	s, file, err := f.locate(path, s, hash)
	if err != nil {
		f.unreadable(next, s, err)
		return prev
	}
	var g *generation
	if s.packed {
		if id == "" {
			id = f.streamID(s.id, hash, 0)
		}
		g = &generation{pack: file, id: s.id, path: s.path, size: s.size, turned: -1, hash: hash, off: off}
		g.set(f.newStream(s.path, id))
		f.add(g)
	} else {
		opened, fresh, err := f.take(s.path, file)
		if err != nil {
			f.unreadable(next, s, err)
		}
		if err != nil || !fresh {
			return prev
		}
		g = opened
		if id != "" && g.stream != nil && off <= g.size {
			g.pending = nil
			g.resumeAt(off)
			g.set(f.newStream(s.path, id))
		}
	}
	g.after = prev
	return g
}

const maxMoves = 5

// locate opens a rotated file. Its name may be another by now, and it may be packed by now: rotation goes on while
// squall looks.
func (f *files) locate(path string, s sibling, hash uint64) (at sibling, file *os.File, err error) {
	for range maxMoves {
		if file, err := openLog(s.path); err == nil {
			if info, err := file.Stat(); err == nil && idOf(info) == s.id {
				s.size = info.Size()
				return s, file, nil
			}
			file.Close()
		} else if !isMissing(err) {
			return s, nil, err
		}
		all := siblings(path)
		i := slices.IndexFunc(all, func(o sibling) bool { return o.id == s.id })
		if i < 0 {
			i = slices.IndexFunc(all, func(o sibling) bool {
				h, err := siblingHash(o, f.limits)
				return o.packed && err == nil && h == hash
			})
		}
		if i < 0 {
			break
		}
		s = all[i]
	}
	return s, nil, fmt.Errorf("open %s: %w", s.path, fs.ErrNotExist)
}

// errNoLine says that a file holds no line: it identifies nothing, and nothing is missing without it.
var errNoLine = errors.New("the file holds no line")

// siblingHash identifies a rotated file by its first bytes, unpacked.
func siblingHash(s sibling, l limits) (hash uint64, err error) {
	if s.size == 0 {
		return 0, errNoLine
	}
	r, err := s.open(l)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	nuls, head, _, err := readHead(r)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", s.path, err)
	}
	if len(head) == 0 {
		return 0, errNoLine
	}
	return headHash(nuls, head), nil
}

// vanishWait is how long a file with a saved position is looked for when something that should be there is not: it may be
// on a disk that is not mounted yet.
const vanishWait = time.Minute

// missVanished tells of each file that an earlier run of squall had not read to its end and that is gone with all that
// could stand for it: it was rotated away for good, and what it held at the end is lost.
func (f *files) missVanished() {
	if len(f.unfound) == 0 || f.incomplete() {
		return
	}
	gone := slices.Sorted(maps.Keys(f.unfound))
	clear(f.unfound)
	if len(gone) == 0 {
		return
	}
	f.log.Warn("files that were not read to their end are gone", zap.Int("files", len(gone)))
	f.endStreams(gone, pipeline.Skip{Bytes: pipeline.Unknown, Reason: pipeline.SkipVanished, Lost: true})
}

// endStreams tells that streams of an earlier run end where they were read to, and what is missing there.
func (f *files) endStreams(ids []string, missing ...pipeline.Skip) {
	if len(ids) == 0 {
		return
	}
	f.wg.Go(func() { // the road may be full, and looking waits for nothing
		for _, id := range ids {
			off, _ := f.positions.Position(id)
			skips := slices.Clone(missing)
			for i := range skips {
				skips[i].At = off
			}
			err := f.emit(&pipeline.Block{
				Stream: &pipeline.Stream{Input: f.cfg.Name, ID: id, Labels: f.cfg.Labels}, From: off, To: off, Last: true,
				Skips: skips,
			})
			if err != nil {
				f.broken(err)
				return
			}
		}
	})
}

// incomplete tells whether more may be found: a path cannot be read, or leads nowhere, or a glob to nothing. Once that
// has been so for vanishWait, what was rotated away from such a path counts as found: it is read when the path is back.
func (f *files) incomplete() bool {
	long := f.rt.Now().Sub(f.seeking) >= vanishWait
	var missing []string
	f.mu.Lock()
	wait := len(f.unmatched) > 0 && !long
	for path, p := range f.paths {
		if p.gen == nil {
			missing = append(missing, path)
			wait = wait || !long || p.state == "unreadable"
		}
	}
	f.mu.Unlock()
	if wait {
		return true
	}
	for _, path := range missing {
		for _, s := range siblings(path) {
			if hash, err := siblingHash(s, f.limits); err == nil {
				id, _, _ := f.earlier(s, hash, &generation{})
				delete(f.unfound, id)
			}
		}
	}
	return false
}

// lineStart gives the offset of the last line that is not whole at size.
func lineStart(file *os.File, size int64) int64 {
	tail := make([]byte, min(size, pipeline.MaxLine))
	n, _ := file.ReadAt(tail, size-int64(len(tail)))
	return size - int64(len(tail)) + int64(strings.LastIndexByte(string(tail[:n]), '\n')+1)
}

package source

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// A log is often replaced by a copy of itself in a new inode: rsync, sed -i and editors do so. What was read of the old
// inode is passed over in the new one where it stands there byte for byte; in doubt the new one is read from its
// beginning. It is a stream of its own: who holds the old inode may go on writing into it.
type replacement struct {
	old   *generation
	size  int64     // of the new inode when it was found
	until time.Time // so long the old one's unread lines are waited for
}

// mayReplace notes that g, which a path leads to now, begins as what it led to before.
func (f *files) mayReplace(g, last *generation) {
	if last == nil || g.stream == nil || last.stream == nil || g.hash != last.hash || g.start != last.start {
		return
	}
	g.replaces = &replacement{old: last, size: g.size, until: f.rt.Now().Add(f.cfg.Quiet)}
}

// maxShort is how much the new inode may lack of what was read of the old one, as its part: who replaces a log that is
// being written misses its last lines.
const maxShort = 8

// goOn places g where the inode that it replaces was read to, if its bytes before that are the same. It is false while
// that one is still being read.
func (f *files) goOn(g *generation) bool {
	old := g.replaces.old
	f.mu.Lock()
	file := old.file
	f.mu.Unlock()
	done := old.done.Load()
	size := min(g.replaces.size, g.size)
	if file != nil {
		info, err := file.Stat()
		if err == nil && done < min(size, info.Size()) && f.rt.Now().Before(g.replaces.until) {
			return false
		}
	}
	g.replaces = nil
	at := min(done, size)
	if at < done {
		at = lineStart(g.file, at)
	}
	if file == nil || done-at > done/maxShort || at <= g.start+int64(len(g.head)) || at <= g.off {
		return true
	}
	mine, err := before(g.file, at, compareLimit)
	theirs, errOld := before(file, at, compareLimit)
	if err != nil || errOld != nil || !bytes.Equal(mine, theirs) || !distinct(mine) {
		return true
	}
	id := g.stream.ID
	for known := true; known; {
		if _, known = f.positions.Position(id); known {
			g.nth++
			id = f.streamID(g.id, g.hash, g.nth)
		}
	}
	f.continueAt(g, id, at)
	f.log.Info("the file was replaced by a copy of itself and is read on", zap.String("path", g.path), zap.Int64("offset", at))
	return true
}

// continueAt makes g the stream id, which goes on at off for another.
func (f *files) continueAt(g *generation, id string, off int64) {
	g.pending = []pipeline.Skip{} // an empty Block keeps the place
	g.resumeAt(off)
	g.set(f.newStream(g.path, id))
}

// replaced finds how far the inode that g stands for was read by an earlier run, where that inode is gone. Only what is
// beyond off counts. The streams whose place is proven in g have ended.
func (f *files) replaced(g *generation, off int64) (at int64, ok bool) {
	if f.looks > 0 {
		return 0, false
	}
	var ended []string
	for _, id := range f.known[g.hash] {
		a := f.positions.Anchor(id)
		to, known := f.positions.Position(id)
		if !known || a == 0 || f.positions.Ended(id) || to <= g.start+int64(len(g.head)) || to > g.size || f.isThere(id, g) {
			continue
		}
		if b, err := before(g.file, to, a.Len()); err == nil && a.Holds(b) && distinct(b) {
			ended = append(ended, id)
			delete(f.unfound, id)
			at = max(at, to)
		}
	}
	f.endStreams(ended)
	return at, at > off
}

// isThere tells whether the inode of a stream is g's own, or is among the files that are followed and those that were
// rotated from g's path.
func (f *files) isThere(id string, g *generation) bool {
	if sameInode(id, g.id) || slices.ContainsFunc(siblings(g.path), func(s sibling) bool { return sameInode(id, s.id) }) {
		return true
	}
	return slices.ContainsFunc(f.first, func(there fileID) bool { return sameInode(id, there) })
}

// inodes gives those that paths lead to.
func inodes(paths map[string]bool) (ids []fileID) {
	for path := range paths {
		if info, err := os.Stat(path); err == nil {
			ids = append(ids, idOf(info))
		}
	}
	return ids
}

// distinct tells whether lines show by themselves where they stand. Those of a log without times may be the same
// again in the next one.
func distinct(lines []byte) bool {
	const enough = 8
	seen, n := map[string]bool{}, 0
	for line := range bytes.Lines(lines) {
		n++
		if seen[string(line)] = true; len(seen) >= enough {
			return true
		}
	}
	return n == len(seen)
}

// before reads the n bytes before off, or all if they are fewer.
func before(r io.ReaderAt, off int64, n int) ([]byte, error) {
	b := make([]byte, min(int64(n), off))
	if got, err := r.ReadAt(b, off-int64(len(b))); got < len(b) {
		return nil, err
	}
	return b, nil
}

// provenAt tells whether a file has what stood before off when the stream id was read to there, as far as that is known.
func (f *files) provenAt(file io.ReaderAt, id string, off int64) bool {
	a := f.positions.Anchor(id)
	b, err := before(file, off, a.Len())
	return a == 0 || err == nil && a.Holds(b)
}

// siblingStands is provenAt for a rotated file.
func (f *files) siblingStands(s sibling, id string, off int64) bool {
	a := f.positions.Anchor(id)
	if a == 0 {
		return true
	}
	b, err := f.siblingBefore(s, off, a.Len())
	return err == nil && a.Holds(b)
}

// siblingBefore reads the n bytes before off, unpacked; io.EOF when it does not reach so far.
func (f *files) siblingBefore(s sibling, off int64, n int) ([]byte, error) {
	r, err := s.open(f.limits)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := make([]byte, min(int64(n), off))
	if _, err = io.CopyN(io.Discard, r, off-int64(len(b))); err == nil {
		_, err = io.ReadFull(r, b)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return b, err
}

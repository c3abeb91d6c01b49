package source

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/pipeline"
)

// fileID tells inodes apart while they exist. An inode is given again as soon as it is free: over time a
// fileID alone identifies nothing.
type fileID struct{ dev, ino uint64 }

func idOf(info os.FileInfo) fileID {
	st := info.Sys().(*syscall.Stat_t)
	return fileID{st.Dev, st.Ino}
}

// A generation is one inode from its first byte to its last, held by a descriptor of ours: no rename and no
// delete takes its unread lines away, and while it is held its inode is not given to another file.
//
// Who has set busy (under files.mu) owns all fields but those that are marked as shared.
type generation struct {
	file *os.File // nil for a compressed archive
	pack *os.File // the archive: its name goes to another when files are rotated on
	id   fileID
	path string // where it was found

	head    []byte // its first bytes: what tells it from what may be written over it
	start   int64  // the offset of head, behind a leading hole
	hash    uint64 // of start and head
	stream  *pipeline.Stream
	pending []pipeline.Skip // to be told first

	off      int64  // lines up to here were handed on
	over     int64  // how far behind off and cutAt an over-long line was passed over
	anchor   []byte // the bytes right before off: what tells that the file was truncated and grew again
	scratch  []byte
	loner    bool // the library must not follow it: its file system may fail on stat
	nth      int  // see streamID
	reborn   bool // it was written over another, whose hash was past
	past     uint64
	cut      *truncation
	replaces *replacement // the inode of which it may be a copy; until that is decided
	doubted  string       // the stream for which pending tells a gap
	lives    []sibling    // copies of what stood in this inode between the generation before and this one
	denied   bool         // what comes before it lies in a directory that could not be looked into

	// Shared, under files.mu.
	busy     bool        // queued or being read
	seen     os.FileInfo // under a path, in the look that goes on; nil: not yet
	after    *generation // is to be read first
	ahead    bool        // once read to its end: what comes after may be read
	current  bool        // a followed path leads here
	last     bool        // to be ended with this turn
	size     int64       // as last seen
	peak     int64       // the largest size seen
	mtime    time.Time   // as last seen
	changed  time.Time   // when size or mtime was last seen to change, by our clock
	grew     time.Time   // when size was last seen to grow
	turned   int64       // the size at which it was last read to its end; -1: it was not
	unlinked bool
	rests    bool   // it was read to its end and its end was told; a writer may still hold it
	failed   string // why it cannot be read, in words
	retry    time.Time

	behindTold atomic.Bool // that more of it lies unread was told last

	done  atomic.Int64                    // off, for those who do not own it
	shown atomic.Pointer[pipeline.Stream] // stream, for the same
}

func (g *generation) set(s *pipeline.Stream) {
	g.stream = s
	g.shown.Store(s)
}

// A truncation is what is known of the end of a generation that was written over.
type truncation struct {
	seen   int64 // how far it was seen to reach
	active bool  // it was being written: lines may have come behind its copy and behind what was seen
}

// behind tells what is missing behind the last line that was found of a generation.
func (g *generation) behind(end int64) []pipeline.Skip {
	if g.cut == nil || g.cut.seen <= end && !g.cut.active {
		return nil
	}
	s := pipeline.Skip{At: end, Bytes: g.cut.seen - end, Reason: pipeline.SkipTruncated, Lost: true}
	if s.Bytes <= 0 {
		s.Bytes = pipeline.Unknown
	}
	return []pipeline.Skip{s}
}

// headLimit bounds what identifies a generation: its first line that is no comment, if that is shorter.
// The first line alone is the same however much was written after it.
const (
	headLimit   = 1 << 10
	anchorLimit = pipeline.MaxAnchor
	maxLeadNULs = 64 << 20
)

// readHead reads what identifies a file: nuls bytes are passed over, then follow the first lines up to the
// first that does not begin with #. It is not complete while that line is not.
func readHead(r io.Reader) (nuls int64, head []byte, complete bool, err error) {
	br := bufio.NewReader(r)
	for nuls < maxLeadNULs {
		b, err := br.ReadByte()
		if err != nil {
			return nuls, nil, false, ignoreEOF(err)
		}
		if b != 0 {
			_ = br.UnreadByte()
			break
		}
		nuls++
	}
	head = make([]byte, headLimit)
	n, err := io.ReadFull(br, head)
	head = head[:n]
	for line := 0; ; {
		i := bytes.IndexByte(head[line:], '\n')
		if i < 0 {
			return nuls, head, n == headLimit, ignoreEOF(err)
		}
		comment := head[line] == '#'
		line += i + 1
		if !comment {
			return nuls, bytes.Clone(head[:line]), true, ignoreEOF(err)
		}
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// readIdentity fills head, start and hash.
func (g *generation) readIdentity() (complete bool, err error) {
	data, err := nextData(g.file, 0, g.size)
	if err != nil {
		return false, err
	}
	nuls, head, complete, err := readHead(io.NewSectionReader(g.file, data, 1<<62))
	g.start, g.head = data+nuls, head
	g.hash = headHash(g.start, head)
	return complete, err
}

func headHash(start int64, head []byte) uint64 {
	return xxhash.Sum64(strconv.AppendInt(bytes.Clone(head), start, 10))
}

// nextData gives the first offset from pos on that is not in a hole; size, when nothing but a hole follows.
func nextData(f *os.File, pos, size int64) (int64, error) {
	if pos >= size {
		return pos, nil
	}
	at, err := unix.Seek(int(f.Fd()), pos, unix.SEEK_DATA)
	switch err {
	case nil:
		return at, nil
	case unix.ENXIO:
		return size, nil
	case unix.EINVAL: // a file system without holes
		return pos, nil
	}
	return pos, fmt.Errorf("seek %s: %w", f.Name(), err)
}

// streamID is the name of a generation over restarts, renames and growth. Two inputs that reach one file, by links,
// have each its own. nth tells apart generations of one inode that begin alike: a file truncated and begun again with
// the same line. (Before the input was in it, the ID began with the device: what such a state knows is taken over.)
func (f *files) streamID(id fileID, hash uint64, nth int) string {
	s := fmt.Sprintf("%s/%x-%x-%016x", f.cfg.Name, id.dev, id.ino, hash)
	if nth > 0 {
		s += "+" + strconv.Itoa(nth)
	}
	return s
}

// hashOf gives the part of a stream's ID that its content decides.
func hashOf(streamID string) (hash uint64, ok bool) {
	part := streamID[strings.LastIndexByte(streamID, '-')+1:]
	part, _, _ = strings.Cut(part, "+")
	hash, err := strconv.ParseUint(part, 16, 64)
	return hash, err == nil && len(part) == 16
}

// sameInode tells whether a stream's ID names this inode, on whatever device: device numbers change when a
// machine boots.
func sameInode(streamID string, id fileID) bool {
	parts := strings.Split(streamID[strings.LastIndexByte(streamID, '/')+1:], "-")
	return len(parts) == 3 && parts[1] == strconv.FormatUint(id.ino, 16)
}

// unchanged tells whether the file still begins with head and still has anchor before off. It is asked after
// each read and before what was read is handed on: the bytes are then those of this generation, not of one
// that was written over it.
func (g *generation) unchanged() bool {
	if g.scratch == nil {
		g.scratch = make([]byte, max(headLimit, anchorLimit))
	}
	return same(g.file, g.start, g.head, g.scratch) &&
		same(g.file, g.off-int64(len(g.anchor)), g.anchor, g.scratch)
}

func same(f io.ReaderAt, at int64, want, scratch []byte) bool {
	got := scratch[:len(want)]
	n, _ := f.ReadAt(got, at)
	return n == len(want) && bytes.Equal(got, want)
}

// anchorAt moves anchor to the end of b.
func (g *generation) anchorAt(b *pipeline.Block) {
	if len(b.Skips) > 0 {
		g.anchor = g.anchor[:0]
	} else if n := len(b.Data); n >= anchorLimit {
		g.anchor = append(g.anchor[:0], b.Data[n-anchorLimit:]...)
	} else {
		keep := min(len(g.anchor), anchorLimit-n)
		g.anchor = append(g.anchor[:copy(g.anchor, g.anchor[len(g.anchor)-keep:])], b.Data...)
	}
}

// advance moves off behind b, which was handed on.
func (g *generation) advance(b *pipeline.Block) {
	g.off = b.To
	g.done.Store(g.off)
}

// resumeAt places the generation at an offset that was read before.
func (g *generation) resumeAt(off int64) {
	g.off = off
	g.done.Store(off)
	g.anchor = make([]byte, min(off, anchorLimit), anchorLimit)
	if n, _ := g.file.ReadAt(g.anchor, off-int64(len(g.anchor))); n < len(g.anchor) {
		g.anchor = g.anchor[:0]
	}
}

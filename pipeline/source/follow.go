package source

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nxadm/tail"
	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/pipeline"
)

const (
	followUpTo   = 64 << 10  // a file that grew by more since the last look is read in blocks
	followBatch  = 256 << 10 // bytes of lines in one Block
	followWait   = 250 * time.Millisecond
	followTick   = 50 * time.Millisecond
	followStuck  = time.Second
	followIdle   = 30 * time.Second
	followBehind = 1 << 20 // bytes
)

// follows hands a generation that stands at its end to the library, if that is safe.
//
// github.com/nxadm/tail closes a file as soon as it was renamed, reads what was written over a truncated
// file from the wrong place, and exits the process when stat fails. So it is given one inode and nothing to
// decide: the name /proc/self/fd/N of our own descriptor, which leads to the same inode whatever happens to
// any path and whose stat asks no directory. What is left of its decisions is checked for each line
// (follow) and for each Block (unchanged), and it is stopped when it falls behind or a line outgrows the
// limit that it does not have.
func (f *files) follows(ctx context.Context, g *generation, size int64) bool {
	f.mu.Lock()
	current := g.current
	f.mu.Unlock()
	if g.loner || !current || g.over > 0 || size-g.off > followUpTo || f.rt.Descriptors.full() {
		return false
	}
	if f.followers.Add(1) > f.limits.followers {
		f.followers.Add(-1)
		return false
	}
	t, err := tail.TailFile(fmt.Sprintf("/proc/self/fd/%d", g.file.Fd()), tail.Config{
		Location: &tail.SeekInfo{Offset: g.off, Whence: io.SeekStart},
		Follow:   true, Poll: true, CompleteLines: true, MustExist: true,
		Logger: tail.DiscardingLogger,
	})
	if err != nil { // to open it again needs the permission again
		f.followers.Add(-1)
		g.loner = true
		return false
	}
	f.mu.Lock()
	g.ahead = true
	f.mu.Unlock()
	f.meter.following.Inc()
	f.rt.Descriptors.add(1) // the library's own
	f.wg.Go(func() {
		if err := f.follow(ctx, g, t.Lines); err != nil {
			f.broken(err)
		}
		_ = t.Stop() // what it fails of, the next turn finds
		f.unfollow.Store(f.rt.Now().UnixNano())
		f.followers.Add(-1)
		f.meter.following.Dec()
		f.rt.Descriptors.add(-1)
		f.mu.Lock()
		g.busy, g.turned = false, -1
		f.mu.Unlock()
	})
	return true
}

// follow makes Blocks of the library's lines. When it returns, the generation is read on in blocks from off:
// lines that were not handed on are read again. The error is emit's.
func (f *files) follow(ctx context.Context, g *generation, lines <-chan *tail.Line) error {
	tick := time.NewTicker(followTick)
	defer tick.Stop()
	w := watched{since: f.rt.Now(), grown: f.rt.Now()}
	var batch []byte
	flush := func() (ok bool, err error) {
		if len(batch) == 0 {
			return true, nil
		}
		if !g.unchanged() {
			return false, nil
		}
		err = f.put(g, &pipeline.Block{Stream: g.stream, Data: batch, From: g.off, To: g.off + int64(len(batch))})
		batch = batch[:0]
		return err == nil, err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case line, open := <-lines:
			if !open || !fits(line, g.off+int64(len(batch))) {
				_, err := flush()
				return err
			}
			if len(batch) == 0 {
				w.since = f.rt.Now()
			}
			batch = append(append(batch, line.Text...), '\n')
			w.busy = true
			if len(batch) < followBatch {
				continue
			}
			if ok, err := flush(); !ok {
				return err
			}
		case <-tick.C:
			now := f.rt.Now()
			if !w.busy || now.Sub(w.since) >= followWait {
				if ok, err := flush(); !ok {
					return err
				}
			}
			if !f.stays(g, int64(len(batch)), now, &w) {
				_, err := flush()
				return err
			}
			w.busy = false
		}
	}
}

// fits tells whether a line is the one that begins at off: the library starts again from 0 when it sees a
// truncation. Lines with NULs and over-long lines are for the cutter.
func fits(line *tail.Line, off int64) bool {
	return line.Err == nil && line.SeekInfo.Offset == off+int64(len(line.Text))+1 &&
		len(line.Text) < pipeline.MaxLine && strings.IndexByte(line.Text, 0) < 0
}

// watched is what a follower saw at its last tick.
type watched struct {
	busy  bool // a line came since
	since time.Time
	size  int64
	grown time.Time
	mtime time.Time
}

// stays tells whether the library may go on with the file.
func (f *files) stays(g *generation, pending int64, now time.Time, w *watched) bool {
	f.mu.Lock()
	current := g.current
	f.mu.Unlock()
	info, err := g.file.Stat()
	if err != nil || !current {
		return false
	}
	switch before := w.mtime; {
	case before.IsZero() && !g.unchanged(): // since it was read
		return false
	case !before.IsZero() && info.Size() == w.size && !info.ModTime().Equal(before): // perhaps written over to the same size
		return false
	}
	w.mtime = info.ModTime()
	if info.Size() != w.size {
		w.size, w.grown = info.Size(), now
	}
	rest, still := w.size-g.off-pending, now.Sub(w.grown)
	switch {
	case rest < 0, rest > followBehind, still > followIdle:
		return false
	case rest > pipeline.MaxLine && !w.busy: // a line that does not end
		return false
	case rest > 0 && still > followStuck: // it did not see the change, or half a line is all there is
		unread := make([]byte, rest)
		n, _ := g.file.ReadAt(unread, g.off+pending)
		return bytes.IndexByte(unread[:n], '\n') < 0
	}
	return true
}

// statSafe lists the file systems whose stat of an open file asks nobody else: with NFS, CIFS and FUSE it can
// fail, and the library would exit the process. Where somebody else may write there are no events of it either.
var statSafe = map[int64]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true,
	unix.TMPFS_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true,
	0x2fc12fc1: true, // ZFS
}

// fileSystem gives the type of the file system at a path, 0 when that cannot be asked.
func fileSystem(path string) int64 {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) != nil {
		return 0
	}
	return fs.Type
}

func hasHoles(info os.FileInfo) bool {
	return info.Sys().(*syscall.Stat_t).Blocks*512 < info.Size()
}

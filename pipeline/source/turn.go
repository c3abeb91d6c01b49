package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/pipeline"
)

// read takes turns at the generations that have something to read.
func (f *files) read(ctx context.Context) error {
	c := newCutter()
	for {
		select {
		case <-ctx.Done():
			return nil
		case g := <-f.ready:
			if err := f.announce(); err != nil {
				return err
			}
			if err := f.turn(ctx, g, c); err != nil {
				return err
			}
		}
	}
}

// announce tells of the generations that wait for their first turn, so that event time does not pass them by while
// others are read.
func (f *files) announce() error {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.mu.Lock()
	fresh := f.fresh
	f.fresh = nil
	f.mu.Unlock()
	for _, g := range fresh {
		if err := f.tellBehind(g, true); err != nil {
			return err
		}
	}
	return nil
}

// tellBehind tells whether more of a generation lies unread, where that has changed.
func (f *files) tellBehind(g *generation, behind bool) error {
	if g.behindTold.Swap(behind) == behind {
		return nil
	}
	return f.emit(&pipeline.Block{Stream: g.stream, From: g.off, To: g.off, Behind: behind})
}

// turn reads on in one generation, for limits.turn bytes at most, and decides what becomes of it. The error
// is emit's.
func (f *files) turn(ctx context.Context, g *generation, c *cutter) error {
	before := g.off
	size, end, err := f.readBlocks(ctx, g, c)
	var failed readError
	switch {
	case errors.Is(err, errTruncated):
		return f.truncated(g, c)
	case errors.As(err, &failed):
		err := f.tellBehind(g, false) // nobody waits for what cannot be read
		f.fail(g, failed.error)
		return err
	case err != nil:
		return err
	}
	if end {
		if err := f.tellBehind(g, false); err != nil {
			return err
		}
	}
	progress := g.off - before
	if end && f.endsNow(g, progress) {
		return f.retire(g, c, size)
	}
	if end && progress > 0 && progress <= followUpTo && f.follows(ctx, g, size) {
		return nil
	}
	f.yield(g, size, end)
	return nil
}

var errTruncated = errors.New("the file was truncated")

// readError marks the errors of reading among those of emit.
type readError struct{ error }

// readBlocks reads from where the generation stands towards its end, in blocks.
func (f *files) readBlocks(ctx context.Context, g *generation, c *cutter) (size int64, end bool, err error) {
	info, err := g.file.Stat()
	if err != nil {
		return 0, false, readError{err}
	}
	size = info.Size()
	put := func(b *pipeline.Block) error {
		b.Behind = c.next() < size
		g.behindTold.Store(b.Behind)
		return f.put(g, b)
	}
	c.reset(g.stream, g.off, put)
	if err := f.tellPending(g); err != nil {
		return 0, false, err
	}
	if g.over > 0 {
		if n, _ := g.file.ReadAt(c.space()[:cutAt], g.off); n < cutAt {
			return 0, false, errTruncated
		}
		c.buf, c.over = c.buf[:cutAt], g.over
	}
	if size < c.next() {
		return 0, false, errTruncated
	}
	sparse := hasHoles(info)
	for budget := f.limits.turn; budget > 0 && ctx.Err() == nil; {
		if sparse {
			data, err := nextData(g.file, c.next(), size)
			if err != nil {
				return 0, false, readError{err}
			}
			if hole := data - c.next(); hole > 0 && data < size {
				if err := c.gap(hole); err != nil {
					return 0, false, err
				}
			}
		}
		space := c.space()
		n, err := g.file.ReadAt(space[:min(readSize, len(space))], c.next())
		if err != nil && err != io.EOF {
			return 0, false, readError{err}
		}
		if !g.unchanged() {
			return 0, false, errTruncated
		}
		if err := c.took(n); err != nil {
			return 0, false, err
		}
		budget -= int64(n)
		if err == io.EOF {
			end = true
			break
		}
	}
	g.over = c.over
	return max(size, c.next()), end, c.tellNULs()
}

// tellPending hands on what is known to be missing before the first line.
func (f *files) tellPending(g *generation) error {
	if g.pending == nil {
		return nil
	}
	skips := g.pending
	g.pending = nil
	return f.put(g, &pipeline.Block{Stream: g.stream, From: g.off, To: g.off, Skips: skips, Behind: g.behindTold.Load()})
}

// put hands a Block on; the generation stands behind it then.
func (f *files) put(g *generation, b *pipeline.Block) error {
	g.anchorAt(b)
	b.Anchor = pipeline.AnchorOf(g.anchor)
	if err := f.emit(b); err != nil {
		return err
	}
	f.meter.count(b)
	g.advance(b)
	return nil
}

// endsNow tells whether this was the last turn. Who wrote since the end was ordered is still there.
func (f *files) endsNow(g *generation, progress int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := g.last && progress == 0
	g.last = false
	return last
}

// retire ends a generation that is drained, quiet and not current.
func (f *files) retire(g *generation, c *cutter, size int64) error {
	var skips []pipeline.Skip
	if hole := size - c.next(); hole > 0 {
		skips = append(skips, pipeline.Skip{At: c.next(), Bytes: hole, Reason: pipeline.SkipNUL})
	}
	if err := c.finish(append(skips, g.behind(max(size, c.next()))...)...); err != nil {
		return err
	}
	if !f.rest(g, max(size, c.next())) {
		f.forget(g)
		g.file.Close()
	}
	return nil
}

// rest keeps a generation that has ended, for as long as resting: a server that was told to stop and waits for its last
// clients writes into the old file until they are gone. A file without a name is let go, since it takes up the disk.
func (f *files) rest(g *generation, size int64) bool {
	info, err := g.file.Stat()
	if err != nil || info.Sys().(*syscall.Stat_t).Nlink == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	g.busy, g.ahead, g.rests, g.turned = false, true, true, size
	return true
}

// resting is how long that is.
const resting = time.Hour

func (f *files) forget(g *generation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(g)
}

// yield gives the generation back: to the end of the queue while there is more, else to the look.
func (f *files) yield(g *generation, size int64, end bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g.failed != "" {
		g.failed = ""
		f.log.Info("file is readable again", zap.String("path", g.path))
	}
	if !end {
		f.enqueue(f.ready, g)
		return
	}
	g.busy, g.ahead, g.turned = false, true, size
}

// enqueue gives a generation its place in a queue. A full queue is no loss: the next look tries again.
func (f *files) enqueue(queue chan *generation, g *generation) {
	g.busy = true
	select {
	case queue <- g:
	default:
		g.busy, g.turned = false, -1
	}
}

const retryRead = time.Second

// fail keeps a generation that cannot be read: it is tried again for ever. What comes after does not wait.
func (f *files) fail(g *generation, err error) {
	f.meter.failed(errRead)
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(err, unix.ESTALE) { // a network file system lost it: what its path leads to is opened anew
		if g.stream != nil {
			f.stale = append(f.stale, g.stream.ID)
		}
		for _, p := range f.paths {
			if p.gen == g {
				p.gen, p.last = nil, nil
			}
		}
		f.close(g)
		return
	}
	if g.failed == "" {
		f.log.Warn("cannot read file, trying on", zap.String("path", g.path), zap.Error(err))
	}
	g.failed = fmt.Sprint(err)
	g.busy, g.ahead, g.turned, g.retry = false, true, -1, f.rt.Now().Add(retryRead)
}

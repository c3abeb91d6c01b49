package source

import (
	"bytes"
	"errors"
	"io"
	"os"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// truncated ends a generation that was written over. Its unread lines may be in a copy (logrotate's
// copytruncate); if not, they are gone and told to be. What is written over it is a new generation of the
// same inode, read after the rest.
func (f *files) truncated(g *generation, c *cutter) error {
	copied, found := f.findCopy(g)
	f.log.Info("file was truncated", zap.String("path", g.path), zap.Bool("copy_found", found))
	f.replace(g)
	f.mu.Lock()
	seen := max(g.peak, g.off)
	g.file, g.over = nil, 0
	f.mu.Unlock()
	switch {
	case found && copied.packed:
		f.mu.Lock()
		g.path = copied.path
		f.enqueue(f.archives, g)
		f.mu.Unlock()
		return nil
	case found && copied.size > g.off:
		file, err := os.Open(copied.path)
		if err != nil {
			f.meter.failed(errOpen)
			break
		}
		f.mu.Lock()
		g.file, g.id, g.path = file, copied.id, copied.path
		g.lost = max(0, seen-copied.size) // lines that came after the copy was made
		g.changed, g.size = f.rt.Now(), copied.size
		f.enqueue(f.ready, g)
		f.mu.Unlock()
		return nil
	}
	var lost []pipeline.Skip
	if n := seen - g.off; n > 0 {
		lost = append(lost, pipeline.Skip{At: g.off, Bytes: n, Reason: pipeline.SkipTruncated, Lost: true})
	} else if !found {
		lost = append(lost, pipeline.Skip{
			At: g.off, Bytes: pipeline.Unknown, Reason: pipeline.SkipTruncated, Lost: true,
		})
	}
	c.reset(g.stream, g.off, func(b *pipeline.Block) error { return f.put(g, b) })
	err := c.finish(lost...)
	f.forget(g)
	return err
}

// replace puts a new generation of the same inode in the place of g.
func (f *files) replace(g *generation) {
	next := &generation{
		file: g.file, id: g.id, path: g.path, loner: g.loner, nth: g.nth, reborn: true, past: g.hash,
		changed: f.rt.Now(), turned: -1, after: g,
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gens[next] = struct{}{}
	for _, p := range f.paths {
		if p.gen == g {
			p.gen, next.current = next, true
		}
		if p.last == g {
			p.last = next
		}
	}
	g.current, g.ahead, g.turned = false, false, -1
}

// findCopy looks among the rotated files for one that begins as g did and holds what comes before g.off.
func (f *files) findCopy(g *generation) (s sibling, found bool) {
	all := siblings(g.path)
	for i := len(all) - 1; i >= 0; i-- {
		s := all[i]
		if s.id == g.id || f.holding(s.id) != nil {
			continue
		}
		if hash, ok := siblingHash(s, f.limits); ok && hash == g.hash && f.continues(s, g) {
			return s, true
		}
	}
	return sibling{}, false
}

// continues tells whether a copy has the same bytes before g.off, or ends before that.
func (f *files) continues(s sibling, g *generation) bool {
	if !s.packed && s.size <= g.off {
		return true
	}
	r, err := openLimited(s.path, f.limits)
	if err != nil {
		return false
	}
	defer r.Close()
	before, got := g.off-int64(len(g.anchor)), make([]byte, len(g.anchor))
	if _, err := io.CopyN(io.Discard, r, before); err != nil {
		return errors.Is(err, io.EOF)
	}
	_, err = io.ReadFull(r, got)
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || err == nil && bytes.Equal(got, g.anchor)
}

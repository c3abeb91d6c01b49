package source

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// truncated ends a generation that was written over. Its unread lines may be in a copy (logrotate's
// copytruncate); if not, they are gone and told to be. What is written over it is a new generation of the
// same inode, read after the rest.
func (f *files) truncated(g *generation, c *cutter) error {
	s, file, newer, found := f.findCopy(g) // the file becomes g's, or is closed
	f.log.Info("file was truncated", zap.String("path", g.path), zap.Bool("copy_found", found))
	f.replace(g, newer)
	f.mu.Lock()
	quiet := f.rt.Now().Sub(g.grew) >= f.cfg.Quiet && (s.packed || s.size <= g.peak)
	g.cut = &truncation{seen: max(g.peak, g.off), active: !found || !quiet}
	g.file, g.over = nil, 0
	switch {
	case found && s.packed:
		g.pack, g.id, g.path = file, s.id, s.path
		f.enqueue(f.archives, g)
	case found && s.size > g.off:
		g.file, g.id, g.path = file, s.id, s.path
		g.changed, g.size = f.rt.Now(), s.size
		f.enqueue(f.ready, g)
	default:
		found = false
	}
	f.mu.Unlock()
	if found {
		return nil
	}
	if file != nil {
		file.Close()
	}
	c.reset(g.stream, g.off, func(b *pipeline.Block) error { return f.put(g, b) })
	err := c.finish(g.behind(g.off)...)
	f.forget(g)
	return err
}

// replace puts a new generation of the same inode in the place of g.
func (f *files) replace(g *generation, lives []sibling) {
	now := f.rt.Now()
	next := &generation{
		file: g.file, id: g.id, path: g.path, loner: g.loner, nth: g.nth, reborn: true, past: g.hash,
		changed: now, grew: now, turned: -1, after: g, lives: lives,
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold(next)
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

// findCopy looks among the rotated files for one that begins as g did and holds what comes before g.off. It is
// opened. What was rotated after it was truncated before the next look, too: newer.
func (f *files) findCopy(g *generation) (s sibling, file *os.File, newer []sibling, found bool) {
	moved := true
	for moves := 0; moved && moves < maxMoves; moves++ {
		moved = false
		all := siblings(g.path)
		for i := len(all) - 1; i >= 0; i-- {
			s := all[i]
			if s.id == g.id || f.holding(s.id) != nil {
				continue
			}
			isCopy, err := f.isCopy(s, g)
			moved = moved || isMissing(err)
			if !isCopy {
				continue
			}
			if at, file, err := f.locate(g.path, s, g.hash); err == nil {
				return at, file, all[i+1:], true
			}
		}
	}
	return sibling{}, nil, nil, false
}

// takeUpLives takes up the copies of what stood in g's inode before g and after what was read of it. What was written
// behind each copy was truncated with what it is a copy of. Those that cannot be looked for now stay in lives.
func (f *files) takeUpLives(g *generation) {
	prev, there := g.after, siblings(g.path)
	for len(g.lives) > 0 {
		s := g.lives[0]
		if i := slices.IndexFunc(there, func(o sibling) bool { return o.id == s.id }); i >= 0 { // rotated on meanwhile
			s = there[i]
		}
		hash, ok, err := f.unread(s)
		if err != nil {
			f.unreadable(g, s, err)
		}
		if ok {
			if life := f.takeUp(g.path, s, hash, g, prev); life != prev {
				life.cut = &truncation{active: true}
				prev = life
			}
		}
		if g.denied {
			g.denied = false
			break
		}
		g.lives = g.lives[1:]
	}
	f.mu.Lock()
	g.after = prev
	f.mu.Unlock()
}

// isCopy tells whether a rotated file begins as g did, and has the same bytes before g.off or ends before that.
func (f *files) isCopy(s sibling, g *generation) (bool, error) {
	hash, err := siblingHash(s, f.limits)
	if err != nil || hash != g.hash {
		return false, err
	}
	if !s.packed && s.size <= g.off {
		return true, nil
	}
	got, err := f.siblingBefore(s, g.off, len(g.anchor))
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return err == nil && bytes.Equal(got, g.anchor), err
}

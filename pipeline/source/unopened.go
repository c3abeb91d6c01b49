package source

import (
	"fmt"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// An unopened file was seen under a path and could not be opened: for want of permission or of descriptors.
type unopened struct {
	id    fileID
	size  int64 // as last seen
	mtime time.Time
}

// is tells whether a rotated file may be it, perhaps packed.
func (u unopened) is(s sibling) bool {
	return s.id == u.id || s.packed && !s.mtime.Before(u.mtime.Truncate(time.Second))
}

// couldNotOpen notes that what stands under a path could not be opened.
func (p *followed) couldNotOpen(info os.FileInfo) {
	u := unopened{idOf(info), info.Size(), info.ModTime()}
	if i := slices.IndexFunc(p.unopened, func(o unopened) bool { return o.id == u.id }); i >= 0 {
		p.unopened[i] = u
	} else if u.size > 0 {
		p.unopened = append(p.unopened, u)
	}
}

// missUnopened tells of each file that could never be opened and is gone by now.
func (f *files) missUnopened() {
	for _, p := range f.paths { // which this goroutine alone changes
		if len(p.unopened) == 0 {
			continue
		}
		info, err := os.Stat(p.path)
		if err != nil && !isMissing(err) {
			continue
		}
		rotated := siblings(p.path)
		p.unopened = slices.DeleteFunc(p.unopened, func(u unopened) bool {
			switch {
			case f.holding(u.id) != nil:
				return true
			case err == nil && idOf(info) == u.id:
				return false
			case slices.ContainsFunc(rotated, u.is):
				return p.gen != nil // what the path leads to brought it along, or the next file will
			}
			f.tellUnopened(p.path, u)
			return true
		})
	}
}

func (f *files) tellUnopened(path string, u unopened) {
	f.log.Warn("a file that could not be opened is gone: its lines are missing", zap.String("path", path))
	s := f.newStream(path, fmt.Sprintf("%s/%x-%x-unopened-%d", f.cfg.Name, u.id.dev, u.id.ino, u.mtime.UnixNano()))
	f.wg.Go(func() { // the road may be full, and looking waits for nothing
		err := f.emit(&pipeline.Block{Stream: s, To: u.size, Last: true, Skips: []pipeline.Skip{
			{Bytes: u.size, Reason: pipeline.SkipVanished, Lost: true},
		}})
		if err != nil {
			f.broken(err)
		}
	})
}

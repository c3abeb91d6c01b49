package source

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// A server that was told to stop writes into the file that it has open until its last client is gone: long after that
// file was rotated, read to its end and told to have ended.
func TestWriterStaysAfterTheEnd(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 3000)
	w := opened(t, path)
	defer w.Close()
	put(t, w, text(lines[:1000]))
	start(t, s, path)
	s.want(lines[:1000])
	rename(t, path, path+".1")
	write(t, path, text(lines[1000:2000]))
	s.want(lines[:2000])
	until(t, func() bool { return s.ended() == 1 }, func() string { return "the rotated file does not end" })
	put(t, w, text(lines[2000:2500]))
	s.want(lines[:2500])
	until(t, func() bool { return s.ended() == 1 }, func() string { return "it does not end again" })
	rename(t, path+".1", path+".2")
	put(t, w, text(lines[2500:]))
	s.want(lines)
	until(t, func() bool { return s.ended() == 1 }, func() string { return "it does not end a third time" })
	if skips := s.skips(); len(skips) > 0 {
		t.Errorf("skips %v, want none", skips)
	}
}

// What rests is let go when its hour is over, when it is deleted or emptied, or when the place is needed.
func TestRestingFileIsLetGo(t *testing.T) {
	for name, end := range map[string]func(f *files, rotated string, now *time.Time){
		"deleted": func(_ *files, rotated string, _ *time.Time) { remove(t, rotated) },
		"emptied": func(_ *files, rotated string, _ *time.Time) { truncate(t, rotated) },
		"in time": func(_ *files, _ string, now *time.Time) { *now = now.Add(resting) },
		"for another": func(f *files, rotated string, _ *time.Time) {
			f.cfg.MaxFiles = 2
			rename(t, f.cfg.Paths[0], rotated+"2")
			write(t, f.cfg.Paths[0], text(number(2000, 3000)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			f, now, looks := stepwise(t, s, path)
			write(t, path, text(number(0, 1000)))
			looks()
			rename(t, path, path+".1")
			write(t, path, text(number(1000, 2000)))
			looks()
			*now = now.Add(f.cfg.Quiet)
			looks()
			if s.ended() != 1 || len(f.gens) != 2 {
				t.Fatalf("%d streams ended, %d files are held, want 1 and 2", s.ended(), len(f.gens))
			}
			end(f, path+".1", now)
			looks()
			if len(f.gens) > 2 || f.holdsPath(path+".1") || !f.holdsPath(path) {
				t.Errorf("%d files are held, the resting one among them: %v", len(f.gens), f.holdsPath(path+".1"))
			}
			if skips := s.skips(); len(skips) > 0 {
				t.Errorf("skips %v, want none", skips)
			}
		})
	}
}

// Between two looks a log was rotated more often than rotated files are kept. Nothing proves that, but nothing proves
// the contrary either.
func TestRotatedMoreOftenThanKept(t *testing.T) {
	for _, c := range []struct {
		name          string
		kept, times   int
		packed        bool
		lines, vanish int
	}{
		{"three times, one is kept", 1, 3, false, 3000, 1},
		{"twice, one is kept", 1, 2, false, 3000, 1},
		{"once, one is kept", 1, 1, false, 2000, 0},
		{"three times, three are kept", 3, 3, false, 4000, 0},
		{"three times, three are kept, packed", 3, 3, true, 4000, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			f, now, looks := stepwise(t, s, path)
			write(t, path, text(number(0, 1000)))
			looks()
			for i := range c.times {
				shift(t, path, c.kept)
				os.Remove(fmt.Sprintf("%s.%d", path, c.kept+1))
				if c.packed {
					pack(t, "gzip", path+".1")
					for n := c.kept; n > 0; n-- {
						if _, err := os.Stat(fmt.Sprintf("%s.%d.gz", path, n)); err == nil {
							rename(t, fmt.Sprintf("%s.%d.gz", path, n), fmt.Sprintf("%s.%d.gz", path, n+1))
						}
					}
				}
				write(t, path, text(number(1000*(i+1), 1000*(i+2))))
			}
			looks()
			*now = now.Add(f.cfg.Quiet)
			looks()
			if s.count() != c.lines {
				t.Errorf("%d lines, want %d", s.count(), c.lines)
			}
			skips := s.skips()
			if len(skips) != c.vanish || c.vanish > 0 && skips[0].Reason != pipeline.SkipVanished {
				t.Errorf("skips %v, want %d that tell of a vanished file", skips, c.vanish)
			}
		})
	}
}

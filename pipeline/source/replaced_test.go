package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// replace puts what edit makes of a log in its place, as rsync, sed -i and editors do.
func replace(t *testing.T, path string, edit func(string) string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path+"~", edit(string(b)))
	rename(t, path+"~", path)
}

// A log is replaced by a copy of itself, with or without more lines, over and over.
func TestReplacedByItsCopy(t *testing.T) {
	lines := number(0, 3000)
	for name, restart := range map[string]bool{"while running": false, "while down": true} {
		t.Run(name, func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			write(t, path, text(lines[:500]))
			f, now, looks := stepwise(t, s, path)
			looks()
			for n := 1; n < 6; n++ {
				appendTo(t, path, text(lines[500*n:500*n+250]))
				if !restart {
					looks()
				}
				replace(t, path, func(s string) string { return s + text(lines[500*n+250:500*n+500]) })
				if restart {
					f.release()
					f, now, looks = stepwise(t, s, path)
				}
				looks()
				*now = now.Add(f.cfg.Quiet)
				looks()
				s.want(lines[:500*n+500])
			}
			f.wg.Wait()
			if skips := s.skips(); len(skips) > 0 {
				t.Errorf("skips %v, want none", skips)
			}
		})
	}
}

// What takes a log's place is passed over only as far as it is the same; in doubt it is all read.
func TestReplacedByAnother(t *testing.T) {
	head := "time,method,path,status\n"
	for name, c := range map[string]struct{ old, new, more string }{
		"its last lines are missing": {
			text(number(0, 1000)), text(number(0, 990)), text(number(1000, 1100))},
		"an earlier line was changed": {
			text(number(0, 2000)), "x" + text(number(0, 2000))[1:], text(number(2000, 2100))},
		"a new log with the same header": {
			head + text(number(0, 10)), head + text(number(10, 100)), ""},
		"a new log with the same header alone": {head, head, text(number(0, 10))},
		"a log without times": {
			strings.Repeat("GET /health 200\n", 50), strings.Repeat("GET /health 200\n", 80), ""},
	} {
		for when, restart := range map[string]bool{"while running": false, "while down": true} {
			t.Run(name+" "+when, func(t *testing.T) {
				path, s := logPath(t), newSpool(t)
				write(t, path, c.old)
				f, _, looks := stepwise(t, s, path)
				looks()
				keep := opened(t, path) // so that its inode is not given again
				defer keep.Close()
				if restart {
					f.release()
				}
				replace(t, path, func(string) string { return c.new })
				if restart {
					_, _, looks = stepwise(t, s, path)
				}
				looks()
				appendTo(t, path, c.more)
				looks()
				want := c.old + c.new + c.more
				switch name {
				case "its last lines are missing":
					if !restart { // else it is too short to be known
						want = c.old + c.more
					}
				case "an earlier line was changed":
					if !restart { // else its head decides
						want = c.old + c.new + c.more
					}
				}
				s.want(strings.Split(strings.TrimSuffix(want, "\n"), "\n"))
			})
		}
	}
}

// A log whose first line is always the same is written over while squall is down, and is longer than before when it
// comes back: from where it stood nothing may be read on.
func TestRestartWrittenOverBehindTheSameHeader(t *testing.T) {
	const head = "time,method,path,status"
	lines := number(0, 3000)
	for name, copied := range map[string]bool{"copied before": true, "and not copied": false} {
		t.Run(name, func(t *testing.T) {
			path, s := logPath(t), newSpool(t)
			write(t, path+".1", head+"\n"+"history\n")
			if err := os.Chtimes(path+".1", time.Time{}, time.Now().Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
			write(t, path, head+"\n"+text(lines[:1000]))
			f, _, looks := stepwise(t, s, path)
			looks()
			f.release()
			appendTo(t, path, text(lines[1000:1100]))
			want := append([]string{head}, lines[:1000]...)
			gaps := 1
			if copied {
				rename(t, path+".1", path+".2")
				copyFile(t, path, path+".1")
				want, gaps = append(want, lines[1000:1100]...), 0
			}
			truncate(t, path)
			appendTo(t, path, head+"\n"+text(lines[1100:]))
			_, _, looks = stepwise(t, s, path)
			looks()
			s.want(append(append(want, head), lines[1100:]...))
			skips := s.skips()
			if len(skips) != gaps || gaps > 0 && (skips[0].Reason != pipeline.SkipTruncated || !skips[0].Lost) {
				t.Errorf("skips %v, want %d", skips, gaps)
			}
		})
	}
}

// While squall is down a log is rotated more often than rotated files are kept: the one that is left was never seen, and
// is read; what came before it is gone, and told.
func TestRestartOnlyAnUnknownRotatedFileIsLeft(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	path := filepath.Join(dir, "a.log")
	lines := number(0, 5000)
	write(t, filepath.Join(dir, "b.log"), text(lines[:1000]))
	write(t, path, text(lines[1000:2000]))
	f, _, looks := stepwise(t, s, filepath.Join(dir, "*.log"))
	looks()
	keep := opened(t, path) // so that its inode is not given again
	defer keep.Close()
	f.release()
	rename(t, path, path+".1")
	write(t, path, text(lines[2000:3000]))
	rename(t, path, path+".1")
	write(t, path, text(lines[3000:]))
	f, _, looks = stepwise(t, s, filepath.Join(dir, "*.log"))
	looks()
	f.wg.Wait()
	s.wantSet(lines)
	if skips := s.skips(); len(skips) != 1 || skips[0].Reason != pipeline.SkipVanished {
		t.Errorf("skips %v, want one, vanished", skips)
	}
}

// While squall is down a link is led to the next file: the one before is read to its end, wherever it lies.
func TestRestartLinkLedOn(t *testing.T) {
	for name, below := range map[string]string{"in its directory": "", "in another": "logs"} {
		for _, glob := range []string{"app.log", "app*.log"} {
			t.Run(name+", "+glob, func(t *testing.T) {
				dir, s := t.TempDir(), newSpool(t)
				mkdir(t, filepath.Join(dir, below))
				link, old, next := filepath.Join(dir, "app.log"), filepath.Join(dir, below, "app-20261129.log"), filepath.Join(dir, below, "app-20261130.log")
				lines := number(0, 3000)
				write(t, old, text(lines[:1000]))
				if err := os.Symlink(old, link); err != nil {
					t.Fatal(err)
				}
				f, _, looks := stepwise(t, s, filepath.Join(dir, glob))
				looks()
				f.release()
				appendTo(t, old, text(lines[1000:1500]))
				write(t, next, text(lines[2000:]))
				if err := os.Symlink(next, link+"~"); err != nil {
					t.Fatal(err)
				}
				rename(t, link+"~", link)
				f, _, looks = stepwise(t, s, filepath.Join(dir, glob))
				looks()
				appendTo(t, old, text(lines[1500:2000]))
				looks()
				f.wg.Wait()
				s.wantSet(lines)
				if skips := s.skips(); len(skips) > 0 {
					t.Errorf("skips %v, want none", skips)
				}
			})
		}
	}
}

// logrotate's "extension .log" keeps the end of the name. The copies are not read again.
func TestCopytruncateKeepsTheEndOfTheName(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	path := filepath.Join(dir, "access.log")
	lines := number(0, 4000)
	f, now, looks := stepwise(t, s, filepath.Join(dir, "*.log"))
	for n := range 4 {
		appendTo(t, path, text(lines[1000*n:1000*n+900]))
		looks()
		*now = now.Add(f.cfg.Quiet)
		appendTo(t, path, text(lines[1000*n+900:1000*n+1000]))
		for i := n; i > 0; i-- {
			rename(t, filepath.Join(dir, "access."+string(rune('0'+i))+".log"), filepath.Join(dir, "access."+string(rune('1'+i))+".log"))
		}
		copyFile(t, path, filepath.Join(dir, "access.1.log"))
		truncate(t, path)
		looks()
	}
	s.want(lines)
}

// Logs that are only named like that are read as soon as they grow on.
func TestLogNamedLikeARotatedOne(t *testing.T) {
	dir, s := t.TempDir(), newSpool(t)
	lines := number(0, 3000)
	write(t, filepath.Join(dir, "worker.log"), text(lines[:1000]))
	write(t, filepath.Join(dir, "worker.1.log"), text(lines[1000:2000]))
	f, now, looks := stepwise(t, s, filepath.Join(dir, "*.log"))
	looks()
	appendTo(t, filepath.Join(dir, "worker.1.log"), text(lines[2000:2500]))
	looks()
	if n := s.count(); n != 1000 {
		t.Errorf("%d lines: it may be a copy that is being written", n)
	}
	*now = now.Add(f.cfg.Quiet)
	appendTo(t, filepath.Join(dir, "worker.1.log"), text(lines[2500:]))
	looks()
	s.wantSet(lines)
}

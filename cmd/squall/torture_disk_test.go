package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests of disks need root: they mount what they fill, freeze and break.

// Twins are two squalls that read the same log and tell the same hook: one has a spool that something happens to,
// its twin is left alone.
type twins struct {
	t            *testing.T
	logs         string // the VictoriaLogs that the afflicted one ships to
	hook         *hook
	log          string
	home, spool  string // of the afflicted one
	squall, calm *program
	stop         func() int // ends the storms, and tells how many lines they had
	counted      int        // lines that the former lives of the afflicted one have counted as lost
	worst        usage
	behind       time.Duration // how much later than its twin it has told a storm, at most, while both ran
}

// newTwins makes both, and starts the twin. The afflicted one has its spool in a folder of its own.
func newTwins(t *testing.T) *twins {
	t.Helper()
	dir := t.TempDir()
	p := &twins{t: t, logs: startVictoriaLogs(t), hook: startHook(t), log: filepath.Join(dir, "access.log"), home: filepath.Join(dir, "afflicted")}
	p.spool = filepath.Join(p.home, "spool")
	quiet := filepath.Join(dir, "calm")
	mkdir(t, p.home, p.spool, quiet)
	p.configure(p.home, fmt.Sprintf("loki: {url: %q, batch_wait: 50ms}\n", pushURL(p.logs)))
	p.configure(quiet, "")
	p.calm = runSquall(t, quiet, surroundings{})
	return p
}

func (p *twins) configure(home, more string) {
	p.t.Helper()
	write(p.t, filepath.Join(home, "squall.yaml"), fileYAML(p.log, filepath.Join(home, "spool"),
		fmt.Sprintf("notify: [{type: webhook, url: %q}]\n", p.hook.URL+"/"+filepath.Base(home))+more))
}

// start starts the afflicted one.
func (p *twins) start() {
	p.t.Helper()
	p.squall = runSquall(p.t, p.home, surroundings{})
}

// end stops it in time; what it has counted as lost is kept.
func (p *twins) end(sig os.Signal) {
	p.t.Helper()
	p.counted += p.lost()
	check(p.t, "exit code", p.squall.stop(sig), 0)
}

// lost is how many lines it says it has lost.
func (p *twins) lost() (n int) {
	_, text := p.squall.get("/metrics")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "squall_lines_lost_total{") || strings.HasPrefix(line, "squall_spool_dropped_lines_total{") {
			var v float64
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &v); err != nil {
				p.t.Fatal(err)
			}
			n += int(v)
		}
	}
	return n
}

// begun are the storms that were told at a path, each when it was told first.
func (p *twins) begun(path string) (begun []hooked) {
	seen := map[time.Time]bool{}
	for _, g := range p.hook.told(path) {
		if g.status == "firing" && !seen[g.startsAt] {
			seen[g.startsAt] = true
			begun = append(begun, g)
		}
	}
	return begun
}

// pagesOn waits until the twin has told n more storms and the afflicted one has told them too.
func (p *twins) pagesOn(n int) {
	p.t.Helper()
	from := len(p.begun("/calm"))
	eventually(p.t, "storms are told", func() bool { p.calm.alive(); return len(p.begun("/calm")) >= from+n })
	want := p.begun("/calm")[from : from+n]
	eventually(p.t, "the same storms are told", func() bool {
		p.squall.alive()
		now := p.squall.usage()
		p.worst = usage{max(p.worst.rss, now.rss), max(p.worst.descriptors, now.descriptors), max(p.worst.threads, now.threads)}
		told := 0
		for _, w := range want {
			for _, g := range p.begun("/afflicted") {
				if g.startsAt.Equal(w.startsAt) && g.labels == w.labels {
					told++
					p.behind = max(p.behind, g.at.Sub(w.at))
				}
			}
		}
		return told == n
	})
}

// finish ends the storms, and compares: the same was told, and every line is stored or counted.
func (p *twins) finish(name string) {
	t := p.t
	t.Helper()
	p.stop()
	written := lines(t, p.log)
	eventually(t, "all is read", func() bool {
		p.squall.alive()
		return p.calm.metric(`squall_lines_read_total{source="balancer"}`) >= float64(len(written))
	})
	eventually(t, "both have told the same", func() bool {
		want, _ := p.hook.episodes(t, "/calm")
		got, _ := p.hook.episodes(t, "/afflicted")
		return len(want) > 0 && len(want)%2 == 0 && fmt.Sprint(got) == fmt.Sprint(want)
	})
	missing := 0
	eventually(t, "every line is stored or counted", func() bool {
		p.squall.alive()
		if p.squall.metric("squall_spool_waiting_lines") > 0 {
			return false
		}
		got := map[string]int{}
		for _, row := range stored(t, p.logs) {
			got[row["_msg"]]++
		}
		missing = 0
		for _, line := range written {
			if got[line]--; got[line] < 0 {
				missing++
			}
		}
		return missing <= p.counted+p.lost()
	})
	told, repeats := p.hook.episodes(t, "/afflicted")
	p.worst.rss = max(p.worst.rss, p.squall.usage().rss)
	t.Logf("%d lines, %d are not stored and %d are counted as lost, %d beginnings and ends, %d repeats, at most %s behind its twin, %d MiB",
		len(written), missing, p.counted+p.lost(), len(told), repeats, p.behind, p.worst.rss)
	tortureTable.add(tortureRow{
		name: name, lines: len(written), lost: p.counted + p.lost(), duplicates: repeats, page: len(told), rss: p.worst.rss, delay: p.behind,
	})
	// One page waits two seconds for a disk that does not answer; the rest is for processors that others use too.
	if p.behind > torture.behind {
		t.Errorf("storms were told up to %s late", p.behind)
	}
	p.end(syscall.SIGTERM)
	check(t, "exit code", p.calm.stop(syscall.SIGTERM), 0)
}

// tmpfs mounts a file system of that many bytes.
func tmpfs(t *testing.T, dir string, bytes int) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Fatalf("mount a small disk: %v: run this test as root", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
}

// A hog takes every byte of a disk, and again each time when there is some.
func startHog(t *testing.T, dir string) (stop func()) {
	t.Helper()
	path := filepath.Join(dir, "hog")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	fill := func() {
		block := make([]byte, 64<<10)
		for size := len(block); size >= 1; {
			if _, err := f.Write(block[:size]); errors.Is(err, unix.ENOSPC) {
				size /= 16
			} else if err != nil {
				t.Errorf("fill the disk: %v", err)
				return
			}
		}
	}
	fill()
	end := make(chan struct{})
	var hog sync.WaitGroup
	hog.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				fill()
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(end)
		hog.Wait()
		if err := errors.Join(f.Close(), os.Remove(path)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// burst appends that many bytes of lines that nothing can be made of, nor compressed.
func burst(t *testing.T, path string, size int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{8})
	raw, text := make([]byte, 6<<10), make([]byte, 8<<10+1)
	text[8<<10] = '\n'
	for ; size > 0 && err == nil; size -= len(text) {
		_, _ = random.Read(raw)
		base64.StdEncoding.Encode(text, raw)
		_, err = f.Write(text)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// Somebody else fills the disk of the spool, again and again, to the last byte. Storms are told as without that, what
// does not fit is counted, a stop is in time, and a start finds what was stored: all of it while the disk is full.
func TestTortureDiskFull(t *testing.T) {
	p := newTwins(t)
	tmpfs(t, p.spool, 12<<20)
	p.start()
	p.stop = startStorms(t, p.log, time.Minute)
	p.pagesOn(1)
	free := startHog(t, p.spool)
	burst(t, p.log, 48<<20) // more than the queue holds
	eventually(t, "lines are lost", func() bool { p.squall.alive(); return p.lost() > 0 })
	p.pagesOn(2)
	free()
	before := p.squall.metric("squall_spool_stored_lines_total")
	eventually(t, "lines are stored again", func() bool { return p.squall.metric("squall_spool_stored_lines_total") > before })
	p.pagesOn(1)

	free = startHog(t, p.spool)
	recoveries := p.squall.metric("squall_spool_recoveries_total")
	eventually(t, "the disk is felt", func() bool { return p.squall.metric("squall_spool_recoveries_total") > recoveries })
	p.end(syscall.SIGTERM)
	p.start()
	p.pagesOn(2)
	free()
	p.finish("disk full")
}

// Detection begins on a disk that is full from the start, and what is stored when there is room goes on from there.
func TestTortureStartOnAFullDisk(t *testing.T) {
	p := newTwins(t)
	tmpfs(t, p.spool, 12<<20)
	free := startHog(t, p.spool)
	p.start()
	p.stop = startStorms(t, p.log, time.Minute)
	p.pagesOn(2)
	p.end(syscall.SIGTERM)
	p.start()
	p.pagesOn(1)
	free()
	eventually(t, "lines are stored", func() bool { p.squall.alive(); return p.squall.metric("squall_spool_stored_lines_total") > 0 })
	p.finish("disk full at the start")
}

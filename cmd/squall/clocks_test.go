package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// A log is believed by what this machine's clock says, and by whether another, or itself before, agreed with it.
func TestClockWatch(t *testing.T) {
	work := func(input string, at time.Time, offset time.Duration) *pipeline.Work {
		w := &pipeline.Work{Input: input, Items: make([]pipeline.Item, 9)}
		w.Batch.Stream = &pipeline.Stream{Path: "/" + input}
		for i := range w.Items {
			w.Items[i].Time = at.Add(offset).UnixNano()
		}
		w.Items[4].Time = at.Add(3 * 365 * 24 * time.Hour).UnixNano() // one line that is wrong says nothing
		return w
	}
	type step struct {
		after, offset time.Duration
		input         string
		astray        bool
	}
	for name, steps := range map[string][]step{
		"old logs alone":              {{0, -50 * time.Hour, "a", false}, {time.Second, -20 * time.Hour, "b", false}},
		"local time, no zone":         {{0, -5 * time.Hour, "error", false}, {time.Second, 0, "access", false}, {time.Second, -5 * time.Hour, "error", true}},
		"an hour ahead":               {{0, -time.Second, "access", false}, {time.Second, time.Hour, "error", true}, {time.Second, 0, "access", false}},
		"it was right before":         {{0, 0, "a", false}, {time.Minute, 26000 * time.Hour, "a", true}, {time.Second, 0, "a", false}},
		"buffered for five minutes":   {{0, 0, "a", false}, {time.Second, -6 * time.Minute, "b", false}},
		"agreement of the day before": {{0, 0, "a", false}, {25 * time.Hour, time.Hour, "b", false}},
	} {
		t.Run(name, func(t *testing.T) {
			var c clockWatch
			born := time.Now()
			now := born
			for i, s := range steps {
				now = now.Add(s.after)
				if got := c.see(work(s.input, now, s.offset), 5*time.Second, now, now.Sub(born)); got.astray != s.astray {
					t.Errorf("step %d: %+v, want astray %v", i, got, s.astray)
				}
			}
		})
	}
	var c clockWatch
	now := time.Now()
	c.see(work("a", now, 0), 0, now, 0)
	behind := work("b", now, -5*time.Hour)
	behind.Behind = true
	if got := c.see(behind, 0, now, 0); got.astray {
		t.Error("what catches up is not astray")
	}
	// This machine's clock is set back an hour: nothing agrees any more.
	set := now.Add(-time.Hour)
	if got := c.see(work("a", set, time.Hour), 0, set, time.Second); got.astray {
		t.Error("the machine's clock was set: logs that do not agree with it are believed")
	}
}

// Another log of the input, or another input, whose times are hours off neither holds detection up nor blinds it, and
// is told.
func TestLogsOfAnotherTimeZoneDoNoHarm(t *testing.T) {
	t.Parallel()
	for name, offset := range map[string]time.Duration{"hours behind": -5 * time.Hour, "an hour ahead": time.Hour, "years ahead": 26000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			mkdir(t, at("both"))
			hook := startHook(t)
			write(t, at("squall.yaml"), fmt.Sprintf("sources: [{name: balancer, type: file, paths: [%q], lateness: 1s}, "+
				"{name: other, type: file, paths: [%q], lateness: 1s}]\nspool: {dir: %q}\nnotify: [{type: webhook, url: %q}]\n",
				at("both/*.log"), at("other.log"), at("spool"), hook.URL)+compressed)
			people := startLogger(t, at("both/access.log"), http.MethodGet, 20*time.Millisecond)
			squall := runSquall(t, dir, surroundings{})
			eventually(t, "the log is read", func() bool { return squall.metric(`squall_lines_read_total{source="balancer"}`) > 10 })
			stop := make(chan struct{})
			var wrong sync.WaitGroup
			t.Cleanup(func() { close(stop); wrong.Wait() })
			wrong.Go(func() { wrongClock(stop, offset, at("both/error.log"), at("other.log")) })
			eventually(t, "the other logs are read", func() bool { return squall.metric(`squall_lines_read_total{source="other"}`) > 50 })
			storm := startLogger(t, at("both/access.log"), http.MethodHead, 10*time.Millisecond)
			eventually(t, "the storm is told", func() bool { return len(hook.told("/")) > 0 })
			eventually(t, "the logs are told", func() bool {
				return len(squall.log("a log's times are not those of this machine's clock: it moves nothing, and what is late in it is not detected. Is its timezone set?")) > 0
			})
			people.stop()
			storm.stop()
			check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
		})
	}
}

// wrongClock writes lines whose times are off, three in a row, into logs.
func wrongClock(stop chan struct{}, offset time.Duration, paths ...string) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n += 3 {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			for _, path := range paths {
				f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
				if err != nil {
					return
				}
				for i := range 3 {
					_, _ = f.WriteString(logLine(now.Add(offset), http.MethodGet, n+i))
				}
				_ = f.Close()
			}
		}
	}
}

//go:build soak

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/spool"
)

const (
	steadyRate  = 2000 // lines a second
	steadyFiles = 200
	steadySpan  = 40 * time.Second
)

// TestSoakSteady prints what squall needs beside an ordinary load, and beside none.
func TestSoakSteady(t *testing.T) {
	busy := func(dir string) func() {
		f := &flood{path: filepath.Join(dir, "logs", "access.log"), rate: steadyRate, parts: floodParts(t, 100_000)}
		startFlood(t, f, 0)
		return f.stop
	}
	quiet := func(dir string) func() {
		for i := range steadyFiles {
			writeVisits(t, filepath.Join(dir, "logs", fmt.Sprintf("access-%d.log", i)), 100, 0o600)
		}
		return func() {}
	}
	steady, _ := shareOfProcessor(t, busy)
	idle, states := shareOfProcessor(t, quiet)
	fmt.Printf("\n%s\n\n| load, everything on | of one processor |\n|---|---|\n| %d lines a second | %.1f %% |\n| %d quiet files | %.2f %% |\n",
		soakMachine(t), steadyRate, 100*steady, steadyFiles, 100*idle)
	check(t, "files that are looked at", states, steadyFiles)
	if idle > steady {
		t.Errorf("%d quiet files cost %.4f of a processor, %d lines a second %.4f", steadyFiles, idle, steadyRate, steady)
	}
}

// shareOfProcessor runs squall beside a load until it has settled, and measures.
func shareOfProcessor(t *testing.T, load func(dir string) (stop func())) (share float64, files int) {
	t.Helper()
	dir, logs, pages := t.TempDir(), startVictoriaLogs(t), startSwitchboard(t)
	mkdir(t, filepath.Join(dir, "logs"))
	stop := load(dir)
	defer stop()
	write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf(soakConfig, filepath.Join(dir, "logs", "*.log"), 5*time.Second, 10*time.Second,
		filepath.Join(dir, "spool"), pushURL(logs), pages.URL))
	squall := launch(t, surroundings{program: soakProgram(t)}, "run", "--config", filepath.Join(dir, "squall.yaml"), "--web.listen-address", "127.0.0.1:0", "--web.enable-pprof")
	squall.await()
	within(t, 3*time.Minute, "panes are judged, and what is quiet is followed no more", func() bool {
		squall.alive()
		return squall.metric("squall_panes_closed_total") >= 1 && squall.metric(`squall_source_following_files{source="balancer"}`) <= 1
	})
	pid := squall.cmd.Process.Pid
	before, began := processorTime(t, pid), time.Now()
	within(t, 2*steadySpan, "it was watched", func() bool { squall.alive(); return time.Since(began) > steadySpan })
	share = (processorTime(t, pid) - before).Seconds() / time.Since(began).Seconds()
	for _, state := range []string{"idle", "reading"} {
		files += int(squall.metric(fmt.Sprintf("squall_source_files{source=%q,state=%q}", "balancer", state)))
	}
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
	return share, files
}

// startSpool is how much lies in the spool of a slow start, bytes.
const startSpool = 2 << 30

// TestSoakStart prints how long squall takes to be ready.
func TestSoakStart(t *testing.T) {
	dir := t.TempDir()
	log, config, store := filepath.Join(dir, "access.log"), filepath.Join(dir, "squall.yaml"), filepath.Join(dir, "spool")
	write(t, config, fmt.Sprintf("sources: [{name: balancer, type: file, paths: [%q]}]\nown: {interfaces: false}\nspool: {dir: %q, max_bytes: 4GiB}\n", log, store))
	// What was stored in the ten minutes before the last event time is read again. These lines are that much ahead, as if
	// the spool had been filled before.
	var text strings.Builder
	for i := range 60 {
		text.WriteString(logLine(time.Now().Add(20*time.Minute+time.Duration(i)*time.Second), http.MethodGet, i))
	}
	write(t, log, text.String())
	squall, empty := startTimed(t, config)
	eventually(t, "a pane is judged", func() bool { squall.alive(); return squall.metric("squall_panes_closed_total") >= 1 })
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
	lines := fillSpool(t, store)
	squall, stopped := startTimed(t, config)
	squall.kill()
	squall, killed := startTimed(t, config)
	if stored := squall.metric("squall_spool_stream_bytes"); stored < startSpool {
		t.Errorf("%.0f bytes are stored", stored)
	}
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
	fmt.Printf("\n%s\n\n| start | ready after |\n|---|---|\n| empty spool | %s |\n| %d GiB in the spool (%d lines), after SIGTERM | %s |\n| the same, after kill -9 | %s |\n",
		soakMachine(t), empty, startSpool>>30, lines, stopped, killed)
}

// startTimed starts squall and tells how long it took until it read.
func startTimed(t *testing.T, config string) (*program, time.Duration) {
	t.Helper()
	address := freeAddress(t)
	p := launch(t, surroundings{program: soakProgram(t)}, "run", "--config", config, "--web.listen-address", address)
	began := time.Now()
	p.base = "http://" + address
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		p.alive()
		if code, _ := p.get("/-/ready"); code == http.StatusOK {
			return p, time.Since(began).Round(time.Millisecond)
		}
		<-tick.C
	}
}

// fillSpool stores lines of the last day, of which little can be compressed.
func fillSpool(t *testing.T, dir string) (lines int) {
	t.Helper()
	store, err := spool.Open(t.Context(), spool.Config{Dir: dir, MaxBytes: 2 * startSpool})
	if err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{})
	stream := &pipeline.Stream{Input: "balancer", ID: "filler", Path: "/var/log/nginx/filler.log"}
	const size, together = 700, 350 // bytes of a line, and lines of a batch
	step := int64(24*time.Hour) / (startSpool / size)
	at, from := time.Now().Add(-24*time.Hour).UnixNano(), int64(0)
	for stored := 0; stored < startSpool+startSpool/50; stored += size * together {
		b := &pipeline.Batch{Stream: stream, From: from, To: from + size*together, Lines: together}
		for range together {
			line := make([]byte, size)
			_, _ = random.Read(line) // it never fails
			b.Entries = append(b.Entries, pipeline.Entry{Time: at, Line: line, Kind: pipeline.Failed, Reason: pipeline.ReasonNotAccess, RequestTime: pipeline.Unknown})
			at += step
		}
		if err := store.Append(b); err != nil {
			t.Fatal(err)
		}
		lines, from = lines+together, b.To
	}
	if err := errors.Join(store.Flush(t.Context()), store.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	return lines
}

package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stormSpeed is how much faster than the wall's the event time of storms goes.
const stormSpeed = 20

// startStorms writes a log in which a storm of 20 s follows on 30 s of quiet, again and again, in event time that ends
// about now. Every line has a path of its own.
func startStorms(t *testing.T, path string, lasting time.Duration) (stop func() int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	began, n := time.Now(), 0
	first := began.Add(-stormSpeed * lasting)
	end := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		defer f.Close()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for at := time.Duration(0); ; {
			select {
			case <-end:
				return
			case now := <-tick.C:
				var text strings.Builder
				for ; at < stormSpeed*now.Sub(began); at += 50 * time.Millisecond {
					method := http.MethodGet
					if at%(50*time.Second) > 30*time.Second {
						method = http.MethodHead
					}
					text.WriteString(logLine(first.Add(at), method, n))
					n++
				}
				if _, err := f.WriteString(text.String()); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	stopped := sync.OnceFunc(func() { close(end); writer.Wait() })
	t.Cleanup(stopped)
	return func() int { stopped(); return n }
}

// episodes are the beginnings and ends that were told at a path, sorted; a repeat of one with the same idempotency key
// is counted and left out: it was on its way when squall was killed.
func (h *hook) episodes(t *testing.T, path string) (told []string, repeats int) {
	t.Helper()
	keys := map[string]string{}
	for _, g := range h.told(path) {
		what := fmt.Sprintf("%s %s from %s", g.status, g.labels, g.startsAt.Format(time.RFC3339Nano))
		if g.status == "resolved" {
			what += " to " + g.endsAt.Format(time.RFC3339Nano)
		}
		if key, known := keys[what]; known {
			repeats++
			if key != g.key || key == "" {
				t.Errorf("told twice under the keys %q and %q: %s", key, g.key, what)
			}
			continue
		}
		keys[what] = g.key
		told = append(told, what)
	}
	slices.Sort(told)
	return told, repeats
}

// squall is killed again and again, at any moment: while it starts, reads, stores, tells and ships. A second one reads
// the same log and is left alone. Both tell the same beginnings and ends of the same alerts, each once, and of the one
// that was killed every line is stored; what was pushed twice is the same to the byte.
func TestTortureKill(t *testing.T) {
	t.Parallel()
	logs, h, dir := startVictoriaLogs(t), startHook(t), t.TempDir()
	log := filepath.Join(dir, "access.log")
	config := func(name, more string) string {
		home := filepath.Join(dir, name)
		mkdir(t, home)
		write(t, filepath.Join(home, "squall.yaml"), fileYAML(log, filepath.Join(home, "spool"),
			fmt.Sprintf("notify: [{type: webhook, url: %q}]\n", h.URL+"/"+name)+more))
		return home
	}
	killed := config("killed", fmt.Sprintf("loki: {url: %q, batch_wait: 50ms}\n", pushURL(logs)))
	calm := runSquall(t, config("calm", ""), surroundings{})
	stop := startStorms(t, log, time.Duration(torture.kills)*4*time.Second)

	random := rand.New(rand.NewPCG(7, uint64(torture.kills)))
	for range torture.kills {
		p := launch(t, surroundings{}, "run", "--config", filepath.Join(killed, "squall.yaml"), "--web.listen-address", "127.0.0.1:0")
		select {
		case <-time.After(time.Duration(random.IntN(4000)) * time.Millisecond):
			p.kill()
		case <-p.ended:
			t.Fatalf("squall has ended by itself: %s", p.cmd.ProcessState)
		}
	}
	n := stop()
	last := runSquall(t, killed, surroundings{})
	same := func() bool {
		want, _ := h.episodes(t, "/calm")
		got, _ := h.episodes(t, "/killed")
		return len(want) > 0 && len(h.told("/calm"))%2 == 0 && slices.Equal(got, want)
	}
	read := `squall_lines_read_total{source="balancer"}`
	eventually(t, "all is read", func() bool { return calm.metric(read) >= float64(n) })
	eventually(t, "both have told the same", same)
	var rows []map[string]string
	eventually(t, "every line is stored", func() bool { rows = stored(t, logs); return len(rows) >= n })
	written, got := lines(t, log), []string{}
	for _, row := range rows {
		got = append(got, row["_msg"])
	}
	slices.Sort(written)
	slices.Sort(got)
	if !slices.Equal(got, written) {
		t.Errorf("%d lines were written, and %d that differ are stored", len(written), len(got))
	}
	want, _ := h.episodes(t, "/calm")
	_, repeats := h.episodes(t, "/killed")
	t.Logf("%d lines, %d beginnings and ends, %d repeats under the key of the first", n, len(want), repeats)
	if repeats > torture.kills {
		t.Errorf("%d repeats", repeats)
	}
	tortureTable.add(tortureRow{
		name: "kill -9", lines: n, lost: n - len(got), duplicates: -1, page: len(want), rss: last.usage().rss, delay: -1,
	})
	check(t, "exit code", last.stop(syscall.SIGTERM), 0)
	check(t, "exit code", calm.stop(syscall.SIGTERM), 0)
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// plainProgram builds squall as it is shipped: the race detector multiplies memory and time.
func plainProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "squall")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("build squall: %v: %s", err, out)
	}
	return path
}

// usage is what the kernel says that a process holds.
type usage struct{ rss, descriptors, threads int } // MiB, and how many

func (p *program) usage() usage {
	p.t.Helper()
	proc := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	text, err := os.ReadFile(proc + "status")
	if err != nil {
		p.t.Fatal(err)
	}
	field := func(name string) int {
		_, rest, _ := strings.Cut(string(text), "\n"+name+":")
		n, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			p.t.Fatal(err)
		}
		return n
	}
	open, err := os.ReadDir(proc + "fd")
	if err != nil {
		p.t.Fatal(err)
	}
	return usage{field("VmHWM") >> 10, len(open), field("Threads")}
}

// A mob writes lines of which no two share a path, an agent or an address, at a steady rate, into several files.
// From its fifth second on every 20th line is one of a HEAD storm.
type mob struct {
	began time.Time
	n     int // lines written
	stop  func()
}

func startMob(t *testing.T, dir string, files, rate int) *mob {
	t.Helper()
	m := &mob{began: time.Now()}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	texts := make([]bytes.Buffer, files)
	random := rand.New(rand.NewPCG(1, 2))
	write := func(now time.Time) error {
		for due := int(float64(rate) * now.Sub(m.began).Seconds()); m.n < due; m.n++ {
			if m.n%20 == 0 && m.n > 5*rate {
				texts[m.n%files].WriteString(logLine(now, http.MethodHead, m.n))
				continue
			}
			mobLine(&texts[m.n%files], random, now)
		}
		for i := range texts {
			f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("access-%d.log", i)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			_, err = texts[i].WriteTo(f)
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
		}
		return nil
	}
	writer.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case now := <-tick.C:
				if err := write(now); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	m.stop = sync.OnceFunc(func() { close(stop); writer.Wait() })
	t.Cleanup(m.stop)
	return m
}

// mobLine writes a line of the recommended log_format. One in fifty has a host of its own too.
func mobLine(w *bytes.Buffer, random *rand.Rand, at time.Time) {
	host := "shop.example"
	if random.IntN(50) == 0 {
		host = fmt.Sprintf("h%x.example", random.Uint32())
	}
	a := random.Uint32()
	fmt.Fprintf(w, `%d.%d.%d.%d - - [%s] "GET /%s/%s?q=%x HTTP/1.1" 200 %d "-" "Agent %x %x/1.0" msec=%d.%03d host=%q xff="-" rt=0.%03d `+
		`uaddr="127.0.0.1:80" us="200" urt="0.400" ul="0" cs=- lrs=-`+"\n", 1+a>>24%223, a>>16&255, a>>8&255, a&255,
		at.UTC().Format("02/Jan/2006:15:04:05 -0700"), word(random), word(random), random.Uint64(), random.IntN(1e6),
		random.Uint64(), random.Uint64(), at.Unix(), at.Nanosecond()/1e6, host, random.IntN(1000))
}

// word is one that looks like none of the types of segments that a route stands for.
func word(random *rand.Rand) string {
	var b [12]byte
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz"[random.IntN(26)]
	}
	return string(b[:])
}

// Nothing that stands in paths, agents, addresses and hosts makes squall large, slow or blind: a storm among a million
// distinct ones of each a minute is seen as soon as any other, on one processor.
func TestTortureMemory(t *testing.T) {
	dir := t.TempDir()
	hook := startHook(t)
	mkdir(t, filepath.Join(dir, "logs"))
	write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf("sources: [{name: balancer, type: file, paths: [%q], lateness: 1s}]\n"+
		"spool: {dir: %q, max_bytes: 256MiB}\nnotify: [{type: webhook, url: %q}]\n",
		filepath.Join(dir, "logs/*.log"), filepath.Join(dir, "spool"), hook.URL)+"pane: "+torture.pane+"\nown: {interfaces: false}\nsites: [{name: shop.example, routes: ['/product/{id}']}]\n")
	squall := runSquall(t, dir, surroundings{program: plainProgram(t), env: []string{"GOMAXPROCS=1"}})
	const rate = 20000
	m := startMob(t, filepath.Join(dir, "logs"), 4, rate)
	var settled, worst usage
	lag := 0.0
	within(t, torture.storm+time.Minute, "the mob has passed", func() bool {
		squall.alive()
		now := squall.usage()
		worst = usage{max(worst.rss, now.rss), max(worst.descriptors, now.descriptors), max(worst.threads, now.threads)}
		if settled.rss == 0 && time.Since(m.began) > torture.storm/2 {
			settled = now
		}
		lag = max(lag, squall.metric(`squall_source_lag_bytes{source="balancer"}`))
		return time.Since(m.began) > torture.storm
	})
	m.stop()
	const read = `squall_lines_read_total{source="balancer"}`
	eventually(t, "the rest is read", func() bool { return squall.metric(read) >= float64(m.n) })
	check(t, "lines read", squall.metric(read), float64(m.n))
	eventually(t, "the storm is told", func() bool { return len(hook.told("/")) > 0 })
	told := hook.told("/")[0]
	delay := told.at.Sub(told.startsAt)
	t.Logf("%d lines, %d MiB, %d descriptors, %d threads, at most %.1f MiB behind, told after %s",
		m.n, worst.rss, worst.descriptors, worst.threads, lag/(1<<20), delay)
	tortureTable.add(tortureRow{
		name: "memory", lines: m.n, lost: m.n - int(squall.metric("squall_spool_appended_lines_total")), duplicates: -1,
		page: len(hook.told("/")), rss: worst.rss, delay: delay,
	})
	check(t, "lines taken", squall.metric("squall_spool_appended_lines_total"), float64(m.n))
	check(t, "what was told", told.name, "HeadStorm")
	if worst.rss >= 256 {
		t.Errorf("it held %d MiB", worst.rss)
	}
	if worst.descriptors > settled.descriptors+8 || worst.threads > settled.threads+8 {
		t.Errorf("from %+v it went to %+v", settled, worst)
	}
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

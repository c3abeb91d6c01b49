//go:build torture

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A steppedClock is the wall clock of one process. Nothing of the process is replaced, and the machine's clock is left
// alone: the page of the kernel from which a process reads the time (the vDSO) is a copy of its own once it is written
// to, as a debugger does. There the function that reads clocks is changed to ask the kernel, and to add an offset to
// the wall clock alone.
type steppedClock struct {
	t   *testing.T
	mem *os.File
	at  int64 // where the offset is
}

// steppedCode is clock_gettime of the vDSO:
//
//	mov eax, 228; syscall; test edi, edi; jne out; mov rcx, [rip+offset]; add [rsi], rcx; out: ret; offset: 0
var steppedCode = []byte{
	0xb8, 228, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x75, 0x0a, 0x48, 0x8b, 0x0d, 0x04, 0, 0, 0, 0x48, 0x01, 0x0e, 0xc3,
	0, 0, 0, 0, 0, 0, 0, 0,
}

// stepping starts `squall run` with a clock of its own. It is stopped at its first instruction for that.
func stepping(t *testing.T, dir string) (*program, *steppedClock) {
	t.Helper()
	runtime.LockOSThread() // only the thread that started a process may let it go
	defer runtime.UnlockOSThread()
	p := &program{t: t, cmd: exec.Command(squallProgram(t), "run", "--config", filepath.Join(dir, "squall.yaml"), "--web.listen-address", "127.0.0.1:0"),
		stdout: &output{}, stderr: &output{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := p.cmd.Process.Pid
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("squall did not stop at its first instruction: %v", err)
	}
	c := patchClock(t, pid)
	if err := syscall.PtraceDetach(pid); err != nil {
		t.Fatal(err)
	}
	p.watch()
	return p, c
}

func patchClock(t *testing.T, pid int) *steppedClock {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	var from, to int64
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				t.Fatal(err)
			}
		}
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close() })
	image := make([]byte, to-from)
	if _, err := mem.ReadAt(image, from); err != nil {
		t.Fatal(err)
	}
	vdso, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := vdso.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			c := &steppedClock{t, mem, from + int64(s.Value) + int64(len(steppedCode)) - 8}
			if _, err := mem.WriteAt(steppedCode, from+int64(s.Value)); err != nil {
				t.Fatal(err)
			}
			return c
		}
	}
	t.Fatal("the kernel has no clock to change")
	return nil
}

// step sets how far the wall clock is off.
func (c *steppedClock) step(by time.Duration) {
	c.t.Helper()
	if _, err := c.mem.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(by/time.Second)), c.at); err != nil {
		c.t.Fatal(err)
	}
}

// The clock steps an hour forth, with the log that is written by it; then that of squall alone steps two hours back.
// Each storm is told once. When the log's clock steps back too, its lines are late: they are counted, and squall lives.
func TestTortureClockSteps(t *testing.T) {
	dir, h := t.TempDir(), startHook(t)
	log := filepath.Join(dir, "access.log")
	write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), fmt.Sprintf("notify: [{type: webhook, url: %q}]\n", h.URL)))
	squall, clock := stepping(t, dir)
	squall.await()
	var offset atomic.Int64
	var storm atomic.Bool
	stop := startClocked(t, log, &offset, &storm)
	steps := []struct {
		name         string
		squall, logs time.Duration
	}{{"both right", 0, 0}, {"both an hour ahead", time.Hour, time.Hour}, {"squall an hour behind", -time.Hour, time.Hour}}
	for i, s := range steps {
		offset.Store(int64(s.logs))
		clock.step(s.squall)
		panes := squall.metric("squall_panes_closed_total")
		eventually(t, s.name+": panes are evaluated", func() bool { squall.alive(); return squall.metric("squall_panes_closed_total") > panes+3 })
		storm.Store(true)
		eventually(t, s.name+": a storm is told", func() bool { squall.alive(); return len(h.about("firing")) > i })
		storm.Store(false)
		eventually(t, s.name+": its end is told", func() bool { squall.alive(); return len(h.about("resolved")) > i })
	}
	const late = `squall_lines_late_total{source="balancer"}`
	before := squall.metric(late)
	offset.Store(0)
	eventually(t, "lines from before the step are counted as late", func() bool { squall.alive(); return squall.metric(late) > before+20 })
	n := stop()
	eventually(t, "all is read", func() bool { return squall.metric(`squall_lines_read_total{source="balancer"}`) >= float64(n) })
	tortureTable.add(tortureRow{name: "clock steps", lines: n, lost: -1, duplicates: -1, page: len(h.about("firing")), rss: squall.usage().rss, delay: -1})
	check(t, "storms told", len(h.about("firing")), len(steps))
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// about gives what was told of HeadStorm with this status.
func (h *hook) about(status string) (told []hooked) {
	for _, g := range h.told("/") {
		if g.name == "HeadStorm" && g.status == status {
			told = append(told, g)
		}
	}
	return told
}

// startClocked writes a log by a clock that is off, 20 lines a second, HEADs while there is a storm.
func startClocked(t *testing.T, path string, offset *atomic.Int64, storm *atomic.Bool) (stop func() int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	n, end, done := 0, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer f.Close()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case now := <-tick.C:
				method := http.MethodGet
				if storm.Load() {
					method = http.MethodHead
				}
				if _, err := f.WriteString(logLine(now.Add(time.Duration(offset.Load())), method, n)); err != nil {
					t.Error(err)
					return
				}
				n++
			}
		}
	}()
	stopped := false
	stop = func() int {
		if !stopped {
			stopped = true
			close(end)
			<-done
		}
		return n
	}
	t.Cleanup(func() { stop() })
	return stop
}

package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// logLine is a line as nginx writes it with the recommended log_format.
func logLine(at time.Time, method string, i int) string {
	return fmt.Sprintf(`203.0.113.%d - - [%s] "%s /product/%d HTTP/1.1" 200 0 "-" %q msec=%d.%03d host="shop.example" xff="-" rt=0.400 `+
		`uaddr="127.0.0.1:80" us="200" urt="0.400" ul="0" cs=- lrs=-`+"\n", i%250, at.UTC().Format("02/Jan/2006:15:04:05 -0700"),
		method, i, browserAgent, at.Unix(), at.Nanosecond()/1e6)
}

// A logger writes a log as a web server does: a line at a time, at a steady rate.
type logger struct {
	path string
	stop func() // waits for the last line
}

func startLogger(t *testing.T, path, method string, every time.Duration) *logger {
	t.Helper()
	return startLoggerAhead(t, path, method, every, 0)
}

// startLoggerAhead writes by a clock that is ahead by so much.
func startLoggerAhead(t *testing.T, path, method string, every, ahead time.Duration) *logger {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		defer f.Close()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				if _, err := f.WriteString(logLine(time.Now().Add(ahead), method, i)); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	l := &logger{path: path, stop: sync.OnceFunc(func() { close(stop); writer.Wait() })}
	t.Cleanup(l.stop)
	return l
}

// fileYAML reads one log and tells alerts on standard output; more is added behind.
func fileYAML(log, spool, more string) string {
	return fmt.Sprintf("sources: [{name: balancer, type: file, paths: [%q], lateness: 1s}]\nspool: {dir: %q}\n", log, spool) + more + compressed
}

func TestReloadTakesEffectWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, log := filepath.Join(dir, "squall.yaml"), filepath.Join(dir, "access.log")
	high := strings.ReplaceAll(fileYAML(log, filepath.Join(dir, "spool"), ""), "per_minute: 120", "per_minute: 100000")
	low := strings.ReplaceAll(high, "per_minute: 100000", "per_minute: 120")
	bad := strings.ReplaceAll(high, "\npane: 1s", "\npain: 1s")
	write(t, file, high)
	heads := startLogger(t, log, http.MethodHead, 50*time.Millisecond)
	squall := runSquall(t, dir, surroundings{})
	const panes, good = "squall_panes_closed_total", "squall_config_last_reload_successful"
	eventually(t, "the storm fills the window", func() bool { return squall.metric(panes) >= 12 })
	check(t, "alerts under the high threshold", len(squall.alerts("HeadStorm", "firing")), 0)
	check(t, good, squall.metric(good), 1.0)
	loaded := squall.metric("squall_config_last_reload_success_timestamp_seconds")

	write(t, file, bad)
	code, text := squall.reload()
	before, _, _ := strings.Cut(bad, "pain")
	line := 1 + strings.Count(before, "\n")
	if want := fmt.Sprintf("%s:%d:1: ", file, line); code < 400 || !strings.Contains(text, want) || !strings.Contains(text, "pain") {
		t.Errorf("a bad file is answered %d without %s: %s", code, want, text)
	}
	check(t, good, squall.metric(good), 0.0)
	check(t, "time of the last good load", squall.metric("squall_config_last_reload_success_timestamp_seconds"), loaded)
	from := squall.metric(panes)
	eventually(t, "detection goes on", func() bool { return squall.metric(panes) > from+2 })
	const kept, reloaded = "the configuration was not reloaded: nothing has changed", "configuration reloaded"
	squall.signal(syscall.SIGHUP)
	eventually(t, "the hangup is answered too", func() bool { return len(squall.log(kept)) == 2 })
	check(t, "reloads", len(squall.log(reloaded)), 0)

	write(t, file, strings.ReplaceAll(low, filepath.Join(dir, "spool"), filepath.Join(dir, "another")))
	if code, text = squall.reload(); code < 400 || !strings.Contains(text, "spool.dir") {
		t.Errorf("another spool is answered %d: %s", code, text)
	}
	write(t, file, low)
	code, text = squall.reload()
	check(t, "answer to a good file: "+text, code, http.StatusOK)
	check(t, good, squall.metric(good), 1.0)
	eventually(t, "the low threshold is in effect", func() bool { return len(squall.alerts("HeadStorm", "firing")) == 1 })
	began := squall.alerts("HeadStorm", "firing")[0].StartsAt

	write(t, file, strings.ReplaceAll(low, "ratio: 0.05", "ratio: 0.06"))
	squall.signal(syscall.SIGHUP)
	eventually(t, "the hangup reloads", func() bool { return len(squall.log(reloaded)) == 2 })
	eventually(t, "the alert outlives a reload", func() bool { return len(squall.alerts("HeadStorm", "firing")) == 1 })
	check(t, "its beginning", squall.alerts("HeadStorm", "firing")[0].StartsAt, began)

	heads.stop()
	const taken = "squall_spool_appended_lines_total"
	all := float64(len(lines(t, log)))
	eventually(t, "every line is taken", func() bool { return squall.metric(taken) >= all })
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
	check(t, "times the alert was told", strings.Count(squall.stdout.String(), "FIRING [warning] HeadStorm"), 1)
}

// signal sends one and does not wait.
func (p *program) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// hanging is a server that takes connections and never says anything.
func hanging(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var held []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held = append(held, c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, c := range held {
			_ = c.Close()
		}
	})
	return l.Addr().String()
}

// Nobody whom squall talks to can keep it from stopping; what it could not hand on is handed on after the next start.
func TestStopWhileReceiversHang(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, log := filepath.Join(dir, "squall.yaml"), filepath.Join(dir, "access.log")
	hung, gone := hanging(t), freeAddress(t)
	config := func(loki string) string {
		return fileYAML(log, filepath.Join(dir, "spool"), fmt.Sprintf("loki: {url: %q, batch_wait: 100ms}\n"+
			"notify: [{type: stdout}, {type: alertmanager, urls: [%q, %q]}]\n", loki, "http://"+gone, "http://"+hung))
	}
	write(t, file, config("http://"+hung))
	heads := startLogger(t, log, http.MethodHead, 50*time.Millisecond)
	squall := runSquall(t, dir, surroundings{})
	eventually(t, "an alert waits to be sent", func() bool { return len(squall.alerts("HeadStorm", "firing")) == 1 })
	eventually(t, "Alertmanager was tried", func() bool {
		return squall.metric(fmt.Sprintf(`squall_notify_failures_total{notifier="alertmanager-2/%s",reason="unavailable"}`, gone)) > 0
	})
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
	heads.stop()
	if !strings.Contains(squall.stdout.String(), "HeadStorm") {
		t.Errorf("the alert was not told on standard output: %q", squall.stdout)
	}

	logs := startVictoriaLogs(t)
	write(t, file, config(pushURL(logs)))
	squall = runSquall(t, dir, surroundings{})
	written := lines(t, log)
	eventually(t, "every line is stored after the next start", func() bool { return len(stored(t, logs)) >= len(written) })
	var got []string
	for _, row := range stored(t, logs) {
		got = append(got, row["_msg"])
	}
	slices.Sort(got)
	slices.Sort(written)
	if !slices.Equal(got, written) {
		t.Errorf("%d lines are stored of %d", len(got), len(written))
	}
	check(t, "exit code", squall.stop(syscall.SIGINT), 0)
}

// A service manager is told what squall does, and the watchdog is fed while it does.
func TestServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), ""))
	short, err := os.MkdirTemp("", "squall-notify-") // an address holds 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	socket := filepath.Join(short, "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 1000)
	go func() {
		defer close(told)
		for buf := make([]byte, 4096); ; {
			n, _, err := manager.ReadFromUnix(buf)
			if err != nil {
				return
			}
			told <- string(buf[:n])
		}
	}()
	t.Cleanup(func() { _ = manager.Close() })
	next := func(want string) string {
		t.Helper()
		limit := time.After(time.Minute)
		for fed := 0; ; fed++ {
			select {
			case got := <-told:
				if strings.HasPrefix(got, want) {
					return got
				} else if got != "WATCHDOG=1" {
					t.Fatalf("the service manager was told %q before %s", got, want)
				}
			case <-limit:
				t.Fatalf("the service manager was not told %s", want)
			}
		}
	}
	squall := runSquall(t, dir, surroundings{env: []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=500000"}})
	next("READY=1")
	for range 3 {
		next("WATCHDOG=1")
	}
	squall.signal(syscall.SIGHUP)
	if got := next("RELOADING=1"); !regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=\d+\n?$`).MatchString(got) {
		t.Errorf("%q", got)
	}
	next("READY=1")
	next("WATCHDOG=1")
	write(t, filepath.Join(dir, "squall.yaml"), "sources: 3\n")
	squall.signal(syscall.SIGHUP)
	next("RELOADING=1")
	next("READY=1")
	next("WATCHDOG=1")
	squall.signal(syscall.SIGTERM)
	next("STOPPING=1")
	check(t, "exit code", squall.exit(10*time.Second), 0)
}

// What comes through a pipe is judged to its end, and then squall is done.
func TestPipeComesToItsEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf("sources: [{name: pipe, type: stdin}]\nspool: {dir: %q}\n", filepath.Join(dir, "spool"))+compressed)
	var text strings.Builder
	began := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for i := range 4000 { // 20 s of visitors, then of HEADs; the last seconds are seen by the end alone
		method := http.MethodGet
		if i >= 2000 {
			method = http.MethodHead
		}
		text.WriteString(logLine(began.Add(time.Duration(i)*10*time.Millisecond), method, i))
	}
	squall := launch(t, surroundings{stdin: strings.NewReader(text.String())}, "run", "--config", filepath.Join(dir, "squall.yaml"), "--web.listen-address", "127.0.0.1:0")
	check(t, "exit code", squall.exit(time.Minute), 0)
	out := squall.stdout.String()
	for _, part := range []string{"HeadStorm", "shop.example", "2026-03-04T05:06:2"} {
		if !strings.Contains(out, part) {
			t.Errorf("standard output lacks %s: %s", part, out)
		}
	}
}

// What squall cannot start with is told with the exit code of its kind, and the squall that runs is left alone.
func TestStartsThatCannotBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, log := filepath.Join(dir, "squall.yaml"), filepath.Join(dir, "access.log")
	write(t, good, fileYAML(log, filepath.Join(dir, "spool"), ""))
	write(t, log, logLine(time.Now(), http.MethodGet, 1))
	bad, free := filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "free.yaml")
	write(t, bad, "sources: []\n")
	write(t, free, fileYAML(log, filepath.Join(dir, "other"), ""))
	squall := runSquall(t, dir, surroundings{})
	address := strings.TrimPrefix(squall.base, "http://")
	for _, c := range []struct {
		name, told string
		code       int
		args       []string
	}{
		{"a spool that another squall has", filepath.Join(dir, "spool"), exitFailed, []string{"--config", good, "--web.listen-address", "127.0.0.1:0"}},
		{"an address that another squall has", "address already in use", exitFailed, []string{"--config", free, "--web.listen-address", address}},
		{"a configuration without sources", bad + ":1:1", exitUsage, []string{"--config", bad}},
		{"no such configuration", "none.yaml", exitUsage, []string{"--config", filepath.Join(dir, "none.yaml")}},
		{"no configuration", "config", exitUsage, nil},
		{"a level that is none", "loud", exitUsage, []string{"--config", good, "--log.level", "loud"}},
		{"an argument too many", "access.log", exitUsage, []string{"--config", good, log}},
		{"a flag that is none", "confg", exitUsage, []string{"--confg", good}},
	} {
		other := launch(t, surroundings{}, append([]string{"run"}, c.args...)...)
		check(t, c.name+": exit code", other.exit(time.Minute), c.code)
		if !strings.Contains(other.stderr.String(), c.told) {
			t.Errorf("%s: standard error lacks %s: %s", c.name, c.told, other.stderr)
		}
	}
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
	check(t, "exit code of an unknown command", launch(t, surroundings{}, "rum").exit(time.Minute), exitUsage)
}

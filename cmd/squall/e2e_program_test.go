package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The end-to-end tests run the program itself, as a process, with nothing of it replaced. It is built once.

// Most of them wait for most of their time, so that more of them can run at once than there are processors.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	code := m.Run()
	tortureTable.print()
	if dir := built.dir; dir != "" {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

var built struct {
	once sync.Once
	dir  string
	err  error
}

// squallProgram builds the program, with the race detector when the tests have it.
func squallProgram(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "squall-e2e-"); built.err != nil {
			return
		}
		if built.err = os.Chmod(built.dir, 0o755); built.err != nil { // others run it too
			return
		}
		args := []string{"build", "-o", filepath.Join(built.dir, "squall")}
		if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatalf("build squall: %v", built.err)
	}
	return filepath.Join(built.dir, "squall")
}

// output is what a process wrote so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// A program is a squall that runs.
type program struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr *output
	ended          chan struct{} // closed when it has exited
	untaken        chan struct{} // closed when nobody takes standard error any more
	base           string        // http://address, of `squall run`
}

// surroundings are what a program finds when it starts.
type surroundings struct {
	stdin io.Reader
	env   []string
	user  *syscall.Credential // nil: the user of the tests

	program string   // another squall than that of the tests
	stdout  *os.File // nil: it is kept
	stderr  *os.File // nil: it is kept, else what taken gives
	taken   *os.File // the other end of stderr
}

// launch starts `squall args...` as it is; a test that ends kills what is left.
func launch(t *testing.T, in surroundings, args ...string) *program {
	t.Helper()
	p := &program{
		t: t, cmd: exec.Command(cmp.Or(in.program, squallProgram(t)), args...), stdout: &output{}, stderr: &output{}, ended: make(chan struct{}),
		untaken: make(chan struct{}),
	}
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "NOTIFY_SOCKET=") }), in.env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = in.stdin, p.stdout, p.stderr
	if in.stdout != nil {
		p.cmd.Stdout = in.stdout
	}
	if in.stderr != nil {
		p.cmd.Stderr = in.stderr
		go p.take(in.taken)
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: in.user}
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.watch()
	return p
}

// watch notes the end of the process; a test that ends kills it.
func (p *program) watch() {
	t := p.t
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		text := p.stderr.String()
		if strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic:") || strings.Contains(text, "fatal error:") {
			t.Errorf("squall crashed or raced")
		}
		if t.Failed() {
			t.Logf("squall %s wrote to stderr:\n%s\nand to stdout:\n%s", strings.Join(p.cmd.Args[1:], " "), text, p.stdout)
		}
	})
}

// write makes a file with a text.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// runSquall starts `squall run` with dir/squall.yaml on a free port and waits until it reads.
func runSquall(t *testing.T, dir string, in surroundings) *program {
	t.Helper()
	p := launch(t, in, "run", "--config", filepath.Join(dir, "squall.yaml"), "--web.listen-address", "127.0.0.1:0")
	p.await()
	return p
}

// await waits until it reads.
func (p *program) await() {
	t := p.t
	t.Helper()
	eventually(t, "squall tells its address", func() bool {
		p.alive()
		for _, e := range p.log("serving HTTP") {
			p.base = fmt.Sprintf("http://%s", e["address"])
		}
		return p.base != ""
	})
	eventually(t, "squall is ready", func() bool {
		p.alive()
		code, _ := p.get("/-/ready")
		return code == http.StatusOK
	})
}

// alive fails the test when the process has gone.
func (p *program) alive() {
	p.t.Helper()
	select {
	case <-p.ended:
		p.t.Fatalf("squall has ended: %s", p.cmd.ProcessState)
	default:
	}
}

// log gives the entries of the log on standard error that have this message.
func (p *program) log(msg string) []map[string]any {
	var found []map[string]any
	for lines := bufio.NewScanner(strings.NewReader(p.stderr.String())); lines.Scan(); {
		e := map[string]any{}
		if json.Unmarshal(lines.Bytes(), &e) == nil && e["msg"] == msg {
			found = append(found, e)
		}
	}
	return found
}

func (p *program) get(path string) (code int, body string) {
	return request(http.MethodGet, p.base+path)
}

func (p *program) reload() (code int, body string) {
	return request(http.MethodPost, p.base+"/-/reload")
}

// request gives a server's answer; 0 and why, when there is none.
func request(method, url string) (code int, text string) {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

// metric gives the value of a series as /metrics writes it; a series that is not there fails the test.
func (p *program) metric(series string) float64 {
	p.t.Helper()
	code, text := p.get("/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return v
		}
	}
	p.t.Fatalf("/metrics (%d) has no %s", code, series)
	return 0
}

// apiAlert is an alert as /api/v1/alerts tells it.
type apiAlert struct {
	Alert    string
	State    string
	Severity string
	Labels   map[string]string
	StartsAt string `json:"starts_at"`
	Cause    struct{ Verdict, Text string }
	Evidence map[string]any
}

// alerts gives the alerts of this name and state.
func (p *program) alerts(name, state string) []apiAlert {
	p.t.Helper()
	var list struct{ Alerts []apiAlert }
	_, text := p.get("/api/v1/alerts")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		p.t.Fatalf("%v: %s", err, text)
	}
	return slices.DeleteFunc(list.Alerts, func(a apiAlert) bool { return a.Alert != name || a.State != state })
}

// apiSource is a source as /api/v1/sources tells it.
type apiSource struct{ Source, Path, State, Error string }

func (p *program) source(path string) (apiSource, bool) {
	p.t.Helper()
	var list struct{ Sources []apiSource }
	_, text := p.get("/api/v1/sources")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		p.t.Fatalf("%v: %s", err, text)
	}
	i := slices.IndexFunc(list.Sources, func(s apiSource) bool { return s.Path == path })
	if i < 0 {
		return apiSource{}, false
	}
	return list.Sources[i], true
}

// kill ends it as a crash of the machine does, from its point of view.
func (p *program) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	<-p.ended
}

// stop sends a signal and gives the exit code; it must end within the time that systemd and Kubernetes are told.
func (p *program) stop(sig os.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
	began := time.Now()
	code := p.exit(10 * time.Second)
	p.t.Logf("%s ended it within %s", sig, time.Since(began).Round(time.Millisecond))
	return code
}

func (p *program) exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(within):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines tell why
		<-p.ended
		p.t.Fatalf("squall did not end within %s", within)
	}
	return p.cmd.ProcessState.ExitCode()
}

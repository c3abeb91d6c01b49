package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline/format"
)

// An origin is the application behind nginx: some workers, and a queue before them that nobody sees.
type origin struct {
	*httptest.Server
	reached atomic.Int64
}

// newOrigin answers each request after a time, in one of its workers. A worker does not notice that the client
// has gone, as PHP's does not; what still waits in the queue goes with its client.
func newOrigin(t *testing.T, workers int, each time.Duration) *origin {
	o := &origin{}
	pool := make(chan struct{}, workers)
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.reached.Add(1)
		select {
		case pool <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		<-time.After(each)
		<-pool
		_, _ = io.WriteString(w, "a page\n")
	}))
	t.Cleanup(o.Close)
	return o
}

// An nginx is Debian's, with a log_format of squall's.
type nginx struct {
	t       *testing.T
	address string
	log     string // path of its access log
	master  *os.Process
}

// startNginx runs nginx before an origin; answer are directives that come before the origin is asked.
func startNginx(t *testing.T, origin, answer string) *nginx {
	t.Helper()
	template, err := os.ReadFile("testdata/e2e/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	user := ""
	if os.Getuid() == 0 {
		user = "user root;" // its worker opens the log again in a folder that is ours alone
	}
	dir := t.TempDir()
	n := &nginx{t: t, address: freeAddress(t), log: filepath.Join(dir, "logs", "access.log")}
	for _, sub := range []string{"logs", "temp"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "nginx.conf"), strings.NewReplacer("@USER@", user, "@FORMAT@", format.RecommendedNginx,
		"@LISTEN@", n.address, "@ANSWER@", answer, "@UPSTREAM@", strings.TrimPrefix(origin, "http://")).Replace(string(template)))
	errors := &output{}
	cmd := exec.Command(command(t, "nginx"), "-p", dir, "-c", "nginx.conf", "-e", "stderr")
	cmd.Stderr = errors
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n.master = cmd.Process
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("nginx: %s", errors)
		}
	})
	eventually(t, "nginx listens", func() bool {
		c, err := net.Dial("tcp", n.address)
		return err == nil && c.Close() == nil
	})
	return n
}

// rotate does what logrotate does: it renames, and after a while tells nginx to open its log again.
func (n *nginx) rotate(to string, meanwhile func()) {
	n.t.Helper()
	if err := os.Rename(n.log, to); err != nil {
		n.t.Fatal(err)
	}
	meanwhile()
	if err := n.master.Signal(syscall.SIGUSR1); err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, "nginx has opened a new log", func() bool { return size(n.log) > 0 })
}

// size is that of a file, 0 for one that is not there.
func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// lines reads a log.
func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// traffic are clients that send requests at a steady rate, each from the next address of a range of the loopback
// network, and give up after their patience.
type traffic struct {
	method, host, agent string
	path                func(i int) string
	network             byte // of the client's address: 127.network.x.y
	addresses           int
	every, patience     time.Duration
}

const browserAgent = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"

// flow sends until stop is called, which waits for the last answer.
func (c traffic) flow(t *testing.T, n *nginx) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(c.every)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				all.Go(func() { c.send(n.address, i) })
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(stop)
	return stop
}

func (c traffic) send(address string, i int) {
	x := i % c.addresses
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, c.network, byte(x/250), byte(1+x%250))}}
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	client := http.Client{Transport: transport, Timeout: c.patience}
	req, err := http.NewRequest(c.method, "http://"+address+c.path(i), nil)
	if err != nil {
		panic(err) // a path of the test's own
	}
	req.Host = c.host
	req.Header.Set("User-Agent", c.agent)
	res, err := client.Do(req)
	if err != nil {
		return // it gave up: nginx writes a 499
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
}

// A notification is what Alertmanager told a receiver.
type notification struct {
	Path   string // of the receiver
	Status string
	Alerts []struct {
		Status              string
		Labels, Annotations map[string]string
		StartsAt, EndsAt    time.Time
	}
}

// A receiver is where pages arrive in the end.
type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	got []notification
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n := notification{Path: req.URL.Path}
		if err := json.NewDecoder(req.Body).Decode(&n); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, n)
	}))
	t.Cleanup(r.Close)
	return r
}

// told gives what came at a path with this status.
func (r *receiver) told(path, status string) []notification {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []notification
	for _, n := range r.got {
		if n.Path == path && n.Status == status {
			found = append(found, n)
		}
	}
	return found
}

// startVictoriaLogs runs a server that takes Loki's pushes.
func startVictoriaLogs(t *testing.T) (base string) {
	t.Helper()
	path, err := filepath.Abs("../../.cache/bin/victoria-logs")
	if err != nil {
		t.Fatal(err)
	}
	if given := os.Getenv("SQUALL_VICTORIA_LOGS"); given != "" {
		path = given
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: `make test` installs it, or set SQUALL_VICTORIA_LOGS to a victoria-logs program", err)
	}
	address := freeAddress(t)
	var log bytes.Buffer
	cmd := exec.Command(path, "-httpListenAddr="+address, "-storageDataPath="+t.TempDir(), "-retentionPeriod=100y", "-loggerLevel=ERROR")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("victoria-logs: %s", log.String())
		}
	})
	base = "http://" + address
	eventually(t, "victoria-logs is ready", func() bool {
		code, _ := request(http.MethodGet, base+"/health")
		return code == http.StatusOK
	})
	return base
}

// pushURL is where squall pushes to; lines are stored as they are.
func pushURL(base string) string {
	return base + "/insert/loki/api/v1/push?disable_message_parsing=1"
}

// stored gives every line that the server has, once: a line that was pushed twice has the same stream, time and
// text both times, which Loki keeps once and VictoriaLogs twice.
func stored(t *testing.T, base string) []map[string]string {
	t.Helper()
	res, err := http.PostForm(base+"/select/logsql/query", url.Values{"query": {"*"}, "limit": {"1000000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var rows []map[string]string
	seen := map[string]bool{}
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 4<<20)
	for in.Scan() {
		row := map[string]string{}
		if err := json.Unmarshal(in.Bytes(), &row); err != nil {
			t.Fatalf("%s: %v", in.Bytes(), err)
		}
		key := fmt.Sprintf("%s\n%s\n%s", row["_stream"], row["_time"], row["_msg"])
		if !seen[key] {
			seen[key] = true
			rows = append(rows, row)
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

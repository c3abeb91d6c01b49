package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// decoder decodes as the configuration does: strictly.
func decoder(text string) func(any) error {
	return func(v any) error { return yaml.UnmarshalWithOptions([]byte(text), v, yaml.Strict()) }
}

func build(t *testing.T, text string, rt Runtime) []Peer {
	t.Helper()
	if rt.Now == nil {
		rt.Now = time.Now
	}
	peers, err := New(decoder(text), rt)
	if err != nil {
		t.Fatal(err)
	}
	return peers
}

// page is an alert that fires since a minute.
func page(name string) alerts.Alert {
	now := time.Now()
	return alerts.Alert{
		Name: name, State: alerts.Firing, Severity: alerts.Page, Labels: detectors.Labels{{Name: "site", Value: "shop.example"}},
		StartsAt: now.Add(-time.Minute).UnixNano(), At: now.UnixNano(),
		Annotations: map[string]string{"summary": "clients give up"},
	}
}

func resolved(a alerts.Alert) alerts.Alert {
	a.State, a.EndsAt = alerts.Resolved, time.Now().Add(-time.Second).UnixNano()
	return a
}

// run runs a dispatcher until the test ends or stop is called.
func run(t *testing.T, d *Dispatcher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second):
			t.Error("Run did not return")
		}
	})
	t.Cleanup(stop)
	return stop
}

// receiver is a pager: it keeps every message.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	bodies [][]byte
	came   chan struct{}
	status int
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{came: make(chan struct{}, 1000), status: http.StatusOK}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.bodies = append(r.bodies, body)
		status := r.status
		r.mu.Unlock()
		w.WriteHeader(status)
		r.came <- struct{}{}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

func (r *receiver) messages() []payload {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []payload
	for _, b := range r.bodies {
		var p payload
		_ = json.Unmarshal(b, &p)
		out = append(out, p)
	}
	return out
}

// await waits until a message satisfies ok.
func (r *receiver) await(t *testing.T, what string, ok func([]payload) bool) []payload {
	t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		if m := r.messages(); ok(m) {
			return m
		}
		select {
		case <-r.came:
		case <-deadline:
			t.Fatalf("%s did not come; came: %+v", what, r.messages())
		}
	}
}

func has(name, status string) func([]payload) bool {
	return func(messages []payload) bool { return count(messages, name, status) > 0 }
}

func count(messages []payload, name, status string) int {
	n := 0
	for _, m := range messages {
		for _, a := range m.Alerts {
			if a.Labels["alertname"] == name && a.Status == status {
				n++
			}
		}
	}
	return n
}

// manager is a real Alertmanager on a loopback port.
type manager struct {
	t    *testing.T
	addr string
	conf string
	args []string // of a cluster; none: it stands alone
	cmd  *exec.Cmd
	out  *bytes.Buffer
}

func startManager(t *testing.T, webhook string, cluster ...string) *manager {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "alertmanager.yml")
	text := fmt.Sprintf(`
route: {receiver: pager, group_by: [alertname, site], group_wait: 100ms, group_interval: 500ms, repeat_interval: 1h}
receivers:
- name: pager
  webhook_configs: [{url: %q, send_resolved: true}]
`, webhook)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if cluster == nil {
		cluster = []string{"--cluster.listen-address="}
	}
	m := &manager{t: t, addr: freePort(t), conf: conf, args: cluster}
	t.Cleanup(m.stop)
	m.start()
	return m
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start starts it with an empty state.
func (m *manager) start() {
	m.t.Helper()
	binary, err := exec.LookPath("prometheus-alertmanager")
	if err != nil {
		m.t.Fatal("a real Alertmanager is needed: apt-get install prometheus-alertmanager")
	}
	m.out = &bytes.Buffer{}
	args := append([]string{"--config.file=" + m.conf, "--storage.path=" + m.t.TempDir(), "--web.listen-address=" + m.addr}, m.args...)
	m.cmd = exec.Command(binary, args...)
	m.cmd.Stdout, m.cmd.Stderr = m.out, m.out
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	poll(m.t, "Alertmanager to be ready", func() bool {
		resp, err := c.Get("http://" + m.addr + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// poll asks until ok or a deadline.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func (m *manager) stop() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	m.cmd = nil
}

// alerts lists what Alertmanager holds, by name.
func (m *manager) alerts() []string {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	resp, err := c.Get("http://" + m.addr + "/api/v2/alerts")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var list []struct{ Labels map[string]string }
	_ = json.NewDecoder(resp.Body).Decode(&list)
	var names []string
	for _, a := range list {
		names = append(names, a.Labels["alertname"])
	}
	slices.Sort(names)
	return names
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
)

const alertmanagerExample = "../../deploy/alertmanager/alertmanager.yml"

// command finds a program that `make test` installs.
func command(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: `make test` installs it", err)
	}
	return path
}

func TestAlertmanagerExampleIsValid(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), command(t, "amtool"), "check-config", alertmanagerExample).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("5 inhibit rules")) {
		t.Fatalf("%v: %s", err, out)
	}
}

// pager collects what a receiver is told: "name site" of the firing alerts.
type pager struct {
	mu   sync.Mutex
	told map[string][]string // by path
}

func (p *pager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		Alerts []struct {
			Status string
			Labels map[string]string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range m.Alerts {
		what := a.Labels["alertname"] + " " + a.Labels["site"]
		if a.Status == "firing" && !slices.Contains(p.told[r.URL.Path], what) {
			p.told[r.URL.Path] = append(p.told[r.URL.Path], what)
		}
	}
}

// at gives what a path was told, sorted.
func (p *pager) at(path string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(slices.Sorted(slices.Values(p.told[path])), ", ")
}

// freeAddress is an address that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000))
		if _, taken := givenAddresses.LoadOrStore(address, true); taken {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return address
		}
	}
	t.Fatal("no address is free")
	return ""
}

// givenAddresses are those of freeAddress, which gives none twice. They are below the range from which the kernel
// takes the ports of connections, so that no client is there before the server.
var givenAddresses sync.Map

// startAlertmanager runs Debian's Alertmanager with the example, its receivers at the given address.
func startAlertmanager(t *testing.T, receivers string) (base string) {
	t.Helper()
	text, err := os.ReadFile(alertmanagerExample)
	if err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("http://127.0.0.1:9095", receivers, "group_wait: 10s", "group_wait: 1s", "group_interval: 1m", "group_interval: 1s").Replace(string(text))
	dir := t.TempDir()
	file := filepath.Join(dir, "alertmanager.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), command(t, "prometheus-alertmanager"), "--config.file="+file,
		"--storage.path="+dir, "--web.listen-address="+address, "--cluster.listen-address=")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the test's context has ended, so that it was asked to stop
		_ = cmd.Wait() // it says "signal: terminated" or 0, as it likes
		if t.Failed() {
			t.Logf("alertmanager: %s", log.String())
		}
	})
	base = "http://" + address
	eventually(t, "alertmanager is ready", func() bool {
		res, err := http.Get(base + "/-/ready")
		if err != nil {
			return false
		}
		return res.Body.Close() == nil && res.StatusCode == http.StatusOK
	})
	return base
}

// eventually waits a minute until a thing is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	within(t, time.Minute, what, so)
}

// within waits until a thing is so.
func within(t *testing.T, limit time.Duration, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(limit)
	for !so() {
		if time.Now().After(deadline) {
			t.Fatalf("after %s it is still not so: %s", limit, what)
		}
		<-tick.C
	}
}

func postAlerts(t *testing.T, base string, list ...map[string]string) {
	t.Helper()
	type alert struct {
		Labels   map[string]string `json:"labels"`
		StartsAt time.Time         `json:"startsAt"`
		EndsAt   time.Time         `json:"endsAt"`
	}
	var body []alert
	for _, labels := range list {
		// An alert that began before the group's wait is sent at once, alone: these are seen as they begin.
		body = append(body, alert{labels, time.Now(), time.Now().Add(time.Hour)})
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Post(base+"/api/v2/alerts", "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(res.Body)
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %v: %s", res.StatusCode, err, answer)
	}
}

// A storm that hurts is one page; the same halves on another site are told there.
func TestAlertmanagerExamplePagesOnce(t *testing.T) {
	receiver := &pager{told: map[string][]string{}}
	server := httptest.NewServer(receiver)
	t.Cleanup(server.Close)
	base := startAlertmanager(t, server.URL)
	one := func(name string, severity alerts.Severity, site string) map[string]string {
		return map[string]string{"alertname": name, "severity": string(severity), "site": site}
	}
	postAlerts(t, base,
		one("StormHurting", alerts.Page, "a.example"),
		one("ClientsGivingUp", alerts.Page, "a.example"),
		one("WorkersExhausted", alerts.Page, "a.example"),
		one("HeadStorm", alerts.Warning, "a.example"),
		one("HeadStorm", alerts.Warning, "b.example"),
		one("HeadStorm", alerts.Info, "c.example"),
		one("SelfLoop", alerts.Warning, "a.example"),
		one("LimiterBackfires", alerts.Warning, "a.example"),
		map[string]string{"alertname": "RestartBurst", "severity": string(alerts.Page), "cluster": "default"},
		// Prometheus sends these (deploy/prometheus).
		map[string]string{"alertname": "SquallDeadMan", "severity": "none"},
		map[string]string{"alertname": "SquallDown", "severity": string(alerts.Page), "instance": "a:9177"},
		map[string]string{"alertname": "SquallBehind", "severity": string(alerts.Warning), "instance": "a:9177"},
		map[string]string{"alertname": "SquallBehind", "severity": string(alerts.Warning), "instance": "b:9177"},
	)
	eventually(t, "every receiver was told", func() bool {
		return receiver.at("/pager") == "RestartBurst , SquallDown , StormHurting a.example" &&
			receiver.at("/team") == "HeadStorm b.example, SelfLoop a.example, SquallBehind " && receiver.at("/deadman") == "SquallDeadMan "
	})
	inhibited := inhibitedAt(t, base)
	check(t, "inhibited", inhibited,
		"ClientsGivingUp a.example, HeadStorm a.example, LimiterBackfires a.example, SquallBehind , WorkersExhausted a.example")
	check(t, "pager", receiver.at("/pager"), "RestartBurst , SquallDown , StormHurting a.example")
}

// inhibitedAt asks Alertmanager which alerts it holds back.
func inhibitedAt(t *testing.T, base string) string {
	t.Helper()
	res, err := http.Get(base + "/api/v2/alerts")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Labels map[string]string
		Status struct{ InhibitedBy []string }
	}
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range list {
		if len(a.Status.InhibitedBy) > 0 {
			out = append(out, fmt.Sprintf("%s %s", a.Labels["alertname"], a.Labels["site"]))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

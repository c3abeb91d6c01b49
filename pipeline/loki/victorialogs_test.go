package loki

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// victoriaLogs starts a real server that takes Loki's pushes, and gives its address.
func victoriaLogs(t *testing.T) string {
	t.Helper()
	path := os.Getenv("SQUALL_VICTORIA_LOGS")
	if path == "" {
		path = filepath.Join("..", "..", ".cache", "bin", "victoria-logs")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `make test`, which fetches it, or set SQUALL_VICTORIA_LOGS to a victoria-logs program "+
			"(GOBIN=$PWD/.cache/bin go install github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs@v1.52.2)", err)
	}
	// A port that is free now; nobody else on this machine is expected to take it within milliseconds.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-httpListenAddr="+addr, "-storageDataPath="+t.TempDir(), "-retentionPeriod=100y", "-loggerLevel=ERROR")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	base := "http://" + addr
	poll(t, "victoria-logs is ready", func() bool {
		resp, err := http.Get(base + "/health")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return base
}

func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// query gives what a real server stored, by line.
func query(t *testing.T, base string) map[string]map[string]string {
	t.Helper()
	resp, err := http.PostForm(base+"/select/logsql/query", url.Values{"query": {"*"}, "limit": {"100000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got := map[string]map[string]string{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		row := map[string]string{}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		got[row["_msg"]] = row
	}
	return got
}

func TestRealServerGivesEveryLineBack(t *testing.T) {
	base := victoriaLogs(t)
	cfg := quick(base + "/insert/loki/api/v1/push?disable_message_parsing=1")
	cfg.Metadata = append(cfg.Metadata, "origin", "path")
	r := start(t, t.TempDir(), cfg)
	const n = 2500
	sent := logged("a", 0, n)
	r.append(sent)
	r.append(logged("b", 0, n))
	r.shipped()
	var got map[string]map[string]string
	poll(t, "all lines are found", func() bool { got = query(t, base); return len(got) >= 2*n })
	if len(got) != 2*n || testutil.ToFloat64(r.shipper.m.shipped) != 2*n {
		t.Errorf("%d lines are found, %v counted as shipped, want %d", len(got), testutil.ToFloat64(r.shipper.m.shipped), 2*n)
	}
	for _, e := range sent.Entries {
		row := got[string(e.Line)]
		at, err := time.Parse(time.RFC3339Nano, row["_time"])
		if err != nil || at.UnixNano() != e.Time {
			t.Fatalf("line %q has time %q, want %d", e.Line, row["_time"], e.Time)
		}
		for name, want := range map[string]string{
			"job": "squall", "site": "shop.example", "source": "balancer", "role": "lb", "method": "HEAD", "route": "/checkout/{int}",
			"status": "200", "request_time": "1.5", "client_class": "scanner", "client_abandoned": "true", "origin": "external",
		} {
			if row[name] != want {
				t.Fatalf("line %q has %s=%q, want %q", e.Line, name, row[name], want)
			}
		}
	}
}

// A server that goes away in the middle, and a squall that is started again, lose no line.
func TestRestartsLoseNothing(t *testing.T) {
	base := victoriaLogs(t)
	cfg := quick("http://127.0.0.1:1" + pushPath) // nobody listens
	dir := t.TempDir()
	r := start(t, dir, cfg)
	r.append(logged("a", 0, 500))
	r.until("it has tried", func() bool { return testutil.ToFloat64(r.shipper.m.retries.WithLabelValues("busy")) > 2 })
	r.stop()
	r = start(t, dir, quick(base+"/insert/loki/api/v1/push?disable_message_parsing=1"))
	if to, ok := r.spool.Position("a"); !ok || to != 500 {
		t.Errorf("position %d %v", to, ok)
	}
	r.append(logged("a", 500, 500))
	r.shipped()
	var got map[string]map[string]string
	poll(t, "all lines are found", func() bool { got = query(t, base); return len(got) == 1000 })
	for i := range 1000 {
		if _, ok := got[fmt.Sprintf("HEAD /checkout/%d of a", i)]; !ok {
			t.Errorf("line %d is missing", i)
		}
	}
}

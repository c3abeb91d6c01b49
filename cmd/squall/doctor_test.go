package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline/fleet"
)

// doctored gives what the doctor says of a configuration.
func doctored(t *testing.T, config string) (found []diagnosis, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "squall.yaml")
	write(t, file, config)
	out, _, err := runCommand("doctor", "--config", file, "--json", "--user", "")
	if e := json.Unmarshal([]byte(out), &found); e != nil {
		t.Fatalf("%v: %s", e, out)
	}
	return found, err
}

// about gives the worst that is said of a thing.
func about(found []diagnosis, what string) diagnosis {
	var worst diagnosis
	for _, d := range found {
		if order := []string{"", healthy, weak, sick}; strings.HasPrefix(d.What, what) && slices.Index(order, d.Status) > slices.Index(order, worst.Status) {
			worst = d
		}
	}
	return worst
}

// TestDoctorOfAHealthyMachine tries a log of the real nginx, the real VictoriaLogs and the real Alertmanager.
func TestDoctorOfAHealthyMachine(t *testing.T) {
	t.Parallel()
	store, manager := startVictoriaLogs(t), startAlertmanager(t, "http://127.0.0.1:9")
	site := httptest.NewServer(http.NotFoundHandler())
	defer site.Close()
	web := startNginx(t, site.URL, "")
	if code, text := request(http.MethodGet, "http://"+web.address+"/"); code == 0 {
		t.Fatal(text)
	}
	eventually(t, "nginx has logged it", func() bool { return size(web.log) > 0 })
	found, err := doctored(t, fmt.Sprintf(`sources: [{name: access, type: file, paths: [%q]}]
site_defaults: {pool: {workers: 5}}
spool: {dir: %q, max_bytes: 1MiB}
loki: {url: %q}
notify: [{type: alertmanager, urls: [%q]}]
web: {listen: %q}
`, web.log, t.TempDir(), pushURL(store), manager, freeAddress(t)))
	if err != nil {
		t.Errorf("%v: %+v", err, found)
	}
	for _, what := range []string{"configuration", "source access", "spool", "loki", "notify alertmanager", "web"} {
		if d := about(found, what); d.Status != healthy {
			t.Errorf("%s: %+v", what, d)
		}
	}
	if d := about(found, "notify"); !strings.Contains(d.Found, "takes alerts") {
		t.Errorf("%+v", d)
	}
	_, text := request(http.MethodGet, manager+"/api/v2/alerts")
	check(t, "alerts that the doctor left", strings.TrimSpace(text), "[]")
	check(t, "lines that the doctor left", len(stored(t, store)), 0)
}

// TestDoctorOfASickMachine holds that each fault is found, told with what to do, and with no secret.
func TestDoctorOfASickMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "odd.log"), strings.Repeat("a line that is no request\n", 50))
	write(t, filepath.Join(dir, "old.log"), strings.Repeat(combinedLine, 3))
	taken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer taken.Close()
	address := strings.TrimPrefix(taken.URL, "http://")
	write(t, filepath.Join(dir, "secret"), "topsecretpath")
	found, err := doctored(t, fmt.Sprintf(`sources:
  - {name: odd, type: file, paths: [%q]}
  - {name: old, type: file, paths: [%q]}
  - {name: none, type: file, paths: [%q]}
  - {name: ear, type: syslog, listen: ["tcp://%s"], format: haproxy}
  - {name: cluster, type: kubernetes, kubeconfig: /nonexistent}
  - {name: units, type: journal, units: [kubelet], journalctl: /nonexistent}
spool: {dir: %q}
loki: {url: "http://user:pass@%s"}
notify: [{type: alertmanager, urls: ["http://%s"]}, {type: webhook, url: "http://127.0.0.1:1/${file:%s}"}]
web: {listen: %q}
`, filepath.Join(dir, "odd.log"), filepath.Join(dir, "old.log"), filepath.Join(dir, "none.log"), address, filepath.Join(dir, "odd.log", "x"), address, address, filepath.Join(dir, "secret"), address))
	if exitCode(err) != exitFailed {
		t.Errorf("it exits with %d: %v", exitCode(err), err)
	}
	for what, want := range map[string]diagnosis{
		"source odd":          {Status: sick, Found: "do not fit"},
		"source old":          {Status: weak, Found: "old.log"},
		"source none":         {Status: weak, Found: "no file matches"},
		"source ear":          {Status: sick, Found: "in use"},
		"source cluster":      {Status: sick, Found: "nonexistent"},
		"source units":        {Status: sick, Found: "nonexistent"},
		"pool":                {Status: weak, Found: "saturation is silent"},
		"spool":               {Status: sick, Found: "may not write"},
		"loki":                {Status: sick, Found: "answered 401"},
		"notify alertmanager": {Status: sick, Found: "answered 401"},
		"notify webhook":      {Status: sick, Found: "refused"},
		"web":                 {Status: sick, Found: "in use"},
	} {
		if d := about(found, what); d.Status != want.Status || !strings.Contains(d.Found, want.Found) || (d.Do == "" && d.Status == sick) {
			t.Errorf("%s: %+v", what, d)
		}
	}
	if text := fmt.Sprint(found); strings.Contains(text, "topsecretpath") || strings.Contains(text, "pass@") {
		t.Errorf("a secret is shown: %s", text)
	}
}

// TestDoctorSaysWhatToDo holds that the cause of a fault decides what is advised.
func TestDoctorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	sealed := httptest.NewUnstartedServer(http.NotFoundHandler())
	sealed.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	sealed.StartTLS()
	defer sealed.Close()
	for _, c := range []struct{ url, do string }{
		{"http://" + freeAddress(t), "nothing listens there"},
		{sealed.URL, "ca_file"},
		{strings.Replace(plain.URL, "http:", "https:", 1), "it speaks http there"},
		{"http://no-such-host.invalid:3100", "its name is not found"},
	} {
		found, err := doctored(t, fmt.Sprintf(`sources: [{type: stdin}]
spool: {dir: %q}
loki: {url: %q}
notify: [{type: alertmanager, urls: [%q]}, {type: webhook, url: %q}]
web: {listen: %q}
`, t.TempDir(), c.url, c.url, c.url+"/hook", freeAddress(t)))
		if exitCode(err) != exitFailed {
			t.Errorf("%s: %v", c.url, err)
		}
		for _, what := range []string{"loki", "notify alertmanager", "notify webhook"} {
			if d := about(found, what); d.Status != sick || !strings.HasPrefix(d.Do, c.do) && !strings.Contains(d.Do, c.do) {
				t.Errorf("%s: %+v, want what to do: %s", c.url, d, c.do)
			}
		}
	}
}

// TestDoctorKnowsItself holds that a squall that runs behind TLS, or asks for a password, is no other program.
func TestDoctorKnowsItself(t *testing.T) {
	t.Parallel()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer locked.Close()
	sealed := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "squall_build_info 1\n") }))
	defer sealed.Close()
	file := filepath.Join(t.TempDir(), "web.yml")
	write(t, file, "")
	for address, want := range map[string]string{locked.Listener.Addr().String(): weak, sealed.Listener.Addr().String(): healthy} {
		found, _ := doctored(t, fmt.Sprintf("sources: [{type: stdin}]\nspool: {dir: %q}\nweb: {listen: %q, config_file: %q}\n", t.TempDir(), address, file))
		if d := about(found, "web"); d.Status != want {
			t.Errorf("%s: %+v", address, d)
		}
	}
}

// TestServiceMayNotHaveLowPorts holds that the port that only root may listen on is told before the service is started.
func TestServiceMayNotHaveLowPorts(t *testing.T) {
	d := &doctor{config: Default(), reader: &reader{service: true, name: "squall"}}
	d.listener(t.Context(), "source ear", "udp://127.0.0.1:1")
	d.listener(t.Context(), "source ear", "udp://"+freeAddress(t))
	d.reader.ports = true
	d.listener(t.Context(), "source root's", "tcp://"+freeAddress(t))
	if len(d.found) != 3 || d.found[0].Status != sick || !strings.Contains(d.found[0].Do, "CAP_NET_BIND_SERVICE") || d.found[1].Status != healthy || d.found[2].Status != healthy {
		t.Errorf("%+v", d.found)
	}
}

// TestDoctorTable holds the form for people, and that a configuration with faults is told and not run.
func TestDoctorTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "squall.yaml")
	write(t, file, "sources: [{type: stdin}]\nnotfy: []\n")
	out, _, err := runCommand("doctor", "--config", file)
	if exitCode(err) != exitFailed || !strings.Contains(out, "FAIL") || !strings.Contains(out, file+":2:1") || !strings.Contains(out, "notify") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestReaderIsTheService holds that root asks for the service's user, and that anybody else asks for itself.
func TestReaderIsTheService(t *testing.T) {
	if os.Getuid() != 0 {
		r := newReader(t.Context(), "nobody")
		check(t, "whose rights count", r.service, false)
		return
	}
	dir, err := os.MkdirTemp("", "squall-reader-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user looks into it
		t.Fatal(err)
	}
	r := newReader(t.Context(), "nobody")
	closed, open := filepath.Join(dir, "closed"), filepath.Join(dir, "open")
	write(t, closed, "")
	write(t, open, "")
	if err := os.Chmod(open, 0o644); err != nil { //nolint:gosec // another user looks into it
		t.Fatal(err)
	}
	if r.mayRead(closed) == nil || r.mayRead(open) != nil || r.mayWrite(dir) == nil {
		t.Errorf("closed %v, open %v, folder %v", r.mayRead(closed), r.mayRead(open), r.mayWrite(dir))
	}
}

// TestSampleReadsTheEnd holds that of a long log its end is looked at, in whole lines.
func TestSampleReadsTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	write(t, path, strings.Repeat("not a request\n", sampleBytes/8)+strings.Repeat(combinedLine, 2*sampleBytes/len(combinedLine))+"192.0.2.1 - - [30/No")
	choice, err := chooseFormat("auto", func(any) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	got, err := sampleLog(path, opener{format: choice, zone: time.UTC})
	if err != nil || got.failed > 0 || got.lines < 1000 || got.requests != got.lines || got.times != 0 || got.hosts != 0 || !got.fits() {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestDoctorTriesTheFleet tries servers that are away, that have no stream yet, that no aggregator is heard on, and well.
func TestDoctorTriesTheFleet(t *testing.T) {
	t.Parallel()
	address := startFleetServer(t)
	fleetOf := func(nats string) []diagnosis {
		found, _ := doctored(t, fmt.Sprintf("sources: [{type: stdin}]\nspool: {dir: %q}\nweb: {listen: %q}\npane: 1s\nfleet: {nats: %q, node: edge}\n", t.TempDir(), freeAddress(t), nats))
		return found
	}
	says := func(nats, status, do string) {
		t.Helper()
		if d := about(fleetOf(nats), "fleet"); d.Status != status || !strings.Contains(d.Do, do) {
			t.Errorf("%+v, want %s: %s", d, status, do)
		}
	}
	says("nats://"+freeAddress(t), sick, "fleet.nats names the servers")
	says("tls://"+strings.TrimPrefix(address, "nats://"), sick, "write nats://")
	found, _ := doctored(t, fmt.Sprintf("sources: [{type: stdin}]\nspool: {dir: %q}\nweb: {listen: %q}\nfleet: {embedded: true, node: agg, server: {listen: %q, cert_file: /none, key_file: /none}}\n", t.TempDir(), freeAddress(t), freeAddress(t)))
	if d := about(found, "fleet server"); d.Status != sick || !strings.Contains(d.Do, "mend fleet.server") {
		t.Errorf("a server without its certificate: %+v", d)
	}
	says(address, sick, "start squall aggregate")
	link, err := fleet.Connect(fleet.Config{URL: address, Cluster: "default", Node: "agg"})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	eventually(t, "there is a stream", func() bool { return link.Declare(t.Context(), fleet.StreamConfig{}) == nil })
	says(address, weak, "does squall aggregate run?")
	ctx, stop := context.WithCancel(t.Context())
	var telling sync.WaitGroup
	telling.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			_ = link.Tell([]byte("{}")) // whoever listens hears the next
		}
	})
	defer telling.Wait()
	defer stop()
	says(address, healthy, "")
}

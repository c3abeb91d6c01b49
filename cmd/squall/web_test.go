package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/report"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
)

// hostile is what an attacker puts into paths and agents: markup, template syntax, control, bidirectional and
// zero-width characters, an escape sequence for a terminal, bytes that are no UTF-8.
const hostile = "<script>alert(1)</script>\"'`{{.}}\x1b[2J\x00\u202egnp.exe\u200b\u2028\xff&<img src=x onerror=alert(1)>"

// shown is a state full of hostile text.
type shown struct {
	notReady, refused error
	reloads           atomic.Int32
}

func (s *shown) Alerts() []alerts.Alert {
	return []alerts.Alert{{
		Name: "HeadStorm", State: alerts.Firing, Severity: alerts.Warning,
		Labels: detectors.Labels{{Name: "site", Value: hostile}}, StartsAt: 1e18, At: 1e18 + 6e10,
		Cause:       alerts.Cause{Verdict: alerts.Undetermined, Text: hostile, Missing: []string{hostile}},
		Advice:      []alerts.Advice{{Layer: "edge", Text: hostile, Snippet: "if (" + hostile + ") {\n}", Verify: hostile}},
		Annotations: map[string]string{"summary": hostile},
		Evidence: detectors.Evidence{
			Requests: detectors.N(300), Samples: []string{hostile}, Route: hostile,
			TopAgents: []detectors.Count{{Key: hostile, Count: 3}},
		},
	}}
}

func (s *shown) Sources() []pipeline.InputState {
	return []pipeline.InputState{{Input: "balancer", Path: "/var/log/" + hostile, State: "unreadable", Err: hostile, Lag: 7}}
}

func (s *shown) Live() []report.Series {
	n := detectors.N(1)
	return []report.Series{{
		Site: hostile, Start: 1e18, Step: 10, Requests: map[string][]uint64{"GET": {60}, "HEAD": {6}}, Abandoned: []uint64{1}, Errors: []uint64{0},
		Limited: []uint64{0}, P99: []detectors.Num{n}, Censored: []bool{true}, BusyLower: []detectors.Num{n}, BusyUpper: []detectors.Num{n}, Total: 66,
	}}
}

func (s *shown) Loki() bool { return true }

func (s *shown) Incidents() []alerts.Entry {
	return []alerts.Entry{{
		Version: alerts.LedgerVersion, ID: "1", Fingerprint: hostile, Cause: alerts.Cause{Verdict: alerts.Undetermined, Text: hostile}, Requests: hostile, Sites: []string{hostile},
	}}
}

func (s *shown) Marks() []alerts.Mark { return []alerts.Mark{{At: 1, Text: hostile}} }

func (s *shown) Annotate(context.Context, []alerts.Mark) error { return nil }

func (s *shown) Ready() error { return s.notReady }

func (s *shown) Reload() error {
	s.reloads.Add(1)
	return s.refused
}

// start serves a state and returns its base address and what ends it.
func start(t *testing.T, c webServerConfig) (base string, stop func() error) {
	t.Helper()
	c.Log, c.Gatherer = zap.NewNop(), prometheus.NewRegistry()
	if c.Web.Listen == "" {
		c.Web.Listen = "127.0.0.1:0"
	}
	s, err := newWebServer(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return "http://" + s.Addr().String(), func() error {
		cancel()
		return <-done
	}
}

func ask(t *testing.T, method, url string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body), res.Header
}

func TestWebRoutes(t *testing.T) {
	state := &shown{}
	base, stop := start(t, webServerConfig{State: state})
	for _, row := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/", 200},
		{"GET", "/assets/page.js", 200},
		{"GET", "/assets/page.css", 200},
		{"GET", "/assets/icon.svg", 200},
		{"GET", "/assets/uPlot.iife.min.js", 200},
		{"GET", "/assets/uPlot.min.css", 200},
		{"GET", "/assets/uPlot.LICENSE", 200},
		{"GET", "/assets/page.html", 404},
		{"GET", "/metrics", 200},
		{"GET", "/-/healthy", 200},
		{"HEAD", "/-/healthy", 200},
		{"GET", "/-/ready", 200},
		{"GET", "/-/reload", 405},
		{"POST", "/-/reload", 200},
		{"POST", "/", 405},
		{"GET", "/api/v1/alerts", 200},
		{"GET", "/api/v1/sources", 200},
		{"GET", "/api/v1/none", 404},
		{"GET", "/debug/pprof/", 404},
		{"GET", "/debug/pprof/cmdline", 404},
	} {
		if code, body, _ := ask(t, row.method, base+row.path); code != row.code {
			t.Errorf("%s %s: %d, not %d: %s", row.method, row.path, code, row.code, body)
		}
	}
	check(t, "reloads", state.reloads.Load(), 1)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// heldBack is a state with an alert that nobody is told of.
type heldBack struct{ shown }

func (*heldBack) Alerts() []alerts.Alert {
	return []alerts.Alert{{Name: "HeadStorm", State: alerts.Suppressed, Suppressed: "nightly", Severity: alerts.Warning, StartsAt: 1e18, At: 1e18}}
}

func TestWebShowsWhatIsHeldBack(t *testing.T) {
	base, stop := start(t, webServerConfig{State: &heldBack{}})
	if _, body, _ := ask(t, "GET", base+"/"); !strings.Contains(body, `suppressed</span> HeadStorm`) ||
		!strings.Contains(body, "Held back by nightly: no receiver is told.") {
		t.Error(body)
	}
	if _, body, _ := ask(t, "GET", base+"/api/v1/alerts"); !strings.Contains(body, `"state":"suppressed","suppressed":"nightly"`) {
		t.Error(body)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestWebProfilesByFlag(t *testing.T) {
	base, stop := start(t, webServerConfig{State: &shown{}, Profiles: true})
	code, body, _ := ask(t, "GET", base+"/debug/pprof/goroutine?debug=1")
	if code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("%d %s", code, body)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestWebNotReadyAndRefusedReload(t *testing.T) {
	state := &shown{notReady: errors.New("the first file is not open"), refused: errors.New("a.yaml:1:1: " + hostile)}
	base, stop := start(t, webServerConfig{State: state})
	code, body, _ := ask(t, "GET", base+"/-/ready")
	if code != 503 || !strings.Contains(body, "the first file is not open") {
		t.Errorf("%d %s", code, body)
	}
	code, body, _ = ask(t, "POST", base+"/-/reload")
	if code != 500 || !strings.Contains(body, "a.yaml:1:1") || !plain(body) {
		t.Errorf("%d %q", code, body)
	}
	code, _, _ = ask(t, "POST", base+"/-/reload", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	if code != 403 {
		t.Errorf("a page of another site can reload: %d", code)
	}
	check(t, "reloads", state.reloads.Load(), 1)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// plain tells whether a text holds nothing that changes how the text around it is shown.
func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r != '\n' && (r == unicode.ReplacementChar || !unicode.IsPrint(r))
	})
}

func TestWebShowsHostileTextAsText(t *testing.T) {
	base, stop := start(t, webServerConfig{State: &shown{}})
	for _, path := range []string{"/", "/api/v1/alerts", "/api/v1/sources", "/api/v1/incidents", "/api/v1/incidents/1", "/api/v1/annotations"} {
		_, body, header := ask(t, "GET", base+path)
		if !plain(body) {
			t.Errorf("%s holds a hidden character: %q", path, body)
		}
		if header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %v", path, header)
		}
	}
	_, page, _ := ask(t, "GET", base+"/")
	if strings.Count(page, "<script") != strings.Count(page, `<script src="assets/`) || strings.Contains(page, "<img") || strings.Count(page, "&lt;script&gt;") < 7 {
		t.Errorf("markup of a log line is markup of the page:\n%s", page)
	}
	var got struct {
		Alerts []struct {
			Alert    string
			Evidence struct{ Samples []string }
			Labels   map[string]string
		}
	}
	_, body, _ := ask(t, "GET", base+"/api/v1/alerts")
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	check(t, "alert", got.Alerts[0].Alert, "HeadStorm")
	// JSON escapes and loses nothing but the byte that is no character.
	check(t, "sample", got.Alerts[0].Evidence.Samples[0], strings.ToValidUTF8(hostile, "\ufffd"))
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A client that sends its request a byte at a time, or never, is hung up on; in the bubble of synctest the
// timeouts take no time.
func TestWebHangsUpOnSlowClients(t *testing.T) {
	for name, sent := range map[string]string{
		"says nothing":      "",
		"half a header":     "GET / HTTP/1.1\r\nHost: squall\r\nX-Slow: ",
		"body never comes":  "POST /-/reload HTTP/1.1\r\nHost: squall\r\nContent-Length: 10\r\n\r\n1",
		"nothing after one": "GET /-/healthy HTTP/1.1\r\nHost: squall\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				l := &oneConn{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
				l.conns <- there
				s := newHTTPServer(webServerConfig{State: &shown{}, Log: zap.NewNop(), Gatherer: prometheus.NewRegistry()})
				done := make(chan error, 1)
				go func() { done <- s.Serve(l) }()
				began := time.Now()
				if _, err := io.WriteString(here, sent); err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, here); err != nil {
					t.Fatal(err)
				}
				if held := time.Since(began); held > webReadTimeout+webIdleTimeout {
					t.Errorf("held the connection for %s", held)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if err := <-done; !errors.Is(err, http.ErrServerClosed) {
					t.Error(err)
				}
			})
		})
	}
}

// oneConn is a listener with the connections it is given.
type oneConn struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

func TestWebBoundsRequests(t *testing.T) {
	base, stop := start(t, webServerConfig{State: &shown{}})
	req, err := http.NewRequestWithContext(t.Context(), "GET", base+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Large", strings.Repeat("a", 1<<20))
	res, err := http.DefaultClient.Do(req)
	if err == nil {
		if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a header of 1 MiB is answered with %d", res.StatusCode)
		}
		if err := res.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// The exporter-toolkit's file protects every route.
func TestWebBasicAuth(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yaml")
	hash, err := bcrypt.GenerateFromPassword([]byte("storm"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	text := "basic_auth_users:\n  on-call: " + string(hash) + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	base, stop := start(t, webServerConfig{State: &shown{}, Web: WebConfig{ConfigFile: file}})
	if code, _, _ := ask(t, "GET", base+"/api/v1/alerts"); code != 401 {
		t.Errorf("without a password: %d", code)
	}
	withUser := strings.Replace(base, "http://", "http://on-call:storm@", 1)
	if code, _, _ := ask(t, "GET", withUser+"/api/v1/alerts"); code != 200 {
		t.Errorf("with the password: %d", code)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := newWebServer(webServerConfig{Web: WebConfig{Listen: "127.0.0.1:0", ConfigFile: "/nonexistent"}}); err == nil {
		t.Error("a missing web.config_file is accepted")
	}
}

// TestDaemonBehindTLSAndPassword: the commands that ask a daemon find it by its configuration, trust its certificate and log
// in; without a password they say what is missing, and another certificate is not trusted.
func TestDaemonBehindTLSAndPassword(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	hash, err := bcrypt.GenerateFromPassword([]byte("storm"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	selfSigned(t, in("own.pem"))
	selfSigned(t, in("other.pem"))
	for name, pem := range map[string]string{"web.yaml": "own.pem", "otherweb.yaml": "other.pem"} {
		write(t, in(name), "tls_server_config: {cert_file: "+pem+", key_file: "+pem+"}\nbasic_auth_users:\n  on-call: "+string(hash)+"\n")
	}
	write(t, in("password"), "storm\n")
	base, stop := start(t, webServerConfig{State: &shown{}, Web: WebConfig{ConfigFile: in("web.yaml")}})
	address := strings.TrimPrefix(base, "http://")
	for name, web := range map[string]string{"squall.yaml": "web.yaml", "other.yaml": "otherweb.yaml"} {
		write(t, in(name), "sources: [{type: stdin}]\nspool: {dir: "+in("spool")+"}\nweb: {listen: \""+address+"\", config_file: "+in(web)+"}\n")
	}
	login := []string{"--user", "on-call", "--password-file", in("password")}
	for _, c := range []struct {
		args []string
		says string // of the error; "": none
	}{
		{append([]string{"annotate", "waf rule live", "--config", in("squall.yaml")}, login...), ""},
		{append([]string{"incidents", "show", "1", "--config", in("squall.yaml")}, login...), ""},
		{[]string{"annotate", "x", "--config", in("squall.yaml")}, "--user and --password-file log in"},
		{[]string{"annotate", "x", "--config", in("squall.yaml"), "--user", "on-call"}, "go together"},
		{append([]string{"annotate", "x", "--config", in("other.yaml")}, login...), "certificate"},
	} {
		_, told, err := execute(t.Context(), strings.NewReader(""), c.args...)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v %s", c.args, err, told)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for listen, want := range map[string]string{":9177": "localhost:9177", "0.0.0.0:1": "localhost:1", "[::]:1": "localhost:1", "10.0.0.1:1": "10.0.0.1:1"} {
		check(t, listen, reachable(listen), want)
	}
}

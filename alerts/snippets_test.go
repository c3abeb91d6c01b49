package alerts

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
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	corev1 "k8s.io/api/core/v1"
)

// What stands in a snippet is what people paste: here each is run by the program that it is for.

// program finds one, and tells what brings it where it is missing.
func program(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/usr/local/sbin") {
			if found, err := filepath.Glob(filepath.Join(dir, name)); err == nil && len(found) > 0 {
				return found[0]
			}
		}
	}
	t.Fatalf("none of %v is installed (make tools)", names)
	return ""
}

// placed sorts the lines of a snippet into nginx's contexts: by what stands above them, else all into one.
func placed(snippet, context string) (http, server string) {
	in := map[string]*strings.Builder{"http": {}, "server": {}}
	for line := range strings.Lines(snippet) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "# in "); ok && in[name] != nil {
			context = name
		}
		in[context].WriteString(line)
	}
	return in["http"].String(), in["server"].String()
}

const nginxConf = `daemon off; master_process off; pid %[1]s/pid; error_log stderr;
events { worker_connections 512; }
http {
    access_log off; default_type text/plain; server_tokens off;
    client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
    proxy_cache_path %[1]s/cache keys_zone=pages:1m;
%[2]s
    server {
        listen 127.0.0.1:%[3]s;
        root %[1]s/public;
%[4]s
        location / { proxy_pass %[5]s; }
    }
}
`

// A proxy is an nginx in front of an origin that counts.
type proxy struct {
	url     string
	reached atomic.Int32
}

// nginxWith starts nginx with snippets in its http and server contexts. What a snippet leaves to the reader is the way to
// the origin.
func nginxWith(t *testing.T, inHTTP, inServer string, answer http.HandlerFunc) *proxy {
	t.Helper()
	p := &proxy{}
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.reached.Add(1)
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(origin.Close)
	dir := t.TempDir()
	for _, f := range []string{"site.css", "app.js"} {
		if err := errorsOf(os.MkdirAll(filepath.Join(dir, "public"), 0o755), os.WriteFile(filepath.Join(dir, "public", f), []byte("body{}"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p.url = "http://127.0.0.1:" + port
	fill := strings.NewReplacer(
		"# what the location has now", "proxy_pass "+origin.URL+";", "# what the server has now", "listen 127.0.0.1:"+port+" default_server; location / { proxy_pass "+origin.URL+"; }",
		"/srv/www/public", dir+"/public", "fastcgi_pass 127.0.0.1:9000", "fastcgi_pass 127.0.0.1:9",
		"include fastcgi_params", "include /etc/nginx/fastcgi_params",
	)
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, fill.Replace(inHTTP), port, fill.Replace(inServer), origin.URL), 0o644); err != nil {
		t.Fatal(err)
	}
	nginx := program(t, "nginx")
	if out, err := exec.CommandContext(t.Context(), nginx, "-t", "-p", dir, "-c", conf, "-e", "stderr").CombinedOutput(); err != nil || bytes.Contains(out, []byte("[warn]")) {
		t.Fatalf("nginx -t: %v: %s", err, out)
	}
	cmd := exec.Command(nginx, "-p", dir, "-c", conf, "-e", "stderr")
	var told bytes.Buffer
	cmd.Stderr = &told
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(told.String())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
			return p
		}
		if ctx.Err() != nil {
			t.Fatalf("nginx does not listen: %s", told.String())
		}
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

var patient = &http.Transport{ResponseHeaderTimeout: 20 * time.Second}

// ask makes one request.
func (p *proxy) ask(t *testing.T, method, path, agent string) (int, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", agent)
	req.Close = true // behind a request that renews an entry in the background nginx lets its connection wait
	res, err := patient.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode, res.Header
}

// burst makes n requests at once and counts their statuses.
func (p *proxy) burst(t *testing.T, n int, path, agent string) map[int]int {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[int]int{}
	for range n {
		all.Go(func() {
			status, _ := p.ask(t, http.MethodGet, path, agent)
			mu.Lock()
			got[status]++
			mu.Unlock()
		})
	}
	all.Wait()
	return got
}

func TestHeadSnippetInNginx(t *testing.T) {
	p := nginxWith(t, "", nginxHead("/checkout/{int}", "/unsubscribe/{uuid}", "/a.b/c"), nil)
	for _, path := range []string{"/checkout/7", "/unsubscribe/x?m=1", "/a.b/c"} {
		if status, _ := p.ask(t, http.MethodHead, path, "scanner"); status != 200 || p.reached.Load() != 0 {
			t.Errorf("HEAD %s: %d, and %d requests reached the origin", path, status, p.reached.Load())
		}
	}
	for _, x := range [][2]string{{"GET", "/checkout/7"}, {"HEAD", "/checkout/7/pay"}, {"HEAD", "/axb/c"}} {
		before := p.reached.Load()
		if status, _ := p.ask(t, x[0], x[1], "visitor"); status != 200 || p.reached.Load() != before+1 {
			t.Errorf("%v did not reach the origin (%d)", x, status)
		}
	}
}

// TestLimiterSnippetInNginx: versioned files were refused while the map read $request_uri; with $uri none is.
func TestLimiterSnippetInNginx(t *testing.T) {
	const zone = "\nlimit_req_zone $site_dynamic_key zone=site_a_dynamic:10m rate=300r/m;\nlimit_req zone=site_a_dynamic burst=10 nodelay;\nlimit_req_status 429;\n"
	faulty := strings.Replace(limiterSnippet, "map $uri", "map $request_uri", 1)
	if faulty == limiterSnippet {
		t.Fatal("the snippet does not map $uri")
	}
	before := nginxWith(t, faulty+zone, "location ~ \\.css$ { }", nil)
	if got := before.burst(t, 40, "/site.css?v=3", "browser"); got[429] < 20 {
		t.Errorf("the fault is not there: %v", got)
	}
	if got := before.burst(t, 40, "/site.css", "browser"); got[200] != 40 {
		t.Errorf("without a query: %v", got)
	}
	after := nginxWith(t, limiterSnippet+zone, "location ~ \\.css$ { }", nil)
	if got := after.burst(t, 40, "/site.css?v=3", "browser"); got[200] != 40 {
		t.Errorf("with the snippet: %v", got)
	}
	if got := after.burst(t, 40, "/page", "browser"); got[429] < 20 {
		t.Errorf("pages are no longer limited: %v", got)
	}
}

func TestExemptSnippetInNginx(t *testing.T) {
	const use = "\nlimit_req zone=outside burst=10 nodelay;\nlimit_req_status 429;\n"
	own := nginxWith(t, limiterExempt+use, "", nil)
	if got := own.burst(t, 40, "/page", "minion"); got[200] != 40 {
		t.Errorf("own addresses: %v", got)
	}
	strangers := nginxWith(t, strings.Replace(limiterExempt, "127.0.0.0/8", "198.51.100.0/24", 1)+use, "", nil)
	if got := strangers.burst(t, 40, "/page", "stranger"); got[429] < 20 {
		t.Errorf("strangers: %v", got)
	}
}

// TestThrottleSnippetInNginx: the agent of the storm is throttled, and no other.
func TestThrottleSnippetInNginx(t *testing.T) {
	p := nginxWith(t, strings.Replace(nginxThrottle(111), "server {", "server { server_name throttled;", 1), "", nil)
	if got := p.burst(t, 120, "/news", "Mozilla/5.0 scanner"); got[429] < 50 || got[200] < 50 {
		t.Errorf("the flood: %v", got)
	}
	if status, header := p.ask(t, http.MethodGet, "/news", "Mozilla/5.0 scanner"); status != 429 || header.Get("Retry-After") != "60" {
		t.Errorf("what it is told: %d %v", status, header)
	}
	if got := p.burst(t, 30, "/news", "Mozilla/5.0 visitor"); got[200] != 30 {
		t.Errorf("another agent: %v", got)
	}
	if status, header := p.ask(t, http.MethodGet, "/news", "Mozilla/5.0 visitor"); status != 200 || header.Get("Retry-After") != "" {
		t.Errorf("what others are told: %d %v", status, header)
	}
}

// TestConcurrencySnippetInNginx: the costly route holds ten of the pool's workers and no more; other pages pass.
func TestConcurrencySnippetInNginx(t *testing.T) {
	f := &facts{alert: &Alert{}, class: class{method: "GET", route: "/search", share: 0.6}}
	options := adviseCostly(f)
	inHTTP, inServer := placed(options[len(options)-1].Snippet, "server")
	held := make(chan struct{})
	var now, most atomic.Int32
	p := nginxWith(t, inHTTP, inServer, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/search" {
			return
		}
		n := now.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-held
		now.Add(-1)
	})
	refused := make(chan int, 20)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			status, _ := p.ask(t, http.MethodGet, "/search", "visitor")
			refused <- status
		})
	}
	for range 10 {
		if status := <-refused; status != 503 {
			t.Errorf("over the limit: %d", status)
		}
	}
	if status, _ := p.ask(t, http.MethodGet, "/", "visitor"); status != 200 {
		t.Errorf("another page meanwhile: %d", status)
	}
	close(held)
	all.Wait()
	if most.Load() != 10 {
		t.Errorf("%d at once reached the origin", most.Load())
	}
}

func TestStaticSnippetInNginx(t *testing.T) {
	p := nginxWith(t, "", staticSnippet, nil)
	status, header := p.ask(t, http.MethodGet, "/site.css?v=2", "visitor")
	if status != 200 || !strings.Contains(strings.Join(header.Values("Cache-Control"), ","), "immutable") {
		t.Errorf("%d %v", status, header)
	}
	if status, _ := p.ask(t, http.MethodGet, "/gone.css", "visitor"); status != 404 || p.reached.Load() != 0 {
		t.Errorf("a missing file: %d; %d requests reached the origin", status, p.reached.Load())
	}
}

const cached = "proxy_cache pages; add_header X-Cache $upstream_cache_status always;\n"

func TestMissingPageSnippetInNginx(t *testing.T) {
	f := &facts{alert: &Alert{}, class: class{method: "GET", route: "/old/{slug}", share: 0.3}}
	f.sat = &stormDetections()[0].Evidence
	p := nginxWith(t, "", cached+adviseMissing(f)[0].Snippet, http.NotFound)
	for i, want := range []string{"MISS", "HIT", "HIT"} {
		if status, header := p.ask(t, http.MethodGet, "/old/x", "visitor"); status != 404 || header.Get("X-Cache") != want {
			t.Errorf("request %d: %d %s", i, status, header.Get("X-Cache"))
		}
	}
	if p.reached.Load() != 1 {
		t.Errorf("%d requests reached the origin", p.reached.Load())
	}
}

// TestStaleSnippetInNginx: at the expiry nobody waits, and one request goes to the origin.
func TestStaleSnippetInNginx(t *testing.T) {
	renewed := make(chan struct{})
	var asked atomic.Int32
	p := nginxWith(t, "", cached+staleSnippet, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Accel-Expires", "1")
		if asked.Add(1) > 1 {
			<-renewed
		}
	})
	defer close(renewed)
	p.ask(t, http.MethodGet, "/page", "visitor")
	for deadline := time.Now().Add(10 * time.Second); asked.Load() < 2; { // until it has expired
		if time.Now().After(deadline) {
			t.Fatal("it never expires")
		}
		p.ask(t, http.MethodGet, "/page", "visitor")
	}
	for range 20 {
		if status, header := p.ask(t, http.MethodGet, "/page", "visitor"); status != 200 || header.Get("X-Cache") != "UPDATING" && header.Get("X-Cache") != "STALE" {
			t.Errorf("%d %s", status, header.Get("X-Cache"))
		}
	}
	if asked.Load() != 2 {
		t.Errorf("%d requests reached the origin", asked.Load())
	}
}

// TestProbeSnippets: nginx and php-fpm take their parts, Kubernetes' types the rest.
func TestProbeSnippets(t *testing.T) {
	fpm, rest, _ := strings.Cut(probeSnippet, "# nginx inside the container\n")
	inNginx, deployment, found := strings.Cut(rest, "# Deployment\n")
	if !found {
		t.Fatalf("the snippet has other parts: %s", probeSnippet)
	}
	var container corev1.Container
	asJSON, err := yaml.YAMLToJSON([]byte(deployment))
	if err != nil {
		t.Fatal(err)
	}
	strict := json.NewDecoder(bytes.NewReader(asJSON))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&container); err != nil {
		t.Fatal(err)
	}
	probe := container.LivenessProbe
	if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/fpm-ping" || probe.PeriodSeconds*probe.FailureThreshold < 120 {
		t.Errorf("%+v", probe)
	}
	p := nginxWith(t, "", inNginx+probeStatic, nil)
	if status, _ := p.ask(t, http.MethodGet, "/healthz", "kube-probe"); status != 200 || p.reached.Load() != 0 {
		t.Errorf("%d, %d reached the origin", status, p.reached.Load())
	}
	if status, _ := p.ask(t, http.MethodGet, "/fpm-ping", "kube-probe"); status != 502 { // nobody listens there
		t.Errorf("the ping went elsewhere: %d", status)
	}
	retry := adviseRetry(&facts{alert: &Alert{}, retry: &stormDetections()[0].Evidence})[0].Snippet
	for _, pool := range []string{fpm, slowLog, retry} {
		dir := t.TempDir()
		conf := "[global]\nerror_log = " + dir + "/log\n[www]\nlisten = " + dir + "/sock\npm = static\npm.max_children = 1\nuser = nobody\ngroup = nogroup\n" +
			strings.ReplaceAll(strings.ReplaceAll(pool, "\n# ", "\n; "), "/var/log/php-fpm", dir)
		conf = regexp.MustCompile(`(?m)^#`).ReplaceAllString(conf, ";")
		file := filepath.Join(dir, "fpm.conf")
		if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), program(t, "php-fpm*"), "-t", "-y", file).CombinedOutput(); err != nil {
			t.Errorf("php-fpm -t: %v: %s\n%s", err, out, conf)
		}
	}
}

// wafDocument is a rule of a web ACL, with the fields that are used here, as AWS documents them (API reference of WAFV2:
// Rule, Statement and what they refer to).
type wafDocument struct {
	Name     string
	Priority *int
	Action   struct {
		Block struct{ CustomResponse struct{ ResponseCode int } }
	}
	Statement        wafStatement
	VisibilityConfig struct {
		SampledRequestsEnabled, CloudWatchMetricsEnabled bool
		MetricName                                       string
	}
}

type wafField struct{ Method, UriPath *struct{} }

type wafStatement struct {
	AndStatement, OrStatement *struct{ Statements []wafStatement }
	ByteMatchStatement        *struct {
		SearchString         string
		FieldToMatch         wafField
		PositionalConstraint string
		TextTransformations  []wafTransformation
	}
	RegexMatchStatement *struct {
		RegexString         string
		FieldToMatch        wafField
		TextTransformations []wafTransformation
	}
}

type wafTransformation struct {
	Priority *int
	Type     string
}

// answers tells whether a request matches, and counts the kinds in each statement.
func (s *wafStatement) answers(t *testing.T, method, path string) bool {
	t.Helper()
	var kinds int
	var matches bool
	if a := s.AndStatement; a != nil {
		kinds, matches = kinds+1, true
		if len(a.Statements) < 2 {
			t.Error("an AndStatement has two statements or more")
		}
		for i := range a.Statements {
			matches = a.Statements[i].answers(t, method, path) && matches
		}
	}
	if o := s.OrStatement; o != nil {
		kinds++
		if len(o.Statements) < 2 {
			t.Error("an OrStatement has two statements or more")
		}
		for i := range o.Statements {
			matches = o.Statements[i].answers(t, method, path) || matches
		}
	}
	if b := s.ByteMatchStatement; b != nil {
		kinds, matches = kinds+1, b.SearchString == method
		if b.PositionalConstraint != "EXACTLY" || b.FieldToMatch.Method == nil || len(b.TextTransformations) == 0 {
			t.Errorf("%+v", b)
		}
	}
	if r := s.RegexMatchStatement; r != nil {
		kinds, matches = kinds+1, regexp.MustCompile(r.RegexString).MatchString(path)
		if len(r.RegexString) > 512 || r.FieldToMatch.UriPath == nil || len(r.TextTransformations) == 0 || r.TextTransformations[0].Priority == nil || r.TextTransformations[0].Type != "NONE" {
			t.Errorf("%+v", r)
		}
	}
	if kinds != 1 {
		t.Errorf("%d statements in one", kinds)
	}
	return matches
}

func wafRuleOf(t *testing.T, snippet string) wafDocument {
	t.Helper()
	var rule wafDocument
	d := json.NewDecoder(strings.NewReader(snippet))
	d.DisallowUnknownFields()
	if err := d.Decode(&rule); err != nil {
		t.Fatalf("%v: %s", err, snippet)
	}
	name := regexp.MustCompile(`^[\w-]{1,128}$`)
	if !name.MatchString(rule.Name) || !name.MatchString(rule.VisibilityConfig.MetricName) || rule.Priority == nil || rule.Action.Block.CustomResponse.ResponseCode != 200 {
		t.Errorf("%+v", rule)
	}
	return rule
}

func TestWAFSnippets(t *testing.T) {
	one := wafRuleOf(t, wafHead("/unsubscribe/{int}"))
	other := wafRuleOf(t, wafHead("/subscription/{int}"))
	both := wafRuleOf(t, wafHead("/unsubscribe/{int}", "/subscription/{int}"))
	if one.Name == other.Name || *one.Priority == *other.Priority || one.Name == both.Name || *one.Priority == *both.Priority {
		t.Errorf("one web ACL cannot hold %s (%d), %s (%d) and %s (%d)", one.Name, *one.Priority, other.Name, *other.Priority, both.Name, *both.Priority)
	}
	for path, want := range map[string]bool{"/unsubscribe/7": true, "/subscription/7": true, "/subscription/7/x": false, "/": false} {
		if got := both.Statement.answers(t, "HEAD", path); got != want {
			t.Errorf("HEAD %s: %t", path, got)
		}
		if both.Statement.answers(t, "GET", path) {
			t.Errorf("GET %s is answered", path)
		}
	}
	if got := wafHead("/x{evil}\"}"); got != "" {
		t.Errorf("a hostile path stands in a rule: %s", got)
	}
}

// TestCacheControlSnippets: what a cache is told is what RFC 9111 and RFC 5861 define.
func TestCacheControlSnippets(t *testing.T) {
	f := &facts{alert: &Alert{}, class: class{method: "GET", route: "/feeds/*.xml", share: 0.5}, sat: &stormDetections()[0].Evidence}
	directive := regexp.MustCompile(`^(public|immutable|(max-age|stale-while-revalidate)=\d+)$`)
	for _, snippet := range []string{adviseCache(f)[0].Snippet, staleSnippet} {
		_, value, found := strings.Cut(snippet, "Cache-Control: ")
		if !found {
			t.Fatal(snippet)
		}
		for d := range strings.SplitSeq(strings.TrimSpace(value), ", ") {
			if !directive.MatchString(d) {
				t.Errorf("%q is no directive", d)
			}
		}
	}
}

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
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

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/enrich"
	"github.com/squall-sre/squall/pipeline/format"
)

// The addresses of the visits. The loopback network stands for the world: one host of it is the proxy in front.
const (
	visitor = "127.0.0.9"
	proxy   = "127.0.0.2"
	ours    = "198.51.100.7"
)

// patience is how long a client waits that gives up.
const patience = 500 * time.Millisecond

// A visit is one request to a real server, and what its log must say of it: METHOD PATH?QUERY SITE STATUS CLIENT
// ORIGIN, and whether the client stayed to the end, left, or the log does not tell (untold: squall may take it for one
// that stayed, but not for one that left).
type visit struct {
	name    string
	from    string        // the client's address
	request string        // an HTTP/1 request as it is sent, without its end; @TARGET@ is the path of the visit's name
	over2   bool          // sent over HTTP/2 instead
	through string        // a header of the PROXY protocol before it, to the listener that takes one
	leaves  time.Duration // the client's patience; 0: it waits
	drops   bool          // it leaves in the middle of the answer
	tls     *tls.Config   // of a client that speaks TLS; nil: it does not
	want    string
}

const get = "GET @TARGET@ HTTP/1.1\r\nHost: Shop.Example:80\r\n"

// visits are sent to each server. The origin makes /gone wait for ever, and /half end never.
var visits = []visit{
	{name: "/get?x=1", from: visitor, request: get, want: "GET /get?x=1 shop.example 200 127.0.0.9 external stayed"},
	{name: "/head", from: visitor, request: "HEAD @TARGET@ HTTP/1.1\r\nHost: shop.example\r\n", want: "HEAD /head shop.example 200 127.0.0.9 external stayed"},
	{name: "/six", from: "::1", request: get, want: "GET /six shop.example 200 ::1 external stayed"},
	{name: "/two?a=%20b", from: visitor, over2: true, want: "GET /two?a=%20b shop.example 200 127.0.0.9 external stayed"},
	{name: `/hostile?q="\'<>{|}[%00%0a]`, from: visitor, request: get + "User-Agent: \"x\\\" \xff\xe2\x80\xae {|} 200 -\r\nReferer: \" 500 1\r\n",
		want: `GET /hostile?q="\'<>{|}[%00%0a] shop.example 200 127.0.0.9 external stayed`},
	{name: "malformed", from: visitor, request: "NONSENSE\x16\x03\x01 \"\xff\r\n", want: "- - shop.example 400 127.0.0.9 external stayed"},
	{name: "/gone1", from: visitor, request: get, leaves: patience, want: "GET /gone1 shop.example 499 127.0.0.9 external left"},
	{name: "/gone2", from: visitor, over2: true, leaves: patience, want: "GET /gone2 shop.example 499 127.0.0.9 external left"},
	{name: "/half1", from: visitor, request: get, drops: true, want: "GET /half1 shop.example 200 127.0.0.9 external left"},
	{name: "/half2", from: visitor, over2: true, drops: true, want: "GET /half2 shop.example 200 127.0.0.9 external left"},
	{name: "/spoofed", from: visitor, request: get + "X-Forwarded-For: " + ours + "\r\n", want: "GET /spoofed shop.example 200 127.0.0.9 external stayed"},
	{name: "/behind", from: proxy, request: get + "X-Forwarded-For: " + ours + ", 203.0.113.5\r\n", want: "GET /behind shop.example 200 203.0.113.5 external stayed"},
	{name: "/ours", from: proxy, request: get + "X-Forwarded-For: " + ours + "\r\n", want: "GET /ours shop.example 200 198.51.100.7 own stayed"},
	{name: "/told", from: proxy, request: get, through: "PROXY TCP4 203.0.113.9 192.0.2.1 999 80\r\n", want: "GET /told shop.example 200 203.0.113.9 external stayed"},
	{name: "/told6", from: proxy, request: get + "X-Forwarded-For: " + ours + "\r\n", through: "PROXY TCP6 2001:db8::9 2001:db8::1 999 80\r\n",
		want: "GET /told6 shop.example 200 2001:db8::9 external stayed"},
}

// A balancer is a real server before the origin: its configuration, in testdata/real, and its logs.
type balancer struct {
	config  string   // capitals between @ are filled in
	command []string // @DIR@ is the folder that it runs in
	// says is what all of its logs say otherwise of a visit; "": nothing at all. unsent are visits that it cannot take.
	says   map[string]string
	unsent []string
	tls    bool // it is spoken to over TLS, by the certificate and key in @DIR@/site.pem
	logs   []balancerLog
}

type balancerLog struct {
	file   string
	choice formatChoice
	only   []string          // the visits that it tells; nil: all
	site   string            // what it says for the site, when it is not the name that was asked for
	says   map[string]string // what this log says otherwise
	holds  string            // what is in each of its lines
}

// arrivals tell when a path was asked for at the origin: one closed channel for each.
type arrivals struct{ paths sync.Map }

func (a *arrivals) at(path string) chan struct{} {
	c, _ := a.paths.LoadOrStore(path, make(chan struct{}))
	return c.(chan struct{})
}

// newSlowOrigin answers; but /gone waits, and /half goes on sending, for as long as anybody does.
func newSlowOrigin(t *testing.T) (address string, arrived *arrivals) {
	t.Helper()
	arrived = &arrivals{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		if path := r.URL.Path; strings.HasPrefix(path, "/gone") {
			close(arrived.at(path)) // each path is asked for once
		}
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/gone"):
			select {
			case <-r.Context().Done():
			case <-time.After(2 * time.Second):
			}
		case strings.HasPrefix(path, "/half"):
			part := make([]byte, 64<<10)
			w.Header().Set("Content-Length", fmt.Sprint(1<<30))
			for {
				if _, err := w.Write(part); err != nil {
					return
				}
				select {
				case <-r.Context().Done():
					return
				case <-tick.C:
				}
			}
		}
		_, _ = io.WriteString(w, "a page\n")
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), arrived
}

// send makes the visit, and gives how long it took.
func (v visit) send(t *testing.T, address string, arrived *arrivals) (time.Duration, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	if v.drops || v.leaves > 0 {
		defer cancel()
	} else {
		t.Cleanup(cancel) // at once, it may overtake the end of an answer over HTTP/2, and look like a client that left
	}
	if v.leaves > 0 {
		go func() {
			if arrived != nil {
				select {
				case <-arrived.at(v.name):
				case <-ctx.Done():
				}
			}
			<-time.After(v.leaves)
			cancel()
		}()
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(v.from)}}
	var err error
	if v.over2 {
		err = v.send2(ctx, t, &dialer, address)
	} else {
		err = v.send1(ctx, &dialer, address)
	}
	if left := ctx.Err() != nil; left != (v.leaves > 0) || err != nil && !left {
		return 0, fmt.Errorf("%s: %w, after %s", v.name, errors.Join(err, ctx.Err()), time.Since(began))
	}
	return time.Since(began), nil
}

// read reads an answer to its end, or some of it.
func (v visit) read(answer io.Reader) (err error) {
	if v.drops {
		_, err = io.CopyN(io.Discard, answer, 100<<10)
	} else {
		_, err = io.Copy(io.Discard, answer)
	}
	return err
}

func (v visit) send1(ctx context.Context, dialer *net.Dialer, address string) error {
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, v.through); err != nil {
		return err
	}
	if v.tls != nil {
		secured := tls.Client(conn, v.tls)
		if err := secured.HandshakeContext(ctx); err != nil {
			return err
		}
		conn = secured
	}
	if _, err := io.WriteString(conn, strings.Replace(v.request, "@TARGET@", v.name, 1)+"Connection: close\r\n\r\n"); err != nil {
		return err
	}
	return v.read(conn)
}

func (v visit) send2(ctx context.Context, t *testing.T, dialer *net.Dialer, address string) error {
	transport := &http.Transport{DialContext: dialer.DialContext, Protocols: new(http.Protocols)}
	scheme := "http"
	if transport.Protocols.SetUnencryptedHTTP2(v.tls == nil); v.tls != nil {
		transport.Protocols.SetHTTP2(true)
		transport.TLSClientConfig, scheme = v.tls.Clone(), "https"
	}
	if v.drops || v.leaves > 0 {
		defer transport.CloseIdleConnections()
	} else {
		t.Cleanup(transport.CloseIdleConnections) // as browsers keep theirs
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+v.name, nil)
	if err != nil {
		return err
	}
	req.Host = "shop.example"
	res, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.ProtoMajor != 2 {
		return fmt.Errorf("%s was spoken", res.Proto)
	}
	return v.read(res.Body)
}

// A told is what a log says of one visit.
type told struct {
	line                      string
	record, failed, malformed bool
	text                      string // as visit.want
	start, end, step, took    int64  // ns
	events                    []pipeline.Event
}

// readLog reads a log as squall does, with the opener of its streams and the enrichers.
func readLog(t *testing.T, path string, choice formatChoice) (all []told) {
	t.Helper()
	chain, err := enrich.New(enrich.Config{TrustedProxies: []string{proxy}, Own: enrich.Own{Addresses: []string{ours}}})
	if err != nil {
		t.Fatal(err)
	}
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: "real", Enricher: chain.For(""), Open: opener{format: choice, zone: time.Local}.open,
		Take: func(w *pipeline.Work) error {
			for i := range w.Items {
				all = append(all, tell(&w.Items[i]))
			}
			return nil // the work is not released: its events stay
		},
	})
	stream := &pipeline.Stream{Input: "real", ID: path, Path: path}
	for _, line := range lines(t, path) { // in a block each, since the text of a Record holds until the next
		if err := road.Emit(&pipeline.Block{Stream: stream, Data: []byte(line + "\n"), To: int64(len(line) + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func tell(item *pipeline.Item) told {
	r := &item.Record
	if item.Kind != pipeline.IsRecord {
		return told{line: string(item.Line), failed: item.Kind == pipeline.Failed, events: slices.Clone(item.Events)}
	}
	target := cmp.Or(string(r.Path), "-")
	if r.Query != nil {
		target += "?" + string(r.Query)
	}
	return told{
		text: fmt.Sprintf("%s %s %s %d %s %s %s", cmp.Or(string(r.Method), "-"), target, r.Site, r.Status, r.Client, r.Origin,
			[...]string{"unsaid", "stayed", "left"}[r.Abandoned]),
		record: true, malformed: r.Malformed, line: string(item.Line), start: r.Start, end: r.End, step: r.Resolution, took: r.RequestTime,
	}
}

// launchDaemon runs a server in dir until the test ends. What it writes goes to dir/output.
func launchDaemon(t *testing.T, dir string, command []string, addresses ...string) *exec.Cmd {
	t.Helper()
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		ended := <-ended
		if text, err := os.ReadFile(output.Name()); t.Failed() && err == nil {
			t.Logf("%s: %v: %s", command[0], ended, text[:min(len(text), 4<<10)])
		}
	})
	for _, address := range addresses {
		eventually(t, command[0]+" listens at "+address, func() bool {
			select {
			case err := <-ended:
				ended <- err
				t.Fatalf("%s ended: %v", command[0], err)
			default:
			}
			c, err := net.Dial("tcp", address)
			return err == nil && c.Close() == nil
		})
	}
	return cmd
}

// configure writes a configuration of testdata/real into dir, and gives its path.
func configure(t *testing.T, dir, config string, values map[string]string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/real", config))
	if err != nil {
		t.Fatal(err)
	}
	var pairs []string
	for name, value := range values {
		pairs = append(pairs, "@"+name+"@", value)
	}
	path := filepath.Join(dir, config)
	write(t, path, strings.NewReplacer(pairs...).Replace(string(text)))
	return path
}

// asRoot gives a line for root's eyes alone: servers that root starts want to become somebody else, who could not
// write into the test's folder.
func asRoot(line string) string {
	if os.Getuid() != 0 {
		return ""
	}
	return line
}

// test runs the server, sends it all visits at once, and compares its logs with what was done.
func (b balancer) test(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	values := serverValues(t, dir)
	origin, arrived := newSlowOrigin(t)
	values["ORIGIN"] = origin
	config := configure(t, dir, b.config, values)
	argv := slices.Clone(b.command)
	argv[0] = command(t, argv[0])
	for i := range argv {
		argv[i] = strings.NewReplacer("@DIR@", dir, "@CONFIG@", config).Replace(argv[i])
	}
	sent := slices.DeleteFunc(slices.Clone(visits), func(v visit) bool { return slices.Contains(b.unsent, v.name) })
	if b.tls {
		client := selfSigned(t, filepath.Join(dir, "site.pem"))
		for i := range sent {
			sent[i].tls = client
		}
	}
	local := func(port string) string { return "127.0.0.1:" + values[port] }
	launchDaemon(t, dir, argv, local("PORT"), local("PORT2"))
	did := sendAll(t, sent, arrived, func(v visit) string {
		switch {
		case v.through != "":
			return local("PROXYPORT")
		case v.over2:
			return local("PORT2")
		case v.from == "::1":
			return "[::1]:" + values["PORT"]
		}
		return local("PORT")
	})
	for _, log := range b.logs {
		log.compare(t, dir, did, b.says)
	}
}

// serverValues are what every configuration may ask for.
func serverValues(t *testing.T, dir string) map[string]string {
	t.Helper()
	port := func() string { return strings.TrimPrefix(freeAddress(t), "127.0.0.1:") }
	return map[string]string{
		"DIR": dir, "PORT": port(), "PORT2": port(), "PROXYPORT": port(),
		"USER": asRoot("user root;"), "APACHEUSER": asRoot("User www-data\nGroup www-data"), "FORMAT": format.RecommendedNginx,
		"TOLD": nginxTold, "PARTS": strings.ReplaceAll(apacheParts, `"`, `\"`), "PHPACCESS": strings.ReplaceAll(phpAccess, `"`, `\"`),
	}
}

// doings are visits that were made, and how long each took.
type doings struct {
	began  time.Time
	visits []visit
	took   map[string]time.Duration
}

// sendAll makes all visits at once. Who gives up does so when the origin has the request, if it tells.
func sendAll(t *testing.T, visits []visit, arrived *arrivals, address func(visit) string) doings {
	t.Helper()
	did := doings{began: time.Now(), visits: visits, took: map[string]time.Duration{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, v := range visits {
		all.Go(func() {
			d, err := v.send(t, address(v), arrived)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			did.took[v.name] = d
		})
	}
	all.Wait()
	return did
}

// compare waits until a log has a line of each visit, and compares them all. says is what all logs of the server say
// otherwise.
func (l balancerLog) compare(t *testing.T, dir string, did doings, says map[string]string) {
	t.Helper()
	path, began, took := filepath.Join(dir, l.file), did.began, did.took
	wants := map[string]visit{}
	for _, v := range did.visits {
		for _, other := range []map[string]string{says, l.says} {
			if said, ok := other[v.name]; ok {
				v.want = said
			}
		}
		if v.want != "" && (l.only == nil || slices.Contains(l.only, v.name)) {
			wants[strings.Replace(v.want, "shop.example", cmp.Or(l.site, "shop.example"), 1)] = v
		}
	}
	var all []told
	eventually(t, fmt.Sprintf("%s has %d visits", l.file, len(wants)), func() bool {
		if size(path) == 0 {
			return false
		}
		all = slices.DeleteFunc(readLog(t, path, l.choice), func(o told) bool {
			return !o.record && !o.failed || strings.Contains(o.text, " 127.0.0.1 ") // the question whether it listens
		})
		return len(all) >= len(wants)
	})
	for _, o := range all {
		text := o.text
		if _, ok := wants[text]; !ok {
			text = strings.NewReplacer(" stayed", " untold", " unsaid", " untold").Replace(text)
		}
		v, ok := wants[text]
		if !ok {
			t.Errorf("%s: nobody did %q (failed %v), which is read from %q", l.file, o.text, o.failed, o.line)
			continue
		}
		delete(wants, text)
		if !strings.Contains(o.line, l.holds) {
			t.Errorf("%s: no %q in %q", l.file, l.holds, o.line)
		}
		if o.malformed != (v.name == "malformed") {
			t.Errorf("%s: malformed %v: %q", l.file, o.malformed, o.line)
		}
		longest := took[v.name] + 2500*time.Millisecond // a server may notice at the origin's end alone
		if o.took != pipeline.Unknown && (o.took < 0 || o.took > int64(longest) || v.leaves > 0 && o.took < int64(v.leaves)/10) {
			t.Errorf("%s: %s took %s, not %s: %q", l.file, v.name, time.Duration(o.took), took[v.name], o.line)
		}
		if o.start < began.UnixNano()-o.step-1e9 || o.end > time.Now().UnixNano()+o.step || o.start > o.end {
			t.Errorf("%s: %s from %s to %s, began %s: %q", l.file, v.name, time.Unix(0, o.start), time.Unix(0, o.end), began, o.line)
		}
	}
	for _, want := range slices.Sorted(maps.Keys(wants)) {
		t.Errorf("%s: nothing says %q", l.file, want)
	}
}

// Where a log says something else than what was done, the server did not notice, or its log cannot tell.
func TestRealNginx(t *testing.T) {
	through := []string{"/told", "/told6"}
	balancer{
		config: "nginx.conf", command: []string{"nginx", "-p", "@DIR@", "-c", "@CONFIG@", "-e", "stderr"},
		says: map[string]string{ // nothing in the log tells that the body was longer
			"/half1": "GET /half1 shop.example 200 127.0.0.9 external untold",
			"/half2": "GET /half2 shop.example 200 127.0.0.9 external untold",
		},
		logs: []balancerLog{
			{file: "access.log", only: append(over(false), over(true)...), choice: auto},
			{file: "json.log", choice: auto},
			{file: "told.log", only: through, choice: formatChoice{name: "nginx", settings: formatSettings{LogFormat: nginxTold}}},
		},
	}.test(t)
}

// nginxTold is the log_format of a listener that takes the PROXY protocol.
const nginxTold = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" ` +
	`$proxy_protocol_addr "$http_x_forwarded_for" $host $request_time`

func TestRealHAProxy(t *testing.T) {
	captures := formatChoice{name: "haproxy", settings: formatSettings{LogFormat: "{Host|X-Forwarded-For}"}}
	balancer{
		config: "haproxy.cfg", command: []string{"haproxy", "-db", "-f", "@CONFIG@"},
		says: map[string]string{
			"malformed": "- - web 400 127.0.0.9 external stayed",
			"/gone1":    "GET /gone1 shop.example 504 127.0.0.9 external stayed", // over HTTP/1 it does not look, and waits itself
			"/gone2":    "GET /gone2 shop.example 0 127.0.0.9 external left",
		},
		logs: []balancerLog{{file: "output", choice: captures}},
	}.test(t)
}

func TestRealCaddy(t *testing.T) {
	balancer{
		config: "Caddyfile", command: []string{"caddy", "run", "--config", "@CONFIG@", "--adapter", "caddyfile"},
		unsent: []string{"/told", "/told6"}, // its release does not take the PROXY protocol
		says: map[string]string{
			"malformed": "", // Go's server refuses it before anything is logged
			"/gone1":    "GET /gone1 shop.example 0 127.0.0.9 external left",
			"/gone2":    "GET /gone2 shop.example 0 127.0.0.9 external left",
			"/half1":    "GET /half1 shop.example 200 127.0.0.9 external untold", // it may as well have been the origin
			"/half2":    "GET /half2 shop.example 200 127.0.0.9 external untold",
		},
		logs: []balancerLog{
			{file: "access.log", only: over(false), choice: auto},
			{file: "console.log", only: over(true), choice: auto},
		},
	}.test(t)
}

func TestRealApache(t *testing.T) {
	untold := map[string]string{ // %X alone tells who left, and that only where Apache noticed
		"/gone1": "GET /gone1 shop.example 200 127.0.0.9 external untold",
		"/gone2": "GET /gone2 shop.example 200 127.0.0.9 external untold",
		"/half1": "GET /half1 shop.example 200 127.0.0.9 external untold",
		"/half2": "GET /half2 shop.example 200 127.0.0.9 external untold",
	}
	left := map[string]string{ // over HTTP/2 it says of many who stayed that they left
		"/gone1":      untold["/gone1"],
		"/gone2":      untold["/gone2"],
		"/half2":      untold["/half2"],
		"/two?a=%20b": "GET /two?a=%20b shop.example 200 127.0.0.9 external untold",
	}
	peer := map[string]string{ // without X-Forwarded-For the proxy is all that is known
		"/behind": "GET /behind shop.example 200 127.0.0.2 external stayed",
		"/ours":   "GET /ours shop.example 200 127.0.0.2 external stayed",
	}
	both := func(a, b map[string]string) map[string]string {
		a = maps.Clone(a)
		maps.Copy(a, b)
		return a
	}
	parts := formatChoice{name: "apache", settings: formatSettings{LogFormat: apacheParts}}
	balancer{
		config: "apache.conf", command: []string{"apache2", "-DFOREGROUND", "-f", "@CONFIG@"},
		logs: []balancerLog{
			{file: "combined.log", choice: auto, site: "default", says: both(untold, peer)},
			{file: "vhost_combined.log", choice: auto, says: both(untold, peer)},
			{file: "vhost.log", choice: auto, says: both(left, peer)},
			{file: "seconds.log", choice: auto, site: "default", says: both(untold, peer)},
			{file: "forwarded.log", choice: auto, site: "default", says: untold},
			{file: "parts.log", choice: parts, says: left},
		},
	}.test(t)
}

// apacheParts is a LogFormat without a request line.
const apacheParts = `%V %a %{sec}t %m "%U" "%q" %H %>s %B %{ms}T %X "%{X-Forwarded-For}i"`

var auto = formatChoice{name: "auto"}

// over gives the visits over HTTP/2, or the others.
func over(two bool) (names []string) {
	for _, v := range visits {
		if v.over2 == two && v.through == "" {
			names = append(names, v.name)
		}
	}
	return names
}

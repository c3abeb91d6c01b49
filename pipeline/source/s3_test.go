package source

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/squall-sre/squall/pipeline"
)

const testBucket = "lb-logs"

// A gateway is a versitygw, an S3 server, and a proxy before it in which a test can make things go wrong.
type gateway struct {
	t       *testing.T
	address string
	dir     string
	cmd     *exec.Cmd
	front   *httptest.Server
	client  *s3.Client
	lists   atomic.Int64
	gets    atomic.Int64

	mu   sync.Mutex
	meet func(w http.ResponseWriter, r *http.Request) (answered bool)
}

func startGateway(t *testing.T) *gateway {
	t.Helper()
	for key, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "a secret of tests", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": filepath.Join(t.TempDir(), "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(t.TempDir(), "none"),
		"AWS_PROFILE": "", "AWS_REGION": "us-east-1", "AWS_SESSION_TOKEN": "",
	} {
		t.Setenv(key, value)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, address: l.Addr().String(), dir: t.TempDir()}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"objects", "metadata"} {
		if err := os.Mkdir(filepath.Join(g.dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g.start()
	t.Cleanup(g.stop)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: g.address})
	proxy.Transport, proxy.ErrorLog = transport, zap.NewStdLog(zap.NewNop())
	g.front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "2":
			g.lists.Add(1)
		case r.Method == http.MethodGet:
			g.gets.Add(1)
		}
		g.mu.Lock()
		meet := g.meet
		g.mu.Unlock()
		if meet == nil || !meet(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	direct := &http.Client{Transport: transport}
	t.Cleanup(func() { g.front.CloseClientConnections(); g.front.Close(); transport.CloseIdleConnections() })
	g.client = s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + g.address), UsePathStyle: true, HTTPClient: direct,
		Credentials: credentials.NewStaticCredentialsProvider("tester", "a secret of tests", ""),
	})
	if _, err := g.client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(testBucket)}); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *gateway) start() {
	g.t.Helper()
	path, err := filepath.Abs("../../.cache/bin/versitygw")
	if err != nil {
		g.t.Fatal(err)
	}
	if given := os.Getenv("SQUALL_VERSITYGW"); given != "" {
		path = given
	}
	if _, err := os.Stat(path); err != nil {
		g.t.Fatalf("%v: `make test` installs it, or set SQUALL_VERSITYGW to a versitygw program", err)
	}
	g.cmd = exec.Command(path, "--port", g.address, "--quiet", "--keep-alive",
		"posix", "--sidecar", filepath.Join(g.dir, "metadata"), filepath.Join(g.dir, "objects"))
	g.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY_ID=tester", "ROOT_SECRET_ACCESS_KEY=a secret of tests")
	if err := g.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	until(g.t, func() bool {
		c, err := net.Dial("tcp", g.address)
		return err == nil && c.Close() == nil
	}, func() string { return "versitygw does not listen" })
}

func (g *gateway) stop() {
	if g.cmd == nil {
		return
	}
	_ = g.cmd.Process.Signal(syscall.SIGKILL)
	_ = g.cmd.Wait()
	g.cmd = nil
}

// fail sets what the proxy does before it asks the server; nil: nothing.
func (g *gateway) fail(meet func(w http.ResponseWriter, r *http.Request) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.meet = meet
}

func (g *gateway) put(key string, body []byte) {
	g.t.Helper()
	_, err := g.client.PutObject(g.t.Context(), &s3.PutObjectInput{
		Bucket: aws.String(testBucket), Key: &key, Body: bytes.NewReader(body), ContentLength: aws.Int64(int64(len(body))),
	})
	if err != nil {
		g.t.Fatalf("put %s: %v", key, err)
	}
}

func (g *gateway) delete(key string) {
	g.t.Helper()
	if _, err := g.client.DeleteObject(g.t.Context(), &s3.DeleteObjectInput{Bucket: aws.String(testBucket), Key: &key}); err != nil {
		g.t.Fatal(err)
	}
}

// A delivery is an object that a test puts into the bucket.
type delivery struct {
	key   string
	lines []string
}

// deliveries are what several balancers of several nodes deliver in n periods of five minutes up to now, in the
// order of time. Lines are numbered in this order too.
func deliveries(now time.Time, balancers, nodes, n, lines int) []delivery {
	var all []delivery
	end := now.UTC().Truncate(5 * time.Minute)
	for i := n - 1; i >= 0; i-- {
		at := end.Add(-time.Duration(i) * 5 * time.Minute)
		for b := range balancers {
			for node := range nodes {
				from := len(all) * lines
				all = append(all, delivery{
					key: fmt.Sprintf("AWSLogs/123456789012/elasticloadbalancing/eu-west-1/%s/123456789012_elasticloadbalancing_eu-west-1_"+
						"app.shop-%d.50dc6c495c0c9188_%s_10.0.1.%d_2soosksi.log.gz", at.Format("2006/01/02"), b, at.Format("20060102T1504Z"), node),
					lines: number(from, from+lines),
				})
			}
		}
	}
	return all
}

func linesOf(all []delivery) (lines []string) {
	for _, d := range all {
		lines = append(lines, d.lines...)
	}
	return lines
}

func zipped(t *testing.T, lines []string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text(lines)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// deliver puts objects, in no order.
func (g *gateway) deliver(all []delivery) {
	g.t.Helper()
	all = slices.Clone(all)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, d := range all {
		g.put(d.key, zipped(g.t, d.lines))
	}
}

func (g *gateway) bucket(change func(*s3Config)) *bucket {
	cfg := s3Config{
		Common: Common{Name: "test", Type: "s3", Lateness: 10 * time.Minute}, Bucket: testBucket, Prefix: "AWSLogs/",
		Endpoint: g.front.URL, Poll: 50 * time.Millisecond, MaxAge: time.Hour,
	}
	if change != nil {
		change(&cfg)
	}
	b := newBucket(cfg, testRuntime())
	b.again = backoff{20 * time.Millisecond, 100 * time.Millisecond}
	b.queue.again = b.again
	return b
}

// runSource starts a source and gives a function that stops it, waits for it and demands that this was quick.
func runSource(t *testing.T, src Source, s *spool, positions pipeline.Positions) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, positions, s.emit(ctx)) }()
	stop = sync.OnceFunc(func() {
		cancel()
		began := time.Now()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("Run ended after %s", d)
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("states %+v", src.States())
		}
		stop()
	})
	return stop
}

// looks waits for n more listings.
func (g *gateway) looks(n int64) {
	g.t.Helper()
	from := g.lists.Load()
	until(g.t, func() bool { return g.lists.Load() >= from+n }, func() string { return "the bucket is not listed" })
}

func TestNewS3(t *testing.T) {
	for _, c := range []struct{ config, wrong string }{
		{"{type: s3, bucket: lb-logs, prefix: AWSLogs/}", ""},
		{"{type: s3, bucket: b, sqs_queue_url: 'https://sqs.eu-west-1.amazonaws.com/123456789012/logs', region: eu-west-1}", ""},
		{"{type: s3, bucket: b, endpoint: 'http://127.0.0.1:7070', poll: 1s, max_age: 26h, lateness: 1h}", ""},
		{"{type: s3}", "bucket"},
		{"{type: s3, bucket: a/b}", "bucket"},
		{"{type: s3, bucket: b, prefix: /AWSLogs}", "prefix"},
		{"{type: s3, bucket: b, poll: 10ms}", "poll"},
		{"{type: s3, bucket: b, max_age: 1s}", "max_age"},
		{"{type: s3, bucket: b, endpoint: 'localhost:7070'}", "endpoint"},
		{"{type: s3, bucket: b, sqs_queue_url: logs}", "sqs_queue_url"},
		{"{type: s3, bucket: b, secret: x}", "secret"},
	} {
		got, err := New(strict(c.config), testRuntime())
		if c.wrong == "" && (err != nil || got.Common().Lateness < 10*time.Minute) ||
			c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: error %v, want one with %q", c.config, err, c.wrong)
		}
	}
}

// Objects that came in no order are read in the order of time, each once: those there at the start, and those that
// come later. What is no log is left.
func TestS3Lists(t *testing.T) {
	g := startGateway(t)
	all := deliveries(time.Now(), 2, 3, 8, 50)
	g.deliver(all[:36])
	g.put("AWSLogs/123456789012/ELBAccessLogTestFile", []byte("Enable AccessLog for ELB: shop\n"))
	g.put("AWSLogs/123456789012/elasticloadbalancing/", nil)
	g.put("other/x.log", []byte("not ours\n"))
	b, s := g.bucket(nil), newSpool(t)
	stop := runSource(t, b, s, s)
	s.wantSet(linesOf(all[:36]))
	checkOrder(t, s)
	g.deliver(all[36:])
	g.deliver(all[:2]) // the same objects once more
	s.wantSet(linesOf(all))
	gets := g.gets.Load()
	g.looks(3)
	if n := g.gets.Load(); n != gets || n != int64(len(all)) {
		t.Errorf("%d objects were fetched %d times, and then %d times", len(all), gets, n)
	}
	until(t, func() bool { st := b.States(); return len(st) == 1 && st[0].State == "idle" && st[0].Lag == 0 }, func() string {
		return fmt.Sprintf("states %+v", b.States())
	})
	stop()
	if s.ended() != len(all) {
		t.Errorf("%d of %d streams have ended", s.ended(), len(all))
	}
	if n := testutil.ToFloat64(b.meter.lines); n != float64(len(linesOf(all))) {
		t.Errorf("counted %v lines", n)
	}
}

// checkOrder demands that no object was begun before the end of one of an earlier period.
func checkOrder(t *testing.T, s *spool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	newest := ""
	for _, id := range s.order {
		at, ok := streamTime(id)
		if !ok {
			t.Fatal(id)
		}
		if text := at.Format(time.RFC3339); text < newest {
			t.Errorf("%s comes after an object of %s", id, newest)
		} else {
			newest = text
		}
	}
}

// 2,000 objects are listed in pages; years of older ones cost a request for each balancer.
func TestS3Pages(t *testing.T) {
	g := startGateway(t)
	now := time.Now()
	all := deliveries(now, 1, 200, 10, 1)
	old := deliveries(now.Add(-300*time.Hour), 3, 10, 200, 0)
	older := deliveries(now.Add(-3*time.Hour), 3, 10, 100, 0)
	for _, d := range slices.Concat(all, old, older) { // as files: it is faster
		path := filepath.Join(g.dir, "objects", testBucket, filepath.FromSlash(d.key))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		body := []byte("too old")
		if len(d.lines) > 0 {
			body = zipped(t, d.lines)
		}
		write(t, path, string(body))
	}
	b, s := g.bucket(func(c *s3Config) { c.Poll = time.Hour }), newSpool(t)
	runSource(t, b, s, s)
	s.wantSet(linesOf(all))
	if n := g.lists.Load(); n > 9 {
		t.Errorf("%d requests list 2,000 new objects and 9,000 old ones", n)
	}
	checkOrder(t, s)
}

// What cannot be read of an archive is counted and not tried again; neither is what has gone.
func TestS3CorruptAndVanished(t *testing.T) {
	g := startGateway(t)
	all := deliveries(time.Now(), 1, 1, 4, 2000)
	whole := zipped(t, all[1].lines)
	g.put(all[0].key, zipped(t, all[0].lines))
	g.put(all[1].key, whole[:len(whole)/2])
	g.put(all[2].key, []byte("\x1f\x8bthis is no archive"))
	g.put(all[3].key, zipped(t, all[3].lines))
	gone := strings.Replace(all[3].key, "_10.", "_11.", 1)
	g.put(gone, zipped(t, number(90000, 90010)))
	g.fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/"+testBucket+"/"+gone && r.Method == http.MethodGet {
			g.delete(gone)
		}
		return false
	})
	b, s := g.bucket(nil), newSpool(t)
	stop := runSource(t, b, s, s)
	until(t, func() bool { return s.ended() == 5 }, func() string { return fmt.Sprintf("%d streams have ended", s.ended()) })
	gets := g.gets.Load()
	g.looks(3)
	if g.gets.Load() != gets {
		t.Error("a broken object is fetched again")
	}
	stop()
	reasons := map[string]int{}
	for _, skip := range s.skips() {
		if !skip.Lost {
			t.Errorf("nothing is lost by %+v", skip)
		}
		reasons[skip.Reason]++
	}
	if reasons[pipeline.SkipUnread] != 2 || reasons[pipeline.SkipVanished] != 1 || len(reasons) != 2 {
		t.Errorf("skips %v", reasons)
	}
	if n := s.count(); n < 4000+500 || n > 6000 {
		t.Errorf("%d lines of 6000, of which 1000 or so are lost", n)
	}
}

// A server that stops, refuses, breaks off or is slow delays lines. It is told once.
func TestS3ServerComesBack(t *testing.T) {
	g := startGateway(t)
	all := deliveries(time.Now(), 1, 2, 4, 10000)
	g.deliver(all[:4])
	core, logs := observer.New(zap.InfoLevel)
	b, s := g.bucket(nil), newSpool(t)
	b.log = zap.New(core)
	broken := map[string]int{}
	var mu sync.Mutex
	g.fail(func(w http.ResponseWriter, r *http.Request) bool { // each object breaks off twice, at different places
		if r.URL.RawQuery != "x-id=GetObject" {
			return false
		}
		mu.Lock()
		broken[r.URL.Path]++
		n := broken[r.URL.Path]
		mu.Unlock()
		if n > 2 {
			return false
		}
		rec := httptest.NewRecorder()
		proxied(g, rec, r)
		w.Header().Set("Content-Length", rec.Header().Get("Content-Length"))
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()*n/3])
		return true
	})
	runSource(t, b, s, s)
	s.wantSet(linesOf(all[:4]))
	g.stop()
	until(t, func() bool { return b.States()[0].State == "unreadable" }, func() string { return "no state tells of the server" })
	from := g.lists.Load()
	until(t, func() bool { return g.lists.Load() > from+6 }, func() string { return "no retries" })
	g.fail(nil)
	g.start()
	g.deliver(all[4:])
	s.wantSet(linesOf(all))
	until(t, func() bool { return b.States()[0].State == "idle" }, func() string { return fmt.Sprint(b.States()) })
	warned := logs.FilterLevelExact(zap.WarnLevel).FilterField(zap.String("operation", errList)).Len()
	if warned != 1 {
		t.Errorf("an outage with many retries is logged %d times", warned)
	}
}

// proxied asks the server and keeps the answer.
func proxied(g *gateway, w http.ResponseWriter, r *http.Request) {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: g.address})
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	proxy.Transport = transport
	proxy.ServeHTTP(w, r)
}

// An object that may not be read does not keep the others; when it may be, it is.
func TestS3Forbidden(t *testing.T) {
	g := startGateway(t)
	all := deliveries(time.Now(), 1, 1, 6, 20)
	g.deliver(all)
	b, s := g.bucket(nil), newSpool(t)
	g.fail(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.RawQuery != "x-id=GetObject" || !strings.HasSuffix(r.URL.Path, all[1].key) {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>`)
		return true
	})
	runSource(t, b, s, s)
	s.wantSet(linesOf(slices.Concat(all[:1], all[2:])))
	shown := func() bool {
		for _, st := range b.States() {
			if strings.HasSuffix(st.Path, all[1].key) && st.State == "unreadable" && strings.Contains(st.Err, "AccessDenied") {
				return true
			}
		}
		return false
	}
	until(t, shown, func() string { return fmt.Sprintf("states %+v", b.States()) })
	if st := b.States()[0]; st.State != "reading" {
		t.Errorf("the bucket is %+v", st)
	}
	g.fail(nil)
	s.wantSet(linesOf(all))
}

// Stopped anywhere and started again, nothing comes twice and nothing is lost, however long it was away.
func TestS3Restart(t *testing.T) {
	g := startGateway(t)
	const each = 10000 // lines in an object: more than a block holds
	now := time.Now()
	all := deliveries(now.Add(-20*time.Hour), 2, 1, 6, each)
	later := deliveries(now, 2, 1, 3, 100) // far behind what was read
	for i := range later {
		later[i].lines = number(1e7+i*100, 1e7+(i+1)*100)
	}
	g.deliver(all)
	s := newSpool(t)
	early := func(c *s3Config) { c.MaxAge = 21 * time.Hour }
	for i := range 8 {
		b := g.bucket(early)
		stop := runSource(t, b, s, s)
		want := min(s.count()+each*2/3+i*each/4, len(all)*each)
		until(t, func() bool { return s.count() >= want }, func() string { return fmt.Sprintf("%d lines", s.count()) })
		stop()
	}
	g.deliver(later)
	b := g.bucket(nil) // an hour before the newest that was read
	runSource(t, b, s, s)
	s.wantSet(linesOf(append(all, later...)))
	g.looks(2)
	if n := s.count(); n != len(all)*each+600 {
		t.Errorf("%d lines", n)
	}
}

// Keys without a date are listed by the time of their delivery.
func TestS3UndatedKeys(t *testing.T) {
	g := startGateway(t)
	for i := range 5 {
		g.put(fmt.Sprintf("AWSLogs/part-%d.log", 4-i), []byte(text(number(i*10, i*10+10))))
	}
	s := newSpool(t)
	stop := runSource(t, g.bucket(nil), s, s)
	s.wantSet(number(0, 50))
	stop()
	g.put("AWSLogs/part-0.log", []byte(text(number(50, 60)))) // written again: it is another object
	stop = runSource(t, g.bucket(nil), s, s)
	s.wantSet(number(0, 60))
	g.looks(2)
	stop()
	if s.count() != 60 {
		t.Errorf("%d lines", s.count())
	}
}

// A stop does not wait for a full road, nor for a server that says nothing.
func TestS3Stops(t *testing.T) {
	g := startGateway(t)
	all := deliveries(time.Now(), 1, 8, 1, 10000)
	g.deliver(all)
	s := newSpool(t)
	s.hold(make(chan struct{}))
	stop := runSource(t, g.bucket(nil), s, s)
	until(t, func() bool { return g.gets.Load() >= readers }, func() string { return "nothing is fetched" })
	stop()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for _, query := range []string{"list-type=2", "x-id=GetObject"} {
		asked := make(chan struct{}, 100)
		g.fail(func(_ http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.RawQuery, query) {
				return false
			}
			asked <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return true
		})
		stop := runSource(t, g.bucket(nil), s, s)
		<-asked
		stop()
	}
	g.fail(nil)
	if s.count() != 0 {
		t.Errorf("%d lines", s.count())
	}
}

// The error of emit ends Run.
func TestS3RoadEnds(t *testing.T) {
	g := startGateway(t)
	g.deliver(deliveries(time.Now(), 1, 8, 1, 10))
	broken := errors.New("the road has ended")
	err := g.bucket(nil).Run(t.Context(), newSpool(t), func(*pipeline.Block) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("Run: %v", err)
	}
}

package loki

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/loki/lokitest"
	"github.com/squall-sre/squall/pipeline/spool"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("LOKI_TEST_CHILD"); dir != "" {
		shipForEver(dir, os.Getenv("LOKI_TEST_URL"))
	}
	goleak.VerifyTestMain(m)
}

// quick is the default configuration with pauses that a test can wait for.
func quick(url string) Config {
	c := DefaultConfig()
	c.URL = url
	c.BatchWait = 20 * time.Millisecond
	c.Backoff.MinBackoff, c.Backoff.MaxBackoff = time.Millisecond, 4*time.Millisecond
	return c
}

// A rig is a spool with a shipper that runs.
type rig struct {
	t       *testing.T
	dir     string
	spool   *spool.Spool
	shipper *Shipper
	stop    func()
	lines   *spool.Consumer
	reg     *prometheus.Registry
	before  float64 // lines that waited when it began
}

// A setup is what a rig is made of beside the shipper's configuration.
type setup struct {
	spool spool.Config
	deps  Deps
}

func start(t *testing.T, dir string, cfg Config, change ...func(*setup)) *rig {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	with := setup{spool.Config{Dir: dir, Registerer: reg}, Deps{Dir: dir, Metrics: NewMetrics(reg)}}
	for _, c := range change {
		c(&with)
	}
	s, err := spool.Open(t.Context(), with.spool)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := s.Consumer(t.Context(), "loki")
	if err != nil {
		t.Fatal(err)
	}
	sh, err := New(cfg, with.deps)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, spool: s, shipper: sh, lines: lines, reg: reg}
	r.before = r.sum("squall_spool_waiting_lines")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sh.Run(ctx, lines) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Error("the shipper did not stop")
		}
		r.closes()
		lines.Close()
		limit, done := context.WithTimeout(context.Background(), 20*time.Second)
		defer done()
		if err := s.Close(limit); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// shipped waits until everything that is in the spool is dealt with.
func (r *rig) shipped() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := r.spool.Flush(ctx); err != nil {
		r.t.Fatal(err)
	}
	r.until("everything is dealt with", func() bool { return r.lines.Waiting() == 0 })
	r.closes()
}

// sum adds up a metric as it is exported.
func (r *rig) sum(name string) (sum float64) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	r.t.Fatalf("%s is not exported", name)
	return 0
}

// account reads what the metrics say: lines that came, and what became of them. Whatever comes from the spool is
// read first, so that a line on its way is seen once or twice, never not at all.
func (r *rig) account() (came, became float64) {
	came = r.before + r.sum("squall_spool_appended_lines_total")
	for _, name := range [...]string{
		"squall_spool_waiting_lines", "squall_lines_lost_total", "squall_lines_shipped_total", "squall_lines_refused_total",
	} {
		became += r.sum(name)
	}
	return came, became
}

// closes checks that the account closes: lines read = shipped + spooled + lost + refused. At no time is less
// accounted for than came; what is on its way may for a moment be counted twice.
func (r *rig) closes() {
	r.t.Helper()
	r.until("the account closes", func() bool {
		came, became := r.account()
		if became < came {
			r.t.Fatalf("%v lines came and only %v are accounted for", came, became)
		}
		return came == became
	})
}

func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			r.t.Fatalf("waited in vain until %s", what)
		}
	}
}

func (r *rig) append(b *pipeline.Batch) {
	r.t.Helper()
	if err := r.spool.Append(b); err != nil {
		r.t.Fatal(err)
	}
}

// logged makes n lines, a millisecond apart, that end about now.
func logged(id string, from int64, n int) *pipeline.Batch {
	b := &pipeline.Batch{Stream: &pipeline.Stream{Input: "balancer", ID: id, Labels: map[string]string{"role": "lb"}}, From: from, To: from + int64(n)}
	at := time.Now().Add(-time.Minute).UnixNano()
	for i := range int64(n) {
		b.Entries = append(b.Entries, pipeline.Entry{
			Time: at + (from+i)*1e6, Line: fmt.Appendf(nil, "HEAD /checkout/%d of %s", from+i, id), Kind: pipeline.IsRecord,
			Site: "shop.example", Route: "/checkout/{int}", Method: []byte("HEAD"), Status: 200, RequestTime: 15e8, Class: pipeline.Scanner,
			Abandoned: pipeline.Yes,
		})
	}
	return b
}

func (r *rig) value(reason string) float64 {
	return testutil.ToFloat64(r.shipper.m.refused.WithLabelValues(reason))
}

func (r *rig) expect(s *lokitest.Server, lines int) {
	r.t.Helper()
	if got := len(s.Entries()); got != lines {
		r.t.Errorf("Loki has %d lines, want %d", got, lines)
	}
	if got := testutil.ToFloat64(r.shipper.m.shipped); got != float64(lines) {
		r.t.Errorf("%v lines are counted as shipped, want %d", got, lines)
	}
	if v := s.Violations(); v != nil {
		r.t.Errorf("violations: %q", v)
	}
}

// letters reads the dead-letter file.
func (r *rig) letters() (letters []deadLetter) {
	r.t.Helper()
	f, err := os.Open(filepath.Join(r.dir, "dead-letter.jsonl"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var l deadLetter
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			r.t.Fatal(err)
		}
		letters = append(letters, l)
	}
	return letters
}

func TestLinesArriveWithLabelsAndMetadata(t *testing.T) {
	s := lokitest.NewServer(t)
	r := start(t, t.TempDir(), quick(s.URL))
	r.append(logged("a", 0, 3000))
	r.append(logged("b", 0, 3000))
	r.shipped()
	r.expect(s, 6000)
	e := s.Entries()[0]
	if want := `{job="squall", role="lb", site="shop.example", source="balancer"}`; e.Labels != want {
		t.Errorf("labels %s, want %s", e.Labels, want)
	}
	want := map[string]string{
		"method": "HEAD", "route": "/checkout/{int}", "status": "200", "request_time": "1.5", "client_class": "scanner", "client_abandoned": "true",
	}
	if fmt.Sprint(e.Metadata) != fmt.Sprint(want) {
		t.Errorf("metadata %v, want %v", e.Metadata, want)
	}
}

func TestIdenticalLinesAreNotFolded(t *testing.T) {
	s := lokitest.NewServer(t)
	r := start(t, t.TempDir(), quick(s.URL))
	b := logged("a", 0, 500)
	for i := range b.Entries {
		b.Entries[i].Time, b.Entries[i].Line = b.Entries[0].Time, []byte("HEAD / 200")
	}
	r.append(b)
	r.shipped()
	r.expect(s, 500)
}

// Whatever goes away again costs nothing but time, and the bytes that are sent again are the same.
func TestAnswersThatPass(t *testing.T) {
	html := "<html><body>Please log in</body></html>"
	for name, reply := range map[string]lokitest.Reply{
		"500": {Status: 500, Text: "boom"}, "503": {Status: 503}, "408": {Status: 408}, "429": {Status: 429, Text: "ingestion rate limit exceeded"},
		"stored but 504": {Status: 504, Store: true}, "401": {Status: 401, Text: "no org id"}, "403": {Status: 403}, "404": {Status: 404},
		"302": {Status: 302, Header: http.Header{"Location": {"/login"}}}, "200 html": {Status: 200, Text: html}, "200 error": {Status: 200, Text: `{"status":"error","error":"no tenant"}`}, "260": {Status: 260},
		"400 of a proxy": {Status: 400, Text: html},
	} {
		t.Run(name, func(t *testing.T) {
			s := lokitest.NewServer(t)
			// A canary is refused like everything else; a 429 that lasts would split.
			const times = 2
			s.Intercept = func(n int, _ *http.Request, _ []byte) lokitest.Reply {
				if n <= times {
					return reply
				}
				return lokitest.Reply{}
			}
			r := start(t, t.TempDir(), quick(s.URL))
			r.append(logged("a", 0, 200))
			r.shipped()
			r.expect(s, 200)
			var bodies [][]byte
			for _, b := range s.Bodies() {
				if len(b) > 200 {
					bodies = append(bodies, b)
				}
			}
			for _, b := range bodies {
				if !bytes.Equal(b, bodies[0]) {
					t.Error("what was sent again was not the same")
				}
			}
			if len(r.letters()) > 0 {
				t.Errorf("dead letters: %v", r.letters())
			}
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	now := time.Now()
	for value, want := range map[string]time.Duration{
		"5": 5 * time.Second, "": 0, "-1": 0, "soon": 0, "999999": maxRetryAfter, now.UTC().Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second,
	} {
		got := classify(503, http.Header{"Retry-After": {value}}, "", now).after
		if d := got - want; d > 0 || d < -time.Second {
			t.Errorf("Retry-After %q: %s, want %s", value, got, want)
		}
	}
}

// What a 400 names is refused, and the rest is stored and not sent again.
func TestNamedEntriesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		limits func(*lokitest.Limits)
		change func(*pipeline.Entry)
		reason string
	}{
		"too old":  {nil, func(e *pipeline.Entry) { e.Time -= int64(8 * 24 * time.Hour) }, refusedTooOld},
		"too new":  {nil, func(e *pipeline.Entry) { e.Time += int64(time.Hour) }, refusedTooNew},
		"too long": {func(l *lokitest.Limits) { l.MaxLine = 1000 }, func(e *pipeline.Entry) { e.Line = bytes.Repeat([]byte("x"), 1001) }, refusedTooLong},
		"metadata": {func(l *lokitest.Limits) { l.MaxMetadataBytes = 500 }, func(e *pipeline.Entry) { e.Route = strings.Repeat("/r", 300) }, refusedMetadata},
	} {
		t.Run(name, func(t *testing.T) {
			s := lokitest.NewServer(t)
			if c.limits != nil {
				c.limits(&s.Limits)
			}
			r := start(t, t.TempDir(), quick(s.URL))
			b := logged("a", 0, 100)
			for _, i := range []int{10, 20, 99} {
				c.change(&b.Entries[i])
			}
			r.append(b)
			r.shipped()
			r.expect(s, 97)
			if got := r.value(c.reason); got != 3 {
				t.Errorf("%v lines refused as %s, want 3", got, c.reason)
			}
			if s.Requests() != 1 {
				t.Errorf("%d requests for one push", s.Requests())
			}
			letters := r.letters()
			if len(letters) != 3 || letters[0].Status != 400 || letters[0].Reason != c.reason {
				t.Errorf("dead letters: %+v", letters)
			}
		})
	}
}

func TestTooFarBehindIsRefused(t *testing.T) {
	s := lokitest.NewServer(t)
	r := start(t, t.TempDir(), quick(s.URL))
	r.append(logged("a", 0, 10))
	r.shipped()
	late := logged("a", 10, 20)
	for i := range late.Entries {
		late.Entries[i].Time -= int64(3 * time.Hour)
	}
	r.append(late)
	r.shipped()
	r.expect(s, 10)
	if got := r.value(refusedBehind); got != 20 || len(r.letters()) != 20 {
		t.Errorf("%v lines refused, %d dead letters, want 20", got, len(r.letters()))
	}
}

// A push that fails for ever while others pass is taken apart until the poison is alone.
func TestPoisonIsFoundAndPutAside(t *testing.T) {
	for status, reason := range map[int]string{500: refusedServer, 400: refusedUnread, 413: refusedTooLarge} {
		t.Run(reason, func(t *testing.T) {
			s := lokitest.NewServer(t)
			s.Intercept = func(_ int, _ *http.Request, body []byte) lokitest.Reply {
				if lokitest.Contains(body, "poison") {
					return lokitest.Reply{Status: status, Text: "couldn't parse"}
				}
				return lokitest.Reply{}
			}
			r := start(t, t.TempDir(), quick(s.URL))
			b := logged("a", 0, 64)
			b.Entries[17].Line = []byte("poison one")
			b.Entries[40].Line = []byte("poison two")
			r.append(b)
			r.append(logged("b", 0, 64))
			r.shipped()
			canaries := 0
			for _, e := range s.Entries() {
				if e.Labels == canaryLabels {
					canaries++
				}
			}
			if got := len(s.Entries()) - canaries; got != 126 || canaries == 0 {
				t.Errorf("Loki has %d lines and %d canaries", got, canaries)
			}
			letters := r.letters()
			if len(letters) != 2 || letters[0].Line != "poison one" || letters[1].Line != "poison two" || r.value(reason) != 2 {
				t.Errorf("%v refused, dead letters: %+v", r.value(reason), letters)
			}
		})
	}
}

func TestPushOverTheBurstIsHalved(t *testing.T) {
	s := lokitest.NewServer(t)
	s.Limits.Burst = 20_000
	r := start(t, t.TempDir(), quick(s.URL))
	r.append(logged("a", 0, 2000))
	r.shipped()
	r.expect(s, 2000)
	if r.shipper.size >= int(r.shipper.cfg.BatchSize) {
		t.Error("the size of a push did not shrink")
	}
}

func TestMetadataGoesIntoTheLineWhereItIsRefused(t *testing.T) {
	s := lokitest.NewServer(t)
	s.Limits.NoMetadata = true
	r := start(t, t.TempDir(), quick(s.URL))
	r.append(logged("a", 0, 10))
	r.shipped()
	r.append(logged("a", 10, 10))
	r.shipped()
	r.expect(s, 20)
	want := "HEAD /checkout/0 of a client_abandoned=true client_class=scanner method=HEAD request_time=1.5 route=/checkout/{int} status=200"
	if got := s.Entries()[0].Line; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
	if n := s.Requests(); n != 3 {
		t.Errorf("%d requests, want 3: the answer is to be remembered", n)
	}
}

func TestStopEndsAtOnceWhileLokiHangs(t *testing.T) {
	release := make(chan struct{})
	var once sync.Once
	entered := make(chan struct{})
	s := lokitest.NewServer(t)
	s.Intercept = func(_ int, r *http.Request, _ []byte) lokitest.Reply {
		once.Do(func() { close(entered) })
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return lokitest.Reply{Status: 503}
	}
	cfg := quick(s.URL)
	cfg.Timeout = time.Hour
	dir := t.TempDir()
	r := start(t, dir, cfg)
	r.append(logged("a", 0, 10))
	<-entered
	r.stop() // fails the test after 5 s
	close(release)
	s.Intercept = nil
	r = start(t, dir, cfg)
	r.shipped()
	r.expect(s, 10)
}

func TestSizesOfPushes(t *testing.T) {
	s := lokitest.NewServer(t)
	r := start(t, t.TempDir(), quick(s.URL))
	for i := range 4 {
		b := logged(fmt.Sprint("s", i), 0, 3000)
		for j := range b.Entries {
			b.Entries[j].Line = append(b.Entries[j].Line, bytes.Repeat([]byte("y"), 250)...)
			b.Entries[j].Site = fmt.Sprint("site-", i%3)
		}
		r.append(b)
	}
	r.shipped()
	r.expect(s, 12000)
	if s.Requests() < 4 {
		t.Errorf("3 MB went in %d pushes", s.Requests())
	}
}

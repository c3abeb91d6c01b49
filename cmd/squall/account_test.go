package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/grafana/loki/pkg/push"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// A gate stands before VictoriaLogs: it can be shut, and it refuses entries that are too long as Loki does, which
// stores the others of the push.
type gate struct {
	*httptest.Server
	shut    atomic.Bool
	longest int // bytes of a line
}

func startGate(t *testing.T, base string, longest int) *gate {
	t.Helper()
	to, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{longest: longest}
	proxy := httputil.NewSingleHostReverseProxy(to)
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.shut.Load() {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		body, refused, err := g.sift(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		if refused == 0 {
			proxy.ServeHTTP(w, r)
			return
		}
		stored := httptest.NewRecorder()
		proxy.ServeHTTP(stored, r)
		if stored.Code >= 300 {
			http.Error(w, stored.Body.String(), stored.Code)
			return
		}
		http.Error(w, fmt.Sprintf("%d errors like: max entry size '%d' bytes exceeded for stream '{job=\"squall\"}' while adding an entry with length '%d' bytes",
			refused, g.longest, g.longest+1), http.StatusBadRequest)
	}))
	t.Cleanup(g.Close)
	return g
}

// sift takes the entries out of a push that are too long.
func (g *gate) sift(in io.Reader) (body []byte, refused int, err error) {
	packed, err := io.ReadAll(in)
	if err != nil {
		return nil, 0, err
	}
	data, err := snappy.Decode(nil, packed)
	if err != nil {
		return nil, 0, err
	}
	var all push.PushRequest
	if err := all.Unmarshal(data); err != nil {
		return nil, 0, err
	}
	for i := range all.Streams {
		s := &all.Streams[i]
		n := len(s.Entries)
		s.Entries = slices.DeleteFunc(s.Entries, func(e push.Entry) bool { return len(e.Line) > g.longest })
		refused += n - len(s.Entries)
	}
	if data, err = all.Marshal(); err != nil {
		return nil, 0, err
	}
	return snappy.Encode(nil, data), refused, nil
}

// metrics gives the sum of each family, over its labels.
func (p *program) metrics() map[string]float64 {
	p.t.Helper()
	sums := map[string]float64{}
	_, text := p.get("/metrics")
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if i := strings.IndexByte(name, '{'); i >= 0 {
			value = line[strings.LastIndexByte(line, ' ')+1:]
			name = name[:i]
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && strings.HasPrefix(name, "squall_") {
			sums[name] += v
		}
	}
	return sums
}

// balance tells whether every line that came is accounted for, and what the account is.
func balance(m map[string]float64) (closes bool, account string) {
	sum := func(names ...string) (n float64) {
		for _, name := range names {
			n += m["squall_"+name]
			account += fmt.Sprintf(" %s %v", name, m["squall_"+name])
		}
		return n
	}
	came := sum("lines_read_total", "lines_split_total", "spool_recovered_lines_total")
	account += " ="
	became := sum("lines_joined_total", "lines_shipped_total", "lines_refused_total", "lines_lost_total",
		"spool_waiting_lines", "spool_kept_lines_total", "spool_repeated_lines_total")
	return came == became, account
}

// accounted waits until so many lines are read and the account closes, to the line.
func (p *program) accounted(what string, ready func(m map[string]float64) bool) map[string]float64 {
	p.t.Helper()
	var m map[string]float64
	var account string
	limit := time.Now().Add(60 * time.Second)
	for closes := false; !closes || !ready(m); {
		if time.Now().After(limit) {
			p.t.Fatalf("%s: the account does not close:%s", what, account)
		}
		p.alive()
		m = p.metrics()
		closes, account = balance(m)
	}
	p.t.Logf("%s:%s", what, account)
	return m
}

// appendText appends to a log.
func appendText(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// ledger is a daemon whose lines are counted from outside.
type ledger struct {
	*program
	dir, log, pod string
	base          string // of VictoriaLogs
	loki          *gate
	file          string // the configuration
	with, without string // Loki
	now           time.Time
	written       float64 // lines that the daemon which runs must have read
}

func (l *ledger) visits(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(logLine(l.now, http.MethodGet, i))
	}
	l.written += float64(n)
	return b.String()
}

// part is a line as a container runtime writes it: P when the next goes on, else F.
func (l *ledger) part(tag, text string) string {
	l.written++
	return l.now.UTC().Format(time.RFC3339Nano) + " stdout " + tag + " " + text + "\n"
}

func (l *ledger) read(m map[string]float64) bool { return m["squall_lines_read_total"] == l.written }

func (l *ledger) dealt(m map[string]float64) bool {
	return l.read(m) && m["squall_spool_waiting_lines"] == 0
}

// configure reloads. Half an entry is read again when reading begins anew: so its line is counted again, each time.
func (l *ledger) configure(yaml string) {
	l.t.Helper()
	write(l.t, l.file, yaml)
	code, text := l.reload()
	check(l.t, "a reload: "+text, code, http.StatusOK)
	l.written++
}

// again starts squall anew; the line of half an entry is read again.
func (l *ledger) again() {
	l.written = 1
	l.program = runSquall(l.t, l.dir, surroundings{})
}

// Whatever happens to lines, each that was read is shipped, waits, or is counted under what became of it: through
// rotation, lines over the limit, entries of several lines, refusals, an outage, a full spool, reloads with and without
// Loki, a stop and a crash.
func TestAccountCloses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pods := filepath.Join(dir, "pods", "shop_web-1_uid", "nginx")
	if err := os.MkdirAll(pods, 0o700); err != nil {
		t.Fatal(err)
	}
	l := &ledger{
		dir: dir, log: filepath.Join(dir, "access.log"), pod: filepath.Join(pods, "0.log"), file: filepath.Join(dir, "squall.yaml"),
		base: startVictoriaLogs(t), now: time.Now(),
	}
	l.loki = startGate(t, l.base, 100<<10)
	l.without = fmt.Sprintf("sources:\n- {name: balancer, type: file, paths: [%q]}\n- {name: shop, type: container, paths: [%q]}\nspool: {dir: %q, max_bytes: 1MiB}\n",
		l.log, filepath.Join(dir, "pods/*/*/*.log"), filepath.Join(dir, "spool"))
	l.with = l.without + fmt.Sprintf("loki: {url: %q, batch_wait: 50ms, backoff_config: {min_period: 50ms, max_period: 200ms}}\n", pushURL(l.loki.URL))
	write(t, l.file, l.with)
	l.shipping(t)
	waiting := l.reloading(t)
	check(t, "exit code", l.stop(syscall.SIGTERM), 0)
	l.again()
	m := l.accounted("after a stop", l.read)
	check(t, "lines taken over", m["squall_spool_recovered_lines_total"], waiting)
	check(t, "lines waiting", m["squall_spool_waiting_lines"], waiting)
	l.filling(t)
	l.kill()
	l.again()
	m = l.accounted("after a crash", l.read)
	check(t, "lines taken over", m["squall_spool_recovered_lines_total"] > 0, true)
	l.loki.shut.Store(false)
	l.accounted("Loki is back", l.dealt)
	l.linted(t)
	check(t, "exit code", l.stop(syscall.SIGTERM), 0)
}

func (l *ledger) shipping(t *testing.T) {
	appendText(t, l.log, l.visits(500))
	appendText(t, l.pod, l.part("P", "one ")+l.part("P", "entry ")+l.part("F", "of three")+l.part("F", "and one of one"))
	l.program = runSquall(t, l.dir, surroundings{})
	l.accounted("lines and parts", l.read)
	appendText(t, l.log, l.visits(100)+"GET /"+strings.Repeat("a", 300<<10)+"\n\n# a comment\n")
	l.written += 3
	if err := os.Rename(l.log, l.log+".1"); err != nil {
		t.Fatal(err)
	}
	appendText(t, l.log+".1", l.visits(100))
	appendText(t, l.log, l.visits(100))
	appendText(t, l.pod, l.part("P", "its end does not come"))
	m := l.accounted("rotation, a line over the limit, half an entry", l.dealt)
	check(t, "lines joined", m["squall_lines_joined_total"], 3.0)
	check(t, "lines too long", l.metric(`squall_lines_refused_total{reason="line_too_long"}`), 1.0)
	check(t, "lines shipped", m["squall_lines_shipped_total"], l.written-4)
	eventually(t, "Loki has them", func() bool { return float64(len(stored(t, l.base))) >= l.written-4 })
	check(t, "lines in Loki", float64(len(stored(t, l.base))), l.written-4)
}

// reloading takes Loki away, out of the configuration, and back into it. It gives how many lines wait then.
func (l *ledger) reloading(t *testing.T) (waiting float64) {
	l.loki.shut.Store(true)
	appendText(t, l.log, l.visits(300))
	check(t, "lines waiting", l.accounted("Loki is away", l.read)["squall_spool_waiting_lines"], 300.0)
	l.configure(l.with)
	check(t, "lines waiting", l.accounted("a reload while Loki is away", l.read)["squall_spool_waiting_lines"], 300.0)
	l.configure(l.without)
	appendText(t, l.log, l.visits(50))
	check(t, "lines kept", l.accounted("without Loki", l.dealt)["squall_spool_kept_lines_total"], 350.0)
	l.configure(l.with)
	m := l.accounted("with Loki again", l.read)
	check(t, "lines taken over", m["squall_spool_recovered_lines_total"], 350.0)
	return m["squall_spool_waiting_lines"]
}

// filling writes what cannot be compressed until the spool is over its limit.
func (l *ledger) filling(t *testing.T) {
	noise := rand.New(rand.NewPCG(1, 2))
	for range 14 {
		var b strings.Builder
		for range 250 {
			b.WriteString(strings.TrimSuffix(logLine(l.now, http.MethodGet, 1), "\n"))
			for range 60 {
				fmt.Fprintf(&b, "%016x", noise.Uint64())
			}
			b.WriteByte('\n')
		}
		l.written += 250
		appendText(t, l.log, b.String())
		l.accounted("the spool fills", l.read)
	}
	// The spool lets the oldest go meanwhile: both are told of the same moment once it has.
	eventually(t, "what was lost has its reason", func() bool {
		full := l.metric(`squall_lines_lost_total{reason="spool_full",source=""}`)
		return full > 0 && l.accounted("the spool is full", l.read)["squall_lines_lost_total"] == full
	})
	eventually(t, "all that was read is stored, so that a crash has nothing read again", func() bool {
		return l.metric("squall_spool_queue_bytes") == 0
	})
}

// linted tells what is against the conventions of metrics.
func (l *ledger) linted(t *testing.T) {
	_, text := l.get("/metrics")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("/metrics: %s: %s", p.Metric, p.Text)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "input=") {
			t.Errorf("a source has another name here: %s", line)
		}
	}
}

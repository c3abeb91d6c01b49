package simulate

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/squall-sre/squall/pipeline/format"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func named(t *testing.T, name string) Scenario {
	t.Helper()
	s, err := Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func simulate(t *testing.T, o Options, w io.Writer) *Truth {
	t.Helper()
	truth, err := Run(t.Context(), o, w)
	if err != nil {
		t.Fatal(err)
	}
	return truth
}

// TestDeterminism: the seed and nothing else decides about bytes and truth.
func TestDeterminism(t *testing.T) {
	for _, name := range []string{"S02", "flash_sale"} {
		for _, format := range Formats() {
			sum := func(seed uint64) (string, string) {
				hash := sha256.New()
				truth, err := json.Marshal(simulate(t, Options{Scenario: named(t, name), Format: format, Seed: seed, Rate: 0.2, Pool: 5}, hash))
				if err != nil {
					t.Fatal(err)
				}
				return string(hash.Sum(nil)), string(truth)
			}
			log1, truth1 := sum(7)
			log2, truth2 := sum(7)
			log3, truth3 := sum(8)
			if log1 != log2 || truth1 != truth2 {
				t.Errorf("%s as %s: one seed gave two runs", name, format)
			}
			if log1 == log3 || truth1 == truth3 {
				t.Errorf("%s as %s: two seeds gave one run", name, format)
			}
		}
	}
}

// TestFormatsTellTheSame: what happens does not depend on who writes it down.
func TestFormatsTellTheSame(t *testing.T) {
	var first SiteTruth
	for i, format := range Formats() {
		got := simulate(t, Options{Scenario: named(t, "S02"), Format: format, Seed: 3}, io.Discard).Sites[0]
		got.Requests = nil // holds the formats' own status
		if i == 0 {
			first = got
		} else if diff := cmp.Diff(first, got); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
}

var logged = regexp.MustCompile(`^(\S+) - - \[[^]]+\] "(\S+) (\S+) HTTP/[\d.]+" (\d{3}) (\d+) "[^"]*" "[^"]*" msec=(\d+)\.(\d{3}) ` +
	`host="([^"]*)" xff="-" rt=(\d+)\.(\d{3}) uaddr="([^"]*)" us="([^"]*)" urt="([^"]*)" ul="([^"]*)" cs=- lrs=-$`)

// TestLittlesLaw: the mean number at the application, which the truth integrates by pane, is the rate of the
// log's lines times their mean time; and the log alone gives each pane's number.
func TestLittlesLaw(t *testing.T) {
	for _, name := range []string{"S01", "flash_sale"} {
		var log bytes.Buffer
		truth := simulate(t, Options{Scenario: named(t, name), Seed: 5, Rate: 0.2, Pool: 5}, &log)
		site := truth.Sites[0]
		panes := make([]float64, len(site.BusySystem))
		start := truth.Start.UnixMilli()
		var count, sum float64
		lines := bufio.NewScanner(&log)
		for lines.Scan() {
			f := logged.FindStringSubmatch(lines.Text())
			if f == nil {
				t.Fatalf("%s: unexpected line %s", name, lines.Text())
			}
			if f[13] == "-" {
				continue // never at the application
			}
			end, took := millis(t, f[6], f[7])-start, millis(t, f[9], f[10])
			count, sum = count+1, sum+float64(took)/1e3
			for from := end - took; from < end; {
				to := min(end, (from/10000+1)*10000)
				panes[from/10000] += float64(to-from) / 10000
				from = to
			}
		}
		seconds := truth.End.Sub(truth.Start).Seconds()
		var mean float64
		for i, l := range site.BusySystem[:len(panes)-2] { // the last panes hold what is not in the log yet
			if math.Abs(panes[i]-l) > 0.02*l+0.05 {
				t.Errorf("%s pane %d: the log has %.3f in the system, the truth %.3f", name, i, panes[i], l)
			}
		}
		for _, l := range site.BusySystem {
			mean += l / float64(len(panes))
		}
		if lw := count / seconds * (sum / count); math.Abs(mean-lw) > 0.01*lw {
			t.Errorf("%s: L = %.3f, λW = %.3f", name, mean, lw)
		}
		if math.Abs(site.ClientSecs-mean*seconds) > 0.001*site.ClientSecs {
			t.Errorf("%s: %.1f client-seconds, panes hold %.1f", name, site.ClientSecs, mean*seconds)
		}
	}
}

// TestRecommendedNginx: nginx_extended is the log_format that package pipeline/format recommends, variable by
// variable.
func TestRecommendedNginx(t *testing.T) {
	pattern, groups := "^", map[string]string{
		"remote_user": "-", "time_local": `\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [-+]\d{4}`, "request": `(?:GET|HEAD|POST) /\S* HTTP/(?:1\.1|2\.0)`,
		"status": `\d{3}`, "body_bytes_sent": `\d+`, "msec": `\d{10}\.\d{3}`, "host": `shop\.example`, "http_x_forwarded_for": "-",
		"request_time": `\d+\.\d{3}`, "upstream_addr": `-|10\.42\.0\.1[01]:8080`, "upstream_status": `-|\d{3}`, "upstream_response_time": `-|\d+\.\d{3}`,
		"upstream_response_length": `-|\d+`, "upstream_cache_status": "-", "limit_req_status": "-",
		"remote_addr": `[0-9a-f.:]+`, "http_referer": `[^"]+`, "http_user_agent": `[^"]+`,
	}
	rest := format.RecommendedNginx
	for _, at := range regexp.MustCompile(`\$\w+`).FindAllString(rest, -1) {
		before, after, _ := strings.Cut(rest, at)
		group, ok := groups[at[1:]]
		if !ok {
			t.Fatalf("the format has a variable %s that the simulator does not write", at)
		}
		pattern, rest = pattern+regexp.QuoteMeta(before)+"(?:"+group+")", after
	}
	line := regexp.MustCompile(pattern + regexp.QuoteMeta(rest) + "\n$")
	var log bytes.Buffer
	simulate(t, Options{Scenario: named(t, "S02"), Seed: 2, Rate: 0.2, Pool: 5}, &log)
	for l := range bytes.Lines(log.Bytes()) {
		if !line.Match(l) {
			t.Fatalf("%s is not %s", l, format.RecommendedNginx)
		}
	}
}

func millis(t *testing.T, seconds, ms string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(seconds+ms, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestConservation: who arrives is answered, gives up, or is still there; and the truth counts what is written.
func TestConservation(t *testing.T) {
	for _, name := range Names() {
		var count lineCounter
		truth := simulate(t, Options{Scenario: named(t, name), Seed: 11, Rate: 0.2, Pool: 5}, &count)
		if truth.Lines != int(count) {
			t.Errorf("%s: %d lines written, the truth says %d", name, count, truth.Lines)
		}
		written := 0
		for _, l := range truth.Logs {
			if formats[l.Format] != nil && l.File != "edge.log" {
				written += l.Lines
			}
		}
		for _, s := range truth.Sites {
			if s.Arrivals != s.Completed+s.Abandoned+s.InSystem || s.InSystem < 0 {
				t.Errorf("%s: %d arrived, %d answered, %d gave up, %d still there", name, s.Arrivals, s.Completed, s.Abandoned, s.InSystem)
			}
			lines, minutes, arrivals := 0, 0, 0
			for _, by := range s.Requests {
				for _, n := range by {
					lines += n
				}
			}
			for _, m := range s.Minutes {
				minutes += m.Lines
			}
			var workers float64
			for _, r := range s.WorkerRoutes {
				arrivals, workers = arrivals+r.Arrivals, workers+r.Seconds
			}
			if lines != minutes || arrivals != s.Arrivals {
				t.Errorf("%s: %d lines by status, %d by minute; %d of %d arrivals by route", name, lines, minutes, arrivals, s.Arrivals)
			}
			written -= lines
			for i, busy := range s.BusyService {
				if busy > float64(s.PoolWorkers)+0.001 {
					t.Errorf("%s pane %d: %.3f of %d workers busy", name, i, busy, s.PoolWorkers)
				}
			}
			if math.Abs(workers-s.WorkerSecs) > 0.01 {
				t.Errorf("%s: %.2f worker-seconds by route, %.2f in all", name, workers, s.WorkerSecs)
			}
		}
		if written != 0 {
			t.Errorf("%s: the access logs hold %d lines more than the sites were asked", name, written)
		}
	}
}

type lineCounter int

func (c *lineCounter) Write(b []byte) (int, error) {
	*c += lineCounter(bytes.Count(b, []byte{'\n'}))
	return len(b), nil
}

// TestGoldenLines shows the first 20 lines of a storm in each format, -update rewrites them.
func TestGoldenLines(t *testing.T) {
	site := shop()
	heads := checkoutHeads(0, 30*time.Second, 60, cart)
	heads.Patience.Mean = 1300 * time.Millisecond
	quick := checkoutHeads(0, 30*time.Second, 15, cart)
	quick.Layer = Nginx
	edge := checkoutHeads(0, 30*time.Second, 15, cart)
	edge.Layer = Edge
	site.Pool.Workers, site.Storms = 3, []Storm{heads, quick, edge}
	site.Monitors = []Monitor{{Method: "GET", Path: "/health", Agent: "ELB-HealthChecker/2.0", Every: time.Second, Addresses: 2, Layer: Nginx, Internal: true}}
	zone := time.FixedZone("+0530", 19800)
	sc := Scenario{Name: "golden", Start: day(2026, 6, 2, 20), Duration: 30 * time.Second, Zone: zone, Sites: []Site{site}}
	for _, format := range Formats() {
		var log bytes.Buffer
		simulate(t, Options{Scenario: sc, Format: format, Seed: 1}, &log)
		got := bytes.Join(bytes.SplitAfterN(log.Bytes(), []byte("\n"), 21)[:20], nil)
		path := filepath.Join("testdata", format+".golden")
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
}

// TestRunEnds with its context and with its writer.
func TestRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Options{Scenario: named(t, "S01")}, io.Discard); err == nil {
		t.Error("a run whose context had ended gave no error")
	}
	r, w := io.Pipe()
	r.Close()
	if _, err := Run(t.Context(), Options{Scenario: named(t, "S01")}, w); err == nil {
		t.Error("a run whose log could not be written gave no error")
	}
}

// TestRefusals: what cannot be simulated is an error and no panic.
func TestRefusals(t *testing.T) {
	broken := func(change func(*Scenario)) Scenario {
		s := named(t, "S01")
		change(&s)
		return s
	}
	for name, o := range map[string]Options{
		"nothing":  {},
		"format":   {Scenario: named(t, "S01"), Format: "w3c"},
		"layer":    {Scenario: named(t, "S01"), Layer: "cloud"},
		"negative": {Scenario: named(t, "S01"), Pool: -1},
		"workers":  {Scenario: broken(func(s *Scenario) { s.Sites[0].Pool.Workers = 0 })},
		"routes":   {Scenario: broken(func(s *Scenario) { s.Sites[0].Organic.Routes = nil })},
		"shape":    {Scenario: broken(func(s *Scenario) { s.Sites[0].Storms[0].Shape = "square" })},
		"monitor":  {Scenario: broken(func(s *Scenario) { s.Sites[0].Monitors = []Monitor{{Path: "/"}} })},
		"blip":     {Scenario: broken(func(s *Scenario) { s.Sites[0].Blips = []Blip{{For: 1, Abandon: 1}} })},
		"no time":  {Scenario: broken(func(s *Scenario) { s.Duration = 0 })},
		"no host":  {Scenario: broken(func(s *Scenario) { s.Sites[0].Host = "" })},
	} {
		if _, err := Run(t.Context(), o, io.Discard); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Named("S99"); err == nil {
		t.Error("an unknown scenario has no error")
	}
}

func BenchmarkRun(b *testing.B) {
	for _, format := range Formats() {
		b.Run(format, func(b *testing.B) {
			s, err := Named("S01")
			if err != nil {
				b.Fatal(err)
			}
			lines := 0
			for b.Loop() {
				truth, err := Run(b.Context(), Options{Scenario: s, Format: format}, io.Discard)
				if err != nil {
					b.Fatal(err)
				}
				lines += truth.Lines
			}
			b.ReportMetric(float64(lines)/b.Elapsed().Seconds(), "lines/s")
		})
	}
}

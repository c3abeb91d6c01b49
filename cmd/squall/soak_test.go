//go:build soak

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// soakNumber reads a setting of `make soak` from the environment.
func soakNumber(t *testing.T, name string, usual float64) float64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n <= 0 {
		t.Fatalf("%s=%q: write a number above 0", name, text)
	}
	return n
}

// A switchboard stands where Alertmanager does: it takes its API's POSTs and notes when each alert came first.
type switchboard struct {
	*httptest.Server
	mu    sync.Mutex
	first map[string]time.Time // by alert's name and site
}

func startSwitchboard(t *testing.T) *switchboard {
	p := &switchboard{first: map[string]time.Time{}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *switchboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	var list []struct{ Labels map[string]string }
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range list {
		key := a.Labels["alertname"] + " " + a.Labels["site"]
		if p.first[key].IsZero() {
			p.first[key] = now
		}
	}
}

func (p *switchboard) came(alert, site string) (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.first[alert+" "+site]
	return at, ok
}

// processorTime is what a process has used.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	ticks := 0
	for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// residentMemory is what a process holds now, MiB.
func residentMemory(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return float64(pages*os.Getpagesize()) / (1 << 20)
}

// machineLoad is the mean of the last minute, as uptime tells it.
func machineLoad(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))[0]
}

// soakMachine says what the figures were measured on.
func soakMachine(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("%d processors, %s, load %s", runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly), machineLoad(t))
}

// childProcess finds the process that the tests started last with this program.
func childProcess(t *testing.T, program string) int {
	t.Helper()
	out, err := exec.Command("pgrep", "-n", "-P", strconv.Itoa(os.Getpid()), program).Output()
	if err != nil {
		t.Fatalf("find %s: %v", program, err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(out))[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// soakProgram is the squall that is measured: SOAK_SQUALL's, or one that is built.
func soakProgram(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("SOAK_SQUALL"); path != "" {
		return path
	}
	return plainProgram(t)
}

// A soaking is one run under load, and what it cost.
type soaking struct {
	pane, lateness time.Duration
	minutes        float64
	rate, fresh    int
	profile        string // the file for a processor profile, written before the minutes begin; "": none

	lines, shipped       int64
	lost                 int     // of the lines, as VictoriaLogs counts them
	cpu, victoria, tests float64 // s, for a million lines
	late                 time.Duration
	load                 string
	rss                  []float64 // MiB, every two seconds
	delays               []time.Duration
}

const soakConfig = `
sources: [{name: balancer, type: file, paths: [%q], lateness: %s}]
own: {interfaces: false}
sites: [{name: shop.example, pool: {workers: 40, reclaim_timeout: 60s}}]
pane: %s
spool: {dir: %q, max_bytes: 1GiB}
loki: {url: %q}
notify: [{type: alertmanager, urls: [%q]}]
`

// run floods squall for the minutes, lets it finish, and measures.
func (s *soaking) run(t *testing.T) {
	dir, logs, pages := t.TempDir(), startVictoriaLogs(t), startSwitchboard(t)
	log := filepath.Join(dir, "access.log")
	write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf(soakConfig, log, s.lateness, s.pane, filepath.Join(dir, "spool"), pushURL(logs), pages.URL))
	squall := launch(t, surroundings{program: soakProgram(t)}, "run", "--config", filepath.Join(dir, "squall.yaml"),
		"--web.listen-address", "127.0.0.1:0", "--web.enable-pprof")
	squall.await()
	pids := []int{squall.cmd.Process.Pid, childProcess(t, "victoria-logs"), os.Getpid()}
	f := &flood{path: log, rate: s.rate, fresh: s.fresh, parts: floodParts(t, 200_000)}
	var before [3]time.Duration
	for i, pid := range pids {
		before[i] = processorTime(t, pid)
	}
	startFlood(t, f, 1700*time.Millisecond) // at another place of the pane each time
	if s.profile != "" {
		fetchProfile(t, squall, s.profile)
	}
	s.watch(t, squall)
	f.stop()
	s.lines, s.late = f.written()
	s.load = machineLoad(t)
	eventually(t, "all lines are shipped", func() bool {
		squall.alive()
		s.shipped = int64(squall.metric("squall_lines_shipped_total"))
		return s.shipped >= s.lines
	})
	perMillion := 1e6 / float64(s.lines)
	for i, to := range []*float64{&s.cpu, &s.victoria, &s.tests} {
		*to = (processorTime(t, pids[i]) - before[i]).Seconds() * perMillion
	}
	s.lost = int(s.lines) - ingested(t, logs)
	for site, at := range f.crossed() {
		eventually(t, "the storm of "+site+" is told", func() bool { _, ok := pages.came("HeadStorm", site); return ok })
		told, _ := pages.came("HeadStorm", site)
		s.delays = append(s.delays, told.Sub(at))
	}
	slices.Sort(s.delays)
	check(t, "lines shipped", s.shipped, s.lines)
	check(t, "lines read", squall.metric(`squall_lines_read_total{source="balancer"}`), float64(s.lines))
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// watch samples the memory until the minutes are over.
func (s *soaking) watch(t *testing.T, squall *program) {
	t.Helper()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for end := time.Now().Add(time.Duration(s.minutes * float64(time.Minute))); time.Now().Before(end); {
		<-tick.C
		squall.alive()
		s.rss = append(s.rss, residentMemory(t, squall.cmd.Process.Pid))
	}
}

// fetchProfile writes a processor profile of three quarters of a minute of a squall that runs.
func fetchProfile(t *testing.T, squall *program, path string) {
	t.Helper()
	code, body := request(http.MethodGet, squall.base+"/debug/pprof/profile?seconds=45")
	check(t, "status of the profile", code, http.StatusOK)
	write(t, path, body)
}

// ingested counts the lines that the server took.
func ingested(t *testing.T, base string) (n int) {
	t.Helper()
	_, text := request(http.MethodGet, base+"/metrics")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "vl_rows_ingested_total{") {
			v, err := strconv.Atoi(strings.Fields(line)[1])
			if err != nil {
				t.Fatal(err)
			}
			n += v
		}
	}
	return n
}

func percentile(list []time.Duration, p float64) time.Duration {
	return list[min(int(p*float64(len(list))), len(list)-1)].Round(10 * time.Millisecond)
}

// TestSoak (make soak) floods squall with lines for minutes, everything on, into a real VictoriaLogs, and for a fifth of
// the time with panes of a second.
func TestSoak(t *testing.T) {
	minutes, rate := soakNumber(t, "SOAK_MINUTES", 10), int(soakNumber(t, "SOAK_RATE", 100_000))
	list := []*soaking{
		{pane: 10 * time.Second, lateness: 5 * time.Second, minutes: minutes, rate: rate, fresh: 6},
		{pane: time.Second, lateness: time.Second, minutes: minutes / 5, rate: rate, fresh: 6},
	}
	for _, s := range list {
		s.run(t)
		check(t, "lines lost", s.lost, 0)
		third := len(s.rss) / 3
		if middle, end := slices.Max(s.rss[third:2*third+1]), slices.Max(s.rss[2*third:]); end > 1.25*middle {
			t.Errorf("memory grows from %.0f to %.0f MiB: %.0f", middle, end, s.rss)
		}
	}
	fmt.Printf("\n%s\n\n| | pane 10 s, lateness 5 s | pane 1 s, lateness 1 s |\n|---|---|---|\n", soakMachine(t))
	for _, row := range []struct {
		name string
		of   func(*soaking) string
	}{
		{"lines, a second", func(s *soaking) string { return fmt.Sprintf("%d, %d", s.lines, s.rate) }},
		{"lines lost", func(s *soaking) string { return strconv.Itoa(s.lost) }},
		{"CPU-s for a million lines: squall", func(s *soaking) string { return fmt.Sprintf("%.1f", s.cpu) }},
		{"VictoriaLogs", func(s *soaking) string { return fmt.Sprintf("%.1f", s.victoria) }},
		{"what writes the log", func(s *soaking) string {
			return fmt.Sprintf("%.1f, late by %s at most", s.tests, s.late.Round(time.Millisecond))
		}},
		{"detection delay, median, p95, most", func(s *soaking) string {
			return fmt.Sprintf("%s, %s, %s of %d storms", percentile(s.delays, .5), percentile(s.delays, .95), percentile(s.delays, 1), len(s.delays))
		}},
		{"RSS MiB, at first, most, at last", func(s *soaking) string {
			return fmt.Sprintf("%.0f, %.0f, %.0f", s.rss[0], slices.Max(s.rss), s.rss[len(s.rss)-1])
		}},
		{"load of the machine", func(s *soaking) string { return s.load }},
	} {
		fmt.Printf("| %s | %s | %s |\n", row.name, row.of(list[0]), row.of(list[1]))
	}
}

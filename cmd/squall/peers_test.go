//go:build peers

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// peerRounds is how often each program runs. They take turns, so that a machine that slows down slows all of them, and
// the medians are told.
const peerRounds = 3

// A peer is a whole program that reads a log to its end.
type peer struct {
	name    string
	log     *peerLog
	command []string // LOG stands for the log's path
	env     []string
	counted *regexp.Regexp // in what squall prints: how many lines it read
	runs    []peerRun
}

type peerRun struct{ cpu, wall, rss float64 } // s, s, MiB

// peerLog is a generated log. Slow programs read the beginning of one.
type peerLog struct {
	path  string
	lines int
	bytes int64
}

// simulatePeerLog writes the log of an ordinary day, factor times as busy as that of the scenario.
func simulatePeerLog(t *testing.T, format string, factor float64) *peerLog {
	t.Helper()
	scenario, err := simulate.Named("quiet_day")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), format+".log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = simulate.Run(t.Context(), simulate.Options{Scenario: scenario, Format: format, Seed: 1, Rate: factor}, f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return measurePeerLog(t, path)
}

func measurePeerLog(t *testing.T, path string) *peerLog {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := &peerLog{path: path}
	for buf := make([]byte, 1<<20); ; {
		n, err := f.Read(buf)
		l.lines += bytes.Count(buf[:n], []byte{'\n'})
		l.bytes += int64(n)
		if errors.Is(err, io.EOF) {
			return l
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// head is the beginning of a log.
func (l *peerLog) head(t *testing.T, lines int) *peerLog {
	t.Helper()
	data, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	end := 0
	for range min(lines, l.lines) {
		end += bytes.IndexByte(data[end:], '\n') + 1
	}
	path := filepath.Join(t.TempDir(), "head.log")
	if err := os.WriteFile(path, data[:end], 0o600); err != nil {
		t.Fatal(err)
	}
	return measurePeerLog(t, path)
}

// packed is a log in pieces, each a .gz, in a folder of its own.
func (l *peerLog) packed(t *testing.T, pieces int) *peerLog {
	t.Helper()
	data, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i := range pieces {
		end := len(data)
		if i < pieces-1 {
			end = len(data) / (pieces - i)
			end += bytes.IndexByte(data[end:], '\n') + 1
		}
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("piece-%02d.log.gz", i)))
		if err != nil {
			t.Fatal(err)
		}
		w := gzip.NewWriter(f)
		_, err = w.Write(data[:end])
		if err := errors.Join(err, w.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
		data = data[end:]
	}
	return &peerLog{path: dir, lines: l.lines, bytes: l.bytes}
}

// run runs the program once.
func (p *peer) run(t *testing.T) {
	t.Helper()
	args := slices.Clone(p.command)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "LOG", p.log.path)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	began := time.Now()
	kib, err := peakMemory(cmd)
	took := time.Since(began).Seconds()
	if err != nil {
		t.Fatalf("%s: %v: %.2000s", p.name, err, out.Bytes())
	}
	if p.counted != nil {
		m := p.counted.FindSubmatch(out.Bytes())
		if m == nil || string(m[1]) != strconv.Itoa(p.log.lines) {
			t.Fatalf("%s: not all of %d lines were read: %.2000s", p.name, p.log.lines, out.Bytes())
		}
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	p.runs = append(p.runs, peerRun{cpu.Seconds(), took, float64(kib) / 1024})
}

// median is that of one figure of the runs.
func (p *peer) median(of func(peerRun) float64) float64 {
	var list []float64
	for _, r := range p.runs {
		list = append(list, of(r))
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// cpu is in seconds for a million lines.
func (p *peer) cpu() float64 {
	return p.median(func(r peerRun) float64 { return r.cpu }) * 1e6 / float64(p.log.lines)
}

func (p *peer) wall() float64 { return p.median(func(r peerRun) float64 { return r.wall }) }

func (p *peer) rss() float64 { return p.median(func(r peerRun) float64 { return r.rss }) }

// mtailProgram counts what mawk counts.
const mtailProgram = `counter requests by method, status
/"(?P<method>[A-Z]+) [^"]*" (?P<status>\d{3}) / {
  requests[$method][$status]++
}
`

// peers are the programs and what they read. What is not installed is left out.
func peers(t *testing.T) []*peer {
	squall := plainProgram(t)
	nginx := simulatePeerLog(t, "nginx", 12)
	alb := simulatePeerLog(t, "alb", 4)
	packed := alb.packed(t, 12)
	few, fewer := nginx.head(t, 100_000), nginx.head(t, 4000)
	programs := t.TempDir()
	if err := os.WriteFile(filepath.Join(programs, "requests.mtail"), []byte(mtailProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	counted := regexp.MustCompile(`"lines":(\d+)`)
	one := []string{"GOMAXPROCS=1"}
	replay := []string{squall, "replay", "--progress", "never", "--json", "-", "LOG"}
	list := []*peer{
		{name: "`wc -l`", log: nginx, command: []string{"wc", "-l", "LOG"}},
		{name: "mawk, requests by method and status", log: nginx, command: []string{"mawk", `{ n[$6 " " $9]++ } END { for (k in n) print k, n[k] }`, "LOG"}},
		{name: "**squall replay**, one processor", log: nginx, command: replay, env: one, counted: counted},
		{name: "**squall replay**", log: nginx, command: replay, counted: counted},
		{name: "GoAccess, a report", log: few, command: []string{"goaccess", "LOG", "--log-format=COMBINED", "--no-global-config", "-o", filepath.Join(programs, "report.json")}},
		{name: "mtail, requests by method and status", log: few, command: []string{"mtail", "-one_shot", "-logtostderr", "-progs", programs, "-logs", "LOG"}},
		{name: "fail2ban-regex, addresses of 404", log: fewer, command: []string{"fail2ban-regex", "LOG", `^<HOST> \S+ \S+ \[\] "[^"]*" 404 `}},
		{name: "`zcat`, ALB", log: packed, command: []string{"sh", "-c", "zcat LOG/*.gz | cat >/dev/null"}},
		{name: "**squall replay**, ALB, .gz", log: packed, command: replay, counted: counted},
		{name: "**squall replay**, ALB, one processor", log: alb, command: replay, env: one, counted: counted},
	}
	for _, format := range []string{"nginx_extended", "traefik_json", "caddy_json", "envoy_json"} {
		list = append(list, &peer{name: "**squall replay**, " + format + ", one processor", log: simulatePeerLog(t, format, 4), command: replay, env: one, counted: counted})
	}
	return slices.DeleteFunc(list, func(p *peer) bool {
		_, err := exec.LookPath(p.command[0])
		if err != nil {
			t.Logf("%s: %v", p.name, err)
		}
		return err != nil
	})
}

// TestPeers (make bench-peers) prints what squall and its peers need for the same log, as whole programs. It judges
// ratios of one run alone: seconds are the machine's.
func TestPeers(t *testing.T) {
	list := peers(t)
	for range peerRounds {
		for _, p := range list {
			p.run(t)
		}
	}
	of := map[string]*peer{}
	for _, p := range list {
		of[p.name] = p
	}
	mawk := of["mawk, requests by method and status"]
	fmt.Printf("%d processors, %s\n\n| program | bytes a line | CPU-s for a million lines | thousand lines/s | RSS MiB | CPU, mawk = 1 |\n|---|---|---|---|---|---|\n",
		runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly))
	for _, p := range list {
		ratio := "–"
		if mawk != nil {
			ratio = fmt.Sprintf("%.2f", p.cpu()/mawk.cpu())
		}
		fmt.Printf("| %s | %d | %.2f | %.0f | %.0f | %s |\n", p.name, p.log.bytes/int64(p.log.lines), p.cpu(),
			float64(p.log.lines)/p.wall()/1000, p.rss(), ratio)
	}
	one, all := of["**squall replay**, one processor"], of["**squall replay**"]
	if mawk != nil && one.cpu() > 12*mawk.cpu() {
		t.Errorf("replaying costs %.1f times what counting with mawk does", one.cpu()/mawk.cpu())
	}
	fmt.Printf("\nsquall on all processors is %.2f times as fast as on one.\n", one.wall()/all.wall())
	if goaccess := of["GoAccess, a report"]; goaccess != nil && one.cpu() > goaccess.cpu()/2 {
		t.Errorf("replaying costs %.2f s for a million lines, GoAccess %.2f", one.cpu(), goaccess.cpu())
	}
}

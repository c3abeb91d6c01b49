package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// tunedBy runs `squall tune --json`.
func tunedBy(t *testing.T, args ...string) (x tuned, text string) {
	t.Helper()
	text, said, err := execute(t.Context(), strings.NewReader(""), append([]string{"tune", "--json"}, args...)...)
	if err != nil {
		t.Fatalf("tune %v: %v\n%s", args, err, said)
	}
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return x, text
}

// accepted runs `squall check` on a configuration with a proposal pasted into it.
func accepted(t *testing.T, proposal string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "squall.yaml")
	write(t, file, "sources: [{type: stdin}]\n"+proposal)
	if _, said, err := execute(t.Context(), nil, "check", "--config", file); err != nil {
		t.Errorf("squall check: %v\n%s\n%s", err, said, proposal)
	}
}

// TestTuneAgents: of three days with a class of pupils under one agent and a scanner under a browser's, the limit for an
// agent lies over the class and below the scanner, and no agent of people is above it; whatever the numbers are.
func TestTuneAgents(t *testing.T) {
	for _, row := range []struct {
		options simulate.Options
		class   int
		scanner float64 // times as many
	}{
		{simulate.Options{Format: "nginx_extended", Seed: 1}, 111, 1},
		{simulate.Options{Format: "alb", Seed: 2, Host: "kiosk.example.net"}, 151, 0.7},
	} {
		t.Run(fmt.Sprintf("%s seed %d", row.options.Format, row.options.Seed), func(t *testing.T) {
			o := row.options
			o.Scenario = scenario(t, "S05")
			s := &o.Scenario // a tenth of the month
			s.Duration, s.Sites = s.Duration/10, slices.Clone(s.Sites)
			site := &s.Sites[0]
			site.Storms = slices.Clone(site.Storms)
			for i := range site.Storms {
				site.Storms[i].At /= 10
				if i > 0 {
					site.Storms[i].Count = int(float64(site.Storms[i].Count) * row.scanner)
				}
			}
			site.Storms[0].Count = row.class
			site.Organic.Agents, site.Organic.Visitors, site.Organic.PerSecond = 368, 900, 0.2
			path, _ := simulated(t, o)
			x, first := tunedBy(t, "--workers", "25", path)
			got := x.Sites[0]
			if n := got.Agents.Distinct; n < 365 || n > 375 || got.Agents.Approximate {
				t.Errorf("%d agents", n)
			}
			limit := got.Throttle
			if limit == nil || limit.PeopleMost < uint64(row.class)*97/100 || limit.PeopleMost > uint64(row.class)+3 {
				t.Fatalf("the busiest minute of people: %+v", limit)
			}
			if peak := float64(limit.ScannerMost); peak < 1300*row.scanner || limit.PerMinute < 1.5*float64(row.class) || limit.PerMinute >= peak || limit.PeopleReached != 0 {
				t.Errorf("the limit: %+v", limit)
			}
			if limit.Margin < 1.5 || limit.Margin > 2 {
				t.Errorf("the margin: %+v", limit)
			}
			if row.class == 111 {
				check(t, "limit", limit.PerMinute, 200)
			}
			if len(got.Agents.Scanners) != 1 || !strings.Contains(got.Agents.People[0].Agent, "iPad") || got.Agents.People[0].At == nil {
				t.Errorf("agents: %+v", got.Agents)
			}
			if x.Then.Page != 0 || x.Then.Warning != 3 || x.Then.List[0].Alert != "AgentFlood" {
				t.Errorf("with the proposal: %+v", x.Then)
			}
			accepted(t, x.Config)
			if _, again := tunedBy(t, "--workers", "25", path); again != first {
				t.Error("the same history gives another text")
			}
		})
	}
}

// TestTuneRaisesWhatIsTooNear: a site on which clients leave all day, without anybody being worse off for it, gets a
// threshold above that, and what was paged with the old one is not with the new.
func TestTuneRaisesWhatIsTooNear(t *testing.T) {
	var log strings.Builder
	at := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
	for i := range 3 * 60 * 30 {
		now := at.Add(time.Duration(i) * 2 * time.Second)
		status, took := 200, "0.040"
		if i%4 == 0 { // 7 or 8 a minute, of 30
			status, took = 499, "0.900"
		}
		fmt.Fprintf(&log, "198.51.100.%d - - [%s] \"GET /poll/%d HTTP/1.1\" %d 120 \"-\" \"Mozilla/5.0 (X11) a%d\" rt=%s uct=0.000 uht=%s urt=%s host=poll.example\n",
			i%200, now.Format("02/Jan/2006:15:04:05 -0700"), i%50, status, i%20, took, took, took)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "access.log")
	write(t, path, log.String())
	config := filepath.Join(dir, "squall.yaml")
	write(t, config, "sources: [{type: stdin}]\nsites:\n  - name: poll.example\n    detectors: {client_abandon: {per_minute: 5}, latency: {p99: 500ms}}\n")
	args := []string{"--config", config, "--log-format", `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" rt=$request_time uct=$upstream_connect_time uht=$upstream_header_time urt=$upstream_response_time host=$host`, path}
	x, text := tunedBy(t, args...)
	limits := map[string]tunedLimit{}
	for _, l := range x.Sites[0].Limits {
		limits[l.Detector] = l
	}
	if x.Now.Page == 0 || !x.Sites[0].EverHurt {
		t.Errorf("nothing pages as it is: %s", text)
	}
	if l := limits["client_abandon"]; l.Usual < 7 || l.Usual > 9 || l.Proposed < 1.5*l.Usual || l.Proposed > 2*l.Usual {
		t.Errorf("threshold: %+v", l)
	}
	if x.Then.Page != 0 {
		t.Errorf("with the proposal: %+v", x.Then)
	}
	accepted(t, x.Config)
}

// TestTuneUsage: what it cannot read twice, and hostile names.
func TestTuneUsage(t *testing.T) {
	for _, args := range [][]string{{"tune"}, {"tune", "-"}, {"tune", "--json", "--yaml", "x"}, {"tune", "--progress", "x", "x"}} {
		if _, _, err := execute(t.Context(), strings.NewReader(""), args...); exitCode(err) != exitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
	path := hostileLog(t)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.ReplaceAll(string(text), "shop.example", "x\\x22]:&*{}#.example"))
	for _, form := range []string{"--json=false", "--json", "--yaml"} {
		out, said, err := execute(t.Context(), strings.NewReader(""), "tune", form, path)
		if err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		if !plain(out) {
			t.Errorf("%s: a hidden character", form)
		}
		if form == "--yaml" {
			accepted(t, out)
		}
	}
	if alerts.Escape(string(text)) == string(text) {
		t.Error("the log is not hostile")
	}
}

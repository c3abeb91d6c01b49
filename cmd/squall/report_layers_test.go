package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts/report"
	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// joinedReport is the part of a report that is about edge and origin.
type joinedReport struct {
	Verdict struct {
		Outcome  report.Outcome
		Sentence string
	}
	Sites []struct {
		Requests  map[string][]uint64
		BusyUpper []*float64 `json:"busy_workers_upper"`
	}
	Layers []struct {
		Edge    uint64  `json:"edge_requests"`
		Offload float64 `json:"offload_ratio"`
		Peak    struct {
			Edge    float64 `json:"edge_per_second"`
			Origin  float64 `json:"origin_per_second"`
			Offload float64 `json:"offload_ratio"`
		} `json:"busiest_minute"`
		Clock struct {
			Offset *float64 `json:"offset_seconds"`
			Pairs  int      `json:"requests_in_both"`
		}
		Says []string
	}
}

func layersOf(t *testing.T, args ...string) (r joinedReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(reported(t, "report-json", args...)), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Layers) != 1 {
		t.Fatalf("edge and origin are joined for %d sites", len(r.Layers))
	}
	return r
}

func (r *joinedReport) busiest() (most float64) {
	for _, v := range r.Sites[0].BusyUpper {
		if v != nil {
			most = max(most, *v)
		}
	}
	return most
}

func (r *joinedReport) requests() (sum uint64) {
	for _, list := range r.Sites[0].Requests {
		for _, n := range list {
			sum += n
		}
	}
	return sum
}

// shifted moves the times of a CloudFront log.
func shifted(t *testing.T, file string, by time.Duration) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for line := range strings.Lines(string(text)) {
		if at, err := time.Parse("2006-01-02\t15:04:05", line[:min(len(line), 19)]); err == nil {
			line = at.Add(by).Format("2006-01-02\t15:04:05") + line[19:]
		}
		out.WriteString(line)
	}
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestEdgeAndOrigin: what the edge keeps from the origin, and how far their clocks are apart.
func TestEdgeAndOrigin(t *testing.T) {
	o := simulate.Options{Scenario: scenario(t, "S10"), Format: "nginx_extended", Seed: 17}
	o.Scenario.Duration = 9 * time.Minute
	s := &o.Scenario.Sites[0]
	s.Storms = slices.Clone(s.Storms)
	for j := range s.Storms {
		s.Storms[j].At, s.Storms[j].For, s.Storms[j].Count = 4*time.Minute, time.Minute+20*time.Second, s.Storms[j].Count*4/9
	}
	dir, _ := written(t, o)
	args := []string{"--config", known(t, o, 120, ""), dir}
	r := layersOf(t, args...)
	l := &r.Layers[0]
	check(t, "outcome", r.Verdict.Outcome, report.Calm)
	between(t, "offload of the busiest minute", &l.Peak.Offload, 0.78, 0.80)
	between(t, "requests a second at the edge", &l.Peak.Edge, 415, 431)
	between(t, "at the origin", &l.Peak.Origin, 84, 91)
	if l.Clock.Offset == nil || *l.Clock.Offset < -0.6 || *l.Clock.Offset > 0.6 || strings.Contains(strings.Join(l.Says, " "), "clock") {
		t.Errorf("one clock: %+v %q", l.Clock, l.Says)
	}
	var alone joinedReport // the origin's log: that the edge's is read too makes its workers no busier, and no request two
	if err := json.Unmarshal([]byte(reported(t, "report-json", args[0], args[1], filepath.Join(dir, "access.log"))), &alone); err != nil {
		t.Fatal(err)
	}
	if got, want := r.busiest(), alone.busiest(); got != want {
		t.Errorf("%g workers busy by both logs, %g by the origin's", got, want)
	}
	check(t, "requests", r.requests(), l.Edge)
	if !strings.Contains(r.Verdict.Sentence, "The edge kept") {
		t.Errorf("%s", r.Verdict.Sentence)
	}
	shifted(t, filepath.Join(dir, "edge.log"), 40*time.Second)
	r = layersOf(t, args...)
	if l = &r.Layers[0]; l.Clock.Offset == nil || *l.Clock.Offset < 39 || *l.Clock.Offset > 41 || !strings.Contains(strings.Join(l.Says, " "), "s ahead of the origin's") {
		t.Errorf("two clocks: %+v %q", l.Clock, l.Says)
	}
}

// TestAbsorbedStormIsTold: a firewall's log and the origin's tell that the storm never came through.
func TestAbsorbedStormIsTold(t *testing.T) {
	o := simulate.Options{Scenario: scenario(t, "S04"), Format: "nginx_extended", Seed: 4}
	s := &o.Scenario
	s.Duration, s.Sites = 40*time.Minute, slices.Clone(s.Sites)
	s.Sites[0].Storms = slices.Clone(s.Sites[0].Storms)
	rest, blast := &s.Sites[0].Storms[0], &s.Sites[0].Storms[1]
	rest.For, rest.Count, blast.At = s.Duration, 70, 25*time.Minute
	r := layersOf(t, reportArgs(t, o)...)
	if says := strings.Join(r.Layers[0].Says, " "); !strings.Contains(says, "The edge absorbed HEAD /checkout/{int}") || !strings.Contains(says, "the origin's log has 0") {
		t.Errorf("%q", says)
	}
	if v := r.Verdict; v.Outcome == report.Hurt || !strings.Contains(v.Sentence, "did not reach the origin") && !strings.Contains(v.Sentence, "answered before the origin") {
		t.Errorf("%+v", v)
	}
}

// TestReportDoesNotHangOnFiles: a balancer's objects of five minutes, in no order and one of them twice, give the report of
// its one log.
func TestReportDoesNotHangOnFiles(t *testing.T) {
	path, _ := simulated(t, simulate.Options{Scenario: scenario(t, "S01"), Format: "alb", Seed: 21})
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	random, parts := rand.New(rand.NewPCG(1, 2)), map[string][]string{}
	for line := range strings.Lines(string(text)) {
		at := strings.SplitN(line, " ", 3)[1] // 2026-06-02T09:05:00.000000Z
		period := at[:15] + string('0'+(at[15]-'0')/5*5)
		parts[period] = append(parts[period], line)
	}
	dir := t.TempDir()
	for _, period := range slices.Sorted(maps.Keys(parts)) {
		lines := parts[period]
		random.Shuffle(len(lines), func(i, k int) { lines[i], lines[k] = lines[k], lines[i] })
		name := fmt.Sprintf("object-%x.log", random.Uint64())
		write(t, filepath.Join(dir, name), strings.Join(lines, ""))
		if strings.HasSuffix(period, "10") {
			write(t, filepath.Join(dir, "again-"+name), strings.Join(lines, ""))
		}
	}
	for _, form := range []string{"report-json", "html"} {
		if a, b := reported(t, form, "--workers", "25", path), reported(t, form, "--workers", "25", dir); a != b {
			t.Errorf("%s: the report of %d objects is another than that of one log", form, len(parts))
		}
	}
}

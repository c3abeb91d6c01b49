package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// evaluationScale is how many storms and how many quiet days are looked at.
type evaluationScale struct {
	storms, days int
	rate         float64 // of the quiet days; 0: as they are
}

// A stormKind is a family of storms of the evaluation.
type stormKind string

const (
	headKind  stormKind = "HEAD on one to three paths"
	agentKind stormKind = "GET under one agent"
	crawlKind stormKind = "GET of costly pages, agents rotate"
)

// logUniform draws from a range, evenly in its logarithm.
func logUniform(rng *rand.Rand, low, high float64) float64 {
	return low * math.Pow(high/low, rng.Float64())
}

// randomStorm is a storm of random size, path, agent and address spread, on a pool of random size, with random
// patience, in a random format. From half of what the pool can carry to six times as much.
func randomStorm(t testing.TB, seed uint64) (stormKind, simulate.Options) {
	rng := rand.New(rand.NewPCG(seed, 20260901))
	kind := []stormKind{headKind, headKind, headKind, agentKind, crawlKind}[rng.IntN(5)]
	s := scenario(t, "S01")
	site := &s.Sites[0]
	workers := 5 + rng.IntN(46)
	site.Pool.Workers, site.Organic.Assets = workers, 0.1
	patience := time.Duration(logUniform(rng, 6, 25) * float64(time.Second))
	site.Organic.Patience = simulate.Patience{Mean: time.Duration(logUniform(rng, 6, 12) * float64(time.Second)), Spread: time.Second}
	capacity := float64(workers) / 0.25 // pages a second
	site.Organic.PerSecond = capacity * (0.02 + 0.05*rng.Float64())

	service := time.Duration(logUniform(rng, 0.15, 1.5) * float64(time.Second))
	if kind == crawlKind {
		service = time.Duration(logUniform(rng, 2, 6) * float64(time.Second))
	}
	perSecond := logUniform(rng, 0.5, 6) * float64(workers) / service.Seconds()
	perSecond = min(perSecond, 120)
	length := time.Duration(logUniform(rng, 60, 420) * float64(time.Second))
	paths := []string{"/checkout/{id}", "/unsubscribe/{id}", "/e/{id}/open", "/feeds/{name}.xml", "/a/{id}/b/{name}", "/news/{name}-{id}"}
	rng.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	var routes []simulate.Route
	for _, p := range paths[:1+rng.IntN(3)] {
		routes = append(routes, simulate.Route{
			Template: p, Weight: 0.2 + rng.Float64(), URLs: int(logUniform(rng, 1, 500)), Bytes: 20000,
			Service: simulate.Service{Mean: service, Spread: 0.1 + 0.4*rng.Float64()},
		})
	}
	storm := simulate.Storm{
		Method: "GET", At: 12 * time.Minute, For: length, Count: int(perSecond * length.Seconds()), Routes: routes,
		Shape:     []simulate.Shape{simulate.Flat, simulate.Flat, simulate.Ramp, simulate.Blast}[rng.IntN(4)],
		Addresses: int(logUniform(rng, 5, 5000)), Agents: int(logUniform(rng, 1, 300)), Patience: simulate.Patience{Mean: patience, Spread: patience / 5},
	}
	switch kind {
	case headKind:
		storm.Method = "HEAD"
	case agentKind:
		storm.Agents = 1
	case crawlKind:
		storm.Agents = 300 + rng.IntN(2000)
	}
	site.Storms = []simulate.Storm{storm}
	s.Duration = 12*time.Minute + length + 6*time.Minute
	formats := []string{"nginx_extended", "nginx_extended", "alb", "ingress_nginx", "haproxy_http", "traefik_json", "envoy_json"}
	return kind, simulate.Options{
		Scenario: s, Format: formats[rng.IntN(len(formats))], Seed: seed, Host: fmt.Sprintf("s%d.example", seed),
		Start: time.Date(2026, time.Month(1+rng.IntN(12)), 1+rng.IntN(28), rng.IntN(24), rng.IntN(60), rng.IntN(60), 0, time.UTC),
	}
}

// The floor: what hurts fewer is not meant to wake anybody. It is client_abandon's threshold, for two minutes, since
// the rules of storms without a sign of their own wait for one or two.
const (
	floorAbandoned = 20   // a minute
	floorRatio     = 0.05 // of the requests
	floorMinutes   = 2    // whole ones, in a row
)

// hurts tells whether clients were hurt above the floor.
func hurts(s *simulate.SiteTruth) bool {
	row := 0
	for _, m := range s.Minutes {
		if m.Abandoned < floorAbandoned || float64(m.Abandoned) < floorRatio*float64(m.Lines) {
			row = 0
			continue
		}
		if row++; row > floorMinutes {
			return true
		}
	}
	return false
}

// An outcome is what was said of one storm.
type outcome struct {
	kind       stormKind
	seed       uint64
	hurt, some bool // above the floor; at all
	pinned     bool // the pool was as good as used up: saturation's threshold, by the truth
	paged      bool
	delay      time.Duration // from the first client that was hurt to the first page
	early      int           // pages where nobody was hurt
}

func evaluate(t *testing.T, seed uint64) outcome {
	kind, o := randomStorm(t, seed)
	path, truth := simulated(t, o)
	s := &truth.Sites[0]
	args := []string{"--workers", strconv.Itoa(s.PoolWorkers), path}
	if !logsHost[truth.Format] {
		args = append([]string{"--site", s.Site}, args...)
	}
	v := replayed(t, args...)
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
	out := outcome{kind: kind, seed: seed, hurt: hurts(s), some: s.FirstHurt != nil, pinned: s.PeakSystem >= 0.75*float64(s.PoolWorkers)}
	for _, p := range v.pages() {
		switch {
		case !out.some:
			out.early++
		case !out.paged:
			out.paged, out.delay = true, p.At.Sub(*s.FirstHurt)
		}
	}
	return out
}

// quantile is the nearest rank.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// row is a line of the table.
func row(name string, all []outcome) string {
	var delays []time.Duration
	hurt, missed, unhurt, before, wrong := 0, 0, 0, 0, 0
	for _, o := range all {
		switch {
		case o.hurt:
			if hurt++; !o.paged {
				missed++
				continue
			}
			delays = append(delays, o.delay)
		case !o.some:
			unhurt++
		}
		switch {
		case o.early > 0 && o.pinned:
			before++
		case o.early > 0:
			wrong++
		}
	}
	slices.Sort(delays)
	return fmt.Sprintf("| %s | %d | %d | %d | %.0f s | %.0f s | %d | %d | %d |\n", name, len(all), hurt, missed,
		math.Round(quantile(delays, 0.5).Seconds())+0, math.Round(quantile(delays, 0.95).Seconds())+0, unhurt, before, wrong)
}

// TestEvaluation shows how well storms are detected (make eval): none that hurts is missed, a page comes soon after the
// first client was hurt, and none where nobody gave up and the pool had room.
func TestEvaluation(t *testing.T) {
	outcomes := make([]outcome, evaluated.storms)
	var g errgroup.Group
	g.SetLimit(2)
	for i := range outcomes {
		g.Go(func() error {
			outcomes[i] = evaluate(t, uint64(1+i))
			return nil
		})
	}
	quiet := quietMonth(t)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| storm | simulated | hurt clients | missed | delay, median | p95 | nobody gave up | paged, pool used up | paged for nothing |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, kind := range []stormKind{headKind, agentKind, crawlKind} {
		table.WriteString(row(string(kind), slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return o.kind != kind })))
	}
	table.WriteString(row("all", outcomes))
	for _, o := range outcomes {
		switch {
		case o.hurt && !o.paged:
			t.Errorf("the storm of seed %d, %s, hurt clients, and nobody was paged", o.seed, o.kind)
		case o.early > 0 && !o.pinned:
			t.Errorf("the storm of seed %d, %s, hurt nobody, and %d pages came", o.seed, o.kind, o.early)
		}
	}
	fmt.Printf("%s\n%s\n", &table, quiet)
}

// quietMonth replays ordinary days: nobody is paged.
func quietMonth(t *testing.T) string {
	o := simulate.Options{Scenario: simulate.Quiet(evaluated.days), Format: "nginx_extended", Seed: 7, Rate: evaluated.rate}
	path := filepath.Join(t.TempDir(), "quiet.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	truth, err := simulate.Run(t.Context(), o, f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if s := &truth.Sites[0]; s.FirstHurt != nil {
		t.Errorf("a client was hurt at %s: that is no quiet day", s.FirstHurt)
	}
	v := replayed(t, "--workers", strconv.Itoa(truth.Sites[0].PoolWorkers), path)
	if pages := v.pages(); len(pages) > 0 {
		t.Errorf("%d quiet days page %d times: %+v", evaluated.days, len(pages), pages[0])
	}
	counts := map[string]int{}
	for _, a := range v.alerts {
		if a.State == string(alerts.Firing) {
			counts[string(a.Severity)+" "+a.Alert]++
		}
	}
	halves := map[string]int{}
	for _, d := range v.detections {
		if d.State == "active" {
			halves[d.Detection]++
		}
	}
	return fmt.Sprintf("%d quiet days, %d lines: %d pages; alerts %v; detections %v", evaluated.days, truth.Lines, len(v.pages()), counts, halves)
}

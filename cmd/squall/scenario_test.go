package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors"
)

// A transition is a line of `replay --json` about an alert or, with --detections, a detector.
type transition struct {
	At        time.Time         `json:"at"`
	Alert     string            `json:"alert"`
	Detection string            `json:"detection"`
	State     string            `json:"state"`
	Severity  alerts.Severity   `json:"severity"`
	Labels    map[string]string `json:"labels"`
	StartsAt  time.Time         `json:"starts_at"`
	EndsAt    *time.Time        `json:"ends_at"`
	Cause     alerts.Cause      `json:"cause"`
	Incident  toldIncident      `json:"incident"`
	Advice    []alerts.Advice   `json:"advice"`
	Evidence  struct {
		Requests             float64        `json:"requests"`
		Method               string         `json:"method"`
		Route                string         `json:"route"`
		Status               map[string]int `json:"status"`
		Errors5xx            *float64       `json:"errors_5xx"`
		ReachedUpstreamRatio *float64       `json:"reached_upstream_ratio"`
		WorkerSecondsLower   *float64       `json:"worker_seconds_lower"`
		WorkerSecondsUpper   *float64       `json:"worker_seconds_upper"`
		WorkerSecondsShare   *float64       `json:"worker_seconds_share"`

		RequestsPerMinute          *float64       `json:"requests_per_minute"`
		BaselinePerMinute          *float64       `json:"baseline_per_minute"`
		BaselineRatio              *float64       `json:"baseline_ratio"`
		RequestsPerClientPerMinute *float64       `json:"requests_per_client_per_minute"`
		DistinctClients            *float64       `json:"distinct_clients"`
		DistinctAgents             *float64       `json:"distinct_agents"`
		DistinctRoutes             *float64       `json:"distinct_routes"`
		TTLSeconds                 *float64       `json:"ttl_seconds"`
		PeriodSeconds              *float64       `json:"period_seconds"`
		MissedURLs                 *float64       `json:"missed_urls"`
		MissShare                  *float64       `json:"miss_share"`
		RepeatFactor               *float64       `json:"repeat_factor"`
		Retries                    *float64       `json:"retries"`
		FanOut                     *float64       `json:"fan_out"`
		LimitedOwn                 *float64       `json:"limited_own"`
		LimitedAllowed             *float64       `json:"limited_allowed"`
		Restarts                   *float64       `json:"restarts"`
		OOMKilled                  *float64       `json:"oom_killed"`
		Nodes                      *float64       `json:"nodes"`
		Namespaces                 *float64       `json:"namespaces"`
		Reasons                    map[string]int `json:"reasons"`
		Probe                      string         `json:"probe"`
		TopRoutes                  []struct {
			Key           string
			Count         float64
			BaselineRatio *float64 `json:"baseline_ratio"`
		} `json:"top_routes"`
		Zones          []struct{ Key string }    `json:"zones"`
		Discriminators []detectors.Discriminator `json:"discriminators"`

		RulesCaughtLower *float64 `json:"rules_caught_lower"`
		RulesCaughtUpper *float64 `json:"rules_caught_upper"`
	} `json:"evidence"`
}

// A verdict is all that a replay said.
type verdict struct {
	alerts, detections []transition
	summary            summary
	text               string
}

// of gives the transitions of an alert.
func (v *verdict) of(name string) []transition {
	return slices.Collect(func(yield func(transition) bool) {
		for _, a := range v.alerts {
			if a.Alert == name && !yield(a) {
				return
			}
		}
	})
}

// pages gives the alerts that paged, as they began.
func (v *verdict) pages() []transition {
	return slices.DeleteFunc(slices.Clone(v.alerts), func(a transition) bool {
		return a.Severity != alerts.Page || a.State != string(alerts.Firing)
	})
}

// execute runs a command as main does, in this process.
func execute(ctx context.Context, stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	var out, told bytes.Buffer
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(&out)
	root.SetErr(&told)
	err = root.ExecuteContext(ctx)
	return out.String(), told.String(), err
}

// replayed runs `squall replay --json - --detections` and reads what it said.
func replayed(t testing.TB, args ...string) *verdict {
	t.Helper()
	out, told, err := execute(t.Context(), strings.NewReader(""), append([]string{"replay", "--json", "-", "--detections"}, args...)...)
	if err != nil {
		t.Fatalf("replay %v: %v\n%s", args, err, told)
	}
	v := &verdict{text: out}
	for line := range strings.Lines(out) {
		var s struct{ Summary *summary }
		var x transition
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		switch {
		case s.Summary != nil:
			v.summary = *s.Summary
		case x.Alert != "":
			v.alerts = append(v.alerts, x)
		default:
			v.detections = append(v.detections, x)
		}
	}
	return v
}

// simulated writes a scenario's log into a file.
func simulated(t testing.TB, o simulate.Options) (path string, truth *simulate.Truth) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "access.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	truth, err = simulate.Run(t.Context(), o, f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path, truth
}

func scenario(t testing.TB, name string) simulate.Scenario {
	t.Helper()
	s, err := simulate.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// variants are runs in which nothing but the shape of the storm is as in the example: other hosts, paths, pools,
// rates, zones, patience and times of the day.
func variants(short bool) []simulate.Options {
	all := []simulate.Options{
		{Format: "nginx_extended", Seed: 1},
		{
			Format: "alb", Seed: 2, Host: "a.example.net", Path: "/e/{id}/open", Pool: 11, Rate: 0.44,
			Start: time.Date(2027, 12, 31, 23, 51, 7, 0, time.UTC),
		},
		{
			Format: "ingress_nginx", Seed: 3, Host: "tickets.example.org", Path: "/unsubscribe/{id}", Pool: 40, Rate: 1.6,
			Patience: 13 * time.Second, PeoplePatience: 9 * time.Second, Zone: time.FixedZone("-0330", -12600),
		},
		{
			Format: "nginx", Seed: 4, Host: "mail.example.com", Path: "/newsletter/{id}/confirm", Pool: 16, Rate: 0.7,
			Patience: 7 * time.Second, PeoplePatience: 6 * time.Second, Zone: time.FixedZone("+0545", 20700),
			Start: time.Date(2026, 2, 28, 23, 40, 3, 0, time.UTC),
		},
	}
	if short {
		return all[:2]
	}
	return append(all,
		simulate.Options{Format: "alb", Seed: 5, Pool: 30, Rate: 1.3, Patience: 6 * time.Second},
		simulate.Options{Format: "nginx_extended", Seed: 6, Path: "/a/{id}/b/{id}", Pool: 8, Rate: 0.35, Zone: time.FixedZone("+1400", 50400)},
	)
}

// logsHost tells the formats that log which host was asked for; logsTimes those that log how long it took;
// logsUpstream those that tell an answer of nginx from one of the application.
var (
	logsHost     = map[string]bool{"nginx_extended": true, "alb": true}
	logsTimes    = map[string]bool{"nginx_extended": true, "alb": true, "ingress_nginx": true}
	logsUpstream = map[string]bool{"nginx_extended": true, "ingress_nginx": true}
)

// judged simulates and replays one variant of a scenario.
func judged(t *testing.T, o simulate.Options) (*verdict, *simulate.SiteTruth) {
	t.Helper()
	path, truth := simulated(t, o)
	s := &truth.Sites[0]
	args := []string{"--workers", strconv.Itoa(s.PoolWorkers), path}
	if !logsHost[truth.Format] {
		args = append([]string{"--site", s.Site}, args...)
	}
	v := replayed(t, args...)
	if v.summary.Lines != uint64(truth.Lines) || v.summary.Parsed != uint64(truth.Lines) || v.summary.Late != 0 {
		t.Errorf("%d lines were written; the summary says %+v", truth.Lines, v.summary)
	}
	if first, err := time.Parse(time.RFC3339Nano, *v.summary.First); err != nil || first.Sub(truth.FirstLine).Abs() > time.Second {
		t.Errorf("the first line is of %v, not of %s (%v)", truth.FirstLine, *v.summary.First, err)
	}
	if last, err := time.Parse(time.RFC3339Nano, *v.summary.Last); err != nil || last.Sub(truth.LastLine).Abs() > time.Second {
		t.Errorf("the last line is of %v, not of %s (%v)", truth.LastLine, *v.summary.Last, err)
	}
	for _, a := range v.alerts {
		check(t, "labels of "+a.Alert, fmt.Sprint(a.Labels), fmt.Sprint(map[string]string{"site": s.Site}))
	}
	if at := strings.Index(strings.ToLower(v.text), "attack"); at >= 0 {
		t.Errorf("a storm of scanners is called an attack: …%s…", v.text[max(0, at-80):at+80])
	}
	return v, s
}

const onePane = 10 * time.Second

// once checks that an alert began and ended once, and gives both.
func once(t *testing.T, v *verdict, name string) (firing, resolved transition) {
	t.Helper()
	all := v.of(name)
	if len(all) != 2 || all[0].State != string(alerts.Firing) || all[1].State != string(alerts.Resolved) {
		t.Fatalf("%s: want it to begin and end once, got %d transitions: %+v", name, len(all), all)
	}
	return all[0], all[1]
}

// typed is a route of the truth as squall writes it: {id} is a number.
func typed(path string) string { return strings.ReplaceAll(path, "{id}", "{int}") }

func TestFirstIncident(t *testing.T) {
	for _, o := range variants(testing.Short()) {
		t.Run(fmt.Sprintf("%s seed %d", o.Format, o.Seed), func(t *testing.T) {
			o.Scenario = scenario(t, "S01")
			v, s := judged(t, o)
			checkStormTimes(t, v, s)
			firing, resolved := once(t, v, "StormHurting")
			for _, a := range []transition{firing, resolved} {
				checkStormEvidence(t, &a, o.Format, s)
			}
			// The pane in which a storm begins may hold too few of it to belong to it: under 300 a minute.
			logged := s.Requests["HEAD"][200] + s.Requests["HEAD"][460] + s.Requests["HEAD"][499]
			if counted := int(resolved.Evidence.Requests); counted > logged || counted < logged-50 {
				t.Errorf("%d of %d HEADs are in the evidence", counted, logged)
			}
			if o.Format != "nginx" { // without times there is neither saturation nor latency
				once(t, v, "WorkersExhausted")
				once(t, v, "ClientsGivingUp")
			}
		})
	}
}

// checkStormTimes: noticed soon, begun when the storm began, over when the harm was and not much later.
func checkStormTimes(t *testing.T, v *verdict, s *simulate.SiteTruth) {
	t.Helper()
	head, _ := once(t, v, "HeadStorm")
	if d := head.At.Sub(*s.Onset); d > noticeable(s) || d < 0 || head.Severity != alerts.Warning {
		t.Errorf("HeadStorm came as %s %s after the onset", head.Severity, d)
	}
	pages := v.pages()
	if d := pages[0].At.Sub(*s.Onset); d > 90*time.Second || d < 0 {
		t.Errorf("the first page came %s after the onset", d)
	}
	if len(pages) > 3 {
		t.Errorf("%d pages for one storm: %+v", len(pages), pages)
	}
	for _, a := range v.alerts {
		switch {
		case a.Alert == "HeadStorm":
			if d := a.StartsAt.Sub(*s.Onset); d.Abs() > onePane {
				t.Errorf("%s starts %s from the onset", a.Alert, d)
			}
		case a.StartsAt.Before(s.Onset.Add(-onePane)) || a.Severity == alerts.Page && a.StartsAt.After(s.FirstHurt.Add(onePane)):
			t.Errorf("%s starts %s after the onset, and the first client left after %s", a.Alert,
				a.StartsAt.Sub(*s.Onset), s.FirstHurt.Sub(*s.Onset))
		}
		if a.State != string(alerts.Resolved) || a.Severity != alerts.Page {
			continue
		}
		if a.EndsAt.Before(*s.HarmEnd) || a.At.After(s.HarmEnd.Add(5*time.Minute)) {
			t.Errorf("%s ends at %s and was over at %s: the last client gave up at %s", a.Alert, a.EndsAt, a.At, s.HarmEnd)
		}
	}
}

// noticeable is how soon a storm is to be noticed: within 30 s, or, where a small pool answers too few HEADs in
// that time, a pane after the log holds the 300 of the threshold.
func noticeable(s *simulate.SiteTruth) time.Duration {
	const service = 1100 * time.Millisecond
	logged := service + time.Duration(300/float64(s.PoolWorkers)*float64(service))
	return max(30*time.Second, logged+onePane)
}

func checkStormEvidence(t *testing.T, a *transition, format string, s *simulate.SiteTruth) {
	t.Helper()
	e := &a.Evidence
	check(t, "method", e.Method, "HEAD")
	check(t, "route", e.Route, typed(stormRoute(s)))
	if e.Errors5xx == nil || *e.Errors5xx != 0 || slices.ContainsFunc(slices.Collect(maps.Keys(e.Status)), isServerError) {
		t.Errorf("there was no 5xx, and the evidence has %v and %v", e.Errors5xx, e.Status)
	}
	if !logsTimes[format] {
		if e.WorkerSecondsShare != nil || e.WorkerSecondsLower != nil {
			t.Errorf("a log without times gives worker-seconds: %+v", e)
		}
	} else if e.WorkerSecondsShare == nil || *e.WorkerSecondsShare < 0.85 || *e.WorkerSecondsShare > 1 {
		t.Errorf("%s %s holds %v of the worker-seconds", e.Method, e.Route, e.WorkerSecondsShare)
	}
	if len(a.Advice) < 2 || a.Advice[0].Layer != "waf" && a.Advice[0].Layer != "edge" || a.Advice[1].Layer != "nginx" {
		t.Fatalf("advice: %+v", a.Advice)
	}
	for _, x := range a.Advice {
		if !strings.Contains(x.Text, "a per-address limit cannot help") || x.Verify == "" || x.Snippet == "" {
			t.Errorf("advice for %s: %+v", x.Layer, x)
		}
	}
	if !strings.Contains(a.Cause.Text, "a per-address limit cannot help") {
		t.Errorf("cause: %+v", a.Cause)
	}
	if logsTimes[format] && a.Cause.Verdict != alerts.Proven || a.Cause.Verdict == alerts.Undetermined {
		t.Errorf("cause: %+v", a.Cause)
	}
}

func isServerError(status string) bool { return status[0] == '5' }

// stormRoute is the route that got HEADs.
func stormRoute(s *simulate.SiteTruth) string {
	i := slices.IndexFunc(s.WorkerRoutes, func(r *simulate.RouteTruth) bool { return r.Method == "HEAD" })
	return s.WorkerRoutes[i].Route
}

// A site with its routes declared is told by them, whatever stands in their places.
func TestFirstIncidentOnADeclaredRoute(t *testing.T) {
	path, truth := simulated(t, simulate.Options{
		Scenario: scenario(t, "S01"), Format: "nginx_extended", Seed: 9, Host: "www.club.example", Path: "/seat/{name}/hold", Pool: 14, Rate: 0.55,
	})
	config := filepath.Join(t.TempDir(), "squall.yaml")
	text := `
sources: [{type: file, paths: [/var/log/nginx/access.log]}]
sites:
  - name: club
    hosts: [www.club.example]
    pool: {workers: 14}
    routes: ["/seat/{place}/hold"]
    controls: [waf_head_rule]
`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	v := replayed(t, "--config", config, path)
	checkStormTimes(t, v, &truth.Sites[0])
	firing, _ := once(t, v, "StormHurting")
	check(t, "route", firing.Evidence.Route, "/seat/{place}/hold")
	check(t, "labels", fmt.Sprint(firing.Labels), "map[site:club]")
	// The rule that is in place did not stop it: it is named, and nginx comes first.
	check(t, "first layer", firing.Advice[0].Layer, "nginx")
	if !strings.Contains(firing.Advice[1].Text, "waf_head_rule is in place") {
		t.Errorf("advice: %+v", firing.Advice)
	}
}

// TestShortCircuitInPHP: the fix made HEAD cheap, and PHP answers it still: 39 erlang on 25 workers.
func TestShortCircuitInPHP(t *testing.T) {
	for _, o := range variants(testing.Short()) {
		if !logsTimes[o.Format] {
			continue
		}
		t.Run(fmt.Sprintf("%s seed %d", o.Format, o.Seed), func(t *testing.T) {
			o.Scenario = scenario(t, "S02")
			v, s := judged(t, o)
			checkStormTimes(t, v, s)
			firing, resolved := once(t, v, "StormHurting")
			for _, a := range []transition{firing, resolved} {
				if r := a.Evidence.ReachedUpstreamRatio; r == nil || *r != 1 {
					t.Errorf("every HEAD reached an upstream, and the evidence says %v", r)
				}
				if !strings.Contains(a.Cause.Text, "100 % of them reached an upstream") {
					t.Errorf("cause: %+v", a.Cause)
				}
			}
		})
	}
}

// TestShortCircuitInNginx: a storm that never reaches the application is worth a note.
func TestShortCircuitInNginx(t *testing.T) {
	for _, o := range variants(testing.Short()) {
		if !logsUpstream[o.Format] {
			continue
		}
		t.Run(fmt.Sprintf("%s seed %d", o.Format, o.Seed), func(t *testing.T) {
			o.Scenario = scenario(t, "S03")
			if o.Rate == 0 || o.Rate > 1 {
				o.Rate = 0.3
			}
			v, s := judged(t, o)
			firing, resolved := once(t, v, "HeadStorm")
			check(t, "pages", len(v.pages()), 0)
			for _, a := range []transition{firing, resolved} {
				e := &a.Evidence
				check(t, "severity", a.Severity, alerts.Info)
				if e.ReachedUpstreamRatio == nil || *e.ReachedUpstreamRatio != 0 {
					t.Errorf("no HEAD reached an upstream, and the evidence says %v", e.ReachedUpstreamRatio)
				}
				if e.WorkerSecondsLower == nil || *e.WorkerSecondsLower != 0 || *e.WorkerSecondsUpper != 0 {
					t.Errorf("no worker had anything to do, and the evidence says %v to %v", e.WorkerSecondsLower, e.WorkerSecondsUpper)
				}
			}
			if d := firing.At.Sub(*s.Onset); d > 30*time.Second {
				t.Errorf("HeadStorm came %s after the onset", d)
			}
			check(t, "HEADs counted", int(resolved.Evidence.Requests), s.Requests["HEAD"][200])
		})
	}
}

// TestNoPages: what is big, busy or odd without hurting anybody pages nobody.
func TestNoPages(t *testing.T) {
	for _, o := range []simulate.Options{
		{Scenario: scenario(t, "S09"), Format: "nginx_extended", Seed: 11},
		{Scenario: scenario(t, "S09"), Format: "alb", Seed: 12, Host: "big.example", Pool: 14, Rate: 0.55},
		{Scenario: scenario(t, "uptime_monitor"), Format: "nginx_extended", Seed: 13},
		{Scenario: scenario(t, "uptime_monitor"), Format: "alb", Seed: 14, Host: "b.example"},
		{Scenario: scenario(t, "uptime_monitor"), Format: "nginx", Seed: 15, Zone: time.FixedZone("-0700", -25200)},
		{Scenario: scenario(t, "flash_sale"), Format: "ingress_nginx", Seed: 16, Pool: 13, Rate: 0.5},
		{Scenario: scenario(t, "flash_sale"), Format: "alb", Seed: 17, Rate: 0.3, Pool: 9, Host: "sale.example"},
		{Scenario: shortened(scenario(t, "quiet_day"), 6), Format: "nginx_extended", Seed: 18},
		{Scenario: shortened(scenario(t, "quiet_day"), 12), Format: "alb", Seed: 19, Rate: 0.6, Host: "calm.example"},
		{Scenario: shortened(scenario(t, "quiet_day"), 8), Format: "nginx", Seed: 20, Zone: time.FixedZone("+0900", 32400)},
	} {
		t.Run(fmt.Sprintf("%s %s", o.Scenario.Name, o.Format), func(t *testing.T) {
			v, s := judged(t, o)
			if len(v.alerts) > 0 {
				t.Errorf("%d requests of a quiet site raise %+v", s.Arrivals, v.alerts)
			}
		})
	}
}

// TestStallOfSeconds: everything hangs for some seconds, and whoever waited has left. Nobody is to be woken: it is over.
func TestStallOfSeconds(t *testing.T) {
	for i, hang := range []time.Duration{12 * time.Second, 18 * time.Second} {
		s := shortened(scenario(t, "S01"), 2)
		s.Sites[0].Storms = nil
		s.Sites[0].Slows = []simulate.Slow{{At: 6 * time.Minute, For: hang, Ratio: 1, Hang: true}}
		v, truth := judged(t, simulate.Options{Scenario: s, Format: "nginx_extended", Seed: uint64(24 + i)})
		if truth.FirstHurt == nil || len(v.detections) == 0 {
			t.Fatalf("a stall of %s hurt nobody", hang)
		}
		paged(t, v)
	}
}

// shortened is a scenario in 1/n of its time, with all that happens in it at its place.
func shortened(s simulate.Scenario, n time.Duration) simulate.Scenario {
	s.Duration /= n
	s.Sites = slices.Clone(s.Sites)
	for i := range s.Sites {
		site := &s.Sites[i]
		site.Blips, site.Slows = slices.Clone(site.Blips), slices.Clone(site.Slows)
		for j := range site.Blips {
			site.Blips[j].At /= n
		}
		for j := range site.Slows {
			site.Slows[j].At /= n
		}
		site.Organic.Surges = slices.Clone(site.Organic.Surges)
		for j := range site.Organic.Surges {
			site.Organic.Surges[j].At /= n
			site.Organic.Surges[j].For /= n
		}
	}
	return s
}

// TestHalvesOfTheComposite: five times clients leave and nothing is slow, five times it is slow and nobody
// leaves. Each is recorded; none is a page.
func TestHalvesOfTheComposite(t *testing.T) {
	for _, o := range []simulate.Options{
		{Scenario: shortened(scenario(t, "S11"), 12), Format: "nginx_extended", Seed: 21},
		{Scenario: shortened(scenario(t, "S11"), 24), Format: "alb", Seed: 22, Host: "week.example", Pool: 40},
		{Scenario: shortened(scenario(t, "S11"), 16), Format: "ingress_nginx", Seed: 23, Zone: time.FixedZone("+0200", 7200)},
	} {
		t.Run(o.Format, func(t *testing.T) {
			v, s := judged(t, o)
			if len(v.alerts) > 0 {
				t.Errorf("half of a composite raises %+v", v.alerts)
			}
			days := map[string]map[int]bool{"client_abandon": {}, "latency": {}}
			episodes := map[string]int{}
			for _, d := range v.detections {
				if days[d.Detection] == nil {
					t.Fatalf("%s found something: %+v", d.Detection, d)
				}
				check(t, "site", d.Labels["site"], s.Site)
				if d.State == "active" {
					episodes[d.Detection]++
					days[d.Detection][event(&o.Scenario, d.Detection, d.At)] = true
				}
			}
			check(t, "episodes of client_abandon", episodes["client_abandon"], 5)
			for name, seen := range days {
				if len(seen) != 5 || seen[-1] {
					t.Errorf("%s found the events %v of 5", name, slices.Sorted(maps.Keys(seen)))
				}
			}
		})
	}
}

// event tells which blip or slow time of a scenario a detection belongs to, -1 for none.
func event(s *simulate.Scenario, detector string, at time.Time) int {
	const after = 2 * time.Minute // a window and a pane
	offset := at.Sub(s.Start)
	if detector == "client_abandon" {
		return slices.IndexFunc(s.Sites[0].Blips, func(b simulate.Blip) bool {
			return offset >= b.At && offset <= b.At+b.For+after
		})
	}
	return slices.IndexFunc(s.Sites[0].Slows, func(b simulate.Slow) bool {
		return offset >= b.At && offset <= b.At+b.For+after
	})
}

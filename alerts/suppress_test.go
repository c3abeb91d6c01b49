package alerts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/detectors"
)

func at(seconds int64) *time.Time {
	t := time.Unix(0, epoch+seconds*second).UTC()
	return &t
}

// window is on for the film's first minute: in the panes that end at 10 s to 60 s.
func window(change ...func(*Suppressor)) Config {
	s := Suppressor{Name: "window", From: at(0), For: time.Minute}
	for _, f := range change {
		f(&s)
	}
	return Config{MinFiring: time.Second, Suppressors: []Suppressor{s}}
}

var pageOnLatency = []Rule{{Name: "A", When: "latency", Severity: "page"}}

// An alert that outlasts the window fires at its end, with its true beginning.
func TestHeldBackUntilTheWindowEnds(t *testing.T) {
	f := newFilm(t, pageOnLatency, window())
	f.play(map[string]string{"latency": ".LLLLLLLLL.."})
	f.want("20 suppressed A page 10", "70 firing A page 10", "110 resolved A page 10-110")
	if f.told[0].Suppressed != "window" || f.told[1].Suppressed != "" || f.told[2].Suppressed != "" {
		t.Fatalf("%q %q %q", f.told[0].Suppressed, f.told[1].Suppressed, f.told[2].Suppressed)
	}
}

// An alert that is over within the window is recorded, and never fires: its end needs no minimum time.
func TestOverWithinTheWindow(t *testing.T) {
	c := window()
	c.MinFiring = time.Hour
	registry := prometheus.NewRegistry()
	c.Registerer = registry
	f := newFilm(t, pageOnLatency, c)
	f.play(map[string]string{"latency": ".LL"})
	if len(f.m.Active()) != 0 || len(f.m.Suppressed()) != 1 || f.m.Suppressed()[0].State != Suppressed {
		t.Fatalf("active %v, held %v", f.m.Active(), f.m.Suppressed())
	}
	if got := testutil.ToFloat64(f.m.metrics.suppressed.WithLabelValues("window")); got != 1 {
		t.Fatalf("%v alerts are counted as held back", got)
	}
	f.play(map[string]string{"latency": "......."})
	f.want("20 suppressed A page 10", "40 resolved A page 10-40")
	line := string(AppendJSON(nil, &f.told[1]))
	if !strings.Contains(line, `"state":"resolved","suppressed":"window","severity":"page"`) {
		t.Fatal(line)
	}
	if text := string(AppendText(nil, &f.told[0])); !strings.Contains(text, "SUPPRESSED [page] A") || !strings.Contains(text, "held back by window") {
		t.Fatal(text)
	}
	metrics := f.m.metrics
	for state, want := range map[State]float64{Firing: 0, Suppressed: 1, Resolved: 0} {
		if got := testutil.ToFloat64(metrics.transitions.WithLabelValues(string(state), "page")); got != want {
			t.Errorf("%v transitions to %s are counted, not %v", got, state, want)
		}
	}
	if got := testutil.ToFloat64(metrics.suppressed.WithLabelValues("window")); got != 0 {
		t.Fatalf("%v alerts are still counted as held back", got)
	}
}

// What was told before the window goes on, and its end is told.
func TestToldBeforeTheWindow(t *testing.T) {
	f := newFilm(t, pageOnLatency, window(func(s *Suppressor) { s.From = at(30) }))
	f.play(map[string]string{"latency": "LLLLLL......"})
	f.want("10 firing A page 0", "70 resolved A page 0-70")
	if f.told[1].Suppressed != "" {
		t.Fatal("its end is not told")
	}
}

func TestWaitAfterTheWindow(t *testing.T) {
	wait := window(func(s *Suppressor) { s.Wait = 30 * time.Second })
	f := newFilm(t, pageOnLatency, wait)
	f.play(map[string]string{"latency": "..LLLLLLLLLL"})
	f.want("30 suppressed A page 20", "100 firing A page 20")
	f = newFilm(t, pageOnLatency, wait)
	f.play(map[string]string{"latency": "..LLLLLL....."}) // over at 90: 20 s behind the window
	f.want("30 suppressed A page 20", "90 resolved A page 20-90")
	f = newFilm(t, pageOnLatency, wait)
	f.play(map[string]string{"latency": ".......L"}) // begins behind the window
	f.want("80 firing A page 70")
}

// The window goes on, for what is new as well, while what it holds back does, up to extend.
func TestExtend(t *testing.T) {
	rules := append([]Rule{{Name: "B", When: "saturation", Severity: "page"}}, pageOnLatency...)
	c := window(func(s *Suppressor) { s.Extend = time.Minute })
	f := newFilm(t, rules, c)
	f.play(map[string]string{ // B begins in the extension, and both outlast it: 70 + 60
		"latency":    ".....LLLLLLLLLL",
		"saturation": "........SSSSSSS",
	})
	f.want("60 suppressed A page 50", "90 suppressed B page 80", "130 firing B page 80", "130 firing A page 50")
	f = newFilm(t, rules, c)
	f.play(map[string]string{ // what it held back is over: B is told
		"latency":    ".....LL........",
		"saturation": "..........SSSSS",
	})
	f.want("60 suppressed A page 50", "80 resolved A page 50-80", "110 firing B page 100")
	c.Suppressors[0].Extend = 0
	f = newFilm(t, rules, c)
	f.play(map[string]string{
		"latency":    ".....LLLLLLLLLL",
		"saturation": "........SSSSSSS",
	})
	f.want("60 suppressed A page 50", "70 firing A page 50", "90 firing B page 80")
}

// A window that covers warnings lets the page through that a warning turns into.
func TestRisesOutOfTheWindow(t *testing.T) {
	rules := []Rule{{Name: "A", When: "head_storm", Severity: `saturation ? "page" : "warning"`}}
	tracks := map[string]string{"head_storm": "HHHHH...", "saturation": "..SSS..."}
	f := newFilm(t, rules, window(func(s *Suppressor) { s.Severities = []Severity{Warning} }))
	f.play(tracks)
	f.want("10 suppressed A warning 0", "30 resolved A warning 0-30", "30 firing A page 0", "60 resolved A page 0-60")
	f = newFilm(t, rules, window())
	f.play(tracks)
	f.want("10 suppressed A warning 0", "30 resolved A warning 0-30", "30 suppressed A page 0", "60 resolved A page 0-60")
	// What is told as a warning stays one as long as the page is held back.
	f = newFilm(t, rules, window(func(s *Suppressor) { s.Severities, s.For = []Severity{Page}, 40*time.Second }))
	f.play(tracks)
	f.want("10 firing A warning 0", "50 resolved A warning 0-50", "50 firing A page 0", "60 resolved A page 0-60")
}

func TestSuppressorCovers(t *testing.T) {
	rules := append([]Rule{{Name: "B", When: "saturation", Severity: "warning"}}, pageOnLatency...)
	for name, c := range map[string]struct {
		change func(*Suppressor)
		held   string
	}{
		"all":        {func(*Suppressor) {}, "B A"},
		"alerts":     {func(s *Suppressor) { s.Alerts = []string{"A"} }, "A"},
		"severities": {func(s *Suppressor) { s.Severities = []Severity{Warning, Info} }, "B"},
		"site":       {func(s *Suppressor) { s.Sites = []string{"other.example", "shop.example"} }, "B A"},
		"other site": {func(s *Suppressor) { s.Sites = []string{"other.example"} }, ""},
		"both":       {func(s *Suppressor) { s.Alerts, s.Severities = []string{"A"}, []Severity{Info} }, ""},
	} {
		f := newFilm(t, rules, window(c.change))
		f.pane("latency", "saturation")
		var held []string
		for _, a := range f.m.Suppressed() {
			held = append(held, a.Name)
		}
		if got := strings.Join(held, " "); got != c.held {
			t.Errorf("%s: holds back %q, not %q", name, got, c.held)
		}
		if len(held)+len(f.m.Active()) != 2 {
			t.Errorf("%s: an alert is neither told nor held back", name)
		}
	}
}

// A suppressor with an expression is on while something else explains the alert, of the site or of the cluster.
func TestSuppressedByWhatExplainsIt(t *testing.T) {
	c := Config{MinFiring: time.Second, Suppressors: []Suppressor{{Name: "loop", When: "self_loop or restart_burst"}}}
	f := newFilm(t, pageOnLatency, c)
	f.play(map[string]string{"self_loop": "SSSS....", "latency": ".LLLLLL."})
	f.want("20 suppressed A page 10", "50 firing A page 10", "80 resolved A page 10-80")

	f = newFilm(t, pageOnLatency, c)
	burst := detection("restart_burst", 24)
	burst.Labels = detectors.Labels{{Name: "cluster", Value: "prod"}}
	out := f.m.Evaluate(&detectors.Result{At: epoch + 10*second, Detections: []detectors.Detection{detection("latency", 9), burst}})
	if len(out) != 1 || out[0].State != Suppressed {
		t.Fatalf("%v", out)
	}
}

// Windows are Alertmanager's: by the clock of their place, also where it is put back.
func TestTimeIntervals(t *testing.T) {
	var s Suppressor
	err := yaml.UnmarshalWithOptions([]byte(`
name: nightly
time_intervals:
- times: [{start_time: "02:30", end_time: "04:00"}]
  weekdays: ["saturday:sunday"]
  location: Europe/Berlin
- days_of_month: ["-1"]
  months: ["july:august"]
`), &s, yaml.Strict())
	if err != nil {
		t.Fatal(err)
	}
	c, err := compileSuppressor(s, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"2026-10-24T00:30:00Z": false, // a pane that ends where the window begins
		"2026-10-24T00:30:10Z": true,
		"2026-10-24T02:00:00Z": true,
		"2026-10-24T02:00:10Z": false,
		"2026-10-25T00:45:00Z": true, // 02:45 in summer
		"2026-10-25T01:15:00Z": false,
		"2026-10-25T01:45:00Z": true, // 02:45 again
		"2026-10-26T01:45:00Z": false,
		"2026-07-31T12:00:00Z": true,
		"2026-07-30T12:00:00Z": false,
		"2026-09-30T12:00:00Z": false,
	} {
		now, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.scheduled(now.UnixNano()); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestFaultsOfSuppressors(t *testing.T) {
	for _, c := range []struct {
		s    Suppressor
		want string
	}{
		{Suppressor{Name: "x"}, "when is it on?"},
		{Suppressor{Name: "x\n", When: "latency"}, "name: must be"},
		{Suppressor{Name: "x", When: "latenzy"}, `when: line 1, column 1: unknown detector "latenzy": did you mean "latency"?`},
		{Suppressor{Name: "x", From: at(0)}, "from: has no end"},
		{Suppressor{Name: "x", From: at(0), Until: at(0)}, "until: the window ends before it begins"},
		{Suppressor{Name: "x", Until: at(5), For: time.Second}, "for: is the length"},
		{Suppressor{Name: "x", When: "latency", Alerts: []string{"HeadStrom"}}, `alerts: no rule is named "HeadStrom": did you mean "HeadStorm"?`},
		{Suppressor{Name: "x", When: "latency", Severities: []Severity{"pager"}}, `severities: "pager" is none`},
		{Suppressor{Name: "x", When: "latency", Wait: -1}, "extend, wait and for must not be negative"},
	} {
		err := CheckSuppressors([]Suppressor{c.s}, []string{"HeadStorm"}, detectors.Names())
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("suppressor %q: %s", c.s.Name, c.want)) {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
	two := []Suppressor{{Name: "x", When: "latency"}, {Name: "x", When: "latency"}}
	if err := CheckSuppressors(two, nil, detectors.Names()); err == nil {
		t.Error("two of one name are taken")
	}
}

// A restart before each pane neither loses nor tells what is held back.
func TestRestoreKeepsHoldingBack(t *testing.T) {
	rules := append([]Rule{{Name: "B", When: "saturation", Severity: "page", For: 20 * time.Second}}, pageOnLatency...)
	c := window(func(s *Suppressor) { s.Extend, s.Wait = 40*time.Second, 20*time.Second })
	restartEachPane(t, rules, c, map[string]string{
		"latency":    "..LLLLL.LLLLLLLLLL....",
		"saturation": "....SSSSSSSSS.........",
	}, 6)
}

// A suppressor that is gone after a reload holds nothing back any more.
func TestSuppressorIsGone(t *testing.T) {
	f := newFilm(t, pageOnLatency, window())
	f.play(map[string]string{"latency": ".LL"})
	state, err := f.m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	next := newFilm(t, pageOnLatency, hold(time.Second))
	if err := next.m.Restore(state); err != nil {
		t.Fatal(err)
	}
	if len(next.m.Active()) != 0 || len(next.m.Suppressed()) != 1 {
		t.Fatal("a restored alert that nobody was told of fires")
	}
	next.at, next.active = f.at, f.active
	next.play(map[string]string{"latency": "L.."})
	next.want("40 firing A page 10", "50 resolved A page 10-50")
}

// A storm that was foretold is an info until its campaign is over; what hurts is a page all the same.
func TestCampaign(t *testing.T) {
	rules := []Rule{
		{Name: "HeadStorm", When: "head_storm", Severity: "warning"},
		{Name: "StormHurting", When: "head_storm and client_abandon", Severity: "page"},
		{Name: "Slow", When: "latency", Severity: "warning"},
	}
	c := Config{MinFiring: time.Second, Campaigns: []Campaign{
		{Name: "July", At: *at(5), For: time.Minute, Sites: []string{"shop.example"}},
		{Name: "elsewhere", At: *at(10), For: time.Hour, Sites: []string{"other.example"}},
	}}
	f := newFilm(t, rules, c)
	f.play(map[string]string{
		"head_storm":     "..HHHHHHHH..",
		"client_abandon": "...CCC......",
		"latency":        "....L.......",
	})
	f.want(
		"30 firing HeadStorm info 20", "40 resolved HeadStorm info 20-40", "40 firing HeadStorm warning 20", "40 firing StormHurting page 30",
		"50 firing Slow warning 40", "60 resolved Slow warning 40-60", "70 resolved StormHurting page 30-70", "110 resolved HeadStorm warning 20-110",
	)
	want := "; a campaign was sent at 2026-07-01T00:00:05Z (July), 15s before the storm began"
	if !strings.HasSuffix(f.told[3].Cause.Text, want) {
		t.Fatal(f.told[3].Cause.Text)
	}
	if !strings.Contains(f.told[3].Annotations["cause"], "a campaign was sent at") {
		t.Fatal(f.told[3].Annotations["cause"])
	}
	f.at += 7200 * second
	f.pane("head_storm")
	last := f.told[len(f.told)-1]
	if last.Severity != Warning || strings.Contains(last.Cause.Text, "campaign was sent") ||
		!strings.HasSuffix(last.Cause.Text, "; no campaign of the calendar was sent when the storm began") {
		t.Fatalf("%s %+v", last.Severity, last.Cause)
	}
}

// A storm that hurts nobody is an info for as long as its campaign lasts; when clients begin to leave it is told as it is.
func TestCampaignLowersNothingThatHurts(t *testing.T) {
	rules := []Rule{{Name: "HeadStorm", When: "head_storm", Severity: "warning"}}
	c := Config{MinFiring: time.Second, Campaigns: []Campaign{{Name: "July", At: *at(5), For: time.Minute}}}
	f := newFilm(t, rules, c)
	f.play(map[string]string{"head_storm": "..HHHHHHHH.."})
	f.want("30 firing HeadStorm info 20", "70 resolved HeadStorm info 20-70", "70 firing HeadStorm warning 20", "110 resolved HeadStorm warning 20-110")
	for _, hurt := range hurts {
		f = newFilm(t, rules, c)
		f.play(map[string]string{"head_storm": "..HHHHHHHH..", hurt: "..XXXXXXXX.."})
		f.want("30 firing HeadStorm warning 20", "110 resolved HeadStorm warning 20-110")
	}
}

func TestFaultsOfCampaigns(t *testing.T) {
	for _, c := range []Campaign{{At: *at(0), For: 1}, {Name: "x", For: 1}, {Name: "x", At: *at(0)}} {
		if err := CheckCampaigns([]Campaign{c}); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

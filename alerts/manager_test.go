package alerts

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

const reflectBool = reflect.Bool

var epoch = time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC).UnixNano()

const second = int64(time.Second)

// detection is an active one on shop.example with an onset at the epoch.
func detection(name string, value float64) detectors.Detection {
	return detectors.Detection{
		Detector: name, Labels: detectors.Labels{{Name: "site", Value: "shop.example"}}, Active: true, Onset: epoch,
		Since: epoch + 30*second, Value: value, Threshold: 5, Peak: value,
		Evidence: detectors.Evidence{Requests: detectors.N(value * 10), RequestsPerMinute: detectors.N(value)},
	}
}

// film plays panes of ten seconds: each letter of a track is one pane, a letter for active and a dot for silent.
// It does what the engine does: onset, changes, and the evidence of a whole episode at its end.
type film struct {
	t      *testing.T
	m      *Manager
	active map[string]*detectors.Detection
	at     int64
	told   []Alert
}

func newFilm(t *testing.T, rules []Rule, c Config) *film {
	t.Helper()
	c.Rules, c.Detectors = rules, detectors.Names()
	for _, s := range ShippedRules() {
		if !slices.ContainsFunc(rules, func(r Rule) bool { return r.Name == s.Name }) {
			c.Rules = append(c.Rules, Rule{Name: s.Name, Disabled: true})
		}
	}
	m, err := NewManager(c)
	if err != nil {
		t.Fatal(err)
	}
	return &film{t: t, m: m, at: epoch, active: map[string]*detectors.Detection{}}
}

// pane plays one pane in which the named detectors are active.
func (f *film) pane(names ...string) []Alert {
	f.at += 10 * second
	r := &detectors.Result{At: f.at, Pane: &pane.Pane{Start: f.at - 10*second, End: f.at}}
	for _, name := range detectors.Names() {
		d := f.active[name]
		switch on := slices.Contains(names, name); {
		case on && d == nil:
			n := detection(name, 10)
			n.Onset, n.Since = f.at-10*second, f.at
			n.Evidence.Requests = detectors.N(10) // in the window
			f.active[name] = &n
			r.Changes = append(r.Changes, n)
		case !on && d != nil:
			d.Active, d.Until = false, f.at
			d.Evidence.Requests = detectors.N(float64((f.at - d.Onset) / second))
			r.Changes = append(r.Changes, *d)
			delete(f.active, name)
		}
		if d := f.active[name]; d != nil {
			r.Detections = append(r.Detections, *d)
		}
	}
	out := f.m.Evaluate(r)
	f.told = append(f.told, out...)
	return out
}

// play runs tracks of equal length side by side.
func (f *film) play(tracks map[string]string) {
	f.t.Helper()
	length := 0
	for _, track := range tracks {
		length = len(track)
	}
	for i := range length {
		var names []string
		for name, track := range tracks {
			if track[i] != '.' {
				names = append(names, name)
			}
		}
		f.pane(names...)
	}
}

// story tells the transitions in seconds since the epoch.
func (f *film) story() string {
	var b strings.Builder
	for _, a := range f.told {
		fmt.Fprintf(&b, "%d %s %s %s %d", (a.At-epoch)/second, a.State, a.Name, a.Severity, (a.StartsAt-epoch)/second)
		if a.State == Resolved {
			fmt.Fprintf(&b, "-%d", (a.EndsAt-epoch)/second)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (f *film) want(story ...string) {
	f.t.Helper()
	if got, want := f.story(), strings.Join(append(story, ""), "\n"); got != want {
		f.t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}

func hold(d time.Duration) Config { return Config{MinFiring: d} }

func TestForMustHoldWithoutABreak(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "latency", Severity: "page", For: 30 * time.Second}}, hold(time.Second))
	f.play(map[string]string{"latency": "LLL.LLLLL..."})
	// The first three panes are one short. The onset is the detection's.
	f.want("80 firing A page 40", "100 resolved A page 40-100")
}

func TestKeepFiringFor(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "latency", Severity: "page", KeepFiringFor: 30 * time.Second}}, hold(time.Second))
	f.play(map[string]string{"latency": "LL..L......"})
	f.want("10 firing A page 0", "90 resolved A page 0-60")
}

func TestMinimumFiringTime(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "latency", Severity: "page"}}, Config{})
	f.play(map[string]string{"latency": "L" + strings.Repeat(".", 20)})
	f.want("10 firing A page 0", "130 resolved A page 0-20")
}

func TestWithinJoinsWhatDidNotOverlap(t *testing.T) {
	rules := []Rule{{Name: "A", When: "head_storm and latency", Severity: "page", Within: time.Minute}}
	f := newFilm(t, rules, hold(time.Second))
	f.play(map[string]string{"head_storm": "HH.............", "latency": "....LL........."})
	f.want("50 firing A page 40", "90 resolved A page 40-90")
	rules[0].Within = 0
	f = newFilm(t, rules, hold(time.Second))
	f.play(map[string]string{"head_storm": "HH.............", "latency": "....LL........."})
	f.want()
}

// and, or and not join what is active in one pane, each by itself.
func TestAndOrNot(t *testing.T) {
	tracks := map[string]string{"latency": ".LLLL.", "saturation": "..SS..", "self_loop": "...SS."}
	for when, story := range map[string][]string{
		"latency and saturation":                         {"30 firing A page 20", "50 resolved A page 20-50"},
		"saturation or self_loop":                        {"30 firing A page 20", "60 resolved A page 20-60"},
		"latency and not saturation":                     {"20 firing A page 10", "30 resolved A page 10-30", "50 firing A page 40", "60 resolved A page 40-60"},
		"not self_loop and (latency or saturation)":      {"20 firing A page 10", "40 resolved A page 10-40"},
		"latency and saturation and not self_loop":       {"30 firing A page 20", "40 resolved A page 20-40"},
		"(latency and saturation) and not restart_burst": {"30 firing A page 20", "50 resolved A page 20-50"},
	} {
		f := newFilm(t, []Rule{{Name: "A", When: when, Severity: "page"}}, hold(time.Second))
		f.play(tracks)
		if got, want := f.story(), strings.Join(append(story, ""), "\n"); got != want {
			t.Errorf("%s: got\n%swant\n%s", when, got, want)
		}
	}
}

// within reaches as far as it says: what was over for longer counts no more, and `not` sees what still counts.
func TestWithinEnds(t *testing.T) {
	joined := []Rule{{Name: "A", When: "head_storm and latency", Severity: "page", Within: 30 * time.Second}}
	f := newFilm(t, joined, hold(time.Second))
	f.play(map[string]string{"head_storm": "HH....", "latency": ".....L"}) // 30 s after its end
	f.want()
	f = newFilm(t, joined, hold(time.Second))
	f.play(map[string]string{"head_storm": "HH....", "latency": "....L."})
	f.want("50 firing A page 40", "60 resolved A page 40-60")
	f = newFilm(t, []Rule{{Name: "A", When: "latency and not head_storm", Severity: "page", Within: 30 * time.Second}}, hold(time.Second))
	f.play(map[string]string{"head_storm": "HH......", "latency": "LLLLLLLL"})
	f.want("60 firing A page 50")
}

// A storm that takes breaths is one alert.
func TestFlappingIsOneAlert(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "latency", Severity: "page", KeepFiringFor: time.Minute}}, Config{})
	f.play(map[string]string{"latency": strings.Repeat("L..L.", 20) + strings.Repeat(".", 10)})
	if len(f.told) != 2 {
		t.Fatalf("%d transitions:\n%s", len(f.told), f.story())
	}
}

// The next alert of an identity begins when its condition held again, though a half was on all the time.
func TestNextAlertBeginsBehindTheLast(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "client_abandon and latency", Severity: "page"}}, hold(time.Second))
	f.play(map[string]string{"client_abandon": "CC....CC..", "latency": "LLLLLLLLLL"})
	f.want("10 firing A page 0", "30 resolved A page 0-30", "70 firing A page 60", "90 resolved A page 60-90")
}

// The page of a storm goes on until the queue has drained.
func TestStormHurtingOutlivesTheHeads(t *testing.T) {
	f := newFilm(t, []Rule{ShippedRules()[2]}, Config{})
	f.play(map[string]string{
		"head_storm":     strings.Repeat("H", 42) + strings.Repeat(".", 40),
		"client_abandon": "..." + strings.Repeat("C", 60) + strings.Repeat(".", 19),
	})
	f.want("40 firing StormHurting page 30", "760 resolved StormHurting page 30-640")
}

func TestJumpInTime(t *testing.T) {
	f := newFilm(t, []Rule{
		{Name: "A", When: "latency", Severity: "page", For: time.Minute},
		{Name: "B", When: "saturation", Severity: "page"},
	}, Config{})
	f.pane("latency", "saturation")
	f.at += 3600 * second // nothing is known of this hour
	f.pane("latency")
	f.want("10 firing B page 0", "3620 resolved B page 0-10")
	for range 6 {
		f.pane("latency")
	}
	if last := f.told[len(f.told)-1]; last.Name != "A" || last.At != epoch+3680*second {
		t.Fatalf("pending did not start anew:\n%s", f.story())
	}
	n := len(f.told)
	f.at -= 300 * second
	if out := f.pane("saturation"); out != nil || len(f.told) != n {
		t.Fatal("a pane of the past changed something")
	}
}

func TestSeverityOnlyRises(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "head_storm", Severity: `saturation ? "page" : latency ? "warning" : "info"`}}, hold(time.Second))
	f.play(map[string]string{"head_storm": "HHHHHH..", "latency": ".L......", "saturation": "...SS..."})
	f.want(
		"10 firing A info 0",
		"20 resolved A info 0-20", "20 firing A warning 0",
		"40 resolved A warning 0-40", "40 firing A page 0",
		"70 resolved A page 0-70",
	)
}

// What an alert resolves with is the whole incident: totals over its episodes, peaks over its windows.
func TestResolvedHoldsTheWholeIncident(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "head_storm", Severity: "page", KeepFiringFor: time.Minute}}, hold(time.Second))
	for _, perMinute := range []float64{100, 900, 300} {
		f.pane("head_storm")
		f.active["head_storm"].Evidence.RequestsPerMinute = detectors.N(perMinute)
		f.active["head_storm"].Peak = max(f.active["head_storm"].Peak, perMinute)
	}
	f.pane("head_storm")
	f.pane()
	f.pane("head_storm")
	for range 10 {
		f.pane()
	}
	end := f.told[len(f.told)-1]
	if end.State != Resolved || end.Evidence.Requests.Get() != 50+20 || end.Evidence.RequestsPerMinute.Get() != 900 {
		t.Fatalf("%s: requests %s, a minute %s", end.State, end.Evidence.Requests, end.Evidence.RequestsPerMinute)
	}
	if end.Value < 900 {
		t.Fatalf("value %v is not the peak", end.Value)
	}
}

func TestActiveIsFresh(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "latency", Severity: "page"}}, Config{})
	f.pane("latency")
	first := f.m.Active()
	f.active["latency"].Value = 42
	f.pane("latency")
	second := f.m.Active()
	if len(first) != 1 || len(second) != 1 || first[0].Value != 10 || second[0].Value != 42 || second[0].At != f.at {
		t.Fatalf("%v %v", first, second)
	}
	if first[0].StartsAt != second[0].StartsAt {
		t.Fatal("startsAt moved")
	}
}

// Sites are apart, and their order is fixed.
func TestAlertsAreOneForEachSite(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "client_abandon and latency", Severity: "page"}}, Config{})
	r := &detectors.Result{At: epoch + 10*second}
	for _, site := range []string{"c", "a", "b", "half"} {
		for _, name := range []string{"client_abandon", "latency"} {
			if site == "half" && name == "latency" {
				continue
			}
			d := detection(name, 9)
			d.Labels = detectors.Labels{{Name: "site", Value: site}}
			r.Detections = append(r.Detections, d)
		}
	}
	var sites []string
	for _, a := range f.m.Evaluate(r) {
		sites = append(sites, a.Labels.Get("site"))
	}
	if !slices.Equal(sites, []string{"a", "b", "c"}) {
		t.Fatal(sites)
	}
}

func TestTheNumberOfAlertsIsBounded(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "latency", Severity: "page"}}, Config{MaxAlerts: 10})
	r := &detectors.Result{At: epoch + 10*second}
	for i := range 100 {
		d := detection("latency", 9)
		d.Labels = detectors.Labels{{Name: "site", Value: fmt.Sprint(i)}}
		r.Detections = append(r.Detections, d)
	}
	if out := f.m.Evaluate(r); len(out) != 10 || len(f.m.Active()) != 10 || len(f.m.tracked) != 10 {
		t.Fatalf("%d told, %d tracked", len(out), len(f.m.tracked))
	}
}

// A cluster-wide detection has no site; rules by site leave it alone and rules by cluster take it.
func TestRestartBurstIsByCluster(t *testing.T) {
	m, err := NewManager(Config{Detectors: detectors.Names()})
	if err != nil {
		t.Fatal(err)
	}
	d := detection("restart_burst", 24)
	d.Labels = detectors.Labels{{Name: "cluster", Value: "prod"}}
	out := m.Evaluate(&detectors.Result{At: epoch + 10*second, Detections: []detectors.Detection{d}})
	if len(out) != 1 || out[0].Name != "RestartBurst" || out[0].Labels.String() != `{cluster="prod"}` {
		t.Fatalf("%v", out)
	}
}

func TestRestoreChangesNothing(t *testing.T) {
	rules := []Rule{
		{Name: "A", When: "client_abandon and latency", Severity: "page", For: 20 * time.Second, KeepFiringFor: 20 * time.Second},
		{Name: "B", When: "head_storm", Severity: `saturation ? "page" : "warning"`, Within: 20 * time.Second},
	}
	tracks := map[string]string{
		"client_abandon": ".CCCCCCCC..CC.........................",
		"latency":        "LLLLLLL.LLLLLLLL......................",
		"head_storm":     "..HHHHHHH..HHH........................",
		"saturation":     ".....SS...............................",
	}
	restartEachPane(t, rules, Config{}, tracks, 6)
}

// restartEachPane plays the same film whole and with a restart before each pane: nothing is lost, repeated or moved.
func restartEachPane(t *testing.T, rules []Rule, c Config, tracks map[string]string, transitions int) {
	t.Helper()
	whole := newFilm(t, rules, c)
	whole.play(tracks)
	broken := newFilm(t, rules, c)
	for i := range len(tracks["latency"]) {
		state, err := broken.m.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		next := newFilm(t, rules, c)
		if err := next.m.Restore(state); err != nil {
			t.Fatal(err)
		}
		again, err := next.m.Snapshot()
		if err != nil || string(again) != string(state) {
			t.Fatalf("pane %d: the state is not the one restored: %v\n%s\n%s", i, err, state, again)
		}
		broken.m = next.m
		step := map[string]string{}
		for name, track := range tracks {
			step[name] = track[i : i+1]
		}
		broken.play(step)
	}
	var a, b []byte
	for i := range whole.told {
		a = AppendJSON(a, &whole.told[i])
	}
	for i := range broken.told {
		b = AppendJSON(b, &broken.told[i])
	}
	if string(a) != string(b) || len(whole.told) < transitions {
		t.Fatalf("without restarts\n%s\nwith\n%s", a, b)
	}
}

// A rule that is gone after a restart takes its alert along.
func TestRestoreEndsWhatHasNoRule(t *testing.T) {
	f := newFilm(t, []Rule{{Name: "A", When: "latency", Severity: "page"}}, Config{})
	f.pane("latency")
	state, err := f.m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	next := newFilm(t, []Rule{{Name: "B", When: "saturation", Severity: "page"}}, Config{})
	if err := next.m.Restore(state); err != nil {
		t.Fatal(err)
	}
	next.at = f.at
	next.pane()
	next.want("20 resolved A page 0-20")
	if err := next.m.Restore([]byte(`{"version":99}`)); err == nil {
		t.Fatal("a state of another version was read")
	}
}

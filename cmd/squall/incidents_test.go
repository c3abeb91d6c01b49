package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// reportOf replays a scenario into a report file.
func reportOf(t *testing.T, o simulate.Options, more ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), o.Scenario.Name+".json")
	args := append([]string{"replay", "--report-json", file}, append(more, reportArgs(t, o)...)...)
	if _, told, err := execute(t.Context(), strings.NewReader(""), args...); err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	return file
}

// comparison runs `squall incidents compare --json`.
func comparison(t *testing.T, a, b string) (c alerts.Comparison, text string) {
	t.Helper()
	out, told, err := execute(t.Context(), strings.NewReader(""), "incidents", "compare", "--json", a, b)
	if err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		t.Fatal(err)
	}
	text, told, err = execute(t.Context(), strings.NewReader(""), "incidents", "compare", a, b)
	if err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	return c, text
}

// TestDidTheFixHold follows the weeks of the field report: the first storm, a short-circuit that still costs a worker, one
// that costs none; and a crawl that stalls the site, and one four times as large that does not.
func TestDidTheFixHold(t *testing.T) {
	named := func(name string, shorten func(*simulate.Scenario)) simulate.Options {
		o := simulate.Options{Scenario: scenario(t, name), Format: "nginx_extended", Seed: 3}
		shorten(&o.Scenario)
		return o
	}
	first := reportOf(t, named("S01", func(*simulate.Scenario) {}))
	inPHP := reportOf(t, named("S02", func(*simulate.Scenario) {}), "--compare", first, "--annotate", "2026-06-03T12:00:00Z HEAD answered in the controller <b>")
	inNginx := reportOf(t, named("S03", func(s *simulate.Scenario) {
		s.Duration, s.Sites = 12*time.Minute, slices.Clone(s.Sites)
		s.Sites[0].Storms = slices.Clone(s.Sites[0].Storms)
		storm := &s.Sites[0].Storms[0]
		storm.For, storm.Count = storm.For/8, storm.Count/8
	}))
	crawl := reportOf(t, named("S08", func(*simulate.Scenario) {}))
	larger := reportOf(t, named("S09", func(*simulate.Scenario) {}))

	c, text := comparison(t, first, inPHP)
	check(t, "in PHP", c.Verdict, alerts.MovedTheCost)
	if c.Rate.Get() < 5 || c.Rate.Get() > 9 || len(c.Between) != 1 || !strings.Contains(text, "between: 2026-06-03T12:00:00Z HEAD answered") {
		t.Errorf("%s", text)
	}
	c, text = comparison(t, inNginx, first) // in whatever order
	check(t, "in nginx", c.Verdict, alerts.Held)
	if c.Abandons.Get() != 0 || !strings.Contains(text, "what was changed between the two is not noted") {
		t.Errorf("%s", text)
	}
	c, text = comparison(t, crawl, larger)
	check(t, "a larger crawl", c.Verdict, alerts.Held)
	if r := c.Rate.Get(); r < 3.3 || r > 4.3 || c.After.Abandoned.Get() != 7 || c.Before.P99Seconds.Get() < 20 || c.After.P99Seconds.Get() > 1.5 {
		t.Errorf("%s", text)
	}
	var r struct {
		Verdict   struct{ Sentence string }
		Incidents []struct{ Compared *alerts.Comparison }
	}
	written, err := os.ReadFile(inPHP)
	if err == nil {
		err = json.Unmarshal(written, &r)
	}
	if err != nil || !strings.Contains(r.Verdict.Sentence, "The last fix moved the cost") || r.Incidents[0].Compared == nil {
		t.Errorf("the report: %s (%v)", r.Verdict.Sentence, err)
	}
	for _, bad := range [][]string{{"incidents", "compare", first, "nothing.json"}, {"incidents", "show", first + "#x"}, {"incidents", "list", "--url", "http://127.0.0.1:1"}} {
		if _, _, err := execute(t.Context(), strings.NewReader(""), bad...); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
	if out, told, err := execute(t.Context(), strings.NewReader(""), "incidents", "show", first); err != nil || !strings.Contains(out, "shop.example head_storm HEAD /checkout/{int}") {
		t.Errorf("%v: %s%s", err, out, told)
	}
}

// TestDaemonKeepsIncidents: what the API shows survives kill -9, and can be read from the spool of a daemon that is not
// running.
func TestDaemonKeepsIncidents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config, log := filepath.Join(dir, "squall.yaml"), filepath.Join(dir, "access.log")
	write(t, config, fileYAML(log, filepath.Join(dir, "spool"), "web: {listen: \"127.0.0.1:1\"}\n"))
	heads := startLogger(t, log, http.MethodHead, 20*time.Millisecond)
	squall := runSquall(t, dir, surroundings{})
	var list struct{ Incidents []alerts.Entry }
	incidents := func() []alerts.Entry {
		list.Incidents = nil
		if _, body := squall.get("/api/v1/incidents"); json.Unmarshal([]byte(body), &list) != nil {
			t.Errorf("/api/v1/incidents answers %s", body)
		}
		return list.Incidents
	}
	eventually(t, "the storm is an incident", func() bool { return len(incidents()) == 1 })
	check(t, "its detector", list.Incidents[0].Lead, "head_storm")
	id := list.Incidents[0].ID
	run := func(args ...string) string {
		out, told, err := execute(t.Context(), strings.NewReader(""), args...)
		if err != nil {
			t.Errorf("%v: %v %s", args, err, told)
		}
		return out
	}
	run("annotate", "waf rule live", "--site", "shop.example", "--url", squall.base)
	run("annotate", hostile, "--at", "2026-01-02T03:04:05Z", "--url", squall.base)
	const payload = `{"version":"4","status":"firing","alerts":[{"status":"firing","labels":{"alertname":"RedisFull"},"annotations":{"summary":"0.93"},
		"startsAt":"2026-01-02T03:04:06Z","endsAt":"0001-01-01T00:00:00Z"}]}`
	for _, c := range []struct {
		path, kind, body string
		want             int
	}{
		{"/alertmanager", "application/json", payload, 200},
		{"/alertmanager", "application/json", `{"version":"3"}`, 400},
		{"", "application/json", `{"text":""}`, 400},
		{"", "application/json", `{"text":"x","more":1}`, 400},
		{"", "text/plain", `{"text":"x"}`, 400}, // what a page elsewhere may send without asking
		{"", "application/json", `{"text":"` + strings.Repeat("x", 1<<17) + `"}`, 413},
		{"/alertmanager", "application/json", `{"version":"4","alerts":[],"commonAnnotations":{"x":"` + strings.Repeat("x", 1<<19) + `"}}`, 200},
		{"/alertmanager", "application/json", `{"version":"4","alerts":[],"commonAnnotations":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`, 413},
	} {
		res, err := http.Post(squall.base+"/api/v1/annotations"+c.path, c.kind, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s %.60s: %d", c.path, c.body, res.StatusCode)
		}
	}
	if code, body := squall.get("/api/v1/incidents/" + id); code != 200 || !strings.Contains(body, "waf rule live") {
		t.Errorf("%d: %s", code, body)
	}
	if code, _ := squall.get("/api/v1/incidents/none"); code != 404 {
		t.Errorf("an incident that is none: %d", code)
	}
	_, marks := squall.get("/api/v1/annotations")
	if !strings.Contains(marks, "RedisFull firing: 0.93") || strings.ContainsAny(marks, "\u202e\x1b") {
		t.Errorf("annotations: %s", marks)
	}
	if out := run("incidents", "list", "--url", squall.base); !strings.Contains(out, id) || !strings.Contains(out, "head_storm HEAD") {
		t.Errorf("list: %s", out)
	}
	eventually(t, "the incident is stored", func() bool { return squall.metric("squall_panes_closed_total") > 20 })
	squall.kill()
	heads.stop()
	if out := run("incidents", "list", "--config", config); !strings.Contains(out, id) {
		t.Errorf("from the spool: %s", out)
	}
	squall = runSquall(t, dir, surroundings{})
	if _, after := squall.get("/api/v1/annotations"); after != marks {
		t.Errorf("after kill -9 the annotations are %s", after)
	}
	eventually(t, "the incident is there again", func() bool {
		return slices.ContainsFunc(incidents(), func(e alerts.Entry) bool { return e.ID == id })
	})
	check(t, "incidents after kill -9", len(list.Incidents), 1)
	pageTells(t, squall, id, "waf rule live", "RedisFull firing: 0.93")
}

// pageTells: the page shows texts, visibly and not as if there were no request.
func pageTells(t *testing.T, squall *program, texts ...string) {
	t.Helper()
	_, page := squall.get("/")
	for _, want := range texts {
		if !strings.Contains(page, want) {
			t.Errorf("the page after kill -9 does not tell of %s", want)
		}
	}
	if strings.Contains(page, "no request yet") || strings.ContainsAny(page, "\u202e\x1b") {
		t.Errorf("the page after kill -9: %s", page)
	}
}

package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// reported runs `squall replay` with a report in one form on standard output.
func reported(t testing.TB, form string, args ...string) string {
	t.Helper()
	out, told, err := execute(t.Context(), strings.NewReader(""), append([]string{"replay", "--" + form, "-"}, args...)...)
	if err != nil {
		t.Fatalf("replay %v: %v\n%s", args, err, told)
	}
	return out
}

// storms are the scenarios whose reports are kept, each as small as its story allows.
func storms(t testing.TB) map[string]simulate.Options {
	all := map[string]simulate.Options{}
	for _, name := range []string{"S01", "S06", "S07", "S08", "S13", "S16"} {
		all[name] = simulate.Options{Scenario: scenario(t, name), Format: "nginx_extended", Seed: 1}
	}
	crawl := all["S13"]
	crawled(&crawl.Scenario, 4*time.Minute)
	all["S13"] = crawl
	footer := all["S07"]
	s := &footer.Scenario.Sites[0]
	s.Storms[0].For, s.Storms[0].Count = 2*time.Minute, s.Storms[0].Count*2/5
	footer.Scenario.Duration = 40 * time.Minute
	all["S07"] = footer
	all["S16"] = simulate.Options{Scenario: scenario(t, "S16"), Seed: 51, Rate: 0.3}
	return all
}

// reportArgs are the arguments of a replay of all logs of a scenario.
func reportArgs(t testing.TB, o simulate.Options) []string {
	t.Helper()
	dir, truth := written(t, o)
	workers := 25
	if len(truth.Sites) > 0 {
		workers = truth.Sites[0].PoolWorkers
	}
	return []string{"--config", known(t, o, workers, ""), dir}
}

// TestReports keeps what the reports say of the storms that squall is for.
func TestReports(t *testing.T) {
	all := storms(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			var r map[string]any
			if err := json.Unmarshal([]byte(reported(t, "report-json", reportArgs(t, all[name])...)), &r); err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(condensed(r), "", " ")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", "report", name+".json")
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			check(t, golden, string(got)+"\n", string(want))
		})
	}
}

// kept are the fields of evidence that a golden report shows: those of the table.
var kept = []string{
	"requests", "abandoned", "errors_5xx", "worker_seconds_lower", "worker_seconds_upper", "worker_seconds_share", "distinct_clients",
	"requests_per_client_per_minute", "repeat_factor", "reached_upstream_ratio", "limited", "discriminators", "rule_coverage",
}

// condensed leaves out of a report what other tests hold: the settings, the timelines, the whole evidence of alerts and the
// names of the files.
func condensed(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range []string{"settings", "snippet", "verify", "input", "sites", "samples"} {
			delete(v, name)
		}
		for name, x := range v {
			if e, ok := x.(map[string]any); ok && (name == "evidence" || name == "total") {
				maps.DeleteFunc(e, func(field string, _ any) bool { return !slices.Contains(kept, field) })
			}
			v[name] = condensed(x)
		}
	case []any:
		for i := range v {
			v[i] = condensed(v[i])
		}
	}
	return v
}

// TestReportIsDeterministic: the same lines give the same report, in each form.
func TestReportIsDeterministic(t *testing.T) {
	o := simulate.Options{Scenario: scenario(t, "S01"), Format: "nginx_extended", Seed: 7}
	args := reportArgs(t, o)
	for _, form := range []string{"report-json", "markdown", "html"} {
		if a, b := reported(t, form, args...), reported(t, form, args...); a != b {
			t.Errorf("two replays of the same lines give two reports as %s", form)
		}
	}
}

// hostileLog is a scenario's log in which paths and agents try to be more than text.
func hostileLog(t testing.TB) (path string) {
	t.Helper()
	path, _ = simulated(t, simulate.Options{Scenario: scenario(t, "S01"), Format: "nginx_extended", Seed: 3})
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.NewReplacer(
		"HEAD /checkout/", "HEAD /<script>document.title='owned'</script>]]>|`*\u202egnp.\u2066/",
		"GET /search?q=", "GET /"+strings.Repeat("x", 10_000)+"/?q=",
		"Mozilla/5.0", "<img src=http://127.0.0.1:9/ onerror=document.title='owned'>{{.}}\u202e",
	).Replace(string(text))
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHostileLogsInReports(t *testing.T) {
	path := hostileLog(t)
	for _, form := range []string{"html", "markdown", "report-json"} {
		out := reported(t, form, "--workers", "25", path)
		if !strings.Contains(out, "owned") {
			t.Errorf("%s: the path of the storm is not in the report", form)
		}
		if strings.ContainsAny(out, "\u202e\u2066") {
			t.Errorf("%s: a bidirectional mark stands in the report", form)
		}
		if form != "report-json" && strings.Contains(out, "\n<script") || form == "html" && (strings.Contains(out, "<script>doc") || strings.Contains(out, "<img")) {
			t.Errorf("%s: markup of a log stands in the report", form)
		}
		if n := len(out); n > 1<<20 {
			t.Errorf("%s: %d bytes for half an hour", form, n)
		}
	}
}

func TestReportFlags(t *testing.T) {
	_, _, err := execute(t.Context(), strings.NewReader(""), "replay", "--json", "-", "--html", "-", "x.log")
	if err == nil || !strings.Contains(err.Error(), "standard output can take one") {
		t.Errorf("two things on one output: %v", err)
	}
	path, _ := simulated(t, simulate.Options{Scenario: scenario(t, "S09"), Format: "nginx_extended", Seed: 1})
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "r.html"), filepath.Join(dir, "r.md"), filepath.Join(dir, "r.json")}
	if _, told, err := execute(t.Context(), strings.NewReader(""), "replay", "--html", files[0], "--markdown", files[1], "--report-json", files[2], path); err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(text), "o client is known to be hurt") {
			t.Errorf("%s does not say that no client is known to be hurt (%v): %.600s", f, err, text)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/pipeline/loki/lokitest"
)

// dashboardQuery is one query of a dashboard, with where it stands.
type dashboardQuery struct{ place, expr string }

// dashboardQueries reads what the dashboards ask of Prometheus and of Loki, and the label_values of their variables.
func dashboardQueries(t *testing.T) (prometheus, loki, variables []dashboardQuery) {
	t.Helper()
	files, err := filepath.Glob("../../deploy/grafana/dashboards/*.json")
	if err != nil || len(files) != 6 {
		t.Fatalf("%q: %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(text, &tree); err != nil {
			t.Fatal(err)
		}
		var walk func(place string, at any)
		walk = func(place string, at any) {
			switch at := at.(type) {
			case []any:
				for _, item := range at {
					walk(place, item)
				}
			case map[string]any:
				if title, ok := at["title"].(string); ok {
					place = filepath.Base(file) + ": " + title
				}
				expr, _ := at["expr"].(string)
				source, _ := at["datasource"].(map[string]any)
				switch {
				case expr != "" && source["type"] == "prometheus":
					prometheus = append(prometheus, dashboardQuery{place, expr})
				case expr != "" && source["type"] == "loki":
					loki = append(loki, dashboardQuery{place, expr})
				case expr != "":
					t.Errorf("%s: %q has no source", place, expr)
				}
				if query, ok := at["query"].(string); ok && strings.HasPrefix(query, "label_values") {
					variables = append(variables, dashboardQuery{place, query})
				}
				for _, item := range at {
					walk(place, item)
				}
			}
		}
		walk(filepath.Base(file), tree)
	}
	return prometheus, loki, variables
}

// startPrometheus runs Debian's Prometheus over the targets, each second, and gives its address.
func startPrometheus(t *testing.T, rules string, targets ...string) (base string) {
	t.Helper()
	dir := t.TempDir()
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
	if rules != "" {
		config += fmt.Sprintf("rule_files: [%q]\n", rules)
	}
	config += "scrape_configs:\n  - job_name: squall\n    static_configs: [{targets: ['" + strings.Join(targets, "', '") + "']}]\n"
	write(t, filepath.Join(dir, "prometheus.yml"), config)
	address := freeAddress(t)
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), command(t, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait() // the test's context has ended: it was asked to stop
		if t.Failed() {
			t.Logf("prometheus: %s", log.String())
		}
	})
	base = "http://" + address
	eventually(t, "prometheus is ready", func() bool {
		code, _ := request(http.MethodGet, base+"/-/ready")
		return code == http.StatusOK
	})
	return base
}

// sample is a series with its value.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

// askPrometheus gives the answer of Prometheus to an instant query.
func askPrometheus(t *testing.T, base, expr string) (samples []sample, fault string) {
	t.Helper()
	_, text := request(http.MethodGet, base+"/api/v1/query?query="+url.QueryEscape(expr))
	var answer struct {
		Error string
		Data  struct{ Result []sample }
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return answer.Data.Result, answer.Error
}

// writeLive writes the log of a scenario whose beginning lies ahead of now by so much, and goes on with it until the
// test ends.
func writeLive(t *testing.T, path, scenario string, o simulate.Options, behind time.Duration, log int) {
	t.Helper()
	var err error
	if o.Scenario, err = simulate.Named(scenario); err != nil {
		t.Fatal(err)
	}
	o.Scenario.Logs = o.Scenario.Logs[min(log, len(o.Scenario.Logs)):]
	o.Seed, o.Start, o.Pace = 1, time.Now().Add(-behind).UTC(), simulate.LivePace(time.Now, sleep)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = simulate.Run(ctx, o, f) // it is ended by the test
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestDashboardsShowAStorm holds that every query of every dashboard finds something while clients are hurt: those of
// Prometheus in a real one that scrapes squall, those of Loki in what squall pushes.
func TestDashboardsShowAStorm(t *testing.T) {
	t.Parallel()
	store := lokitest.NewServer(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	writeLive(t, at("access.log"), "S01", simulate.Options{}, 8*time.Minute, 0)
	writeLive(t, at("edge.log"), "S10", simulate.Options{Rate: 0.05, Host: "edge.example"}, 7*time.Minute, 1)
	write(t, at("php.log"), time.Now().UTC().Format("[02-Jan-2006 15:04:05]")+" WARNING: [pool www] child 31, script '/var/www/html/public/index.php' "+
		"(request: \"GET /index.php\") execution timed out (34.4 sec), terminating\n")
	write(t, at("squall.yaml"), fmt.Sprintf(`
sources:
  - {name: balancer, type: file, paths: [%q], from: start}
  - {name: edge, type: file, paths: [%q], from: start}
  - {name: php, type: file, paths: [%q], from: start}
sites: [{name: shop.example, pool: {workers: 25}}]
own: {interfaces: false}
spool: {dir: %q}
loki: {url: %q, batch_wait: 200ms}
`, at("access.log"), at("edge.log"), at("php.log"), at("spool"), store.URL+"/loki/api/v1/push"))
	squall := runSquall(t, dir, surroundings{})
	rules, err := filepath.Abs("../../deploy/prometheus/squall.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	base := startPrometheus(t, rules, strings.TrimPrefix(squall.base, "http://"))

	metrics, lines, variables := dashboardQueries(t)
	if len(metrics) < 60 || len(lines) < 10 || len(variables) != 6 {
		t.Fatalf("%d queries of Prometheus, %d of Loki, %d variables", len(metrics), len(lines), len(variables))
	}
	grafana := strings.NewReplacer("$__rate_interval", "30s", "$__range", "1m", "$__auto", "1m", "$site", ".*", "$instance", ".*")
	for _, q := range metrics {
		expr, last := grafana.Replace(q.expr), ""
		within(t, 90*time.Second, q.place+" shows something: "+expr, func() bool {
			squall.alive()
			samples, fault := askPrometheus(t, base, expr)
			if fault != "" && fault != last {
				t.Errorf("%s: %s: %s", q.place, expr, fault)
			}
			last = fault
			return len(samples) > 0 || fault != ""
		})
	}
	variable := regexp.MustCompile(`^label_values\(([a-z_]+), ([a-z]+)\)$`)
	for _, q := range variables {
		m := variable.FindStringSubmatch(q.expr)
		if m == nil {
			t.Fatalf("%s: %s", q.place, q.expr)
		}
		_, text := request(http.MethodGet, base+"/api/v1/label/"+m[2]+"/values?match[]="+m[1])
		if !strings.Contains(text, `"data":["`) {
			t.Errorf("%s: %s gives %s", q.place, q.expr, text)
		}
	}
	checkStormShown(t, base)
	checkRules(t, base, squall)
	checkLinesShown(t, store, lines, grafana)
}

// checkRules holds that Prometheus can evaluate every rule, that squall has every metric of its own that they name, and
// that a squall that is well sets off none of them but the one that always fires.
func checkRules(t *testing.T, base string, squall *program) {
	t.Helper()
	_, text := request(http.MethodGet, base+"/api/v1/rules")
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Query, Health, LastError, State string }
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatal(err)
	}
	_, metrics := squall.get("/metrics")
	ours, seen := regexp.MustCompile(`\bsquall_[a-z_]+`), 0
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			seen++
			if r.Health != "ok" {
				t.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError)
			}
			if r.State == "firing" && r.Name != "SquallDeadMan" {
				t.Errorf("%s fires", r.Name)
			}
			for _, name := range ours.FindAllString(strings.ReplaceAll(r.Query, "site:squall_", "site:"), -1) {
				if !strings.Contains(metrics, "\n"+name+"{") && !strings.Contains(metrics, "\n"+name+" ") && !strings.Contains(metrics, "# TYPE "+name+" ") {
					t.Errorf("rule %s reads %s, which squall does not have", r.Name, name)
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("%d rules", seen)
	}
}

// checkStormShown holds that the numbers tell the storm: clients leave, a page fires, and nothing answers 5xx.
func checkStormShown(t *testing.T, base string) {
	t.Helper()
	for expr, least := range map[string]float64{
		`max(squall_alert_firing{alertname="StormHurting", severity="page", site="shop.example"})`:                                                            1,
		`max(squall_detections_active{detector="head_storm", site="shop.example"})`:                                                                           1,
		`sum(squall_site_abandoned_total{site="shop.example"}) / sum(squall_site_requests_total{site="shop.example"})`:                                        0.02,
		`sum(squall_site_requests_total{site="shop.example",method="HEAD"}) / sum(squall_site_requests_total{site="shop.example"})`:                           0.3,
		`histogram_quantile(0.99, sum by (le) (squall_site_request_duration_seconds_bucket{site="shop.example"}))`:                                            5,
		`sum(squall_site_worker_seconds_total{site="shop.example",bound="upper"}) - sum(squall_site_worker_seconds_total{site="shop.example",bound="lower"})`: 1,
		`sum(squall_events_total{kind="php_timeout"})`:                                                                                                        1,
		`sum(squall_site_cache_total{site="edge.example"})`:                                                                                                   100,
		`max(squall_origin_pool_workers{site="shop.example"})`:                                                                                                25,
	} {
		eventually(t, fmt.Sprintf("%s is at least %v", expr, least), func() bool {
			samples, fault := askPrometheus(t, base, expr)
			if fault != "" || len(samples) != 1 {
				return false
			}
			var v float64
			_, err := fmt.Sscan(fmt.Sprint(samples[0].Value[1]), &v)
			return err == nil && v >= least
		})
	}
	if samples, fault := askPrometheus(t, base, `sum(squall_site_responses_total{class="5xx"})`); fault != "" || len(samples) != 1 || samples[0].Value[1] != "0" {
		t.Errorf("5xx: %v %s", samples, fault)
	}
}

// checkLinesShown holds the queries of Loki against the labels and the structured metadata of what was pushed.
func checkLinesShown(t *testing.T, store *lokitest.Server, lines []dashboardQuery, grafana *strings.Replacer) {
	t.Helper()
	var shipped []map[string]string
	for _, e := range store.Entries() {
		shipped = append(shipped, fieldsOf(t, e))
	}
	for _, q := range lines {
		parsed, err := parseLogQL(q.expr)
		if err != nil {
			t.Errorf("%s: %v", q.place, err)
			continue
		}
		for i := range parsed.filters {
			parsed.filters[i].value = grafana.Replace(parsed.filters[i].value)
		}
		if n, missing := parsed.finds(t, shipped); n == 0 || len(missing) > 0 {
			t.Errorf("%s: %s finds %d of %d lines, and none with %q", q.place, q.expr, n, len(shipped), missing)
		}
	}
}

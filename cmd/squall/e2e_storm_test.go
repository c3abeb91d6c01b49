package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// compressed is a configuration under which a storm of seconds is what one of minutes is under the default.
const compressed = `
own: {interfaces: false}
sites:
  - {name: shop.example, routes: ["/product/{id}"], pool: {workers: 4, reclaim_timeout: 10s}}
pane: 1s
min_firing: 10s
detectors:
  head_storm: {per_minute: 120, baseline_ratio: 3, window: 10s}
  client_abandon: {per_minute: 30, ratio: 0.05, window: 10s}
  latency: {p99: 1s, window: 10s}
  saturation: {window: 10s}
rules:
  - {name: HeadStorm, when: head_storm, severity: 'head_storm.reached_upstream_ratio == 0 ? "info" : "warning"', keep_firing_for: 5s}
  - name: StormHurting
    when: head_storm and (client_abandon or saturation)
    while: client_abandon or saturation
    severity: page
    keep_firing_for: 5s
`

// visitors are people who look at products.
func visitors() traffic {
	return traffic{
		method: http.MethodGet, host: "shop.example", agent: browserAgent, network: 20, addresses: 40,
		path:  func(i int) string { return fmt.Sprintf("/product/%d?token=s3cret-%d", i%7, i) },
		every: 400 * time.Millisecond, patience: 20 * time.Second,
	}
}

// scanners are a mail gateway's, which fetch every link of a mailing.
func scanners() traffic {
	return traffic{
		method: http.MethodHead, host: "shop.example", agent: browserAgent, network: 30, addresses: 300,
		path:  func(i int) string { return fmt.Sprintf("/product/%d", 100+i%50) },
		every: 50 * time.Millisecond, patience: 1500 * time.Millisecond,
	}
}

func stormConfig(log, spool, alertmanager, loki string) string {
	c := fmt.Sprintf("sources: [{name: balancer, type: file, paths: [%q], lateness: 1s, labels: {role: lb}}]\n"+
		"spool: {dir: %q}\nnotify: [{type: stdout}, {type: alertmanager, urls: [%q], resend: 10s}]\n", log, spool, alertmanager)
	if loki != "" {
		c += fmt.Sprintf("loki: {url: %q, batch_wait: 200ms}\n", loki)
	}
	return c + compressed
}

// A storm is one page from its beginning to its end, whatever happens to the log and to squall meanwhile, and
// every line that nginx wrote is stored.
func TestStormIsOnePageAndNoLineIsLost(t *testing.T) {
	t.Parallel()
	logs := startVictoriaLogs(t)
	pages := newReceiver(t)
	am := startAlertmanager(t, pages.URL)
	origin := newOrigin(t, 4, 400*time.Millisecond)
	web := startNginx(t, origin.URL, "")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "squall.yaml"), stormConfig(web.log, filepath.Join(dir, "spool"), am, pushURL(logs)))

	people := visitors().flow(t, web)
	squall := runSquall(t, dir, surroundings{})
	eventually(t, "quiet panes are evaluated", func() bool { return squall.metric("squall_panes_closed_total") >= 5 })
	check(t, "pages before the storm", len(pages.told("/pager", "firing")), 0)

	storm := scanners().flow(t, web)
	eventually(t, "the page arrives", func() bool { squall.alive(); return len(pages.told("/pager", "firing")) > 0 })
	page := pages.told("/pager", "firing")[0]
	checkPage(t, page)
	began := squall.alerts("StormHurting", "firing")
	if len(began) != 1 {
		t.Fatalf("%d alerts fire", len(began))
	}

	// logrotate comes by. nginx goes on writing to the file that it has open until it is told.
	first, second := web.log+".1", web.log+".2"
	web.rotate(second, func() {
		before := size(second)
		eventually(t, "lines go to the renamed file", func() bool { return size(second) > before+2000 })
	})
	eventually(t, "the new log is read", func() bool {
		s, ok := squall.source(web.log)
		return ok && s.Error == "" && squall.metric(`squall_lines_read_total{source="balancer"}`) > float64(len(lines(t, second)))
	})

	// The configuration is loaded again: the alert goes on, and so does what is shipped.
	code, text := squall.reload()
	check(t, "answer to a reload: "+text, code, http.StatusOK)
	eventually(t, "the alert goes on", func() bool { return len(squall.alerts("StormHurting", "firing")) == 1 })
	check(t, "starts_at after a reload", squall.alerts("StormHurting", "firing")[0].StartsAt, began[0].StartsAt)

	// squall is killed, and the log is rotated again while it is away.
	squall.kill()
	web.rotate(first, func() {})
	squall = runSquall(t, dir, surroundings{})
	eventually(t, "the alert goes on", func() bool { return len(squall.alerts("StormHurting", "firing")) == 1 })
	check(t, "starts_at after kill -9", squall.alerts("StormHurting", "firing")[0].StartsAt, began[0].StartsAt)
	sent := `squall_notify_alerts_sent_total{notifier="alertmanager-2/` + strings.TrimPrefix(am, "http://") + `"}`
	eventually(t, "the restarted squall has told Alertmanager", func() bool { return squall.metric(sent) > 0 })
	check(t, "startsAt in Alertmanager", startsAt(t, am), page.Alerts[0].StartsAt.UTC())

	storm()
	eventually(t, "the end is told", func() bool { return len(pages.told("/pager", "resolved")) > 0 })
	people()
	check(t, "pages", len(pages.told("/pager", "firing")), 1)
	check(t, "ends", len(pages.told("/pager", "resolved")), 1)
	over := pages.told("/pager", "resolved")[0].Alerts[0]
	check(t, "labels of the end", over.Labels, page.Alerts[0].Labels)
	check(t, "startsAt of the end", over.StartsAt, page.Alerts[0].StartsAt)

	all := slices.Concat(lines(t, second), lines(t, first), lines(t, web.log))
	checkStored(t, logs, all)
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// checkPage looks at what the person on duty reads.
func checkPage(t *testing.T, page notification) {
	t.Helper()
	if len(page.Alerts) != 1 {
		t.Fatalf("the page tells of %d alerts", len(page.Alerts))
	}
	a := page.Alerts[0]
	check(t, "labels", a.Labels, map[string]string{"alertname": "StormHurting", "severity": "page", "site": "shop.example"})
	for key, part := range map[string]string{
		"summary": "shop.example", "cause": "HEAD", "evidence": "/product/{id}", "advice": "HEAD",
	} {
		if !strings.Contains(a.Annotations[key], part) {
			t.Errorf("annotation %s does not tell of %s: %q", key, part, a.Annotations[key])
		}
	}
	if since := time.Since(a.StartsAt); since < 0 || since > time.Minute {
		t.Errorf("the storm is said to have begun %s ago", since)
	}
}

// startsAt asks Alertmanager.
func startsAt(t *testing.T, am string) time.Time {
	t.Helper()
	_, text := request(http.MethodGet, am+"/api/v2/alerts?"+url.Values{"filter": {`alertname="StormHurting"`}}.Encode())
	var list []struct{ StartsAt time.Time }
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	return list[0].StartsAt.UTC()
}

var requestLine = regexp.MustCompile(`"([A-Z]+) \S+ HTTP/1\.1" (\d+) `)

// expected is what must be stored of a line: the line with its secret masked, and its metadata.
func expected(t *testing.T, line string) (text, metadata string) {
	t.Helper()
	m := requestLine.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("nginx wrote %q", line)
	}
	class := "browser"
	if m[1] == http.MethodHead {
		class = "scanner" // what a browser never sends
	}
	return secret.ReplaceAllString(line, "token=***"), metadataOf(map[string]string{
		"method": m[1], "status": m[2], "route": "/product/{id}", "client_class": class,
		"client_abandoned": fmt.Sprint(m[2] == "499"), "site": "shop.example", "source": "balancer", "role": "lb", "job": "squall",
	})
}

var secret = regexp.MustCompile(`token=[^ &"]*`)

func metadataOf(row map[string]string) string {
	var b strings.Builder
	for _, key := range []string{"method", "status", "route", "client_class", "client_abandoned", "site", "source", "role", "job"} {
		fmt.Fprintf(&b, "%s=%s ", key, row[key])
	}
	return b.String()
}

// checkStored compares what nginx wrote with what is stored, line by line and with how often each came.
func checkStored(t *testing.T, base string, written []string) {
	t.Helper()
	want, got := map[string]int{}, map[string]int{}
	statuses := map[string]int{}
	for _, line := range written {
		text, metadata := expected(t, line)
		want[metadata+text]++
		statuses[requestLine.FindStringSubmatch(line)[2]]++
	}
	if statuses["499"] < 20 || statuses["200"] < 20 {
		t.Fatalf("it was no storm: %v", statuses)
	}
	eventually(t, "every line can be queried", func() bool { return len(stored(t, base)) >= len(written) })
	rows := stored(t, base)
	for _, row := range rows {
		got[metadataOf(row)+row["_msg"]]++
	}
	check(t, "lines stored", len(rows), len(written))
	var missing, foreign []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			missing = append(missing, fmt.Sprintf("stored %d times instead of %d: %s", got[key], want[key], key))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if want[key] == 0 {
			foreign = append(foreign, "stored, but never written so: "+key)
		}
	}
	if len(missing)+len(foreign) > 0 {
		t.Errorf("of %d lines %d are not stored as they should be:\n%s", len(written), len(missing),
			strings.Join(slices.Concat(missing[:min(3, len(missing))], foreign[:min(3, len(foreign))]), "\n"))
	}
}

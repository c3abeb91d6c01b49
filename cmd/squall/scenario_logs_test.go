package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// written simulates a scenario with all its logs, each last written when the scenario ended.
func written(t testing.TB, o simulate.Options) (dir string, truth *simulate.Truth) {
	t.Helper()
	dir = t.TempDir()
	truth, err := simulate.RunFiles(t.Context(), o, func(name string) (io.WriteCloser, error) {
		return os.Create(filepath.Join(dir, name))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range truth.Logs {
		if err := os.Chtimes(filepath.Join(dir, l.File), truth.End, truth.End); err != nil {
			t.Fatal(err)
		}
	}
	return dir, truth
}

// known is the configuration of people who told squall which addresses are theirs.
func known(t testing.TB, o simulate.Options, workers int, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "squall.yaml")
	zone := "UTC"
	if o.Zone != nil {
		zone = o.Zone.String()
	}
	text := fmt.Sprintf(`sources: [{type: file, paths: [/var/log/nginx/access.log]}]
timezone: %q
own: {interfaces: false, addresses: [%s]}
allowed: [{name: office, addresses: [203.0.113.0/28]}]
site_defaults: {pool: {workers: %d}}
%s`, zone, simulate.OwnHost, workers, more)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// judgedLogs simulates a scenario and replays its logs but those that are left out.
func judgedLogs(t *testing.T, o simulate.Options, more string, without ...string) (*verdict, *simulate.Truth) {
	t.Helper()
	dir, truth := written(t, o)
	workers := 25
	if len(truth.Sites) > 0 {
		workers = truth.Sites[0].PoolWorkers
	}
	args := []string{"--config", known(t, o, workers, more)}
	if f := truth.Format; len(truth.Sites) == 1 && !logsHost[f] && (f == "nginx" || f == "ingress_nginx") {
		args = append(args, "--site", truth.Sites[0].Site)
	}
	lines := 0
	for _, l := range truth.Logs {
		if !slices.Contains(without, l.File) {
			args, lines = append(args, filepath.Join(dir, l.File)), lines+l.Lines
			if l.Format == "cloudfront_tsv" {
				lines += 2 // its header
			}
		}
	}
	v := replayed(t, args...)
	if v.summary.Lines != uint64(lines) || v.summary.Parsed != uint64(lines) || v.summary.Late != 0 {
		t.Errorf("%d lines were written; the summary says %+v", lines, v.summary)
	}
	return v, truth
}

// around are runs of one scenario in the given formats, with other seeds, hosts, rates, zones and times of the day.
func around(t *testing.T, name string, formats ...string) []simulate.Options {
	t.Helper()
	zones := []*time.Location{nil, time.FixedZone("+0545", 20700), time.FixedZone("-0330", -12600)}
	var all []simulate.Options
	for i, f := range formats {
		o := simulate.Options{Scenario: scenario(t, name), Format: f, Seed: uint64(41 + i), Zone: zones[i%3]}
		switch i % 3 {
		case 1:
			o.Host, o.Rate = "www.other.example.net", 0.75
		case 2:
			o.Host, o.Rate, o.Start = "c.example", 1.3, time.Date(2027, 12, 31, 23, 41, 7, 0, time.UTC)
		}
		all = append(all, o)
	}
	if testing.Short() {
		return all[:1]
	}
	return all
}

// eachOf runs a test for each variant.
func eachOf(t *testing.T, all []simulate.Options, test func(t *testing.T, o simulate.Options)) {
	t.Helper()
	for _, o := range all {
		t.Run(fmt.Sprintf("%s seed %d", o.Format, o.Seed), func(t *testing.T) { test(t, o) })
	}
}

// last gives the last transition of an alert, with the evidence of all of it, and when it began.
func last(t *testing.T, v *verdict, name string) (began, ended transition) {
	t.Helper()
	all := v.of(name)
	if len(all) == 0 {
		t.Fatalf("no %s: %+v", name, v.alerts)
	}
	return all[0], all[len(all)-1]
}

// paged checks that nobody is woken.
func paged(t *testing.T, v *verdict, names ...string) {
	t.Helper()
	var got []string
	for _, a := range v.pages() {
		got = append(got, a.Alert)
	}
	slices.Sort(got)
	slices.Sort(names)
	check(t, "pages", fmt.Sprint(got), fmt.Sprint(names))
}

// between checks a number of the evidence.
func between(t *testing.T, what string, got *float64, low, high float64) {
	t.Helper()
	if got == nil || *got < low || *got > high {
		value := "nothing"
		if got != nil {
			value = fmt.Sprint(*got)
		}
		t.Errorf("%s: %s, not %v to %v", what, value, low, high)
	}
}

// advised checks that a layer's advice says what it has to.
func advised(t *testing.T, a *transition, layer, text string) {
	t.Helper()
	if !slices.ContainsFunc(a.Advice, func(x alerts.Advice) bool {
		return (layer == "" || x.Layer == layer) && strings.Contains(x.Text+x.Snippet+x.Verify, text)
	}) {
		t.Errorf("%s: no advice for %s says %q: %+v", a.Alert, layer, text, a.Advice)
	}
}

// neverSaid checks what nobody may be advised to do.
func neverSaid(t *testing.T, v *verdict, words ...string) {
	t.Helper()
	for _, a := range v.alerts {
		for _, x := range a.Advice {
			for _, w := range words {
				if strings.Contains(x.Text, w) || strings.Contains(x.Snippet, w) {
					t.Errorf("%s advises %q: %+v", a.Alert, w, x)
				}
			}
		}
	}
}

// found gives the last transition of a detection.
func found(t *testing.T, v *verdict, name string) transition {
	t.Helper()
	i := slices.IndexFunc(v.detections, func(d transition) bool { return d.Detection == name && d.State == "over" })
	if i < 0 {
		t.Fatalf("no %s that is over: %+v", name, v.detections)
	}
	return v.detections[i]
}

// silent checks that a detector found nothing.
func silent(t *testing.T, v *verdict, names ...string) {
	t.Helper()
	for _, d := range v.detections {
		if slices.Contains(names, d.Detection) {
			t.Errorf("%s found something: %+v", d.Detection, d)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A range holds its ends; a single time stands for itself, give or take a pane; what never came is in none.
func TestTimesOfRuleTests(t *testing.T) {
	start := time.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC).UnixNano()
	at := func(s string) int64 {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		return start + int64(d)
	}
	for _, c := range []struct {
		text    string
		in, out []string
	}{
		{"+2m..+5m", []string{"2m", "3m", "5m"}, []string{"119s", "301s"}},
		{"+2m..", []string{"2m", "90h"}, []string{"1m"}},
		{"..5m", []string{"0s", "5m"}, []string{"301s"}},
		{"+2m", []string{"110s", "2m", "130s"}, []string{"109s", "131s"}},
		{"2026-07-01T10:01:00Z..+90s", []string{"1m", "90s"}, []string{"59s", "91s"}},
		{"2026-07-01T12:01:00+02:00", []string{"1m"}, []string{"2m"}},
	} {
		var r timeRange
		if err := r.UnmarshalText([]byte(c.text)); err != nil {
			t.Fatalf("%s: %v", c.text, err)
		}
		for _, s := range c.in {
			if !r.holds(at(s), start, 10*time.Second) {
				t.Errorf("%s is not in %s", s, c.text)
			}
		}
		for _, s := range c.out {
			if r.holds(at(s), start, 10*time.Second) {
				t.Errorf("%s is in %s", s, c.text)
			}
		}
		if r.holds(0, start, 10*time.Second) {
			t.Errorf("never is in %s", c.text)
		}
	}
	for _, bad := range []string{"", "..", "5", "-5m", "+2m...+5m", "tomorrow", "..soon"} {
		if err := new(timeRange).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is read as a time", bad)
		}
	}
}

// Each alert goes with one expectation, also where the first that fits is needed by another.
func TestPairing(t *testing.T) {
	table := [][]bool{{true, true, false}, {true, false, false}, {false, false, false}}
	got := pairUp(3, 3, func(i, j int) bool { return table[i][j] })
	if !slices.Equal(got, []int{1, 0, -1}) {
		t.Fatal(got)
	}
}

// FuzzRuleTests: no text makes the reader of rule tests panic; what it refuses it names with the file.
func FuzzRuleTests(f *testing.F) {
	for _, text := range []string{
		"tests: [{name: a, simulate: S01, alerts: [{alert: StormHurting, starts_at: +2m..+5m}], firing: [{at: 1m, alerts: []}], none: [page]}]",
		"tests: [null, {alerts: [null], firing: [null], detections: [null], none: [null], lines: x}]",
		"tests: [{name: a, simulate: {scenario: S01, rate: 2, seed: 3}, logs: null, format: {type: nginx, log_format: '$request'}}]",
		"alert_rule_test: x\ntests: 3", "tests: {}", "",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "x_test.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		tests, err := readRuleTests(path)
		if err != nil {
			if !strings.Contains(err.Error(), "x_test.yaml") && !strings.Contains(err.Error(), "no alert") {
				t.Fatalf("the error does not name the file: %v", err)
			}
			return
		}
		var errs configErrors
		for i := range tests.Tests {
			tests.Tests[i].checkNames([]string{"StormHurting"}, &errs)
			tests.Tests[i].compare(&observed{})
		}
	})
}

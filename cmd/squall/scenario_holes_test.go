package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
)

var millisecond = regexp.MustCompile(`msec=(\d+)\.(\d+)`)

// logWithout writes the lines of a log whose time is not in [from, to) after its start.
func logWithout(t *testing.T, text string, start time.Time, from, to time.Duration) (path string) {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(text) {
		m := millisecond.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("no time in %q", line)
		}
		at, err := time.ParseDuration(m[1] + "." + m[2] + "s")
		if err != nil {
			t.Fatal(err)
		}
		if since := at - time.Duration(start.UnixNano()); since < from || since >= to {
			out.WriteString(line)
		}
	}
	path = filepath.Join(t.TempDir(), "access.log")
	write(t, path, out.String())
	return path
}

// TestHolesInTheLog: no verdict is proven over a time of which lines are missing, and the end of what was not seen any
// more is not known.
func TestHolesInTheLog(t *testing.T) {
	storm, truth := simulated(t, simulate.Options{Scenario: scenario(t, "demo"), Format: "nginx_extended", Seed: 31})
	other, _ := simulated(t, simulate.Options{Scenario: shortened(scenario(t, "uptime_monitor"), 3), Format: "nginx_extended", Seed: 32, Host: "other.example", Start: truth.Start})
	text, err := os.ReadFile(storm)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(filepath.Dir(other), "elsewhere.log")
	if err := os.Rename(other, elsewhere); err != nil {
		t.Fatal(err)
	}
	start, workers := truth.Start, []string{"--workers", "25"}
	play := func(from, to time.Duration) *verdict {
		return replayed(t, append(workers, logWithout(t, string(text), start, from, to), elsewhere)...)
	}
	whole := play(0, 0)
	for _, a := range whole.of("StormHurting") {
		check(t, "verdict of the whole log", a.Cause.Verdict, alerts.Proven)
	}
	for name, hole := range map[string][2]time.Duration{
		"twenty seconds":        {11*time.Minute + 35*time.Second, 11*time.Minute + 55*time.Second},
		"to the end of the log": {12 * time.Minute, 20 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			v := play(hole[0], hole[1])
			_, resolved := once(t, v, "StormHurting")
			if resolved.Cause.Verdict == alerts.Proven || !strings.Contains(strings.Join(resolved.Cause.Missing, "; "), "access.log") {
				t.Errorf("cause: %+v", resolved.Cause)
			}
			states := map[string]bool{}
			for _, d := range v.detections {
				if d.Detection == "head_storm" {
					states[d.State] = true
				}
			}
			check(t, "a storm that was not seen any more", states["unknown"], hole[1] == 20*time.Minute)
			check(t, "a storm that was seen to be over", states["over"], hole[1] != 20*time.Minute)
		})
	}
	t.Run("begins inside the storm", func(t *testing.T) {
		late := logWithout(t, string(text), start, 0, 11*time.Minute)
		began, _ := once(t, replayed(t, append(workers, late)...), "HeadStorm")
		if e := &began.Evidence; e.BaselineRatio != nil || e.BaselinePerMinute != nil {
			t.Errorf("nobody knows what is usual, and the evidence has %v and %v", e.BaselineRatio, e.BaselinePerMinute)
		}
		out, _, err := execute(t.Context(), strings.NewReader(""), append([]string{"replay"}, append(workers, late)...)...)
		if err != nil || !strings.Contains(out, "what is usual is not known: nothing was read from before") || strings.Contains(out, "times what is usual") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

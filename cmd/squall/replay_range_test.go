package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// demoLog is the log of a short storm, and its lines.
func demoLog(t *testing.T) (path string, lines []string) {
	t.Helper()
	path, _ = simulated(t, simulate.Options{Scenario: scenario(t, "demo"), Format: "nginx_extended", Seed: 7})
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, slices.Collect(strings.Lines(string(text)))
}

// transitionsOf gives the lines of a transcript without its summary.
func transitionsOf(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, `{"summary"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// loggedAt is when a line of nginx was logged.
func loggedAt(t *testing.T, line string) time.Time {
	t.Helper()
	_, rest, _ := strings.Cut(line, "[")
	text, _, _ := strings.Cut(rest, "]")
	at, err := time.Parse("02/Jan/2006:15:04:05 -0700", text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestReplayRange: --until is a log that ends there, --since tells of what happened from there on as if the whole log
// had been told of.
func TestReplayRange(t *testing.T) {
	path, lines := demoLog(t)
	whole := replayed(t, "--workers", "25", path)
	page := whole.pages()[0]
	until := page.At.Add(95 * time.Second)
	cut := filepath.Join(t.TempDir(), "cut.log")
	write(t, cut, strings.Join(slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !loggedAt(t, l).Before(until) }), ""))

	early, short := replayed(t, "--workers", "25", "--until", until.Format(time.RFC3339), path), replayed(t, "--workers", "25", cut)
	check(t, "transitions until then", strings.Join(transitionsOf(early.text), ""), strings.Join(transitionsOf(short.text), ""))
	for _, s := range []*summary{&early.summary, &short.summary} {
		s.Seconds = 0
		for i := range s.Sources {
			s.Sources[i].Source = ""
		}
	}
	check(t, "summary", fmt.Sprintf("%+v", text(t, early.summary)), fmt.Sprintf("%+v", text(t, short.summary)))

	since := page.At.Add(65 * time.Second) // in the midst of it
	late := replayed(t, "--workers", "25", "--since", since.Format(time.RFC3339), path)
	if late.summary.Lines != whole.summary.Lines || late.summary.Before == 0 || late.summary.Before >= late.summary.Lines {
		t.Errorf("of %d lines %d are before --since", late.summary.Lines, late.summary.Before)
	}
	var want, lasting []string
	for _, line := range transitionsOf(whole.text) {
		var x transition
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		if x.At.After(since) {
			want = append(want, line)
		}
	}
	for _, line := range transitionsOf(late.text) {
		if slices.Contains(want, line) {
			continue
		}
		var x transition
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		if x.State != "firing" && x.State != "active" || x.Alert != "" && !x.StartsAt.Before(since) {
			t.Errorf("told, though it was before --since: %s", line)
		}
		lasting = append(lasting, x.Alert)
	}
	if len(transitionsOf(late.text)) != len(want)+len(lasting) || !slices.Contains(lasting, page.Alert) {
		t.Errorf("%d transitions are after it and %q lasted; told are:\n%s", len(want), lasting, late.text)
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestReplayRangeIsChecked(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, row := range []struct{ since, until, want string }{
		{"2026-11-30T11:00:00+01:00", "", "2026-11-30T10:00:00Z"},
		{"90m", "", "2026-11-30T10:30:00Z"},
		{"3d", "1h", "2026-11-27T12:00:00Z"},
		{"1.5h", "", "2026-11-30T10:30:00Z"},
		{"yesterday", "", "--since: \"yesterday\" is no time"},
		{"", "12:00", "--until: \"12:00\" is no time"},
		{"1h", "2h", "--since is not before --until"},
	} {
		r, err := parseRange(row.since, row.until, now)
		got := time.Unix(0, r.since).UTC().Format(time.RFC3339)
		if err != nil {
			got = err.Error()
			check(t, "exit code", exitCode(err), exitUsage)
		}
		if !strings.HasPrefix(got, row.want) {
			t.Errorf("%q to %q: %s", row.since, row.until, got)
		}
	}
}

// TestReplayDoesNotReadBeyond: a file whose rest is of after --until is not read on, so that its damage is no fault.
func TestReplayDoesNotReadBeyond(t *testing.T) {
	_, lines := demoLog(t)
	half := len(lines) / 2
	dir := t.TempDir()
	write(t, filepath.Join(dir, "access.log.2"), strings.Join(lines[:half], ""))
	packed := gzipped(t, []byte(strings.Join(lines[half:], "")))
	if err := os.WriteFile(filepath.Join(dir, "access.log.1.gz"), packed[:len(packed)*3/4], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := execute(t.Context(), nil, "replay", dir); exitCode(err) != exitFailed {
		t.Errorf("a torn archive: %v", err)
	}
	until := loggedAt(t, lines[half]).Add(-time.Minute).Format(time.RFC3339)
	if _, told, err := execute(t.Context(), nil, "replay", "--until", until, dir); err != nil {
		t.Errorf("it is of after --until: %v %s", err, told)
	}
}

// TestReplayOfManyArchives: their order is that of the lines in them, not of names or dates; there are more than
// may be open at once, all of the same time, or one after the other.
func TestReplayOfManyArchives(t *testing.T) {
	path, lines := demoLog(t)
	want := transitionsOf(replayed(t, "--workers", "25", path).text)
	const files = 400
	random := rand.New(rand.NewPCG(1, 2))
	names := random.Perm(files)
	program := plainProgram(t) // the race detector multiplies memory
	for name, of := range map[string]func(i int) int{
		"at the same time":    func(i int) int { return i % files },
		"one after the other": func(i int) int { return i * files / len(lines) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			parts := make([]strings.Builder, files)
			for i, line := range lines {
				parts[of(i)].WriteString(line)
			}
			for i := range parts {
				file := filepath.Join(dir, fmt.Sprintf("access.log.%d.gz", names[i]))
				if err := os.WriteFile(file, gzipped(t, []byte(parts[i].String())), 0o600); err != nil {
					t.Fatal(err)
				}
				at := time.Unix(1.7e9, 0).Add(time.Duration(random.IntN(1e6)) * time.Second)
				if err := os.Chtimes(file, at, at); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("sh", "-c", `ulimit -n 300; exec "$0" replay --json - --detections --workers 25 "$1"`, program, dir)
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, os.Stderr
			used, err := peakMemory(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if got := transitionsOf(out.String()); !slices.Equal(got, want) {
				t.Errorf("%d transitions, not the %d of the log in one file", len(got), len(want))
			}
			if used == 0 || used > 512<<10 {
				t.Errorf("it took %d KiB of memory", used)
			}
		})
	}
}

// peakMemory runs a program and gives the most memory, in KiB, that it held. It is asked for while the program runs:
// what the kernel tells of a process that ended counts what this process held when it started it.
func peakMemory(cmd *exec.Cmd) (kib int, err error) {
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for look := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case err := <-ended:
			look.Stop()
			return kib, err
		case <-look.C:
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if _, peak, found := strings.Cut(string(status), "\nVmHWM:"); found {
			_, _ = fmt.Sscan(peak, &kib) // it may have ended in the middle
		}
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A twin is one of several logs with the same lines, but for the host, that differ in how they are rotated.
type twin struct {
	host, path string
	out        *os.File
	rotate     func(*twin, int) // nil: it is not
	reopen     time.Time        // when the writer, who goes on writing to what was renamed, opens the new file; zero: it has
	rotations  int
	lines      int
}

func (w *twin) open(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	w.out = f
}

// write writes one line, as nginx does: at once and whole.
func (w *twin) write(t *testing.T, at time.Time, line string) {
	t.Helper()
	if !w.reopen.IsZero() && at.After(w.reopen) {
		if err := w.out.Close(); err != nil {
			t.Fatal(err)
		}
		w.open(t)
		w.reopen = time.Time{}
	}
	if _, err := w.out.WriteString(strings.Replace(line, "shop.example", w.host, 1)); err != nil {
		t.Fatal(err)
	}
	w.lines++
}

// scanned is a line of a scanner that the origin has no worker for: each third gives up.
func scanned(at time.Time, i int) string {
	line := logLine(at, http.MethodHead, i%50)
	if i%3 == 0 {
		line = strings.Replace(line, `HTTP/1.1" 200`, `HTTP/1.1" 499`, 1)
		line = strings.ReplaceAll(line, "0.400", "1.500")
	}
	return line
}

// rotatedTwins are a log that stays, one that logrotate renames, and one that it copies and truncates (copytruncate).
func rotatedTwins(t *testing.T, dir string) []*twin {
	rename := func(w *twin, n int) {
		if err := os.Rename(w.path, fmt.Sprintf("%s.%d", w.path, n)); err != nil {
			t.Fatal(err)
		}
		w.reopen = time.Now().Add(200 * time.Millisecond)
	}
	truncate := func(w *twin, n int) {
		text, err := os.ReadFile(w.path)
		if err == nil {
			err = os.WriteFile(fmt.Sprintf("%s.%d", w.path, n), text, 0o644)
		}
		if err == nil {
			err = os.Truncate(w.path, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	all := []*twin{{host: "plain.example"}, {host: "renamed.example", rotate: rename}, {host: "truncated.example", rotate: truncate}}
	for _, w := range all {
		w.path = filepath.Join(dir, w.host+".log")
		w.open(t)
		t.Cleanup(func() { _ = w.out.Close() })
	}
	return all
}

// told are the transitions of one twin that squall wrote to standard output, with nothing in them that tells which.
func (w *twin) told(t *testing.T, p *program) (transcript []string) {
	t.Helper()
	for line := range strings.Lines(p.stdout.String()) {
		var a map[string]any
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if a["labels"].(map[string]any)["site"] != w.host {
			continue
		}
		delete(a, "incident") // it names those that it is not merged with
		text, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		transcript = append(transcript, strings.ReplaceAll(string(text), w.host, "shop.example"))
	}
	return transcript
}

// A storm whose log is rotated under it, again and again, is told as that of a log which is not: by rename no line is
// lost; by copying and truncating what is lost is little, and counted.
func TestRotationInAStorm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := rotatedTwins(t, dir)
	_, settings, _ := strings.Cut(compressed, "pane: 1s\n")
	config := fmt.Sprintf("spool: {dir: %q}\nnotify: [{type: stdout, format: json}]\nown: {interfaces: false}\npane: 1s\n%ssites:\n", filepath.Join(dir, "spool"), settings)
	sources := "sources:\n"
	for _, w := range all {
		config += fmt.Sprintf("  - {name: %s, routes: [\"/product/{id}\"], pool: {workers: 4, reclaim_timeout: 10s}}\n", w.host)
		sources += fmt.Sprintf("  - {name: %s, type: file, paths: [%q], lateness: 3s}\n", w.host, w.path)
	}
	write(t, filepath.Join(dir, "squall.yaml"), config+sources)
	squall := runSquall(t, dir, surroundings{})

	const storms, over, rotates = 5 * time.Second, 17 * time.Second, 3 * time.Second
	began := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ended := func() bool { return strings.Count(squall.stdout.String(), `"state":"resolved"`) >= 2*len(all) }
	for i := 0; i%50 != 0 || !ended(); i++ {
		at := <-tick.C
		since := at.Sub(began)
		if since > 90*time.Second {
			t.Fatalf("the storm is not over: %s", squall.stdout)
		}
		for _, w := range all {
			if storms < since && since < over {
				w.write(t, at, scanned(at, i))
			}
			if i%10 == 0 {
				w.write(t, at, logLine(at, http.MethodGet, i))
			}
			if n := int(since / rotates); w.rotate != nil && n > w.rotations {
				w.rotations = n
				w.rotate(w, n)
			}
		}
	}
	plain, renamed, truncated := all[0], all[1], all[2]
	read := func(w *twin) int {
		return int(squall.metric(fmt.Sprintf("squall_lines_read_total{source=%q}", w.host)))
	}
	for _, w := range []*twin{plain, renamed} {
		eventually(t, "every line of "+w.host+" is read", func() bool { return read(w) >= w.lines })
		check(t, "lines of "+w.host, read(w), w.lines)
		check(t, "late lines of "+w.host, squall.metric(fmt.Sprintf("squall_lines_late_total{source=%q}", w.host)), 0.0)
		check(t, "gaps of "+w.host, squall.gaps(w.host), 0.0)
	}
	want := plain.told(t, squall)
	if len(want) < 4 || !strings.Contains(strings.Join(want, "\n"), `"alert":"StormHurting"`) {
		t.Fatalf("no storm is told: %v", want)
	}
	check(t, "transcript of the renamed log", strings.Join(renamed.told(t, squall), "\n"), strings.Join(want, "\n"))

	lost := truncated.lines - read(truncated)
	if most := truncated.rotations * 30; lost < 0 || lost > most || lost > 0 && squall.gaps(truncated.host) == 0 {
		t.Errorf("%d of %d lines are lost in %d truncations, %v gaps are counted", lost, truncated.lines, truncated.rotations, squall.gaps(truncated.host))
	}
	if got := truncated.told(t, squall); squall.gaps(truncated.host) == 0 {
		check(t, "transcript of the truncated log", strings.Join(got, "\n"), strings.Join(want, "\n"))
	} else {
		check(t, "transitions of the truncated log", len(got), len(want))
	}
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// gaps are the places where lines of a source were gone, by all reasons.
func (p *program) gaps(source string) (n float64) {
	p.t.Helper()
	_, text := p.get("/metrics")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "squall_gaps_total{") && strings.Contains(line, fmt.Sprintf("source=%q", source)) {
			var v float64
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v); err != nil {
				p.t.Fatal(err)
			}
			n += v
		}
	}
	return n
}

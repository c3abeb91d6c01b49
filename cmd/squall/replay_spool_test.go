package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// retold is what a transcript says of each transition, without the lines that redaction may have changed.
func retold(v *verdict) string {
	var b strings.Builder
	for _, x := range append(v.alerts, v.detections...) {
		fmt.Fprintln(&b, x.At, x.Alert, x.Detection, x.State, x.Severity, x.Labels, x.StartsAt, x.EndsAt, x.Cause.Verdict, x.Evidence.Requests)
	}
	return b.String()
}

// TestReplayFromSpool: what a daemon has read is judged again from its spool as the files are, two sources one after the
// other in it, a part of each twice delivered; not while the daemon uses it; and damage is told.
func TestReplayFromSpool(t *testing.T) {
	dir, logs := t.TempDir(), t.TempDir()
	o := simulate.Options{Scenario: scenario(t, "demo"), Format: "nginx_extended", Seed: 9}
	path, _ := simulated(t, o)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var a, b strings.Builder
	for i, line := range strings.SplitAfter(string(text), "\n") {
		if i%3 == 0 {
			a.WriteString(line)
		} else {
			b.WriteString(line)
		}
	}
	write(t, filepath.Join(logs, "a.log"), a.String())
	write(t, filepath.Join(logs, "b.log"), b.String())
	config := filepath.Join(dir, "squall.yaml")
	write(t, config, fmt.Sprintf(`
sources:
  - {name: a, type: file, paths: [%[1]s/a.log]}
  - {name: pipe, type: stdin, format: nginx_extended}
site_defaults: {pool: {workers: 25}}
spool: {dir: %[2]s/spool}
`, logs, dir))
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	p := runSquall(t, dir, surroundings{stdin: in})
	eventually(t, "the first source is read", func() bool {
		return p.metric(`squall_lines_read_total{source="a"}`) == float64(strings.Count(a.String(), "\n"))
	})
	if _, err := io.WriteString(to, b.String()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second source is read", func() bool {
		return p.metric(`squall_lines_read_total{source="pipe"}`) == float64(strings.Count(b.String(), "\n"))
	})
	spoolArgs := []string{"--config", config, "--from-spool"}
	if _, _, err := execute(t.Context(), nil, append([]string{"replay"}, spoolArgs...)...); exitCode(err) != exitFailed || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("the spool of a squall that runs: %v", err)
	}
	if code := p.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}

	want := replayed(t, "--config", config, filepath.Join(logs, "a.log"), filepath.Join(logs, "b.log"))
	got := replayed(t, spoolArgs...)
	check(t, "transitions", retold(got), retold(want))
	if got.summary.Lines != want.summary.Lines || got.summary.Late != 0 || got.summary.Parsed != want.summary.Parsed {
		t.Errorf("of %+v the spool gives %+v", want.summary, got.summary)
	}
	bare := replayed(t, "--workers", "25", "--from-spool", filepath.Join(dir, "spool")) // the formats are found again
	check(t, "transitions without the configuration", retold(bare), retold(want))
	half := want.pages()[0].At.Add(time.Minute).Format(time.RFC3339)
	check(t, "transitions until then", retold(replayed(t, append(spoolArgs, "--until", half)...)),
		retold(replayed(t, "--config", config, "--until", half, filepath.Join(logs, "a.log"), filepath.Join(logs, "b.log"))))

	harm(t, filepath.Join(dir, "spool"))
	out, _, err := execute(t.Context(), nil, append([]string{"replay", "--json", "-"}, spoolArgs...)...)
	if exitCode(err) != exitFailed || !strings.Contains(err.Error(), "damaged") || !strings.Contains(out, `{"summary":`) {
		t.Errorf("a damaged spool: %v\n%s", err, out)
	}
	if _, _, err := execute(t.Context(), nil, "replay", "--from-spool", logs); exitCode(err) != exitFailed || !strings.Contains(err.Error(), "holds no spool") {
		t.Errorf("what is no spool: %v", err)
	}
	if _, _, err := execute(t.Context(), nil, "replay", "--from-spool", dir, logs); exitCode(err) != exitUsage {
		t.Errorf("two spools: %v", err)
	}
}

// harm overwrites a byte in the middle of a spool's largest block.
func harm(t *testing.T, dir string) {
	t.Helper()
	blocks, err := filepath.Glob(filepath.Join(dir, "store/jetstream/$G/streams/LINES/msgs/*.blk"))
	if err != nil || len(blocks) == 0 {
		t.Fatalf("no block: %v", err)
	}
	var text []byte
	var at string
	for _, path := range blocks {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > len(text) {
			text, at = b, path
		}
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(at, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

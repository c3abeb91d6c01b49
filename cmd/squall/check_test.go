package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func runCheck(args ...string) (stdout string, err error) {
	var out bytes.Buffer
	cmd := newCheckCommand(families())
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err = cmd.Execute()
	return out.String(), err
}

func TestCheckCommand(t *testing.T) {
	out, err := runCheck("--config", "../../deploy/squall.example.yaml")
	if err != nil || !strings.Contains(out, "name: shop.example") {
		t.Fatalf("%v: %s", err, out)
	}
	out, err = runCheck("--config", "testdata/config/bad/unknown_keys.yaml")
	if exitCode(err) != exitUsage || out != "" {
		t.Errorf("%v %q", err, out)
	}
	if lines := strings.Count(err.Error(), "\n") + 1; lines < 6 {
		t.Errorf("%d faults are told: %v", lines, err)
	}
	if _, err := runCheck("--config", "testdata/config/none.yaml"); exitCode(err) != exitUsage {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := runCheck(); err == nil {
		t.Error("check without --config succeeds")
	}
}

func TestExitCode(t *testing.T) {
	for want, err := range map[int]error{0: nil, exitFailed: errors.New("x"), exitUsage: usageError(errors.New("x"))} {
		check(t, "code", exitCode(err), want)
	}
}

// A log_format that leaves out what detection needs is no fault, and no secret either.
func TestCheckTellsWhatALogFormatLacks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "squall.yaml")
	text := "sources: [{name: a, type: file, paths: [/x], format: {type: nginx, log_format: '$remote_addr $bogus'}}]\nspool: {dir: /tmp/x}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := runCheck("--config", file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"no time", "no request", "no status", "$bogus is no variable"} {
		if !strings.Contains(out, "warning: source a: log_format: "+want) {
			t.Errorf("%q is not told: %s", want, out)
		}
	}
}

func TestUnknownWordNamesEachCandidateOnce(t *testing.T) {
	check(t, "text", unknown("key", "zzzzzz", []string{"labels", "format", "labels", "format"}), `unknown key "zzzzzz": known are format, labels`)
}

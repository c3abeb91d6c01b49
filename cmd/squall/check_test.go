package main

import (
	"bytes"
	"errors"
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

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const unitPath = "../../deploy/systemd/squall.service"

// TestUnitIsHardened holds what `systemd-analyze security` says of the unit: 0 is nothing to gain, 10 everything.
func TestUnitIsHardened(t *testing.T) {
	t.Parallel()
	text, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=yes", "--threshold=15", "--no-pager", unitPath).CombinedOutput()
	if err != nil || !strings.Contains(string(text), "Overall exposure level for squall.service: 1.") {
		t.Errorf("the exposure is above 1.5 (%v):\n%s", err, text)
	}
	rows, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=yes", "--json=short", unitPath).Output()
	if err != nil {
		t.Fatal(err)
	}
	var settings []struct {
		Set  *bool
		Name string
	}
	if err := json.Unmarshal(rows, &settings); err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		if s.Set != nil && !*s.Set && strings.HasPrefix(s.Name, "CapabilityBoundingSet") {
			t.Errorf("a capability is left: %s", s.Name)
		}
	}
}

// TestUnitIsSound holds that systemd finds no fault in the unit where squall and its manual are installed.
func TestUnitIsSound(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(unitPath)
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "squall.service")
	write(t, unit, strings.ReplaceAll(string(text), "/usr/bin/squall", program))
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

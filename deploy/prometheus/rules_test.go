// Package prometheus holds rules for Prometheus; its tests are promtool's.
package prometheus

import (
	"os/exec"
	"testing"
)

// TestRules runs the unit tests of the rules in Debian's promtool.
func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "squall.rules.yml"}, {"test", "rules", "squall.rules_test.yml"}} {
		path, err := exec.LookPath("promtool")
		if err != nil {
			t.Fatalf("%v: `make test` installs it", err)
		}
		if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}

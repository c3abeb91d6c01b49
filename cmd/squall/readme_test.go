package main

import (
	"os"
	"strings"
	"testing"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline/format"
	"github.com/squall-sre/squall/pipeline/source"
)

// TestReadmeNamesEveryKind holds that the README's tables have what the families' tables have.
func TestReadmeNamesEveryKind(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	families := map[string][]string{
		"format": format.Names(), "source": source.Kinds(), "detector": detectors.Names(), "notifier": notify.Kinds(),
	}
	for _, r := range alerts.ShippedRules() {
		families["rule"] = append(families["rule"], r.Name)
	}
	for _, c := range newRootCommand().Commands() {
		if c.Name() != "help" && c.Name() != "completion" && !strings.Contains(string(readme), "squall "+c.Name()) {
			t.Errorf("the README does not show the command %s", c.Name())
		}
	}
	for family, names := range families {
		for _, name := range names {
			if !strings.Contains(string(readme), "`"+name+"`") && name != "auto" {
				t.Errorf("the README does not name the %s `%s`", family, name)
			}
		}
	}
}

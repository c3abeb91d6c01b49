package detectors

import (
	"reflect"
	"strings"
	"testing"
)

// TestHelp holds that every detector tells of itself in full, and of nothing that does not exist.
func TestHelp(t *testing.T) {
	fields := map[string]bool{}
	for i := range reflect.TypeFor[Evidence]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[Evidence]().Field(i).Tag.Get("json"), ",")
		fields[name] = true
	}
	for _, name := range Names() {
		h, settings, err := HelpFor(name)
		if err != nil {
			t.Fatal(err)
		}
		if h.Watches == "" || h.Formula == "" || len(h.Evidence) == 0 || len(h.FalsePositives) == 0 || len(h.Runbook) < 2 || len(settings) == 0 {
			t.Errorf("%s: %+v with %v", name, h, settings)
		}
		for _, e := range h.Evidence {
			if !fields[e] {
				t.Errorf("%s names %q, which is no field of the evidence", name, e)
			}
		}
		known := map[string]bool{}
		for _, s := range settings {
			known[s.Name] = true
			if s.Value == "" {
				t.Errorf("%s: %s has no value", name, s.Name)
			}
		}
		named := strings.Split(h.Formula, "`")
		for i := 1; i < len(named); i += 2 {
			if !known[named[i]] {
				t.Errorf("%s: the formula names %q, which is no setting", name, named[i])
			}
		}
	}
	if _, _, err := HelpFor("no_such"); err == nil {
		t.Error("help of a detector that there is not")
	}
}

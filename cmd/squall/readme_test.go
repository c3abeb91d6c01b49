package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline/format"
	"github.com/squall-sre/squall/pipeline/source"
)

const readmePath = "../../README.md"

var writeReadme = flag.Bool("write-readme", false, "write the README's tables anew")

func readReadme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(readmePath)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readmeTables are the tables of the README that the code's own tables tell.
func readmeTables() map[string]string {
	var formats, sources strings.Builder
	formats.WriteString("| format | | what it reads |\n|---|---|---|\n")
	for _, name := range format.Names() {
		text, auto, ok := format.Reads(name)
		if !ok {
			continue // auto itself
		}
		mark := ""
		if auto {
			mark = "✓"
		}
		fmt.Fprintf(&formats, "| `%s` | %s | %s |\n", name, mark, text)
	}
	sources.WriteString("| source | what it reads |\n|---|---|\n")
	for _, name := range source.Kinds() {
		fmt.Fprintf(&sources, "| `%s` | %s |\n", name, source.Reads(name))
	}
	return map[string]string{"formats": formats.String(), "sources": sources.String()}
}

// TestReadmeTables holds that the README has the tables as the code has them.
func TestReadmeTables(t *testing.T) {
	readme := readReadme(t)
	for name, table := range readmeTables() {
		head := "<!-- " + name + ": make readme -->\n"
		before, rest, found := strings.Cut(readme, head)
		is, after, ended := strings.Cut(rest, "<!-- end -->")
		if !found || !ended {
			t.Fatalf("the README has no place for the table of %s", name)
		}
		if is != table && !*writeReadme {
			t.Errorf("the README's table of %s is not the code's: make readme", name)
		}
		readme = before + head + table + "<!-- end -->" + after
	}
	if *writeReadme {
		if err := os.WriteFile(readmePath, []byte(readme), 0o644); err != nil { //nolint:gosec // it is for everybody to read
			t.Fatal(err)
		}
	}
}

// TestReadmeNamesEveryKind holds that the README shows every detector, notifier, rule and command.
func TestReadmeNamesEveryKind(t *testing.T) {
	readme := readReadme(t)
	families := map[string][]string{"detector": detectors.Names(), "notifier": notify.Kinds()}
	for _, r := range alerts.ShippedRules() {
		families["rule"] = append(families["rule"], r.Name)
	}
	for _, c := range shownCommands(newRootCommand()) {
		if !strings.Contains(readme, "squall "+c.Name()) {
			t.Errorf("the README does not show the command %s", c.Name())
		}
	}
	for family, names := range families {
		for _, name := range names {
			if !strings.Contains(readme, "`"+name+"`") {
				t.Errorf("the README does not name the %s `%s`", family, name)
			}
		}
	}
}

// TestReadmeRules holds that the README's rules load and that its rule test succeeds with them.
func TestReadmeRules(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var rules, tests string
	for block := range strings.SplitSeq(readReadme(t), "```yaml\n") {
		block, _, _ = strings.Cut(block, "```")
		switch {
		case strings.HasPrefix(block, "rules:"):
			rules = write("squall.yaml", "sources: [{type: stdin}]\n"+block)
		case strings.HasPrefix(block, "config:"):
			tests = write("rules_test.yaml", block)
		}
	}
	if rules == "" || tests == "" {
		t.Fatal("the README shows no rules, or no test of them")
	}
	if _, err := runCheck("--config", rules); err != nil {
		t.Error(err)
	}
	if out, err := runCheck("--test", tests); err != nil || !strings.Contains(out, "SUCCESS") {
		t.Errorf("%v\n%s", err, out)
	}
}

package main

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline/spool"
)

// TestReferenceIsTheCodes holds that deploy/reference/ is what the code says, or writes it: make readme.
func TestReferenceIsTheCodes(t *testing.T) {
	for name, text := range map[string]string{
		"configuration.md": referenceConfiguration(t), "detectors.md": referenceDetectors(t),
		"metrics.md": referenceMetrics(t), "commands.md": referenceCommands(),
	} {
		compareGenerated(t, filepath.Join("../../deploy/reference", name), []byte("<!-- generated: make readme -->\n"+text))
	}
}

// cell is a text in a table of Markdown.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(s)
}

func referenceConfiguration(t *testing.T) string {
	keys, err := schemaKeysOf(generatedSchema(t))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Configuration\n\n`[]` stands for each item of a list, `[](file)` for one of that type, `NAME` for a name of your own. Editors\n" +
		"complete and check by `squall.schema.json`: begin a file with\n`# yaml-language-server: $schema=/usr/share/squall/squall.schema.json`.\n\n" +
		"| key | what | default | |\n|---|---|---|---|\n")
	for _, k := range keys {
		fallback := ""
		if k.fallback != "" {
			fallback = "`" + k.fallback + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.path, k.typ, cell(fallback), cell(k.about))
	}
	return b.String()
}

func referenceDetectors(t *testing.T) string {
	var b strings.Builder
	b.WriteString("# Detectors\n\n`squall explain --detector NAME` prints the same.\n")
	for _, name := range detectors.Names() {
		h, settings, err := detectors.HelpFor(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\nFires when %s.\n\n| setting | default |\n|---|---|\n", name, strings.TrimSuffix(h.Watches, "."), strings.TrimSuffix(h.Formula, "."))
		for _, s := range settings {
			fmt.Fprintf(&b, "| `%s` | %s |\n", s.Name, s.Value)
		}
		fmt.Fprintf(&b, "\nEvidence: %s.\n\nFalse positives:\n\n", strings.Join(h.Evidence, ", "))
		for _, l := range h.FalsePositives {
			fmt.Fprintf(&b, "- %s\n", l)
		}
		b.WriteString("\nWhat to do:\n\n")
		for _, l := range h.Runbook {
			fmt.Fprintf(&b, "- %s\n", l)
		}
	}
	return b.String()
}

func referenceCommands() string {
	var b strings.Builder
	b.WriteString("# Commands\n\n## Exit codes\n\n| code | |\n|---|---|\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", e.code, cell(e.meaning))
	}
	for _, c := range shownCommands(newRootCommand()) {
		fmt.Fprintf(&b, "\n## squall %s\n\n```\nsquall %s\n```\n\n%s\n", c.Name(), strings.ReplaceAll(c.Use, " | ", "\nsquall "), c.Short+".")
		if c.Long != "" {
			fmt.Fprintf(&b, "\n%s\n", strings.ReplaceAll(c.Long, "<", "&lt;"))
		}
		b.WriteString("\n| flag | |\n|---|---|\n")
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			value, usage := pflag.UnquoteUsage(f)
			fmt.Fprintf(&b, "| `--%s` | %s |\n", strings.TrimSpace(f.Name+" "+value), cell(usage))
		})
	}
	return b.String()
}

var described = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), (?:unit: "[^"]*", )?constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

// referenceMetrics lists what a daemon with everything configured exports.
func referenceMetrics(t *testing.T) string {
	c, faults, err := parseConfig("reference.yaml", []byte(`sources: [{type: stdin}]
loki: {url: "http://127.0.0.1:3100"}
suppress: [{name: none, when: latency}]
notify: [{type: stdout}, {type: webhook, url: "http://127.0.0.1:9095/"}, {type: alertmanager, urls: ["http://127.0.0.1:9093"]}]
`), nil)
	if err != nil || len(faults) > 0 {
		t.Fatal(err, faults)
	}
	process := prometheus.NewRegistry()
	c.Spool.Dir = t.TempDir()
	store, err := spool.Open(t.Context(), spool.Config{Dir: c.Spool.Dir, MaxBytes: int64(c.Spool.MaxBytes), MaxAge: c.Spool.MaxAge, Log: zap.NewNop(), Registerer: process})
	if err != nil {
		t.Fatal(err)
	}
	defer closeSpool(t.Context(), store, zap.NewNop())
	outbox, err := notify.OpenOutbox(t.Context(), bucketKV{store, stateBucket}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	s := &server{
		log: zap.NewNop(), store: store, outbox: outbox, stdin: strings.NewReader(""), stdout: io.Discard,
		accounts: newAccounts(process), unreadable: newUnreadable(process), reloaded: newReloadMetrics(process),
	}
	d, err := s.build(c)
	if err != nil {
		t.Fatal(err)
	}
	d.abandon()
	rows := map[string]string{}
	for _, reg := range []*prometheus.Registry{process, d.registry} {
		ch := make(chan *prometheus.Desc, 10_000)
		reg.Describe(ch)
		close(ch)
		for desc := range ch {
			m := described.FindStringSubmatch(desc.String())
			if m == nil {
				t.Fatalf("%s is not understood", desc)
			}
			name, help := unquoted(t, m[1]), unquoted(t, m[2])
			rows[name] = fmt.Sprintf("| `%s` | %s | %s |\n", name, strings.ReplaceAll(m[3], ",", ", "), cell(help))
		}
	}
	if len(rows) < 40 {
		t.Fatalf("%d metrics", len(rows))
	}
	var b strings.Builder
	b.WriteString("# Metrics\n\nUnder `/metrics`. Labels are bounded, and counters begin at 0.\n\n| metric | labels | |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		b.WriteString(rows[name])
	}
	return b.String()
}

func unquoted(t *testing.T, s string) string {
	t.Helper()
	out, err := strconv.Unquote(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

var update = flag.Bool("update", false, "write the golden files anew")

// secretText is what the secrets of testdata/config are: it may appear nowhere.
const secretText = "hunter2"

// configEnv is the environment of testdata/config, with two secrets in files.
func configEnv(t testing.TB) func(string) (string, bool) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"pager": "https://pager.example/" + secretText + "\n", "loki": secretText + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"SQUALL_TEST_DIR": "nginx: [a, b]", "SQUALL_TEST_SECRETS": dir}
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

// settings are the keys that the kinds of testdata/config have.
type settings struct {
	Paths       []string      `yaml:"paths"`
	Units       []string      `yaml:"units"`
	Kubeconfig  string        `yaml:"kubeconfig"`
	Bucket      string        `yaml:"bucket"`
	Prefix      string        `yaml:"prefix"`
	SQSQueueURL string        `yaml:"sqs_queue_url"`
	Endpoint    string        `yaml:"endpoint"`
	URLs        []string      `yaml:"urls"`
	URL         string        `yaml:"url"`
	Resend      time.Duration `yaml:"resend"`
	Retries     int           `yaml:"retries"`
	LogFormat   string        `yaml:"log_format"`
}

func (s settings) check(name string) error {
	if name == "file" && len(s.Paths) == 0 {
		return errors.New("paths is empty")
	}
	return nil
}

func testFamilies() Families {
	kind := func(name string, decode func(any) error) error {
		s := settings{Resend: time.Minute}
		if err := decode(&s); err != nil {
			return err
		}
		return s.check(name)
	}
	return Families{
		Source: kind, Format: kind, Notifier: kind,
		Detector: func(name string, decode func(any) error) error {
			_, err := detectors.New(name, decode)
			return err
		},
		Sources:   []string{"file", "container", "stdin", "journal", "kubernetes", "s3"},
		Formats:   []string{"auto", "nginx", "ingress_nginx", "kubernetes"},
		Notifiers: []string{"stdout", "alertmanager", "webhook"},
		Detectors: detectors.Names(),
	}
}

// loadAll loads and validates as `squall check` does.
func loadAll(path string, env func(string) (string, bool)) (*Config, error) {
	c, err := LoadValid(path, env, testFamilies())
	if err != nil {
		return nil, err
	}
	return c, c.RequireSources()
}

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("no file is like %s (%v)", pattern, err)
	}
	return found
}

// Every fault is told at its place, all at once.
func TestConfigFaults(t *testing.T) {
	env := configEnv(t)
	for _, path := range glob(t, "testdata/config/bad/*.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			_, err := loadAll(path, env)
			if err == nil {
				t.Fatal("loads")
			}
			if strings.Contains(err.Error(), secretText) {
				t.Fatalf("tells a secret: %v", err)
			}
			dir, _ := env("SQUALL_TEST_SECRETS")
			got := strings.ReplaceAll(err.Error(), dir, "DIR") + "\n"
			golden := strings.TrimSuffix(path, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
			for line := range strings.Lines(got) {
				if !strings.HasPrefix(line, path+":") {
					t.Errorf("no place: %s", line)
				}
			}
		})
	}
}

// What check prints is a configuration: it loads, and prints itself. No secret is in it.
func TestEffectiveConfigLoadsAgain(t *testing.T) {
	env := configEnv(t)
	for _, path := range append(glob(t, "testdata/config/good/*.yaml"), glob(t, "../../deploy/*.example.yaml")...) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			first, err := LoadValid(path, env, families())
			if err != nil {
				t.Fatal(err)
			}
			text, err := first.Effective()
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, []byte(secretText)) {
				t.Errorf("tells a secret:\n%s", text)
			}
			again := filepath.Join(t.TempDir(), "effective.yaml")
			if err := os.WriteFile(again, text, 0o600); err != nil {
				t.Fatal(err)
			}
			second, err := LoadValid(again, env, families())
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			text2, err := second.Effective()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(text), string(text2)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(values(first), values(second)); diff != "" && filepath.Base(path) != "secrets.yaml" {
				t.Error(diff)
			}
		})
	}
}

// values gives all that the file says, for comparison.
func values(c *Config) map[string]any {
	out := map[string]any{
		"own": fmt.Sprint(c.Own), "allowed": fmt.Sprint(c.Allowed), "proxies": fmt.Sprint(c.TrustedProxies),
		"zone": c.Timezone.String(), "pane": c.Pane, "rules": alerts.AllRules(c.ConfiguredRules()), "redact": c.Redact,
		"spool": c.Spool, "loki": c.Loki, "web": c.Web, "fleet": c.Fleet,
		"suppress": fmt.Sprintf("%+v", c.Suppressors()), "campaigns": c.Calendar(), "defaults": c.SiteDefaults,
	}
	for i := range c.Sources {
		s := c.Sources[i]
		kind := settings{Resend: time.Minute}
		_ = s.Kind.fill(&kind) // Validate has filled the same
		out["source "+s.Name] = []any{s.Type, s.Format.Type, s.Site, s.Timezone.String(), s.Lateness, s.Labels, kind}
	}
	for _, s := range c.Sites {
		out["site "+s.Name] = []any{s.Hosts, s.Pool, s.Routes, s.Dependencies, s.Controls, c.SiteRules()[s.Name]}
	}
	return out
}

func TestConfigValues(t *testing.T) {
	env := configEnv(t)
	c, err := loadAll("testdata/config/good/anchors.yaml", env)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	var late []time.Duration
	for _, s := range c.Sources {
		names, late = append(names, s.Name), append(late, s.Lateness)
	}
	check(t, "names", names, []string{"first", "second", "s3-3"})
	check(t, "lateness", late, []time.Duration{7 * time.Second, 90 * time.Second, 10 * time.Minute})
	check(t, "zone", c.Sources[2].Timezone.String(), "+0200")
	check(t, "zone of a source", c.Sources[0].Timezone.String(), "UTC")
	check(t, "pool", c.Sites[0].Pool, PoolConfig{4, 30 * time.Second})
	check(t, "pool", c.Sites[1].Pool, PoolConfig{25, 30 * time.Second})
	check(t, "hosts", c.Sites[0].Hosts, []string{"one.example"})
	check(t, "proxies", fmt.Sprint(c.TrustedProxies), "[2001:db8::/32 10.1.2.3/32]")
	check(t, "when", c.Rules[0].When, "client_abandon.value > 0.2 and latency.value > 8")
	check(t, "text", c.Rules[0].Annotations["text"], "first line\n\nthird: line # not a comment\n")
	check(t, "size", int64(c.Loki.BatchSize), 300_000)

	for _, row := range []struct {
		site     string
		p99      time.Duration
		requests int
	}{{"", 4 * time.Second, 40}, {"one.example", 4 * time.Second, 40}, {"two.example", 3 * time.Second, 40}} {
		var got struct {
			P99      time.Duration `yaml:"p99"`
			Requests int           `yaml:"requests"`
		}
		if err := c.DetectorFor(row.site, "latency").Decode(&got); err != nil {
			t.Fatal(err)
		}
		check(t, "p99 of "+row.site, got.P99, row.p99)
		check(t, "requests of "+row.site, got.Requests, row.requests)
	}
}

func check(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

// Values from the environment are never read as YAML, whatever they hold.
func TestExpansion(t *testing.T) {
	c, err := loadAll("testdata/config/good/secrets.yaml", configEnv(t))
	if err != nil {
		t.Fatal(err)
	}
	var file settings
	if err := c.Sources[0].Kind.Decode(&file); err != nil {
		t.Fatal(err)
	}
	check(t, "path", file.Paths, []string{"/var/log/nginx: [a, b]/access.log"})
	check(t, "tenant", c.Loki.TenantID, "nginx: [a, b]")
	check(t, "label", c.Sources[0].Labels["role"], "edge-$1")
	var format settings
	if err := c.Sources[0].Format.Decode(&format); err != nil {
		t.Fatal(err)
	}
	check(t, "format", format.LogFormat, `$remote_addr [$time_local] "$request" ${braced} $$ $status`)
	var pager settings
	if err := c.Notify[0].Kind.Decode(&pager); err != nil {
		t.Fatal(err)
	}
	check(t, "pager", pager.URL, "https://pager.example/"+secretText)
}

// The defaults of the contract.
func TestDefaults(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, []byte("# nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadConfig(empty, configEnv(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Config{Default(), loaded} {
		check(t, "pane", c.Pane, 10*time.Second)
		check(t, "spool", c.Spool, SpoolConfig{"/var/lib/squall", 2 << 30, 72 * time.Hour})
		check(t, "web", c.Web.Listen, "127.0.0.1:9177")
		check(t, "loki", c.Loki.URL, "")
		check(t, "notify", c.Notify[0].Type, "stdout")
		check(t, "interfaces", c.Own.Interfaces, true)
		if c.RequireSources() == nil {
			t.Error("a configuration without sources passes")
		}
		if err := c.Validate(testFamilies()); err != nil {
			t.Error(err)
		}
	}
	check(t, "values", values(Default()), values(loaded))
}

// The effective configuration holds the defaults of the kinds themselves.
func TestEffectiveShowsKindsDefaults(t *testing.T) {
	c, err := loadAll("testdata/config/good/minimal.yaml", configEnv(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.Effective()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: file-1", "lateness: 5s", "per_minute: 300", "p99: 5s", "format: auto", "max_bytes: 2GiB", "max_age: 72h"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// FuzzConfig: no text makes the loader panic, and what loads prints as something that loads to the same.
func FuzzConfig(f *testing.F) {
	for _, pattern := range []string{"testdata/config/*/*.yaml", "../../deploy/*.example.yaml"} {
		for _, path := range glob(f, pattern) {
			text, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	env := func(name string) (string, bool) { return "value of " + name, name != "" }
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(text, []byte("${file:")) || bytes.Contains(text, []byte("${credential:")) {
			return // reads files
		}
		c, faults, err := parseConfig("f.yaml", text, env)
		if err != nil || len(faults) > 0 {
			return
		}
		printed, err := c.Effective()
		if err != nil {
			t.Fatal(err)
		}
		again, faults, err := parseConfig("again.yaml", printed, env)
		if err != nil || len(faults) > 0 {
			t.Fatalf("%v %v\n%s", err, faults, printed)
		}
		reprinted, err := again.Effective()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(printed, reprinted) {
			t.Fatal(cmp.Diff(string(printed), string(reprinted)))
		}
	})
}

func TestNearest(t *testing.T) {
	names := []string{"head_storm", "latency", "lateness", "for"}
	for word, want := range map[string]string{
		"latenes": "lateness", "head_strom": "head_storm", "Latency": "latency", "xyz": "", "fro": "for", "": "",
	} {
		check(t, word, nearest(word, names), want)
	}
}

// The kinds of this build, with the settings of Prometheus' HTTP client, print what loads again and tells nothing.
func TestEffectiveOfRealKinds(t *testing.T) {
	path := "testdata/config/kinds/real_kinds.yaml"
	env := configEnv(t)
	first, err := LoadValid(path, env, families())
	if err != nil {
		t.Fatal(err)
	}
	text, err := first.Effective()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte(secretText)) {
		t.Errorf("tells a secret:\n%s", text)
	}
	again := filepath.Join(t.TempDir(), "effective.yaml")
	if err := os.WriteFile(again, text, 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := LoadValid(again, env, families())
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	text2, err := second.Effective()
	if err != nil {
		t.Fatal(err)
	}
	check(t, "second time", string(text2), string(text))
}

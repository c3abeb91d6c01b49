package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestChartsConfigurationIsUnderstood holds that what the chart writes into its ConfigMaps is a configuration.
func TestChartsConfigurationIsUnderstood(t *testing.T) {
	files, err := filepath.Glob("../../deploy/kubernetes/testdata/*.golden.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%q: %v", files, err)
	}
	env := func(name string) (string, bool) {
		value, known := map[string]string{"NODE_NAME": "node-1", "POD_NAME": "squall-aggregate-0"}[name]
		return value, known
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]*Config{}
		for _, doc := range strings.Split(string(text), "\n---\n") {
			var m core.ConfigMap
			if !strings.Contains(doc, "\nkind: ConfigMap\n") {
				continue
			}
			if err := yaml.UnmarshalStrict([]byte(doc), &m); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "squall.yaml")
			write(t, path, m.Data["squall.yaml"])
			c, err := loadConfig(path, env)
			if err != nil {
				t.Errorf("%s: %s: %v", file, m.Name, err)
				continue
			}
			found[m.Name] = c
		}
		logs, watch := found["squall-logs"], found["squall-watch"]
		wanted := map[bool]int{true: 3, false: 2}[strings.Contains(file, "/fleet-")]
		if len(found) != wanted || logs == nil || watch == nil {
			t.Fatalf("%s: %d configurations", file, len(found))
		}
		checkChartsFleet(t, file, logs, watch, found["squall-aggregate"])
		if logs.Fleet.Node != "node-1" || logs.Web.Listen != "0.0.0.0:9177" || logs.Sources[0].Type != "container" || watch.Sources[0].Type != "kubernetes" {
			t.Errorf("%s: %+v %+v", file, logs, watch)
		}
	}
}

// TestChartKnowsTheKeys holds that the chart's schema takes each key of the configuration but those that the chart sets.
func TestChartKnowsTheKeys(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes/squall/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Config struct {
				PropertyNames struct{ Enum []string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	want := slices.DeleteFunc(keysOf(reflect.TypeFor[Config]()), func(key string) bool { return slices.Contains([]string{"sources", "spool", "web"}, key) })
	got := schema.Properties.Config.PropertyNames.Enum
	slices.Sort(want)
	slices.Sort(got)
	check(t, "keys of config in values.schema.json", strings.Join(got, " "), strings.Join(want, " "))
}

// checkChartsFleet holds that the workloads of a fleet are one: two nodes of different names, which connect by what the
// aggregator lets in.
func checkChartsFleet(t *testing.T, file string, logs, watch, judge *Config) {
	t.Helper()
	if judge == nil {
		if logs.Fleet.on() || watch.Fleet.on() {
			t.Errorf("%s: a fleet without an aggregator", file)
		}
		return
	}
	users := map[string]bool{}
	for _, u := range judge.Fleet.Server.users() {
		users[u.Node] = true
	}
	for _, node := range []*Config{logs, watch} {
		if node.Fleet.NATS == "" || node.Fleet.Embedded || node.Fleet.Cluster != judge.Fleet.Cluster || node.Fleet.Lateness != judge.Fleet.Lateness ||
			judge.Fleet.Embedded && !users[node.Fleet.Node] || node.hash(paneSections) != judge.hash(paneSections) {
			t.Errorf("%s: %+v of %+v", file, node.Fleet, judge.Fleet)
		}
	}
	if logs.Fleet.Node == watch.Fleet.Node || judge.Fleet.Node != "squall-aggregate-0" || len(judge.Sources) > 0 || !judge.Fleet.on() {
		t.Errorf("%s: %s, %s and %+v", file, logs.Fleet.Node, watch.Fleet.Node, judge.Fleet)
	}
}

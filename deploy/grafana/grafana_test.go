package grafana

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

var writeDashboards = flag.Bool("write-dashboards", false, "write the dashboards anew")

// places are the folders that have the dashboards: Grafana's provisioning, and the chart, which can read no file
// outside of itself.
var places = []string{"dashboards", "../kubernetes/squall/dashboards"}

// TestDashboardsAreWritten holds that the files are what the code makes, and that there are no others.
func TestDashboardsAreWritten(t *testing.T) {
	made, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range places {
		if *writeDashboards {
			if err := os.MkdirAll(place, 0o755); err != nil {
				t.Fatal(err)
			}
			for uid, text := range made {
				if err := os.WriteFile(filepath.Join(place, uid+".json"), text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		files, err := filepath.Glob(filepath.Join(place, "*"))
		if err != nil || len(files) != len(made) {
			t.Errorf("%s has %d files, and there are %d dashboards: `make dashboards` (%v)", place, len(files), len(made), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(text, made[strings.TrimSuffix(filepath.Base(file), ".json")]) {
				t.Errorf("%s is not what the code makes: `make dashboards`", file)
			}
		}
	}
}

// strictly reads a dashboard. The SDK's error is never nil: without faults it is one of no text.
func strictly(t *testing.T, text []byte) (d dashboard.Dashboard, faults string) {
	t.Helper()
	if err := d.UnmarshalJSONStrict(text); err != nil {
		faults = err.Error()
	}
	return d, faults
}

// TestDashboardsAreUnderstood holds that each loads by the strict types of the SDK, with what the others rely on.
func TestDashboardsAreUnderstood(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	made, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 6 {
		t.Errorf("%d dashboards", len(made))
	}
	for uid, text := range made {
		d, faults := strictly(t, text)
		if faults != "" {
			t.Errorf("%s: %s", uid, faults)
			continue
		}
		for is, wrong := range map[string]string{`"uid":`: `"nonsense": 1, "uid":`, `"schemaVersion": 42`: `"schemaVersion": "x"`} {
			if _, faults := strictly(t, bytes.Replace(text, []byte(is), []byte(wrong), 1)); faults == "" {
				t.Errorf("%s: %s is understood", uid, wrong)
			}
		}
		if *d.Uid != uid || len(d.Tags) != 1 || len(d.Templating.List) != 3 || len(d.Annotations.List) != 2 || len(d.Links) != 1 {
			t.Errorf("%s: uid %s, tags %q, %d variables, %d annotations, %d links", uid, *d.Uid, d.Tags, len(d.Templating.List), len(d.Annotations.List), len(d.Links))
		}
		titles := map[string]bool{}
		for _, p := range d.Panels {
			if p.Panel == nil {
				continue
			}
			if titles[*p.Panel.Title] || p.Panel.Description == nil {
				t.Errorf("%s: panel %q is there twice, or has no description", uid, *p.Panel.Title)
			}
			titles[*p.Panel.Title] = true
			if g := p.Panel.GridPos; g.X+g.W > 24 {
				t.Errorf("%s: panel %q is wider than the page: %+v", uid, *p.Panel.Title, *g)
			}
		}
		// What Grafana fills in is all that may stand open.
		for _, name := range []string{"${DS_PROMETHEUS}", "${DS_LOKI}"} {
			text = bytes.ReplaceAll(text, []byte(name), nil)
		}
		if i := bytes.Index(text, []byte("${")); i >= 0 {
			t.Errorf("%s: %.40s…", uid, text[i:])
		}
	}
}

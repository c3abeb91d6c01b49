package alerts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/detectors"
)

// sites plays one pane of ten seconds in which a detector is active at each of the sites.
func (f *film) sites(detector string, names ...string) {
	f.at += 10 * second
	r := &detectors.Result{At: f.at}
	for _, name := range names {
		d := detection(detector, 9)
		d.Labels = detectors.Labels{{Name: "site", Value: name}}
		r.Detections = append(r.Detections, d)
	}
	f.told = append(f.told, f.m.Evaluate(r)...)
}

// sitesOf tells what was told, by site.
func (f *film) sitesOf() string {
	var b strings.Builder
	for _, a := range f.told {
		fmt.Fprintf(&b, "%d %s %s %s\n", (a.At-epoch)/second, a.State, a.Labels.Get("site"), a.Severity)
	}
	return b.String()
}

func TestRuleOfOneSite(t *testing.T) {
	c := hold(time.Second)
	c.SiteRules = map[string][]Rule{
		"b": {{Name: "A", When: "latency", Severity: "warning", For: 20 * time.Second}},
		"c": {{Name: "A", Disabled: true}},
		"d": {{Name: "A", When: "latency.value > 100", Severity: "page"}},
	}
	f := newFilm(t, pageOnLatency, c)
	for range 4 {
		f.sites("latency", "a", "b", "c", "d", "e")
	}
	f.sites("latency")
	want := "10 firing a page\n10 firing e page\n30 firing b warning\n50 resolved a page\n50 resolved e page\n50 resolved b warning\n"
	if got := f.sitesOf(); got != want {
		t.Fatalf("got\n%swant\n%s", got, want)
	}
	if names := strings.Join(f.m.RuleNames(), " "); names != "A" {
		t.Fatal(names)
	}
}

// An override that comes, changes or goes with a reload takes the state of its site along; one that has another
// identity now ends what fires.
func TestRestoreWithOtherSiteRules(t *testing.T) {
	without := hold(time.Second)
	page := hold(time.Second)
	page.SiteRules = map[string][]Rule{"b": {{Name: "A", When: "latency", Severity: "page", KeepFiringFor: time.Minute}}}
	labelled := hold(time.Second)
	labelled.SiteRules = map[string][]Rule{"b": {{Name: "A", When: "latency", Severity: "page", Labels: map[string]string{"team": "b"}}}}
	off := hold(time.Second)
	off.SiteRules = map[string][]Rule{"b": {{Name: "A", Disabled: true}}}
	for _, x := range []struct {
		name     string
		from, to Config
		want     string
	}{
		{"comes", without, page, "30 resolved a page\n90 resolved b page\n"},
		{"goes", page, without, "30 resolved a page\n30 resolved b page\n"},
		{"other labels", without, labelled, "20 resolved b page\n20 firing b page\n30 resolved a page\n30 resolved b page\n"},
		{"is switched off", page, off, "20 resolved b page\n30 resolved a page\n"},
	} {
		f := newFilm(t, pageOnLatency, x.from)
		f.sites("latency", "a", "b")
		state, err := f.m.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		next := newFilm(t, pageOnLatency, x.to)
		if err := next.m.Restore(state); err != nil {
			t.Fatal(err)
		}
		next.at = f.at
		next.sites("latency", "a", "b")
		for range 8 {
			next.sites("latency")
		}
		if got := next.sitesOf(); got != x.want {
			t.Errorf("%s: got\n%swant\n%s", x.name, got, x.want)
		}
	}
}

func TestFaultsOfSiteRules(t *testing.T) {
	for _, c := range []struct {
		rules []Rule
		want  string
	}{
		{[]Rule{{Name: "HeadStrom"}}, `rule "HeadStrom": name: there is no general rule of this name that site "s" could differ from: did you mean "HeadStorm"?`},
		{[]Rule{{Name: "RestartBurst", When: "restart_burst", Severity: "page"}}, `rule "RestartBurst": name: it is by cluster and not by site`},
		{[]Rule{{Name: "HeadStorm", When: "head_storm", Severity: "page", By: []string{"cluster"}}}, `rule "HeadStorm": by: cannot differ`},
		{[]Rule{{Name: "HeadStorm", When: "head_strom", Severity: "page"}}, `rule "HeadStorm": when: line 1, column 1: unknown detector`},
		{[]Rule{{Name: "HeadStorm", Disabled: true}, {Name: "HeadStorm", Disabled: true}}, `rule "HeadStorm": name: site "s" changes it twice`},
	} {
		err := CheckSiteRules(nil, "s", c.rules, detectors.Names())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

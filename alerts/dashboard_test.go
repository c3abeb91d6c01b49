package alerts

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/detectors"
)

// TestAlertsLinkToTheirDashboard holds that an alert's link leads to its site and time, and that there is none where
// nobody said where Grafana is.
func TestAlertsLinkToTheirDashboard(t *testing.T) {
	at := func(grafana, dashboard string) *Manager {
		m, err := NewManager(Config{Detectors: detectors.Names(), Grafana: grafana, Rules: []Rule{{
			Name: "Mine", When: "latency", Severity: "page", Dashboard: dashboard,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	d := detection("latency", 9)
	for _, c := range []struct{ grafana, dashboard, want string }{
		{"", "", ""},
		{"", "squall-origin", ""},
		{"https://grafana.example/", "", "https://grafana.example/d/squall-storm?from=FROM&to=now&var-site=shop.example"},
		{"https://grafana.example", "squall-origin", "https://grafana.example/d/squall-origin?from=FROM&to=now&var-site=shop.example"},
		{"", "https://other.example/d/x?orgId=2", "https://other.example/d/x?orgId=2&from=FROM&to=now&var-site=shop.example"},
		{"https://grafana.example", "a/../b", "https://grafana.example/d/a%2F..%2Fb?from=FROM&to=now&var-site=shop.example"},
	} {
		m := at(c.grafana, c.dashboard)
		r := result(d)
		r.At = epoch + second
		a := m.Evaluate(&r)[0]
		from := time.Unix(0, a.StartsAt).Add(-30 * time.Minute).UnixMilli()
		want := strings.ReplaceAll(c.want, "FROM", strconv.FormatInt(from, 10))
		if a.Annotations["dashboard"] != want {
			t.Errorf("%q %q: %q, want %q", c.grafana, c.dashboard, a.Annotations["dashboard"], want)
		}
	}
	// The end of an alert leads to the whole of it.
	f := facts{grafana: "https://grafana.example", alert: &Alert{
		State: Resolved, StartsAt: epoch, EndsAt: epoch + 60*second, Labels: detectors.Labels{{Name: "site", Value: "a b&c=d"}},
	}}
	want := "?from=" + strconv.FormatInt(epoch/1e6-30*60_000, 10) + "&to=" + strconv.FormatInt(epoch/1e6+60_000+15*60_000, 10) + "&var-site=a+b%26c%3Dd"
	if got := f.dashboard(&rule{}); !strings.HasSuffix(got, want) {
		t.Errorf("%s does not end in %s", got, want)
	}
}

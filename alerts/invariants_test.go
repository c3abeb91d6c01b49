package alerts

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever comes and goes, jumps and is restored: of each identity the beginnings and ends alternate, an alert ends
// behind its start and lasts its minimum, and the next starts behind the end of the one before. What is held back is no
// beginning and no end to a receiver.
func TestInvariants(t *testing.T) {
	rules := []Rule{
		{Name: "A", When: "client_abandon and latency", Severity: "page", For: 20 * time.Second, KeepFiringFor: 20 * time.Second},
		{Name: "B", When: "head_storm and latency", While: "latency", Severity: `saturation ? "page" : "warning"`, Within: 30 * time.Second},
	}
	names := []string{"client_abandon", "head_storm", "latency", "saturation"}
	held := Config{Suppressors: []Suppressor{
		{Name: "window", From: at(100), For: 3 * time.Minute, Severities: []Severity{Page}, Wait: 20 * time.Second, Extend: time.Minute},
		{Name: "saturated", When: "saturation", Alerts: []string{"A"}},
	}}
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.SampledFrom([]Config{{}, held}).Draw(rt, "config")
		f := newFilm(t, rules, c)
		for range rapid.IntRange(10, 80).Draw(rt, "panes") {
			switch rapid.IntRange(0, 30).Draw(rt, "event") {
			case 0:
				f.at += 600 * second
			case 1:
				state, err := f.m.Snapshot()
				if err != nil {
					rt.Fatal(err)
				}
				next := newFilm(t, rules, c)
				if err := next.m.Restore(state); err != nil {
					rt.Fatal(err)
				}
				f.m = next.m
			}
			var on []string
			for _, name := range names {
				stays := f.active[name] != nil
				if rapid.IntRange(0, 9).Draw(rt, name) == 0 != stays { // one pane of ten changes it
					on = append(on, name)
				}
			}
			f.pane(on...)
		}
		last := map[string]Alert{}
		for _, a := range f.told {
			if a.Suppressed != "" {
				continue
			}
			key := a.Name + string(a.Severity)
			before, known := last[key]
			switch {
			case a.State == Firing && known && before.State == Firing:
				rt.Fatalf("fires twice:\n%s", f.story())
			case a.State == Resolved && before.State != Firing:
				rt.Fatalf("ends without a beginning:\n%s", f.story())
			case a.State == Resolved && (a.StartsAt != before.StartsAt || a.EndsAt < a.StartsAt || a.EndsAt > a.At):
				rt.Fatalf("times:\n%s", f.story())
			case a.State == Firing && known && a.StartsAt < before.EndsAt:
				rt.Fatalf("starts before the last end:\n%s", f.story())
			}
			last[key] = a
		}
		firing := 0
		for _, a := range last {
			if a.State == Firing {
				firing++
			}
		}
		if n := len(f.m.Active()); n != firing {
			rt.Fatalf("%d active, %d told:\n%s", n, firing, f.story())
		}
		if len(f.m.tracked) > len(rules) {
			rt.Fatalf("%d tracked", len(f.m.tracked))
		}
	})
}

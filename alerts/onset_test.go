package alerts

import (
	"testing"
	"time"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

// An alert begins where its condition does: when the last thing that it asks for was there, since that one's onset; when
// what it does not want was over; and when a number was reached.
func TestAlertsBeginWithTheirCondition(t *testing.T) {
	at := func(value float64, onset int64) [2]float64 { return [2]float64{value, float64(onset)} }
	type panes []map[string][2]float64
	for name, c := range map[string]struct {
		when  string
		panes panes
		want  int64 // seconds
	}{
		"what comes second, from its onset": {"head_storm and client_abandon", panes{
			{"head_storm": at(400, 0)}, {"head_storm": at(400, 0)}, {"head_storm": at(400, 0)}, {"head_storm": at(400, 0), "client_abandon": at(30, 20)},
		}, 20},
		"one of two, the first": {"head_storm or client_abandon", panes{{"head_storm": at(400, -20), "client_abandon": at(30, -10)}}, -20},
		"both noticed at once":  {"head_storm and client_abandon", panes{{}, {}, {"head_storm": at(400, 0), "client_abandon": at(30, 10)}}, 10},
		"a number that was reached later": {"client_abandon.value > 50", panes{
			{"client_abandon": at(20, 0)}, {"client_abandon": at(40, 0)}, {"client_abandon": at(60, 0)},
		}, 20},
		"a number that was over from the beginning": {"client_abandon.value > 50", panes{{}, {}, {"client_abandon": at(60, 0)}}, 0},
		"what it does not want is over": {"latency and not self_loop", panes{
			{"latency": at(9, 0), "self_loop": at(30, 0)}, {"latency": at(9, 0), "self_loop": at(30, 0)}, {"latency": at(9, 0)},
		}, 20},
		"it held once before, without what came in between": {"(latency and not self_loop) or saturation", panes{
			{}, {}, {}, {"latency": at(9, 0), "self_loop": at(30, 10), "saturation": at(1, 20)},
		}, 20},
	} {
		f := newFilm(t, []Rule{{Name: "A", When: c.when, Severity: "page"}}, hold(time.Second))
		var told []Alert
		for i, found := range c.panes {
			end := epoch + int64(i+1)*10*second
			r := &detectors.Result{At: end, Pane: &pane.Pane{Start: end - 10*second, End: end}}
			for _, detector := range detectors.Names() {
				if x, on := found[detector]; on {
					d := detection(detector, x[0])
					d.Onset = epoch + int64(x[1])*second
					r.Detections = append(r.Detections, d)
				}
			}
			told = append(told, f.m.Evaluate(r)...)
		}
		if len(told) != 1 {
			t.Errorf("%s: %d alerts", name, len(told))
			continue
		}
		if got := (told[0].StartsAt - epoch) / second; got != c.want {
			t.Errorf("%s: it begins at %d s, not %d", name, got, c.want)
		}
	}
}

package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/pipeline/fleet"
)

// loneNode is a node of a fleet that began at a time, with what receivers are told of it already.
func loneNode(t *testing.T, began time.Time, fires ...string) *localAlerts {
	t.Helper()
	link, err := fleet.Connect(fleet.Config{URL: "nats://" + freeAddress(t), Cluster: "default", Node: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	out, err := link.Outgoing(t.Context(), &memoryKV{values: map[string][]byte{}})
	if err != nil {
		t.Fatal(err)
	}
	n := &fleetNode{
		link: link, name: "edge", out: out, heard: map[string]heardCover{}, pane: 10 * time.Second, patience: time.Minute, began: began,
		covered: prometheus.NewGauge(prometheus.GaugeOpts{Name: "covered"}),
	}
	return &localAlerts{node: n, fires: func(a *alerts.Alert) bool { return slices.Contains(fires, a.Name) }}
}

// A node that starts in mid-storm does not know yet whether its fleet was told of it: it tells nothing new until it
// does, ends nothing, and forgets nothing if nobody judges for it.
func TestNodeThatIsNewWaitsForItsFleet(t *testing.T) {
	t.Parallel()
	began := time.Now()
	storm := []alerts.Alert{{Name: "StormHurting", State: alerts.Firing}}
	over := []alerts.Alert{{Name: "HeadStorm", State: alerts.Firing}, {Name: "HeadStorm", State: alerts.Resolved}}
	names := func(list []alerts.Alert) (out []string) {
		for _, a := range list {
			out = append(out, fmt.Sprint(a.Name, " ", a.State))
		}
		return out
	}
	says := func(when string, tell, news []alerts.Alert, wantTell, wantNews []string) {
		t.Helper()
		if !slices.Equal(names(tell), wantTell) || !slices.Equal(names(news), wantNews) {
			t.Errorf("%s: it tells %q, news %q; want %q and %q", when, names(tell), names(news), wantTell, wantNews)
		}
	}
	all := slices.Concat(over, storm)

	l := loneNode(t, began)
	tell, news := l.take(1, began.Add(time.Second), storm, all)
	says("at first", tell, news, nil, nil)
	l.node.listen([]byte(`{"closed":1,"judges":"x"}`), "agg")
	tell, news = l.take(2, began.Add(2*time.Second), storm, nil)
	says("covered", tell, news, nil, nil)
	tell, news = l.take(3, began.Add(5*time.Minute), storm, nil)
	says("nobody is heard any more", tell, news, names(storm), nil)

	l = loneNode(t, began)
	l.take(1, began.Add(time.Second), storm, all)
	tell, news = l.take(2, began.Add(61*time.Second), storm, nil)
	says("nobody was heard", tell, news, names(storm), names(all))
	tell, news = l.take(3, began.Add(62*time.Second), storm, nil)
	says("later", tell, news, names(storm), nil)

	l = loneNode(t, began, "StormHurting")
	tell, news = l.take(1, began.Add(time.Second), storm, nil)
	says("receivers were told before it was started again", tell, news, names(storm), nil)
	l.node.listen([]byte(`{"closed":1,"judges":"x"}`), "agg")
	tell, news = l.take(2, began.Add(2*time.Second), storm, nil)
	says("covered", tell, news, nil, []string{fmt.Sprint("StormHurting ", alerts.Resolved)})
}

// Panes that a node catches up on are on their way for a moment: it stays covered. It is not where they go nowhere.
func TestNodeThatCatchesUpIsCovered(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := loneNode(t, now.Add(-time.Hour))
	l.node.listen([]byte(`{"closed":1,"judges":"x"}`), "agg")
	if !l.node.isCovered(now) {
		t.Fatal("it is not covered")
	}
	for range 2 * waitingAtMost {
		l.node.out.Add(func(uint64) []byte { return []byte("pane") })
	}
	if !l.node.isCovered(now) {
		t.Error("panes wait for no time yet, and it is not covered")
	}
	if l.node.isCovered(now.Add(31 * time.Second)) {
		t.Error("panes go nowhere, and it is covered")
	}
}

package report

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

// second is a pane with requests of sites.
func second(at int64, requests map[string]uint64) *detectors.Result {
	p := &pane.Pane{Start: at * 1e9, End: (at + 1) * 1e9, Sites: map[string]*pane.Site{}}
	for name, n := range requests {
		p.Site(name).Cells()[pane.Key{Method: "GET", Route: "/"}] = &pane.Cell{Requests: n}
	}
	return &detectors.Result{At: p.End, Pane: p}
}

// TestLiveKeepsTheLastWhile: what is older is forgotten, a site that is silent goes, a hole is one, and many sites and a
// jump of years cost no memory.
func TestLiveKeepsTheLastWhile(t *testing.T) {
	l := NewLive(time.Second, 10*time.Second)
	pool := func(string) detectors.Pool { return detectors.Pool{Workers: 7} }
	for at := range int64(100) {
		requests := map[string]uint64{"a": uint64(at)}
		if at < 95 {
			requests["b"] = 1000
		}
		if at < 80 {
			requests["gone"] = 1
		}
		var firing []alerts.Alert
		if at == 99 {
			firing = []alerts.Alert{{Labels: detectors.Labels{{Name: "site", Value: "b"}}}}
		}
		l.Observe(second(at, requests), firing, pool)
	}
	got := l.Series()
	if len(got) != 2 || got[0].Site != "b" || got[1].Site != "a" {
		t.Fatalf("sites: %+v", got)
	}
	a := got[1]
	if a.Step != 1 || a.Start != 90e9 || fmt.Sprint(a.Requests["GET"]) != "[90 91 92 93 94 95 96 97 98 99]" || a.Total != 945 || a.Pool != 7 {
		t.Errorf("%+v", a)
	}
	if b := got[0]; b.Total != 5000 || b.Len() != 5 {
		t.Errorf("%+v", b)
	}
	state, err := l.Snapshot()
	again := NewLive(time.Second, 10*time.Second)
	if again.Restore(state, pool); err != nil || !reflect.DeepEqual(again.Series(), got) {
		t.Errorf("after a restart: %+v (%v)", again.Series(), err)
	}
	for _, other := range []*Live{NewLive(2*time.Second, 10*time.Second), NewLive(time.Second, 5*time.Second)} {
		if other.Restore(state, pool); len(other.Series()) != 0 {
			t.Errorf("a snapshot of other steps, or of a longer while: %+v", other.Series())
		}
	}
	again.Restore([]byte("torn"), pool)
	for _, l := range []*Live{l, again} {
		l.Observe(second(104, map[string]uint64{}), nil, pool)
	}
	if !reflect.DeepEqual(again.Series(), l.Series()) {
		t.Errorf("it goes on otherwise: %+v", again.Series())
	}
	l.Observe(second(105, map[string]uint64{"a": 1}), nil, pool)
	if a := l.Series()[0]; fmt.Sprint(a.Requests["GET"]) != "[96 97 98 99 0 0 0 0 0 1]" || len(l.Series()) != 1 {
		t.Errorf("after a hole: %+v", a)
	}
	many := map[string]uint64{}
	for i := range 1000 {
		many[fmt.Sprint("site-", i)] = uint64(i)
	}
	for i := range int64(30) {
		l.Observe(second(1e9+i, many), nil, pool)
	}
	got = l.Series()
	if len(got) > seriesSites+1 || got[0].Step != 1 {
		t.Errorf("%d sites, in steps of %v s", len(got), got[0].Step)
	}
	for _, s := range got {
		if s.Len() > 10 {
			t.Fatalf("%s has %d points", s.Site, s.Len())
		}
	}
}

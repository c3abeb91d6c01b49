package alerts

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

var shopLabels = detectors.Labels{{Name: "site", Value: "shop.example"}}

// stormAlert is the alert of a HEAD storm that began at a second of event time.
func stormAlert(at int64, state State, severity Severity, route string) Alert {
	a := Alert{
		Name: "StormHurting", State: state, Severity: severity, Labels: shopLabels, StartsAt: at * second, At: (at + 60) * second,
		Detectors: []string{"client_abandon", "head_storm"}, Cause: Cause{Proven, "the storm", nil},
		Evidence: detectors.Evidence{Method: "HEAD", Route: route, P99Seconds: n(10), P99Censored: true},
		Incident: &Incident{ID: fmt.Sprintf("%d-shop.example", at), StartsAt: at * second, Members: []Member{
			{Detector: "head_storm", Labels: shopLabels, Onset: at * second}, {Detector: "client_abandon", Labels: shopLabels, Onset: at * second},
		}},
	}
	if state == Resolved {
		a.EndsAt = (at + 600) * second
	}
	return a
}

// stormSpan is what the storm took.
func stormSpan(at int64, requests, abandoned, lower, upper float64, route string) detectors.Span {
	e := detectors.Evidence{
		Requests: n(requests), Abandoned: n(abandoned), WorkerSecondsLower: n(lower), WorkerSecondsUpper: n(upper), P99Seconds: n(10), P99Censored: true,
		WorkerSecondsShare: n(0.9), ReachedUpstreamRatio: n(1),
	}
	return detectors.Span{
		Site: "shop.example", From: at * second, To: (at + 600) * second, Total: e,
		Classes: []detectors.Class{{Method: "HEAD", Route: route, Evidence: e}},
	}
}

// quietPane is a pane of the site in which nothing is found.
func quietPane(at int64, requests uint64) *detectors.Result {
	p := &pane.Pane{Start: (at - 10) * second, End: at * second, Sites: map[string]*pane.Site{}}
	p.Site("shop.example").Cells()[pane.Key{Method: "HEAD", Route: "/checkout/{int}"}] = &pane.Cell{Requests: requests}
	return &detectors.Result{At: at * second, Pane: p}
}

// storm tells a ledger of one storm, pane by pane, from its first alert to its last detection.
func storm(l *Ledger, at int64, perPane uint64, severity Severity, route string, span detectors.Span) {
	firing := stormAlert(at, Firing, severity, route)
	found := []detectors.Detection{{Detector: "head_storm", Labels: shopLabels, Active: true, Onset: at * second}}
	for i := int64(0); i < 12; i++ {
		res := quietPane(at+10*i, perPane)
		res.Detections = found
		l.Observe(res, nil, []Alert{firing})
	}
	over := quietPane(at+400, perPane)
	over.Changes = []detectors.Detection{{Detector: "head_storm", Labels: shopLabels, Onset: at * second, Until: (at + 400) * second}}
	l.Observe(over, nil, []Alert{firing})
	end := quietPane(at+600, 1)
	end.Changes = []detectors.Detection{{Detector: "client_abandon", Labels: shopLabels, Onset: at * second, Until: (at + 600) * second}}
	end.Spans = []detectors.Span{span}
	l.Observe(end, []Alert{stormAlert(at, Resolved, severity, route)}, nil)
}

func TestLedgerKeepsNumbers(t *testing.T) {
	l := NewLedger(10*time.Second, func(string) Site { return Site{Controls: []detectors.Control{{Name: "waf_head_rule"}}} })
	storm(l, 1000, 300, Page, "/checkout/{int}", stormSpan(1000, 14000, 9000, 4000, 20000, "/checkout/{int}"))
	got := l.Entries()
	if len(got) != 1 {
		t.Fatalf("%d entries", len(got))
	}
	e := got[0]
	if e.Fingerprint != "shop.example head_storm HEAD /checkout/{int}" || e.Ongoing || e.Severity != Page || len(e.Alerts) != 1 || e.Controls[0] != "waf_head_rule" {
		t.Errorf("%+v", e)
	}
	if x := e.Numbers; x.PeakPerMinute.Get() != 1800 || x.Abandoned.Get() != 9000 || x.WorkerSecondsUpper.Get() != 20000 || x.RecoverySeconds.Get() != 200 || !x.P99Censored {
		t.Errorf("%+v", x)
	}
	// What is told twice, as after a crash, counts once.
	storm(l, 1000, 300, Page, "/checkout/{int}", stormSpan(1000, 14000, 9000, 4000, 20000, "/checkout/{int}"))
	if again := l.Entries(); !reflect.DeepEqual(again, got) {
		t.Errorf("told twice: %+v", again)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var back []Entry
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if more, err := json.Marshal(back); err != nil || string(more) != string(text) {
		t.Errorf("%v: %s is read as %s", err, text, more)
	}
}

func TestLedgerGoesOnAfterARestart(t *testing.T) {
	one, two := NewLedger(10*time.Second, nil), NewLedger(10*time.Second, nil)
	firing := stormAlert(1000, Firing, Page, "/checkout/{int}")
	for i := int64(0); i < 4; i++ {
		res := quietPane(1000+10*i, 300)
		res.Detections = []detectors.Detection{{Detector: "head_storm", Labels: shopLabels, Active: true}}
		one.Observe(res, nil, []Alert{firing})
	}
	state, err := one.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	two.Load(one.Entries())
	two.Restore(state)
	for _, l := range []*Ledger{one, two} {
		storm(l, 1040, 300, Page, "/checkout/{int}", stormSpan(1040, 14000, 9000, 4000, 20000, "/checkout/{int}"))
	}
	if a, b := one.Entries(), two.Entries(); !reflect.DeepEqual(a, b) {
		t.Errorf("without a restart %+v\nwith one %+v", a, b)
	}
	// An alert that was forgotten with a lost state does not go on for ever.
	three := NewLedger(10*time.Second, nil)
	three.Load([]Entry{{Version: LedgerVersion, ID: "x", Ongoing: true, From: 1, To: 5, Alerts: []EntryAlert{{Name: "X", From: 1}}}})
	three.Observe(quietPane(2000, 1), nil, nil)
	if e := three.Entries()[0]; e.Ongoing || e.Alerts[0].To == nil {
		t.Errorf("it goes on: %+v", e)
	}
}

func TestLedgerIsBounded(t *testing.T) {
	l := NewLedger(10*time.Second, nil)
	long := strings.Repeat("x", 1<<16)
	const many = 1200
	for i := range int64(many) {
		a := stormAlert(1000+i*1000, Resolved, Info, "/"+long)
		span := stormSpan(1000+i*1000, 1, 1, 1, 1, "/"+long)
		for range 3 {
			span.Classes = append(span.Classes, span.Classes...)
		}
		res := quietPane(2000+i*1000, 1)
		res.Spans = []detectors.Span{span}
		l.Observe(res, []Alert{a}, nil)
	}
	kept := l.Entries()
	if len(kept) != maxEntries || kept[0].From != Instant((1000+(many-1)*1000)*second) {
		t.Errorf("%d entries, the newest of %s", len(kept), kept[0].From)
	}
	for i := range kept {
		if text, err := json.Marshal(kept[i]); err != nil || len(text) > 16<<10 {
			t.Fatalf("an entry of %d bytes (%v)", len(text), err)
		}
	}
	if changed, gone := l.Changed(); len(changed) != maxEntries || len(gone) != many-maxEntries {
		t.Errorf("%d changed, %d gone", len(changed), len(gone))
	}
}

func TestCompare(t *testing.T) {
	entry := func(at int64, severity Severity, route string, peak, requests, abandoned, lower, upper float64) Entry {
		l := NewLedger(10*time.Second, nil)
		storm(l, at, uint64(peak/6), severity, route, stormSpan(at, requests, abandoned, lower, upper, route))
		return l.Entries()[0]
	}
	first := entry(1000, Page, "/checkout/{int}", 1800, 14000, 9000, 4000, 20000)
	marks := []Mark{{At: Instant(1500 * second), Text: "waf rule live"}, {At: Instant(1500 * second), Text: "elsewhere", Site: "other.example"}, {At: Instant(9000 * second), Text: "later"}, {At: Instant(700 * second), Text: "a deploy"}}
	ongoing := entry(5000, Page, "/checkout/{int}", 1800, 1, 1, 1, 1)
	ongoing.Ongoing = true
	elsewhere := entry(5000, Page, "/checkout/{int}", 1800, 1, 1, 1, 1)
	elsewhere.Sites = []string{"other.example"}
	quiet := Entry{ID: "quiet", From: Instant(5000 * second), To: Instant(6000 * second), Sites: []string{"shop.example"}}
	quiet.Numbers.PeakPerMinute = n(1500)
	busier := quiet
	busier.Numbers.PeakPerMinute = n(7000)
	for _, c := range []struct {
		name string
		b    Entry
		want FixVerdict
		says string
	}{
		{"twice as large, nobody hurt", entry(5000, Info, "/checkout/{int}", 3600, 28000, 0, 0, 0), Held, "2 times as large"},
		{"a tenth as large", entry(5000, Info, "/checkout/{int}", 180, 1400, 0, 100, 200), NotComparable, "too small to tell"},
		{"the same again", entry(5000, Page, "/checkout/{int}", 1800, 14000, 9000, 4000, 20000), DidNotHold, "clients gave up 1 times as often"},
		{"cheaper, and more of them", entry(5000, Page, "/checkout/{int}", 15600, 15600, 4000, 2000, 3000), MovedTheCost, "and still a worker"},
		{"another route", entry(5000, Page, "/unsubscribe/{int}", 1800, 14000, 9000, 4000, 20000), StormMoved, "then it was HEAD /checkout/{int}, now HEAD /unsubscribe/{int}"},
		{"it goes on", ongoing, NotComparable, "goes on"},
		{"another site", elsewhere, NotComparable, "different sites"},
		{"a quiet time", quiet, NotComparable, "whether the same requests came is not known"},
		{"a busier time without an alert", busier, Held, "3.89 times as busy, and no alert fired; that the same requests"},
		{"the earlier one hurt nobody", entry(400, Info, "/checkout/{int}", 3600, 28000, 0, 0, 0), DidNotHold, "the earlier one hurt nobody, this one did"},
		{"the earlier one hurt nobody, and nothing was done", entry(800, Info, "/checkout/{int}", 3600, 28000, 0, 0, 0), NotComparable, "no fix between the two is noted"},
		{"itself", first, NotComparable, "one and the same"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Compare(&c.b, &first, marks) // in whatever order
			if got.Verdict != c.want || !strings.Contains(got.Why, c.says) {
				t.Errorf("%s: %s", got.Verdict, got.Why)
			}
			if c.b.ID != first.ID && c.b.From > first.From && c.b.Sites[0] == "shop.example" && (len(got.Between) != 1 || got.Between[0].Text != "waf rule live") {
				t.Errorf("between: %v", got.Between)
			}
			if text := strings.Join(got.Lines(), "\n"); strings.Contains(text, "NaN") {
				t.Error(text)
			}
		})
	}
}

func TestMarksAreBounded(t *testing.T) {
	var list []Mark
	for i := range 3 * MaxMarks {
		m, err := Mark{At: Instant(i + 1), Text: strings.Repeat("y", 1<<12)}.Clean()
		if err != nil {
			t.Fatal(err)
		}
		list = AddMark(AddMark(list, m), m)
	}
	if len(list) != MaxMarks || list[0].At != 2*MaxMarks+1 || len(list[0].Text) > maxText {
		t.Errorf("%d marks, the first of %d with %d bytes", len(list), list[0].At, len(list[0].Text))
	}
	for _, m := range []Mark{{At: 1, Text: " \n"}, {Text: "x"}} {
		if _, err := m.Clean(); err == nil {
			t.Errorf("%+v is none", m)
		}
	}
}

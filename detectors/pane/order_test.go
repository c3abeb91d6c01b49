package pane

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

// roomy holds more keys than traffic has, so that every number is exact.
var roomy = Config{AgentsPerSite: 100, ClientsPerSite: 1100, AgentsPerCell: 50}

func dump(panes []*Pane) string {
	var b []byte
	for _, p := range panes {
		b = append(p.AppendJSON(b), '\n')
	}
	return string(b)
}

// differ shows the first difference of two dumps.
func differ(t interface {
	Helper()
	Fatalf(string, ...any)
}, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	cut := func(s string) string { return s[max(at-80, 0):min(at+120, len(s))] }
	t.Fatalf("differ at byte %d\n got …%s…\nwant …%s…", at, cut(got), cut(want))
}

func TestShuffledWithinLatenessGivesEqualPanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := traffic(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 800).Draw(t, "n"), 50e6)
		lateness := rapid.Int64Range(0, 30*second).Draw(t, "lateness")
		// Default capacities too: what one pane holds here is below four times each of them.
		cfg := rapid.SampledFrom([]Config{{}, roomy}).Draw(t, "cfg")
		want := assemble(cfg, time.Duration(lateness), records)
		random := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "shuffle")))
		differ(t, dump(assemble(cfg, time.Duration(lateness), shuffle(random, records, lateness))), dump(want))
		for _, p := range want {
			if p.Coverage.Late > 0 {
				t.Fatalf("%d late", p.Coverage.Late)
			}
		}
	})
}

// shuffle moves records by less than the lateness.
func shuffle(random *rand.Rand, records []pipeline.Record, lateness int64) []pipeline.Record {
	type arrival struct {
		at int64
		r  pipeline.Record
	}
	list := make([]arrival, len(records))
	for i, r := range records {
		list[i] = arrival{r.End + random.Int64N(lateness+1), r}
	}
	slices.SortStableFunc(list, func(a, b arrival) int { return int(a.at - b.at) })
	out := make([]pipeline.Record, len(list))
	for i, x := range list {
		out[i] = x.r
	}
	return out
}

// Panes of nodes merge into the pane that one node would have made of all lines.
func TestSplitOverNodesMergesToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := traffic(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 800).Draw(t, "n"), 50e6)
		nodes := rapid.IntRange(1, 8).Draw(t, "nodes")
		random := rand.New(rand.NewPCG(2, rapid.Uint64().Draw(t, "split")))
		parts := make([][]pipeline.Record, nodes)
		for _, r := range records {
			n := random.IntN(nodes)
			parts[n] = append(parts[n], r)
		}
		byStart := map[int64][]*Pane{}
		for _, part := range parts {
			for _, p := range assemble(roomy, 0, part) {
				byStart[p.Start] = append(byStart[p.Start], p)
			}
		}
		var all, merged []*Pane
		want := assemble(roomy, 0, records)
		for _, p := range want {
			list := byStart[p.Start]
			random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			merged = append(merged, MergeAll(p.Start, p.End, list))
			all = append(all, list...)
		}
		differ(t, dump(merged), dump(want))

		// And windows do not tell whether nodes or panes were merged first, or in which order.
		start, end := want[0].Start, want[len(want)-1].End
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		before := dump(all)
		differ(t, MergeAll(start, end, all).String(), MergeAll(start, end, want).String())
		differ(t, dump(all), before) // what is merged is not changed
	})
}

func TestMergeIdentity(t *testing.T) {
	panes := assemble(Config{}, 0, traffic(5, 3000, 5e6))
	for _, p := range panes {
		empty := &Pane{Start: p.Start, End: p.End}
		Merge(empty, p)
		differ(t, empty.String(), p.String())
		Merge(empty, &Pane{Start: p.Start, End: p.End})
		differ(t, empty.String(), p.String())
	}
}

// Twice delivered lines count twice (their source tells them apart), but sets and samples stay what they were.
func TestDuplicatesLeaveSetsAlone(t *testing.T) {
	records := traffic(6, 4000, 5e6)
	once := assemble(roomy, 0, records)
	twice := assemble(roomy, 0, nil)
	if len(twice) != 0 {
		t.Fatalf("%d panes of nothing", len(twice))
	}
	var doubled []pipeline.Record
	for _, r := range records {
		doubled = append(doubled, r, r)
	}
	twice = assemble(roomy, 0, doubled)
	for i, p := range once {
		for _, name := range p.SiteNames() {
			for _, k := range p.Sites[name].Keys() {
				a, b := p.Sites[name].Cells()[k], twice[i].Sites[name].Cells()[k]
				if 2*a.Requests != b.Requests || a.Clients.fingerprint() != b.Clients.fingerprint() ||
					a.URLs.fingerprint() != b.URLs.fingerprint() || !slices.Equal(a.Samples.Strings(), b.Samples.Strings()) {
					t.Fatalf("%s %v differ", name, k)
				}
			}
		}
	}
}

// A fleet whose logs are written in local time with changing offsets, and in UTC, gives the panes of UTC: the
// hour that Berlin has twice on 2026-10-25 is two hours.
func TestZonesAndDaylightSaving(t *testing.T) {
	lines := []string{
		"2026-10-25T02:58:59+02:00", "2026-10-25T00:59:05Z", "2026-10-25T02:59:15+02:00", "2026-10-25T02:59:29+02:00",
		"2026-10-25T00:59:38Z", "2026-10-25T02:59:59+02:00", "2026-10-25T02:00:01+01:00", "2026-10-25T01:00:02Z",
		"2026-10-25T02:00:19+01:00", "2026-10-25T03:00:20+02:00", "2026-10-25T02:00:39+01:00",
	}
	var local, utc []pipeline.Record
	for i, line := range lines {
		at, err := time.Parse(time.RFC3339, line)
		if err != nil {
			t.Fatal(err)
		}
		r := request(at.UnixNano(), int64(i)*second/10)
		local = append(local, r)
		r.End = at.UTC().UnixNano()
		utc = append(utc, r)
	}
	slices.SortFunc(utc, func(a, b pipeline.Record) int { return int(a.End - b.End) })
	a := NewAssembler(Config{})
	berlin, other := a.Source("berlin", 5*time.Second), a.Source("utc", 5*time.Second)
	var got []*Pane
	for i := range local {
		src := berlin
		if bytes.HasSuffix([]byte(lines[i]), []byte("Z")) {
			src = other
		}
		if a.Add(src, &local[i]) {
			t.Errorf("%s is late", lines[i])
		}
		got = drain(a, got)
	}
	a.Flush()
	got = drain(a, got)
	want := assemble(Config{}, 5*time.Second, utc)
	for _, p := range append(slices.Clone(got), want...) {
		p.Heard = nil // of other sources
	}
	differ(t, dump(got), dump(want))
	for i := 1; i < len(got); i++ {
		if got[i].Start != got[i-1].End {
			t.Errorf("a hole between %d and %d", got[i-1].End, got[i].Start)
		}
	}
	if len(got) != 11 {
		t.Errorf("%d panes from 00:58:50 to 01:00:40, want 11", len(got))
	}
}

func TestEventsOverTheCapAreCutInCanonicalOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 8))
	events := make([]pipeline.Event, 500)
	for i := range events {
		events[i] = pipeline.Event{Time: base + int64(random.IntN(9))*second, Kind: pipeline.ProbeFailed, PID: i}
	}
	run := func() string {
		a := NewAssembler(Config{MaxEvents: 50})
		src := a.Source("kubelet", time.Minute)
		for _, e := range events {
			a.AddEvent(src, e)
		}
		a.Flush()
		panes := drain(a, nil)
		if len(panes) != 1 || len(panes[0].Events) != 50 || panes[0].Coverage.EventsDropped != 450 || panes[0].Coverage.Lines != 500 {
			t.Fatalf("%d panes, coverage %+v", len(panes), panes[0].Coverage)
		}
		return panes[0].String()
	}
	want := run()
	for range 5 {
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		differ(t, run(), want)
	}
}

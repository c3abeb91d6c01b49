package pane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

// A told is a report on its way.
type told struct {
	node   string
	report []byte
	at     int64 // ns: when it arrives
}

type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// tell makes the reports of a node's panes: each arrives some seconds after its pane has ended.
func tell(t fataler, node string, boot uint64, panes []*Pane) []told {
	t.Helper()
	out := make([]told, 0, len(panes)+1)
	for i, p := range panes {
		r := Report{Boot: boot, Seq: uint64(i + 1), Sent: p.End + 5*second, Length: p.End - p.Start, Config: "same"}
		if err := r.Pack(p, maxPacked); err != nil {
			t.Fatal(err)
		}
		out = append(out, told{node, wired(t, &r), p.End + 6*second})
	}
	return out
}

func wired(t fataler, r *Report) []byte {
	t.Helper()
	data, err := r.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// over makes the report that nothing follows.
func over(t fataler, x []told, panes []*Pane) told {
	t.Helper()
	last := panes[len(panes)-1]
	r := Report{Boot: 1, Seq: uint64(len(panes) + 1), Sent: last.End, Length: last.End - last.Start, Start: last.Start, End: last.End, Done: true}
	return told{x[0].node, wired(t, &r), last.End + 7*second}
}

// fleet spreads records over nodes and gives what these tell, by time of arrival, and what one node would count.
func fleet(t fataler, records []pipeline.Record, nodes int, seed uint64) (reports []told, one []*Pane) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 9))
	split := make([][]pipeline.Record, nodes)
	for _, r := range records {
		i := random.IntN(nodes)
		split[i] = append(split[i], r)
	}
	for i, part := range split {
		panes := assemble(roomy, 5*time.Second, part)
		list := tell(t, fmt.Sprintf("node-%d", i), 1, panes)
		reports = append(append(reports, list...), over(t, list, panes))
	}
	slices.SortStableFunc(reports, func(a, b told) int { return int(a.at - b.at) })
	return reports, assemble(roomy, 5*time.Second, records)
}

// unite runs reports through a Union.
func unite(t fataler, u *Union, reports []told) (panes []*Pane, absent []string) {
	t.Helper()
	for _, x := range reports {
		var r Report
		if err := r.UnmarshalBinary(x.report); err != nil {
			u.Refuse(x.node, u.Seq()+1, x.at, err.Error())
			continue
		}
		u.Take(x.node, &r, u.Seq()+1, x.at)
		for {
			p, lacks := u.Next()
			if p == nil {
				break
			}
			panes = append(panes, p)
			absent = append(absent, strings.Join(lacks, " "))
		}
	}
	return panes, absent
}

// counted is the dump of panes without who told of them.
func counted(panes []*Pane) string {
	plain := make([]*Pane, 0, len(panes))
	for _, p := range panes {
		x := *p
		x.Heard, x.Coverage.Nodes, x.Coverage.Absent = nil, 0, 0
		plain = append(plain, &x)
	}
	return dump(plain)
}

var united = UnionConfig{Caps: roomy}

// What nodes counted, added up, is what one would have counted, however the reports come.
func TestUnionIsWhatOneNodeCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := traffic(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(150, 300).Draw(t, "n"), 200e6)
		reports, one := fleet(t, records, rapid.IntRange(1, 8).Draw(t, "nodes"), rapid.Uint64().Draw(t, "split"))
		random := rand.New(rand.NewPCG(2, rapid.Uint64().Draw(t, "order")))
		for range random.IntN(2 * len(reports)) { // some come twice
			reports = append(reports, reports[random.IntN(len(reports))])
		}
		for i := range reports { // and all within the lateness in any order
			reports[i].at += random.Int64N(20 * second)
		}
		slices.SortStableFunc(reports, func(a, b told) int { return int(a.at - b.at) })
		panes, absent := unite(t, NewUnion(united), reports)
		differ(t, counted(panes), counted(one))
		for i, names := range absent {
			if names != "" {
				t.Fatalf("pane %d lacks %s", i, names)
			}
		}
	})
}

// A Union that was restored goes on as the one before it would have, and tells the same past.
func TestUnionRestored(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := traffic(rapid.Uint64().Draw(t, "seed"), 300, 500e6)
		reports, _ := fleet(t, records, 3, 1)
		random := rand.New(rand.NewPCG(2, rapid.Uint64().Draw(t, "order")))
		for i := range reports {
			reports[i].at += random.Int64N(50 * second)
		}
		slices.SortStableFunc(reports, func(a, b told) int { return int(a.at - b.at) })
		want, lacks := unite(t, NewUnion(united), reports)
		cut := rapid.IntRange(1, len(reports)).Draw(t, "cut")
		before := NewUnion(united)
		past, lacked := unite(t, before, reports[:cut])
		state, err := before.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		again := NewUnion(united)
		from, err := again.Restore(state, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := int(from) - 1; i < cut; i++ {
			var r Report
			if err := r.UnmarshalBinary(reports[i].report); err != nil {
				t.Fatal(err)
			}
			again.Recall(reports[i].node, &r, uint64(i+1))
		}
		var recalled []*Pane
		again.Recalled(func(p *Pane) { recalled = append(recalled, p) })
		late := func(panes []*Pane) []*Pane { // reports that came too late are told of once
			for _, p := range panes {
				p.Coverage.Late = 0
			}
			return panes
		}
		rest, lacking := unite(t, again, reports[cut:])
		differ(t, dump(append(slices.Clone(past), rest...)), dump(want))
		if got := slices.Concat(lacked, lacking); !slices.Equal(got, lacks) {
			t.Fatalf("absent %q, want %q", got, lacks)
		}
		differ(t, dump(late(recalled)), dump(late(past)))
	})
}

// states tells what a Union knows of its nodes.
func states(u *Union) string {
	var b strings.Builder
	for _, n := range u.Nodes() {
		fmt.Fprintf(&b, "%s %s %d; ", n.Node, n.State, n.Late)
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// even gives the panes of n nodes for so long, each with a request in every second.
func even(t *testing.T, nodes int, d time.Duration) map[string][]told {
	t.Helper()
	out := map[string][]told{}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		out[name] = tell(t, name, 1, assemble(roomy, 0, traffic(uint64(i), int(d/time.Second), second)))
	}
	return out
}

func merged(lists ...[]told) []told {
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, func(a, b told) int { return int(a.at - b.at) })
	return all
}

// A node that falls silent is waited for once; it is named, and counts again when it has caught up.
func TestUnionNodeCutOff(t *testing.T) {
	nodes := even(t, 3, 20*time.Minute)
	cut := nodes["n1"]
	away, back := cut[30].at, cut[90].at
	for i := range cut {
		if cut[i].at >= away && cut[i].at < back {
			cut[i].at = back + int64(i)*1e6
		}
	}
	all := merged(nodes["n0"], cut, nodes["n2"])
	u := NewUnion(united)
	when := slices.IndexFunc(all, func(x told) bool { return x.at >= away+2*60*second })
	panes, absent := unite(t, u, all[:when])
	if got := states(u); got != "n0 counted 0; n1 missing 0; n2 counted 0" {
		t.Error(got)
	}
	delay := u.Now() - panes[len(panes)-1].End
	if delay > 17*second {
		t.Errorf("two minutes after a node fell silent panes wait %s", time.Duration(delay))
	}
	more, lacking := unite(t, u, all[when:])
	panes, absent = append(panes, more...), append(absent, lacking...)
	if got := states(u); got != "n0 counted 0; n1 counted 60; n2 counted 0" {
		t.Error(got)
	}
	lacks := 0
	for i, p := range panes {
		if i > 0 && p.Start != panes[i-1].End {
			t.Fatalf("pane %d does not follow the one before", i)
		}
		if absent[i] == "n1" {
			lacks++
			if p.Coverage.Nodes != 2 || p.Coverage.Absent != 1 {
				t.Errorf("pane %d: %+v", i, p.Coverage)
			}
		}
	}
	late := MergeAll(panes[0].Start, panes[len(panes)-1].End, panes).Coverage.Late
	if lacks != 60 || late != 600 {
		t.Errorf("%d panes lack the node, %d lines came too late", lacks, late)
	}
}

// When the carrier was away, nodes tell what they have kept one after another: none is given up meanwhile, and nothing is
// late.
func TestUnionCarrierAway(t *testing.T) {
	nodes := even(t, 3, 10*time.Minute)
	for name, list := range nodes {
		away, back := list[20].at+second, list[26].at // one has told of a pane more before
		if name == "n0" {
			away += 10 * second
		}
		for i := range list {
			if list[i].at >= away && list[i].at < back {
				list[i].at = back + int64(len(name)+int(name[1]-'0')*1000+i)*1e6
			}
		}
	}
	panes, absent := unite(t, NewUnion(united), merged(nodes["n0"], nodes["n1"], nodes["n2"]))
	for i, names := range absent {
		if names != "" || panes[i].Coverage.Late > 0 {
			t.Errorf("pane %d lacks %q, and %d lines were late", i, names, panes[i].Coverage.Late)
		}
	}
}

// A node whose clock is ahead does not lead the fleet into a time of which nobody else can tell, while the others are cut
// off.
func TestUnionIsNotLedAhead(t *testing.T) {
	nodes := even(t, 4, 10*time.Minute)
	for i := range nodes["n3"] {
		nodes["n3"][i].at -= 120 * second
	}
	away, back := nodes["n0"][20].at, nodes["n0"][29].at
	for _, name := range []string{"n0", "n1", "n2"} {
		for i, x := range nodes[name] {
			if x.at >= away && x.at < back {
				nodes[name][i].at = back + int64(i)
			}
		}
	}
	u := NewUnion(united)
	panes, absent := unite(t, u, merged(nodes["n0"], nodes["n1"], nodes["n2"], nodes["n3"]))
	lacking := 0
	for i, names := range absent {
		if panes[i].Start > nodes["n0"][0].at && strings.Contains(names, "n0") {
			lacking++
		}
	}
	if lacking == 0 || lacking > 14 {
		t.Errorf("%d panes lack those that were cut off for nine", lacking)
	}
}

// One pane that comes 40 seconds late is counted as late, and its node goes on to count.
func TestUnionOnePaneLate(t *testing.T) {
	nodes := even(t, 2, 5*time.Minute)
	nodes["n1"][10].at += 40 * second
	u := NewUnion(united)
	panes, absent := unite(t, u, merged(nodes["n0"], nodes["n1"]))
	if n := len(slices.DeleteFunc(absent, func(s string) bool { return s == "" })); n != 1 {
		t.Errorf("%d panes lack the node", n)
	}
	if got := states(u); got != "n0 counted 0; n1 counted 1" {
		t.Error(got)
	}
	if sum := MergeAll(panes[0].Start, panes[len(panes)-1].End, panes).Coverage; sum.Late != 10 || sum.Lines+sum.Late < uint64(20*len(panes)) {
		t.Errorf("%+v", sum)
	}
}

// Clocks that are off are told of, and hold nobody up.
func TestUnionClocks(t *testing.T) {
	for name, test := range map[string]struct {
		off    int64
		states string
		skew   int64
	}{
		"ahead by 3 s":    {3 * second, "n0 counted 0; n1 counted 0", 3 * second},
		"ahead by 2 min":  {120 * second, "n0 counted 0; n1 counted 0", 120 * second},
		"behind by 3 s":   {-3 * second, "n0 counted 0; n1 counted 0", -3 * second},
		"behind by 2 min": {-120 * second, "n0 counted 0; n1 late 6", -120 * second},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := even(t, 2, 5*time.Minute)
			for i := range nodes["n1"] {
				nodes["n1"][i].at -= test.off
			}
			u := NewUnion(united)
			n0, n1 := nodes["n0"], nodes["n1"]
			last := min(n0[len(n0)-1].at, n1[len(n1)-1].at)
			both := slices.DeleteFunc(merged(n0, n1), func(x told) bool { return x.at < n0[0].at || x.at > last })
			panes, _ := unite(t, u, both)
			if got := states(u); got != test.states {
				t.Errorf("%s, want %s", got, test.states)
			}
			if behind := (u.Now() - panes[len(panes)-1].End); behind > 40*second {
				t.Errorf("panes are %s behind", time.Duration(behind))
			}
			for _, n := range u.Nodes() {
				if n.Node == "n1" && (n.Skew < test.skew-2*second || n.Skew > test.skew) {
					t.Errorf("its clock is ahead by %s", time.Duration(n.Skew))
				}
			}
		})
	}
}

// A node that starts anew counts its panes again: they are counted once.
func TestUnionNodeStartsAnew(t *testing.T) {
	nodes := even(t, 2, 3*time.Minute)
	want, _ := unite(t, NewUnion(united), merged(nodes["n0"], nodes["n1"]))
	for name, boot := range map[string]func(i int, r *Report){
		"its numbers go on":    func(i int, r *Report) { r.Seq = uint64(i + 6) },
		"its numbers are lost": func(i int, r *Report) { r.Seq = uint64(i - 6) },
	} {
		t.Run(name, func(t *testing.T) {
			old := slices.Clone(nodes["n1"][:12])
			for i, x := range nodes["n1"][7:] {
				var r Report
				if err := r.UnmarshalBinary(x.report); err != nil {
					t.Fatal(err)
				}
				r.Boot = 2
				boot(i+7, &r)
				x.report = wired(t, &r)
				x.at = max(x.at, old[len(old)-1].at+second)
				old = append(old, x)
			}
			u := NewUnion(united)
			panes, _ := unite(t, u, merged(nodes["n0"], old))
			differ(t, dump(panes), dump(want))
			if got := states(u); got != "n0 counted 0; n1 counted 0" {
				t.Error(got)
			}
		})
	}
}

// What cannot be counted is refused by name, and the rest goes on.
func TestUnionRefuses(t *testing.T) {
	nodes := even(t, 2, 2*time.Minute)
	edit := func(change func(r *Report)) []told {
		var out []told
		for _, x := range nodes["n1"] {
			var r Report
			if err := r.UnmarshalBinary(x.report); err != nil {
				t.Fatal(err)
			}
			change(&r)
			out = append(out, told{x.node, wired(t, &r), x.at})
		}
		return out
	}
	for name, list := range map[string][]told{
		"panes of another length": edit(func(r *Report) { r.Length, r.End = 5*second, r.Start+5*second }),
		"no pane":                 edit(func(r *Report) { r.packed = []byte("no frame") }),
		"another pane":            edit(func(r *Report) { r.Start, r.End = r.Start+10*second, r.End+10*second }),
		"a clock of next year":    edit(func(r *Report) { r.Start, r.End = r.Start+1e9*second, r.End+1e9*second }),
		"garbage": func() (out []told) {
			for _, x := range nodes["n1"] {
				out = append(out, told{"n1", []byte("garbage"), x.at})
			}
			return out
		}(),
		"a newer version": func() (out []told) {
			for _, x := range nodes["n1"] {
				out = append(out, told{"n1", append(x.report, protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 2)...), x.at})
			}
			return out
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			u := NewUnion(united)
			panes, absent := unite(t, u, merged(nodes["n0"], list))
			if got := states(u); got != "n0 counted 0; n1 refused 0" {
				t.Error(got)
			}
			absent = absent[1:] // "another pane" tells from the second on
			if slices.ContainsFunc(absent, func(s string) bool { return s != "n1" }) {
				t.Errorf("absent are %q", absent)
			}
			if n := len(nodes["n0"]) - len(panes); n > 4 {
				t.Errorf("%d panes of %d", len(panes), len(nodes["n0"]))
			}
			for i, p := range panes {
				if p.Coverage.Nodes != 1 || i > 0 && p.Coverage.Absent != 1 {
					t.Errorf("%+v", p.Coverage)
				}
			}
		})
	}
	var newer Report
	if err := newer.UnmarshalBinary(append(slices.Clone(nodes["n1"][0].report), protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 2)...)); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
	var known Report
	added := protowire.AppendString(protowire.AppendTag(slices.Clone(nodes["n1"][0].report), 30, protowire.BytesType), "of a later version")
	if err := known.UnmarshalBinary(added); err != nil {
		t.Errorf("a field that was added is no fault: %v", err)
	}
}

// A pane that is too large for its carrier is folded, and tells of it.
func TestReportFits(t *testing.T) {
	p := busyPanes(1)[0]
	before := p.String()
	var r Report
	if err := r.Pack(p, maxPacked); err != nil {
		t.Fatal(err)
	}
	whole := len(r.packed)
	for _, limit := range []int{3 * whole / 4, 3 * whole / 5} {
		if err := r.Pack(p, limit); err != nil {
			t.Fatal(err)
		}
		got, err := r.Pane()
		if err != nil {
			t.Fatal(err)
		}
		if len(r.packed) > limit {
			t.Errorf("%d bytes of %d", len(r.packed), limit)
		}
		if got.Coverage.CellsFolded+got.Coverage.SitesFolded == 0 || got.Coverage.Lines != p.Coverage.Lines {
			t.Errorf("%+v", got.Coverage)
		}
		sum := func(p *Pane) (n uint64) {
			for _, s := range p.Sites {
				n += s.requests()
			}
			return n
		}
		if sum(got) != sum(p) {
			t.Errorf("%d requests of %d", sum(got), sum(p))
		}
	}
	differ(t, p.String(), before)
	if err := r.Pack(p, 100); err == nil {
		t.Error("nothing fits into 100 bytes")
	}
}

// A Union is bounded, whatever comes.
func TestUnionIsBounded(t *testing.T) {
	u := NewUnion(UnionConfig{MaxNodes: 3, MaxBytes: 1 << 16, Caps: roomy})
	nodes := even(t, 2, 2*time.Minute)
	for i := range 10 {
		for _, x := range nodes["n1"] {
			nodes["many"] = append(nodes["many"], told{fmt.Sprintf("x%d", i), x.report, x.at})
		}
	}
	panes, _ := unite(t, u, merged(nodes["n0"], nodes["many"]))
	if n := len(u.Nodes()); n != 3 {
		t.Errorf("%d nodes", n)
	}
	if len(panes) < 8 || u.bytes > 1<<17 {
		t.Errorf("%d panes, %d bytes wait", len(panes), u.bytes)
	}
}

func FuzzReport(f *testing.F) {
	for _, x := range tell(f, "n", 1, busyPanes(3)) {
		f.Add(x.report)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Report
		if err := r.UnmarshalBinary(data); err != nil {
			if !errors.Is(err, ErrWire) {
				t.Fatal(err)
			}
			return
		}
		if p, err := r.Pane(); err == nil {
			_ = p.String()
		} else if !errors.Is(err, ErrWire) {
			t.Fatal(err)
		}
		u := NewUnion(united)
		u.Take("n", &r, 1, r.Start)
		u.Next()
	})
}

// A report that an earlier squall wrote, when the wire form was new, is read as it was meant and counted beside those of
// today: nodes are upgraded after those who add up.
func TestReportOfAnEarlierVersion(t *testing.T) {
	data, err := os.ReadFile("testdata/report.v1")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/report.v1.golden")
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := r.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	p, err := r.Pane()
	if err != nil {
		t.Fatal(err)
	}
	differ(t, p.String(), string(want))
	now := tell(t, "new", 1, []*Pane{{Start: p.Start, End: p.End, Coverage: Coverage{Lines: 5}}, {Start: p.End, End: p.End + 10*second}})
	panes, absent := unite(t, NewUnion(UnionConfig{Caps: roomy, Lateness: 10 * time.Second}), []told{
		{"old", data, now[0].at}, now[0], {"new", now[1].report, now[0].at + 11*second},
	})
	if len(panes) != 1 || absent[0] != "" || panes[0].Coverage.Nodes != 2 || panes[0].Coverage.Lines != p.Coverage.Lines+5 {
		t.Errorf("%d panes, absent %q", len(panes), absent)
	}
}

// TestUnionTwins: two processes that tell by one name are named as such; one that was started again is not, whatever
// the one before had left to tell.
func TestUnionTwins(t *testing.T) {
	const ms = uint64(time.Millisecond)
	u := NewUnion(UnionConfig{Pane: 10 * time.Second})
	base := int64(1_700_000_000) * second
	first, later := uint64(base)/ms, uint64(base+60*second)/ms
	twins := func() bool { return u.Nodes()[0].Twins }
	take := func(boot, seq uint64, sent, at int64) {
		start := sent - sent%(10*second) - 10*second
		u.Take("lb1", &Report{Boot: boot, Seq: seq, Sent: sent, Length: 10 * second, Start: start, End: start + 10*second}, seq, at)
	}
	take(first, 4, base+20*second, base+20*second)
	take(later, 1, base+75*second, base+75*second)
	take(first, 5, base+59*second, base+76*second) // what the first had told before it ended
	if twins() {
		t.Error("a node that was started again counts as two")
	}
	take(first, 7, base+85*second, base+86*second)
	if !twins() {
		t.Error("the first goes on beside the second, and nobody is told")
	}
	take(later, 2, base+500*second, base+500*second)
	if twins() {
		t.Error("the first is gone for long")
	}
}

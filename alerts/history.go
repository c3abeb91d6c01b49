package alerts

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

// What one detection may carry into an alert's state, whatever the log held.
const (
	maxText    = 512 // bytes of one agent, route or sample
	maxTop     = 10
	maxShares  = 64
	maxSamples = 5
	maxGaps    = 20
	maxParts   = 64 // detections that one alert keeps apart
)

// history is what one alert has seen from its beginning: the newest of each detector and what its episodes add
// up to.
type history struct {
	Seen  map[string]*detectors.Detection // by detector: the newest state, active or over
	Parts map[string]*part                // by detectionKey
	Gaps  []string                        // sources that lost lines meanwhile, sorted
	Away  []string                        // nodes of the fleet that did not tell meanwhile, sorted
	Rests pane.Coverage                   // what the panes of that time rest on
	Heard uint64                          // requests that were read, of all sources
	Quiet []detectors.Silence             // sources that fell silent meanwhile, by source and time
}

// part is what one detection amounts to.
type part struct {
	Detector string
	Over     detectors.Evidence // the episodes that are over
	Now      detectors.Evidence // the last window of the one that goes on; empty when none does
	Peak     detectors.Evidence // the highest of all windows
	Value    float64            // the highest value
}

// absorb adds what one pane found.
func (h *history) absorb(g *group, r *detectors.Result) {
	gaps, rests := r.GapSources, &r.Coverage
	h.listen(r)
	c := &h.Rests
	c.Lines, c.Late, c.Gaps, c.Dropped = c.Lines+rests.Lines, c.Late+rests.Late, c.Gaps+rests.Gaps, c.Dropped+rests.Dropped
	c.EventsDropped, c.SitesFolded = c.EventsDropped+rests.EventsDropped, c.SitesFolded+rests.SitesFolded
	c.CellsFolded, c.Nodes, c.Absent = c.CellsFolded+rests.CellsFolded, c.Nodes+rests.Nodes, c.Absent+rests.Absent
	if h.Seen == nil {
		h.Seen, h.Parts = map[string]*detectors.Detection{}, map[string]*part{}
	}
	for _, name := range slices.Sorted(maps.Keys(g.found)) {
		d := g.found[name]
		h.Seen[name] = d
		if p := h.part(d); p != nil && d.Active {
			p.Value = max(p.Value, d.Value, d.Peak)
			p.Now = d.Evidence
			p.Peak = mergePeaks(p.Peak, d.Evidence)
		}
	}
	for i := range g.ended {
		d := &g.ended[i]
		if now := g.found[d.Detector]; now == nil {
			if old := h.Seen[d.Detector]; old == nil || old.Active || d.Until >= old.Until {
				h.Seen[d.Detector] = d
			}
		}
		if p := h.part(d); p != nil {
			p.Value = max(p.Value, d.Peak)
			p.Over = mergeEpisodes(p.Over, d.Evidence)
			p.Now = detectors.Evidence{}
		}
	}
	h.Gaps, h.Away = note(h.Gaps, gaps), note(h.Away, r.Absent)
}

// note adds names to a sorted list of some.
func note(list, names []string) []string {
	for _, s := range names {
		if i, known := slices.BinarySearch(list, s); !known && len(list) < maxGaps {
			list = slices.Insert(list, i, cut(s, maxText))
		}
	}
	return list
}

// listen adds how many requests were told of in a pane, and which sources were silent.
func (h *history) listen(r *detectors.Result) {
	for _, x := range r.Heard {
		h.Heard += x.Records
	}
	for _, s := range r.Silences {
		i, known := slices.BinarySearchFunc(h.Quiet, s, func(a, b detectors.Silence) int {
			return cmp.Or(strings.Compare(a.Source, b.Source), cmp.Compare(a.From, b.From))
		})
		switch {
		case known:
			h.Quiet[i] = s
		case len(h.Quiet) < maxGaps:
			h.Quiet = slices.Insert(h.Quiet, i, s)
		}
	}
}

func (h *history) part(d *detectors.Detection) *part {
	key := detectionKey(d)
	if h.Parts[key] == nil {
		if len(h.Parts) >= maxParts {
			return nil
		}
		h.Parts[key] = &part{Detector: d.Detector}
	}
	return h.Parts[key]
}

// primary is the first detector that the rule names and the alert has seen: the alert's value is its value.
func (h *history) primary(reads []string) *detectors.Detection {
	for _, name := range reads {
		if d := h.Seen[name]; d != nil {
			return d
		}
	}
	return nil
}

// peak is the highest value of the primary detector over the alert's life.
func (h *history) peak(reads []string) float64 {
	highest := 0.0
	if d := h.primary(reads); d != nil {
		for _, p := range h.Parts {
			if p.Detector == d.Detector {
				highest = max(highest, p.Value)
			}
		}
	}
	return highest
}

// detectors lists those of the rule that took part, sorted.
func (h *history) detectors(reads []string) []string {
	var names []string
	for _, name := range reads {
		if h.Seen[name] != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// window is the evidence now: the first detector that the rule names tells, the others fill in what it does not
// know, so that the numbers of one line belong together.
func (h *history) window(reads []string) detectors.Evidence {
	var e detectors.Evidence
	for _, name := range reads {
		if d := h.Seen[name]; d != nil {
			e = fill(e, d.Evidence)
		}
	}
	return e
}

// whole is the evidence from the beginning: totals over its episodes, peaks over its windows.
func (h *history) whole(reads []string) detectors.Evidence {
	var e detectors.Evidence
	for _, name := range reads {
		var all detectors.Evidence
		for _, key := range slices.Sorted(maps.Keys(h.Parts)) {
			if p := h.Parts[key]; p.Detector == name {
				total := mergeEpisodes(p.Over, p.Now)
				all = mergeEpisodes(all, mergePeaks(total, p.Peak))
			}
		}
		e = fill(e, all)
	}
	return e
}

// merging says how a number of two spans of time makes one number of both; what is not listed is a peak.
type merging int

const (
	highest  merging = iota // the higher one
	total                   // the sum
	weighted                // the mean, weighted by requests
	latest                  // the second, where known
)

var mergings = map[string]merging{
	"requests": total, "abandoned": total, "collateral": total, "limited": total, "errors_5xx": total,
	"restarts": total, "retries": total, "oom_killed": total, "worker_seconds_lower": total, "worker_seconds_upper": total,
	"abandon_ratio": weighted, "reached_upstream_ratio": weighted, "worker_seconds_share": weighted,
	"static_share": weighted, "bot_share": weighted, "browser_share": weighted, "baseline_per_minute": latest, "pool_workers": latest, "ttl_seconds": latest,
	"period_seconds": latest, "rules_caught_lower": weighted, "rules_caught_upper": weighted,
}

// mergeEpisodes joins the evidence of two episodes, a before b.
func mergeEpisodes(a, b detectors.Evidence) detectors.Evidence {
	out := mergeNumbers(a, b, func(name string) merging { return mergings[name] })
	out.Status, out.Reasons = addCounts(a.Status, b.Status), addCounts(a.Reasons, b.Reasons)
	out.TopAgents, out.TopRoutes = addTops(a.TopAgents, b.TopAgents), addTops(a.TopRoutes, b.TopRoutes)
	out.P99Censored = a.P99Censored || b.P99Censored
	out.Scope = widest(a.Scope, b.Scope)
	if len(b.Costs) > 0 && !(b.Requests.Get() <= a.Requests.Get()) {
		out.Costs = b.Costs
	}
	if len(b.Discriminators) > 0 && !(b.Requests.Get() <= a.Requests.Get()) { // the larger episode's: shares of two do not add up
		out.Discriminators, out.TopPrefixes, out.RuleCoverage = b.Discriminators, b.TopPrefixes, b.RuleCoverage
	}
	out.Method, out.Route = a.Method, a.Route
	if a.Method+a.Route == "" || b.Requests.Get() > a.Requests.Get() && b.Method+b.Route != "" {
		out.Method, out.Route = b.Method, b.Route
	}
	for _, s := range b.Samples {
		if len(out.Samples) < maxSamples && !slices.Contains(out.Samples, s) {
			out.Samples = append(slices.Clip(out.Samples), s)
		}
	}
	return out
}

// mergePeaks keeps a and raises its peaks, and its totals where a window had more than a, to those of a window b.
func mergePeaks(a, b detectors.Evidence) detectors.Evidence {
	out := mergeNumbers(a, b, func(name string) merging {
		if k := mergings[name]; k != total {
			return k
		}
		return highest
	})
	// A ratio of the whole is not the mean of its windows: keep a's.
	for name, i := range numberFields {
		if mergings[name] == weighted && number(&a, i).Known() {
			setNumber(&out, i, number(&a, i))
		}
	}
	out.P99Censored = a.P99Censored || b.P99Censored
	return fill(out, b)
}

func mergeNumbers(a, b detectors.Evidence, kind func(string) merging) detectors.Evidence {
	out := a
	wa, wb := a.Requests.Get(), b.Requests.Get()
	if b.BaselineRatio.Known() && !(a.BaselineRatio.Get() >= b.BaselineRatio.Get()) {
		out.BaselineOfAll = b.BaselineOfAll
	}
	for name, i := range numberFields {
		x, y := number(&a, i), number(&b, i)
		switch {
		case !y.Known():
			continue
		case !x.Known():
			setNumber(&out, i, y)
			continue
		}
		switch kind(name) {
		case total:
			setNumber(&out, i, detectors.N(x.Get()+y.Get()))
		case weighted:
			if mean := detectors.N((x.Get()*wa + y.Get()*wb) / (wa + wb)); mean.Known() {
				setNumber(&out, i, mean)
			}
		case latest:
			setNumber(&out, i, y)
		default:
			setNumber(&out, i, detectors.N(max(x.Get(), y.Get())))
		}
	}
	return out
}

// fill takes from b what a does not have.
func fill(a, b detectors.Evidence) detectors.Evidence {
	for _, i := range numberFields {
		if !number(&a, i).Known() {
			setNumber(&a, i, number(&b, i))
			switch {
			case !number(&b, i).Known():
			case i == numberFields["p99_seconds"]:
				a.P99Censored = b.P99Censored
			case i == numberFields["pool_workers"]:
				a.PoolLearned = b.PoolLearned
			case i == numberFields["baseline_ratio"]:
				a.BaselineOfAll = b.BaselineOfAll
			}
		}
	}
	if a.Method+a.Route == "" {
		a.Method, a.Route = b.Method, b.Route
	}
	if len(a.TopAgents) == 0 {
		a.TopAgents = b.TopAgents
	}
	if len(a.TopRoutes) == 0 {
		a.TopRoutes = b.TopRoutes
	}
	if len(a.Status) == 0 {
		a.Status = b.Status
	}
	if len(a.Reasons) == 0 {
		a.Reasons = b.Reasons
	}
	if len(a.Scope) == 0 {
		a.Scope = b.Scope
	}
	if len(a.Costs) == 0 {
		a.Costs = b.Costs
	}
	if len(a.Discriminators) == 0 {
		a.Discriminators, a.TopPrefixes = b.Discriminators, b.TopPrefixes
	}
	if len(a.RuleCoverage) == 0 {
		a.RuleCoverage = b.RuleCoverage
	}
	if len(a.Samples) == 0 {
		a.Samples = b.Samples
	}
	return a
}

func number(e *detectors.Evidence, field int) detectors.Num {
	return reflect.ValueOf(e).Elem().Field(field).Interface().(detectors.Num)
}

func setNumber(e *detectors.Evidence, field int, n detectors.Num) {
	reflect.ValueOf(e).Elem().Field(field).Set(reflect.ValueOf(n))
}

func addCounts(a, b map[string]int) map[string]int {
	if len(b) == 0 {
		return a
	}
	sum := maps.Clone(a)
	if sum == nil {
		sum = map[string]int{}
	}
	for k, n := range b {
		sum[k] += n
	}
	return sum
}

// widest is the scope with more containers: what is shared cannot be added up, since some may be in both.
func widest(a, b []detectors.Share) []detectors.Share {
	most := func(shares []detectors.Share) (n float64) {
		for _, s := range shares {
			n = max(n, s.Count)
		}
		return n
	}
	if most(b) > most(a) {
		return b
	}
	return a
}

// addTops adds two rankings. What one of them does not list it may have had below its end, so the sum may be low.
func addTops(a, b []detectors.Count) []detectors.Count {
	if len(b) == 0 {
		return a
	}
	sum := slices.Clone(a)
	for _, c := range b {
		if i := slices.IndexFunc(sum, func(s detectors.Count) bool { return s.Key == c.Key }); i >= 0 {
			sum[i].Count, sum[i].Approx = sum[i].Count+c.Count, sum[i].Approx || c.Approx
			if !(sum[i].BaselineRatio.Get() >= c.BaselineRatio.Get()) && c.BaselineRatio.Known() {
				sum[i].BaselineRatio = c.BaselineRatio
			}
		} else {
			sum = append(sum, c)
		}
	}
	slices.SortStableFunc(sum, func(a, b detectors.Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Key, b.Key))
	})
	return sum[:min(len(sum), maxTop)]
}

// clean copies a detection with every text bounded and valid UTF-8: what follows may keep it.
func clean(d *detectors.Detection) detectors.Detection {
	out := *d
	for _, v := range []*float64{&out.Value, &out.Threshold, &out.Peak} {
		if math.IsNaN(*v) || math.IsInf(*v, 0) {
			*v = 0
		}
	}
	e := &out.Evidence
	e.Method, e.Route = cut(e.Method, 32), cut(e.Route, maxText)
	e.TopAgents, e.TopRoutes = cleanTop(e.TopAgents), cleanTop(e.TopRoutes)
	e.TopPrefixes = cleanTop(e.TopPrefixes)
	e.Costs = slices.Clone(e.Costs[:min(len(e.Costs), maxTop)])
	for i := range e.Costs {
		e.Costs[i].Method, e.Costs[i].Route = cut(e.Costs[i].Method, 32), cut(e.Costs[i].Route, maxText)
	}
	e.Discriminators = slices.Clone(e.Discriminators)
	for i := range e.Discriminators {
		keys := slices.Clone(e.Discriminators[i].Keys)
		for j := range keys {
			keys[j] = cut(keys[j], maxText)
		}
		e.Discriminators[i].Keys = keys
	}
	e.Scope = slices.Clone(e.Scope[:min(len(e.Scope), maxShares)])
	for i := range e.Scope {
		e.Scope[i].Kind, e.Scope[i].Name = cut(e.Scope[i].Kind, 64), cut(e.Scope[i].Name, 253)
	}
	e.Samples = slices.Clone(e.Samples[:min(len(e.Samples), maxSamples)])
	for i, s := range e.Samples {
		e.Samples[i] = cut(s, maxText)
	}
	return out
}

func cleanTop(top []detectors.Count) []detectors.Count {
	top = slices.Clone(top[:min(len(top), maxTop)])
	for i := range top {
		top[i].Key = cut(top[i].Key, maxText)
	}
	return top
}

// cut bounds a text to n bytes, without splitting a character, and makes it valid UTF-8.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) <= n {
		return s
	}
	end := n - len("…")
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

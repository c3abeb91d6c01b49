package detectors

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/squall-sre/squall/detectors/pane"
)

// A Discriminator is one way to tell a storm from everything else: a rule that names at most three values of one
// dimension. Its worth is what it catches of the storm less what it hits of the rest (Youden's J, Cancer 1950), both
// as intervals where they come from sketches or where the panes do not tell the storm's part from the rest's.
type Discriminator struct {
	By          string   `json:"by"`   // method+route, route, method, agent, prefix (/24, /48) or address
	Keys        []string `json:"keys"` // as a rule would name them
	CaughtLower Num      `json:"caught_lower"`
	CaughtUpper Num      `json:"caught_upper"` // of the storm's requests
	FalseLower  Num      `json:"false_positives_lower"`
	FalseUpper  Num      `json:"false_positives_upper"` // of the other requests
	Entropy     Num      `json:"entropy_bits,omitzero"` // of the storm over all values of the dimension: 0 is one value
}

// Worth is at least what the rule is worth: 1 catches the whole storm and nothing else.
func (d *Discriminator) Worth() float64 { return d.CaughtLower.Get() - d.FalseUpper.Get() }

// A Control is something in place at a site: a name alone, or a rule with the requests that it answers.
type Control struct {
	Name   string
	Method string // "" is any
	Path   string // a path or route with * for any run of characters; "" is any
	Agent  string // a part of the User-Agent; "" is any
}

// isRule tells whether the control says which requests it answers.
func (c *Control) isRule() bool { return c.Method+c.Path+c.Agent != "" }

// Covers tells whether the control is a rule that answers every request of a method on a route, whatever its agent.
func (c *Control) Covers(method, route string) bool {
	return c.isRule() && c.Agent == "" && (c.Method == "" || c.Method == method) && (c.Path == "" || glob(c.Path, route))
}

// String is the control as people name it: with what it answers where it says so.
func (c *Control) String() string {
	agent := ""
	if c.Agent != "" {
		agent = "agent " + c.Agent
	}
	parts := slices.DeleteFunc([]string{c.Method, c.Path, agent}, func(s string) bool { return s == "" })
	if len(parts) == 0 {
		return c.Name
	}
	return c.Name + " (" + strings.Join(parts, " ") + ")"
}

// A RuleCoverage is the part of a storm's damage that a rule in place would have caught: of its worker-seconds where they
// are known, else of its requests.
type RuleCoverage struct {
	Rule  string `json:"rule"`
	Lower Num    `json:"caught_lower"`
	Upper Num    `json:"caught_upper"`
}

const (
	ruleKeys   = 3    // values that a rule names
	enoughOf   = 0.95 // of the storm: no further value is added
	leastOf    = 0.05 // of the storm: a value that is not worth naming
	topRanges  = 10
	rangeBits4 = 24
	rangeBits6 = 48
)

// interval is a sum known to lie between two bounds.
type interval struct{ lower, upper float64 }

func (i *interval) add(lower, upper float64) { i.lower, i.upper = i.lower+lower, i.upper+upper }

func (i interval) of(total float64) interval {
	return interval{min(max(i.lower/total, 0), 1), min(max(i.upper/total, 0), 1)}
}

// split is how many requests of one value belong to the storm, and how many do not.
type split struct{ storm, rest interval }

// named is the split of a value of a dimension.
type named struct {
	name string
	split
}

// storming gives the part of a cell's requests that is the storm's.
type storming func(k pane.Key, c *pane.Cell) interval

// certain is how many standard deviations what is usual may be off: of counts that come at random (Poisson) three
// hold nearly all.
const certain = 3

// beyondBaseline counts as the storm what matching cells have beyond what is usual: at least beyond what the usual may
// at most have made, at most all of it.
func (w *Window) beyondBaseline(site string, match func(pane.Key) bool) storming {
	return func(k pane.Key, c *pane.Cell) interval {
		if !match(k) {
			return interval{}
		}
		usual := k
		usual.Origin = 0
		b := w.Baseline(site, usual)
		most := (b.PerMinute + b.smallest()) * w.Minutes()
		return interval{max(0, float64(c.Requests)-most-certain*math.Sqrt(most)), float64(c.Requests)}
	}
}

// ofAgent counts as the storm what one agent sends.
func ofAgent(agent string) storming {
	return func(_ pane.Key, c *pane.Cell) interval {
		if it, ok := c.TopAgents.Get(agent); ok {
			return interval{float64(it.Count - it.Error), float64(it.Count)}
		}
		return interval{0, float64(min(c.TopAgents.Floor(), c.Requests))}
	}
}

// A storm is the requests of a site in a window, the storm's told from the rest.
type storm struct {
	w     *Window
	site  string
	agent string // that the storm is by definition; "": none
	total split  // of all client requests
	cells []stormCell
}

// stormCell is a cell and the part of its requests that is the storm's.
type stormCell struct {
	key  pane.Key
	cell *pane.Cell
	part interval
}

func (w *Window) storm(site string, part storming) *storm {
	s := &storm{w: w, site: site}
	for k, c := range w.cells(site) {
		if isClient(k) {
			s.cells = append(s.cells, stormCell{k, c, part(k, c)})
		}
	}
	slices.SortFunc(s.cells, func(a, b stormCell) int { return compareKeys(a.key, b.key) }) // sums of fractions hang on the order
	for _, c := range s.cells {
		s.total.count(c)
	}
	return s
}

func (s *split) count(c stormCell) {
	of := c.split()
	s.storm.add(of.storm.lower, of.storm.upper)
	s.rest.add(of.rest.lower, of.rest.upper)
}

// split tells the storm's part of a cell from the rest's.
func (c *stormCell) split() split {
	all := float64(c.cell.Requests)
	return split{c.part, interval{all - c.part.upper, all - c.part.lower}}
}

// discriminate ranks the dimensions by which the storm can be told from the rest, the best first.
func (s *storm) discriminate(e *Evidence) {
	if !(s.total.storm.lower > 0) {
		return
	}
	dimensions := []struct {
		by     string
		splits map[string]split
		values float64 // distinct ones of the storm
	}{
		{"method+route", s.byKey(func(k pane.Key) string { return k.Method + " " + k.Route }), 0},
		{"route", s.byKey(func(k pane.Key) string { return k.Route }), 0},
		{"method", s.byKey(func(k pane.Key) string { return k.Method }), 0},
		{"agent", s.byAgent(), e.DistinctAgents.Get()},
		{"prefix", s.byRange(), math.NaN()},
		{"address", s.byAddress(), e.DistinctClients.Get()},
	}
	for _, d := range dimensions {
		switch {
		case d.by == "agent" && s.agent != "":
			e.Discriminators = append(e.Discriminators, Discriminator{By: d.by, Keys: []string{s.agent},
				CaughtLower: N(1), CaughtUpper: N(1), FalseLower: N(0), FalseUpper: N(0), Entropy: N(0)})
		case len(d.splits) > 0:
			e.Discriminators = append(e.Discriminators, s.best(d.by, d.splits, d.values))
		}
	}
	slices.SortStableFunc(e.Discriminators, func(a, b Discriminator) int { return cmp.Compare(b.Worth(), a.Worth()) })
	e.TopPrefixes = s.ranges()
}

func (s *storm) byKey(name func(pane.Key) string) map[string]split {
	out := map[string]split{}
	for _, c := range s.cells {
		sum := out[name(c.key)]
		sum.count(c)
		out[name(c.key)] = sum
	}
	return out
}

// byAgent knows how many of a cell's requests are an agent's and how many are the storm's, not which are both.
func (s *storm) byAgent() map[string]split {
	out := map[string]split{}
	for _, c := range s.cells {
		for _, it := range c.cell.TopAgents.Items() {
			x := c.split().apart(float64(it.Count-it.Error), float64(it.Count))
			sum := out[it.Key]
			sum.storm.add(x.storm.lower, x.storm.upper)
			sum.rest.add(x.rest.lower, x.rest.upper)
			out[it.Key] = sum
		}
	}
	return out
}

// byAddress knows each address's requests of the whole site alone: at most all of them are the storm's, and at least
// what the rest cannot be.
func (s *storm) byAddress() map[string]split {
	out := map[string]split{}
	for _, it := range s.w.View.Sites[s.site].Clients.Items() {
		out[it.Key] = s.total.apart(float64(it.Count-it.Error), float64(it.Count))
	}
	return out
}

// apart bounds the storm's and the rest's part of some of the requests, of which only the number is known.
func (s split) apart(lower, upper float64) split {
	return split{
		storm: interval{max(0, lower-s.rest.upper), min(upper, s.storm.upper)},
		rest:  interval{max(0, lower-s.storm.upper), min(upper, s.rest.upper)},
	}
}

// byRange adds addresses up to ranges. What is not listed may be of any range.
func (s *storm) byRange() map[string]split {
	top := s.w.View.Sites[s.site].Clients
	listed, sums := 0.0, map[string]*interval{}
	for _, it := range top.Items() {
		r := rangeOf(it.Key)
		if r == "" {
			continue
		}
		if sums[r] == nil {
			sums[r] = &interval{}
		}
		sums[r].add(float64(it.Count-it.Error), float64(it.Count))
		listed += float64(it.Count - it.Error)
	}
	unlisted := max(0, float64(top.Total())-listed)
	out := map[string]split{}
	for r, n := range sums {
		out[r] = s.total.apart(n.lower, min(n.upper, n.lower+unlisted))
	}
	return out
}

func rangeOf(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	bits := rangeBits6
	if a.Is4() {
		bits = rangeBits4
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return ""
	}
	return p.String()
}

// ranges ranks the address ranges of the site by what they sent at least.
func (s *storm) ranges() []Count {
	sums := map[string]Count{}
	for _, it := range s.w.View.Sites[s.site].Clients.Items() {
		if r := rangeOf(it.Key); r != "" {
			sums[r] = Count{Key: r, Count: sums[r].Count + float64(it.Count-it.Error), Approx: sums[r].Approx || it.Error > 0}
		}
	}
	out := make([]Count, 0, len(sums))
	for _, c := range sums {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Count) int { return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Key, b.Key)) })
	return out[:min(len(out), topRanges)]
}

// best makes the rule of one dimension: the values with most of the storm.
func (s *storm) best(by string, splits map[string]split, values float64) Discriminator {
	list := make([]named, 0, len(splits))
	for name, x := range splits {
		list = append(list, named{name, x})
	}
	slices.SortFunc(list, func(a, b named) int {
		if c := cmp.Compare(b.storm.lower, a.storm.lower); c != 0 { // cmp.Or would compare all names, and there are thousands
			return c
		}
		return cmp.Or(cmp.Compare(b.storm.upper, a.storm.upper), strings.Compare(a.name, b.name))
	})
	d := Discriminator{By: by}
	var caught, hit interval
	all := s.total.storm.lower
	for i, x := range list[:min(len(list), ruleKeys)] {
		if i > 0 && (caught.lower >= enoughOf*all || x.storm.upper < leastOf*all) {
			break
		}
		d.Keys = append(d.Keys, x.name)
		caught.add(x.storm.lower, x.storm.upper)
		hit.add(x.rest.lower, x.rest.upper)
	}
	caught = interval{caught.lower / s.total.storm.upper, min(1, caught.upper/all)}
	d.CaughtLower, d.CaughtUpper = N(caught.lower), N(caught.upper)
	d.FalseLower, d.FalseUpper = N(0), N(0)
	if rest := s.total.rest; rest.upper > 0 && hit.upper > 0 {
		d.FalseLower, d.FalseUpper = N(min(1, hit.lower/rest.upper)), N(1)
		if rest.lower > 0 {
			d.FalseUpper = N(min(1, hit.upper/rest.lower))
		}
	}
	d.Entropy = entropy(list, s.total.storm.upper, values)
	return d
}

// entropy is Shannon's, in bits, of the storm over a dimension. What is not listed counts as spread evenly over the
// values that are not: with a sketch it is an upper estimate.
func entropy(list []named, total, values float64) Num {
	var h, listed float64
	n := 0
	for _, x := range list {
		if p := x.storm.lower / total; p > 0 {
			h -= p * math.Log2(p)
			listed += p
			n++
		}
	}
	if rest := 1 - listed; rest > 0.001 {
		if math.IsNaN(values) {
			return Num{}
		}
		if others := values - float64(n); others >= 1 {
			h -= rest * math.Log2(rest/others)
		}
	}
	return N(math.Max(h, 0))
}

// cover says what the rules in place would have caught of the storm's damage: each, and all together.
func (s *storm) cover(controls []Control, e *Evidence) {
	controls = slices.DeleteFunc(slices.Clone(controls), func(c Control) bool { return !c.isRule() })
	if len(controls) == 0 || !(s.total.storm.lower > 0) {
		return
	}
	each := make([]caught, len(controls))
	var together caught
	for _, c := range s.cells {
		weight := c.part
		if e.WorkerSecondsUpper.Known() {
			each := seconds(c.cell.Busy.Upper) / float64(c.cell.Requests)
			weight = interval{weight.lower * each, weight.upper * each}
		}
		var most interval
		for i := range controls {
			share := s.catches(&controls[i], &c)
			each[i].add(weight, share)
			most = interval{max(most.lower, share.lower), min(1, most.upper+share.upper)}
		}
		together.add(weight, most)
	}
	if !(together.of().upper >= 0) {
		return // no damage
	}
	for i, c := range controls {
		x := each[i].of()
		e.RuleCoverage = append(e.RuleCoverage, RuleCoverage{c.Name, N(x.lower), N(x.upper)})
	}
	x := together.of()
	e.RulesCaughtLower, e.RulesCaughtUpper = N(x.lower), N(x.upper)
}

// caught adds up what a rule answers of a storm, and what it lets pass.
type caught struct{ hit, missed interval }

func (c *caught) add(weight, share interval) {
	c.hit.add(weight.lower*share.lower, weight.upper*share.upper)
	c.missed.add(weight.lower*(1-share.upper), weight.upper*(1-share.lower))
}

// of is the share that is hit, NaN where there is nothing to hit.
func (c *caught) of() interval {
	switch {
	case c.hit.upper == 0:
		return interval{0 / c.missed.upper, 0 / c.missed.upper}
	case c.missed.upper == 0:
		return interval{1, 1}
	}
	return interval{c.hit.lower / (c.hit.lower + c.missed.upper), c.hit.upper / (c.hit.upper + c.missed.lower)}
}

// catches is the share of the storm's part of a cell that a rule answers.
func (s *storm) catches(c *Control, of *stormCell) interval {
	all := c.answers(of.key, of.cell)
	switch {
	case all.upper == 0 || all.lower == 1 || of.part.upper == 0:
		return all
	case s.agent != "":
		if strings.Contains(s.agent, c.Agent) {
			return interval{1, 1}
		}
		return interval{}
	}
	n := float64(of.cell.Requests)
	x := of.split().apart(all.lower*n, all.upper*n).storm
	share := interval{x.lower / of.part.upper, 1}
	if of.part.lower > 0 {
		share.upper = min(1, x.upper/of.part.lower)
	}
	return share
}

// answers is the share of a cell's requests that a rule answers.
func (c *Control) answers(k pane.Key, cell *pane.Cell) interval {
	if c.Method != "" && c.Method != k.Method || c.Path != "" && !glob(c.Path, k.Route) {
		return interval{}
	}
	if c.Agent == "" {
		return interval{1, 1}
	}
	var n interval
	listed := 0.0
	for _, it := range cell.TopAgents.Items() {
		listed += float64(it.Count - it.Error)
		if strings.Contains(it.Key, c.Agent) {
			n.add(float64(it.Count-it.Error), float64(it.Count))
		}
	}
	n.upper = min(n.upper, n.lower+max(0, float64(cell.TopAgents.Total())-listed))
	if cell.TopAgents.Floor() > 0 { // agents that are not listed may be meant too
		n.upper = n.lower + max(0, float64(cell.TopAgents.Total())-listed)
	}
	return n.of(float64(cell.Requests))
}

// glob matches a text against a pattern in which * stands for any run of characters.
func glob(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if !strings.HasPrefix(text, parts[0]) {
		return false
	}
	if len(parts) == 1 {
		return text == pattern
	}
	text = text[len(parts[0]):]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}

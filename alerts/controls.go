package alerts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/squall-sre/squall/detectors"
)

// What is in place at a site is not advised anew: it is said what it covers, that it did not act, or what it leaves.

// Shares of a storm's damage that the rules in place would have caught, at least.
const (
	coveredShare = 0.95 // the storm is theirs: nothing is to be added
	ownShare     = 0.5  // they come first
)

// beside moves what is in place behind the others and says that it is.
func (f *facts) beside(options []option) []Advice {
	var first, placed []Advice
	for _, o := range options {
		if c := f.control(o.controls...); c != "" {
			o.Text = c + " is in place and these requests came all the same: check that it covers them. It was to: " + o.Text
			placed = append(placed, o.Advice)
			continue
		}
		first = append(first, o.Advice)
	}
	out := slices.Concat(first, placed)
	var unsaid []string
	for i := range f.controls {
		if len(out) > 0 && !strings.Contains(out[0].Text, f.controls[i].String()) {
			unsaid = append(unsaid, f.controls[i].Name)
		}
	}
	if len(unsaid) > 0 {
		slices.Sort(unsaid)
		out[0].Text += " (in place already: " + cut(strings.Join(unsaid, ", "), maxText) + ")"
	}
	return out
}

// control tells which of the named controls the site has in place, "" for none.
func (f *facts) control(names ...string) string {
	for i := range f.controls {
		if slices.Contains(names, f.controls[i].Name) {
			return f.controls[i].String()
		}
	}
	return ""
}

// covering adds the rules in place for the costliest class to the names of controls that would make an advice for it
// superfluous.
func (f *facts) covering(names ...string) []string {
	for i := range f.controls {
		if f.class.route != "" && f.controls[i].Covers(f.class.method, f.class.route) {
			names = append(names, f.controls[i].Name)
		}
	}
	return names
}

// repair looks for the rules in place that a storm should have run into. made writes the advice to look why they did
// not act, nil when there are none that matter; open are the routes that no rule answers whatever the agent, and all
// of them where none is answered; done tells that nothing is to be added.
func (f *facts) repair(e *detectors.Evidence, method string, routes []string) (made func(why, verify string) Advice, open []string, done bool) {
	for _, route := range routes {
		if !slices.ContainsFunc(f.controls, func(c detectors.Control) bool { return c.Covers(method, route) }) {
			open = append(open, route)
		}
	}
	lower := e.RulesCaughtLower.Get()
	done = lower >= coveredShare || len(routes) > 0 && len(open) == 0
	rules := f.acting(e, method, routes)
	if len(rules) == 0 || !done && !(lower >= ownShare) {
		return nil, routes, false
	}
	text := strings.Join(rules, ", ") + " is in place"
	if len(rules) > 1 {
		text = strings.Join(rules, ", ") + " are in place"
	}
	if e.RulesCaughtUpper.Known() {
		text += " and would have caught " + span(e.RulesCaughtLower, e.RulesCaughtUpper) + " of the damage"
	} else {
		text += " for these requests"
	}
	text += notActing(e)
	left := ""
	switch {
	case done:
	case len(open) > 0 && len(open) < len(routes):
		left = "what they leave is on " + strings.Join(open, ", ")
	default:
		left, open = "what they leave differs in its agents, addresses or routes", routes
	}
	return func(why, verify string) Advice {
		return Advice{Layer: layerEdge, Text: sentence(text, left, why), Verify: verify}
	}, open, done
}

// notActing says whether requests that a rule answers came to the origin.
func notActing(e *detectors.Evidence) string {
	const look = "look why before anything is added: whether it stands in front of this traffic (host, listener, a way around it), counts instead of answering, or a rule before it lets them pass"
	switch reached := e.ReachedUpstreamRatio; {
	case reached.Get() >= reachedAtAll:
		return fmt.Sprintf(", but %s of these requests reached an upstream: it does not act on them; %s", percent(reached.Get()), look)
	case e.WorkerSecondsUpper.Get() > 0 && !reached.Known():
		return fmt.Sprintf(", but these requests cost up to %s worker-seconds: it does not act on them; %s", short(e.WorkerSecondsUpper.Get()), look)
	}
	return "; whether it acted on them the log does not tell (it shows no upstream): " + look
}

// acting names the rules in place that a storm ran into, what they would have caught most first.
func (f *facts) acting(e *detectors.Evidence, method string, routes []string) []string {
	type rule struct {
		name   string
		caught float64
	}
	var rules []rule
	for i := range f.controls {
		c := &f.controls[i]
		caught := 0.0
		for _, x := range e.RuleCoverage {
			if x.Rule == c.Name {
				caught = x.Lower.Get()
			}
		}
		if caught >= minorShare || slices.ContainsFunc(routes, func(route string) bool { return c.Covers(method, route) }) {
			rules = append(rules, rule{c.String(), caught})
		}
	}
	slices.SortStableFunc(rules, func(a, b rule) int { return cmp.Or(cmp.Compare(b.caught, a.caught), strings.Compare(a.name, b.name)) })
	var names []string
	for _, r := range rules[:min(len(rules), named)] {
		names = append(names, cut(r.name, 120))
	}
	return names
}

// small says that the rules in place are for little of a storm, "" when there are none or they are for more.
func (f *facts) small(e *detectors.Evidence) string {
	if !e.RulesCaughtUpper.Known() || e.RulesCaughtLower.Get() >= ownShare {
		return ""
	}
	names := make([]string, 0, len(e.RuleCoverage))
	for _, x := range e.RuleCoverage[:min(len(e.RuleCoverage), named)] {
		names = append(names, cut(x.Rule, 120))
	}
	return fmt.Sprintf("what is in place (%s) would have caught %s of the damage", strings.Join(names, ", "), span(e.RulesCaughtLower, e.RulesCaughtUpper))
}

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// pinning is the share of the worker-seconds from which one class pinned the origin.
const pinning = 0.5

// verdict says in one sentence what happened, by the worst incident.
func (r *Report) verdict() {
	v := &r.Verdict
	if len(r.Incidents) == 0 {
		*v = Verdict{Outcome: Calm, Sentence: "No client is known to be hurt: no alert fired" + r.span() + "." + r.halves() + r.offload() + r.refused() + r.held()}
		if r.Input.Parsed == 0 {
			*v = Verdict{Outcome: Undetermined, Sentence: "Undetermined: no line was understood."}
		}
		return
	}
	in := &r.Incidents[0]
	a := in.leading()
	v.Incident, v.Proof, v.Cause = in.ID, a.Cause.Verdict, a.Cause.Text
	v.Culprit, v.Fix = in.culprit(a)
	if v.Fix != nil && alerts.NothingToDo(v.Fix) {
		v.Fix = nil
	}
	for i := range a.Advice {
		if x := &a.Advice[i]; v.Fix != nil && x.Text != v.Fix.Text && a.Cause.Verdict != alerts.Undetermined {
			v.Others = append(v.Others, *x)
		}
	}
	in.beside(v)
	if n := in.givenUp(); len(in.Windows) > 0 {
		v.GivenUp = detectors.N(n)
	}
	switch {
	case in.Severity == alerts.Info:
		v.Outcome = Calm
	case in.Severity == alerts.Warning:
		v.Outcome = Noted
	case a.Cause.Verdict == alerts.Undetermined && len(in.pinned()) > 0 && !a.Incomplete:
		// An alert looks at one route at a time; routes of one kind, added up, may hold the origin all the same.
		v.Outcome, v.Proof = Hurt, alerts.Probable
		v.Cause = "one route at a time nothing stands out; routes of one kind added up: " + ranked(in.pinned()) + " of the worker-seconds"
	case a.Cause.Verdict == alerts.Undetermined:
		v.Outcome = Undetermined
	default:
		v.Outcome = Hurt
	}
	v.Sentence = in.sentence(v, a) + r.held()
	if more := len(r.Incidents) - 1; more > 0 {
		v.Sentence += fmt.Sprintf(" There are %d more incidents below.", more)
		if more == 1 {
			v.Sentence = strings.Replace(v.Sentence, "There are 1 more incidents", "There is one more incident", 1)
		}
	}
}

func (r *Report) span() string {
	if r.To == 0 {
		return ""
	}
	return " " + span(r.From, r.To)
}

// offload tells what an edge kept from the origin, of the site of which it was asked most.
func (r *Report) offload() string {
	if len(r.Layers) == 0 || !r.Layers[0].Offload.Known() {
		return ""
	}
	l := &r.Layers[0]
	return fmt.Sprintf(" The edge kept %s of the requests from the origin of %s, and %s in its busiest minute.", share(l.Offload), l.Site, share(l.Peak.Offload))
}

// refused tells of a limiter that said no: whom it met, panes know of own and allowed addresses alone.
func (r *Report) refused() string {
	var n uint64
	for i := range r.Sites {
		for _, v := range r.Sites[i].Limited {
			n += v
		}
	}
	if n < refusedAtAll {
		return ""
	}
	return fmt.Sprintf(" A limiter refused %s requests: were they of your own hosts or people, own and allowed must name their addresses.", alerts.Number(float64(n)))
}

// refusedAtAll is from how many requests that a limiter refused it is worth a sentence.
const refusedAtAll = 100

// beside adds what is to be done of requests that the sentence names beside the culprit: of other sites, and files that a
// limiter refused.
func (in *Incident) beside(v *Verdict) {
	var classes []*Class
	switch in.Severity {
	case alerts.Warning:
		classes = in.refusals()
	case alerts.Page:
		for i := range in.Windows[min(1, len(in.Windows)):] {
			if w := &in.Windows[i+1]; w.Site != in.Windows[0].Site {
				classes = append(classes, w.pinned()...)
			}
		}
	}
	for _, c := range classes {
		if len(v.Others) < mostOthers && len(c.Advice) > 0 && !slices.ContainsFunc(v.Others, func(o alerts.Advice) bool { return o.Snippet == c.Advice[0].Snippet }) {
			v.Others = append(v.Others, c.Advice[0])
		}
	}
}

// mostOthers is how many pieces of advice the first screen has beside the first.
const mostOthers = 6

// halves names what detectors saw that was no alert by itself.
func (r *Report) halves() string {
	var names []string
	for _, d := range r.Detected {
		if !slices.Contains(names, d.Detector) {
			names = append(names, d.Detector)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return " Detected, and no alert by itself: " + enumerate(names) + "."
}

// span writes a time from and to as people say it.
func span(from, to Time) string {
	a, b := time.Unix(0, int64(from)).UTC(), time.Unix(0, int64(to)).UTC()
	if a.Format(time.DateOnly) == b.Format(time.DateOnly) {
		return "on " + a.Format(time.DateOnly) + " from " + a.Format(time.TimeOnly) + " to " + b.Format(time.TimeOnly) + " UTC"
	}
	return "from " + a.Format(time.DateTime) + " to " + b.Format(time.DateTime) + " UTC"
}

// leading is the alert that tells most: of the highest severity, the best proven, and of those what led to the others.
func (in *Incident) leading() *Alert {
	proof := []alerts.Verdict{alerts.Undetermined, alerts.Probable, alerts.Proven}
	best := slices.MaxFunc(in.Alerts, func(a, b Alert) int {
		return cmp.Or(cmp.Compare(urgency(a.Severity), urgency(b.Severity)),
			cmp.Compare(slices.Index(proof, a.Cause.Verdict), slices.Index(proof, b.Cause.Verdict)),
			cmp.Compare(in.place(&b), in.place(&a)))
	})
	return &best
}

// place is how far back in the chain of the incident an alert's first detection stands.
func (in *Incident) place(a *Alert) int {
	for i, m := range in.Members {
		if slices.Contains(a.Detectors, m.Detector) {
			return i
		}
	}
	return len(in.Members)
}

// culprit is the class of requests that pinned the origin, with what to do about it; where no class did, the cause's advice.
func (in *Incident) culprit(a *Alert) (string, *alerts.Advice) {
	var fix *alerts.Advice
	if len(a.Advice) > 0 {
		fix = &a.Advice[0]
	}
	if pinned := in.pinned(); len(pinned) > 0 {
		if own := pinned[0].Advice; len(own) > 0 && (fix == nil || fix.Layer != own[0].Layer || a.Evidence.Route != pinned[0].Route) {
			fix = &own[0]
		}
		return enumerate(named(pinned)), fix
	}
	if a.Cause.Verdict == alerts.Undetermined {
		return "", fix
	}
	return strings.TrimSpace(a.Evidence.Method + " " + a.Evidence.Route), fix
}

// pinned are the classes that held most of the worker time of the incident's worst window: the first, and those beside it
// that the same rule is about. None did when together they hold less than half.
func (in *Incident) pinned() []*Class {
	if in.Severity != alerts.Page || len(in.Windows) == 0 {
		return nil
	}
	return in.Windows[0].pinned()
}

func (w *Window) pinned() []*Class {
	if len(w.Classes) == 0 || w.calm() {
		return nil
	}
	first := &w.Classes[0]
	out, share := []*Class{first}, first.Evidence.WorkerSecondsShare.Get()
	for i := 1; i < len(w.Classes) && len(out) < 3; i++ {
		c := &w.Classes[i]
		if more := c.Evidence.WorkerSecondsShare.Get(); c.Method == first.Method && c.Rule == first.Rule && more >= besides {
			out, share = append(out, c), share+more
		}
	}
	if !(share >= pinning) {
		return nil
	}
	return out
}

// elsewhere tells what pinned the origins of an incident's other sites, by site.
func (in *Incident) elsewhere() string {
	var b strings.Builder
	told := []string{in.Windows[0].Site}
	for i := range in.Windows {
		w := &in.Windows[i]
		if classes := w.pinned(); len(classes) > 0 && !slices.Contains(told, w.Site) && len(told) <= mostElsewhere {
			told = append(told, w.Site)
			fmt.Fprintf(&b, "; %s that of %s", enumerate(named(classes)), w.Site)
		}
	}
	return b.String()
}

// mostElsewhere is how many more sites the sentence names.
const mostElsewhere = 2

// named are the names of classes.
func named(classes []*Class) (names []string) {
	for _, c := range classes {
		names = append(names, c.Name())
	}
	return names
}

// calm tells that the origin had workers left.
func (w *Window) calm() bool {
	return w.Total.BusyWorkersUpper.Get() < spare*w.Total.PoolWorkers.Get()
}

// spare is the part of the pool below which workers were left.
const spare = 0.8

// besides is the share of the worker-seconds from which a class is named beside the first.
const besides = 0.1

// enumerate joins names as a sentence does.
func enumerate(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// ranked tells what each class holds.
func ranked(classes []*Class) string {
	var parts []string
	for _, c := range classes {
		parts = append(parts, c.Name()+" "+alerts.Percent(c.Evidence.WorkerSecondsShare.Get()))
	}
	return enumerate(parts)
}

// shareOf tells the share of the worker-seconds of some classes: as the alert tells it, where it is about the same requests.
// It is of the time in which they came; the table's is of the whole incident, until the queue was empty.
func shareOf(classes []*Class, a *Alert) string {
	var sum float64
	for _, c := range classes {
		sum += c.Evidence.WorkerSecondsShare.Get()
	}
	text := alerts.Percent(sum) + " of the worker-seconds"
	if e := &a.Evidence; len(classes) == 1 && e.Method == classes[0].Method && e.Route == classes[0].Route && e.WorkerSecondsShare.Known() {
		if came := alerts.Percent(e.WorkerSecondsShare.Get()) + " of the worker-seconds"; came != text {
			return came + " while they came"
		}
	}
	return text
}

// Name is the class as people write it.
func (c *Class) Name() string { return strings.TrimSpace(c.Method + " " + c.Route) }

// Where is what the incident is about.
func (in *Incident) Where() string {
	if len(in.Sites) == 0 {
		if len(in.Alerts) > 0 {
			return in.Alerts[0].About
		}
		return "the cluster"
	}
	return strings.Join(in.Sites[:min(len(in.Sites), 3)], ", ")
}

func (in *Incident) sentence(v *Verdict, a *Alert) string {
	var b strings.Builder
	when := " " + span(in.From, in.To)
	pinned := in.pinned()
	switch {
	case v.Outcome == Calm && in.inFront():
		fmt.Fprintf(&b, "No client is known to be hurt: what %s told of on %s%s was answered before the origin", a.Name, in.Where(), when)
	case v.Outcome == Calm:
		fmt.Fprintf(&b, "No client is known to be hurt: %s on %s%s was only noted", a.Name, in.Where(), when)
	case v.Outcome == Noted && in.inFront():
		fmt.Fprintf(&b, "Nothing paged, and what came on %s%s did not reach the origin: %s", in.Where(), when, firstPart(a.Cause.Text))
	case v.Outcome == Noted:
		fmt.Fprintf(&b, "Nothing paged, but something is wrong on %s%s: %s%s", in.Where(), when, firstPart(a.Cause.Text), in.failed()+in.refusedFiles())
	case v.Outcome == Undetermined:
		fmt.Fprintf(&b, "Clients of %s were hurt%s, by what is undetermined: %s", in.Where(), when, firstPart(a.Cause.Text))
	case len(pinned) > 0:
		fmt.Fprintf(&b, "%s pinned the origin of %s%s: %s%s", v.Culprit, in.Windows[0].Site, when, shareOf(pinned, a), in.elsewhere())
	default:
		fmt.Fprintf(&b, "Something hurt %s%s: %s", in.Where(), when, firstPart(a.Cause.Text))
	}
	if n := v.GivenUp.Get(); n > 0 {
		fmt.Fprintf(&b, "; clients gave up on %s requests", alerts.Number(n))
	}
	if v.Fix != nil && len(pinned) > 0 && v.Outcome == Hurt {
		fmt.Fprintf(&b, "; %s should answer it", layerText(v.Fix.Layer))
	}
	return b.String() + "."
}

// inFront tells that what an incident is about was answered before the origin: each of its requests that a log tells of.
func (in *Incident) inFront() bool {
	known := false
	for i := range in.Alerts {
		switch r := in.Alerts[i].Evidence.ReachedUpstreamRatio; {
		case r.Get() >= 0.05:
			return false
		case r.Known():
			known = true
		}
	}
	return known && len(in.pinned()) == 0
}

// failed tells how many requests of the incident were answered 5xx.
func (in *Incident) failed() string {
	var n float64
	for i := range in.Windows {
		n += in.Windows[i].Total.Errors5xx.Get()
	}
	if !(n > 0) {
		return ""
	}
	return "; " + alerts.Number(n) + " requests were answered 5xx"
}

// refusedFiles tells of static files that a limiter refused: pages that call their own site look like that, and nothing in a
// log tells whose an address is.
func (in *Incident) refusedFiles() string {
	var n, clients float64
	refused := in.refusals()
	for _, c := range refused {
		n, clients = n+c.Evidence.Limited.Get(), max(clients, c.Evidence.DistinctClients.Get())
	}
	if n < refusedAtAll {
		return ""
	}
	text := fmt.Sprintf("; a limiter refused %s requests for %s", alerts.Number(n), enumerate(named(refused[:min(len(refused), 3)])))
	if clients > 0 && clients <= fewClients {
		text += fmt.Sprintf(", from %s: if these are your own hosts, the site calls itself, and own must name them", counted(clients, "address", "addresses"))
	}
	return text
}

// refusals are the classes of strangers' static files that a limiter refused.
func (in *Incident) refusals() (out []*Class) {
	for i := range in.Windows {
		for j := range in.Windows[i].Classes {
			if c := &in.Windows[i].Classes[j]; c.Rule == alerts.RuleStaticLimit && c.Origin == "external" {
				out = append(out, c)
			}
		}
	}
	return out
}

// fewClients is up to how many addresses may be a site's own hosts.
const fewClients = 8

func counted(n float64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return alerts.Number(n) + " " + many
}

// firstPart is a cause's text up to its first semicolon.
func firstPart(s string) string {
	s, _, _ = strings.Cut(s, "; ")
	return s
}

var layerNames = map[string]string{
	"edge": "the edge", "waf": "the WAF", "nginx": "nginx", "cdn": "the CDN", "application": "the application", "kubernetes": "Kubernetes",
}

func layerText(layer string) string {
	if name, ok := layerNames[layer]; ok {
		return name
	}
	return layer
}

// missing gathers what would be needed to say more, without repeating.
func (r *Report) missing() {
	add := func(s string) {
		if !slices.Contains(r.Missing, s) {
			r.Missing = append(r.Missing, s)
		}
	}
	for i := range r.Incidents {
		for j := range r.Incidents[i].Alerts {
			for _, m := range r.Incidents[i].Alerts[j].Cause.Missing {
				add(m)
			}
		}
		for j := range r.Incidents[i].Windows {
			for _, m := range r.Incidents[i].Windows[j].Timeouts.Missing {
				add(m)
			}
		}
	}
	if r.Input.Late > 0 {
		add(alerts.Number(float64(r.Input.Late)) + " lines that came too late to be counted")
	}
	for _, g := range r.Input.Gaps {
		add("lines of " + g.Source + " lost at " + g.At + " (" + g.Reason + ")")
	}
}

// next lists what to look at next, for the worst incident: what verifies its advice, and each detector's runbook.
func (r *Report) next() {
	if len(r.Incidents) == 0 {
		return
	}
	seen := map[string]bool{}
	for _, m := range r.Incidents[0].Members {
		if seen[m.Detector] {
			continue
		}
		seen[m.Detector] = true
		help, _, err := detectors.HelpFor(m.Detector)
		if err != nil {
			continue
		}
		for _, line := range help.Runbook {
			command, why, _ := strings.Cut(line, "   # ")
			if isCommand(command) && !slices.ContainsFunc(r.Next, func(c Command) bool { return c.Line == command }) {
				r.Next = append(r.Next, Command{Why: m.Detector + ": " + why, Line: command})
			}
		}
	}
}

// isCommand tells a command of a runbook from a sentence: it begins with a program's name.
func isCommand(line string) bool {
	program, _, _ := strings.Cut(line, " ")
	return slices.Contains([]string{"curl", "grep", "kubectl", "nginx", "php-fpm", "redis-cli", "awk", "zcat", "ss", "squall", "journalctl", "sar", "dig"}, program)
}

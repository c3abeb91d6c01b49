package alerts

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/squall-sre/squall/detectors"
)

// Config is what a Manager is made of.
type Config struct {
	Rules       []Rule            // configured ones: added to the shipped
	SiteRules   map[string][]Rule // by site: what it has, whole, instead of the general rule of the same name
	Suppressors []Suppressor      // what holds alerts back, and when
	Campaigns   []Campaign        // the calendar of mail that is sent
	Detectors   []string          // the names that rules may use: detectors.Names()
	// Sites tells what is declared of a site; nil: nothing is.
	Sites func(site string) Site
	// MinFiring is how long an alert stays firing at least: Alertmanager never tells of one that was over before
	// its group_wait was. Default 2 minutes.
	MinFiring time.Duration
	// Grafana is the address below which the dashboards are that rules name; "": alerts link to none.
	Grafana string
	// MaxAlerts bounds the alerts that are pending or firing at once; more are counted and dropped. Default 1000.
	MaxAlerts  int
	Registerer prometheus.Registerer // nil: no metrics are shown
}

// A Site is what the configuration says of a site beside its traffic.
type Site struct {
	Controls     []detectors.Control // what is in place: origin_shield, waf_head_rule, rules with the requests that they answer
	Dependencies map[string]string   // what it runs on, by kind: mysql, nfs, …
	Namespaces   []string            // of its containers
}

// maxGap is the event time between two evaluations over which nothing is known of what was between them: a
// pending alert starts anew, and a firing one that does not hold any more ended when it was last seen.
const maxGap = int64(2 * time.Minute)

// A Manager runs the rules over the results of the engine and keeps the state of every alert. It is used from
// one goroutine.
type Manager struct {
	rules       []*rule
	suppressors []*suppressor
	campaigns   []Campaign
	site        func(string) Site
	incidents   *correlator
	minFiring   int64
	maxAlerts   int
	maxWithin   int64
	grafana     string
	metrics     *metrics

	at      int64                           // ns: the end of the last pane evaluated
	recent  map[string]*detectors.Detection // over, but within some rule's within; by detectionKey
	wide    map[string]*detectors.Detection // active, of no site, by detector
	tracked map[string]*tracked             // by trackKey
	pane    *detectors.Result               // that is being evaluated
	orphans []Alert                         // fire, but no rule of now makes them: they end with the next evaluation
}

// tracked is the state of one rule for one set of by-values. It lives while a detection that the rule reads does.
type tracked struct {
	rule   *rule
	labels detectors.Labels

	pending  bool
	firing   bool
	since    int64 // ns: the end of the pane from which the condition held without a break
	began    int64 // ns: when it began to hold, as far back as the detections' onsets show
	firedAt  int64 // ns: the end of the pane in which it fired
	startsAt int64 // ns
	overAt   int64 // ns: when the condition was over; 0 while it holds
	ended    int64 // ns: EndsAt of the previous alert of this identity: the next begins after it
	severity Severity

	suppressed string // who holds the alert back though it is firing; "": it is told
	windowOver int64  // ns: when that one was over; 0 while it is on

	before  map[string]*detectors.Detection // of the rule, in the pane before; only while the alert is neither pending nor firing
	history history
	within  *Incident // that the alert was last seen in
	last    Alert     // as of the last evaluation in which the condition held
}

// NewManager compiles the rules.
func NewManager(c Config) (*Manager, error) {
	rules, err := compileRules(c.Rules, c.Detectors)
	if err != nil {
		return nil, err
	}
	if rules, err = withSiteRules(rules, c.SiteRules, c.Detectors); err != nil {
		return nil, err
	}
	names := ruleNames(rules)
	suppressors, err := compileSuppressors(c.Suppressors, names, c.Detectors)
	if err == nil {
		err = CheckCampaigns(c.Campaigns)
	}
	if err != nil {
		return nil, err
	}
	m := &Manager{
		rules: rules, suppressors: suppressors, campaigns: c.Campaigns, site: c.Sites,
		minFiring: int64(cmp.Or(c.MinFiring, 2*time.Minute)), maxAlerts: cmp.Or(c.MaxAlerts, 1000),
		grafana: c.Grafana,
		metrics: newMetrics(c.Registerer, suppressors),
		recent:  map[string]*detectors.Detection{}, tracked: map[string]*tracked{},
	}
	if m.site == nil {
		m.site = func(string) Site { return Site{} }
	}
	m.incidents = newCorrelator(m.site, m.metrics.unrelated)
	for _, r := range rules {
		m.maxWithin = max(m.maxWithin, int64(r.Within))
	}
	return m, nil
}

func cleanAll(ds []detectors.Detection) []detectors.Detection {
	out := make([]detectors.Detection, len(ds))
	for i := range ds {
		out[i] = clean(&ds[i])
	}
	return out
}

func detectionKey(d *detectors.Detection) string { return d.Detector + "\x00" + d.Labels.String() }

func trackKey(r *rule, l detectors.Labels) string { return r.Name + "\x00" + l.String() }

// Evaluate runs every rule over what the engine found in one pane and returns the alerts that began, ended or
// rose in severity, in the order of the rules and labels. A pane that is not after the last one changes nothing.
func (m *Manager) Evaluate(r *detectors.Result) []Alert {
	if r.At <= m.at {
		m.metrics.stale.Inc()
		return nil
	}
	gap := m.at > 0 && r.At-m.at > maxGap
	previous := m.at
	m.at, m.pane = r.At, r
	actives, ended := cleanAll(r.Detections), m.remember(r)
	m.incidents.observe(r.At, actives, ended)
	m.wide = clusterWide(actives)
	out := m.endOrphans()
	for _, rule := range m.rules {
		groups := m.group(rule, actives, ended)
		for _, key := range slices.Sorted(maps.Keys(groups)) {
			out = append(out, m.step(rule, groups[key], previous, gap)...)
		}
	}
	for i := range out {
		if a := &out[i]; a.State != Resolved || a.Suppressed == "" {
			m.metrics.transitions.WithLabelValues(string(a.State), string(a.Severity)).Inc()
		}
	}
	m.count()
	return out
}

// endOrphans ends what was restored and belongs to no rule.
func (m *Manager) endOrphans() []Alert {
	out := m.orphans
	for i := range out {
		a := &out[i]
		a.State, a.At, a.EndsAt = Resolved, m.at, max(m.at, a.StartsAt)
		a.Cause = Cause{Verdict: Undetermined, Text: "its rule is gone from the configuration"}
		a.Annotations = bound(map[string]string{"summary": where(a) + ": over; its rule is gone", "description": description(a)})
	}
	m.orphans = nil
	return out
}

// remember keeps the detections that were over in this pane for as long as some rule counts them, and returns
// them.
func (m *Manager) remember(r *detectors.Result) []detectors.Detection {
	var ended []detectors.Detection
	for i := range r.Changes {
		if d := clean(&r.Changes[i]); !d.Active {
			ended = append(ended, d)
			if m.maxWithin > 0 {
				m.recent[detectionKey(&d)] = &d
			}
		}
	}
	for i := range r.Detections {
		delete(m.recent, detectionKey(&r.Detections[i]))
	}
	maps.DeleteFunc(m.recent, func(_ string, d *detectors.Detection) bool { return r.At-d.Until >= m.maxWithin })
	return ended
}

// A group is what is known for one set of by-values in one pane.
type group struct {
	labels detectors.Labels
	found  map[string]*detectors.Detection // active or within, by detector: the worst of each
	ended  []detectors.Detection           // were over in this pane
	reads  bool                            // holds a detection that the rule reads
}

// group sorts detections by the rule's labels. Detections that the rule does not read are kept too: they may
// explain it.
func (m *Manager) group(r *rule, actives, ended []detectors.Detection) map[string]*group {
	groups := map[string]*group{}
	at := func(l detectors.Labels) *group {
		projected := project(l, r.By)
		key := projected.String()
		if groups[key] == nil {
			groups[key] = &group{labels: projected, found: map[string]*detectors.Detection{}}
		}
		return groups[key]
	}
	take := func(d *detectors.Detection) {
		if !r.takes(d.Labels) {
			return
		}
		g := at(d.Labels)
		g.reads = g.reads || slices.Contains(r.reads, d.Detector)
		if old := g.found[d.Detector]; old == nil || worse(d, old) {
			g.found[d.Detector] = d
		}
	}
	for i := range actives {
		take(&actives[i])
	}
	for _, key := range slices.Sorted(maps.Keys(m.recent)) {
		if d := m.recent[key]; m.at-d.Until < int64(r.Within) {
			take(d)
		}
	}
	for _, d := range ended {
		if r.takes(d.Labels) {
			g := at(d.Labels)
			g.ended = append(g.ended, d)
		}
	}
	for _, t := range m.tracked {
		if t.rule == r {
			at(t.labels)
		}
	}
	return groups
}

// project keeps the labels that a rule joins by. What a detection does not have is left out.
func project(l detectors.Labels, by []string) detectors.Labels {
	var out detectors.Labels
	for _, name := range by {
		if v := l.Get(name); v != "" {
			out = append(out, detectors.Label{Name: name, Value: v})
		}
	}
	return out
}

// worse tells whether d is further over its threshold than old; active ones come before those that were over.
func worse(d, old *detectors.Detection) bool {
	if d.Active != old.Active {
		return d.Active
	}
	return d.Value*old.Threshold > old.Value*d.Threshold
}

// step moves one alert by one pane.
func (m *Manager) step(r *rule, g *group, previous int64, gap bool) []Alert {
	key := trackKey(r, g.labels)
	t := m.tracked[key]
	if t == nil {
		if !g.reads {
			return nil
		}
		t = &tracked{rule: r, labels: g.labels}
	}
	if t.pending || t.firing {
		t.history.absorb(g, m.pane)
	}
	condition := r.when
	if t.firing {
		condition = r.while
	}
	holds, err := condition.holds(g.found)
	if err != nil {
		m.metrics.ruleErrors.Inc()
	}
	var out []Alert
	switch {
	case t.firing:
		out = m.stepFiring(t, g, holds, previous, gap)
	case holds:
		out = m.stepPending(t, g, gap)
	default:
		t.pending, t.history = false, history{}
		t.before = t.rule.read(g.found)
	}
	if !t.pending && !t.firing && !g.reads {
		delete(m.tracked, key)
		return out
	}
	if m.tracked[key] == nil {
		if len(m.tracked) >= m.maxAlerts {
			m.metrics.dropped.Inc()
			return nil
		}
		m.tracked[key] = t
	}
	return out
}

// stepPending: the condition holds and the alert does not fire yet.
func (m *Manager) stepPending(t *tracked, g *group, gap bool) []Alert {
	if !t.pending || gap {
		t.pending, t.since = true, m.at
		t.began = t.beginning(g, m.start(), gap)
		t.before = nil
		t.history = history{}
		t.history.absorb(g, m.pane)
	}
	if m.at-t.since < int64(t.rule.For) {
		return nil
	}
	t.pending, t.firing, t.firedAt, t.overAt = false, true, m.at, 0
	t.startsAt = max(t.began, t.ended)
	t.severity = m.severityOf(t, g)
	t.suppressed = m.heldBy(t, g, t.severity)
	t.last = m.build(t, g)
	return []Alert{t.last}
}

// stepFiring: the alert fires; the condition may hold or not.
func (m *Manager) stepFiring(t *tracked, g *group, holds bool, previous int64, gap bool) []Alert {
	severity := t.severity
	if s := m.severityOf(t, g); holds && s.rank() > severity.rank() {
		severity = s
	}
	held := m.heldBy(t, g, severity)
	if holds {
		return m.stepHolding(t, g, severity, held)
	}
	if t.overAt == 0 {
		t.overAt = m.at
		if gap {
			t.overAt = previous
		}
	}
	t.last.At = m.at
	if m.at-t.overAt < int64(t.rule.KeepFiringFor) || t.suppressed == "" && m.at-t.firedAt < m.minFiring {
		return nil
	}
	out := m.resolved(t, t.last, t.overAt)
	t.firing, t.ended, t.history, t.within, t.last = false, out.EndsAt, history{}, nil, Alert{}
	t.suppressed, t.windowOver, t.before = "", 0, t.rule.read(g.found)
	return []Alert{out}
}

func (m *Manager) severityOf(t *tracked, g *group) Severity {
	s, err := t.rule.severity(g.found)
	if err != nil {
		m.metrics.ruleErrors.Inc()
	}
	return m.foretold(t, g, s)
}

// build makes the alert as it fires now, with this window's evidence.
func (m *Manager) build(t *tracked, g *group) Alert {
	a := Alert{
		Name: t.rule.Name, State: Firing, Severity: t.severity, Labels: t.identity(),
		StartsAt: t.startsAt, At: m.at, Evidence: t.history.window(t.rule.reads), Suppressed: t.suppressed,
	}
	if t.suppressed != "" {
		a.State = Suppressed
	}
	if d := t.history.primary(t.rule.reads); d != nil {
		a.Value, a.Threshold = d.Value, d.Threshold
	}
	m.explain(t, &a)
	return a
}

// resolved makes the end of an alert, with the evidence of the whole incident.
func (m *Manager) resolved(t *tracked, a Alert, end int64) Alert {
	a.State, a.EndsAt, a.At = Resolved, max(end, a.StartsAt), m.at
	a.Evidence = t.history.whole(t.rule.reads)
	a.Value = max(a.Value, t.history.peak(t.rule.reads))
	m.explain(t, &a)
	return a
}

// explain fills in what is derived from the evidence.
func (m *Manager) explain(t *tracked, a *Alert) {
	a.Detectors = t.history.detectors(t.rule.reads)
	f := &facts{
		alert: a, seen: t.history.Seen, coverage: t.history.Rests, gaps: t.history.Gaps, away: t.history.Away, quiet: t.history.Quiet, requests: t.history.Heard,
		controls: m.site(t.labels.Get("site")).Controls, site: m.site, grafana: m.grafana,
	}
	if d := t.history.primary(t.rule.reads); d != nil {
		if in := m.incidents.of(d); in != nil {
			t.within = in
		}
	}
	a.Incident, a.Coverage = t.within, t.history.covered()
	f.prepare()
	a.Cause = m.sent(t, f, f.cause())
	a.Advice = f.advice()
	a.Annotations = annotate(t.rule, a, f)
}

// identity is the alert's labels: the by-values and the rule's own.
func (t *tracked) identity() detectors.Labels {
	l := slices.Clone(t.labels)
	for _, name := range slices.Sorted(maps.Keys(t.rule.Labels)) {
		if v := t.rule.Labels[name]; v != "" {
			l = append(l, detectors.Label{Name: name, Value: v})
		}
	}
	slices.SortFunc(l, func(a, b detectors.Label) int { return cmp.Compare(a.Name, b.Name) })
	return l
}

// Active returns the alerts that fire, with the evidence of the last evaluation, in the order of the rules and
// labels. They are the caller's.
func (m *Manager) Active() []Alert {
	var out []Alert
	for _, t := range m.ordered() {
		if t.firing && t.suppressed == "" {
			out = append(out, t.last)
		}
	}
	return out
}

// ordered lists the tracked alerts by the rules' order, then by labels.
func (m *Manager) ordered() []*tracked {
	all := slices.Collect(maps.Values(m.tracked))
	slices.SortFunc(all, func(a, b *tracked) int {
		return cmp.Or(cmp.Compare(slices.Index(m.rules, a.rule), slices.Index(m.rules, b.rule)),
			cmp.Compare(a.labels.String(), b.labels.String()))
	})
	return all
}

func (m *Manager) count() {
	n, held := map[Severity]int{}, map[string]int{}
	for _, t := range m.tracked {
		switch {
		case t.firing && t.suppressed != "":
			held[t.suppressed]++
		case t.firing:
			n[t.severity]++
		}
	}
	for _, s := range m.suppressors {
		m.metrics.suppressed.WithLabelValues(s.Name).Set(float64(held[s.Name]))
	}
	for _, s := range severities {
		m.metrics.firing.WithLabelValues(string(s)).Set(float64(n[s]))
	}
}

// RuleNames lists the rules that run, in their order.
func (m *Manager) RuleNames() []string { return ruleNames(m.rules) }

func ruleNames(rules []*rule) []string {
	var names []string
	for _, r := range rules {
		if r.site == "" {
			names = append(names, r.Name)
		}
	}
	return names
}

// String tells what the manager holds, for logs.
func (m *Manager) String() string {
	return counted("rule")(float64(len(m.rules))) + ", " + counted("alert")(float64(len(m.tracked))) + " tracked"
}

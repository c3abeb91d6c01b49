package alerts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

// snapshotVersion changes when an older state cannot be read any more.
const snapshotVersion = 1

// snapshot is the state of a Manager on disk. What is derived (cause, advice, annotations) is not kept.
type snapshot struct {
	Version int               `json:"version"`
	At      int64             `json:"at"`
	Orphans []storedAlert     `json:"orphans,omitempty"`
	Recent  []storedDetection `json:"recent,omitempty"`
	Tracked []storedAlert     `json:"tracked,omitempty"`

	Nodes     []storedNode     `json:"nodes,omitempty"`
	Incidents []storedIncident `json:"incidents,omitempty"`
}

// storedNode is a detection as correlation sees it.
type storedNode struct {
	Detection storedDetection `json:"detection"`
	Last      int64           `json:"last"`
	Incident  string          `json:"incident"`
}

type storedIncident struct {
	ID     string            `json:"id"`
	Opened int64             `json:"opened"`
	Start  int64             `json:"start"`
	Merged []Merged          `json:"merged,omitempty"`
	Apart  map[string]string `json:"apart,omitempty"`
}

type storedAlert struct {
	Rule       string            `json:"rule"`
	Labels     []detectors.Label `json:"labels,omitempty"`
	Pending    bool              `json:"pending,omitempty"`
	Firing     bool              `json:"firing,omitempty"`
	Since      int64             `json:"since"`
	Began      int64             `json:"began"`
	FiredAt    int64             `json:"fired_at"`
	StartsAt   int64             `json:"starts_at"`
	OverAt     int64             `json:"over_at"`
	Ended      int64             `json:"ended"`
	Severity   Severity          `json:"severity,omitempty"`
	Suppressed string            `json:"suppressed,omitempty"`
	WindowOver int64             `json:"window_over,omitempty"`
	Identity   []detectors.Label `json:"identity,omitempty"`

	Before []storedDetection `json:"before,omitempty"`

	Seen  []storedDetection     `json:"seen,omitempty"`
	Parts map[string]storedPart `json:"parts,omitempty"`
	Gaps  []string              `json:"gaps,omitempty"`
	Away  []string              `json:"away,omitempty"`
	Rests pane.Coverage         `json:"rests_on"`
	Heard uint64                `json:"requests_read,omitempty"` // of all sources
	Quiet []detectors.Silence   `json:"quiet,omitempty"`

	LastAt    int64          `json:"last_at"`
	Value     float64        `json:"value"`
	Threshold float64        `json:"threshold"`
	Detectors []string       `json:"detectors,omitempty"`
	Evidence  storedEvidence `json:"evidence"`
	Within    *Incident      `json:"within,omitempty"`
}

type storedPart struct {
	Detector string         `json:"detector"`
	Over     storedEvidence `json:"over"`
	Now      storedEvidence `json:"now"`
	Peak     storedEvidence `json:"peak"`
	Value    float64        `json:"value"`
}

type storedDetection struct {
	Detector  string            `json:"detector"`
	Labels    []detectors.Label `json:"labels,omitempty"`
	Active    bool              `json:"active,omitempty"`
	Onset     int64             `json:"onset"`
	Since     int64             `json:"since"`
	Until     int64             `json:"until"`
	Value     float64           `json:"value"`
	Threshold float64           `json:"threshold"`
	Peak      float64           `json:"peak"`
	Evidence  storedEvidence    `json:"evidence"`
}

// storedEvidence keeps the numbers whole: the JSON of Evidence rounds them.
type storedEvidence struct {
	Numbers map[string]float64 `json:"numbers,omitempty"`
	Rest    detectors.Evidence `json:"rest"` // its numbers are taken out
}

// Snapshot writes the state of every alert, so that a Manager of the same rules that restores it goes on as if
// nothing had been.
func (m *Manager) Snapshot() ([]byte, error) {
	s := snapshot{Version: snapshotVersion, At: m.at}
	for _, key := range slices.Sorted(maps.Keys(m.recent)) {
		s.Recent = append(s.Recent, storeDetection(m.recent[key]))
	}
	for _, t := range m.ordered() {
		s.Tracked = append(s.Tracked, storeTracked(t))
	}
	for i := range m.orphans {
		s.Orphans = append(s.Orphans, storeOrphan(&m.orphans[i]))
	}
	m.incidents.store(&s)
	return json.Marshal(s)
}

func (c *correlator) store(s *snapshot) {
	for _, n := range c.ordered() {
		s.Nodes = append(s.Nodes, storedNode{storeDetection(n.d), n.last, n.incident})
	}
	for _, id := range slices.Sorted(maps.Keys(c.incidents)) {
		o := c.incidents[id]
		s.Incidents = append(s.Incidents, storedIncident{o.id, o.opened, o.start, o.merged, o.apart})
	}
}

func (c *correlator) load(s *snapshot) {
	c.at = s.At
	for _, x := range s.Incidents {
		c.incidents[x.ID] = &open{x.ID, x.Opened, x.Start, x.Merged, x.Apart}
		if x.Apart == nil {
			c.incidents[x.ID].apart = map[string]string{}
		}
	}
	for i := range s.Nodes {
		x := &s.Nodes[i]
		if d := loadDetection(&x.Detection); c.incidents[x.Incident] != nil {
			c.nodes[detectionKey(d)] = &node{d: d, last: x.Last, incident: x.Incident}
		}
	}
	c.settle()
}

// Restore takes over a Snapshot. It is called before the first Evaluate. An alert that fires and whose rule is
// gone or has other labels now ends with the next Evaluate, so that no receiver keeps it for ever.
func (m *Manager) Restore(data []byte) error {
	var s snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read alert state: %w", err)
	}
	if s.Version != snapshotVersion {
		return fmt.Errorf("read alert state: version %d is not %d", s.Version, snapshotVersion)
	}
	m.at = s.At
	for _, sd := range s.Recent {
		d := loadDetection(&sd)
		m.recent[detectionKey(d)] = d
	}
	for i := range s.Tracked {
		st := &s.Tracked[i]
		if t := m.loadTracked(st); t != nil {
			m.tracked[trackKey(t.rule, t.labels)] = t
		} else if st.Firing {
			m.orphans = append(m.orphans, loadOrphan(st))
		}
	}
	for i := range s.Orphans {
		m.orphans = append(m.orphans, loadOrphan(&s.Orphans[i]))
	}
	m.incidents.load(&s)
	m.count()
	return nil
}

// loadTracked returns nil when no rule of now has this alert's identity.
func (m *Manager) loadTracked(st *storedAlert) *tracked {
	i := slices.IndexFunc(m.rules, func(r *rule) bool { return r.Name == st.Rule && r.takes(st.Labels) })
	if i < 0 || len(m.tracked) >= m.maxAlerts {
		return nil
	}
	t := &tracked{
		rule: m.rules[i], labels: st.Labels, pending: st.Pending, firing: st.Firing, since: st.Since, began: cmp.Or(st.Began, st.Since), firedAt: st.FiredAt,
		startsAt: st.StartsAt, overAt: st.OverAt, ended: st.Ended, severity: st.Severity, within: st.Within,
		suppressed: st.Suppressed, windowOver: st.WindowOver,
	}
	if !slices.Equal(t.labels, project(t.labels, t.rule.By)) || !slices.Equal(t.identity(), detectors.Labels(st.Identity)) {
		return nil
	}
	t.history = history{Seen: map[string]*detectors.Detection{}, Parts: map[string]*part{}, Gaps: st.Gaps, Away: st.Away, Rests: st.Rests, Heard: st.Heard, Quiet: st.Quiet}
	for j := range st.Before {
		if t.before == nil {
			t.before = map[string]*detectors.Detection{}
		}
		d := loadDetection(&st.Before[j])
		t.before[d.Detector] = d
	}
	for j := range st.Seen {
		d := loadDetection(&st.Seen[j])
		t.history.Seen[d.Detector] = d
	}
	for key, p := range st.Parts {
		t.history.Parts[key] = &part{
			Detector: p.Detector, Over: loadEvidence(p.Over), Now: loadEvidence(p.Now), Peak: loadEvidence(p.Peak), Value: p.Value,
		}
	}
	if t.firing {
		t.last = loadOrphan(st)
		m.explain(t, &t.last)
	}
	return t
}

func storeTracked(t *tracked) storedAlert {
	st := storedAlert{
		Rule: t.rule.Name, Labels: t.labels, Pending: t.pending, Firing: t.firing, Since: t.since, Began: t.began, FiredAt: t.firedAt,
		StartsAt: t.startsAt, OverAt: t.overAt, Ended: t.ended, Severity: t.severity, Identity: t.identity(),
		Suppressed: t.suppressed, WindowOver: t.windowOver,
		Gaps: t.history.Gaps, Away: t.history.Away, Rests: t.history.Rests, Heard: t.history.Heard, Quiet: t.history.Quiet,
		LastAt: t.last.At, Value: t.last.Value, Threshold: t.last.Threshold,
		Detectors: t.last.Detectors, Evidence: storeEvidence(t.last.Evidence), Within: t.within,
	}
	for _, name := range slices.Sorted(maps.Keys(t.before)) {
		st.Before = append(st.Before, storeDetection(t.before[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(t.history.Seen)) {
		st.Seen = append(st.Seen, storeDetection(t.history.Seen[name]))
	}
	for key, p := range t.history.Parts {
		if st.Parts == nil {
			st.Parts = map[string]storedPart{}
		}
		st.Parts[key] = storedPart{p.Detector, storeEvidence(p.Over), storeEvidence(p.Now), storeEvidence(p.Peak), p.Value}
	}
	return st
}

func storeOrphan(a *Alert) storedAlert {
	return storedAlert{
		Rule: a.Name, Firing: true, StartsAt: a.StartsAt, Severity: a.Severity, Identity: a.Labels, LastAt: a.At, Suppressed: a.Suppressed,
		Value: a.Value, Threshold: a.Threshold, Detectors: a.Detectors, Evidence: storeEvidence(a.Evidence),
	}
}

func loadOrphan(st *storedAlert) Alert {
	state := Firing
	if st.Suppressed != "" {
		state = Suppressed
	}
	return Alert{
		Name: st.Rule, State: state, Suppressed: st.Suppressed, Severity: st.Severity, Labels: st.Identity, StartsAt: st.StartsAt, At: st.LastAt,
		Value: st.Value, Threshold: st.Threshold, Detectors: st.Detectors, Evidence: loadEvidence(st.Evidence),
	}
}

func storeDetection(d *detectors.Detection) storedDetection {
	return storedDetection{
		d.Detector, d.Labels, d.Active, d.Onset, d.Since, d.Until, d.Value, d.Threshold, d.Peak, storeEvidence(d.Evidence),
	}
}

func loadDetection(s *storedDetection) *detectors.Detection {
	return &detectors.Detection{
		Detector: s.Detector, Labels: s.Labels, Active: s.Active, Onset: s.Onset, Since: s.Since, Until: s.Until,
		Value: s.Value, Threshold: s.Threshold, Peak: s.Peak, Evidence: loadEvidence(s.Evidence),
	}
}

func storeEvidence(e detectors.Evidence) storedEvidence {
	s := storedEvidence{Rest: e}
	for name, i := range numberFields {
		n := number(&e, i)
		if !n.Known() {
			continue
		}
		if s.Numbers == nil {
			s.Numbers = map[string]float64{}
		}
		s.Numbers[name] = n.Get()
		setNumber(&s.Rest, i, detectors.Num{})
	}
	return s
}

func loadEvidence(s storedEvidence) detectors.Evidence {
	e := s.Rest
	for name, v := range s.Numbers {
		if i, ok := numberFields[name]; ok {
			setNumber(&e, i, detectors.N(v))
		}
	}
	return e
}

package alerts

import (
	"bytes"
	"cmp"
	"encoding/gob"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors"
)

// LedgerVersion is the version of an Entry's JSON. It is raised when a field changes its meaning or goes away.
const LedgerVersion = 1

// What a Ledger keeps, whatever the logs held.
const (
	maxEntries  = 500
	maxOfEntry  = 32 // alerts, episodes and windows of one incident
	ledgerRoute = 6  // classes of a window
)

// An Entry is an incident as the ledger keeps it: what it was, and how bad. It is what two incidents are compared by.
type Entry struct {
	Version     int      `json:"version"`
	ID          string   `json:"id"`
	Fingerprint string   `json:"fingerprint"` // equal for the same kind of requests at the same site
	From        Instant  `json:"from"`
	To          Instant  `json:"to"`                // of its last alert or window so far
	Ongoing     bool     `json:"ongoing,omitempty"` // an alert of it fires
	Severity    Severity `json:"severity"`          // "": no alert fired, the numbers are of a quiet time
	Sites       []string `json:"sites,omitempty"`
	Cause       Cause    `json:"cause"`
	Requests    string   `json:"culprit,omitempty"` // method and route of those that did it
	Lead        string   `json:"detector,omitempty"`
	Numbers     Numbers  `json:"numbers"`
	Controls    []string `json:"controls,omitempty"` // in place, as configured
	Incomplete  bool     `json:"incomplete,omitempty"`

	Alerts   []EntryAlert   `json:"alerts,omitempty"`
	Episodes []EntryEpisode `json:"episodes,omitempty"`
	Windows  []EntryWindow  `json:"windows,omitempty"`
}

// Numbers are how bad an incident was. What is not known is absent.
type Numbers struct {
	Requests           detectors.Num `json:"requests,omitzero"`
	PeakPerMinute      detectors.Num `json:"requests_per_minute_peak,omitzero"` // of the site, in its busiest minute
	WorkerSecondsLower detectors.Num `json:"worker_seconds_lower,omitzero"`
	WorkerSecondsUpper detectors.Num `json:"worker_seconds_upper,omitzero"`
	Abandoned          detectors.Num `json:"abandoned,omitzero"`
	Errors5xx          detectors.Num `json:"errors_5xx,omitzero"`
	P99Seconds         detectors.Num `json:"p99_seconds,omitzero"`
	P99Censored        bool          `json:"p99_censored,omitempty"`
	PoolWorkers        detectors.Num `json:"pool_workers,omitzero"`
	RecoverySeconds    detectors.Num `json:"recovery_seconds,omitzero"` // from the storm's end to the end of what it did
	Restarts           detectors.Num `json:"restarts,omitzero"`
}

// An EntryAlert is an alert of an incident.
type EntryAlert struct {
	Name     string        `json:"alert"`
	About    string        `json:"about"`
	Severity Severity      `json:"severity"`
	From     Instant       `json:"from"`
	To       *Instant      `json:"to"` // null while it fires
	P99      detectors.Num `json:"p99_seconds,omitzero"`
	Censored bool          `json:"p99_censored,omitempty"`
	Restarts detectors.Num `json:"restarts,omitzero"`
	Detector string        `json:"detector,omitempty"` // that its requests are told by
	Requests string        `json:"requests,omitempty"` // method and route
}

// An EntryEpisode is one detector's part in an incident.
type EntryEpisode struct {
	Detector string   `json:"detector"`
	About    string   `json:"about"`
	From     Instant  `json:"from"`
	To       *Instant `json:"to"` // null while it lasts
}

// An EntryWindow is the requests of one site while something was wrong with it.
type EntryWindow struct {
	Site    string       `json:"site"`
	From    Instant      `json:"from"`
	To      Instant      `json:"to"`
	Numbers Numbers      `json:"numbers"`
	Routes  []EntryRoute `json:"routes,omitempty"` // the costliest first
}

// An EntryRoute is a class of requests.
type EntryRoute struct {
	Method             string        `json:"method"`
	Route              string        `json:"route"`
	Requests           detectors.Num `json:"requests,omitzero"`
	WorkerSecondsLower detectors.Num `json:"worker_seconds_lower,omitzero"`
	WorkerSecondsUpper detectors.Num `json:"worker_seconds_upper,omitzero"`
	Share              detectors.Num `json:"worker_seconds_share,omitzero"`
	Abandoned          detectors.Num `json:"abandoned,omitzero"`
	Reached            detectors.Num `json:"reached_upstream_ratio,omitzero"`
}

// Name is method and route.
func (r *EntryRoute) Name() string { return strings.TrimSpace(r.Method + " " + r.Route) }

// Instant is event time in ns, written as RFC 3339 in UTC.
type Instant int64

// String writes the time.
func (t Instant) String() string { return stamp(int64(t)) }

// MarshalText writes the time for JSON.
func (t Instant) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (t *Instant) UnmarshalText(b []byte) error {
	at, err := time.Parse(time.RFC3339Nano, string(b))
	if err != nil {
		return err
	}
	*t = Instant(at.UnixNano())
	return nil
}

// A Ledger keeps incidents with their numbers, as panes and alerts tell them. It knows event time only, and what it is
// told twice counts once: the same lines give the same entries. It is used from one goroutine and holds at most 500.
type Ledger struct {
	entries map[string]*Entry // by ID
	site    func(string) Site
	minute  int // panes of one
	rates   map[string]*traffic
	dirty   map[string]bool // IDs that changed or went since Changed was asked
}

// traffic is a site's requests by pane over the last minute, and its busiest minute while something is wrong with it.
type traffic struct {
	Last []uint64
	Peak uint64
}

// NewLedger makes an empty Ledger. site tells what is in place; nil: nothing is declared.
func NewLedger(pane time.Duration, site func(string) Site) *Ledger {
	if site == nil {
		site = func(string) Site { return Site{} }
	}
	return &Ledger{
		entries: map[string]*Entry{}, site: site, minute: max(1, int(time.Minute/max(pane, 1))), rates: map[string]*traffic{}, dirty: map[string]bool{},
	}
}

// Load puts entries in that were kept. Those of a version that is not understood are left where they are.
func (l *Ledger) Load(kept []Entry) {
	for i := range kept {
		if e := kept[i]; e.Version == LedgerVersion && e.ID != "" {
			l.entries[e.ID] = &e
		}
	}
	l.bound()
}

// Entries lists what is kept, the newest first. They are the caller's.
func (l *Ledger) Entries() []Entry {
	out := make([]Entry, 0, len(l.entries))
	for _, e := range l.entries {
		out = append(out, e.clone())
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Or(cmp.Compare(b.From, a.From), strings.Compare(a.ID, b.ID)) })
	return out
}

// Snapshot is what the Ledger counts beside its entries, to go on after a restart.
func (l *Ledger) Snapshot() ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(l.rates)
	return b.Bytes(), err
}

// Restore sets what is counted to a snapshot's. One that cannot be read costs the busiest minute of what goes on.
func (l *Ledger) Restore(state []byte) {
	rates := map[string]*traffic{}
	if gob.NewDecoder(bytes.NewReader(state)).Decode(&rates) == nil {
		l.rates = rates
	}
}

// Changed tells which entries are new or other than when it was last asked, and the IDs of those that are gone.
func (l *Ledger) Changed() (changed []Entry, gone []string) {
	for _, id := range slices.Sorted(maps.Keys(l.dirty)) {
		if e := l.entries[id]; e != nil {
			changed = append(changed, e.clone())
		} else {
			gone = append(gone, id)
		}
	}
	clear(l.dirty)
	return changed, gone
}

func (e *Entry) clone() Entry {
	out := *e
	out.Alerts, out.Episodes, out.Windows = slices.Clone(e.Alerts), slices.Clone(e.Episodes), slices.Clone(e.Windows)
	return out
}

// Observe takes the result of one pane, what changed in it, and what fires.
func (l *Ledger) Observe(res *detectors.Result, transitions, active []Alert) {
	if res != nil {
		l.count(res)
	}
	touched := map[string]bool{}
	for _, list := range [][]Alert{transitions, active} {
		for i := range list {
			if id := l.alert(&list[i]); id != "" {
				touched[id] = true
			}
		}
	}
	if res != nil {
		for i := range res.Changes {
			l.episode(&res.Changes[i], touched)
		}
		l.Spans(res.Spans, touched)
	}
	for id, e := range l.entries {
		if e.Ongoing && !touched[id] && res != nil { // its alerts were forgotten with a lost state
			e.close()
			touched[id], l.dirty[id] = true, true
		}
		if touched[id] {
			l.sum(e)
		}
	}
	l.bound()
}

// Spans adds the requests of sites. touched may be nil.
func (l *Ledger) Spans(spans []detectors.Span, touched map[string]bool) {
	for i := range spans {
		s := &spans[i]
		for id, e := range l.entries {
			if slices.Contains(e.Sites, s.Site) && Instant(s.From) < e.To+Instant(incidentGap) && Instant(s.To) > e.From {
				e.window(s)
				l.dirty[id] = true
				if touched == nil {
					l.sum(e)
				} else {
					touched[id] = true
				}
			}
		}
	}
}

// count follows how many requests a minute each site gets.
func (l *Ledger) count(res *detectors.Result) {
	wrong := map[string]bool{}
	for i := range res.Detections {
		wrong[res.Detections[i].Labels.Get("site")] = true
	}
	for name, s := range res.Pane.Sites {
		var n uint64
		for k, c := range s.All() {
			if !k.Probe {
				n += c.Requests
			}
		}
		r := l.rates[name]
		if r == nil {
			r = &traffic{}
			l.rates[name] = r
		}
		r.Last = append(r.Last, n)
	}
	for name, r := range l.rates {
		if res.Pane.Sites[name] == nil {
			r.Last = append(r.Last, 0)
		}
		if n := len(r.Last) - l.minute; n > 0 {
			r.Last = slices.Delete(r.Last, 0, n)
		}
		var sum uint64
		for _, n := range r.Last {
			sum += n
		}
		if wrong[name] {
			r.Peak = max(r.Peak, sum)
		} else {
			r.Peak = sum
		}
		if sum == 0 {
			delete(l.rates, name)
		}
	}
}

// alert brings an alert into its incident's entry and gives the entry's ID.
func (l *Ledger) alert(a *Alert) string {
	in := a.Incident
	if in == nil {
		return ""
	}
	e := l.entries[in.ID]
	if e == nil {
		e = &Entry{Version: LedgerVersion, ID: cut(in.ID, maxText), From: Instant(in.StartsAt)}
		l.entries[in.ID] = e
	}
	x := EntryAlert{
		Name: cut(a.Name, maxText), About: aboutLabels(a.Labels), Severity: a.Severity, From: Instant(a.StartsAt), P99: a.Evidence.P99Seconds, Censored: a.Evidence.P99Censored,
		Restarts: a.Evidence.Restarts, Requests: strings.TrimSpace(cut(a.Evidence.Method, 32) + " " + cut(a.Evidence.Route, maxText)),
	}
	if len(a.Detectors) > 0 {
		x.Detector = leadOf(a.Detectors)
	}
	if a.State == Resolved {
		to := Instant(a.EndsAt)
		x.To = &to
	}
	same := func(y EntryAlert) bool { return y.Name == x.Name && y.About == x.About && y.From == x.From }
	l.moved(e, same)
	if i := slices.IndexFunc(e.Alerts, same); i >= 0 {
		if old := &e.Alerts[i]; old.P99.Get() > x.P99.Get() {
			x.P99, x.Censored = old.P99, old.Censored
		}
		e.Alerts[i] = x
	} else if len(e.Alerts) < maxOfEntry {
		e.Alerts = append(e.Alerts, x)
	}
	e.members(in)
	if site := a.Labels.Get("site"); site != "" && !slices.Contains(e.Sites, site) && len(e.Sites) < maxOfEntry {
		e.Sites = append(e.Sites, site)
		slices.Sort(e.Sites)
	}
	if e.Cause.Text == "" || a.Severity.rank() >= e.Severity.rank() {
		e.Cause = a.Cause
	}
	e.Incomplete = e.Incomplete || len(a.Coverage.Lost)+len(a.Coverage.Quiet) > 0
	l.dirty[e.ID] = true
	return e.ID
}

// moved takes an alert out of the entries of incidents that were merged into e's.
func (l *Ledger) moved(e *Entry, same func(EntryAlert) bool) {
	for id, other := range l.entries {
		if other == e || !slices.ContainsFunc(other.Alerts, same) {
			continue
		}
		other.Alerts = slices.DeleteFunc(other.Alerts, same)
		l.dirty[id] = true
		if len(other.Alerts) == 0 {
			delete(l.entries, id)
			for i := range other.Windows {
				e.put(other.Windows[i])
			}
		}
	}
}

// members notes the detections of an incident.
func (e *Entry) members(in *Incident) {
	e.From = min(e.From, Instant(in.StartsAt))
	for _, m := range in.Members {
		about := aboutLabels(m.Labels)
		i := slices.IndexFunc(e.Episodes, func(x EntryEpisode) bool { return x.Detector == m.Detector && x.About == about })
		switch {
		case i >= 0:
			e.Episodes[i].From = min(e.Episodes[i].From, Instant(m.Onset))
		case len(e.Episodes) < maxOfEntry:
			e.Episodes = append(e.Episodes, EntryEpisode{Detector: m.Detector, About: about, From: Instant(m.Onset)})
		}
	}
}

// episode notes when a member of an incident was over, or began again.
func (l *Ledger) episode(d *detectors.Detection, touched map[string]bool) {
	about := aboutLabels(d.Labels)
	for id, e := range l.entries {
		for i := range e.Episodes {
			x := &e.Episodes[i]
			if x.Detector != d.Detector || x.About != about || Instant(d.Onset) < x.From || Instant(d.Onset) > e.To+Instant(incidentGap) {
				continue
			}
			if x.To = nil; !d.Active {
				to := Instant(d.Until)
				x.To = &to
			}
			l.dirty[id], touched[id] = true, true
		}
	}
}

// close ends alerts that nobody tells of any more, when they were last known.
func (e *Entry) close() {
	for i := range e.Alerts {
		if a := &e.Alerts[i]; a.To == nil {
			to := max(a.From, e.To)
			a.To = &to
		}
	}
}

// window adds a span's numbers.
func (e *Entry) window(s *detectors.Span) {
	t := &s.Total
	w := EntryWindow{Site: s.Site, From: Instant(s.From), To: Instant(s.To), Numbers: Numbers{
		Requests: t.Requests, WorkerSecondsLower: t.WorkerSecondsLower, WorkerSecondsUpper: t.WorkerSecondsUpper, Abandoned: t.Abandoned,
		Errors5xx: t.Errors5xx, P99Seconds: t.P99Seconds, P99Censored: t.P99Censored, PoolWorkers: t.PoolWorkers,
	}}
	for _, c := range s.Classes[:min(len(s.Classes), ledgerRoute)] {
		x := &c.Evidence
		w.Routes = append(w.Routes, EntryRoute{
			Method: cut(c.Method, 32), Route: cut(c.Route, maxText), Requests: x.Requests, WorkerSecondsLower: x.WorkerSecondsLower,
			WorkerSecondsUpper: x.WorkerSecondsUpper, Share: x.WorkerSecondsShare, Abandoned: x.Abandoned, Reached: x.ReachedUpstreamRatio,
		})
	}
	e.put(w)
}

// put keeps a window once: what is told again, longer, takes its place.
func (e *Entry) put(w EntryWindow) {
	i := slices.IndexFunc(e.Windows, func(x EntryWindow) bool { return x.Site == w.Site && x.From < w.To && w.From < x.To })
	switch {
	case i >= 0:
		e.Windows[i] = w
	case len(e.Windows) < maxOfEntry:
		e.Windows = append(e.Windows, w)
	}
	slices.SortFunc(e.Windows, func(a, b EntryWindow) int {
		return cmp.Or(cmp.Compare(a.From, b.From), strings.Compare(a.Site, b.Site))
	})
}

// sum makes an entry's numbers of its parts.
func (l *Ledger) sum(e *Entry) {
	peak := e.Numbers.PeakPerMinute
	e.Numbers, e.Ongoing, e.Severity, e.To = Numbers{}, false, "", 0
	n := &e.Numbers
	for i := range e.Windows {
		n.add(&e.Windows[i].Numbers)
		e.From, e.To = min(e.From, e.Windows[i].From), max(e.To, e.Windows[i].To)
	}
	for i := range e.Alerts {
		a := &e.Alerts[i]
		if !(n.P99Seconds.Get() >= a.P99.Get()) && a.P99.Known() {
			n.P99Seconds, n.P99Censored = a.P99, a.Censored
		}
		if !(n.Restarts.Get() >= a.Restarts.Get()) && a.Restarts.Known() {
			n.Restarts = a.Restarts
		}
		if a.Severity.rank() > e.Severity.rank() {
			e.Severity = a.Severity
		}
		if e.From = min(e.From, a.From); a.To == nil {
			e.Ongoing = true
			e.To = max(e.To, a.From)
		} else {
			e.To = max(e.To, *a.To)
		}
	}
	e.Controls = nil
	for _, site := range e.Sites {
		if r := l.rates[site]; r != nil && r.Peak > 0 && !(peak.Get() >= float64(r.Peak)) && e.Ongoing {
			peak = detectors.N(float64(r.Peak))
		}
		for _, c := range l.site(site).Controls {
			if name := cut(c.Name, maxText); !slices.Contains(e.Controls, name) && len(e.Controls) < maxOfEntry {
				e.Controls = append(e.Controls, name)
			}
		}
	}
	slices.Sort(e.Controls)
	n.PeakPerMinute, n.RecoverySeconds = peak, e.recovery()
	e.identify()
}

func (n *Numbers) add(o *Numbers) {
	for _, p := range []struct{ sum, more *detectors.Num }{
		{&n.Requests, &o.Requests}, {&n.WorkerSecondsLower, &o.WorkerSecondsLower}, {&n.WorkerSecondsUpper, &o.WorkerSecondsUpper},
		{&n.Abandoned, &o.Abandoned}, {&n.Errors5xx, &o.Errors5xx},
	} {
		switch {
		case !p.sum.Known():
			*p.sum = *p.more
		case p.more.Known():
			*p.sum = detectors.N(p.sum.Get() + p.more.Get())
		}
	}
	if o.P99Seconds.Known() && !(n.P99Seconds.Get() >= o.P99Seconds.Get()) {
		n.P99Seconds, n.P99Censored = o.P99Seconds, o.P99Censored
	}
	if o.PoolWorkers.Known() {
		n.PoolWorkers = o.PoolWorkers
	}
}

// causes are detectors of what does the hurting, the plainest first; the rest tell of what is hurt.
var causes = []string{
	"head_storm", "restart_burst", "self_loop", "ratelimit_backfire", "cache_stampede", "agent_flood", "retry_loop", "worker_timeout", "probe_failure",
}

// leadOf is the detector that tells most of what an incident is.
func leadOf(names []string) string {
	for _, c := range causes {
		if slices.Contains(names, c) {
			return c
		}
	}
	for _, c := range []string{"saturation", "error_burst", "client_abandon", "latency"} {
		if slices.Contains(names, c) {
			return c
		}
	}
	return names[0]
}

// recovery is how long what the storm did went on without it: unknown where something lasts, or where none is known.
func (e *Entry) recovery() detectors.Num {
	var storm, hurt Instant
	for i := range e.Episodes {
		x := &e.Episodes[i]
		is, does := slices.Contains(causes, x.Detector), slices.Contains(hurts, x.Detector)
		if (is || does) && x.To == nil {
			return detectors.Num{}
		}
		if is {
			storm = max(storm, *x.To)
		}
		if does {
			hurt = max(hurt, *x.To)
		}
	}
	if storm == 0 || hurt == 0 {
		return detectors.Num{}
	}
	return detectors.N(max(0, time.Duration(hurt-storm).Seconds()))
}

// identify names what an incident is about, so that it is known again.
func (e *Entry) identify() {
	var names []string
	for i := range e.Episodes {
		names = append(names, e.Episodes[i].Detector)
	}
	for i := range e.Alerts {
		if d := e.Alerts[i].Detector; d != "" {
			names = append(names, d)
		}
	}
	if len(names) == 0 {
		return
	}
	e.Lead, e.Requests = leadOf(names), ""
	for i := range e.Alerts {
		if a := &e.Alerts[i]; a.Detector == e.Lead && a.Requests != "" && slices.Contains(causes, e.Lead) {
			e.Requests = a.Requests
			break
		}
	}
	if w := e.worst(); e.Requests == "" && w != nil && len(w.Routes) > 0 {
		e.Requests = w.Routes[0].Name()
	}
	place := strings.Join(e.Sites, ",")
	if place == "" {
		place = "cluster"
	}
	e.Fingerprint = strings.TrimSpace(cut(place, maxText) + " " + e.Lead + " " + e.Requests)
}

// worst is the window with most worker time.
func (e *Entry) worst() *EntryWindow {
	var out *EntryWindow
	for i := range e.Windows {
		if w := &e.Windows[i]; out == nil || w.Numbers.WorkerSecondsUpper.Get() > out.Numbers.WorkerSecondsUpper.Get() {
			out = w
		}
	}
	return out
}

// bound forgets the oldest incidents, of those that are over while there are any.
func (l *Ledger) bound() {
	if len(l.entries) <= maxEntries {
		return
	}
	list := l.Entries()
	slices.SortStableFunc(list, func(a, b Entry) int { return cmp.Compare(over(&a), over(&b)) })
	for _, e := range list[maxEntries:] {
		delete(l.entries, e.ID)
		l.dirty[e.ID] = true
	}
}

// over puts what goes on before what does not.
func over(e *Entry) int {
	if e.Ongoing {
		return 0
	}
	return 1
}

// aboutLabels is what labels name, in words.
func aboutLabels(l detectors.Labels) string {
	return cut(cmp.Or(l.Get("site"), l.Get("cluster"), "cluster"), maxText)
}

package detectors

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// Setting is a detector's configuration: for all sites, and for those that override it.
type Setting struct {
	Name     string
	Decode   func(any) error            // nil: the defaults
	Sites    map[string]func(any) error // decoded over Decode, by site
	Disabled bool
}

// Config is what an Engine needs.
type Config struct {
	Pane     time.Duration
	Cluster  string
	Settings []Setting // a detector that is not listed runs with its defaults
	Pool     func(site string) Pool
	// Controls are what is in place at a site; nil: nothing is known.
	Controls func(site string) []Control
	// Dependencies are what the cluster's namespaces run on.
	Dependencies Dependencies
}

// Engine turns closed panes into Detections. It is called from one goroutine with consecutive panes.
type Engine struct {
	pane      int64
	cluster   string
	pool      func(string) Pool
	controls  func(string) []Control
	deps      Dependencies
	detectors []*runner
	keep      int64 // ns: how far back the ring reaches
	keepSites int64 // ns: how far back its panes have their sites, which are what is large

	ring      []*pane.Pane     // the last panes, oldest first
	heldTo    map[string]int64 // ns: by site, the end of the last pane in whose ring it is
	sites     *pane.Windows    // their sites
	events    *pane.Windows    // their events
	waits     *pane.Windows    // the Waits of their sites
	episodes  map[episodeKey]*episode
	incidents map[string]*pane.Pane // by site ("" for the cluster): the merged panes since its first episode began
	baselines *Baselines
	listener  *listener
	learned   learnedPools
	onlySite  bool
	onsets    map[episodeKey][]int64 // of the last episodes, oldest first
	learning  []lesson               // panes that will be learned when they have left the window without trouble
	at        int64                  // ns: the end of the last evaluated pane
	wrong     map[int64][]string     // of a snapshot, until its panes were read again
}

// A runner is one detector with its per-site variants.
type runner struct {
	name    string
	all     Detector
	sites   map[string]Detector
	present map[Detector]*Window // what each sees of the present: made once, and given each pane's view
}

type episodeKey struct{ detector, labels string }

// An episode is the life of a Detection from onset to end.
type episode struct {
	detection Detection
	by        Detector
	worst     Evidence // of the window with the highest value
}

// A lesson is a pane that waits to be learned from.
type lesson struct {
	pane  *pane.Pane
	wrong map[string]bool // sites on which something was wrong at that time
}

// What the view of an incident may hold: it grows for hours.
const (
	maxSites = 1
	maxCells = 4096
	// of one pane for detectors of sites, and of a site's incident
	maxSiteEvents         = 1000
	maxSiteIncidentEvents = 10 * maxSiteEvents
)

// learnAfter is how many panes pass before one is learned from: a storm must have been noticed by then.
const learnAfter = 12

// NewEngine builds the detectors from their settings.
func NewEngine(cfg Config) (*Engine, error) {
	e := &Engine{
		pane: int64(cfg.Pane), cluster: cfg.Cluster, pool: cfg.Pool,
		controls: cfg.Controls, deps: cfg.Dependencies,
		heldTo: map[string]int64{}, episodes: map[episodeKey]*episode{}, incidents: map[string]*pane.Pane{}, baselines: newBaselines(),
		onsets: map[episodeKey][]int64{}, listener: newListener(), learned: learnedPools{},
	}
	if e.controls == nil {
		e.controls = func(string) []Control { return nil }
	}
	settings := map[string]Setting{}
	for _, s := range cfg.Settings {
		settings[s.Name] = s
	}
	for _, name := range Names() {
		s := settings[name]
		delete(settings, name)
		if s.Disabled {
			continue
		}
		r, err := newRunner(name, s)
		if err != nil {
			return nil, err
		}
		if err := r.fits(cfg.Pane); err != nil {
			return nil, err
		}
		e.detectors = append(e.detectors, r)
		e.keep = max(e.keep, r.span())
		if r.all.Scope() == PerSite {
			e.keepSites = max(e.keepSites, r.span())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		_, err := New(name, nil)
		return nil, err
	}
	e.keepSites = max(e.keepSites, int64(busySpan))
	e.sites = pane.NewWindows(cfg.Pane, time.Duration(e.keepSites))
	e.events = pane.NewWindows(cfg.Pane, time.Duration(e.keep))
	e.waits = pane.NewWindows(cfg.Pane, time.Duration(e.keep))
	return e, nil
}

func newRunner(name string, s Setting) (*runner, error) {
	all, err := New(name, s.Decode)
	if err != nil {
		return nil, err
	}
	r := &runner{name: name, all: all, sites: map[string]Detector{}, present: map[Detector]*Window{}}
	for _, site := range slices.Sorted(maps.Keys(s.Sites)) {
		over := s.Sites[site]
		if r.sites[site], err = New(name, func(v any) error {
			if s.Decode != nil {
				if err := s.Decode(v); err != nil {
					return err
				}
			}
			return over(v)
		}); err != nil {
			return nil, fmt.Errorf("site %s: %w", site, err)
		}
	}
	return r, nil
}

func (r *runner) span() int64 {
	longest := r.all.Span()
	for _, d := range r.sites {
		longest = max(longest, d.Span())
	}
	return int64(longest)
}

// fits checks that windows are whole panes.
func (r *runner) fits(length time.Duration) error {
	for _, d := range append(slices.Collect(maps.Values(r.sites)), r.all) {
		if d.Span()%length != 0 {
			return fmt.Errorf("detector %s: window %s is not a multiple of the pane, %s", r.name, d.Span(), length)
		}
	}
	return nil
}

// variants gives each of the runner's detectors with the sites it judges, in a fixed order.
func (r *runner) variants(sites []string, judge func(d Detector, sites []string)) {
	if len(r.sites) == 0 {
		judge(r.all, sites)
		return
	}
	rest := make([]string, 0, len(sites))
	for _, s := range sites {
		if r.sites[s] == nil {
			rest = append(rest, s)
		}
	}
	judge(r.all, rest)
	for _, s := range slices.Sorted(maps.Keys(r.sites)) {
		judge(r.sites[s], []string{s})
	}
}

// Close evaluates the pane that was just closed.
func (e *Engine) Close(p *pane.Pane) *Result {
	e.at = p.End
	e.push(p)
	e.listener.hear(p, e.keep)
	e.learned.learn(p)
	views := map[viewKey]*pane.Pane{}
	seen := map[episodeKey]bool{}
	res := &Result{At: p.End, Pane: p, Coverage: p.Coverage, Heard: p.Heard, Silences: e.listener.silences()}
	names := slices.Sorted(maps.Keys(e.heldTo))
	e.onlySite = len(names) == 1
	for _, r := range e.detectors {
		r.variants(names, func(d Detector, sites []string) {
			for _, f := range d.Detect(e.present(r, d, e.view(views, d), sites)) {
				key := episodeKey{r.name, f.Labels.String()}
				seen[key] = true
				e.judge(key, d, f, p, res)
			}
		})
	}
	last := e.shared(views, viewKey{int64(busySpan), PerSite})
	res.Busy = e.window("", last, last.SiteNames()).busiest()
	for name, view := range e.incidents {
		if view.End < p.End {
			e.grow(name, view, p)
		}
	}
	e.finish(seen, p, res)
	e.learn(p)
	return res
}

// push adds a pane to the ring and forgets what no window reaches.
func (e *Engine) push(p *pane.Pane) {
	e.ring = append(e.ring, p)
	e.sites.Push(part(p, PerSite, ""))
	e.events.Push(part(p, Cluster, ""))
	e.waits.Push(part(p, PerClient, ""))
	e.hold(p)
	first := 0
	for e.ring[first].End <= p.End-e.keep {
		first++
	}
	e.ring = slices.Delete(e.ring, 0, first)
	for i, old := range e.ring {
		if old.Sites == nil || old.End > p.End-e.keepSites {
			continue
		}
		e.ring[i] = part(old, Cluster, "")
		e.ring[i].Sites = part(old, PerClient, "").Sites
	}
}

// hold notes how long the sites of a pane are in the ring.
func (e *Engine) hold(p *pane.Pane) {
	for name, s := range p.Sites {
		keep := min(e.keepSites, e.keep)
		if len(s.Waits) > 0 {
			keep = e.keep
		}
		e.heldTo[name] = max(e.heldTo[name], p.End+keep)
	}
	maps.DeleteFunc(e.heldTo, func(_ string, end int64) bool { return end <= p.End })
}

// A viewKey tells apart the views of one moment: detectors of one length and scope share one.
type viewKey struct {
	length int64
	scope  Scope
}

// view merges the panes of the detector's window that ends now.
func (e *Engine) view(views map[viewKey]*pane.Pane, d Detector) *pane.Pane {
	return e.shared(views, viewKey{int64(d.Span()), d.Scope()})
}

func (e *Engine) shared(views map[viewKey]*pane.Pane, key viewKey) *pane.Pane {
	v := views[key]
	if v == nil {
		windows := e.sites
		switch key.scope {
		case Cluster:
			windows = e.events
		case PerClient:
			windows = e.waits
		}
		v = windows.View(e.at-key.length, e.at)
		views[key] = v
	}
	return v
}

// part is the part of a pane that a scope needs: the events, or the sites, or one of them, with the few events that
// are about requests.
func part(p *pane.Pane, scope Scope, site string) *pane.Pane {
	out := &pane.Pane{Start: p.Start, End: p.End, Jump: p.Jump, Coverage: p.Coverage}
	switch {
	case scope == Cluster:
		out.Events = ofCluster(p.Events)
		return out
	case scope == PerClient:
		for name, s := range p.Sites {
			if len(s.Waits) > 0 && (site == "" || site == name) {
				if out.Sites == nil {
					out.Sites = map[string]*pane.Site{}
				}
				out.Sites[name] = &pane.Site{Waits: s.Waits}
			}
		}
		return out
	case site == "":
		out.Sites = p.Sites
	case p.Sites[site] != nil:
		out.Sites = map[string]*pane.Site{site: p.Sites[site]}
	}
	out.Events = besideSites(p, site)
	return out
}

// ofCluster leaves out the events that are about one request each: a limiter's come by the thousand.
func ofCluster(events []pipeline.Event) []pipeline.Event {
	aboutRequest := func(e pipeline.Event) bool {
		return e.Kind == pipeline.LimitRequest || e.Kind == pipeline.UpstreamTimeout
	}
	if !slices.ContainsFunc(events, aboutRequest) {
		return events
	}
	return slices.DeleteFunc(slices.Clone(events), aboutRequest)
}

// besideSites are the events that detectors of sites look at: the first of each pane, as many as they need to name
// a zone and a probe. Of a limiter's, a single site gets its own.
func besideSites(p *pane.Pane, site string) []pipeline.Event {
	var out []pipeline.Event
	for i := range p.Events {
		if len(out) == maxSiteEvents {
			break
		}
		e := &p.Events[i]
		switch e.Kind {
		case pipeline.LimitRequest:
			if site == "" || hostOf(p, site, e.Host) {
				out = append(out, *e)
			}
		case pipeline.ProbeFailed, pipeline.LivenessRestart, pipeline.PHPTimeout:
			out = append(out, *e)
		}
	}
	return out
}

// present is what a detector sees of the window that ends now.
func (e *Engine) present(r *runner, d Detector, view *pane.Pane, sites []string) *Window {
	w := r.present[d]
	if w == nil {
		w = e.window(r.name, nil, nil)
		w.SitesOnly = d != r.all
		w.Newest = func(length time.Duration) *pane.Pane {
			return e.sites.View(e.at-max(int64(length)/e.pane, 1)*e.pane, e.at)
		}
		r.present[d] = w
	}
	w.View, w.Sites = view, sites
	return w
}

// window asks e for its baselines each time: Restore puts others in their place.
func (e *Engine) window(detector string, view *pane.Pane, sites []string) *Window {
	w := &Window{
		View: view, Sites: sites, Cluster: e.cluster, Pane: e.pane, Pool: e.poolOf, Controls: e.controls, Dependencies: e.deps,
		Agents: func(site string) AgentBaseline { return e.baselines.agents(site) },
		Cache:  func(site string) CacheBaseline { return e.baselines.cache(site) },
		Onsets: func(site string) []int64 { return e.onsets[episodeKey{detector, siteLabels(site).String()}] },
	}
	w.Baseline = func(site string, k pane.Key) Baseline { return e.baselines.get(site, k, w.View.Start) }
	w.Heads = func(site string) Baseline { return e.baselines.heads(site, w.View.Start) }
	return w
}

// judge applies one finding: an episode begins when it is over the threshold and goes on while it is not below
// the lower one.
func (e *Engine) judge(key episodeKey, d Detector, f Finding, p *pane.Pane, res *Result) {
	ep := e.episodes[key]
	if ep == nil {
		if f.Level != Over {
			return
		}
		onset := e.onset(d, f.Labels)
		if f.Began != 0 {
			onset = max(f.Began-f.Began%e.pane, e.at-int64(d.Span()))
		}
		ep = &episode{by: d, detection: Detection{
			Detector: key.detector, Labels: f.Labels, Active: true, Onset: onset, Since: p.End,
		}}
		e.episodes[key] = ep
		e.begun(key, onset)
		site := f.Labels.Get("site")
		if view := e.incidents[site]; view == nil {
			e.incidents[site] = e.incident(site, min(onset, p.Start), p.End)
		} else {
			e.reach(site, view, onset)
		}
	}
	x := &ep.detection
	x.Value, x.Threshold, x.Evidence = f.Value, f.Threshold, f.Evidence
	if a, ok := d.(accruing); ok {
		site := f.Labels.Get("site")
		a.accrue(e.window(key.detector, e.incidents[site], []string{site}), f.Labels, &x.Evidence)
	}
	if f.Value >= x.Peak {
		x.Peak, ep.worst = f.Value, f.Evidence
	}
	res.Detections = append(res.Detections, *x)
	if x.Since == p.End {
		res.Changes = append(res.Changes, *x)
	}
}

// What is remembered of past episodes.
const (
	maxOnsets  = 8    // of one key
	maxRecalls = 1024 // keys
)

// begun remembers when an episode began. Over the limit, those that were over longest are forgotten.
func (e *Engine) begun(key episodeKey, onset int64) {
	e.onsets[key] = append(e.onsets[key], onset)
	e.onsets[key] = e.onsets[key][max(0, len(e.onsets[key])-maxOnsets):]
	if len(e.onsets) <= maxRecalls {
		return
	}
	oldest := slices.MinFunc(slices.Collect(maps.Keys(e.onsets)), func(a, b episodeKey) int {
		last := func(k episodeKey) int64 { return e.onsets[k][len(e.onsets[k])-1] }
		return cmp.Or(cmp.Compare(last(a), last(b)), compareEpisodes(a, b))
	})
	delete(e.onsets, oldest)
}

// onset goes back from the newest pane while the key is found in each pane alone.
func (e *Engine) onset(d Detector, labels Labels) int64 {
	onset := e.at - e.pane
	for _, p := range slices.Backward(e.ring) {
		if p.End <= e.at-int64(d.Span()) {
			break
		}
		if p.End == e.at {
			continue
		}
		w := e.window("", part(p, d.Scope(), labels.Get("site")), []string{labels.Get("site")})
		if !slices.ContainsFunc(d.Detect(w), func(f Finding) bool {
			return f.Level != Below && f.Labels.String() == labels.String()
		}) {
			break
		}
		onset = p.Start
	}
	return onset
}

// incident begins the view of an incident: of one site, or of the cluster's events.
func (e *Engine) incident(site string, start, end int64) *pane.Pane {
	view := &pane.Pane{Start: start, End: start, Sites: map[string]*pane.Site{}}
	for _, p := range e.ring {
		if p.Start >= start && p.End <= end {
			e.grow(site, view, p)
		}
	}
	return view
}

// reach begins the view of an incident earlier: what is noticed second may have begun first.
func (e *Engine) reach(site string, view *pane.Pane, onset int64) {
	for _, p := range slices.Backward(e.ring) {
		if p.Start >= onset && p.End <= view.Start {
			e.grow(site, view, p)
		}
	}
}

// grow adds a pane to the view of an incident.
func (e *Engine) grow(site string, view *pane.Pane, p *pane.Pane) {
	scope := PerSite
	if site == "" {
		scope = Cluster
	}
	view.Widen(min(view.Start, p.Start), max(view.End, p.End))
	pane.Merge(view, part(p, scope, site))
	view.Fold(maxSites, maxCells)
	if scope == PerSite && len(view.Events) > maxSiteIncidentEvents {
		view.Events = slices.Clip(view.Events[:maxSiteIncidentEvents])
	}
}

// finish ends the episodes that were not found any more and drops the views that nobody needs.
func (e *Engine) finish(seen map[episodeKey]bool, p *pane.Pane, res *Result) {
	needed := map[string]bool{}
	for _, key := range slices.SortedFunc(maps.Keys(e.episodes), compareEpisodes) {
		ep := e.episodes[key]
		x := &ep.detection
		if seen[key] {
			needed[x.Labels.Get("site")] = true
			continue
		}
		x.Active, x.Until, x.Value = false, p.End, x.Peak
		x.Unknown = slices.ContainsFunc(res.Silences, func(s Silence) bool {
			return s.To == 0 && slices.Contains(s.Sites, x.Labels.Get("site"))
		})
		if view := e.incidents[x.Labels.Get("site")]; view != nil {
			x.Evidence = ep.whole(e.window(key.detector, view, []string{x.Labels.Get("site")}))
		}
		res.Changes = append(res.Changes, *x)
		delete(e.episodes, key)
	}
	for _, site := range slices.Sorted(maps.Keys(e.incidents)) {
		if needed[site] {
			continue
		}
		if site != "" {
			res.Spans = append(res.Spans, e.span(site, e.incidents[site]))
		}
		delete(e.incidents, site)
	}
	slices.SortStableFunc(res.Changes, compareDetections)
	slices.SortStableFunc(res.Detections, compareDetections)
}

// whole is the evidence of the whole episode: totals over its time, but rates, percentiles and busy workers as
// they were at the worst, which the mean over a long episode would hide.
func (ep *episode) whole(w *Window) Evidence {
	e, worst := ep.by.Evidence(w, ep.detection.Labels), ep.worst
	e.RequestsPerMinute, e.RequestsPerClientPerMinute = worst.RequestsPerMinute, worst.RequestsPerClientPerMinute
	e.BaselinePerMinute, e.BaselineRatio, e.BaselineOfAll = worst.BaselinePerMinute, worst.BaselineRatio, worst.BaselineOfAll
	for i := range e.TopRoutes {
		e.TopRoutes[i].BaselineRatio = Num{}
		if at := slices.IndexFunc(worst.TopRoutes, func(c Count) bool { return c.Key == e.TopRoutes[i].Key }); at >= 0 {
			e.TopRoutes[i].BaselineRatio = worst.TopRoutes[at].BaselineRatio
		}
	}
	e.FanOut = worst.FanOut
	e.MissesPerMinute, e.MissShare = worst.MissesPerMinute, worst.MissShare
	e.UsualMissesPerMinute, e.UsualMissShare = worst.UsualMissesPerMinute, worst.UsualMissShare
	e.P99Seconds, e.P99Censored = worst.P99Seconds, worst.P99Censored
	e.BusyWorkersLower, e.BusyWorkersUpper = worst.BusyWorkersLower, worst.BusyWorkersUpper
	e.CounterfactualBusyWorkers = worst.CounterfactualBusyWorkers
	return e
}

func compareDetections(a, b Detection) int {
	return cmp.Or(strings.Compare(a.Detector, b.Detector), strings.Compare(a.Labels.String(), b.Labels.String()))
}

func compareEpisodes(a, b episodeKey) int {
	return cmp.Or(strings.Compare(a.detector, b.detector), strings.Compare(a.labels, b.labels))
}

// learn puts the pane in the queue of lessons and learns the oldest. While something is wrong with a site, its
// panes of the whole queue are not learned.
func (e *Engine) learn(p *pane.Pane) {
	e.learning = append(e.learning, lesson{pane: p, wrong: map[string]bool{}})
	for _, ep := range e.episodes {
		if site := ep.detection.Labels.Get("site"); site != "" {
			for _, l := range e.learning {
				if l.pane.End > ep.detection.Onset {
					l.wrong[site] = true
				}
			}
		}
	}
	for len(e.learning) > learnAfter {
		e.study(e.learning[0])
		e.learning = slices.Delete(e.learning, 0, 1)
	}
}

// study learns one pane: of sites that were silent in it, that they were.
func (e *Engine) study(l lesson) {
	silent := &pane.Site{}
	names := map[string]bool{}
	for name := range e.baselines.Sites {
		names[name] = true
	}
	for name := range l.pane.Sites {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if l.wrong[name] {
			continue
		}
		s := l.pane.Sites[name]
		if s == nil {
			s = silent
		}
		e.baselines.learn(name, l.pane.Start, s)
	}
}

// Span is the length of the longest window.
func (e *Engine) Span() time.Duration { return time.Duration(e.keep) }

package alerts

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/squall-sre/squall/detectors"
)

// An Incident is the detections that belong together. They are joined where they overlap in time and share a site, a
// dependency, nodes or namespaces, or address ranges, or where one is known to lead to the other; the same time alone
// joins nothing, and why two incidents of one time stay two is told.
type Incident struct {
	ID       string   // when and where it began: equal input gives equal IDs; it stays, whatever joins later
	StartsAt int64    // ns: the onset of its first detection, which may come to light after the ID was given
	Members  []Member // what leads before what it leads to, then by onset
	Merged   []Merged // other incidents that turned out to be this one, the first first
	Apart    []Apart
}

// Merged is an incident that was told under an ID of its own until something showed that it is a part of another.
type Merged struct {
	ID      string `json:"id"`
	At      int64  `json:"at"` // ns: the end of the pane that showed it
	Because string `json:"because"`
}

// A Member is one detection of an incident.
type Member struct {
	Detector string
	Labels   detectors.Labels
	Onset    int64  // ns
	After    string // the detector whose detection is known to lead to such a one
	Because  string // why it belongs to the incident; "" for the first
}

// Apart is an incident of the same time that this one was not merged with.
type Apart struct {
	ID      string `json:"id"`
	Because string `json:"because"`
}

// leads are the causal templates: what is known to follow from what, and how.
var leads = []struct{ from, to, how string }{
	{"self_loop", "ratelimit_backfire", "the site's own requests run into its limiter"},
	{"ratelimit_backfire", "error_burst", "pages whose own calls are refused answer 5xx"},
	{"self_loop", "error_burst", "pages whose own calls fail answer 5xx"},
	{"self_loop", "saturation", "each page takes a second worker for what it fetches from itself"},
	{"head_storm", "saturation", "the storm takes the workers"},
	{"agent_flood", "saturation", "the flood takes the workers"},
	{"cache_stampede", "saturation", "what the cache has not, the workers make"},
	{"agent_flood", "cache_stampede", "a crawl asks for what the cache has not"},
	{"retry_loop", "saturation", "each retry takes a worker"},
	{"saturation", "latency", "requests wait for a worker"},
	{"saturation", "client_abandon", "clients leave the queue"},
	{"head_storm", "latency", "requests wait behind the storm"},
	{"agent_flood", "latency", "requests wait behind the flood"},
	{"cache_stampede", "latency", "readers wait for the cache to fill"},
	{"head_storm", "client_abandon", "clients give up behind the storm"},
	{"agent_flood", "client_abandon", "clients give up behind the flood"},
	{"cache_stampede", "client_abandon", "clients give up while the cache fills"},
	{"latency", "client_abandon", "clients give up waiting"},
	{"saturation", "worker_timeout", "requests that wait too long are killed"},
	{"saturation", "probe_failure", "probes wait with everybody else"},
	{"latency", "probe_failure", "probes wait with everybody else"},
	{"worker_timeout", "restart_burst", "probes wait behind stuck requests"},
	{"probe_failure", "restart_burst", "failed probes restart containers"},
	{"saturation", "restart_burst", "probes wait with everybody else and fail"},
	{"latency", "restart_burst", "probes wait with everybody else and fail"},
	{"restart_burst", "error_burst", "restarted containers answer nothing"},
	{"restart_burst", "latency", "those that are left have more to do"},
	{"restart_burst", "client_abandon", "clients give up while containers start"},
}

// hurts are the detections of what clients and workers suffer: they travel along a dependency, a storm does not.
var hurts = []string{"client_abandon", "error_burst", "latency", "saturation"}

// The bounds of correlation.
const (
	incidentGap   = int64(2 * time.Minute) // what follows within it may belong together
	sharedRanges  = 0.5                    // of the lighter side's requests from the other's address ranges
	maxCorrelated = 256                    // detections that are held against each other
	maxApart      = 5                      // refusals that one incident tells
	maxMerged     = 20                     // merged incidents that one tells
)

// A correlator holds the detections of the last minutes and sorts them into incidents.
type correlator struct {
	site      func(string) Site
	nodes     map[string]*node // by detectionKey
	incidents map[string]*open // by ID
	at        int64            // ns: the end of the newest pane
	dropped   prometheus.Counter
}

// node is a detection as correlation sees it.
type node struct {
	d        *detectors.Detection
	last     int64 // ns: until when it was active, so far
	incident string
	after    string
	because  string
}

// open is an incident that may still grow.
type open struct {
	id     string
	opened int64 // ns: the end of the pane from which it is told
	start  int64
	merged []Merged
	apart  map[string]string // by the other's ID: why they were not merged
}

func newCorrelator(site func(string) Site, dropped prometheus.Counter) *correlator {
	return &correlator{site: site, dropped: dropped, nodes: map[string]*node{}, incidents: map[string]*open{}}
}

// observe takes what is active in the pane that ends at an event time (ns) and what was over in it.
func (c *correlator) observe(at int64, actives, ended []detectors.Detection) {
	c.at = at
	for _, list := range [][]detectors.Detection{actives, ended} {
		for i := range list {
			c.see(at, &list[i])
		}
	}
	c.forget(at)
	c.settle()
}

// see notes a detection. One that comes again within the gap goes on.
func (c *correlator) see(at int64, d *detectors.Detection) {
	key := detectionKey(d)
	n := c.nodes[key]
	if n == nil {
		if len(c.nodes) >= maxCorrelated {
			c.dropped.Inc()
			return
		}
		n = &node{}
		c.nodes[key] = n
	}
	onset := d.Onset
	if n.d != nil {
		onset = min(onset, n.d.Onset)
	}
	kept := *d
	kept.Onset = onset
	n.d, n.last = &kept, at
	if n.incident == "" {
		n.incident = c.begin(n)
	}
}

// begin opens an incident for one detection.
func (c *correlator) begin(n *node) string {
	place := cmp.Or(n.d.Labels.Get("site"), n.d.Labels.Get("cluster"), "all")
	first := time.Unix(0, n.d.Onset).UTC().Format("20060102T150405Z") + "-" + place
	id := first
	for again := 2; c.incidents[id] != nil; again++ {
		id = fmt.Sprintf("%s-%d", first, again)
	}
	c.incidents[id] = &open{id: id, opened: c.at, start: n.d.Onset, apart: map[string]string{}}
	return id
}

// forget drops what was over for longer than the gap, as long as nothing of its incident goes on.
func (c *correlator) forget(at int64) {
	alive := map[string]bool{}
	for _, n := range c.nodes {
		if at-n.last < incidentGap {
			alive[n.incident] = true
		}
	}
	maps.DeleteFunc(c.nodes, func(_ string, n *node) bool { return !alive[n.incident] })
	maps.DeleteFunc(c.incidents, func(id string, _ *open) bool { return !alive[id] })
}

// ordered lists the nodes by onset, then by key.
func (c *correlator) ordered() []*node {
	list := slices.Collect(maps.Values(c.nodes))
	slices.SortFunc(list, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.d.Onset, b.d.Onset), strings.Compare(detectionKey(a.d), detectionKey(b.d)))
	})
	return list
}

// settle merges incidents until no two of them are related, and notes why the others are not.
func (c *correlator) settle() {
	for c.mergeOne() {
	}
	list := c.ordered()
	for i, a := range list {
		for _, b := range list[i+1:] {
			if a.incident == b.incident || !overlap(a, b) {
				continue
			}
			c.refuse(a, b)
		}
	}
	for _, o := range c.incidents {
		maps.DeleteFunc(o.apart, func(id, _ string) bool { return id == o.id })
	}
	c.chain(list)
}

// refuse notes why two detections did not join their incidents. The first that were held against each other tell it.
func (c *correlator) refuse(a, b *node) {
	x, y := c.incidents[a.incident], c.incidents[b.incident]
	wants := func(o, other *open) bool {
		_, told := o.apart[other.id]
		return !told && len(o.apart) < 4*maxApart
	}
	if !wants(x, y) && !wants(y, x) {
		return
	}
	_, apart := c.relation(a, b)
	for _, p := range [][2]*open{{x, y}, {y, x}} {
		if wants(p[0], p[1]) {
			p[0].apart[p[1].id] = apart
		}
	}
}

// mergeOne joins two related incidents.
func (c *correlator) mergeOne() bool {
	list := c.ordered()
	for i, a := range list {
		for _, b := range list[i+1:] {
			if a.incident == b.incident || !overlap(a, b) {
				continue
			}
			if because, _ := c.relation(a, b); because != "" {
				c.merge(a.incident, b.incident, because)
				return true
			}
		}
	}
	return false
}

// merge puts one incident into another. The one that was told first keeps its name, whenever the other may have begun;
// of two that were told in this pane alone nobody needs to hear.
func (c *correlator) merge(first, second, because string) {
	a, b := c.incidents[first], c.incidents[second]
	if cmp.Or(cmp.Compare(b.opened, a.opened), cmp.Compare(b.start, a.start), cmp.Compare(b.id, a.id)) < 0 {
		a, b = b, a
	}
	for _, n := range c.nodes {
		if n.incident == b.id {
			n.incident = a.id
		}
	}
	a.start = min(a.start, b.start)
	a.merged = append(a.merged, b.merged...)
	if b.opened < c.at {
		a.merged = append(a.merged, Merged{b.id, c.at, because})
	}
	slices.SortStableFunc(a.merged, func(x, y Merged) int { return cmp.Or(cmp.Compare(x.At, y.At), strings.Compare(x.ID, y.ID)) })
	a.merged = a.merged[:min(len(a.merged), maxMerged)]
	maps.Copy(a.apart, b.apart)
	delete(c.incidents, b.id)
	for _, o := range c.incidents {
		delete(o.apart, b.id)
	}
	delete(a.apart, a.id)
}

// chain says of each detection why it is in its incident: what is known to lead to it, the nearest first, else what it
// shares with one before it.
func (c *correlator) chain(list []*node) {
	for i, n := range list {
		n.after, n.because = "", ""
		rank := len(leads)
		for j, m := range list {
			if i == j || m.incident != n.incident {
				continue
			}
			because, _ := c.relation(m, n)
			if k := leading(m, n); k < rank && because != "" {
				rank, n.after, n.because = k, m.d.Detector, leads[k].how
			}
			if n.because == "" && j < i {
				n.because = because
			}
		}
	}
}

// leading finds the template by which a leads to b: a began no later, give or take the pane in which either was seen.
func leading(a, b *node) int {
	const slack = int64(30 * time.Second)
	if a.d.Onset > b.d.Onset+slack || inFront(a.d) {
		return len(leads)
	}
	for k, l := range leads {
		if l.from == a.d.Detector && l.to == b.d.Detector {
			return k
		}
	}
	return len(leads)
}

// inFront tells of a storm that was answered before the origin: it takes nobody's worker.
func inFront(d *detectors.Detection) bool {
	reached := d.Evidence.ReachedUpstreamRatio
	return (d.Detector == "head_storm" || d.Detector == "agent_flood") && reached.Known() && reached.Get() < reachedAtAll
}

// overlap tells whether two detections were on at one time, or one soon after the other.
func overlap(a, b *node) bool {
	return a.d.Onset <= b.last+incidentGap && b.d.Onset <= a.last+incidentGap
}

// relation says why two detections belong together, or why they do not: exactly one of the two is not empty.
func (c *correlator) relation(a, b *node) (because, apart string) {
	siteA, siteB := a.d.Labels.Get("site"), b.d.Labels.Get("site")
	switch {
	case siteA != "" && siteA == siteB:
		return "the same site", ""
	case siteA != "" && siteB != "":
		return c.betweenSites(a, b)
	case siteA == "" && siteB == "":
		return withinCluster(a, b)
	case siteA == "":
		a, b = b, a
	}
	return c.siteAndCluster(a, b)
}

// betweenSites relates detections of two sites.
func (c *correlator) betweenSites(a, b *node) (because, apart string) {
	siteA, siteB := a.d.Labels.Get("site"), b.d.Labels.Get("site")
	var reasons []string
	depsA, depsB := c.site(siteA).Dependencies, c.site(siteB).Dependencies
	hurt := slices.Contains(hurts, a.d.Detector) && slices.Contains(hurts, b.d.Detector)
	var both []string
	for _, kind := range slices.Sorted(maps.Keys(depsA)) {
		if depsA[kind] != depsB[kind] {
			continue
		}
		if hurt {
			return fmt.Sprintf("%s and %s depend on %s %s", siteA, siteB, kind, depsA[kind]), ""
		}
		both = append(both, kind+" "+depsA[kind])
	}
	switch {
	case len(both) > 0:
		reasons = append(reasons, fmt.Sprintf("they share %s, but %s does not travel along it", strings.Join(both, ", "), stays(a, b)))
	case len(depsA) == 0 || len(depsB) == 0:
		reasons = append(reasons, "no dependency that they share is declared")
	default:
		reasons = append(reasons, "they depend on different things")
	}
	shared, known := sharedShare(a.d.Evidence.TopPrefixes, b.d.Evidence.TopPrefixes)
	switch {
	case known && shared >= sharedRanges && a.d.Detector == b.d.Detector:
		return fmt.Sprintf("%s of the requests come from address ranges of both", percent(shared)), ""
	case known:
		reasons = append(reasons, fmt.Sprintf("%s of the requests come from address ranges of both", percent(shared)))
	}
	return "", fmt.Sprintf("different sites (%s, %s); %s", siteA, siteB, strings.Join(reasons, "; "))
}

// stays names what does not travel along a dependency.
func stays(a, b *node) string {
	for _, n := range []*node{a, b} {
		switch name := n.d.Detector; {
		case name == "head_storm" || name == "agent_flood":
			return "a storm"
		case !slices.Contains(hurts, name):
			return name
		}
	}
	return "this"
}

// sharedShare is the part of the lighter side's requests that comes from ranges which the other side has too.
func sharedShare(a, b []detectors.Count) (share float64, known bool) {
	if len(a) == 0 || len(b) == 0 {
		return 0, false
	}
	sum := func(of, in []detectors.Count) float64 {
		var all, both float64
		for _, x := range of {
			all += x.Count
			if slices.ContainsFunc(in, func(y detectors.Count) bool { return x.Key == y.Key }) {
				both += x.Count
			}
		}
		return both / all
	}
	share = min(sum(a, b), sum(b, a))
	return share, !math.IsNaN(share)
}

// withinCluster relates detections about the cluster.
func withinCluster(a, b *node) (because, apart string) {
	clusterA, clusterB := a.d.Labels.Get("cluster"), b.d.Labels.Get("cluster")
	if clusterA != clusterB {
		return "", fmt.Sprintf("different clusters (%s, %s)", clusterA, clusterB)
	}
	for _, x := range [][2]*node{{a, b}, {b, a}} {
		if k := leading(x[0], x[1]); k < len(leads) {
			return leads[k].how, ""
		}
	}
	return "", fmt.Sprintf("nothing is known by which %s and %s lead to each other", a.d.Detector, b.d.Detector)
}

// siteAndCluster relates a detection of a site with one of the cluster: only the containers of the site's namespaces
// connect them.
func (c *correlator) siteAndCluster(site, cluster *node) (because, apart string) {
	name := site.d.Labels.Get("site")
	namespaces := c.site(name).Namespaces
	var hit []string
	for _, s := range cluster.d.Evidence.Scope {
		if s.Kind == "namespace" && slices.Contains(namespaces, s.Name) {
			hit = append(hit, s.Name)
		}
	}
	lead := leading(site, cluster) < len(leads) || leading(cluster, site) < len(leads)
	switch {
	case len(hit) > 0 && lead:
		return fmt.Sprintf("containers of %s run in namespace %s", name, strings.Join(hit, ", ")), ""
	case len(hit) > 0:
		return "", fmt.Sprintf("containers of %s are among them, but nothing is known by which %s and %s lead to each other", name, site.d.Detector, cluster.d.Detector)
	case len(namespaces) == 0:
		return "", fmt.Sprintf("they share no node, namespace or dependency that is known: no namespace of %s is declared", name)
	}
	return "", fmt.Sprintf("no container of %s (namespace %s) is among those that %s names", name, strings.Join(namespaces, ", "), cluster.d.Detector)
}

// of gives the incident of a detection, nil when it has none.
func (c *correlator) of(d *detectors.Detection) *Incident {
	n := c.nodes[detectionKey(d)]
	if n == nil {
		return nil
	}
	o := c.incidents[n.incident]
	if o == nil {
		return nil
	}
	return c.incident(o)
}

func (c *correlator) incident(o *open) *Incident {
	in := &Incident{ID: o.id, StartsAt: o.start, Merged: slices.Clone(o.merged)}
	for _, n := range c.ordered() {
		if n.incident == o.id {
			in.StartsAt = min(in.StartsAt, n.d.Onset)
			in.Members = append(in.Members, Member{n.d.Detector, n.d.Labels, n.d.Onset, n.after, n.because})
		}
	}
	in.order()
	for _, id := range slices.Sorted(maps.Keys(o.apart)) {
		if len(in.Apart) == maxApart {
			break
		}
		in.Apart = append(in.Apart, Apart{id, o.apart[id]})
	}
	return in
}

// order puts what leads before what it leads to. What comes first needs no reason.
func (in *Incident) order() {
	after := map[string]string{}
	for _, m := range in.Members {
		after[m.Detector] = m.After
	}
	depth := func(m Member) (n int) {
		for at := m.Detector; after[at] != "" && n < len(in.Members); at = after[at] {
			n++
		}
		return n
	}
	slices.SortStableFunc(in.Members, func(a, b Member) int { return cmp.Compare(depth(a), depth(b)) })
	if len(in.Members) > 0 && in.Members[0].After == "" {
		in.Members[0].Because = ""
	}
}

// text tells the incident in lines: how its detections hang together, and which others it is not.
func (in *Incident) text() string {
	if in == nil {
		return ""
	}
	var parts []string
	for _, m := range in.Members {
		p := m.Detector
		switch {
		case m.After != "":
			p += " (after " + m.After + ": " + m.Because + ")"
		case m.Because != "":
			p += " (" + m.Because + ")"
		}
		if !slices.Contains(parts, p) {
			parts = append(parts, p)
		}
	}
	text := in.ID + ": " + strings.Join(parts, ", ")
	for _, m := range in.Merged {
		text += fmt.Sprintf("\nmerged with %s at %s: %s", m.ID, stamp(m.At), m.Because)
	}
	for _, a := range in.Apart {
		text += "\nnot merged with " + a.ID + ": " + a.Because
	}
	return text
}

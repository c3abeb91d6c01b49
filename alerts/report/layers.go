package report

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
)

// Layers are one site's edge (a CDN, a firewall) held against its origin, where the logs of both were read.
type Layers struct {
	Site     string        `json:"site"`
	From     Time          `json:"from"` // of the time that both logs tell of
	To       Time          `json:"to"`
	Edge     uint64        `json:"edge_requests"`
	Answered uint64        `json:"answered_at_the_edge"`
	Origin   uint64        `json:"origin_requests"`
	Offload  detectors.Num `json:"offload_ratio"` // of requests that the origin did not see
	Peak     *LayersPeak   `json:"busiest_minute,omitempty"`
	Classes  []LayersClass `json:"classes,omitempty"` // by what the edge answered
	Clock    Clock         `json:"clock"`
	Says     []string      `json:"says"`
}

// LayersPeak is the edge's busiest minute.
type LayersPeak struct {
	From    Time          `json:"from"`
	Edge    float64       `json:"edge_per_second"`
	Origin  float64       `json:"origin_per_second"`
	Offload detectors.Num `json:"offload_ratio"`
}

// A LayersClass is requests of one method and route at both layers.
type LayersClass struct {
	Method   string `json:"method"`
	Route    string `json:"route"`
	Edge     uint64 `json:"edge_requests"`
	Answered uint64 `json:"answered_at_the_edge"`
	Origin   uint64 `json:"origin_requests"`
}

// A Clock is how far the edge's clock is ahead of the origin's, by requests that both logs tell of.
type Clock struct {
	Offset detectors.Num `json:"offset_seconds"` // null: too few requests stand in both logs
	Pairs  int           `json:"requests_in_both"`
}

// The bounds of a join, whatever the logs hold.
const (
	joinSites   = 64
	joinClasses = 256  // of a site
	joinKeys    = 1024 // that clocks are compared by: those with the least hash
	joinTimes   = 16   // of one key: above, it says nothing
	joinPairs   = 5    // that tell an offset
	joinShown   = 6    // classes
)

// joins counts the requests of sites at both layers. What it counts does not hang on the order of records.
type joins struct {
	step  int64
	edge  bool // there is an edge's log at all
	sites map[string]*joined
}

type joined struct {
	side    [2]side // origin, edge
	classes map[[2]string]*LayersClass
	clocks  [2]keys // by request; by request and client
}

// side is one layer: requests by step.
type side struct {
	steps       map[int64]uint64
	n, answered uint64
	passed      uint64 // the edge: went on to the origin, or may have
	first, last int64  // ns
}

// Record counts one request, of the edge's log or of the origin's: a report says what the edge keeps from the origin.
func (c *Collector) Record(r *pipeline.Record) { c.joins.record(r) }

func (j *joins) record(r *pipeline.Record) {
	j.edge = j.edge || r.Edge
	if r.Class == pipeline.Probe || r.Origin == pipeline.Own || r.End <= 0 {
		return // neither passes the edge
	}
	s := j.sites[r.Site]
	if s == nil {
		if len(j.sites) >= joinSites {
			return
		}
		s = &joined{classes: map[[2]string]*LayersClass{}}
		j.sites[strings.Clone(r.Site)] = s
	}
	s.record(r, j.step)
}

func (s *joined) record(r *pipeline.Record, step int64) {
	i := 0
	if r.Edge {
		i = 1
	}
	x := &s.side[i]
	if x.steps == nil {
		x.steps, x.first = map[int64]uint64{}, r.End
	}
	at := r.End - mod(r.End, step)
	if _, known := x.steps[at]; known || len(x.steps) < maxSteps {
		x.steps[at]++
	}
	x.n, x.first, x.last = x.n+1, min(x.first, r.End), max(x.last, r.End)
	c := s.class(r)
	switch {
	case r.Edge && r.Reached == pipeline.No:
		x.answered++
		c.Answered++
		c.Edge++
		return
	case r.Edge:
		x.passed++
		c.Edge++
	default:
		c.Origin++
	}
	s.clock(i, r)
}

// maxSteps is a month of panes.
const maxSteps = 300_000

func (s *joined) class(r *pipeline.Record) *LayersClass {
	key := [2]string{"", r.Route}
	if i := slices.Index(methods[:], string(r.Method)); i >= 0 {
		key[0] = methods[i]
	} else {
		key[0] = "other"
	}
	c := s.classes[key]
	if c == nil {
		if len(s.classes) >= joinClasses {
			key = [2]string{"", "other"}
			if c = s.classes[key]; c != nil {
				return c
			}
		}
		c = &LayersClass{Method: key[0], Route: strings.Clone(key[1])}
		s.classes[[2]string{key[0], c.Route}] = c
	}
	return c
}

// clock notes when a request was at a layer, if it is one of those that clocks are compared by.
func (s *joined) clock(i int, r *pipeline.Record) {
	h := xxhash.New()
	for _, part := range [][]byte{r.Method, r.Path, r.Query} {
		_, _ = h.Write(bytes.TrimPrefix(part, []byte("?")))
		_, _ = h.Write([]byte{0})
	}
	start := r.Start + r.Resolution/2 // a time in whole seconds is cut
	s.clocks[0].note(h.Sum64(), i, start)
	client := r.Client.As16()
	_, _ = h.Write(client[:])
	s.clocks[1].note(h.Sum64(), i, start)
}

// keys are the times of the requests with the least hashes, at both layers: which they are does not hang on their order.
type keys struct {
	times map[uint64]*[2]moments
	most  uint64 // the largest hash kept, once there are as many as there may be
}

type moments struct {
	at []int64
	n  int
}

func (k *keys) note(hash uint64, i int, at int64) {
	var mixed [8]byte
	binary.LittleEndian.PutUint64(mixed[:], hash)
	hash = xxhash.Sum64(mixed[:])
	if k.times == nil {
		k.times, k.most = map[uint64]*[2]moments{}, math.MaxUint64
	}
	if hash > k.most {
		return
	}
	t := k.times[hash]
	if t == nil {
		t = &[2]moments{}
		k.times[hash] = t
		if len(k.times) > 2*joinKeys {
			k.cut()
		}
	}
	m := &t[i]
	if m.n < joinTimes {
		m.at = append(m.at, at)
	}
	m.n++
}

// cut keeps the least hashes.
func (k *keys) cut() {
	list := make([]uint64, 0, len(k.times))
	for h := range k.times {
		list = append(list, h)
	}
	slices.Sort(list)
	for _, h := range list[joinKeys:] {
		delete(k.times, h)
	}
	k.most = list[joinKeys-1]
}

// offset is the median of how much later the edge tells of a request than the origin.
func (k *keys) offset() Clock {
	if len(k.times) > joinKeys {
		k.cut()
	}
	var all []int64
	for _, t := range k.times {
		o, e := &t[0], &t[1]
		if o.n != e.n || o.n > joinTimes {
			continue // they cannot be told apart
		}
		slices.Sort(o.at)
		slices.Sort(e.at)
		for i := range o.at {
			all = append(all, e.at[i]-o.at[i])
		}
	}
	c := Clock{Pairs: len(all)}
	if len(all) >= joinPairs {
		slices.Sort(all)
		c.Offset = detectors.N(math.Round(float64(all[len(all)/2])/1e7) / 100)
	}
	return c
}

// layers makes the summaries of the sites that both logs tell of.
func (j *joins) layers() []Layers {
	var out []Layers
	if !j.edge {
		return nil
	}
	for site, s := range j.sites {
		if s.side[0].n > 0 && s.side[1].n > 0 {
			out = append(out, s.layers(site, j.step))
		}
	}
	slices.SortFunc(out, func(a, b Layers) int { return cmp.Or(cmp.Compare(b.Edge, a.Edge), strings.Compare(a.Site, b.Site)) })
	return out
}

func (s *joined) layers(site string, step int64) Layers {
	o, e := &s.side[0], &s.side[1]
	l := Layers{Site: site, Edge: e.n, Answered: e.answered, Origin: o.n, Clock: s.clocks[0].offset()}
	if by := s.clocks[1].offset(); by.Pairs >= l.Clock.Pairs {
		l.Clock = by
	}
	l.From, l.To = Time(max(o.first, e.first)), Time(min(o.last, e.last))
	if e.passed == 0 { // a firewall logs what it answered: what it let pass is what the origin has
		l.From, l.To = Time(min(o.first, e.first)), Time(max(o.last, e.last))
	}
	all := func(edge, origin uint64) detectors.Num {
		total := edge
		if e.passed == 0 {
			total += origin
		}
		if total == 0 {
			return detectors.Num{}
		}
		return detectors.N(max(0, 1-float64(origin)/float64(total)))
	}
	var edge, origin uint64
	for at, n := range e.steps {
		if at+step > int64(l.From) && at <= int64(l.To) {
			edge += n
		}
	}
	for at, n := range o.steps {
		if at+step > int64(l.From) && at <= int64(l.To) {
			origin += n
		}
	}
	l.Offload, l.Peak = all(edge, origin), s.peak(step, all)
	for _, c := range s.classes {
		if c.Edge > 0 {
			l.Classes = append(l.Classes, *c)
		}
	}
	slices.SortFunc(l.Classes, func(a, b LayersClass) int {
		return cmp.Or(cmp.Compare(b.Answered, a.Answered), cmp.Compare(b.Edge, a.Edge), strings.Compare(a.Route, b.Route), strings.Compare(a.Method, b.Method))
	})
	l.Classes = l.Classes[:min(len(l.Classes), joinShown)]
	l.say(e.passed == 0)
	return l
}

// peak is the minute in which the edge was asked most.
func (s *joined) peak(step int64, offload func(edge, origin uint64) detectors.Num) *LayersPeak {
	width := max(1, int64(time.Minute)/step)
	var best int64
	var most uint64
	sum := func(of *side, from int64) (n uint64) {
		for i := range width {
			n += of.steps[from+i*step]
		}
		return n
	}
	for at := range s.side[1].steps {
		if n := sum(&s.side[1], at); n > most || n == most && at < best {
			most, best = n, at
		}
	}
	seconds := float64(width*step) / 1e9
	origin := sum(&s.side[0], best)
	return &LayersPeak{
		From: Time(best), Edge: math.Round(10*float64(most)/seconds) / 10, Origin: math.Round(10*float64(origin)/seconds) / 10, Offload: offload(most, origin),
	}
}

// say tells it in sentences. blocked: the edge's log holds nothing that it let pass.
func (l *Layers) say(blocked bool) {
	add := func(format string, args ...any) { l.Says = append(l.Says, fmt.Sprintf(format, args...)) }
	n := func(v uint64) string { return alerts.Number(float64(v)) }
	if blocked {
		add("The edge answered %s requests itself and logged none that it let pass; the origin's log has %s: %s of both never reached the origin.",
			n(l.Answered), n(l.Origin), share(l.Offload))
	} else {
		add("Of what was asked at the edge %s never reached the origin; in the edge's busiest minute, from %s, %s requests a second came and %s went on to the origin: an offload of %s.",
			share(l.Offload), clock(l.Peak.From), alerts.Number(l.Peak.Edge), alerts.Number(l.Peak.Origin), share(l.Peak.Offload))
		add("Requests that passed the edge stand in both logs: they count once, with the time that the origin took. Clients that left the edge, and its own 5xx, count too.")
	}
	for _, c := range l.Classes {
		if c.Answered < absorbed || float64(c.Answered) < 0.99*float64(c.Edge) {
			continue
		}
		name := strings.TrimSpace(c.Method + " " + c.Route)
		if c.Origin*100 < c.Answered {
			add("The edge absorbed %s: it answered %s of %s, and the origin's log has %s.", name, n(c.Answered), n(c.Edge), n(c.Origin))
		}
	}
	switch o := l.Clock.Offset; {
	case !o.Known():
		add("How far the two clocks are apart is undetermined: %d requests can be told apart in both logs.", l.Clock.Pairs)
	case math.Abs(o.Get()) > 1:
		word := "ahead of"
		if o.Get() < 0 {
			word = "behind"
		}
		add("The edge's clock is %s s %s the origin's, by %d requests that stand in both: times of the two do not match.", alerts.Number(math.Abs(o.Get())), word, l.Clock.Pairs)
	}
}

// absorbed is from how many requests a class that the edge answered is worth a sentence.
const absorbed = 300

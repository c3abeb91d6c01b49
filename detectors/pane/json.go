package pane

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/squall-sre/squall/pipeline"
)

// AppendJSON writes all that the pane holds as one JSON object whose bytes depend on the content alone: keys
// and lists are sorted. It is what `squall explain` shows, and what tells whether two panes are equal.
func (p *Pane) AppendJSON(b []byte) []byte {
	w := writer{b}
	w.open("")
	w.int("start", p.Start)
	w.int("end", p.End)
	if p.Jump {
		w.raw("jump", "true")
	}
	w.coverage(&p.Coverage)
	w.open("heard")
	for _, name := range slices.Sorted(maps.Keys(p.Heard)) {
		w.key("")
		w.value(name)
		w.b = append(w.b, ':', '{')
		w.uint("records", p.Heard[name].Records)
		w.list("sites", len(p.Heard[name].Sites), func(i int) { w.value(p.Heard[name].Sites[i]) })
		w.close()
	}
	w.close()
	w.open("sites")
	for _, name := range p.SiteNames() {
		w.site(name, p.Sites[name])
	}
	w.close()
	w.list("events", len(p.Events), func(i int) { w.value(p.Events[i]) })
	w.close()
	return w.b
}

// String is AppendJSON as text.
func (p *Pane) String() string { return string(p.AppendJSON(nil)) }

// writer appends JSON. Text of the log goes through encoding/json.
type writer struct{ b []byte }

func (w *writer) key(k string) {
	if n := len(w.b); n > 0 && w.b[n-1] != '{' && w.b[n-1] != '[' {
		w.b = append(w.b, ',')
	}
	if k != "" {
		w.value(k)
		w.b = append(w.b, ':')
	}
}

func (w *writer) value(v any) {
	text, err := json.Marshal(v)
	if err != nil { // a NaN in an Event
		text = []byte("null")
	}
	w.b = append(w.b, text...)
}

func (w *writer) open(k string) {
	w.key(k)
	w.b = append(w.b, '{')
}
func (w *writer) close() { w.b = append(w.b, '}') }

func (w *writer) raw(k, v string) {
	w.key(k)
	w.b = append(w.b, v...)
}

func (w *writer) int(k string, n int64) {
	w.key(k)
	w.b = strconv.AppendInt(w.b, n, 10)
}

// uint leaves out zeros.
func (w *writer) uint(k string, n uint64) {
	if n > 0 {
		w.raw(k, strconv.FormatUint(n, 10))
	}
}

func (w *writer) list(k string, n int, item func(i int)) {
	if n == 0 {
		return
	}
	w.key(k)
	w.b = append(w.b, '[')
	for i := range n {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		item(i)
	}
	w.b = append(w.b, ']')
}

func (w *writer) coverage(c *Coverage) {
	w.open("coverage")
	w.uint("lines", c.Lines)
	w.uint("late", c.Late)
	w.uint("gaps", c.Gaps)
	w.uint("dropped", c.Dropped)
	w.uint("events_dropped", c.EventsDropped)
	w.uint("sites_folded", c.SitesFolded)
	w.uint("cells_folded", c.CellsFolded)
	w.close()
}

func (w *writer) site(name string, s *Site) {
	w.key("")
	w.value(name)
	w.b = append(w.b, ':', '{')
	keys := s.Keys()
	w.list("cells", len(keys), func(i int) { w.cell(keys[i], s.Cells()[keys[i]]) })
	w.top("agents", s.Agents)
	w.top("clients", s.Clients)
	w.list("waits", len(s.Waits), func(i int) { w.waits(s.Waits[i]) })
	w.close()
}

func (w *writer) waits(x *Waits) {
	w.b = append(w.b, '{')
	w.key("client")
	w.value(x.Client)
	w.key("method")
	w.value(x.Method)
	w.key("route")
	w.value(x.Route)
	w.uint("path", x.Path)
	w.uint("count", x.Count)
	w.list("spans", len(x.Spans), func(i int) { w.value([2]int64{x.Spans[i].Start, x.Spans[i].End}) })
	w.close()
}

func (w *writer) cell(k Key, c *Cell) {
	w.b = append(w.b, '{')
	w.key("method")
	w.value(k.Method)
	w.key("route")
	w.value(k.Route)
	w.key("origin")
	w.value(k.Origin.String())
	if k.Probe {
		w.raw("probe", "true")
	}
	w.uint("requests", c.Requests)
	w.open("status")
	c.Codes.All(func(code uint16, n uint64) { w.uint(strconv.Itoa(int(code)), n) })
	w.close()
	w.open("cache")
	for i, n := range c.Cache {
		if i > 0 { // the empty name: the log does not say
			w.uint(pipeline.CacheStatus(i).String(), n)
		}
	}
	w.close()
	w.open("classes")
	for i, n := range c.Classes {
		w.uint(pipeline.Class(i).String(), n)
	}
	w.close()
	w.uint("abandoned", c.Abandoned)
	w.uint("limited", c.Limited)
	w.uint("reached", c.Reached)
	w.uint("not_reached", c.NotReached)
	w.uint("static", c.Static)
	w.uint("static_query", c.StaticQuery)
	w.uint("static_limited", c.StaticLimit)
	w.refused(&c.Refused)
	w.uint("bytes", c.Bytes)
	w.latency(&c.Latency)
	w.busy(&c.Busy)
	w.distinct("distinct_clients", &c.Clients)
	w.distinct("distinct_agents", &c.Agents)
	w.distinct("distinct_urls", &c.URLs)
	w.distinct("distinct_missed", &c.Missed)
	w.top("top_agents", c.TopAgents)
	samples := c.Samples.Strings()
	w.list("samples", len(samples), func(i int) { w.value(samples[i]) })
	w.close()
}

func (w *writer) latency(q *Quantiles) {
	if q.count == 0 {
		return
	}
	w.open("latency_bins")
	w.uint("zero", q.zeros)
	q.bins(func(index int, n uint64) bool {
		w.uint(strconv.Itoa(index), n)
		return true
	})
	w.close()
}

func (w *writer) busy(b *Busy) {
	w.open("busy_ns")
	w.int("lower", b.Lower)
	w.int("upper", b.Upper)
	w.uint("untimed", b.Untimed)
	for i := len(b.past) - 1; i >= 0; i-- {
		w.share(-i-1, b.past[i])
	}
	for i, s := range b.future {
		w.share(i+1, s)
	}
	w.close()
}

func (w *writer) share(offset int, s share) {
	if s == (share{}) {
		return
	}
	w.key(strconv.Itoa(offset))
	w.value([2]int64{s.lower, s.upper})
}

// distinct writes the set while it is exact, then the estimate with a fingerprint of the sketch.
func (w *writer) distinct(k string, d *Distinct) {
	n, exact := d.Count()
	if n == 0 {
		return
	}
	w.open(k)
	w.uint("count", uint64(n))
	if !exact {
		w.raw("approx", "true")
	}
	w.uint("fingerprint", d.fingerprint())
	w.close()
}

func (w *writer) top(k string, t *Top) {
	if t.Total() == 0 {
		return
	}
	w.open(k)
	w.uint("total", t.Total())
	w.uint("floor", t.Floor())
	items := t.Items()
	w.list("items", len(items), func(i int) {
		w.b = append(w.b, '{')
		w.key("key")
		w.value(items[i].Key)
		w.uint("count", items[i].Count)
		w.uint("error", items[i].Error)
		w.close()
	})
	w.close()
}

package pane

import (
	"fmt"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// TestTotalsAreThoseOfTheCells: what is added up beside the cells is what they add up to, though some of them are folded
// into others on the way, and though nobody has asked for them before.
func TestTotalsAreThoseOfTheCells(t *testing.T) {
	for _, routes := range []int{5, 3000} {
		t.Run(fmt.Sprint(routes, " routes"), func(t *testing.T) {
			records := traffic(31, 40000, 5e6) // 20 panes of 2,000
			for i := range records {
				r := &records[i]
				r.Route = fmt.Sprint("/", i*7919%routes)
				r.Origin = pipeline.Origin(i % 3)
				r.Cache = pipeline.CacheStatus(i % int(pipeline.CacheStatuses))
				if i%11 == 0 {
					r.Class = pipeline.Probe
				}
				if i%13 == 0 {
					r.Status = 502
				}
				r.Static = i%5 == 0
			}
			w := NewWindows(10*time.Second, 2*time.Minute)
			folded := false
			for _, p := range assemble(Config{}, 5*time.Second, records) {
				w.Push(p)
				v := w.View(p.End-int64(time.Minute), p.End)
				for _, name := range v.SiteNames() {
					got := total(v.Sites[name].Totals())
					differ(t, got, totalOf(v.Sites[name].Cells()))
					_, other := v.Sites[name].cells[Key{Method: "GET", Route: Other}]
					folded = folded || other
				}
			}
			if folded != (routes > keptCells) {
				t.Errorf("cells were folded: %v", folded)
			}
		})
	}
}

// total is the text of totals.
func total(t *Totals) string {
	text := fmt.Sprintln(t.Heads, t.Own, t.Limited, t.LimitedStatic)
	for _, s := range []*Sums{&t.Clients, &t.Probes} {
		q := s.Latency()
		p99, _ := q.Quantile(0.99)
		text += fmt.Sprintln(s.Requests, s.Abandoned, s.Errors5xx, s.Missed, s.Cached, s.Busy.Lower, s.Busy.Upper, s.Busy.Untimed,
			q.Count(), q.From(int64(time.Second)), p99)
	}
	return text
}

// totalOf adds up all cells by hand.
func totalOf(cells map[Key]*Cell) string {
	var heads, own, limited, static uint64
	var sums [2]Cell
	for k, c := range cells {
		i := 0
		if k.Probe {
			i = 1
		} else {
			if k.Method == "HEAD" {
				heads += c.Requests
			}
			if k.Origin == pipeline.Own {
				own += c.Requests
			}
		}
		limited, static = limited+c.Limited, static+c.Refused.StaticQuery
		sums[i].mergeSame(c)
	}
	text := fmt.Sprintln(heads, own, limited, static)
	for _, c := range sums {
		p99, _ := c.Latency.Quantile(0.99)
		missed := c.Cache[pipeline.CacheMiss] + c.Cache[pipeline.CacheExpired]
		cached := c.Requests - c.Cache[pipeline.CacheUnsaid] - c.Cache[pipeline.CacheBypass]
		text += fmt.Sprintln(c.Requests, c.Abandoned, c.Codes.Class(5), missed, cached, c.Busy.Lower, c.Busy.Upper, c.Busy.Untimed,
			c.Latency.Count(), c.Latency.From(int64(time.Second)), p99)
	}
	return text
}

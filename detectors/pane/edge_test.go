package pane

import (
	"net/netip"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// bothLogs are the requests of ten seconds as an edge tells them, and as the origin does: 600 came, the edge answered 400
// itself, and of the rest 30 clients left the edge and 20 were answered 504 by it.
func bothLogs() (edge, origin []pipeline.Record) {
	for i := range int64(600) {
		r := pipeline.Record{
			Method: []byte("GET"), Path: []byte("/a"), Route: "/a", Site: "s", Status: 200, Bytes: pipeline.Unknown,
			Client: netip.AddrFrom4([4]byte{198, 18, 0, byte(i % 100)}), UpstreamTime: pipeline.Unknown,
		}
		r.End = i * second / 60
		r.Start, r.RequestTime = r.End-second, second
		e := r
		e.Edge, e.Cache, e.Reached = true, pipeline.CacheHit, pipeline.No
		if i%3 == 0 {
			e.Cache, e.Reached, e.UpstreamTime = pipeline.CacheMiss, pipeline.Yes, second
			r.Client, r.Reached = netip.MustParseAddr("10.0.0.1"), pipeline.Yes // the edge's
			r.RequestTime, r.UpstreamTime = second/2, second/2
			r.Start = r.End - second/2
			origin = append(origin, r)
			switch {
			case i < 90:
				e.Abandoned, e.Status = pipeline.Yes, 0
			case i < 150:
				e.Status = 504
			}
		}
		edge = append(edge, e)
	}
	return edge, origin
}

// TestEdgeAndOriginCountOnce: a request in both logs is one, and holds a worker as long as the origin tells; what the edge
// alone knows stays. Where the origin tells nothing, the edge's log is all there is.
func TestEdgeAndOriginCountOnce(t *testing.T) {
	edge, origin := bothLogs()
	of := func(lists ...[]pipeline.Record) (*Cell, Busy, *Pane) {
		a := NewAssembler(Config{})
		for i := range lists {
			a.Source([]string{"edge", "origin"}[i], time.Minute)
		}
		for i, list := range lists {
			for k := range list {
				a.Add(i, &list[k])
			}
		}
		a.Flush()
		panes := drain(a, nil)
		all := MergeAll(panes[0].Start, panes[len(panes)-1].End, panes)
		return all.Sites["s"].Cells()[Key{Method: "GET", Route: "/a"}], busyOf(all.Start, all.End, panes), all
	}
	both, busy, all := of(edge, origin)
	_, alone, _ := of(nil, origin)
	if both.Requests != 600 || both.Reached != 200 || both.NotReached != 400 {
		t.Errorf("%d requests, %d reached the origin, %d did not", both.Requests, both.Reached, both.NotReached)
	}
	if busy.Lower != alone.Lower || busy.Upper != alone.Upper {
		t.Errorf("busy for %d to %d ns; by the origin's log alone %d to %d", busy.Lower, busy.Upper, alone.Lower, alone.Upper)
	}
	if both.Abandoned != 30 || both.Codes.Get(504) != 20 || both.Cache[pipeline.CacheHit] != 400 || both.Cache[pipeline.CacheMiss] != 200 {
		t.Errorf("%d abandoned, %d × 504, cache %v", both.Abandoned, both.Codes.Get(504), both.Cache)
	}
	if n, _ := both.Clients.Count(); n != 101 {
		t.Errorf("%g clients: those of the edge's log and the edge itself", n)
	}
	if h := all.Heard; h["edge"].Records != 600 || h["origin"].Records != 200 || len(h["edge"].Sites) != 1 {
		t.Errorf("heard: %+v %+v", h["edge"], h["origin"])
	}
	if again, _, _ := of(origin, edge); again.Requests != 600 { // in whatever order
		t.Errorf("the other way round %d requests", again.Requests)
	}
	only, held, _ := of(edge)
	if only.Requests != 600 || only.Abandoned != 30 || held.Lower == 0 {
		t.Errorf("the edge's log alone: %d requests, %d abandoned, busy for %d ns", only.Requests, only.Abandoned, held.Lower)
	}
}

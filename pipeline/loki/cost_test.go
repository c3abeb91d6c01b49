package loki

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/grafana/loki/pkg/push"

	"github.com/squall-sre/squall/pipeline"
)

// delivered is what the spool gives of a busy balancer: n lines of one site, from a time on.
func delivered(n int, from int64) *pipeline.Delivery {
	b := &pipeline.Batch{Stream: &pipeline.Stream{Input: "balancer", ID: "balancer:1", Path: "/var/log/nginx/access.log"}}
	for i := range n {
		b.Entries = append(b.Entries, pipeline.Entry{
			Time: from + int64(i), Kind: pipeline.IsRecord, Site: "shop.example", Route: "/product/{id}", Method: []byte("GET"), Status: 200,
			RequestTime: int64(i) * 1e6, Class: pipeline.Browser, Abandoned: pipeline.No,
			Line: fmt.Appendf(nil, `203.0.113.%d - - [30/Nov/2026:19:00:00 +0000] "GET /product/%d HTTP/1.1" 200 31246 "https://shop.example/" "Mozilla/5.0 (X11; Linux x86_64)" msec=1796065200.123 host="shop.example" rt=0.270`, i%250, i),
		})
	}
	return &pipeline.Delivery{Batches: []*pipeline.Batch{b}}
}

// What a line costs on its way to Loki is copying: its memory is a piece of its delivery's.
func TestNoAllocationPerShippedLine(t *testing.T) {
	d, lines := delivered(800, 1e18), 0
	c := DefaultConfig()
	lab, enc := newLabeler(&c), encoder{}
	allocations := testing.AllocsPerRun(20, func() {
		l := newLoad()
		l.add(lab, false, false, d)
		lines = l.lines
		for _, b := range l.cut(1<<20, func(*part) bool { return false }) {
			if _, err := enc.encode(b); err != nil {
				t.Fatal(err)
			}
		}
	})
	if perLine := allocations / float64(lines); perLine > 0.1 {
		t.Errorf("%.2f allocations a line", perLine)
	}
}

// Loads that are dealt with give their memory to the next: what a line costs anew is its part of the push, which is
// small.
func TestShippedLinesUseMemoryAgain(t *testing.T) {
	c := DefaultConfig()
	lab, enc, d := newLabeler(&c), encoder{}, delivered(800, 1e18)
	const loads = 50
	round := func() {
		l := newLoad()
		l.add(lab, false, false, d)
		for _, b := range l.cut(1<<20, func(*part) bool { return false }) {
			if _, err := enc.encode(b); err != nil {
				t.Fatal(err)
			}
		}
		l.release(lab)
	}
	round()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range loads {
		round()
	}
	runtime.ReadMemStats(&after)
	if perLine := (after.TotalAlloc - before.TotalAlloc) / (loads * 800); perLine > 150 {
		t.Errorf("%d bytes a line", perLine)
	}
}

// A load of which lines are put aside holds the spool's position up, and not the memory of the loads behind it.
func TestMemoryBehindWhatIsAsideIsFree(t *testing.T) {
	s, err := New(quick("http://127.0.0.1:1"), Deps{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	n := &lane{}
	for _, left := range []int{7, 0, 0} {
		l := newLoad()
		l.add(s.labeler, false, false, delivered(100, 1e18))
		l.cut(1<<20, func(*part) bool { return false })
		l.left = left
		n.open = append(n.open, l)
	}
	if err := s.settle(t.Context(), n); err != nil || len(n.open) != 3 {
		t.Fatalf("%d loads are open: %v", len(n.open), err)
	}
	for i, l := range n.open {
		if held := len(l.texts) + len(l.lists) + len(l.parts); held > 0 != (i == 0) {
			t.Errorf("load %d of %d lines holds %d pieces", i, l.left, held)
		}
	}
}

// What is sent is what Loki's own types make of it.
func TestEncodedAsLokiDoes(t *testing.T) {
	c := DefaultConfig()
	lab, enc := newLabeler(&c), encoder{}
	l := newLoad()
	for i, site := range []string{"shop.example", "", strings.Repeat("long", 100)} {
		d := delivered(300*i+1, 1e18)
		for j := range d.Batches[0].Entries {
			d.Batches[0].Entries[j].Site = site
		}
		l.add(lab, false, false, d)
	}
	batches := l.cut(40_000, func(*part) bool { return false })
	if len(batches) < 3 {
		t.Fatalf("%d pushes", len(batches))
	}
	for _, b := range append(batches, &batch{}) {
		r := push.PushRequest{}
		for _, p := range b.parts {
			r.Streams = append(r.Streams, push.Stream{Labels: p.labels, Entries: p.entries})
		}
		want, err := r.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := enc.encode(b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, snappy.Encode(nil, want)) {
			t.Errorf("%d lines of %d streams are encoded differently", b.lines, len(b.parts))
		}
	}
}

// A time is written as the shortest number of seconds that is it.
func TestRequestTimeIsTheShortest(t *testing.T) {
	for _, ns := range []int64{0, 1, 10, 999, 1e6, 27e7, 1e9 - 1, 1e9, 1e9 + 1, 60e9, 3723004e6, 86400e9, 123456789012345} {
		e := pipeline.Entry{Kind: pipeline.IsRecord, RequestTime: ns}
		if got, want := requestTime(&text{}, nil, &e), strconv.FormatFloat(float64(ns)/1e9, 'f', -1, 64); got != want {
			t.Errorf("%s is written %q", time.Duration(ns), got)
		}
	}
}

func BenchmarkShip(b *testing.B) {
	var list []*pipeline.Delivery
	for i := range int64(4) {
		list = append(list, delivered(800, 1e18+i*1e6))
	}
	c := DefaultConfig()
	lab, enc := newLabeler(&c), encoder{}
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(list) * 800 { // an operation is a line
		l := newLoad()
		for _, d := range list {
			l.add(lab, false, false, d)
		}
		for _, batch := range l.cut(1<<20, func(*part) bool { return false }) {
			if _, err := enc.encode(batch); err != nil {
				b.Fatal(err)
			}
		}
	}
}

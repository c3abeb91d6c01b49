package pane

import (
	"fmt"
	"testing"
	"time"
)

// knowing is a Union that knows so many nodes, and waits for the pane that begins at start.
func knowing(b *testing.B, nodes int, start int64) *Union {
	u := NewUnion(UnionConfig{Lateness: time.Nanosecond})
	r := Report{Boot: 1, Seq: 1, Length: 10 * second}
	if err := r.Pack(&Pane{Start: start - 10*second, End: start}, maxPacked); err != nil {
		b.Fatal(err)
	}
	for i := range nodes {
		u.Take(fmt.Sprintf("node-%04d", i), &r, 1, start)
	}
	u.now++
	if p, _ := u.Next(); p == nil {
		b.Fatal("the first pane waits")
	}
	return u
}

// BenchmarkUnion adds up one pane of so many nodes, each of which logged 20,000 lines a second. What it tells beside the
// time: bytes of a report, its share of the log (228 bytes a line), and the bytes that wait in memory.
func BenchmarkUnion(b *testing.B) {
	const lines = 200_000
	var reports []Report
	for seed := range uint64(4) { // nodes differ; more than four kinds of them are not needed
		a := NewAssembler(Config{Whole: func(p *Pane) {
			r := Report{Boot: 1, Length: p.End - p.Start, Config: "same"}
			if p.Coverage.Lines < lines/2 {
				return
			}
			if err := r.Pack(p, maxPacked); err != nil {
				b.Fatal(err)
			}
			reports = append(reports, r)
		}})
		src := a.Source("balancer", 0)
		records := traffic(seed, lines, 10*second/lines)
		for i := range records {
			a.Add(src, &records[i])
		}
		a.Flush()
		drain(a, nil)
	}
	for _, nodes := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			size, waiting := 0, 0
			var rest time.Duration
			for b.Loop() {
				b.StopTimer()
				u := knowing(b, nodes, reports[0].Start)
				b.StartTimer()
				for i := range nodes - 1 {
					r := reports[i%len(reports)]
					r.Seq = 2
					u.Take(fmt.Sprintf("node-%04d", i), &r, uint64(i+1), r.End+second)
					size += r.Size()
				}
				waiting = u.bytes
				last := time.Now()
				r := reports[0]
				r.Seq = 2
				u.Take(fmt.Sprintf("node-%04d", nodes-1), &r, uint64(nodes), r.End+second)
				size += r.Size()
				p, absent := u.Next()
				if p == nil || len(absent) > 0 || p.Coverage.Nodes != uint64(nodes) {
					b.Fatal("a node is absent")
				}
				rest += time.Since(last)
			}
			b.ReportMetric(rest.Seconds()/float64(b.N)*1e3, "ms-after-last")
			perReport := float64(size) / float64(b.N) / float64(nodes)
			b.ReportMetric(perReport, "B/report")
			b.ReportMetric(100*perReport/(228*lines), "%log")
			b.ReportMetric(float64(waiting)/(1<<20), "MiB-waiting")
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/float64(nodes)*1e3, "ms/node")
		})
	}
}

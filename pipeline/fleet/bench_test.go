package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

const benchPane = 20 << 10 // bytes: a busy node's

// How long a node's loop is held up by one pane, which is the disk's time.
func BenchmarkAdd(b *testing.B) {
	l := connect(b, "127.0.0.1:1", "lb1")
	o := l.outgoing(openKV(b, b.TempDir()))
	run(b, o)
	b.SetBytes(benchPane)
	for b.Loop() {
		o.Add(pane(benchPane))
	}
}

// How many panes of 8 nodes that drain their backlogs a server stores and an aggregator reads.
func BenchmarkPublishAndFollow(b *testing.B) {
	const nodes, each = 8, 200
	for b.Loop() {
		srv := serve(b)
		agg := connect(b, srv.Addr(), "agg")
		agg.declare(StreamConfig{MaxAge: time.Hour})
		ctx, cancel := context.WithCancel(b.Context())
		var running sync.WaitGroup
		for i := range nodes {
			o := connect(b, srv.Addr(), fmt.Sprint("lb", i)).outgoing(newMapKV())
			o.ended = make(chan struct{}) // Add puts by itself, before Run
			for range each {
				o.Add(pane(benchPane))
			}
			running.Go(func() { _ = o.Run(ctx) })
		}
		began, n := time.Now(), 0
		all := errors.New("all have come")
		if err := agg.Follow(ctx, 0, func(Message) error {
			if n++; n == nodes*each {
				return all
			}
			return nil
		}); !errors.Is(err, all) {
			b.Fatal(err)
		}
		took := time.Since(began).Seconds()
		b.ReportMetric(nodes*each/took, "panes/s")
		b.ReportMetric(nodes*each*benchPane/took/1e6, "MB/s")
		cancel()
		running.Wait()
		agg.Close()
		srv.Shutdown()
	}
}

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/source"
)

// idleSource is a place that was read to its end.
type idleSource struct {
	source.Source
	states []pipeline.InputState
}

func (s *idleSource) States() []pipeline.InputState {
	return append([]pipeline.InputState{}, s.states...)
}

// A log of another format than was configured, or of none that auto knows, is no quiet log: it is told once, each minute
// while it goes on, and by the state of its source until its lines fit.
func TestMisfitIsTold(t *testing.T) {
	const combined = `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /a HTTP/1.1" 200 5 "-" "curl/8.5.0"`
	for _, c := range []struct{ format, line, reason, nearest, fits string }{
		{"alb", combined, "not_access_log", "nginx", ""},
		{"auto", "nobody knows this line", "no_format", "no format fits; the nearest: apache", combined},
	} {
		core, logs := observer.New(zap.InfoLevel)
		log := zap.New(core)
		choice, err := chooseFormat(c.format, func(any) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		d := &service{log: log, work: make(chan *pipeline.Work, 1000)}
		in := &inputRoad{name: "balancer", format: c.format, zone: time.UTC, source: &idleSource{
			states: []pipeline.InputState{{Input: "balancer", Path: "/a.log", State: "idle", Stream: "1"}, {Input: "balancer", Path: "/b.log", State: "idle"}},
		}}
		o := opener{format: choice, zone: time.UTC}
		o.opened = in.opened
		road := pipeline.NewRoad(pipeline.RoadConfig{
			Input: in.name, Open: o.open, Enricher: noEnricher{}, Take: func(w *pipeline.Work) error { return d.take(in, w) },
		})
		emit := func(line string, n int) {
			data := []byte(strings.Repeat(line+"\n", n))
			if err := road.Emit(&pipeline.Block{Stream: &pipeline.Stream{Input: "balancer", ID: "1", Path: "/a.log"}, Data: data, To: int64(len(data))}); err != nil {
				t.Fatal(err)
			}
		}
		now := time.Now()
		look := func(after time.Duration) string {
			now = now.Add(after)
			d.fits.look(now, []*inputRoad{in}, log)
			var said []string
			for _, e := range logs.TakeAll() {
				if e.Level == zap.WarnLevel {
					f := e.ContextMap()
					said = append(said, fmt.Sprint(e.Message[:14], " ", f["path"], " ", f["format"], " ", f["reason"], " ", f["failed"], " ", f["nearest"]))
				}
			}
			return strings.Join(said, "\n")
		}
		look(0)
		emit(c.line, 3)
		if said := look(time.Second); said != "" {
			t.Errorf("%s: three lines are told at once: %s", c.format, said)
		}
		emit(c.line, 3000)
		said := look(time.Second)
		if want := "lines fit no f /a.log " + c.format + " " + c.reason + " 3003 " + c.nearest; !strings.HasPrefix(said, want) || strings.Contains(said, "\n") {
			t.Errorf("%s: said %q, want %q", c.format, said, want)
		}
		states := in.states()
		if states[0].State != stateMisfit || !strings.HasPrefix(states[0].Err, c.nearest) || states[1].State != "idle" {
			t.Errorf("%s: %+v", c.format, states)
		}
		if len(blind(states)) != 1 {
			t.Errorf("the page hides %+v", states)
		}
		emit(c.line, 50)
		if said := look(10 * time.Second); said != "" {
			t.Errorf("%s: told again within the minute: %s", c.format, said)
		}
		if said := look(time.Minute); !strings.HasPrefix(said, "lines still fi /a.log "+c.format) {
			t.Errorf("%s: after a minute: %q", c.format, said)
		}
		if said := look(time.Minute); said != "" {
			t.Errorf("%s: told of lines that did not come: %s", c.format, said)
		}
		if c.fits == "" {
			continue
		}
		emit(c.fits, 50)
		if said, states := look(time.Minute), in.states(); said != "" || states[0].State != "idle" {
			t.Errorf("%s: they fit again: %q %+v", c.format, said, states)
		}
	}
}

// noEnricher knows nothing.
type noEnricher struct{}

func (noEnricher) Enrich(*pipeline.Record) {}

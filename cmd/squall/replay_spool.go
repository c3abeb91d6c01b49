package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/spool"
)

// A spoolReader takes the lines that a stopped daemon's spool holds down the roads of their sources.
type spoolReader struct {
	replayer *replayer
	config   *Config
	choice   formatChoice // of lines whose source is not configured
	roads    map[string]*pipeline.Road
	batch    *pipeline.Batch // that is on its road

	// least is the earliest time that is still to come, by message, in ns. The watermark follows it, so that nothing is
	// late, however lines of several sources, and of what was caught up with, were stored one after the other.
	least   []int64
	waiting int // the assembler's source that holds the watermark there
	message int

	damaged int   // messages that cannot be unpacked
	why     error // of the first
	failed  error // of a road
}

// runSpool replays the spool in one of the dirs, or in the configuration's.
func (r *replayer) runSpool(ctx context.Context, c *Config, dirs []string) error {
	dir := c.Spool.Dir
	if len(dirs) > 0 {
		dir = dirs[0]
	}
	s, err := spool.OpenStopped(dir, &r.advance.read)
	if err != nil {
		return err
	}
	r.advance.total.Store(2 * s.Size()) // it is read twice
	r.edge = true                       // an edge's log may be among what is stored
	p := &spoolReader{replayer: r, config: c, choice: r.format, roads: map[string]*pipeline.Road{}}
	damage := s.Read(ctx, func(m *spool.Stored) error {
		p.least = append(p.least, cmp.Or(m.Oldest, math.MaxInt64))
		return nil
	})
	for i := len(p.least) - 2; i >= 0; i-- {
		p.least[i] = min(p.least[i], p.least[i+1])
	}
	p.waiting = r.judge.source("", 0)
	if err := s.Read(ctx, p.take); p.failed != nil || ctx.Err() != nil {
		return cmp.Or(p.failed, err)
	}
	if p.damaged > 0 {
		damage = errors.Join(damage, fmt.Errorf("%d messages are damaged, the first of them: %w", p.damaged, p.why))
	}
	if err := s.Unused(); err != nil {
		damage = errors.Join(damage, fmt.Errorf("what was removed while it was read is missing: %w", err))
	}
	if damage != nil {
		r.damaged(dir, damage)
	}
	r.judge.panes.Flush()
	r.judge.settle()
	return nil
}

// take judges one message.
func (p *spoolReader) take(m *spool.Stored) error {
	panes := p.replayer.judge.panes
	if p.message < len(p.least) && p.least[p.message] != math.MaxInt64 && !p.replayer.within.beyond(p.least[p.message]) {
		panes.Observe(p.waiting, p.least[p.message])
	}
	p.message++
	if m.Oldest != 0 && p.replayer.within.beyond(m.Oldest) {
		return nil
	}
	batches, err := m.Batches()
	if err != nil {
		p.damaged++
		p.why = cmp.Or(p.why, fmt.Errorf("message %d: %w", m.Sequence, err))
		return nil
	}
	for _, b := range batches {
		road, err := p.road(b.Stream.Input)
		if err == nil {
			p.batch = b
			err = road.Replay(b)
		}
		if err != nil {
			p.failed = err
			return err
		}
	}
	return nil
}

// road is that of an input: as it is configured, or, without its configuration, as the flags say.
func (p *spoolReader) road(input string) (*pipeline.Road, error) {
	if road := p.roads[input]; road != nil {
		return road, nil
	}
	r := p.replayer
	o, site, lateness := opener{format: p.choice, zone: r.zone}, r.site, defaultLateness
	if i := slices.IndexFunc(p.config.Sources, func(s SourceConfig) bool { return s.Name == input }); i >= 0 {
		sc := &p.config.Sources[i]
		choice, err := chooseFormat(sc.Format.Type, sc.Format.Decode)
		if err != nil {
			return nil, fmt.Errorf("source %s: %w", input, err)
		}
		o.format, o.zone, site, lateness = choice, sc.Timezone.Location, sc.Site, sc.Lateness
	}
	r.judge.source(input, lateness)
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: input, Open: o.open, Enricher: r.chain.For(site), Now: func() int64 { return 0 },
		Take: func(w *pipeline.Work) error {
			w.Batch.Lines = p.batch.Lines
			for i := range p.batch.Entries {
				w.Bytes += int64(len(p.batch.Entries[i].Line)) + 1
			}
			r.take(w)
			r.judge.panes.Idle(r.judge.sources[input], true) // only what is still to come holds the watermark
			return nil
		},
	})
	p.roads[input] = road
	return road, nil
}

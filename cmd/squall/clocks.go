package main

import (
	"maps"
	"math"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// Event time is the logs' own. But one log whose times are hours off, since they are local and carry no zone or since
// its clock is wrong, must neither hold up the detection of all others nor make their lines late. Which of two logs is
// right no log can tell; that one is which agrees with this machine's clock. Where none does, as when old logs are read
// or this clock is wrong, all are believed.
const (
	// aheadSlack and behindSlack (beside the input's lateness) are within what clocks drift and logs are buffered, and
	// below the quarter of an hour by which zones differ at least.
	aheadSlack  = 5 * time.Minute
	behindSlack = 10 * time.Minute

	// tooFarAhead of this machine's clock a line is not counted: its pane would have to wait for so long.
	tooFarAhead = 30 * time.Minute

	// neverAhead no line is, whatever the others say.
	neverAhead = 24 * time.Hour

	// agreed is how long it counts that a log agreed with this machine's clock.
	agreed = time.Hour
)

// trust is how far the times of a piece of work are believed.
type trust struct {
	ceiling int64 // ns: lines after it are counted as late
	astray  bool  // its lines count where they say, and move nothing
}

var fullTrust = trust{ceiling: math.MaxInt64}

// clockWatch compares the times of logs with this machine's clock. Only what is read as it is written can be compared.
type clockWatch struct {
	start   time.Time         // when squall was started, by this machine's clock as it is set now
	inTime  time.Time         // when a log last agreed
	strayed map[string]astray // by input
}

// astray is what went astray of an input since it was told.
type astray struct {
	lines  int
	path   string
	offset time.Duration // ahead of this machine's clock
	told   time.Time
}

// see judges a piece of work that comes now. up is how long squall has been running, by a clock that is not set.
func (c *clockWatch) see(w *pipeline.Work, lateness time.Duration, now time.Time, up time.Duration) trust {
	c.follow(now, up)
	at, known := typical(w)
	if !known || w.Behind {
		return trust{ceiling: now.Add(neverAhead).UnixNano()}
	}
	offset := time.Duration(at - now.UnixNano())
	if offset <= aheadSlack && offset >= -behindSlack-lateness {
		c.inTime = now
		return trust{ceiling: now.Add(tooFarAhead).UnixNano()}
	}
	if c.inTime.IsZero() || now.Sub(c.inTime) > agreed {
		return trust{ceiling: now.Add(neverAhead).UnixNano()}
	}
	if c.strayed == nil {
		c.strayed = map[string]astray{}
	}
	was := c.strayed[w.Input]
	c.strayed[w.Input] = astray{was.lines + len(w.Items), w.Batch.Stream.Path, offset, was.told}
	return trust{ceiling: now.Add(tooFarAhead).UnixNano(), astray: true}
}

// follow notices when this machine's clock is set: what agreed with it before says nothing any more.
func (c *clockWatch) follow(now time.Time, up time.Duration) {
	start := now.Round(0).Add(-up) // Round takes the clock that is not set off it
	if start.Sub(c.start).Abs() > time.Minute {
		c.start, c.inTime = start, time.Time{}
	}
}

// typical is the median of three lines' times: one that is wrong says nothing.
func typical(w *pipeline.Work) (at int64, known bool) {
	n := len(w.Items)
	if n == 0 {
		return 0, false
	}
	three := []int64{w.Items[0].Time, w.Items[n/2].Time, w.Items[n-1].Time}
	slices.Sort(three)
	return three[1], three[1] != 0
}

// look tells which logs' times are not believed: at once, and then each minute.
func (c *clockWatch) look(now time.Time, log *zap.Logger) {
	for _, input := range slices.Sorted(maps.Keys(c.strayed)) {
		x := c.strayed[input]
		if now.Sub(x.told) < time.Minute || x.lines == 0 {
			continue
		}
		c.strayed[input] = astray{told: now}
		log.Warn("a log's times are not those of this machine's clock: it moves nothing, and what is late in it is not detected. Is its timezone set?",
			zap.String("input", input), zap.String("path", x.path), zap.Duration("ahead", x.offset.Round(time.Second)), zap.Int("lines", x.lines))
	}
}

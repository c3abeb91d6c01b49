package main

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
)

// A fit is how the lines of one stream fit its format. format, auto and told belong to the goroutine of the stream.
type fit struct {
	path   string
	format pipeline.Format
	told   string // the choice of auto that was told

	mu            sync.Mutex
	lines, failed uint64 // of the minute; where few came, of more than that
	fitted        bool   // some line did, at any time
	reason        pipeline.Reason
	sample        []byte // the beginning of a line that did not
	ended         bool
	misfit        string // while lines do not fit: what would
	warned        bool
}

// opened notes a stream's format.
func (in *inputRoad) opened(s *pipeline.Stream, f pipeline.Format) {
	in.fits.Store(s.ID, &fit{path: s.Path, format: f})
}

// maxSample bounds what is kept of a line that fits no format, in bytes.
const maxSample = 16 << 10

// count notes what became of the lines of the work.
func (f *fit) count(w *pipeline.Work) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range w.Items {
		it := &w.Items[i]
		switch {
		case it.Kind != pipeline.Failed:
			f.lines++
			f.fitted = true
		case it.Reason != pipeline.ReasonEmpty:
			f.lines++
			if f.failed++; f.sample == nil {
				f.reason, f.sample = it.Reason, append([]byte{}, it.Line[:min(len(it.Line), maxSample)]...)
			}
		}
	}
	f.ended = f.ended || w.Batch.Last
}

const (
	misfitShare = 0.9 // of a stream's lines fit no format: it is worth a warning
	fewLines    = 20  // of a stream whose lines did fit say nothing
	maxNews     = 10  // warnings of streams of one input a minute
)

// fitWatch tells of which streams the lines fit no format: nothing in them is detected, and that is not quiet.
type fitWatch struct {
	at, minute time.Time // of the last look; when the minute began
	news       map[string]int
}

// ongoing is what an input's streams that did not fit before did in the last minute.
type ongoing struct {
	streams       int
	lines, failed uint64
	path          string // one of them
	nearest       string
}

func (w *fitWatch) look(now time.Time, inputs []*inputRoad, log *zap.Logger) {
	if now.Sub(w.at) < time.Second {
		return
	}
	w.at = now
	full := now.Sub(w.minute) >= time.Minute
	if full || w.news == nil {
		w.minute, w.news = now, map[string]int{}
	}
	for _, in := range inputs {
		var still ongoing
		for _, f := range in.fitsToLookAt(full) {
			w.stream(full, in, f, &still, log)
		}
		if still.streams > 0 {
			log.Warn("lines still fit no format", zap.String("input", in.name), zap.Int("streams", still.streams),
				zap.Uint64("failed", still.failed), zap.Uint64("lines", still.lines),
				zap.String("path", still.path), zap.String("format", in.format), zap.String("nearest", still.nearest))
		}
	}
}

// stream looks at one stream.
func (w *fitWatch) stream(full bool, in *inputRoad, f *fit, still *ongoing, log *zap.Logger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	bad := f.failed > 0 && float64(f.failed) >= misfitShare*float64(f.lines) && (f.lines >= fewLines || full && !f.fitted)
	switch {
	case bad && !f.warned && w.news[in.name] < maxNews:
		w.news[in.name]++
		f.warned, f.misfit = true, cmp.Or(nearestTo(f.sample, in.zone), "no other does")
		log.Warn("lines fit no format: they are shipped, and no storm in them is seen", zap.String("input", in.name),
			zap.String("path", f.path), zap.String("format", in.format), zap.String("reason", string(f.reason)),
			zap.Uint64("failed", f.failed), zap.Uint64("lines", f.lines), zap.String("nearest", f.misfit))
	case bad && full && f.warned:
		f.misfit = cmp.Or(f.misfit, nearestTo(f.sample, in.zone), "no other does")
		still.streams++
		still.lines, still.failed = still.lines+f.lines, still.failed+f.failed
		still.path, still.nearest = cmp.Or(still.path, f.path), cmp.Or(still.nearest, f.misfit)
	case full && !bad && f.lines > 0 && f.misfit != "":
		f.misfit = ""
		log.Info("lines fit the format again", zap.String("input", in.name), zap.String("path", f.path))
	}
	if full && (f.lines >= fewLines || bad) {
		f.lines, f.failed, f.sample = 0, 0, nil
	}
}

// fitsToLookAt gives the input's streams of which there may be something to tell, by path: at the end of a minute all.
// Those that have ended are forgotten then.
func (in *inputRoad) fitsToLookAt(full bool) []*fit {
	all := map[string]*fit{}
	in.fits.Range(func(id, v any) bool {
		f := v.(*fit)
		f.mu.Lock()
		look, ended := full || f.failed >= fewLines && !f.warned, f.ended
		f.mu.Unlock()
		if look {
			all[f.path+"\x00"+id.(string)] = f
		}
		if full && ended {
			in.fits.Delete(id)
		}
		return true
	})
	out := make([]*fit, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[key])
	}
	return out
}

// stateMisfit is the state of a stream whose lines fit no format. It is read all the same.
const stateMisfit = "fits no format"

// states gives the states of the source, those of streams that fit no format among them.
func (in *inputRoad) states() []pipeline.InputState {
	states := in.source.States()
	in.fits.Range(func(id, v any) bool {
		f := v.(*fit)
		f.mu.Lock()
		misfit := f.misfit
		f.mu.Unlock()
		if misfit == "" {
			return true
		}
		i := slices.IndexFunc(states, func(s pipeline.InputState) bool {
			return s.Err == "" && (s.Stream == id || s.Stream == "" && s.Path == f.path)
		})
		if i >= 0 {
			states[i].State, states[i].Err = stateMisfit, misfit
		}
		return true
	})
	return states
}

// announce tells which format auto chose for a stream, and what the nearest others had against it: once, and when it
// changes.
func (d *service) announce(in *inputRoad, s *pipeline.Stream, f *fit) {
	auto, ok := f.format.(*format.Auto)
	if !ok {
		return
	}
	name, not := auto.Choice()
	if name == "" || name == f.told {
		return
	}
	f.told = name
	slices.SortStableFunc(not, func(a, b format.Rejection) int { return nearer(b, a) })
	d.log.Info("format chosen", zap.String("input", s.Input), zap.String("path", s.Path),
		zap.String("format", name), zap.Any("not", not[:min(len(not), mostRejections)]))
}

// mostRejections is how many formats the log names that were not chosen.
const mostRejections = 5

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
)

// A logSample is what the last lines of a log tell of it.
type logSample struct {
	lines, failed    int
	requests, events int
	format           string // that auto chose; "" when none was asked for or found
	nearest          string // how near one came when lines fit none
	hosts, times     int    // requests that name a host, that tell how long they took
	newest           time.Time
}

// sampleBytes is how much of the end of a log is looked at.
const sampleBytes = 128 << 10

// sampleLog reads the last lines of a log as `squall run` would.
func sampleLog(path string, o opener) (logSample, error) {
	text, err := lastLines(path)
	if err != nil {
		return logSample{}, err
	}
	chain, err := newChain(Default(), nil)
	if err != nil {
		return logSample{}, err
	}
	var s logSample
	var chosen pipeline.Format
	o.opened = func(_ *pipeline.Stream, f pipeline.Format) { chosen = f }
	var failed []byte
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: "sample", Open: o.open, Enricher: chain.For(""),
		Take: func(w *pipeline.Work) error {
			for i := range w.Items {
				s.count(&w.Items[i])
			}
			if line := failedLine(w.Items); line != nil && failed == nil {
				failed = bytes.Clone(line)
			}
			return nil
		},
	})
	stream := &pipeline.Stream{Input: "sample", ID: "sample", Path: path}
	if err := road.Emit(&pipeline.Block{Stream: stream, Data: text, To: int64(len(text)), Last: true}); err != nil {
		return logSample{}, err
	}
	if auto, ok := chosen.(*format.Auto); ok {
		s.format, _ = auto.Choice()
		if s.format == "" && s.failed > 0 {
			s.nearest = nearness(auto, failed)
		}
	} else if s.failed > 0 {
		s.nearest = nearestTo(failed, o.zone)
	}
	return s, nil
}

func (s *logSample) count(it *pipeline.Item) {
	if it.Kind == pipeline.Failed && it.Reason == pipeline.ReasonEmpty {
		return
	}
	s.lines++
	switch it.Kind {
	case pipeline.Failed:
		s.failed++
	case pipeline.IsRecord:
		s.requests++
		if it.Record.Host != nil || it.Record.Upstream != nil {
			s.hosts++
		}
		if it.Record.RequestTime != pipeline.Unknown || it.Record.UpstreamTime != pipeline.Unknown {
			s.times++
		}
	default:
		s.events++
	}
	if at := time.Unix(0, it.Time); it.Time > 0 && at.After(s.newest) {
		s.newest = at
	}
}

// fits tells whether nearly all lines are read.
func (s *logSample) fits() bool {
	return float64(s.failed) < misfitShare*float64(s.lines) || s.lines == 0
}

// errNoFile is the fault of what has a name as a file has and is none: to open a pipe waits for whoever writes to it.
var errNoFile = errors.New("it is no file")

// regular tells what a path leads to, or why that is no file.
func regular(path string) (os.FileInfo, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, errNoFile)
	}
	return info, err
}

// lastLines reads the whole lines at the end of a file.
func lastLines(path string) ([]byte, error) {
	info, err := regular(path)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	from := max(0, info.Size()-sampleBytes)
	text, err := io.ReadAll(io.NewSectionReader(f, from, sampleBytes))
	if err != nil {
		return nil, err
	}
	if from > 0 {
		_, text, _ = bytes.Cut(text, []byte{'\n'})
	}
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[:i+1]
	}
	return text, nil
}

package main

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	logQueue = 4096        // lines that wait for whoever reads the log
	logGrace = time.Second // what they are given at the end
)

// logWriter hands the log's lines on without ever waiting: detection must not stand still because nobody empties the
// pipe behind standard error. What does not fit into its queue is dropped, counted and told.
type logWriter struct {
	out     io.Writer
	lines   chan queuedLine
	dropped atomic.Uint64 // since it was told last
	total   prometheus.Counter
}

// A queuedLine without a text tells whoever waits for it that those before it were taken.
type queuedLine struct {
	text  []byte
	taken chan struct{}
}

func newLogWriter(out io.Writer) *logWriter {
	w := &logWriter{out: out, lines: make(chan queuedLine, logQueue), total: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "squall_log_lines_dropped_total", Help: "Lines of squall's own log that nobody took.",
	})}
	go w.run() // it ends with the process: it may be stuck in a write
	return w
}

func (w *logWriter) run() {
	for line := range w.lines {
		if line.taken != nil {
			close(line.taken)
			continue
		}
		_, _ = w.out.Write(line.text) // standard error has gone: nobody is to be told
		if n := w.dropped.Swap(0); n > 0 {
			_, _ = fmt.Fprintf(w.out, `{"level":"warn","msg":"lines of this log were dropped: nobody took them","lines":%d}`+"\n", n)
		}
	}
}

// Write implements io.Writer.
func (w *logWriter) Write(p []byte) (int, error) {
	select {
	case w.lines <- queuedLine{text: append([]byte(nil), p...)}:
	default:
		w.dropped.Add(1)
		w.total.Inc()
	}
	return len(p), nil
}

// Sync implements zapcore.WriteSyncer: it waits for the lines, for logGrace at most.
func (w *logWriter) Sync() error {
	taken, late := make(chan struct{}), time.After(logGrace)
	select {
	case w.lines <- queuedLine{taken: taken}:
	case <-late:
		return errNotTaken
	}
	select {
	case <-taken:
		return nil
	case <-late:
		return errNotTaken
	}
}

var errNotTaken = errors.New("the log is not taken")

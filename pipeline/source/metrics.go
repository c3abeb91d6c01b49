package source

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/squall-sre/squall/pipeline"
)

// Reasons of errors, as label values.
const (
	errOpen    = "open"
	errStat    = "stat"
	errRead    = "read"
	errArchive = "archive"
	errInotify = "inotify"
	errLimit   = "too_many_files"
	errEntry   = "entry"   // journalctl wrote what is no entry
	errListen  = "listen"  // an address could not be listened at
	errRefused = "refused" // a sender that is not allowed, or one too many
	errMessage = "message" // a connection ended within a message, or waited too long there
)

var (
	errorReasons = []string{errOpen, errStat, errRead, errArchive, errInotify, errLimit, errEntry, errListen, errRefused, errMessage}
	// Skips lists the reasons of a pipeline.Skip, for metrics that start at 0.
	Skips = []string{
		pipeline.SkipNUL, pipeline.SkipLongLine, pipeline.SkipTruncated, pipeline.SkipVanished, pipeline.SkipUnread,
		pipeline.SkipOverflow,
	}
)

// Metrics are the counters of all sources of a process, by source. What is known to be gone is counted where it is
// judged, with the reasons that Skips lists.
type Metrics struct {
	lines, bytes, dropped         *prometheus.CounterVec
	skips, errors                 *prometheus.CounterVec
	lag, open, deleted, following *prometheus.GaugeVec
	polling                       *prometheus.GaugeVec
}

// NewMetrics registers the metrics of this package.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "squall_source_" + name, Help: help}, labels)
		reg.MustRegister(v)
		return v
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "squall_source_" + name, Help: help}, []string{"source"})
		reg.MustRegister(v)
		return v
	}
	return &Metrics{
		lines:     counter("lines_total", "Physical lines read.", "source"),
		bytes:     counter("read_bytes_total", "Bytes read and handed on.", "source"),
		skips:     counter("skips_total", "Runs of bytes read over.", "source", "reason"),
		errors:    counter("errors_total", "Failed operations on files, journals and sockets, each retried.", "source", "reason"),
		dropped:   counter("dropped_total", "Datagrams that came while the road was full, by the kernel's count or ours.", "source"),
		lag:       gauge("lag_bytes", "Bytes known to be unread."),
		open:      gauge("open_files", "Files held open."),
		deleted:   gauge("deleted_open_files", "Files held open that have no name any more: their disk space is not free."),
		polling:   gauge("polling_directories", "Directories without events of the kernel: inotify is used up, or their file system has none. Polling alone finds what changes there."),
		following: gauge("following_files", "Files at their end that are followed line by line."),
	}
}

// meter is Metrics for one input: its series exist from the start, at 0.
type meter struct {
	all                           *Metrics
	input                         string
	lines, bytes, dropped         prometheus.Counter
	lag, open, deleted, following prometheus.Gauge
	polling                       prometheus.Gauge
}

func (m *Metrics) of(input string) *meter {
	for _, reason := range Skips {
		m.skips.WithLabelValues(input, reason)
	}
	for _, reason := range errorReasons {
		m.errors.WithLabelValues(input, reason)
	}
	return &meter{
		all: m, input: input, lines: m.lines.WithLabelValues(input), bytes: m.bytes.WithLabelValues(input),
		dropped: m.dropped.WithLabelValues(input),
		lag:     m.lag.WithLabelValues(input), open: m.open.WithLabelValues(input),
		deleted: m.deleted.WithLabelValues(input), following: m.following.WithLabelValues(input),
		polling: m.polling.WithLabelValues(input),
	}
}

func (m *meter) failed(reason string) { m.all.errors.WithLabelValues(m.input, reason).Inc() }

// count counts a Block that was handed on.
func (m *meter) count(b *pipeline.Block) {
	m.lines.Add(float64(countLines(b)))
	m.bytes.Add(float64(len(b.Data)))
	for _, s := range b.Skips {
		m.all.skips.WithLabelValues(m.input, s.Reason).Inc()
	}
}

// zero is called when the input stops: what it held, it holds no longer.
func (m *meter) zero() {
	for _, g := range []prometheus.Gauge{m.lag, m.open, m.deleted, m.following, m.polling} {
		g.Set(0)
	}
}

package spool

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/squall-sre/squall/pipeline"
)

// Why stored or queued lines were lost. What a consumer had read before is not lost.
const (
	dropLimit    = "spool_full"      // the oldest were removed at max_bytes or max_age before they were read
	dropDiskFull = "spool_disk_full" // the oldest were removed to make room
	dropLost     = "spool_gone"      // the files were gone
	dropClosed   = "spool_closed"    // still queued when the time to close was over
	dropCorrupt  = "spool_corrupt"   // a store or a message could not be read
)

type metrics struct {
	appendedBytes, appendedLines prometheus.Counter
	storedBytes, storedLines     prometheus.Counter
	repeatedLines, stalls        prometheus.Counter
	recoveredLines, keptLines    prometheus.Counter
	recoveries, corrupt          prometheus.Counter
	checkpointErrors             prometheus.Counter
	dropped, droppedBytes        *prometheus.CounterVec
	queueBytes, streamBytes      prometheus.Gauge
	oldestSeconds, streams       prometheus.Gauge
}

// newMetrics makes the metrics; waiting gives the lines that are neither shipped nor lost.
func newMetrics(reg prometheus.Registerer, waiting func() float64) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "squall_spool_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: "squall_spool_" + name, Help: help})
	}
	m := &metrics{
		appendedBytes:    counter("appended_bytes_total", "Bytes taken into the queue, before compression."),
		appendedLines:    counter("appended_lines_total", "Lines taken into the queue."),
		storedBytes:      counter("stored_bytes_total", "Bytes synced to disk, after compression."),
		storedLines:      counter("stored_lines_total", "Lines synced to disk."),
		repeatedLines:    counter("repeated_lines_total", "Lines refused because they had been taken before."),
		recoveredLines:   counter("recovered_lines_total", "Stored lines taken over: what an earlier run, or a time without Loki, left to be shipped."),
		keptLines:        counter("kept_lines_total", "Stored lines that nobody is to ship: without Loki the spool is where they stay, up to its limits."),
		stalls:           counter("stalls_total", "Batches refused because nothing was being stored."),
		recoveries:       counter("recoveries_total", "Times the store was opened anew after a failed write."),
		corrupt:          counter("corrupt_stores_total", "Stores that could not be opened and were moved aside."),
		checkpointErrors: counter("checkpoint_errors_total", "Checkpoints of the positions that could not be written."),
		queueBytes:       gauge("queue_bytes", "Bytes in memory that wait to be stored."),
		streamBytes:      gauge("stream_bytes", "Bytes of lines on disk."),
		oldestSeconds:    gauge("oldest_seconds", "Age of the oldest stored message."),
		streams:          gauge("streams", "Log streams whose position is known."),
		dropped:          pipeline.LostLines(reg),
		droppedBytes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "squall_spool_lost_bytes_total", Help: "Bytes of the lines lost in the spool, by reason.",
		}, []string{"reason"}),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "squall_spool_waiting_lines", Help: "Lines that are queued, or stored and not dealt with by the shipper.",
	}, waiting)
	for _, reason := range []string{dropLimit, dropDiskFull, dropLost, dropClosed, dropCorrupt} {
		m.lose(reason, 0, 0)
	}
	return m
}

// lose counts lines that are lost.
func (m *metrics) lose(reason string, lines, bytes int64) {
	m.dropped.WithLabelValues("", reason).Add(float64(lines))
	m.droppedBytes.WithLabelValues(reason).Add(float64(bytes))
}

package fleet

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	connected                                              prometheus.Gauge
	published, repeated, dropped, refused, unkept, unasked prometheus.Counter
	waiting                                                prometheus.Gauge
	followed, missed, forged, resets                       prometheus.Counter
	leases                                                 prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "squall_fleet_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: "squall_fleet_" + name, Help: help})
	}
	return &metrics{
		connected: gauge("connected", "1 while there is a connection to a NATS server."),
		published: counter("published_panes_total", "Panes that the stream has."),
		repeated:  counter("repeated_panes_total", "Panes that were sent again because nobody said that the stream has them."),
		dropped:   counter("dropped_panes_total", "Panes that were overwritten, or lost with the disk, before the stream had them."),
		refused:   counter("refused_panes_total", "Panes that no server takes, because they are too large."),
		unkept:    counter("unkept_panes_total", "Panes that the disk did not take at once: they were kept in memory."),
		unasked:   counter("unasked_messages_total", "Heartbeats that no aggregator sent."),
		waiting:   gauge("waiting_panes", "Panes that the stream does not have yet."),
		followed:  counter("followed_messages_total", "Messages of the stream that were read."),
		missed:    counter("missed_messages_total", "Messages of the stream that were removed before they were read."),
		forged:    counter("forged_messages_total", "Messages of the stream that were not made by the node whose subject they have."),
		resets:    counter("stream_resets_total", "Times that the stream was found made anew."),
		leases:    gauge("leases", "Leases that this process holds."),
	}
}

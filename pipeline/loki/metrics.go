package loki

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the counters of shipping. They outlive a Shipper: after a reload another one counts on.
type Metrics struct {
	shipped                      prometheus.Counter
	deadLetters, deadLettersLost prometheus.Counter
	refused, retries             *prometheus.CounterVec
	lagSeconds, held             prometheus.Gauge
	aside, pushBytes, backlog    prometheus.Gauge
}

// NewMetrics registers the metrics of this package.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "squall_" + name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "squall_" + name, Help: help}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: "squall_loki_" + name, Help: help})
	}
	m := &Metrics{
		shipped:         counter("lines_shipped_total", "Lines that Loki has."),
		refused:         vec("lines_refused_total", "Lines that Loki refused, by reason.", "reason"),
		deadLetters:     counter("loki_dead_letters_total", "Refused lines written to the dead-letter file."),
		deadLettersLost: counter("loki_dead_letters_lost_total", "Refused lines that the dead-letter file did not take."),
		retries:         vec("loki_retries_total", "Pushes that were repeated, by what the answer meant.", "answer"),
		lagSeconds:      gauge("lag_seconds", "How long the lines that were shipped last had been in the spool."),
		held:            gauge("held", "1 while shipping waits for a wrong address, right or proxy to be set right."),
		aside:           gauge("aside_lines", "Lines that wait because Loki limits their stream, while others go on."),
		pushBytes:       gauge("push_bytes", "Bytes that a push may have: fewer than batch_size after Loki refused larger ones."),
		backlog:         gauge("backlog", "1 while what was stored during an outage is shipped beside fresh lines."),
	}
	for _, r := range refusedReasons {
		m.refused.WithLabelValues(r)
	}
	for _, v := range verdictNames[busy:] {
		m.retries.WithLabelValues(v)
	}
	return m
}

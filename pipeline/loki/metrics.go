package loki

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	shipped, missed, deadLetters prometheus.Counter
	refused, retries             *prometheus.CounterVec
	lagMessages, lagSeconds      prometheus.Gauge
	held                         prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		shipped:     f.NewCounter(prometheus.CounterOpts{Name: "squall_loki_shipped_lines_total", Help: "Lines that Loki has."}),
		missed:      f.NewCounter(prometheus.CounterOpts{Name: "squall_loki_missed_lines_total", Help: "Lines that left the spool before they could be shipped."}),
		deadLetters: f.NewCounter(prometheus.CounterOpts{Name: "squall_loki_dead_letters_total", Help: "Refused lines written to the dead-letter file."}),
		refused:     f.NewCounterVec(prometheus.CounterOpts{Name: "squall_loki_refused_lines_total", Help: "Lines that Loki refused, by reason."}, []string{"reason"}),
		retries:     f.NewCounterVec(prometheus.CounterOpts{Name: "squall_loki_retries_total", Help: "Pushes that were repeated, by what the answer meant."}, []string{"answer"}),
		lagMessages: f.NewGauge(prometheus.GaugeOpts{Name: "squall_loki_lag_messages", Help: "Messages in the spool that are not shipped."}),
		lagSeconds:  f.NewGauge(prometheus.GaugeOpts{Name: "squall_loki_lag_seconds", Help: "How long the lines that were shipped last had been in the spool."}),
		held:        f.NewGauge(prometheus.GaugeOpts{Name: "squall_loki_held", Help: "1 while shipping waits for a wrong address, right or proxy to be set right."}),
	}
	for _, r := range refusedReasons {
		m.refused.WithLabelValues(r)
	}
	for _, v := range verdictNames[busy:] {
		m.retries.WithLabelValues(v)
	}
	return m
}

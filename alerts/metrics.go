package alerts

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

var severities = []Severity{Info, Warning, Page}

type metrics struct {
	firing      *prometheus.GaugeVec
	suppressed  *prometheus.GaugeVec
	transitions *prometheus.CounterVec
	dropped     prometheus.Counter
	stale       prometheus.Counter
	unrelated   prometheus.Counter
	ruleErrors  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, suppressors []*suppressor) *metrics {
	with := promauto.With(reg)
	m := &metrics{
		firing: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "squall_alerts_firing", Help: "Alerts that fire, by severity.",
		}, []string{"severity"}),
		suppressed: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "squall_alerts_suppressed", Help: "Alerts that are held back, by suppressor.",
		}, []string{"suppressor"}),
		transitions: with.NewCounterVec(prometheus.CounterOpts{
			Name: "squall_alerts_transitions_total", Help: "Alerts that began, were held back or ended, by state and severity. The end of one that was held back is none.",
		}, []string{"state", "severity"}),
		dropped: with.NewCounter(prometheus.CounterOpts{
			Name: "squall_alerts_dropped_total", Help: "Evaluations of alerts over the limit, which were dropped.",
		}),
		stale: with.NewCounter(prometheus.CounterOpts{
			Name: "squall_alerts_stale_panes_total", Help: "Results that were not after the last one and changed nothing.",
		}),
		unrelated: with.NewCounter(prometheus.CounterOpts{
			Name: "squall_alerts_uncorrelated_total", Help: "Detections over the limit, which were held against no other: their alerts name no incident.",
		}),
		ruleErrors: with.NewCounter(prometheus.CounterOpts{
			Name: "squall_alerts_rule_errors_total", Help: "Evaluations of a rule's expression that failed.",
		}),
	}
	for _, s := range severities {
		m.firing.WithLabelValues(string(s))
		m.transitions.WithLabelValues(string(Firing), string(s))
		m.transitions.WithLabelValues(string(Resolved), string(s))
		m.transitions.WithLabelValues(string(Suppressed), string(s))
	}
	for _, s := range suppressors {
		m.suppressed.WithLabelValues(s.Name)
	}
	return m
}

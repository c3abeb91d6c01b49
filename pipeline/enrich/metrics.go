package enrich

import "github.com/prometheus/client_golang/prometheus"

// metrics count what was folded.
type metrics struct {
	invalid, limit prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	folded := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "squall_enrich_sites_folded_total",
		Help: "Records counted under the site \"other\", by reason: the host was no host name, or too many unlisted hosts.",
	}, []string{"reason"})
	if reg != nil {
		reg.MustRegister(folded)
	}
	return &metrics{invalid: folded.WithLabelValues("invalid_host"), limit: folded.WithLabelValues("limit")}
}

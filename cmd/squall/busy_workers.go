package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/squall-sre/squall/detectors"
)

// busyWorkers shows how many workers of each site's origin are busy, for autoscalers: a count of requests does not
// tell when few of them are slow. The engine bounds how many sites there are; those that have gone are deleted.
type busyWorkers struct {
	gauge *prometheus.GaugeVec
	shown map[string]bool
}

func newBusyWorkers(reg prometheus.Registerer) *busyWorkers {
	b := &busyWorkers{shown: map[string]bool{}, gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "squall_origin_busy_workers",
		Help: "Mean number of busy workers of a site's origin in the last minute of event time: at least (lower), at most (upper).",
	}, []string{"site", "bound"})}
	reg.MustRegister(b.gauge)
	return b
}

// set shows the sites of the last pane and no others.
func (b *busyWorkers) set(sites []detectors.Busy) {
	gone := b.shown
	b.shown = make(map[string]bool, len(sites))
	for _, s := range sites {
		b.gauge.WithLabelValues(s.Site, "lower").Set(s.Lower)
		b.gauge.WithLabelValues(s.Site, "upper").Set(s.Upper)
		b.shown[s.Site] = true
		delete(gone, s.Site)
	}
	for site := range gone {
		b.gauge.DeletePartialMatch(prometheus.Labels{"site": site})
	}
}

package pipeline

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// LostLines registers the one family that counts lines which were read and are gone, squall_lines_lost_total, or
// gives the one that is registered already: whoever loses lines counts into it. Its labels are source (empty where
// the lines of several lay together) and reason.
func LostLines(reg prometheus.Registerer) *prometheus.CounterVec {
	lost := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "squall_lines_lost_total",
		Help: "Lines that were read and are neither shipped nor spooled, by reason. What was lost in the spool has no source.",
	}, []string{"source", "reason"})
	if reg == nil {
		return lost
	}
	var known prometheus.AlreadyRegisteredError
	if err := reg.Register(lost); errors.As(err, &known) {
		if there, ok := known.ExistingCollector.(*prometheus.CounterVec); ok {
			return there
		}
	}
	return lost
}

package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/squall-sre/squall/pipeline"
)

// inputStates shows in how many files, or streams, each source is how: a file that is missing or unreadable is a
// state, told as long as it lasts. And how far each is behind in time, as its lines tell it.
type inputStates struct {
	service    *service
	files, lag *prometheus.Desc
}

// states are what pipeline.InputState may say.
var states = []string{"done", stateMisfit, "idle", "missing", pipeline.StateUnmatched, "reading", "unreadable"}

func newInputStates(d *service) inputStates {
	return inputStates{
		d,
		prometheus.NewDesc("squall_source_files", "Files or streams of a source, by state.", []string{"source", "state"}, nil),
		prometheus.NewDesc("squall_source_lag_seconds", "Age of the last line read, by the time that it carries, of the file or stream that is "+
			"furthest behind: those alone count of which whole lines are known to be unread. 0: all that is known is read.", []string{"source"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c inputStates) Describe(to chan<- *prometheus.Desc) {
	to <- c.files
	to <- c.lag
}

// Collect implements prometheus.Collector.
func (c inputStates) Collect(to chan<- prometheus.Metric) {
	now := time.Now()
	for _, in := range c.service.inputs {
		n, lag := map[string]int{}, time.Duration(0)
		for _, s := range in.states() {
			n[s.State]++
			if at, ok := in.road.Newest(s.Stream); ok && s.Behind {
				lag = max(lag, now.Sub(time.Unix(0, at)))
			}
		}
		to <- prometheus.MustNewConstMetric(c.lag, prometheus.GaugeValue, lag.Seconds(), in.name)
		for _, state := range states {
			to <- prometheus.MustNewConstMetric(c.files, prometheus.GaugeValue, float64(n[state]), in.name, state)
		}
	}
}

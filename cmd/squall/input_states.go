package main

import "github.com/prometheus/client_golang/prometheus"

// inputStates shows in how many files, or streams, each input is how: a file that is missing or unreadable is a
// state, told as long as it lasts.
type inputStates struct {
	service *service
	files   *prometheus.Desc
}

// states are what pipeline.InputState may say.
var states = []string{"done", "idle", "missing", "reading", "unreadable"}

func newInputStates(d *service) inputStates {
	return inputStates{d, prometheus.NewDesc("squall_source_files", "Files or streams of a source, by state.", []string{"source", "state"}, nil)}
}

// Describe implements prometheus.Collector.
func (c inputStates) Describe(to chan<- *prometheus.Desc) { to <- c.files }

// Collect implements prometheus.Collector.
func (c inputStates) Collect(to chan<- prometheus.Metric) {
	for _, in := range c.service.inputs {
		n := map[string]int{}
		for _, s := range in.source.States() {
			n[s.State]++
		}
		for _, state := range states {
			to <- prometheus.MustNewConstMetric(c.files, prometheus.GaugeValue, float64(n[state]), in.name, state)
		}
	}
}

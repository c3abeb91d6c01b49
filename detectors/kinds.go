package detectors

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// kinds is the family of detectors: the key is the name in configuration, rules and labels.
var kinds = map[string]func(decode func(any) error) (Detector, error){
	"agent_flood":        newAgentFlood,
	"cache_stampede":     newCacheStampede,
	"client_abandon":     newClientAbandon,
	"error_burst":        newErrorBurst,
	"head_storm":         newHeadStorm,
	"latency":            newLatency,
	"nodes_absent":       newNodesAbsent,
	"probe_failure":      newProbeFailure,
	"ratelimit_backfire": newRatelimitBackfire,
	"restart_burst":      newRestartBurst,
	"retry_loop":         newRetryLoop,
	"saturation":         newSaturation,
	"self_loop":          newSelfLoop,
	"worker_timeout":     newWorkerTimeout,
}

// Names lists the detectors, sorted.
func Names() []string { return slices.Sorted(maps.Keys(kinds)) }

// New builds a detector. decode fills its settings, over the defaults; nil keeps the defaults.
func New(name string, decode func(any) error) (Detector, error) {
	build, ok := kinds[name]
	if !ok {
		return nil, fmt.Errorf("no detector %q: there are %v", name, Names())
	}
	if decode == nil {
		decode = func(any) error { return nil }
	}
	d, err := build(decode)
	if err != nil {
		return nil, fmt.Errorf("detector %s: %w", name, err)
	}
	return d, nil
}

// PlacesOf lists the labels that detections of a kind may have: each has one of them. Nil: there is no such kind.
func PlacesOf(name string) []string {
	d, err := New(name, nil)
	if err != nil {
		return nil
	}
	if d.Scope() == Cluster {
		return []string{"cluster"}
	}
	if _, both := d.(interface{ speaksOfCluster() }); both {
		return []string{"cluster", "site"}
	}
	return []string{"site"}
}

// leave is the share of a threshold under which an active detection ends. What lies between goes on, so that a
// number that trembles around its threshold makes one episode.
const leave = 0.5

// level judges a value against a threshold and the share of it at which an episode ends.
func level(value, threshold, leave float64) Level {
	switch {
	case value >= threshold:
		return Over
	case value >= threshold*leave:
		return Between
	}
	return Below
}

// span checks a detector's window setting.
func span(d time.Duration) error {
	if d < 10*time.Second || d > time.Hour {
		return fmt.Errorf("window %s is not between 10s and 1h", d)
	}
	return nil
}

// positive checks that a threshold can be crossed.
func positive(name string, v float64) error {
	if !(v > 0) {
		return fmt.Errorf("%s must be over 0, not %v", name, v)
	}
	return nil
}

// share checks a setting that is a part of a whole.
func share(name string, v float64) error {
	if !(v > 0 && v <= 1) {
		return fmt.Errorf("%s must be over 0 and at most 1, not %v", name, v)
	}
	return nil
}

func siteLabels(site string) Labels { return Labels{{"site", site}} }

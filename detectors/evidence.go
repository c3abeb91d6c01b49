package detectors

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// Num is a number that may be unknown. The zero value is unknown and is left out of JSON.
type Num struct {
	value float64
	known bool
}

// N is a known number. NaN and infinities are unknown.
func N(v float64) Num { return Num{v, !math.IsNaN(v) && !math.IsInf(v, 0)} }

// Get returns the number, NaN when it is unknown.
func (n Num) Get() float64 {
	if !n.known {
		return math.NaN()
	}
	return n.value
}

func (n Num) rounded() float64 { return math.Round(n.value*1e4) / 1e4 }

// Known tells whether there is a number.
func (n Num) Known() bool { return n.known }

// IsZero makes `omitzero` leave out what is unknown; a known 0 stays.
func (n Num) IsZero() bool { return !n.known }

// MarshalJSON writes at most six significant digits, so that equal evidence gives equal bytes.
func (n Num) MarshalJSON() ([]byte, error) {
	if !n.known {
		return []byte("null"), nil
	}
	return []byte(n.String()), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (n *Num) UnmarshalJSON(b []byte) error {
	*n = Num{}
	if string(b) == "null" {
		return nil
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return fmt.Errorf("read a number: %w", err)
	}
	*n = N(v)
	return nil
}

// GobEncode keeps the number in a snapshot.
func (n Num) GobEncode() ([]byte, error) {
	if !n.known {
		return []byte{}, nil
	}
	return binary.BigEndian.AppendUint64(nil, math.Float64bits(n.value)), nil
}

// GobDecode reads what GobEncode wrote.
func (n *Num) GobDecode(b []byte) error {
	*n = Num{}
	if len(b) == 8 {
		*n = N(math.Float64frombits(binary.BigEndian.Uint64(b)))
	}
	return nil
}

// String writes the number without an exponent, to four decimals, "undetermined" when unknown.
func (n Num) String() string {
	if !n.known {
		return "undetermined"
	}
	return strconv.FormatFloat(n.rounded(), 'f', -1, 64)
}

// Count is a key of a ranking with its weight.
type Count struct {
	Key    string  `json:"key"`
	Count  float64 `json:"count"`            // requests, or worker-seconds where the list says so
	Approx bool    `json:"approx,omitempty"` // the count may be too high: it comes from a sketch over its capacity
	// BaselineRatio is that of a route of a HEAD storm, where what is usual for it is known.
	BaselineRatio Num `json:"baseline_ratio,omitzero"`
}

// Evidence is what a detection rests on. Rates are per minute, times in seconds, ratios 0–1. What does not
// apply or is not known is absent. Text from log lines (agents, routes, samples) is raw here: whoever shows it
// escapes it.
type Evidence struct {
	Requests                   Num             `json:"requests,omitzero"`
	RequestsPerMinute          Num             `json:"requests_per_minute,omitzero"`
	BaselinePerMinute          Num             `json:"baseline_per_minute,omitzero"`
	BaselineRatio              Num             `json:"baseline_ratio,omitzero"`
	BaselineOfAll              bool            `json:"baseline_of_all,omitempty"` // what is usual is that of all HEAD requests, not of Route
	DistinctClients            Num             `json:"distinct_clients,omitzero"` // ≈ above the exact limit
	RequestsPerClientPerMinute Num             `json:"requests_per_client_per_minute,omitzero"`
	DistinctAgents             Num             `json:"distinct_agents,omitzero"`
	TopAgents                  []Count         `json:"top_agents,omitempty"`
	TopRoutes                  []Count         `json:"top_routes,omitempty"`
	DistinctRoutes             Num             `json:"distinct_routes,omitzero"` // of a HEAD storm
	Method                     string          `json:"method,omitempty"`
	Route                      string          `json:"route,omitempty"`
	Status                     map[string]int  `json:"status,omitempty"`
	Abandoned                  Num             `json:"abandoned,omitzero"`
	AbandonedLately            Num             `json:"abandoned_lately,omitzero"` // a minute, in the last third of the window
	AbandonRatio               Num             `json:"abandon_ratio,omitzero"`
	Collateral                 Num             `json:"collateral,omitzero"` // abandoned requests that are not the storm's own
	P99Seconds                 Num             `json:"p99_seconds,omitzero"`
	P99Censored                bool            `json:"p99_censored,omitempty"` // the true p99 is at least this: clients left
	ReachedUpstreamRatio       Num             `json:"reached_upstream_ratio,omitzero"`
	BusyWorkersLower           Num             `json:"busy_workers_lower,omitzero"`
	BusyWorkersUpper           Num             `json:"busy_workers_upper,omitzero"`
	PoolWorkers                Num             `json:"pool_workers,omitzero"`
	PoolLearned                bool            `json:"pool_learned,omitempty"` // from what php-fpm logged
	WorkerSecondsLower         Num             `json:"worker_seconds_lower,omitzero"`
	WorkerSecondsUpper         Num             `json:"worker_seconds_upper,omitzero"`
	WorkerSecondsShare         Num             `json:"worker_seconds_share,omitzero"` // of the site's, by the upper bound: it does not hang on how patient clients are
	CounterfactualBusyWorkers  Num             `json:"counterfactual_busy_workers,omitzero"`
	BotShare                   Num             `json:"bot_share,omitzero"`     // of the agent's requests, by its class
	BrowserShare               Num             `json:"browser_share,omitzero"` // of the requests, by class
	RepeatFactor               Num             `json:"repeat_factor,omitzero"` // of the method and route where they are told, else of all requests
	Costs                      []ClassCost     `json:"costs,omitempty"`        // of the site's classes, the costliest first
	TTLSeconds                 Num             `json:"ttl_seconds,omitzero"`
	FanOut                     Num             `json:"fan_out,omitzero"`
	Limited                    Num             `json:"limited,omitzero"`
	StaticShare                Num             `json:"static_share,omitzero"`
	Errors5xx                  Num             `json:"errors_5xx,omitzero"`
	Restarts                   Num             `json:"restarts,omitzero"` // those out of memory too
	Reasons                    map[string]int  `json:"reasons,omitempty"`
	Nodes                      Num             `json:"nodes,omitzero"`
	NodesAbsent                Num             `json:"nodes_absent,omitzero"` // of the fleet's, in the mean
	Namespaces                 Num             `json:"namespaces,omitzero"`
	OOMKilled                  Num             `json:"oom_killed,omitzero"`
	Looping                    Num             `json:"looping,omitzero"` // containers that were restarted again and again
	Scope                      []Share         `json:"scope,omitempty"`  // what the restarted containers share, the widest of each kind
	PeriodSeconds              Num             `json:"period_seconds,omitzero"`
	ErrorRatio                 Num             `json:"error_ratio,omitzero"`
	LimitedOwn                 Num             `json:"limited_own,omitzero"`
	LimitedAllowed             Num             `json:"limited_allowed,omitzero"`
	LimitedStaticQuery         Num             `json:"limited_static_query,omitzero"` // static files with a query string
	StaticQuery                Num             `json:"static_query,omitzero"`         // of them asked for
	StaticPlain                Num             `json:"static_plain,omitzero"`         // static files asked for without a query string
	LimitedStaticPlain         Num             `json:"limited_static_plain,omitzero"` // of them refused
	LimitedByUpstream          Num             `json:"limited_by_upstream,omitzero"`  // refused although an upstream was contacted
	LimitedClients             Num             `json:"limited_clients,omitzero"`      // addresses that were refused static files with a query
	Zones                      []Count         `json:"zones,omitempty"`               // of limiters, by lines of nginx's error log
	Excess                     Num             `json:"excess,omitzero"`               // the highest that nginx logged
	PHPTimeouts                Num             `json:"php_timeouts,omitzero"`         // requests that php-fpm killed
	MaxChildrenReached         Num             `json:"max_children_reached,omitzero"` // times
	MaxChildren                Num             `json:"max_children,omitzero"`         // the highest setting logged
	StallSeconds               Num             `json:"stall_seconds,omitzero"`        // the longest that a request held a worker, or a probe waited
	ProbesFailed               Num             `json:"probes_failed,omitzero"`        // at least
	Containers                 Num             `json:"containers,omitzero"`           // whose probes failed
	Probe                      string          `json:"probe,omitempty"`               // Liveness, Readiness or Startup
	ProbePeriodSeconds         Num             `json:"probe_period_seconds,omitzero"` // configured, or as failures followed each other
	KillBudgetSeconds          Num             `json:"kill_budget_seconds,omitzero"`  // period × failureThreshold
	MissesPerMinute            Num             `json:"misses_per_minute,omitzero"`    // of the cache: MISS and EXPIRED
	UsualMissesPerMinute       Num             `json:"usual_misses_per_minute,omitzero"`
	MissShare                  Num             `json:"miss_share,omitzero"` // of what the cache told, BYPASS left out
	UsualMissShare             Num             `json:"usual_miss_share,omitzero"`
	MissedURLs                 Num             `json:"missed_urls,omitzero"`        // different ones
	MissedRoutes               Num             `json:"missed_routes,omitzero"`      // different ones
	Retries                    Num             `json:"retries,omitzero"`            // requests within seconds of the client's own timeout
	RetryingClients            Num             `json:"retrying_clients,omitzero"`   // addresses that make them
	TopPrefixes                []Count         `json:"top_prefixes,omitempty"`      // address ranges (/24, /48) by requests of the site, at least
	Discriminators             []Discriminator `json:"discriminators,omitempty"`    // of a storm from the rest, the best first
	RuleCoverage               []RuleCoverage  `json:"rule_coverage,omitempty"`     // of the rules in place
	RulesCaughtLower           Num             `json:"rules_caught_lower,omitzero"` // of the storm's damage, by all of them
	RulesCaughtUpper           Num             `json:"rules_caught_upper,omitzero"`
	Samples                    []string        `json:"samples,omitempty"`
}

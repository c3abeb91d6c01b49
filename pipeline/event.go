package pipeline

// EventKind is what happened to a process, a container or a limiter.
type EventKind string

// The kinds of events, by the names that `squall parse` prints.
const (
	ContainerKill    EventKind = "container_kill"    // kubelet stops a container (TERM, then KILL after Grace)
	ContainerRestart EventKind = "container_restart" // a pod's status says that a container ended and was started again
	LivenessRestart  EventKind = "liveness_restart"  // kubelet decided to restart after failed liveness or startup probes
	ProbeFailed      EventKind = "probe_failed"
	BackOff          EventKind = "backoff"
	OOM              EventKind = "oom"
	PHPTimeout       EventKind = "php_timeout" // php-fpm killed a request (request_terminate_timeout)
	PHPSlow          EventKind = "php_slow"
	PHPMaxChildren   EventKind = "php_max_children"
	PHPBusy          EventKind = "php_busy"
	PHPChildExit     EventKind = "php_child_exit"
	LimitRequest     EventKind = "limit_request"    // a line of nginx's error log: limiting or delaying requests
	UpstreamTimeout  EventKind = "upstream_timeout" // a line of nginx's error log
	NormalStop       EventKind = "stop"             // a container was stopped on purpose (rollout, scale-down)
)

// EventKinds lists them all, for metrics that start at 0.
var EventKinds = []EventKind{
	ContainerKill, ContainerRestart, LivenessRestart, ProbeFailed, BackOff, OOM, PHPTimeout, PHPSlow, PHPMaxChildren,
	PHPBusy, PHPChildExit, LimitRequest, UpstreamTimeout, NormalStop,
}

// An Event is something other than a request that a log line tells. Events are rare, so their strings are
// copies and may be kept. Empty strings and zero numbers mean that the line does not say.
type Event struct {
	Time int64 // ns since the epoch; 0 when the line carries no time
	Kind EventKind

	Node, Namespace, Pod, UID, Container string
	Image                                string
	Probe                                string // Liveness, Readiness or Startup
	Reason                               string // Completed, Error, OOMKilled, … of a terminated container
	ExitCode                             int
	HasExit                              bool  // ExitCode and Reason were given
	Count                                int   // how often, for repeated objects: the object's running count
	Restarts                             int   // a container's restartCount
	Grace                                int   // seconds between TERM and KILL
	FinishedAt                           int64 // ns: when the container ended
	Population                           Population

	Pool    string // php-fpm pool
	PID     int
	Script  string
	Request string
	Seconds float64 // how long the request had run
	Limit   int     // pm.max_children
	Signal  int
	Process string // the command of an OOM victim
	Cgroup  Tri    // of an OOM: whether a cgroup's limit was hit (a container's), or the node's memory was short
	Zone    string // limiter zone
	Excess  float64
	Client  string // the address that a limiter or a timeout names
	Host    string // as the client asked for it, without port
	Message string // the text of the line or of the event, cut to 512 bytes
}

// A Population is how many containers there are where one was restarted: what the share of the restarted ones is to
// be held against. Zeros: the line does not say.
type Population struct {
	All       int `json:"all"`       // containers that are watched
	Node      int `json:"node"`      // of them on the container's node
	Namespace int `json:"namespace"` // in its namespace
	Image     int `json:"image"`     // of its image
}

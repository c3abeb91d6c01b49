package simulate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// A Cluster is containers with their own php-fpm behind their own nginx, whose probes pass through PHP, and a kubelet
// that kills those that do not answer. While something that PHP waits for hangs, a probe takes a worker until php-fpm
// kills the request: what the log then tells follows from the probes' periods.
type Cluster struct {
	Nodes      int
	Namespaces []string
	Containers int // with php-fpm, spread over nodes and namespaces
	Hang, For  time.Duration
	Liveness   Probe
	Readiness  Probe
	Terminate  time.Duration   // php-fpm's request_terminate_timeout; its clock ticks three times in it
	OOM        []time.Duration // when a container beside them ran out of memory
	Rollouts   []Rollout
}

// A Probe is a container's probe, as in its pod's spec.
type Probe struct {
	Period, Timeout time.Duration
	Failures        int
}

// A Rollout replaces pods by new ones: nothing of it is a restart.
type Rollout struct {
	At   time.Duration
	Pods int
}

// ClusterTruth is what happened in a cluster.
type ClusterTruth struct {
	Restarts  int       `json:"restarts"` // after failed liveness probes
	OOMKilled int       `json:"oom_killed"`
	FirstKill time.Time `json:"first_kill"`
	LastEnd   time.Time `json:"last_end"`   // of a container that was killed
	Killed    int       `json:"php_killed"` // requests, by php-fpm
}

func (c *Cluster) check() error {
	if c.Nodes <= 0 || len(c.Namespaces) == 0 || c.Containers < 0 {
		return errors.New("needs nodes and namespaces")
	}
	for _, p := range []Probe{c.Liveness, c.Readiness} {
		if p.Period <= 0 || p.Timeout <= 0 || p.Failures <= 0 {
			return errors.New("a probe needs a period, a timeout and a threshold")
		}
	}
	if c.Terminate <= 0 {
		return errors.New("php-fpm needs a request_terminate_timeout")
	}
	return nil
}

// A notice is a line that no request wrote.
type notice struct {
	at     int64
	format string
	line   []byte
}

// reports holds one line a format in which a cluster tells what happened.
var reports = map[string]func(zone *time.Location, x *happening) []byte{
	"pod_status":     podStatus,
	"k8s_event_json": k8sEvent,
	"kubelet":        kubelet,
	"php_fpm":        phpFPM,
}

// Reports lists the formats in which a cluster is told, sorted.
func Reports() []string { return slices.Sorted(maps.Keys(reports)) }

// The kinds of happenings.
const (
	unhealthy = "Unhealthy" // a probe failed
	killing   = "Killing"   // kubelet's decision
	stopping  = "Stopping"  // on purpose
	restarted = "restarted" // a container ended and was started again
	created   = "created"   // a new pod
	timedOut  = "timed out" // php-fpm killed a request
	signalled = "SIGTERM"   // php-fpm was told to end
)

// A happening is what is told of a container.
type happening struct {
	at   int64
	kind string
	of   *box

	probe    string // of unhealthy and killing
	count    int    // of unhealthy: how often by now
	reason   string // of restarted
	exit     int
	restarts int
	seconds  float64 // of timed out
}

// box is a container.
type box struct{ node, namespace, pod, uid, container string }

// crowd is a cluster at work.
type crowd struct {
	*Cluster
	start, hang, calm int64 // ns: the run's start, and between what PHP hangs
	zone              *time.Location
	rng               *rand.Rand
	truth             ClusterTruth
	told              []happening
}

// run simulates each container by itself and merges what is told of them.
func (c *Cluster) run(sc *Scenario, seed uint64) ([]notice, *ClusterTruth) {
	w := &crowd{Cluster: c, start: sc.Start.UnixNano(), zone: sc.Zone, rng: rand.New(rand.NewPCG(seed, 8<<32))}
	w.hang = w.start + int64(c.Hang)
	w.calm = w.hang + int64(c.For)
	for i := range c.Containers {
		w.container(i)
	}
	for i, at := range c.OOM {
		w.truth.OOMKilled++
		w.tell(happening{at: w.start + int64(at), kind: restarted, of: w.box(i, "worker"), reason: "OOMKilled", exit: 137, restarts: 3})
	}
	for _, r := range c.Rollouts {
		for i := range r.Pods {
			at := w.start + int64(r.At) + int64(i)*4e9
			w.tell(happening{at: at, kind: created, of: w.box(i, "api")})
			w.tell(happening{at: at + 3e9, kind: stopping, of: w.box(i, "api")})
		}
	}
	end := w.start + int64(sc.Duration)
	slices.SortStableFunc(w.told, func(a, b happening) int { return cmp.Compare(a.at, b.at) })
	var notices []notice
	for i := range w.told {
		for _, format := range Reports() {
			if w.told[i].at >= end {
				continue
			}
			if line := reports[format](w.zone, &w.told[i]); line != nil {
				notices = append(notices, notice{at: w.told[i].at, format: format, line: line})
			}
		}
	}
	return notices, &w.truth
}

func (w *crowd) tell(x happening) { w.told = append(w.told, x) }

func (w *crowd) box(i int, name string) *box {
	return &box{
		node: fmt.Sprintf("node-%d", 1+i%w.Nodes), namespace: w.Namespaces[i%len(w.Namespaces)],
		pod: fmt.Sprintf("%s-%x-%05x", name, 0x6b7f+i/len(w.Namespaces), w.rng.IntN(1<<20)), uid: fmt.Sprintf("%08x-0000", w.rng.Uint32()), container: name,
	}
}

// container asks the probes of one container while PHP hangs: both in their periods, each with its own phase.
func (w *crowd) container(i int) {
	b := w.box(i, "web")
	tick := int64(w.Terminate) / 3
	clock := w.rng.Int64N(tick) // php-fpm's
	killed := w.fail(b, "Liveness", w.Liveness, w.hang+w.rng.Int64N(int64(w.Liveness.Period)), w.calm)
	end := w.calm
	if killed > 0 {
		end = killed
	}
	first := w.hang + w.rng.Int64N(int64(w.Readiness.Period))
	w.fail(b, "Readiness", Probe{w.Readiness.Period, w.Readiness.Timeout, 1 << 30}, first, end)
	for at := first; at < w.calm; at += int64(w.Readiness.Period) {
		due := at + int64(w.Terminate)
		if kill := due + (clock-due%tick+tick)%tick + w.rng.Int64N(2e6); kill < end {
			w.truth.Killed++
			w.tell(happening{at: kill, kind: timedOut, of: b, seconds: float64(kill-at) / 1e9})
		}
	}
	if killed == 0 {
		return
	}
	w.truth.Restarts++
	if at := time.Unix(0, killed).UTC(); w.truth.FirstKill.IsZero() || at.Before(w.truth.FirstKill) {
		w.truth.FirstKill = at
	}
	w.tell(happening{at: killed, kind: killing, of: b, probe: "Liveness"})
	w.tell(happening{at: killed + 1e8, kind: signalled, of: b})
	ended := killed + 1e9 + w.rng.Int64N(8e9) // php-fpm lets what runs end, up to process_control_timeout
	if at := time.Unix(0, ended).UTC(); at.After(w.truth.LastEnd) {
		w.truth.LastEnd = at
	}
	w.tell(happening{at: ended, kind: restarted, of: b, reason: "Completed", exit: 0, restarts: 1 + i%3})
}

// fail asks a probe from first on until PHP answers again: it gives when kubelet decides to kill, 0 for never.
func (w *crowd) fail(b *box, name string, p Probe, first, until int64) int64 {
	for n, at := 1, first; at+int64(p.Timeout) < until; n, at = n+1, at+int64(p.Period) {
		gone := at + int64(p.Timeout)
		w.tell(happening{at: gone, kind: unhealthy, of: b, probe: name, count: n})
		if n == p.Failures {
			return gone + 1e6
		}
	}
	return 0
}

// podStatus writes what a watch of pods gives.
func podStatus(_ *time.Location, x *happening) []byte {
	if x.kind != restarted && x.kind != created {
		return nil
	}
	type obj = map[string]any
	state := obj{}
	if x.kind == restarted {
		state["terminated"] = obj{"reason": x.reason, "exitCode": x.exit, "finishedAt": time.Unix(0, x.at).UTC().Format(time.RFC3339)}
	}
	return jsonLine(obj{"type": map[bool]string{true: "MODIFIED", false: "ADDED"}[x.kind == restarted], "object": obj{
		"kind": "Pod", "metadata": obj{"name": x.of.pod, "namespace": x.of.namespace, "uid": x.of.uid},
		"spec": obj{"nodeName": x.of.node},
		"status": obj{"containerStatuses": []obj{{
			"name": x.of.container, "image": "registry.example/" + x.of.container + ":1.42", "restartCount": x.restarts, "lastState": state,
		}}},
	}})
}

// k8sEvent writes Events as the API keeps them: a repeated one again, with its count.
func k8sEvent(_ *time.Location, x *happening) []byte {
	reason, text := x.kind, ""
	switch x.kind {
	case unhealthy:
		text = x.probe + ` probe failed: Get "http://10.42.3.7:80/liveness": context deadline exceeded`
	case killing:
		text = "Container " + x.of.container + " failed liveness probe, will be restarted"
	case stopping:
		reason, text = killing, "Stopping container "+x.of.container
	default:
		return nil
	}
	type obj = map[string]any
	return jsonLine(obj{
		"kind": "Event", "apiVersion": "v1", "metadata": obj{"namespace": x.of.namespace, "name": x.of.pod + ".17c"},
		"involvedObject": obj{
			"kind": "Pod", "namespace": x.of.namespace, "name": x.of.pod, "uid": x.of.uid, "fieldPath": "spec.containers{" + x.of.container + "}",
		},
		"reason": reason, "message": text, "source": obj{"component": "kubelet", "host": x.of.node}, "count": max(1, x.count),
		"lastTimestamp": time.Unix(0, x.at).UTC().Format(time.RFC3339),
	})
}

func jsonLine(v any) []byte {
	line, err := json.Marshal(v)
	if err != nil {
		return nil // maps of strings and numbers have no error
	}
	return append(line, '\n')
}

// kubelet writes its log. Its times have no year.
func kubelet(zone *time.Location, x *happening) []byte {
	at := time.Unix(0, x.at).In(zone).Format("0102 15:04:05.000000")
	pod := x.of.namespace + "/" + x.of.pod
	switch x.kind {
	case unhealthy:
		return fmt.Appendf(nil, "I%s    2480 prober.go:107] \"Probe failed\" probeType=%q pod=%q podUID=%q containerName=%q probeResult=\"failure\" output=\"Get \\\"http://10.42.3.7:80/liveness\\\": context deadline exceeded\"\n",
			at, x.probe, pod, x.of.uid, x.of.container)
	case killing:
		return fmt.Appendf(nil, "I%s    2480 kuberuntime_manager.go:1027] \"Message for Container of pod\" containerName=%q containerStatusID={\"Type\":\"containerd\",\"ID\":\"6a1f\"} pod=%q containerMessage=\"Container %s failed liveness probe, will be restarted\"\n",
			at, x.of.container, pod, x.of.container)
	}
	return nil
}

// phpFPM writes the error log of php-fpm.
func phpFPM(zone *time.Location, x *happening) []byte {
	at := time.Unix(0, x.at).In(zone).Format("02-Jan-2006 15:04:05")
	switch x.kind {
	case timedOut:
		return fmt.Appendf(nil, "[%s] WARNING: [pool www] child %d, script '/var/www/html/public/index.php' (request: \"GET /index.php\") execution timed out (%.6f sec), terminating\n",
			at, 20+x.at/1e9%40, x.seconds)
	case signalled:
		return fmt.Appendf(nil, "[%s] NOTICE: Terminating ...\n", at)
	}
	return nil
}

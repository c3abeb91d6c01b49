package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	kuberest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/squall-sre/squall/pipeline"
)

// kubernetesConfig is the configuration of the kind kubernetes.
type kubernetesConfig struct {
	Common     `yaml:",inline"`
	Kubeconfig string   `yaml:"kubeconfig"` // a file; "": the service account of the pod that squall runs in
	Context    string   `yaml:"context"`    // of the kubeconfig; "": its current one
	Namespaces []string `yaml:"namespaces"` // to watch; none: the whole cluster
	Lease      string   `yaml:"lease"`      // namespace/name; of several squall with it the holder watches
	QPS        float32  `yaml:"qps"`        // requests a second to the API, beyond the burst
	Burst      int      `yaml:"burst"`
}

const (
	maxNamespaces = 64 // each costs three watches
	// kubernetesLateness is how far behind kubelet's word a Pod's status may come.
	kubernetesLateness = 15 * time.Second
)

// newKubernetes builds the kind kubernetes: what the API of one cluster tells of restarts. One squall watches a
// cluster; two that do tell each restart twice, which detection counts once and Loki keeps twice. With lease several
// may stand by: the holder of that Lease watches, and another goes on within 15 s when it dies.
//
// Two sorts of JSON lines come of it, which the format kubernetes reads:
//
//   - {"type":"RESTARTED","time":…,"restarts":2,"object":{Pod}} when a container's restartCount has grown: by how
//     much, with the last state, the only one that the API keeps. Two restarts between two looks have one known
//     reason. A Pod that is new (a rollout), evicted or deleted is none.
//   - {"kind":"Event",…} for warnings, and for kubelet's word that it kills a container.
//
// A restart is a stream of one line, named by Pod, container and restartCount: so the positions tell after a start
// of squall which restarts were told before, and what was missed meanwhile is told with its own time. Events have
// a stream for each minute: after a start those of the last known minute may be told twice. At the very first
// start, what ended before is history and not told. Who takes a Lease over from another host begins where that one last
// renewed it, less the lateness: what ended in these seconds may be told by both, and of a container that was restarted
// several times in them, the last.
func newKubernetes(decode func(any) error, rt Runtime) (Source, error) {
	cfg := kubernetesConfig{Common: defaultCommon(rt), QPS: 5, Burst: 10}
	cfg.Format, cfg.Lateness = "kubernetes", kubernetesLateness
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	k := &kubernetes{cfg: cfg, rt: rt, meter: rt.Metrics.of(cfg.Name), log: rt.Logger.With(zap.String("input", cfg.Name))}
	k.connect = k.client
	k.host, _ = os.Hostname() // one without a name is told apart by the time
	k.states.input = cfg.Name
	return k, nil
}

func (c *kubernetesConfig) check() error {
	switch {
	case c.QPS <= 0 || c.QPS > 1000:
		return fmt.Errorf("qps %g: use more than 0 and at most 1000", c.QPS)
	case c.Burst < 1 || c.Burst > 10000:
		return fmt.Errorf("burst %d: use 1 to 10000", c.Burst)
	case c.Context != "" && c.Kubeconfig == "":
		return errors.New("context is given without kubeconfig")
	case len(c.Namespaces) > maxNamespaces:
		return fmt.Errorf("%d namespaces: at most %d; none watches the whole cluster", len(c.Namespaces), maxNamespaces)
	}
	if c.Lease != "" {
		if _, _, err := leaseName(c.Lease); err != nil {
			return err
		}
	}
	for i, ns := range c.Namespaces {
		if ns == "" || strings.ContainsAny(ns, "/ \t\n") || slices.Contains(c.Namespaces[:i], ns) {
			return fmt.Errorf("namespaces: %q is empty, no name or given twice", ns)
		}
	}
	return c.Common.check()
}

// kubernetes is the kind kubernetes.
type kubernetes struct {
	cfg     kubernetesConfig
	rt      Runtime
	meter   *meter
	log     *zap.Logger
	connect func() (clusterAPI, error)
	host    string // by which a Lease knows this squall
	states  watchStates
}

func (k *kubernetes) Common() Common { return k.cfg.Common }

func (k *kubernetes) States() []pipeline.InputState { return k.states.list() }

// client reads the access to the API anew: a kubeconfig or a service account may appear later, or change.
func (k *kubernetes) client() (clusterAPI, error) {
	cfg, err := k.access()
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst, cfg.UserAgent = k.cfg.QPS, k.cfg.Burst, "squall"
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.WarningHandlerWithContext = kuberest.NoWarnings{}
	return newCoreAPI(cfg)
}

func (k *kubernetes) access() (*kuberest.Config, error) {
	if k.cfg.Kubeconfig == "" {
		return kuberest.InClusterConfig()
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: k.cfg.Kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: k.cfg.Context},
	).ClientConfig()
}

// accessRetry is how long it takes until missing access to the API is looked for again.
const accessRetry = 5 * time.Second

// Run implements pipeline.Source.
func (k *kubernetes) Run(ctx context.Context, positions pipeline.Positions, emit pipeline.Emit) error {
	ctx = klog.NewContext(ctx, logr.Discard())
	defer k.states.clear()
	core := k.reach(ctx)
	switch {
	case core == nil:
		return nil
	case k.cfg.Lease != "":
		return k.stand(ctx, core, positions, emit)
	}
	return k.lead(ctx, core, positions, emit, nil, predecessor{})
}

// lead watches until ctx ends: each kind of object and namespace has one goroutine, which lists and watches. With a
// Lease it tells as long as that is held.
func (k *kubernetes) lead(ctx context.Context, core clusterAPI, positions pipeline.Positions, emit pipeline.Emit, l *lease, before predecessor) error {
	outer := ctx
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t := newTeller(k, positions, func(b *pipeline.Block) error {
		if err := emit(b); err != nil {
			return err
		}
		k.meter.count(b)
		return nil
	}, stop)
	if l != nil {
		t.holds = l.holds
	}
	if before.other {
		t.since, t.shared = min(t.now, before.until)-int64(k.cfg.Lateness), true
	}
	var watches sync.WaitGroup
	for _, w := range k.watches(core, t) {
		watches.Go(func() { w.run(ctx) })
	}
	watches.Wait()
	err := t.end()
	if outer.Err() != nil {
		return nil
	}
	return err
}

// reach waits for access to the API; nil when ctx ended before.
func (k *kubernetes) reach(ctx context.Context) clusterAPI {
	for {
		core, err := k.connect()
		if err == nil {
			k.states.forget("access")
			return core
		}
		k.changed("access", "missing", err)
		retry := time.NewTimer(accessRetry)
		select {
		case <-ctx.Done():
			retry.Stop()
			return nil
		case <-retry.C:
		}
	}
}

// changed notes the state of one watch, and logs when it is another than before.
func (k *kubernetes) changed(path, state string, err error) {
	if err != nil {
		k.meter.failed(errOpen)
	}
	if !k.states.set(path, state, err) {
		return
	}
	fields := []zap.Field{zap.String("path", path), zap.String("state", state)}
	if err != nil {
		k.log.Warn("the Kubernetes API does not answer, trying on", append(fields, zap.Error(err))...)
		return
	}
	k.log.Info("watching the Kubernetes API", fields...)
}

// watchStates is what each watch is doing. It is safe for concurrent use.
type watchStates struct {
	input string
	mu    sync.Mutex
	of    map[string]pipeline.InputState
}

// maxStateErr bounds what is kept of an error, in bytes: a server's answer may be long.
const maxStateErr = 512

// set tells whether the state or its cause is new.
func (s *watchStates) set(path, state string, err error) bool {
	next := pipeline.InputState{Input: s.input, Path: path, State: state}
	if err != nil {
		next.Err = clipText(err.Error(), maxStateErr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]pipeline.InputState{}
	}
	old, known := s.of[path]
	s.of[path] = next
	return !known || old.State != next.State || errorSort(old.Err) != errorSort(next.Err)
}

// errorSort is the cause that an error names. The rest of it may be another each time: a port, an order of keys.
func errorSort(text string) string {
	for _, sort := range []string{
		"refused", "nauthorized", "forbidden", "certificate", "timeout", "no such host", "no such file", "EOF",
	} {
		if strings.Contains(text, sort) {
			return sort
		}
	}
	return ""
}

func (s *watchStates) forget(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, path)
}

func (s *watchStates) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.of)
}

func (s *watchStates) list() (states []pipeline.InputState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.of {
		states = append(states, st)
	}
	slices.SortFunc(states, func(a, b pipeline.InputState) int { return cmp.Compare(a.Path, b.Path) })
	return states
}

// A teller writes lines into streams, one at a time, and knows which restarts and events were told before this
// run began.
type teller struct {
	input  string
	labels map[string]string
	run    string        // sets this run's streams of events apart
	end0   func()        // ends the run when the road has ended
	emit   pipeline.Emit // of this run

	mu     sync.Mutex
	told   map[string]int // uid/container: the restartCount that was told before this run
	now    int64          // ns: when this run began
	since  int64          // ns: what ended before was told before this run, or is history
	shared bool           // another told meanwhile: what this one told before is not all
	holds  func() bool    // whether this one is to tell; nil: it is
	events *pipeline.Stream
	minute int64
	offset int64
	failed error
}

const (
	streamPrefix = "kubernetes/"
	eventsPart   = "events"
	// eventSlack is how long an event may take from its time to its arrival.
	eventSlack = int64(time.Minute)
)

func newTeller(k *kubernetes, positions pipeline.Positions, emit pipeline.Emit, stop func()) *teller {
	now := k.rt.Now().UnixNano()
	t := &teller{
		input: k.cfg.Name, labels: k.cfg.Labels, run: strconv.FormatInt(now, 36), end0: stop, emit: emit,
		told: map[string]int{}, now: now, since: now - int64(k.cfg.Lateness), minute: -1,
	}
	newest := int64(-1)
	for _, id := range positions.Streams(k.cfg.Name) {
		rest, ours := strings.CutPrefix(id, t.prefix())
		parts := strings.Split(rest, "/")
		if !ours || len(parts) != 3 {
			continue
		}
		if parts[0] == eventsPart {
			if minute, err := strconv.ParseInt(parts[1], 10, 64); err == nil {
				newest = max(newest, minute*int64(time.Minute))
			}
			continue
		}
		if count, err := strconv.Atoi(parts[2]); err == nil {
			key := parts[0] + "/" + parts[1]
			t.told[key] = max(t.told[key], count)
		}
	}
	if newest >= 0 {
		t.since = min(t.since, newest-eventSlack)
	}
	return t
}

func (t *teller) prefix() string { return streamPrefix + t.input + "/" }

// restart tells of a container's restarts: the line is a stream of its own.
func (t *teller) restart(r *restarted, line []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holds != nil && !t.holds() {
		return // another tells it
	}
	t.put(&pipeline.Block{
		Stream: &pipeline.Stream{
			Input: t.input, ID: t.prefix() + r.uid + "/" + r.container + "/" + strconv.Itoa(int(r.count)),
			Path: "pods/" + r.namespace + "/" + r.pod + "/" + r.container, Labels: t.labels,
			Node: r.node, Namespace: r.namespace, Pod: r.pod, Container: r.container, Restart: int(r.count),
		},
		Data: line, To: int64(len(line)), Last: true,
	})
}

// event tells of an Event. Its stream is that of the newest minute that an event has told.
func (t *teller) event(at int64, line []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holds != nil && !t.holds() {
		return // another tells it
	}
	if minute := max(at, 0) / int64(time.Minute); minute > t.minute || t.events == nil {
		t.endEvents()
		t.minute, t.offset = max(minute, t.minute), 0
		t.events = &pipeline.Stream{
			Input: t.input, ID: t.prefix() + eventsPart + "/" + strconv.FormatInt(t.minute, 10) + "/" + t.run,
			Path: "events", Labels: t.labels,
		}
	}
	from := t.offset
	t.offset += int64(len(line))
	t.put(&pipeline.Block{Stream: t.events, Data: line, From: from, To: t.offset})
}

func (t *teller) endEvents() {
	if t.events != nil {
		t.put(&pipeline.Block{Stream: t.events, From: t.offset, To: t.offset, Last: true})
		t.events = nil
	}
}

// put hands a block on, until the road has ended.
func (t *teller) put(b *pipeline.Block) {
	if t.failed != nil {
		return
	}
	if err := t.emit(b); err != nil {
		t.failed = err
		t.end0()
	}
}

// end ends the streams. Its error is the road's.
func (t *teller) end() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endEvents()
	return t.failed
}

// clipText cuts text to at most n bytes, between two characters.
func clipText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xC0 == 0x80 {
		n--
	}
	return text[:n]
}

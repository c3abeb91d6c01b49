package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/alerts/report"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/loki"
	"github.com/squall-sre/squall/pipeline/source"
	"github.com/squall-sre/squall/pipeline/spool"
)

// runOptions are the flags of `squall run`.
type runOptions struct {
	config, level string
	listen        string
	profiles      bool
	aggregate     bool // judge what the nodes of a fleet count, in place of sources
}

// newRunCommand makes `squall run`: the daemon.
func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "tail logs, detect storms, ship the lines, and page when clients are hurt",
		Long: "run is the daemon. SIGHUP or POST /-/reload loads the configuration again: a file with a fault changes\n" +
			"nothing. SIGTERM ends it within 10 seconds; what was not shipped is shipped after the next start.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			load := func() (*Config, error) {
				c, err := loadConfig(o.config, os.LookupEnv)
				if err != nil {
					return nil, err
				}
				if o.listen != "" {
					c.Web.Listen = o.listen
				}
				return c, usageIf(c.RequireSources())
			}
			if o.config == "" {
				return usageError(errNoConfig)
			}
			return serve(cmd.Context(), o, load, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	o.flags(cmd)
	return cmd
}

// flags are those of every daemon.
func (o *runOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "configuration `FILE`")
	f.StringVar(&o.level, "log.level", "info", "`LEVEL` of the log on standard error: debug, info, warn or error")
	f.StringVar(&o.listen, "web.listen-address", "", "`ADDRESS` of the HTTP server, over the configuration's")
	f.BoolVar(&o.profiles, "web.enable-pprof", false, "serve /debug/pprof")
}

func usageIf(err error) error {
	if err == nil {
		return nil
	}
	return usageError(err)
}

// serve runs services until ctx ends: the first, and after each reload another over the same spool.
//
//	source ──blocks──> road ──work──> judge ──alerts──> dispatcher ──> Alertmanager, webhook, stdout
//	                                    │
//	                                    └──batches──> spool ──> shipper ──> Loki
func serve(ctx context.Context, o runOptions, load func() (*Config, error), stdin io.Reader, stdout io.Writer) error {
	out := newLogWriter(os.Stderr)
	log, err := newLogger(out, isTerminal(os.Stderr), o.level)
	if err != nil {
		return usageError(err)
	}
	defer log.Sync() //nolint:errcheck // a terminal cannot be synced
	c, err := load()
	if err != nil {
		return err
	}
	soft := int64(softMemory)
	if o.aggregate { // what it holds grows with the fleet
		easeCollector(aggregateCollector)
		soft = math.MaxInt64
	}
	memory := boundMemory(log, soft)
	for _, w := range c.sourceWarnings() {
		log.Warn(w)
	}
	// A reader of standard output, or a terminal, that has gone must not end the daemon: its write fails, and that is
	// all. (Notify, not Ignore: what is started from here would inherit an ignored signal.)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	process := prometheus.NewRegistry()
	process.MustRegister(out.total, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		versioncollector.NewCollector("squall"))
	store, err := spool.Open(ctx, spool.Config{
		Dir: c.Spool.Dir, MaxBytes: int64(c.Spool.MaxBytes), MaxAge: c.Spool.MaxAge, Log: log.Named("spool"), Registerer: process,
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // it was told to end while it started
	case err != nil:
		return fmt.Errorf("open the spool: %w", err)
	}
	closing, closed := outlive(ctx, closeGrace)
	defer closed()
	defer closeSpool(closing, store, log)
	unreadable := newUnreadable(process)
	outbox, err := notify.OpenOutbox(ctx, bucketKV{store, stateBucket}, log)
	if err != nil {
		unreadable.WithLabelValues(outboxState).Inc()
		log.Error("what receivers were told is not known: they may be told again", zap.Error(err))
	}
	s := &server{
		options: o, spool: c.Spool, web: c.Web, fleet: c.Fleet, load: load, log: log, store: store, outbox: outbox, unreadable: unreadable, stdin: stdin, stdout: stdout,
		reloads: make(chan chan error), accounts: newAccounts(process), kept: newIncidentBook(store), descriptors: openFiles(),
	}
	if err := s.joinFleet(ctx, c, process); err != nil {
		return err
	}
	defer s.leaveFleet()
	first, err := s.build(c)
	if err != nil {
		return err
	}
	s.current.Store(first)
	s.reloaded = newReloadMetrics(process)
	web, err := newWebServer(webServerConfig{
		Web: c.Web, Profiles: o.profiles, State: s, Log: log.Named("web"),
		Gatherer: prometheus.Gatherers{process, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			return s.current.Load().registry.Gather()
		})},
	})
	if err != nil {
		return err
	}
	return s.group(ctx, web, memory)
}

// group runs the parts of the process until one of them ends.
func (s *server) group(ctx context.Context, web *webServer, memory memoryBound) error {
	system := systemd{turned: func() bool { return s.current.Load().beat.Swap(false) }, log: s.log.Named("systemd")}

	var g run.Group
	add := func(work func(context.Context) error) {
		ctx, cancel := context.WithCancel(ctx)
		g.Add(func() error { return work(ctx) }, func(error) { cancel() })
	}
	add(func(ctx context.Context) error { return s.run(ctx, system) })
	add(web.Run)
	add(memory.run)
	add(system.Run)
	add(func(ctx context.Context) error { return s.hangups(ctx) })
	if s.node != nil {
		add(s.node.run)
	}
	if s.aggregator != nil {
		add(s.aggregator.run)
	}
	err := g.Run()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// On a disk that is slow or full each of the last steps of a stop waits in vain, and together they must end well within
// the 10 seconds that service managers give. They are counted from the stop.
const (
	stopGrace  = 2 * time.Second // for each step
	workGrace  = 1 * time.Second // for the last batches
	storeGrace = 4 * time.Second // until then, for the last states and lines
	closeGrace = 6 * time.Second // until then, for what the spool has not stored
)

// outlive gives a context that ends some time after another.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, end) })
	return longer, func() { stop(); end() }
}

func closeSpool(ctx context.Context, store *spool.Spool, log *zap.Logger) {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := store.Close(ctx); err != nil {
		log.Error("the spool did not close cleanly", zap.Error(err))
	}
}

// server holds what outlives a reload, and the service of the configuration in effect.
type server struct {
	options     runOptions
	load        func() (*Config, error)
	spool       SpoolConfig // as it was opened
	web         WebConfig   // as it is served
	fleet       FleetConfig // as it was joined
	log         *zap.Logger
	store       *spool.Spool
	outbox      *notify.Outbox
	kept        *incidentBook
	accounts    accounts
	stdin       io.Reader
	descriptors *source.Descriptors // for the files that are followed
	stdout      io.Writer
	node        *fleetNode  // nil: this is no node of a fleet
	aggregator  *aggregator // nil: it judges its own lines

	current  atomic.Pointer[service]
	reloads  chan chan error
	reloaded reloadMetrics
	stopping sync.Once

	unreadable *prometheus.CounterVec
}

// outboxState is the label of what receivers were told, beside stateKey.
const outboxState = "outbox"

// newUnreadable counts saved states that could not be read.
func newUnreadable(reg prometheus.Registerer) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "squall_state_unreadable_total", Help: "Saved states that could not be read at a start: the judge's, what receivers were told, or the ledger of incidents.",
	}, []string{"state"})
	for _, state := range []string{stateKey, outboxState, ledgerBucket} {
		c.WithLabelValues(state)
	}
	reg.MustRegister(c)
	return c
}

// accounts are the counters of lines, from reading to shipping: they go on over reloads, so that at any time
//
//	read + split + recovered = joined + shipped + refused + lost + waiting + kept + repeated
type accounts struct {
	judge   *judgeMetrics
	sources *source.Metrics
	loki    *loki.Metrics
	sites   *siteMetrics
}

func newAccounts(reg prometheus.Registerer) accounts {
	return accounts{newJudgeMetrics(reg), source.NewMetrics(reg), loki.NewMetrics(reg), newSiteMetrics(reg)}
}

type reloadMetrics struct{ ok, at prometheus.Gauge }

func newReloadMetrics(reg prometheus.Registerer) reloadMetrics {
	m := reloadMetrics{
		ok: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "squall_config_last_reload_successful", Help: "Whether the last load of the configuration succeeded.",
		}),
		at: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "squall_config_last_reload_success_timestamp_seconds", Help: "When the configuration in effect was loaded.",
		}),
	}
	reg.MustRegister(m.ok, m.at)
	m.done(nil)
	return m
}

func (m reloadMetrics) done(err error) {
	if err != nil {
		m.ok.Set(0)
		return
	}
	m.ok.Set(1)
	m.at.SetToCurrentTime()
}

// run keeps one service running, and replaces it when a reload succeeded.
func (s *server) run(ctx context.Context, system systemd) error {
	for {
		d := s.current.Load()
		inner, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- d.run(inner, func() { s.tell(system.Ready()) }) }()
		next, reply, err := s.await(ctx, ended, system)
		if next == nil {
			s.stopping.Do(func() { s.tell(system.Stopping()) })
			stop()
			if err == nil {
				err = <-ended
			}
			d.abandon()
			return err
		}
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			s.log.Error("the service of the old configuration ended badly", zap.Error(err))
		}
		if next.shipper == nil {
			d.abandon()
		}
		s.current.Store(next)
		s.log.Info("configuration reloaded")
		reply <- nil
	}
}

// await waits for the end, or for a reload that succeeds: then it returns the next service.
func (s *server) await(ctx context.Context, ended chan error, system systemd) (*service, chan error, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, nil, nil
		case err := <-ended:
			if err == nil {
				err = context.Canceled // every input came to its end
			}
			return nil, nil, err
		case reply := <-s.reloads:
			s.tell(system.Reloading())
			c, err := s.load()
			var d *service
			if err == nil {
				err = s.fixed(c)
			}
			if err == nil {
				d, err = s.build(c)
			}
			s.reloaded.done(err)
			if err == nil {
				return d, reply, nil
			}
			s.log.Error("the configuration was not reloaded: nothing has changed", zap.Error(err))
			s.tell(system.Ready())
			reply <- err
		}
	}
}

// fixed finds what a reload cannot change. With another spool what is stored would never be shipped, and all be read again.
func (s *server) fixed(c *Config) error {
	if c.Spool.Dir != s.spool.Dir {
		return fmt.Errorf("spool.dir is %q and was %q: restart squall to change it, and move the directory with it", c.Spool.Dir, s.spool.Dir)
	}
	if c.Spool != s.spool {
		s.log.Warn("the limits of the spool have changed: they take effect at the next start")
	}
	if c.Web != s.web {
		s.log.Warn("web has changed: it takes effect at the next start")
	}
	if !reflect.DeepEqual(c.Fleet, s.fleet) {
		s.log.Warn("fleet has changed: it takes effect at the next start")
	}
	return nil
}

// tell notes when systemd could not be told.
func (s *server) tell(err error) {
	if err != nil {
		s.log.Warn("systemd was not told", zap.Error(err))
	}
}

// hangups reloads on SIGHUP.
func (s *server) hangups(ctx context.Context) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-signals:
			_ = s.reload(ctx) // it was logged
		}
	}
}

// Reload loads the configuration again: it is the web server's.
func (s *server) Reload() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return s.reload(ctx)
}

func (s *server) reload(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case s.reloads <- reply:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Alerts, Sources and Ready are what the page shows.
func (s *server) Alerts() []alerts.Alert { return s.current.Load().shown() }

// Incidents and the rest of the ledger is what the API shows.
func (s *server) Incidents() []alerts.Entry { return s.kept.Entries() }

// Marks lists the annotations, the oldest first.
func (s *server) Marks() []alerts.Mark { return s.kept.Marks() }

// Annotate keeps annotations.
func (s *server) Annotate(ctx context.Context, marks []alerts.Mark) error {
	return s.kept.add(ctx, marks)
}

// Sources tells what is being read.
func (s *server) Sources() []pipeline.InputState {
	var all []pipeline.InputState
	for _, in := range s.current.Load().inputs {
		all = append(all, in.states()...)
	}
	if s.aggregator != nil {
		all = append(all, s.aggregator.sources()...)
	}
	return all
}

// Live gives the timelines of the last while.
func (s *server) Live() []report.Series { return s.current.Load().live.Series() }

// Loki tells whether lines are shipped.
func (s *server) Loki() bool { return s.current.Load().shipper != nil }

// Ready is nil once lines are being read.
func (s *server) Ready() error {
	if !s.current.Load().reading.Load() {
		return errors.New("the last window is being read again from the spool")
	}
	return nil
}

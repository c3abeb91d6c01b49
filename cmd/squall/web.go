package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/report"
	"github.com/squall-sre/squall/pipeline"
)

// webState is what the HTTP server shows and sets off. Its methods are called from many goroutines at once;
// what they return is not changed by either side afterwards.
type webState interface {
	// Alerts lists the alerts that are firing, those that are held back and those resolved not long ago.
	Alerts() []alerts.Alert
	// Sources tells what is being read.
	Sources() []pipeline.InputState
	// Live gives the timelines of the sites for the last while, those with an alert first.
	Live() []report.Series
	// Loki tells whether lines are shipped anywhere.
	Loki() bool
	// Ready is nil when the configuration is loaded and lines are being read, else why not. It never depends on
	// Loki or Alertmanager: an orchestrator must not restart a detector because its receivers are away.
	Ready() error
	// Incidents lists what the ledger keeps, the newest first.
	Incidents() []alerts.Entry
	// Marks lists the annotations, the oldest first.
	Marks() []alerts.Mark
	// Annotate keeps annotations, and returns when they are on disk.
	Annotate(ctx context.Context, marks []alerts.Mark) error
	// Reload loads the configuration again and returns when it is in effect or refused.
	Reload() error
}

// A webServerConfig is what a webServer is made of.
type webServerConfig struct {
	Web      WebConfig
	Profiles bool // serve /debug/pprof
	State    webState
	Gatherer prometheus.Gatherer
	Log      *zap.Logger

	broadcast *broadcast
}

// Bounds of the HTTP server: a client that is slow, or large, costs a bounded time and a bounded memory.
const (
	webHeaderTimeout = 5 * time.Second
	webReadTimeout   = 10 * time.Second
	webWriteTimeout  = 30 * time.Second
	webIdleTimeout   = time.Minute
	webMaxHeader     = 16 << 10 // bytes
	webMaxBody       = 64 << 10 // bytes
	webMaxPayload    = 1 << 20  // bytes of an Alertmanager's webhook: a group of many alerts with all their texts

	webMaxConnections = 256 // more wait in the kernel until one of these ends
	webGrace          = 5 * time.Second
	profileMax        = 2 * time.Minute
)

// A webServer serves the page, the metrics and the API.
type webServer struct {
	webServerConfig
	listener net.Listener
	server   *http.Server
}

// newWebServer checks the configuration and opens the listener; Run serves.
func newWebServer(c webServerConfig) (*webServer, error) {
	if err := web.Validate(c.Web.ConfigFile); err != nil {
		return nil, fmt.Errorf("web.config_file: %w", err)
	}
	l, err := net.Listen("tcp", c.Web.Listen)
	if err != nil {
		return nil, fmt.Errorf("web.listen: %w", err)
	}
	return &webServer{webServerConfig: c, listener: netutil.LimitListener(l, webMaxConnections), server: newHTTPServer(c)}, nil
}

func newHTTPServer(c webServerConfig) *http.Server {
	c.broadcast = newBroadcast()
	server := &http.Server{
		Handler:           newWebHandler(c),
		ReadHeaderTimeout: webHeaderTimeout, ReadTimeout: webReadTimeout,
		WriteTimeout: webWriteTimeout, IdleTimeout: webIdleTimeout, MaxHeaderBytes: webMaxHeader,
		ErrorLog: zap.NewStdLog(zap.NewNop()), // a client's broken handshake is no event of ours
	}
	server.RegisterOnShutdown(c.broadcast.stop)
	return server
}

// Addr is where the server listens.
func (s *webServer) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends, then lets requests finish for a short while.
func (s *webServer) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() {
		flags := &web.FlagConfig{WebConfigFile: &s.Web.ConfigFile}
		served <- web.Serve(s.listener, s.server, flags, slog.New(slog.DiscardHandler))
	}()
	s.Log.Info("serving HTTP", zap.Stringer("address", s.Addr()))
	select {
	case err := <-served:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), webGrace)
	defer cancel()
	err := s.server.Shutdown(grace)
	if err != nil { // someone holds on: the process stops all the same
		err = s.server.Close()
	}
	if served := <-served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// newWebHandler makes all the routes.
func newWebHandler(c webServerConfig) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", c.page)
	mux.HandleFunc("GET /assets/{name}", c.asset)
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Gatherer, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: webReadTimeout, EnableOpenMetrics: true,
	}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "squall is healthy") })
	mux.HandleFunc("GET /-/ready", c.ready)
	mux.HandleFunc("POST /-/reload", c.reload)
	mux.HandleFunc("GET /api/v1/alerts", c.alerts)
	mux.HandleFunc("GET /api/v1/sources", c.sources)
	mux.HandleFunc("GET /api/v1/stream", c.stream)
	c.ledgerRoutes(mux)
	if c.Profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", patient(pprof.Profile))
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", patient(pprof.Trace))
	}
	// A page on another site must not be able to reload squall through the reader's browser.
	return guarded(http.NewCrossOriginProtection().Handler(bounded(mux)))
}

// bounded limits the bodies of requests.
func bounded(next http.Handler) http.Handler {
	others, payloads := http.MaxBytesHandler(next, webMaxBody), http.MaxBytesHandler(next, webMaxPayload)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == annotateAlertsPath {
			payloads.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// contentPolicy lets the page use its own files, and nothing else: no script or style stands in it, or comes with a
// log line.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guarded sets what keeps a browser from doing anything with a response but showing it.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// patient gives a profile the time it takes.
func patient(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(profileMax)); err != nil {
			say(w, http.StatusInternalServerError, err.Error())
			return
		}
		next(w, r)
	}
}

// say answers with one line of plain text.
func say(w http.ResponseWriter, code int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, alerts.Escape(line)) // the client has left: nobody is to be told
}

func (c webServerConfig) ready(w http.ResponseWriter, _ *http.Request) {
	if err := c.State.Ready(); err != nil {
		say(w, http.StatusServiceUnavailable, "squall is not ready: "+err.Error())
		return
	}
	say(w, http.StatusOK, "squall is ready")
}

func (c webServerConfig) reload(w http.ResponseWriter, _ *http.Request) {
	if err := c.State.Reload(); err != nil {
		say(w, http.StatusInternalServerError, "the old configuration stays: "+err.Error())
		return
	}
	say(w, http.StatusOK, "reloaded")
}

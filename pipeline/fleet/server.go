package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

const (
	startTimeout   = 60 * time.Second // a store of many GiB whose index is gone is read through
	syncEvery      = 5 * time.Second
	streamMemory   = 256 << 20 // bytes: what is kept in memory is where readers are
	tlsTimeout     = 5         // seconds, under load
	maxConnections = 16 << 10
	reportEvery    = 600 // times that another server was not reached, once a second
)

// ServerConfig is an embedded NATS server with JetStream: enough for a fleet of some hundred nodes.
type ServerConfig struct {
	Name   string // of this server, different from the others'
	Listen string // host:port for the nodes; port 0: any that is free
	Dir    string // where the streams are

	// ClusterListen is host:port for the other servers of a cluster, and Routes are theirs (nats-route://host:port).
	// Its own may be among them. Both are empty for a server that is alone.
	ClusterListen string
	Routes        []string

	// Cert and Key are the files of the server's certificate: connections are by TLS then, between servers, too. CA is
	// the file with those who sign the other servers' and the nodes'. Servers must have such a certificate, and
	// nodes, unless there are Users.
	CA, Cert, Key string

	Users   []User // empty: whoever can connect may do everything
	Cluster string // whose panes are carried, see Config

	Log *zap.Logger // default: none
}

// A User is somebody who has the seed of an NKey.
type User struct {
	NKey string // the public key, U…
	// Node is whose panes the user may publish. It may read what aggregators tell, and nothing else: no panes, not
	// its own either. Empty: an aggregator, which may do everything.
	Node string
}

// A Server is an embedded NATS server.
type Server struct {
	srv  *server.Server
	addr string
}

// StartServer starts a server, and returns when nodes may connect. A cluster works from when most of its servers are
// there; what is asked of it before is to be tried again.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	cfg.Log = cmp.Or(cfg.Log, zap.NewNop())
	options, err := cfg.options()
	if err != nil {
		return nil, fmt.Errorf("fleet: the embedded server: %w", err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("fleet: make the embedded server's directory: %w", err)
	}
	srv, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("fleet: make the embedded server: %w", err)
	}
	adapter := &serverLog{log: cfg.Log, limit: rate.NewLimiter(1, 10), fatal: make(chan string, 1)}
	srv.SetLoggerV2(adapter, false, false, false)
	started := make(chan struct{})
	go func() { defer close(started); srv.Start() }()
	select {
	case <-started:
	case <-ctx.Done():
		<-started // recovery cannot be cancelled
		err = ctx.Err()
	}
	select {
	case reason := <-adapter.fatal:
		err = errors.New(reason)
	default:
		if err == nil && !srv.ReadyForConnections(startTimeout) {
			err = fmt.Errorf("not ready after %s", startTimeout)
		}
	}
	s := &Server{srv: srv}
	if err != nil {
		s.Shutdown()
		return nil, fmt.Errorf("fleet: start the embedded server: %w", err)
	}
	s.addr = srv.Addr().String()
	cfg.Log.Info("the embedded NATS server takes nodes", zap.String("name", cfg.Name), zap.String("address", s.Addr()))
	return s, nil
}

// Addr is host:port where nodes connect.
func (s *Server) Addr() string { return s.addr }

// Shutdown ends the server, and waits for it. What it leads is handed to others before.
func (s *Server) Shutdown() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}

// Check finds what the server would not start with, or nobody would connect to. It reads files, and changes nothing.
func (c *ServerConfig) Check() error {
	o, err := c.options()
	if err != nil || o.TLSConfig == nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
		return fmt.Errorf("the certificate %s is good from %s to %s", c.Cert, pair.Leaf.NotBefore.UTC().Format(time.RFC3339), pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if c.CA == "" {
		return nil
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(cert)
		}
	}
	uses := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if c.ClusterListen != "" {
		uses = append(uses, x509.ExtKeyUsageClientAuth) // each server connects to the others, too
	}
	for _, use := range uses {
		how := x509.VerifyOptions{Roots: o.TLSConfig.RootCAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{use}}
		if _, err := pair.Leaf.Verify(how); err != nil {
			return fmt.Errorf("the certificate %s is not one that %s signs for servers and, in a cluster, clients: %w", c.Cert, c.CA, err)
		}
	}
	return nil
}

// CheckWords finds what cannot be of the addresses and users. It reads no files.
func (c *ServerConfig) CheckWords() error {
	o := &server.Options{}
	if c.Cert != "" {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if _, _, err := splitListen(c.Listen); err != nil {
		return err
	}
	if err := c.cluster(o); err != nil {
		return err
	}
	return c.users(o)
}

// options checks the configuration.
func (c *ServerConfig) options() (*server.Options, error) {
	if err := checkCluster(c.Cluster); err != nil {
		return nil, err
	}
	if c.Dir == "" || c.Name == "" {
		return nil, errors.New("it needs a name and a directory")
	}
	o := &server.Options{
		ServerName: c.Name, NoSigs: true, NoLog: true,
		// The stream has its own limit. That of the server would follow from what is free when it starts, which is
		// less once the stream is there.
		JetStream: true, StoreDir: c.Dir, JetStreamMaxMemory: streamMemory, JetStreamMaxStore: 1 << 60, DisableJetStreamBanner: true,
		// Alone, nobody else has what was acknowledged. In a cluster most servers would have to fail at once.
		SyncAlways: c.ClusterListen == "", SyncInterval: syncEvery,
		MaxConn: maxConnections, PingInterval: pingEvery, MaxPingsOut: 2, WriteDeadline: writeTimeout,
		ReconnectErrorReports: reportEvery,
	}
	var err error
	if o.Host, o.Port, err = splitListen(c.Listen); err != nil {
		return nil, err
	}
	if err := c.secure(o); err != nil {
		return nil, err
	}
	if err := c.cluster(o); err != nil {
		return nil, err
	}
	return o, c.users(o)
}

// cluster sets the routes to other servers.
func (c *ServerConfig) cluster(o *server.Options) error {
	if c.ClusterListen == "" {
		if len(c.Routes) > 0 {
			return errors.New("routes to other servers are given, and no address for theirs")
		}
		return nil
	}
	host, port, err := splitListen(c.ClusterListen)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); len(c.Users) > 0 && o.TLSConfig == nil && !(ip != nil && ip.IsLoopback()) {
		return fmt.Errorf("whoever reaches %s may do everything there, in spite of the users: set ca, cert and key", c.ClusterListen)
	}
	o.Cluster = server.ClusterOpts{Name: "squall_" + c.Cluster, Host: host, Port: port, PingInterval: pingEvery, MaxPingsOut: 2}
	if o.TLSConfig != nil {
		t := o.TLSConfig.Clone()
		t.ClientAuth = tls.RequireAndVerifyClientCert
		o.Cluster.TLSConfig, o.Cluster.TLSTimeout = t, tlsTimeout
	}
	for _, r := range c.Routes {
		u, err := url.Parse(r)
		if err != nil || u.Host == "" {
			return fmt.Errorf("the route %q is no URL like nats-route://host:port", r)
		}
		o.Routes = append(o.Routes, u)
	}
	return nil
}

// secure sets TLS.
func (c *ServerConfig) secure(o *server.Options) error {
	if c.Cert == "" && c.Key == "" && c.CA == "" {
		return nil
	}
	if c.Cert == "" || c.Key == "" {
		return errors.New("a certificate and its key are given together")
	}
	if c.CA == "" && c.ClusterListen != "" {
		return errors.New("servers of a cluster know each other by certificates: ca is missing")
	}
	if _, err := tls.LoadX509KeyPair(c.Cert, c.Key); err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	cert, key := c.Cert, c.Key
	load := func() (*tls.Certificate, error) { // anew for each connection: it is renewed while squall runs
		pair, err := tls.LoadX509KeyPair(cert, key)
		return &pair, err
	}
	o.TLSConfig = &tls.Config{
		MinVersion:           tls.VersionTLS12,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() },
	}
	o.TLS, o.TLSTimeout = true, tlsTimeout
	if c.CA == "" {
		return nil
	}
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return fmt.Errorf("read the certificates of ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s has no certificates", c.CA)
	}
	o.TLSConfig.RootCAs, o.TLSConfig.ClientCAs = pool, pool
	o.TLSConfig.ClientAuth = tls.RequireAndVerifyClientCert
	if len(c.Users) > 0 {
		o.TLSConfig.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return nil
}

// users sets who may do what.
func (c *ServerConfig) users(o *server.Options) error {
	known := map[string]bool{}
	for _, u := range c.Users {
		if !nkeys.IsValidPublicUserKey(u.NKey) {
			return fmt.Errorf("%q is no public NKey of a user", u.NKey)
		}
		if known[u.NKey] {
			return fmt.Errorf("the NKey %s is given twice", u.NKey)
		}
		known[u.NKey] = true
		user := &server.NkeyUser{Nkey: u.NKey}
		if u.Node != "" {
			if err := checkNode(u.Node); err != nil {
				return err
			}
			user.Permissions = &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{panePrefix(c.Cluster) + u.Node}},
				Subscribe: &server.SubjectPermission{Allow: []string{InboxPrefix(u.Node) + ".>", coverPrefix(c.Cluster) + ">"}},
			}
		}
		o.Nkeys = append(o.Nkeys, user)
	}
	return nil
}

// splitListen reads host:port; the server has its own number for any free port.
func splitListen(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q is no address like host:port", address)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return cmp.Or(host, "0.0.0.0"), port, nil
}

// serverLog hands the server's warnings to zap, at most one a second.
type serverLog struct {
	log   *zap.Logger
	limit *rate.Limiter
	fatal chan string
}

func (l *serverLog) Noticef(string, ...any) {}
func (l *serverLog) Debugf(string, ...any)  {}
func (l *serverLog) Tracef(string, ...any)  {}

func (l *serverLog) Warnf(format string, v ...any) {
	if l.limit.Allow() {
		l.log.Warn("the embedded NATS server warns", zap.String("text", fmt.Sprintf(format, v...)))
	}
}

func (l *serverLog) Errorf(format string, v ...any) {
	if l.limit.Allow() {
		l.log.Error("the embedded NATS server reports an error", zap.String("text", fmt.Sprintf(format, v...)))
	}
}

// Fatalf is how the server says that it cannot start; StartServer makes it an error.
func (l *serverLog) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}

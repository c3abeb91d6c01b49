package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

const (
	dialTimeout    = 2 * time.Second
	writeTimeout   = 10 * time.Second
	pingEvery      = 10 * time.Second // a peer that says nothing for three of them is gone
	requestTimeout = 5 * time.Second
	minRedial      = 100 * time.Millisecond
	maxRedial      = 5 * time.Second // a node is back within seconds, and a thousand are not back at once
	closeTimeout   = 5 * time.Second
	maxTold        = 16 // different complaints about one connection

	defaultPayload = 1 << 20 // bytes: what servers allow when nothing else is configured
	headerRoom     = 4 << 10 // bytes kept free for subject and headers
)

// Config is what a Link is made of.
type Config struct {
	URL         string  // servers, comma-separated: nats://a:4222,nats://b:4222; tls:// demands TLS
	Server      *Server // the embedded server of this process, in place of URL; TLS is not needed to reach it
	Cluster     string  // letters, digits, - and _: whose panes are added up
	Node        string  // this process; dots make it several tokens of a subject
	Credentials string  // file with a JWT and its key (.creds); empty: none
	NKey        string  // file with the seed of an NKey; empty: none. At most one of the two
	CA          string  // file with the certificates that sign the servers'; empty: the system's
	Cert, Key   string  // files of this process's certificate; empty: none

	Log        *zap.Logger           // default: none
	Registerer prometheus.Registerer // default: metrics are not exported. It takes one Link
}

// A Link is one connection to the fleet's servers. It is safe for concurrent use.
type Link struct {
	cluster, node string
	log           *zap.Logger
	m             *metrics
	conn          *nats.Conn
	js            jetstream.JetStream
	connected     atomic.Bool
	closed        chan struct{}
	patience      time.Duration // how long a stream may seem to have lost its end: new leaders catch up

	mu   sync.Mutex
	told map[string]bool // what was said of this connection, or of its absence
	came chan struct{}   // closed when there is a connection again
}

// Connect makes a Link. A server that is away is no error: it is tried again for ever. Errors are files that cannot
// be read and settings that are impossible.
func Connect(cfg Config) (*Link, error) {
	l := &Link{
		cluster: cfg.Cluster, node: cfg.Node, log: cmp.Or(cfg.Log, zap.NewNop()), m: newMetrics(cfg.Registerer),
		closed: make(chan struct{}), patience: streamPatience, told: map[string]bool{}, came: make(chan struct{}),
	}
	options, err := cfg.options()
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	options = append(options,
		nats.ConnectHandler(l.up), nats.ReconnectHandler(l.up), nats.DisconnectErrHandler(l.down), nats.ReconnectErrHandler(l.down),
		nats.ClosedHandler(func(*nats.Conn) { close(l.closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { l.complain(sub, err) }),
	)
	if l.conn, err = nats.Connect(cfg.URL, options...); err != nil {
		return nil, fmt.Errorf("fleet: connect to %s: %w", safeURLs(cfg.URL), err)
	}
	if l.js, err = jetstream.New(l.conn, jetstream.WithDefaultTimeout(requestTimeout)); err != nil {
		l.Close()
		return nil, fmt.Errorf("fleet: %w", err)
	}
	return l, nil
}

// options checks the configuration.
func (c *Config) options() ([]nats.Option, error) {
	if (strings.Trim(c.URL, ", ") == "") != (c.Server != nil) {
		return nil, errors.New("a server's URL is needed, or the server of this process")
	}
	if err := errors.Join(checkCluster(c.Cluster), checkNode(c.Node)); err != nil {
		return nil, err
	}
	options := []nats.Option{
		nats.Name("squall " + c.Node), nats.CustomInboxPrefix(InboxPrefix(c.Node)),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.CustomReconnectDelay(redialDelay),
		// What waits does so in its ring: a second buffer would send it twice.
		nats.ReconnectBufSize(-1),
		nats.Timeout(dialTimeout), nats.FlusherTimeout(writeTimeout), nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2),
	}
	switch {
	case c.Credentials != "" && c.NKey != "":
		return nil, errors.New("both credentials and an NKey are given")
	case c.Credentials != "":
		if err := checkCredentials(c.Credentials); err != nil {
			return nil, err
		}
		options = append(options, nats.UserCredentials(c.Credentials))
	case c.NKey != "":
		option, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return nil, fmt.Errorf("read the NKey %s, which has to be the file with the seed (SU…) of %s: %w", c.NKey, c.Node, err)
		}
		options = append(options, option)
	}
	if c.Server != nil {
		return append(options, nats.InProcessServer(c.Server.srv)), nil
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("a certificate and its key are given together")
	}
	// Both files are read anew for each connection: certificates are renewed while squall runs.
	if c.CA != "" {
		options = append(options, nats.RootCAs(c.CA))
	}
	if c.Cert != "" {
		options = append(options, nats.ClientCert(c.Cert, c.Key))
	}
	return options, nil
}

// checkCredentials tells now what would otherwise be told at each connection.
func checkCredentials(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the credentials: %w", err)
	}
	defer clear(data)
	if _, err := nkeys.ParseDecoratedJWT(data); err != nil {
		return fmt.Errorf("read the credentials %s: %w", path, err)
	}
	key, err := nkeys.ParseDecoratedUserNKey(data)
	if err != nil {
		return fmt.Errorf("read the credentials %s: %w", path, err)
	}
	key.Wipe()
	return nil
}

// redialDelay is how long is waited after all servers were tried attempts times.
func redialDelay(attempts int) time.Duration {
	return backoff(attempts-1, minRedial, maxRedial)
}

// backoff doubles from least to most with the number of failures, and is shared out: half of it is chance.
func backoff(failures int, least, most time.Duration) time.Duration {
	d := min(least<<min(max(failures, 0), 16), most)
	return d/2 + rand.N(d/2+1)
}

// up and down are called from a goroutine of the connection's, also before Connect has it.
func (l *Link) up(conn *nats.Conn) {
	l.m.connected.Set(1)
	l.connected.Store(true)
	l.mu.Lock()
	clear(l.told)
	close(l.came)
	l.came = make(chan struct{})
	l.mu.Unlock()
	l.log.Info("connected to the fleet's server", zap.String("server", conn.ConnectedUrlRedacted()))
}

// down is called for each attempt, too: each reason is told once.
func (l *Link) down(conn *nats.Conn, err error) {
	l.m.connected.Set(0)
	l.connected.Store(false)
	if err != nil && !conn.IsClosed() && l.isNews(err.Error()) {
		l.log.Warn("no connection to the fleet's servers: panes wait on this node", zap.Error(err))
	}
}

// complain tells what the connection reports beside the answers to requests.
func (l *Link) complain(sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	if l.isNews(err.Error()) {
		l.log.Warn("the fleet's server complains", zap.String("subject", subject), zap.Error(err))
	}
}

// isNews tells whether text was not told since the connection came or went, so that what is tried for ever is not
// told for ever.
func (l *Link) isNews(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told[text] || len(l.told) >= maxTold {
		return false
	}
	l.told[text] = true
	return true
}

// reconnected is closed when there is another connection than now.
func (l *Link) reconnected() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.came
}

// Close ends the connection. Whoever uses it should have ended before.
func (l *Link) Close() {
	l.conn.Close()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-l.closed: // the last of the handlers has run
	case <-timer.C:
	}
	l.m.connected.Set(0)
}

// Connected tells whether there is a connection now.
func (l *Link) Connected() bool { return l.connected.Load() }

// MaxPayload is how many bytes a message may carry: the server's limit less room for headers. Until there was a
// connection it is that of a server with its defaults.
func (l *Link) MaxPayload() int {
	return max(int(cmp.Or(l.conn.MaxPayload(), defaultPayload))-headerRoom, 0)
}

// safeURLs are urls without passwords.
func safeURLs(urls string) string {
	parts := strings.Split(urls, ",")
	for i, p := range parts {
		if scheme, rest, ok := strings.Cut(p, "://"); ok {
			parts[i] = scheme + "://" + rest[strings.LastIndexByte(rest, '@')+1:]
		} else {
			parts[i] = p[strings.LastIndexByte(p, '@')+1:]
		}
	}
	return strings.Join(parts, ",")
}

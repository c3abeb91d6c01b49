package fleet

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// Check finds what a server would not start with, or what nobody would connect to; CheckWords what needs no files.
func TestServerCheck(t *testing.T) {
	t.Parallel()
	a, b := newAuthority(t), newAuthority(t)
	cert, key := a.issue("server")
	strange, strangeKey := b.issue("server")
	old, oldKey := filepath.Join(a.dir, "old.pem"), filepath.Join(a.dir, "old.key")
	a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "old"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	}, old, oldKey)
	public, _ := newNKey(t)
	for what, x := range map[string]struct {
		change      func(*ServerConfig)
		want, words string // of the error
	}{
		"sound":             {func(*ServerConfig) {}, "", ""},
		"expired":           {func(c *ServerConfig) { c.Cert, c.Key = old, oldKey }, "is good from", ""},
		"another's":         {func(c *ServerConfig) { c.Cert, c.Key = strange, strangeKey }, "is not one that", ""},
		"no certificate":    {func(c *ServerConfig) { c.Cert = "/none" }, "no such file", ""},
		"no port":           {func(c *ServerConfig) { c.Listen = "0.0.0.0" }, "host:port", "host:port"},
		"no route":          {func(c *ServerConfig) { c.Routes = []string{"squall-0:6222"} }, "nats-route://", "nats-route://"},
		"no key":            {func(c *ServerConfig) { c.Users[0].NKey = "UA" }, "no public NKey", "no public NKey"},
		"a key given twice": {func(c *ServerConfig) { c.Users = append(c.Users, c.Users[0]) }, "twice", "twice"},
		"a node's name":     {func(c *ServerConfig) { c.Users[0].Node = "edge 2" }, "no spaces", "no spaces"},
	} {
		c := ServerConfig{
			Name: "s", Cluster: cluster, Dir: filepath.Join(t.TempDir(), "none"), Listen: "127.0.0.1:0", ClusterListen: "127.0.0.1:0",
			Routes: []string{"nats-route://127.0.0.1:6222"}, CA: a.CA, Cert: cert, Key: key, Users: []User{{NKey: public, Node: "edge-1"}},
		}
		x.change(&c)
		says := func(how string, err error, want string) {
			t.Helper()
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: %v, want %q", what, how, err, want)
			}
		}
		says("files", c.Check(), x.want)
		says("words", c.CheckWords(), x.words)
	}
}

// A server that is away for a night is not told of once a second by the others.
func TestServerThatIsAwayIsToldOfSeldom(t *testing.T) {
	t.Parallel()
	c := ServerConfig{Name: "s", Cluster: cluster, Dir: t.TempDir(), Listen: "127.0.0.1:0"}
	o, err := c.options()
	if err != nil || o.ReconnectErrorReports < 60 {
		t.Errorf("each %d attempts, %v", o.ReconnectErrorReports, err)
	}
}

// What is none of squall's is told of once, and not a thousand times.
func TestForgedIsToldOf(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.WarnLevel)
	srv := serve(t, func(*ServerConfig) {})
	agg := connect(t, srv.Addr(), "agg", func(c *Config) { c.Log = zap.New(core) })
	agg.declare(StreamConfig{MaxAge: time.Hour})
	for range 3 {
		if err := agg.conn.Publish(panePrefix(cluster)+"lb1", []byte("garbage")); err != nil {
			t.Fatal(err)
		}
	}
	agg.follow(0)
	eventually(t, func() string { return "the forged messages were not seen" }, func() bool { return agg.metric("forged_messages_total") == 3 })
	if got := logs.FilterMessageSnippet("was not made by squall").Len(); got != 1 {
		t.Errorf("it is told %d times", got)
	}
}

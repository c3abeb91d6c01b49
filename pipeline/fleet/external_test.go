package fleet

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap/zaptest"
	"golang.org/x/time/rate"
)

// An identity of an operator, an account or a user.
type identity struct {
	nkeys.KeyPair
	public string
}

func newIdentity(t *testing.T, make func() (nkeys.KeyPair, error)) identity {
	t.Helper()
	pair, err := make()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return identity{pair, public}
}

func signed(t *testing.T, claims jwt.Claims, by identity) string {
	t.Helper()
	token, err := claims.Encode(by)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// credentials writes the .creds of a user of an account.
func credentials(t *testing.T, account identity, rights jwt.Permissions) (file string) {
	t.Helper()
	user := newIdentity(t, nkeys.CreateUser)
	claims := jwt.NewUserClaims(user.public)
	claims.Permissions = rights
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.FormatUserConfig(signed(t, claims, account), seed)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "user.creds")
	write(t, file, text)
	return file
}

// startExternal runs a NATS server from a configuration file, as somebody else would.
func startExternal(t *testing.T, config string) (address string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	write(t, file, []byte(config))
	options, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	options.NoSigs = true
	srv, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	srv.SetLoggerV2(&serverLog{log: zaptest.NewLogger(t), limit: rate.NewLimiter(rate.Inf, 0), fatal: make(chan string, 1)}, false, false, false)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(startTimeout) {
		t.Fatal("the server takes no connections")
	}
	return srv.Addr().String()
}

// A server that others run, with operator, accounts and .creds: the rights that InboxPrefix and the subjects name are
// all that a node needs, and what an aggregator does needs no more than an account of its own.
func TestServerOfOthers(t *testing.T) {
	operator, system, account := newIdentity(t, nkeys.CreateOperator), newIdentity(t, nkeys.CreateAccount), newIdentity(t, nkeys.CreateAccount)
	top := jwt.NewOperatorClaims(operator.public)
	top.SystemAccount = system.public
	shop := jwt.NewAccountClaims(account.public)
	shop.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	address := startExternal(t, fmt.Sprintf(`
listen: "127.0.0.1:-1"
jetstream { store_dir: %q }
operator: %s
resolver: MEMORY
resolver_preload: { %s: %s, %s: %s }
`, t.TempDir(), signed(t, top, operator), system.public, signed(t, jwt.NewAccountClaims(system.public), operator), account.public, signed(t, shop, operator)))

	rights := jwt.Permissions{}
	rights.Pub.Allow.Add("squall.shop.pane.lb1.fra")
	rights.Sub.Allow.Add(InboxPrefix("lb1.fra")+".>", "squall.shop.cover.>")
	nodeFile, aggFile := credentials(t, account, rights), credentials(t, account, jwt.Permissions{})
	agg := connect(t, address, "agg", func(c *Config) { c.Credentials = aggFile })
	agg.declare(StreamConfig{MaxAge: time.Hour, MaxBytes: 1 << 20})
	node := connect(t, address, "lb1.fra", func(c *Config) { c.Credentials = nodeFile })
	o := node.outgoing(newMapKV())
	run(t, o)
	publish(t, o, 3)
	if got := agg.follow(0).wait(3); got[2].Node != "lb1.fra" {
		t.Errorf("the panes are of %q", got[2].Node)
	}
	hears(t, agg, node)
	store, err := agg.Blobs(t.Context(), "state")
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(t.Context(), "a", []byte("b")); err != nil {
		t.Error(err)
	}
	if err := told(node, agg); err == nil {
		t.Error("a node may send heartbeats")
	}
}

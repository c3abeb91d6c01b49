package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What a node may do: publish its own panes and hear the aggregators, over TLS, with its own key. What it may not:
// speak as another, read panes, ask JetStream for anything, read another's answers, or have the server speak for it.
func TestRightsOfANode(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.issue("server")
	aggPublic, aggSeed := newNKey(t)
	onePublic, oneSeed := newNKey(t)
	_, strangerSeed := newNKey(t)
	srv := serve(t, func(c *ServerConfig) {
		c.CA, c.Cert, c.Key = ca.CA, cert, key
		c.Users = []User{{NKey: aggPublic}, {NKey: onePublic, Node: "lb1"}}
	})
	as := func(seed string) func(*Config) { return func(c *Config) { c.NKey, c.CA = seed, ca.CA } }
	agg := connect(t, "", "agg", as(aggSeed), func(c *Config) { c.URL, c.Server = "", srv })
	agg.declare(StreamConfig{MaxAge: time.Hour})
	node := connect(t, srv.Addr(), "lb1", as(oneSeed))
	o := node.outgoing(newMapKV())
	run(t, o)
	o.Add(pane(10))
	drained(t, o)
	hears(t, agg, node)

	denied := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("a node may %s", what)
		}
	}
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	_, err := node.js.Publish(short(), panePrefix(cluster)+"lb2", []byte("forged"), jetstream.WithMsgID("lb2/x/1"))
	denied("publish as another", err)
	_, err = node.Last(short())
	denied("ask for the stream", err)
	denied("change the stream", node.Declare(short(), StreamConfig{}))
	denied("send heartbeats", told(node, agg))
	for _, subject := range []string{panePrefix(cluster) + ">", panePrefix(cluster) + "lb1", "_INBOX_agg.>", "_INBOX_lb1~b.>", ">", "$SYS.>"} {
		denied("subscribe to "+subject, subscribed(node.conn, subject))
	}
	denied("come with a stranger's key", connects(t, srv.Addr(), func(c *Config) { c.NKey, c.CA = strangerSeed, ca.CA }))
	denied("come without a key", connects(t, srv.Addr(), func(c *Config) { c.CA = ca.CA }))
	denied("be sent to another server", connects(t, srv.Addr(), func(c *Config) { c.NKey, c.CA = oneSeed, newAuthority(t).CA }))

	// The stream answers to where a node says: that of another's panes, and that of an aggregator's heartbeats.
	ctx, cancel := context.WithCancel(t.Context())
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	listening.Go(func() {
		agg.Listen(ctx, func(data []byte, sender string) {
			t.Errorf("%s is heard to say %q", sender, data)
		})
	})
	eventually(t, func() string { return "nobody listens" }, func() bool { return agg.conn.NumSubscriptions() > 1 })
	if err := agg.conn.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, reply := range []string{panePrefix(cluster) + "lb2", coverPrefix(cluster) + "agg"} {
		if err := node.conn.PublishRequest(panePrefix(cluster)+"lb1", reply, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	o.Add(pane(10))
	r := agg.follow(0)
	if got := r.wait(2); len(got) != 2 || got[0].Node != "lb1" || got[1].Node != "lb1" || seqOf(got[1].Data) != 2 {
		t.Errorf("the stream gives %v", got)
	}
	// The two that had no identity, and the answer that became a message of lb2's.
	eventually(t, func() string { return fmt.Sprintf("%d forged messages were seen", agg.metric("forged_messages_total")) },
		func() bool { return agg.metric("forged_messages_total") == 3 })
	eventually(t, func() string { return "the answer was not heard" }, func() bool { return agg.metric("unasked_messages_total") == 1 })
}

// A server that does not know a key yet is asked again, as long as it takes.
func TestKeyIsKnownLater(t *testing.T) {
	t.Parallel()
	public, seed := newNKey(t)
	stranger, _ := newNKey(t)
	srv := serve(t, func(c *ServerConfig) { c.Users = []User{{NKey: stranger}} })
	l := connect(t, srv.Addr(), "lb1", func(c *Config) { c.NKey = seed })
	eventually(t, func() string { return "it gives up" }, func() bool {
		v, err := srv.srv.Varz(nil)
		return err == nil && v.TotalConnections > 4
	})
	srv.Shutdown()
	serve(t, func(c *ServerConfig) { c.Listen, c.Users = srv.Addr(), []User{{NKey: public}} })
	eventually(t, func() string { return "the key is known, and no connection comes" }, l.Connected)
}

// hears sees that what one tells comes to the other, with its name, and what it did not mean to tell does not.
func hears(t *testing.T, from, to *testLink) {
	t.Helper()
	if err := told(from, to); err != nil {
		t.Error(err)
	}
}

// told sends heartbeats until one is heard.
func told(from, to *testLink) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var sender atomic.Pointer[string]
	done := make(chan struct{})
	go func() {
		defer close(done)
		to.Listen(ctx, func(data []byte, who string) {
			if string(data) == "I am here" {
				sender.Store(&who)
				cancel()
			}
		})
	}()
	for ctx.Err() == nil {
		if err := from.Tell([]byte("I am here")); err != nil {
			return err
		}
		pause(ctx, 20*time.Millisecond)
	}
	<-done
	if s := sender.Load(); s == nil || *s != from.node {
		return errors.New("nothing was heard")
	}
	return nil
}

// subscribed tells whether the server lets conn subscribe.
func subscribed(conn *nats.Conn, subject string) error {
	sub, err := conn.SubscribeSync(subject)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := conn.Flush(); err != nil {
		return err
	}
	if err := conn.LastError(); err != nil && strings.Contains(err.Error(), fmt.Sprintf("%q", subject)) {
		return err
	}
	return nil
}

// connects tells whether a connection comes about.
func connects(t *testing.T, address string, change func(*Config)) error {
	l := connect(t, address, "lb1", change)
	defer l.Close()
	for range 3 {
		if l.Connected() {
			return nil
		}
		pause(t.Context(), 100*time.Millisecond)
	}
	return errors.New("no connection")
}

// Settings that cannot be right are errors at once, not a connection that never comes.
func TestImpossibleSettings(t *testing.T) {
	good := Config{URL: "nats://127.0.0.1:1", Cluster: "shop", Node: "lb1"}
	_, seed := newNKey(t)
	empty := t.TempDir() + "/empty"
	write(t, empty, nil)
	for name, change := range map[string]func(*Config){
		"no URL":               func(c *Config) { c.URL = "" },
		"two servers":          func(c *Config) { c.Server = &Server{} },
		"a bad URL":            func(c *Config) { c.URL = "nats://a:b:c" },
		"no cluster":           func(c *Config) { c.Cluster = "" },
		"a cluster with a dot": func(c *Config) { c.Cluster = "a.b" },
		"no node":              func(c *Config) { c.Node = "" },
		"a wildcard":           func(c *Config) { c.Node = "lb.*" },
		"two keys":             func(c *Config) { c.NKey, c.Credentials = seed, seed },
		"no such seed":         func(c *Config) { c.NKey = empty + "x" },
		"an empty seed":        func(c *Config) { c.NKey = empty },
		"no such credentials":  func(c *Config) { c.Credentials = empty + "x" },
		"empty credentials":    func(c *Config) { c.Credentials = empty },
		"no such CA":           func(c *Config) { c.CA = empty + "x" },
		"an empty CA":          func(c *Config) { c.CA = empty },
		"a certificate alone":  func(c *Config) { c.Cert = empty },
		"an empty certificate": func(c *Config) { c.Cert, c.Key = empty, empty },
	} {
		cfg := good
		change(&cfg)
		if l, err := Connect(cfg); err == nil {
			l.Close()
			t.Errorf("%s: no error", name)
		}
	}
	ca := newAuthority(t)
	cert, key := ca.issue("server")
	public, _ := newNKey(t)
	alone := ServerConfig{Name: "a", Listen: "127.0.0.1:0", Dir: t.TempDir(), Cluster: "shop"}
	for name, change := range map[string]func(*ServerConfig){
		"no name":               func(c *ServerConfig) { c.Name = "" },
		"no directory":          func(c *ServerConfig) { c.Dir = "" },
		"no cluster":            func(c *ServerConfig) { c.Cluster = "" },
		"no port":               func(c *ServerConfig) { c.Listen = "127.0.0.1" },
		"a port too high":       func(c *ServerConfig) { c.Listen = "127.0.0.1:70000" },
		"a key alone":           func(c *ServerConfig) { c.Key = key },
		"a CA alone":            func(c *ServerConfig) { c.CA = ca.CA },
		"an empty CA":           func(c *ServerConfig) { c.Cert, c.Key, c.CA = cert, key, empty },
		"an empty certificate":  func(c *ServerConfig) { c.Cert, c.Key = empty, empty },
		"routes alone":          func(c *ServerConfig) { c.Routes = []string{"nats-route://127.0.0.1:1"} },
		"a route that is none":  func(c *ServerConfig) { c.ClusterListen, c.Routes = "127.0.0.1:0", []string{"127.0.0.1"} },
		"a cluster without CA":  func(c *ServerConfig) { c.ClusterListen, c.Cert, c.Key = "127.0.0.1:0", cert, key },
		"an open back door":     func(c *ServerConfig) { c.ClusterListen, c.Users = "0.0.0.0:0", []User{{NKey: public}} },
		"a key that is none":    func(c *ServerConfig) { c.Users = []User{{NKey: "UABC"}} },
		"a key twice":           func(c *ServerConfig) { c.Users = []User{{NKey: public, Node: "a"}, {NKey: public}} },
		"a node that is none":   func(c *ServerConfig) { c.Users = []User{{NKey: public, Node: ">"}} },
		"an address not of us":  func(c *ServerConfig) { c.Listen = "192.0.2.1:4222" },
		"a directory in a file": func(c *ServerConfig) { c.Dir = empty + "/store" },
	} {
		cfg := alone
		change(&cfg)
		if s, err := StartServer(t.Context(), cfg); err == nil {
			s.Shutdown()
			t.Errorf("%s: no error", name)
		}
	}
}

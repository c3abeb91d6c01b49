//go:build torture

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsCluster is three processes of nats-server, as others run them.
type natsCluster struct {
	t         *testing.T
	configs   []string // files
	addresses []string
	running   []*exec.Cmd
}

func startNATSCluster(t *testing.T) *natsCluster {
	t.Helper()
	c := &natsCluster{t: t, running: make([]*exec.Cmd, 3)}
	var between, routes []string
	for i := range 3 {
		c.addresses, between = append(c.addresses, freeAddress(t)), append(between, freeAddress(t))
		routes = append(routes, fmt.Sprintf("%q", "nats-route://"+between[i]))
	}
	for i := range 3 {
		dir := t.TempDir()
		file := filepath.Join(dir, "nats.conf")
		write(t, file, fmt.Sprintf(`
server_name: s%d
listen: %q
jetstream { store_dir: %q }
cluster { name: squall, listen: %q, routes: [ %s ], no_advertise: true }
`, i, c.addresses[i], dir, between[i], strings.Join(routes, ", ")))
		c.configs = append(c.configs, file)
		c.start(i)
	}
	return c
}

func (c *natsCluster) start(i int) {
	c.t.Helper()
	program, err := filepath.Abs("../../.cache/bin/nats-server")
	if err != nil {
		c.t.Fatal(err)
	}
	if given := os.Getenv("SQUALL_NATS_SERVER"); given != "" {
		program = given
	}
	if _, err := os.Stat(program); err != nil {
		c.t.Fatalf("%v: `make test` builds it, or set SQUALL_NATS_SERVER to a nats-server program", err)
	}
	log := &output{}
	cmd := exec.Command(program, "-c", c.configs[i])
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.running[i] = cmd
	c.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if c.t.Failed() {
			c.t.Logf("nats-server %d: %s", i, log)
		}
	})
}

// kill kills a server as a crash of its machine does.
func (c *natsCluster) kill(i int) {
	c.t.Helper()
	if err := c.running[i].Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	_ = c.running[i].Wait()
}

// leader is which server leads the stream of panes.
func (c *natsCluster) leader() (i int) {
	c.t.Helper()
	conn, err := nats.Connect(c.url())
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "the stream has a leader", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		s, err := js.Stream(ctx, "SQUALL_default")
		if err != nil || s.CachedInfo().Cluster == nil {
			return false
		}
		_, err = fmt.Sscanf(s.CachedInfo().Cluster.Leader, "s%d", &i)
		return err == nil
	})
	return i
}

func (c *natsCluster) url() string { return "nats://" + strings.Join(c.addresses, ",nats://") }

// A cutNetwork stands between a node and the servers. While it is cut nothing passes, and nobody is told that nothing does.
type cutNetwork struct {
	addresses []string
	mu        sync.Mutex
	passes    chan struct{} // closed while it is whole
}

func newCutNetwork(t *testing.T, servers []string) *cutNetwork {
	t.Helper()
	n := &cutNetwork{passes: make(chan struct{})}
	close(n.passes)
	for _, server := range servers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		n.addresses = append(n.addresses, l.Addr().String())
		go func() {
			for {
				near, err := l.Accept()
				if err != nil {
					return
				}
				go n.carry(near, server)
			}
		}()
	}
	return n
}

func (n *cutNetwork) carry(near net.Conn, server string) {
	defer near.Close()
	n.wait()
	far, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer far.Close()
	ended := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		defer func() { ended <- struct{}{} }()
		for b := make([]byte, 32<<10); ; {
			k, err := from.Read(b)
			if err != nil {
				return
			}
			n.wait()
			if _, err := to.Write(b[:k]); err != nil {
				return
			}
		}
	}
	go pass(near, far)
	go pass(far, near)
	<-ended
}

// wait waits until it is whole.
func (n *cutNetwork) wait() {
	n.mu.Lock()
	passes := n.passes
	n.mu.Unlock()
	<-passes
}

// cut cuts it, until mend is called.
func (n *cutNetwork) cut(t *testing.T) (mend func()) {
	passes := make(chan struct{})
	n.mu.Lock()
	n.passes = passes
	n.mu.Unlock()
	mend = sync.OnceFunc(func() { close(passes) })
	t.Cleanup(mend)
	return mend
}

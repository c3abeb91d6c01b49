package fleet

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A trio is three servers, each a process of its own, with TLS between them and to the nodes, and a key for each user.
// Two are squall's own, and one is nats-server with a configuration that says the same.
type trio struct {
	t       *testing.T
	cfgs    []*ServerConfig
	running map[string]*process
	url     string
	ca      *authority
	seeds   map[string]string // by node; "" is an aggregator's
}

// freeAddresses are n of loopback that nobody listens on.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	var addresses []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		addresses = append(addresses, ln.Addr().String())
	}
	return addresses
}

func startTrio(t *testing.T) *trio {
	c := &trio{t: t, running: map[string]*process{}, ca: newAuthority(t), seeds: map[string]string{}}
	var users []User
	for _, node := range []string{"", "lb1", "lb2.fra"} {
		public, seed := newNKey(t)
		c.seeds[node] = seed
		users = append(users, User{NKey: public, Node: node})
	}
	addresses := freeAddresses(t, 6)
	var routes, urls []string
	for i := range 3 {
		routes = append(routes, "nats-route://"+addresses[3+i])
		urls = append(urls, "nats://"+addresses[i])
	}
	c.url = strings.Join(urls, ",")
	for i := range 3 {
		cert, key := c.ca.issue(fmt.Sprint("server", i))
		c.cfgs = append(c.cfgs, &ServerConfig{
			Name: fmt.Sprint("s", i), Listen: addresses[i], Dir: t.TempDir(), ClusterListen: addresses[3+i], Routes: routes,
			CA: c.ca.CA, Cert: cert, Key: key, Users: users, Cluster: cluster,
		})
	}
	for _, cfg := range c.cfgs {
		c.start(cfg)
	}
	return c
}

func (c *trio) start(cfg *ServerConfig) {
	c.t.Helper()
	if cfg.Name == "s2" {
		c.running[cfg.Name] = startProgram(c.t, cfg)
		return
	}
	c.running[cfg.Name] = spawn(c.t, "server", task{Server: cfg})
	if got := c.running[cfg.Name].line(c.t); got != cfg.Listen {
		c.t.Fatalf("%s listens at %s", cfg.Name, got)
	}
}

// startProgram runs nats-server as cfg would have the embedded one.
func startProgram(t *testing.T, cfg *ServerConfig) *process {
	t.Helper()
	program := os.Getenv("SQUALL_NATS_SERVER")
	if program == "" {
		program = filepath.Join("..", "..", ".cache", "bin", "nats-server")
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: `make test` builds it, or set SQUALL_NATS_SERVER to a nats-server program", err)
	}
	var users []string
	for _, u := range cfg.Users {
		rights := ""
		if u.Node != "" {
			rights = fmt.Sprintf(`, permissions: { publish: ["squall.%s.pane.%s"], subscribe: ["%s.>", "squall.%[1]s.cover.>"] }`, cfg.Cluster, u.Node, InboxPrefix(u.Node))
		}
		users = append(users, fmt.Sprintf(`{ nkey: %s%s }`, u.NKey, rights))
	}
	tls := fmt.Sprintf("cert_file: %q, key_file: %q, ca_file: %q", cfg.Cert, cfg.Key, cfg.CA)
	file := filepath.Join(t.TempDir(), "nats.conf")
	write(t, file, fmt.Appendf(nil, `
server_name: %s
listen: %q
jetstream { store_dir: %q }
tls { %s }
authorization { users: [ %s ] }
cluster { name: squall_%s, listen: %q, routes: [ "%s" ], tls { %s, verify: true } }
`, cfg.Name, cfg.Listen, cfg.Dir, tls, strings.Join(users, ", "), cfg.Cluster, cfg.ClusterListen, strings.Join(cfg.Routes, `", "`), tls))
	cmd := exec.Command(program, "-c", file)
	log := filepath.Join(filepath.Dir(file), "nats.log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: cmd}
	t.Cleanup(p.kill)
	eventually(t, func() string { text, _ := os.ReadFile(log); return "nats-server says: " + string(text) }, func() bool {
		conn, err := net.DialTimeout("tcp", cfg.Listen, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return p
}

// connect makes a Link with the rights of a node, or of an aggregator.
func (c *trio) connect(node string, rights string) *testLink {
	return connect(c.t, "", node, func(cfg *Config) { cfg.URL, cfg.CA, cfg.NKey = c.url, c.ca.CA, c.seeds[rights] })
}

// leader tells which server leads the stream.
func (c *trio) leader(l *testLink) string {
	c.t.Helper()
	var name string
	eventually(c.t, func() string { return "the stream has no leader" }, func() bool {
		info, err := l.streamInfo(c.t.Context())
		if err == nil && info.Cluster != nil {
			name = info.Cluster.Leader
		}
		return c.running[name] != nil
	})
	return name
}

// The stream's leader is killed while two nodes publish, and is back: every pane is in the stream once,
// readers get them in its order and nothing else, a lease has one holder, and what is kept beside the stream is there.
func TestLeaderIsKilled(t *testing.T) {
	t.Parallel()
	c := startTrio(t)
	agg, second := c.connect("agg1", ""), c.connect("agg2", "")
	agg.declare(StreamConfig{MaxAge: time.Hour, MaxBytes: 256 << 20, Replicas: 3})
	readers := []*reader{agg.follow(0), second.follow(0)}
	terms := make(chan string, 64)
	for _, l := range []*testLink{agg, second} {
		contendFor(l, 3*time.Second, func(ctx context.Context) { terms <- l.node; <-ctx.Done() })
	}
	store, err := agg.Blobs(t.Context(), "state")
	if err != nil {
		t.Fatal(err)
	}
	state := make([]byte, 3<<20)
	state[1<<20] = 7
	if err := store.Put(t.Context(), "agg1", state); err != nil {
		t.Fatal(err)
	}

	var rings []*Outgoing
	for _, node := range []string{"lb1", "lb2.fra"} {
		o := c.connect(node, node).outgoing(openKV(t, t.TempDir()))
		run(t, o)
		rings = append(rings, o)
	}
	add := func(n int) {
		for range n {
			for _, o := range rings {
				o.Add(pane(2000))
			}
		}
	}
	add(50)
	name := c.leader(agg)
	began := time.Now()
	c.running[name].kill()
	delete(c.running, name)
	add(50)
	for _, o := range rings {
		drained(t, o)
	}
	t.Logf("100 panes were in the stream %s after its leader was killed", time.Since(began))
	c.start(c.cfgs[name[1]-'0'])
	add(50)
	for _, o := range rings {
		drained(t, o)
	}
	check(t, agg, readers, 150)
	if got, ok, err := store.Get(t.Context(), "agg1"); err != nil || !ok || !slices.Equal(got, state) {
		t.Errorf("the state is there: %v, has %d bytes: %v", ok, len(got), err)
	}
	if len(terms) == 0 {
		t.Error("nobody held the lease")
	}
}

// check compares what readers got with the n panes of each of two nodes.
func check(t *testing.T, agg *testLink, readers []*reader, n int) {
	t.Helper()
	var last uint64
	eventually(t, func() string { return "the stream has no last message" }, func() bool {
		var err error
		last, err = agg.Last(t.Context())
		return err == nil
	})
	if last != uint64(2*n) {
		t.Errorf("the stream has %d messages of %d", last, 2*n)
	}
	for _, r := range readers {
		of := map[string][]uint64{}
		for i, m := range r.wait(2 * n) {
			of[m.Node] = append(of[m.Node], seqOf(m.Data))
			if m.Seq != uint64(i+1) || m.Missed != 0 || m.Reset {
				t.Fatalf("message %d came as the %dth, missed %d, reset %v", m.Seq, i+1, m.Missed, m.Reset)
			}
		}
		for node, seqs := range of {
			for i, seq := range seqs { // what was lost with a leader may stand behind what was on its way then
				if d := int(seq) - 1 - i; d > window || d < -window {
					t.Errorf("pane %d of %s is the %dth", seq, node, i+1)
				}
			}
			slices.Sort(seqs)
			if !slices.Equal(seqs, span(1, uint64(n))) {
				t.Errorf("%s has %d panes in the stream: %v", node, len(seqs), seqs)
			}
		}
	}
}

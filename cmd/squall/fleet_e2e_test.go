package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline/fleet"
)

// memoryKV is a ring's place for nodes that are a part of the test.
type memoryKV struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (m *memoryKV) Get(_ context.Context, key string) ([]byte, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[key]
	return v, ok, nil
}

func (m *memoryKV) Put(_ context.Context, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[key] = slices.Clone(value)
	return nil
}

// startFleetServer runs a NATS server for the test.
func startFleetServer(t *testing.T) (address string) {
	t.Helper()
	server, err := fleet.StartServer(t.Context(), fleet.ServerConfig{Name: "test", Listen: "127.0.0.1:0", Dir: t.TempDir(), Cluster: "default"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	return "nats://" + server.Addr()
}

// fleetKeys are what the members of a fleet know each other by: a certificate, of loopback, and an NKey for each.
type fleetKeys struct {
	t           *testing.T
	dir, cert   string
	nodes       []string
	aggregators []string // public keys
}

func newFleetKeys(t *testing.T) *fleetKeys {
	t.Helper()
	k := &fleetKeys{t: t, dir: t.TempDir()}
	k.cert = filepath.Join(k.dir, "tls.pem")
	selfSigned(t, k.cert)
	return k
}

// seed makes a key and gives its public half; the seed lies where member tells.
func (k *fleetKeys) seed(name string) (public string) {
	k.t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		k.t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		k.t.Fatal(err)
	}
	write(k.t, filepath.Join(k.dir, name+".nk"), string(seed))
	if public, err = pair.PublicKey(); err != nil {
		k.t.Fatal(err)
	}
	return public
}

func (k *fleetKeys) node(name string)       { k.nodes = append(k.nodes, name+": "+k.seed(name)) }
func (k *fleetKeys) aggregator(name string) { k.aggregators = append(k.aggregators, k.seed(name)) }

// member is what a member has in its section fleet, and server what the server of an aggregator has in its.
func (k *fleetKeys) member(name string) string {
	return fmt.Sprintf("node: %s, nkey_file: %q, ca_file: %q", name, filepath.Join(k.dir, name+".nk"), k.cert)
}

func (k *fleetKeys) server() string {
	return fmt.Sprintf("cert_file: %q, key_file: %[1]q, ca_file: %[1]q, nodes: {%s}, aggregators: [%s]",
		k.cert, strings.Join(k.nodes, ", "), strings.Join(k.aggregators, ", "))
}

// A tellingNode tells what a node of the fleet would.
type tellingNode struct {
	*fleet.Outgoing
	link *fleet.Link
}

func newTellingNode(t *testing.T, address, name string) *tellingNode {
	t.Helper()
	link, err := fleet.Connect(fleet.Config{URL: address, Cluster: "default", Node: name})
	if err != nil {
		t.Fatal(err)
	}
	out, err := link.Outgoing(t.Context(), &memoryKV{values: map[string][]byte{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = out.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait(); link.Close() })
	return &tellingNode{out, link}
}

func (n *tellingNode) tell(t *testing.T, r pane.Report) {
	t.Helper()
	n.Add(func(seq uint64) []byte {
		r.Seq, r.Sent = seq, time.Now().UnixNano()
		data, err := r.AppendBinary(nil)
		if err != nil {
			t.Error(err)
		}
		return data
	})
}

// again puts what a node told on the stream once more, past the refusal of repeats.
func again(t *testing.T, address, node string, r pane.Report, times int) {
	t.Helper()
	conn, err := nats.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data, err := r.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range times {
		m := nats.NewMsg("squall.default.pane." + node)
		m.Header.Set("Nats-Msg-Id", fmt.Sprintf("%s/again/%d", node, i))
		m.Data = data
		if _, err := conn.RequestMsg(m, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

// runAggregator starts `squall aggregate` in dir.
func runAggregator(t *testing.T, dir, address, name, more string) *program {
	t.Helper()
	write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf(`spool: {dir: %s/spool}
site_defaults: {pool: {workers: 25}}
fleet: {nats: "%s", node: %s, lateness: 10s}
%s`, dir, address, name, more))
	p := launch(t, surroundings{}, "aggregate", "--config", filepath.Join(dir, "squall.yaml"), "--web.listen-address", "127.0.0.1:0")
	p.await()
	return p
}

// transcript is what a program told on its standard output.
func (p *program) transcript() string { return p.stdout.String() }

// TestStormOverEightNodes is S23: a storm that no node sees as one. Panes come three times over, an aggregator is killed
// in mid-storm and starts anew beside another: both tell what one node would have told that has all lines, once, and a
// receiver that cannot fold equal alerts is told by one of them.
func TestStormOverEightNodes(t *testing.T) {
	t.Parallel()
	path, _ := simulated(t, simulate.Options{Scenario: scenario(t, "S01"), Format: "nginx_extended", Seed: 7, Rate: 0.5})
	c := Default()
	c.SiteDefaults.Pool.Workers = 25
	alone := reportsOf(t, c, "alone", path, 0)
	want, _ := judgeFleet(t, c, slices.Clone(alone), 0)
	address := startFleetServer(t)
	pager := newReceiver(t)
	more := "notify: [{type: stdout, format: json}, {type: webhook, url: \"" + pager.URL + "/hook\"}]\n"
	dirs := []string{t.TempDir(), t.TempDir()}
	first, second := runAggregator(t, dirs[0], address, "agg-0", more), runAggregator(t, dirs[1], address, "agg-1", more)

	nodes := map[string]*tellingNode{}
	var reports []fleetReport
	for i, part := range overNodes(t, path, 8, 1) {
		name := fmt.Sprintf("n%d", i)
		nodes[name] = newTellingNode(t, address, name)
		reports = append(reports, reportsOf(t, c, name, part, alone[0].report.Start)...)
	}
	sortReports(reports)
	middle := slices.IndexFunc(reports, func(x fleetReport) bool { return strings.Contains(want, "HeadStorm") && x.at > stormed(t, want) })
	// A fleet that is new waits for its nodes to speak, by the times at which the stream took their words.
	began := time.Now()
	for _, x := range reports[:len(nodes)] { // the first pane of each
		nodes[x.node].tell(t, x.report)
	}
	eventually(t, "the fleet is no more new", func() bool { return time.Since(began) > 11*time.Second })
	for i, x := range reports[len(nodes):middle] {
		nodes[x.node].tell(t, x.report)
		if i%97 == 0 {
			again(t, address, x.node, x.report, 3)
		}
	}
	storm := func(p *program) bool { return strings.Contains(p.transcript(), `"alert":"HeadStorm","state":"firing"`) }
	eventually(t, "both aggregators see the storm", func() bool { return storm(first) && storm(second) })
	first.kill()
	told := first.transcript()
	for _, x := range reports[middle:] {
		nodes[x.node].tell(t, x.report)
	}
	first = runAggregator(t, dirs[0], address, "agg-0", more)
	last := want[strings.LastIndexByte(strings.TrimSuffix(want, "\n"), '\n')+1:]
	ends := func(p *program) func() bool {
		return func() bool {
			return strings.Count(p.transcript(), `"state":"resolved"`) == strings.Count(want, `"state":"resolved"`) || strings.HasSuffix(p.transcript(), last)
		}
	}
	eventually(t, "the aggregator that was there tells it all", ends(second))
	sameLines(t, "the aggregator that was there", second.transcript(), want)
	eventually(t, "the aggregator that was killed tells the rest", ends(first))
	// Who is killed between a line and its note writes that line once more, and what began meanwhile is told as it is then.
	if got, want := identities(t, told+first.transcript()), identities(t, want); !slices.Equal(got, want) {
		t.Errorf("the aggregator that was killed told\n%q, want\n%q", got, want)
	}
	pages := strings.Count(want, `"state":"firing"`)
	eventually(t, "the webhook is told", func() bool { return len(begun(pager, "resolved")) >= pages })
	// Who was killed between an answer and its note is followed by one who tells that once more, alike.
	if n := begun(pager, "firing"); len(n) != pages || len(pager.told("/hook", "firing")) > pages+1 {
		t.Errorf("the webhook was told %d times of the beginnings %q, want %d", len(pager.told("/hook", "firing")), n, pages)
	}
	eventually(t, "all nodes have told that they are done", func() bool { return second.metric(`squall_fleet_nodes{state="left"}`) == 8 })
}

// identities names the transitions of a transcript, each once.
func identities(t *testing.T, transcript string) (list []string) {
	t.Helper()
	for line := range strings.Lines(transcript) {
		var x struct {
			Alert, State, Severity string
			Labels                 map[string]string
			Starts                 string `json:"starts_at"`
		}
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprint(x))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// begun lists the alerts that a receiver was told of with a status.
func begun(r *receiver, status string) (list []string) {
	for _, n := range r.told("/hook", status) {
		for _, a := range n.Alerts {
			list = append(list, fmt.Sprint(a.Labels["alertname"], a.Labels["site"], a.StartsAt.UnixNano()))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// sameLines shows the first line that differs.
func sameLines(t *testing.T, who, got, want string) {
	t.Helper()
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(a), len(b)) {
		if lineAt(a, i) != lineAt(b, i) {
			t.Errorf("%s told %d lines, want %d; the first that differs:\n got %s\nwant %s", who, len(a), len(b), lineAt(a, i), lineAt(b, i))
			return
		}
	}
}

// stormed is a while after the storm was first told of, in ns of event time.
func stormed(t *testing.T, transcript string) int64 {
	t.Helper()
	_, after, _ := strings.Cut(transcript, `{"at":"`)
	at, err := time.Parse(time.RFC3339Nano, after[:strings.IndexByte(after, '"')])
	if err != nil {
		t.Fatal(err)
	}
	return at.Add(2 * time.Minute).UnixNano()
}

// TestNodeOfAFleetIsQuiet: a node tells its own alerts, with its name, while no aggregator is heard; while one judges
// for it, it tells none, and ends what it told. The aggregator is the server, and they know each other by TLS and NKeys.
func TestNodeOfAFleetIsQuiet(t *testing.T) {
	t.Parallel()
	keys := newFleetKeys(t)
	keys.node("edge.1")
	keys.aggregator("agg")
	address := freeAddress(t)
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	write(t, log, "")
	write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), fmt.Sprintf(`
notify: [{type: stdout, format: json}]
fleet: {nats: "tls://%s", lateness: 2s, %s}
`, address, keys.member("edge.1"))))
	node := runSquall(t, dir, surroundings{})
	logger := startLogger(t, log, "HEAD", 20*time.Millisecond)
	defer logger.stop()
	firing := func(p *program) int { return strings.Count(p.transcript(), `"alert":"HeadStorm","state":"firing"`) }
	eventually(t, "the node tells of its storm itself", func() bool { return firing(node) == 1 })
	if text := node.transcript(); !strings.Contains(text, `"labels":{"node":"edge.1","site":`) {
		t.Errorf("its alert does not bear its name: %s", text)
	}
	other := t.TempDir()
	write(t, filepath.Join(other, "squall.yaml"), fmt.Sprintf(`spool: {dir: %s/spool}
notify: [{type: stdout, format: json}]
fleet: {embedded: true, lateness: 2s, %s, server: {listen: %q, %s}}
%s`, other, keys.member("agg"), address, keys.server(), compressed))
	aggregator := launch(t, surroundings{}, "aggregate", "--config", filepath.Join(other, "squall.yaml"), "--web.listen-address", "127.0.0.1:0")
	aggregator.await()
	eventually(t, "the aggregator tells of the storm", func() bool { return firing(aggregator) == 1 })
	eventually(t, "the node is quiet", func() bool {
		return strings.Count(node.transcript(), `"state":"resolved"`) == strings.Count(node.transcript(), `"state":"firing"`) &&
			node.metric("squall_fleet_covered") == 1
	})
	aggregator.kill()
	eventually(t, "the node tells again", func() bool { return firing(node) == 2 })
	if strings.Contains(aggregator.transcript(), `"node":`) {
		t.Error("the fleet's alert bears a node's name")
	}
}

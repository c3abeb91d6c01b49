//go:build torture

package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Clocks that are off: of machines, whose logs and squalls go by them.
var skewedNodes = map[string]time.Duration{"ahead3": 3 * time.Second, "ahead120": 2 * time.Minute, "behind120": -2 * time.Minute}

// A faultyFleet is two aggregators, servers that are others', and nodes, each behind a network of its own.
type faultyFleet struct {
	smallFleet
	servers  *natsCluster
	networks []*cutNetwork
	pager    *receiver
}

const (
	faultyAggregators = 2
	plainNodes        = 4
)

func startFaultyFleet(t *testing.T) *faultyFleet {
	t.Helper()
	f := &faultyFleet{smallFleet: smallFleet{t: t, told: make([]string, faultyAggregators)}, servers: startNATSCluster(t), pager: newReceiver(t)}
	for i := range faultyAggregators {
		f.dirs = append(f.dirs, t.TempDir())
		f.configure(i, compressed)
		f.aggregators = append(f.aggregators, f.start(i))
	}
	for i := range plainNodes {
		// Upgrades: SQUALL_OLDER is an older squall, which one node has until mid-storm.
		in := surroundings{}
		if i == 0 {
			in.program = os.Getenv("SQUALL_OLDER")
		}
		f.nodes = append(f.nodes, runSquall(t, f.node(fmt.Sprint("n", i), ""), in))
	}
	for _, name := range slices.Sorted(maps.Keys(skewedNodes)) {
		p, clock := stepping(t, f.node(name, ""))
		clock.step(skewedNodes[name])
		p.await()
		f.nodes = append(f.nodes, p)
	}
	for _, p := range f.aggregators {
		p.await()
	}
	return f
}

// configure writes the configuration of an aggregator.
func (f *faultyFleet) configure(i int, rules string) {
	f.t.Helper()
	write(f.t, filepath.Join(f.dirs[i], "squall.yaml"), fmt.Sprintf(`spool: {dir: %s/spool}
notify: [{type: stdout, format: json}, {type: webhook, url: "%s/hook"}]
fleet: {nats: "%s", node: agg-%d, lateness: 5s, replicas: 3}
%s`, f.dirs[i], f.pager.URL, f.servers.url(), i, rules))
}

// node makes the folder of a node; more is added to its configuration.
func (f *faultyFleet) node(name, more string) (dir string) {
	f.t.Helper()
	dir = f.t.TempDir()
	n := newCutNetwork(f.t, f.servers.addresses)
	log := filepath.Join(dir, "access.log")
	write(f.t, log, "")
	write(f.t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), fmt.Sprintf(`
notify: [{type: stdout, format: json}]
fleet: {nats: "nats://%s", node: %s, lateness: 5s}
%s`, strings.Join(n.addresses, ",nats://"), name, more)))
	f.dirs, f.logs, f.networks = append(f.dirs, dir), append(f.logs, log), append(f.networks, n)
	return dir
}

// write writes requests into the logs of all nodes, each by its node's clock.
func (f *faultyFleet) write(method string, every time.Duration) (stop func()) {
	var all []*logger
	ahead := append(make([]time.Duration, plainNodes), 0, 0, 0)
	for i, name := range slices.Sorted(maps.Keys(skewedNodes)) {
		ahead[plainNodes+i] = skewedNodes[name]
	}
	for i, log := range f.logs {
		all = append(all, startLoggerAhead(f.t, log, method, every, ahead[i]))
	}
	return func() {
		for _, l := range all {
			l.stop()
		}
	}
}

// shows waits until all aggregators show a number.
func (f *faultyFleet) shows(what, series string, n float64) {
	f.t.Helper()
	within(f.t, 2*time.Minute, what, f.all(func(i int) bool { return f.aggregators[i].metric(series) == n }))
}

// cut cuts a node off for so long, and sees that it is missed, and counted when it is back.
func (f *faultyFleet) cut(i int, d time.Duration) {
	f.t.Helper()
	mend := f.networks[i].cut(f.t)
	began := time.Now()
	f.shows("a node that is cut off is missed", `squall_fleet_nodes{state="missing"}`, 1)
	within(f.t, time.Minute, "a node that is cut off looks at its alerts itself", func() bool { return f.nodes[i].metric("squall_fleet_covered") == 0 })
	within(f.t, d+time.Minute, "the network is mended", func() bool { return time.Since(began) >= d })
	f.judges(0, 2)
	mend()
	within(f.t, 2*time.Minute, "a node that was cut off is counted again", f.counted(healthyNodes))
	within(f.t, time.Minute, "it is covered again", func() bool { return f.nodes[i].metric("squall_fleet_covered") == 1 })
	if waiting := f.nodes[i].metric("squall_fleet_waiting_panes"); waiting > 3 {
		f.t.Errorf("%v panes wait still", waiting)
	}
}

const healthyNodes = plainNodes + 2 // what one tells whose clock is two minutes behind comes too late

// TestTortureFleetFaults: a storm over a fleet with real servers in between. In the midst of it nodes are cut off, the
// stream's leader is killed, an aggregator is, settings differ, a node is upgraded; and three nodes have clocks that are
// off. There is one page, from the storm's beginning to its end, and who was absent is told.
//
// A pane is a second, so that ten minutes, which are sixty panes of ten seconds, are one. SQUALL_CUT is another time.
func TestTortureFleetFaults(t *testing.T) {
	cut, err := time.ParseDuration(cmp.Or(os.Getenv("SQUALL_CUT"), "1m"))
	if err != nil {
		t.Fatal(err)
	}
	f := startFaultyFleet(t)
	quiet := f.write("GET", 500*time.Millisecond)
	defer quiet()
	within(t, 2*time.Minute, "all nodes are counted", f.counted(healthyNodes))
	f.shows("a node whose clock is behind is late", `squall_fleet_nodes{state="late"}`, 1)
	f.shows("clocks that are off are seen", "squall_fleet_skewed_nodes", float64(len(skewedNodes)))
	f.judges(0, 20) // what is usual is learned
	over := f.write("HEAD", 600*time.Millisecond)
	within(t, 2*time.Minute, "all aggregators see the storm", f.all(func(i int) bool {
		return strings.Contains(f.transcript(i), `"alert":"HeadStorm","state":"firing"`)
	}))
	f.cut(1, cut)
	f.cut(2, 40*time.Second)

	leader := f.servers.leader()
	f.servers.kill(leader)
	f.judges(0, 15)
	f.servers.start(leader)
	within(t, 2*time.Minute, "all nodes are counted without the leader", f.counted(healthyNodes))

	f.told[0] += f.aggregators[0].transcript()
	f.aggregators[0].kill()
	f.judges(1, 15)
	f.aggregators[0] = f.start(0)
	f.aggregators[0].await()
	within(t, 2*time.Minute, "the aggregator that was killed counts all nodes", f.counted(healthyNodes))

	f.differ()
	f.nodes[0].stop(syscall.SIGTERM)
	f.nodes[0] = runSquall(t, f.dirs[faultyAggregators], surroundings{})
	within(t, 2*time.Minute, "a node that was upgraded counts", f.counted(healthyNodes))

	over()
	within(t, 4*time.Minute, "all aggregators tell of its end", f.all(func(i int) bool {
		return strings.Contains(f.transcript(i), `"alert":"HeadStorm","state":"resolved"`)
	}))
	f.review()
}

// differ starts an aggregator, and a node, with other settings: they are named.
func (f *faultyFleet) differ() {
	f.t.Helper()
	other := len(f.dirs)
	f.dirs = append(f.dirs, f.t.TempDir())
	f.configure(other, strings.ReplaceAll(compressed, "per_minute: 120", "per_minute: 130"))
	p := f.start(other)
	p.await()
	f.shows("an aggregator with other settings is seen", "squall_fleet_drifted_aggregators", 1)
	for i := range f.aggregators {
		if told := f.aggregators[i].log("another aggregator judges by other settings: their alerts differ, and receivers are told twice"); len(told) != 1 || told[0]["aggregator"] != fmt.Sprint("agg-", other) {
			f.t.Errorf("aggregator %d names %v", i, told)
		}
	}
	p.stop(syscall.SIGTERM)
	file := filepath.Join(f.dirs[faultyAggregators+3], "squall.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		f.t.Fatal(err)
	}
	write(f.t, file, strings.ReplaceAll(string(text), "workers: 4", "workers: 5"))
	if code, body := f.nodes[3].reload(); code >= 400 {
		f.t.Fatal(body)
	}
	f.shows("a node with other settings is seen", "squall_fleet_drifted_nodes", 1)
}

// review looks at what everybody was told in the end.
func (f *faultyFleet) review() {
	f.t.Helper()
	storms := func(i int) []string {
		return slices.DeleteFunc(identities(f.t, f.transcript(i)), func(s string) bool { return !strings.Contains(s, "HeadStorm") })
	}
	want := storms(0)
	if len(want) != 2 {
		f.t.Errorf("told of the storm %q, want its beginning and its end", want)
	}
	for i := range f.aggregators {
		if got := storms(i); !slices.Equal(got, want) {
			f.t.Errorf("aggregator %d told\n%q, and the first\n%q", i, got, want)
		}
		_, end, _ := strings.Cut(f.transcript(i), `"alert":"HeadStorm","state":"resolved"`)
		_, away, _ := strings.Cut(end, `"nodes_absent":[`)
		for _, name := range []string{"n1", "n2", "behind120"} {
			if away, _, _ = strings.Cut(away, "]"); !strings.Contains(away, `"`+name+`"`) {
				f.t.Errorf("aggregator %d does not tell that %s was absent: %s", i, name, away)
			}
		}
	}
	hooked := func(status string) []string {
		return slices.DeleteFunc(begun(f.pager, status), func(s string) bool { return !strings.Contains(s, "HeadStorm") })
	}
	within(f.t, time.Minute, "the webhook is told of the end", func() bool { return len(hooked("resolved")) > 0 })
	if began, ended := hooked("firing"), hooked("resolved"); len(began) != 1 || len(ended) != 1 {
		f.t.Errorf("the webhook was told of %q and %q", began, ended)
	}
	for i, p := range f.nodes {
		if strings.Contains(p.transcript(), "HeadStorm") {
			f.t.Errorf("node %d alone sees no storm, and told of one", i)
		}
	}
}

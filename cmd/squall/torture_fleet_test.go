//go:build torture

package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A small fleet: three aggregators that are a NATS cluster, and nodes that tail logs. All know each other by TLS and NKeys.
type smallFleet struct {
	t           *testing.T
	aggregators []*program
	nodes       []*program
	dirs        []string // of the aggregators, then of the nodes
	logs        []string
	told        []string // what the aggregators told before they were killed
}

const (
	fleetServers = 3
	fleetNodes   = 4
)

func startSmallFleet(t *testing.T) *smallFleet {
	t.Helper()
	f := &smallFleet{t: t, told: make([]string, fleetServers)}
	keys := newFleetKeys(t)
	var listen, cluster, routes, urls []string
	for i := range fleetServers {
		listen, cluster = append(listen, freeAddress(t)), append(cluster, freeAddress(t))
		routes = append(routes, fmt.Sprintf("%q", "nats-route://"+cluster[i]))
		urls = append(urls, "tls://"+listen[i])
		keys.aggregator(fmt.Sprint("agg-", i))
	}
	for i := range fleetNodes {
		keys.node(fmt.Sprint("n", i))
	}
	for i := range fleetServers {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf(`spool: {dir: %s/spool}
notify: [{type: stdout, format: json}]
fleet: {embedded: true, lateness: 5s, %s, server: {listen: %q, cluster_listen: %q, routes: [%s], %s}}
%s`, dir, keys.member(fmt.Sprint("agg-", i)), listen[i], cluster[i], strings.Join(routes, ", "), keys.server(), compressed))
		f.dirs = append(f.dirs, dir)
		f.aggregators = append(f.aggregators, f.start(i))
	}
	for i := range fleetNodes {
		dir := t.TempDir()
		log := filepath.Join(dir, "access.log")
		write(t, log, "")
		write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), fmt.Sprintf(`
notify: [{type: stdout, format: json}]
fleet: {nats: "%s", lateness: 5s, %s}
`, strings.Join(urls, ","), keys.member(fmt.Sprint("n", i)))))
		f.dirs, f.logs = append(f.dirs, dir), append(f.logs, log)
		f.nodes = append(f.nodes, runSquall(t, dir, surroundings{}))
	}
	for _, p := range f.aggregators {
		p.await()
	}
	return f
}

// start starts an aggregator; it is ready when most of the others are there.
func (f *smallFleet) start(i int) *program {
	return launch(f.t, surroundings{}, "aggregate", "--config", filepath.Join(f.dirs[i], "squall.yaml"), "--web.listen-address", "127.0.0.1:0")
}

// transcript is what an aggregator told over all its lives.
func (f *smallFleet) transcript(i int) string { return f.told[i] + f.aggregators[i].transcript() }

// judges waits until an aggregator has judged so many more panes, of a second each.
func (f *smallFleet) judges(i int, panes float64) {
	f.t.Helper()
	const judged = "squall_fleet_merged_panes_total"
	until := f.aggregators[i].metric(judged) + panes
	within(f.t, 2*time.Minute, "an aggregator judges on", func() bool { return f.aggregators[i].metric(judged) >= until })
}

// all tells whether something holds of all aggregators.
func (f *smallFleet) all(so func(i int) bool) func() bool {
	return func() bool {
		for i := range f.aggregators {
			if !so(i) {
				return false
			}
		}
		return true
	}
}

func (f *smallFleet) counted(n float64) func() bool {
	return f.all(func(i int) bool {
		code, _ := f.aggregators[i].get("/-/ready")
		return code == http.StatusOK && f.aggregators[i].metric(`squall_fleet_nodes{state="counted"}`) == n
	})
}

// TestTortureFleet: a storm that is below every node's threshold, over four nodes and three aggregators that are their
// own NATS servers. Each aggregator is killed in its turn, a node is frozen, another is killed: one alert, from its
// beginning to its end, told alike by all.
func TestTortureFleet(t *testing.T) {
	f := startSmallFleet(t)
	var loggers []*logger
	for _, log := range f.logs {
		loggers = append(loggers, startLogger(t, log, "GET", 500*time.Millisecond))
	}
	within(t, 2*time.Minute, "all nodes are counted", f.counted(fleetNodes))
	f.judges(0, 20) // what is usual is learned
	var storm []*logger
	for _, log := range f.logs {
		storm = append(storm, startLogger(t, log, "HEAD", 900*time.Millisecond))
	}
	fires := func(i int) bool { return strings.Contains(f.transcript(i), `"alert":"HeadStorm","state":"firing"`) }
	within(t, 2*time.Minute, "all aggregators see the storm", f.all(fires))

	for i := range f.aggregators {
		f.told[i] += f.aggregators[i].transcript()
		f.aggregators[i].kill()
		f.judges((i+1)%fleetServers, 5)
		f.aggregators[i] = f.start(i)
		f.aggregators[i].await()
		within(t, 2*time.Minute, "all nodes are counted again", f.counted(fleetNodes))
	}
	f.nodes[1].signal(syscall.SIGSTOP)
	within(t, time.Minute, "a frozen node is missed", f.all(func(i int) bool { return f.aggregators[i].metric(`squall_fleet_nodes{state="counted"}`) < fleetNodes }))
	f.nodes[1].signal(syscall.SIGCONT)
	within(t, time.Minute, "it counts again", f.counted(fleetNodes))
	f.nodes[2].kill()
	f.nodes[2] = runSquall(t, f.dirs[fleetServers+2], surroundings{})
	within(t, time.Minute, "a node that was killed counts again", f.counted(fleetNodes))

	for _, l := range storm {
		l.stop()
	}
	within(t, 2*time.Minute, "all aggregators tell of its end", f.all(func(i int) bool {
		return strings.Contains(f.transcript(i), `"alert":"HeadStorm","state":"resolved"`)
	}))
	// (What ends and begins again while an aggregator is dead, it tells as one.)
	storms := func(i int) []string {
		return slices.DeleteFunc(identities(t, f.transcript(i)), func(s string) bool { return !strings.Contains(s, "HeadStorm") })
	}
	want := storms(0)
	if len(want) != 2 {
		t.Errorf("told of the storm %q, want its beginning and its end", want)
	}
	for i := range f.aggregators {
		if got := storms(i); !slices.Equal(got, want) {
			t.Errorf("aggregator %d told\n%q, and the first\n%q", i, got, want)
		}
	}
	for i, p := range f.nodes {
		if strings.Contains(p.transcript(), "HeadStorm") {
			t.Errorf("node %d alone sees no storm, and told of one", i)
		}
	}
	for _, l := range loggers {
		l.stop()
	}
}

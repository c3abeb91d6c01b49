//go:build torture

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	delayNodes  = 4
	delayStorms = 48
	delayPane   = 10 * time.Second // the default
	stormEvery  = 4700 * time.Millisecond
	stormLasts  = time.Minute
)

// TestFleetDelay measures how long it takes from a storm's first line to the webhook: by a node that has all lines, and
// by a fleet of four that have a quarter of them each, over three servers and two aggregators. All is as configured by
// default. Storms are on sites of their own, and begin at all places of a pane.
func TestFleetDelay(t *testing.T) {
	servers, pager := startNATSCluster(t), startHook(t)
	notify := func(who string) string {
		return fmt.Sprintf("notify: [{type: webhook, url: \"%s/%s\"}]\n", pager.URL, who)
	}
	var logs, paths []string
	for range delayNodes {
		logs = append(logs, filepath.Join(t.TempDir(), "access.log"))
		paths = append(paths, fmt.Sprintf("%q", logs[len(logs)-1]))
	}
	run := func(paths, more string) *program {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf("own: {interfaces: false}\nsources: [{name: balancer, type: file, paths: [%s]}]\nspool: {dir: %q}\n%s",
			paths, filepath.Join(dir, "spool"), more))
		return runSquall(t, dir, surroundings{})
	}
	storms := startSiteStorms(t, logs)
	run(strings.Join(paths, ", "), notify("alone"))
	for i := range delayNodes {
		run(paths[i], fmt.Sprintf("notify: []\nfleet: {nats: %q, node: n%d}\n", servers.url(), i))
	}
	var aggregators []*program
	for i := range 2 {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf("spool: {dir: %q}\nfleet: {nats: %q, node: agg-%d, replicas: 3}\n%s", filepath.Join(dir, "spool"), servers.url(), i, notify("fleet")))
		aggregators = append(aggregators, launch(t, surroundings{}, "aggregate", "--config", filepath.Join(dir, "squall.yaml"), "--web.listen-address", "127.0.0.1:0"))
	}
	for _, p := range aggregators {
		p.await()
	}
	within(t, 2*time.Minute, "all nodes are counted", func() bool { return aggregators[0].metric(`squall_fleet_nodes{state="counted"}`) == delayNodes })
	began := storms.begins()
	pages := func(who string) map[string]time.Time {
		at := map[string]time.Time{}
		for _, g := range pager.told("/" + who) {
			if _, known := at[g.labels]; g.name == "HeadStorm" && g.status == "firing" && !known {
				at[g.labels] = g.at
			}
		}
		return at
	}
	within(t, 10*time.Minute, "all storms are told of", func() bool { return len(pages("alone")) == delayStorms && len(pages("fleet")) == delayStorms })
	storms.all()
	var alone, over, later []time.Duration
	fleet := pages("fleet")
	for labels, at := range pages("alone") {
		_, site, _ := strings.Cut(labels, `"site":"`)
		first := began(strings.TrimSuffix(site, `"}`))
		alone, over, later = append(alone, at.Sub(first)), append(over, fleet[labels].Sub(first)), append(later, fleet[labels].Sub(at))
	}
	for _, row := range []struct {
		what string
		of   []time.Duration
	}{{"one node", alone}, {"a fleet", over}, {"a fleet after one node", later}} {
		fmt.Printf("%-24s %d storms, from the first line to the page: median %.1f s, p95 %.1f s\n", row.what, len(row.of), ranked(row.of, 0.5).Seconds(), ranked(row.of, 0.95).Seconds())
	}
	if p95 := ranked(later, 0.95); p95 > delayPane+3*time.Second {
		t.Errorf("a fleet pages %s after one node: a pane and 3 s are allowed", p95)
	}
}

// ranked is a quantile of durations.
func ranked(list []time.Duration, q float64) time.Duration {
	list = slices.Sorted(slices.Values(list))
	return list[int(q*float64(len(list)-1)+0.5)]
}

// siteStorms are what writes the logs of TestFleetDelay.
type siteStorms struct {
	mu    sync.Mutex
	first map[string]time.Time // of each site, its storm's first line
	begin chan struct{}
	all   func() // ends them
}

// begins lets the storms begin, and gives what tells when each did.
func (s *siteStorms) begins() (began func(site string) time.Time) {
	close(s.begin)
	return func(site string) time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.first[site]
	}
}

// startSiteStorms writes requests of people to all sites into all logs by turns, and then storms, one after another.
func startSiteStorms(t *testing.T, logs []string) *siteStorms {
	t.Helper()
	var files []*os.File
	for _, path := range logs {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	s := &siteStorms{first: map[string]time.Time{}, begin: make(chan struct{})}
	end := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		var from time.Time
		begin := s.begin
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			case <-begin:
				from, begin = time.Now().Add(2*time.Minute), nil // what is usual is learned until then
				continue
			case <-tick.C:
			}
			now := time.Now()
			line := func(site int, method string, n int) {
				name := fmt.Sprintf("s%02d.example", site)
				if method == "HEAD" {
					s.mu.Lock()
					if s.first[name].IsZero() {
						s.first[name] = now
					}
					s.mu.Unlock()
				}
				if _, err := files[n%len(files)].WriteString(strings.Replace(logLine(now, method, n), "shop.example", name, 1)); err != nil {
					t.Error(err)
				}
			}
			for k := range 2 { // each site every 1.2 s, of each node every 4.8 s
				line((2*i+k)%delayStorms, "GET", i/(delayStorms/2)+k)
			}
			for site := range delayStorms {
				if since := now.Sub(from) - time.Duration(site)*stormEvery; !from.IsZero() && 0 <= since && since < stormLasts {
					line(site, "HEAD", i) // twenty a second
				}
			}
		}
	})
	s.all = sync.OnceFunc(func() {
		close(end)
		writer.Wait()
		for _, f := range files {
			_ = f.Close()
		}
	})
	t.Cleanup(s.all)
	return s
}

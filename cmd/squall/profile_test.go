//go:build soak && peers

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"testing"
	"time"
)

// profiledLogs are the logs of an ordinary day whose replay is profiled, and how busy each is: about as much time for
// each of what the lines of most sites look like.
var profiledLogs = []struct {
	format string
	rate   float64
}{{"nginx", 8}, {"nginx_extended", 4}, {"ingress_nginx", 2}, {"alb", 4}, {"traefik_json", 2}, {"caddy_json", 2}, {"envoy_json", 2}}

// TestProfile (make pgo) writes the processor profiles replay.prof and run.prof into the folder PROFILES: of replays of
// several formats, and of a daemon in a flood. The compiler reads what they are merged into.
func TestProfile(t *testing.T) {
	dir := os.Getenv("PROFILES")
	if dir == "" {
		t.Fatal("PROFILES is not set: name the folder for the profiles")
	}
	var logs []string
	for _, l := range profiledLogs {
		logs = append(logs, simulatePeerLog(t, l.format, l.rate).path)
	}
	var profile bytes.Buffer
	if err := pprof.StartCPUProfile(&profile); err != nil {
		t.Fatal(err)
	}
	for _, path := range logs {
		r, err := newReplayer(Default(), formatChoice{name: "auto"}, "", io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.run(t.Context(), []string{path}, nil); err != nil {
			t.Fatal(err)
		}
	}
	pprof.StopCPUProfile()
	write(t, filepath.Join(dir, "replay.prof"), profile.String())
	s := &soaking{
		pane: 10 * time.Second, lateness: 5 * time.Second, minutes: 0.1, rate: 30_000, fresh: 6,
		profile: filepath.Join(dir, "run.prof"),
	}
	s.run(t)
}

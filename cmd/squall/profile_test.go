//go:build soak

package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/squall-sre/squall/cmd/squall/simulate"
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
	scenario, err := simulate.Named("quiet_day")
	if err != nil {
		t.Fatal(err)
	}
	var logs []string
	for _, l := range profiledLogs {
		path := filepath.Join(t.TempDir(), l.format+".log")
		log := create(t, path)
		if _, err := simulate.Run(t.Context(), simulate.Options{Scenario: scenario, Format: l.format, Seed: 1, Rate: l.rate}, log); err != nil {
			t.Fatal(err)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		logs = append(logs, path)
	}
	profile := create(t, filepath.Join(dir, "replay.prof"))
	defer func() { _ = profile.Close() }()
	if err := pprof.StartCPUProfile(profile); err != nil {
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
	s := &soaking{
		pane: 10 * time.Second, lateness: 5 * time.Second, minutes: 0.1, rate: 30_000, fresh: 6,
		profile: filepath.Join(dir, "run.prof"),
	}
	s.run(t)
}

func create(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// fetchProfile writes a processor profile of three quarters of a minute of a squall that runs.
func fetchProfile(t *testing.T, squall *program, path string) {
	t.Helper()
	code, body := request(http.MethodGet, squall.base+"/debug/pprof/profile?seconds=45")
	check(t, "status of the profile", code, http.StatusOK)
	write(t, path, body)
}

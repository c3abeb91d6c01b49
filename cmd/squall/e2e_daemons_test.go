package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/source"
)

// unenriched leaves records as their lines tell them.
type unenriched struct{}

func (unenriched) Enrich(*pipeline.Record) {}

// roadOf runs a source and its road, and gives what became of its lines.
func roadOf(t *testing.T, kind, format, config string) (src source.Source, items func() []pipeline.Item) {
	t.Helper()
	decode := func(v any) error { return yaml.UnmarshalWithOptions([]byte(config), v, yaml.Strict()) }
	src, err := source.New(decode, source.Runtime{
		Name: "test", Logger: zap.NewNop(), Metrics: source.NewMetrics(prometheus.NewRegistry()), Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var seen []pipeline.Item
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: "test", Enricher: unenriched{},
		Open: opener{format: formatChoice{name: format}, zone: time.UTC, framing: framings[kind]}.open,
		Take: func(w *pipeline.Work) error {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, w.Items...) // the work is not released: its lines stay
			return nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, nowhere{}, road.Emit) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return src, func() []pipeline.Item {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// nowhere are the positions of a spool that is empty.
type nowhere struct{}

func (nowhere) Position(string) (int64, bool) { return 0, false }
func (nowhere) Ended(string) bool             { return false }
func (nowhere) Streams(string) []string       { return nil }
func (nowhere) Anchor(string) pipeline.Anchor { return 0 }
func (nowhere) Stored(string) time.Time       { return time.Time{} }

// A real HAProxy logs over UDP, in each of its header forms; every request is a Record, whether the format is named or not.
func TestHAProxyOverSyslog(t *testing.T) {
	for _, format := range []string{"haproxy", "auto"} {
		src, items := roadOf(t, "syslog", format, "{type: syslog, listen: ['udp://127.0.0.1:0']}")
		eventually(t, "it listens", func() bool { return src.States()[0].State == "reading" })
		address := strings.TrimPrefix(src.States()[0].Path, "udp://")
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		bind := l.Addr().String()
		l.Close()
		var config strings.Builder
		config.WriteString("global\n")
		headers := []string{"rfc3164", "rfc5424", "local", "priority", "short", "timed", "iso", "raw"}
		for i, header := range headers {
			fmt.Fprintf(&config, "\tlog %s format %s local%d\n", address, header, i)
		}
		fmt.Fprintf(&config, "defaults\n\tmode http\n\tlog global\n\toption httplog\n\ttimeout client 5s\n\ttimeout server 5s\n\ttimeout connect 5s\n"+
			"frontend fe\n\tbind %s\n\thttp-request return status 200 content-type text/plain string ok\n", bind)
		path := filepath.Join(t.TempDir(), "haproxy.cfg")
		if err := os.WriteFile(path, []byte(config.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("haproxy", "-db", "-f", path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // it was killed
		})
		const requests = 20
		began := time.Now()
		eventually(t, "haproxy listens", func() bool {
			conn, err := net.Dial("tcp", bind)
			if err == nil {
				conn.Close()
			}
			return err == nil
		})
		client := http.Client{Transport: &http.Transport{}}
		for i := range requests {
			answer, err := client.Head(fmt.Sprintf("http://%s/checkout/%d", bind, i))
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
		}
		client.CloseIdleConnections()
		records := func() (n int) {
			for _, item := range items() {
				if r := item.Record; item.Kind == pipeline.IsRecord && bytes.HasPrefix(r.Path, []byte("/checkout/")) &&
					r.Status == 200 && string(r.Method) == "HEAD" && r.Client.String() == "127.0.0.1" && r.Time/1e9 >= began.Unix() {
					n++
				}
			}
			return n
		}
		eventually(t, format+": every request is a Record", func() bool { return records() == requests*len(headers) })
	}
}

// What php-fpm and kubelet write into the journal are Events, at the times of their entries.
func TestJournalEvents(t *testing.T) {
	dir := t.TempDir()
	var export bytes.Buffer
	const us = 1774743984000000
	for i, e := range []struct{ unit, message string }{
		{"php8.2-fpm", "WARNING: [pool www] server reached pm.max_children setting (5), consider raising it"},
		{"kubelet", `I0329 00:26:24.310841    2480 kuberuntime_container.go:777] "Killing container with a grace period" pod="shop/web-1" podUID="u" containerName="php" containerID="c" gracePeriod=30`},
		{"sshd", "Accepted publickey"},
	} {
		fmt.Fprintf(&export, "__REALTIME_TIMESTAMP=%d\n__MONOTONIC_TIMESTAMP=%d\n_BOOT_ID=%s\n_HOSTNAME=node-1\n_SYSTEMD_UNIT=%s.service\nMESSAGE=%s\n\n",
			us+i, i+1, strings.Repeat("b", 32), e.unit, e.message)
	}
	write := exec.Command("/usr/lib/systemd/systemd-journal-remote", "-o", filepath.Join(dir, "a.journal"), "-")
	write.Stdin = &export
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, items := roadOf(t, "journal", "auto", "{type: journal, units: [kubelet, php8.2-fpm], directory: "+dir+"}")
	eventually(t, "both units are read", func() bool { return len(items()) >= 2 })
	got := map[pipeline.EventKind]pipeline.Event{}
	for _, item := range items() {
		for _, e := range item.Events {
			got[e.Kind] = e
		}
	}
	if e := got[pipeline.PHPMaxChildren]; e.Time != us*1000 || e.Node != "node-1" || e.Limit != 5 {
		t.Errorf("%+v", e)
	}
	if e := got[pipeline.ContainerKill]; e.Time != us*1000+310841000 || e.Node != "node-1" || e.Pod != "web-1" || e.Grace != 30 {
		t.Errorf("%+v", e)
	}
}

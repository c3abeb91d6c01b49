package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/report"
)

// A streamEvent is one of server-sent events.
type streamEvent struct{ name, data string }

// follow opens the live stream and gives its events until it ends.
func follow(t *testing.T, ctx context.Context, base string) (code int, events <-chan streamEvent) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req) //nolint:bodyclose // whoever reads the events closes it
	if err != nil {
		t.Fatal(err)
	}
	to := make(chan streamEvent, 100)
	go func() {
		defer close(to)
		defer func() { _ = res.Body.Close() }()
		var e streamEvent
		lines := bufio.NewReader(res.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			switch name, data, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); name {
			case "event":
				e.name = data
			case "data":
				e.data = data
			case "":
				if e.name != "" {
					to <- e
				}
				e = streamEvent{}
			}
		}
	}()
	return res.StatusCode, to
}

// next is the next event of a name.
func next(t *testing.T, events <-chan streamEvent, name string) streamEvent {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case e, more := <-events:
			if !more {
				t.Fatalf("the stream ended before %s", name)
			}
			if e.name == name {
				return e
			}
		case <-deadline:
			t.Fatalf("no event %s came", name)
		}
	}
}

// calming is a state whose alert ends.
type calming struct {
	shown
	calm atomic.Bool
}

func (c *calming) Alerts() []alerts.Alert {
	if c.calm.Load() {
		return nil
	}
	return c.shown.Alerts()
}

// TestLiveStream: all parts at first, then what has changed, as text that no markup of a log gets out of; the end of the
// server is the end of the stream.
func TestLiveStream(t *testing.T) {
	state := &calming{}
	base, stop := start(t, webServerConfig{State: state})
	code, events := follow(t, t.Context(), base)
	check(t, "code", code, 200)
	var parts struct {
		Firing int
		HTML   map[string]string
	}
	read := func() {
		t.Helper()
		parts.HTML = nil
		e := next(t, events, "parts")
		if err := json.Unmarshal([]byte(e.data), &parts); err != nil {
			t.Fatal(err)
		}
		for name, html := range parts.HTML {
			if !plain(html) || strings.Contains(html, "<script") || strings.Contains(html, "<img") {
				t.Errorf("%s: %q", name, html)
			}
		}
	}
	read()
	check(t, "firing", parts.Firing, 1)
	check(t, "parts", len(parts.HTML), len(pageParts))
	series := next(t, events, "series")
	if !plain(series.data) || !strings.Contains(series.data, `"requests":{"GET":[60]`) {
		t.Errorf("series: %q", series.data)
	}
	state.calm.Store(true)
	read()
	if parts.Firing != 0 || len(parts.HTML) != 2 || !strings.Contains(parts.HTML["alerts"], "no storm is known") || !strings.Contains(parts.HTML["status"], "No alert fires") {
		t.Errorf("after its end: %+v", parts)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for range events { // nobody holds it open
	}
}

// TestLiveStreamsAreBounded: who comes too late is told to come again, and has the page; one that leaves makes room.
func TestLiveStreamsAreBounded(t *testing.T) {
	base, stop := start(t, webServerConfig{State: &shown{}})
	leave := make([]context.CancelFunc, maxStreams)
	for i := range leave {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leave[i] = cancel
		if code, _ := follow(t, ctx, base); code != 200 {
			t.Fatalf("stream %d: %d", i, code)
		}
	}
	code, body, header := ask(t, "GET", base+"/api/v1/stream")
	if code != 503 || header.Get("Retry-After") == "" {
		t.Errorf("one more: %d %s", code, body)
	}
	if code, _, _ := ask(t, "GET", base+"/"); code != 200 {
		t.Errorf("the page: %d", code)
	}
	leave[0]()
	eventually(t, "there is room again", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		code, _ := follow(t, ctx, base)
		return code == 200
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestLiveStreamTime: in a bubble, where an hour is free: a client that takes nothing is dropped and one that reads is
// told of a quiet hour that it goes on.
func TestLiveStreamTime(t *testing.T) {
	for _, reads := range []bool{true, false} {
		t.Run(fmt.Sprintf("reads %t", reads), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				l := &oneConn{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
				l.conns <- there
				c := webServerConfig{State: &shown{}, Log: zap.NewNop(), Gatherer: prometheus.NewRegistry()}
				s := newHTTPServer(c)
				done := make(chan error, 1)
				go func() { done <- s.Serve(l) }()
				if _, err := io.WriteString(here, "GET /api/v1/stream HTTP/1.1\r\nHost: squall\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				if reads {
					beats := 0
					for lines := bufio.NewScanner(here); beats < 360 && lines.Scan(); {
						if lines.Text() == "event: beat" {
							beats++
						}
					}
					if took := time.Since(began); beats != 360 || took < 59*time.Minute || took > 67*time.Minute {
						t.Errorf("%d beats in %s", beats, took)
					}
				} else {
					<-time.After(time.Minute) // of the bubble
					n, _ := io.Copy(io.Discard, here)
					if n != 0 {
						t.Errorf("%d bytes were still to come after a minute", n)
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if err := <-done; !errors.Is(err, http.ErrServerClosed) {
					t.Error(err)
				}
				_ = here.Close()
			})
		})
	}
}

// mixed is a state with alerts of all kinds, in no order.
type mixed struct{ shown }

func (*mixed) Alerts() []alerts.Alert {
	var list []alerts.Alert
	for i, state := range []alerts.State{alerts.Resolved, alerts.Firing, alerts.Suppressed, alerts.Firing} {
		list = append(list, alerts.Alert{
			Name: fmt.Sprintf("Alert%d", i), State: state, Severity: severities[i%len(severities)], StartsAt: 1e18, EndsAt: 1e18,
			Advice: []alerts.Advice{{Layer: "nginx", Text: "do"}}, Suppressed: "nightly", Incident: &alerts.Incident{ID: "one", StartsAt: 1e18},
		})
	}
	list[3].Severity = alerts.Page
	return list
}

// TestLivePageOrder: what pages comes first, and its advice alone is open; alerts of one incident are one there.
func TestLivePageOrder(t *testing.T) {
	base, stop := start(t, webServerConfig{State: &mixed{}})
	_, body, _ := ask(t, "GET", base+"/")
	at := -1
	for _, name := range []string{"page</span> Alert3", "warning</span> Alert1", "suppressed</span> Alert2", "resolved</span> Alert0"} {
		i := strings.Index(body, name)
		if i <= at {
			t.Errorf("%s stands at %d, after %d", name, i, at)
		}
		at = i
	}
	if n := strings.Count(body, "-advice\" open>"); n != 1 {
		t.Errorf("the advice of %d alerts is open", n)
	}
	if n := strings.Count(body, `<details data-key="i`); n != 1 || !strings.Contains(body, "Alert3 {}, Alert1 {}, Alert2 {}, Alert0 {}") {
		t.Errorf("%d incidents: %s", n, body)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestChartsHaveTheNotesOfTheirTime: however many annotations are of another time, or another site.
func TestChartsHaveTheNotesOfTheirTime(t *testing.T) {
	s := report.Series{Site: "shop.example", Start: report.Time(1e18), Step: 10, Requests: map[string][]uint64{}, Abandoned: make([]uint64, 6)}
	marks := []alerts.Mark{{At: 1e18 - 1, Text: "before"}, {At: 1e18 + 20e9, Text: "rule\u202e"}, {At: 1e18 + 30e9, Text: "elsewhere", Site: "other.example"}}
	for i := range 100 {
		marks = append(marks, alerts.Mark{At: alerts.Instant(1e18 + 61e9 + i), Text: "later"})
	}
	out, err := charted([]report.Series{s}, nil, marks)
	if want := `"annotations":[{"at":1000000020,"text":"rule\\u{202e}"}]`; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%s (%v), not %s", out, err, want)
	}
}

package loki

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/pipeline/loki/faultproxy"
)

// rows counts what a real server stored: all rows, and those that differ in stream, time or line.
func rows(t *testing.T, base string) (all, different int) {
	t.Helper()
	resp, err := http.PostForm(base+"/select/logsql/query", url.Values{"query": {"*"}, "limit": {"100000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	seen := map[string]bool{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); all++ {
		row := map[string]string{}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		seen[row["_stream"]+row["_time"]+row["_msg"]] = true
	}
	return all, len(seen)
}

// Whatever the network does to a push, every line arrives, and what arrives twice is identical.
func TestBadNetworks(t *testing.T) {
	base := victoriaLogs(t)
	proxy := faultproxy.New(t, strings.TrimPrefix(base, "http://"))
	cfg := quick("http://" + proxy.Addr + "/insert/loki/api/v1/push?disable_message_parsing=1")
	cfg.Timeout = 400 * time.Millisecond
	r := start(t, t.TempDir(), cfg)
	sent, extra := int64(0), 0
	for _, c := range []struct {
		name   string
		fault  faultproxy.Fault
		stores bool // the server did the work each time
	}{
		{"refused", faultproxy.Refuse, false},
		{"blackhole", faultproxy.Blackhole, false},
		{"reset in the middle of the body", faultproxy.ResetMidBody, false},
		{"answer lost after the work was done", faultproxy.AnswerLost, true},
		{"answer never comes after the work was done", faultproxy.AnswerStalls, true},
		{"answer cut off", faultproxy.AnswerCut, true},
		{"slow loris", faultproxy.SlowLorisBack, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			proxy.Set(c.fault)
			failed := testutil.ToFloat64(r.shipper.m.retries.WithLabelValues("busy"))
			r.append(logged("a", sent, 400))
			sent += 400
			r.until("two pushes have failed", func() bool {
				return testutil.ToFloat64(r.shipper.m.retries.WithLabelValues("busy")) >= failed+2
			})
			if r.lines.Waiting() == 0 {
				t.Error("lines are thought to be shipped although no answer came")
			}
			proxy.Set(faultproxy.Through)
			r.shipped()
			var all, different int
			poll(t, "all lines are found", func() bool { all, different = rows(t, base); return different >= int(sent) })
			if different != int(sent) {
				t.Errorf("%d different rows of %d lines", different, sent)
			}
			if repeats := all - different; c.stores == (repeats == extra) {
				t.Errorf("%d identical repeats, %d before: the fault was not what it should be", repeats, extra)
			}
			extra = all - different
		})
	}
}

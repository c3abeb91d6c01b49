package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/pipeline"
)

func syslogSource(t *testing.T, config string) *syslog {
	t.Helper()
	src, err := New(strict("{type: syslog, "+config+"}"), testRuntime())
	if err != nil {
		t.Fatal(err)
	}
	return src.(*syslog)
}

// runSyslog starts the source, waits until it listens and gives the addresses, in the order of the configuration.
func runSyslog(t *testing.T, src *syslog, s *spool) (addresses []string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, s, s.emit(ctx)) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		began := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("stopped after %s", took)
		}
	}
	t.Cleanup(stop)
	for _, l := range src.listeners {
		until(t, func() bool { return l.shown().State == "reading" }, func() string { return fmt.Sprint(l.shown()) })
		_, address, _ := strings.Cut(l.shown().Path, "://")
		addresses = append(addresses, address)
	}
	return addresses, stop
}

func dial(t *testing.T, network, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(conn, s); err != nil {
		t.Fatal(err)
	}
}

var stamped = regexp.MustCompile(`^@\d{16} `)

// received takes the times off.
func received(t *testing.T, lines []string) []string {
	t.Helper()
	out := make([]string, len(lines))
	for i, line := range lines {
		if !stamped.MatchString(line) {
			t.Errorf("%.80q does not begin with a time", line)
			continue
		}
		out[i] = line[len("@1774743985000001 "):]
	}
	return out
}

func wantMessages(t *testing.T, s *spool, want []string) {
	t.Helper()
	until(t, func() bool { return s.count() >= len(want) }, func() string { return fmt.Sprintf("%d of %d lines", s.count(), len(want)) })
	got := received(t, s.all())
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("message %d is %.120q, want %.120q", i, got[i], want[i])
		}
	}
}

func TestSyslogDatagrams(t *testing.T) {
	s := newSpool(t)
	src := syslogSource(t, "listen: ['udp://127.0.0.1:0', 'udp://[::1]:0']")
	addresses, stop := runSyslog(t, src, s)
	conn := dial(t, "udp", addresses[0])
	var want []string
	for i := range 500 {
		message := fmt.Sprintf("<134>Mar 29 00:26:24 lb-1 nginx: line %d", i)
		send(t, conn, message)
		want = append(want, message)
	}
	for sent, got := range map[string]string{"ends\n": "ends", "two\nlines\r\n\x00": "two lines"} {
		wantMessages(t, s, want)
		send(t, conn, sent)
		want = append(want, got)
	}
	send(t, conn, "\n")
	wantMessages(t, s, want)
	send(t, conn, "<134>one\n<134>two\n<13>three\nand more\n<1five") // a line with a priority is a message of its own
	want = append(want, "<134>one", "<134>two", "<13>three and more <1five")
	wantMessages(t, s, want)
	send(t, dial(t, "udp6", addresses[1]), "over IPv6")
	wantMessages(t, s, append(want, "over IPv6"))
	for i := range 20 { // what has come when the end is ordered is still taken
		send(t, conn, fmt.Sprintf("last %d", i))
		want = append(want, fmt.Sprintf("last %d", i))
	}
	stop()
	if n := s.count(); n != len(want)+1 || s.ended() != 2 {
		t.Errorf("%d lines, want %d; %d streams ended", n, len(want)+1, s.ended())
	}
	if n := testutil.ToFloat64(src.meter.lines); n != float64(s.count()) {
		t.Errorf("counted %v lines", n)
	}
}

// Both framings of RFC 6587, however they are cut into segments.
func TestSyslogConnections(t *testing.T) {
	s := newSpool(t)
	src := syslogSource(t, "listen: ['tcp://127.0.0.1:0']")
	addresses, stop := runSyslog(t, src, s)
	conn := dial(t, "tcp", addresses[0])
	huge := strings.Repeat("h", 300<<10)
	send(t, conn, "<134>1 - - - - - - a\n10 <13>count\n5 a\nb\nc<13>line\n\n\n192.0.2.1 - - [x]\n123\n12345678901 x\n")
	want := []string{"<134>1 - - - - - - a", "<13>count", "a b c", "<13>line", "192.0.2.1 - - [x]", "123", "12345678901 x"}
	wantMessages(t, s, want)
	for _, piece := range strings.SplitAfter("14 <13>in pieces!<13>and a line\n", "") {
		send(t, conn, piece)
	}
	want = append(want, "<13>in pieces!", "<13>and a line")
	wantMessages(t, s, want)
	send(t, conn, "<13>ends in NUL\x00<13>so does this\n\x008 <13>five\x0012\x00<13>line\n")
	want = append(want, "<13>ends in NUL", "<13>so does this", "<13>five", "12", "<13>line")
	wantMessages(t, s, want)
	send(t, conn, fmt.Sprintf("%d %s", len(huge), huge)+huge+"\nafter\n")
	cut := huge[:cutAt-stampRoom]
	want = append(want, cut, cut, "after", "no end")
	send(t, conn, "no end")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wantMessages(t, s, want)
	half := dial(t, "tcp", addresses[0])
	send(t, half, "100 half a message")
	half.Close()
	counted := func() float64 { return testutil.ToFloat64(src.meter.all.errors.WithLabelValues("test", errMessage)) }
	until(t, func() bool { return counted() == 1 }, func() string { return fmt.Sprint(counted(), " halves counted") })
	stop()
	wantMessages(t, s, want)
	var skipped int64
	for _, skip := range s.skips() {
		if skip.Reason != pipeline.SkipLongLine || skip.Lost {
			t.Errorf("%+v", skip)
		}
		skipped += skip.Bytes
	}
	if over := int64(2 * (len(huge) - len(cut))); skipped < over || skipped > over+1 { // the line feed may count
		t.Errorf("%d bytes skipped, want %d", skipped, over)
	}
}

// Who is silent within a message, or for too long between two, is let go. Others are not held by it.
func TestSyslogSilentSenders(t *testing.T) {
	s := newSpool(t)
	src := syslogSource(t, "listen: ['tcp://127.0.0.1:0']")
	src.limits.half, src.limits.idle, src.limits.connections = 30*time.Millisecond, 300*time.Millisecond, 2
	addresses, _ := runSyslog(t, src, s)
	half, idle := dial(t, "tcp", addresses[0]), dial(t, "tcp", addresses[0])
	send(t, half, "<13>half")
	send(t, idle, "<13>whole\n")
	for _, conn := range []net.Conn{half, idle} {
		if err := conn.SetReadDeadline(time.Now().Add(deadline)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Errorf("%v", err)
		}
	}
	wantMessages(t, s, []string{"<13>whole"})
	send(t, dial(t, "tcp", addresses[0]), "<13>later\n")
	wantMessages(t, s, []string{"<13>whole", "<13>later"})
}

// Connections beyond the limit are closed at once, and senders that are not allowed are not heard.
func TestSyslogRefuses(t *testing.T) {
	s := newSpool(t)
	src := syslogSource(t, "listen: ['tcp://127.0.0.1:0']")
	src.limits.connections = 3
	addresses, _ := runSyslog(t, src, s)
	for i := range 3 {
		send(t, dial(t, "tcp", addresses[0]), fmt.Sprintf("<13>from %d\n", i))
		until(t, func() bool { return s.count() == i+1 }, func() string { return fmt.Sprint(s.count()) })
	}
	refused := func(src *syslog) float64 {
		return testutil.ToFloat64(src.meter.all.errors.WithLabelValues("test", errRefused))
	}
	dial(t, "tcp", addresses[0])
	until(t, func() bool { return refused(src) == 1 }, func() string { return fmt.Sprint(refused(src)) })

	other := newSpool(t)
	src = syslogSource(t, "listen: ['udp://127.0.0.1:0', 'tcp://127.0.0.1:0'], from: [10.0.0.0/8, 192.0.2.1]")
	addresses, stop := runSyslog(t, src, other)
	send(t, dial(t, "udp", addresses[0]), "<13>x")
	dial(t, "tcp", addresses[1])
	until(t, func() bool { return refused(src) == 2 }, func() string { return fmt.Sprint(refused(src)) })
	stop()
	if other.count() != 0 {
		t.Errorf("%q", other.all())
	}
}

// A port that is taken is a state, and tried on.
func TestSyslogPortIsTaken(t *testing.T) {
	taken, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newSpool(t)
	src := syslogSource(t, "listen: ['udp://"+taken.LocalAddr().String()+"']")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, s, s.emit(ctx)) }()
	until(t, func() bool { return src.States()[0].State == "unreadable" }, func() string { return fmt.Sprint(src.States()) })
	if st := src.States()[0]; !strings.Contains(st.Err, "in use") {
		t.Errorf("%+v", st)
	}
	taken.Close()
	until(t, func() bool { return src.States()[0].State == "reading" }, func() string { return fmt.Sprint(src.States()) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSyslogRoadEnds(t *testing.T) {
	broken := fmt.Errorf("the road has ended")
	src := syslogSource(t, "listen: ['udp://127.0.0.1:0', 'tcp://127.0.0.1:0']")
	done := make(chan error, 1)
	go func() { done <- src.Run(t.Context(), newSpool(t), func(*pipeline.Block) error { return broken }) }()
	l := src.listeners[1]
	until(t, func() bool { return l.shown().State == "reading" }, func() string { return fmt.Sprint(l.shown()) })
	_, address, _ := strings.Cut(l.shown().Path, "://")
	send(t, dial(t, "tcp", address), "<13>x\n")
	if err := <-done; !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestSyslogConfig(t *testing.T) {
	for config, wrong := range map[string]string{
		"listen: ['udp://:514', 'tcp://[::1]:514'], from: [10.0.0.0/8, '2001:db8::1']": "",
		"listen: []":                             "listen is missing",
		"listen: ['127.0.0.1:514']":              "write udp://",
		"listen: ['unix:///dev/log']":            "write udp://",
		"listen: ['udp://127.0.0.1']":            "port",
		"listen: ['udp://127.0.0.1:syslog']":     "not a port",
		"listen: ['udp://127.0.0.1:66000']":      "not a port",
		"listen: ['udp://:514'], from: [office]": "from",
		"listen: ['udp://:514'], from: [10.0/8]": "from",
		"listen: ['udp://:514'], tls: {}":        "tls",
	} {
		_, err := New(strict("{type: syslog, "+config+"}"), testRuntime())
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%s: %v", config, err)
		}
	}
}

// A real HAProxy logs to it, over UDP: every request is a message, with header and line as its own documentation has them.
func TestHAProxyLogs(t *testing.T) {
	s := newSpool(t)
	src := syslogSource(t, "listen: ['udp://127.0.0.1:0']")
	addresses, _ := runSyslog(t, src, s)
	port := freePort(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "haproxy.cfg")
	write(t, config, fmt.Sprintf(`global
	log %s format rfc5424 local0
	log %s format rfc3164 local1
	log-send-hostname lb-1
defaults
	mode http
	log global
	option httplog
	timeout client 5s
	timeout server 5s
	timeout connect 5s
frontend fe
	bind 127.0.0.1:%d
	http-request return status 200 content-type text/plain string ok
`, addresses[0], addresses[0], port))
	haproxy, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(haproxy, "-db", "-f", config)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
	})
	var conn net.Conn
	until(t, func() bool {
		var err error
		conn, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		return err == nil
	}, func() string { return "haproxy does not listen" })
	defer conn.Close()
	const requests = 50
	for i := range requests {
		send(t, conn, fmt.Sprintf("HEAD /checkout/%d HTTP/1.1\r\nHost: shop.example\r\n\r\n", i))
		if _, err := conn.Read(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	long := regexp.MustCompile(`^<134>1 \S+ lb-1 haproxy \d+ - - 127\.0\.0\.1:\d+ \[\d+/\w+/\d+:[\d:.]+\] fe fe/<NOSRV> .* "HEAD /checkout/(\d+) HTTP/1\.1"$`)
	short := regexp.MustCompile(`^<142>\w+ [ \d]\d [\d:]{8} lb-1 haproxy\[\d+\]: 127\.0\.0\.1:\d+ \[.*\] fe fe/<NOSRV> .* "HEAD /checkout/(\d+) HTTP/1\.1"$`)
	seen := func() (n [2]int) {
		for _, line := range received(t, s.all()) {
			for i, form := range []*regexp.Regexp{long, short} {
				if m := form.FindStringSubmatch(line); m != nil && m[1] == fmt.Sprint(n[i]) {
					n[i]++
				}
			}
		}
		return n
	}
	until(t, func() bool { return seen() == [2]int{requests, requests} }, func() string { return fmt.Sprintf("%v of %q", seen(), s.all()) })
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

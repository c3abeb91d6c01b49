package source

import (
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/pipeline"
)

// While the road stands still, datagrams are dropped and told: what came and what is missing is what was sent.
func TestDatagramFlood(t *testing.T) {
	s := newSpool(t)
	src := syslogSource(t, "listen: ['udp://127.0.0.1:0']")
	open := make(chan struct{})
	s.hold(open)
	addresses, stop := runSyslog(t, src, s)
	conn := dial(t, "udp", addresses[0])
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const sent = 20000
	line := "<13>" + strings.Repeat("x", 1000)
	for range sent {
		send(t, conn, line)
	}
	dropped := func() float64 { return testutil.ToFloat64(src.meter.dropped) }
	until(t, func() bool { return dropped() > 0 }, func() string { return "nothing was dropped" })
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8*blockSize {
		t.Errorf("%d bytes more on the heap", grown)
	}
	close(open)
	until(t, func() bool { return s.count()+int(dropped()) >= sent }, func() string {
		return fmt.Sprintf("%d came, %v were dropped, of %d", s.count(), dropped(), sent)
	})
	stop()
	if n := s.count() + int(dropped()); n != sent {
		t.Errorf("%d came, %v were dropped, of %d", s.count(), dropped(), sent)
	}
	var told int
	for _, skip := range s.skips() {
		if skip.Reason == pipeline.SkipOverflow && skip.Lost {
			told++
		}
	}
	if lost := testutil.ToFloat64(src.meter.all.skips.WithLabelValues("test", pipeline.SkipOverflow)); told == 0 || lost != float64(told) {
		t.Errorf("%d skips, %v counted", told, lost)
	}
}

// What the kernel drops at a socket that nobody reads is counted by it, and found there.
func TestKernelDrops(t *testing.T) {
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn := packets.(*net.UDPConn)
	defer conn.Close()
	if err := conn.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	drops := socketDrops(conn)
	if n, ok := drops(); n != 0 || !ok {
		t.Fatalf("%d %v before anything was sent", n, ok)
	}
	w := dial(t, "udp", conn.LocalAddr().String())
	const sent = 200
	for range sent {
		send(t, w, strings.Repeat("x", 500))
	}
	kept := 0
	buf := make([]byte, 1000)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(buf); err != nil {
			break
		}
		kept++
	}
	if n, ok := drops(); !ok || n == 0 || int(n)+kept != sent {
		t.Errorf("%d dropped and %d kept of %d", n, kept, sent)
	}
}

// TCP senders wait while the road stands still, without one line lost and without memory growing.
func TestConnectionFlood(t *testing.T) {
	s := newSpool(t)
	src := syslogSource(t, "listen: ['tcp://127.0.0.1:0']")
	open := make(chan struct{})
	s.hold(open)
	addresses, _ := runSyslog(t, src, s)
	const senders, each = 4, 10000
	line := strings.Repeat("x", 1000)
	finished := make(chan error, senders)
	for n := range senders {
		conn := dial(t, "tcp", addresses[0])
		go func() {
			for i := range each {
				if _, err := fmt.Fprintf(conn, "%d:%05d %s\n", n, i, line); err != nil {
					finished <- err
					return
				}
			}
			finished <- nil
		}()
	}
	select { // what the kernel's buffers and ours hold is less than they send
	case err := <-finished:
		t.Errorf("a sender has finished: %v", err)
	case <-time.After(time.Second):
	}
	close(open)
	for range senders {
		if err := <-finished; err != nil {
			t.Error(err)
		}
	}
	until(t, func() bool { return s.count() >= senders*each }, func() string { return fmt.Sprint(s.count()) })
	next := map[byte]int{}
	for _, line := range received(t, s.all()) {
		if want := fmt.Sprintf("%05d", next[line[0]]); line[2:7] != want {
			t.Fatalf("%.20q, want %s", line, want)
		}
		next[line[0]]++
	}
	if dropped := testutil.ToFloat64(src.meter.dropped); dropped != 0 || len(s.skips()) != 0 {
		t.Errorf("%v dropped, skips %v", dropped, s.skips())
	}
}

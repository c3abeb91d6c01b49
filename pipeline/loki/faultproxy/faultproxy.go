// Package faultproxy is a TCP proxy for tests that stands between a client and a real server and does to the
// connections what networks do: it resets them, lets them hang, cuts an answer off, or swallows everything.
package faultproxy

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Fault is what happens to connections. The zero Fault lets them through.
type Fault struct {
	// RequestBytes is how much of what the client sends is let through before Then; negative: everything.
	RequestBytes int64
	// AnswerBytes is how much of the server's answer is let through before Then; negative: everything.
	AnswerBytes int64
	// Then is what happens when either is used up.
	Then Action
	// Pace is the time between two bytes of an answer: a server that answers as slowly as it can.
	Pace time.Duration
}

// An Action ends a connection.
type Action int

// Actions.
const (
	Pass  Action = iota // nothing happens
	Reset               // RST
	Close               // FIN, in order
	Stall               // the connection stays and nothing moves any more
)

// Faults that have a name.
var (
	Through       = Fault{RequestBytes: -1, AnswerBytes: -1}
	Refuse        = Fault{Then: Reset, AnswerBytes: -1}                     // reset at once
	Blackhole     = Fault{Then: Stall, AnswerBytes: -1}                     // taken, and never read
	ResetMidBody  = Fault{RequestBytes: 700, AnswerBytes: -1, Then: Reset}  // in the middle of a push
	AnswerLost    = Fault{RequestBytes: -1, AnswerBytes: 0, Then: Reset}    // the server did the work
	AnswerStalls  = Fault{RequestBytes: -1, AnswerBytes: 0, Then: Stall}    // it did the work, and nobody hears of it
	AnswerCut     = Fault{RequestBytes: -1, AnswerBytes: 20, Then: Close}   // in the middle of the head
	SlowLorisBack = Fault{RequestBytes: -1, AnswerBytes: -1, Pace: 1 << 30} // a byte a second
)

// A Proxy forwards connections to a server.
type Proxy struct {
	Addr string // host:port that clients connect to

	target string
	ln     net.Listener
	fault  atomic.Pointer[Fault]
	stop   chan struct{}
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	hits  atomic.Int64
}

// New starts a proxy on loopback to target (host:port) that the test's end stops.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: ln.Addr().String(), target: target, ln: ln, stop: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.fault.Store(&Through)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		close(p.stop)
		_ = ln.Close()
		p.drop()
		p.wg.Wait()
	})
	return p
}

// Set makes f hold from now on, also for connections that are open: they are reset, so that clients come again.
func (p *Proxy) Set(f Fault) {
	p.fault.Store(&f)
	p.drop()
}

// Hits tells how often a fault ended a connection.
func (p *Proxy) Hits() int { return int(p.hits.Load()) }

func (p *Proxy) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c)
	}
}

func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(c) })
	}
}

func (p *Proxy) keep(c net.Conn) (forget func()) {
	p.mu.Lock()
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
		_ = c.Close()
	}
}

func (p *Proxy) serve(client net.Conn) {
	f := *p.fault.Load()
	defer p.keep(client)()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	defer p.keep(server)()
	ended := make(chan Action, 2)
	var copies sync.WaitGroup
	copies.Go(func() { ended <- p.copy(server, client, f.RequestBytes, 0, f.Then) })
	copies.Go(func() { ended <- p.copy(client, server, f.AnswerBytes, f.Pace, f.Then) })
	switch <-ended {
	case Reset:
		p.hits.Add(1)
		reset(client)
	case Stall:
		p.hits.Add(1)
		p.hang(client)
	case Close:
		p.hits.Add(1)
	}
	_ = client.Close()
	_ = server.Close()
	copies.Wait()
}

// hang reads nothing more until the client leaves or the test ends.
func (p *Proxy) hang(client net.Conn) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, client)
	}()
	select {
	case <-gone:
	case <-p.stop:
		_ = client.Close()
		<-gone
	}
}

// copy forwards up to limit bytes, and tells what is to happen then.
func (p *Proxy) copy(to, from net.Conn, limit int64, pace time.Duration, then Action) Action {
	size := int64(32 << 10)
	if pace > 0 {
		size = 1
	}
	buf := make([]byte, size)
	for left := limit; left != 0; {
		n := size
		if left > 0 {
			n = min(n, left)
		}
		m, err := from.Read(buf[:n])
		if m > 0 {
			if pace > 0 && !p.pause(pace) {
				return Pass
			}
			if _, err := to.Write(buf[:m]); err != nil {
				return Pass
			}
		}
		if err != nil {
			return Pass
		}
		if left > 0 {
			left -= int64(m)
		}
	}
	// The answer that is not to be let through must have come: the server has done the work.
	if limit == 0 && then != Pass {
		if _, err := from.Read(buf); err != nil {
			return Pass
		}
	}
	return then
}

func (p *Proxy) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.stop:
		return false
	}
}

package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// syslogConfig is the configuration of the kind syslog.
type syslogConfig struct {
	Common `yaml:",inline"`

	Listen []string `yaml:"listen"` // udp://ADDRESS:PORT and tcp://ADDRESS:PORT
	From   []string `yaml:"from"`   // addresses and prefixes of the senders that are heard; none: all
}

const maxListeners = 16

// newSyslog builds the kind syslog: a receiver of RFC 3164 and RFC 5424 over UDP and TCP.
//
// A line is the message with its header, behind the time at which it came (@, µs since the epoch): the framing
// syslog takes both off. What a socket carried cannot be read again: each run, and each listener, is a Stream of its own.
//
// TCP senders wait while the road is full. UDP has no way to make them: what comes then is dropped, counted, and told as a
// Skip, as far as the machine knows of it; a datagram that was lost on its way leaves no trace.
func newSyslog(decode func(any) error, rt Runtime) (Source, error) {
	cfg := syslogConfig{Common: defaultCommon(rt)}
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &syslog{
		common: cfg.Common, rt: rt, meter: rt.Metrics.of(cfg.Name), limits: defaultSyslogLimits,
		log: rt.Logger.With(zap.String("component", "source"), zap.String("input", cfg.Name)),
	}
	switch {
	case len(cfg.Listen) == 0:
		return nil, errors.New(`listen is missing: write listen: ["udp://127.0.0.1:5140"]`)
	case len(cfg.Listen) > maxListeners:
		return nil, fmt.Errorf("%d addresses to listen at: at most %d", len(cfg.Listen), maxListeners)
	}
	for i, url := range cfg.Listen {
		network, address, err := parseListen(url)
		if err != nil {
			return nil, err
		}
		s.listeners = append(s.listeners, &syslogListener{syslog: s, index: i, network: network, address: address})
	}
	for _, from := range cfg.From {
		prefix, err := parsePrefix(from)
		if err != nil {
			return nil, fmt.Errorf("from: %w", err)
		}
		s.from = append(s.from, prefix)
	}
	return s, nil
}

func parseListen(url string) (network, address string, err error) {
	network, address, ok := strings.Cut(url, "://")
	if !ok || network != "udp" && network != "tcp" {
		return "", "", fmt.Errorf("listen %q: write udp://ADDRESS:PORT or tcp://ADDRESS:PORT", url)
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", "", fmt.Errorf("listen %q: %w", url, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("listen %q: %q is not a port", url, port)
	}
	return network, address, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Unmap().Prefix(addr.Unmap().BitLen())
	}
	prefix, err := netip.ParsePrefix(s)
	return prefix.Masked(), err
}

type syslogLimits struct {
	connections int           // of one listener at a time
	idle        time.Duration // how long a connection may be silent between two messages
	half        time.Duration // and within one
	room        int           // bytes that wait for the road
}

var defaultSyslogLimits = syslogLimits{
	connections: 256, idle: time.Hour, half: 30 * time.Second, room: 1 << 20,
}

type syslog struct {
	common    Common
	rt        Runtime
	meter     *meter
	log       *zap.Logger
	limits    syslogLimits
	from      []netip.Prefix
	listeners []*syslogListener
}

// Common implements Source.
func (s *syslog) Common() Common { return s.common }

// States implements Source.
func (s *syslog) States() []pipeline.InputState {
	var states []pipeline.InputState
	for _, l := range s.listeners {
		states = append(states, l.shown())
	}
	slices.SortStableFunc(states, func(a, b pipeline.InputState) int { return strings.Compare(a.Path, b.Path) })
	return states
}

// Run implements pipeline.Source.
func (s *syslog) Run(ctx context.Context, _ pipeline.Positions, emit pipeline.Emit) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var listeners sync.WaitGroup
	for _, l := range s.listeners {
		listeners.Go(func() {
			if err := l.run(ctx, emit); err != nil {
				end(err)
			}
		})
	}
	listeners.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// hears tells whether a sender is allowed.
func (s *syslog) hears(from netip.Addr) bool {
	if len(s.from) == 0 {
		return true
	}
	from = from.Unmap().WithZone("")
	return slices.ContainsFunc(s.from, func(p netip.Prefix) bool { return p.Contains(from) })
}

// A syslogListener is one address.
type syslogListener struct {
	*syslog
	index            int
	network, address string

	mu    sync.Mutex
	state pipeline.InputState
}

func (l *syslogListener) shown() pipeline.InputState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Path == "" {
		return pipeline.InputState{Input: l.common.Name, Path: l.network + "://" + l.address, State: "idle"}
	}
	return l.state
}

// setState shows the state, and logs when it becomes unreadable or readable again.
func (l *syslogListener) setState(path, state, why string) {
	l.mu.Lock()
	before := l.state
	l.state = pipeline.InputState{Input: l.common.Name, Path: path, State: state, Err: why}
	l.mu.Unlock()
	switch {
	case why != "" && before.Err == "":
		l.log.Warn("cannot listen, trying on", zap.String("path", path), zap.String("err", why))
	case why == "" && before.Err != "":
		l.log.Info("listening again", zap.String("path", path))
	}
}

// run listens until ctx ends. The error is emit's.
func (l *syslogListener) run(ctx context.Context, emit pipeline.Emit) error {
	wait := 4 * l.rt.Poll
	for ctx.Err() == nil {
		var err error
		if l.network == "udp" {
			err = l.udp(ctx, emit)
		} else {
			err = l.tcp(ctx, emit)
		}
		var broken putError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &broken):
			return broken.error
		}
		l.meter.failed(errListen)
		l.setState(l.network+"://"+l.address, "unreadable", fmt.Sprint(err))
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, time.Minute)
	}
	return nil
}

const (
	drainFor      = 50 * time.Millisecond // at the end: what has come by then is still taken
	receiveBuffer = 4 << 20               // bytes; the kernel gives less where net.core.rmem_max says so
	maxDatagram   = 64 << 10
)

// cutMessage gives the first message of a datagram. It is mostly the only one, whatever its line feeds; but a line that
// begins with a priority of its own is another.
func cutMessage(datagram []byte) (message, rest []byte) {
	for at := 0; ; {
		i := bytes.IndexByte(datagram[at:], '\n')
		if i < 0 {
			return datagram, nil
		}
		at += i + 1
		if beginsWithPriority(datagram[at:]) && beginsWithPriority(datagram) {
			return datagram[:at], datagram[at:]
		}
	}
}

func beginsWithPriority(s []byte) bool {
	end := bytes.IndexByte(s[:min(len(s), len("<191>"))], '>')
	return end > 1 && s[0] == '<' && len(bytes.Trim(s[1:end], "0123456789")) == 0
}

// udp receives datagrams.
func (l *syslogListener) udp(ctx context.Context, emit pipeline.Emit) error {
	var config net.ListenConfig
	packets, err := config.ListenPacket(ctx, l.network, l.address)
	if err != nil {
		return err
	}
	conn := packets.(*net.UDPConn)
	defer conn.Close()
	conn.SetReadBuffer(receiveBuffer) //nolint:errcheck // a small one drops more, and tells
	m := newMailbox(l, conn.LocalAddr(), socketDrops(conn))
	return m.serve(ctx, emit, func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() {
			conn.SetReadDeadline(l.rt.Now().Add(drainFor)) //nolint:errcheck // closed: it reads no more
		})
		defer stop()
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			switch {
			case err != nil && ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case !l.hears(from.Addr()):
				l.meter.failed(errRefused)
			default:
				for rest := buf[:n]; len(rest) > 0; {
					var message []byte
					message, rest = cutMessage(rest)
					m.put(message, 0, false)
				}
			}
		}
	})
}

// tcp receives connections.
func (l *syslogListener) tcp(ctx context.Context, emit pipeline.Emit) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, l.network, l.address)
	if err != nil {
		return err
	}
	defer listener.Close()
	m := newMailbox(l, listener.Addr(), nil)
	return m.serve(ctx, emit, func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { listener.Close() })
		defer stop()
		var conns sync.WaitGroup
		defer conns.Wait()
		free := make(chan struct{}, l.limits.connections)
		for {
			conn, err := listener.Accept()
			switch {
			case err != nil && ctx.Err() != nil:
				return nil
			case err != nil:
				if !passing(err) {
					return err
				}
				l.meter.failed(errListen)
				select { // of descriptors, say, there are some again soon
				case <-ctx.Done():
				case <-time.After(l.rt.Poll):
				}
				continue
			}
			if from, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || !l.hears(from.AddrPort().Addr()) {
				l.refuse(conn)
				continue
			}
			select {
			case free <- struct{}{}:
				conns.Go(func() {
					l.receive(ctx, conn, m)
					<-free
				})
			default:
				l.refuse(conn)
			}
		}
	})
}

func (l *syslogListener) refuse(conn net.Conn) {
	l.meter.failed(errRefused)
	conn.Close()
}

// passing tells whether the listener still works after an error of Accept.
func passing(err error) bool {
	return !errors.Is(err, net.ErrClosed)
}

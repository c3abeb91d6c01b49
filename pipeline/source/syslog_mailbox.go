package source

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

const dropsEvery = time.Second // the kernel's table of sockets can be long

const mailboxEvery = 250 * time.Millisecond // how long a message may wait for others

// A mailbox holds the messages of one listener until the road takes them: limits.room bytes at most.
type mailbox struct {
	l      *syslogListener
	stream *pipeline.Stream
	drops  func() (int64, bool) // how many datagrams the kernel has dropped, nil for none

	mu      sync.Mutex
	room    sync.Cond // there is some again, or the mailbox is closed
	full    chan struct{}
	closed  bool
	lines   []byte
	cut     int64 // bytes of over-long messages that are not in lines
	dropped int64 // bytes of messages for which there was no room

	// Of the goroutine that hands on.
	handed []byte
	at     int64     // the offset in the stream
	lost   int64     // what drops last gave
	asked  time.Time // when
}

func newMailbox(l *syslogListener, bound net.Addr, drops func() (int64, bool)) *mailbox {
	path := l.network + "://" + bound.String()
	m := &mailbox{
		l: l, drops: drops, full: make(chan struct{}, 1),
		stream: &pipeline.Stream{
			Input: l.common.Name, Path: path, Labels: l.common.Labels,
			ID: fmt.Sprintf("syslog-%s-%d", strconv.FormatInt(l.rt.Now().UnixNano(), 36), l.index),
		},
	}
	m.room.L = &m.mu
	l.setState(path, "reading", "")
	return m
}

// serve runs receive and hands on what it puts in, until receive ends. The error is that of receive, or emit's.
func (m *mailbox) serve(ctx context.Context, emit pipeline.Emit, receive func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	free := context.AfterFunc(ctx, m.close)
	defer free()
	ended := make(chan error, 1)
	go func() { ended <- receive(ctx) }()
	tick := time.NewTicker(mailboxEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.full:
		case err := <-ended:
			if broken := m.hand(emit, true); broken != nil && ctx.Err() == nil {
				return putError{broken}
			}
			return err
		}
		if broken := m.hand(emit, false); broken != nil {
			stop()
			_ = <-ended //nolint:staticcheck // it was stopped: its error is that
			return putError{broken}
		}
	}
}

func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.room.Broadcast()
}

// stampRoom is more than the time in front of a line takes.
const stampRoom = 32

// put takes a message; cut is how many of its bytes are missing at the end. When there is no room it waits, or drops the message.
func (m *mailbox) put(message []byte, cut int64, wait bool) {
	message = bytes.TrimRight(message, "\r\n\x00")
	if len(message) == 0 {
		return
	}
	if over := len(message) + stampRoom - cutAt; over > 0 {
		message, cut = message[:len(message)-over], cut+int64(over)
	}
	now := m.l.rt.Now().UnixMicro()
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.lines)+len(message)+stampRoom > m.l.limits.room {
		if !wait {
			m.dropped += int64(len(message))
			m.l.meter.dropped.Inc()
			return
		}
		if m.closed {
			return
		}
		m.room.Wait()
	}
	m.cut += cut
	m.lines = strconv.AppendInt(append(m.lines, '@'), now, 10)
	m.lines = append(m.lines, ' ')
	from := len(m.lines)
	m.lines = append(m.lines, message...)
	for line := m.lines[from:]; ; {
		i := bytes.IndexByte(line, '\n')
		if i < 0 {
			break
		}
		line[i] = ' '
		line = line[i+1:]
	}
	m.lines = append(m.lines, '\n')
	if len(m.lines) > m.l.limits.room/2 {
		select {
		case m.full <- struct{}{}:
		default:
		}
	}
}

// hand hands on what waits.
func (m *mailbox) hand(emit pipeline.Emit, last bool) error {
	m.mu.Lock()
	m.lines, m.handed = m.handed[:0], m.lines
	cut, dropped := m.cut, m.dropped
	m.cut, m.dropped = 0, 0
	m.room.Broadcast()
	m.mu.Unlock()
	if err := m.handWhole(emit); err != nil {
		return err
	}
	b := pipeline.Block{Stream: m.stream, Data: m.handed, From: m.at, To: m.at + int64(len(m.handed)), Last: last}
	skip := func(n int64, reason string, lost bool) {
		b.Skips = append(b.Skips, pipeline.Skip{At: b.To, Bytes: n, Reason: reason, Lost: lost})
		b.To += max(n, 0)
	}
	if cut > 0 {
		skip(cut, pipeline.SkipLongLine, false)
	}
	if dropped > 0 {
		skip(dropped, pipeline.SkipOverflow, true)
	}
	if n := m.kernelDrops(last); n > 0 {
		m.l.meter.dropped.Add(float64(n))
		skip(pipeline.Unknown, pipeline.SkipOverflow, true)
	}
	if len(b.Data) == 0 && len(b.Skips) == 0 && !last {
		return nil
	}
	if err := emit(&b); err != nil {
		return err
	}
	m.at = b.To
	m.l.meter.count(&b)
	return nil
}

// handWhole hands on all but the last Block of what waits.
func (m *mailbox) handWhole(emit pipeline.Emit) error {
	rest := m.handed
	for len(rest) > blockSize { // each message is shorter
		end := bytes.LastIndexByte(rest[:blockSize], '\n') + 1
		b := pipeline.Block{Stream: m.stream, Data: rest[:end], From: m.at, To: m.at + int64(end)}
		if err := emit(&b); err != nil {
			return err
		}
		m.at, rest = b.To, rest[end:]
		m.l.meter.count(&b)
	}
	m.handed = m.handed[:copy(m.handed, rest)]
	return nil
}

// kernelDrops gives how many datagrams the kernel dropped since it was last asked.
func (m *mailbox) kernelDrops(last bool) int64 {
	now := m.l.rt.Now()
	if m.drops == nil || !last && now.Sub(m.asked) < dropsEvery {
		return 0
	}
	m.asked = now
	n, ok := m.drops()
	if !ok {
		return 0
	}
	n, m.lost = n-m.lost, n
	return n
}

package source

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"time"
)

// maxCount is the longest octet count, in digits.
const maxCount = 8

// A syslogReader takes messages off a connection: counted ones ("LEN MESSAGE") and such that end in a line feed or a NUL, told
// apart by their first bytes (RFC 6587, 3.4). It holds at most cutAt bytes of a message.
type syslogReader struct {
	conn    net.Conn
	limits  syslogLimits
	now     func() time.Time
	buf     *bufio.Reader
	begun   bool // within a message
	message []byte
}

// Read implements io.Reader, for buf: it bounds how long the sender may be silent.
func (r *syslogReader) Read(p []byte) (int, error) {
	patience := r.limits.idle
	if r.begun {
		patience = r.limits.half
	}
	if err := r.conn.SetReadDeadline(r.now().Add(patience)); err != nil {
		return 0, err
	}
	return r.conn.Read(p)
}

// receive takes the messages of one connection.
func (l *syslogListener) receive(ctx context.Context, conn net.Conn, m *mailbox) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	r := &syslogReader{conn: conn, limits: l.limits, now: l.rt.Now}
	r.buf = bufio.NewReaderSize(r, 16<<10)
	for {
		cut, err := r.next()
		if err != nil {
			if r.begun && ctx.Err() == nil {
				l.meter.failed(errMessage)
			}
			return
		}
		m.put(r.message, cut, true)
		if cap(r.message) > keptMessage {
			r.message = nil
		}
	}
}

// keptMessage is how much memory a connection keeps for its next message, in bytes.
const keptMessage = 64 << 10

// next reads one message. cut is how many of its bytes were passed over at its end. With io.EOF the sender has
// ended; within a message that is an error, since half a line reads as a wrong one. But a last line may lack its end.
func (r *syslogReader) next() (cut int64, err error) {
	r.message, r.begun = r.message[:0], false
	count, counted, err := r.count()
	if err != nil {
		return 0, err
	}
	if counted {
		return r.octets(count)
	}
	return r.line()
}

// line reads up to a line feed, or the NUL with which others end their messages.
func (r *syslogReader) line() (cut int64, err error) {
	for {
		if _, err := r.buf.Peek(1); err == io.EOF && len(r.message) > 0 {
			return cut, nil
		} else if err != nil {
			return cut, err
		}
		part, _ := r.buf.Peek(r.buf.Buffered()) // it is there
		end := bytes.IndexAny(part, "\n\x00")
		if end >= 0 {
			part = part[:end+1]
		}
		cut += r.hold(part)
		if _, err := r.buf.Discard(len(part)); err != nil || end >= 0 {
			return cut, err
		}
	}
}

// count reads the digits in front of a counted message. What is none begins a line.
func (r *syslogReader) count() (n int, ok bool, err error) {
	for {
		c, err := r.buf.ReadByte()
		if err == io.EOF && r.begun {
			return 0, false, nil // a line of digits
		}
		if err != nil {
			return 0, false, err
		}
		r.begun = true
		if c == ' ' && len(r.message) > 0 {
			r.message = r.message[:0]
			return n, true, nil
		}
		if c < '0' || c > '9' || c == '0' && n == 0 || len(r.message) == maxCount {
			return 0, false, r.buf.UnreadByte()
		}
		n = n*10 + int(c-'0')
		r.message = append(r.message, c)
	}
}

func (r *syslogReader) octets(n int) (cut int64, err error) {
	for n > 0 {
		part, err := r.buf.Peek(min(n, r.buf.Size()))
		if len(part) == 0 && err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return cut, err
		}
		cut += r.hold(part)
		n -= len(part)
		if _, err := r.buf.Discard(len(part)); err != nil {
			return cut, err
		}
	}
	return cut, nil
}

// hold keeps what a message has room for, and gives how much it had none for.
func (r *syslogReader) hold(part []byte) int64 {
	n := min(len(part), cutAt-len(r.message))
	r.message = append(r.message, part[:n]...)
	return int64(len(part) - n)
}

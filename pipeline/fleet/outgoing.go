package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	window      = 64      // panes that are sent before the stream has the first of them
	windowBytes = 2 << 20 // bytes of them, but one in any case: slow links

	minAnswer = 2 * time.Second // to wait for the stream's answer; more after each time that there was none
	maxAnswer = 30 * time.Second
	minResend = 100 * time.Millisecond
	maxResend = 10 * time.Second

	// errTooLarge is the server's number for a message above the stream's own limit.
	errTooLarge = 10054
)

var (
	errNoAnswer    = errors.New("the stream did not answer")
	errReconnected = errors.New("connected anew")
)

// Run sends what waits, in its order, until ctx ends. It is called once.
//
// A pane is done when the stream says that it has it. When an answer fails to come, what has none is sent again from
// there on, and the stream refuses what it has; it is only then, when one of a backlog was lost with a stream's
// leader, that it may stand behind up to 63 later ones.
func (o *Outgoing) Run(ctx context.Context) error {
	until, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var keeping sync.WaitGroup
	keeping.Go(func() { o.keep(until) })
	o.send(ctx)
	stop() // what was sent until now is saved with the rest
	keeping.Wait()
	return nil
}

func (o *Outgoing) send(ctx context.Context) {
	failures := 0
	var highest uint64
	for ctx.Err() == nil {
		came := o.l.reconnected()
		s := &session{o: o, came: came, answer: min(minAnswer<<min(failures, 8), maxAnswer), highest: &highest}
		err := s.run(ctx)
		if s.isHeard {
			failures = 0
		}
		if ctx.Err() != nil || errors.Is(err, errReconnected) {
			continue
		}
		if failures++; failures == 2 && o.l.Connected() {
			o.l.log.Warn("panes cannot be handed to the fleet's stream: they wait on this node", zap.Error(err))
		}
		timer := time.NewTimer(backoff(failures-1, minResend, maxResend))
		select {
		case <-timer.C:
		case <-came:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// A session sends from the first that waits on, as long as all is well.
type session struct {
	o       *Outgoing
	came    <-chan struct{} // another connection than that of the start
	answer  time.Duration   // to wait for
	highest *uint64         // the highest sequence that was ever sent

	inbox   string
	answers chan *nats.Msg
	next    uint64
	flight  []flying // in the order of their sequences
	bytes   int
	room    int // panes that may fly: doubles with each answer, so that a stream that is away is not flooded
	isHeard bool
}

type flying struct {
	seq  uint64
	size int
	at   time.Time
	done bool
}

func (s *session) run(ctx context.Context) error {
	conn := s.o.l.conn
	s.inbox, s.answers, s.room = conn.NewInbox()+".", make(chan *nats.Msg, 2*window), 1
	sub, err := conn.ChanSubscribe(s.inbox+"*", s.answers)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	s.next, _ = s.o.bounds()
	for {
		if err := s.fill(ctx); err != nil {
			return err
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// fill sends as many as may fly.
func (s *session) fill(ctx context.Context) error {
	for {
		first, last := s.o.bounds()
		s.next = max(s.next, first)
		if s.next > last || len(s.flight) >= s.room {
			return nil
		}
		data, ok, err := s.o.get(ctx, s.next)
		if err != nil {
			return fmt.Errorf("read a pane that waits: %w", err)
		}
		if ok && len(s.flight) > 0 && s.bytes+len(data) > windowBytes {
			return nil
		}
		f := flying{seq: s.next, size: len(data), at: time.Now(), done: !ok}
		if ok {
			err = s.publish(f.seq, data)
		}
		if errors.Is(err, nats.ErrMaxPayload) {
			s.refuse(f.seq, f.size, err)
			f.done, err = true, nil
		}
		if err != nil {
			return err
		}
		s.next++
		s.bytes += f.size
		s.flight = append(s.flight, f)
		s.land()
	}
}

func (s *session) publish(seq uint64, data []byte) error {
	// The hash is there for the case that the disk lost what was sent already and the sequence is used again.
	id := s.o.l.node + "/" + s.o.boot + "/" + strconv.FormatUint(seq, 10) + "-" + strconv.FormatUint(xxhash.Sum64(data), 36)
	err := s.o.l.conn.PublishMsg(&nats.Msg{
		Subject: panePrefix(s.o.l.cluster) + s.o.l.node, Reply: s.inbox + strconv.FormatUint(seq, 10),
		Header: nats.Header{jetstream.MsgIDHeader: {id}}, Data: data,
	})
	if err == nil && seq <= *s.highest {
		s.o.l.m.repeated.Inc()
	}
	if err == nil {
		*s.highest = max(*s.highest, seq)
	}
	return err
}

func (s *session) refuse(seq uint64, size int, err error) {
	s.o.settle(seq)
	s.o.l.m.refused.Inc()
	s.o.l.log.Warn("a pane is too large for the fleet's server: it is left out",
		zap.Uint64("sequence", seq), zap.Int("bytes", size), zap.Error(err))
}

// wait takes one answer, or waits for something to send.
func (s *session) wait(ctx context.Context) error {
	select {
	case msg := <-s.answers: // before anything is late: this process may have been stopped
		return s.take(msg)
	default:
	}
	var late <-chan time.Time
	if len(s.flight) > 0 {
		timer := time.NewTimer(time.Until(s.flight[0].at.Add(s.answer)))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case msg := <-s.answers:
		return s.take(msg)
	case <-s.o.wake:
		return nil
	case <-late:
		return errNoAnswer
	case <-s.came:
		return errReconnected
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take reads an answer.
func (s *session) take(msg *nats.Msg) error {
	if msg == nil {
		return nats.ErrConnectionClosed
	}
	seq, err := strconv.ParseUint(strings.TrimPrefix(msg.Subject, s.inbox), 10, 64)
	if err != nil {
		return nil //nolint:nilerr // an answer to nothing that was asked
	}
	i := 0
	for i < len(s.flight) && s.flight[i].seq != seq {
		i++
	}
	if i == len(s.flight) || s.flight[i].done {
		return nil
	}
	tooLarge, err := readAnswer(msg, streamName(s.o.l.cluster))
	if err != nil && !tooLarge {
		return err
	}
	if tooLarge {
		s.refuse(seq, s.flight[i].size, err)
	} else {
		s.o.l.m.published.Inc()
	}
	s.isHeard = true
	s.o.settle(seq)
	s.room = min(2*s.room, window)
	s.flight[i].done = true
	s.land()
	return nil
}

// land notes those at the front that are done.
func (s *session) land() {
	n := 0
	for n < len(s.flight) && s.flight[n].done {
		s.bytes -= s.flight[n].size
		n++
	}
	if n > 0 {
		s.o.done(s.flight[n-1].seq)
		s.flight = s.flight[n:]
	}
}

// readAnswer tells whether the stream has the pane, and, if not, whether it would never take it.
func readAnswer(msg *nats.Msg, stream string) (tooLarge bool, err error) {
	if msg.Header.Get("Status") == "503" {
		return false, ErrNoStream
	}
	var ack struct {
		Stream string `json:"stream"`
		Error  *struct {
			Number int    `json:"err_code"`
			Text   string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &ack); err != nil {
		return false, fmt.Errorf("read the stream's answer: %w", err)
	}
	if ack.Error != nil {
		return ack.Error.Number == errTooLarge, fmt.Errorf("the stream answers: %s", ack.Error.Text)
	}
	if ack.Stream != stream {
		return false, fmt.Errorf("the stream %q took what is for %s", ack.Stream, stream)
	}
	return false, nil
}

package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	pullBytes     = 16 << 20 // that may be on the way to a reader, or twice what a message may have
	pullExpiry    = 5 * time.Second
	pullHeartbeat = time.Second      // a consumer that is silent for two of them is gone: with its server, mostly
	forgetReader  = 30 * time.Second // after which a server removes a consumer that nobody reads
	maxRefollow   = 5 * time.Second

	streamPatience = 15 * time.Second
)

// A Message is what a node published, as the stream has it.
type Message struct {
	Seq  uint64 // of the stream
	At   int64  // when the stream stored it, in ns by its server's clock
	Node string // which published it
	Data []byte // take may keep it

	// Missed is how many messages before this one were removed by age, size or hand before they were read.
	Missed uint64
	// Reset says that the stream was made anew, or lost its end: this sequence has nothing to do with earlier ones.
	Reset bool
}

// Follow hands the messages of the stream to take, strictly in their sequence and each once, from the sequence from
// on (0: from the oldest that is kept), until ctx ends or take returns an error, which is returned. Servers that are
// away, leaders that change and a stream that is not there yet are waited for.
func (l *Link) Follow(ctx context.Context, from uint64, take func(Message) error) error {
	f := &follower{l: l, next: from, take: take}
	told := false
	for failures := 0; ctx.Err() == nil; failures++ {
		came, began := l.reconnected(), f.read
		err := f.follow(ctx)
		if f.failed != nil {
			return f.failed
		}
		if f.read > began {
			failures, told = 0, false
		}
		if failures >= 2 && !told && l.Connected() && ctx.Err() == nil {
			told = true
			l.log.Warn("the fleet's stream cannot be read", zap.Error(err))
		}
		timer := time.NewTimer(backoff(failures, minRedial, maxRefollow))
		select {
		case <-timer.C:
		case <-came:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return ctx.Err()
}

// A follower is a place in the stream.
type follower struct {
	l       *Link
	next    uint64    // the sequence that is due; 0: the oldest there is
	made    time.Time // the stream
	at      time.Time // the stream stored the message before next then; zero: not known
	short   time.Time // since when the stream has not had that; zero: it has
	missed  uint64
	isReset bool // the next message begins anew
	read    uint64
	take    func(Message) error
	failed  error // of take
}

// follow reads by one consumer, until that or the connection fails.
func (f *follower) follow(ctx context.Context) error {
	stream, err := f.l.js.Stream(ctx, streamName(f.l.cluster))
	if err != nil {
		return err
	}
	if err := f.look(ctx, stream); err != nil {
		return err
	}
	cfg := jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: forgetReader,
		DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	if f.next > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.next
	}
	consumer, err := f.l.js.CreateConsumer(ctx, streamName(f.l.cluster), cfg)
	if err != nil {
		return err
	}
	defer func() { // a server would find out by itself
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if f.l.Connected() {
			_ = f.l.js.DeleteConsumer(ctx, streamName(f.l.cluster), consumer.CachedInfo().Name)
		}
	}()
	messages, err := consumer.Messages(jetstream.PullMaxBytes(max(pullBytes, 2*f.l.MaxPayload())),
		jetstream.PullExpiry(pullExpiry), jetstream.PullHeartbeat(pullHeartbeat))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for delivered := uint64(1); ; delivered++ {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Consumer != delivered {
			return fmt.Errorf("message %d of the consumer came as its number %d", meta.Sequence.Consumer, delivered)
		}
		if err := f.deliver(msg, meta); err != nil {
			return err
		}
	}
}

// look compares the stream with the one that was read. A leader that was elected just now may not have applied all
// that the stream has: what seems lost is waited for. A server that lost the end of its file for good has other
// messages in its place by and by.
func (f *follower) look(ctx context.Context, stream jetstream.Stream) error {
	info := stream.CachedInfo()
	other := !f.made.IsZero() && !info.Created.Equal(f.made)
	f.made = info.Created
	if !other && f.next > info.State.LastSeq+1 {
		if f.short.IsZero() {
			f.short = time.Now()
		}
		if time.Since(f.short) < f.l.patience {
			return fmt.Errorf("the stream has %d messages, and %d were read", info.State.LastSeq, f.next-1)
		}
		other = true
	}
	if !other && !f.at.IsZero() && info.State.FirstSeq < f.next && f.next > 1 {
		msg, err := stream.GetMsg(ctx, f.next-1)
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return err
		}
		other = err == nil && !msg.Time.Equal(f.at)
	}
	f.short = time.Time{}
	if other {
		f.l.m.resets.Inc()
		f.l.log.Warn("the fleet's stream was made anew, or has lost its end: it is read from its beginning",
			zap.Uint64("expected", f.next), zap.Uint64("last", info.State.LastSeq))
		f.next, f.missed, f.isReset, f.at = 0, 0, true, time.Time{}
	}
	return nil
}

// deliver hands one message on, unless it is none of squall's.
func (f *follower) deliver(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
	seq := meta.Sequence.Stream
	if f.next > 0 && seq < f.next {
		return fmt.Errorf("message %d of the stream came when %d was due", seq, f.next)
	}
	if f.next > 0 {
		f.missed += seq - f.next
		f.l.m.missed.Add(float64(seq - f.next))
	}
	f.next, f.at = seq+1, meta.Timestamp
	f.read++
	f.l.m.followed.Inc()
	// A node may name any subject as the one for the stream's answer, that of another node, too; the answer is then
	// stored there. It has no identity.
	node, ok := strings.CutPrefix(msg.Subject(), panePrefix(f.l.cluster))
	if !ok || checkNode(node) != nil || !strings.HasPrefix(msg.Headers().Get(jetstream.MsgIDHeader), node+"/") {
		f.l.m.forged.Inc()
		if f.l.isNews("forged " + msg.Subject()) {
			f.l.log.Warn("a message on the fleet's stream was not made by squall: it is passed over, as are its like",
				zap.String("subject", msg.Subject()), zap.Uint64("message", seq), zap.Int("bytes", len(msg.Data())))
		}
		return nil
	}
	m := Message{Seq: seq, At: meta.Timestamp.UnixNano(), Node: node, Data: msg.Data(), Missed: f.missed, Reset: f.isReset}
	f.missed, f.isReset = 0, false
	f.failed = f.take(m)
	return f.failed
}

package fleet

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

const (
	// headerFleet marks what squall says itself. A node's rights let it name any subject as the one for the answer,
	// to which the server then sends: that answer has no headers.
	headerFleet = "Squall-Fleet"
	version     = "1"

	maxHeartbeats    = 256     // that wait to be taken
	maxHeartbeatsLen = 8 << 20 // bytes of them
	minResubscribe   = time.Second
	maxResubscribe   = 30 * time.Second
)

// Tell sends a heartbeat of this aggregator to whoever listens now. It is not kept: without a connection it is an
// error, and nobody hears it.
func (l *Link) Tell(data []byte) error {
	msg := &nats.Msg{Subject: coverPrefix(l.cluster) + l.node, Data: data, Header: nats.Header{headerFleet: {version}}}
	if err := l.conn.PublishMsg(msg); err != nil {
		return fmt.Errorf("tell the nodes: %w", err)
	}
	return nil
}

// Listen hands the heartbeats of all aggregators to take, one after another, with the name of the aggregator that
// sent it, until ctx ends. take must not keep data. What comes while take is slow may be lost.
func (l *Link) Listen(ctx context.Context, take func(data []byte, sender string)) {
	for failures := 0; ctx.Err() == nil && !l.conn.IsClosed(); failures++ {
		err := l.listen(ctx, take)
		if ctx.Err() != nil {
			return
		}
		l.log.Warn("the aggregators cannot be heard", zap.Error(err))
		pause(ctx, backoff(failures, minResubscribe, maxResubscribe))
	}
}

func (l *Link) listen(ctx context.Context, take func([]byte, string)) error {
	prefix := coverPrefix(l.cluster)
	sub, err := l.conn.SubscribeSync(prefix + ">")
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := sub.SetPendingLimits(maxHeartbeats, maxHeartbeatsLen); err != nil {
		return err
	}
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err == nats.ErrSlowConsumer { //nolint:errorlint // it is returned as it is, and told once for what was lost
			continue
		}
		if err != nil {
			return err
		}
		sender := strings.TrimPrefix(msg.Subject, prefix)
		if msg.Header.Get(headerFleet) == "" || checkNode(sender) != nil {
			l.m.unasked.Inc()
			continue
		}
		take(msg.Data, sender)
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

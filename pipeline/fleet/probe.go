package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What a Probe may find.
var (
	ErrStranger = errors.New("the server does not let it in")           // its key, credentials or certificate are not known there
	ErrRights   = errors.New("the server does not let it do that")      // its rights are not those of the node
	ErrNoStream = errors.New("there is no stream, or it has no leader") // no aggregator has made it yet
)

// errOtherStream is the server's number for a message that names a stream which is another's.
const errOtherStream = 10060

// Probe tries the servers as the node of cfg would use them, and leaves nothing there. server is where it connected.
// heard is an aggregator that was heard within patience, "" when none was: they tell something after each pane.
func Probe(ctx context.Context, cfg Config, patience time.Duration) (server, heard string, err error) {
	options, err := cfg.options()
	if err != nil {
		return "", "", err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	conn, err := nats.Connect(cfg.URL, append(options, nats.RetryOnFailedConnect(false), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				err = fmt.Errorf("%w: %w", ErrRights, err)
			}
			fail(err)
		}))...)
	if errors.Is(err, nats.ErrAuthorization) {
		err = fmt.Errorf("%w: %w", ErrStranger, err)
	}
	if err != nil {
		return "", "", fmt.Errorf("connect to %s: %w", safeURLs(cfg.URL), err)
	}
	defer conn.Close()
	if err := probeStream(ctx, conn, &cfg); err != nil {
		return "", "", fmt.Errorf("tell %s a pane: %w", conn.ConnectedUrlRedacted(), err)
	}
	heard, err = probeCover(ctx, conn, cfg.Cluster, patience)
	return conn.ConnectedUrlRedacted(), heard, err
}

// probeStream publishes what the stream refuses, because it is meant for another.
func probeStream(ctx context.Context, conn *nats.Conn, cfg *Config) error {
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := conn.RequestMsgWithContext(asking, &nats.Msg{
		Subject: panePrefix(cfg.Cluster) + cfg.Node, Header: nats.Header{jetstream.ExpectedStreamHeader: {"SQUALL-PROBE"}},
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
		return ErrNoStream
	case err != nil:
		return err
	}
	var ack struct {
		Error *struct {
			Number int    `json:"err_code"`
			Text   string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil || ack.Error == nil {
		return fmt.Errorf("something else than a stream answers: %.100q", answer.Data)
	}
	if ack.Error.Number != errOtherStream {
		return fmt.Errorf("the stream answers: %s", ack.Error.Text)
	}
	return nil
}

// probeCover waits for what an aggregator tells.
func probeCover(ctx context.Context, conn *nats.Conn, cluster string, patience time.Duration) (sender string, err error) {
	prefix := coverPrefix(cluster)
	sub, err := conn.SubscribeSync(prefix + ">")
	if err != nil {
		return "", err
	}
	listening, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		msg, err := sub.NextMsgWithContext(listening)
		switch {
		case ctx.Err() != nil:
			return "", fmt.Errorf("listen to the aggregators: %w", context.Cause(ctx))
		case errors.Is(err, context.DeadlineExceeded):
			return "", nil
		case err != nil:
			return "", fmt.Errorf("listen to the aggregators: %w", err)
		}
		if sender = strings.TrimPrefix(msg.Subject, prefix); msg.Header.Get(headerFleet) != "" && checkNode(sender) == nil {
			return sender, nil
		}
	}
}

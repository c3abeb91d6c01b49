package fleet

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// duplicateWindow is for how long the stream knows what it has: longer than a node needs to send again what it sent
// before it was killed. What comes later is a repeat that the reader recognises.
const duplicateWindow = 2 * time.Minute

// StreamConfig is what the stream of a cluster keeps.
type StreamConfig struct {
	MaxAge   time.Duration // of a message; 0: no limit
	MaxBytes int64         // of the whole; 0: no limit
	Replicas int           // servers that have it: 1, 3 or 5; 0 is 1
	// MaxPerNode is how many messages of one node are kept, so that one that goes mad removes its own and not those
	// of others; 0: no limit.
	MaxPerNode int64
}

// Declare makes the stream of this cluster, or changes it to what is wanted; what an operator has set beside that
// stays. A server that is away is an error: the caller tries again.
func (l *Link) Declare(ctx context.Context, want StreamConfig) error {
	name := streamName(l.cluster)
	cfg := jetstream.StreamConfig{}
	info, err := l.streamInfo(ctx)
	if err == nil {
		cfg = info.Config
	} else if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("declare the stream %s: %w", name, err)
	}
	had := cfg
	cfg.Name, cfg.Subjects = name, []string{panePrefix(l.cluster) + ">"}
	cfg.Retention, cfg.Storage, cfg.Discard = jetstream.LimitsPolicy, jetstream.FileStorage, jetstream.DiscardOld
	cfg.MaxAge, cfg.Replicas = want.MaxAge, max(want.Replicas, 1)
	cfg.MaxBytes, cfg.MaxMsgsPerSubject = orUnlimited(want.MaxBytes), orUnlimited(want.MaxPerNode)
	cfg.Duplicates = duplicateWindow
	if want.MaxAge > 0 {
		cfg.Duplicates = min(duplicateWindow, want.MaxAge)
	}
	cfg.AllowDirect = true
	// No header of a node's may change what the stream holds of others.
	cfg.AllowRollup, cfg.AllowMsgTTL, cfg.NoAck = false, false, false
	if err != nil {
		_, err = l.js.CreateStream(ctx, cfg)
	} else if !reflect.DeepEqual(had, cfg) {
		_, err = l.js.UpdateStream(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("declare the stream %s: %w", name, err)
	}
	return nil
}

func orUnlimited(n int64) int64 {
	if n <= 0 {
		return -1
	}
	return n
}

// Last is the sequence of the stream's last message, 0 when there was none.
func (l *Link) Last(ctx context.Context) (seq uint64, err error) {
	info, err := l.streamInfo(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for the stream %s: %w", streamName(l.cluster), err)
	}
	return info.State.LastSeq, nil
}

// streamInfo asks the stream's leader.
func (l *Link) streamInfo(ctx context.Context) (*jetstream.StreamInfo, error) {
	s, err := l.js.Stream(ctx, streamName(l.cluster))
	if err != nil {
		return nil, err
	}
	return s.CachedInfo(), nil
}

// replicas is how many the stream has: what is kept beside it has as many.
func (l *Link) replicas(ctx context.Context) (int, error) {
	info, err := l.streamInfo(ctx)
	if err != nil {
		return 0, err
	}
	return info.Config.Replicas, nil
}

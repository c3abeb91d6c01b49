package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	maxBlob = 64 << 20 // bytes

	// orphanAge is how old parts of a value must be that nobody has finished: no Put takes as long.
	orphanAge = 10 * time.Minute
)

type blobs struct {
	store  jetstream.ObjectStore
	stream jetstream.Stream // in which it is
	bucket string
}

// Blobs gives a store of values of up to 64 MiB beside the stream, with as many replicas: what an aggregator needs
// after a restart. A value that is read is compared with its digest; the one before it is removed. The stream must
// have been declared.
func (l *Link) Blobs(ctx context.Context, bucket string) (KV, error) {
	if err := checkCluster(bucket); err != nil {
		return nil, fmt.Errorf("fleet: open the bucket %q: letters, digits, - and _ are allowed", bucket)
	}
	replicas, err := l.replicas(ctx)
	if err != nil {
		return nil, fmt.Errorf("fleet: open the bucket %s: %w", bucket, err)
	}
	name := "squall_" + l.cluster + "_" + bucket
	store, err := l.js.ObjectStore(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		// Two that come at once declare the same.
		store, err = l.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: name, Replicas: replicas, Storage: jetstream.FileStorage})
	}
	if err != nil {
		return nil, fmt.Errorf("fleet: open the bucket %s: %w", bucket, err)
	}
	stream, err := l.js.Stream(ctx, "OBJ_"+name)
	if err != nil {
		return nil, fmt.Errorf("fleet: open the bucket %s: %w", bucket, err)
	}
	b := &blobs{store, stream, bucket}
	if err := b.sweep(ctx, orphanAge); err != nil {
		l.log.Warn("what a killed process left in a bucket was not removed", zap.String("bucket", bucket), zap.Error(err))
	}
	return b, nil
}

// sweep removes the parts of values that a process did not finish before it was killed.
func (b *blobs) sweep(ctx context.Context, age time.Duration) error {
	prefix := "$O." + b.stream.CachedInfo().Config.Name[len("OBJ_"):] + ".C."
	info, err := b.stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return err
	}
	objects, err := b.store.List(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
		return err
	}
	for _, o := range objects {
		delete(info.State.Subjects, prefix+o.NUID)
	}
	for subject := range info.State.Subjects {
		part, err := b.stream.GetLastMsgForSubject(ctx, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && time.Since(part.Time) < age {
			continue
		}
		if err != nil {
			return err
		}
		if err := b.stream.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
			return err
		}
	}
	return nil
}

// Get reads a value, and compares it with its digest.
func (b *blobs) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	value, err = b.store.GetBytes(ctx, key)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("get %s from the bucket %s: %w", key, b.bucket, err)
	}
	return value, true, nil
}

// Put stores a value in place of the one there was.
func (b *blobs) Put(ctx context.Context, key string, value []byte) error {
	if key == "" || len(value) > maxBlob {
		return fmt.Errorf("put into the bucket %s: a value of %d bytes under the key %q: 64 MiB are allowed, and a key", b.bucket, len(value), key)
	}
	if _, err := b.store.PutBytes(ctx, key, value); err != nil {
		return fmt.Errorf("put %s into the bucket %s: %w", key, b.bucket, err)
	}
	return nil
}

package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

const maxBlob = 64 << 20 // bytes

type blobs struct {
	store  jetstream.ObjectStore
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
	return &blobs{store, bucket}, nil
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

package spool

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	maxKey   = 1 << 10 // bytes
	maxValue = 4 << 20 // bytes
)

// A KV holds small values on disk beside the lines: baselines, the state of alerts, incidents. It is safe for
// concurrent use. A value that was put is synced.
type KV struct {
	s    *Spool
	name string
}

// KV gives the bucket of that name, which holds letters, digits, - and _.
func (s *Spool) KV(ctx context.Context, name string) (*KV, error) {
	kv := &KV{s, name}
	if _, err := kv.bucket(ctx, true); err != nil {
		return nil, err
	}
	return kv, nil
}

// bucket waits while the store is opened anew, but not for one that was never open: what is stored there is not
// known, and may not be for long.
func (k *KV) bucket(ctx context.Context, create bool) (jetstream.KeyValue, error) {
	for {
		v := k.s.current()
		st, changed := v.st, v.changed
		if !v.opened {
			return nil, fmt.Errorf("open the bucket %s: %w", k.name, ErrNotOpen)
		}
		if st != nil {
			b, err := st.bucket(ctx, k.name, create)
			if err != nil {
				return nil, fmt.Errorf("open the bucket %s: %w", k.name, err)
			}
			return b, nil
		}
		select {
		case <-changed:
		case <-k.s.done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Get returns the value of key, and whether there is one.
func (k *KV) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	b, err := k.bucket(ctx, false)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	e, err := b.Get(ctx, bucketKey(key))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("get %s from the bucket %s: %w", key, k.name, err)
	}
	return e.Value(), true, nil
}

// Put stores value under key, of at most 1 KiB and 4 MiB.
func (k *KV) Put(ctx context.Context, key string, value []byte) error {
	if key == "" || len(key) > maxKey || len(value) > maxValue {
		return fmt.Errorf("put into the bucket %s: a key has 1 to %d bytes and a value at most %d", k.name, maxKey, maxValue)
	}
	b, err := k.bucket(ctx, true)
	if err != nil {
		return err
	}
	if _, err := b.Put(ctx, bucketKey(key), value); err != nil {
		if ctx.Err() == nil { // who asked did not leave
			k.s.sick.Store(true)
		}
		return fmt.Errorf("put %s into the bucket %s: %w", key, k.name, err)
	}
	return nil
}

// Delete removes key; a key that is not there is no error.
func (k *KV) Delete(ctx context.Context, key string) error {
	b, err := k.bucket(ctx, true)
	if err != nil {
		return err
	}
	if err := b.Purge(ctx, bucketKey(key)); err != nil {
		return fmt.Errorf("delete %s from the bucket %s: %w", key, k.name, err)
	}
	return nil
}

// Keys lists the keys, sorted.
func (k *KV) Keys(ctx context.Context) ([]string, error) {
	b, err := k.bucket(ctx, true)
	if err != nil {
		return nil, err
	}
	list, err := b.ListKeys(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the bucket %s: %w", k.name, err)
	}
	var keys []string
	for encoded := range list.Keys() {
		if key, err := base64.RawURLEncoding.DecodeString(encoded); err == nil {
			keys = append(keys, string(key))
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// bucketKey makes any bytes a key that JetStream takes.
func bucketKey(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

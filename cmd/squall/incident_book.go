package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/pipeline/spool"
)

// Where the spool keeps incidents and annotations.
const (
	ledgerBucket   = "ledger"
	incidentPrefix = "incident/"
	marksKey       = "annotations"
)

// An incidentBook is the ledger as the daemon shows and keeps it. It outlives reloads, and is safe for concurrent use.
type incidentBook struct {
	store *spool.Spool

	mu      sync.Mutex
	entries map[string]alerts.Entry
	unsaved map[string]bool // IDs whose entry is to be stored, or to go
	marks   []alerts.Mark
	loaded  bool
	adding  sync.Mutex // one annotation after the other reaches the disk
}

func newIncidentBook(store *spool.Spool) *incidentBook {
	return &incidentBook{store: store, entries: map[string]alerts.Entry{}, unsaved: map[string]bool{}}
}

// load reads what is kept, once. A value that cannot be read costs itself.
func (b *incidentBook) load(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loaded {
		return nil
	}
	kv, err := b.store.KV(ctx, ledgerBucket)
	if err != nil {
		return err
	}
	keys, err := kv.Keys(ctx)
	if err != nil {
		return err
	}
	var all []error
	for _, key := range keys {
		all = append(all, b.read(ctx, kv, key))
	}
	b.loaded = true
	return errors.Join(all...)
}

func (b *incidentBook) read(ctx context.Context, kv *spool.KV, key string) error {
	value, ok, err := kv.Get(ctx, key)
	if err != nil || !ok {
		return err
	}
	if key == marksKey {
		var marks []alerts.Mark
		if err := json.Unmarshal(value, &marks); err != nil {
			return fmt.Errorf("read the annotations: %w", err)
		}
		for _, m := range marks {
			b.marks = alerts.AddMark(b.marks, m)
		}
		return nil
	}
	if !strings.HasPrefix(key, incidentPrefix) {
		return nil
	}
	var e alerts.Entry
	if err := json.Unmarshal(value, &e); err != nil {
		return fmt.Errorf("read the incident %s: %w", key, err)
	}
	if e.Version == alerts.LedgerVersion && b.entries[e.ID].ID == "" {
		b.entries[e.ID] = e
	}
	return nil
}

// update takes over what changed in a ledger.
func (b *incidentBook) update(l *alerts.Ledger) {
	changed, gone := l.Changed()
	if len(changed)+len(gone) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range changed {
		b.entries[e.ID] = e
		b.unsaved[e.ID] = true
	}
	for _, id := range gone {
		delete(b.entries, id)
		b.unsaved[id] = true
	}
}

// save stores what changed. What cannot be stored now is stored the next time.
func (b *incidentBook) save(ctx context.Context) error {
	b.mu.Lock()
	ids, entries := slices.Sorted(maps.Keys(b.unsaved)), map[string]alerts.Entry{}
	for _, id := range ids {
		if e, ok := b.entries[id]; ok {
			entries[id] = e
		}
	}
	clear(b.unsaved)
	b.mu.Unlock()
	for i, id := range ids {
		if err := b.put(ctx, id, entries); err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, left := range ids[i:] {
				b.unsaved[left] = true
			}
			return err
		}
	}
	return nil
}

func (b *incidentBook) put(ctx context.Context, id string, entries map[string]alerts.Entry) error {
	kv, err := b.store.KV(ctx, ledgerBucket)
	if err != nil {
		return err
	}
	e, ok := entries[id]
	if !ok {
		return kv.Delete(ctx, incidentPrefix+id)
	}
	value, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return kv.Put(ctx, incidentPrefix+id, value)
}

// Entries lists the incidents, the newest first.
func (b *incidentBook) Entries() []alerts.Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return newestFirst(slices.Collect(maps.Values(b.entries)))
}

// Marks lists the annotations, the oldest first.
func (b *incidentBook) Marks() []alerts.Mark {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.marks)
}

// add keeps annotations: they are shown once they are on disk.
func (b *incidentBook) add(ctx context.Context, marks []alerts.Mark) error {
	b.adding.Lock()
	defer b.adding.Unlock()
	list := b.Marks()
	for _, m := range marks {
		list = alerts.AddMark(list, m)
	}
	value, err := json.Marshal(list)
	if err != nil {
		return err
	}
	kv, err := b.store.KV(ctx, ledgerBucket)
	if err == nil {
		err = kv.Put(ctx, marksKey, value)
	}
	if err != nil {
		return fmt.Errorf("keep the annotation: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.marks = list
	return nil
}

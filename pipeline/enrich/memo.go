package enrich

import (
	"hash/maphash"
	"sync/atomic"
)

// memoKeyMax is the longest key that is remembered, in bytes: with the number of entries it bounds the memory.
const memoKeyMax = 512

const memoWays = 4

// A memo remembers the results of a pure function, in sets of four, without locks: an entry is immutable and a
// new one takes the place of an old one when its set is full. A flood of new keys costs their computation,
// never memory.
type memo[V any] struct {
	seed maphash.Seed // random, so that no client can choose keys that collide
	mask uint64
	sets []memoSet[V]
}

// A memoSet has the hashes beside the entries, so that entries of other keys are not touched: it is one line of a
// processor's cache. A hash that is not yet its entry's own costs a look-up, for the entry has its key.
type memoSet[V any] struct {
	hashes  [memoWays]atomic.Uint64
	entries [memoWays]atomic.Pointer[memoEntry[V]]
}

type memoEntry[V any] struct {
	scope uint32
	key   string
	value V
}

// newMemo makes a memo of at least entries entries.
func newMemo[V any](entries int) *memo[V] {
	n := 1
	for n*memoWays < entries {
		n *= 2
	}
	return &memo[V]{seed: maphash.MakeSeed(), mask: uint64(n - 1), sets: make([]memoSet[V], n)}
}

func (m *memo[V]) hash(scope uint32, key []byte) uint64 {
	return maphash.Bytes(m.seed, key) ^ uint64(scope)*0x9e3779b97f4a7c15
}

// get finds what was put under the scope and key whose hash is h.
func (m *memo[V]) get(h uint64, scope uint32, key []byte) (value V, ok bool) {
	set := &m.sets[h&m.mask]
	for i := range set.hashes {
		if set.hashes[i].Load() != h {
			continue
		}
		if e := set.entries[i].Load(); e != nil && e.scope == scope && e.key == string(key) {
			return e.value, true
		}
	}
	return value, false
}

// put remembers value, unless the key is too long.
func (m *memo[V]) put(h uint64, scope uint32, key []byte, value V) {
	if len(key) > memoKeyMax {
		return
	}
	e := &memoEntry[V]{scope: scope, key: string(key), value: value}
	set := &m.sets[h&m.mask]
	way := int(h >> 62)
	for i := range set.entries {
		if set.entries[i].Load() == nil && set.entries[i].CompareAndSwap(nil, e) {
			set.hashes[i].Store(h)
			return
		}
	}
	set.entries[way].Store(e)
	set.hashes[way].Store(h)
}

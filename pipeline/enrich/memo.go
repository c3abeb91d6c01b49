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
	sets [][memoWays]atomic.Pointer[memoEntry[V]]
}

type memoEntry[V any] struct {
	hash  uint64
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
	return &memo[V]{seed: maphash.MakeSeed(), mask: uint64(n - 1), sets: make([][memoWays]atomic.Pointer[memoEntry[V]], n)}
}

func (m *memo[V]) hash(scope uint32, key []byte) uint64 {
	return maphash.Bytes(m.seed, key) ^ uint64(scope)*0x9e3779b97f4a7c15
}

// get finds what was put under the scope and key whose hash is h.
func (m *memo[V]) get(h uint64, scope uint32, key []byte) (value V, ok bool) {
	set := &m.sets[h&m.mask]
	for i := range set {
		if e := set[i].Load(); e != nil && e.hash == h && e.scope == scope && e.key == string(key) {
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
	e := &memoEntry[V]{hash: h, scope: scope, key: string(key), value: value}
	set := &m.sets[h&m.mask]
	for i := range set {
		if set[i].Load() == nil && set[i].CompareAndSwap(nil, e) {
			return
		}
	}
	set[h>>62].Store(e)
}

package pane

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/squall-sre/squall/pipeline"
)

const (
	maxKey    = pipeline.AgentMax // bytes of a key that a Top keeps
	scanLimit = 16                // up to this many entries a scan of the hashes beats an index
)

// Item is a key of a Top. The true sum of its weights is at most Count and at least Count-Error.
type Item struct {
	Key          string
	Count, Error uint64
}

// Top is a weighted SpaceSaving summary (Metwally, Agrawal, El Abbadi, ICDT 2005) that merges as in Agarwal
// et al., "Mergeable Summaries", PODS 2012. Up to its capacity it is exact and its content does not depend on
// the order of what was added. Above it, keys and errors depend on that order, and every error is at most
// Total divided by the capacity. Not safe for concurrent use.
type Top struct {
	capacity int
	total    uint64
	floor    uint64 // no key that is not listed weighs more
	entries  []entry
	hashes   []uint64 // of entries, side by side for the scan
	index    []int32  // position in entries plus one, by linear probing; nil for few entries, and in closed panes
	cursor   int      // where the search for a smallest entry goes on
	least    uint64   // a lower bound of all counts; it only grows while keys are replaced

	addresses [][16]byte // of all entries, while their keys are addresses that nobody has asked for as text
	later     *later     // what is still to be merged; nil for nothing
}

type entry struct {
	count, err uint64
	key        string
}

// NewTop returns an empty summary of at most capacity keys. Memory is taken as keys come.
func NewTop(capacity int) *Top { return &Top{capacity: max(capacity, 1)} }

// Add counts weight for key, of which the first 256 bytes matter. It keeps nothing of key, and allocates only
// for a key that it does not hold.
func (t *Top) Add(key []byte, weight uint64) {
	t.settle()
	key = key[:min(len(key), maxKey)]
	hash := xxhash.Sum64(key)
	if i := findKey(t, key, hash); i >= 0 {
		t.addTo(i, weight)
		return
	}
	t.addNew(string(key), hash, weight)
}

// AddString is Add for a string.
func (t *Top) AddString(key string, weight uint64) {
	t.settle()
	key = key[:min(len(key), maxKey)]
	t.addString(key, xxhash.Sum64String(key), weight)
}

// addString is AddString for a key that was cut and hashed. It tells whether the key was held.
func (t *Top) addString(key string, hash, weight uint64) (known bool) {
	if i := findKey(t, key, hash); i >= 0 {
		t.addTo(i, weight)
		return true
	}
	t.addNew(key, hash, weight)
	return false
}

// addAddress counts weight for an address, whose text is made when somebody asks for it. hash is that of its bytes.
func (t *Top) addAddress(address [16]byte, hash, weight uint64) {
	if len(t.addresses) != len(t.entries) { // somebody has asked
		var text [64]byte
		t.Add(appendAddress(text[:0], address), weight)
		return
	}
	for i, at := t.first(hash); i >= 0; i, at = t.next(hash, at) {
		if t.addresses[i] == address {
			t.addTo(i, weight)
			return
		}
	}
	if i := t.addNew("", hash, weight); i < len(t.addresses) {
		t.addresses[i] = address
	} else {
		t.addresses = append(t.addresses, address)
	}
}

func appendAddress(b []byte, address [16]byte) []byte {
	return netip.AddrFrom16(address).Unmap().AppendTo(b)
}

// spell makes the addresses into text.
func (t *Top) spell() {
	var list []byte
	for i := range t.addresses {
		list = appendAddress(list, t.addresses[i])
		t.hashes[i] = uint64(len(list)) // where its text ends
	}
	text, from := string(list), uint64(0)
	for i, to := range t.hashes {
		t.entries[i].key = text[from:to]
		t.hashes[i] = xxhash.Sum64String(text[from:to])
		from = to
	}
	t.addresses = t.addresses[:0]
	clear(t.index)
	for i := range t.entries {
		t.link(i)
	}
}

func (t *Top) addTo(i int, weight uint64) {
	t.entries[i].count += weight
	t.total += weight
}

// addNew counts weight for a key that is not held, and gives its place.
func (t *Top) addNew(key string, hash, weight uint64) int {
	t.total += weight
	if len(t.entries) < t.capacity {
		t.insert(entry{count: t.floor + weight, err: t.floor, key: key}, hash)
		return len(t.entries) - 1
	}
	i := t.smallest()
	least := t.entries[i].count
	t.floor = max(t.floor, least)
	t.unlink(i)
	t.entries[i] = entry{count: least + weight, err: least, key: key}
	t.hashes[i] = hash
	t.link(i)
	return i
}

// smallest finds an entry with the smallest count. Counts only grow, so the search goes round from where it
// last ended: for equal weights every entry is passed once for each step of the minimum.
func (t *Top) smallest() int {
	for range t.entries {
		if t.cursor++; t.cursor >= len(t.entries) {
			t.cursor = 0
		}
		if t.entries[t.cursor].count <= t.least {
			return t.cursor
		}
	}
	best := 0
	for i := range t.entries {
		if t.entries[i].count < t.entries[best].count {
			best = i
		}
	}
	t.cursor, t.least = best, t.entries[best].count
	return best
}

// findKey gives the position of key, -1 when it is not held.
func findKey[K string | []byte](t *Top, key K, hash uint64) int {
	i, at := t.first(hash)
	for i >= 0 && t.entries[i].key != string(key) {
		i, at = t.next(hash, at)
	}
	return i
}

// first gives the first entry with a hash, -1 for none, and where to look for the next one.
func (t *Top) first(hash uint64) (i int, at uint64) {
	if t.index == nil {
		return t.next(hash, 0)
	}
	return t.next(hash, hash)
}

func (t *Top) next(hash, at uint64) (int, uint64) {
	if t.index == nil {
		for ; at < uint64(len(t.hashes)); at++ {
			if t.hashes[at] == hash {
				return int(at), at + 1
			}
		}
		return -1, 0
	}
	mask := uint64(len(t.index) - 1)
	for ; ; at++ {
		i := t.index[at&mask] - 1
		if i < 0 {
			return -1, 0
		}
		if t.hashes[i] == hash {
			return int(i), at + 1
		}
	}
}

func (t *Top) insert(e entry, hash uint64) {
	if len(t.entries) == 0 {
		t.least = e.count
	}
	t.least = min(t.least, e.count)
	t.entries = append(t.entries, e)
	t.hashes = append(t.hashes, hash)
	if n := len(t.entries); n > scanLimit && 2*n > len(t.index) {
		t.reindex(n)
	} else {
		t.link(n - 1)
	}
}

// room makes room for n more entries.
func (t *Top) room(n int) {
	t.entries, t.hashes = slices.Grow(t.entries, n), slices.Grow(t.hashes, n)
	if n += len(t.entries); 2*n > len(t.index) {
		t.reindex(n)
	}
}

// reindex makes an index for n entries.
func (t *Top) reindex(n int) {
	t.index = nil
	if n <= scanLimit {
		return
	}
	size := 4 * scanLimit
	for size < 3*n {
		size *= 2
	}
	t.index = make([]int32, size)
	for i := range t.entries {
		t.link(i)
	}
}

func (t *Top) link(i int) {
	if t.index == nil {
		return
	}
	mask := uint64(len(t.index) - 1)
	at := t.hashes[i] & mask
	for t.index[at] != 0 {
		at = (at + 1) & mask
	}
	t.index[at] = int32(i + 1)
}

// unlink takes entry i out of the index and closes the hole in its probe sequence (Knuth, TAOCP 3, 6.4 R).
func (t *Top) unlink(i int) {
	if t.index == nil {
		return
	}
	mask := uint64(len(t.index) - 1)
	at := t.hashes[i] & mask
	for t.index[at] != int32(i+1) {
		at = (at + 1) & mask
	}
	for next := (at + 1) & mask; t.index[next] != 0; next = (next + 1) & mask {
		home := t.hashes[t.index[next]-1] & mask
		if (next-home)&mask >= (next-at)&mask {
			t.index[at] = t.index[next]
			at = next
		}
	}
	t.index[at] = 0
}

// Merge adds what o counted. o is not changed and may be nil. A key that one side does not list may have had
// up to that side's floor there, which is added to its count and to its error.
func (t *Top) Merge(o *Top) {
	if o == nil {
		return
	}
	t.settle()
	o.settle()
	if t.index == nil {
		t.reindex(len(t.entries))
	}
	n := len(t.entries)
	var listed []bool
	if o.floor > 0 {
		listed = make([]bool, n)
	}
	var few [64]int32
	missed := few[:0] // entries of o that t does not list
	for j := range o.entries {
		e := &o.entries[j]
		i := findKey(t, e.key, o.hashes[j])
		if i < 0 {
			missed = append(missed, int32(j))
			continue
		}
		t.entries[i].count += e.count
		t.entries[i].err += e.err
		if listed != nil {
			listed[i] = true
		}
	}
	t.room(len(missed))
	for _, j := range missed {
		e := &o.entries[j]
		t.insert(entry{count: e.count + t.floor, err: e.err + t.floor, key: e.key}, o.hashes[j])
	}
	for i := range listed {
		if !listed[i] {
			t.entries[i].count += o.floor
			t.entries[i].err += o.floor
		}
	}
	t.total += o.total
	t.floor += o.floor
	t.capacity = max(t.capacity, o.capacity)
	if len(t.entries) > exactFactor*t.capacity {
		t.Trim(t.capacity)
	}
}

// Trim leaves the n heaviest keys and makes n the capacity. Which ones stay depends on counts and keys alone.
func (t *Top) Trim(n int) {
	t.settle()
	t.capacity = max(n, 1)
	if len(t.entries) <= t.capacity {
		return
	}
	kept := t.choose(nil)
	entries, hashes := make([]entry, len(kept)), make([]uint64, len(kept))
	for i := range kept {
		entries[i], hashes[i] = t.entries[kept[i].at], t.hashes[kept[i].at]
	}
	t.entries, t.hashes = entries, hashes
	t.reindex(len(kept))
}

// A ranked is an entry's place in the order of Items.
type ranked struct {
	count uint64
	head  [2]uint64 // how the key begins: most addresses are told apart by it
	at    int
}

// choose finds the heaviest of more entries than the capacity, in no order, and raises the floor to what the others
// weigh. room is memory for it. Counts tell most entries apart; keys are looked at where as many have the same one as
// to be cut among them.
func (t *Top) choose(room []ranked) []ranked {
	const classes = 64 // of counts: the last one is of all that are larger
	var sizes [classes]int
	for i := range t.entries {
		sizes[min(t.entries[i].count, classes-1)]++
	}
	class, above := uint64(classes-1), 0
	for above+sizes[class] < t.capacity {
		above += sizes[class]
		class--
	}
	list, rest, next := slices.Grow(room[:0], above+sizes[class])[:above], 0, uint64(0)
	for i := range t.entries {
		switch count := t.entries[i].count; {
		case min(count, classes-1) > class:
			list[rest] = ranked{count: count, at: i}
			rest++
		case min(count, classes-1) == class:
			list = append(list, ranked{count, t.head(i), i})
		default:
			next = max(next, count)
		}
	}
	if len(list) > t.capacity {
		t.heaviestFirst(list[above:], t.capacity-above)
		next = list[t.capacity].count
	}
	t.floor = max(t.floor, next)
	list = list[:t.capacity]
	t.least, t.cursor = list[0].count, 0
	for i := range list {
		t.least = min(t.least, list[i].count)
	}
	return list
}

func (t *Top) head(i int) [2]uint64 {
	var text [64]byte
	if len(t.addresses) > 0 {
		appendAddress(text[:0], t.addresses[i])
	} else {
		copy(text[:16], t.entries[i].key)
	}
	return [2]uint64{binary.BigEndian.Uint64(text[:]), binary.BigEndian.Uint64(text[8:])}
}

// heavier is the order of Items.
func (t *Top) heavier(a, b *ranked) bool {
	switch {
	case a.count != b.count:
		return a.count > b.count
	case a.head[0] != b.head[0]:
		return a.head[0] < b.head[0]
	case a.head[1] != b.head[1]:
		return a.head[1] < b.head[1]
	case len(t.addresses) > 0:
		var x, y [64]byte
		return string(appendAddress(x[:0], t.addresses[a.at])) < string(appendAddress(y[:0], t.addresses[b.at]))
	}
	return t.entries[a.at].key < t.entries[b.at].key
}

// heaviestFirst brings the n heaviest entries of a longer list to its front, in no order, and the next one behind them:
// Hoare's quickselect (CACM 4, 1961), since most of what is trimmed need not be sorted.
func (t *Top) heaviestFirst(list []ranked, n int) {
	for low, high := 0, len(list)-1; low < high; {
		middle := low + (high-low)/2
		for _, pair := range [][2]int{{low, middle}, {middle, high}, {low, middle}} { // the median of three to the middle
			if t.heavier(&list[pair[1]], &list[pair[0]]) {
				list[pair[0]], list[pair[1]] = list[pair[1]], list[pair[0]]
			}
		}
		pivot := list[middle]
		i, j := low, high
		for i <= j {
			for t.heavier(&list[i], &pivot) {
				i++
			}
			for t.heavier(&pivot, &list[j]) {
				j--
			}
			if i <= j {
				list[i], list[j] = list[j], list[i]
				i, j = i+1, j-1
			}
		}
		switch {
		case n <= j:
			high = j
		case n >= i:
			low = i
		default:
			return
		}
	}
}

// Heaviest is the first n of Items, for a small n without sorting all.
func (t *Top) Heaviest(n int) []Item {
	if t == nil {
		return nil
	}
	t.settle()
	var items []Item
	for i := range t.entries {
		e := &t.entries[i]
		at := len(items)
		for at > 0 && (e.count > items[at-1].Count || e.count == items[at-1].Count && e.key < items[at-1].Key) {
			at--
		}
		if at < n {
			items = slices.Insert(items[:min(len(items), n-1)], at, Item{e.key, e.count, e.err})
		}
	}
	return items
}

// Items lists the keys, heaviest first, equal ones by key. The result belongs to the caller.
func (t *Top) Items() []Item {
	if t == nil {
		return nil
	}
	t.settle()
	items := make([]Item, len(t.entries))
	for i, e := range t.entries {
		items[i] = Item{e.key, e.count, e.err}
	}
	slices.SortFunc(items, func(a, b Item) int {
		if a.Count != b.Count {
			return cmp.Compare(b.Count, a.Count)
		}
		return strings.Compare(a.Key, b.Key)
	})
	return items
}

// Get gives one key; false when it is not listed: then it weighs at most Floor.
func (t *Top) Get(key string) (Item, bool) {
	if t == nil {
		return Item{}, false
	}
	t.settle()
	i := findKey(t, key, xxhash.Sum64String(key))
	if i < 0 {
		return Item{}, false
	}
	return Item{t.entries[i].key, t.entries[i].count, t.entries[i].err}, true
}

// Total is the sum of all weights added, listed or not. It is always exact.
func (t *Top) Total() uint64 {
	if t == nil {
		return 0
	}
	t.settle()
	return t.total
}

// Floor is the most that a key can weigh that is not listed; 0 while the summary is exact.
func (t *Top) Floor() uint64 {
	if t == nil {
		return 0
	}
	t.settle()
	return t.floor
}

// AtMost is what no key weighs more than, listed or not: of a ranking that nobody has asked for, a bound without merging.
func (t *Top) AtMost() (most uint64) {
	switch {
	case t == nil:
		return 0
	case t.later == nil:
		most = t.floor
		for i := range t.entries {
			most = max(most, t.entries[i].count)
		}
		return most
	}
	for _, c := range t.later.cells {
		most += c.TopAgents.AtMost()
	}
	for _, o := range t.later.tops {
		most += o.AtMost()
	}
	return most
}

// Len is how many keys are listed.
func (t *Top) Len() int {
	if t == nil {
		return 0
	}
	t.settle()
	return len(t.entries)
}

// Clone returns a copy that shares nothing but the keys' bytes. The clone of nil is nil.
func (t *Top) Clone() *Top {
	if t == nil {
		return nil
	}
	t.settle()
	c := *t
	c.entries, c.hashes, c.index, c.addresses = slices.Clone(t.entries), slices.Clone(t.hashes), slices.Clone(t.index), nil
	return &c
}

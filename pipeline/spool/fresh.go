package spool

import "time"

// What of the last stored stays in memory, bytes before compression: as much as comes while a push of the shipper is under
// way. For a consumer that is farther behind it would be of no use; it finds little when it has caught up.
const (
	freshBytes  = 16 << 20
	behindBytes = 4 << 20
)

// fresh holds the messages that were stored last. A consumer that keeps up takes them from here: reading them from the
// store again costs as much as storing them, and the store holds what was read in memory for seconds. The spool's lock
// guards it.
type fresh struct {
	list   []freshMessage // in order of their sequences
	bytes  int
	behind bool // the message that was asked for last had gone
}

type freshMessage struct {
	seq  uint64
	at   time.Time // when it was stored
	head head
	body []byte // not compressed; the queue takes it back
}

// add keeps a message, and gives back the memory of those for which there is no room any more.
func (f *fresh) add(m freshMessage) (old [][]byte) {
	f.list = append(f.list, m)
	f.bytes += len(m.body)
	limit := freshBytes
	if f.behind {
		limit = behindBytes
	}
	for f.bytes > limit {
		old = append(old, f.list[0].body)
		f.drop(1)
	}
	return old
}

// take gives a message. Those before it are let go: who reads them is behind, and will be.
func (f *fresh) take(seq uint64) (m freshMessage, ok bool) {
	for i := range f.list {
		if f.list[i].seq == seq {
			m = f.list[i]
			f.drop(i + 1)
			f.behind = false
			return m, true
		}
	}
	f.behind = len(f.list) > 0 && f.list[0].seq > seq
	return m, false
}

func (f *fresh) drop(n int) {
	for i := range f.list[:n] {
		f.bytes -= len(f.list[i].body)
		f.list[i] = freshMessage{}
	}
	f.list = f.list[n:]
}

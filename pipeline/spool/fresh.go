package spool

import "time"

// freshBytes is how much of what was stored last stays in memory, bytes before compression.
const freshBytes = 16 << 20

// fresh holds the messages that were stored last. A consumer that keeps up takes them from here: reading them from the
// store again costs as much as storing them. The spool's lock guards it.
type fresh struct {
	list  []freshMessage // in order of their sequences
	bytes int
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
	for f.bytes > freshBytes {
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
			return m, true
		}
	}
	return m, false
}

func (f *fresh) drop(n int) {
	for i := range f.list[:n] {
		f.bytes -= len(f.list[i].body)
		f.list[i] = freshMessage{}
	}
	f.list = f.list[n:]
}

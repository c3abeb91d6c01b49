package pipeline

import (
	"context"
	"time"
)

// An Entry is one line as the spool keeps it and as Loki gets it: redacted, with what enrichment found.
type Entry struct {
	Time int64  // ns since the epoch, made unique within the stream by the line's offset: see EntryTime
	Line []byte // redacted, valid UTF-8, at most MaxLine bytes

	Kind        ItemKind
	Reason      Reason // why it could not be parsed
	Site, Route string
	Method      []byte
	Status      uint16
	RequestTime int64 // ns; Unknown
	Class       Class
	Origin      Origin
	Abandoned   Tri
}

// MaxLine is the longest line that is kept and shipped, in bytes: Loki's default max_line_size.
const MaxLine = 256 << 10

// A Batch is a Block after the road: what the spool stores as one message. The last batch of a stream is that
// stream's position. It holds until the consumer returns.
type Batch struct {
	Stream   *Stream
	From, To int64 // offsets in the stream, in bytes; To is where reading resumes
	Skips    []Skip
	Last     bool
	Lines    int    // physical lines read in [From, To)
	Anchor   Anchor // of To
	Entries  []Entry
}

// EntryTime makes a line's time its own and yet the same at every reading: the digits below the log's resolution
// are taken from the line's offset and from mark, a hash of its stream's ID. Loki folds equal lines with equal times
// into one (a HEAD storm logged in whole seconds would vanish), so equal lines must differ in time: within their
// stream, where they always do, and from those at the same place of another file with the same labels.
func EntryTime(t, resolution, offset int64, mark uint64) int64 {
	if resolution <= 1 {
		return t
	}
	return t - t%resolution + (offset%resolution+int64(mark%uint64(resolution)))%resolution
}

// A Store keeps batches. The spool fills it.
type Store interface {
	// Append takes a batch and returns when it has copied it. It blocks only while the store makes progress:
	// a store that stands still refuses at once, and the refusal is counted by the caller.
	Append(b *Batch) error
}

// A Delivery is one message of a store, on its way to where lines are shipped. Its batches hold
// until the next call of Next.
type Delivery struct {
	Sequence uint64    // its place in the store
	Stored   time.Time // when it was stored
	Batches  []*Batch
	Missed   int64 // entries between the last delivery and this one that had gone before they were read
	Through  int64 // entries stored up to and with this one since the store began
}

// Deliveries hands out what is stored, in order, to one goroutine, and remembers over restarts what was dealt with.
type Deliveries interface {
	// Next waits for the message after the one that it returned last; after a restart, for the first one that
	// was not acknowledged.
	Next(ctx context.Context) (*Delivery, error)
	// Ack says that d and all before it are dealt with.
	Ack(ctx context.Context, d *Delivery) error
	// Waiting tells how many stored lines are not dealt with, those of the backlog among them. It may be called
	// from any goroutine.
	Waiting() int64
	// Fork puts everything aside that Next has not returned yet, and Next goes on with what is stored from now on.
	// All that was returned must have been acknowledged, and what was put aside before must be dealt with.
	Fork(ctx context.Context) error
	// Backlog hands out what was put aside, also after a restart; its Next returns io.EOF at the end. It is nil
	// when there is nothing. Both belong to the same goroutine.
	Backlog() Deliveries
}

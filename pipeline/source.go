package pipeline

import (
	"context"
	"time"
)

// A Stream is one ordered sequence of bytes with one writer: one generation of a file, one listener, one
// container's log. Its fields do not change after the first Block.
type Stream struct {
	Input  string // the configured source's name
	ID     string // identity over restarts and renames; for files device, inode and fingerprint
	Path   string // where it was found, for people
	Labels map[string]string

	Node, Namespace, Pod, Container string // where the path of a container's log tells
	Restart                         int    // which run of the container it is, from 0
}

// A Block is a run of lines of one Stream, with their place in it. Data is valid until Emit returns.
//
// What numbers its entries itself (the journal) has those numbers as its offsets: From is that of the first entry that
// may be in Data, To is the one behind the last, and the framing tells where each line begins.
type Block struct {
	Stream *Stream
	Data   []byte // lines, each ended by \n; only the last block of a stream may end without
	From   int64  // the offset in the stream, in bytes, of Data[0]
	To     int64  // the offset behind the last byte that Data stands for: From+len(Data) plus what was skipped
	Skips  []Skip // bytes within [From, To) that are not in Data, in order
	Last   bool   // nothing follows in this stream: what is half is complete now
	Behind bool   // more of the stream lies unread: event time waits for it
	Anchor Anchor // of To, where the stream is a file
}

// A Skip is a run of bytes that a source read over: NUL holes, the rest of an over-long line, a gap.
type Skip struct {
	At     int64  // offset in the stream, in bytes
	Bytes  int64  // how many; Unknown where that cannot be known
	Reason string // one of the Skip constants
	Lost   bool   // log lines are gone, not only padding
}

// Reasons of a Skip.
const (
	SkipNUL       = "nul"        // a hole left by copytruncate under a writer without O_APPEND
	SkipLongLine  = "long_line"  // a line over the limit was cut; the rest was passed over
	SkipTruncated = "truncated"  // the file was truncated under unread lines
	SkipVanished  = "vanished"   // a file with a saved position was not found again
	SkipOverflow  = "overflow"   // datagrams that came faster than the road took them
	SkipUnread    = "unreadable" // an input/output error or a corrupt archive
)

// Emit hands a Block on. It is called from one goroutine of a source at a time for each Stream, may block
// while the road is full, and keeps nothing of the Block after it returned. An error means that the road has
// ended: the source returns it.
type Emit func(*Block) error

// Positions tells up to which offset a stream's lines are in the spool. It is safe for concurrent use.
type Positions interface {
	Position(streamID string) (offset int64, known bool)
	// Ended tells whether the last Block of a stream was stored.
	Ended(streamID string) bool
	// Anchor is that of the offset that Position gives; 0: not known.
	Anchor(streamID string) Anchor
	// Stored tells when the last Block of an input was stored, or of any in the time of an earlier run; zero: none was.
	Stored(input string) time.Time
	// Streams lists the known stream IDs of an input, sorted; "" those of all.
	Streams(input string) []string
}

// A Source reads lines from one configured place.
type Source interface {
	// Run reads until ctx ends, or until the input does. It resumes each stream at its position, calls emit
	// for every Block and waits for all that it started before it returns. Missing, unreadable and vanished
	// inputs are states that it reports and retries, never errors; an error is what no retry can cure.
	Run(ctx context.Context, positions Positions, emit Emit) error
}

// InputState is what a Source tells about one of its streams or paths, for /metrics and the sources page.
type InputState struct {
	Input, Path string
	State       string // reading, idle, missing, unreadable, done, StateUnmatched
	Err         string // why, in words, for unreadable
	Lag         int64  // bytes known to be unread
	Behind      bool   // a whole line is among them; half a line waits for its end
	Stream      string // its ID, where it is one stream
}

// StateUnmatched is the state of a glob that no file matches.
const StateUnmatched = "no file matches"

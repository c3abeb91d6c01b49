package spool

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/pipeline"
)

// A Stopped is a spool that no process uses, for reading alone: nothing in its directory is made, changed or expired,
// so that the lines of an incident can be looked at long after their max_age, and from a copy or a read-only disk. It
// reads the message blocks of JetStream's file store itself, since a server that opens a store removes from it what its
// limits do not allow any more.
type Stopped struct {
	dir    string
	blocks []string // the files of LINES, in the order of their messages
	size   int64
	read   *atomic.Int64
}

// A Stored is a message of a Stopped spool.
type Stored struct {
	Sequence       uint64
	At             time.Time // when it was stored
	Oldest, Newest int64     // ns: the span of its lines' times; 0 when it has none

	head head
	dec  *decoder
}

// Batches unpacks the message. What it returns may be kept.
func (m *Stored) Batches() ([]*pipeline.Batch, error) { return m.dec.decode(m.head) }

// OpenStopped looks at a spool's directory. One that a process uses is an error, and so is one without a spool. To read
// is added what is read of its files, in bytes.
func OpenStopped(dir string, read *atomic.Int64) (*Stopped, error) {
	s := &Stopped{dir: dir, read: read}
	if err := s.Unused(); err != nil {
		return nil, err
	}
	msgs := filepath.Join(dir, "store", "jetstream", "$G", "streams", streamLines, "msgs")
	files, err := os.ReadDir(msgs)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s holds no spool: there is no %s", dir, filepath.Join("store", "jetstream"))
	case err != nil:
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	numbers := map[string]int{}
	for _, f := range files {
		name, isBlock := strings.CutSuffix(f.Name(), ".blk")
		n, err := strconv.Atoi(name)
		if !isBlock || err != nil {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return nil, fmt.Errorf("read the spool: %w", err)
		}
		path := filepath.Join(msgs, f.Name())
		numbers[path] = n
		s.blocks, s.size = append(s.blocks, path), s.size+info.Size()
	}
	slices.SortFunc(s.blocks, func(a, b string) int { return cmp.Compare(numbers[a], numbers[b]) })
	return s, nil
}

// Size is how many bytes its files have.
func (s *Stopped) Size() int64 { return s.size }

// Unused is nil while no process uses the directory. The directory is not taken: a daemon must be able to start while
// its spool is read, and whoever reads asks again at the end.
func (s *Stopped) Unused() error {
	f, err := os.Open(filepath.Join(s.dir, "lock"))
	if errors.Is(err, os.ErrNotExist) { // a copy may come without
		_, err := os.Stat(s.dir)
		return err
	}
	if err != nil {
		return fmt.Errorf("open the spool's lock: %w", err)
	}
	defer f.Close() // it was only read
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		return fmt.Errorf("the spool %s is in use by process %s: stop it, or read a copy", s.dir, strings.TrimSpace(string(holder)))
	}
	if err != nil {
		return fmt.Errorf("look at the spool's lock: %w", err)
	}
	return nil
}

// Read hands every message to fn, in the order in which they were stored. An error of fn ends it and is returned. What
// is damaged is passed over: the errors that tell of it are returned at the end, joined.
func (s *Stopped) Read(ctx context.Context, fn func(*Stored) error) error {
	dec, err := newDecoder(false)
	if err != nil {
		return err
	}
	defer dec.close()
	var damage []error
	last := uint64(0)
	for i, path := range s.blocks {
		at, err := s.block(ctx, path, &last, dec, fn)
		var mine putError
		switch {
		case errors.As(err, &mine):
			return mine.error
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
		case i == len(s.blocks)-1 && errors.Is(err, io.ErrUnexpectedEOF):
			damage = append(damage, fmt.Errorf("%s ends within a message, at byte %d: what was written last is torn", path, at))
		default:
			damage = append(damage, fmt.Errorf("%s is damaged from byte %d on: %w", path, at, err))
		}
	}
	return errors.Join(damage...)
}

// putError marks the error of fn among those of reading.
type putError struct{ error }

// The record of JetStream's file store, little endian: its length with a bit for headers, the sequence with bits for
// what was erased and for tombstones, the time in ns, the length of the subject, the subject, perhaps headers behind
// their length, the message, and a checksum. Ours have a checksum of their own.
const (
	recordHead    = 4 + 8 + 8 + 2
	recordSum     = 8
	withHeaders   = 1 << 31
	noMessage     = 1<<63 | 1<<62
	longestRecord = 32 << 20 // bytes of a record, at most
)

// block reads one file, and tells up to which byte it is well.
func (s *Stopped) block(ctx context.Context, path string, last *uint64, dec *decoder, fn func(*Stored) error) (at int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close() // it was only read
	in := bufio.NewReaderSize(f, 256<<10)
	var broken error
	for {
		if err := ctx.Err(); err != nil {
			return at, err
		}
		seq, stored, msg, n, err := record(in)
		s.read.Add(n)
		if errors.Is(err, io.EOF) {
			return at, broken
		}
		if err != nil {
			return at, errors.Join(broken, err)
		}
		at += n
		if seq&noMessage != 0 || seq <= *last {
			continue
		}
		*last = seq
		m := &Stored{Sequence: seq, At: time.Unix(0, stored).UTC(), dec: dec}
		if m.head, err = readHead(msg); err != nil {
			broken = cmp.Or(broken, fmt.Errorf("message %d: %w", seq, err))
			continue
		}
		if m.head.entries > 0 {
			m.Oldest, m.Newest = m.head.oldest, m.head.newest
		}
		if err := fn(m); err != nil {
			return at, putError{err}
		}
	}
}

// record reads one record, n bytes; io.EOF is the end of the file between two of them.
func record(in io.Reader) (seq uint64, stored int64, msg []byte, n int64, err error) {
	var head [recordHead]byte
	k, err := io.ReadFull(in, head[:])
	if err != nil {
		return 0, 0, nil, int64(k), err
	}
	length := binary.LittleEndian.Uint32(head[:])
	seq, stored = binary.LittleEndian.Uint64(head[4:]), int64(binary.LittleEndian.Uint64(head[12:]))
	skip := int(binary.LittleEndian.Uint16(head[20:]))
	rest := int(length&^withHeaders) - recordHead
	if length&^withHeaders > longestRecord || rest < skip+recordSum {
		return 0, 0, nil, int64(k), errors.New("no record of a message block")
	}
	body := make([]byte, rest)
	m, err := io.ReadFull(in, body)
	n = int64(k + m)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return 0, 0, nil, n, err
	}
	if length&withHeaders != 0 {
		if rest < skip+4+recordSum {
			return 0, 0, nil, n, errors.New("no record of a message block")
		}
		skip += 4 + int(min(binary.LittleEndian.Uint32(body[skip:]), uint32(rest)))
		if rest < skip+recordSum {
			return 0, 0, nil, n, errors.New("no record of a message block")
		}
	}
	return seq, stored, body[skip : rest-recordSum], n, nil
}

package source

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

const (
	// What a Block becomes on the road is several times as large: of small ones it stays in a processor's cache, and of
	// those that wait little memory is held.
	readSize  = 128 << 10                   // bytes read at once
	blockSize = readSize + pipeline.MaxLine // bytes of the longest Block: half a line, and what was read behind it
	cutAt     = pipeline.MaxLine - 1
	nulRun    = 16 // so many NULs in the middle of a line are a hole, not content
)

// A cutter makes Blocks of whole lines out of bytes. It holds no more than its capacity, whatever comes.
//
//   - A half line waits for its end.
//   - A line over pipeline.MaxLine is cut; what follows up to its end is counted in a Skip and not held.
//   - NULs at the beginning of a line, and runs of nulRun of them within a line, are a hole: a Skip. The first
//     NUL after a half line stands for its end.
//   - "\r" stays: it is the Format's to drop, and the offsets stay exact.
//
// A Skip is always the last thing in its Block, so a line's offset is Block.From and its index in Data.
// Where lines and Skips fall depends on the bytes alone, never on how they were read.
type cutter struct {
	stream *pipeline.Stream
	put    pipeline.Emit
	buf    []byte // not yet handed on; its capacity is over pipeline.MaxLine
	from   int64  // the offset of buf[0]
	over   int64  // how much of an over-long line was passed over; buf then holds its first cutAt bytes
	nuls   int64  // NULs passed over right before from, not yet told

	block pipeline.Block
	skips [1]pipeline.Skip
}

func newCutter() *cutter { return &cutter{buf: make([]byte, 0, blockSize)} }

// reset begins at offset from of a stream.
func (c *cutter) reset(stream *pipeline.Stream, from int64, put pipeline.Emit) {
	c.stream, c.put, c.buf, c.from, c.over, c.nuls = stream, put, c.buf[:0], from, 0, 0
}

// next is the offset of the first byte that was not read.
func (c *cutter) next() int64 { return c.from + int64(len(c.buf)) + c.over }

// space is where the bytes at next belong. It is never empty.
func (c *cutter) space() []byte { return c.buf[len(c.buf):cap(c.buf)] }

// took says that n bytes were read into space, and hands on the lines that are whole by now.
func (c *cutter) took(n int) error {
	if c.over > 0 {
		if whole, err := c.passOver(n); !whole || err != nil {
			return err
		}
	} else {
		read := c.space()[:n]
		c.buf = c.buf[:len(c.buf)+n]
		if len(c.buf) < pipeline.MaxLine && bytes.IndexByte(read, '\n') < 0 && bytes.IndexByte(read, 0) < 0 {
			return nil // half a line grew: a writer of single bytes must not cost its square
		}
	}
	for {
		end := len(c.buf)
		at, run := findHole(c.buf)
		if run > 0 {
			end = at
		}
		whole, long := wholeLines(c.buf[:end])
		if err := c.hand(whole, nil); err != nil {
			return err
		}
		at -= whole
		switch {
		case long:
			rest := len(c.buf) - cutAt
			c.buf = c.buf[:cutAt]
			if whole, err := c.passOver(rest); !whole || err != nil {
				return err
			}
		case run > 0 && at == 0:
			c.drop(run)
			c.nuls += int64(run)
		case run > 0:
			c.buf[at] = '\n'
			if err := c.hand(at+1, c.hole(at+1, int64(run-1))); err != nil {
				return err
			}
			c.from -= int64(run - 1)
			c.drop(run - 1)
		default:
			return nil
		}
	}
}

// gap says that the n bytes at next are a hole in the file.
func (c *cutter) gap(n int64) error {
	if c.over > 0 {
		c.over += n
		return nil
	}
	if len(c.buf) > 0 {
		c.buf = append(c.buf, '\n')
		return c.hand(len(c.buf), c.hole(len(c.buf), n-1))
	}
	c.nuls += n
	c.from += n
	return nil
}

// passOver looks for the end of an over-long line in the n bytes behind buf.
func (c *cutter) passOver(n int) (whole bool, err error) {
	read := c.buf[len(c.buf) : len(c.buf)+n]
	i := bytes.IndexByte(read, '\n')
	if i < 0 {
		c.over += int64(n)
		return false, nil
	}
	c.over += int64(i)
	read[0] = '\n'
	c.buf = c.buf[:cutAt+1]
	err = c.hand(len(c.buf), c.longLine(c.over))
	c.buf = c.buf[:copy(c.buf[:cap(c.buf)], read[i+1:])]
	return true, err
}

func (c *cutter) hole(at int, n int64) []pipeline.Skip {
	c.skips[0] = pipeline.Skip{At: c.from + int64(at), Bytes: n, Reason: pipeline.SkipNUL}
	return c.skips[:]
}

func (c *cutter) longLine(n int64) []pipeline.Skip {
	c.skips[0] = pipeline.Skip{At: c.from + cutAt, Bytes: n, Reason: pipeline.SkipLongLine}
	c.over = 0
	return c.skips[:]
}

// hand hands on the first n bytes of buf, and a Skip behind (in a cut line: within) them.
func (c *cutter) hand(n int, skips []pipeline.Skip) error {
	if n == 0 && len(skips) == 0 {
		return nil
	}
	if err := c.tellNULs(); err != nil {
		return err
	}
	to := c.from + int64(n)
	for _, s := range skips {
		to += s.Bytes
	}
	c.block = pipeline.Block{Stream: c.stream, Data: c.buf[:n], From: c.from, To: to, Skips: skips}
	err := c.put(&c.block)
	c.drop(n)
	c.from = to
	return err
}

// tellNULs hands on the hole before from, if there is one that was not told.
func (c *cutter) tellNULs() error {
	if c.nuls == 0 {
		return nil
	}
	at := c.from - c.nuls
	skip := [1]pipeline.Skip{{At: at, Bytes: c.nuls, Reason: pipeline.SkipNUL}}
	c.nuls = 0
	c.block = pipeline.Block{Stream: c.stream, From: at, To: c.from, Skips: skip[:]}
	return c.put(&c.block)
}

// finish hands on what is half: nothing follows. more are Skips at the very end.
func (c *cutter) finish(more ...pipeline.Skip) error {
	if err := c.tellNULs(); err != nil {
		return err
	}
	b := pipeline.Block{Stream: c.stream, Data: c.buf, From: c.from, To: c.next(), Last: true}
	if c.over > 0 {
		b.Skips = append(b.Skips, c.longLine(c.over)...)
	}
	for _, s := range more {
		b.Skips = append(b.Skips, s)
		b.To += max(s.Bytes, 0)
	}
	err := c.put(&b)
	c.buf, c.from = c.buf[:0], b.To
	return err
}

// drop forgets the first n bytes of buf and keeps the rest; from moves with them.
func (c *cutter) drop(n int) {
	c.buf = c.buf[:copy(c.buf, c.buf[n:])]
	c.from += int64(n)
}

// wholeLines tells where the last whole line of b ends, or the first over-long line begins.
func wholeLines(b []byte) (end int, long bool) {
	for {
		window := b[end:min(end+pipeline.MaxLine, len(b))]
		i := bytes.LastIndexByte(window, '\n')
		if i < 0 {
			return end, len(window) == pipeline.MaxLine
		}
		end += i + 1
	}
}

// findHole finds the first run of NULs that is no content.
func findHole(b []byte) (at, n int) {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], 0)
		if i < 0 {
			return 0, 0
		}
		at = from + i
		n = len(b[at:]) - len(bytes.TrimLeft(b[at:], "\x00"))
		if n >= nulRun || at == 0 || b[at-1] == '\n' {
			return at, n
		}
		from = at + n
	}
}

func countLines(b *pipeline.Block) int {
	n := bytes.Count(b.Data, []byte{'\n'})
	if len(b.Data) > 0 && b.Data[len(b.Data)-1] != '\n' {
		n++
	}
	return n
}

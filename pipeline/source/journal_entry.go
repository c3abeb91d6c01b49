package source

import (
	"bytes"
	"strconv"
)

// A journalEntry is what the source reads of an entry. Its slices are parts of the line.
type journalEntry struct {
	series []byte // 32 hexadecimal digits
	number uint64 // in its series
	time   uint64 // µs since the epoch
	host   []byte
}

var (
	keyCursor  = []byte(`"__CURSOR":"`)
	keyHost    = []byte(`"_HOSTNAME":"`)
	keyMessage = []byte(`"MESSAGE":`)
)

// readEntry reads an object of journalctl -o json, of which only head and tail are there when it was cut. The keys
// are found by their quotes: those within a value have backslashes.
func readEntry(head, tail []byte, cut bool) (e journalEntry, ok bool) {
	if len(head) == 0 || head[0] != '{' || !cut && head[len(head)-1] != '}' {
		return e, false
	}
	cursor := jsonAfter(head, keyCursor)
	if cursor == nil && cut {
		cursor = jsonAfter(tail, keyCursor)
	}
	if e.host = jsonAfter(head, keyHost); len(e.host) > maxUnitName || bytes.IndexByte(e.host, '\\') >= 0 {
		e.host = nil
	}
	var numbered, timed bool
	for len(cursor) > 0 {
		var part []byte
		part, cursor, _ = bytes.Cut(cursor, []byte{';'})
		switch {
		case bytes.HasPrefix(part, []byte("s=")):
			e.series = part[2:]
		case bytes.HasPrefix(part, []byte("i=")):
			e.number, numbered = parseHex(part[2:])
		case bytes.HasPrefix(part, []byte("t=")):
			e.time, timed = parseHex(part[2:])
		}
	}
	return e, numbered && timed && isSeries(e.series)
}

// jsonAfter gives the string behind a key; nil when there is none.
func jsonAfter(line, key []byte) []byte {
	i := bytes.Index(line, key)
	if i < 0 {
		return nil
	}
	rest := line[i+len(key):]
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return nil
	}
	return rest[:end]
}

// parseHex reads a number below 2^63.
func parseHex(s []byte) (uint64, bool) {
	if len(s) == 0 || len(s) > 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s), 16, 63)
	return n, err == nil
}

func isSeries(s []byte) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == 32
}

// keyRoom is how much of a cut entry's first bytes makes room for its cursor and its time.
const keyRoom = 1024

// appendShortened writes an entry anew with what is there of its message. Keys that stand there twice say the same.
func appendShortened(dst, head []byte, e journalEntry) []byte {
	at, limit := bytes.Index(head, keyMessage), len(head)-keyRoom
	if at >= 0 && at+len(keyMessage) < limit {
		end, closing := messageCut(head, at+len(keyMessage), limit)
		dst = append(append(dst, head[:end]...), closing...)
	} else { // the field that is too long stands before the message
		dst = append(dst, `{"MESSAGE":null`...)
	}
	dst = append(dst, `,"__CURSOR":"s=`...)
	dst = append(dst, e.series...)
	dst = append(dst, ";i="...)
	dst = strconv.AppendUint(dst, e.number, 16)
	dst = append(dst, ";t="...)
	dst = strconv.AppendUint(dst, e.time, 16)
	dst = append(dst, `","__REALTIME_TIMESTAMP":"`...)
	dst = strconv.AppendUint(dst, e.time, 10)
	return append(dst, "\"}\n"...)
}

// messageCut finds where the message that begins at at ends or can be cut, before limit, and what closes it: a string
// not within an escape or a rune, a list of bytes behind a number.
func messageCut(head []byte, at, limit int) (end int, closing string) {
	switch head[at] {
	case '"':
		return stringCut(head, at+1, limit), `"`
	case '[':
		if i := bytes.IndexByte(head[at:limit], ']'); i >= 0 {
			return at + i, "]"
		}
		if i := bytes.LastIndexByte(head[at:limit], ','); i > 0 {
			return at + i, "]"
		}
	}
	return at, "null"
}

func stringCut(head []byte, start, limit int) int {
	end := start
	for end < limit && head[end] != '"' {
		n := 1
		if head[end] == '\\' {
			if n = 2; head[end+1] == 'u' {
				n = 6
			}
		}
		if end+n > limit {
			return end
		}
		end += n
	}
	for end > start && head[end]&0xc0 == 0x80 {
		end--
	}
	return end
}

// tailRoom is how much of an over-long line's end is kept: its cursor may stand there.
const tailRoom = 4 << 10

// An entryCutter cuts what journalctl writes into lines. It holds the first pipeline.MaxLine-1 bytes of a line, and the
// last tailRoom of one that is longer.
type entryCutter struct {
	held []byte
	tail []byte
	over int64 // bytes that are not in held
}

func (c *entryCutter) reset() { c.held, c.tail, c.over = c.held[:0], c.tail[:0], 0 }

// feed takes what was read and hands on each line that is whole by now, without its end.
func (c *entryCutter) feed(read []byte, take func(line, tail []byte, cut int64) error) error {
	for len(read) > 0 {
		i := bytes.IndexByte(read, '\n')
		if i < 0 {
			c.hold(read)
			return nil
		}
		line := read[:i]
		if len(c.held) > 0 || i > cutAt {
			c.hold(line)
			line = c.held
		}
		read = read[i+1:]
		if len(line) == 0 {
			continue
		}
		err := take(line, c.tail, c.over)
		c.reset()
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *entryCutter) hold(b []byte) {
	n := min(len(b), cutAt-len(c.held))
	c.held = append(c.held, b[:n]...)
	if b = b[n:]; len(b) == 0 {
		return
	}
	c.over += int64(len(b))
	if len(b) > tailRoom {
		b = b[len(b)-tailRoom:]
	}
	if drop := len(c.tail) + len(b) - tailRoom; drop > 0 {
		c.tail = c.tail[:copy(c.tail, c.tail[drop:])]
	}
	c.tail = append(c.tail, b...)
}

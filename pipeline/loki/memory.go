package loki

import (
	"bytes"
	"slices"
	"unicode/utf8"
	"unsafe"

	"github.com/grafana/loki/pkg/push"

	"github.com/squall-sre/squall/pipeline"
)

// A text is the memory of what the lines of one delivery are sent as: one piece for what is written, and one for the
// metadata, not one for each line and number.
type text struct {
	written []byte
	pairs   []push.LabelAdapter
}

// textOf makes room for a delivery with so many pairs of metadata a line.
func (m *memory) textOf(d *pipeline.Delivery, pairs int) *text {
	const beside = 24 // bytes of a line's method, status and time
	size, lines := 0, 0
	for _, b := range d.Batches {
		for i := range b.Entries {
			size += len(b.Entries[i].Line) + beside
		}
		lines += len(b.Entries)
	}
	return &text{m.written.take(size), m.pairs.take(lines * pairs)}
}

// keep gives b as a string, which holds until the text is used again.
func (t *text) keep(b []byte) string {
	from := len(t.written)
	t.written = append(t.written, b...)
	return unsafe.String(unsafe.SliceData(t.written[from:]), len(b))
}

// line gives a line as Loki takes it.
func (t *text) line(b []byte) string {
	if !utf8.Valid(b) {
		b = bytes.ToValidUTF8(b, []byte("\uFFFD"))
	}
	return cut(t.keep(b), pipeline.MaxLine)
}

// memory is what loads were made in that are dealt with: it is used again. In a flood it would else be most of what the
// collector has to look through.
type memory struct {
	written pieces[byte]
	pairs   pieces[push.LabelAdapter]
	entries pieces[push.Entry]
}

// pieces are some that nobody uses.
type pieces[T any] [][]T

// maxPieces is how many are kept: a load and the next have no more, unless its sites are many.
const maxPieces = 8

// take gives a piece with room for n. Where none has, a new one takes the place of one in the future.
func (p *pieces[T]) take(n int) []T {
	i := slices.IndexFunc(*p, func(x []T) bool { return cap(x) >= n })
	if i < 0 {
		*p = (*p)[:max(len(*p)-1, 0)]
		return make([]T, 0, n)
	}
	x := (*p)[i]
	*p = slices.Delete(*p, i, i+1)
	return x[:0]
}

func (p *pieces[T]) give(x []T) {
	if len(*p) < maxPieces && cap(x) > 0 {
		*p = append(*p, x)
	}
}

package pane

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"
)

// A Report is what one node of a fleet tells of one closed pane: the message Report of pane.proto. Who it is of, its
// carrier tells, which lets nobody speak for another.
type Report struct {
	Boot, Seq uint64 // Seq counts the reports of a node from 1, without holes; Boot rises when that begins anew: the start of the process, in ms, or one more than before
	Sent      int64  // ns: the node's wall clock
	Config    string // a hash of what shapes its panes
	Length    int64  // of its panes, ns
	Start     int64  // of this one, ns
	End       int64
	Lines     uint64 // Coverage.Lines of the pane
	Done      bool   // the node has come to the end of its logs: nothing follows

	packed []byte // the pane's wire form in a zstd frame
}

// What a report may hold. Panes are folded until they fit.
const (
	maxConfigHash = 64      // bytes
	maxPacked     = 1 << 20 // bytes
	leastCells    = 8       // a pane is not folded below
)

// ErrVersion says that a report or a pane is of a newer squall.
var ErrVersion = errors.New("it is of a newer version: upgrade those who add up before those who count")

// packers are shared: a frame is made and read as a whole, without goroutines.
var packers = sync.OnceValues(func() (*zstd.Encoder, *zstd.Decoder) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault))
	dec, err2 := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxWire))
	if err := errors.Join(err, err2); err != nil {
		panic(err) // the options are constants
	}
	return enc, dec
})

// Pack puts a pane into the report. Of a pane that is larger than limit, in bytes, the lightest cells are folded, and
// the lists of agents and clients shortened, until it fits; what was folded is in its Coverage. p is not changed.
func (r *Report) Pack(p *Pane, limit int) error {
	enc, _ := packers()
	r.Start, r.End, r.Lines = p.Start, p.End, p.Coverage.Lines
	whole := p
	for kept := keptCells; ; kept /= 2 {
		wire, err := whole.AppendBinary(nil)
		if err == nil && len(wire) <= MaxWire {
			r.packed = enc.EncodeAll(wire, nil)
			if len(r.packed) <= min(limit, maxPacked) {
				return nil
			}
		}
		if err != nil || kept < leastCells {
			return errors.Join(err, fmt.Errorf("a pane of %d bytes does not fit into a report of %d", len(r.packed), limit))
		}
		if whole == p { // what is folded must be a copy
			whole = MergeAll(p.Start, p.End, []*Pane{p})
			whole.Jump = p.Jump
		}
		whole.shrink(kept / 2)
	}
}

// shrink folds a pane to so many cells.
func (p *Pane) shrink(cells int) {
	p.Fold(max(cells/2, 1), cells)
	p.foldAll(cells)
	p.cutEvents(16 * cells)
	for _, s := range p.Sites {
		s.Agents.trim(max(cells/4, minTop))
		s.Clients.trim(max(cells/4, minTop))
		s.Waits = s.Waits[:min(len(s.Waits), 2*cells)]
	}
}

// Pane unpacks the pane. It believes nothing (ErrWire).
func (r *Report) Pane() (*Pane, error) {
	p, _, err := r.unpack(nil)
	return p, err
}

// unpack is Pane with a buffer for the wire form, of which the pane keeps nothing: it is given back for the next.
func (r *Report) unpack(buffer []byte) (*Pane, []byte, error) {
	_, dec := packers()
	wire, err := dec.DecodeAll(r.packed, buffer[:0])
	if err != nil {
		return nil, buffer, fmt.Errorf("%w: %v", ErrWire, err) //nolint:errorlint // of the library's many errors none is asked for
	}
	p := &Pane{}
	if err := p.UnmarshalBinary(wire); err != nil {
		return nil, wire, err
	}
	if p.Start != r.Start || p.End != r.End {
		return nil, wire, fmt.Errorf("%w: it is not the pane that its report tells of", ErrWire)
	}
	return p, wire, nil
}

// Size is how many bytes of memory a report holds until it is merged.
func (r *Report) Size() int { return len(r.packed) + len(r.Config) + 128 }

// AppendBinary implements encoding.BinaryAppender.
func (r *Report) AppendBinary(b []byte) ([]byte, error) {
	c := coder{out: b, writing: true}
	c.report(r)
	return c.out, c.err
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler; the pane within is looked at when it is asked for.
func (r *Report) UnmarshalBinary(data []byte) error {
	*r = Report{}
	if len(data) > maxPacked+1024 {
		return fmt.Errorf("%w: a report of %d bytes", ErrWire, len(data))
	}
	c := coder{}
	c.read(data, func() { c.report(r) })
	return c.err
}

func (c *coder) report(r *Report) {
	c.version()
	for i, n := range []*uint64{&r.Boot, &r.Seq} {
		c.uint(protowire.Number(2+i), n, maxWireTime)
	}
	for i, n := range []*int64{&r.Sent, &r.Length, &r.Start, &r.End} {
		c.int(protowire.Number(4+i), n, maxWireTime)
	}
	c.count(8, &r.Lines)
	c.text(9, &r.Config)
	c.bool(10, &r.Done)
	r.packed = c.bytes(11, r.packed)
	switch {
	case len(r.Config) > maxConfigHash:
		c.fail("a configuration's hash of %d bytes", len(r.Config))
	case r.Length <= 0 || r.End-r.Start != r.Length && !r.Done || r.Start%r.Length != 0:
		c.fail("a report of [%d, %d) with panes of %d", r.Start, r.End, r.Length)
	case r.Seq == 0:
		c.fail("a report without a number")
	}
}

package pane

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/axiomhq/hyperloglog"
	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/squall-sre/squall/pipeline"
)

// The wire form of a Pane is the protobuf message of pane.proto. It is written by hand, in canonical form: equal panes
// give equal bytes. One walk over the fields serves both directions, so that what is written is what is read.
const (
	// WireVersion is the form that is written. A higher one is refused: its fields may mean something else. Fields that
	// are only added need no new version; who does not know them passes them over.
	WireVersion = 1

	// MaxWire bounds what is read, in bytes. The panes of a busy node are a tenth of it.
	MaxWire = 8 << 20

	maxWireFields = 32       // field numbers of one message are below it
	maxWireParts  = 1 << 15  // values of one repeated field
	maxWireText   = 4 << 10  // bytes of a text
	maxWireCells  = 16 << 10 // over all sites
	maxWireCount  = 1 << 48  // of any count: sums over thousands of panes must not overflow
	maxWireTime   = 1 << 62  // ns
	maxWireBusy   = 1 << 52  // ns of worker time in one pane: 450,000 workers of 10 s
)

// ErrWire says that bytes are no Pane, or none that may be believed.
var ErrWire = errors.New("not a pane")

// AppendBinary implements encoding.BinaryAppender. Panes that an Assembler hands out, and merges of a few thousand of
// them, can be written.
func (p *Pane) AppendBinary(b []byte) ([]byte, error) {
	c := coder{out: b, writing: true}
	c.pane(p)
	return c.out, c.err
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler. It believes nothing: what is too large, too long or against
// the order of a Pane is an error (ErrWire), and no bytes make it take more memory than a few times MaxWire.
func (p *Pane) UnmarshalBinary(data []byte) error {
	if len(data) > MaxWire {
		return fmt.Errorf("%w: %d bytes", ErrWire, len(data))
	}
	*p = Pane{Sites: map[string]*Site{}}
	c := coder{}
	c.read(data, func() { c.pane(p) })
	return c.err
}

// A coder walks over a message, to write it or to read it.
type coder struct {
	writing bool
	out     []byte  // what was written
	in      *fields // the message that is read
	spare   []*fields
	list    []uint64 // what numbers read last
	cells   int
	err     error
}

// fields are the values of a message by their number. Of a field that does not repeat the last value counts.
type fields struct {
	numbers [maxWireFields]uint64
	parts   [maxWireFields][][]byte
}

func (c *coder) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: "+format, append([]any{ErrWire}, args...)...)
	}
}

// read splits a message into its fields and walks over them.
func (c *coder) read(data []byte, walk func()) {
	if c.err != nil {
		return
	}
	var f *fields
	if n := len(c.spare); n > 0 {
		f, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		f = &fields{}
	}
	for len(data) > 0 {
		n := f.next(data)
		if n < 0 {
			c.fail("a field is broken")
			return
		}
		data = data[n:]
	}
	outer := c.in
	c.in = f
	walk()
	c.in = outer
	for i := range f.parts {
		f.parts[i] = f.parts[i][:0]
	}
	clear(f.numbers[:])
	c.spare = append(c.spare, f)
}

// next takes in one field and gives its length, below 0 when there is none that may be.
func (f *fields) next(data []byte) int {
	number, kind, n := protowire.ConsumeTag(data)
	if n < 0 {
		return n
	}
	known := number < maxWireFields
	size := 0
	switch kind {
	case protowire.VarintType:
		var v uint64
		if v, size = protowire.ConsumeVarint(data[n:]); known && size > 0 {
			f.numbers[number] = v
		}
	case protowire.Fixed64Type:
		var v uint64
		if v, size = protowire.ConsumeFixed64(data[n:]); known && size > 0 {
			f.numbers[number] = v
		}
	case protowire.BytesType:
		var part []byte
		if part, size = protowire.ConsumeBytes(data[n:]); known && size > 0 {
			if len(f.parts[number]) >= maxWireParts {
				return -1
			}
			f.parts[number] = append(f.parts[number], part)
		}
	default:
		size = protowire.ConsumeFieldValue(number, kind, data[n:])
	}
	if size < 0 {
		return size
	}
	return n + size
}

// uint is a count, or a number that is none and has a limit of its own.
func (c *coder) uint(number protowire.Number, v *uint64, limit uint64) {
	if !c.writing {
		if *v = c.in.numbers[number]; *v > limit {
			c.fail("field %d is %d", number, *v)
			*v = 0
		}
		return
	}
	if *v != 0 {
		c.out = protowire.AppendVarint(protowire.AppendTag(c.out, number, protowire.VarintType), *v)
	}
}

func (c *coder) count(number protowire.Number, v *uint64) { c.uint(number, v, maxWireCount) }

// int is a number of 0 or more.
func (c *coder) int(number protowire.Number, v *int64, limit int64) {
	n := uint64(*v)
	c.uint(number, &n, uint64(limit))
	*v = int64(n)
}

// number is an int of 32 bits, of any sign.
func (c *coder) number(number protowire.Number, v *int) {
	n := protowire.EncodeZigZag(int64(*v))
	c.uint(number, &n, math.MaxUint32)
	*v = int(protowire.DecodeZigZag(n))
}

func (c *coder) bool(number protowire.Number, v *bool) {
	var n uint64
	if *v {
		n = 1
	}
	c.uint(number, &n, 1)
	*v = n == 1
}

// fixed is 64 bits: a hash, or a floating-point number.
func (c *coder) fixed(number protowire.Number, v *uint64) {
	switch {
	case !c.writing:
		*v = c.in.numbers[number]
	case *v != 0:
		c.out = protowire.AppendFixed64(protowire.AppendTag(c.out, number, protowire.Fixed64Type), *v)
	}
}

func (c *coder) bytes(number protowire.Number, v []byte) []byte {
	if c.writing {
		if len(v) > 0 {
			c.out = protowire.AppendBytes(protowire.AppendTag(c.out, number, protowire.BytesType), v)
		}
		return v
	}
	parts := c.in.parts[number]
	if len(parts) == 0 {
		return nil
	}
	return parts[len(parts)-1]
}

func (c *coder) text(number protowire.Number, v *string) {
	if c.writing {
		if *v != "" {
			c.out = protowire.AppendString(protowire.AppendTag(c.out, number, protowire.BytesType), *v)
		}
		return
	}
	b := c.bytes(number, nil)
	if len(b) > maxWireText {
		c.fail("a text of %d bytes", len(b))
		return
	}
	*v = string(b)
}

// numbers is a packed list of at most limit numbers, none of them above most. One that was read is good until the next.
func (c *coder) numbers(number protowire.Number, list []uint64, limit int, most uint64) []uint64 {
	if c.writing {
		if len(list) > 0 {
			c.embed(number, false, func() {
				for _, v := range list {
					c.out = protowire.AppendVarint(c.out, v)
				}
			})
		}
		return list
	}
	c.list = c.list[:0]
	for b := c.bytes(number, nil); len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 || len(c.list) >= limit || v > most {
			c.fail("a list of field %d is broken, too long or too large", number)
			return nil
		}
		c.list, b = append(c.list, v), b[n:]
	}
	return c.list
}

// embed writes a message within; an empty one only where it stands for an item of a list.
func (c *coder) embed(number protowire.Number, item bool, walk func()) {
	start := len(c.out)
	walk()
	body := len(c.out) - start
	if body == 0 && !item {
		return
	}
	var head [16]byte
	prefix := protowire.AppendVarint(protowire.AppendTag(head[:0], number, protowire.BytesType), uint64(body))
	c.out = slices.Insert(c.out, start, prefix...)
}

// message is a message within, present or not.
func (c *coder) message(number protowire.Number, walk func()) {
	if c.writing {
		c.embed(number, false, walk)
		return
	}
	c.read(c.bytes(number, nil), walk)
}

// items is a list of at most limit messages.
func items[T any](c *coder, number protowire.Number, list []T, limit int, walk func(*T)) []T {
	if c.writing {
		for i := range list {
			c.embed(number, true, func() { walk(&list[i]) })
		}
		return list
	}
	parts := c.in.parts[number]
	if len(parts) > limit {
		c.fail("%d items of field %d", len(parts), number)
	}
	if len(parts) == 0 || c.err != nil {
		return nil
	}
	list = make([]T, len(parts))
	for i, part := range parts {
		c.read(part, func() { walk(&list[i]) })
	}
	return list
}

// version is the first field of what stands alone.
func (c *coder) version() {
	version := uint64(WireVersion)
	c.uint(1, &version, maxWireTime)
	switch {
	case version == 0:
		c.fail("it has no version")
	case version > WireVersion && c.err == nil:
		c.err = fmt.Errorf("%w: version %d; %w", ErrWire, version, ErrVersion)
	}
}

func (c *coder) pane(p *Pane) {
	c.version()
	c.int(2, &p.Start, maxWireTime)
	c.int(3, &p.End, maxWireTime)
	c.bool(4, &p.Jump)
	c.message(5, func() { c.coverage(&p.Coverage) })
	if p.End <= p.Start {
		c.fail("it ends at %d and begins at %d", p.End, p.Start)
		return
	}
	c.sites(p)
	p.Events = items(c, 7, p.Events, 1<<14, c.event)
	if !c.writing {
		SortEvents(p.Events)
	}
	c.heard(p)
}

func (c *coder) coverage(v *Coverage) {
	for i, n := range []*uint64{&v.Lines, &v.Late, &v.Gaps, &v.Dropped, &v.EventsDropped, &v.SitesFolded, &v.CellsFolded, &v.Nodes, &v.Absent} {
		c.count(protowire.Number(i+1), n)
	}
}

// named is an entry of a map by name.
type named[T any] struct {
	name  string
	value *T
}

func (c *coder) sites(p *Pane) {
	var list []named[Site]
	for _, name := range p.SiteNames() {
		list = append(list, named[Site]{name, p.Sites[name]})
	}
	for _, x := range items(c, 6, list, 1<<13, func(x *named[Site]) {
		c.text(1, &x.name)
		if !c.writing {
			x.value = &Site{cells: map[Key]*Cell{}}
		}
		c.site(x.value)
	}) {
		if !c.writing {
			p.Sites[x.name] = x.value
		}
	}
}

func (c *coder) heard(p *Pane) {
	var list []named[Heard]
	for _, name := range slices.Sorted(maps.Keys(p.Heard)) {
		list = append(list, named[Heard]{name, p.Heard[name]})
	}
	for _, x := range items(c, 8, list, 1<<13, func(x *named[Heard]) {
		c.text(1, &x.name)
		if !c.writing {
			x.value = &Heard{}
		}
		c.count(2, &x.value.Records)
		x.value.Sites = items(c, 3, x.value.Sites, 1<<13, func(name *string) { c.text(1, name) })
	}) {
		if c.writing {
			continue
		}
		if p.Heard == nil {
			p.Heard = map[string]*Heard{}
		}
		slices.Sort(x.value.Sites)
		p.Heard[x.name] = x.value
	}
}

func (c *coder) site(s *Site) {
	type keyed struct {
		key  Key
		cell *Cell
	}
	var list []keyed
	for _, k := range s.Keys() {
		list = append(list, keyed{k, s.cells[k]})
	}
	for _, x := range items(c, 2, list, maxWireCells, func(x *keyed) {
		if c.cells++; !c.writing {
			if c.cells > maxWireCells {
				c.fail("over %d cells", maxWireCells)
				return
			}
			x.cell = &Cell{}
		}
		c.key(&x.key)
		c.cell(x.cell)
	}) {
		if !c.writing {
			s.cells[x.key] = x.cell
		}
	}
	s.Agents = c.top(3, s.Agents)
	s.Clients = c.top(4, s.Clients)
	s.Waits = items(c, 5, s.Waits, maxWaiters*2, func(x **Waits) {
		if !c.writing {
			*x = &Waits{}
		}
		c.waits(*x)
	})
	if !c.writing {
		slices.SortFunc(s.Waits, (*Waits).compare)
	}
}

func (c *coder) key(k *Key) {
	c.text(1, &k.Method)
	c.text(2, &k.Route)
	origin := uint64(k.Origin)
	c.uint(3, &origin, uint64(pipeline.Origins-1))
	k.Origin = pipeline.Origin(origin)
	c.bool(4, &k.Probe)
}

func (c *coder) cell(x *Cell) {
	for i, n := range []*uint64{
		&x.Requests, &x.Abandoned, &x.Limited, &x.Reached, &x.NotReached, &x.Static, &x.StaticQuery, &x.StaticLimit, &x.Bytes,
	} {
		c.count(protowire.Number(i+5), n)
	}
	c.codes(&x.Codes)
	c.array(15, x.Cache[:])
	c.array(16, x.Classes[:])
	c.message(17, func() {
		c.count(1, &x.Refused.StaticQuery)
		c.count(2, &x.Refused.Reached)
		c.count(3, &x.Refused.Errors)
		c.message(4, func() { c.distinct(&x.Refused.Clients) })
	})
	c.message(18, func() { c.quantiles(&x.Latency) })
	c.message(19, func() { c.busy(&x.Busy) })
	for i, d := range []*Distinct{&x.Clients, &x.Agents, &x.URLs, &x.Missed} {
		c.message(protowire.Number(20+i), func() { c.distinct(d) })
	}
	x.TopAgents = c.top(24, x.TopAgents)
	x.Samples.settle()
	x.Samples.kept = items(c, 25, x.Samples.kept, maxSamples, func(s *sample) {
		c.fixed(1, &s.hash)
		text := string(s.text)
		c.text(2, &text)
		s.text = []byte(text)
	})
	if !c.writing {
		slices.SortFunc(x.Samples.kept, func(a, b sample) int { return cmp.Compare(a.hash, b.hash) })
	}
}

// codes are pairs of a code and its count.
func (c *coder) codes(x *Codes) {
	var list []uint64
	x.All(func(code uint16, n uint64) { list = append(list, uint64(code), n) })
	list = c.numbers(14, list, 2*501, maxWireCount)
	if c.writing {
		return
	}
	for ; len(list) > 1; list = list[2:] {
		x.add(uint16(min(list[0], 1000)), list[1])
	}
}

// array holds a count for each value of an enumeration, without the zeros behind the last. Numbers of values that are
// not known are counted under the first, "unknown".
func (c *coder) array(number protowire.Number, v []uint64) {
	last := len(v)
	for last > 0 && v[last-1] == 0 {
		last--
	}
	for i, n := range c.numbers(number, v[:last], 64, maxWireCount) {
		switch {
		case c.writing:
		case i < len(v):
			v[i] = n
		default:
			v[0] += n
		}
	}
}

// quantiles are bins: the first as it is, of the others the distance from the one before; each with its count.
func (c *coder) quantiles(q *Quantiles) {
	var list []uint64
	before := 0
	q.bins(func(index int, n uint64) bool {
		list = append(list, protowire.EncodeZigZag(int64(index-before)), n)
		before = index
		return true
	})
	c.count(1, &q.zeros)
	list = c.numbers(2, list, 1<<13, maxWireCount)
	if c.writing {
		return
	}
	q.count = q.zeros
	index := int64(0)
	least, most := durationBins.Index(1), durationBins.Index(maxDuration)
	low, high := int64(most), int64(least)
	for i := 0; i+1 < len(list); i += 2 {
		if index += protowire.DecodeZigZag(list[i]); index < int64(least) || index > int64(most) {
			c.fail("a duration's bin %d", index)
			return
		}
		list[i] = uint64(index - int64(least))
		low, high = min(low, index), max(high, index)
	}
	if len(list) > 2*sparseBins {
		q.first, q.dense = int(low), make([]uint64, high-low+1)
	} else {
		q.pairs = make([]bin, 0, len(list)/2)
	}
	for ; len(list) > 1; list = list[2:] {
		q.addBin(int(list[0])+least, list[1])
		q.count += list[1]
	}
}

func (c *coder) busy(b *Busy) {
	c.int(1, &b.Lower, maxWireBusy)
	c.int(2, &b.Upper, maxWireBusy)
	c.count(3, &b.Untimed)
	c.int(4, &b.step, maxWireTime)
	b.past = c.shares(5, b.past)
	b.future = c.shares(6, b.future)
	if (len(b.past) > 0 || len(b.future) > 0) && b.step <= 0 {
		c.fail("shares without a length of panes")
	}
}

func (c *coder) shares(number protowire.Number, list []share) []share {
	flat := make([]uint64, 0, 2*len(list))
	for _, s := range list {
		flat = append(flat, uint64(s.lower), uint64(s.upper))
	}
	flat = c.numbers(number, flat, 2*maxShares, maxWireBusy)
	if c.writing {
		return list
	}
	list = nil
	for ; len(flat) > 1; flat = flat[2:] {
		list = append(list, share{int64(flat[0]), int64(flat[1])})
	}
	return list
}

// distinct is the exact set, or the sketch as its library writes it.
func (c *coder) distinct(d *Distinct) {
	d.settle()
	if c.writing && d.sketch != nil {
		registers, err := d.sketch.MarshalBinary()
		if err != nil {
			c.fail("%v", err)
		}
		c.bytes(2, registers)
		return
	}
	var hashes []byte
	if c.writing {
		for _, h := range d.hashes() {
			hashes = protowire.AppendFixed64(hashes, h)
		}
	}
	hashes = c.bytes(1, hashes)
	if c.writing {
		return
	}
	if registers := c.bytes(2, nil); len(registers) > 0 {
		sketch, err := readSketch(registers)
		if err != nil {
			c.fail("%v", err)
			return
		}
		d.sketch = sketch
		return
	}
	if len(hashes) > 8*exactDistinct || len(hashes)%8 != 0 {
		c.fail("a set of %d bytes", len(hashes))
		return
	}
	for ; len(hashes) > 0; hashes = hashes[8:] {
		h, _ := protowire.ConsumeFixed64(hashes)
		d.Add(h)
	}
}

// readSketch reads a dense sketch of our precision: no other merges with ours.
func readSketch(data []byte) (*hyperloglog.Sketch, error) {
	const head = 8 // of the library's form
	if len(data) != head+1<<precision || data[1] != precision || data[3] != 0 {
		return nil, fmt.Errorf("a sketch of %d bytes", len(data))
	}
	sketch := &hyperloglog.Sketch{}
	if err := sketch.UnmarshalBinary(data); err != nil {
		return nil, fmt.Errorf("a sketch: %w", err)
	}
	return sketch, nil
}

func (c *coder) top(number protowire.Number, t *Top) *Top {
	if c.writing {
		if t != nil {
			c.embed(number, true, func() { c.summary(t) })
		}
		return t
	}
	if len(c.in.parts[number]) == 0 {
		return nil
	}
	t = &Top{}
	c.message(number, func() { c.summary(t) })
	return t
}

func (c *coder) summary(t *Top) {
	t.settle()
	capacity := uint64(t.capacity)
	c.uint(1, &capacity, 1<<13)
	c.count(2, &t.total)
	c.count(3, &t.floor)
	list := items(c, 4, t.Items(), exactFactor<<12, func(x *Item) {
		c.text(1, &x.Key)
		c.count(2, &x.Count)
		c.count(3, &x.Error)
	})
	if c.writing {
		return
	}
	t.capacity = max(int(capacity), 1)
	if len(list) > exactFactor*t.capacity {
		c.fail("%d keys of a summary of %d", len(list), t.capacity)
		return
	}
	t.room(len(list))
	for _, x := range list {
		key := x.Key[:min(len(x.Key), maxKey)]
		if hash := xxhash.Sum64String(key); findKey(t, key, hash) < 0 {
			t.insert(entry{x.Count, x.Error, key}, hash)
		}
	}
}

func (c *coder) waits(x *Waits) {
	address := x.Client.AsSlice()
	address = c.bytes(1, address)
	c.text(2, &x.Method)
	c.text(3, &x.Route)
	c.fixed(4, &x.Path)
	c.count(5, &x.Count)
	c.fixed(6, &x.hash)
	flat := make([]uint64, 0, 2*len(x.Spans))
	for _, s := range x.Spans {
		flat = append(flat, uint64(s.Start), uint64(s.End))
	}
	flat = c.numbers(7, flat, 2*maxWaits, maxWireTime)
	if c.writing {
		return
	}
	client, ok := netip.AddrFromSlice(address)
	if !ok {
		c.fail("an address of %d bytes", len(address))
	}
	x.Client = client
	for ; len(flat) > 1; flat = flat[2:] {
		x.put(Wait{int64(flat[0]), int64(flat[1])})
	}
}

func (c *coder) event(e *pipeline.Event) {
	kind, cgroup := string(e.Kind), uint64(e.Cgroup)
	c.int(1, &e.Time, maxWireTime)
	c.text(2, &kind)
	for i, s := range []*string{
		&e.Node, &e.Namespace, &e.Pod, &e.UID, &e.Container, &e.Image, &e.Probe, &e.Reason,
		&e.Pool, &e.Script, &e.Request, &e.Process, &e.Zone, &e.Client, &e.Host, &e.Message,
	} {
		c.text(protowire.Number(i+3), s)
	}
	for i, n := range []*int{&e.ExitCode, &e.Count, &e.Restarts, &e.Grace, &e.PID, &e.Limit, &e.Signal} {
		c.number(protowire.Number(i+19), n)
	}
	c.bool(26, &e.HasExit)
	c.int(27, &e.FinishedAt, maxWireTime)
	c.uint(28, &cgroup, uint64(pipeline.Yes))
	seconds, excess := math.Float64bits(e.Seconds), math.Float64bits(e.Excess)
	c.fixed(29, &seconds)
	c.fixed(30, &excess)
	c.message(31, func() {
		for i, n := range []*int{&e.Population.All, &e.Population.Node, &e.Population.Namespace, &e.Population.Image} {
			c.number(protowire.Number(i+1), n)
		}
	})
	e.Kind, e.Cgroup = pipeline.EventKind(kind), pipeline.Tri(cgroup)
	e.Seconds, e.Excess = finite(seconds), finite(excess)
}

// finite reads a floating-point number; what is none is 0.
func finite(bits uint64) float64 {
	if f := math.Float64frombits(bits); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return f
	}
	return 0
}

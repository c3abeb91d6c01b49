package pane

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

// overTheWire writes a pane and reads it.
func overTheWire(t interface {
	Helper()
	Fatal(...any)
}, p *Pane) *Pane {
	t.Helper()
	data, err := p.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got Pane
	if err := got.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	return &got
}

// busyPanes are panes of much traffic, with events, sketches and what several sources told.
func busyPanes(seed uint64) []*Pane {
	a := NewAssembler(Config{})
	a.Source("balancer", 5*time.Second)
	a.Source("edge", 5*time.Second)
	records := traffic(seed, 6000, 5e6)
	random := rand.New(rand.NewPCG(seed, 3))
	for i := range records {
		if i%100 == 0 {
			records[i].Client = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i)})
		}
		records[i].Class = pipeline.Class(random.IntN(int(pipeline.Classes)))
		records[i].Start -= int64(random.IntN(40)) * second
		a.Add(random.IntN(2), &records[i])
		if i%500 == 0 {
			a.AddEvent(0, pipeline.Event{Time: records[i].End, Kind: pipeline.ContainerRestart, Pod: "web-1", Reason: "Error", ExitCode: -1})
		}
	}
	a.Gap(0, 0)
	a.Flush()
	return drain(a, nil)
}

// What was read is what was written, down to how it merges with more.
func TestWireRoundTrip(t *testing.T) {
	for seed := range uint64(4) {
		panes := busyPanes(seed)
		var read []*Pane
		for _, p := range panes {
			read = append(read, overTheWire(t, p))
		}
		differ(t, dump(read), dump(panes))
		start, end := panes[0].Start, panes[len(panes)-1].End
		differ(t, MergeAll(start, end, read).String(), MergeAll(start, end, panes).String())
		window := MergeAll(start, end, panes)
		differ(t, overTheWire(t, window).String(), window.String())
	}
}

// Equal panes give equal bytes, in whatever order their lines came.
func TestWireIsCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := traffic(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 400).Draw(t, "n"), 50e6)
		random := rand.New(rand.NewPCG(3, rapid.Uint64().Draw(t, "shuffle")))
		one, other := assemble(roomy, time.Minute, records), assemble(roomy, time.Minute, shuffle(random, records, int64(time.Minute)))
		for i := range one {
			a, err := one[i].AppendBinary(nil)
			b, err2 := other[i].AppendBinary(nil)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			if string(a) != string(b) {
				t.Fatalf("pane %d differs", i)
			}
		}
	})
}

// fill gives every field of a value something, each another.
func fill(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	case reflect.String:
		v.SetString(string(rune('a'+*n%26)) + "\xff\x00" + string(rune('A'+*n%26)))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	case reflect.Bool:
		v.SetBool(true)
	default:
		t.Fatalf("a field of kind %s", v.Kind())
	}
}

// No field of what panes hold is forgotten: one that is added fails here until the wire has it.
func TestWireHasEveryField(t *testing.T) {
	n := 0
	p := &Pane{Start: 10 * second, End: 20 * second, Jump: true, Sites: map[string]*Site{}}
	fill(t, reflect.ValueOf(&p.Coverage).Elem(), &n)
	for range 3 {
		var e pipeline.Event
		fill(t, reflect.ValueOf(&e).Elem(), &n)
		p.Events = append(p.Events, e)
	}
	got := overTheWire(t, p)
	if !reflect.DeepEqual(got.Events, p.Events) || got.Coverage != p.Coverage || !got.Jump {
		t.Errorf("got %+v\nwant %+v", got, p)
	}
	c := &Cell{}
	for i := range reflect.TypeFor[Cell]().NumField() {
		switch f := reflect.ValueOf(c).Elem().Field(i); f.Kind() {
		case reflect.Uint64:
			n++
			f.SetUint(uint64(n))
		case reflect.Array:
			for j := range f.Len() {
				n++
				f.Index(j).SetUint(uint64(n))
			}
		}
	}
	c.Refused = Refused{StaticQuery: 1, Reached: 2, Errors: 3}
	c.Refused.Clients.Add(7)
	for code := range uint16(7) {
		c.Codes.Add(100 * code)
	}
	for i := range int64(100) {
		c.Latency.Add(i * i * 1e6)
	}
	c.Busy.Add(p.Start, p.End, p.Start-25*second, p.End, p.End+35*second)
	c.Busy.Untimed = 4
	for i := range uint64(300) {
		c.Clients.Add(i * 0x9e3779b97f4a7c15)
		if i < 100 {
			c.Agents.Add(i * 0x9e3779b97f4a7c15)
		}
	}
	c.URLs.Add(0)
	c.Missed.Add(1 << 63)
	c.TopAgents = NewTop(2)
	for i := range 5 {
		c.TopAgents.AddString(string(rune('a'+i)), uint64(i+1))
	}
	c.Samples.kept = []sample{{1, []byte("one")}, {2, []byte("two")}}
	key := Key{"GET", "/\xff", pipeline.Allowed, true}
	p.Site("shop.example").Cells()[key] = c
	x := overTheWire(t, p).Sites["shop.example"].Cells()[key]
	if x == nil {
		t.Fatal("the cell is gone")
	}
	x.Clients, x.Latency, x.TopAgents, x.Agents = c.Clients, c.Latency, c.TopAgents, c.Agents // their inside differs; see above
	if !reflect.DeepEqual(x, c) {
		t.Errorf("got %+v\nwant %+v", x, c)
	}
	differ(t, overTheWire(t, p).String(), p.String())
}

// pane.proto tells what is written: whoever has nothing else can read it.
func TestWireIsWhatTheProtoTells(t *testing.T) {
	compiler := protocompile.Compiler{Resolver: &protocompile.SourceResolver{}}
	files, err := compiler.Compile(t.Context(), "pane.proto")
	if err != nil {
		t.Fatal(err)
	}
	kind := files[0].Messages().ByName("Pane")
	for _, p := range busyPanes(1) {
		data, err := p.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		m := dynamicpb.NewMessage(kind)
		if err := proto.Unmarshal(data, m); err != nil {
			t.Fatal(err)
		}
		wantKnown(t, m)
		var requests uint64
		sites := m.Get(kind.Fields().ByName("sites")).List()
		for i := range sites.Len() {
			site := sites.Get(i).Message()
			cells := site.Get(site.Descriptor().Fields().ByName("cells")).List()
			for j := range cells.Len() {
				cell := cells.Get(j).Message()
				requests += cell.Get(cell.Descriptor().Fields().ByName("requests")).Uint()
			}
		}
		var want uint64
		for _, s := range p.Sites {
			want += s.requests()
		}
		if requests != want {
			t.Errorf("%d requests, want %d", requests, want)
		}
	}
}

// wantKnown demands that a message has no field that its kind does not tell.
func wantKnown(t *testing.T, m protoreflect.Message) {
	t.Helper()
	if n := len(m.GetUnknown()); n > 0 {
		t.Fatalf("%s: %d bytes are unknown", m.Descriptor().FullName(), n)
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				wantKnown(t, v.List().Get(i).Message())
			}
		case f.Message() != nil:
			wantKnown(t, v.Message())
		}
		return true
	})
}

// A newer node sends fields that this version does not know: they are passed over. A newer form is refused.
func TestWireOfAnotherVersion(t *testing.T) {
	p := busyPanes(2)[1]
	data, err := p.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	more := append([]byte{}, data...)
	more = append(more, 0x48, 0x01)                 // field 9, a number
	more = append(more, 0xfa, 0x07, 0x02, 'h', 'i') // field 127, bytes
	more = append(more, 0xfd, 0x07, 1, 2, 3, 4)     // field 127, 32 bits
	more = append(more, 0x83, 0x08, 0x84, 0x08)     // field 128, an empty group
	var got Pane
	if err := got.UnmarshalBinary(more); err != nil {
		t.Fatal(err)
	}
	differ(t, got.String(), p.String())
	if err := got.UnmarshalBinary(append(data, 0x08, WireVersion+1)); !errors.Is(err, ErrWire) {
		t.Errorf("a newer form: %v", err)
	}
}

// No bytes make reading fail otherwise than by an error, take much memory, or give what cannot be merged.
func FuzzWire(f *testing.F) {
	for _, p := range busyPanes(3) {
		data, err := p.AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	good := busyPanes(4)[0]
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Pane
		if err := p.UnmarshalBinary(data); err != nil {
			if !errors.Is(err, ErrWire) {
				t.Fatal(err)
			}
			return
		}
		again := overTheWire(t, &p)
		differ(t, again.String(), p.String())
		sum := MergeAll(min(good.Start, p.Start), max(good.End, p.End), []*Pane{good, &p})
		_ = sum.String()
		for _, s := range sum.Sites {
			for _, c := range s.Cells() {
				if c.Busy.Lower < 0 || c.Busy.Upper < 0 {
					t.Fatal("worker time below 0")
				}
			}
		}
	})
}

func BenchmarkWire(b *testing.B) {
	p := busyPanes(5)[1]
	data, err := p.AppendBinary(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			data, _ = p.AppendBinary(data[:0])
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			var got Pane
			if err := got.UnmarshalBinary(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

package fleet

import (
	"bytes"
	"context"
	"encoding/binary"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"pgregory.net/rapid"
)

// A mapKV is a disk that is fast enough to be tried in thousands of ways.
type mapKV struct {
	mu     sync.Mutex
	values map[string][]byte
	isSick bool
	gets   int // calls of Get
}

func newMapKV() *mapKV { return &mapKV{values: map[string][]byte{}} }

func (k *mapKV) Get(_ context.Context, key string) ([]byte, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gets++
	v, ok := k.values[key]
	return v, ok, nil
}

func (k *mapKV) Put(_ context.Context, key string, value []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isSick {
		return errFull
	}
	k.values[key] = bytes.Clone(value)
	return nil
}

// Whatever is added, sent, saved, refused by the disk, and started anew in between: what waits is the newest 720 that
// the stream is not known to have, those that a disk took are there with their bytes, sequences never go back behind
// one that was sent, and what is not there any more is counted.
func TestRingKeepsItsPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		kv := newMapKV()
		// A ring that has gone round nearly once, without the time that takes.
		start := rapid.SampledFrom([]uint64{0, ringSize - 3, 5*ringSize + 1}).Draw(t, "start")
		kv.values[keyBoot], kv.values[keyMarks] = []byte("boot"), marks{start, start}.encode()
		l := &Link{log: zap.NewNop(), m: newMetrics(nil)}
		var o *Outgoing
		open := func() {
			var err error
			if o, err = l.Outgoing(ctx, kv); err != nil {
				t.Fatal(err)
			}
			o.ended = make(chan struct{}) // Add puts, as after Run
		}
		open()
		sent, first := start, start+1 // the highest that was sent; the lowest that waits
		want := map[uint64][]byte{}
		catchUp := func() { _ = o.catchUp(ctx) }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range rapid.SampledFrom([]int{1, 3, 70, 250}).Draw(t, "n") {
					o.Add(func(seq uint64) []byte {
						if seq <= sent {
							t.Fatalf("pane %d comes after %d was sent", seq, sent)
						}
						want[seq] = binary.BigEndian.AppendUint64([]byte("data "), seq)
						return want[seq]
					})
				}
			},
			"send": func(t *rapid.T) {
				low, last := o.bounds()
				for seq := low; seq <= min(last, low+uint64(rapid.IntRange(0, 80).Draw(t, "n"))); seq++ {
					o.settle(seq)
					o.done(seq)
					sent, first = max(sent, seq), seq+1
				}
			},
			"sick":    func(*rapid.T) { kv.isSick = true },
			"well":    func(*rapid.T) { kv.isSick = false; catchUp() },
			"save":    func(*rapid.T) { catchUp() },
			"restart": func(*rapid.T) { kv.isSick = false; catchUp(); open() }, // in order: nothing may be gone
			"": func(t *rapid.T) {
				low, last := o.bounds()
				if last+1-low > ringSize || o.Waiting() != int(last+1-low) || low < first {
					t.Fatalf("%d to %d wait, the first should be %d", low, last, first)
				}
				lost := testutil.ToFloat64(l.m.dropped)
				for _, seq := range near(low, last) {
					data, ok, err := o.get(ctx, seq)
					if err != nil || ok && !bytes.Equal(data, want[seq]) {
						t.Fatalf("pane %d is %q: %v", seq, data, err)
					}
					if _, isKept := kv.values[slotKey(seq%ringSize)]; !ok && testutil.ToFloat64(l.m.dropped) == lost && !o.slots[seq%ringSize].done {
						t.Fatalf("pane %d is not there, and not counted; its place is taken: %v", seq, isKept)
					}
				}
			},
		})
	})
}

// near gives the sequences from low to last at which something may change.
func near(low, last uint64) []uint64 {
	var seqs []uint64
	for seq := low; seq <= last; seq++ {
		if seq < low+5 || seq > last-5 || last-seq > inMemory-3 && last-seq < inMemory+3 || seq%97 == 0 {
			seqs = append(seqs, seq)
		}
	}
	return seqs
}

// A process that is killed knows only what its disk has.
func TestRingAfterAKill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		kv := newMapKV()
		l := &Link{log: zap.NewNop(), m: newMetrics(nil)}
		added := rapid.IntRange(0, 1500).Draw(t, "added")
		acked := uint64(rapid.IntRange(0, added).Draw(t, "acked"))
		o, err := l.Outgoing(ctx, kv)
		if err != nil {
			t.Fatal(err)
		}
		o.ended = make(chan struct{})
		for range added {
			o.Add(func(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) })
		}
		if rapid.Bool().Draw(t, "early") {
			if err := o.catchUp(ctx); err != nil {
				t.Fatal(err)
			}
			for range min(added, 10) {
				o.Add(func(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) })
			}
			added += min(added, 10)
		}
		o.done(acked)
		if rapid.Bool().Draw(t, "saved") {
			if err := o.catchUp(ctx); err != nil {
				t.Fatal(err)
			}
		} else {
			acked = 0
		}
		if again, err := l.Outgoing(ctx, &mapKV{values: maps.Clone(kv.values)}); err != nil || again.boot != o.boot ||
			again.Waiting() != min(added-int(acked), ringSize) || again.last != uint64(added) {
			t.Fatalf("%d wait of %d, the last is %d: %v", again.Waiting(), added-int(acked), again.last, err)
		}
	})
}

// An orderly restart reads a tenth of the ring: with the largest panes all of it has 720 MiB.
func TestRingIsOpenedQuickly(t *testing.T) {
	ctx := t.Context()
	kv := newMapKV()
	l := &Link{log: zap.NewNop(), m: newMetrics(nil)}
	for range 2 {
		o, err := l.Outgoing(ctx, kv)
		if err != nil {
			t.Fatal(err)
		}
		o.ended = make(chan struct{})
		for range 3 * ringSize {
			o.Add(func(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) })
		}
		o.done(o.last - 5)
		if err := o.catchUp(ctx); err != nil {
			t.Fatal(err)
		}
	}
	before := kv.gets
	o, err := l.Outgoing(ctx, kv)
	if err != nil || o.Waiting() != 5 || o.last != 6*ringSize {
		t.Errorf("%d wait up to %d: %v", o.Waiting(), o.last, err)
	}
	if n := kv.gets - before; n > inMemory+10 {
		t.Errorf("%d values were read", n)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"stream":"SQUALL_shop","seq":7}`), "")
	f.Add([]byte(`{"stream":"SQUALL_shop","seq":7,"duplicate":true}`), "")
	f.Add([]byte(`{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}`), "")
	f.Add([]byte(`{"stream":"OTHER","seq":7}`), "")
	f.Add([]byte(``), "503")
	f.Fuzz(func(t *testing.T, data []byte, status string) {
		msg := &nats.Msg{Data: data, Header: nats.Header{"Status": {status}}}
		tooLarge, err := readAnswer(msg, "SQUALL_shop")
		if err == nil && (tooLarge || status == "503" || !strings.Contains(string(data), "SQUALL_shop") && !strings.Contains(string(data), `\`)) {
			t.Errorf("%q is taken for the stream's word", data)
		}
	})
}

func FuzzSlot(f *testing.F) {
	f.Add(encodeSlot(1, []byte("data")))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, value []byte) {
		seq, data, ok := decodeSlot(value)
		if ok && !bytes.Equal(encodeSlot(seq, data), value) {
			t.Errorf("%x is read as %d and %x", value, seq, data)
		}
	})
}

package spool

import (
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/squall-sre/squall/pipeline"
)

func encode(t testing.TB, batches ...*pipeline.Batch) (body, msg []byte) {
	t.Helper()
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = enc.Close() }()
	f := newFrame(0, nil)
	for _, b := range batches {
		f.add(b, 0, len(b.Entries), false)
	}
	return f.body, f.message(enc, place{7, 700})
}

// Whatever the bytes are: no panic, and no more memory than they can account for.
func FuzzMessage(f *testing.F) {
	_, msg := encode(f, batch("a", 0, 3), batch("b", 5, 0))
	f.Add(msg)
	f.Add([]byte("SQ\x01"))
	f.Add([]byte("SQ\x01\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	dec, err := newDecoder(false)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(dec.close)
	f.Fuzz(func(t *testing.T, msg []byte) {
		h, err := readHead(msg)
		if err != nil {
			return
		}
		batches, err := dec.decode(h)
		for _, b := range batches {
			if err == nil && b.Stream == nil {
				t.Error("a batch without a stream")
			}
		}
	})
}

// The body is fuzzed without its compression, which would hide it.
func FuzzBody(f *testing.F) {
	body, _ := encode(f, batch("a", 0, 3), batch("b", 5, 1))
	f.Add(body)
	f.Add(append([]byte{0}, make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := reader{b: body}
		entries, skips := 0, 0
		for len(r.b) > 0 && !r.bad {
			b := r.batch()
			entries += len(b.Entries)
			skips += len(b.Skips)
		}
		if entries*minEntryBytes+skips*minSkipBytes > len(body) && !r.bad {
			t.Errorf("%d entries and %d skips out of %d bytes", entries, skips, len(body))
		}
	})
}

func TestTornMessageIsAnError(t *testing.T) {
	_, msg := encode(t, batch("a", 0, 50))
	dec, err := newDecoder(false)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.close()
	for n := range len(msg) {
		h, err := readHead(msg[:n])
		if err != nil {
			continue
		}
		if _, err := dec.decode(h); err == nil {
			t.Fatalf("%d of %d bytes were taken for a message", n, len(msg))
		}
	}
	msg[2]++
	if _, err := readHead(msg); err == nil {
		t.Error("a message of another version was read")
	}
}

// A checkpoint and a consumer's place are read from the same disk.
func FuzzCheckpoint(f *testing.F) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		f.Fatal(err)
	}
	p := newPositions()
	p.store([]mark{{"balancer", "a", 5, false, 0}, {"balancer", "b", 7, true, pipeline.AnchorOf([]byte("a line\n"))}})
	f.Add(p.checkpoint(enc, 9, place{70, 700}))
	f.Add([]byte{70, 200, 5, 90, 250, 5})
	_ = enc.Close()
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxCheckpoint))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(dec.Close)
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, _, marks, err := readCheckpoint(dec, data); err == nil {
			newPositions().store(marks)
		}
		if acked, end := readPlaces(data); acked.lines < 0 || end.lines < 0 {
			t.Errorf("places %v and %v", acked, end)
		}
	})
}

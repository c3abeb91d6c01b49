package spool

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/squall-sre/squall/pipeline"
)

// What stands before a position is known after a restart, from a checkpoint and from the messages behind it; a block that
// keeps the place makes it no less known.
func TestAnchorsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	if at := s.Stored("balancer"); !at.IsZero() {
		t.Errorf("something was stored at %s, before anything was", at)
	}
	want := map[string]pipeline.Anchor{}
	for _, id := range []string{"a", "b", "c"} {
		b := batch(id, 0, 3)
		b.Anchor = pipeline.AnchorOf([]byte("the last line of " + id + "\n"))
		want[id] = b.Anchor
		mustAppend(t, s, b)
		flush(t, s)
		mustAppend(t, s, &pipeline.Batch{Stream: b.Stream, From: b.To, To: b.To})
	}
	unknown := batch("c", batch("c", 0, 3).To, 2)
	mustAppend(t, s, unknown)
	want["c"] = 0
	flush(t, s)
	check := func(s *Spool) {
		t.Helper()
		for id, a := range want {
			if got := s.Anchor(id); got != a {
				t.Errorf("anchor of %s: %x, want %x", id, got, a)
			}
		}
		if age := time.Since(s.Stored("balancer")); age < 0 || age > time.Minute {
			t.Errorf("the last line was stored %s ago", age)
		}
	}
	check(s)
	closeSpool(t, s)
	check(open(t, Config{Dir: dir}))
}

// What the version before wrote is read: it knows no anchors.
func TestVersionWithoutAnchors(t *testing.T) {
	_, msg := encode(t, batch("a", 0, 3))
	msg[2] = firstVersion
	dec, err := newDecoder(false)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.close()
	h, err := readHead(msg)
	if err != nil {
		t.Fatal(err)
	}
	if batches, err := dec.decode(h); err != nil || len(batches) != 1 || len(batches[0].Entries) != 3 {
		t.Errorf("%d batches, %v", len(batches), err)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = enc.Close() }()
	var body []byte
	for _, id := range []string{"a", "b"} {
		body = append(binary.AppendVarint(appendString(appendString(body, "balancer"), id), 77), 0)
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	_, _, marks, err := readCheckpoint(z, enc.EncodeAll(body, []byte{'S', 'P', firstCheckpoint, 9, 1, 1}))
	if err != nil || len(marks) != 2 || marks[1] != (mark{input: "balancer", id: "b", to: 77}) {
		t.Errorf("marks %v, %v", marks, err)
	}
}

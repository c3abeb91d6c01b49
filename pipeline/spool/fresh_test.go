package spool

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// A consumer gets every batch once and in order, whether it comes from memory or, where the consumer was slow, from disk.
func TestFreshMessagesAreTheStoredOnes(t *testing.T) {
	s := open(t, Config{})
	c, err := s.Consumer(t.Context(), "loki")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var want, got []*pipeline.Batch
	memory, at := 0, int64(0)
	for _, together := range []int{1, 1, 200, 3, 1} { // 200 are more than is kept in memory
		for range together {
			b := batch("access", at, 1000)
			at, want = b.To, append(want, b)
			mustAppend(t, s, b)
			flush(t, s)
		}
		if s.fresh.bytes == 0 || s.fresh.bytes > freshBytes {
			t.Errorf("%d bytes are kept", s.fresh.bytes)
		}
		for n := 0; n < together; {
			before := len(s.fresh.list)
			d, err := c.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			memory += before - len(s.fresh.list)
			n, got = n+len(d.Batches), append(got, lasting(d)...)
		}
	}
	if !reflect.DeepEqual(want, got) {
		t.Error("what was delivered differs from what was appended")
	}
	if !reflect.DeepEqual(read(t, s, Range{}), got) {
		t.Error("what was delivered differs from what is stored")
	}
	if memory < 6 || memory >= len(want) {
		t.Errorf("%d of %d messages came from memory", memory, len(want))
	}
}

// lasting gives a delivery's batches, which hold no longer than to the next one, in memory of their own.
func lasting(d *pipeline.Delivery) (batches []*pipeline.Batch) {
	for _, b := range d.Batches {
		c := *b
		c.Entries = slices.Clone(b.Entries)
		for i := range c.Entries {
			c.Entries[i].Line = bytes.Clone(c.Entries[i].Line)
		}
		batches = append(batches, &c)
	}
	return batches
}

// Who is away while little comes costs no more memory than what was stored, however large the frames could have been.
func TestFreshMessagesOfATrickleAreSmall(t *testing.T) {
	s := open(t, Config{})
	c, err := s.Consumer(t.Context(), "loki")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at := int64(0)
	for range 100 {
		b := batch("access", at, 10)
		at = b.To
		mustAppend(t, s, b)
		flush(t, s)
	}
	held := 0
	for _, m := range s.fresh.list {
		held += cap(m.body)
	}
	if len(s.fresh.list) != 100 || held > 4*s.fresh.bytes {
		t.Errorf("%d messages of %d bytes are held in %d", len(s.fresh.list), s.fresh.bytes, held)
	}
}

package spool

import (
	"reflect"
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
			n, got = n+len(d.Batches), append(got, d.Batches...)
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

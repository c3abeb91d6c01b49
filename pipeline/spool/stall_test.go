package spool

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// slowly stores n frames of q, one each pause.
func slowly(q *queue, n int, pause time.Duration) {
	for n > 0 {
		f, next, _ := q.take()
		if f == nil {
			time.Sleep(next + time.Millisecond) //nolint:forbidigo // the fake clock's
			continue
		}
		time.Sleep(pause) //nolint:forbidigo // the fake clock's
		q.done(f, true)
		n--
	}
}

func always() bool { return true }

// fill puts batches until the next one would have to wait.
func fill(t *testing.T, q *queue) {
	t.Helper()
	for q.bytes()+int64(batchSize(batch("a", 0, 2000))) <= q.limit {
		if _, err := q.put(batch("a", 0, 2000), always); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAppendWaitsForASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(4<<20, 256<<10, time.Now)
		fill(t, q)
		q.flush()
		go slowly(q, 25, 1900*time.Millisecond)
		begin := time.Now()
		for range 50 {
			if _, err := q.put(batch("a", 0, 2000), always); err != nil {
				t.Fatalf("refused after %s although the store makes progress: %v", time.Since(begin), err)
			}
		}
		if time.Since(begin) < 20*time.Second {
			t.Errorf("the queue took everything within %s", time.Since(begin))
		}
	})
}

func TestAppendRefusesAtOnceWhenTheStoreStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(4<<20, 256<<10, time.Now)
		fill(t, q)
		begin := time.Now()
		if _, err := q.put(batch("a", 0, 2000), always); !errors.Is(err, ErrStalled) {
			t.Fatalf("put: %v", err)
		}
		if d := time.Since(begin); d != stallAfter {
			t.Errorf("the first refusal came after %s, want %s", d, stallAfter)
		}
		begin = time.Now()
		for range 100 {
			if _, err := q.put(batch("a", 0, 2000), always); !errors.Is(err, ErrStalled) {
				t.Fatalf("put: %v", err)
			}
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("later refusals took %s", d)
		}
		if q.bytes() > q.limit {
			t.Errorf("%d bytes in a queue of %d", q.bytes(), q.limit)
		}
		q.flush()
		slowly(q, 1, time.Second)
		if _, err := q.put(batch("a", 0, 2000), always); err != nil {
			t.Errorf("the store goes on, but: %v", err)
		}
	})
}

func TestCloseEndsAWaitingAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(4<<20, 256<<10, time.Now)
		fill(t, q)
		ended := make(chan error, 1)
		go func() { _, err := q.put(batch("a", 0, 2000), always); ended <- err }()
		synctest.Wait()
		q.close()
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("put: %v", err)
		}
	})
}

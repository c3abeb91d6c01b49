package source

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// shift rotates as logrotate does: access.log.1 becomes .2 and so on.
func shift(t *testing.T, path string, upTo int) {
	t.Helper()
	for n := upTo; n > 0; n-- {
		from := fmt.Sprintf("%s.%d", path, n)
		if _, err := os.Stat(from); err == nil {
			rename(t, from, fmt.Sprintf("%s.%d", path, n+1))
		}
	}
	rename(t, path, path+".1")
}

// A writer goes on for a while with the file that was renamed under it, as nginx does until it gets USR1.
func TestRotationWithSlowWriter(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	w := opened(t, path)
	start(t, s, path)
	written, each := 0, 250
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	var next *os.File
	for burst := 0; written < len(lines); burst++ {
		<-pace.C
		switch burst % 24 {
		case 20:
			shift(t, path, 8)
			next = opened(t, path)
		case 23:
			w.Close()
			w = next
		}
		n := min(each, len(lines)-written)
		put(t, w, text(lines[written:written+n]))
		written += n
	}
	defer w.Close()
	s.wantSet(lines)
	if n := len(s.skips()); n > 0 {
		t.Errorf("%d skips, want none", n)
	}
}

// While the road is full the file rotates three times; nobody looks away meanwhile.
func TestRotationWhileRoadIsFull(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	s.block = make(chan struct{})
	lines := number(0, 20000)
	write(t, path, text(lines[:5000]))
	f, _ := start(t, s, path)
	for i := 1; i < 4; i++ {
		until(t, func() bool { return len(f.States()) == i }, func() string { return fmt.Sprint(f.States()) })
		shift(t, path, 8)
		write(t, path, text(lines[i*5000:(i+1)*5000]))
	}
	close(s.block)
	s.want(lines)
}

// Two rotations happen between two looks: a whole file came and went unseen.
func TestRotationTwiceBetweenLooks(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 30000)
	write(t, path, text(lines[:10000]))
	rt := testRuntime()
	rt.Poll = time.Hour
	f := newFiles(testConfig(path), rt, nil)
	hint := &hint{}
	f.prepare(s, s.keep)
	f.look(hint)
	shift(t, path, 8)
	write(t, path, text(lines[10000:20000]))
	shift(t, path, 8)
	write(t, path, text(lines[20000:]))
	c := newCutter()
	for range 8 {
		f.look(hint)
		drain(t, f, c)
	}
	s.want(lines)
	f.release()
}

// drain takes the turns that are due.
func drain(t *testing.T, f *files, c *cutter) {
	t.Helper()
	for len(f.ready) > 0 {
		if err := f.turn(t.Context(), <-f.ready, c); err != nil {
			t.Fatal(err)
		}
	}
}

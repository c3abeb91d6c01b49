package loki

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/squall-sre/squall/pipeline/loki/lokitest"
	"github.com/squall-sre/squall/pipeline/spool"
)

// shipForEver is the body of a process that is killed: it stores lines, and ships them.
func shipForEver(dir, url string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	s, err := spool.Open(ctx, spool.Config{Dir: dir})
	fail(err)
	lines, err := s.Consumer(ctx, "loki")
	fail(err)
	cfg := quick(url)
	cfg.BatchSize = 8 << 10
	sh, err := New(cfg, Deps{Dir: dir})
	fail(err)
	go func() { fail(sh.Run(ctx, lines)) }()
	for at, _ := s.Position("a"); ; at += 100 {
		b := logged("a", at, 100)
		for i := range b.Entries { // equal lines at one time, which are kept apart in a way that must not change
			b.Entries[i].Time = b.Entries[i/10*10].Time
			b.Entries[i].Line = fmt.Appendf(nil, "HEAD / of %d", at)
		}
		fail(s.Append(b))
		fail(s.Flush(ctx))
	}
}

// A squall that is killed after Loki has stored a push, and before it knows, sends the same again: identical lines,
// which Loki folds.
func TestKilledBetweenStoringAndAcknowledging(t *testing.T) {
	s := lokitest.NewServer(t)
	var mu sync.Mutex
	var child *exec.Cmd
	pushes := 0
	died := make(chan struct{}, 1)
	intercept := func(int, *http.Request, []byte) lokitest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if child == nil {
			return lokitest.Reply{}
		}
		if pushes++; pushes < 4 {
			return lokitest.Reply{}
		}
		_ = child.Process.Kill()
		_ = child.Wait()
		child = nil
		died <- struct{}{}
		return lokitest.Reply{Status: 204, Store: true}
	}
	s.Change(func(s *lokitest.Server) { s.Intercept = intercept }) // the race detector does not see pushes of others
	dir := t.TempDir()
	for range 3 {
		mu.Lock()
		child, pushes = exec.Command(os.Args[0]), 0
		child.Env = append(os.Environ(), "LOKI_TEST_CHILD="+dir, "LOKI_TEST_URL="+s.URL)
		child.Stderr = os.Stderr
		err := child.Start()
		mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		<-died
	}
	r := start(t, dir, quick(s.URL))
	r.shipped()
	position, ok := r.spool.Position("a")
	if got := len(s.Entries()); !ok || got != int(position) {
		t.Errorf("Loki has %d different lines of %d that were stored", got, position)
	}
	if s.Folded() == 0 {
		t.Error("nothing was sent twice: nobody was killed in time")
	}
}

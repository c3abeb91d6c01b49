package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline/loki/faultproxy"
	"github.com/squall-sre/squall/pipeline/spool"
)

// damages are what happens to the files of a stream of the spool's store while squall is away. Each is done to the
// newest file of that name.
var damages = []struct {
	name, stream, file string
	change             func([]byte) []byte
}{
	{"bytes flipped in the middle of the lines", "LINES", "msgs/*.blk", flipped},
	{"the end of the lines cut off", "LINES", "msgs/*.blk", func(b []byte) []byte { return b[:len(b)*2/3] }},
	{"the last bytes of the lines torn", "LINES", "msgs/*.blk", func(b []byte) []byte { return b[:max(0, len(b)-100)] }},
	{"the index of the lines gone", "LINES", "msgs/index.db", nil},
	{"the index of the lines flipped", "LINES", "msgs/index.db", flipped},
	{"the lines empty", "LINES", "msgs/*.blk", func([]byte) []byte { return nil }},
	{"the positions empty", "POSITIONS", "msgs/*.blk", func([]byte) []byte { return nil }},
	{"the positions gone", "POSITIONS", "msgs/*.blk", nil},
	{"the state empty", "KV_state", "msgs/*.blk", func([]byte) []byte { return nil }},
	{"the state flipped", "KV_state", "msgs/*.blk", flipped},
	{"what was shipped torn", "KV_consumers", "msgs/*.blk", func(b []byte) []byte { return b[:len(b)/2] }},
	{"the description of the lines empty", "LINES", "meta.inf", func([]byte) []byte { return nil }},
}

func flipped(b []byte) []byte {
	for i := len(b) / 3; i < len(b)*2/3; i += 7 {
		b[i] ^= 0x55
	}
	return b
}

// damage changes the newest file that fits a pattern; no change removes it.
func damage(t *testing.T, pattern string, change func([]byte) []byte) {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	newest, at := "", time.Time{}
	for _, path := range found {
		if info, err := os.Stat(path); err == nil && info.Size() > 0 && !info.ModTime().Before(at) {
			newest, at = path, info.ModTime()
		}
	}
	if newest == "" {
		t.Logf("nothing to damage at %s", pattern) // an index is written in order alone
		return
	}
	if change == nil {
		err = os.Remove(newest)
	} else {
		var data []byte
		if data, err = os.ReadFile(newest); err == nil {
			err = os.WriteFile(newest, change(data), 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// squall is killed, and while it is away something happens to its spool. It starts, tells what it has found, reads
// the lines again where they still are, and counts them where not.
func TestTortureDamagedSpool(t *testing.T) {
	p := newTwins(t)
	store := faultproxy.New(t, strings.TrimPrefix(p.logs, "http://"))
	p.configure(p.home, fmt.Sprintf("loki: {url: %q, batch_wait: 50ms}\n", pushURL("http://"+store.Addr)))
	p.start()
	p.stop = startStorms(t, p.log, time.Minute)
	for i := range torture.damages {
		d := damages[i*len(damages)/torture.damages] // of each sort
		store.Set(faultproxy.Through)
		if i%2 == 0 {
			store.Set(faultproxy.Refuse) // what is damaged was not shipped yet
		}
		p.pagesOn(1)
		p.counted += p.lost()
		p.squall.kill()
		damage(t, filepath.Join(p.spool, "store/jetstream/$G/streams", d.stream, d.file), d.change)
		p.start()
		t.Logf("%s: %s", d.name, strings.Join(p.complaints(), "; "))
	}
	store.Set(faultproxy.Through)
	p.pagesOn(1)
	p.finish("spool damaged")
}

// complaints are the warnings and errors that it has logged.
func (p *twins) complaints() (all []string) {
	for line := range strings.Lines(p.squall.stderr.String()) {
		if strings.Contains(line, `"level":"error"`) || strings.Contains(line, `"level":"warn"`) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// A state that is stored well and cannot be understood costs the state: it is logged once and counted, detection goes
// on, and a storm that was told is not told again.
func TestTortureUnreadableState(t *testing.T) {
	p := newTwins(t)
	p.start()
	p.stop = startStorms(t, p.log, time.Minute)
	for _, key := range []string{"judge", "outbox"} {
		p.pagesOn(1)
		p.end(syscall.SIGTERM)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := spool.Open(ctx, spool.Config{Dir: p.spool})
		if err != nil {
			t.Fatal(err)
		}
		kv, err := s.KV(ctx, stateBucket)
		if err != nil {
			t.Fatal(err)
		}
		if err := kv.Put(ctx, key, []byte("a state of another world")); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
		p.start()
		check(t, "complaints: "+strings.Join(p.complaints(), "; "), len(p.complaints()), 1)
		check(t, "states counted as unreadable", p.squall.metric(fmt.Sprintf("squall_state_unreadable_total{state=%q}", key)), 1.0)
	}
	p.pagesOn(1)
	p.finish("state unreadable")
}

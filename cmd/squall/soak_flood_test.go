//go:build soak

package main

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// A flood writes a log in real time, at a steady rate: the lines of a simulated ordinary day, over and over, with the
// time of their writing. It copies prepared lines, so that it costs little beside what reads them.
type flood struct {
	path  string
	parts []floodPart // of floodParts
	rate  int         // lines a second
	fresh int         // every one in so many lines has a path and an address that no line had before; 0: none

	file *os.File
	size int64
	text []byte
	keys uint64 // paths and addresses that were made up

	mu     sync.Mutex
	lines  int64
	bursts map[string]time.Time // by site: when the line was written that crossed the threshold
	late   time.Duration        // the most that the writing was behind
	stop   func()
}

// A floodPart is a line without its times.
type floodPart struct{ address, method, path, rest, tail []byte }

const (
	floodRotation = 1 << 30 // bytes after which the log is rotated
	floodBurst    = 400     // lines of a burst: HEAD of one path of a site that nobody saw before
	floodTick     = 5 * time.Millisecond
)

// floodParts takes a simulated log apart.
func floodParts(t *testing.T, lines int) []floodPart {
	t.Helper()
	scenario, err := simulate.Named("quiet_day")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if _, err := simulate.Run(t.Context(), simulate.Options{Scenario: scenario, Format: "nginx_extended", Seed: 1}, &log); err != nil {
		t.Fatal(err)
	}
	var parts []floodPart
	for line := range bytes.Lines(log.Bytes()) {
		address, rest, ok := bytes.Cut(line, []byte(" - - ["))
		_, rest, ok2 := bytes.Cut(rest, []byte(`] "`))
		method, rest, ok3 := bytes.Cut(rest, []byte(" "))
		path, rest, ok4 := bytes.Cut(rest, []byte(" "))
		rest, tail, ok5 := bytes.Cut(rest, []byte(" msec="))
		_, tail, ok6 := bytes.Cut(tail, []byte(" "))
		if !ok || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 {
			t.Fatalf("not a line of the recommended format: %s", line)
		}
		if parts = append(parts, floodPart{address, method, path, rest, tail}); len(parts) == lines {
			break
		}
	}
	return parts
}

// startFlood begins to write. Every burst seconds there is one more burst, if that is not 0.
func startFlood(t *testing.T, f *flood, burst time.Duration) {
	t.Helper()
	f.bursts = map[string]time.Time{}
	if err := f.open(); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		defer func() { _ = f.file.Close() }()
		tick := time.NewTicker(floodTick)
		defer tick.Stop()
		began := time.Now()
		next := began.Add(burst)
		for {
			select {
			case <-stop:
				return
			case now := <-tick.C:
				site := ""
				if burst > 0 && now.After(next) {
					next = next.Add(burst)
					site = "storm-" + strconv.Itoa(len(f.bursts)) + ".example"
				}
				if err := f.write(now.Sub(began), site); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	f.stop = sync.OnceFunc(func() { close(stop); writer.Wait() })
	t.Cleanup(f.stop)
}

func (f *flood) open() (err error) {
	f.size = 0
	f.file, err = os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return err
}

// write writes what is due after a time.
func (f *flood) write(after time.Duration, burst string) error {
	now := time.Now()
	stamp, msec := now.UTC().AppendFormat(nil, soakTime), appendMsec(nil, now)
	f.text = f.text[:0]
	n := f.lines
	due := int64(float64(f.rate) * after.Seconds())
	behind := time.Duration(due-n)*time.Second/time.Duration(f.rate) - floodTick
	for due = min(due, n+int64(f.rate)/4); n < due; n++ {
		f.line(&f.parts[n%int64(len(f.parts))], n, stamp, msec)
	}
	if burst != "" {
		site := []byte(burst)
		for range floodBurst {
			p := &f.parts[n%int64(len(f.parts))]
			q := floodPart{p.address, []byte("HEAD"), []byte("/offer/spring"), p.rest, bytes.Replace(p.tail, []byte(`host="shop.example"`), append([]byte(`host="`), append(site, '"')...), 1)}
			f.text = q.append(f.text, q.address, q.path, stamp, msec)
			n++
		}
	}
	if _, err := f.file.Write(f.text); err != nil {
		return err
	}
	f.mu.Lock()
	f.lines, f.late = n, max(f.late, behind)
	if burst != "" {
		f.bursts[burst] = time.Now()
	}
	f.mu.Unlock()
	if f.size += int64(len(f.text)); f.size < floodRotation {
		return nil
	}
	return errors.Join(os.Rename(f.path, f.path+".1"), f.file.Close(), f.open())
}

func (f *flood) line(p *floodPart, n int64, stamp, msec []byte) {
	if f.fresh == 0 || n%int64(f.fresh) > 0 {
		f.text = p.append(f.text, p.address, p.path, stamp, msec)
		return
	}
	f.keys++
	var address [32]byte
	a := address[:0]
	for shift := 24; shift >= 0; shift -= 8 {
		a = strconv.AppendUint(append(a, '.'), (1<<24+f.keys)>>shift&255, 10)
	}
	f.text = p.append(f.text, a[1:], routeWord(f.keys), stamp, msec)
}

// routeWord is a path that no route but its own stands for: it looks like no number, hash or word.
func routeWord(n uint64) []byte {
	w := []byte{'/'}
	for len(w) < 9 {
		w, n = append(w, "bcdfghjklmnpqrstvwxz"[n%20]), n/20
	}
	return w
}

const soakTime = "02/Jan/2006:15:04:05 -0700"

// appendMsec adds nginx's $msec.
func appendMsec(to []byte, at time.Time) []byte {
	to = strconv.AppendInt(to, at.UnixMilli()/1000, 10)
	return append(append(to, '.'), strconv.FormatInt(1000+at.UnixMilli()%1000, 10)[1:]...)
}

// append adds the line as nginx writes it.
func (p *floodPart) append(to, address, path, stamp, msec []byte) []byte {
	to = append(append(append(append(to, address...), " - - ["...), stamp...), `] "`...)
	to = append(append(append(append(to, p.method...), ' '), path...), ' ')
	to = append(append(append(append(to, p.rest...), " msec="...), msec...), ' ')
	return append(to, p.tail...)
}

// written tells how many lines there are, and by how much the writing was behind at most.
func (f *flood) written() (lines int64, late time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lines, f.late
}

// crossed gives when the lines were written that crossed the threshold, by site.
func (f *flood) crossed() map[string]time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]time.Time{}
	for site, at := range f.bursts {
		out[strings.Clone(site)] = at
	}
	return out
}

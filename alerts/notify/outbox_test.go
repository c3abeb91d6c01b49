package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/pipeline/spool"
)

// life is one run of a program that is killed at one of its effects, a write to its disk or a message to its
// receiver: before it or behind it. From then on nothing of it has an effect. What is on disk stays.
type life struct {
	disk map[string][]byte
	told *[]string

	mu     sync.Mutex
	ops    int
	kill   int // the effect at which it is killed; 0: never
	behind bool
	dead   bool
	was    string    // the effect at which it was killed
	last   time.Time // when it told something
	died   time.Time
}

var errKilled = errors.New("killed")

// effect does what is outside of the program.
func (l *life) effect(what string, do func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return errKilled
	}
	l.ops++
	if l.ops == l.kill {
		l.dead, l.was, l.died = true, what, time.Now()
		if l.behind {
			do()
		}
		return errKilled
	}
	do()
	return nil
}

func (l *life) killed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

func (l *life) Get(_ context.Context, key string) ([]byte, bool, error) {
	data, ok := l.disk[key]
	return data, ok, nil
}

func (l *life) Put(_ context.Context, key string, value []byte) error {
	return l.effect("put", func() { l.disk[key] = bytes.Clone(value) })
}

func (l *life) Resend() time.Duration { return 0 }

func (l *life) Notify(_ context.Context, batch []alerts.Alert) error {
	a := &batch[0]
	return l.effect("notify", func() {
		doc, err := decodeOutbox(l.disk[outboxKey])
		if err != nil || !slices.ContainsFunc(doc.Letters["pager"], func(x letter) bool { return x.same(a) }) {
			*l.told = append(*l.told, "before it was on disk: "+a.Name)
		}
		*l.told = append(*l.told, fmt.Sprintf("%s %s from %d", a.Name, a.State, a.StartsAt))
		l.last = time.Now()
	})
}

// moment is what the rules say at one time.
type moment struct {
	at              int64
	fires, changing []alerts.Alert
}

// story has two alerts that overlap, and one of them comes again where it ended.
func story() []moment {
	minute := int64(time.Minute)
	one := func(name string, starts int64) alerts.Alert {
		a := page(name)
		a.StartsAt, a.At = starts*minute, (starts+1)*minute
		return a
	}
	over := func(a alerts.Alert, at, ends int64) alerts.Alert {
		a.State, a.At, a.EndsAt = alerts.Resolved, at*minute, ends*minute
		return a
	}
	a, b, again := one("A", 9), one("B", 11), one("A", 20)
	list := func(l ...alerts.Alert) []alerts.Alert { return l }
	return []moment{
		{10 * minute, list(a), list(a)},
		{12 * minute, list(a, b), list(b)},
		{21 * minute, list(b), list(over(a, 21, 20))},
		{22 * minute, list(b), nil},
		{23 * minute, list(again, b), list(again)},
		{24 * minute, list(again), list(over(b, 24, 23))},
		{26 * minute, nil, list(over(again, 26, 25))},
	}
}

// live runs the story from a moment until it is killed or over, and returns the last moment whose state was saved.
func (l *life) live(t *testing.T, from int) (saved int) {
	t.Helper()
	o, err := OpenOutbox(t.Context(), l, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := NewDispatcher(Config{Peers: []Peer{{Name: "pager", Notifier: l}}, Outbox: o, Now: time.Now})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	saved = from
	for i, m := range story()[from:] {
		d.Update(m.at, m.fires, m.changing)
		if i%2 == 0 { // now and then the disk is first
			synctest.Wait()
		}
		if o.Save(t.Context()) == nil && !l.killed() {
			saved = from + i + 1
		}
		wait(time.Minute)
	}
	cancel()
	if err := <-done; err != nil && !l.killed() {
		t.Fatal(err)
	}
	return saved
}

// Killed at any moment, and started again with a state that is as old as can be or as new: every beginning and end
// is told, none twice but for the one that was on its way, and no beginning moves.
func TestKilledAtAnyMoment(t *testing.T) {
	var undisturbed []string
	synctest.Test(t, func(t *testing.T) { (&life{disk: map[string][]byte{}, told: &undisturbed}).live(t, 0) })
	if len(undisturbed) != 6 {
		t.Fatalf("%q", undisturbed)
	}
	kills := 0
	for kill := 1; ; kill++ {
		ended := false
		for n := range 4 {
			behind, fresh := n&1 > 0, n&2 > 0
			synctest.Test(t, func(t *testing.T) {
				var told []string
				first := &life{disk: map[string][]byte{}, told: &told, kill: kill, behind: behind}
				from := first.live(t, 0)
				if ended = !first.dead; ended {
					return
				}
				kills++
				if !fresh {
					from = 0
				}
				(&life{disk: first.disk, told: &told}).live(t, from)
				inFlight := (first.was == "notify" && behind || first.was == "put" && !behind) && first.died.Equal(first.last)
				judgeTranscript(t, fmt.Sprintf("killed at effect %d (%s, behind it: %t), read again from %d", kill, first.was, behind, from),
					told, undisturbed, inFlight)
			})
		}
		if ended {
			break
		}
	}
	if kills < 50 {
		t.Fatalf("killed %d times only", kills)
	}
}

func judgeTranscript(t *testing.T, when string, told, want []string, inFlight bool) {
	t.Helper()
	count := map[string]int{}
	for _, x := range told {
		count[x]++
	}
	twice := 0
	for _, x := range want {
		twice += max(count[x]-1, 0)
		if count[x] == 0 {
			t.Errorf("%s: not told: %s", when, x)
		}
		delete(count, x)
	}
	if len(count) > 0 {
		t.Errorf("%s: told what never was: %v", when, slices.Sorted(maps.Keys(count)))
	}
	if twice > 1 || twice > 0 && !inFlight {
		t.Errorf("%s: told twice:\n%s", when, strings.Join(told, "\n"))
	}
	if order := slices.Compact(slices.Clone(told)); len(count) == 0 && !slices.Equal(order, want) {
		t.Errorf("%s: told in another order:\n%s", when, strings.Join(told, "\n"))
	}
}

// told runs a dispatcher over an outbox for a while and returns what the receiver was told.
func tellFor(t *testing.T, o *Outbox, r *recorder, name string, while time.Duration, then func(d *Dispatcher)) string {
	t.Helper()
	d := NewDispatcher(Config{Peers: []Peer{{Name: name, Key: "pager", Notifier: r}}, Outbox: o, Now: time.Now})
	stop := run(t, d)
	then(d)
	wait(while)
	stop()
	told := r.take()
	if strings.Count(told, "\n") == 0 {
		_, told, _ = strings.Cut(told, " ")
	}
	return told
}

// A reload, which may give the notifier another name, keeps the page and the end that a receiver is owed.
func TestReloadKeepsWhatIsOwed(t *testing.T) {
	for _, resend := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			o, _ := OpenOutbox(t.Context(), nil, nil)
			r := &recorder{resend: resend, start: time.Now(), fail: errDown}
			a := page("A")
			tellFor(t, o, r, "webhook-1", time.Minute, func(d *Dispatcher) {
				d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
				wait(time.Second)
				d.Update(a.At+1, nil, []alerts.Alert{resolved(a)})
			})
			r.set(nil, false)
			told := tellFor(t, o, r, "webhook-2", time.Second, func(d *Dispatcher) { d.Update(a.At+2, nil, nil) })
			if resend == 0 && (strings.Count(told, "A:firing") != 1 || strings.Index(told, "A:firing") > strings.Index(told, "A:resolved")) {
				t.Errorf("the page was not told: %q", told)
			}
			if strings.Count(told, "A:resolved") != 1 {
				t.Errorf("resend %s: the end was not told: %q", resend, told)
			}
		})
	}
}

// An end that was told is told again to a receiver of states after a restart, and no longer than if it had not been.
func TestEndIsToldOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &life{disk: map[string][]byte{}}
		o, _ := OpenOutbox(t.Context(), disk, nil)
		r := &recorder{resend: time.Minute, start: time.Now()}
		a := page("A")
		tellFor(t, o, r, "am", time.Minute, func(d *Dispatcher) {
			d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
			synctest.Wait()
			d.Update(a.At+1, nil, []alerts.Alert{resolved(a)})
		})
		o, err := OpenOutbox(t.Context(), disk, nil)
		if err != nil {
			t.Fatal(err)
		}
		told := tellFor(t, o, r, "am", 2*time.Hour, func(*Dispatcher) {})
		if n := strings.Count(told, "A:resolved"); n < 14 || n > 16 {
			t.Errorf("the end was told %d times: %s", n, told)
		}
	})
}

// A page goes out although the disk fails or hangs, and waits for it once at most.
func TestPageDoesNotWaitForTheDisk(t *testing.T) {
	for name, put := range map[string]func(context.Context) error{
		"fails": func(context.Context) error { return errors.New("no space left on device") },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		synctest.Test(t, func(t *testing.T) {
			core, logs := zapobserver.New(zap.InfoLevel)
			o, _ := OpenOutbox(t.Context(), badDisk(put), zap.New(core))
			r := &recorder{start: time.Now()}
			d := NewDispatcher(Config{Peers: []Peer{{Name: "r", Notifier: r}}, Outbox: o, Now: time.Now})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- d.Run(ctx) }()
			var many []alerts.Alert
			for i := range 20 {
				many = append(many, page(fmt.Sprint("A", i)))
			}
			d.Update(many[0].At, many, many)
			wait(3 * time.Second)
			if n := r.lines(); n != len(many) {
				t.Errorf("the disk %s: %d of %d pages went out", name, n, len(many))
			}
			if logs.Len() != 1 {
				t.Errorf("the disk %s: it was told %d times: %v", name, logs.Len(), logs.All())
			}
			began := time.Now()
			cancel()
			if err := <-done; err == nil {
				t.Error("Run does not tell that what is owed was not stored")
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the disk %s: stopping took %s", name, took)
			}
		})
	}
}

type badDisk func(context.Context) error

func (b badDisk) Get(context.Context, string) ([]byte, bool, error) { return nil, false, nil }
func (b badDisk) Put(ctx context.Context, _ string, _ []byte) error { return b(ctx) }

// The rules lost their state: what fires still is no second page, keeps its beginning and ends; what fires no more
// is ended after a while.
func TestLostStateIsNoSecondPage(t *testing.T) {
	inBubble(t, 0, func(r *recorder, d *Dispatcher, _ func()) {
		a, b := page("A"), page("B")
		d.Update(a.At, []alerts.Alert{a, b}, []alerts.Alert{a, b})
		expect(t, r.take(), "0s A:firing", "0s B:firing")
		later := a
		later.StartsAt, later.At = a.StartsAt+int64(time.Minute), a.At+int64(2*time.Minute)
		minute := int64(time.Minute)
		d.Update(a.At+minute, nil, nil)
		d.Update(later.At, []alerts.Alert{later}, []alerts.Alert{later})
		expect(t, r.take(), "")
		fires, _ := d.outbox.take(later.At, []alerts.Alert{later}, nil)
		if len(fires) != 1 || fires[0].StartsAt != a.StartsAt {
			t.Errorf("the beginning moved: %+v", fires)
		}
		end := resolved(later)
		end.At = later.At + minute
		d.Update(end.At, nil, []alerts.Alert{end})
		expect(t, r.take(), "0s A:resolved")
		d.Update(a.At+4*minute, nil, nil)
		expect(t, r.take(), "0s B:resolved")
		d.Update(a.At+9*minute, nil, nil)
		expect(t, r.take(), "")
	})
}

// The wall's clock goes an hour back and two ahead while an alert fires and when it is over: nothing is told twice,
// late or not at all.
func TestClockStepsAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var step time.Duration
		clock := func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return time.Now().Add(step).Round(0)
		}
		set := func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			step = d
		}
		once, again := &recorder{start: time.Now()}, &recorder{resend: time.Minute, start: time.Now()}
		d := NewDispatcher(Config{Peers: []Peer{{Name: "once", Notifier: once}, {Name: "again", Notifier: again}}, Now: clock})
		run(t, d)
		a := page("A")
		d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
		for _, d := range []time.Duration{-time.Hour, time.Hour} {
			set(d)
			wait(10 * time.Minute)
		}
		if n := strings.Count(again.take(), "A:firing"); n < 20 || n > 22 {
			t.Errorf("sent %d times in 20 minutes", n)
		}
		d.Update(a.At+1, nil, []alerts.Alert{resolved(a)})
		set(-time.Hour)
		wait(time.Minute)
		set(time.Hour)
		wait(3 * time.Hour)
		if n := strings.Count(again.take(), "A:resolved"); n < 14 || n > 17 {
			t.Errorf("the end was sent %d times", n)
		}
		expect(t, once.take(), "0s A:firing", "20m0s A:resolved")
	})
}

// A receiver that was added is told what fires; what one that was taken out is owed goes to nobody.
func TestReceiversComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := zapobserver.New(zap.InfoLevel)
		o, _ := OpenOutbox(t.Context(), nil, nil)
		old, added := &recorder{start: time.Now(), fail: errDown}, &recorder{start: time.Now()}
		a := page("A")
		d := NewDispatcher(Config{Peers: []Peer{{Name: "old", Notifier: old}}, Outbox: o, Now: time.Now})
		stop := run(t, d)
		d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
		stop()
		d = NewDispatcher(Config{Peers: []Peer{{Name: "added", Notifier: added}}, Outbox: o, Now: time.Now, Logger: zap.New(core)})
		stop = run(t, d)
		d.Update(a.At+1, []alerts.Alert{a}, nil)
		expect(t, added.take(), "0s A:firing")
		if n := logs.FilterMessageSnippet("configured no more").Len(); n != 1 {
			t.Errorf("%v", logs.All())
		}
		stop()
		d = NewDispatcher(Config{Peers: []Peer{{Name: "added", Notifier: added}}, Outbox: o, Now: time.Now})
		run(t, d)
		d.Update(a.At+2, []alerts.Alert{a}, nil)
		wait(time.Hour)
		expect(t, added.take(), "")
	})
}

// However much is owed and however hostile its evidence, the outbox fits the real store and comes back.
func TestOutboxFitsTheStore(t *testing.T) {
	store, err := spool.Open(t.Context(), spool.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close(context.Background()) })
	kv, err := store.KV(t.Context(), "state")
	if err != nil {
		t.Fatal(err)
	}
	o, _ := OpenOutbox(t.Context(), kv, nil)
	d := NewDispatcher(Config{Peers: []Peer{{Name: "r", Notifier: &recorder{}}}, Outbox: o})
	var many []alerts.Alert
	noise := uint64(88172645463325252)
	for i := range 1000 {
		a := page(fmt.Sprint("A", i))
		b := make([]byte, 8<<10)
		for j := range b {
			noise ^= noise << 13
			noise ^= noise >> 7
			noise ^= noise << 17
			b[j] = byte(noise)
		}
		a.Annotations["evidence"] = string(b)
		many = append(many, a)
	}
	d.Update(many[0].At, many, many)
	if err := o.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	back, err := OpenOutbox(t.Context(), kv, nil)
	if err != nil {
		t.Fatal(err)
	}
	letters := back.boxes["r"].letters
	if len(letters) != 1000 || letters[999].Alert.Annotations["summary"] != many[999].Annotations["summary"] || len(back.episodes) != 1000 {
		t.Fatalf("%d letters came back and %d episodes", len(letters), len(back.episodes))
	}
	if err := kv.Put(t.Context(), outboxKey, []byte("garbage")); err != nil {
		t.Fatal(err)
	}
	if o, err := OpenOutbox(t.Context(), kv, nil); err == nil || o == nil {
		t.Error("garbage was taken for an outbox")
	}
}

// A receiver that answers after 20 s is slow, not down: it is told once.
func TestSlowReceiverIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{answers: 20 * time.Second}
		d := NewDispatcher(Config{Peers: []Peer{{Name: "r", Notifier: s}}, Now: time.Now})
		run(t, d)
		a := page("A")
		d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
		wait(10 * time.Minute)
		if n := testutil.ToFloat64(d.metrics.sent.WithLabelValues("r")); n != 1 || s.calls != 1 {
			t.Errorf("%d calls, %v sent", s.calls, n)
		}
	})
}

type slow struct {
	answers time.Duration
	calls   int
}

func (s *slow) Resend() time.Duration { return 0 }

func (s *slow) Notify(ctx context.Context, _ []alerts.Alert) error {
	s.calls++
	select {
	case <-time.After(s.answers):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A receiver that asks to be left alone is.
func TestRetryAfterIsKept(t *testing.T) {
	inBubble(t, 0, func(r *recorder, d *Dispatcher, _ func()) {
		r.set(judge(429, 5*time.Minute), false)
		a := page("A")
		d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
		wait(11 * time.Minute)
		expect(t, r.take(), "0s A:firing failed", "5m0s A:firing failed", "10m0s A:firing failed")
	})
}

// BenchmarkUpdateWithoutNews is what a pane costs while an alert fires and nothing changes.
func BenchmarkUpdateWithoutNews(b *testing.B) {
	d := NewDispatcher(Config{Peers: []Peer{{Name: "r", Notifier: &recorder{}}}})
	a := page("A")
	active := []alerts.Alert{a}
	d.Update(a.At, active, active)
	for i := 0; b.Loop(); i++ {
		d.Update(a.At+int64(i), active, nil)
	}
}

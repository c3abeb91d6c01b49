package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/alerts"
)

// recorder is a receiver within a bubble of virtual time: it keeps what it is told and when.
type recorder struct {
	resend time.Duration
	start  time.Time

	mu   sync.Mutex
	fail error
	hang bool // until the attempt's deadline
	told []string
}

func (r *recorder) Resend() time.Duration { return r.resend }

func (r *recorder) Notify(ctx context.Context, batch []alerts.Alert) error {
	r.mu.Lock()
	fail, hang := r.fail, r.hang
	var names []string
	for i := range batch {
		names = append(names, batch[i].Name+":"+string(batch[i].State)+batch[i].Annotations["v"])
	}
	entry := fmt.Sprintf("%s %s", time.Since(r.start), strings.Join(names, ","))
	if fail != nil {
		entry += " failed"
	}
	r.told = append(r.told, entry)
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return fail
}

func (r *recorder) set(fail error, hang bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail, r.hang = fail, hang
}

// take returns what was told since the last take.
func (r *recorder) take() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	told := strings.Join(r.told, "\n")
	r.told = nil
	return told
}

func (r *recorder) lines() int {
	told := r.take()
	if told == "" {
		return 0
	}
	return strings.Count(told, "\n") + 1
}

func inBubble(t *testing.T, resend time.Duration, test func(r *recorder, d *Dispatcher, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{resend: resend, start: time.Now()}
		d := NewDispatcher(Config{Peers: []Peer{{Name: "r", Notifier: r}}, Now: time.Now, Queue: 3})
		test(r, d, run(t, d))
	})
}

// wait lets virtual time pass.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

var errDown = errors.New("down")

func expect(t *testing.T, got string, want ...string) {
	t.Helper()
	if got != strings.Join(want, "\n") {
		t.Fatalf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// What fires is sent again each minute with the newest evidence, what is over for a quarter of an hour.
func TestStateIsSentAgain(t *testing.T) {
	inBubble(t, time.Minute, func(r *recorder, d *Dispatcher, _ func()) {
		a := page("A")
		d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
		expect(t, r.take(), "0s A:firing")
		a.Annotations = map[string]string{"v": "2"}
		d.Update(time.Now().UnixNano(), []alerts.Alert{a}, nil)
		wait(59 * time.Second)
		expect(t, r.take(), "")
		wait(2 * time.Second)
		expect(t, r.take(), "1m0s A:firing2")
		d.Update(time.Now().UnixNano(), nil, []alerts.Alert{resolved(a)})
		expect(t, r.take(), "1m1s A:resolved2")
		wait(time.Hour)
		if n := r.lines(); n < 13 || n > 15 {
			t.Fatalf("the end was sent %d times more", n)
		}
	})
}

// What a suppressor holds back goes nowhere, neither its beginning nor its end; once let go it is told.
func TestHeldBackIsNotSent(t *testing.T) {
	inBubble(t, time.Minute, func(r *recorder, d *Dispatcher, _ func()) {
		a := page("A")
		held := a
		held.State, held.Suppressed = alerts.Suppressed, "window"
		over := resolved(a)
		over.Suppressed = "window"
		d.Update(time.Now().UnixNano(), nil, []alerts.Alert{held})
		wait(5 * time.Minute)
		d.Update(time.Now().UnixNano(), nil, []alerts.Alert{over, held})
		wait(5 * time.Minute)
		expect(t, r.take(), "")
		d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
		expect(t, r.take(), "10m0s A:firing")
	})
}

// An end that could not be told is told when the receiver is back, however late.
func TestEndIsToldHoweverLate(t *testing.T) {
	inBubble(t, time.Minute, func(r *recorder, d *Dispatcher, _ func()) {
		a := page("A")
		d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
		r.take()
		r.set(errDown, false)
		d.Update(time.Now().UnixNano(), nil, []alerts.Alert{resolved(a)})
		wait(3 * time.Hour)
		r.take()
		r.set(nil, false)
		wait(time.Minute)
		if got := r.take(); !strings.Contains(got, "A:resolved") {
			t.Fatalf("%q", got)
		}
		wait(time.Hour)
		if n := r.lines(); n > 1 {
			t.Fatalf("%d more", n)
		}
	})
}

// After a failure the newest state wins: what began and ended meanwhile is told as ended.
func TestRetriesBackOffAndSendTheNewestState(t *testing.T) {
	inBubble(t, time.Minute, func(r *recorder, d *Dispatcher, _ func()) {
		r.set(errDown, false)
		a, b := page("A"), page("B")
		d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
		wait(10 * time.Second)
		expect(t, r.take(), "0s A:firing failed", "1s A:firing failed", "3s A:firing failed", "7s A:firing failed")
		d.Update(time.Now().UnixNano(), []alerts.Alert{b}, []alerts.Alert{resolved(a), b})
		expect(t, r.take(), "") // news do not shorten a backoff
		r.set(nil, false)
		wait(6 * time.Second)
		expect(t, r.take(), "15s B:firing,A:resolved")
	})
}

// A state that was restored fires without a transition.
func TestRestoredStateIsSentAtOnce(t *testing.T) {
	inBubble(t, time.Minute, func(r *recorder, d *Dispatcher, _ func()) {
		d.Update(time.Now().UnixNano(), []alerts.Alert{page("A")}, nil)
		expect(t, r.take(), "0s A:firing")
	})
}

// A receiver of transitions gets each once and in order; the oldest are dropped when it is away too long.
func TestTransitionsAreQueued(t *testing.T) {
	inBubble(t, 0, func(r *recorder, d *Dispatcher, _ func()) {
		a := page("A")
		d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
		d.Update(time.Now().UnixNano(), nil, []alerts.Alert{resolved(a)})
		expect(t, r.take(), "0s A:firing", "0s A:resolved")
		wait(time.Hour)
		expect(t, r.take(), "")
		r.set(errDown, false)
		for _, name := range []string{"B", "C", "D", "E", "F"} {
			b := page(name)
			d.Update(time.Now().UnixNano(), []alerts.Alert{b}, []alerts.Alert{b})
			synctest.Wait()
		}
		r.take()
		r.set(nil, false)
		wait(time.Minute)
		told := r.take()
		for _, name := range []string{"D:firing", "E:firing", "F:firing"} {
			if strings.Count(told, name) != 1 {
				t.Fatalf("%s: %s", name, told)
			}
		}
		if n := testutil.ToFloat64(d.workers[0].metrics.dropped.WithLabelValues("r", droppedFull)); n != 2 {
			t.Fatalf("%v dropped", n)
		}
	})
}

// What is refused does not hold up the next. It is tried again for an hour, less and less often.
func TestRefusedIsPassedOver(t *testing.T) {
	inBubble(t, 0, func(r *recorder, d *Dispatcher, _ func()) {
		r.set(fmt.Errorf("answered 400: %w", alerts.ErrPermanent), false)
		a, b := page("A"), page("B")
		d.Update(time.Now().UnixNano(), []alerts.Alert{a, b}, []alerts.Alert{a, b})
		expect(t, r.take(), "0s A:firing failed", "0s B:firing failed")
		wait(4 * time.Minute)
		expect(t, r.take(), "1m0s A:firing failed", "1m0s B:firing failed", "3m0s A:firing failed", "3m0s B:firing failed")
		r.set(nil, false)
		c := page("C")
		d.Update(time.Now().UnixNano(), []alerts.Alert{a, b, c}, []alerts.Alert{c})
		wait(time.Second)
		expect(t, r.take(), "4m0s C:firing")
		d.Update(time.Now().UnixNano(), []alerts.Alert{b, c}, []alerts.Alert{resolved(a)})
		wait(10 * time.Minute)
		expect(t, r.take(), "7m0s A:firing", "7m0s B:firing", "7m0s A:resolved")
		r.set(fmt.Errorf("answered 400: %w", alerts.ErrPermanent), false)
		e := page("E")
		d.Update(time.Now().UnixNano(), []alerts.Alert{b, c, e}, []alerts.Alert{e})
		wait(3 * time.Hour)
		if n := r.lines(); n != maxRefusals {
			t.Errorf("tried %d times, want %d", n, maxRefusals)
		}
		if n := testutil.ToFloat64(d.workers[0].metrics.dropped.WithLabelValues("r", droppedRefused)); n != 1 {
			t.Errorf("%v dropped", n)
		}
	})
}

// A receiver that hangs never holds Update, and Run returns within its deadline with a last attempt.
func TestStopMakesALastAttempt(t *testing.T) {
	inBubble(t, time.Minute, func(r *recorder, d *Dispatcher, stop func()) {
		r.set(nil, true)
		for i := range 1000 {
			a := page(fmt.Sprint(i % 5))
			d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
		}
		wait(time.Second)
		before := time.Now()
		stop()
		if took := time.Since(before); took > 6*time.Second {
			t.Fatalf("stopping took %s", took)
		}
		if n := r.lines(); n != 2 {
			t.Fatalf("%d attempts, not one and a last", n)
		}
	})
	inBubble(t, time.Minute, func(r *recorder, d *Dispatcher, stop func()) {
		r.set(errDown, false)
		a := page("A")
		d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
		r.take()
		r.set(nil, false)
		stop()
		if got := r.take(); !strings.HasSuffix(got, "A:firing") {
			t.Fatalf("%q", got)
		}
	})
}

// Standard output shows one block or one line for each transition, and nothing can hide in it.
func TestStdout(t *testing.T) {
	for format, want := range map[string]string{"text": "FIRING [page] A", "json": `"alert":"A"`} {
		var out bytes.Buffer
		peer := build(t, "{type: stdout, format: "+format+"}", Runtime{Stdout: &out})[0]
		a := page("A")
		a.Annotations = map[string]string{"summary": "\x1b[2J\u202e"}
		a.Evidence.Samples = []string{"\x1b[2J\u202e"}
		if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{a}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) || strings.ContainsAny(out.String(), "\x1b\u202e") {
			t.Errorf("%q", out.String())
		}
	}
}

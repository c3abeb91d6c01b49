package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/squall-sre/squall/alerts"
)

// A wire is a TCP proxy in front of a receiver that misbehaves as told.
type wire struct {
	addr string
	to   string
	// fault says what is wrong with the next connections.
	fault atomic.Value // of func(from, to net.Conn); nil func: nothing
	taken atomic.Int64 // connections
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: l.Addr().String(), to: to}
	w.set(nil)
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	group.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			w.taken.Add(1)
			group.Go(func() { w.carry(ctx, from) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); cancel(); group.Wait() })
	return w
}

type faulty func(ctx context.Context, answer []byte, from net.Conn)

func (w *wire) set(f faulty) { w.fault.Store(f) }

// carry takes one request over and hands its answer to the fault.
func (w *wire) carry(ctx context.Context, from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer to.Close()
	fault := w.fault.Load().(faulty)
	stop := context.AfterFunc(ctx, func() { _ = from.Close(); _ = to.Close() })
	defer stop()
	go func() { _, _ = io.Copy(to, from); _ = to.(*net.TCPConn).CloseWrite() }()
	if fault == nil {
		_, _ = io.Copy(from, to)
		return
	}
	answer, _ := io.ReadAll(to)
	fault(ctx, answer, from)
}

// late hands the answer on after a while.
func late(d time.Duration) faulty {
	return func(ctx context.Context, answer []byte, from net.Conn) {
		select {
		case <-time.After(d):
			_, _ = from.Write(answer)
		case <-ctx.Done():
		}
	}
}

// reset loses the answer: the work was done.
func reset(_ context.Context, answer []byte, from net.Conn) {
	_, _ = from.Write(answer[:len(answer)/2])
	_ = from.(*net.TCPConn).SetLinger(0)
}

// silent takes the request and never says anything.
func silent(ctx context.Context, _ []byte, _ net.Conn) { <-ctx.Done() }

// An Alertmanager behind a bad wire pages once: the work was done although no answer came, and what is sent again is
// the same alert.
func TestAlertmanagerAnswersLateOrNeverAndPagesOnce(t *testing.T) {
	pager := newReceiver(t)
	am := startManager(t, pager.URL)
	bad := newWire(t, am.addr)
	reg := prometheus.NewRegistry()
	d := NewDispatcher(Config{
		Peers:   build(t, "{type: alertmanager, resend: 1s, urls: ['http://"+bad.addr+"']}", Runtime{}),
		Timeout: 300 * time.Millisecond, MaxBackoff: 300 * time.Millisecond, Registerer: reg,
	})
	run(t, d)
	for i, f := range []struct {
		name   string
		fault  faulty
		reason string
	}{{"late", late(time.Second), reasonTimeout}, {"reset", reset, reasonUnavailable}, {"silent", silent, reasonTimeout}} {
		a := page("Storm" + f.name)
		bad.set(f.fault)
		d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
		failed := d.metrics.failed.WithLabelValues("alertmanager/"+bad.addr, f.reason)
		before := testutil.ToFloat64(failed)
		pager.await(t, "the page through a wire that is "+f.name, has(a.Name, "firing"))
		poll(t, "two failures", func() bool { return testutil.ToFloat64(failed) >= before+2 })
		if n := testutil.ToFloat64(d.metrics.owed.WithLabelValues("alertmanager/" + bad.addr)); n == 0 {
			t.Error("nothing is owed although no answer came")
		}
		bad.set(nil)
		d.Update(a.At+int64(i)+1, nil, []alerts.Alert{resolved(a)})
		all := pager.await(t, "its end", has(a.Name, "resolved"))
		if n := count(all, a.Name, "firing"); n != 1 {
			t.Errorf("%s: %d pages", f.name, n)
		}
	}
	poll(t, "nothing to be owed", func() bool { return testutil.ToFloat64(d.metrics.owed.WithLabelValues("alertmanager/"+bad.addr)) == 0 })
}

// One of a cluster of three is down: the page comes once and counts as delivered; when it is back it knows the alert,
// and there is no second page.
func TestOnePeerOfAClusterOfThreeIsDown(t *testing.T) {
	pager := newReceiver(t)
	gossip := []string{freePort(t), freePort(t), freePort(t)}
	var urls []string
	var peers []*manager
	for i := range gossip {
		am := startManager(t, pager.URL, "--cluster.listen-address="+gossip[i], "--cluster.peer="+gossip[(i+1)%3], "--cluster.peer="+gossip[(i+2)%3],
			"--cluster.peer-timeout=2s", "--cluster.settle-timeout=1s", "--cluster.gossip-interval=50ms", "--cluster.reconnect-interval=500ms", "--cluster.pushpull-interval=1s")
		peers = append(peers, am)
		urls = append(urls, "'http://"+am.addr+"'")
	}
	peers[0].stop()
	reg := prometheus.NewRegistry()
	d := NewDispatcher(Config{
		Peers:      build(t, "{type: alertmanager, resend: 1s, urls: ["+strings.Join(urls, ",")+"]}", Runtime{}),
		MaxBackoff: time.Second, Registerer: reg,
	})
	run(t, d)
	a := page("ClientsGivingUp")
	d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
	pager.await(t, "the page", has(a.Name, "firing"))
	poll(t, "delivery", func() bool { return testutil.ToFloat64(d.metrics.undelivered.WithLabelValues("alertmanager")) == 0 })
	down := "alertmanager/" + peers[0].addr
	poll(t, "the failures of the one that is down", func() bool {
		return testutil.ToFloat64(d.metrics.failed.WithLabelValues(down, reasonUnavailable)) >= 2
	})
	if n := testutil.ToFloat64(d.metrics.owed.WithLabelValues(down)); n != 1 {
		t.Errorf("%v owed to the one that is down", n)
	}
	peers[0].start()
	poll(t, "the peer that is back to know the alert", func() bool { return len(peers[0].alerts()) == 1 })
	poll(t, "nothing to be owed", func() bool { return testutil.ToFloat64(d.metrics.owed.WithLabelValues(down)) == 0 })
	d.Update(a.At+1, nil, []alerts.Alert{resolved(a)})
	all := pager.await(t, "the end", has(a.Name, "resolved"))
	if n := count(all, a.Name, "firing"); n != 1 {
		t.Errorf("%d pages", n)
	}
}

// One alert of ten is refused with 400: nine are there and counted as sent, the tenth is shouted and names itself.
func TestNineOfTenAreSentAndTheTenthIsShouted(t *testing.T) {
	am := startManager(t, newReceiver(t).URL)
	core, logs := zapobserver.New(zap.InfoLevel)
	d := NewDispatcher(Config{Peers: build(t, "{type: alertmanager, urls: ['http://"+am.addr+"']}", Runtime{}), Logger: zap.New(core)})
	run(t, d)
	var batch []alerts.Alert
	for i := range 10 {
		batch = append(batch, page(fmt.Sprintf("Alert%d", i)))
	}
	batch[6].Name, batch[6].Severity, batch[6].Labels = "", "", nil
	d.Update(batch[0].At, batch, batch)
	poll(t, "the nine", func() bool { return len(am.alerts()) == 9 })
	poll(t, "the count", func() bool { return testutil.ToFloat64(d.metrics.sent.WithLabelValues("alertmanager/"+am.addr)) == 9 })
	poll(t, "the shout", func() bool { return logs.FilterMessage("alerts were refused").Len() == 1 })
	if n := testutil.ToFloat64(d.metrics.undelivered.WithLabelValues("alertmanager")); n != 1 {
		t.Errorf("%v are shown as undelivered, want the tenth", n)
	}
}

// The host's clock steps an hour while an alert fires: Alertmanager is never told an end in its past, which would end
// the alert, nor one that lies hours ahead.
func TestEndsAtStaysSaneWhenTheClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		am := newDouble(t)
		began := time.Now()
		var stepped atomic.Int64
		peer := build(t, "{type: alertmanager, urls: ['"+am.URL+"']}", Runtime{
			Now:     func() time.Time { return time.Now().Add(time.Duration(stepped.Load())).Round(0) },
			Elapsed: func() time.Duration { return time.Since(began) },
		})[0]
		for range 3 {
			if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{page("A")}); err != nil {
				t.Fatal(err)
			}
			stepped.Store(int64(step))
		}
		for i, list := range am.got {
			if ends := time.Until(parse(t, list[0]["endsAt"])); ends < 3*time.Minute || ends > 5*time.Minute {
				t.Errorf("step %s: message %d of %d ends in %s", step, i+1, len(am.got), ends)
			}
		}
	}
}

// What is refused is told in the log and counted, and waits.
func TestRefusedByAWebhookIsCountedAndShouted(t *testing.T) {
	for _, status := range []int{400, 410, 413, 422} {
		r := newReceiver(t)
		r.answer(status)
		core, logs := zapobserver.New(zap.InfoLevel)
		d := NewDispatcher(Config{Peers: build(t, "{type: webhook, url: '"+r.URL+"'}", Runtime{}), Logger: zap.New(core)})
		stop := run(t, d)
		a := page("A")
		d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
		poll(t, "the refusal", func() bool {
			return testutil.ToFloat64(d.metrics.failed.WithLabelValues("webhook", reasonRefused)) == 1
		})
		poll(t, "what is owed", func() bool { return testutil.ToFloat64(d.metrics.undelivered.WithLabelValues("webhook")) == 1 })
		stop()
		if n := len(r.messages()); n != 1 || testutil.ToFloat64(d.metrics.failed.WithLabelValues("webhook", reasonRefused)) != 1 {
			t.Errorf("%d: sent %d times", status, n)
		}
		if shouts := logs.FilterLevelExact(zap.ErrorLevel).All(); len(shouts) != 1 || !strings.Contains(fmt.Sprint(shouts[0].ContextMap()), fmt.Sprint("answered ", status)) {
			t.Errorf("%d: %v", status, logs.All())
		}
	}
	for _, status := range []int{408, 429, 500, 503} {
		if err := judge(status, 0); err == nil || errors.Is(err, alerts.ErrPermanent) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// A token that ran out, or a hook that moved, loses no page: it waits, and the log says so each time.
func TestTurnedAwayWaitsAndShouts(t *testing.T) {
	for _, status := range []int{302, 401, 403, 404, 407} {
		synctest.Test(t, func(t *testing.T) {
			core, logs := zapobserver.New(zap.InfoLevel)
			r := &recorder{start: time.Now()}
			d := NewDispatcher(Config{Peers: []Peer{{Name: "r", Notifier: r}}, Now: time.Now, Logger: zap.New(core)})
			run(t, d)
			r.set(judge(status, 0), false)
			a := page("A")
			d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
			wait(150 * time.Second)
			expect(t, r.take(), "0s A:firing failed", "1m0s A:firing failed", "2m0s A:firing failed")
			r.set(nil, false)
			wait(time.Hour)
			expect(t, r.take(), "3m0s A:firing")
			if n := logs.FilterLevelExact(zap.ErrorLevel).Len(); n != 3 || testutil.ToFloat64(d.metrics.failed.WithLabelValues("r", reasonTurnedAway)) != 3 {
				t.Errorf("%d: told %d times", status, n)
			}
		})
	}
}

func TestRetryAfterIsRead(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "99999999": maxWait, "Mon, 30 Nov 2026 06:00:30 GMT": 30 * time.Second,
		"Mon, 30 Nov 2026 05:00:00 GMT": 0, "Tue, 30 Nov 2027 05:00:00 GMT": maxWait,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", "Mon, 30 Nov 2026 06:00:00 GMT")
			w.Header().Set("Retry-After", text)
			w.WriteHeader(429)
		}))
		err := build(t, "{type: webhook, url: '"+server.URL+"'}", Runtime{})[0].Notifier.Notify(t.Context(), []alerts.Alert{page("A")})
		if got := askedToWait(err); got != want {
			t.Errorf("webhook: %q: %s", text, got)
		}
		err = build(t, "{type: alertmanager, urls: ['"+server.URL+"']}", Runtime{Now: func() time.Time { return time.Date(2026, 11, 30, 6, 0, 0, 0, time.UTC) }})[0].
			Notifier.Notify(t.Context(), []alerts.Alert{page("A")})
		if got := askedToWait(err); got != want {
			t.Errorf("alertmanager: %q: %s", text, got)
		}
		server.Close()
	}
}

// A repeat of a page, after a retry or a restart, is known by its key; another page and the end have others.
func TestRepeatsHaveOneIdempotencyKey(t *testing.T) {
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
	}))
	defer server.Close()
	a, b := page("A"), page("B")
	again := a
	again.Annotations, again.At = map[string]string{"summary": "newer evidence"}, a.At+1
	for _, x := range []alerts.Alert{a, again, resolved(a), b} {
		peer := build(t, "{type: webhook, url: '"+server.URL+"'}", Runtime{})[0]
		if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{x}); err != nil {
			t.Fatal(err)
		}
	}
	if len(keys) != 4 || keys[0] == "" || keys[0] != keys[1] || keys[0] == keys[2] || keys[0] == keys[3] || keys[2] == keys[3] {
		t.Errorf("%q", keys)
	}
}

// Nothing of an address but its host is in a log, an error or a metric, however the receiver fails.
func TestSecretsAreInNoLogAndNoError(t *testing.T) {
	const path, query, password = "/services/T0/SECRETPATH", "SECRETQUERY", "SECRETPASS"
	fails := map[string]http.HandlerFunc{
		"404": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, path+query+password, 404) },
		"503": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, path+query+password, http.StatusServiceUnavailable)
		},
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
		},
		"redirects nowhere": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://[::1"+r.URL.String())
			w.WriteHeader(307)
		},
		"resets": func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) },
		"hangs":  func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() },
		"down":   nil,
	}
	for name, handler := range fails {
		server := httptest.NewServer(handler)
		address := strings.Replace(server.URL, "http://", "http://user:"+password+"@", 1) + path + "?token=" + query
		if handler == nil {
			server.Close()
		}
		core, logs := zapobserver.New(zap.DebugLevel)
		reg := prometheus.NewRegistry()
		peers := build(t, "{type: webhook, url: '"+address+"'}", Runtime{})
		peers = append(peers, build(t, "{type: alertmanager, urls: ['"+address+"']}", Runtime{})...)
		d := NewDispatcher(Config{Peers: peers, Logger: zap.New(core), Registerer: reg, Timeout: 500 * time.Millisecond, Drain: time.Millisecond})
		stop := run(t, d)
		a := page("A")
		d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
		poll(t, "both to fail", func() bool { return logs.Len() >= 2 })
		stop()
		server.Close()
		text := ""
		for _, e := range logs.All() {
			text += fmt.Sprintln(e.Message, e.ContextMap())
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprint(families)
		for _, p := range peers {
			text += p.Key + p.Name + p.Group
		}
		if strings.Contains(text, "SECRET") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// Whoever reads standard output stops to: squall ends all the same, and the page is not written twice.
func TestStandardOutputHangs(t *testing.T) {
	reader, writer := io.Pipe()
	o, _ := OpenOutbox(t.Context(), nil, nil)
	peers := build(t, "{type: stdout}", Runtime{Stdout: writer})
	d := NewDispatcher(Config{Peers: peers, Outbox: o, Timeout: 50 * time.Millisecond, Drain: 50 * time.Millisecond, MaxBackoff: 50 * time.Millisecond})
	stop := run(t, d)
	a := page("A")
	d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
	poll(t, "two attempts", func() bool { return testutil.ToFloat64(d.metrics.failed.WithLabelValues("stdout", reasonTimeout)) >= 2 })
	a.Annotations = map[string]string{"summary": "newer evidence"}
	d.Update(a.At+1, []alerts.Alert{a}, nil)
	began := time.Now()
	stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if n := len(o.boxes["stdout"].letters); n != 1 {
		t.Errorf("%d alerts are owed", n)
	}
	d = NewDispatcher(Config{Peers: peers, Outbox: o, MaxBackoff: 50 * time.Millisecond})
	stop = run(t, d)
	var out bytes.Buffer
	var group sync.WaitGroup
	group.Go(func() { _, _ = io.Copy(&out, reader) })
	poll(t, "the page to be told", func() bool { return testutil.ToFloat64(d.metrics.sent.WithLabelValues("stdout")) == 1 })
	stop()
	_ = writer.Close()
	group.Wait()
	if n := strings.Count(out.String(), "FIRING"); n != 1 {
		t.Errorf("written %d times: %s", n, out.String())
	}
}

// A receiver hangs while squall is asked to end: it ends in time, and what is owed is on disk.
func TestStopWhileAReceiverHangsKeepsWhatIsOwed(t *testing.T) {
	disk := &life{disk: map[string][]byte{}}
	o, _ := OpenOutbox(t.Context(), disk, nil)
	hung := newWire(t, newReceiver(t).Listener.Addr().String())
	hung.set(silent)
	peers := build(t, "{type: webhook, url: 'http://"+hung.addr+"'}", Runtime{})
	d := NewDispatcher(Config{Peers: peers, Outbox: o, Drain: 100 * time.Millisecond})
	stop := run(t, d)
	a := page("A")
	d.Update(a.At, []alerts.Alert{a}, []alerts.Alert{a})
	poll(t, "the attempt", func() bool { return hung.taken.Load() > 0 })
	began := time.Now()
	stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopping took %s", took)
	}
	back, err := OpenOutbox(t.Context(), disk, nil)
	if err != nil || len(back.boxes[peers[0].Key].letters) != 1 {
		t.Errorf("%v: %+v", err, back.boxes)
	}
}

// A receiver behind a login page redirects to it, and a GET of that is answered 200: nobody was paged. Where the message
// goes with the redirect it is followed.
func TestRedirects(t *testing.T) {
	for status, followed := range map[int]bool{301: false, 302: false, 303: false, 307: true, 308: true} {
		var posted, asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch body, _ := io.ReadAll(r.Body); {
			case r.URL.Path == "/login/api/v2/alerts":
				w.Header().Set("Content-Type", "text/html; charset=utf-8")
				_, _ = io.WriteString(w, "<html>Who are you?</html>")
			case r.Method == http.MethodGet:
				asked.Add(1)
			case r.URL.Path == "/moved" && len(body) > 0:
				posted.Add(1)
			default:
				http.Redirect(w, r, "/moved", status)
			}
		}))
		for _, config := range []string{"{type: webhook, url: '" + server.URL + "'}", "{type: alertmanager, urls: ['" + server.URL + "']}"} {
			posted.Store(0)
			err := build(t, config, Runtime{Now: time.Now})[0].Notifier.Notify(t.Context(), []alerts.Alert{page("A")})
			switch {
			case asked.Load() > 0:
				t.Errorf("%d %s: the message became a GET", status, config)
			case followed && (err != nil || posted.Load() != 1):
				t.Errorf("%d %s: %d posts, %v", status, config, posted.Load(), err)
			case !followed && !errors.Is(err, errTurnedAway):
				t.Errorf("%d %s: %v, want that it turns squall away", status, config, err)
			}
		}
		err := build(t, "{type: alertmanager, urls: ['"+server.URL+"/login']}", Runtime{Now: time.Now})[0].Notifier.Notify(t.Context(), []alerts.Alert{page("A")})
		if !errors.Is(err, errTurnedAway) {
			t.Errorf("a login page: %v, want that it turns squall away", err)
		}
		server.Close()
	}
}

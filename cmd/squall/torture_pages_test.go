package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline/loki/faultproxy"
)

// An ear stands before an Alertmanager and notes the alerts that are posted to it.
type ear struct {
	*httptest.Server
	to    atomic.Pointer[httputil.ReverseProxy]
	mu    sync.Mutex
	heard map[string]map[time.Time]bool // by labels: the beginnings
}

func listen(t *testing.T, alertmanager string) *ear {
	t.Helper()
	e := &ear{heard: map[string]map[time.Time]bool{}}
	e.speakTo(t, alertmanager)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // squall was killed while it wrote
		}
		e.note(body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		e.to.Load().ServeHTTP(w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

// speakTo hands on to another Alertmanager from now on.
func (e *ear) speakTo(t *testing.T, alertmanager string) {
	t.Helper()
	target, err := url.Parse(alertmanager)
	if err != nil {
		t.Fatal(err)
	}
	to := httputil.NewSingleHostReverseProxy(target)
	to.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	e.to.Store(to)
}

func (e *ear) note(body []byte) {
	var list []struct {
		Labels   map[string]string
		StartsAt time.Time
	}
	if json.Unmarshal(body, &list) != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range list {
		labels, _ := json.Marshal(a.Labels) // a map of texts
		if e.heard[string(labels)] == nil {
			e.heard[string(labels)] = map[time.Time]bool{}
		}
		e.heard[string(labels)][a.StartsAt.UTC()] = true
	}
}

// beginnings are the alerts that were told, with each startsAt once, sorted.
func (e *ear) beginnings() (all []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for labels, starts := range e.heard {
		for at := range starts {
			all = append(all, fmt.Sprintf("%s from %s", labels, at.Format(time.RFC3339Nano)))
		}
	}
	slices.Sort(all)
	return all
}

// squall is killed again and again while a storm goes on, and its way to Alertmanager fails. What Alertmanager hears
// is what it hears of a twin that is left alone: the same alerts with the same beginnings. The one on duty is told
// each once.
func TestTortureKillBesideAlertmanager(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	type side struct {
		pages *receiver
		ear   *ear
		way   *faultproxy.Proxy
		home  string
	}
	both := func(name string) side {
		s := side{pages: newReceiver(t), home: filepath.Join(dir, name)}
		s.ear = listen(t, startAlertmanager(t, s.pages.URL))
		s.way = faultproxy.New(t, strings.TrimPrefix(s.ear.URL, "http://"))
		mkdir(t, s.home)
		write(t, filepath.Join(s.home, "squall.yaml"), stormConfig(log, filepath.Join(s.home, "spool"), "http://"+s.way.Addr, ""))
		return s
	}
	calm, killed := both("calm"), both("killed")
	twin := runSquall(t, calm.home, surroundings{})
	people := startLogger(t, log, http.MethodGet, 200*time.Millisecond)
	eventually(t, "quiet panes are evaluated", func() bool { return twin.metric("squall_panes_closed_total") >= 3 })
	heads := startLogger(t, log, http.MethodHead, 25*time.Millisecond)

	random := rand.New(rand.NewPCG(9, uint64(torture.kills)))
	faults := []faultproxy.Fault{faultproxy.Through, faultproxy.AnswerLost, faultproxy.Refuse, faultproxy.AnswerStalls, faultproxy.ResetMidBody}
	for i := range torture.kills {
		killed.way.Set(faults[i%len(faults)])
		p := launch(t, surroundings{}, "run", "--config", filepath.Join(killed.home, "squall.yaml"), "--web.listen-address", "127.0.0.1:0")
		select {
		case <-time.After(500*time.Millisecond + time.Duration(random.IntN(2000))*time.Millisecond):
			p.kill()
		case <-p.ended:
			t.Fatalf("squall has ended by itself: %s", p.cmd.ProcessState)
		}
	}
	killed.way.Set(faultproxy.Through)
	last := runSquall(t, killed.home, surroundings{})
	same := func() bool {
		return len(calm.ear.beginnings()) > 0 && slices.Equal(calm.ear.beginnings(), killed.ear.beginnings())
	}
	eventually(t, "Alertmanager has heard the same", same)
	heads.stop()
	for _, s := range []side{calm, killed} {
		eventually(t, "the end is told", func() bool { return len(s.pages.told("/pager", "resolved")) > 0 })
		check(t, "times it was told", len(s.pages.told("/pager", "firing")), 1)
		check(t, "ends", len(s.pages.told("/pager", "resolved")), 1)
	}
	check(t, "the end", killed.pages.told("/pager", "resolved")[0].Alerts[0].EndsAt, calm.pages.told("/pager", "resolved")[0].Alerts[0].EndsAt)
	if !same() {
		t.Errorf("Alertmanager heard\n%s\nand of the twin\n%s", strings.Join(killed.ear.beginnings(), "\n"), strings.Join(calm.ear.beginnings(), "\n"))
	}
	people.stop()
	tortureTable.add(tortureRow{
		name: "kill -9 beside Alertmanager", lines: len(lines(t, log)), lost: -1, duplicates: len(killed.pages.told("/pager", "firing")) - 1,
		page: len(killed.ear.beginnings()), rss: last.usage().rss, delay: -1,
	})
	check(t, "exit code", last.stop(syscall.SIGTERM), 0)
	check(t, "exit code", twin.stop(syscall.SIGTERM), 0)
}

// Alertmanager is restarted and has forgotten everything. What fires comes back by itself, with its beginning, and
// ends when it ends.
func TestTortureAlertmanagerForgets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	before, after := newReceiver(t), newReceiver(t)
	e := listen(t, startAlertmanager(t, before.URL))
	write(t, filepath.Join(dir, "squall.yaml"), strings.Replace(stormConfig(log, filepath.Join(dir, "spool"), e.URL, ""), "resend: 10s", "resend: 1s", 1))
	squall := runSquall(t, dir, surroundings{})
	heads := startLogger(t, log, http.MethodHead, 25*time.Millisecond)
	eventually(t, "it is told", func() bool { return len(before.told("/pager", "firing")) == 1 })
	e.speakTo(t, "http://"+freeAddress(t)) // it is down
	panes := squall.metric("squall_panes_closed_total")
	eventually(t, "detection goes on", func() bool { return squall.metric("squall_panes_closed_total") > panes+2 })
	e.speakTo(t, startAlertmanager(t, after.URL))
	eventually(t, "it is told by one that knew nothing", func() bool { return len(after.told("/pager", "firing")) == 1 })
	first, again := before.told("/pager", "firing")[0].Alerts[0], after.told("/pager", "firing")[0].Alerts[0]
	check(t, "startsAt", again.StartsAt, first.StartsAt)
	check(t, "labels", again.Labels, first.Labels)
	heads.stop()
	eventually(t, "the end is told", func() bool { return len(after.told("/pager", "resolved")) == 1 })
	check(t, "startsAt of the end", after.told("/pager", "resolved")[0].Alerts[0].StartsAt, first.StartsAt)
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// An onCall is a pager at an address that is known before it is there. It is told and says nothing, or answers.
type onCall struct {
	*receiver
	mu    sync.Mutex
	hangs bool
	tried int
}

func (o *onCall) set(hangs bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hangs = hangs
}

func (o *onCall) attempts() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tried
}

func (o *onCall) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var n notification
	err := json.NewDecoder(r.Body).Decode(&n)
	o.mu.Lock()
	hangs := o.hangs
	o.tried++
	o.mu.Unlock()
	if hangs {
		<-r.Context().Done()
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	n.Path = "/pager"
	o.receiver.mu.Lock()
	defer o.receiver.mu.Unlock()
	o.receiver.got = append(o.receiver.got, n)
}

// about gives what it was told of HeadStorm with this status.
func (o *onCall) about(status string) []notification {
	return slices.DeleteFunc(o.told("/pager", status), func(n notification) bool { return n.Alerts[0].Labels["alertname"] != "HeadStorm" })
}

func startOnCall(t *testing.T, address string) *onCall {
	t.Helper()
	o := &onCall{receiver: &receiver{}, hangs: true}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(o)
	if err := server.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return o
}

// The receiver is down over a kill -9, hangs over a stop, and then squall is killed and loaded again while it fires:
// one page, one end, and the beginning that was seen first. Standard output, which was there all the time, tells
// each once too.
func TestOnePageWhateverHappensToReceiverAndSquall(t *testing.T) {
	t.Parallel()
	dir, address := t.TempDir(), freeAddress(t)
	log := filepath.Join(dir, "access.log")
	write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), fmt.Sprintf(
		"notify: [{type: webhook, url: %q}, {type: stdout}]\n", "http://user:SECRET1@"+address+"/hook/SECRET2?token=SECRET3")))
	heads := startLogger(t, log, http.MethodHead, 50*time.Millisecond)
	var lives []*program
	start := func() *program {
		lives = append(lives, runSquall(t, dir, surroundings{}))
		return lives[len(lives)-1]
	}
	const owed = `squall_notify_owed_alerts{notifier="webhook-1"}`

	squall := start()
	eventually(t, "an alert fires", func() bool { return len(squall.alerts("HeadStorm", "firing")) == 1 })
	began := squall.alerts("HeadStorm", "firing")[0].StartsAt
	eventually(t, "the receiver is tried", func() bool {
		return squall.metric(`squall_notify_failures_total{notifier="webhook-1",reason="unavailable"}`) > 0 &&
			squall.metric(`squall_notify_alerts_sent_total{notifier="stdout-2"}`) > 0
	})
	squall.kill()

	pager := startOnCall(t, address)
	squall = start()
	if n := squall.metric(owed); n == 0 {
		t.Error("nothing is owed after kill -9")
	}
	eventually(t, "the receiver that hangs is tried", func() bool { return pager.attempts() > 0 })
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)

	pager.set(false)
	squall = start()
	eventually(t, "the page comes", func() bool { return len(pager.about("firing")) == 1 })
	page := pager.about("firing")[0].Alerts[0]
	check(t, "startsAt", page.StartsAt.UTC().Format(time.RFC3339Nano), began)
	eventually(t, "nothing is owed", func() bool { return squall.metric(owed) == 0 })
	squall.kill()
	squall = start()
	code, text := squall.reload()
	check(t, "answer to a reload: "+text, code, http.StatusOK)
	panes := squall.metric("squall_panes_closed_total")
	eventually(t, "panes are evaluated", func() bool { return squall.metric("squall_panes_closed_total") > panes+2 })
	check(t, "alerts that fire", len(squall.alerts("HeadStorm", "firing")), 1)

	heads.stop()
	eventually(t, "the end comes", func() bool { return len(pager.about("resolved")) == 1 })
	check(t, "startsAt of the end", pager.about("resolved")[0].Alerts[0].StartsAt, page.StartsAt)
	eventually(t, "the end is written", func() bool { return strings.Contains(squall.stdout.String(), "RESOLVED [warning] HeadStorm") })
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
	check(t, "pages", len(pager.about("firing")), 1)
	check(t, "ends", len(pager.about("resolved")), 1)
	var all strings.Builder
	for _, p := range lives {
		all.WriteString(p.stdout.String())
		if strings.Contains(p.stderr.String()+p.stdout.String(), "SECRET") {
			t.Error("a secret was printed")
		}
	}
	check(t, "beginnings on standard output", strings.Count(all.String(), "FIRING [warning] HeadStorm"), 1)
	check(t, "ends on standard output", strings.Count(all.String(), "RESOLVED [warning] HeadStorm"), 1)
}

package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/alerts"
)

// One page comes, new evidence makes no second one, the end comes; then everything again with an Alertmanager that
// was restarted and forgot all.
func TestPageThroughAlertmanager(t *testing.T) {
	pager := newReceiver(t)
	am := startManager(t, pager.URL)
	d := NewDispatcher(Config{Peers: build(t, "{type: alertmanager, resend: 1s, urls: ['http://"+am.addr+"']}", Runtime{}), Now: time.Now, MaxBackoff: time.Second})
	run(t, d)

	a := page("ClientsGivingUp")
	d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
	first := pager.await(t, "the page", has("ClientsGivingUp", "firing"))
	if got := first[0].Alerts[0]; !got.StartsAt.Equal(time.Unix(0, a.StartsAt).Truncate(time.Millisecond)) || got.Labels["severity"] != "page" {
		t.Fatalf("%+v", got)
	}
	for i := range 5 {
		a.Annotations = map[string]string{"summary": fmt.Sprintf("%d clients give up", i)}
		d.Update(time.Now().UnixNano(), []alerts.Alert{a}, nil)
	}
	end := resolved(a)
	d.Update(time.Now().UnixNano(), nil, []alerts.Alert{end})
	all := pager.await(t, "the end", has("ClientsGivingUp", "resolved"))
	if n := count(all, "ClientsGivingUp", "firing"); n != 1 {
		t.Fatalf("%d pages", n)
	}

	b := page("WorkersExhausted")
	d.Update(time.Now().UnixNano(), []alerts.Alert{b}, []alerts.Alert{b})
	pager.await(t, "the second page", has("WorkersExhausted", "firing"))
	am.stop()
	am.start()
	pager.await(t, "the page from the restarted Alertmanager", func(m []payload) bool { return count(m, "WorkersExhausted", "firing") > 1 })
	for _, m := range pager.messages() {
		for _, x := range m.Alerts {
			if x.Labels["alertname"] == "WorkersExhausted" && !x.StartsAt.Equal(time.Unix(0, b.StartsAt).Truncate(time.Millisecond)) {
				t.Fatalf("startsAt moved to %s", x.StartsAt)
			}
		}
	}
}

// A peer that is down does not keep the other from being told, and is told when it is back.
func TestOnePeerOfTwoIsDown(t *testing.T) {
	pager, late := newReceiver(t), newReceiver(t)
	up, down := startManager(t, pager.URL), startManager(t, late.URL)
	down.stop()
	reg := prometheus.NewRegistry()
	d := NewDispatcher(Config{
		Peers: build(t, fmt.Sprintf("{type: alertmanager, resend: 1s, urls: ['http://%s', 'http://%s']}", down.addr, up.addr), Runtime{}),
		Now:   time.Now, Registerer: reg, MaxBackoff: time.Second,
	})
	run(t, d)
	a := page("ClientsGivingUp")
	d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
	pager.await(t, "the page", has("ClientsGivingUp", "firing"))
	failed := d.workers[0].metrics.failed.WithLabelValues("alertmanager/"+down.addr, reasonUnavailable)
	poll(t, "the failure to be counted", func() bool { return testutil.ToFloat64(failed) > 0 })
	down.start()
	late.await(t, "the page from the late peer", has("ClientsGivingUp", "firing"))
}

// An alert without labels is refused with 400; the nine others are there.
func TestOneOfTenIsRefused(t *testing.T) {
	pager := newReceiver(t)
	am := startManager(t, pager.URL)
	peers := build(t, "{type: alertmanager, urls: ['http://"+am.addr+"']}", Runtime{})
	var batch []alerts.Alert
	for i := range 10 {
		batch = append(batch, page(fmt.Sprintf("Alert%d", i)))
	}
	batch[6] = alerts.Alert{State: alerts.Firing, StartsAt: batch[6].StartsAt}
	err := peers[0].Notifier.Notify(t.Context(), batch)
	if !errors.Is(err, alerts.ErrPermanent) {
		t.Fatalf("%v", err)
	}
	if got := am.alerts(); len(got) != 9 || slices.Contains(got, "Alert6") {
		t.Fatalf("%v", got)
	}
}

// double answers as an Alertmanager whose clock is off, and keeps what it got.
type double struct {
	*httptest.Server
	mu     sync.Mutex
	ahead  time.Duration
	status []int // of the next answers; then 200
	got    [][]map[string]any
	auth   string
}

func newDouble(t *testing.T) *double {
	t.Helper()
	d := &double{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var list []map[string]any
		_ = json.NewDecoder(r.Body).Decode(&list)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.got, d.auth = append(d.got, list), r.Header.Get("Authorization")
		w.Header().Set("Date", time.Now().Add(d.ahead).UTC().Format(http.TimeFormat))
		if len(d.status) > 0 {
			w.WriteHeader(d.status[0])
			d.status = d.status[1:]
		}
	}))
	t.Cleanup(d.Close)
	return d
}

func TestAnotherClockIsUsed(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		am := newDouble(t)
		am.ahead = ahead
		peer := build(t, "{type: alertmanager, urls: ['"+am.URL+"']}", Runtime{})[0]
		if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{page("A")}); err != nil {
			t.Fatal(err)
		}
		if len(am.got) != 2 {
			t.Fatalf("sent %d times: the first answer tells the clock, the second message is in its time", len(am.got))
		}
		last := am.got[1][0]
		theirs := time.Now().Add(ahead)
		// A proxy may have told that time, and Alertmanager's own be right: the end is in the future by both.
		latest := time.Now().Add(max(ahead, 0))
		if ends := parse(t, last["endsAt"]); ends.Sub(latest) < 3*time.Minute || ends.Sub(latest) > 5*time.Minute {
			t.Errorf("%s ahead: endsAt is %s from the later of both nows", ahead, ends.Sub(latest))
		}
		if starts := parse(t, last["startsAt"]); starts.After(theirs.Add(2 * time.Second)) {
			t.Errorf("%s ahead: startsAt is in their future", ahead)
		}
		if (peer.Skew() - ahead).Abs() > 5*time.Second {
			t.Errorf("skew %s", peer.Skew())
		}
		if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{page("A")}); err != nil || len(am.got) != 3 {
			t.Errorf("%v, sent %d times", err, len(am.got))
		}
	}
}

func parse(t *testing.T, v any) time.Time {
	t.Helper()
	s, _ := v.(string)
	ts, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

func TestTimesAndLabelsAreWhatAlertmanagerTakes(t *testing.T) {
	am := newDouble(t)
	peer := build(t, "{type: alertmanager, urls: ['"+am.URL+"/prefix'], http_config: {basic_auth: {username: u, password: p}}}", Runtime{ExternalURL: "http://squall/"})[0]
	end := page("A")
	end.State, end.EndsAt = alerts.Resolved, end.StartsAt-int64(time.Hour)
	end.Labels = append(end.Labels, labelsOf("bad-name", "x", "empty", "", "0digit", "y\xff")...)
	if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{end}); err != nil {
		t.Fatal(err)
	}
	got := am.got[0][0]
	if parse(t, got["endsAt"]).Before(parse(t, got["startsAt"])) {
		t.Error("the end is before the start")
	}
	labels, _ := got["labels"].(map[string]any)
	if keys := strings.Join(slices.Sorted(maps.Keys(labels)), " "); keys != "_0digit alertname bad_name severity site" {
		t.Error(keys)
	}
	if !strings.HasPrefix(am.auth, "Basic ") || got["generatorURL"] != "http://squall/" {
		t.Errorf("%q %q", am.auth, got["generatorURL"])
	}
}

func TestUnavailableIsRetried(t *testing.T) {
	for _, status := range []int{500, 502, 503, 429, 401, 403, 404} {
		am := newDouble(t)
		am.status = []int{status}
		peer := build(t, "{type: alertmanager, urls: ['"+am.URL+"']}", Runtime{})[0]
		if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{page("A")}); err == nil || errors.Is(err, alerts.ErrPermanent) {
			t.Errorf("%d: %v", status, err)
		}
	}
	for _, status := range []int{405, 410} {
		am := newDouble(t)
		am.status = []int{status}
		peer := build(t, "{type: alertmanager, urls: ['"+am.URL+"']}", Runtime{})[0]
		if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{page("A")}); !errors.Is(err, alerts.ErrPermanent) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

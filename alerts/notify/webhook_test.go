package notify

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

func labelsOf(pairs ...string) detectors.Labels {
	var l detectors.Labels
	for i := 0; i < len(pairs); i += 2 {
		l = append(l, detectors.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	return l
}

// The message has the fields, the fingerprint and the times that the real Alertmanager sends for the same alert.
func TestPayloadIsAlertmanagers(t *testing.T) {
	theirs, ours := newReceiver(t), newReceiver(t)
	am := startManager(t, theirs.URL)
	a := page("ClientsGivingUp")
	rt := Runtime{Name: "pager", ExternalURL: "http://squall.example/"}
	if err := build(t, "{type: alertmanager, urls: ['http://"+am.addr+"']}", rt)[0].Notifier.Notify(t.Context(), []alerts.Alert{a}); err != nil {
		t.Fatal(err)
	}
	if err := build(t, "{type: webhook, url: '"+ours.URL+"'}", rt)[0].Notifier.Notify(t.Context(), []alerts.Alert{a}); err != nil {
		t.Fatal(err)
	}
	want := theirs.await(t, "the real one", has(a.Name, "firing"))[0]
	got := ours.messages()[0]
	if w, g := fields(t, theirs.bodies[0]), fields(t, ours.bodies[0]); !slices.Equal(w, g) {
		t.Errorf("theirs %v\nours   %v", w, g)
	}
	if got.GroupKey != want.GroupKey || got.Version != want.Version || got.Status != want.Status || got.Receiver != want.Receiver {
		t.Errorf("theirs %+v\nours   %+v", want, got)
	}
	if !maps.Equal(got.GroupLabels, want.GroupLabels) || !maps.Equal(got.CommonLabels, want.CommonLabels) || !maps.Equal(got.CommonAnnotations, want.CommonAnnotations) {
		t.Errorf("theirs %+v\nours   %+v", want, got)
	}
	w, g := want.Alerts[0], got.Alerts[0]
	if g.Fingerprint != w.Fingerprint || !maps.Equal(g.Labels, w.Labels) || !g.EndsAt.Equal(w.EndsAt) || g.GeneratorURL != w.GeneratorURL ||
		!g.StartsAt.Truncate(time.Millisecond).Equal(w.StartsAt) {
		t.Errorf("theirs %+v\nours   %+v", w, g)
	}
	if !strings.Contains(string(ours.bodies[0]), `"endsAt":"0001-01-01T00:00:00Z"`) {
		t.Error("a firing alert has an end")
	}
}

// fields lists the paths of all keys.
func fields(t *testing.T, body []byte) []string {
	t.Helper()
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	var paths []string
	var walk func(string, any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				paths = append(paths, at+"."+k)
				walk(at+"."+k, x)
			}
		case []any:
			for _, x := range v {
				walk(at+"[]", x)
			}
		}
	}
	walk("", v)
	slices.Sort(paths)
	return slices.Compact(paths)
}

func TestSecretAddressIsNotPrinted(t *testing.T) {
	gone := newReceiver(t)
	address := gone.URL + "/hook/SECRET"
	peer := build(t, "{type: webhook, url: '"+address+"'}", Runtime{})[0]
	gone.answer(410)
	refused := peer.Notifier.Notify(t.Context(), []alerts.Alert{page("A")})
	gone.Close()
	down := peer.Notifier.Notify(t.Context(), []alerts.Alert{page("A")})
	_, bad := New(decoder("{type: webhook, url: 'http:// SECRET'}"), Runtime{Now: time.Now})
	_, badAM := New(decoder("{type: alertmanager, urls: ['http:// SECRET']}"), Runtime{Now: time.Now})
	for _, err := range []error{refused, down, bad, badAM} {
		if err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%v", err)
		}
	}
	if !errors.Is(refused, alerts.ErrPermanent) || errors.Is(down, alerts.ErrPermanent) || strings.Contains(peer.Name, "SECRET") {
		t.Errorf("%v, %v, %s", refused, down, peer.Name)
	}
}

func TestGroupsAndTruncation(t *testing.T) {
	r := newReceiver(t)
	peer := build(t, "{type: webhook, max_alerts: 1, url: '"+r.URL+"'}", Runtime{})[0]
	old, risen := page("HeadStorm"), page("HeadStorm")
	old.Severity = alerts.Warning
	other := page("HeadStorm")
	other.Labels = labelsOf("site", "b.example")
	if err := peer.Notifier.Notify(t.Context(), []alerts.Alert{resolved(old), risen, resolved(other)}); err != nil {
		t.Fatal(err)
	}
	m := r.messages()
	if len(m) != 2 || m[0].TruncatedAlerts != 1 || len(m[0].Alerts) != 1 || m[1].Status != "resolved" || m[1].GroupLabels["site"] != "b.example" {
		t.Fatalf("%+v", m)
	}
}

func TestConfigurationIsStrict(t *testing.T) {
	for _, text := range []string{
		"{type: pigeon}", "{}", "{type: stdout, color: red}", "{type: stdout, format: xml}", "{type: webhook}", "{type: webhook, url: /x}",
		"{type: webhook, url: 'ftp://x'}", "{type: alertmanager}", "{type: alertmanager, urls: []}", "{type: alertmanager, urls: [x]}",
		"{type: alertmanager, urls: ['http://x'], resend: 10m}", "{type: alertmanager, urls: ['http://x'], http_config: {nope: 1}}",
		"{type: alertmanager, urls: ['http://x'], http_config: {basic_auth: {username: a}, bearer_token: b}}",
	} {
		if _, err := New(decoder(text), Runtime{Now: time.Now}); err == nil {
			t.Errorf("%s was taken", text)
		}
	}
	for _, text := range []string{
		"{type: stdout, format: json}", "{type: webhook, url: 'https://x/y', http_config: {authorization: {credentials: a}}}",
		"{type: alertmanager, urls: ['http://x', 'https://u:p@y/z'], resend: 30s, http_config: {tls_config: {insecure_skip_verify: true}}}",
	} {
		if _, err := New(decoder(text), Runtime{Now: time.Now}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A receiver that is busy gets each transition once it takes it, in order, and once.
func TestWebhookIsRetried(t *testing.T) {
	r := newReceiver(t)
	r.answer(503)
	d := NewDispatcher(Config{Peers: build(t, "{type: webhook, url: '"+r.URL+"'}", Runtime{}), MaxBackoff: time.Second})
	run(t, d)
	a := page("A")
	d.Update(time.Now().UnixNano(), []alerts.Alert{a}, []alerts.Alert{a})
	d.Update(time.Now().UnixNano(), nil, []alerts.Alert{resolved(a)})
	r.await(t, "a second attempt", func(m []payload) bool { return len(m) >= 2 })
	refused := len(r.messages())
	r.answer(200)
	all := r.await(t, "the end", has("A", "resolved"))
	for i, m := range all[:len(all)-1] {
		if m.Status != "firing" {
			t.Fatalf("message %d of %d (%d refused) is %s", i, len(all), refused, m.Status)
		}
	}
	if n := count(all, "A", "resolved"); n != 1 {
		t.Fatalf("%d ends", n)
	}
}

package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-openapi/runtime/client"
	"github.com/go-openapi/strfmt"
	"github.com/prometheus/alertmanager/api/v2/client/alert"
	"github.com/prometheus/alertmanager/api/v2/models"
	"github.com/prometheus/common/config"

	"github.com/squall-sre/squall/alerts"
)

// maxSkew is how far Alertmanager's clock may be from ours before its own time is used: it judges by its clock
// whether an alert is over.
const maxSkew = 30 * time.Second

// alertmanager sends to one Alertmanager by API v2. It keeps no alerts over a restart and forgets those that are
// not sent again, so all that fires is sent each time, with the time at which it may be forgotten.
type alertmanager struct {
	api      alert.ClientService
	seen     *observer
	resend   time.Duration
	address  *url.URL
	now      func() time.Time // the wall clock of the start, which goes on without being set: an end in the past ends an alert
	external string
	skew     atomic.Int64 // ns: its clock minus ours, as used
}

type alertmanagerConfig struct {
	Type   string                   `yaml:"type"`
	URLs   []string                 `yaml:"urls"` // every instance, never a balancer in front of them
	Resend time.Duration            `yaml:"resend"`
	HTTP   *config.HTTPClientConfig `yaml:"http_config"`
}

func newAlertmanager(decode func(any) error, rt Runtime) ([]Peer, error) {
	cfg := alertmanagerConfig{Resend: time.Minute}
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	if len(cfg.URLs) == 0 {
		return nil, errors.New("urls is missing: list every Alertmanager")
	}
	if cfg.Resend < time.Second || cfg.Resend > 5*time.Minute {
		return nil, fmt.Errorf("resend %s is not between 1s and 5m", cfg.Resend)
	}
	var peers []Peer
	for i, raw := range cfg.URLs {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("urls: the address at position %d is not an http or https address", i+1)
		}
		n, err := newAlertmanagerPeer(u, cfg, rt)
		if err != nil {
			return nil, err
		}
		peers = append(peers, Peer{
			Name: rt.Name + "/" + u.Host, Group: rt.Name, Key: key("alertmanager", u.Host+u.Path), Notifier: n, Skew: func() time.Duration { return time.Duration(n.skew.Load()) },
		})
	}
	return peers, nil
}

func newAlertmanagerPeer(u *url.URL, cfg alertmanagerConfig, rt Runtime) (*alertmanager, error) {
	http := config.DefaultHTTPClientConfig
	if cfg.HTTP != nil {
		http = *cfg.HTTP
	}
	if password, ok := u.User.Password(); ok && http.BasicAuth == nil {
		http.BasicAuth = &config.BasicAuth{Username: u.User.Username(), Password: config.Secret(password)}
	}
	c, err := newClient(&http, rt.Name)
	if err != nil {
		return nil, err
	}
	start := rt.Now()
	now := func() time.Time { return start.Add(rt.Elapsed()) }
	n := &alertmanager{address: u, resend: cfg.Resend, now: now, external: rt.ExternalURL, seen: &observer{next: c.Transport}}
	c.Transport = n.seen
	transport := client.NewWithClient(u.Host, path.Join("/", u.Path, "api/v2"), []string{u.Scheme}, c)
	n.api = alert.New(transport, strfmt.Default)
	return n, nil
}

// observer notes what an answer said beside its body. It is used by one goroutine at a time.
type observer struct {
	next   http.RoundTripper
	status int
	date   time.Time // zero when it told none
	wait   time.Duration
	page   bool // the answer is HTML: a login page, never Alertmanager's
}

// RoundTrip implements http.RoundTripper.
func (o *observer) RoundTrip(req *http.Request) (*http.Response, error) {
	o.status, o.date, o.wait, o.page = 0, time.Time{}, 0, false
	resp, err := o.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	o.status, o.wait = resp.StatusCode, retryAfter(resp.Header)
	o.page = strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html")
	if d, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		o.date = d
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	return resp, nil
}

// Resend implements alerts.Notifier.
func (n *alertmanager) Resend() time.Duration { return n.resend }

// Notify implements alerts.Notifier. When the first answer shows that the clocks differ, the batch is sent again
// in the receiver's time: with ours it may have been taken for over already.
func (n *alertmanager) Notify(ctx context.Context, batch []alerts.Alert) error {
	used := n.skew.Load()
	err := n.send(ctx, batch)
	if n.skew.Load() != used {
		err = n.send(ctx, batch)
	}
	return err
}

// send posts a batch. A 400 means that at least one alert was refused and the others were stored: halves find it.
func (n *alertmanager) send(ctx context.Context, batch []alerts.Alert) error {
	err := n.post(ctx, batch)
	if n.seen.status != http.StatusBadRequest || len(batch) == 1 {
		return err
	}
	half := len(batch) / 2
	first, second := n.send(ctx, batch[:half]), n.send(ctx, batch[half:])
	err = joined([]error{first, second})
	if !errors.Is(err, alerts.ErrPermanent) {
		return err
	}
	return &refusal{err, append(refusedOf(first, batch[:half]), refusedOf(second, batch[half:])...)}
}

func (n *alertmanager) post(ctx context.Context, batch []alerts.Alert) error {
	before := n.now()
	now := before.Add(time.Duration(n.skew.Load()))
	list := make(models.PostableAlerts, len(batch))
	for i := range batch {
		list[i] = n.postable(&batch[i], now)
	}
	_, err := n.api.PostAlerts(alert.NewPostAlertsParamsWithContext(ctx).WithAlerts(list))
	n.observe(n.now())
	switch {
	case n.seen.status == 0 && err != nil:
		return fmt.Errorf("post %d alerts: %w", len(batch), scrub(err, n.address))
	case n.seen.status == http.StatusOK && n.seen.page:
		return &waitError{fmt.Errorf("answered %d with a page of HTML: %w", n.seen.status, errTurnedAway), turnedAwayWait}
	case n.seen.status == http.StatusBadRequest && len(batch) == 1:
		err := fmt.Errorf("alert %s was refused: %w", batch[0].Title(), alerts.ErrPermanent)
		return &refusal{err, []string{identity(&batch[0])}}
	}
	return judge(n.seen.status, n.seen.wait)
}

// observe compares the clocks by the answer's Date, which tells whole seconds.
func (n *alertmanager) observe(now time.Time) {
	if n.seen.date.IsZero() {
		return
	}
	skew := n.seen.date.Sub(now)
	if skew.Abs() <= maxSkew {
		n.skew.Store(0)
	} else if (skew - time.Duration(n.skew.Load())).Abs() > maxSkew/2 {
		n.skew.Store(int64(skew))
	}
}

// postable is the alert in Alertmanager's time. That is what its Date says, which a proxy may have written, whose clock
// is wrong: so what fires ends in the future by our clock, too. An end too late is harmless, one in the past is a page
// that is lost.
func (n *alertmanager) postable(a *alerts.Alert, now time.Time) *models.PostableAlert {
	starts := time.Unix(0, a.StartsAt)
	if starts.After(now) {
		starts = now
	}
	ends := now.Add(max(4*n.resend, 4*n.resend-time.Duration(n.skew.Load())))
	if a.State == alerts.Resolved {
		ends = time.Unix(0, a.EndsAt)
		if ends.After(now) {
			ends = now
		}
		if ends.Before(starts) {
			ends = starts
		}
	}
	return &models.PostableAlert{
		Annotations: annotations(a), StartsAt: strfmt.DateTime(starts.UTC()), EndsAt: strfmt.DateTime(ends.UTC()),
		Alert: models.Alert{Labels: labels(a), GeneratorURL: strfmt.URI(n.external)},
	}
}

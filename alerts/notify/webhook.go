package notify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"

	"github.com/squall-sre/squall/alerts"
)

// webhook sends the webhook payload of Alertmanager, version 4, for those who have a pager and no Alertmanager.
// The address may be a secret: it is in no error and no log.
type webhook struct {
	name      string
	url       *url.URL
	external  string
	client    *http.Client
	http      config.HTTPClientConfig
	maxAlerts int
	resend    time.Duration
}

type webhookConfig struct {
	Type      string                   `yaml:"type"`
	URL       string                   `yaml:"url"`
	MaxAlerts int                      `yaml:"max_alerts"` // in one message; 0: all
	Resend    time.Duration            `yaml:"resend"`     // 0: each transition once
	HTTP      *config.HTTPClientConfig `yaml:"http_config"`
}

func newWebhook(decode func(any) error, rt Runtime) ([]Peer, error) {
	var cfg webhookConfig
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("url must be an http or https address")
	}
	if cfg.MaxAlerts < 0 || cfg.Resend < 0 {
		return nil, errors.New("max_alerts and resend must not be negative")
	}
	client, err := newClient(cfg.HTTP, rt.Name)
	if err != nil {
		return nil, err
	}
	settings := config.DefaultHTTPClientConfig
	if cfg.HTTP != nil {
		settings = *cfg.HTTP
	}
	n := &webhook{name: rt.Name, url: u, external: rt.ExternalURL, client: client, http: settings, maxAlerts: cfg.MaxAlerts, resend: cfg.Resend}
	return []Peer{{Name: rt.Name, Key: key("webhook", cfg.URL), Notifier: n}}, nil
}

// newClient opens a connection for each request: a message a minute does not pay for keeping one, and a restarted
// receiver is found again at once. A redirect is followed where the message goes with it (307, 308). Behind any other
// there is a login page or a wrong address, and what a GET of that answers is no receipt.
func newClient(cfg *config.HTTPClientConfig, name string) (*http.Client, error) {
	if cfg == nil {
		c := config.DefaultHTTPClientConfig
		cfg = &c
	}
	client, err := config.NewClientFromConfig(*cfg, name, config.WithKeepAlivesDisabled())
	if err != nil {
		return nil, err
	}
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if !cfg.FollowRedirects || req.Method != via[0].Method || len(via) >= maxRedirects {
			return http.ErrUseLastResponse
		}
		return nil
	}
	return client, nil
}

const maxRedirects = 5

// payload is the message of Alertmanager's webhook receiver.
type payload struct {
	Receiver          string            `json:"receiver"`
	Status            string            `json:"status"`
	Alerts            []payloadAlert    `json:"alerts"`
	GroupLabels       map[string]string `json:"groupLabels"`
	CommonLabels      map[string]string `json:"commonLabels"`
	CommonAnnotations map[string]string `json:"commonAnnotations"`
	ExternalURL       string            `json:"externalURL"`
	Version           string            `json:"version"`
	GroupKey          string            `json:"groupKey"`
	TruncatedAlerts   uint64            `json:"truncatedAlerts"`
}

type payloadAlert struct {
	Status       string            `json:"status"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"` // the zero time while firing
	GeneratorURL string            `json:"generatorURL"`
	Fingerprint  string            `json:"fingerprint"`
}

// Notify implements alerts.Notifier: one message for each group, which is an alert's name with its labels.
func (n *webhook) Notify(ctx context.Context, batch []alerts.Alert) error {
	groups := map[string][]alerts.Alert{}
	var order []string
	for i := range batch {
		key := batch[i].Name + batch[i].Labels.String()
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], batch[i])
	}
	var errs []error
	for _, key := range order {
		errs = append(errs, n.post(ctx, groups[key]))
	}
	return joined(errs)
}

func (n *webhook) message(group []alerts.Alert) *payload {
	p := &payload{
		Receiver: n.name, Status: string(alerts.Resolved), GroupLabels: labels(&group[0]),
		ExternalURL: n.external, Version: "4",
	}
	delete(p.GroupLabels, "severity")
	p.GroupKey = "{}:" + labelSet(p.GroupLabels).String()
	if n.maxAlerts > 0 && len(group) > n.maxAlerts {
		p.TruncatedAlerts = uint64(len(group) - n.maxAlerts)
		group = group[:n.maxAlerts]
	}
	for i := range group {
		a := payloadOf(&group[i], n.external)
		p.Alerts = append(p.Alerts, a)
		if a.Status == string(alerts.Firing) {
			p.Status = a.Status
		}
		if i == 0 {
			p.CommonLabels, p.CommonAnnotations = clone(a.Labels), clone(a.Annotations)
		}
		keepCommon(p.CommonLabels, a.Labels)
		keepCommon(p.CommonAnnotations, a.Annotations)
	}
	return p
}

func payloadOf(a *alerts.Alert, external string) payloadAlert {
	out := payloadAlert{
		Status: string(a.State), Labels: labels(a), Annotations: annotations(a), StartsAt: time.Unix(0, a.StartsAt).UTC(), GeneratorURL: external,
	}
	out.Fingerprint = labelSet(out.Labels).Fingerprint().String()
	if a.State == alerts.Resolved {
		out.EndsAt = time.Unix(0, max(a.EndsAt, a.StartsAt)).UTC()
	}
	return out
}

// annotations are an alert's as a receiver gets them: it may show them on a terminal or a page.
func annotations(a *alerts.Alert) map[string]string {
	out := map[string]string{}
	for name, text := range a.Annotations {
		if text == "" {
			continue
		}
		lines := strings.Split(text, "\n")
		for i := range lines {
			lines[i] = alerts.Escape(lines[i])
		}
		out[labelName(name)] = strings.Join(lines, "\n")
	}
	return out
}

func labelSet(m map[string]string) model.LabelSet {
	set := make(model.LabelSet, len(m))
	for k, v := range m {
		set[model.LabelName(k)] = model.LabelValue(v)
	}
	return set
}

func clone(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

func keepCommon(common, of map[string]string) {
	for k, v := range common {
		if w, ok := of[k]; !ok || w != v {
			delete(common, k)
		}
	}
}

// maxBody bounds a message, in bytes. Alerts are bounded where they are made: it is not reached by those.
const maxBody = 1 << 20

func (n *webhook) post(ctx context.Context, group []alerts.Alert) error {
	message := n.message(group)
	body, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode message: %w: %w", err, alerts.ErrPermanent)
	}
	if len(body) > maxBody {
		return fmt.Errorf("the message has %d bytes, more than %d: %w", len(body), maxBody, alerts.ErrPermanent)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("build request: %w: %w", scrub(err, n.url), alerts.ErrPermanent)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "squall")
	req.Header.Set("Idempotency-Key", message.key())
	resp, err := n.client.Do(req)
	if err != nil {
		return fmt.Errorf("post message: %w", scrub(err, n.url))
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	return judge(resp.StatusCode, retryAfter(resp.Header))
}

// key is the same for each attempt to tell the same transitions, over a restart too: a receiver that remembers it
// takes a repeat for what it is.
func (p *payload) key() string {
	h := sha256.New()
	for i := range p.Alerts {
		a := &p.Alerts[i]
		fmt.Fprintf(h, "%s %s %d\n", a.Fingerprint, a.Status, a.StartsAt.UnixNano())
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Resend implements alerts.Notifier.
func (n *webhook) Resend() time.Duration { return n.resend }

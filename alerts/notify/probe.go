package notify

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/common/config"
)

// maxStatus bounds what is read of a status, which has the whole configuration in it.
const maxStatus = 8 << 20

// A Prober is a notifier whose receiver can be tried without telling it of an alert. Probe tells what was found, or why
// an alert would not arrive. It blocks until it knows, or ctx ends.
type Prober interface {
	Probe(ctx context.Context) (found string, err error)
}

// Probe implements Prober: the receiver's status, and a list of no alerts, which it takes as it would take some.
func (n *alertmanager) Probe(ctx context.Context) (string, error) {
	text, err := n.ask(ctx, http.MethodGet, "status", "")
	if err != nil {
		return "", err
	}
	var status struct {
		VersionInfo struct{ Version string }
	}
	if err := json.Unmarshal(text, &status); err != nil || status.VersionInfo.Version == "" {
		return "", fmt.Errorf("%s does not answer as Alertmanager's API v2 does", n.address.Host)
	}
	skew := time.Duration(0)
	if !n.seen.date.IsZero() {
		skew = n.seen.date.Sub(n.now()).Round(time.Second)
	}
	if _, err := n.ask(ctx, http.MethodPost, "alerts", "[]"); err != nil {
		return "", err
	}
	found := fmt.Sprintf("Alertmanager %s takes alerts", status.VersionInfo.Version)
	if skew.Abs() > maxSkew {
		found += fmt.Sprintf("; its clock is %s from this one's", skew)
	}
	return found, nil
}

// ask makes one request of the API.
func (n *alertmanager) ask(ctx context.Context, method, resource, body string) ([]byte, error) {
	at := n.address.JoinPath("api/v2", resource)
	at.User = nil // the transport has it
	req, err := http.NewRequestWithContext(ctx, method, at.String(), strings.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s: not an address", n.address.Host)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := n.seen.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close() // it was only read
	text, err := io.ReadAll(io.LimitReader(res.Body, maxStatus))
	if err != nil {
		return nil, err
	}
	switch res.StatusCode {
	case http.StatusOK:
		return text, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("%s answered %d: http_config lacks its credentials, or they are wrong", n.address.Host, res.StatusCode)
	case http.StatusNotFound, http.StatusGone:
		return nil, fmt.Errorf("%s answered %d: there is no API v2; a path such as /alertmanager may be missing", n.address.Host, res.StatusCode)
	}
	return nil, fmt.Errorf("%s answered %d", n.address.Host, res.StatusCode)
}

// Probe implements Prober: a connection, with the receiver's certificate where it has one, and no message, since the
// receiver would take it for an alert. Of a receiver behind a proxy the proxy is tried.
func (n *webhook) Probe(ctx context.Context) (string, error) {
	to, found := n.url, n.url.Host+" can be reached; no message was sent"
	var proxy *url.URL
	if of := n.http.Proxy(); of != nil {
		var err error
		if proxy, err = of(&http.Request{URL: n.url}); err != nil {
			return "", fmt.Errorf("the proxy: %w", err)
		}
	}
	if proxy != nil {
		to, found = proxy, fmt.Sprintf("its proxy %s can be reached; what is behind it was not tried", proxy.Host)
	}
	port := to.Port()
	if port == "" {
		port = to.Scheme
	}
	dial := (&net.Dialer{}).DialContext
	if to.Scheme == "https" {
		cfg, err := config.NewTLSConfig(&n.http.TLSConfig)
		if err != nil {
			return "", err
		}
		dial = (&tls.Dialer{Config: cfg}).DialContext
	}
	c, err := dial(ctx, "tcp", net.JoinHostPort(to.Hostname(), port))
	if err != nil {
		return "", err
	}
	if err := c.Close(); err != nil {
		return "", err
	}
	return found, nil
}

// Probe implements Prober.
func (*stdout) Probe(context.Context) (string, error) {
	return "alerts are written to standard output", nil
}

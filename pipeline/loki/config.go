package loki

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/grafana/loki-client-go/pkg/backoff"
	"github.com/grafana/loki-client-go/pkg/urlutil"
	promconfig "github.com/prometheus/common/config"

	"github.com/squall-sre/squall/pipeline"
)

// Config says where lines are shipped and what becomes a label. The names of the client's own settings are those
// of grafana/loki-client-go.
type Config struct {
	URL       string            `yaml:"url"`        // https://host[/loki/api/v1/push]; empty: nothing is shipped
	TenantID  string            `yaml:"tenant_id"`  // X-Scope-OrgID
	Labels    []string          `yaml:"labels"`     // see ValidLabels; the static labels of a source are added
	Metadata  []string          `yaml:"metadata"`   // structured metadata, see ValidMetadata
	BatchSize pipeline.ByteSize `yaml:"batch_size"` // of one push, uncompressed
	BatchWait time.Duration     `yaml:"batch_wait"` // how long a push waits for more lines
	Timeout   time.Duration     `yaml:"timeout"`    // of one push
	// BacklogRate is how many bytes a second of what was stored during an outage are shipped, beside fresh lines.
	BacklogRate pipeline.ByteSize `yaml:"backlog_rate"`

	Headers map[string]string `yaml:"headers"`

	BasicAuth       *BasicAuth `yaml:"basic_auth"`
	BearerToken     string     `yaml:"bearer_token"`
	BearerTokenFile string     `yaml:"bearer_token_file"` // read anew for each push
	TLS             TLS        `yaml:"tls_config"`

	Backoff backoff.BackoffConfig `yaml:"backoff_config"` // max_retries must be 0: lines are never given up
}

// BasicAuth is a user and a password, the password perhaps in a file.
type BasicAuth struct {
	Username     string `yaml:"username"`
	Password     string `yaml:"password"`
	PasswordFile string `yaml:"password_file"`
}

// TLS names the files of a TLS client.
type TLS struct {
	CAFile             string `yaml:"ca_file"`
	CertFile           string `yaml:"cert_file"`
	KeyFile            string `yaml:"key_file"`
	ServerName         string `yaml:"server_name"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
}

const (
	pushPath = "/loki/api/v1/push"

	minBatch = 4 << 10
	maxBatch = 4 << 20 // Loki's own default for what it takes in a second
)

// DefaultConfig is what holds for keys that are not given.
func DefaultConfig() Config {
	return Config{
		Labels:    []string{"job", "site", "source", "namespace"},
		Metadata:  []string{"method", "route", "status", "request_time", "client_class", "client_abandoned"},
		BatchSize: 1 << 20, BatchWait: time.Second, Timeout: 10 * time.Second, BacklogRate: 2 << 20,
		Backoff: backoff.BackoffConfig{MinBackoff: 500 * time.Millisecond, MaxBackoff: 30 * time.Second},
	}
}

// Check tells what is wrong with c. static are the names of labels that sources set.
func (c *Config) Check(static []string) error {
	var errs []error
	if _, err := c.endpoint(); err != nil {
		errs = append(errs, err)
	}
	valid := append(ValidLabels(), static...)
	for _, name := range c.Labels {
		if !slices.Contains(valid, name) {
			errs = append(errs, fmt.Errorf("labels: %q is unknown: use %s", name, strings.Join(valid, ", ")))
		}
	}
	for _, name := range c.Metadata {
		if _, ok := metadataOf[name]; !ok {
			errs = append(errs, fmt.Errorf("metadata: %q is unknown: use %s", name, strings.Join(ValidMetadata(), ", ")))
		}
	}
	if c.BatchSize < minBatch || c.BatchSize > maxBatch {
		errs = append(errs, fmt.Errorf("batch_size: %d bytes is not between 4KiB and 4MiB", c.BatchSize))
	}
	if c.BacklogRate < minBatch {
		errs = append(errs, fmt.Errorf("backlog_rate: %d bytes a second are below 4KiB", c.BacklogRate))
	}
	if c.BatchWait < 0 || c.Timeout <= 0 {
		errs = append(errs, errors.New("batch_wait and timeout must not be negative, timeout not 0"))
	}
	if c.Backoff.MinBackoff <= 0 || c.Backoff.MaxBackoff < c.Backoff.MinBackoff || c.Backoff.MaxRetries != 0 {
		errs = append(errs, errors.New("backoff_config: 0 < min_period <= max_period, and max_retries 0: lines are never given up"))
	}
	httpConfig := c.http()
	if err := httpConfig.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// endpoint gives the address that is pushed to.
func (c *Config) endpoint() (string, error) {
	var v urlutil.URLValue
	if err := v.Set(c.URL); err != nil {
		return "", fmt.Errorf("url: %w", errors.Unwrap(err))
	}
	if v.Scheme != "http" && v.Scheme != "https" || v.Host == "" {
		return "", fmt.Errorf("url: %q must begin with http:// or https:// and name a host", v.String())
	}
	if strings.Trim(v.Path, "/") == "" {
		return v.ResolveReference(&url.URL{Path: pushPath, RawQuery: v.RawQuery}).String(), nil
	}
	return v.URL.String(), nil
}

func (c *Config) http() promconfig.HTTPClientConfig {
	h := promconfig.HTTPClientConfig{
		FollowRedirects: false, EnableHTTP2: true,
		BearerToken: promconfig.Secret(c.BearerToken), BearerTokenFile: c.BearerTokenFile,
		TLSConfig: promconfig.TLSConfig{
			CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile,
			ServerName: c.TLS.ServerName, InsecureSkipVerify: c.TLS.InsecureSkipVerify,
		},
	}
	if a := c.BasicAuth; a != nil {
		h.BasicAuth = &promconfig.BasicAuth{
			Username: a.Username, Password: promconfig.Secret(a.Password), PasswordFile: a.PasswordFile,
		}
	}
	return h
}

func (c *Config) client() (*http.Client, error) {
	httpConfig := c.http()
	if err := httpConfig.Validate(); err != nil {
		return nil, err
	}
	client, err := promconfig.NewClientFromConfig(httpConfig, "loki")
	if err != nil {
		return nil, fmt.Errorf("make the HTTP client: %w", err)
	}
	// A redirect of a push is a login page or a wrong address: it is told, not followed.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client, nil
}

// safeURL is the address without user, password and query, for logs.
func (s *Shipper) safeURL() string {
	u, err := url.Parse(s.url)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

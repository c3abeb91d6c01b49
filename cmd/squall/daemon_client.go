package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/pflag"

	"github.com/squall-sre/squall/alerts"
)

// defaultURL is where a daemon listens when nothing else is configured.
const defaultURL = "http://127.0.0.1:9177"

// daemonFlags say which daemon is asked, and as whom.
type daemonFlags struct {
	url, config, user, passwordFile string
}

func (o *daemonFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.url, "url", "", "`URL` of the daemon (default "+defaultURL+", or what the configuration says)")
	f.StringVar(&o.config, "config", "", "configuration `FILE` of the daemon")
	f.StringVar(&o.user, "user", "", "`NAME` to log in with, where web.config_file has basic_auth_users")
	f.StringVar(&o.passwordFile, "password-file", "", "`FILE` with that user's password")
}

// configured is the configuration that is named; nil: none is.
func (o *daemonFlags) configured() (*Config, error) {
	if o.config == "" {
		return nil, nil
	}
	return loadConfig(o.config, os.LookupEnv)
}

// A daemonClient asks a daemon by its HTTP API.
type daemonClient struct {
	base           string
	user, password string
	http           *http.Client
}

// client makes the client for a daemon: of the URL, else of the configuration, which may be nil.
func (o *daemonFlags) client(c *Config) (*daemonClient, error) {
	d := &daemonClient{base: strings.TrimSuffix(cmp.Or(o.url, defaultURL), "/"), user: o.user, http: http.DefaultClient}
	if (o.user == "") != (o.passwordFile == "") {
		return nil, usageError(errors.New("--user and --password-file go together"))
	}
	if o.passwordFile != "" {
		text, err := os.ReadFile(o.passwordFile)
		if err != nil {
			return nil, fmt.Errorf("--password-file: %w", err)
		}
		d.password = strings.TrimRight(string(text), "\r\n")
	}
	if c == nil {
		return d, nil
	}
	secure, err := trusting(c.Web.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("web.config_file: %w", err)
	}
	scheme := "http://"
	if secure != nil {
		scheme = "https://"
		d.http = &http.Client{Transport: &http.Transport{TLSClientConfig: secure}}
	}
	if o.url == "" {
		d.base = scheme + reachable(c.Web.Listen)
	}
	return d, nil
}

// reachable is where a listener on all addresses is found from this machine.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("localhost", port)
	}
	return listen
}

// trusting is how clients trust a daemon with this web configuration: by its very certificate, under the name that stands in
// it. nil: it has no TLS.
func trusting(webConfig string) (*tls.Config, error) {
	if webConfig == "" {
		return nil, nil
	}
	text, err := os.ReadFile(webConfig)
	if err != nil {
		return nil, err
	}
	var web struct {
		TLS *struct {
			Cert     string `yaml:"cert"`
			CertFile string `yaml:"cert_file"`
		} `yaml:"tls_server_config"`
	}
	if err := yaml.Unmarshal(text, &web); err != nil {
		return nil, err
	}
	if web.TLS == nil || web.TLS.Cert+web.TLS.CertFile == "" {
		return nil, nil
	}
	certificate := []byte(web.TLS.Cert)
	if file := web.TLS.CertFile; file != "" {
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(webConfig), file)
		}
		if certificate, err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	return pinned(certificate)
}

func pinned(certificate []byte) (*tls.Config, error) {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return nil, errors.New("the certificate is no PEM")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the certificate: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	roots.AppendCertsFromPEM(certificate)
	c := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	switch {
	case len(leaf.DNSNames) > 0:
		c.ServerName = strings.Replace(leaf.DNSNames[0], "*", "any", 1)
	case len(leaf.IPAddresses) > 0:
		c.ServerName = leaf.IPAddresses[0].String()
	}
	return c, nil
}

// maxAnswer bounds what is read of an answer, or of a report, in bytes.
const maxAnswer = 64 << 20

// call makes one request of the daemon's API.
func (d *daemonClient) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if d.user != "" {
		req.SetBasicAuth(d.user, d.password)
	}
	res, err := d.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close() // it was only read
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s%s", req.URL.Redacted(), res.Status, alerts.Escape(strings.TrimSpace(string(answer[:min(len(answer), 500)]))), locked(res.StatusCode))
	}
	return answer, err
}

func locked(status int) string {
	if status == http.StatusUnauthorized {
		return " (--user and --password-file log in)"
	}
	return ""
}

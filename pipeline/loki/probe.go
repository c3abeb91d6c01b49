package loki

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/golang/snappy"
)

// Probe pushes nothing to Loki: a request without a stream, whose refusal tells that the address is right and that
// pushes are let in. The error tells what a push would meet.
func Probe(ctx context.Context, cfg Config) (found string, err error) {
	url, err := cfg.endpoint()
	if err != nil {
		return "", err
	}
	client, err := cfg.client()
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections()
	s := &Shipper{cfg: cfg, url: url, client: client}
	status, header, text, err := s.do(ctx, http.MethodPost, url, snappy.Encode(nil, nil))
	if err != nil {
		return "", err
	}
	a := classify(status, header, string(text), time.Time{})
	switch {
	case a.verdict == stored, status == http.StatusUnprocessableEntity,
		status == http.StatusBadRequest && strings.Contains(a.text, "at least one"):
		return s.safeURL() + " takes pushes", nil
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return "", fmt.Errorf("%s answered %d %s: tenant_id, basic_auth or bearer_token is missing or wrong", s.safeURL(), status, firstLine(a.text))
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status == http.StatusOK:
		return "", fmt.Errorf("%s answered %d, which is not Loki's push API: url is https://host, or with the whole path to the push API", s.safeURL(), status)
	}
	return "", fmt.Errorf("%s answered %d %s", s.safeURL(), status, firstLine(a.text))
}

// firstLine cuts an answer to what fits in a table.
func firstLine(s string) string {
	const most = 160 // bytes
	s, _, _ = strings.Cut(s, "\n")
	return strings.ToValidUTF8(s[:min(len(s), most)], "?")
}

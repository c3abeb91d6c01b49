package notify

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 64 << 10

// maxWait bounds how long a receiver may ask to be left alone: a page is not held back for a day by one header.
const maxWait = 10 * time.Minute

// errTurnedAway marks an answer that speaks of squall's credentials or of the address, not of the alert: somebody has
// to correct it, and what is owed waits for that.
var errTurnedAway = errors.New("is the address right, are the credentials?")

// turnedAwayWait is how long to wait before one that turned squall away is asked again, and the log told again.
const turnedAwayWait = time.Minute

// judge says what an answer means for a retry.
func judge(status int, wait time.Duration) error {
	switch {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= 500:
		err := fmt.Errorf("answered %d", status)
		if wait > 0 {
			return &waitError{err, wait}
		}
		return err
	case status >= 300 && status < 400, status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound,
		status == http.StatusProxyAuthRequired:
		return &waitError{fmt.Errorf("answered %d: %w", status, errTurnedAway), turnedAwayWait}
	}
	return fmt.Errorf("answered %d: %w", status, alerts.ErrPermanent)
}

// waitError is an answer that says when to come again.
type waitError struct {
	error
	wait time.Duration
}

func (e *waitError) Unwrap() error { return e.error }

// askedToWait is how long the receiver asked to be left alone.
func askedToWait(err error) time.Duration {
	var w *waitError
	if errors.As(err, &w) {
		return w.wait
	}
	return 0
}

// retryAfter reads the header of that name: seconds, or a time by the receiver's own clock.
func retryAfter(h http.Header) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, maxWait)
	}
	at, err := http.ParseTime(text)
	now, err2 := http.ParseTime(h.Get("Date"))
	if err != nil || err2 != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxWait)
}

// refusal is an error of a batch of which some alerts were refused and the others taken.
type refusal struct {
	error
	alerts []string // their identities
}

func (e *refusal) Unwrap() error { return e.error }

// refusedOf gives the identities of those alerts of a batch that were not taken.
func refusedOf(err error, batch []alerts.Alert) []string {
	if err == nil {
		return nil
	}
	var r *refusal
	if errors.As(err, &r) && errors.Is(err, alerts.ErrPermanent) {
		return r.alerts
	}
	all := make([]string, len(batch))
	for i := range batch {
		all[i] = identity(&batch[i])
	}
	return all
}

// joined is one error of several: permanent only when all are, so that a retry is not left out.
func joined(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	for _, err := range errs {
		if !errors.Is(err, alerts.ErrPermanent) {
			return err
		}
	}
	return errors.Join(errs...)
}

// scrubbed is an error whose text holds nothing of an address but its host.
type scrubbed struct {
	text string
	err  error
}

func (e *scrubbed) Error() string { return e.text }
func (e *scrubbed) Unwrap() error { return e.err }

// scrub takes an address out of an error of the HTTP client. What is behind the host of a webhook is often its only
// secret, and a redirect or a proxy may repeat it.
func scrub(err error, address *url.URL) error {
	for u := (*url.Error)(nil); errors.As(err, &u); u = nil {
		err = u.Err
	}
	text := err.Error()
	password, _ := address.User.Password()
	secrets := []string{
		address.String(), address.RequestURI(), address.User.String(), address.RawQuery, address.EscapedPath(), address.Path, password,
	}
	slices.SortStableFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, s := range secrets {
		if len(s) > 1 {
			text = strings.ReplaceAll(text, s, "…")
		}
	}
	return &scrubbed{text, err}
}

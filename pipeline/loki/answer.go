package loki

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A verdict is what an answer of Loki means for a push. (Measured on Loki 3.7.6.)
type verdict int

const (
	stored   verdict = iota // all of it
	partly                  // all but the entries that the answer names
	busy                    // later, the same bytes
	tooMuch                 // later, and smaller if that goes on
	limited                 // the stream must wait, others need not
	tooLarge                // smaller
	broken                  // the server fails; a push that it can never take looks the same
	unread                  // the whole push could not be understood
	held                    // the address, the rights or the proxy are wrong: later, and people must know
)

var verdictNames = [...]string{
	"stored", "partly", "busy", "rate_limited", "stream_limited", "too_large", "server_error", "unread", "held",
}

func (v verdict) String() string { return verdictNames[v] }

// An answer is what a push got.
type answer struct {
	verdict verdict
	status  int // 0: none
	text    string
	after   time.Duration // Retry-After
}

const maxAnswer = 1 << 20 // bytes that are read of one: a sentence for each second and stream that was refused

const (
	signStreamLimit = "maximum active stream limit exceeded"
	signStreamRate  = "Per stream rate limit exceeded"
)

// classify tells what an answer means.
func classify(status int, header http.Header, body string, now time.Time) answer {
	a := answer{status: status, text: strings.TrimSpace(body), after: retryAfter(header.Get("Retry-After"), now)}
	switch {
	case status == http.StatusNoContent:
		a.verdict = stored
	case status == http.StatusOK:
		// A login page answers 200 too, and so do gateways that tell of an error.
		if a.verdict = held; a.text == "" || (a.text[0] == '{' || a.text[0] == '[') && !strings.Contains(a.text, `"error"`) {
			a.verdict = stored
		}
	case status == http.StatusTooManyRequests:
		a.verdict = tooMuch
		if strings.Contains(a.text, signStreamLimit) || strings.Contains(a.text, signStreamRate) {
			a.verdict = limited
		}
	case status == http.StatusRequestTimeout:
		a.verdict = busy
	case status == http.StatusRequestEntityTooLarge:
		a.verdict = tooLarge
	case status == http.StatusBadRequest || status == http.StatusUnprocessableEntity:
		// A 400 that names entries has stored the others; another one refuses the whole.
		if a.verdict = unread; len(refusals(a.text)) > 0 {
			a.verdict = partly
		}
	case status >= 500:
		a.verdict = broken
	default:
		a.verdict = held
	}
	return a
}

func retryAfter(s string, now time.Time) time.Duration {
	if s == "" {
		return 0
	}
	if n, err := strconv.Atoi(s); err == nil {
		return min(max(time.Duration(n)*time.Second, 0), maxRetryAfter)
	}
	if t, err := http.ParseTime(s); err == nil {
		return min(max(t.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

const maxRetryAfter = 10 * time.Minute

package loki

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A verdict is what an answer of Loki means for a push. (Measured on Loki 3.7.6.)
type verdict int

const (
	stored   verdict = iota // all of it
	partly                  // all but the entries that the answer names
	plain                   // lines with structured metadata were refused, the rest is stored
	busy                    // later, the same bytes
	tooMuch                 // later, and smaller if that goes on
	tooLarge                // smaller
	broken                  // the server fails; a push that it can never take looks the same
	unread                  // the whole push could not be understood
	held                    // the address, the rights or the proxy are wrong: later, and people must know
)

var verdictNames = [...]string{"stored", "partly", "plain", "busy", "rate_limited", "too_large", "server_error", "unread", "held"}

func (v verdict) String() string { return verdictNames[v] }

// An answer is what a push got.
type answer struct {
	verdict verdict
	status  int // 0: none
	text    string
	after   time.Duration // Retry-After
}

const maxAnswer = 64 << 10 // bytes that are read of one

// classify tells what an answer means.
func classify(status int, header http.Header, body string, now time.Time) answer {
	a := answer{status: status, text: strings.TrimSpace(body), after: retryAfter(header.Get("Retry-After"), now)}
	switch {
	case status == http.StatusNoContent:
		a.verdict = stored
	case status == http.StatusOK:
		// A login page answers 200 too.
		if a.verdict = held; a.text == "" || a.text[0] == '{' || a.text[0] == '[' {
			a.verdict = stored
		}
	case status == http.StatusTooManyRequests:
		a.verdict = tooMuch
	case status == http.StatusRequestTimeout:
		a.verdict = busy
	case status == http.StatusRequestEntityTooLarge:
		a.verdict = tooLarge
	case status == http.StatusBadRequest || status == http.StatusUnprocessableEntity:
		a.verdict = classifyBad(a.text)
	case status >= 500:
		a.verdict = broken
	default:
		a.verdict = held
	}
	return a
}

// classifyBad tells a 400 that names entries, whose other entries are stored, from one that refuses the whole.
func classifyBad(text string) verdict {
	if strings.Contains(text, "structured metadata, but this feature is disallowed") ||
		strings.Contains(text, "allow_structured_metadata") {
		return plain
	}
	if len(refusals(text)) > 0 {
		return partly
	}
	return unread
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

// Why Loki refused lines: the values of a metric's label.
const (
	refusedTooOld   = "too_old"
	refusedTooNew   = "too_new"
	refusedBehind   = "too_far_behind"
	refusedTooLong  = "line_too_long"
	refusedLabels   = "labels"
	refusedMetadata = "structured_metadata"
	refusedOther    = "other"
	refusedUnread   = "unreadable" // refused alone, while a canary passed
	refusedServer   = "server_error"
	refusedTooLarge = "too_large"
)

var refusedReasons = []string{
	refusedTooOld, refusedTooNew, refusedBehind, refusedTooLong, refusedLabels, refusedMetadata, refusedOther,
	refusedUnread, refusedServer, refusedTooLarge,
}

// A refusal is one reason in a 400 that names entries.
type refusal struct {
	reason string
	count  int
	limit  int64 // bytes of a line, for line_too_long
	bound  int64 // ns: what is older (too_old, too_far_behind) or not older (too_new) is refused; 0: not told
}

// What Loki's sentences contain, most telling first.
var refusalSigns = []struct{ sign, reason string }{
	{"has timestamp too old", refusedTooOld},
	{"has timestamp too new", refusedTooNew},
	{"entry too far behind", refusedBehind},
	{"max entry size", refusedTooLong},
	{"label names; limit", refusedLabels},
	{"has label name too long", refusedLabels},
	{"has label value too long", refusedLabels},
	{"has duplicate label name", refusedLabels},
	{"too many structured metadata labels", refusedMetadata},
	{"has structured metadata too large", refusedMetadata},
	{"ignored, reason:", refusedOther},
}

// These look at answers that are errors, never at lines.
var (
	manyErrors   = regexp.MustCompile(`(\d+) errors? like: `)
	totalIgnored = regexp.MustCompile(`total ignored: (\d+) out of \d+`)
	oldestBound  = regexp.MustCompile(`oldest acceptable timestamp is: (\S+?Z)`)
	newTimestamp = regexp.MustCompile(`has timestamp too new: (\S+?Z)`)
	sizeLimit    = regexp.MustCompile(`max entry size '(\d+)' bytes`)
)

// refusals reads which entries a 400 names: "N errors like: …; M errors like: …", one sentence alone, or the list
// of an ingester with its total.
func refusals(text string) []refusal {
	var found []refusal
	parts := manyErrors.FindAllStringSubmatchIndex(text, -1)
	if len(parts) == 0 {
		if r, ok := readRefusal(text); ok {
			found = append(found, r)
		}
		return found
	}
	for i, part := range parts {
		end := len(text)
		if i+1 < len(parts) {
			end = parts[i+1][0]
		}
		r, ok := readRefusal(text[part[1]:end])
		if !ok {
			continue
		}
		if n, err := strconv.Atoi(text[part[2]:part[3]]); err == nil {
			r.count = n
		}
		found = append(found, r)
	}
	return found
}

func readRefusal(text string) (refusal, bool) {
	for _, s := range refusalSigns {
		if !strings.Contains(text, s.sign) {
			continue
		}
		r := refusal{reason: s.reason, count: 1}
		if totals := totalIgnored.FindAllStringSubmatch(text, -1); len(totals) > 0 {
			r.count = 0
			for _, t := range totals {
				n, _ := strconv.Atoi(t[1])
				r.count += n
			}
		}
		if m := sizeLimit.FindStringSubmatch(text); m != nil && s.reason == refusedTooLong {
			r.limit, _ = strconv.ParseInt(m[1], 10, 64)
		}
		bound := oldestBound
		if s.reason == refusedTooNew {
			bound = newTimestamp
		}
		if m := bound.FindStringSubmatch(text); m != nil {
			if t, err := time.Parse(time.RFC3339, m[1]); err == nil {
				r.bound = t.UnixNano()
			}
		}
		return r, true
	}
	return refusal{}, false
}

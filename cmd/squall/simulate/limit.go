package simulate

import (
	"slices"
	"strings"
)

// A Limit is nginx's limit_req over the client's address, without a burst's delay: what is over it gets 429 at once.
type Limit struct {
	Zone      string
	PerMinute float64
	Burst     int
	// URI exempts static files by $uri. Without it they are exempt by $request_uri, which keeps the query string, so
	// that a file with a version behind a question mark is no static file.
	URI    bool
	Exempt []string // addresses that are not counted
}

// limiter is a Limit at work: for each address a leaky bucket as ngx_http_limit_req_module keeps it, in thousandths.
type limiter struct {
	spec  Limit
	state map[string]bucket
}

type bucket struct{ excess, last int64 } // thousandths of a request; ms

func newLimiter(spec Limit) *limiter { return &limiter{spec: spec, state: map[string]bucket{}} }

var staticFiles = []string{".css", ".js", ".mjs", ".json", ".woff", ".woff2", ".ttf", ".png", ".jpg", ".webp", ".svg", ".ico"}

// counted tells whether the zone has a key for the request.
func (l *limiter) counted(r *request) bool {
	path := r.url.path
	if l.spec.URI {
		path, _, _ = strings.Cut(path, "?")
	}
	static := slices.ContainsFunc(staticFiles, func(end string) bool { return strings.HasSuffix(path, end) })
	return !static && !slices.Contains(l.spec.Exempt, r.client)
}

// pass asks the limiter, in order of time. A page that waits for a refused file becomes an error.
func (l *limiter) pass(r *request) bool {
	if r.internal || !l.counted(r) {
		return true
	}
	now := r.arrival / 1e6
	b, known := l.state[r.client]
	excess := int64(0)
	if known {
		excess = max(0, b.excess-int64(l.spec.PerMinute*1000/60)*(now-b.last)/1000+1000)
	}
	if excess > int64(l.spec.Burst)*1000 {
		r.limit, r.excess = "REJECTED", excess
		if r.page != nil {
			r.page.status = 500
		}
		return false
	}
	l.state[r.client] = bucket{excess, now}
	r.limit = "PASSED"
	return true
}

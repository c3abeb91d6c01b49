package simulate

import (
	"strconv"
	"strings"
	"time"
)

// cloudFront writes CloudFront's standard log: what the edge saw, hits included.
type cloudFront struct {
	second int64
	stamp  []byte
}

func newCloudFront(*time.Location) writer { return &cloudFront{second: -1} }

func (*cloudFront) header() string {
	return "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) " +
		"cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken x-forwarded-for ssl-protocol " +
		"ssl-cipher x-edge-response-result-type cs-protocol-version fle-status fle-encrypted-fields c-port time-to-first-byte " +
		"x-edge-detailed-result-type sc-content-type sc-content-len sc-range-start sc-range-end\n"
}

// logs: health checks of the origin do not pass the edge.
func (*cloudFront) logs(r *request) bool { return !r.internal }

// status is 000 for a client that left.
func (*cloudFront) status(r *request) int {
	if r.abandoned {
		return 0
	}
	return r.outcome()
}

// result gives x-edge-result-type and the detailed one.
func (c *cloudFront) result(r *request) (short, detailed string) {
	switch {
	case r.abandoned:
		return "Error", "ClientHungUpRequest"
	case c.status(r) >= 400:
		return "Error", "Error"
	case r.layer == Edge:
		return "Hit", "Hit"
	}
	return "Miss", "Miss"
}

var escapeSpaces = strings.NewReplacer(" ", "%20")

func (c *cloudFront) append(dst []byte, r *request) []byte {
	if s := r.end / 1e9; s != c.second {
		c.second = s
		c.stamp = time.Unix(s, 0).UTC().AppendFormat(c.stamp[:0], "2006-01-02\t15:04:05\t")
	}
	path, query, _ := strings.Cut(r.url.path, "?")
	short, detailed := c.result(r)
	tab := func(s string) { dst = append(append(dst, '\t'), s...) }
	dst = append(dst, c.stamp...)
	dst = append(dst, "DUB56-P1\t"...)
	dst = strconv.AppendInt(dst, int64(310+r.body()), 10)
	tab(r.client)
	tab(r.method)
	tab("d111111abcdef8.cloudfront.net")
	tab(path)
	status := c.status(r)
	dst = append(dst, '\t', byte('0'+status/100), byte('0'+status/10%10), byte('0'+status%10), '\t')
	dst = appendOr(dst, r.referer, "-")
	tab(escapeSpaces.Replace(r.agent))
	dst = append(dst, '\t')
	dst = appendOr(dst, query, "-")
	tab("-\t" + short)
	dst = append(dst, '\t')
	dst = appendHex(dst, r.random(4), 16)
	tab(r.site.Host)
	tab("https\t180\t")
	dst = appendMillis(dst, r.end-r.arrival)
	tab("-\tTLSv1.3\tTLS_AES_128_GCM_SHA256\t" + short)
	tab(r.proto())
	tab("-\t-\t")
	dst = strconv.AppendUint(dst, r.port(), 10)
	dst = append(dst, '\t')
	dst = appendMillis(dst, r.end-r.arrival)
	tab(detailed)
	return append(dst, "\ttext/html\t-\t-\t-\n"...)
}

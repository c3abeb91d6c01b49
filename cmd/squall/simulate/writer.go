package simulate

import (
	"maps"
	"slices"
	"strconv"
	"time"
)

// writer writes requests as lines of one format. It belongs to one run.
type writer interface {
	// logs tells whether such a balancer would write a line at all.
	logs(r *request) bool
	// status is what the line says.
	status(r *request) int
	// append appends the line with its \n.
	append(dst []byte, r *request) []byte
}

// formats holds one line a format. The names are those of package pipeline/format.
var formats = map[string]func(zone *time.Location) writer{
	"nginx":          newNginx,
	"nginx_extended": newNginxExtended,
	"ingress_nginx":  newIngressNginx,
	"alb":            newALB,
	"cloudfront_tsv": newCloudFront,
	"haproxy_http":   newHAProxy,
	"traefik_json":   newTraefik,
	"envoy_json":     newEnvoy,
	"caddy_json":     newCaddy,
}

// beside holds one line a format that tells of some requests, beside an access log.
var beside = map[string]func(zone *time.Location) writer{
	"nginx_error": newNginxError,
	"aws_waf":     newAWSWAF,
}

// Formats lists the formats that can be written, sorted.
func Formats() []string { return slices.Sorted(maps.Keys(formats)) }

// outcome is the status without the code for a client that left. nginx answers 502 when php-fpm's backlog is full
// and when php-fpm kills the request (request_terminate_timeout).
func (r *request) outcome() int {
	if r.refused || r.reclaimed {
		return 502
	}
	return r.status
}

// body is what was sent to the client, in bytes, without headers.
func (r *request) body() int {
	switch {
	case r.abandoned, r.method == "HEAD":
		return 0
	case r.refused, r.reclaimed:
		return 157
	}
	return r.bytes
}

// upstreamBody is what the application sent, in bytes: the error page is nginx's own.
func (r *request) upstreamBody() int {
	if r.refused || r.reclaimed {
		return 0
	}
	return r.body()
}

// appendMillis appends ns as seconds with three decimals, cut as nginx's and ALB's clocks cut.
func appendMillis(dst []byte, ns int64) []byte {
	ms := ns / 1e6
	dst = strconv.AppendInt(dst, ms/1000, 10)
	return append(dst, '.', byte('0'+ms/100%10), byte('0'+ms/10%10), byte('0'+ms%10))
}

func appendOr(dst []byte, s, absent string) []byte {
	if s == "" {
		s = absent
	}
	return append(dst, s...)
}

// appendHex appends n as digits hexadecimal digits.
func appendHex(dst []byte, n uint64, digits int) []byte {
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		dst = append(dst, "0123456789abcdef"[n>>shift&15])
	}
	return dst
}

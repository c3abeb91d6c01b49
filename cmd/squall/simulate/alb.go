package simulate

import (
	"strconv"
	"time"
)

// alb writes the access log of an AWS Application Load Balancer: 30 fields, the time in microseconds.
type alb struct {
	second int64
	stamp  []byte // the time to the second
}

func newALB(*time.Location) writer { return &alb{second: -1} }

// logs: an ALB does not log its own health checks.
func (a *alb) logs(r *request) bool { return !r.internal }

// status is 460 for a client that left.
func (a *alb) status(r *request) int {
	if r.abandoned {
		return 460
	}
	return r.outcome()
}

const (
	albName   = "app/shop-alb/50dc6c495c0c9188"
	albTarget = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/shop-web/73e2d6bc24d8a067"
	albCert   = "arn:aws:acm:eu-west-1:123456789012:certificate/12345678-1234-1234-1234-123456789012"
)

func (a *alb) appendTime(dst []byte, ns int64) []byte {
	if s := ns / 1e9; s != a.second {
		a.second = s
		a.stamp = time.Unix(s, 0).UTC().AppendFormat(a.stamp[:0], "2006-01-02T15:04:05.")
	}
	dst = append(dst, a.stamp...)
	us := ns / 1e3 % 1e6
	for unit := int64(1e5); unit > 0; unit /= 10 {
		dst = append(dst, byte('0'+us/unit%10))
	}
	return append(dst, 'Z')
}

func (a *alb) append(dst []byte, r *request) []byte {
	target := r.layer != Edge
	if r.proto() == "HTTP/2.0" {
		dst = append(dst, "h2 "...)
	} else {
		dst = append(dst, "https "...)
	}
	dst = a.appendTime(dst, r.end)
	dst = append(dst, " "+albName+" "...)
	dst = append(dst, r.client...)
	dst = append(dst, ':')
	dst = strconv.AppendUint(dst, r.port(), 10)
	dst = append(dst, ' ')
	dst = appendTarget(dst, r, target)
	dst = append(dst, ' ')
	dst = appendTimers(dst, r, target)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(a.status(r)), 10)
	dst = append(dst, ' ')
	dst = a.appendTargetStatus(dst, r, target)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(120+len(r.url.path)+len(r.agent)), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(sent(r)), 10)
	dst = append(dst, ` "`...)
	dst = append(dst, r.method...)
	dst = append(dst, " https://"...)
	dst = append(dst, r.site.Host...)
	dst = append(dst, ":443"...)
	dst = append(dst, r.url.path...)
	dst = append(dst, ' ')
	dst = append(dst, r.proto()...)
	dst = append(dst, `" "`...)
	dst = appendOr(dst, r.agent, "-")
	dst = append(dst, `" TLS_AES_128_GCM_SHA256 TLSv1.3 `...)
	return a.tail(dst, r, target)
}

// tail appends fields 17 to 30.
func (a *alb) tail(dst []byte, r *request, target bool) []byte {
	if target {
		dst = append(dst, albTarget...)
	} else {
		dst = append(dst, '-')
	}
	dst = append(dst, ` "Root=1-`...)
	dst = appendHex(dst, uint64(r.arrival/1e9), 8)
	dst = append(dst, '-')
	dst = appendHex(dst, r.random(4), 12)
	dst = appendHex(dst, r.random(5), 12)
	dst = append(dst, `" "`...)
	dst = append(dst, r.site.Host...)
	dst = append(dst, `" "`+albCert+`" 1 `...)
	dst = a.appendTime(dst, r.arrival)
	if target {
		dst = append(dst, ` "forward" "-" "-" "`...)
	} else {
		dst = append(dst, ` "waf" "-" "-" "`...)
	}
	dst = appendTarget(dst, r, target)
	dst = append(dst, `" "`...)
	dst = a.appendTargetStatus(dst, r, target)
	dst = append(dst, `" "-" "-" TID_`...)
	dst = appendHex(dst, r.random(6), 16)
	dst = appendHex(dst, r.random(7), 16)
	return append(dst, '\n')
}

func appendTarget(dst []byte, r *request, target bool) []byte {
	if !target {
		return append(dst, '-')
	}
	dst = append(dst, "10.0.0."...)
	dst = strconv.AppendUint(dst, 1+r.random(3)%2, 10)
	return append(dst, ":80"...)
}

// appendTimers appends fields 6 to 8. When the client left, the target never answered: -1, and the wait shows
// only between creation and time.
func appendTimers(dst []byte, r *request, target bool) []byte {
	switch {
	case !target:
		return append(dst, "-1 -1 -1"...)
	case r.abandoned:
		return append(dst, "0.000 -1 -1"...)
	}
	dst = append(dst, "0.000 "...)
	dst = appendMillis(dst, r.end-r.arrival)
	return append(dst, " 0.000"...)
}

func (a *alb) appendTargetStatus(dst []byte, r *request, target bool) []byte {
	if !target || r.abandoned {
		return append(dst, '-')
	}
	return strconv.AppendInt(dst, int64(a.status(r)), 10)
}

// sent is the body and some headers.
func sent(r *request) int {
	if r.abandoned {
		return 0
	}
	return 310 + r.body()
}

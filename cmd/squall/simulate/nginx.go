package simulate

import (
	"strconv"
	"time"
)

// nginx writes log_format combined. Its clock ticks in milliseconds, and request_time is the difference of two
// ticks.
type nginx struct {
	zone   *time.Location
	second int64
	local  []byte // $time_local of second
}

func newNginx(zone *time.Location) writer { return &nginx{zone: zone, second: -1} }

// logs: what the edge answered never came here.
func (n *nginx) logs(r *request) bool { return r.layer != Edge }

// status is 499 for a client that left (NGX_HTTP_CLIENT_CLOSED_REQUEST).
func (n *nginx) status(r *request) int {
	if r.abandoned {
		return 499
	}
	return r.outcome()
}

// took is $request_time in ns.
func took(r *request) int64 { return (r.end/1e6 - r.arrival/1e6) * 1e6 }

func (n *nginx) append(dst []byte, r *request) []byte { return append(n.combined(dst, r), '\n') }

func (n *nginx) combined(dst []byte, r *request) []byte {
	if s := r.end / 1e9; s != n.second {
		n.second = s
		n.local = time.Unix(s, 0).In(n.zone).AppendFormat(n.local[:0], "02/Jan/2006:15:04:05 -0700")
	}
	dst = append(dst, r.client...)
	dst = append(dst, " - - ["...)
	dst = append(dst, n.local...)
	dst = append(dst, `] "`...)
	dst = append(dst, r.method...)
	dst = append(dst, ' ')
	dst = append(dst, r.url.path...)
	dst = append(dst, ' ')
	dst = append(dst, r.proto()...)
	dst = append(dst, `" `...)
	dst = strconv.AppendInt(dst, int64(n.status(r)), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(r.body()), 10)
	dst = append(dst, ` "`...)
	dst = appendOr(dst, r.referer, "-")
	dst = append(dst, `" "`...)
	dst = appendOr(dst, r.agent, "-")
	return append(dst, '"')
}

// proto is HTTP/2 for people, HTTP/1.1 for machines.
func (r *request) proto() string {
	if r.kind == storm || r.kind == monitor {
		return "HTTP/1.1"
	}
	return "HTTP/2.0"
}

// appendUpstreamStatus appends $upstream_status: "-" when none was contacted or none came before the client left.
func (n *nginx) appendUpstreamStatus(dst []byte, r *request) []byte {
	if !r.reached() || r.abandoned {
		return append(dst, '-')
	}
	return strconv.AppendInt(dst, int64(n.status(r)), 10)
}

// appendUpstreamTime appends $upstream_response_time: for a client that left, how long it had waited.
func appendUpstreamTime(dst []byte, r *request) []byte {
	if !r.reached() {
		return append(dst, '-')
	}
	return appendMillis(dst, took(r))
}

// appendUpstream appends $upstream_addr: one of two tasks.
func appendUpstream(dst []byte, r *request) []byte {
	dst = append(dst, "10.42.0."...)
	dst = strconv.AppendUint(dst, 10+r.random(3)%2, 10)
	return append(dst, ":8080"...)
}

// nginxExtended writes the log_format that squall recommends: RecommendedNginx of package pipeline/format.
type nginxExtended struct{ nginx }

func newNginxExtended(zone *time.Location) writer {
	return &nginxExtended{nginx{zone: zone, second: -1}}
}

func (n *nginxExtended) append(dst []byte, r *request) []byte {
	dst = n.combined(dst, r)
	dst = append(dst, " msec="...)
	dst = appendMillis(dst, r.end)
	dst = append(dst, ` host="`...)
	dst = append(dst, r.site.Host...)
	dst = append(dst, `" xff="-" rt=`...)
	dst = appendMillis(dst, took(r))
	dst = append(dst, ` uaddr="`...)
	if r.reached() {
		dst = appendUpstream(dst, r)
	} else {
		dst = append(dst, '-')
	}
	dst = append(dst, `" us="`...)
	dst = n.appendUpstreamStatus(dst, r)
	dst = append(dst, `" urt="`...)
	dst = appendUpstreamTime(dst, r)
	dst = append(dst, `" ul="`...)
	if r.reached() {
		dst = strconv.AppendInt(dst, int64(r.upstreamBody()), 10)
	} else {
		dst = append(dst, '-')
	}
	dst = append(dst, `" cs=`...)
	dst = appendOr(dst, r.cache, "-")
	dst = append(dst, " lrs="...)
	dst = appendOr(dst, r.limit, "-")
	return append(dst, '\n')
}

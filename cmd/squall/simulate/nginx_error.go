package simulate

import (
	"strconv"
	"time"
)

// nginxError writes nginx's error log: a line for each request that limit_req refused.
type nginxError struct {
	zone   *time.Location
	second int64
	local  []byte
}

func newNginxError(zone *time.Location) writer { return &nginxError{zone: zone, second: -1} }

func (n *nginxError) logs(r *request) bool { return r.limited() && r.site.Limit != nil }

func (n *nginxError) status(r *request) int { return r.outcome() }

func (n *nginxError) append(dst []byte, r *request) []byte {
	if s := r.end / 1e9; s != n.second {
		n.second = s
		n.local = time.Unix(s, 0).In(n.zone).AppendFormat(n.local[:0], "2006/01/02 15:04:05")
	}
	dst = append(dst, n.local...)
	dst = append(dst, " [error] 31#31: *"...)
	dst = strconv.AppendUint(dst, r.seq, 10)
	dst = append(dst, " limiting requests, excess: "...)
	dst = appendMillis(dst, r.excess*1e6)
	dst = append(dst, ` by zone "`...)
	dst = append(dst, r.site.Limit.Zone...)
	dst = append(dst, `", client: `...)
	dst = append(dst, r.client...)
	dst = append(dst, ", server: "...)
	dst = append(dst, r.site.Host...)
	dst = append(dst, `, request: "`...)
	dst = append(dst, r.method...)
	dst = append(dst, ' ')
	dst = append(dst, r.url.path...)
	dst = append(dst, ' ')
	dst = append(dst, r.proto()...)
	dst = append(dst, `", host: "`...)
	dst = append(dst, r.site.Host...)
	return append(dst, "\"\n"...)
}

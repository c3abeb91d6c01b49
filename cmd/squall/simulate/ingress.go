package simulate

import (
	"strconv"
	"strings"
	"time"
)

// ingressNginx writes the log-format-upstream that ingress-nginx ships.
type ingressNginx struct {
	nginx
	names map[*siteRun]string
}

func newIngressNginx(zone *time.Location) writer {
	return &ingressNginx{nginx: nginx{zone: zone, second: -1}, names: map[*siteRun]string{}}
}

// upstream is the name of a site's backend: namespace-service-port.
func (n *ingressNginx) upstream(s *siteRun) string {
	name, ok := n.names[s]
	if !ok {
		name = "web-" + strings.NewReplacer(".", "-", ":", "-").Replace(s.Host) + "-80"
		n.names[s] = name
	}
	return name
}

func (n *ingressNginx) append(dst []byte, r *request) []byte {
	dst = n.combined(dst, r)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(180+len(r.url.path)+len(r.agent)), 10) // $request_length
	dst = append(dst, ' ')
	dst = appendMillis(dst, took(r))
	dst = append(dst, ` [`...)
	dst = append(dst, n.upstream(r.site)...)
	dst = append(dst, `] [] `...)
	if r.reached() {
		dst = appendUpstream(dst, r)
		dst = append(dst, ' ')
		dst = strconv.AppendInt(dst, int64(r.upstreamBody()), 10)
		dst = append(dst, ' ')
		dst = appendMillis(dst, took(r))
		dst = append(dst, ' ')
		dst = n.appendUpstreamStatus(dst, r)
	} else {
		dst = append(dst, "- - - -"...)
	}
	dst = append(dst, ' ')
	dst = appendHex(dst, r.random(4), 16)
	dst = appendHex(dst, r.random(5), 16)
	return append(dst, '\n')
}

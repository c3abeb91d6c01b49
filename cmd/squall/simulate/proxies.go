package simulate

import (
	"strconv"
	"time"
)

// haproxy writes option httplog with the Host and the User-Agent captured. Its time is when the request came; its
// clients that left are told by the termination state.
type haproxy struct{ zone *time.Location }

func newHAProxy(zone *time.Location) writer { return &haproxy{zone} }

func (h *haproxy) logs(r *request) bool { return r.layer != Edge }

// status of a request whose client left before the answer is -1.
func (h *haproxy) status(r *request) int {
	if r.abandoned {
		return -1
	}
	return r.outcome()
}

func (h *haproxy) append(dst []byte, r *request) []byte {
	ms := (r.end - r.arrival) / 1e6
	dst = append(dst, r.client...)
	dst = append(dst, ':')
	dst = strconv.AppendUint(dst, r.port(), 10)
	dst = append(dst, " ["...)
	dst = time.Unix(0, r.arrival).In(h.zone).AppendFormat(dst, "02/Jan/2006:15:04:05.000")
	dst = append(dst, "] fe_https~ "...)
	switch {
	case !r.reached():
		dst = append(dst, "fe_https/<NOSRV> 0/-1/-1/-1/"...)
	case r.abandoned:
		dst = append(dst, "be_app/app1 0/0/0/-1/"...)
	default:
		dst = append(dst, "be_app/app1 0/0/0/"...)
		dst = strconv.AppendInt(dst, ms, 10)
		dst = append(dst, '/')
	}
	dst = strconv.AppendInt(dst, ms, 10)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(h.status(r)), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(r.body()), 10)
	switch {
	case r.abandoned:
		dst = append(dst, " - - CH-- "...)
	case !r.reached():
		dst = append(dst, " - - LR-- "...)
	default:
		dst = append(dst, " - - ---- "...)
	}
	dst = append(dst, "9/9/8/8/0 0/0 {"...)
	dst = append(dst, r.site.Host...)
	dst = append(dst, '|')
	dst = append(dst, r.agent...)
	dst = append(dst, `} "`...)
	dst = append(dst, r.method...)
	dst = append(dst, ' ')
	dst = append(dst, r.url.path...)
	dst = append(dst, ' ')
	dst = append(dst, r.proto()...)
	return append(dst, "\"\n"...)
}

// traefik writes Traefik's access log as JSON with the headers Host, User-Agent and Referer kept.
type traefik struct{ zone *time.Location }

func newTraefik(zone *time.Location) writer { return &traefik{zone} }

func (t *traefik) logs(r *request) bool { return r.layer != Edge }

// status is 499 for a client that left.
func (t *traefik) status(r *request) int {
	if r.abandoned {
		return 499
	}
	return r.outcome()
}

func (t *traefik) append(dst []byte, r *request) []byte {
	took := r.end - r.arrival
	dst = append(dst, `{"ClientAddr":"`...)
	dst = appendAddress(dst, r)
	dst = append(dst, `","ClientHost":"`...)
	dst = append(dst, r.client...)
	dst = append(dst, `","DownstreamContentSize":`...)
	dst = strconv.AppendInt(dst, int64(r.body()), 10)
	dst = append(dst, `,"DownstreamStatus":`...)
	dst = strconv.AppendInt(dst, int64(t.status(r)), 10)
	dst = append(dst, `,"Duration":`...)
	dst = strconv.AppendInt(dst, took, 10)
	if r.reached() {
		dst = append(dst, `,"OriginDuration":`...)
		dst = strconv.AppendInt(dst, took, 10)
		dst = append(dst, `,"OriginStatus":`...)
		dst = strconv.AppendInt(dst, int64(t.status(r)), 10)
		dst = append(dst, `,"ServiceAddr":"10.42.0.10:8080","ServiceName":"shop@docker"`...)
	}
	dst = append(dst, `,"RequestHost":"`...)
	dst = append(dst, r.site.Host...)
	dst = append(dst, `","RequestMethod":"`...)
	dst = append(dst, r.method...)
	dst = append(dst, `","RequestPath":"`...)
	dst = append(dst, r.url.path...)
	dst = append(dst, `","RequestProtocol":"`...)
	dst = append(dst, r.proto()...)
	dst = append(dst, `","StartUTC":"`...)
	dst = time.Unix(0, r.arrival).UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","level":"info","msg":"","request_User-Agent":"`...)
	dst = append(dst, r.agent...)
	dst = append(dst, `","time":"`...)
	dst = time.Unix(0, r.end).In(t.zone).AppendFormat(dst, time.RFC3339)
	return append(dst, "\"}\n"...)
}

func appendAddress(dst []byte, r *request) []byte {
	v6 := len(r.client) > 4 && r.client[4] == ':'
	if v6 {
		dst = append(dst, '[')
	}
	dst = append(dst, r.client...)
	if v6 {
		dst = append(dst, ']')
	}
	dst = append(dst, ':')
	return strconv.AppendUint(dst, r.port(), 10)
}

// envoy writes Envoy's access log as JSON, in the fields that its documentation shows.
type envoy struct{}

func newEnvoy(*time.Location) writer { return envoy{} }

func (envoy) logs(r *request) bool { return r.layer != Edge }

// status is 0 for a client that left.
func (envoy) status(r *request) int {
	if r.abandoned {
		return 0
	}
	return r.outcome()
}

func (e envoy) append(dst []byte, r *request) []byte {
	ms := (r.end - r.arrival) / 1e6
	dst = append(dst, `{":authority":"`...)
	dst = append(dst, r.site.Host...)
	dst = append(dst, `","bytes_received":0,"bytes_sent":`...)
	dst = strconv.AppendInt(dst, int64(r.body()), 10)
	dst = append(dst, `,"downstream_remote_address":"`...)
	dst = appendAddress(dst, r)
	dst = append(dst, `","duration":`...)
	dst = strconv.AppendInt(dst, ms, 10)
	dst = append(dst, `,"method":"`...)
	dst = append(dst, r.method...)
	dst = append(dst, `","protocol":"`...)
	dst = append(dst, r.proto()...)
	dst = append(dst, `","response_code":`...)
	dst = strconv.AppendInt(dst, int64(e.status(r)), 10)
	switch {
	case r.abandoned:
		dst = append(dst, `,"response_code_details":"downstream_remote_disconnect","response_flags":"DC"`...)
	case !r.reached():
		dst = append(dst, `,"response_code_details":"direct_response","response_flags":"-"`...)
	default:
		dst = append(dst, `,"response_code_details":"via_upstream","response_flags":"-"`...)
	}
	dst = append(dst, `,"start_time":"`...)
	dst = time.Unix(0, r.arrival).UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
	if r.reached() {
		dst = append(dst, `","upstream_cluster":"shop","upstream_host":"10.42.0.10:8080","x-envoy-upstream-service-time":`...)
		if r.abandoned {
			dst = append(dst, "null"...)
		} else {
			dst = append(strconv.AppendInt(append(dst, '"'), ms, 10), '"')
		}
	} else {
		dst = append(dst, `","upstream_cluster":null,"upstream_host":null,"x-envoy-upstream-service-time":null`...)
	}
	dst = append(dst, `,"user-agent":"`...)
	dst = append(dst, r.agent...)
	dst = append(dst, `","x-envoy-origin-path":"`...)
	dst = append(dst, r.url.path...)
	return append(dst, "\"}\n"...)
}

// caddy writes Caddy's access log. It has no code for a client that left: it logs 0 for one to whom nothing was sent.
type caddy struct{}

func newCaddy(*time.Location) writer { return caddy{} }

func (caddy) logs(r *request) bool { return r.layer != Edge }

func (caddy) status(r *request) int {
	if r.abandoned {
		return 0
	}
	return r.outcome()
}

func (c caddy) append(dst []byte, r *request) []byte {
	dst = append(dst, `{"level":"info","ts":`...)
	dst = strconv.AppendInt(dst, r.end/1e9, 10)
	dst = append(dst, '.')
	dst = strconv.AppendInt(dst, 1e6+r.end/1e3%1e6, 10) // six digits behind a one that goes
	at := len(dst) - 7
	dst = append(dst[:at], dst[at+1:]...)
	dst = append(dst, `,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"`...)
	dst = append(dst, r.client...)
	dst = append(dst, `","remote_port":"`...)
	dst = strconv.AppendUint(dst, r.port(), 10)
	dst = append(dst, `","client_ip":"`...)
	dst = append(dst, r.client...)
	dst = append(dst, `","proto":"`...)
	dst = append(dst, r.proto()...)
	dst = append(dst, `","method":"`...)
	dst = append(dst, r.method...)
	dst = append(dst, `","host":"`...)
	dst = append(dst, r.site.Host...)
	dst = append(dst, `","uri":"`...)
	dst = append(dst, r.url.path...)
	dst = append(dst, `","headers":{"User-Agent":["`...)
	dst = append(dst, r.agent...)
	dst = append(dst, `"]}},"bytes_read":0,"user_id":"","duration":`...)
	dst = appendMillis(dst, r.end-r.arrival)
	dst = append(dst, `,"size":`...)
	dst = strconv.AppendInt(dst, int64(r.body()), 10)
	dst = append(dst, `,"status":`...)
	dst = strconv.AppendInt(dst, int64(c.status(r)), 10)
	if r.reached() && !r.abandoned {
		return append(dst, ",\"resp_headers\":{\"Server\":[\"nginx\"],\"Via\":[\"1.1 Caddy\"]}}\n"...)
	}
	return append(dst, ",\"resp_headers\":{\"Server\":[\"Caddy\"]}}\n"...)
}

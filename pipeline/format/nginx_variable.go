package format

import (
	"bytes"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// A variable is what squall takes from one of nginx's variables.
type variable uint8

const (
	varSkip variable = iota
	varClient
	varGateway    // what stands between the client and this log: all that some logs know of the client
	varClientSaid // a JSON field that may be the peer or the client
	varForwarded
	varRealIP    // a header that stands for X-Forwarded-For
	varProxyAddr // the client as the PROXY protocol says it
	varTimeLocal
	varTimeISO
	varMsec
	varTimeAny // a JSON field named time: the kind is seen from the value
	varRequest
	varMethod
	varURI
	varRequestURI
	varURIAny // a JSON field named uri or path: the request's or nginx's own
	varArgs
	varIsArgs
	varProto
	varStatus
	varBodyBytes
	varBytes
	varReferer
	varAgent
	varHost
	varHTTPHost
	varServerName
	varRequestTime
	varUpstreamAddr
	varUpstreamStatus
	varUpstreamTime
	varUpstreamOther // connect and header times: a list of no further use
	varUpstreamLength
	varCache
	varLimit
	varUpstreamName
	varContentType
	varUser // the name that the client gave itself
	varPeer // who opened the connection, where varClient is what the server made of it
)

// variables gives what is known of nginx's variables (nginx.org/en/docs/varindex.html) and of
// ingress-nginx's own. Others are passed over.
var variables = map[string]variable{
	"remote_addr": varClient, "binary_remote_addr": varSkip, "remote_user": varUser, "the_real_ip": varForwarded,
	"realip_remote_addr": varPeer, "http_x_forwarded_for": varForwarded, "proxy_add_x_forwarded_for": varForwarded,
	"http_cf_connecting_ip": varRealIP, "http_true_client_ip": varRealIP, "http_x_real_ip": varRealIP,
	"proxy_protocol_addr": varProxyAddr,
	"time_local":          varTimeLocal, "time_iso8601": varTimeISO, "msec": varMsec,
	"request": varRequest, "request_method": varMethod, "uri": varURI, "document_uri": varURI,
	"request_uri": varRequestURI, "args": varArgs, "query_string": varArgs, "is_args": varIsArgs,
	"server_protocol": varProto, "status": varStatus,
	"body_bytes_sent": varBodyBytes, "bytes_sent": varBytes,
	"http_referer": varReferer, "http_user_agent": varAgent,
	"host": varHost, "http_host": varHTTPHost, "server_name": varServerName, "ssl_server_name": varServerName,
	"request_time": varRequestTime, "upstream_addr": varUpstreamAddr, "upstream_status": varUpstreamStatus,
	"upstream_response_time": varUpstreamTime, "upstream_connect_time": varUpstreamOther,
	"upstream_header_time": varUpstreamOther, "upstream_queue_time": varUpstreamOther,
	"upstream_first_byte_time": varUpstreamOther, "upstream_session_time": varUpstreamTime,
	"upstream_bytes_sent": varUpstreamOther, "upstream_bytes_received": varUpstreamOther,
	"upstream_response_length": varUpstreamLength, "upstream_cache_status": varCache, "srcache_fetch_status": varSkip,
	"limit_req_status": varLimit, "limit_conn_status": varLimit,
	"proxy_upstream_name": varUpstreamName, "proxy_host": varUpstreamName, "proxy_alternative_upstream_name": varSkip,
	"sent_http_content_type": varContentType, "upstream_http_content_type": varContentType,
	"upstream_cache_age": varSkip,
}

// variableOf finds a variable by its name in nginx.conf. Lists of unknown upstream values keep being lists.
func variableOf(name string) variable {
	v, known := variables[name]
	if !known && strings.HasPrefix(name, "upstream_") && !strings.HasPrefix(name, "upstream_http_") {
		return varUpstreamOther
	}
	return v
}

// isList tells whether nginx prints a list with ", " and " : " for the variable.
func (v variable) isList() bool {
	switch v {
	case varUpstreamAddr, varUpstreamStatus, varUpstreamTime, varUpstreamOther, varUpstreamLength:
		return true
	}
	return false
}

// isIdle tells whether nothing of a Record comes from the variable.
func (v variable) isIdle() bool { return v == varSkip || v == varUser }

// isShort tells whether nginx itself bounds the variable's length.
func (v variable) isShort() bool {
	switch v {
	case varClient, varGateway, varProxyAddr, varPeer, varTimeLocal, varTimeISO, varMsec, varStatus, varBodyBytes, varBytes, varRequestTime, varCache, varLimit, varProto:
		return true
	}
	return false
}

// A nginxRequest collects what one line says, until it is known how the parts decide on each other.
type nginxRequest struct {
	request, method, target, uri, args, proto []byte
	statuses, times, addrs, lengths           []byte
	hasRequest, hasArgs                       bool
	upstreamLogged, reached                   bool
	hostRank, timeRank, bytesRank             uint8
	limited                                   bool
	contentType                               []byte
	host                                      []byte
	clientSaid, realIP, proxyAddr             []byte
	user, peer                                []byte
	statusSeen                                bool
}

// nginxReader holds what reading nginx's values needs: clocks and memory. It belongs to one goroutine.
type nginxReader struct {
	clf   clfClock
	iso   isoClock
	mem   arena
	raw   bool // escape=none: nothing to undo
	plain bool // nor in the line at hand, which has no backslash
	exact bool // values are as nginx writes them: durations with a point, sizes never "-"
	req   nginxRequest
}

func (n *nginxReader) text(v []byte) []byte {
	if n.raw || n.plain {
		return text(v)
	}
	return text(n.mem.unescape(v))
}

// set takes the value of one variable. It returns a reason when the value cannot be one of that variable.
func (n *nginxReader) set(r *pipeline.Record, v variable, val []byte) pipeline.Reason {
	q := &n.req
	switch v {
	case varSkip, varUpstreamOther, varIsArgs:
	case varClient:
		return setClient(r, val)
	case varForwarded:
		if !absent(val) {
			r.Forwarded = n.text(val)
		}
	case varGateway:
		if !r.Client.IsValid() {
			r.Client, r.Claimed = addrOf(val), true
		}
	case varClientSaid:
		q.clientSaid = val
	case varRealIP:
		if !absent(val) {
			q.realIP, _, _ = bytes.Cut(n.text(val), []byte(","))
		}
	case varUser:
		q.user = val
	case varPeer:
		if !absent(val) {
			q.peer = val
		}
	case varProxyAddr:
		if !absent(val) {
			q.proxyAddr = val
		}
	case varTimeLocal, varTimeISO, varMsec, varTimeAny:
		return n.setTime(r, v, val)
	case varRequest:
		q.request, q.hasRequest = val, true
	case varMethod:
		q.method = val
	case varRequestURI:
		q.target = val
	case varURI:
		q.uri = val
	case varURIAny:
		if bytes.IndexByte(val, '?') >= 0 {
			q.target = val
		} else {
			q.uri = val
		}
	case varArgs:
		q.args, q.hasArgs = val, true
	case varProto:
		q.proto = val
	case varReferer:
		r.Referer = n.text(val)
	case varAgent:
		r.UserAgent = n.text(val)
	case varHost, varHTTPHost, varServerName:
		n.setHost(v, val)
	case varUpstreamAddr, varUpstreamStatus, varUpstreamTime, varUpstreamLength:
		n.setUpstream(v, val)
	case varCache:
		r.Cache = cacheOf(val)
	case varLimit:
		q.limited = q.limited || string(val) == "REJECTED"
	case varUpstreamName:
		if !absent(val) {
			r.Upstream = val
		}
	case varContentType:
		q.contentType = val
	case varStatus:
		return n.setStatus(r, val)
	case varBodyBytes, varBytes:
		return n.setBytes(r, v, val)
	case varRequestTime:
		return n.setRequestTime(r, val)
	}
	return ""
}

// finishClient puts the hops in order: a PROXY protocol's header was sent by the peer, and X-Forwarded-For by whom
// that header names. Other headers, and an application's own idea of the client, count where the log has no
// X-Forwarded-For, and as hearsay: proxies add to that alone, and pass the others on as the client sent them.
func (n *nginxReader) finishClient(r *pipeline.Record) pipeline.Reason {
	q := &n.req
	if said := q.clientSaid; said != nil {
		if !r.Client.IsValid() {
			if reason := setClient(r, said); reason != "" {
				return reason
			}
			r.Claimed = true
		} else if r.Forwarded == nil && addrOf(said).IsValid() {
			r.Forwarded, r.Hearsay = said, len(said)
		}
	}
	if r.Forwarded == nil {
		r.Forwarded, r.Hearsay = q.realIP, len(q.realIP)
	}
	n.finishPeer(r)
	switch {
	case q.proxyAddr == nil:
	case r.Forwarded == nil:
		r.Forwarded = q.proxyAddr
	default:
		list := append(n.mem.take(len(r.Forwarded)+2+len(q.proxyAddr)), r.Forwarded...)
		r.Forwarded = append(append(list, ", "...), q.proxyAddr...)
	}
	return ""
}

// finishPeer sets who opened the connection, where the log says it beside the client that the server put in its place
// (nginx's realip, Apache's mod_remoteip).
func (n *nginxReader) finishPeer(r *pipeline.Record) {
	if n.req.peer == nil {
		return
	}
	peer := addrOf(n.req.peer)
	switch {
	case !r.Client.IsValid():
		r.Client = peer
	case peer.IsValid():
		r.Peer = peer
	default: // a socket's: nobody can be asked about it
		r.Claimed = true
	}
}

// setClient reads the peer. Where a log_format puts X-Forwarded-For in its place, it may be a list: the
// rightmost is the hop that the nearest proxy saw.
func setClient(r *pipeline.Record, val []byte) pipeline.Reason {
	if r.Client, r.Claimed = addrOf(val), false; r.Client.IsValid() {
		return ""
	}
	if i := bytes.LastIndexByte(val, ' '); i >= 0 {
		if r.Client = addrOf(val[i+1:]); i == 0 || val[i-1] != ',' || !r.Client.IsValid() {
			return pipeline.ReasonNotAccess
		}
		r.Forwarded, r.Claimed = val, true
	}
	return ""
}

// setStatus reads $status. 000: none was set; 009: an HTTP/0.9 answer has none.
func (n *nginxReader) setStatus(r *pipeline.Record, val []byte) pipeline.Reason {
	n.req.statusSeen = true
	if absent(val) {
		r.Status = 0
		return ""
	}
	s, ok := uintOf(val)
	if !ok || s > 999 {
		return pipeline.ReasonMalformed
	}
	if s < 100 {
		s = 0
	}
	r.Status = uint16(s)
	return ""
}

// setBytes reads a size.
func (n *nginxReader) setBytes(r *pipeline.Record, v variable, val []byte) pipeline.Reason {
	if absent(val) && !(n.exact && len(val) > 0) {
		return ""
	}
	b, ok := uintOf(val)
	if !ok {
		return pipeline.ReasonMalformed
	}
	if rank := rankOfBytes(v); rank >= n.req.bytesRank {
		r.Bytes, n.req.bytesRank = b, rank
	}
	return ""
}

// setRequestTime reads $request_time.
func (n *nginxReader) setRequestTime(r *pipeline.Record, val []byte) pipeline.Reason {
	if absent(val) {
		return ""
	}
	t, ok := span(val)
	if !ok || n.exact && bytes.IndexByte(val, '.') < 0 {
		return pipeline.ReasonMalformed
	}
	r.RequestTime = t
	return ""
}

// rankOfBytes puts the size of the body before that of the whole response.
func rankOfBytes(v variable) uint8 { return uint8(varBytes-v) + 1 }

// setTime keeps the finest of the times that a line holds.
func (n *nginxReader) setTime(r *pipeline.Record, v variable, val []byte) pipeline.Reason {
	if v == varTimeAny {
		v = timeKind(val)
	}
	var t int64
	var ok bool
	rank, resolution := uint8(1), int64(1e9)
	switch v {
	case varTimeLocal:
		t, ok = n.clf.parse(val)
	case varTimeISO:
		t, ok = n.iso.parse(val)
		if len(val) > isoLen && (val[isoLen] == '.' || val[isoLen] == ',') {
			rank, resolution = 2, fractionStep(val[isoLen+1:])
		}
	default:
		t, ok = nanos(val)
		if i := bytes.IndexByte(val, '.'); i >= 0 {
			rank, resolution = 3, fractionStep(val[i+1:])
		}
	}
	if !ok {
		return pipeline.ReasonBadTime
	}
	if rank >= n.req.timeRank {
		r.Time, r.Resolution, n.req.timeRank = t, resolution, rank
	}
	return ""
}

// fractionStep gives the step in ns of a fraction with the digits at the start of s.
func fractionStep(s []byte) int64 {
	step := int64(1e9)
	for _, c := range s {
		if c < '0' || c > '9' || step == 1 {
			break
		}
		step /= 10
	}
	return step
}

func timeKind(val []byte) variable {
	switch {
	case len(val) > 2 && val[2] == '/':
		return varTimeLocal
	case len(val) > 4 && val[4] == '-':
		return varTimeISO
	}
	return varMsec
}

func (n *nginxReader) setHost(v variable, val []byte) {
	if absent(val) || len(val) == 1 && val[0] == '_' {
		return
	}
	if rank := uint8(varServerName-v) + 1; rank >= n.req.hostRank {
		n.req.host, n.req.hostRank = hostOf(val), rank
	}
}

// setUpstream keeps a list. Any value but "-" in one of the lists shows that an upstream was chosen.
func (n *nginxReader) setUpstream(v variable, val []byte) {
	q := &n.req
	q.upstreamLogged = true
	switch v {
	case varUpstreamAddr:
		q.addrs = val
	case varUpstreamStatus:
		q.statuses = val
	case varUpstreamTime:
		q.times = val
	case varUpstreamLength:
		q.lengths = val
	}
	if !q.reached && !onlyDashes(val) {
		q.reached = true
	}
}

func onlyDashes(list []byte) bool {
	for _, c := range list {
		switch c {
		case '-', ' ', ',', ':':
		default:
			return false
		}
	}
	return true
}

// cacheOf reads $upstream_cache_status.
func cacheOf(v []byte) pipeline.CacheStatus {
	switch string(v) {
	case "HIT":
		return pipeline.CacheHit
	case "MISS":
		return pipeline.CacheMiss
	case "EXPIRED":
		return pipeline.CacheExpired
	case "STALE":
		return pipeline.CacheStale
	case "UPDATING":
		return pipeline.CacheUpdating
	case "REVALIDATED":
		return pipeline.CacheRevalidated
	case "BYPASS":
		return pipeline.CacheBypass
	}
	return pipeline.CacheUnsaid
}

// nextItem takes the first item off a list of nginx: items are parted by ", " and groups of them by " : ";
// a list may end in a separator.
func nextItem(list []byte) (item, rest []byte) {
	for i := 0; i+1 < len(list); i++ {
		switch {
		case list[i] == ',' && list[i+1] == ' ':
			return list[:i], list[i+2:]
		case list[i] == ' ' && list[i+1] == ':':
			rest = list[i+2:]
			if len(rest) > 0 && rest[0] == ' ' {
				rest = rest[1:]
			}
			return list[:i], rest
		}
	}
	return list, nil
}

// finish decides what the values mean together. It returns a reason when a list holds what cannot be.
func (n *nginxReader) finish(r *pipeline.Record) pipeline.Reason {
	q := &n.req
	n.finishRequest(r)
	if reason := n.finishClient(r); reason != "" {
		return reason
	}
	if q.hostRank > 0 {
		r.Host = q.host
	}
	if q.upstreamLogged {
		if reason := n.finishUpstream(r); reason != "" {
			return reason
		}
	}
	r.End, r.Start = r.Time, r.Time
	if r.RequestTime > 0 {
		r.Start = r.End - r.RequestTime
	}
	r.Limited = q.limited || r.Status == 429
	r.Streaming = r.Status == 101 || bytes.HasPrefix(q.contentType, eventStream) || bytes.HasPrefix(q.contentType, grpcType)
	r.Abandoned = n.abandoned(r)
	return ""
}

var (
	eventStream = []byte("text/event-stream")
	grpcType    = []byte("application/grpc")
)

func (n *nginxReader) finishRequest(r *pipeline.Record) {
	q := &n.req
	if q.hasRequest {
		if req := n.text(q.request); req != nil {
			setRequest(r, req)
		} else {
			r.Malformed = true
		}
		return
	}
	if absent(q.method) && absent(q.target) && absent(q.uri) {
		r.Malformed = q.method != nil || q.target != nil || q.uri != nil // logged, and nothing in it
		return
	}
	if !absent(q.method) {
		if r.Method = n.text(q.method); !isMethod(r.Method) {
			r.Malformed, r.Method = true, nil
			return
		}
	}
	if !absent(q.proto) {
		r.Proto = n.text(q.proto)
	}
	switch {
	case !absent(q.target):
		if !setTarget(r, n.text(q.target)) {
			r.Malformed, r.Path = true, nil
		}
	case !absent(q.uri):
		r.Path = n.text(q.uri) // decoded by nginx; the query is not part of it
		if q.hasArgs && !absent(q.args) {
			r.Query = n.text(q.args)
		}
	}
}

// finishUpstream reads the lists of statuses and times. Where no upstream was chosen they are empty.
func (n *nginxReader) finishUpstream(r *pipeline.Record) pipeline.Reason {
	q := &n.req
	r.Reached = pipeline.No
	if !q.reached { // the lists hold dashes, or nothing
		if r.Status == 499 && q.addrs == nil && q.times == nil {
			r.Reached = pipeline.Unsaid // whose answer was not waited for has no status
		}
		return ""
	}
	if q.addrs == nil || namesServer(q.addrs) {
		r.Reached = pipeline.Yes
	}
	if !absent(q.addrs) {
		r.Upstreams = q.addrs
	}
	if !readStatuses(r, q.statuses) || !readTimes(r, q.times) {
		return pipeline.ReasonMalformed
	}
	return ""
}

// maxTries is how many of a request's tries are listed; more are summed up, but not kept.
const maxTries = 64

func readStatuses(r *pipeline.Record, list []byte) bool {
	for len(list) > 0 {
		var item []byte
		item, list = nextItem(list)
		s, ok := int64(0), true
		if !absent(item) {
			s, ok = uintOf(item)
		}
		if !ok || s > 999 {
			return false
		}
		if len(r.UpstreamStatuses) < maxTries {
			r.UpstreamStatuses = append(r.UpstreamStatuses, uint16(s))
		}
	}
	return true
}

func readTimes(r *pipeline.Record, list []byte) bool {
	for len(list) > 0 {
		var item []byte
		item, list = nextItem(list)
		t := int64(pipeline.Unknown)
		if !absent(item) {
			var ok bool
			if t, ok = span(item); !ok {
				return false
			}
			r.UpstreamTime = min(max(r.UpstreamTime, 0)+t, maxSpan*maxTries)
		}
		if len(r.UpstreamTimes) < maxTries {
			r.UpstreamTimes = append(r.UpstreamTimes, t)
		}
	}
	return true
}

// namesServer tells whether one item of $upstream_addr is a server. When none was alive nginx prints the
// group's name, which has no port.
func namesServer(list []byte) bool {
	for len(list) > 0 {
		var item []byte
		item, list = nextItem(list)
		if bytes.IndexByte(item, ':') >= 0 {
			return true
		}
	}
	return false
}

// kernelBuffer is up to how many bytes of a body nginx may have handed to the kernel at once: a client that
// leaves in the middle of so little cannot be seen, and a smaller size is no sign of it.
const kernelBuffer = 16 << 10

// abandoned reads whether the client gave up. 499 says so. Some of nginx's silent forms cannot be told from
// a client that stayed, and are left unsaid: no status, 408, 400 without a byte (a client that left while
// sending its body), 200 without a body (proxy_ignore_client_abort), fewer bytes sent than the upstream gave.
func (n *nginxReader) abandoned(r *pipeline.Record) pipeline.Tri {
	switch r.Status {
	case 499:
		return pipeline.Yes
	case 0, 408:
		return pipeline.Unsaid
	case 400:
		if r.Bytes == 0 && !r.Malformed {
			return pipeline.Unsaid
		}
	case 200:
		if r.Bytes == 0 && string(r.Method) != "HEAD" {
			return pipeline.Unsaid
		}
	}
	if length := lastLength(n.req.lengths); length > kernelBuffer && r.Bytes >= 0 && r.Bytes < length &&
		string(r.Method) != "HEAD" {
		return pipeline.Unsaid
	}
	return pipeline.No
}

func lastLength(list []byte) int64 {
	last := int64(0)
	for len(list) > 0 {
		var item []byte
		item, list = nextItem(list)
		if n, ok := uintOf(item); ok {
			last = n
		}
	}
	return last
}

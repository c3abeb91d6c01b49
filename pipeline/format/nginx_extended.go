package format

import (
	"bytes"
	"sync"

	"github.com/squall-sre/squall/pipeline"
)

// knownLayouts are log_formats that are found often, tried in this order.
var knownLayouts = []string{
	Combined + ` "$http_x_forwarded_for"`, // the "main" format of nginx's packaged nginx.conf
	Combined + ` "$http_x_forwarded_for" $request_time`,
	Combined + ` "$http_x_forwarded_for" $request_time $upstream_response_time`,
	Combined + ` "$http_x_forwarded_for" $request_time $upstream_response_time $pipe`,
	Combined + ` $request_time`,
	Combined + ` $request_time $upstream_response_time`,
	Combined + ` $request_time $upstream_response_time $pipe`,
	Combined + ` "$request_time" "$upstream_response_time"`,
	`$host ` + Combined + ` "$http_x_forwarded_for" $request_time $upstream_response_time $pipe`,
	`$host ` + Combined + ` "$http_x_forwarded_for" $request_time $upstream_response_time`,
	`$host ` + Combined + ` "$http_x_forwarded_for"`,
	`$host ` + Combined + ` $request_time $upstream_response_time`,
	`$host ` + Combined + ` $request_time`,
	`$host ` + Combined,
	hostInside,
	hostInside + ` "$http_x_forwarded_for"`,
	`$remote_addr - $remote_user [$time_local] "$host" "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`,
	hostInside + ` $request_time`,
	hostInside + ` $request_time $upstream_response_time`,
	hostInside + ` "$http_x_forwarded_for" $request_time $upstream_response_time`,
	managerFront + `[Gzip $gzip_ratio] [Sent-to $server]` + managerEnd,
	`[$time_local] $status` + managerRequest + `[Gzip $gzip_ratio]` + managerEnd,
	`[$time_local] $remote_addr - $remote_user  "$host" "$request" "$status" $body_bytes_sent [$request_time s]  "$http_referer" "$http_user_agent"`,
	`$time_iso8601: $remote_addr $remote_user ($server_name) $host "$request" $status $body_bytes_sent [$request_time] "$http_referer" "$http_user_agent" "$http_x_forwarded_for"`,
	`$msec $request_time $remote_addr "$request" $status $body_bytes_sent`,
}

// Parts of layouts: the host stands before the request, as Apache's %V does for some; and nginx-proxy-manager's proxy and
// standard (docker/rootfs/etc/nginx/conf.d/include/log-proxy.conf).
const (
	hostInside = `$remote_addr - $remote_user [$time_local] $host "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`

	managerFront   = `[$time_local] $upstream_cache_status $upstream_status $status` + managerRequest
	managerRequest = ` - $request_method $scheme $host "$request_uri" [Client $remote_addr] [Length $body_bytes_sent] `
	managerEnd     = ` "$http_user_agent" "$http_referer"`
)

// pairKeys are the usual short names in a key=value tail, beside the variables' own. They follow NGINX
// Amplify's documented log_format and squall's RecommendedNginx.
var pairKeys = map[string]variable{
	"rt": varRequestTime, "uct": varUpstreamOther, "uht": varUpstreamOther, "urt": varUpstreamTime, "ut": varUpstreamTime,
	"us": varUpstreamStatus, "ua": varUpstreamAddr, "uaddr": varUpstreamAddr, "ul": varUpstreamLength,
	"cs": varCache, "cache": varCache, "lrs": varLimit, "sn": varServerName, "h": varHost, "vhost": varHost,
	"xff": varForwarded, "upstream": varUpstreamAddr, "ups": varUpstreamStatus, "cache_status": varCache,
	"upstream_time": varUpstreamTime,
}

// nginxKnown compiles combined and the known layouts once for all streams: reading changes none of them.
var nginxKnown = sync.OnceValues(func() ([]*layout, error) {
	return layouts(append([]string{Combined}, knownLayouts...))
})

// newNginxExtended reads combined lines with more behind (or before) them: a tail of key=value pairs in any
// order, or one of the layouts that are often found. A log_format takes the place of both.
func newNginxExtended(cfg Config) (pipeline.Format, error) {
	if cfg.LogFormat != "" {
		return newNginxLayout(cfg)
	}
	all, err := nginxKnown()
	if err != nil {
		return nil, err
	}
	f := &nginxExtended{combined: all[0], layouts: all[1:]}
	f.reader.iso.zone, f.reader.exact = cfg.Zone, true
	return f, nil
}

type nginxExtended struct {
	combined *layout
	layouts  []*layout
	reader   nginxReader
	guess    forwardedGuess // layouts name the fields by their places
	hosts    hostGuess      // and so does what stands before pairs
	last     int            // which layout fitted last
	keys     [maxKnownKeys]pairKey
}

// maxKnownKeys is for how many pairs of a line the key of the line before is tried first.
const maxKnownKeys = 24

// A pairKey is the key that stood at one place in the line before: the next line has the same there.
type pairKey struct {
	name []byte
	v    variable
}

// variable finds what the i-th pair's key means.
func (f *nginxExtended) variable(key []byte, i int) variable {
	if i >= maxKnownKeys {
		return pairVariable(key)
	}
	k := &f.keys[i]
	if k.name == nil || !bytes.Equal(k.name, key) {
		k.name, k.v = append(k.name[:0], key...), pairVariable(key)
	}
	return k.v
}

// Parse takes the pairs first, since they prove themselves.
func (f *nginxExtended) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	if isErrorLog(line) {
		fail(item, pipeline.ReasonNotAccess, skip)
		return
	}
	pos, reason := f.pairs(line, &item.Record)
	if reason == "" {
		item.Kind = pipeline.IsRecord
		return
	}
	for i := range f.layouts {
		k := (f.last + i) % len(f.layouts)
		item.Record.Reset()
		p, why := f.reader.parse(f.layouts[k], line, &item.Record)
		if why == "" {
			f.last = k
			f.guess.judge(&item.Record)
			item.Kind = pipeline.IsRecord
			return
		}
		if p > pos {
			pos, reason = p, why
		}
	}
	fail(item, reason, pos+skip)
}

// pairs reads combined and a tail of key=value and key="value".
func (f *nginxExtended) pairs(line []byte, r *pipeline.Record) (int, pipeline.Reason) {
	n := &f.reader
	n.req = nginxRequest{}
	pos, reason := f.combined.read(n, line, 0, r)
	if reason != "" {
		return pos, reason
	}
	if pos == len(line) {
		return pos, pipeline.ReasonFields
	}
	pos, host := f.beforePairs(line, pos, r)
	if pos == len(line) {
		return pos, pipeline.ReasonFields
	}
	guessed := r.Forwarded != nil
	for i := 0; pos < len(line); i++ {
		if line[pos] != ' ' {
			return pos, pipeline.ReasonFields
		}
		pos++
		equals := bytes.IndexByte(line[pos:], '=')
		if equals <= 0 || !isKey(line[pos:pos+equals]) {
			return pos, pipeline.ReasonFields
		}
		v := f.variable(line[pos:pos+equals], i)
		guessed = guessed && v != varForwarded
		pos += equals + 1
		start, end, next := pairValue(line, pos, v)
		if end < 0 {
			return pos, pipeline.ReasonTruncated
		}
		if reason := n.set(r, v, line[start:end]); reason != "" {
			return pos, reason
		}
		pos = next
	}
	if host != nil && f.hosts.judge(host) {
		n.set(r, varHTTPHost, host)
	}
	if reason = n.finish(r); reason == "" && guessed {
		f.guess.judge(r)
	}
	return pos, reason
}

// beforePairs takes the quoted X-Forwarded-For and host that NGINX Amplify's format has before its pairs.
func (f *nginxExtended) beforePairs(line []byte, pos int, r *pipeline.Record) (next int, host []byte) {
	for _, v := range [2]variable{varForwarded, varHTTPHost} {
		if !bytes.HasPrefix(line[pos:], []byte(` "`)) {
			break
		}
		end := closingQuote(line, pos+2)
		if end < 0 {
			break
		}
		if v == varHTTPHost {
			host = line[pos+2 : end]
		} else {
			f.reader.set(r, v, line[pos+2:end])
		}
		pos = end + 1
	}
	return pos, host
}

// pairValue finds the value behind an equals sign: quoted, a list, or a word.
func pairValue(line []byte, pos int, v variable) (start, end, next int) {
	if pos < len(line) && line[pos] == '"' {
		end = closingQuote(line, pos+1)
		return pos + 1, end, end + 1
	}
	if v.isList() {
		end = listEnd(line, pos)
		return pos, end, end
	}
	if i := bytes.IndexByte(line[pos:], ' '); i >= 0 {
		return pos, pos + i, pos + i
	}
	return pos, len(line), len(line)
}

func isKey(s []byte) bool {
	if len(s) > 64 {
		return false
	}
	for _, c := range s {
		if c != '_' && c != '-' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

func pairVariable(key []byte) variable {
	if v, ok := pairKeys[string(key)]; ok {
		return v
	}
	if v, ok := variables[string(key)]; ok {
		return v
	}
	return varSkip
}

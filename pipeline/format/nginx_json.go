package format

import (
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// jsonKeys are the keys that people give to nginx's variables, beside the variables' own names. A key that is
// not here, or means something else, needs the log_format.
var jsonKeys = map[string]variable{
	"time": varTimeAny, "@timestamp": varTimeAny, "timestamp": varTimeAny, "ts": varTimeAny, "date": varTimeAny,
	"datetime": varTimeAny, "time_local": varTimeAny, "time_iso8601": varTimeAny, "@time": varTimeAny,
	"client_ip": varClientSaid, "clientip": varClientSaid, "client": varClientSaid, "remote_ip": varClientSaid, "ip": varClientSaid,
	"remote": varClientSaid, "client_addr": varClientSaid, "remote_address": varClientSaid,
	"x_real_ip": varRealIP, "x-real-ip": varRealIP, "real_ip": varRealIP, "pp_addr": varProxyAddr,
	"xff": varForwarded, "x_forwarded_for": varForwarded, "x-forwarded-for": varForwarded, "x_forward_for": varForwarded, "x-forward-for": varForwarded,
	"method": varMethod, "verb": varMethod, "http_method": varMethod, "uri": varURIAny, "path": varURIAny, "url": varURIAny,
	"request_path": varURIAny, "query": varArgs, "request_query": varArgs,
	"request_proto": varProto, "proto": varProto, "protocol": varProto, "http_version": varProto,
	"status_code": varStatus, "response_code": varStatus, "code": varStatus, "http_status": varStatus, "response_status": varStatus,
	"bytes": varBodyBytes, "size": varBodyBytes, "bytes_out": varBytes, "body_bytes": varBodyBytes,
	"rt": varRequestTime, "duration": varRequestTime, "request_duration": varRequestTime,
	"urt": varUpstreamTime, "upstream_time": varUpstreamTime, "upstream_duration": varUpstreamTime,
	"us": varUpstreamStatus, "ups": varUpstreamStatus, "uaddr": varUpstreamAddr, "upstream": varUpstreamAddr,
	"uct": varUpstreamOther, "uht": varUpstreamOther, "ul": varUpstreamLength,
	"cs": varCache, "cache": varCache, "cache_status": varCache, "upstream_cache": varCache,
	"vhost": varHost, "domain": varHost, "server": varServerName, "hostname": varSkip,
	"ref": varReferer, "referer": varReferer, "referrer": varReferer, "http_referrer": varReferer,
	"ua": varAgent, "user_agent": varAgent, "agent": varAgent, "useragent": varAgent, "http_agent": varAgent,
	"lrs": varLimit, "limit": varLimit, "upstream_name": varUpstreamName,
}

// A jsonField is what stands in a key's value: one variable, or a text of several.
type jsonField struct {
	v    variable
	text *layout
}

// nginxObject reads JSON lines. Strings are read strictly: what a log_format without escape=json makes of a
// quote, or of an empty list, is not JSON, and is counted as such.
type nginxObject struct {
	fields map[string]jsonField // from the log_format; then come the usual names
	reader nginxReader
}

// newNginxJSON reads JSON with the usual key names, or those of the log_format.
func newNginxJSON(cfg Config) (pipeline.Format, error) {
	if cfg.LogFormat != "" {
		return newNginxLayout(cfg)
	}
	return newNginxObject(cfg, logFormat{})
}

func newNginxObject(cfg Config, f logFormat) (*nginxObject, error) {
	o := &nginxObject{}
	o.reader.iso.zone, o.reader.raw = cfg.Zone, true
	if f.text != "" {
		o.fields = templateFields(f.text)
	}
	return o, nil
}

// templateFields finds "key":"$value" and "key":$value in a log_format. It is lenient: the template is
// configuration that nginx accepted, and no JSON before the variables have values.
func templateFields(s string) map[string]jsonField {
	fields := map[string]jsonField{}
	for {
		_, rest, ok := strings.Cut(s, `"`)
		if !ok {
			return fields
		}
		key, rest, ok := strings.Cut(rest, `"`)
		if !ok {
			return fields
		}
		s = rest
		value, colon := strings.CutPrefix(strings.TrimLeft(rest, " \t\n"), ":")
		if !colon {
			continue
		}
		value = strings.TrimLeft(value, " \t\n")
		if inner, quoted := strings.CutPrefix(value, `"`); quoted {
			if value, s, ok = strings.Cut(inner, `"`); !ok {
				return fields
			}
		} else {
			end := strings.IndexAny(value, ",}{[")
			if end < 0 {
				end = len(value)
			}
			value, s = strings.TrimSpace(value[:end]), value[end:]
		}
		if field, ok := fieldOf(value); ok {
			fields[key] = field
		}
	}
}

func fieldOf(value string) (jsonField, bool) {
	if !strings.Contains(value, "$") {
		return jsonField{}, false
	}
	l, err := compile(logFormat{text: value, escape: "none"}) // the scanner has undone the escapes
	if err != nil {
		return jsonField{v: varSkip}, true
	}
	if e := l.elements; len(e) == 1 && len(l.head) == 0 && len(e[0].literal) == 0 {
		return jsonField{v: e[0].v}, true
	}
	return jsonField{text: l}, true
}

// Parse reads one object. The last of equal keys wins.
func (f *nginxObject) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	if line[0] != '{' {
		fail(item, pipeline.ReasonNotAccess, skip)
		return
	}
	n := &f.reader
	n.req = nginxRequest{}
	s := jsonScanner{text: line, mem: &n.mem}
	reason := f.object(&s, &item.Record, 1)
	if reason == "" && !s.end() {
		reason = s.bad
	}
	if reason == "" {
		reason = f.complete(&item.Record)
	}
	if reason == "" {
		reason = n.finish(&item.Record)
	}
	if reason != "" {
		fail(item, reason, s.pos+skip)
		return
	}
	item.Kind = pipeline.IsRecord
}

// maxNesting is how deep objects are looked into; deeper ones are passed over.
const maxNesting = 4

func (f *nginxObject) object(s *jsonScanner, r *pipeline.Record, depth int) pipeline.Reason {
	for more := s.open('{'); more; more = s.next('{') {
		key := s.key()
		if s.bad != "" {
			return s.bad
		}
		switch kind, val := s.scalar(); kind {
		case jsonNone:
			return s.bad
		case jsonObject:
			if f.fields == nil || depth == maxNesting {
				s.skip()
			} else if reason := f.object(s, r, depth+1); reason != "" {
				return reason
			}
		case jsonArray:
			s.skip()
		case jsonString, jsonNumber:
			if reason := f.set(r, key, val); reason != "" {
				return reason
			}
		}
	}
	return s.bad
}

func (f *nginxObject) set(r *pipeline.Record, key, val []byte) pipeline.Reason {
	field, mapped := f.fields[string(key)]
	switch {
	case mapped && field.text != nil:
		_, reason := field.text.read(&f.reader, val, 0, r)
		return reason
	case mapped:
		return f.reader.set(r, field.v, val)
	}
	v, known := jsonKeys[string(key)]
	if !known {
		v, known = variables[string(key)]
	}
	if !known {
		return ""
	}
	return f.reader.set(r, v, val)
}

// complete tells whether an object is a request: without a log_format it must hold a time, a status and the
// request, or any application's JSON would pass for one.
func (f *nginxObject) complete(r *pipeline.Record) pipeline.Reason {
	q := &f.reader.req
	if f.fields != nil {
		if q.statusSeen || q.hasRequest || q.target != nil || q.uri != nil {
			return ""
		}
		return pipeline.ReasonNotAccess
	}
	if r.Time == 0 || !q.statusSeen || !q.hasRequest && q.target == nil && q.uri == nil {
		return pipeline.ReasonNotAccess
	}
	return ""
}

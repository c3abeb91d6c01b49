package format

import (
	"fmt"
	"slices"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// Lacks tells what records will lack for what a log_format leaves out, and which of nginx's variables in it are unknown.
// f was made of cfg. It is empty where cfg has no log_format, or one with all that detection needs.
func Lacks(cfg Config, f pipeline.Format) (texts []string) {
	if cfg.LogFormat == "" {
		return nil
	}
	var layouts []*layout
	nginx := true
	switch f := f.(type) {
	case *nginxText:
		layouts = append(layouts, f.layout)
	case *nginxObject:
		for _, field := range f.fields {
			l := field.text
			if l == nil {
				l = &layout{elements: []element{{v: field.v}}}
			}
			layouts = append(layouts, l)
		}
	case *percentLines:
		nginx = false
		for _, l := range f.layouts {
			layouts = append(layouts, &l.layout)
		}
	default:
		return nil
	}
	for _, part := range []struct {
		anyOf []variable
		text  string
	}{
		{[]variable{varTimeLocal, varTimeISO, varMsec, varTimeAny}, "no time: lines get that of what wraps them, or else of when they were read"},
		{[]variable{varRequest, varURI, varRequestURI, varURIAny}, "no request: neither method nor path will be known, and no storm on a route"},
		{[]variable{varStatus}, "no status: no error, no limit and no client that gave up will be seen"},
	} {
		if !slices.ContainsFunc(layouts, func(l *layout) bool {
			return slices.ContainsFunc(l.elements, func(e element) bool { return slices.Contains(part.anyOf, e.v) })
		}) {
			texts = append(texts, part.text)
		}
	}
	if nginx {
		for _, name := range unknownVariables(cfg.LogFormat) {
			texts = append(texts, fmt.Sprintf("$%s is no variable of nginx's that squall knows: it is passed over", name))
		}
	}
	return texts
}

// unknownVariables gives the names in a log_format that nginx's modules do not have, in its order. A map or set of the
// configuration may make them.
func unknownVariables(text string) (names []string) {
	for s := text; s != ""; {
		name, rest := cutVariable(s)
		if name == "" {
			s = s[1:]
			continue
		}
		s = rest
		_, known := variables[name]
		known = known || idleVariables[name] || slices.ContainsFunc(variableFamilies, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if !known && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// variableFamilies begin the names of nginx's variables of which there are many.
var variableFamilies = []string{
	"http_", "sent_http_", "sent_trailer_", "upstream_", "cookie_", "arg_", "ssl_", "geoip_", "geoip2_", "tcpinfo_", "proxy_", "limit_",
	"realip_", "jwt_", "otel_", "opentelemetry_", "opentracing_", "fastcgi_", "secure_link", "session_", "quic", "http2", "http3", "date_",
}

// idleVariables are others of nginx's variables, and of ingress-nginx and F5's controller, from which nothing is taken.
var idleVariables = map[string]bool{
	"ancient_browser": true, "browser_name": true, "bytes_received": true, "connection": true, "connection_requests": true, "connection_time": true,
	"connections_active": true, "connections_reading": true, "connections_waiting": true, "connections_writing": true,
	"content_length": true, "content_type": true, "document_root": true, "gzip_ratio": true, "hostname": true, "https": true,
	"invalid_referer": true, "is_request_port": true, "memcached_key": true, "modern_browser": true, "msie": true, "nginx_version": true,
	"pid": true, "pipe": true, "protocol": true, "realpath_root": true, "remote_port": true, "request_body": true, "request_body_file": true,
	"request_completion": true, "request_filename": true, "request_id": true, "request_length": true, "scheme": true, "server_addr": true,
	"server_port": true, "slice_range": true, "spdy": true, "status_text": true, "uid_got": true, "uid_set": true, "uid_reset": true,
	"req_id": true, "namespace": true, "ingress_name": true, "service_name": true, "service_port": true, "location_path": true, "global_rate_limit_exceeding": true,
	"resource_name": true, "resource_type": true, "resource_namespace": true, "service": true, "pass_access_scheme": true, "pass_server_port": true,
	"best_http_host": true, "redirect_to_https": true, "the_real_port": true, "balancer_ewma_score": true, "lua_request": true,
}

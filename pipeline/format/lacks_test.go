package format

import (
	"strings"
	"testing"
)

func TestLacks(t *testing.T) {
	for _, c := range []struct{ kind, text, want string }{
		{"nginx", `$remote_addr $bogus`, "no time|no request|no status|$bogus is no"},
		{"nginx", Combined, ""},
		{"nginx", RecommendedNginx, ""},
		{"nginx", Combined + ` $request_length $connection $ssl_protocol $http_x_any $upstream_http_a $scheme`, ""},
		{"nginx", `$remote_addr [$time_local] $status`, "no request"},
		{"nginx", `{"t":"$time_iso8601","r":"$request_method $request_uri","s":"$status","x":"$statsu"}`, "$statsu is no"},
		{"nginx", `{"t":"$time_iso8601","s":"$status"}`, "no request"},
		{"apache", `%h "%r" %>s %b`, "no time"},
		{"apache", `%h %t "%m %U" %>s`, ""},
		{"php_fpm_access", `%R %t "%m %r%Q%q" %s`, ""},
		{"php_fpm_access", `%R %t %s`, "no request"},
	} {
		cfg := Config{Name: c.kind, LogFormat: c.text}
		f, err := New(cfg)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		got := Lacks(cfg, f)
		var want []string
		if c.want != "" {
			want = strings.Split(c.want, "|")
		}
		for i := range want {
			if len(got) != len(want) || !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s: %q, want %q", c.text, got, want)
				break
			}
		}
		if len(want) == 0 && len(got) > 0 {
			t.Errorf("%s: %q", c.text, got)
		}
	}
}

package format

import (
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

func TestJSONFields(t *testing.T) {
	f, err := New(Config{Name: "json", Fields: map[string]string{
		"time": "ts", "status": "code", "method": "req.method", "path": "req.uri", "query": "req.q", "host": "req.h",
		"client_ip": "req.headers.X-Real-IP", "request_time_ms": "took", "upstream_time_us": "up.took", "upstream_status": "up.code",
		"bytes": "n", "user_agent": "req.agent", "forwarded": "req.headers.X-Forwarded-For",
	}})
	if err != nil {
		t.Fatal(err)
	}
	item := parse(f, `{"took":12.5,"ts":"2026-03-29T00:26:24.5Z","status":"not this one","code":200,"n":"612","up":{"took":11000,"code":"502, 200"},`+
		`"req":{"method":"GET","uri":"/a","q":"x=1","h":"shop.example:8080","agent":"curl","deep":{"method":"POST"},`+
		`"headers":{"X-Real-IP":["203.0.113.7"],"X-Forwarded-For":"192.0.2.1"}}}`)
	want := `{"time":"2026-03-29T00:26:24.5Z","site":"shop.example","client_ip":"203.0.113.7","forwarded":"192.0.2.1",` +
		`"method":"GET","path":"/a","query":"x=1","proto":null,"status":200,"bytes":612,"request_time":0.0125,"upstream_time":0.011,` +
		`"upstream_statuses":[502,200],"reached_upstream":true,"cache_status":null,"referer":null,"user_agent":"curl","client_abandoned":false}` + "\n"
	if got := string(AppendJSON(nil, item)); got != want {
		t.Errorf("got  %swant %s%s at %d", got, want, item.Reason, item.Column)
	}
	for line, reason := range map[string]pipeline.Reason{
		`{"ts":"soon","code":200,"req":{"uri":"/a"}}`:                  pipeline.ReasonBadTime,
		`{"ts":"2026-03-29T00:26:24Z","code":2000,"req":{"uri":"/a"}}`: pipeline.ReasonMalformed,
		`{"level":"info","msg":"started"}`:                             pipeline.ReasonNotAccess,
		`{"ts":"2026-03-29T00:26:24Z","code":200`:                      pipeline.ReasonTruncated,
	} {
		if item := parse(f, line); item.Kind != pipeline.Failed || item.Reason != reason {
			t.Errorf("%s: %q, want %s", line, item.Reason, reason)
		}
	}
}

func TestJSONFieldsAreChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Name: "json", Fields: map[string]string{"statsu": "code"}}, `"statsu"`},
		{Config{Name: "json", Fields: map[string]string{"time_ms": "code"}}, `"time_ms"`},
		{Config{Name: "json", Fields: map[string]string{"request_time_h": "t"}}, `"request_time_h"`},
		{Config{Name: "json", Fields: map[string]string{"status": ""}}, "status"},
		{Config{Name: "json", Fields: map[string]string{"status": "a.b.c.d.e.f"}}, "a.b.c.d.e.f"},
		{Config{Name: "json", Fields: map[string]string{"status": "a", "bytes": "a"}}, "taken"},
		{Config{Name: "nginx_json", Fields: map[string]string{"status": "code"}}, "nginx_json"},
		{Config{Name: "json", DurationUnit: "minutes"}, "minutes"},
		{Config{Name: "caddy_json", DurationUnit: "sec"}, "sec"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want one that names %s", c.cfg, err, c.want)
		}
	}
}

// TestDurationUnit shows what the configuration settles: a number alone does not.
func TestDurationUnit(t *testing.T) {
	caddy := `{"level":"info","ts":1774743984.3,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"203.0.113.7","proto":"HTTP/2.0",` +
		`"method":"GET","host":"a","uri":"/"},"duration":D,"size":1,"status":200}`
	plain := `{"time":"2026-03-29T00:26:24Z","method":"GET","path":"/","status":200,"duration":D}`
	azure := `{"time":"2026-03-29T00:26:24Z","category":"ApplicationGatewayAccessLog","properties":{"httpMethod":"GET","requestUri":"/","httpStatus":200,"timeTaken":D}}`
	for _, c := range []struct {
		name, line, unit, value string
		want                    int64
	}{
		{"caddy_json", caddy, "", "0.107341", 107341e3},
		{"caddy_json", caddy, "s", "5", 5e9},
		{"caddy_json", caddy, "ms", "107.341", 107341e3},
		{"caddy_json", caddy, "ms", "0", 0},
		{"caddy_json", caddy, "ns", "50000", 50e3},
		{"caddy_json", caddy, "", "50000", pipeline.Unknown},
		{"caddy_json", caddy, "", "7.7e-05", 77e3},
		{"caddy_json", caddy, "", "-1", pipeline.Unknown},
		{"caddy_json", caddy, "", "1e99", pipeline.Unknown},
		{"json", plain, "", "12", pipeline.Unknown},
		{"json", plain, "ms", "12", 12e6},
		{"json", plain, "", "0.012", 12e6},
		{"json", plain, "us", `"12"`, 12e3},
		{"json", plain, "", `"12.5ms"`, 125e5},
		{"azure_appgw_json", azure, "", "12", 12e6},
		{"azure_appgw_json", azure, "", "0.012", 12e6},
		{"azure_appgw_json", azure, "s", "12", 12e9},
	} {
		f, err := New(Config{Name: c.name, DurationUnit: c.unit})
		if err != nil {
			t.Fatal(err)
		}
		item := parse(f, strings.Replace(c.line, "D", c.value, 1))
		if item.Kind != pipeline.IsRecord || item.Record.RequestTime != c.want {
			t.Errorf("%s, unit %q: %s became %d (%s), want %d", c.name, c.unit, c.value, item.Record.RequestTime, item.Reason, c.want)
		}
	}
}

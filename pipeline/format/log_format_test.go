package format

import (
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

func TestLogFormatSpellings(t *testing.T) {
	line := `203.0.113.7 "GET /a?b=c HTTP/1.1" 200`
	for _, spelling := range []string{
		`$remote_addr "$request" $status`,
		`${remote_addr} "${request}" ${status}`,
		`'$remote_addr "$request" $status'`,
		`'$remote_addr ' '"$request" $status'`,
		`log_format main '$remote_addr "$request" $status';`,
		"log_format  main\n    '$remote_addr '\n    '\"$request\" $status';",
		`log_format main escape=default "$remote_addr \"$request\" $status";`,
		`escape=default $remote_addr "$request" $status`,
	} {
		f, err := New(Config{LogFormat: spelling})
		if err != nil {
			t.Errorf("%s: %v", spelling, err)
			continue
		}
		item := parse(f, line)
		r := &item.Record
		if item.Kind != pipeline.IsRecord || string(r.Path) != "/a" || string(r.Query) != "b=c" || r.Status != 200 || r.Client.String() != "203.0.113.7" {
			t.Errorf("%s: %s at %d, %+v", spelling, item.Reason, item.Column, r)
		}
	}
}

func TestLogFormatErrors(t *testing.T) {
	for _, bad := range []string{
		"log_format main", "log_format main ;", "'$status", "escape=xml $status", "no variables", "$nothing $known",
		"'$status' x", "$remote_addr$status", "$status$other", "$other$status", "$uri$args", "escape=none $remote_addr$host$request_uri", strings.Repeat("$status ", maxElements+1),
	} {
		if _, err := New(Config{Name: "nginx", LogFormat: bad}); err == nil {
			t.Errorf("%.40q was accepted", bad)
		}
	}
}

// Over HTTP/2 Apache says X of clients that stayed as well.
func TestApacheTellsWhoLeft(t *testing.T) {
	for _, c := range []struct {
		proto, connection string
		left              pipeline.Tri
	}{
		{"HTTP/1.0", "X", pipeline.Yes}, {"HTTP/1.1", "X", pipeline.Yes}, {"HTTP/2.0", "X", pipeline.Unsaid},
		{"HTTP/1.1", "+", pipeline.No}, {"HTTP/1.1", "-", pipeline.No}, {"HTTP/2.0", "-", pipeline.No},
	} {
		for logFormat, line := range map[string]string{
			"":                    `shop.example:443 203.0.113.7 - - [28/Mar/2026:23:26:24 +0000] "GET /a ` + c.proto + `" 200 7 "-" "curl" 642 ` + c.connection,
			`%m %U %>s %X %H`:     "GET /a 200 " + c.connection + " " + c.proto,
			`%h "%r" %>s %X "%H"`: `203.0.113.7 "GET /a ` + c.proto + `" 200 ` + c.connection + ` "` + c.proto + `"`,
		} {
			f, err := New(Config{Name: "apache", LogFormat: logFormat})
			if err != nil {
				t.Fatal(err)
			}
			if item := parse(f, line); item.Kind != pipeline.IsRecord || item.Record.Abandoned != c.left {
				t.Errorf("%q %s: %s, left %v, not %v", logFormat, line, item.Reason, item.Record.Abandoned, c.left)
			}
		}
	}
}

// Two values that nothing parts cannot be told apart; a path, its question mark and its query can, and so can what is
// of no use.
func TestLogFormatTellsValuesApart(t *testing.T) {
	for _, c := range []struct{ kind, logFormat, told string }{
		{"nginx", "$remote_addr$status", "$remote_addr ends and $status begins"},
		{"apache", `%h%>s "%r"`, "%h ends and %>s begins"},
		{"php_fpm_access", `%R%{mili}d`, "%R ends and %{mili}d begins"},
		{"nginx", "$status $scheme://$host$request_uri $uri$is_args$args $pid$connection", ""},
		{"nginx", `{"a":"$remote_addr$status"}`, ""},
		{"apache", `%h %l%u %t %>s %U%q`, ""},
	} {
		_, err := New(Config{Name: c.kind, LogFormat: c.logFormat})
		if c.told == "" && err != nil || c.told != "" && (err == nil || !strings.Contains(err.Error(), c.told)) {
			t.Errorf("%s: %v", c.logFormat, err)
		}
	}
}

func TestLogFormatVariables(t *testing.T) {
	for _, c := range []struct{ logFormat, line, want string }{
		{`$msec $status`, `1774743984.706 200`, `"time":"2026-03-29T00:26:24.706Z"`},
		{`$time_iso8601 $status`, `2026-03-29T00:26:24+01:00 200`, `"time":"2026-03-28T23:26:24Z"`},
		{`$status "$request_method $uri $server_protocol"`, `200 "GET /a b HTTP/2.0"`, `"path":"/a b","query":null,"proto":"HTTP/2.0"`},
		{`$status $uri$is_args$args end`, `200 /a?b=c end`, `"path":"/a","query":"b=c"`},
		{`$status $uri$is_args$args end`, `200 /a end`, `"path":"/a","query":null`},
		{`$scheme://$host$request_uri $status`, `https://shop.example/a?b 200`, `"site":"shop.example"`},
		{`$status $limit_req_status`, `503 REJECTED`, `"limited":true`},
		{`$status $upstream_status`, `200 -`, `"reached_upstream":false`},
		{`$status $upstream_status`, `504 504, 504`, `"upstream_statuses":[504,504]`},
		{`$status $upstream_addr $upstream_response_time $x`, `499 10.0.0.1:80 1.500 y`, `"upstream_time":1.5`},
		{`$remote_addr $time_local $request $status`, `203.0.113.7 29/Mar/2026:00:26:24 +0100 GET /a b HTTP/1.1 200`, `"path":"/a b","query":null,"proto":"HTTP/1.1","status":200`},
		{`[$upstream_addr] $status`, `[10.0.0.1:80, 10.0.0.2:80] 200`, `"upstream_addrs":["10.0.0.1:80","10.0.0.2:80"]`},
		{`$status "$sent_http_content_type"`, `200 "text/event-stream; charset=utf-8"`, `"streaming":true`},
		{`$status $host $http_host $server_name`, `200 shop.example SHOP:8443 _`, `"site":"shop.example"`},
		{`$status $server_name`, `200 shop.example`, `"site":"shop.example"`},
		{`$status $bytes_sent $body_bytes_sent`, `200 900 612`, `"bytes":612`},
		{`$status "$http_x_forwarded_for"`, `200 "203.0.113.9, 10.0.0.1"`, `"forwarded":"203.0.113.9, 10.0.0.1"`},
		{`escape=json "$http_user_agent" $status`, `"a \"b\" \\ \u00e9" 200`, `"user_agent":"a \"b\" \\ é"`},
		{`escape=none $http_user_agent|$status`, `a\x22b|200`, `"user_agent":"a\\x22b"`},
		{`escape=json {"s":"$status","r":"$request","t":"$time_iso8601","l":[$pid]}`, `{"s":"200","r":"","t":"2026-03-29T00:26:24Z","l":[1]}`, `"malformed":true`},
	} {
		f, err := New(Config{LogFormat: c.logFormat})
		if err != nil {
			t.Errorf("%s: %v", c.logFormat, err)
			continue
		}
		item := parse(f, c.line)
		if got := string(AppendJSON(nil, item)); !strings.Contains(got, c.want) {
			t.Errorf("%s\n%s: %s at %d, %s\nwant %s", c.logFormat, c.line, item.Reason, item.Column, got, c.want)
		}
	}
}

// TestRecommendedFormat prints a line as nginx would and reads it by the family, by its own layout and by auto.
func TestRecommendedFormat(t *testing.T) {
	line := RecommendedNginx
	for name, value := range map[string]string{
		"$remote_addr": "203.0.113.7", "$remote_user": "-", "$time_local": "29/Mar/2026:01:26:24 +0100",
		"$request_time": "10.000", "$request": `HEAD /a?b=\x22c HTTP/1.1`, "$status": "499", "$body_bytes_sent": "0",
		"$http_referer": "-", "$http_user_agent": "scanner", "$msec": "1774743984.706", "$host": "shop.example",
		"$http_x_forwarded_for": "-", "$upstream_addr": "10.0.0.1:80, 10.0.0.2:80 : 10.0.0.3:80", "$upstream_status": "502, 504 : -",
		"$upstream_response_time": "1.000, 2.000 : 7.000", "$upstream_response_length": "0, 0 : 0",
		"$upstream_cache_status": "MISS", "$limit_req_status": "DELAYED",
	} {
		if name != "$request" {
			line = strings.ReplaceAll(line, name, value)
		}
	}
	line = strings.ReplaceAll(line, "$request", `HEAD /a?b=\x22c HTTP/1.1`)
	if strings.Contains(line, "$") {
		t.Fatalf("a variable has no value: %s", line)
	}
	want := ""
	for _, cfg := range []Config{{LogFormat: RecommendedNginx}, {Name: "nginx"}, {Name: "nginx_extended"}, {Name: "auto"}} {
		f, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		item := parse(f, line)
		r := &item.Record
		if item.Kind != pipeline.IsRecord || r.Abandoned != pipeline.Yes || r.Cache != pipeline.CacheMiss || r.Resolution != 1e6 ||
			r.UpstreamTime != 10e9 || len(r.UpstreamStatuses) != 3 || r.End-r.Start != 10e9 || string(r.Host) != "shop.example" {
			t.Errorf("%+v: %s at %d, %+v", cfg, item.Reason, item.Column, r)
		}
		got := string(AppendJSON(nil, item))
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%s reads it differently:\n%s\n%s", cfg.Name, got, want)
		}
	}
}

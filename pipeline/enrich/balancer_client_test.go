package enrich_test

import (
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/enrich"
	"github.com/squall-sre/squall/pipeline/format"
)

// What a balancer's line says of the client: @PEER@ opened the connection, @XFF@ is the header, @LEFT@ and @LAST@ are
// its ends, which some balancers take for the client.
var balancerLines = []struct {
	name, log, line string
	claims          bool // nothing in the line proves who opened the connection
}{
	{"nginx", "", `@PEER@ - - [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 5 "-" "a" msec=1774743984.310 host="shop.example" xff="@XFF@" rt=0.107 uaddr="-" us="-" urt="-" ul="-" cs=- lrs=-`, false},
	{"nginx", `$remote_addr [$time_local] "$request" $status "$http_x_forwarded_for" "$http_x_real_ip"`, `@PEER@ [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 "@XFF@" "@LEFT@"`, false},
	{"nginx", `$remote_addr [$time_local] "$request" $status "$http_x_forwarded_for" $proxy_protocol_addr`, `10.0.0.1 [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 "@XFF@" @PEER@`, false},
	{"nginx_json", "", `{"time":"2026-03-29T00:26:24+00:00","remote_addr":"@PEER@","request":"GET / HTTP/1.1","status":200,"client_ip":"@LEFT@","x_real_ip":"@LEFT@","http_x_forwarded_for":"@XFF@"}`, false},
	{"nginx", "", `10.0.0.9, @XFF@, @PEER@ - - [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 5 "-" "a"`, true},
	{"nginx", `$http_x_forwarded_for - [$time_local] "$request" $status`, `@XFF@ - [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200`, true},
	{"ingress_nginx", "", `@PEER@ - [@XFF@] - - [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 5 "-" "a" 120 0.005 [shop-web-80] 10.2.0.1:80 5 0.005 200 cc21d9b0`, false},
	{"apache", "", `@PEER@ - - [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 5 "-" "a" 120 "@XFF@"`, false},
	{"haproxy", "{Host|X-Forwarded-For}", `@PEER@:33317 [29/Mar/2026:00:26:24.655] fe shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {shop.example|@XFF@} "GET / HTTP/1.1"`, false},
	{"traefik", "", `{"ClientAddr":"@PEER@:5","ClientHost":"@XFF@","DownstreamStatus":200,"Duration":5726712,"RequestMethod":"GET","RequestPath":"/","RequestProtocol":"HTTP/2.0","StartUTC":"2026-03-29T00:26:24.645779561Z"}`, true},
	{"traefik", "", `{"ClientAddr":"@PEER@:5","ClientHost":"@LEFT@","request_X-Forwarded-For":"@XFF@","DownstreamStatus":200,"Duration":5726712,"RequestMethod":"GET","RequestPath":"/","RequestProtocol":"HTTP/2.0","StartUTC":"2026-03-29T00:26:24.645779561Z"}`, false},
	{"nginx", `$remote_addr [$time_local] "$request" $status "$http_x_real_ip"`, `@PEER@ [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 "@LEFT@"`, true},
	{"nginx", `$remote_addr [$time_local] "$request" $status "$http_true_client_ip"`, `@PEER@ [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 "@XFF@"`, true},
	{"nginx", `$remote_addr [$time_local] "$request" $status "$http_x_real_ip" $proxy_protocol_addr`, `10.0.0.1 [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 "@XFF@" @PEER@`, true},
	{"nginx_json", "", `{"time":"2026-03-29T00:26:24+00:00","remote_addr":"@PEER@","request":"GET / HTTP/1.1","status":200,"http_x_real_ip":"@LEFT@"}`, true},
	{"nginx_json", "", `{"time":"2026-03-29T00:26:24+00:00","remote_addr":"@PEER@","request":"GET / HTTP/1.1","status":200,"http_cf_connecting_ip":"@LEFT@"}`, true},
	{"nginx_json", "", `{"time":"2026-03-29T00:26:24+00:00","remote_addr":"@PEER@","request":"GET / HTTP/1.1","status":200,"real_ip":"@LEFT@"}`, true},
	{"nginx_json", "", `{"time":"2026-03-29T00:26:24+00:00","remote_addr":"@PEER@","request":"GET / HTTP/1.1","status":200,"client_ip":"@LEFT@"}`, true},
	{"auto", "", `{"time":"2026-03-29T00:26:24+00:00","client_ip":"@LEFT@","method":"GET","path":"/","status":200}`, true},
	{"auto", "", `{"time":"2026-03-29T00:26:24+00:00","ip":"@LEFT@","method":"GET","path":"/","status":200}`, true},
	{"json", "", `{"time":"2026-03-29T00:26:24+00:00","client":"@LEFT@","method":"GET","path":"/","status":200}`, true},
	{"json", "", `{"time":"2026-03-29T00:26:24+00:00","remote_addr":"@PEER@:4711","ip":"@LEFT@","method":"GET","path":"/","status":200}`, true},
	{"json", "", `{"time":"2026-03-29T00:26:24+00:00","remote_addr":"@PEER@:4711","method":"GET","path":"/","status":200,"x_forwarded_for":"@XFF@"}`, false},
	{"envoy", "", `[2026-03-29T00:26:24.310Z] "GET / HTTP/1.1" 200 - via_upstream - "-" 0 135 4 4 "@XFF@" "a" "84961386" "shop:8000" "10.44.1.27:80" outbound|8000||shop 10.44.1.23:37652 10.0.45.184:8000 @LAST@:0 - default`, true},
	{"envoy", "", `{"start_time":"2026-03-29T00:26:24.310Z","method":"GET","path":"/","protocol":"HTTP/2","response_code":200,"response_flags":"-","duration":5,"downstream_remote_address":"@LAST@:0"}`, true},
	{"traefik", "", `{"ClientHost":"@XFF@","DownstreamStatus":200,"Duration":5726712,"RequestMethod":"GET","RequestPath":"/","RequestProtocol":"HTTP/2.0","StartUTC":"2026-03-29T00:26:24.645779561Z"}`, true},
	{"traefik", "", `@XFF@ - - [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 5 "-" "-" 1 "shop@docker" "http://10.0.0.5:80" 12ms`, true},
	{"envoy", "", `[2026-03-29T00:26:24.310Z] "GET / HTTP/2" 200 - 0 5 48 - "@XFF@" "a" "cc21d9b0" "shop.example.com" "10.2.0.1:80"`, true},
	{"envoy", "", `[2026-03-29T00:26:24.310Z] "GET / HTTP/1.1" 200 - via_upstream - "-" 0 135 4 4 "@XFF@" "a" "84961386" "shop:8000" "10.44.1.27:80" outbound|8000||shop 10.44.1.23:37652 10.0.45.184:8000 @PEER@:46520 - default`, false},
	{"envoy", "", `{"start_time":"2026-03-29T00:26:24.310Z","method":"GET","path":"/","protocol":"HTTP/2","response_code":200,"response_flags":"-","duration":5,"x_forwarded_for":"@XFF@","downstream_remote_address":"@PEER@:1"}`, false},
	{"envoy", "", `{"start_time":"2026-03-29T00:26:24.310Z","method":"GET","path":"/","protocol":"HTTP/2","response_code":200,"response_flags":"-","duration":5,"x_forwarded_for":"@XFF@","downstream_remote_address":"@LAST@:0","downstream_direct_remote_address":"@PEER@:1"}`, false},
	{"envoy", "", `{"start_time":"2026-03-29T00:26:24.310Z","method":"GET","path":"/","protocol":"HTTP/2","response_code":200,"response_flags":"-","duration":5,"x_forwarded_for":"@XFF@"}`, true},
	{"caddy", "", `{"level":"info","ts":1774743984.310841,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"@PEER@","remote_port":"4","client_ip":"@LEFT@","proto":"HTTP/2.0","method":"GET","host":"shop.example","uri":"/","headers":{"X-Forwarded-For":["@XFF@"]}},"duration":0.107,"size":612,"status":200}`, false},
	{"caddy", "", `{"level":"info","ts":1774743984.310841,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"@PEER@","remote_port":"4","client_ip":"@LEFT@","proto":"HTTP/2.0","method":"GET","host":"shop.example","uri":"/","headers":{}},"duration":0.107,"size":612,"status":200}`, true},
	{"cloudfront", "", `{"date":"2026-03-29","time":"00:26:24","c-ip":"@PEER@","cs-method":"GET","cs(Host)":"d1.cloudfront.net","cs-uri-stem":"/","sc-status":"200","x-edge-result-type":"Hit","x-forwarded-for":"@XFF@"}`, false},
	{"aws_waf", "", `{"timestamp":1774743984310,"formatVersion":1,"webaclId":"arn","terminatingRuleId":"r","terminatingRuleType":"REGULAR","action":"BLOCK","httpRequest":{"clientIp":"@PEER@","headers":[{"name":"Host","value":"shop.example"},{"name":"X-Forwarded-For","value":"@XFF@"}],"uri":"/","args":"","httpVersion":"HTTP/2.0","httpMethod":"GET"}}`, false},
	{"azure_appgw_json", "", `{"time":"2026-03-29T00:26:24Z","category":"FrontDoorAccessLog","properties":{"httpMethod":"GET","requestUri":"https://shop.example:443/","httpStatusCode":"200","clientIp":"@LEFT@","socketIp":"@PEER@","timeTaken":"0.1"}}`, true},
	{"azure_appgw_json", "", `{"time":"2026-03-29T00:26:24Z","category":"FrontDoorAccessLog","properties":{"httpMethod":"GET","requestUri":"https://shop.example:443/","httpStatusCode":"200","clientIp":"@LEFT@","timeTaken":"0.1"}}`, true},
}

// peerLines carry no header: who opened the connection is the client.
var peerLines = []struct{ name, line string }{
	{"alb", `https 2026-03-29T00:59:59.186641Z app/shop/50 @PEER@:2817 10.0.0.1:80 0.001 0.048 0.000 200 200 312 5170 "GET https://shop.example:443/ HTTP/1.1" "a" ECDHE TLSv1.2 arn "Root=1" "shop.example" "arn" 1 2026-03-29T00:59:59.137000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-"`},
	{"gcp_lb_json", `{"timestamp":"2026-03-29T00:26:24.310Z","resource":{"type":"http_load_balancer"},"httpRequest":{"requestMethod":"GET","requestUrl":"https://shop.example/","status":200,"remoteIp":"@PEER@","latency":"0.1s"},"jsonPayload":{"statusDetails":"response_sent_by_backend"}}`},
	{"azure_appgw_json", `{"time":"2026-03-29T00:26:24Z","category":"ApplicationGatewayAccessLog","properties":{"clientIP":"@PEER@","httpMethod":"GET","requestUri":"/","httpStatus":200,"host":"shop.example","timeTaken":0.1}}`},
	{"cloudfront", "2026-03-29\t00:26:24\tLHR50-C1\t2\t@PEER@\tGET\td1.cloudfront.net\t/\t200\t-\ta\t-\t-\tHit\tSOX4==\tshop.example\thttps\t523\t0.107\t198.51.100.7\tTLSv1.3\tTLS_AES\tHit\tHTTP/2.0\t-\t-\t56258\t0.106\tHit\ttext/html\t2\t-\t-"},
}

const (
	stranger = "192.0.2.77"
	ourHost  = "198.51.100.7"
	ourProxy = "10.0.0.1"
)

// clientOf parses and enriches a line.
func clientOf(t *testing.T, e pipeline.Enricher, cfg format.Config, line, peer, forwarded string) (client string, origin pipeline.Origin) {
	t.Helper()
	f, err := format.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	hops := strings.Split(forwarded, ", ")
	line = strings.NewReplacer("@PEER@", peer, "@XFF@", forwarded, "@LEFT@", hops[0], "@LAST@", hops[len(hops)-1]).Replace(line)
	var item pipeline.Item
	item.Reset()
	if f.Parse([]byte(line), &item); item.Kind != pipeline.IsRecord {
		t.Fatalf("%s: %s at %d: %s", cfg.Name, item.Reason, item.Column, line)
	}
	e.Enrich(&item.Record)
	return item.Record.Client.String(), item.Record.Origin
}

// Whatever a balancer logs, a header makes nobody own whom no trusted proxy vouches for.
func TestSpoofedHeaderInEveryFormat(t *testing.T) {
	chain, err := enrich.New(enrich.Config{
		Own: enrich.Own{Addresses: []string{ourHost, "10.0.0.0/8"}}, TrustedProxies: []string{"10.0.0.0/8"},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := chain.For("")
	for _, b := range balancerLines {
		cfg := format.Config{Name: b.name, LogFormat: b.log}
		for _, tc := range []struct {
			what, peer, forwarded, client string
			origin                        pipeline.Origin
		}{
			{"a stranger sends our address", stranger, ourHost, stranger, pipeline.External},
			{"the same through our proxy", ourProxy, ourHost + ", " + stranger, stranger, pipeline.External},
			{"a long way through our proxies", ourProxy, ourHost + ", " + stranger + ", 10.0.0.2", stranger, pipeline.External},
			{"our own host through our proxy", ourProxy, ourHost, ourHost, pipeline.Own},
		} {
			client, origin := clientOf(t, e, cfg, b.line, tc.peer, tc.forwarded)
			switch {
			case b.claims && origin != pipeline.External:
				t.Errorf("%s: %s: by a claim alone %s is %s: %s", b.name, tc.what, client, origin, b.line)
			case !b.claims && (client != tc.client || origin != tc.origin):
				t.Errorf("%s: %s: got %s %s, want %s %s: %s", b.name, tc.what, client, origin, tc.client, tc.origin, b.line)
			}
		}
	}
	for _, b := range peerLines {
		for peer, want := range map[string]pipeline.Origin{stranger: pipeline.External, ourHost: pipeline.Own} {
			if client, origin := clientOf(t, e, format.Config{Name: b.name}, b.line, peer, ""); client != peer || origin != want {
				t.Errorf("%s: got %s %s, want %s %s", b.name, client, origin, peer, want)
			}
		}
	}
}

// What auto takes for X-Forwarded-For by its place may be a header that the client writes. Once the stream shows that it
// is, our address in it makes nobody own, and names no client; the true header goes on telling who it was.
func TestGuessedHeaderIsRefuted(t *testing.T) {
	chain, err := enrich.New(enrich.Config{
		Own: enrich.Own{Addresses: []string{ourHost, "10.0.0.0/8"}}, TrustedProxies: []string{"10.0.0.0/8"},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := chain.For("")
	const front = ` - - [29/Mar/2026:00:26:24 +0000] "GET / HTTP/1.1" 200 5 "-" "a"`
	for _, layout := range []string{
		`@PEER@` + front + ` "@FIELD@"`,
		`@PEER@` + front + ` "@FIELD@" 0.005`,
		`@PEER@` + front + ` "@FIELD@" "shop.example" rt=0.005`,
		`@PEER@` + front + ` 120 "@FIELD@"`,
		strings.Replace(`@PEER@`+front+` "@FIELD@"`, `"a"`, `"a\"b"`, 1), // Apache's
	} {
		f, err := format.New(format.Config{Name: "auto"})
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range []struct {
			peer, field, client string
			origin              pipeline.Origin
		}{
			{ourProxy, "-", ourProxy, pipeline.Own},
			{ourProxy, stranger, stranger, pipeline.External},
			{ourProxy, "not, an address, " + stranger, stranger, pipeline.External},
			{ourProxy, ourHost + ":443, 2001:db8::7", "2001:db8::7", pipeline.External},
			{ourProxy, ourHost + ", [2001:db8::7]:443", "2001:db8::7", pipeline.External},
			{ourProxy, ourHost, ourHost, pipeline.Own},
			{stranger, ourHost, stranger, pipeline.External},
			{ourProxy, "www.shop.example", "invalid IP", pipeline.External},
			{ourProxy, ourHost, "invalid IP", pipeline.External},
			{ourProxy, "www.shop.example", "invalid IP", pipeline.External},
			{stranger, ourHost, stranger, pipeline.External},
			{ourHost, stranger, ourHost, pipeline.Own},
		} {
			var item pipeline.Item
			item.Reset()
			text := strings.NewReplacer("@PEER@", line.peer, "@FIELD@", line.field).Replace(layout)
			if f.Parse([]byte(text), &item); item.Kind != pipeline.IsRecord {
				t.Fatalf("%s: %s", text, item.Reason)
			}
			e.Enrich(&item.Record)
			if got := item.Record.Client.String(); got != line.client || item.Record.Origin != line.origin {
				t.Errorf("line %d: %s %s, want %s %s: %s", i, got, item.Record.Origin, line.client, line.origin, text)
			}
		}
	}
}

package format

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

// jsonLines holds one line of each JSON format that tells of requests.
var jsonLines = map[string]string{
	"traefik_json":     `{"ClientAddr":"203.0.113.7:52025","ClientHost":"203.0.113.7","ClientPort":"52025","ClientUsername":"-","DownstreamContentSize":14,"DownstreamStatus":404,"Duration":5726712,"OriginContentSize":14,"OriginDuration":2928477,"OriginStatus":404,"Overhead":2798235,"RequestAddr":"home.example.com","RequestContentSize":0,"RequestCount":2108,"RequestHost":"home.example.com","RequestMethod":"GET","RequestPath":"/api/ios/config","RequestPort":"-","RequestProtocol":"HTTP/3.0","RequestScheme":"https","RetryAttempts":0,"RouterName":"home@docker","ServiceAddr":"10.0.0.5:8123","ServiceName":"home@docker","ServiceURL":"http://10.0.0.5:8123","StartLocal":"2026-03-29T01:26:24.645779561+01:00","StartUTC":"2026-03-29T00:26:24.645779561Z","entryPointName":"websecure","level":"info","msg":"","time":"2026-03-29T01:26:24+01:00"}`,
	"envoy_json":       `{":authority":"www.example.com","bytes_received":0,"bytes_sent":121258,"connection_termination_details":null,"downstream_local_address":"10.42.0.77:10443","downstream_remote_address":"203.0.113.7:59292","duration":11,"method":"GET","protocol":"HTTP/2","requested_server_name":null,"response_code":200,"response_code_details":"via_upstream","response_flags":"-","route_name":"httproute/shop/rule/0","start_time":"2026-03-29T00:26:24.310Z","upstream_cluster":"shop","upstream_host":"10.42.0.80:8080","upstream_local_address":"10.42.0.77:50114","upstream_transport_failure_reason":null,"user-agent":"curl/8.5.0","x-envoy-origin-path":"/a?x=1","x-envoy-upstream-service-time":null,"x-forwarded-for":"203.0.113.7","x-request-id":"84961386"}`,
	"caddy_json":       `{"level":"info","ts":1774743984.310841,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"203.0.113.7","remote_port":"41342","client_ip":"203.0.113.7","proto":"HTTP/2.0","method":"GET","host":"www.example.com","uri":"/a?x=1","headers":{"User-Agent":["curl/8.5.0"],"Accept":["*/*"]},"tls":{"resumed":false,"version":772,"cipher_suite":4865,"proto":"h2","server_name":"www.example.com"}},"bytes_read":0,"user_id":"","duration":0.107341,"size":612,"status":200,"resp_headers":{"Server":["Caddy"],"Content-Type":["text/html; charset=utf-8"]}}`,
	"cloudfront_json":  `{"date":"2026-03-29","time":"00:26:24","x-edge-location":"LHR50-C1","sc-bytes":"233918","c-ip":"203.0.113.7","cs-method":"GET","cs(Host)":"d111111abcdef8.cloudfront.net","cs-uri-stem":"/index.html","sc-status":"200","cs(Referer)":"-","cs(User-Agent)":"Mozilla/5.0%20(Windows%20NT%2010.0;%20Win64;%20x64)","cs-uri-query":"-","cs(Cookie)":"-","x-edge-result-type":"Hit","x-edge-request-id":"SOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==","x-host-header":"www.example.com","cs-protocol":"https","cs-bytes":"523","time-taken":"0.107","x-forwarded-for":"-","ssl-protocol":"TLSv1.3","ssl-cipher":"TLS_AES_128_GCM_SHA256","x-edge-response-result-type":"Hit","cs-protocol-version":"HTTP/2.0","fle-status":"-","fle-encrypted-fields":"-","c-port":"56258","time-to-first-byte":"0.106","x-edge-detailed-result-type":"Hit","sc-content-type":"text/html","sc-content-len":"233400","sc-range-start":"-","sc-range-end":"-"}`,
	"aws_waf":          `{"timestamp":1774743984310,"formatVersion":1,"webaclId":"arn:aws:wafv2:eu-west-1:123456789012:regional/webacl/shop/1","terminatingRuleId":"head-on-checkout","terminatingRuleType":"REGULAR","action":"BLOCK","terminatingRuleMatchDetails":[],"httpSourceName":"ALB","httpSourceId":"123456789012-app/shop/1","ruleGroupList":[],"rateBasedRuleList":[],"nonTerminatingMatchingRules":[],"requestHeadersInserted":null,"responseCodeSent":null,"httpRequest":{"clientIp":"203.0.113.7","country":"DE","headers":[{"name":"Host","value":"shop.example"},{"name":"User-Agent","value":"Mozilla/5.0 (X11)"},{"name":"accept","value":"*/*"}],"uri":"/checkout/1","args":"a=1","httpVersion":"HTTP/2.0","httpMethod":"HEAD","requestId":"1-1"}}`,
	"gcp_lb_json":      `{"httpRequest":{"cacheLookup":true,"latency":"0.107341s","remoteIp":"203.0.113.7","requestMethod":"GET","requestSize":"312","requestUrl":"https://www.example.com/a?x=1","responseSize":"612","serverIp":"10.0.0.1","status":200,"userAgent":"curl/8.5.0"},"insertId":"1k2","jsonPayload":{"@type":"type.googleapis.com/google.cloud.loadbalancing.type.LoadBalancerLogEntry","statusDetails":"response_sent_by_backend"},"resource":{"type":"http_load_balancer"},"severity":"INFO","timestamp":"2026-03-29T00:26:24.310841Z"}`,
	"azure_appgw_json": `{"timeStamp":"2026-03-29T00:26:24+00:00","resourceId":"/SUBSCRIPTIONS/X/RESOURCEGROUPS/G/PROVIDERS/MICROSOFT.NETWORK/APPLICATIONGATEWAYS/AGW","listenerName":"https","ruleName":"r","operationName":"ApplicationGatewayAccess","category":"ApplicationGatewayAccessLog","properties":{"instanceId":"appgw_0","clientIP":"203.0.113.7","clientPort":0,"httpMethod":"GET","originalRequestUriWithArgs":"/a?x=1","requestUri":"/a","requestQuery":"x=1","userAgent":"curl/8.5.0","httpStatus":200,"httpVersion":"HTTP/1.1","receivedBytes":312,"sentBytes":612,"timeTaken":0.107,"serverRouted":"10.0.0.1:80","serverStatus":"200","serverResponseLatency":"0.106","originalHost":"www.example.com","host":"www.example.com"}}`,
	"json":             `{"level":"info","time":"2026-03-29T00:26:24.310Z","msg":"request completed","req":{"method":"GET","url":"/a?x=1","remoteAddress":"203.0.113.7","headers":{"host":"shop.example","user-agent":"curl/8.5.0"}},"res":{"statusCode":200},"responseTime":12}`,
}

func TestAutoChoosesJSON(t *testing.T) {
	for want, line := range jsonLines {
		a := newAuto(t)
		if item := parse(a, line); item.Kind != pipeline.IsRecord {
			t.Errorf("%s: %s", want, item.Reason)
		}
		if got, _ := a.Choice(); got != want {
			t.Errorf("%.60s…: chose %q, want %q", line, got, want)
		}
	}
}

// TestJSONHostile changes each line as somebody might to mislead or to break.
func TestJSONHostile(t *testing.T) {
	for name, line := range jsonLines {
		f, err := New(Config{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		plain := string(AppendJSON(nil, parse(f, line)))
		for what, c := range map[string]struct{ line, reason string }{
			"byte order mark": {"\xef\xbb\xbf" + line, ""},
			"NULs":            {"\x00\x00" + line + "\r", ""},
			"spaces":          {"  " + strings.Replace(line, `{"`, "{ \t\"", 1) + " ", ""},
			"unknown members": {line[:len(line)-1] + `,"zz":{"a":[1,{"b":[]}],"c":"\u0000\ud800"}}`, ""},
			"deep":            {line[:len(line)-1] + `,"zz":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}`, ""},
			"deeper":          {line[:len(line)-1] + `,"zz":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, "bad_json"},
			"invalid UTF-8":   {line[:len(line)-1] + ",\"zz\":\"\xff\xfe\xc3(\"}", ""},
			"control":         {line[:len(line)-1] + ",\"zz\":\"\x01\"}", "bad_json"},
			"cut":             {line[:len(line)-1], "truncated"},
			"comma":           {line[:len(line)-1] + ",}", "bad_json"},
			"garbage":         {line + "x", "bad_json"},
			"array":           {"[1,2]", "not_access_log"},
			"number":          {line[:len(line)-1] + `,"zz":1.2.3}`, "bad_json"},
			"huge number":     {line[:len(line)-1] + `,"zz":` + strings.Repeat("9", 5000) + `e999999}`, ""},
		} {
			item := parse(f, c.line)
			if c.reason != "" {
				if item.Kind != pipeline.Failed || string(item.Reason) != c.reason && !(name == "azure_appgw_json" && what == "array") {
					t.Errorf("%s with %s: %q at %d, want %s", name, what, item.Reason, item.Column, c.reason)
				}
				continue
			}
			if got := string(AppendJSON(nil, item)); got != plain {
				t.Errorf("%s with %s: %s at %d\n%s%s", name, what, item.Reason, item.Column, got, plain)
			}
		}
	}
}

// TestLastOfEqualKeysWins: what a client may have put in front does not hide what the balancer wrote behind.
func TestLastOfEqualKeysWins(t *testing.T) {
	for name, members := range map[string][2]string{
		"traefik_json": {`"DownstreamStatus":404`, `"DownstreamStatus":503`},
		"envoy_json":   {`"response_code":200`, `"response_code":503`},
		"caddy_json":   {`"status":200`, `"status":503`},
		"gcp_lb_json":  {`"status":200`, `"status":503`},
		"json":         {`"statusCode":200`, `"statusCode":503`},
	} {
		f, err := New(Config{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range [][2]string{{members[0], members[1]}, {members[1], members[1]}} {
			item := parse(f, strings.Replace(jsonLines[name], members[0], pair[0]+","+pair[1], 1))
			if item.Record.Status != 503 {
				t.Errorf("%s: status %d (%s) from %v", name, item.Record.Status, item.Reason, pair)
			}
		}
	}
}

// TestSeveralObjectsOnALine: each is an item of its own, whatever stands between.
func TestSeveralObjectsOnALine(t *testing.T) {
	for name, line := range jsonLines {
		f, err := New(Config{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		whole := line + " " + line + `{"msg":"another thing"}` + line
		count := 0
		for rest := []byte(whole); rest != nil; count++ {
			item := &pipeline.Item{}
			item.Reset()
			f.Parse(rest, item)
			if item.Kind != pipeline.IsRecord {
				t.Fatalf("%s: object %d: %s at %d", name, count, item.Reason, item.Column)
			}
			rest = item.Rest
		}
		if count != 3 {
			t.Errorf("%s: %d records of 3", name, count)
		}
	}
}

func TestScaled(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1e9, "-1": -1e9, "0.107341": 107341e3, "1.774743984310841e+09": 1774743984310841e3, "1774743984.310841": 1774743984310841e3,
		"17747439843108410e-7": 17747439843108410e2, "1e-400": 0, "0e999": 0, "0.0000000001": 0, "1E0": 1e9, "00012": 12e9,
	} {
		if got, ok := scaled([]byte(text), 9); !ok || got != want {
			t.Errorf("%s: %d %v, want %d", text, got, ok, want)
		}
	}
	for _, bad := range []string{"", "-", ".", "e9", "1e", "1e+", "1e99999", "1e10", "9999999999999999999999", "1.2.3", "0x10", "NaN", "1 "} {
		if got, ok := scaled([]byte(bad), 9); ok {
			t.Errorf("%q gave %d", bad, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64Range(0, 4e9).Draw(t, "v")
		text := strconv.FormatFloat(v, rapid.SampledFrom([]byte{'f', 'e', 'g'}).Draw(t, "form"), -1, 64)
		got, ok := scaled([]byte(text), 9)
		if !ok || math.Abs(float64(got)-v*1e9) > 1+v*1e9*1e-15 {
			t.Fatalf("%s: %d %v", text, got, ok)
		}
	})
}

// TestEpochUnits reads each instant in four units.
func TestEpochUnits(t *testing.T) {
	const ns = 1774743984_310841009
	for text, want := range map[string][2]int64{
		"1774743984":           {1774743984e9, 1e9},
		"1774743984.31":        {1774743984_310000000, 1e7},
		"1774743984310":        {1774743984_310000000, 1e6},
		"1774743984310.841":    {1774743984_310841000, 1e3},
		"1774743984310841":     {1774743984_310841000, 1e3},
		"1774743984310841.009": {ns, 1},
		"1774743984310841009":  {ns, 1},
		"1.774743984310841e9":  {1774743984_310841000, 1},
		"0":                    {0, 1e9},
	} {
		got, step, ok := epoch([]byte(text))
		if !ok || got != want[0] || step != want[1] && !strings.Contains(text, "e") {
			t.Errorf("%s: %d, step %d, %v; want %v", text, got, step, ok, want)
		}
	}
	for _, bad := range []string{"-1", "1e300", "99999999999999999999", "x", ""} {
		if got, _, ok := epoch([]byte(bad)); ok {
			t.Errorf("%q gave %s", bad, fmt.Sprint(got))
		}
	}
}

package format

import (
	"maps"
	"slices"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

const albLineText = `https 2026-03-29T00:59:59.186641Z app/shop-alb/50dc6c495c0c9188 203.0.113.39:2817 10.0.0.1:80 0.001 0.048 0.000 200 200 312 5170 "GET https://www.example.com:443/cart?id=7 HTTP/1.1" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/shop-web/73e2d6bc24d8a067 "Root=1-69c87b1f-36d228ad5d99923122bbe354" "www.example.com" "arn:aws:acm:eu-west-1:123456789012:certificate/12345678-1234-1234-1234-123456789012" 1 2026-03-29T00:59:59.137000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_dc57cebed65b444ebc8177bb698fe166`

const combinedLineText = `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /checkout/4711?step=2 HTTP/1.1" 200 5120 "https://shop.example/cart" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36"`

// speedLines holds typical lines, by the case's name; the format is the word before the slash.
var speedLines = []struct{ name, line string }{
	{"nginx_combined", combinedLineText},
	{"nginx_extended", combinedLineText + ` msec=1774743984.706 host="shop.example" xff="-" rt=0.107 uaddr="10.0.0.1:80, 10.0.0.2:80" us="502, 200" urt="0.001, 0.106" ul="0, 5120" cs=MISS lrs=PASSED`},
	{"nginx_json", `{"time":"2026-03-29T01:26:24+01:00","msec":1774743984.706,"remote_addr":"203.0.113.7","host":"shop.example.com","request":"GET /a HTTP/1.1","uri":"/a","status":200,"bytes":612,"rt":0.107,"urt":"0.106","us":"200","ua":"curl/8.5.0","ref":""}`},
	{"ingress_nginx", combinedLineText + ` 381 0.014 [default-shop-80] [] 10.0.0.1:80, 10.0.0.2:80 0, 612 0.004, 0.010 502, 200 4f1a8a7a0b3b4f7d9c2b6a1d5e9f0c3d`},
	{"alb", albLineText},
	{"nginx", combinedLineText},
	{"caddy_console", "2026/03/29 00:26:24.310\tinfo\thttp.log.access.log0\thandled request\t" + `{"request": {"remote_ip": "203.0.113.7", "remote_port": "63746", "client_ip": "203.0.113.7", "proto": "HTTP/1.1", "method": "GET", "host": "www.example.com", "uri": "/a?x=1", "headers": {"User-Agent": ["curl/8.5.0"]}}, "bytes_read": 0, "user_id": "", "duration": 0.107341, "size": 612, "status": 200, "resp_headers": {"Server": ["Caddy"]}}`},
	{"auto", combinedLineText},
	{"auto", albLineText},
	{"haproxy_http", `Mar  6 12:14:14 lb1 haproxy[14389]: 203.0.113.7:33317 [06/Mar/2026:12:14:14.655] fe_https~ shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {shop.example.com|Mozilla/5.0 (X11; Linux x86_64) #22} "GET https://shop.example.com/checkout/4711?step=#222 HTTP/2.0"`},
	{"haproxy_https", `203.0.113.7:33317 [06/Mar/2026:12:14:14.655] fe_https~ shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {shop.example.com|Mozilla/5.0 (X11; Linux x86_64) #22} "GET https://shop.example.com/checkout/4711?step=#222 HTTP/2.0" 0/0000000000000000/0/0/0 shop.example.com/TLSv1.3/TLS_AES_256_GCM_SHA384`},
	{"haproxy_clf", `203.0.113.7 - - [06/Mar/2026:12:14:14 +0000] "GET /clf HTTP/1.1" 200 73 "" "" 60540 797 "fe_clf" "shop" "web1" 0 0 0 7 7 ---- 1 1 0 0 0 0 0 "" "" `},
	{"haproxy", `203.0.113.7:33317 [06/Mar/2026:12:14:14.655] fe_https~ shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {shop.example.com|Mozilla/5.0 (X11; Linux x86_64) #22} "GET https://shop.example.com/checkout/4711?step=#222 HTTP/2.0"`},
	{"envoy_text", `[2026-03-29T00:26:24.310Z] "POST /api/v1/locations?x=1 HTTP/2" 204 - 154 0 226 100 "203.0.113.7,10.0.0.3" "Mozilla/5.0 (X11; "Linux")" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations.example.com" "10.0.2.1:80"`},
	{"istio_text", `[2026-03-29T00:26:24.310Z] "GET /status/418 HTTP/1.1" 418 - via_upstream - "-" 0 135 4 4 "-" "curl/8.5.0" "84961386-6d84-929d-98bd-c5aee93b5c88" "httpbin:8000" "10.44.1.27:80" outbound|8000||httpbin.foo.svc.cluster.local 10.44.1.23:37652 10.0.45.184:8000 203.0.113.7:46520 - default`},
	{"traefik_clf", `203.0.113.7 - - [28/Mar/2026:23:26:24 +0000] "GET /a?x=1 HTTP/2.0" 200 533 "-" "foo \" bar" 4404 "shop@docker" "http://10.0.0.6:9000" 12ms`},
	{"apache", `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /a HTTP/1.1" 200 612 "-" "foo \"bar\" \\ baz\tqux" 109488`},
	{"apache_combined", `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /a HTTP/1.1" 200 612 "-" "foo \"bar\" \\ baz\tqux" 109488`},
	{"php_fpm_access", `127.0.0.1 -  29/Mar/2026:00:26:24 +0100 "GET /index.php?a=1" 200 /var/www/html/index.php 12.345 2048 40.50%`},
	{"cloudfront_tsv", "2026-03-29\t00:26:24\tLHR50-C1\t233918\t203.0.113.7\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200\t-\tMozilla/5.0%2520(Windows%2520NT%25206.2;%2520WOW64)\tid=7\t-\tMiss\tSOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==\twww.example.com\thttps\t523\t0.107\t-\tTLSv1.3\tTLS_AES_128_GCM_SHA256\tMiss\tHTTP/2.0\t-\t-\t56258\t0.106\tMiss\ttext/html\t233400\t-\t-"},
	{"nginx_combined", `2001:db8::7 - - [29/Mar/2026:00:26:24 +0100] "GET /q?x=\x22y\x22 HTTP/1.1" 499 0 "-" "he said \x22hi\x22"`},
}

// speedCases are the lines of every format, those in JSON in the order of their names.
func speedCases() []struct{ name, line string } {
	cases := slices.Clone(speedLines)
	for _, name := range slices.Sorted(maps.Keys(jsonLines)) {
		cases = append(cases, struct{ name, line string }{name, jsonLines[name]})
	}
	return cases
}

func TestNoAllocations(t *testing.T) {
	for _, c := range speedCases() {
		f, err := New(Config{Name: c.name})
		if err != nil {
			t.Fatal(err)
		}
		line := []byte(c.line)
		var item pipeline.Item
		parse := func() {
			item.Reset()
			f.Parse(line, &item)
			if item.Kind != pipeline.IsRecord {
				t.Fatalf("%s: %s at %d", c.name, item.Reason, item.Column)
			}
		}
		if n := testing.AllocsPerRun(1000, parse); n != 0 {
			t.Errorf("%s: %v allocations a line: %.80s", c.name, n, c.line)
		}
	}
}

func TestFramersDoNotAllocate(t *testing.T) {
	for name, line := range map[string]string{
		"cri":       `2026-03-28T23:26:24.310841Z stdout F ` + combinedLineText,
		"docker":    `{"log":"203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] \"GET /a HTTP/1.1\" 200 612 \"-\" \"curl\"\n","stream":"stdout","time":"2026-03-28T23:26:24.970719033Z"}`,
		"container": `2026-03-28T23:26:24.310841Z stderr P ` + combinedLineText,
	} {
		framer, err := NewFramer(name)
		if err != nil {
			t.Fatal(err)
		}
		physical := []byte(line)
		offset := int64(0)
		next := func() {
			if _, _, _, reason := framer.Next(physical, offset); reason != "" {
				t.Fatalf("%s: %s", name, reason)
			}
			offset += int64(len(physical))
			framer.Flush()
		}
		if n := testing.AllocsPerRun(1000, next); n != 0 {
			t.Errorf("%s: %v allocations a line", name, n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for _, c := range speedCases() {
		b.Run(c.name, func(b *testing.B) {
			f, err := New(Config{Name: c.name})
			if err != nil {
				b.Fatal(err)
			}
			line := []byte(c.line)
			var item pipeline.Item
			b.ReportAllocs()
			b.SetBytes(int64(len(line)))
			for b.Loop() {
				item.Reset()
				f.Parse(line, &item)
			}
			if item.Kind != pipeline.IsRecord {
				b.Fatal(item.Reason)
			}
		})
	}
}

func BenchmarkFrame(b *testing.B) {
	framer, err := NewFramer("cri")
	if err != nil {
		b.Fatal(err)
	}
	line := []byte(`2026-03-28T23:26:24.310841Z stdout F ` + combinedLineText)
	b.ReportAllocs()
	for b.Loop() {
		framer.Next(line, 0)
	}
}

// BenchmarkNewAuto is what each new file costs.
func BenchmarkNewAuto(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := New(Config{Name: "auto"}); err != nil {
			b.Fatal(err)
		}
	}
}

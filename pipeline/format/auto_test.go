package format

import (
	"slices"
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

const (
	ingressLineText = combinedLineText + ` 381 0.107 [default-shop-80] [] 10.0.0.1:80 612 0.106 200 4f1a`
	phpLineText     = `[29-Mar-2026 01:26:24] WARNING: [pool www] server reached pm.max_children setting (50), consider raising it`
	kubeletLineText = `I0329 00:26:24.519390     246 x.go:787] "Killing container with a grace period" pod="default/shop-0" gracePeriod=1`
	eventLineText   = `{"kind":"Event","involvedObject":{"kind":"Pod","name":"shop-0"},"reason":"Killing","message":"Stopping container app"}`
	podRowText      = "default\tOOMKilled\t137\t2026-03-29T00:26:24Z"
	jsonLineText    = `{"time":"2026-03-29T01:26:24+01:00","remote_addr":"203.0.113.7","host":"shop.example","request":"GET /c HTTP/1.1","status":200}`
)

func newAuto(t *testing.T) *Auto {
	t.Helper()
	f, err := New(Config{Name: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	return f.(*Auto)
}

func parse(f pipeline.Format, line string) *pipeline.Item {
	item := &pipeline.Item{}
	item.Reset()
	f.Parse([]byte(line), item)
	return item
}

func TestAutoChooses(t *testing.T) {
	for want, line := range map[string]string{
		"nginx":          combinedLineText,
		"nginx_json":     jsonLineText,
		"ingress_nginx":  ingressLineText,
		"alb":            albLineText,
		"php_fpm":        phpLineText,
		"kubelet":        kubeletLineText,
		"k8s_event":      eventLineText,
		"pod_status":     podRowText,
		"haproxy":        `203.0.113.7:33317 [06/Mar/2026:12:14:14.655] fe shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1"`,
		"envoy_text":     `[2026-03-29T00:26:24.310Z] "GET / HTTP/2" 204 - 154 0 226 100 "203.0.113.7" "a" "id" "shop.example" "10.0.2.1:80"`,
		"istio_text":     `[2026-03-29T00:26:24.310Z] "GET / HTTP/1.1" 200 - via_upstream - "-" 0 135 4 4 "-" "a" "id" "shop" "10.44.1.27:80" cluster 10.44.1.23:37652 10.0.45.184:8000 203.0.113.7:46520 - default`,
		"traefik_clf":    `203.0.113.7 - - [28/Mar/2026:23:26:24 +0000] "GET /a HTTP/2.0" 200 533 "-" "-" 4404 "shop@docker" "http://10.0.0.6:9000" 12ms`,
		"apache":         `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /a HTTP/1.1" 200 612 "-" "foo \"bar\" \\ baz\tqux" 109488`,
		"php_fpm_access": `127.0.0.1 -  29/Mar/2026:00:26:24 +0100 "GET /index.php?a=1" 200 /var/www/html/index.php 12.345 2048 40.50%`,
		"cloudfront_tsv": "2026-03-29\t00:26:24\tLHR50-C1\t233918\t203.0.113.7\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200\t-\tMozilla/5.0%2520(Windows%2520NT%25206.2;%2520WOW64)\tid=7\t-\tMiss\tSOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==\twww.example.com\thttps\t523\t0.107\t-\tTLSv1.3\tTLS_AES_128_GCM_SHA256\tMiss\tHTTP/2.0\t-\t-\t56258\t0.106\tMiss\ttext/html\t233400\t-\t-",
		"nginx_error":    `2026/03/29 01:26:24 [error] 1234#1234: *5678 limiting requests, excess: 5.432 by zone "site", client: 203.0.113.7, server: shop.example, request: "GET /a.css?v=1 HTTP/1.1", host: "shop.example"`,
	} {
		a := newAuto(t)
		if item := parse(a, line); item.Kind == pipeline.Failed {
			t.Errorf("%s: %s", want, item.Reason)
		}
		if got, _ := a.Choice(); got != want {
			t.Errorf("%.60s…: chose %q, want %q", line, got, want)
		}
	}
}

func TestAutoTellsWhyNot(t *testing.T) {
	a := newAuto(t)
	cut := combinedLineText[:90]
	item := parse(a, cut)
	if item.Kind != pipeline.Failed || item.Reason != pipeline.ReasonNoFormat || item.Column < 60 {
		t.Errorf("%v %q at %d: want no_format at the place where the nearest format stopped", item.Kind, item.Reason, item.Column)
	}
	name, why := a.Choice()
	if name != "" || len(why) != len(a.candidates) {
		t.Fatalf("chose %q, %d of %d rejections", name, len(why), len(a.candidates))
	}
	for _, r := range why {
		if r.Format == "" || r.Reason == pipeline.ReasonNone {
			t.Errorf("rejection without reason: %+v", r)
		}
	}
}

func TestAutoKeepsItsChoiceThroughForeignLines(t *testing.T) {
	a := newAuto(t)
	parse(a, albLineText)
	for range 10 { // a foreign line now and then is read, and changes nothing
		if item := parse(a, combinedLineText); item.Kind != pipeline.IsRecord {
			t.Fatalf("lost a line of another format: %s", item.Reason)
		}
		if name, _ := a.Choice(); name != "alb" {
			t.Fatalf("left alb for %s", name)
		}
		parse(a, albLineText)
	}
	for range maxMisses {
		parse(a, combinedLineText)
	}
	name, why := a.Choice()
	if name != "nginx" {
		t.Errorf("did not follow the stream: %s", name)
	}
	told := false
	for _, r := range why {
		told = told || r.Format == "alb" && r.Reason != ""
	}
	if !told {
		t.Errorf("does not tell why not alb: %+v", why)
	}
}

func TestAutoReportsItsFormatsReason(t *testing.T) {
	a := newAuto(t)
	parse(a, combinedLineText)
	if item := parse(a, combinedLineText[:90]); item.Reason != pipeline.ReasonTruncated {
		t.Errorf("%q, want truncated", item.Reason)
	}
	if item := parse(a, ""); item.Reason != pipeline.ReasonEmpty {
		t.Errorf("%q, want empty", item.Reason)
	}
}

func TestAutoKeepsWhatTheRoadSet(t *testing.T) {
	a := newAuto(t)
	item := &pipeline.Item{}
	item.Reset()
	item.Line, item.Offset, item.FrameSet, item.Time = []byte("x"), 7, true, 1774743984e9
	a.Parse([]byte(kubeletLineText), item)
	if string(item.Line) != "x" || item.Offset != 7 || !item.FrameSet {
		t.Errorf("the road's fields were changed: %+v", item)
	}
	if len(item.Events) != 1 || item.Events[0].Time/1e9 != 1774743984 {
		t.Errorf("the frame's time did not complete klog's: %+v", item.Events)
	}
}

func TestNames(t *testing.T) {
	names := Names()
	for i, name := range names {
		if i > 0 && names[i-1] >= name {
			t.Errorf("%s is not sorted", name)
		}
		if _, err := New(Config{Name: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := New(Config{Name: "ngnix_combined"})
	if err == nil || !strings.Contains(err.Error(), "nginx_combined") {
		t.Errorf("the nearest name is missing: %v", err)
	}
}

func TestSplitFraming(t *testing.T) {
	for name, want := range map[string][2]string{
		"nginx":              {"", "nginx"},
		"cri+nginx_combined": {"cri", "nginx_combined"},
		"docker+auto":        {"docker", "auto"},
		"container+php_fpm":  {"container", "php_fpm"},
		"cri":                {"cri", "auto"},
		"docker":             {"docker", "auto"},
		"file+nginx":         {"", "nginx"},
		"x+nginx":            {"", "x+nginx"},
		"":                   {"", ""},
	} {
		if framing, format := SplitFraming(name); framing != want[0] || format != want[1] {
			t.Errorf("%s: %q %q", name, framing, format)
		}
	}
}

// A line that a format knows to be of no interest is no reason against the others, and the format is told.
func TestAutoTellsWhatUnderstood(t *testing.T) {
	a := newAuto(t)
	for _, line := range []string{
		`203.0.113.7:33317 [06/Mar/2026:12:14:14.655] fe_tcp tcp/web1 0/0/5007 212 -- 0/0/0/0/3 0/0`,
		`Mar  6 12:14:14 lb haproxy[1]: Server shop/web1 is DOWN, reason: Layer4 timeout.`,
	} {
		if item := parse(a, line); item.Kind != pipeline.Ignored {
			t.Fatalf("%d %s: %s", item.Kind, item.Reason, line)
		}
	}
	if name, why := a.Choice(); name != "" || len(why) != 0 || !slices.Contains(a.Understood(), "haproxy") {
		t.Errorf("chose %q, not %+v, understood %q", name, why, a.Understood())
	}
	parse(a, "nobody knows this line")
	if _, why := a.Choice(); len(why) != len(a.candidates) {
		t.Errorf("%d rejections", len(why))
	}
}

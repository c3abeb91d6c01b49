package format

import (
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// textLines holds a typical line of each text format, and how many of its beginnings read as a line of their own:
// a number at the end lacks digits, or the line ends where a shorter layout does.
var textLines = []struct {
	name, line string
	records    int
}{
	{"haproxy_http", `Mar  6 12:14:14 lb1 haproxy[14389]: 203.0.113.7:33317 [06/Mar/2026:12:14:14.655] fe shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {a|b} {c} "GET /#22 HTTP/1.1"`, 13},
	{"haproxy_https", `203.0.113.7:33317 [06/Mar/2026:12:14:14.655] fe~ shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1" 0/0/0/0/0 shop.example/TLSv1.3/TLS_AES`, 7},
	{"envoy_text", `[2026-03-29T00:26:24.310Z] "GET /a?q="x" HTTP/2" 204 UF,URX 154 0 226 100 "203.0.113.7,10.0.0.3" "say "hi"" "id" "shop.example" "10.0.2.1:80"`, 0},
	{"istio_text", `[2026-03-29T00:26:24.310Z] "GET / HTTP/1.1" 418 - via_upstream - "-" 0 135 4 4 "-" "curl" "id" "httpbin:8000" "10.44.1.27:80" c 10.44.1.23:37652 10.0.45.184:8000 203.0.113.7:46520 - default`, 7},
	{"traefik_clf", `203.0.113.7 - - [28/Mar/2026:23:26:24 +0000] "GET /a HTTP/2.0" 200 533 "-" "foo \" bar" 4404 "shop@docker" "http://10.0.0.6:9000" 12ms`, 2},
	{"apache_combined", `www.example.com:443 203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /\"a HTTP/1.1" 200 612 "-" "foo \"bar\" \\ baz" 109488`, 6},
	{"haproxy_clf", `203.0.113.7 - - [06/Mar/2026:12:14:14 +0000] "GET / HTTP/1.1" 200 73 "" "" 60540 797 "fe" "shop" "web1" 0 0 0 7 7 ---- 1 1 0 0 0 0 0 "" "" "a"`, 4},
	{"php_fpm_access", `127.0.0.1 -  29/Mar/2026:00:26:24 +0100 "GET /index.php?a=1" 200 /var/www/index.php 12.345 2048 40.50%`, 6},
}

// TestEveryBeginning shows that a cut line is seen to be cut: of all beginnings of a line the named few
// are taken for lines. HAProxy's own limit cuts within the request, behind all that is judged by.
func TestEveryBeginning(t *testing.T) {
	for _, c := range textLines {
		records := 0
		for n := range len(c.line) {
			f, err := New(Config{Name: c.name})
			if err != nil {
				t.Fatal(err)
			}
			item := parse(f, c.line[:n])
			checkItem(t, c.name, []byte(c.line[:n]), item)
			if item.Kind == pipeline.IsRecord {
				records++
			}
		}
		if item := parse(newFormat(t, c.name), c.line); item.Kind != pipeline.IsRecord {
			t.Errorf("%s: %s at %d: %s", c.name, item.Reason, item.Column, c.line)
		}
		if records != c.records {
			t.Errorf("%s: %d beginnings read as a line, want %d: %s", c.name, records, c.records, c.line)
		}
	}
}

// TestEveryByte replaces, removes and doubles each byte of the lines: whatever comes of it holds together.
func TestEveryByte(t *testing.T) {
	for _, c := range textLines {
		f := newFormat(t, c.name)
		for i := range len(c.line) {
			for _, put := range []string{"", "\"", "\\", " ", "-", "[", "]", "\x00", "\xff", "9999999999999999999", c.line[i:i+1] + c.line[i:i+1]} {
				line := c.line[:i] + put + c.line[i+1:]
				checkItem(t, c.name, []byte(line), parse(f, line))
			}
		}
	}
}

func newFormat(t *testing.T, name string) pipeline.Format {
	t.Helper()
	f, err := New(Config{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestStartAndEnd shows which formats write when a request began: the end, by which panes are filled, lies behind it.
func TestStartAndEnd(t *testing.T) {
	for _, c := range []struct {
		name, line string
		start, end time.Duration // from the line's time
	}{
		{"haproxy", `203.0.113.7:33317 [06/Mar/2026:12:14:14.655] fe shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1"`, 0, 109 * time.Millisecond},
		{"envoy_text", `[2026-03-29T00:26:24.310Z] "GET / HTTP/2" 204 - 154 0 226 100 "203.0.113.7" "a" "id" "shop.example" "10.0.2.1:80"`, 0, 226 * time.Millisecond},
		{"traefik_clf", `203.0.113.7 - - [28/Mar/2026:23:26:24 +0000] "GET /a HTTP/2.0" 200 533 "-" "-" 4404 "shop@docker" "http://10.0.0.6:9000" 12ms`, 0, 12 * time.Millisecond},
		{"apache", `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /a HTTP/1.1" 200 612 "-" "curl" 109488`, 0, 109488 * time.Microsecond},
		{"php_fpm_access", `127.0.0.1 -  29/Mar/2026:00:26:24 +0100 "GET /index.php" 200 1.250`, 0, 1250 * time.Millisecond},
		{"cloudfront_tsv", "2026-03-29\t00:26:24\tLHR\t1\t203.0.113.7\tGET\td.cloudfront.net\t/\t200\t-\ta\t-\t-\tMiss\tid\tshop.example\thttps\t5\t0.107", -107 * time.Millisecond, 0},
	} {
		r := parse(newFormat(t, c.name), c.line).Record
		if start, end := time.Duration(r.Start-r.Time), time.Duration(r.End-r.Time); r.Time == 0 || start != c.start || end != c.end {
			t.Errorf("%s: from %v to %v, want %v to %v", c.name, start, end, c.start, c.end)
		}
	}
}

// TestLocalDates reads HAProxy's dates, which carry no zone, in the configured one: over the change of the clocks,
// and with the zone in the date where there is one.
func TestLocalDates(t *testing.T) {
	berlin, err := pipeline.ParseZone("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(Config{Name: "haproxy", Zone: berlin})
	if err != nil {
		t.Fatal(err)
	}
	for date, want := range map[string]string{
		"29/Mar/2026:01:59:59.999": "2026-03-29T00:59:59.999Z",
		"29/Mar/2026:03:00:00.001": "2026-03-29T01:00:00.001Z",
		"06/Jul/2026:12:14:14.655": "2026-07-06T10:14:14.655Z",
	} {
		item := parse(f, `203.0.113.7:33317 [`+date+`] fe shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1"`)
		if got := time.Unix(0, item.Record.Time).UTC().Format(time.RFC3339Nano); got != want {
			t.Errorf("%s: %s, want %s", date, got, want)
		}
	}
}

func TestCapturesAreChecked(t *testing.T) {
	for _, bad := range []string{"Host|User-Agent", "{Host", "{a} {b} {c}", "%ci:%cp [%tr]"} {
		if _, err := New(Config{Name: "haproxy_http", LogFormat: bad}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestPercentFormatsAreChecked(t *testing.T) {
	for _, bad := range []string{"%{Referer", "no directive", "%", "%z %y", `LogFormat "`} {
		for _, name := range []string{"apache", "php_fpm_access"} {
			if _, err := New(Config{Name: name, LogFormat: bad}); err == nil {
				t.Errorf("%s: %q was accepted", name, bad)
			}
		}
	}
}

func TestPercentFormatSpellings(t *testing.T) {
	line := `203.0.113.7 [29/Mar/2026:00:26:24 +0100] "GET /a?b HTTP/1.1" 200`
	for _, spelling := range []string{
		`%h %t "%r" %>s`, `%h %t \"%r\" %>s`, `"%h %t \"%r\" %>s"`, `LogFormat "%h %t \"%r\" %>s" short`, `'%h %t "%r" %>s'`,
		`%h %t "%r" %!200,304s`,
	} {
		f, err := New(Config{Name: "apache", LogFormat: spelling})
		if err != nil {
			t.Errorf("%s: %v", spelling, err)
			continue
		}
		if item := parse(f, line); item.Kind != pipeline.IsRecord || string(item.Record.Path) != "/a" || item.Record.Status != 200 || !item.Record.Client.IsValid() {
			t.Errorf("%s: %s at %d, %+v", spelling, item.Reason, item.Column, item.Record)
		}
	}
}

// TestSizeOfNone: a dash for a size is Apache's, so auto reads the line by Apache's rules.
func TestSizeOfNone(t *testing.T) {
	a := newAuto(t)
	if item := parse(a, `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /a HTTP/1.1" 304 - "-" "curl"`); item.Record.Bytes != 0 {
		t.Errorf("%+v", item.Record)
	}
	if name, _ := a.Choice(); name != "apache" {
		t.Errorf("chose %s", name)
	}
}

package enrich

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

func mustRedactor(t testing.TB, cfg RedactConfig) *Redactor {
	t.Helper()
	rd, err := NewRedactor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return rd
}

var hmacKey = []byte("0123456789abcdef0123456789abcdef")

func TestMaskedLines(t *testing.T) {
	rd := mustRedactor(t, RedactConfig{Keys: []string{"Voucher-No"}})
	for _, tc := range []struct{ line, want string }{
		{`203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /a?token=abc&x=1 HTTP/1.1" 200 612 "https://r.example/?q=1&Sig=zz" "curl/8"`,
			`203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /a?token=***&x=1 HTTP/1.1" 200 612 "https://r.example/?q=1&Sig=***" "curl/8"`},
		{`"GET /a?x=1&%74oken=abc&PassWord=p%26q HTTP/1.1"`, `"GET /a?x=1&%74oken=***&PassWord=*** HTTP/1.1"`},
		{`"GET /a?voucher_no=7 HTTP/1.1"`, `"GET /a?voucher_no=*** HTTP/1.1"`},
		{`"GET /a?user[password]=p&user%5Btoken%5D=q&a.secret=r HTTP/1.1"`, `"GET /a?user[password]=***&user%5Btoken%5D=***&a.secret=*** HTTP/1.1"`},
		{`"GET /a?reset_token=p&csrf-token=q&accessToken=r HTTP/1.1"`, `"GET /a?reset_token=***&csrf-token=***&accessToken=*** HTTP/1.1"`},
		{`"GET /a?next=%2Fcb%3Fcode%3Dabc%26state%3Ds&y=2 HTTP/1.1"`, `"GET /a?next=%2Fcb%3Fcode%3D***%26state%3Ds&y=2 HTTP/1.1"`},
		{`"GET /a?next=%252Fcb%253Fcode%253Dabc%2526state%253Ds HTTP/1.1"`, `"GET /a?next=%252Fcb%253Fcode%253D***%2526state%253Ds HTTP/1.1"`},
		{`"GET /x;jsessionid=ABC123/y?z=1 HTTP/1.1"`, `"GET /x;jsessionid=***/y?z=1 HTTP/1.1"`},
		{`"GET /a?token=a\x22b&z=1 HTTP/1.1"`, `"GET /a?token=***&z=1 HTTP/1.1"`},
		{`"GET /a?token=a\"b&z=1 HTTP/1.1"`, `"GET /a?token=***&z=1 HTTP/1.1"`},
		{`{"request":"GET /q?a=1\u0026token=abc\u0026z=2 HTTP/1.1","status":200}`, `{"request":"GET /q?a=1\u0026token=***\u0026z=2 HTTP/1.1","status":200}`},
		{`{"uri":"\/q?token=abc","status":200,"code":200}`, `{"uri":"\/q?token=***","status":200,"code":200}`},
		{`{"uri":"/q?token\u003dabc","status":200}`, `{"uri":"/q?token\u003d***","status":200}`},
		{`{"uri":"/q?token=","status":200}`, `{"uri":"/q?token=","status":200}`},
		{`{"headers":{"Authorization":["Bearer abc","x"],"Cookie":["sid=1; a=\"b\""],"User-Agent":["u"]},"status":200}`,
			`{"headers":{"Authorization":["***","***"],"Cookie":["***"],"User-Agent":["u"]},"status":200}`},
		{`{"request_Authorization":"Basic dXNlcg==","http_cookie": "a=b","x":1}`, `{"request_Authorization":"***","http_cookie": "***","x":1}`},
		{`{"log":"{\"password\":\"a\\\"b\",\"status\":200}"}`, `{"log":"{\"password\":\"***\",\"status\":200}"}`},
		{`{"log":"{\"url\":\"/?token=abc\",\"status\":200}"}`, `{"log":"{\"url\":\"/?token=***\",\"status\":200}"}`},
		{`"GET /" 200 0 "https://user:pw@r.example/x" "-"`, `"GET /" 200 0 "https://***@r.example/x" "-"`},
		{`{"referer":"https:\/\/user:pw@r.example\/x"}`, `{"referer":"https:\/\/***@r.example\/x"}`},
		{`"GET /?u=https%3A%2F%2Fuser%3Apw%40r.example%2F HTTP/1.1"`, `"GET /?u=https%3A%2F%2F***%40r.example%2F HTTP/1.1"`},
		{`"GET https://medium.example/@someone HTTP/1.1"`, `"GET https://medium.example/@someone HTTP/1.1"`},
		{`msg="sent Authorization: Bearer abcdefgh.ijk" x`, `msg="sent Authorization: Bearer ***" x`},
		{`msg="sent Authorization: Bearer  abcdefgh.ijk" x`, `msg="sent Authorization: Bearer  ***" x`},
		{`msg="sent Authorization: Bearer bearer abcdefgh.ijk" x`, `msg="sent Authorization: Bearer bearer ***" x`},
		{`fe web/s1 {shop.example|https://r.example/?sig=abc} {x} "GET /?token=z HTTP/1.1"`, `fe web/s1 {shop.example|https://r.example/?sig=***} {x} "GET /?token=*** HTTP/1.1"`},
		{`fe web/s1 {https://r.example/?sig=abc|shop.example} "GET / HTTP/1.1"`, `fe web/s1 {https://r.example/?sig=***|shop.example} "GET / HTTP/1.1"`},
		{"2026-03-29\tGET\thost\t/a\t200\ttoken=abc&x=1\tsid=9", "2026-03-29\tGET\thost\t/a\t200\ttoken=***&x=1\tsid=***"},
		{`time=1 code=200 rt=0.1`, `time=1 code=200 rt=0.1`},
		{`time=1 token="a b" rt=0.1`, `time=1 token="***" rt=0.1`},
		{`"GET /a?x=1&y=2 HTTP/1.1" 200`, `"GET /a?x=1&y=2 HTTP/1.1" 200`},
		{"GET /\xff\xfe\"", `GET /\xFF\xFE"`},
		{"{\"uri\":\"/\xff\"}", `{"uri":"/\\xFF"}`},
		{"ok é \xe2\x82", `ok é \xE2\x82`},
	} {
		got := string(rd.Line(nil, []byte(tc.line), nil))
		if got != tc.want {
			t.Errorf("\n%q gave\n%q, want\n%q", tc.line, got, tc.want)
		}
		if again := string(rd.Line(nil, []byte(got), nil)); again != got {
			t.Errorf("not idempotent: %q -> %q", got, again)
		}
	}
}

func TestNothingToDoCopiesNothing(t *testing.T) {
	rd := mustRedactor(t, RedactConfig{Client: "truncate"})
	line := []byte(`203.0.113.0 - - [29/Mar/2026:00:26:24 +0100] "GET /a?x=%20&token=*** HTTP/1.1" 200 612 "https://r.example/" "Mozilla/5.0 \x22"`)
	r := &pipeline.Record{Client: netip.MustParseAddr("203.0.113.0")}
	if got := rd.Line(nil, line, r); &got[0] != &line[0] {
		t.Errorf("copied to %q", got)
	}
	if n := testing.AllocsPerRun(100, func() { rd.Line(nil, line, r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	dst := make([]byte, 0, 1024)
	secret := bytes.Replace(line, []byte("token=***"), []byte("token=abc"), 1)
	if n := testing.AllocsPerRun(100, func() { dst = rd.Line(dst, secret, r) }); n != 0 {
		t.Errorf("%v allocations with a secret", n)
	}
}

func TestDroppedQueries(t *testing.T) {
	rd := mustRedactor(t, RedactConfig{Query: "drop"})
	r := &pipeline.Record{Query: []byte("a=1&b=2")}
	for line, want := range map[string]string{
		`"GET /a?a=1&b=2 HTTP/1.1" 200 "https://r.example/?q=secret" "x"`: `"GET /a HTTP/1.1" 200 "https://r.example/" "x"`,
		"GET\t/a\t200\ta=1&b=2\tx":                                        "GET\t/a\t200\t-\tx",
		`{"uri":"/a?a=1","args":"a=1&b=2","status":200}`:                  `{"uri":"/a","args":"-","status":200}`,
		`{"log":"{\"u\":\"/?a=1\",\"s\":2}"}`:                             `{"log":"{\"u\":\"/\",\"s\":2}"}`,
	} {
		if got := string(rd.Line(nil, []byte(line), r)); got != want {
			t.Errorf("%s gave %s", line, got)
		}
	}
	keep := mustRedactor(t, RedactConfig{Query: "keep"})
	if got := string(keep.Line(nil, []byte(`/?token=abc`), nil)); got != `/?token=abc` {
		t.Error(got)
	}
}

func TestClientAddresses(t *testing.T) {
	r := &pipeline.Record{Client: netip.MustParseAddr("203.0.113.39"), Forwarded: []byte("203.0.113.39, 2001:db8:7:8::9, 10.0.0.1")}
	truncate := mustRedactor(t, RedactConfig{Client: "truncate"})
	for line, want := range map[string]string{
		`https x 203.0.113.39:2817 10.9.9.9:80 "GET /" x`:                            `https x 203.0.113.0:2817 10.9.9.9:80 "GET /" x`,
		`203.0.113.39 - - "Chrome/120.0.0.0" "203.0.113.39, 2001:DB8:7:8::9"`:        `203.0.113.0 - - "Chrome/120.0.0.0" "203.0.113.0, 2001:db8:7::"`,
		`h [29/Mar:00:26:24] 2001:db8:7:8::9:51234 [x]`:                              `h [29/Mar:00:26:24] 2001:db8:7:::51234 [x]`,
		`{"c":"203.0.113.39","x":"[2001:db8:7:8::9]:443","y":"::ffff:203.0.113.39"}`: `{"c":"203.0.113.0","x":"[2001:db8:7::]:443","y":"203.0.113.0"}`,
		"203.0.113.39,%202001:db8:7:8::9\t203.0.113.390 1203.0.113.39":               "203.0.113.0,%202001:db8:7::\t203.0.113.390 1203.0.113.39",
		`-203.0.113.39. 10.0.0.1`:                                                    `-203.0.113.0. 10.0.0.0`,
	} {
		if got := string(truncate.Line(nil, []byte(line), r)); got != want {
			t.Errorf("%s gave\n%s, want\n%s", line, got, want)
		}
	}
	a := mustRedactor(t, RedactConfig{Client: "hmac", HMACKey: hmacKey})
	b := mustRedactor(t, RedactConfig{Client: "hmac", HMACKey: append(bytes.Clone(hmacKey), 'x')})
	line := []byte(`203.0.113.39 "2001:db8:7:8::9"`)
	one, two := string(a.Line(nil, line, r)), string(b.Line(nil, line, r))
	if one == two || one != string(a.Line(nil, line, nil)) {
		t.Error(one, two)
	}
	if again := string(a.Line(nil, []byte(one), nil)); again != one {
		t.Errorf("not idempotent: %s -> %s", one, again)
	}
	v4, v6, _ := strings.Cut(one, ` "`)
	if p := netip.MustParseAddr(v4); !pseudonyms4.Contains(p) {
		t.Error(p)
	}
	if p := netip.MustParseAddr(strings.TrimSuffix(v6, `"`)); !pseudonyms6.Contains(p) {
		t.Error(p)
	}
}

// Pseudonyms must keep the number of distinct clients: that is what they are for.
func TestPseudonymsKeepClientsApart(t *testing.T) {
	seen := map[netip.Addr]bool{}
	const n = 15_000
	for i := range n {
		seen[pseudonym(hmacKey, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))] = true
	}
	if len(seen) < n-5 {
		t.Errorf("%d of %d", len(seen), n)
	}
}

func TestLongLinesAreCut(t *testing.T) {
	rd := mustRedactor(t, RedactConfig{})
	for _, line := range []string{
		strings.Repeat("é", pipeline.MaxLine), "a" + strings.Repeat("é", pipeline.MaxLine), strings.Repeat("\xff", pipeline.MaxLine),
		strings.Repeat("&sig=a", pipeline.MaxLine/6), strings.Repeat(" {sig=a", pipeline.MaxLine/7), strings.Repeat("=", pipeline.MaxLine),
		strings.Repeat("%3Dtoken", pipeline.MaxLine/8), strings.Repeat("://@", pipeline.MaxLine/4), strings.Repeat(`":`, pipeline.MaxLine/2),
	} {
		got := rd.Line(nil, []byte(line), nil)
		if len(got) > pipeline.MaxLine || !utf8.Valid(got) {
			t.Errorf("%.10q: %d bytes", line, len(got))
		}
		if again := rd.Line(nil, got, nil); !bytes.Equal(again, got) {
			t.Errorf("%.10q: not idempotent", line)
		}
	}
}

// lineMakers write a request as the formats do.
var lineMakers = map[string]func(query string) string{
	"combined": func(q string) string {
		return `203.0.113.7 - - [29/Mar/2026:00:26:24 +0100] "GET /a?` + q + ` HTTP/1.1" 200 612 "https://r.example/x?` + q + `" "Mozilla/5.0"`
	},
	"nginx_json": func(q string) string {
		b, _ := json.Marshal(map[string]any{"request": "GET /a?" + q + " HTTP/1.1", "args": q, "ref": "https://r.example/?" + q, "status": 200})
		return string(b)
	},
	"docker": func(q string) string {
		b, _ := json.Marshal(map[string]any{"log": `"GET /a?` + q + ` HTTP/1.1" 200` + "\n", "stream": "stdout"})
		return string(b)
	},
	"alb": func(q string) string {
		return `https 2026-03-29T00:59:59.186641Z app/lb/50dc 203.0.113.39:2817 10.0.0.1:80 0.001 0.048 0.000 200 200 312 5170 "GET https://www.example.com:443/a?` + q + ` HTTP/1.1" "curl/8" - -`
	},
	"haproxy": func(q string) string {
		return `lb1 haproxy[1]: 203.0.113.7:33317 [06/Mar/2026:12:14:14.655] fe shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {a|https://r.example/?` + q + `} "GET /a?` + q + ` HTTP/1.1"`
	},
	"cloudfront": func(q string) string {
		return "2026-03-29\t00:26:24\tLHR50-C1\t233918\t203.0.113.7\tGET\td1.cloudfront.net\t/a\t200\thttps://r.example/?" + q + "\tMozilla/5.0\t" + q + "\t-\tHit"
	},
	"envoy": func(q string) string {
		return `[2026-03-29T00:26:24.310Z] "POST /a?` + q + ` HTTP/2" 204 - 154 0 226 100 "203.0.113.7" "nsq2http" "-" "locations.example.com" "10.0.2.1:80"`
	},
	"php_fpm": func(q string) string {
		return `[29-Mar-2026 01:26:24] WARNING: [pool www] child 120, script '/app/index.php' (request: "GET /index.php?` + q + `") execution timed out (34.4 sec), terminating`
	},
	"nested": func(q string) string { return `"GET /login?next=` + percent("/cb?"+q) + ` HTTP/1.1" 302` },
}

func percent(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if isAlnum(s[i]) {
			b.WriteByte(s[i])
		} else {
			b.WriteString("%" + string("0123456789ABCDEF"[s[i]>>4]) + string("0123456789ABCDEF"[s[i]&15]))
		}
	}
	return b.String()
}

// skeleton is what a parser goes by: a line's separators.
func skeleton(line string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("\" \t{}[]|,:\\&=?", r) {
			return r
		}
		return -1
	}, line)
}

func TestNoSecretSurvives(t *testing.T) {
	redactors := []*Redactor{mustRedactor(t, RedactConfig{}), mustRedactor(t, RedactConfig{Client: "hmac", HMACKey: hmacKey})}
	value := rapid.Custom(func(t *rapid.T) string {
		return "s3cr" + rapid.StringMatching(`([a-zA-Z0-9._~+/*!$-]|%2[0-9A-F]|%3[0-9A-F]|%C3%A9){0,40}`).Draw(t, "tail") + "et5"
	})
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom(sensitiveKeys).Draw(t, "key")
		if rapid.Bool().Draw(t, "escaped") {
			i := rapid.IntRange(0, len(key)-1).Draw(t, "at")
			key = key[:i] + "%" + string("0123456789ABCDEF"[key[i]>>4]) + string("0123456789abcdef"[key[i]&15]) + key[i+1:]
		}
		if rapid.Bool().Draw(t, "upper") {
			key = strings.ToUpper(key)
		}
		secret := value.Draw(t, "value")
		query := rapid.SampledFrom([]string{"", "x=1&", "utf8=%E2%9C%93&", "a[]=1&"}).Draw(t, "before") + key + "=" + secret + rapid.SampledFrom([]string{"", "&y=2", "&z"}).Draw(t, "after")
		for name, make := range lineMakers {
			line := make(query)
			for _, rd := range redactors {
				got := string(rd.Line(nil, []byte(line), nil))
				if strings.Contains(got, "s3cr") || strings.Contains(got, "et5") {
					t.Fatalf("%s: %s\nkept it: %s", name, line, got)
				}
				if again := string(rd.Line(nil, []byte(got), nil)); again != got {
					t.Fatalf("%s: not idempotent: %s -> %s", name, got, again)
				}
				if line[0] == '{' && !json.Valid([]byte(got)) {
					t.Fatalf("%s: no JSON: %s", name, got)
				}
			}
			if got, want := skeleton(string(redactors[0].Line(nil, []byte(line), nil))), skeleton(make(strings.Replace(query, secret, mask, 1))); name != "nested" && got != want {
				t.Fatalf("%s: separators moved: %s\n%s\n%s", name, line, got, want)
			}
		}
	})
}

// formatLines gives the lines that the formats are tested with, by file.
func formatLines(t *testing.T) map[string][][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/lines/*.log")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files of lines: %v", len(files), err)
	}
	out := map[string][][]byte{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(data) {
			out[file] = append(out[file], bytes.TrimRight(line, "\r\n"))
		}
	}
	return out
}

// The lines of every format must stay lines of it: as JSON, and by their columns.
func TestFormatsLinesStayIntact(t *testing.T) {
	rd := mustRedactor(t, RedactConfig{Client: "truncate"})
	for file, lines := range formatLines(t) {
		for _, line := range lines {
			got := rd.Line(nil, line, &pipeline.Record{})
			if json.Valid(line) != json.Valid(got) {
				t.Errorf("%s: JSON changed: %s\n%s", file, line, got)
			}
			if !bytes.HasPrefix(line, []byte("{")) && skeleton(string(line)) != skeleton(string(got)) && utf8.Valid(line) {
				t.Errorf("%s: columns changed: %s\n%s", file, line, got)
			}
			if again := rd.Line(nil, got, &pipeline.Record{}); !bytes.Equal(again, got) {
				t.Errorf("%s: not idempotent: %s\n%s", file, got, again)
			}
		}
	}
}

// A secret put into every query of every format's lines must be gone, and with it nothing else.
func TestNoSecretSurvivesInAnyFormat(t *testing.T) {
	rd := mustRedactor(t, RedactConfig{})
	injected := 0
	for file, lines := range formatLines(t) {
		for _, line := range lines {
			clean := rd.Line(nil, line, nil)
			with := bytes.ReplaceAll(clean, []byte("?"), []byte("?Token=s3cret%26x&"))
			want := bytes.ReplaceAll(clean, []byte("?"), []byte("?Token=***&"))
			if bytes.Equal(with, clean) {
				continue
			}
			injected++
			if got := rd.Line(nil, with, nil); !bytes.Equal(got, want) {
				t.Errorf("%s: %s\ngave %s\nwant %s", file, with, got, want)
			}
		}
	}
	if injected < 30 {
		t.Errorf("only %d lines had a query", injected)
	}
}

func TestRedactorConfigErrors(t *testing.T) {
	for want, cfg := range map[string]RedactConfig{
		`redact.query: "hide"`: {Query: "hide"},
		`redact.client: "x"`:   {Client: "x"},
		`redact.hmac_key: `:    {Client: "hmac", HMACKey: []byte("short")},
		`redact.keys[1]: ""`:   {Keys: []string{"a", ""}},
	} {
		if _, err := NewRedactor(cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func FuzzRedact(f *testing.F) {
	for _, make := range lineMakers {
		f.Add([]byte(make("token=abc&x=\xff")))
	}
	f.Add([]byte(`{"authorization":["a","b\\"],"u":"https:\/\/a:b@c"} token=" %3d%253D\u003d`))
	f.Add([]byte(`://a%40:://b@\"@ Bearer %20asic 12345678`))
	all := []*Redactor{
		mustRedactor(f, RedactConfig{}), mustRedactor(f, RedactConfig{Query: "drop", Client: "truncate"}),
		mustRedactor(f, RedactConfig{Query: "keep", Client: "hmac", HMACKey: hmacKey}),
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r := &pipeline.Record{Client: netip.MustParseAddr("203.0.113.7"), Query: []byte("x=1"), Forwarded: line}
		for i, rd := range all {
			before := bytes.Clone(line)
			got := bytes.Clone(rd.Line(nil, line, r))
			if !bytes.Equal(line, before) {
				t.Fatal("the line was changed in place")
			}
			if !utf8.Valid(got) || len(got) > pipeline.MaxLine {
				t.Fatalf("%d: %q", i, got)
			}
		}
	})
}

func BenchmarkRedactNothing(b *testing.B) {
	rd := mustRedactor(b, RedactConfig{})
	line := []byte(lineMakers["combined"]("page=1&sort=price"))
	b.ReportAllocs()
	for b.Loop() {
		rd.Line(nil, line, nil)
	}
}

func BenchmarkRedactMask(b *testing.B) {
	rd := mustRedactor(b, RedactConfig{})
	line := []byte(lineMakers["combined"]("page=1&token=abcdef"))
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		dst = rd.Line(dst, line, nil)
	}
}

func BenchmarkRedactHMAC(b *testing.B) {
	rd := mustRedactor(b, RedactConfig{Client: "hmac", HMACKey: hmacKey})
	line := []byte(lineMakers["combined"]("page=1"))
	r := &pipeline.Record{Client: netip.MustParseAddr("203.0.113.7")}
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		dst = rd.Line(dst, line, r)
	}
}

// BenchmarkRedactFormats is the cost of lines as they mostly are: with nothing to take out.
func BenchmarkRedactFormats(b *testing.B) {
	rd := mustRedactor(b, RedactConfig{})
	for name, line := range map[string]string{
		"extended": `198.19.100.238 - - [06/Jun/2026:09:09:23 +0000] "HEAD /checkout/94830 HTTP/1.1" 200 0 "-" "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0.6000.24 Safari/537.36" msec=1780736963.333 host="shop.example" xff="-" rt=0.002 uaddr="-" us="-" urt="-" ul="-" cs=- lrs=-`,
		"caddy":    `{"level":"info","ts":1780736963.333682,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"198.19.100.238","remote_port":"49871","client_ip":"198.19.100.238","proto":"HTTP/1.1","method":"HEAD","host":"shop.example","uri":"/checkout/94830","headers":{"User-Agent":["Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0.6000.24 Safari/537.36"]}},"bytes_read":0,"user_id":"","duration":0.002,"size":0,"status":200,"resp_headers":{"Server":["Caddy"]}}`,
		"alb":      lineMakers["alb"]("page=1&sort=price"),
	} {
		b.Run(name, func(b *testing.B) {
			line := []byte(line)
			b.ReportAllocs()
			for b.Loop() {
				rd.Line(nil, line, nil)
			}
		})
	}
}

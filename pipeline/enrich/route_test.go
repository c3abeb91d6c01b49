package enrich

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

var shop = Config{Sites: []Site{{
	Name:  "shop.example",
	Hosts: []string{"shop.example", "www.shop.example"},
	Routes: []string{
		"/checkout/{id}", "/checkout/start", "/feeds/{name}.xml", "/files/{path...}", "/p/{slug}-{id}.html", "/a/{x}/b", "/a/{x}/{y}/d",
	},
}}}

func mustNew(t testing.TB, cfg Config) *Chain {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func routeOf(c *Chain, host, path string) string {
	r := pipeline.Record{Host: []byte(host), Path: []byte(path)}
	if path == "" {
		r.Path = nil
	}
	c.For("").Enrich(&r)
	return r.Route
}

var longSegment = strings.Repeat("x", 200)

var routeTemplates = []struct{ path, want string }{
	{"", "{malformed}"},
	{"*", "*"},
	{"shop.example:443", "{malformed}"},
	{"/", "/"},
	{"//", "/"},
	{"/cart/", "/cart"},
	{"//double//slash/../x;jsessionid=1;v=2", "/double/x"},
	{"/../../etc/passwd", "/etc/passwd"},
	{"/a/%2e%2E/b", "/b"},
	{"/user/42", "/user/{int}"},
	{"/user/42/", "/user/{int}"},
	{"/user/%34%32", "/user/{int}"},
	{"/o/25cb986c-3d6c-4ed0-abf3-ee59ed6175f9", "/o/{uuid}"},
	{"/c/4f1a8a7a0b3b4f7d9c2b6a1d5e9f0c3d", "/c/{hash}"},
	{"/c/4f1a8a7a0b3b4f7", "/c/{id}"},
	{"/u/dGhpcyBpcyBhIHRva2VuIDEyMw", "/u/{hash}"},
	{"/u/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N", "/u/{hash}"},
	{"/news/2026-03-29", "/news/{date}"},
	{"/news/2026-03", "/news/{date}"},
	{"/news/2026-13", "/news/{id}"},
	{"/news/20260329", "/news/{int}"},
	{"/en/resources", "/{locale}/resources"},
	{"/de-CH/x", "/{locale}/x"},
	{"/x/pt_BR/y", "/x/{locale}/y"},
	{"/x/de/y", "/x/de/y"},
	{"/my/account", "/my/account"},
	{"/uk/news/3939842", "/{locale}/news/{int}"},
	{"/blue-shoes-123", "/{slug}-{int}"},
	{"/123-blue-shoes", "/{int}-{slug}"},
	{"/step-2", "/step-2"},
	{"/about-us", "/about-us"},
	{"/terms-and-conditions", "/terms-and-conditions"},
	{"/api/v1/alerts", "/api/v1/alerts"},
	{"/sku12345", "/{id}"},
	{"/unsubscribe/jane%40mail.example", "/unsubscribe/{email}"},
	{"/assets/css/desktop/post.min.css", "/assets/css/desktop/{file}.css"},
	{"/assets/App.3f2a.JS", "/assets/{file}.js"},
	{"/doc/report-2024.pdf", "/doc/{file}.pdf"},
	{"/robots.txt", "/robots.txt"},
	{"/index.html", "/index.html"},
	{"/index2.php", "/index2.php"},
	{"/42.php", "/{file}.php"},
	{"/a/b/c/d/e/f/g/h", "/a/b/c/d/e/f/{rest}"},
	{"/%24%7Bjndi%3Aldap%3A%2F%2Fx%7D", "/{text}"},
	{"/sp ace/x y", "/{text}/{text}"},
	{"/utf8-é", "/utf8-%C3%A9"},
	{"/utf8-%c3%a9", "/utf8-%C3%A9"},
	{"/bad\xff", "/{text}"},
	{"/%zz", "/{text}"},
	{"/\x00\x1b[31m", "/{text}"},
	{"/\u202egpj.exe", "/%E2%80%AEgpj.exe"},
	{"/x%2Fy", "/{text}"},
	{"/" + longSegment, "/{text}"},
	{"/s" + strings.Repeat("/x", 5000), "/s/x/x/x/x/x/{rest}"},
	{"/{int}/{file}.css", "/{int}/{file}.css"},
	{"/{evil}", "/{text}"},
	// declared
	{"/checkout/77", "/checkout/{id}"},
	{"/checkout/anything%20at%20all", "/checkout/{id}"},
	{"/checkout/start", "/checkout/start"},
	{"/checkout/%73tart/", "/checkout/start"},
	{"/checkout", "/checkout"},
	{"/checkout/7/pay", "/checkout/{int}/pay"},
	{"/feeds/berlin.xml", "/feeds/{name}.xml"},
	{"/feeds/.xml", "/feeds/.xml"},
	{"/files", "/files"},
	{"/files/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t", "/files/{path...}"},
	{"/p/red-hat-9.html", "/p/{slug}-{id}.html"},
	{"/a/1/b", "/a/{x}/b"},
	{"/a/1/b/d", "/a/{x}/{y}/d"},
}

func TestRouteTemplates(t *testing.T) {
	c := mustNew(t, shop)
	for _, tc := range routeTemplates {
		if got := routeOf(c, "shop.example", tc.path); got != tc.want {
			t.Errorf("%.60q: got %q, want %q\n%s", tc.path, got, tc.want, c.Explain("shop.example", tc.path))
		}
	}
	if got := routeOf(c, "other.example", "/checkout/start"); got != "/checkout/start" {
		t.Errorf("undeclared site: %q", got)
	}
	if got := routeOf(c, "other.example", "/feeds/berlin.xml"); got != "/feeds/berlin.xml" {
		t.Errorf("a route leaked to another site: %q", got)
	}
}

// pathGen draws paths from the pieces that templates are made of, whole and broken.
func pathGen() *rapid.Generator[string] {
	seg := rapid.OneOf(
		rapid.SampledFrom([]string{"", ".", "..", "%2e%2e", "checkout", "feeds", "files", "a", "p", "42", "v1", "en", "de-CH", "berlin.xml", "app.9f.css",
			"blue-shoes-12", "12-blue-shoes", "2026-03-29", "a@b.example", "{int}", "{rest}", "{slug}-{int}", "{file}.css", "{x", "%7Brest%7D", "%", "%4", "x;y=1", "é", "%C3%A9"}),
		rapid.StringMatching(`[a-zA-Z0-9._~@:!+,=()*-]{1,30}`),
		rapid.StringMatching(`[0-9a-f]{8,40}`),
		rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "bytes")) }),
		rapid.Custom(func(t *rapid.T) string {
			return strings.Repeat(rapid.SampledFrom([]string{"x", "é", "%41", "/y"}).Draw(t, "unit"), rapid.IntRange(1, 900).Draw(t, "n"))
		}),
	)
	return rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(seg, 0, 20).Draw(t, "segments"), "/")
	})
}

func checkRoute(t interface{ Fatalf(string, ...any) }, c *Chain, host, path string) {
	got := routeOf(c, host, path)
	if again := routeOf(c, host, got); again != got {
		t.Fatalf("not stable: %q -> %q -> %q", path, got, again)
	}
	if len(got) > templateMax+3*literalMax+16 {
		t.Fatalf("%d bytes for %q", len(got), path)
	}
	for i := range len(got) {
		if got[i] <= ' ' || got[i] > '~' || strings.IndexByte("\"<>\\'&`$", got[i]) >= 0 {
			t.Fatalf("byte %q in %q", got[i], got)
		}
	}
}

func TestRouteIsStableAndSafe(t *testing.T) {
	c := mustNew(t, shop)
	rapid.Check(t, func(t *rapid.T) {
		checkRoute(t, c, rapid.SampledFrom([]string{"shop.example", "x.example"}).Draw(t, "host"), pathGen().Draw(t, "path"))
	})
}

// A route must be the same on every node: whatever was seen before, and with or without memory of it.
func TestRouteIsTheSameInAnyOrderOnAnyInstance(t *testing.T) {
	tiny := shop
	tiny.Limits.Paths = 1
	warm := mustNew(t, shop)
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.SliceOfN(pathGen(), 1, 30).Draw(t, "paths")
		cold, err := New(tiny)
		if err != nil {
			t.Fatal(err)
		}
		order := rapid.Permutation(paths).Draw(t, "order")
		want := map[string]string{}
		for _, p := range paths {
			want[p] = routeOf(warm, "shop.example", p)
		}
		for _, p := range order {
			if got := routeOf(cold, "shop.example", p); got != want[p] {
				t.Fatalf("%q: %q and %q", p, got, want[p])
			}
		}
	})
}

func TestMillionPathsKeepMemoryBounded(t *testing.T) {
	c := mustNew(t, shop)
	e := c.For("")
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	flood := func(from, to int) {
		var r pipeline.Record
		var path, agent, host []byte
		for i := from; i < to; i++ {
			path = fmt.Appendf(path[:0], "/%c%c/zz%xq/%s", 'a'+i%26, 'a'+i/26%26, i, "some-literal")
			agent = fmt.Appendf(agent[:0], "Mozilla/5.0 (%d)", i)
			host = fmt.Appendf(host[:0], "h%d.example", i)
			r.Path, r.UserAgent, r.Host = path, agent, host
			e.Enrich(&r)
		}
	}
	flood(0, 100_000)
	before := heap()
	flood(100_000, 1_000_000)
	after := heap()
	if after > before+before/2+4<<20 {
		t.Fatalf("the heap grew from %d to %d bytes between the first 100,000 and the last path", before, after)
	}
	if n := len(c.sites.unlisted); n != 1024 {
		t.Fatalf("%d unlisted sites", n)
	}
	runtime.KeepAlive(c)
}

func TestBadRoutes(t *testing.T) {
	for _, bad := range []string{"checkout", "/a/{", "/a/}", "/a/{}", "/a/{b c}", "/{a}{b}", "/a?x", "/a//b", "/a/../b", "/{x...}/b", "/{...}", "/é", "/" + strings.Repeat("a", 300), strings.Repeat("/a", 17)} {
		_, err := New(Config{Sites: []Site{{Name: "a"}, {Name: "b", Routes: []string{"/fine/{id}", bad}}}})
		if err == nil || !strings.HasPrefix(err.Error(), "sites[1].routes[1]: ") {
			t.Errorf("%.30q: %v", bad, err)
		}
	}
	_, err := New(Config{Sites: []Site{{Name: "a", Routes: []string{"/x/{a}", "/x/{b}"}}}})
	if err == nil || !strings.Contains(err.Error(), `"/x/{a}"`) {
		t.Errorf("the same route twice: %v", err)
	}
}

func TestExplainNamesEverySegment(t *testing.T) {
	c := mustNew(t, shop)
	got := c.Explain("shop.example", "/user/42/blue-shoes-7")
	want := "/user/{int}/{slug}-{int}\n" +
		"  \"user\": user, taken as it is\n" +
		"  \"42\": {int}, digits alone\n" +
		"  \"blue-shoes-7\": {slug}-{int}, words and a number at the end\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := c.Explain("shop.example", "/checkout/9"); !strings.Contains(got, "declared route /checkout/{id}") {
		t.Error(got)
	}
	if got := c.Explain("x", "/a/b/c/d/e/f/g"); !strings.Contains(got, "the rest: {rest}") {
		t.Error(got)
	}
}

func FuzzRoute(f *testing.F) {
	for _, s := range []string{"/", "/a/42", "/checkout/{id}", "/%2e%2e/%7Brest%7D", "/files/x", "/{file}.css/{rest}/x"} {
		f.Add([]byte(s))
	}
	c := mustNew(f, shop)
	f.Fuzz(func(t *testing.T, path []byte) {
		checkRoute(t, c, "shop.example", "/"+string(path))
		checkRoute(t, c, "x.example", string(path))
	})
}

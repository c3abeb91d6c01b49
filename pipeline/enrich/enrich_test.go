package enrich

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

var fleet = Config{
	Own:            Own{Interfaces: true, Addresses: []string{"198.51.100.7", "10.0.0.0/8", "2001:db8:1::/48"}},
	Interfaces:     []netip.Prefix{netip.MustParsePrefix("192.0.2.9/32")},
	Allowed:        []Allowed{{Name: "office", Addresses: []string{"203.0.113.0/28", "10.9.0.0/16"}}},
	TrustedProxies: []string{"10.0.0.0/8", "fd00::/8"},
	Sites:          shop.Sites,
}

func TestClientAndOrigin(t *testing.T) {
	c := mustNew(t, fleet)
	for _, tc := range []struct {
		name, peer, forwarded, client string
		origin                        pipeline.Origin
	}{
		{"no header", "192.0.2.1", "", "192.0.2.1", pipeline.External},
		{"a stranger writes our address", "192.0.2.1", "198.51.100.7", "192.0.2.1", pipeline.External},
		{"the same through our proxy", "10.0.0.1", "198.51.100.7, 192.0.2.1", "192.0.2.1", pipeline.External},
		{"with our proxy's address behind", "10.0.0.1", "198.51.100.7, 192.0.2.1, 10.0.0.2", "192.0.2.1", pipeline.External},
		{"garbage from a stranger does not make it the proxy", "10.0.0.1", "unknown", "invalid IP", pipeline.External},
		{"garbage behind a proxy", "10.0.0.1", "198.51.100.7, _x, 10.0.0.2", "invalid IP", pipeline.External},
		{"our own host through our proxy", "10.0.0.1", "198.51.100.7", "198.51.100.7", pipeline.Own},
		{"our interface", "192.0.2.9", "-", "192.0.2.9", pipeline.Own},
		{"its neighbour", "192.0.2.10", "-", "192.0.2.10", pipeline.External},
		{"inside all the way", "10.0.0.1", "10.0.0.5, 10.0.0.6", "10.0.0.5", pipeline.Own},
		{"the office", "10.0.0.1", "203.0.113.4", "203.0.113.4", pipeline.Allowed},
		{"the office within our net", "10.9.1.1", "", "10.9.1.1", pipeline.Allowed},
		{"mapped", "::ffff:10.0.0.1", "::ffff:203.0.113.4", "203.0.113.4", pipeline.Allowed},
		{"ports and brackets", "fd00::1", "[2001:db8:2::1]:443,  203.0.113.4:99 ", "203.0.113.4", pipeline.Allowed},
		{"brackets alone", "fd00::1", "[2001:db8:1::7]", "2001:db8:1::7", pipeline.Own},
		{"empty elements", "10.0.0.1", ",, 192.0.2.1,,", "192.0.2.1", pipeline.External},
		{"no peer logged: nobody vouches", "", "198.51.100.7", "198.51.100.7", pipeline.External},
		{"nothing at all", "", "", "invalid IP", pipeline.External},
		{"loopback is not ours unless listed", "127.0.0.1", "", "127.0.0.1", pipeline.External},
		{"endless", "10.0.0.1", strings.Repeat("10.0.0.2,", 3000), "invalid IP", pipeline.External},
	} {
		r := pipeline.Record{}
		if tc.peer != "" {
			r.Client = netip.MustParseAddr(tc.peer)
		}
		if tc.forwarded != "" {
			r.Forwarded = []byte(tc.forwarded)
		}
		c.For("").Enrich(&r)
		if r.Client.String() != tc.client || r.Origin != tc.origin {
			t.Errorf("%s: got %s %s, want %s %s", tc.name, r.Client, r.Origin, tc.client, tc.origin)
		}
	}
	if name, ok := c.AllowedName(netip.MustParseAddr("203.0.113.4")); name != "office" || !ok {
		t.Error(name, ok)
	}
	if _, ok := c.AllowedName(netip.MustParseAddr("10.0.0.1")); ok {
		t.Error("an own address is allowed")
	}
}

// Whatever a stranger puts into the header, what its last trusted proxy appends decides.
func TestSpoofedHeaderNeverMakesAStrangerOwn(t *testing.T) {
	e := mustNew(t, fleet).For("")
	hop := rapid.OneOf(rapid.SampledFrom([]string{"198.51.100.7", "10.0.0.1", "203.0.113.1", "::1", "", " ", "[", "]", "unknown", "::ffff:10.0.0.1", "10.0.0.1:80"}), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		sent := strings.Join(rapid.SliceOf(hop).Draw(t, "sent"), ",")
		direct := pipeline.Record{Client: netip.MustParseAddr("192.0.2.77"), Forwarded: []byte(sent)}
		e.Enrich(&direct)
		through := pipeline.Record{Client: netip.MustParseAddr("10.0.0.1"), Forwarded: []byte(sent + ", 192.0.2.77")}
		e.Enrich(&through)
		unknown := pipeline.Record{Forwarded: []byte(sent)}
		e.Enrich(&unknown)
		for _, r := range []pipeline.Record{direct, through, unknown} {
			if r.Origin != pipeline.External {
				t.Fatalf("%q made %s %s", r.Forwarded, r.Client, r.Origin)
			}
		}
		if direct.Client != through.Client {
			t.Fatalf("%s and %s", direct.Client, through.Client)
		}
	})
}

func TestInterfacePrefixesAreSingleAddresses(t *testing.T) {
	prefixes, err := InterfacePrefixes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prefixes {
		if !p.IsSingleIP() || p.Addr().IsLoopback() || p.Addr().Zone() != "" {
			t.Errorf("%s", p)
		}
	}
	mustNew(t, Config{Own: Own{Interfaces: true}, Interfaces: prefixes})
}

func TestSites(t *testing.T) {
	c := mustNew(t, shop)
	for _, tc := range []struct{ host, upstream, fixed, want string }{
		{"shop.example", "", "", "shop.example"},
		{"WWW.Shop.Example.:8443", "", "", "shop.example"},
		{"www.other.example", "", "", "www.other.example"},
		{"Other.Example.", "", "fixed", "other.example"},
		{"", "", "", "default"},
		{"-", "", "", "default"},
		{"_", "", "blog", "blog"},
		{"", "", "www.shop.example", "shop.example"},
		{"", "default-shop-80", "", "default-shop-80"},
		{"", "default-shop-80", "blog", "blog"},
		{"192.0.2.1:80", "", "", "192.0.2.1"},
		{"[2001:DB8::1]:443", "", "", "2001:db8::1"},
		{"2001:db8::1", "", "", "2001:db8::1"},
		{"xn--bcher-kva.example", "", "", "xn--bcher-kva.example"},
		{"bücher.example", "", "", "other"},
		{"a b", "", "", "other"},
		{"a..b", "", "", "other"},
		{".a", "", "", "other"},
		{"-a.example", "", "", "other"},
		{"a-.example", "", "", "other"},
		{"a.example:port", "", "", "other"},
		{"a.example:123456", "", "", "other"},
		{"[::1", "", "", "other"},
		{"a\x00b", "", "", "other"},
		{"\u202eelpmaxe.pohs", "", "", "other"},
		{"<script>", "", "", "other"},
		{strings.Repeat("a", 64) + ".example", "", "", "other"},
		{strings.Repeat("a.", 5000), "", "", "other"},
		{strings.Repeat("a.", 126) + "a", "", "", strings.Repeat("a.", 126) + "a"},
		{strings.Repeat("a.", 127) + "a", "", "", "other"},
	} {
		for range 2 { // computed, then remembered
			r := pipeline.Record{Host: []byte(tc.host), Upstream: []byte(tc.upstream)}
			c.For(tc.fixed).Enrich(&r)
			if r.Site != tc.want {
				t.Errorf("%.40q %q %q: got %.40q, want %.40q", tc.host, tc.upstream, tc.fixed, r.Site, tc.want)
			}
		}
	}
}

func TestUnlistedSitesAreBoundedAndHeal(t *testing.T) {
	reg := prometheus.NewRegistry()
	cfg := shop
	cfg.Limits.Sites, cfg.Registerer = 10, reg
	c := mustNew(t, cfg)
	e := c.For("")
	at := func(host string, seconds int64) string {
		r := pipeline.Record{Host: []byte(host), Time: seconds * 1e9}
		e.Enrich(&r)
		return r.Site
	}
	names := map[string]bool{}
	for i := range 50 {
		names[at(fmt.Sprintf("scan%d.example", i), 1000)] = true
	}
	if len(names) != 11 || !names["other"] {
		t.Fatalf("%d names", len(names))
	}
	if got := testutil.ToFloat64(c.sites.metrics.limit); got != 40 {
		t.Errorf("%v counted", got)
	}
	if got := at("shop.example", 1000); got != "shop.example" {
		t.Errorf("a configured site became %q", got)
	}
	if got := at("late.example", 1100); got != "other" {
		t.Errorf("got %q", got)
	}
	at("scan0.example", 4000)
	if got := at("late.example", 1000+3600+60); got != "late.example" {
		t.Errorf("after an hour: %q", got)
	}
	if got := at("scan0.example", 4700); got != "scan0.example" {
		t.Errorf("a busy host lost its place: %q", got)
	}
	if n := len(c.sites.unlisted); n > 10 {
		t.Errorf("%d places", n)
	}
	at("a b", 5000)
	at("a b", 5000)
	if got := testutil.ToFloat64(c.sites.metrics.invalid); got != 2 {
		t.Errorf("%v invalid", got)
	}
}

func TestClasses(t *testing.T) {
	c := mustNew(t, Config{})
	const chrome = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"
	for _, tc := range []struct {
		agent, method, referer string
		want                   pipeline.Class
	}{
		{chrome, "GET", "", pipeline.Browser},
		{chrome, "HEAD", "", pipeline.Scanner},
		{chrome, "HEAD", "-", pipeline.Scanner},
		{chrome, "HEAD", "https://shop.example/", pipeline.Browser},
		{chrome, "OPTIONS", "", pipeline.Browser},
		{chrome, "PROPFIND", "", pipeline.Scanner},
		{"Mozilla/5.0 (Linux; Android 9; CUBOT X19)", "GET", "", pipeline.Browser},
		{"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", "HEAD", "", pipeline.Bot},
		{"Mozilla/5.0 (compatible; bingbot/2.0)", "GET", "", pipeline.Bot},
		{"Screaming Frog SEO Spider/20.1", "GET", "", pipeline.Bot},
		{"Screaming+Frog+SEO+x/20.1", "GET", "", pipeline.Bot},
		{"curl/8.5.0", "HEAD", "", pipeline.Bot},
		{"python-requests/2.31", "GET", "", pipeline.Bot},
		{"Go-http-client/2.0", "GET", "", pipeline.Bot},
		{"Mozilla/5.0 (compatible; UptimeRobot/2.0)", "HEAD", "", pipeline.Bot},
		{"Pingdom.com_bot_version_1.4", "GET", "", pipeline.Bot},
		{"ELB-HealthChecker/2.0", "GET", "", pipeline.Probe},
		{"kube-probe/1.30", "GET", "", pipeline.Probe},
		{"GoogleHC/1.0", "GET", "", pipeline.Probe},
		{"Consul Health Check", "GET", "", pipeline.Probe},
		{"my kube-probe/1.30", "GET", "", pipeline.OtherAgent},
		{"", "GET", "", pipeline.Empty},
		{"-", "HEAD", "", pipeline.Empty},
		{"Shop-App/3.2", "GET", "", pipeline.OtherAgent},
		{"${jndi:ldap://x}", "GET", "", pipeline.OtherAgent},
		{"Mozilla/5.0 " + strings.Repeat("x", 10_000) + " bot", "GET", "", pipeline.Browser},
	} {
		r := pipeline.Record{UserAgent: []byte(tc.agent), Method: []byte(tc.method), Referer: []byte(tc.referer)}
		for range 2 {
			c.For("").Enrich(&r)
			if r.Class != tc.want {
				t.Errorf("%.60q %s: got %s, want %s", tc.agent, tc.method, r.Class, tc.want)
			}
			if want := tc.agent[:min(len(tc.agent), pipeline.AgentMax)]; tc.want != pipeline.Empty && (r.Agent != want || r.AgentHash != xxhash.Sum64String(want)) {
				t.Errorf("%.60q is counted as %.60q, %x", tc.agent, r.Agent, r.AgentHash)
			}
		}
	}
}

func TestStatic(t *testing.T) {
	c := mustNew(t, Config{})
	for path, want := range map[string]bool{
		"/assets/css/post.min.css": true, "/a.WOFF2": true, "/x.jpeg": true, "/x.avif": true, "/a.mjs": true, "/api/x.json": true,
		"/": false, "/css": false, "/a.css/": false, "/a.css.php": false, "/feed.xml": false, "/a.": false, "/.css": true, "": false,
	} {
		r := pipeline.Record{Path: []byte(path)}
		c.For("").Enrich(&r)
		if r.Static != want {
			t.Errorf("%s: %v", path, r.Static)
		}
	}
}

func TestConfigErrorsNameTheirPlace(t *testing.T) {
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{TrustedProxies: []string{"10.0.0.0/8", "10.0.0.0/33"}}, `trusted_proxies[1]: "10.0.0.0/33" is no address range`},
		{Config{Own: Own{Addresses: []string{"x"}}}, `own.addresses[0]: "x"`},
		{Config{Own: Own{Addresses: []string{"10.0.0.1/8"}}}, `own.addresses[0]: "10.0.0.1/8" has bits behind its length: write 10.0.0.0/8, or 10.0.0.1 for`},
		{Config{Allowed: []Allowed{{Name: "o", Addresses: []string{"fe80::1%eth0"}}}}, `allowed[0].addresses[0]: "fe80::1%eth0"`},
		{Config{Allowed: []Allowed{{Addresses: []string{"::1"}}}}, `allowed[0].name`},
		{Config{Own: Own{Addresses: []string{"10.0.0.0/8"}}, Allowed: []Allowed{{Name: "o", Addresses: []string{"10.0.0.0/8"}}}}, `allowed[0].addresses[0]: 10.0.0.0/8 is already in own.addresses`},
		{Config{Sites: []Site{{Name: ""}}}, `sites[0].name`},
		{Config{Sites: []Site{{Name: "other"}}}, `sites[0].name: "other"`},
		{Config{Sites: []Site{{Name: "a"}, {Name: "a"}}}, `sites[1].name: "a" is already`},
		{Config{Sites: []Site{{Name: "a", Hosts: []string{"x.example"}}, {Name: "b", Hosts: []string{"y.example", "X.example."}}}}, `sites[1].hosts[1]: "X.example." is already a host of sites[0] (a)`},
		{Config{Sites: []Site{{Name: "a", Hosts: []string{"*.example"}}}}, `sites[0].hosts[0]: "*.example" is no host`},
	} {
		_, err := New(tc.cfg)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want %s", err, tc.want)
		}
	}
}

// run with -race: one chain, many streams.
func TestConcurrentUse(t *testing.T) {
	cfg := fleet
	cfg.Limits = Limits{Sites: 5, Paths: 8}
	c := mustNew(t, cfg)
	var wg sync.WaitGroup
	results := make([]string, 4)
	for g := range results {
		wg.Go(func() {
			e := c.For("")
			var b strings.Builder
			for i := range 3000 {
				r := pipeline.Record{
					Time: int64(i) * 1e9, Host: fmt.Appendf(nil, "h%d.example", i%7), Path: fmt.Appendf(nil, "/p%c/%d", 'a'+i%20, i),
					UserAgent: fmt.Appendf(nil, "Mozilla/%d", i%30), Client: netip.MustParseAddr("10.0.0.1"), Forwarded: []byte("192.0.2.1"),
				}
				e.Enrich(&r)
				b.WriteString(r.Route + r.Class.String() + r.Origin.String())
			}
			results[g] = b.String()
		})
	}
	wg.Wait()
	for _, r := range results[1:] {
		if r != results[0] {
			t.Fatal("two streams saw different routes for the same paths")
		}
	}
}

func sampleRecord() pipeline.Record {
	return pipeline.Record{
		Time: 1774743984e9, Host: []byte("www.shop.example"), Client: netip.MustParseAddr("10.0.0.1"), Forwarded: []byte("198.51.100.9, 192.0.2.1"),
		Method: []byte("HEAD"), Path: []byte("/checkout/8842-blue-shoes"),
		UserAgent: []byte("Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"),
	}
}

func TestNoAllocationForWhatWasSeen(t *testing.T) {
	e := mustNew(t, fleet).For("")
	long := sampleRecord()
	long.Path = []byte("/x/" + strings.Repeat("y", 3000)) // too long to remember
	unlisted := sampleRecord()
	unlisted.Host, unlisted.Forwarded = []byte("Blog.example"), []byte("garbage")
	for _, sample := range []pipeline.Record{sampleRecord(), long, unlisted, {}} {
		r := sample
		if n := testing.AllocsPerRun(100, func() { r = sample; e.Enrich(&r) }); n != 0 {
			t.Errorf("%v allocations for %s %.30s", n, sample.Host, sample.Path)
		}
	}
}

func BenchmarkEnrichSeen(b *testing.B) {
	e := mustNew(b, fleet).For("")
	sample := sampleRecord()
	b.ReportAllocs()
	for b.Loop() {
		r := &sample
		r.Client = netip.AddrFrom4([4]byte{10, 0, 0, 1})
		e.Enrich(r)
	}
}

func BenchmarkEnrichNoForwarded(b *testing.B) {
	e := mustNew(b, fleet).For("")
	r := sampleRecord()
	r.Forwarded = nil
	b.ReportAllocs()
	for b.Loop() {
		e.Enrich(&r)
	}
}

func BenchmarkEnrichNewPath(b *testing.B) {
	e := mustNew(b, fleet).For("")
	r := sampleRecord()
	i := 0
	var path []byte
	b.ReportAllocs()
	for b.Loop() {
		i++
		path = fmt.Appendf(path[:0], "/user/%d/blue-shoes-%d", i, i)
		r.Path = path
		e.Enrich(&r)
	}
}

package enrich_test

import (
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/enrich"
	"github.com/squall-sre/squall/pipeline/format"
)

// newSpoofed makes the enricher of a site whose own host and whose office somebody would like to be.
func newSpoofed(t *testing.T) *enrich.Chain {
	t.Helper()
	chain, err := enrich.New(enrich.Config{
		Own:            enrich.Own{Addresses: []string{ourHost}},
		Allowed:        []enrich.Allowed{{Name: "office", Addresses: []string{"192.0.2.0/28"}}},
		TrustedProxies: []string{"10.0.0.0/8"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

// userNames are what a client may call itself (curl -u): text of its own in the middle of the line.
var userNames = []string{
	"-", "shop", "x] [y", "x [y", "x]", "[", " [", "[198.51.100.7] - x", "[198.51.100.7] - -", "- [198.51.100.7]", "a b", "a - b", "- - b",
	"192.0.2.1 - -", "198.51.100.7 - x", "x [29/Mar/2026:02:59:58 +0200]", "[29/Mar/2026:02:59:58 +0200] x", "[29/Mar/2026:02:59:58 +0200",
	"x] - [198.51.100.7] - - [y",
}

// Whatever a client calls itself, its line is read, is of its own address and of its own time.
func TestUserNamesGiveNothingAway(t *testing.T) {
	chain := newSpoofed(t)
	const combined = `@PEER@ - @USER@ [29/Mar/2026:02:59:59 +0200] "GET /a HTTP/1.1" 200 2 "-" "curl"`
	const xff = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`
	for _, f := range []struct{ name, log, line string }{
		{"ingress_nginx", "", combined + ` 130 0.004 [ns-svc-80] [] 10.0.0.5:80 2 0.004 200 a3d4`},
		{"ingress_nginx", "", combined + ` 130 0.004 [ns-svc-80] [ns-svc-81] 10.0.0.5:80 2 0.004 200 a3d4`},
		{"nginx_combined", "", combined},
		{"nginx", "", combined},
		{"auto", "", combined},
		{"auto", "", combined + ` "-"`},
		{"auto", "", combined + ` 130 0.004 [ns-svc-80] [] 10.0.0.5:80 2 0.004 200 a3d4`},
		{"apache", "", combined},
		{"apache_combined", "", combined},
		{"apache_common", "", `@PEER@ - @USER@ [29/Mar/2026:02:59:59 +0200] "GET /a HTTP/1.1" 200 2`},
		{"apache", "combined", combined},
		{"apache", "", `shop.example:443 ` + combined},
		{"apache", "", `shop.example ` + combined},
		{"apache", "", combined + ` 5127`},
		{"nginx_extended", "", combined + ` "-"`},
		{"nginx_extended", "", `shop.example ` + combined + ` 0.004`},
		{"nginx", format.RecommendedNginx, combined + ` msec=1774745999.000 host="shop.example" xff="-" rt=0.107 uaddr="-" us="-" urt="-" ul="-" cs=- lrs=-`},
		{"auto", "", combined + ` msec=1774745999.000 host="shop.example" xff="-" rt=0.107 uaddr="-" us="-" urt="-" ul="-" cs=- lrs=-`},
		{"nginx", xff, combined},
		{"nginx", `$remote_addr $remote_user $time_local "$request" $status`, `@PEER@ @USER@ 29/Mar/2026:02:59:59 +0200 "GET /a HTTP/1.1" 200`},
		{"nginx", `$remote_addr $remote_user [$time_local] $status "$request"`, `@PEER@ @USER@ [29/Mar/2026:02:59:59 +0200] 200 "GET /a HTTP/1.1"`},
		{"nginx", `[$time_local] $remote_addr ($remote_user) ($server_name) "$request" $status`, `[29/Mar/2026:02:59:59 +0200] @PEER@ (@USER@) (shop.example) "GET /a HTTP/1.1" 200`},
	} {
		parser, err := format.New(format.Config{Name: f.name, LogFormat: f.log})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // what a stream had before must not matter
			for _, user := range userNames {
				for _, peer := range []string{stranger, ourProxy, ourHost} {
					checkUser(t, chain, parser, f.name, strings.NewReplacer("@PEER@", peer, "@USER@", user).Replace(f.line), peer)
				}
			}
		}
	}
}

// Apache hides a quote in a name by a backslash; Traefik and php-fpm write names, too.
func TestUserNamesElsewhere(t *testing.T) {
	chain := newSpoofed(t)
	for _, f := range []struct{ name, log, line string }{
		{"apache", "", `@PEER@ - x\" [y] \"z [29/Mar/2026:02:59:59 +0200] "GET /a HTTP/1.1" 200 2 "-" "curl"`},
		{"apache", "combined", `@PEER@ - x\" [29/Mar/2026:02:59:58 +0200] \"GET /b HTTP/1.1\" [29/Mar/2026:02:59:59 +0200] "GET /a HTTP/1.1" 200 2 "-" "curl"`},
		{"php_fpm_access", "", `@PEER@ - x "y 29/Mar/2026:02:59:59 +0200 "GET /a" 200`},
		{"nginx", `log_format main escape=none '$remote_addr - $remote_user [$time_local] "$request" $status';`, `@PEER@ - x "y] "[ [29/Mar/2026:02:59:59 +0200] "GET /a HTTP/1.1" 200`},
		{"php_fpm_access", "", `@PEER@ - x] [y 29/Mar/2026:02:59:59 +0200 "GET /a" 200`},
	} {
		parser, err := format.New(format.Config{Name: f.name, LogFormat: f.log})
		if err != nil {
			t.Fatal(err)
		}
		var item pipeline.Item
		item.Reset()
		parser.Parse([]byte(strings.NewReplacer("@PEER@", stranger).Replace(f.line)), &item)
		chain.For("").Enrich(&item.Record)
		if r := &item.Record; item.Kind != pipeline.IsRecord || r.Time != 1774745999e9 || string(r.Path) != "/a" || r.Origin != pipeline.External {
			t.Errorf("%s: %s at %d, %s %s: %s", f.name, item.Reason, item.Column, r.Client, r.Path, f.line)
		}
	}
}

func checkUser(t *testing.T, chain *enrich.Chain, parser pipeline.Format, name, line, peer string) {
	t.Helper()
	var item pipeline.Item
	item.Reset()
	if parser.Parse([]byte(line), &item); item.Kind != pipeline.IsRecord {
		t.Errorf("%s: %s at %d: %s", name, item.Reason, item.Column, line)
		return
	}
	chain.For("").Enrich(&item.Record)
	want := pipeline.External
	if peer == ourHost {
		want = pipeline.Own
	}
	r := &item.Record
	if r.Client.String() != peer || r.Origin != want || r.Time != 1774745999e9 || string(r.Path) != "/a" || r.Status != 200 ||
		len(r.Host) > 0 && string(r.Host) != "shop.example" {
		t.Errorf("%s: %s %s, time %d, %s %d, host %q: %s", name, r.Client, r.Origin, r.Time, r.Path, r.Status, r.Host, line)
	}
}

// The old front of ingress-nginx stands before one pair of brackets. A header, or a name, that holds its marks leaves
// the client unknown.
func TestOldIngressFront(t *testing.T) {
	chain := newSpoofed(t)
	const rest = ` [29/Mar/2026:02:59:59 +0200] "GET /a HTTP/1.1" 200 2 "-" "curl" 130 0.004 [ns-svc-80] 10.0.0.5:80 2 0.004 200`
	parser, err := format.New(format.Config{Name: "ingress_nginx"})
	if err != nil {
		t.Fatal(err)
	}
	for front, want := range map[string]string{
		"10.0.0.1 - [203.0.113.7] - -":                    "203.0.113.7 external",
		"10.0.0.1 - [198.51.100.7] - -":                   "198.51.100.7 own",
		"10.0.0.1 - [198.51.100.7, 203.0.113.7] - shop":   "203.0.113.7 external",
		"10.0.0.1 - [198.51.100.7] - x, 203.0.113.7] - -": "invalid IP external",
		"203.0.113.7 - [198.51.100.7] - x":                "203.0.113.7 external",
	} {
		var item pipeline.Item
		item.Reset()
		if parser.Parse([]byte(front+rest), &item); item.Kind != pipeline.IsRecord {
			t.Errorf("%s: %s at %d", front, item.Reason, item.Column)
			continue
		}
		chain.For("").Enrich(&item.Record)
		if got := item.Record.Client.String() + " " + item.Record.Origin.String(); got != want {
			t.Errorf("%s: %s, want %s", front, got, want)
		}
	}
}

// Where the log has the peer beside the address that the server put in its place, the peer vouches for it if it is one
// of the trusted proxies.
func TestRealIPBesidePeer(t *testing.T) {
	chain := newSpoofed(t)
	const line = `@CLIENT@ @PEER@ [29/Mar/2026:02:59:59 +0200] "GET /a HTTP/1.1" 200 "@XFF@"`
	for _, f := range []struct{ name, log string }{
		{"nginx", `$remote_addr $realip_remote_addr [$time_local] "$request" $status "$http_x_forwarded_for"`},
		{"apache", `%a %{c}a %t "%r" %>s "%{X-Forwarded-For}i"`},
	} {
		for _, c := range []struct {
			client, peer, xff, want string
			source                  enrich.ClientSource
		}{
			{ourHost, ourProxy, "-", "198.51.100.7 own", enrich.ClientHop},
			{ourHost, stranger, ourHost, "198.51.100.7 external", enrich.ClientClaim},
			{ourHost, "unix:", ourHost, "198.51.100.7 external", enrich.ClientClaim},
			{"10.0.0.2", ourProxy, "192.0.2.1, 203.0.113.7, 10.0.0.2", "203.0.113.7 external", enrich.ClientHop},
			{ourHost, ourHost, "203.0.113.7", "198.51.100.7 own", enrich.ClientPeer},
			{"192.0.2.1", ourProxy, "-", "192.0.2.1 allowed", enrich.ClientHop},
		} {
			parser, err := format.New(format.Config{Name: f.name, LogFormat: f.log})
			if err != nil {
				t.Fatal(err)
			}
			var item pipeline.Item
			item.Reset()
			text := strings.NewReplacer("@CLIENT@", c.client, "@PEER@", c.peer, "@XFF@", c.xff).Replace(line)
			if parser.Parse([]byte(text), &item); item.Kind != pipeline.IsRecord {
				t.Fatalf("%s: %s", text, item.Reason)
			}
			source := chain.ClientSource(&item.Record)
			chain.For("").Enrich(&item.Record)
			if got := item.Record.Client.String() + " " + item.Record.Origin.String(); got != c.want || source != c.source {
				t.Errorf("%s: %s, want %s: %s: %s", f.name, got, c.want, source, text)
			}
		}
	}
}

// A header that proxies pass on as it came tells clients apart, and makes nobody own.
func TestHearsayTellsClientsApart(t *testing.T) {
	chain := newSpoofed(t)
	for _, line := range []string{
		`{"time":"2026-03-29T00:26:24+00:00","remote_addr":"@PEER@","request":"GET / HTTP/1.1","status":200,"x_real_ip":"@SAID@"}`,
		`{"time":"2026-03-29T00:26:24+00:00","remote_addr":"@PEER@","request":"GET / HTTP/1.1","status":200,"client_ip":"@SAID@"}`,
		`{"ClientAddr":"@PEER@:5","ClientHost":"@SAID@","DownstreamStatus":200,"Duration":5726712,"RequestMethod":"GET","RequestPath":"/","RequestProtocol":"HTTP/2.0","StartUTC":"2026-03-29T00:26:24.645779561Z"}`,
	} {
		for _, c := range []struct {
			peer, said, want string
			source           enrich.ClientSource
		}{
			{ourProxy, ourHost, "198.51.100.7 external", enrich.ClientHearsay},
			{ourProxy, "192.0.2.1", "192.0.2.1 external", enrich.ClientHearsay},
			{stranger, ourHost, stranger + " external", enrich.ClientPeer},
			{ourHost, "203.0.113.7", "198.51.100.7 own", enrich.ClientPeer},
		} {
			parser, err := format.New(format.Config{Name: "auto"})
			if err != nil {
				t.Fatal(err)
			}
			var item pipeline.Item
			item.Reset()
			text := strings.NewReplacer("@PEER@", c.peer, "@SAID@", c.said).Replace(line)
			if parser.Parse([]byte(text), &item); item.Kind != pipeline.IsRecord {
				t.Fatalf("%s: %s", text, item.Reason)
			}
			source := chain.ClientSource(&item.Record)
			chain.For("").Enrich(&item.Record)
			if got := item.Record.Client.String() + " " + item.Record.Origin.String(); got != c.want || source != c.source {
				t.Errorf("%s, want %s: %s: %s", got, c.want, source, text)
			}
		}
	}
}

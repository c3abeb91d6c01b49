package format

import (
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// TestGuessedHostIsRefuted: a second quoted value behind the agent is a site only if it looks like a host's name, and
// never again once the stream had something else there.
func TestGuessedHostIsRefuted(t *testing.T) {
	const front = `203.0.113.9 - - [30/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 612 "-" "curl/8" "-" "`
	const behind = `" rt=0.005 us="200"`
	for _, name := range []string{"auto", "nginx", "nginx_extended"} {
		f, err := New(Config{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range []struct{ field, site string }{
			{"www.shop.example", "www.shop.example"},
			{"-", ""},
			{"203.0.113.5", ""},
			{"[2001:db8::7]:443", ""},
			{"SHOP_1.example:8443", "SHOP_1.example"},
			{"shop.example.", "shop.example."},
			{"5f1c2a9b8d7e4f60a1b2c3d4e5f60718", ""},
			{"www.shop.example", ""},
		} {
			item := parse(f, front+c.field+behind)
			if item.Kind != pipeline.IsRecord || string(item.Record.Host) != c.site {
				t.Errorf("%s, line %d: %q became %q %s", name, i, c.field, item.Record.Host, item.Reason)
			}
		}
		if item := parse(f, front+`-" host="www.shop.example`+behind); string(item.Record.Host) != "www.shop.example" {
			t.Errorf("%s: a host by its name became %q", name, item.Record.Host)
		}
	}
	for _, id := range []string{"0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "1774743984.310", "TLSv1.3", "text/html; charset=utf-8", "GET / HTTP/1.1", "x.y z"} {
		f, err := New(Config{Name: "auto"})
		if err != nil {
			t.Fatal(err)
		}
		if item := parse(f, front+id+behind); len(item.Record.Host) > 0 {
			t.Errorf("%q became the site %q", id, item.Record.Host)
		}
	}
}

package format

import (
	"slices"
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// TestALBListsAllTargets: of several targets that were tried the list has each status, the field in front the last alone.
func TestALBListsAllTargets(t *testing.T) {
	const line = `https 2026-03-29T00:59:59.186641Z app/shop/50 203.0.113.9:2817 10.0.0.1:80 0.001 0.048 0.000 200 200 312 5170 "GET https://shop.example:443/ HTTP/1.1" "a" ECDHE TLSv1.2 arn "Root=1" "shop.example" "arn" 1 2026-03-29T00:59:59.137000Z "forward" "-" "-" "10.0.0.2:80 10.0.0.1:80" "LIST" "-" "-"`
	for list, want := range map[string][]uint16{"502 200": {502, 200}, "200": {200}, "-": {200}, "- 200": {200}} {
		f, err := New(Config{Name: "alb"})
		if err != nil {
			t.Fatal(err)
		}
		item := parse(f, strings.Replace(line, "LIST", list, 1))
		if item.Kind != pipeline.IsRecord || !slices.Equal(item.Record.UpstreamStatuses, want) {
			t.Errorf("%q: %d %s", list, item.Record.UpstreamStatuses, item.Reason)
		}
	}
}

// TestWAFTakesTheFirstHost: of two Host headers the second is the attack.
func TestWAFTakesTheFirstHost(t *testing.T) {
	f, err := New(Config{Name: "aws_waf"})
	if err != nil {
		t.Fatal(err)
	}
	item := parse(f, `{"timestamp":1774743984310,"formatVersion":1,"webaclId":"arn","terminatingRuleId":"r","terminatingRuleType":"REGULAR","action":"BLOCK","httpRequest":{"clientIp":"203.0.113.9","headers":[{"name":"Host","value":"shop.example"},{"name":"host","value":"evil.example"}],"uri":"/","args":"","httpVersion":"HTTP/1.1","httpMethod":"GET"}}`)
	if string(item.Record.Host) != "shop.example" {
		t.Errorf("%q %s", item.Record.Host, item.Reason)
	}
}

// TestClosedTunnelIsNotAbandoned: a browser that closes a WebSocket leaves no answer unread.
func TestClosedTunnelIsNotAbandoned(t *testing.T) {
	const http = `203.0.113.9:33317 [29/Mar/2026:00:26:24.655] fe shop/web1 0/0/1/3/54000 101 2750 - - CD-- 1/1/1/1/0 0/0 "GET /ws HTTP/1.1"`
	for line, want := range map[string]pipeline.Tri{http: pipeline.No, strings.Replace(http, " 101 ", " 200 ", 1): pipeline.Yes} {
		f, err := New(Config{Name: "haproxy"})
		if err != nil {
			t.Fatal(err)
		}
		if item := parse(f, line); item.Kind != pipeline.IsRecord || item.Record.Abandoned != want {
			t.Errorf("abandoned %d %s: %s", item.Record.Abandoned, item.Reason, line)
		}
	}
}

package source

import (
	"strings"
	"testing"
	"time"
)

const albKey = "AWSLogs/123456789012/elasticloadbalancing/eu-west-1/2026/11/30/123456789012_elasticloadbalancing_eu-west-1_app.shop.50dc6c495c0c9188_20261130T1705Z_10.0.1.7_2soosksi.log.gz"

func TestObjectTime(t *testing.T) {
	delivered := time.Date(2026, 11, 30, 17, 40, 0, 0, time.UTC)
	for _, c := range []struct {
		key, want string
		dated     bool
	}{
		{albKey, "2026-11-30T17:05:00Z", true},
		{"AWSLogs/1/WAFLogs/eu-west-1/acl/2026/11/30/17/10/1_waflogs_eu-west-1_acl_20261130T1710Z_0a1b2c3d.log.gz", "2026-11-30T17:10:00Z", true},
		{"cdn/EMLARXS9EXAMPLE.2026-11-30-17.RT4KCN4SGK9.gz", "2026-11-30T17:40:00Z", true},
		{"cdn/EMLARXS9EXAMPLE.2026-11-30-14.RT4KCN4SGK9.gz", "2026-11-30T15:00:00Z", true}, // late
		{"cdn/EMLARXS9EXAMPLE.2026-11-30-19.RT4KCN4SGK9.gz", "2026-11-30T19:00:00Z", true}, // a clock is wrong
		{"fh/2026/11/30/17/aws-waf-logs-shop-2-2026-11-30-17-04-59-0a1b-4c5d", "2026-11-30T17:05:00Z", true},
		{"logs/2026/11/30/balancer.log", "2026-11-30T17:40:00Z", true},
		{"logs/2026/13/45/balancer.log", "2026-11-30T17:40:00Z", false},
		{"logs/120261130T1705Z5/x.log", "2026-11-30T17:40:00Z", false},
		{"2026/11/30", "2026-11-30T17:40:00Z", false},
		{"", "2026-11-30T17:40:00Z", false},
	} {
		at, dated := objectTime(c.key, delivered)
		if got := at.UTC().Format(time.RFC3339); got != c.want || dated != c.dated {
			t.Errorf("%s: %s, dated %t, want %s, %t", c.key, got, dated, c.want, c.dated)
		}
	}
}

func TestSkipTo(t *testing.T) {
	balancer, _, _ := strings.Cut(albKey, "20261130T")
	day := "AWSLogs/123456789012/elasticloadbalancing/eu-west-1/2026/11/30/"
	for _, c := range []struct{ since, key, want string }{
		{"2026-11-30T17:05:00Z", albKey, ""},
		{"2026-11-30T17:06:00Z", albKey, balancer + "20261130T1706Z"},
		{"2026-12-24T17:06:00Z", albKey, strings.TrimSuffix(day, "2026/11/30/") + "2026/12/24"},
		{"2026-12-01T00:10:00Z", day + "x.log", ""}, // what is from before midnight may lie there
		{"2026-12-01T01:10:00Z", day + "x.log", strings.Replace(strings.TrimSuffix(day, "/"), "11/30", "12/01", 1)},
		{"2026-11-30T17:05:00Z", "E1.2026-11-30-17.x.gz", ""},
		{"2026-11-30T17:05:00Z", "E1.2026-11-30-16.x.gz", "E1.2026-11-30-17"},
		{"2026-11-30T17:05:00Z", "balancer.log", ""},
	} {
		since, err := time.Parse(time.RFC3339, c.since)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := skipTo(c.key, since)
		if got != c.want || ok != (c.want != "") || ok && got <= c.key {
			t.Errorf("%s since %s: %q %t, want %q", c.key, c.since, got, ok, c.want)
		}
	}
}

func TestIsLog(t *testing.T) {
	for key, want := range map[string]bool{
		albKey: true, "a": true, "": false, "AWSLogs/": false, "AWSLogs/1/ELBAccessLogTestFile": false,
		"AWSLogs/1/ELBConnectionLogTestFile": false, "ELBAccessLogTestFile.log": true,
	} {
		if isLog(key, 1) != want {
			t.Errorf("%q: %t", key, !want)
		}
	}
	if isLog(albKey, 0) {
		t.Error("an empty object is a log")
	}
}

func TestObjectStream(t *testing.T) {
	id := objectStream("in", "b", albKey, `"0a1b"`, time.Time{})
	if id != objectStream("in", "b", albKey, "0a1b", time.Time{}) {
		t.Error("the quotes of an ETag matter")
	}
	if id == objectStream("in", "b", albKey, "0a1c", time.Time{}) || id == objectStream("in", "c", albKey, "0a1b", time.Time{}) ||
		id == objectStream("other", "b", albKey, "0a1b", time.Time{}) {
		t.Error("two objects are one stream")
	}
	if at, ok := streamTime(id); !ok || at.Format(time.RFC3339) != "2026-11-30T17:05:00Z" {
		t.Errorf("%s: %s %t", id, at, ok)
	}
	delivered := time.Unix(1796058300, 0)
	if at, ok := streamTime(objectStream("in", "b", "x#y@z.log", "0a", delivered)); !ok || !at.Equal(delivered) {
		t.Errorf("%s %t", at, ok)
	}
	for _, id := range []string{"", "stdin-0", "fc01-2-0123456789abcdef", "s3:in:b/x#0"} {
		if at, ok := streamTime(id); ok {
			t.Errorf("%q tells the time %s", id, at)
		}
	}
}

func FuzzObjectKey(f *testing.F) {
	f.Add(albKey, int64(1796058300))
	f.Add("cdn/E1.2026-11-30-17.x.gz", int64(0))
	f.Add("2026/02/30/2026/02/28/24/61/", int64(-1<<40))
	f.Fuzz(func(t *testing.T, key string, sec int64) {
		since := time.Unix(sec%(1<<38), 0)
		objectTime(key, since)
		streamTime(objectStream("in", "b", key, key, since))
		if skip, ok := skipTo(key, since); ok && skip <= key {
			t.Errorf("%q: skips back to %q", key, skip)
		}
	})
}

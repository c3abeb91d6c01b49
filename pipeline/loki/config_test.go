package loki

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/grafana/loki/pkg/push"

	"github.com/squall-sre/squall/pipeline"
)

func TestConfigIsRead(t *testing.T) {
	cfg := DefaultConfig()
	text := `
url: https://loki.example
tenant_id: shop
labels: [job, site, role]
metadata: [method, route]
batch_size: 512KiB
batch_wait: 2s
headers: {X-Team: sre}
basic_auth: {username: squall, password: secret}
backoff_config: {min_period: 1s, max_period: 1m}
`
	if err := yaml.UnmarshalWithOptions([]byte(text), &cfg, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Check([]string{"role"}); err != nil {
		t.Fatal(err)
	}
	if got, err := cfg.endpoint(); err != nil || got != "https://loki.example/loki/api/v1/push" {
		t.Errorf("address %q %v", got, err)
	}
	if cfg.BatchSize != 512<<10 || cfg.Backoff.MaxBackoff.Seconds() != 60 || cfg.BasicAuth.Username != "squall" {
		t.Errorf("read as %+v", cfg)
	}
}

func TestWrongConfigurationIsToldInFull(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"labels: \"client_ip\" is unknown: use container, job, namespace, node, pod, site, source": func(c *Config) { c.Labels = []string{"client_ip"} },
		"metadata: \"agent\" is unknown: use client_abandoned, client_class":                       func(c *Config) { c.Metadata = []string{"agent"} },
		"must begin with http:// or https://":                                                      func(c *Config) { c.URL = "loki:3100" },
		"batch_size":                                                                               func(c *Config) { c.BatchSize = 5 << 20 },
		"backoff_config":                                                                           func(c *Config) { c.Backoff.MaxRetries = 10 },
		"timeout":                                                                                  func(c *Config) { c.Timeout = 0 },
		"at most one of":                                                                           func(c *Config) { c.BearerToken = "x"; c.BearerTokenFile = "/y" },
	} {
		c := DefaultConfig()
		c.URL = "http://loki.example"
		change(&c)
		if err := c.Check(nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in: %v", want, err)
		}
	}
}

func TestLabelsAreSanitisedAndCapped(t *testing.T) {
	c := DefaultConfig()
	l := newLabeler(&c)
	s := &pipeline.Stream{Input: "a \"b\"\\\x00\u202e", ID: "1", Labels: map[string]string{
		"bad-name": "v", "1st": "x", "__reserved": "y", "___": "z", "empty": "", "long": strings.Repeat("é", 2000),
	}}
	got := l.set(s, "shop.example", false)
	want := `{_reserved="y", _st="x", bad_name="v", job="squall", long="` + strings.Repeat("é", 512) + `", site="shop.example", source="a \"b\"\\"}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for i := range 30 {
		s.Labels[fmt.Sprint("l", i)] = "v"
	}
	if n := strings.Count(newLabeler(&c).set(s, "x", false), `="`); n != maxLabels {
		t.Errorf("%d labels, want %d", n, maxLabels)
	}
}

func TestDistinctLabelSetsAreCapped(t *testing.T) {
	c := DefaultConfig()
	l := newLabeler(&c)
	sets := map[string]bool{}
	for i := range 10_000 {
		sets[l.set(&pipeline.Stream{Input: "a", ID: fmt.Sprint(i % 5000), Pod: fmt.Sprint(i)}, fmt.Sprint("host-", i), false)] = true
	}
	if len(sets) > maxSets+1 {
		t.Errorf("%d sets, want at most %d", len(sets), maxSets+1)
	}
	if !sets[`{job="squall", site="other", source="a"}`] {
		t.Error("sites over the cap are not other")
	}
	if len(l.cache) > maxCached {
		t.Errorf("%d sets are remembered", len(l.cache))
	}
}

// Loki's own sentences, as measured.
func TestMeasuredAnswers(t *testing.T) {
	for _, c := range []struct {
		status  int
		text    string
		want    verdict
		reasons string
	}{
		{204, "", stored, ""},
		{200, "{}", stored, ""},
		{400, `3 errors like: entry for stream '{job="old", service_name="old"}' has timestamp too old: 2026-11-21T16:09:14Z, oldest acceptable timestamp is: 2026-11-23T00:09:14Z`, partly, "[{too_old 3 0 0 false 1795392554000000000}]"},
		{400, "entry with timestamp 2026-11-29 21:09:14.861986197 +0000 UTC ignored, reason: 'entry too far behind, entry timestamp is: 2026-11-29T21:09:14Z, oldest acceptable timestamp is: 2026-11-29T23:09:14Z',\nuser 'fake', total ignored: 3 out of 3 for stream: {job=\"ooo\"}", partly, "[{too_far_behind 3 3 0 false 1795993754000000000}]"},
		{400, `max entry size '262144' bytes exceeded for stream '{job="long"}' while adding an entry with length '300000' bytes`, partly, "[{line_too_long 1 0 262144 false 0}]"},
		{400, `2 errors like: max entry size '262144' bytes exceeded for stream '{job="l"}' while adding an entry with length '300000' bytes; 5 errors like: entry for stream '{job="l"}' has timestamp too new: 2026-11-30T01:09:14Z`, partly, "[{line_too_long 2 0 262144 false 0} {too_new 5 0 0 false 1796000954000000000}]"},
		{400, "couldn't parse labels: 1:5: parse error: unexpected character inside braces: '-'", unread, "[]"},
		{400, "snappy: corrupt input", unread, "[]"},
		{422, "error at least one valid stream is required for ingestion", unread, "[]"},
		{429, `maximum active stream limit exceeded when trying to create stream {i="11", job="sl"}, reduce the number of active streams`, limited, ""},
		{429, "entry with timestamp x ignored, reason: 'Per stream rate limit exceeded (limit: 4KB/sec)", limited, ""},
		{429, "ingestion rate limit exceeded for user fake", tooMuch, ""},
		{405, "", held, ""}, {301, "", held, ""}, {504, "", broken, ""},
	} {
		a := classify(c.status, nil, c.text, time.Unix(0, 0))
		if a.verdict != c.want {
			t.Errorf("%d %s: %s, want %s", c.status, c.text, a.verdict, c.want)
		}
		if got := fmt.Sprint(refusals(c.text)); c.reasons != "" && got != c.reasons {
			t.Errorf("%s:\n got %s\nwant %s", c.text, got, c.reasons)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(400, "user 'fake', total ignored: 1 out of 5 entry too far behind, oldest acceptable timestamp is: 2026-11-23T00:09:14Z")
	f.Add(400, "3 errors like: entry has timestamp too old: x, oldest acceptable timestamp is: 2026-11-23T00:09:14Z")
	f.Fuzz(func(t *testing.T, status int, text string) {
		a := classify(status, nil, text, time.Unix(0, 0))
		b := (&batch{}).with([]part{{`{a="b"}`, make([]push.Entry, 3)}, {`{a="c"}`, make([]push.Entry, 2)}})
		f, exact := b.find(a.text)
		n := 0
		for _, r := range f.refused {
			n += r.lines.lines
		}
		for _, left := range []*batch{f.off, f.rest} {
			if left != nil {
				n += left.lines
			}
		}
		if exact && n != b.lines {
			t.Errorf("%d lines became %d", b.lines, n)
		}
	})
}

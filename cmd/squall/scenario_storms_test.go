package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
	"github.com/squall-sre/squall/detectors"
)

// TestAbsorbedAtEdge: what a firewall blocked is worth a note, however much it was.
func TestAbsorbedAtEdge(t *testing.T) {
	all := around(t, "S04", "nginx_extended", "haproxy_http")
	for i := range all {
		s := &all[i].Scenario // two hours of the day: the rate of each storm stays
		s.Duration, s.Sites = 2*time.Hour, slices.Clone(s.Sites)
		s.Sites[0].Storms = slices.Clone(s.Sites[0].Storms)
		rest, blast := &s.Sites[0].Storms[0], &s.Sites[0].Storms[1]
		rest.For, rest.Count, blast.At = 2*time.Hour, rest.Count/12, 80*time.Minute
	}
	eachOf(t, all, func(t *testing.T, o simulate.Options) {
		v, truth := judgedLogs(t, o, "")
		paged(t, v)
		began, ended := once(t, v, "HeadStorm")
		for _, a := range []transition{began, ended} {
			check(t, "severity", a.Severity, alerts.Info)
			between(t, "reached", a.Evidence.ReachedUpstreamRatio, 0, 0)
			check(t, "verdict", a.Cause.Verdict, alerts.Proven)
			if !strings.Contains(a.Cause.Text, "answered before the origin, none reached an upstream") {
				t.Errorf("cause: %s", a.Cause.Text)
			}
		}
		blast := float64(o.Scenario.Sites[0].Storms[1].Count)
		if o.Rate > 0 {
			blast *= o.Rate
		}
		if n := ended.Evidence.Requests; n < 0.97*blast || n > 1.05*blast {
			t.Errorf("%v of %v requests are told, of %d lines", n, blast, truth.Logs[1].Lines)
		}
		silent(t, v, "client_abandon", "saturation", "latency")
	})
}

// TestAgentsOfAMonth: a class of pupils under one agent is none; the scanner is one, each time it comes.
func TestAgentsOfAMonth(t *testing.T) {
	all := around(t, "S05", "nginx_extended", "nginx")
	for i := range all {
		s := &all[i].Scenario // a thirtieth of the month: one day
		s.Duration, s.Sites = s.Duration/30, slices.Clone(s.Sites)
		s.Sites[0].Storms = slices.Clone(s.Sites[0].Storms)
		for j := range s.Sites[0].Storms {
			s.Sites[0].Storms[j].At /= 30
		}
	}
	eachOf(t, all, func(t *testing.T, o simulate.Options) {
		v, truth := judgedLogs(t, o, "")
		paged(t, v)
		floods := 0
		for _, a := range v.of("AgentFlood") {
			class := &o.Scenario.Sites[0].Storms[0]
			if at := a.At.Sub(truth.Start); at < class.At+class.For+5*time.Minute {
				t.Errorf("a class of pupils floods: %+v", a)
			}
			if a.State == string(alerts.Resolved) {
				floods++
				between(t, "requests a minute", a.Evidence.RequestsPerMinute, 1300, 3500)
				advised(t, &a, "", "Retry-After")
			}
		}
		check(t, "times that the scanner came", floods, 3)
	})
}

// TestExpiredTogether: entries that expire together, three times in the rhythm of their TTL, the third time under a
// scanner with one agent and 1,229 addresses.
func TestExpiredTogether(t *testing.T) {
	all := around(t, "S06", "nginx_extended", "nginx_extended")
	short := &all[len(all)-1].Scenario // with another TTL
	short.Duration, short.Sites = 45*time.Minute, slices.Clone(short.Sites)
	site, cache := &short.Sites[0], *short.Sites[0].Cache
	cache.TTL, cache.Filled = 12*time.Minute, -time.Second
	site.Cache, site.Storms = &cache, slices.Clone(site.Storms)
	site.Storms[0].At = 36 * time.Minute
	eachOf(t, all, func(t *testing.T, o simulate.Options) {
		v, truth := judgedLogs(t, o, "")
		s := &truth.Sites[0]
		_, stampede := last(t, v, "CacheStampede")
		ttl := o.Scenario.Sites[0].Cache.TTL.Seconds()
		between(t, "TTL", stampede.Evidence.TTLSeconds, 0.94*ttl, 1.06*ttl)
		between(t, "URLs that missed", stampede.Evidence.MissedURLs, 900, 1400)
		if !strings.Contains(stampede.Advice[0].Text, "stale while revalidating") {
			t.Errorf("first advice: %+v", stampede.Advice)
		}
		_, flood := last(t, v, "AgentFlood")
		if o.Rate == 0 {
			between(t, "requests a minute", flood.Evidence.RequestsPerMinute, 12000, 15500)
			between(t, "addresses", flood.Evidence.DistinctClients, 1229, 4000) // and people on the same pages
		}
		between(t, "requests of an address", flood.Evidence.RequestsPerClientPerMinute, 3, 14)
		hurt, _ := last(t, v, "StormHurting")
		if d := hurt.At.Sub(*s.FirstHurt); d > time.Minute {
			t.Errorf("the page came %s after the first client had left", d)
		}
		neverSaid(t, v, "limit_req_zone $binary_remote_addr")
		silent(t, v, "head_storm")
	})
}

// TestFooterLinks: method and path are the key; agents rotate and addresses are too many.
func TestFooterLinks(t *testing.T) {
	for _, o := range around(t, "S07", "nginx_extended", "envoy_json") {
		o.Rate = 0 // the ratio is that of the rates
		s := &o.Scenario.Sites[0]
		s.Storms[0].For, s.Storms[0].Count = 2*time.Minute, s.Storms[0].Count*2/5
		o.Scenario.Duration = 40 * time.Minute
		t.Run(o.Format, func(t *testing.T) {
			v, truth := judgedLogs(t, o, `sites:
  - name: `+cmp.Or(o.Host, s.Host)+`
    controls: [origin_shield, {name: checkout_head, method: HEAD, path: /checkout/*}]
`)
			began, ended := once(t, v, "HeadStorm")
			e := &ended.Evidence
			between(t, "what the rules in place would have caught", e.RulesCaughtUpper, 0, 0.02)
			ranked := func(by string) int {
				return slices.IndexFunc(e.Discriminators, func(d detectors.Discriminator) bool { return d.By == by })
			}
			if a, b, c, d := ranked("method+route"), ranked("route"), ranked("prefix"), ranked("agent"); a < 0 || a > b || b > d || b > c {
				t.Errorf("what tells the storm apart: %+v", e.Discriminators)
			}
			check(t, "route", e.Route, "/subscription/{int}")
			between(t, "times the usual", e.BaselineRatio, 0.95*1225, 1.05*1225)
			between(t, "usual", e.BaselinePerMinute, 2.85, 3.15)
			between(t, "agents", e.DistinctAgents, 280, 320)
			between(t, "requests of an address", e.RequestsPerClientPerMinute, 0.5, 4)
			if len(e.TopRoutes) < 2 || e.TopRoutes[0].Key != "HEAD /subscription/{int}" || e.TopRoutes[1].Key != "HEAD /unsubscribe/{int}" {
				t.Fatalf("routes: %+v", e.TopRoutes)
			}
			between(t, "times the usual of the first route", e.TopRoutes[0].BaselineRatio, 0.95*1225, 1.05*1225)
			between(t, "times the usual of the second route", e.TopRoutes[1].BaselineRatio, 0.95*461, 1.05*461)
			if !strings.Contains(ended.Cause.Text, "method and route are the key, not the agent") || !strings.Contains(ended.Cause.Text, "a per-address limit cannot help") {
				t.Errorf("cause: %s", ended.Cause.Text)
			}
			if d := began.At.Sub(*truth.Sites[0].Onset); d > 30*time.Second {
				t.Errorf("it came after %s", d)
			}
			once(t, v, "StormHurting")
			silent(t, v, "agent_flood")
			neverSaid(t, v, "throttle by User-Agent", "limit_req_zone $binary_remote_addr", "limit_req_zone $http_user_agent")
		})
	}
}

// TestEveryLink: a scanner fetches all links of a mailing, each of them seldom. It is one storm, of all of them.
func TestEveryLink(t *testing.T) {
	for _, o := range around(t, "S01", "nginx_extended", "alb") {
		site := &o.Scenario.Sites[0]
		storm := site.Storms[0]
		service := storm.Routes[0].Service
		storm.Routes = nil
		for i := range 80 {
			storm.Routes = append(storm.Routes, simulate.Route{
				Template: fmt.Sprintf("/mail/%c%c", 'a'+i/26, 'a'+i%26), Weight: 1 + float64(i%7)/10, URLs: 1, Service: service, Bytes: 9000,
			})
		}
		site.Storms = []simulate.Storm{storm}
		t.Run(o.Format, func(t *testing.T) {
			v, truth := judgedLogs(t, o, "")
			began, ended := once(t, v, "HeadStorm")
			if d := began.At.Sub(*truth.Sites[0].Onset); d > 30*time.Second {
				t.Errorf("it came after %s", d)
			}
			hurt, over := once(t, v, "StormHurting")
			for _, a := range []transition{began, ended, hurt, over} {
				between(t, "routes", a.Evidence.DistinctRoutes, 70, 80)
				check(t, "routes that are told", len(a.Evidence.TopRoutes), 10)
				check(t, "labels", fmt.Sprint(a.Labels), fmt.Sprint(began.Labels))
			}
			between(t, "of the worker-seconds", over.Evidence.WorkerSecondsShare, 0.85, 1)
			check(t, "verdict", over.Cause.Verdict, alerts.Proven)
			if !regexp.MustCompile(`HEAD requests on \S+, \S+, \S+ and 7\d others pinned the origin`).MatchString(over.Cause.Text) {
				t.Errorf("cause: %s", over.Cause.Text)
			}
		})
	}
}

// TestCostlyCrawl: ten requests a second stall a site, each of them slow. Nothing is many but what is asked for again and
// again, and that is said as soon as the pool is known to be used up.
func TestCostlyCrawl(t *testing.T) {
	all := around(t, "S08", "nginx_extended", "alb", "ingress_nginx")
	all[0].Seed, all[0].Rate = 7, 1.3 // its pool looks half empty for two minutes while the queue drains
	eachOf(t, all, func(t *testing.T, o simulate.Options) {
		v, _ := judgedLogs(t, o, "")
		began, ended := once(t, v, "WorkersExhausted")
		for _, a := range v.pages() {
			_, over := once(t, v, a.Alert) // one storm pages once
			told := []transition{a, over}
			if a.Alert == "ClientsGivingUp" { // half a minute after the first has left nothing stands out yet
				told = told[1:]
			}
			for _, x := range told {
				check(t, "first layer of "+x.Alert, x.Advice[0].Layer, "cdn")
				advised(t, &x, "cdn", "cache GET /feeds/")
				advised(t, &x, "application", "an autoscaler on request count stays silent")
			}
		}
		for _, ad := range began.Advice {
			if strings.Contains(ad.Text, "cache GET /search") || strings.Contains(ad.Text, "cache GET /city") {
				t.Errorf("what is asked for once is cached: %s", ad.Text)
			}
		}
		check(t, "the costliest", ended.Evidence.Route, "/feeds/*.xml")
		factor := 24 * cmp.Or(o.Rate, 1)
		between(t, "requests for each feed", ended.Evidence.RepeatFactor, 0.9*factor, 1.15*factor)
		if r := ended.Evidence.TopRoutes; len(r) < 3 || r[0].Key != "GET /feeds/*.xml" {
			t.Errorf("ranked: %+v", r)
		}
		silent(t, v, "head_storm", "agent_flood")
	})
}

// TestWellServed: the edge has 423 requests a second and lets 87 through; nobody is woken, whichever logs are read.
func TestWellServed(t *testing.T) {
	for i, without := range [][]string{nil, {"access.log"}} {
		o := simulate.Options{Scenario: scenario(t, "S10"), Format: "nginx_extended", Seed: uint64(91 + i)}
		o.Scenario.Duration = 11 * time.Minute
		s := &o.Scenario.Sites[0]
		for j := range s.Storms {
			s.Storms[j].For, s.Storms[j].Count = time.Minute, s.Storms[j].Count/3
		}
		if i == 1 {
			o.Rate = 1.3
		}
		v, truth := judgedLogs(t, o, "", without...)
		paged(t, v)
		x := &truth.Sites[0]
		hits := float64(x.AnsweredBy[simulate.Edge])
		minute := slices.IndexFunc(x.Minutes, func(m simulate.MinuteTruth) bool { return m.Start.Sub(truth.Start) == 6*time.Minute })
		offload := hits / (hits + float64(x.Minutes[minute].Lines))
		between(t, "offload", &offload, 0.78, 0.80)
		between(t, "p99", &x.Minutes[minute].P99Seconds, 1.8, 2.7)
		silent(t, v, "client_abandon", "head_storm", "error_burst")
	}
}

// TestRetriedSearch: a loop of one client is a ticket for whoever owns the application.
func TestRetriedSearch(t *testing.T) {
	eachOf(t, around(t, "S12", "nginx_extended", "haproxy_http", "traefik_json"), func(t *testing.T, o simulate.Options) {
		o.Rate *= 0.5
		v, truth := judgedLogs(t, o, "")
		paged(t, v)
		began, ended := once(t, v, "RetryLoop")
		check(t, "severity", ended.Severity, alerts.Warning)
		check(t, "owner", ended.Labels["owner"], "application")
		check(t, "route", ended.Evidence.Route, "/admin/search")
		between(t, "period", ended.Evidence.PeriodSeconds, 19.5, 20.5)
		between(t, "retries", ended.Evidence.Retries, 12, ended.Evidence.Requests)
		if d := began.At.Sub(truth.Start.Add(10 * time.Minute)); d > 150*time.Second {
			t.Errorf("it came %s after the first try", d)
		}
		advised(t, &ended, "application", "backoff")
	})
}

// TestClearedAndCrawled: a cache that was emptied and a crawler. Of Redis, of which nobody told anything, nothing is
// claimed.
func TestClearedAndCrawled(t *testing.T) {
	eachOf(t, around(t, "S15", "nginx_extended", "nginx_extended"), func(t *testing.T, o simulate.Options) {
		v, truth := judgedLogs(t, o, "")
		paged(t, v)
		began, ended := once(t, v, "CacheStampede")
		cleared := truth.Start.Add(15 * time.Minute)
		if d := began.StartsAt.Sub(cleared); d.Abs() > 3*onePane {
			t.Errorf("it begins %s from the clearing", d)
		}
		flood, _ := last(t, v, "AgentFlood")
		if !began.StartsAt.Before(flood.StartsAt.Add(time.Second)) {
			t.Errorf("the crawl of %s comes before the misses of %s", flood.StartsAt, began.StartsAt)
		}
		between(t, "URLs that missed", ended.Evidence.MissedURLs, 1000, 1300)
		if ended.Evidence.TTLSeconds != nil || ended.Cause.Verdict == alerts.Proven {
			t.Errorf("once is no rhythm, and a log proves no clearing: %+v", ended.Cause)
		}
		if !strings.Contains(ended.Cause.Text, "crawl after a clear") {
			t.Errorf("cause: %s", ended.Cause.Text)
		}
		advised(t, &ended, "application", "clear by URL")
		for _, word := range []string{"redis", "Redis", "evict", "maxmemory"} {
			if strings.Contains(v.text, word) {
				t.Errorf("%s is spoken of, and nobody measured it", word)
			}
		}
	})
}

// TestSimulateWritesAllLogs: the command writes each log of a scenario.
func TestSimulateWritesAllLogs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	if _, told, err := execute(t.Context(), strings.NewReader(""), "simulate", "S17", "--dir", dir); err != nil || told != "" {
		t.Fatalf("%v: %s", err, told)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(files) != 3 {
		t.Errorf("%v %v", files, err)
	}
	_, told, err := execute(t.Context(), strings.NewReader(""), "simulate", "S17")
	if err != nil || !strings.Contains(told, "--dir FOLDER writes all") {
		t.Errorf("%v: %s", err, told)
	}
	if _, _, err := execute(t.Context(), strings.NewReader(""), "simulate", "S17", "--dir", dir, "-o", "x"); err == nil {
		t.Error("one log and all of them are both asked for")
	}
}

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// TestSelfLoop: a site refuses itself its own style sheets while the office crawls it. Nobody is to block either.
func TestSelfLoop(t *testing.T) {
	all := around(t, "S13", "nginx_extended", "traefik_json", "ingress_nginx")
	for i := range all {
		crawled(&all[i].Scenario, 4*time.Minute)
	}
	eachOf(t, all, func(t *testing.T, o simulate.Options) {
		v, truth := judgedLogs(t, o, "")
		_, loop := last(t, v, "SelfLoop")
		_, limiter := last(t, v, "LimiterBackfires")
		paged(t, v)
		check(t, "verdict", loop.Cause.Verdict, alerts.Proven)
		between(t, "fan-out", loop.Evidence.FanOut, 2.5, 3.6)
		check(t, "pattern", limiter.Labels["pattern"], "self_protection_backfire")
		for _, a := range []transition{loop, limiter} {
			if !strings.Contains(a.Cause.Text, "$request_uri") {
				t.Errorf("%s: the key is not named: %s", a.Alert, a.Cause.Text)
			}
			advised(t, &a, "nginx", "map $uri")
			if d := a.StartsAt.Sub(*truth.Sites[0].Onset); d.Abs() > 2*onePane {
				t.Errorf("%s starts %s from the crawl", a.Alert, d)
			}
		}
		advised(t, &loop, "application", "public_path()")
		if !strings.Contains(limiter.Cause.Text, "zone site_a_dynamic") {
			t.Errorf("the zone is not named: %s", limiter.Cause.Text)
		}
		refused := float64(truth.Sites[0].Requests["GET"][429])
		between(t, "refused", limiter.Evidence.LimitedOwn, 0.8*refused, refused)
		neverSaid(t, v, simulate.OwnHost, simulate.Office, "deny ", "fail2ban-client set", "drop")
		found(t, v, "error_burst") // the pages that could not get their style sheet
		_, failed := last(t, v, "ErrorBurst")
		check(t, "severity", failed.Severity, alerts.Warning)
		check(t, "one incident of the errors, too", failed.Incident.ID, limiter.Incident.ID)
		check(t, "one incident", loop.Incident.ID, limiter.Incident.ID)
		for _, s := range v.summary.Sources {
			if len(s.Silent) > 0 {
				t.Errorf("after the crawl %s is told silent: %+v", s.Source, s.Silent)
			}
		}
		check(t, "the limiter comes after", loop.Incident.after("ratelimit_backfire"), "self_loop")
		check(t, "the errors come after", loop.Incident.after("error_burst"), "ratelimit_backfire")
	})
}

// crawled lets the crawl of S13 take less than its ten minutes, at its rate.
func crawled(s *simulate.Scenario, length time.Duration) {
	s.Duration -= 10*time.Minute - length
	s.Sites = slices.Clone(s.Sites)
	s.Sites[0].Storms = slices.Clone(s.Sites[0].Storms)
	crawl := &s.Sites[0].Storms[0]
	crawl.Count = int(float64(crawl.Count) * length.Minutes() / crawl.For.Minutes())
	crawl.For = length
}

// TestOfficeBehindOneAddress: 60 people behind one address are one client to a limiter, for hours.
func TestOfficeBehindOneAddress(t *testing.T) {
	all := around(t, "S14", "nginx_extended", "caddy_json")
	for i := range all {
		s := &all[i].Scenario
		s.Duration, s.Sites = 25*time.Minute, slices.Clone(s.Sites)
		s.Sites[0].Storms = slices.Clone(s.Sites[0].Storms)
		office := &s.Sites[0].Storms[0]
		office.At, office.For, office.Count = 8*time.Minute, 10*time.Minute, 10*60*6
	}
	eachOf(t, all, func(t *testing.T, o simulate.Options) {
		v, truth := judgedLogs(t, o, "")
		paged(t, v)
		_, ended := once(t, v, "LimiterBackfires")
		refused := float64(truth.Sites[0].Requests["GET"][429])
		between(t, "refused", ended.Evidence.LimitedAllowed, 0.95*refused, refused)
		between(t, "agents", ended.Evidence.DistinctAgents, 55, 65)
		check(t, "verdict", ended.Cause.Verdict, alerts.Proven)
		advised(t, &ended, "nginx", "behind one address may be a whole office")
		neverSaid(t, v, "deny ", simulate.Office)
		silent(t, v, "self_loop", "client_abandon", "head_storm")
	})
}

// TestRestartBurst: 24 containers on 9 nodes in 7 namespaces end within 40 s. What kubelet says proves why; without
// its word it is probable. One out of memory stands apart, and new pods of a rollout are none.
func TestRestartBurst(t *testing.T) {
	for _, c := range []struct {
		name    string
		without []string
		reason  string
		verdict alerts.Verdict
	}{
		{"events and pods", []string{"kubelet.log"}, "liveness", alerts.Proven},
		{"kubelet's log and pods", []string{"events.log"}, "liveness", alerts.Proven},
		{"pods alone", []string{"kubelet.log", "events.log"}, "liveness_probable", alerts.Probable},
		{"everything", nil, "liveness", alerts.Proven},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := simulate.Options{Scenario: scenario(t, "S16"), Seed: 51, Zone: time.FixedZone("+0200", 7200), Rate: 0.3}
			v, truth := judgedLogs(t, o, "", c.without...)
			began, ended := once(t, v, "RestartBurst")
			for _, a := range []transition{began, ended} {
				check(t, "severity", a.Severity, alerts.Page)
				check(t, "verdict", a.Cause.Verdict, c.verdict)
			}
			e := &ended.Evidence
			between(t, "restarts, one of them out of memory", e.Restarts, float64(truth.Cluster.Restarts+1), float64(truth.Cluster.Restarts+1))
			between(t, "out of memory", e.OOMKilled, 1, 1)
			between(t, "nodes", e.Nodes, 9, 9)
			between(t, "namespaces", e.Namespaces, 7, 7)
			check(t, "reason", e.Reasons[c.reason], truth.Cluster.Restarts)
			check(t, "out of memory", e.Reasons["oom"], 1)
			check(t, "reasons", len(e.Reasons), 2)
			if d := began.At.Sub(truth.Cluster.FirstKill); d < 0 || d > 40*time.Second {
				t.Errorf("it came %s after the first kill", d)
			}
			if !slices.ContainsFunc(ended.Cause.Missing, func(s string) bool { return strings.Contains(s, "what made the probes fail") }) {
				t.Errorf("the trigger is not said to be missing: %+v", ended.Cause)
			}
			advised(t, &ended, "kubernetes", "periodSeconds × failureThreshold")
		})
	}
}

// TestRestartBurstOfAnySeed: nothing hangs on the phases of the probes.
func TestRestartBurstOfAnySeed(t *testing.T) {
	for seed := range uint64(4) {
		o := simulate.Options{Scenario: scenario(t, "S16"), Seed: 100 + seed, Start: time.Date(2026, 12, 31, 23, 50, 0, 0, time.UTC), Rate: 0.05}
		v, truth := judgedLogs(t, o, "", "kubelet.log")
		_, ended := once(t, v, "RestartBurst")
		between(t, "restarts, one of them out of memory", ended.Evidence.Restarts, 25, 25)
		if spread := truth.Cluster.LastEnd.Sub(truth.Cluster.FirstKill); spread > 40*time.Second {
			t.Errorf("the containers end within %s", spread)
		}
	}
}

// TestTriggerLost: with the ingress's log of the time gone, no trigger is named.
func TestTriggerLost(t *testing.T) {
	for seed := range uint64(2) {
		v, truth := judgedLogs(t, simulate.Options{Scenario: scenario(t, "S18"), Seed: 61 + seed}, "")
		_, ended := once(t, v, "RestartBurst")
		paged(t, v, "RestartBurst")
		check(t, "verdict", ended.Cause.Verdict, alerts.Undetermined)
		missing := "the requests of ingress.log from 2026-07-23T12:03:00Z on" // the burst is over before the log talks again
		if !slices.ContainsFunc(ended.Cause.Missing, func(s string) bool { return strings.HasPrefix(s, missing) }) {
			t.Errorf("what is missing: %q", ended.Cause.Missing)
		}
		for _, trigger := range []string{"HEAD", "storm", "scanner", "crawl", truth.Sites[0].Site} {
			if strings.Contains(ended.Cause.Text, trigger) {
				t.Errorf("%q is named as a trigger: %s", trigger, ended.Cause.Text)
			}
		}
	}
}

// TestBothAtOnce: what happens at the same time has not the same cause.
func TestBothAtOnce(t *testing.T) {
	for seed := range uint64(2) {
		o := simulate.Options{Scenario: scenario(t, "S19"), Seed: 71 + seed, Rate: 1 - 0.3*float64(seed)}
		crawled(&o.Scenario, 7*time.Minute)
		v, _ := judgedLogs(t, o, "")
		loop, loopEnded := last(t, v, "SelfLoop")
		burst, burstEnded := once(t, v, "RestartBurst")
		if !loop.StartsAt.Before(burst.StartsAt) || !loopEnded.EndsAt.After(burst.StartsAt) {
			t.Errorf("they do not overlap: %+v %+v", loopEnded, burstEnded)
		}
		check(t, "site", loopEnded.Labels["site"], "site-a.example")
		check(t, "cluster", burstEnded.Labels["cluster"], "default")
		for _, x := range [][2]toldIncident{{loopEnded.Incident, burstEnded.Incident}, {burstEnded.Incident, loopEnded.Incident}} {
			if because := x[0].apart(x[1].ID); x[0].ID == x[1].ID || because == "" {
				t.Errorf("%s and %s are not told apart: %+v", x[0].ID, x[1].ID, x[0])
			}
		}
		for text, not := range map[string][]string{
			loopEnded.Cause.Text: {"container", "liveness", "restart", "kubelet"}, burstEnded.Cause.Text: {"site-a", "$request_uri", "limiter"},
		} {
			for _, word := range not {
				if strings.Contains(text, word) {
					t.Errorf("the cause of one names %q of the other: %s", word, text)
				}
			}
		}
	}
}

// TestProbeRhythm: php-fpm kills a request every ten seconds, and that is the period of the readiness probe.
func TestProbeRhythm(t *testing.T) {
	for seed := range uint64(4) {
		o := simulate.Options{Scenario: scenario(t, "S17"), Seed: 81 + seed, Rate: 0.2, Zone: time.FixedZone("-0330", -12600)}
		v, _ := judgedLogs(t, o, "")
		d := found(t, v, "worker_timeout")
		between(t, "period", d.Evidence.PeriodSeconds, 8.5, 11.5)
		check(t, "probe", d.Evidence.Probe, "Readiness")
		if len(d.Evidence.TopRoutes) != 1 || d.Evidence.TopRoutes[0].Key != "GET /index.php" {
			t.Errorf("requests: %+v", d.Evidence.TopRoutes)
		}
		paged(t, v)
		_, told := once(t, v, "WorkerTimeouts")
		check(t, "severity", told.Severity, alerts.Warning)
		between(t, "period that is told", told.Evidence.PeriodSeconds, 8.5, 11.5)
		if !strings.Contains(told.Cause.Text, "as failures of the readiness probe follow each other") {
			t.Errorf("cause: %s", told.Cause.Text)
		}
	}
}

// TestProbesThroughPHP: health checks that wait with everybody else are named beside the storm that holds them up.
func TestProbesThroughPHP(t *testing.T) {
	eachOf(t, around(t, "S20", "nginx_extended", "ingress_nginx", "envoy_json"), func(t *testing.T, o simulate.Options) {
		v, truth := judgedLogs(t, o, "")
		began, ended := once(t, v, "ProbeThroughApp")
		check(t, "route", ended.Evidence.Route, "/health")
		between(t, "reached", ended.Evidence.ReachedUpstreamRatio, 1, 1)
		check(t, "severity", ended.Severity, alerts.Warning)
		if d := began.At.Sub(*truth.Sites[0].FirstHurt); d > time.Minute {
			t.Errorf("it came %s after the first client had left", d)
		}
		advised(t, &ended, "kubernetes", "liveness")
		once(t, v, "StormHurting")
	})
}

package grafana

import (
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// siteMetric is the one that every site has.
const siteMetric = "squall_site_requests_total"

// each is a counter's rate per second, over the selected sites; by is a list of labels, "" for the sum.
func each(metric, matchers, by string) string {
	if matchers != "" {
		matchers = ", " + matchers
	}
	sum := "sum"
	if by != "" {
		sum = "sum by (" + by + ")"
	}
	return sum + " (rate(" + metric + `{site=~"$site"` + matchers + `}[$__rate_interval]))`
}

// minute is each, per minute.
func minute(metric, matchers, by string) string { return "60 * " + each(metric, matchers, by) }

// share is a ratio of two such rates; where nothing is asked for there is none.
func share(part, whole string) string { return part + "\n/ (" + whole + " > 0)" }

// quantile reads the durations' histogram.
func quantile(q, by string) string {
	if by != "" {
		by = ", " + by
	}
	return "histogram_quantile(" + q + `, sum by (le` + by + `) (rate(squall_site_request_duration_seconds_bucket{site=~"$site"}[$__rate_interval])))`
}

// of selects the sites' lines in Loki.
const of = `{job="squall", site=~"$site"}`

// overview says what is being hurt, and leads on.
func overview() *dashboard.DashboardBuilder {
	return board("squall-overview", "Overview", "What is being hurt: clients that give up, not hosts that are down.", "site", siteMetric).
		WithPanel(number("Pages", units.Short, "Alerts of severity page that fire.", prom(`sum(squall_alerts_firing{severity="page"})`, ""), step{1, "red"})).
		WithPanel(number("Warnings", units.Short, "Alerts of severity warning that fire.", prom(`sum(squall_alerts_firing{severity="warning"})`, ""), step{1, "orange"})).
		WithPanel(number("Clients giving up", units.PercentUnit, "Requests whose client left before the answer (ALB 460, nginx 499, HAProxy C…).",
			prom(share(each("squall_site_abandoned_total", "", ""), each(siteMetric, "", "")), ""), step{0.01, "orange"}, step{0.05, "red"})).
		WithPanel(number("p99", units.Seconds, "99th percentile of how long requests took; a lower bound while clients give up.",
			prom(quantile("0.99", ""), ""), step{2, "orange"}, step{5, "red"})).
		WithPanel(number("Busiest pool", units.PercentUnit, "Busy workers by Little's law, at most, as a share of pool.workers, of the site that is nearest to its end.",
			prom(`max(squall_origin_busy_workers{site=~"$site", bound="upper"} / on (instance, site) squall_origin_pool_workers)`, ""), step{0.8, "orange"}, step{1, "red"})).
		WithPanel(number("5xx", units.PercentUnit, "What the usual dashboards watch. It stays green in the storms that squall is for.",
			prom(share(each("squall_site_responses_total", `class="5xx"`, ""), each(siteMetric, "", "")), ""), step{0.01, "orange"}, step{0.05, "red"})).
		WithPanel(timeline("Alerts", "When which alert fired. RestartBurst belongs to the cluster and has no site.",
			prom(`max by (alertname, severity, site, cluster) (squall_alert_firing{site=~"$site|"}) or sum by (severity) (squall_alerts_firing)`, "{{alertname}} {{severity}} {{site}}{{cluster}}"))).
		WithPanel(graph("Clients giving up, a minute", units.Short, "By site.",
			prom(minute("squall_site_abandoned_total", "", "site"), "{{site}}"))).
		WithPanel(graph("p99 by site", units.Seconds, "A lower bound while clients give up.", prom(quantile("0.99", "site"), "{{site}}"))).
		WithPanel(graph("Busy workers", units.Short, "At least and at most: a client that gave up hides how long its worker went on.",
			prom(`max by (site) (squall_origin_busy_workers{site=~"$site", bound="upper"})`, "{{site}} at most"),
			prom(`max by (site) (squall_origin_busy_workers{site=~"$site", bound="lower"})`, "{{site}} at least"),
			prom(`max by (site) (squall_origin_pool_workers{site=~"$site"})`, "{{site}} pool"))).
		WithPanel(graph("Requests a minute", units.Short, "By site, health checks left out.", prom(minute(siteMetric, "", "site"), "{{site}}"))).
		WithPanel(timeline("Detections", "The halves of which alerts are made: each alone pages nobody.",
			prom(`max by (detector) (squall_detections_active{site=~"$site|"})`, "{{detector}}")))
}

// storm is for the page of a storm: who asks for what, and what it does.
func storm() *dashboard.DashboardBuilder {
	return board("squall-storm", "Storm", "Which requests make the storm: method and path tell it apart, addresses and agents do not.", "site", siteMetric).
		WithPanel(stacked("Requests a minute by method", units.Short, "A HEAD storm shows here and nowhere else.",
			prom("sum by (method) ("+minute(siteMetric, "", "method")+")", "{{method}}"))).
		WithPanel(stacked("Requests a minute by origin", units.Short, "own: the site calls itself. allowed: an office or another known range.",
			prom(minute(siteMetric, "", "origin"), "{{origin}}"))).
		WithPanel(graph("Clients giving up, a minute, by method", units.Short, "Of the storm itself, and of those who pay for it.",
			prom(minute("squall_site_abandoned_total", "", "method"), "{{method}}"))).
		WithPanel(graph("How long requests take", units.Seconds, "Lower bounds while clients give up.",
			prom(quantile("0.5", ""), "median"), prom(quantile("0.99", ""), "p99"))).
		WithPanel(graph("Refused by a limiter, a minute", units.Short, "own or allowed: the limiter backfires.",
			prom(minute("squall_site_limited_total", "", "origin"), "{{origin}}"))).
		WithPanel(timeline("Detections", "What holds at the sites selected, and in the cluster.",
			prom(`max by (detector, site) (squall_detections_active{site=~"$site|"})`, "{{detector}} {{site}}"))).
		WithRow(row("Lines, from Loki")).
		WithPanel(ranking("Routes asked for most", units.Short, "In the whole time range.",
			lines("topk(10, sum by (method, route) (count_over_time("+of+` | method!="" [$__range])))`, "{{method}} {{route}}"))).
		WithPanel(ranking("Routes that clients give up", units.Short, "In the whole time range.",
			lines("topk(10, sum by (method, route) (count_over_time("+of+` | client_abandoned="true" [$__range])))`, "{{method}} {{route}}"))).
		WithPanel(graph("HEAD by route", units.Short, "Lines in each step.",
			lines("topk(10, sum by (route) (count_over_time("+of+` | method="HEAD" [$__auto])))`, "{{route}}"))).
		WithPanel(graph("Kinds of clients", units.Short, "By what they look like. scanner: says it is a browser and behaves like none.",
			lines("sum by (client_class) (count_over_time("+of+` | client_class!="" [$__auto]))`, "{{client_class}}"))).
		WithPanel(excerpt("Requests given up", "Newest first.", of+` | client_abandoned="true"`))
}

// origin is what requests cost.
func origin() *dashboard.DashboardBuilder {
	const seconds = "squall_site_worker_seconds_total"
	return board("squall-origin", "Origin cost", "Which requests hold the workers, and for how long.", "site", siteMetric).
		WithPanel(graph("Busy workers against the pool", units.Short, "The mean of the last minute, as an interval, by Little's law.",
			prom(`max by (site) (squall_origin_busy_workers{site=~"$site", bound="upper"})`, "{{site}} at most"),
			prom(`max by (site) (squall_origin_busy_workers{site=~"$site", bound="lower"})`, "{{site}} at least"),
			prom(`max by (site) (squall_origin_pool_workers{site=~"$site"})`, "{{site}} pool"))).
		WithPanel(graph("Pool used", units.PercentUnit, "Over 100 %: requests wait in line.",
			prom(`max by (site) (squall_origin_busy_workers{site=~"$site", bound="upper"} / on (instance, site) squall_origin_pool_workers)`, "{{site}}"))).
		WithPanel(stacked("Workers held by method, at least", units.Short, "Worker-seconds a second, as the log proves them.",
			prom(each(seconds, `bound="lower"`, "method"), "{{method}}"))).
		WithPanel(stacked("Workers held by method, at most", units.Short, "Up to pool.reclaim_timeout for a request whose client left.",
			prom(each(seconds, `bound="upper"`, "method"), "{{method}}"))).
		WithPanel(graph("Cost of one request", units.Seconds, "Worker-seconds a request, at least. HEAD as dear as GET: the application does the whole work.",
			prom(share(each(seconds, `bound="lower"`, "method"), each(siteMetric, "", "method")), "{{method}}"))).
		WithPanel(graph("Share of HEAD in the cost", units.PercentUnit, "Of the worker-seconds, at least.",
			prom(share(each(seconds, `bound="lower", method="HEAD"`, "site"), each(seconds, `bound="lower"`, "site")), "{{site}}"))).
		WithRow(row("Lines, from Loki")).
		WithPanel(ranking("Seconds by route", units.Seconds, "Sum of the requests' times in the time range: the routes that an answer nearer to the client would spare the origin.",
			lines("topk(15, sum by (method, route) (sum_over_time("+of+` | method!="" | unwrap request_time [$__range])))`, "{{method}} {{route}}"))).
		WithPanel(ranking("Slowest routes", units.Seconds, "95th percentile in the time range.",
			lines("topk(15, quantile_over_time(0.95, "+of+` | route!="" | unwrap request_time [$__range]) by (route))`, "{{route}}"))).
		WithPanel(excerpt("Requests of 5 s and more", "Newest first.", of+` | request_time >= 5`).Span(full))
}

// restarts is about containers and what asks after them.
func restarts() *dashboard.DashboardBuilder {
	return board("squall-restarts", "Restarts and probes", "Containers that are restarted, workers that are killed, and health checks that pass through what they are to protect.", "site", siteMetric).
		WithPanel(stacked("Restarts and kills, in 5 minutes", units.Short, "RestartBurst pages at five containers, rollouts left out.",
			prom(`sum by (kind) (increase(squall_events_total{kind=~"container_restart|liveness_restart|container_kill|oom|backoff"}[5m]))`, "{{kind}}"))).
		WithPanel(stacked("Failed probes, in 5 minutes", units.Short, "As kubelet and the cluster's events tell them.",
			prom(`sum(increase(squall_events_total{kind="probe_failed"}[5m]))`, "failed"))).
		WithPanel(stacked("Workers of php-fpm, in 5 minutes", units.Short, "Requests killed, children that exited, and pools that were full.",
			prom(`sum by (kind) (increase(squall_events_total{kind=~"php_.*"}[5m]))`, "{{kind}}"))).
		WithPanel(graph("Health checks a minute", units.Short, "reached: yes passes through the application. A liveness probe that does kills what waits to recover.",
			prom(minute("squall_site_probes_total", "", "site, reached"), "{{site}} reached: {{reached}}"))).
		WithPanel(graph("Limiters and upstreams by the error log, a minute", units.Short, "Lines of nginx's error log.",
			prom(`60 * sum by (kind) (rate(squall_events_total{kind=~"limit_request|upstream_timeout"}[$__rate_interval]))`, "{{kind}}"))).
		WithPanel(graph("Pool used", units.PercentUnit, "Restarts that follow a full pool are the probe's doing.",
			prom(`max by (site) (squall_origin_busy_workers{site=~"$site", bound="upper"} / on (instance, site) squall_origin_pool_workers)`, "{{site}}"))).
		WithPanel(timeline("Detections", "Restarts, kills and probes.",
			prom(`max by (detector, site) (squall_detections_active{detector=~"restart_burst|worker_timeout|probe_failure"})`, "{{detector}} {{site}}"))).
		WithPanel(excerpt("What logs tell beside requests", "Newest first: kubelet, the cluster's events, php-fpm, error logs.", `{job="squall"} | method=""`))
}

// layers is about who answers: an edge, a cache, a limiter, the origin.
func layers() *dashboard.DashboardBuilder {
	return board("squall-layers", "Layers and offload", "What is answered before the origin, and what could be. The cheapest layer is the one closest to the client.", "site", siteMetric).
		WithPanel(graph("Answered before the origin", units.PercentUnit, "Requests that reached no upstream, of those whose log says.",
			prom(share(each("squall_site_upstream_total", `reached="no"`, "site"), each("squall_site_upstream_total", `reached=~"yes|no"`, "site")), "{{site}}"))).
		WithPanel(stacked("Requests a minute by whether they reached an upstream", units.Short, "unknown: the log has no field for it.",
			prom(minute("squall_site_upstream_total", "", "reached"), "{{reached}}"))).
		WithPanel(stacked("Requests a minute by cache status", units.Short, "none: the log does not say. Many misses and none stale: stale-while-revalidate is missing.",
			prom(minute("squall_site_cache_total", "", "status"), "{{status}}"))).
		WithPanel(graph("Hits", units.PercentUnit, "Hit, stale, updating or revalidated, of what a cache looked at.",
			prom(share(each("squall_site_cache_total", `status=~"hit|stale|updating|revalidated|refresh_hit"`, "site"),
				each("squall_site_cache_total", `status=~"hit|stale|updating|revalidated|refresh_hit|miss|expired|bypass"`, "site")), "{{site}}"))).
		WithPanel(stacked("Requests a minute by class of status", units.Short, "",
			prom(minute("squall_site_responses_total", "", "class"), "{{class}}"))).
		WithPanel(graph("Refused by a limiter", units.PercentUnit, "Of all requests.",
			prom(share(each("squall_site_limited_total", "", "site"), each(siteMetric, "", "site")), "{{site}}"))).
		WithRow(row("Lines, from Loki")).
		WithPanel(graph("Requests by log", units.Short, "The same site at its edge and at its origin: the difference is what the layers between them answered.",
			lines("sum by (source, site) (count_over_time("+of+` | method!="" [$__auto]))`, "{{source}} {{site}}"))).
		WithPanel(graph("Status by log", units.Short, "Lines in each step.",
			lines("sum by (source, status) (count_over_time("+of+` | status!="" [$__auto]))`, "{{source}} {{status}}")))
}

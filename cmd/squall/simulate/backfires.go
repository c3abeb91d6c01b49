package simulate

import "time"

// The addresses of those who are no strangers: the host that the application runs on, and the office.
const (
	OwnHost = "198.51.100.7"
	Office  = "203.0.113.5"
)

const seoSpider = "Screaming Frog SEO Spider/20.4"

// zone is the limiter of both incidents.
func zone(uri bool) *Limit { return &Limit{Zone: "site_a_dynamic", PerMinute: 300, URI: uri} }

// selfFetch is a site whose pages fetch their style sheets by URL while the office crawls it: its own limiter, which
// takes a versioned style sheet for a page, refuses it its own files.
func selfFetch() Site {
	site := shop()
	site.Host = "site-a.example"
	site.Pool.Workers, site.Organic.PerSecond, site.Organic.Assets = 40, 0.02, 1.2 // small, and slow to be found out
	site.Limit = zone(false)
	site.Limit.Burst = 12
	css := func(name string) Route {
		return Route{Template: "/assets/css/" + name + ".min.css?v=1.2.3", Bytes: 24000}
	}
	site.Self = &Self{Addresses: []string{OwnHost}, Files: []Route{css("desktop/post"), css("general"), css("desktop/menu")}}
	site.Storms = []Storm{{
		Method: "GET", At: 6 * minute, For: 10 * minute, Count: 2400, Shape: Flat, From: []string{Office}, Agent: seoSpider,
		Patience: Patience{Mean: 30 * time.Second},
		Routes:   []Route{{Template: "/news/{name}-{id}", Weight: 1, URLs: 1500, Service: Service{Mean: 600 * time.Millisecond, Spread: 0.2}, Bytes: 240000}},
	}}
	return site
}

var siteALogs = []Log{{File: "access.log"}, {File: "error.log", Format: "nginx_error"}}

func selfLoop() Scenario {
	return Scenario{Start: day(2026, 7, 20, 12), Duration: 22 * minute, Sites: []Site{selfFetch()}, Logs: siteALogs}
}

// officeLimited is an office of 60 people behind one address, which a limiter for each address takes for one client.
func officeLimited() Scenario {
	site := shop()
	site.Organic.Assets, site.Limit = 0, zone(true)
	site.Storms = []Storm{{
		Method: "GET", At: 30 * minute, For: 4 * time.Hour, Count: 4 * 3600 * 6, Shape: Flat, From: []string{Office}, Agents: 60,
		Patience: Patience{Mean: 20 * time.Second}, Routes: site.Organic.Routes[:3],
	}}
	return Scenario{Start: day(2026, 7, 21, 8), Duration: 5 * time.Hour, Sites: []Site{site}, Logs: siteALogs}
}

// clearedAndCrawled is a cache that an administrator's click empties, and a crawler that comes right after.
func clearedAndCrawled() Scenario {
	site := shop()
	page := Route{Template: "/news/{name}-{id}", Weight: 6, URLs: 1200, Shared: true, Service: Service{Mean: 420 * time.Millisecond, Spread: 0.2}, Bytes: 240000}
	site.Organic.PerSecond, site.Organic.Assets = 8, 0
	site.Organic.Routes = append([]Route{page}, Route{
		Template: "/checkout/{id}", Weight: 2, URLs: 60, Service: Service{Mean: 290 * time.Millisecond, Spread: 0.2}, Bytes: 18000,
	})
	const cleared = 15 * minute
	site.Cache = &Cache{TTL: 24 * time.Hour, Layer: Nginx, Routes: []string{page.Template}, Filled: -time.Hour, Clears: []time.Duration{cleared}}
	site.Storms = []Storm{
		{
			Method: "POST", At: cleared - time.Second, For: 100 * time.Millisecond, Count: 1, Shape: Flat, From: []string{Office}, Agent: browser,
			Routes: []Route{{Template: "/admin/articles/{id}", Status: 302, Service: Service{Mean: 300 * time.Millisecond}}},
		},
		{
			Method: "GET", At: cleared + 20*time.Second, For: 4 * minute, Count: 4 * 60 * 30, Shape: Flat, From: []string{Office}, Agent: seoSpider,
			Patience: Patience{Mean: 30 * time.Second}, Routes: []Route{page},
		},
	}
	return Scenario{Start: day(2026, 7, 22, 14), Duration: 28 * minute, Sites: []Site{site}}
}

// restarts is a cluster whose liveness probes pass through PHP while something that all of PHP waits for hangs.
func restarts(hang time.Duration) *Cluster {
	return &Cluster{
		Nodes: 9, Namespaces: []string{"site-b", "site-c", "site-d", "site-e", "site-f", "site-g", "monitoring"}, Containers: 24,
		Hang: hang, For: 96 * time.Second,
		Liveness: Probe{30 * time.Second, 5 * time.Second, 3}, Readiness: Probe{10 * time.Second, 5 * time.Second, 3},
		Terminate: 30 * time.Second, OOM: []time.Duration{hang + 70*time.Second},
		Rollouts: []Rollout{{At: hang + 40*time.Second, Pods: 6}},
	}
}

// clusterSite is one of the cluster's sites, as its ingress sees it.
func clusterSite(c *Cluster) Site {
	site := shop()
	site.Host, site.Balancer = "site-b.example", "ingress"
	site.Organic.PerSecond, site.Organic.Assets = 2, 0
	site.Slows = []Slow{{At: c.Hang, For: c.For, Ratio: 1, Hang: true}}
	return site
}

var clusterLogs = []Log{
	{File: "pods.log", Format: "pod_status"}, {File: "events.log", Format: "k8s_event_json"},
	{File: "kubelet.log", Format: "kubelet"}, {File: "ingress.log", Format: "ingress_nginx", Balancer: "ingress"},
}

func restartBurst() Scenario {
	c := restarts(5 * minute)
	return Scenario{Start: day(2026, 7, 23, 12), Duration: 22 * minute, Cluster: c, Sites: []Site{clusterSite(c)}, Logs: clusterLogs}
}

// probeRhythm is one of its containers: php-fpm kills a request of the readiness probe every ten seconds.
func probeRhythm() Scenario {
	c := restarts(3 * minute)
	c.Nodes, c.Containers, c.OOM, c.Rollouts, c.For = 1, 1, nil, nil, 4*minute
	c.Namespaces, c.Liveness = c.Namespaces[:1], Probe{20 * time.Second, 5 * time.Second, 6}
	site := clusterSite(c)
	site.Slows = nil // its requests go to other containers
	return Scenario{
		Start: day(2026, 7, 23, 12), Duration: 15 * minute, Cluster: c, Sites: []Site{site},
		Logs: []Log{
			{File: "php-fpm.log", Format: "php_fpm"}, {File: "kubelet.log", Format: "kubelet"},
			{File: "ingress.log", Format: "ingress_nginx", Balancer: "ingress"},
		},
	}
}

// triggerLost is restartBurst with the ingress's log of the time rotated away.
func triggerLost() Scenario {
	s := restartBurst()
	s.Logs = append([]Log{}, clusterLogs...)
	s.Logs[3].LostFrom, s.Logs[3].LostTo = 3*minute, 19*minute
	return s
}

// bothAtOnce is selfLoop and restartBurst at the same time, on infrastructure that has nothing in common.
func bothAtOnce() Scenario {
	c := restarts(8 * minute)
	return Scenario{
		Start: day(2026, 7, 24, 12), Duration: 26 * minute, Cluster: c, Sites: []Site{selfFetch(), clusterSite(c)},
		Logs: append(append([]Log{}, siteALogs...), clusterLogs...),
	}
}

// probesThroughPHP is a storm on a site whose balancer asks PHP whether it lives: the probes wait with everybody else.
func probesThroughPHP() Scenario {
	site := shop()
	site.Storms = []Storm{checkoutHeads(6*minute, 4*minute, 8000, cart)}
	site.Monitors = []Monitor{{
		Method: "GET", Path: "/health", Agent: "ELB-HealthChecker/2.0", Every: 5 * time.Second, Addresses: 3, Layer: App, Internal: true,
		Service: Service{Mean: 120 * time.Millisecond, Spread: 0.2}, Timeout: 5 * time.Second,
	}}
	return Scenario{Start: day(2026, 6, 3, 9), Duration: 20 * minute, Sites: []Site{site}}
}

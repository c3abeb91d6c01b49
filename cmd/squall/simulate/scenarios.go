package simulate

import "time"

// scenarios holds one line a scenario. The S-numbers are the project's acceptance scenarios.
var scenarios = map[string]func() Scenario{
	"S01":            firstIncident,
	"S02":            shortCircuitInPHP,
	"S03":            shortCircuitInNginx,
	"S04":            absorbedAtEdge,
	"S05":            agentsOfAMonth,
	"S06":            expiredTogether,
	"S07":            footerLinks,
	"S08":            expensiveCrawl,
	"S09":            biggerStormNoStall,
	"S10":            wellServed,
	"S11":            halvesOfTheComposite,
	"S12":            retriedSearch,
	"S13":            selfLoop,
	"S14":            officeLimited,
	"S15":            clearedAndCrawled,
	"S16":            restartBurst,
	"S17":            probeRhythm,
	"S18":            triggerLost,
	"S19":            bothAtOnce,
	"S20":            probesThroughPHP,
	"quiet":          func() Scenario { return Quiet(30) },
	"quiet_day":      quietDay,
	"uptime_monitor": uptimeMonitors,
	"flash_sale":     flashSale,
	"demo":           demo,
}

const minute = time.Minute

// shop is a site at rest: 4 page views a second of 0.25 s on 25 workers.
func shop() Site {
	quick := func(ms int) Service { return Service{Mean: time.Duration(ms) * time.Millisecond, Spread: 0.2} }
	return Site{
		Host: "shop.example",
		Pool: Pool{Workers: 25, Reclaim: minute},
		Organic: Organic{
			PerSecond: 4, Visitors: 4000, Agents: 400, Bots: 0.03, Assets: 0.1,
			Patience: Patience{Mean: 8 * time.Second, Spread: time.Second},
			Routes: []Route{
				{Template: "/", Weight: 20, Service: quick(220), Bytes: 41000},
				{Template: "/news/{name}-{id}", Weight: 35, URLs: 400, Service: quick(245), Bytes: 36000},
				{Template: "/events/{id}", Weight: 20, URLs: 120, Service: quick(255), Bytes: 28000},
				{Template: "/search?q={name}", Weight: 10, URLs: 150, Service: quick(280), Bytes: 22000},
				{Template: "/checkout/{id}", Weight: 8, URLs: 60, Service: quick(290), Bytes: 18000},
				{Template: "/checkout/{id}/pay", Method: "POST", Status: 302, Weight: 3, URLs: 60, Service: quick(290), Bytes: 0},
				{Template: "/old/{name}", Status: 404, Weight: 4, URLs: 80, Service: quick(200), Bytes: 6000},
			},
		},
	}
}

// checkoutHeads is a scanner that asks for one checkout page, again and again, with one browser's agent.
func checkoutHeads(at, length time.Duration, count int, service Service) Storm {
	return Storm{
		Method: "HEAD", At: at, For: length, Count: count, Shape: Flat, Addresses: 250, Agents: 1, Layer: App,
		Patience: Patience{Mean: 10 * time.Second},
		Routes:   []Route{{Template: "/checkout/{id}", Weight: 1, URLs: 1, Service: service, Bytes: 18000}},
	}
}

var cart = Service{Mean: 1100 * time.Millisecond, Spread: 0.15} // cart code, 10 to 30 queries, a session

func day(year int, month time.Month, d, hour int) time.Time {
	return time.Date(year, month, d, hour, 0, 0, 0, time.UTC)
}

func firstIncident() Scenario {
	site := shop()
	site.Storms = []Storm{checkoutHeads(5*minute, 7*minute, 14000, cart)}
	return Scenario{Start: day(2026, 6, 2, 9), Duration: 25 * minute, Sites: []Site{site}}
}

func shortCircuitInPHP() Scenario {
	site := shop()
	site.Storms = []Storm{checkoutHeads(5*minute, minute, 15600, Service{Mean: 150 * time.Millisecond, Spread: 0.15})}
	return Scenario{Start: day(2026, 6, 4, 9), Duration: 15 * minute, Sites: []Site{site}}
}

// shortCircuitInNginx is the load test: 92,000 requests at twice the first incident's rate.
func shortCircuitInNginx() Scenario {
	site := shop()
	storm := checkoutHeads(5*minute, 23*minute, 92000, cart)
	storm.Layer = Nginx
	site.Storms = []Storm{storm}
	return Scenario{Start: day(2026, 6, 6, 9), Duration: 33 * minute, Sites: []Site{site}}
}

// expensiveCrawl stalls the site at 600 requests a minute: what counts is cost. The mean is 4.4 s and the
// crawler waits as long as the CDN does.
func expensiveCrawl() Scenario {
	site := shop()
	site.Organic.PerSecond, site.Organic.Assets = 2, 0
	seconds := func(s float64) Service { return Service{Mean: time.Duration(s * float64(time.Second)), Spread: 0.15} }
	site.Storms = []Storm{{
		Method: "GET", At: 10 * minute, For: 15 * minute, Count: 7200, Shape: Flat, Addresses: 2000, Agents: 2400, Layer: App,
		Patience: Patience{Mean: 30 * time.Second},
		Routes: []Route{
			{Template: "/feeds/{name}.xml", Weight: 50, URLs: 150, Service: seconds(3.6), Bytes: 52000},
			{Template: "/city/{name}", Weight: 25, URLs: 600, Service: seconds(6), Bytes: 64000},
			{Template: "/search?q={name}", Weight: 25, URLs: 900, Service: seconds(4), Bytes: 24000},
		},
	}}
	return Scenario{Start: time.Date(2026, 6, 30, 23, 50, 0, 0, time.UTC), Duration: 50 * minute, Sites: []Site{site}}
}

// biggerStormNoStall brings 2,281 requests a minute in all, p99 1.13 s, seven clients lost on their own.
func biggerStormNoStall() Scenario {
	site := shop()
	site.Organic.Assets = 0
	crawl := Service{Mean: 344 * time.Millisecond, Spread: 0.6}
	site.Storms = []Storm{{
		Method: "GET", For: 15 * minute, Count: 15 * (2281 - 240), Shape: Flat, Addresses: 2500, Agents: 10000, Layer: App,
		Patience: Patience{Mean: 30 * time.Second},
		Routes: []Route{
			{Template: "/city/{name}", Weight: 60, URLs: 600, Service: crawl, Bytes: 64000},
			{Template: "/search?q={name}", Weight: 40, URLs: 900, Service: crawl, Bytes: 24000},
		},
	}}
	site.Blips = []Blip{{For: 15 * minute, Requests: 7, Abandon: 7}}
	return Scenario{Start: day(2026, 7, 2, 0), Duration: 15 * minute, Sites: []Site{site}}
}

// halvesOfTheComposite is a week in which clients leave five times with nothing slow, and pages are slow five
// times with nobody leaving.
func halvesOfTheComposite() Scenario {
	site := shop()
	site.Organic.PerSecond, site.Organic.Rhythm, site.Organic.Assets, site.Organic.Visitors = 0.6, 0.4, 0.2, 9000
	for d := range 5 {
		at := time.Duration(d) * 24 * time.Hour
		site.Blips = append(site.Blips, Blip{
			At: at + time.Duration(8+2*d)*time.Hour + 17*minute, For: 90 * time.Second, Requests: 120, Abandon: 70,
		})
		site.Slows = append(site.Slows, Slow{
			At: at + 26*time.Hour, For: 8 * minute, Ratio: 0.3, Factor: 1,
			Add: Patience{Mean: 5700 * time.Millisecond, Spread: 500 * time.Millisecond},
		})
	}
	return Scenario{Start: day(2026, 7, 6, 0), Duration: 7 * 24 * time.Hour, Sites: []Site{site}}
}

// quietDay is an ordinary day: rhythm, monitors, a deploy, a mail that sells, people who click away.
func quietDay() Scenario {
	site := shop()
	site.Organic.PerSecond, site.Organic.Rhythm, site.Organic.Visitors = 2.4, 0.7, 20000
	site.Organic.Assets, site.Organic.Leave = 0.5, 0.0005
	site.Organic.Surges = []Surge{{At: 10 * time.Hour, For: 40 * minute, Factor: 2.5}}
	site.Slows = []Slow{{At: 13 * time.Hour, For: minute, Ratio: 1, Factor: 2.5}}
	site.Blips = []Blip{{At: 17*time.Hour + 23*minute, For: minute, Requests: 30, Abandon: 9}}
	site.Monitors = []Monitor{uptimeRobot(30 * time.Second), {
		Method: "GET", Path: "/health", Agent: "ELB-HealthChecker/2.0", Every: 15 * time.Second, Addresses: 2, Layer: Nginx, Internal: true,
	}}
	return Scenario{Start: day(2026, 6, 10, 0), Duration: 24 * time.Hour, Sites: []Site{site}}
}

func uptimeRobot(every time.Duration) Monitor {
	return Monitor{
		Method: "HEAD", Path: "/", Every: every, Addresses: 4, Layer: App, Service: Service{Mean: 200 * time.Millisecond, Spread: 0.2},
		Agent: "Mozilla/5.0+(compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)",
	}
}

// uptimeMonitors has HEADs that are no storm: two monitors far below any threshold, and health checks of many
// nodes that are above 300 a minute by count alone.
func uptimeMonitors() Scenario {
	site := shop()
	site.Monitors = []Monitor{
		uptimeRobot(5 * time.Second),
		{
			Method: "HEAD", Path: "/events/1", Agent: "Pingdom.com_bot_version_1.4_(http://www.pingdom.com/)",
			Every: time.Second, Addresses: 20, Layer: App, Service: Service{Mean: 200 * time.Millisecond, Spread: 0.2},
		},
		{Method: "HEAD", Path: "/health", Agent: "ELB-HealthChecker/2.0", Every: 160 * time.Millisecond, Addresses: 6, Layer: Nginx, Internal: true},
		{Method: "GET", Path: "/health", Agent: "kube-probe/1.31", Every: 170 * time.Millisecond, Addresses: 30, Layer: Nginx, Internal: true},
	}
	return Scenario{Start: day(2026, 6, 11, 9), Duration: time.Hour, Sites: []Site{site}}
}

// flashSale is ten times the traffic, and the pool carries it.
func flashSale() Scenario {
	site := shop()
	site.Organic.Visitors, site.Organic.Agents, site.Organic.Assets = 40000, 1200, 0.3
	site.Organic.Surges = []Surge{{At: 15 * minute, For: 20 * minute, Factor: 10}}
	return Scenario{Start: day(2026, 6, 12, 18), Duration: 50 * minute, Sites: []Site{site}}
}

// demo is ten quiet minutes, a storm of three that pins the pool, and the recovery.
func demo() Scenario {
	site := shop()
	site.Storms = []Storm{checkoutHeads(10*minute, 3*minute, 7200, cart)}
	return Scenario{Start: day(2026, 6, 2, 9), Duration: 20 * minute, Sites: []Site{site}}
}

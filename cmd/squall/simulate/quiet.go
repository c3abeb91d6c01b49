package simulate

import "time"

// Quiet is days of an ordinary site, from a Wednesday on: the rhythm of the day and of the week, deploys, nightly jobs,
// mobile clients that lose their connection, a sale each Thursday, newsletters whose links the balancer answers to
// scanners, crawlers, uptime monitors. Nothing in it hurts anybody.
func Quiet(days int) Scenario {
	site := shop()
	site.Organic.PerSecond, site.Organic.Rhythm, site.Organic.Visitors = 0.4, 0.6, 20000
	site.Organic.Assets, site.Organic.Leave = 0.2, 0.0005
	start := day(2026, 9, 2, 0)
	for d := range days {
		site.ordinaryDay(time.Duration(d)*24*time.Hour, start.AddDate(0, 0, d).Weekday(), d)
	}
	site.Monitors = []Monitor{
		uptimeRobot(minute),
		{
			Method: "HEAD", Path: "/events/1", Agent: "Pingdom.com_bot_version_1.4_(http://www.pingdom.com/)", Every: minute, Addresses: 20,
			Layer: App, Service: Service{Mean: 200 * time.Millisecond, Spread: 0.2},
		},
		{Method: "GET", Path: "/health", Agent: "ELB-HealthChecker/2.0", Every: 30 * time.Second, Addresses: 2, Layer: Nginx, Internal: true},
	}
	return Scenario{Start: start, Duration: time.Duration(days) * 24 * time.Hour, Sites: []Site{site}}
}

// ordinaryDay adds what happens on one day, the d-th of the run. Nothing happens at the same time as another thing.
func (s *Site) ordinaryDay(at time.Duration, weekday time.Weekday, d int) {
	clock := func(hour, min int) time.Duration {
		return at + time.Duration(hour)*time.Hour + time.Duration(min)*minute
	}
	shift := d * 7 % 45 // minutes, so that not every day is alike
	weekend := weekday == time.Saturday || weekday == time.Sunday

	// A nightly job slows a third of the pages down, and a dump all of them a little.
	s.Slows = append(s.Slows,
		Slow{At: clock(2, 0), For: 8 * minute, Ratio: 0.3, Factor: 1, Add: Patience{5600 * time.Millisecond, 500 * time.Millisecond}},
		Slow{At: clock(3, 30), For: 3 * minute, Ratio: 1, Factor: 3})
	// Trains enter tunnels.
	s.Blips = append(s.Blips,
		Blip{At: clock(8, shift), For: 90 * time.Second, Requests: 90, Abandon: 20 + d%30},
		Blip{At: clock(17, shift), For: minute, Requests: 40, Abandon: 9})
	// A crawler each night, a quicker one each Monday.
	cheap := Service{Mean: 150 * time.Millisecond, Spread: 0.3}
	crawl := Storm{
		Method: "GET", At: clock(4, 10), For: 30 * minute, Count: 1800, Shape: Flat, Addresses: 6, Agent: bots[0],
		Patience: Patience{Mean: 30 * time.Second}, Routes: []Route{{Template: "/news/{name}-{id}", Weight: 1, URLs: 1500, Service: cheap, Bytes: 36000}},
	}
	s.Storms = append(s.Storms, crawl)
	switch weekday {
	case time.Monday:
		crawl.At, crawl.For, crawl.Count, crawl.Agent = clock(5, 30), 10*minute, 3000, bots[2]
		s.Storms = append(s.Storms, crawl)
	case time.Thursday: // a sale, ten times the usual
		s.Organic.Surges = append(s.Organic.Surges, Surge{At: clock(19, 0), For: 40 * minute, Factor: 10})
	case time.Wednesday, time.Friday: // a newsletter: scanners ask for its links, nginx answers HEAD, people come
		heads := checkoutHeads(clock(10, 5), 4*minute, 2400, cart)
		heads.Layer, heads.Shape = Nginx, Blast
		s.Storms = append(s.Storms, heads)
		s.Organic.Surges = append(s.Organic.Surges, Surge{At: clock(10, 5), For: 50 * minute, Factor: 3})
	}
	if weekend {
		s.Organic.Surges = append(s.Organic.Surges, Surge{At: at, For: 24 * time.Hour, Factor: 0.6})
		return
	}
	// Two deploys: for a minute caches are cold.
	for _, hour := range []int{11, 15} {
		s.Slows = append(s.Slows, Slow{At: clock(hour, 20+shift/2), For: minute, Ratio: 1, Factor: 2.5})
	}
}

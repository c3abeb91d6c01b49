package simulate

import "time"

const browser = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.6478.127 Safari/537.36"

// absorbedAtEdge is a day of a firewall that answers HEAD on checkout: 8,000 blocked, 5,559 of them in five minutes.
func absorbedAtEdge() Scenario {
	site := shop()
	site.Organic.PerSecond, site.Organic.Rhythm, site.Organic.Assets = 0.3, 0.6, 0
	rest, blast := checkoutHeads(0, 24*time.Hour, 8000-5559, cart), checkoutHeads(9*time.Hour, 5*minute, 5559, cart)
	rest.Layer, blast.Layer = Edge, Edge
	site.Storms = []Storm{rest, blast}
	return Scenario{
		Start: day(2026, 6, 9, 0), Duration: 24 * time.Hour, Sites: []Site{site},
		Logs: []Log{{File: "access.log"}, {File: "waf.log", Format: "aws_waf"}},
	}
}

// agentsOfAMonth is what a limit for each agent is derived from: 3,684 of them, the busiest of which that people use
// made 111 requests in its busiest minute, and a scanner that comes three times with 2,000 a minute and more.
func agentsOfAMonth() Scenario {
	const days = 30
	site := shop()
	site.Organic.PerSecond, site.Organic.Rhythm, site.Organic.Assets, site.Organic.Bots = 0.05, 0.6, 0, 0
	site.Organic.Visitors, site.Organic.Agents, site.Organic.EveryAgent = 9000, 3682, true
	class := Storm{ // a class of pupils, with the tablets of their school
		Method: "GET", At: 9*24*time.Hour + 10*time.Hour, For: minute, Count: 111, Shape: Flat, Addresses: 90,
		Agent:  "Mozilla/5.0 (iPad; CPU OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Mobile/15E148 Safari/604.1",
		Routes: site.Organic.Routes[:2],
	}
	site.Storms = []Storm{class}
	for i, d := range []time.Duration{12, 19, 27} {
		heads := checkoutHeads(d*24*time.Hour+9*time.Hour, 2*minute, 4000+400*i, Service{Mean: 30 * time.Millisecond, Spread: 0.2})
		heads.Method, heads.Agent = "GET", browser
		site.Storms = append(site.Storms, heads)
	}
	return Scenario{Start: day(2026, 5, 4, 0), Duration: days * 24 * time.Hour, Sites: []Site{site}}
}

// expiredTogether is a cache whose pages expire every half an hour at the same moment, and a scanner with one agent
// that comes at the third time, for pages that nobody has asked for before as well: until the first answer for a page
// is there, whoever asks for it goes on to an origin that has to make all pages at once.
func expiredTogether() Scenario {
	site := shop()
	made := func(ms int) Service { return Service{Mean: time.Duration(ms) * time.Millisecond, Spread: 0.15} }
	hot := Route{Template: "/events/{id}", Weight: 8, URLs: 300, Shared: true, Service: made(450), Bytes: 28000}
	cold := Route{Template: "/events/{id}/programme", Weight: 40, URLs: 900, Service: made(900), Bytes: 61000}
	site.Organic.Routes = []Route{hot, {Template: "/checkout/{id}", Weight: 0.7, URLs: 60, Service: made(290), Bytes: 18000}}
	site.Organic.PerSecond, site.Organic.Assets = 9, 0
	site.Cache = &Cache{TTL: 30 * minute, Layer: Nginx, Routes: []string{hot.Template, cold.Template}, Filled: -14 * minute}
	site.Storms = []Storm{{
		Method: "GET", At: 76 * minute, For: 3 * minute, Count: 3 * 13649, Shape: Flat, Addresses: 1229, Agents: 1, Agent: browser,
		Patience: Patience{Mean: 10 * time.Second}, Routes: []Route{hot, cold},
	}}
	return Scenario{Start: day(2026, 6, 18, 16), Duration: 90 * minute, Sites: []Site{site}}
}

// footerLinks are HEADs on what stands below every mail, at 461 and 1,225 times of what is usual, under one of 300
// agents each.
func footerLinks() Scenario {
	site := shop()
	usual := func(path string, every time.Duration) Monitor {
		return Monitor{
			Method: "HEAD", Path: path, Agent: browser, Every: every, Addresses: 40, Layer: App,
			Service: Service{Mean: 200 * time.Millisecond, Spread: 0.2},
		}
	}
	site.Monitors = []Monitor{usual("/unsubscribe/{id}", 10*time.Second), usual("/subscription/{id}", 20*time.Second)}
	const unsubscribe, subscription = 461 * 6, 1225 * 3 // a minute
	service := Service{Mean: 450 * time.Millisecond, Spread: 0.15}
	site.Storms = []Storm{{
		Method: "HEAD", At: 30 * minute, For: 5 * minute, Count: 5 * (unsubscribe + subscription), Shape: Flat, Addresses: 4000, Agents: 300,
		Patience: Patience{Mean: 10 * time.Second},
		Routes: []Route{
			{Template: "/unsubscribe/{id}", Weight: unsubscribe, URLs: 2000, Service: service, Bytes: 5000},
			{Template: "/subscription/{id}", Weight: subscription, URLs: 2000, Service: service, Bytes: 7000},
		},
	}}
	return Scenario{Start: day(2026, 6, 26, 9), Duration: 45 * minute, Sites: []Site{site}}
}

// wellServed is a mailing at 423 requests a second, of which the edge lets 87 through.
func wellServed() Scenario {
	site := shop()
	site.Pool.Workers, site.Organic.Assets = 120, 0
	page := Service{Mean: 700 * time.Millisecond, Spread: 0.55}
	const at, length, seconds = 6 * minute, 3 * minute, 180
	mail := Storm{
		Method: "GET", At: at, For: length, Shape: Flat, Addresses: 15834, Agents: 3000, Patience: Patience{Mean: 20 * time.Second},
	}
	hits, passed := mail, mail
	hits.Layer, hits.Count = Edge, (423-87)*seconds
	hits.Routes = []Route{{Template: "/events/{id}", Weight: 1, URLs: 40, Service: page, Bytes: 28000}}
	passed.Count = (87 - 4) * seconds
	passed.Routes = []Route{
		{Template: "/checkout/{id}", Weight: 1, URLs: 40, Service: page, Bytes: 18000},
		{Template: "/search?q={name}", Weight: 1, URLs: 300, Service: page, Bytes: 22000},
	}
	site.Storms = []Storm{hits, passed}
	return Scenario{
		Start: day(2026, 7, 9, 9), Duration: 12 * minute, Sites: []Site{site},
		Logs: []Log{{File: "access.log"}, {File: "edge.log", Format: "cloudfront_tsv"}},
	}
}

// retriedSearch is one administrator's page whose query scans a whole table: php-fpm kills it after 20 s, and it is
// asked for again at once.
func retriedSearch() Scenario {
	site := shop()
	site.Pool.Reclaim = 20 * time.Second
	site.Loops = []Loop{{
		Method: "GET", Path: "/admin/search?q=all", Agent: browser, From: "198.18.40.2", At: 10 * minute, For: 5 * minute,
		Service: Service{Mean: 45 * time.Second, Spread: 0.1}, Pause: 40 * time.Millisecond,
	}}
	return Scenario{Start: day(2026, 7, 14, 10), Duration: 22 * minute, Sites: []Site{site}}
}

package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"
)

// picker draws an index by weight.
type picker []float64 // cumulative

func newPicker(n int, weight func(i int) float64) picker {
	p, sum := make(picker, n), 0.0
	for i := range p {
		sum += weight(i)
		p[i] = sum
	}
	return p
}

func (p picker) pick(rng *rand.Rand) int {
	if len(p) == 1 {
		return 0
	}
	return min(sort.SearchFloat64s(p, rng.Float64()*p[len(p)-1]), len(p)-1)
}

// url is one address of a site: the request's path with its query, and the whole for referrers.
type url struct{ path, full string }

// routeRun is a Route with its URLs drawn. Routes with one method and template share their truth.
type routeRun struct {
	Route
	urls  []url
	truth *RouteTruth
	mu    float64 // mean of the logarithm of the service time in ns
}

var words = []string{
	"amber", "atlas", "autumn", "bergen", "bright", "cedar", "city", "coral", "delta", "ember", "festival", "garden",
	"harbour", "island", "jazz", "kiosk", "lantern", "market", "night", "opera", "parade", "quartz", "river", "summer",
	"theatre", "union", "valley", "winter", "yonder", "zenith",
}

// fill draws a URL of a template.
func fill(template string, rng *rand.Rand) string {
	for strings.Contains(template, "{name}") {
		w := words[rng.IntN(len(words))] + "-" + words[rng.IntN(len(words))]
		template = strings.Replace(template, "{name}", w, 1)
	}
	for strings.Contains(template, "{id}") {
		template = strings.Replace(template, "{id}", strconv.Itoa(10000+rng.IntN(89999)), 1)
	}
	return template
}

func newRouteRun(r Route, host string, rng *rand.Rand) *routeRun {
	if r.Method == "" {
		r.Method = "GET"
	}
	if r.Status == 0 {
		r.Status = 200
	}
	run := &routeRun{Route: r, mu: r.Service.mu()}
	for range max(1, r.URLs) {
		path := fill(r.Template, rng)
		run.urls = append(run.urls, url{path: path, full: "https://" + host + path})
	}
	return run
}

// mu is the mean of the logarithm, so that the distribution's mean is Mean.
func (s Service) mu() float64 {
	if s.Mean <= 0 {
		return math.Inf(-1)
	}
	return math.Log(float64(s.Mean)) - s.Spread*s.Spread/2
}

func (r *routeRun) draw(rng *rand.Rand) int64 { return draw(r.mu, r.Service.Spread, rng) }

func draw(mu, spread float64, rng *rand.Rand) int64 {
	if math.IsInf(mu, -1) {
		return 0
	}
	return int64(math.Exp(mu + spread*rng.NormFloat64()))
}

func (p Patience) draw(rng *rand.Rand) int64 {
	if p.Mean <= 0 {
		return math.MaxInt64 / 4 // waits for ever
	}
	return int64(p.Mean) + int64((2*rng.Float64()-1)*float64(p.Spread))
}

func pickRoutes(routes []*routeRun) picker {
	return newPicker(len(routes), func(i int) float64 { return max(routes[i].Weight, 1e-9) })
}

// agents gives n different agents of browsers.
func agents(n int, rng *rand.Rand) []string {
	out := make([]string, 0, n)
	for i := range n {
		version, build, patch := 124+i%16, 6000+i, rng.IntN(200)
		switch i % 5 {
		case 0, 3:
			out = append(out, fmt.Sprintf("Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.%d.%d Safari/537.36", version, build, patch))
		case 1:
			out = append(out, fmt.Sprintf("Mozilla/5.0 (Linux; Android %d; SM-A%d) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.%d.%d Mobile Safari/537.36", 11+i%5, 100+i, version, build, patch))
		case 2:
			out = append(out, fmt.Sprintf("Mozilla/5.0 (iPhone; CPU iPhone OS %d_%d_%d like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/%d.%d Mobile/15E148 Safari/604.1", 16+i%3, i%9, i, 16+i%3, i%9))
		default:
			out = append(out, fmt.Sprintf("Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:%d.0) Gecko/20100101 Firefox/%d.%d", version, version, i))
		}
	}
	return out
}

var bots = []string{
	"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
	"Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
	"Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)",
}

var foreignReferers = []string{"https://www.google.com/", "https://news.example.net/today", "https://mail.example.org/"}

// visitor is one address with its agent.
type visitor struct {
	address, agent string
	bot            bool
}

// visitors draws the people of a site: 198.18.0.0/16 and a sixth of them IPv6 (documentation and benchmark
// ranges, so that no real address is named). Agents are shared unevenly, the first the most.
func visitors(o Organic, rng *rand.Rand) []visitor {
	names := agents(max(1, o.Agents), rng)
	by := newPicker(len(names), func(i int) float64 { return math.Pow(float64(i+1), -0.6) })
	out := make([]visitor, max(1, o.Visitors))
	offset := rng.IntN(1 << 16)
	for i := range out {
		v := visitor{agent: names[by.pick(rng)]}
		if o.EveryAgent && i < len(names) {
			v.agent = names[i]
		}
		if i%6 == 5 {
			v.address = fmt.Sprintf("2001:db8:%x:%x::%x", 1+i>>16, 1+(i*40503+offset)&0xffff, 1+i%7)
		} else {
			v.address = benchmark(18, i*40503+offset)
		}
		if rng.Float64() < o.Bots {
			v.agent, v.bot = bots[i%len(bots)], true
		}
		out[i] = v
	}
	return out
}

// addresses draws n different addresses of 198.19.0.0/16 (65,536 at most).
func addresses(n int, rng *rand.Rand) []string {
	out, offset := make([]string, max(1, n)), rng.IntN(1<<16)
	for i := range out {
		out[i] = benchmark(19, i*40503+offset) // odd, so that all differ
	}
	return out
}

// stations gives n different addresses of monitors (254 at most): of a public service in 192.0.2.0/24, or of the
// network's own balancers and nodes in 10.42.8.0/24.
func stations(n int, internal bool, rng *rand.Rand) []string {
	network := "192.0.2."
	if internal {
		network = "10.42.8."
	}
	out, offset := make([]string, max(1, n)), rng.IntN(254)
	for i := range out {
		out[i] = network + strconv.Itoa(1+(i+offset)%254)
	}
	return out
}

func benchmark(second, n int) string {
	return fmt.Sprintf("198.%d.%d.%d", second, n>>8&0xff, n&0xff)
}

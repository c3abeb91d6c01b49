package simulate

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// A Scenario is everything that happens during one run. All offsets (At) count from Start.
type Scenario struct {
	Name     string
	Start    time.Time
	Duration time.Duration
	Zone     *time.Location // for formats that log local time and for the daily rhythm; nil is UTC
	Sites    []Site
	Cluster  *Cluster // containers with probes; nil: none are told of
	Logs     []Log    // the first is the main one; none: access.log
}

// A Log is one file that a scenario writes.
type Log struct {
	File     string
	Format   string // of Formats() or Reports(); "": the one that the options ask for
	Balancer string // whose requests are in it
	// LostFrom and LostTo, offsets from Start, bound what was rotated away before anybody read it.
	LostFrom, LostTo time.Duration
}

// A Site is one host with its own pool of workers. Sites share what their balancer is and its log, nothing else.
type Site struct {
	Host     string
	Balancer string
	Pool     Pool
	Organic  Organic
	Storms   []Storm
	Monitors []Monitor
	Blips    []Blip
	Slows    []Slow
	Loops    []Loop
	Cache    *Cache // in front of the application; nil: none
	Limit    *Limit // in front of the application; nil: none
	Self     *Self  // what each page fetches from its own site; nil: nothing
}

// A Pool is the workers behind the balancer: first come, first served.
type Pool struct {
	Workers int
	Reclaim time.Duration // what one request may hold a worker for; it is then killed (502). 0: for ever
	Backlog int           // how many may wait; the next is refused (502). 0: unbounded
	// DropAbandoned takes a client that left while it waited out of the queue. nginx with php-fpm does not: the
	// request already lies in the socket's backlog, and a worker runs it for nobody.
	DropAbandoned bool
}

// A Service is a distribution of service times: log-normal, told by its mean, with Spread the standard
// deviation of the logarithm (0: constant).
type Service struct {
	Mean   time.Duration
	Spread float64
}

// A Patience is how long clients wait before they give up: uniform in [Mean-Spread, Mean+Spread].
type Patience struct{ Mean, Spread time.Duration }

// A Layer is where a request is answered.
type Layer string

// The layers. A request answered at the edge by a CDN is not in the balancer's log at all; a balancer that is
// itself the edge (ALB with a firewall) logs it without a target.
const (
	App   Layer = "app"
	Nginx Layer = "nginx"
	Edge  Layer = "edge"
)

// A Route is a family of URLs that cost the same. In Template, {id} becomes a number and {name} a word; the
// rest stands as it is, a query string included.
type Route struct {
	Template string
	Method   string // default GET
	Status   int    // what the application answers; default 200
	Weight   float64
	URLs     int  // how many different ones; default 1
	Shared   bool // the same ones for everybody who asks for this template of the site
	Service  Service
	Bytes    int // mean size of the body
}

// Organic is people (and a few crawlers) at work: a Poisson process of page views.
type Organic struct {
	PerSecond  float64
	Rhythm     float64 // amplitude of the day's rhythm, 0 to 1, highest at 15:00 local time
	Routes     []Route
	Visitors   int  // addresses, each with its agent
	Agents     int  // different agents among them
	EveryAgent bool // each of them belongs to a visitor; else many of the rare ones to none
	Bots       float64
	Patience   Patience
	Assets     float64 // static files that nginx answers, for each page that a person got
	Leave      float64 // share of pages that a person leaves before they are there, without anything being slow
	Surges     []Surge
}

// A Surge multiplies the organic rate for a while.
type Surge struct {
	At, For time.Duration
	Factor  float64
}

// A Storm sends Count requests within For.
type Storm struct {
	Method    string
	Routes    []Route
	At, For   time.Duration
	Count     int
	Shape     Shape
	Addresses int
	From      []string // these addresses instead of drawn ones
	Agents    int      // 1: one agent for all; more: drawn for each request
	Agent     string   // this one instead of drawn ones
	Patience  Patience
	Layer     Layer // where these requests are answered; "" is App
}

// A Shape is how a storm's requests lie within its time.
type Shape string

// The shapes.
const (
	Flat  Shape = "flat"
	Ramp  Shape = "ramp"  // the rate grows from 0
	Blast Shape = "blast" // most at once, then ever fewer: a mail that lands
)

// A Monitor is a machine that asks the same again and again.
type Monitor struct {
	Method, Path, Agent string
	Every               time.Duration
	Addresses           int
	Layer               Layer
	Service             Service       // when Layer is App
	Internal            bool          // a health check of the balancer itself, which a balancer does not log
	Timeout             time.Duration // after which it gives up; default 30 s
}

// A Loop is a client that asks for the same again as soon as it was answered, whatever the answer was.
type Loop struct {
	Method, Path, Agent string
	From                string // its address
	At, For             time.Duration
	Service             Service
	Pause               time.Duration // between an answer and the next request
	Patience            Patience
}

// A Blip is a flock of mobile clients that lose their connection: of Requests, Abandon are given up for
// reasons that have nothing to do with the origin.
type Blip struct {
	At, For           time.Duration
	Requests, Abandon int
}

// A Slow is a time in which pages cost more: a nightly job, a deploy with cold caches. A share Ratio of the
// organic requests costs Factor times as much, plus Add.
type Slow struct {
	At, For time.Duration
	Ratio   float64
	Factor  float64  // 0: as much as ever
	Add     Patience // uniform, like a patience
	Hang    bool     // what begins in it is not done before its end: something that pages wait for hangs
}

// Named gives the scenario of that name.
func Named(name string) (Scenario, error) {
	build, ok := scenarios[name]
	if !ok {
		return Scenario{}, fmt.Errorf("no scenario %q: there are %v", name, Names())
	}
	s := build()
	s.Name = name
	return s, nil
}

// Names lists the scenarios, sorted.
func Names() []string { return slices.Sorted(maps.Keys(scenarios)) }

func (s *Scenario) check() error {
	if s.Duration <= 0 {
		return fmt.Errorf("scenario %q lasts no time", s.Name)
	}
	if len(s.Sites) == 0 && s.Cluster == nil {
		return fmt.Errorf("scenario %q has neither a site nor a cluster", s.Name)
	}
	if s.Cluster != nil {
		if err := s.Cluster.check(); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
	}
	for i := range s.Sites {
		if err := s.Sites[i].check(); err != nil {
			return fmt.Errorf("site %q: %w", s.Sites[i].Host, err)
		}
	}
	return nil
}

func (s *Site) check() error {
	if !printable(s.Host) {
		return fmt.Errorf("a host is printable ASCII without quotes or spaces")
	}
	if s.Pool.Workers <= 0 {
		return fmt.Errorf("a pool of %d workers", s.Pool.Workers)
	}
	if s.Organic.PerSecond > 0 && len(s.Organic.Routes) == 0 {
		return fmt.Errorf("organic traffic without routes")
	}
	if len(s.Blips) > 0 && len(s.Organic.Routes) == 0 {
		return fmt.Errorf("blips ask for the organic routes, and there are none")
	}
	for i, st := range s.Storms {
		if len(st.Routes) == 0 || st.For <= 0 || st.Count < 0 {
			return fmt.Errorf("storm %d needs routes, a duration and a count", i)
		}
		if _, ok := shapes[st.Shape]; !ok {
			return fmt.Errorf("storm %d: no shape %q", i, st.Shape)
		}
		if err := st.Layer.check(); err != nil {
			return fmt.Errorf("storm %d: %w", i, err)
		}
		if err := checkRoutes(st.Routes); err != nil {
			return fmt.Errorf("storm %d: %w", i, err)
		}
	}
	for i, m := range s.Monitors {
		if m.Every <= 0 {
			return fmt.Errorf("monitor %d needs an interval", i)
		}
		if err := m.Layer.check(); err != nil {
			return fmt.Errorf("monitor %d: %w", i, err)
		}
	}
	for i, b := range s.Blips {
		if b.For <= 0 || b.Abandon > b.Requests {
			return fmt.Errorf("blip %d abandons more than it asks, or lasts no time", i)
		}
	}
	if err := s.checkFront(); err != nil {
		return err
	}
	return checkRoutes(s.Organic.Routes)
}

// checkFront checks what stands before the application, and who asks in a loop.
func (s *Site) checkFront() error {
	if s.Cache != nil && (s.Cache.TTL <= 0 || s.Cache.Layer != Nginx && s.Cache.Layer != Edge) {
		return fmt.Errorf("a cache needs a TTL and is at the edge or in nginx")
	}
	if s.Limit != nil && s.Limit.PerMinute <= 0 {
		return fmt.Errorf("a limiter that lets nothing pass")
	}
	if s.Self != nil && (len(s.Self.Addresses) == 0 || checkRoutes(s.Self.Files) != nil) {
		return fmt.Errorf("a site that calls itself needs addresses and files")
	}
	for i, l := range s.Loops {
		if l.For <= 0 || l.Service.Mean <= 0 || !printable(l.Path) || l.Path[0] != '/' {
			return fmt.Errorf("loop %d needs a path, a duration and a service time", i)
		}
	}
	return nil
}

func (l Layer) check() error {
	if l != App && l != Nginx && l != Edge {
		return fmt.Errorf("no layer %q", l)
	}
	return nil
}

func checkRoutes(routes []Route) error {
	for _, r := range routes {
		if !printable(r.Template) || r.Template[0] != '/' {
			return fmt.Errorf("route %q: a template begins with / and is printable ASCII without quotes or spaces", r.Template)
		}
	}
	return nil
}

// printable tells whether s goes into a log line as it is, in every format.
func printable(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return s != ""
}

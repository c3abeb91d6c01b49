package detectors

import (
	"math"
	"slices"
	"time"

	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

// A Baseline is what is usual for one method and route of a site.
type Baseline struct {
	PerMinute float64 // requests a minute
	Seconds   float64 // worker time of one request, in seconds; 0: not known
	Minutes   float64 // how much quiet time of the site it was learned from
}

// Known tells whether anything was learned. A log that begins inside a storm tells nothing of what is usual.
func (b Baseline) Known() bool { return b.Minutes > 0 }

// Ratio tells how many times the usual rate x is: (x+c)/(b+c). c is the smallest rate that could have been
// learned, so that a route never seen before gives a finite and honest factor.
func (b Baseline) Ratio(x float64) float64 {
	c := b.smallest()
	return (x + c) / (b.PerMinute + c)
}

// smallest is the smallest rate that the learned minutes could have shown, at most 1.
func (b Baseline) smallest() float64 { return 1 / max(1, b.Minutes) }

const (
	halfLife    = 30 // minutes of quiet time after which a minute counts half in the moving average
	weeksKept   = 5  // hourly medians kept for each hour of the week
	weeksNeeded = 2  // before the hour of the week is believed over the moving average
	maxSeries   = 1 << 16
	forgotten   = 1e-3 // requests a minute under which a series is dropped at the end of its hour
	// A minute far above what was usual before its hour is learned as growth times that, so that a storm that grows
	// slowly is not taken for what is usual: a rate that grows faster than threefold an hour stays unusual, a slower
	// one is learned. What is usual below once a minute counts as that.
	growth       = 3
	settledAfter = 15 // quiet minutes of the site, before which all is learned as it comes
)

// Baselines learns, for each route of each site, how many requests a minute are usual: the median of the same
// hour of the week once two weeks were seen, before that an exponentially weighted moving average (Roberts
// 1959). Time in which something is wrong with a site is not learned from; a site's clock stands still then.
// All state is exported to gob: it is part of the engine's snapshot.
type Baselines struct {
	Sites map[string]*SiteBaseline
	Count int // series in all sites
}

// SiteBaseline is what is known of one site.
type SiteBaseline struct {
	Minutes int64 // quiet minutes learned from
	Minute  int64 // the minute being added up, minutes since the epoch
	Hour    int64 // hours since the epoch
	InHour  int64 // quiet minutes in this hour
	Series  map[pane.Key]*Series
	Heads   Series // the HEAD requests of all routes together, health checks left out

	Requests    uint64            // in the minute being added up
	Agents      map[string]uint64 // the busiest agents of that minute
	AgentMinute float64           // the most requests that one agent made in a quiet minute; fades
	AgentShare  float64           // the largest share of a minute's requests, 0–1; fades

	counted []*Series // those with requests in the minute being added up, and some without

	MissesNow, ToldNow uint64  // of the cache, in the minute being added up
	Misses, Told       float64 // exponentially weighted sums of minutes
}

// An AgentBaseline is how much of a site's traffic one User-Agent makes when nothing is wrong: browsers of many
// people share an agent, so that the most that people plausibly make is the site's own.
type AgentBaseline struct {
	PerMinute float64 // requests of the busiest agent in its busiest minute
	Share     float64 // its largest share of a minute, 0–1
	Minutes   float64 // how much quiet time it was learned from
}

// A CacheBaseline is what the cache in front of a site tells when nothing is wrong.
type CacheBaseline struct {
	Misses  float64 // a minute: MISS and EXPIRED
	Told    float64 // requests a minute of which the log has the cache's answer, BYPASS left out
	Minutes float64 // how much quiet time it was learned from
}

// Share is the usual share of misses, 0–1.
func (b CacheBaseline) Share() float64 { return b.Misses / max(b.Told, 1e-9) }

// Series is what is known of one route.
type Series struct {
	Now     uint32              // requests in the minute being added up
	Sum     float64             // exponentially weighted, as of Last
	Most    float64             // of a minute that is learned in this hour; 0: anything
	Last    int64               // the site's Minutes when Sum was brought up to date
	Samples []uint32            // the minutes of this hour that had requests
	Hours   map[uint8][]float32 // medians by hour of the week, oldest first
	Seconds float64             // moving average of the worker time of one request
}

func newBaselines() *Baselines { return &Baselines{Sites: map[string]*SiteBaseline{}} }

var decay = math.Exp2(-1.0 / halfLife)

// learn takes one quiet pane of a site. Panes come in order of time.
func (b *Baselines) learn(name string, start int64, s *pane.Site) {
	site := b.Sites[name]
	minute := start / int64(time.Minute)
	if site == nil {
		if s.Len() == 0 {
			return
		}
		site = &SiteBaseline{Minute: minute, Hour: minute / 60, Series: map[pane.Key]*Series{}}
		b.Sites[name] = site
	}
	if minute != site.Minute {
		b.endMinute(site, minute)
	}
	site.learnAgents(s)
	if b.Count+s.Len() > maxSeries { // which routes are learned is a matter of their names, then
		for _, k := range s.Keys() {
			b.learnRoute(site, k, s.Cells()[k])
		}
		return
	}
	for origin := range pipeline.Origins { // of one route in their order, since it shows in the average
		for k, c := range s.All() {
			if k.Origin == origin {
				b.learnRoute(site, k, c)
			}
		}
	}
}

func (b *Baselines) learnRoute(site *SiteBaseline, k pane.Key, c *pane.Cell) {
	if k.Probe {
		return
	}
	misses, told := c.Cached()
	site.MissesNow, site.ToldNow = site.MissesNow+misses, site.ToldNow+told
	if k.Method == "HEAD" {
		site.Heads.count(c.Requests)
	}
	k.Origin = 0
	x := site.Series[k]
	if x == nil {
		if b.Count >= maxSeries {
			return
		}
		x = &Series{Last: site.Minutes}
		x.settle(site.Minutes)
		site.Series[k] = x
		b.Count++
	}
	if x.Now == 0 {
		site.counted = append(site.counted, x)
	}
	x.count(c.Requests)
	if timed := c.Requests - c.Busy.Untimed; timed > 0 && c.Abandoned == 0 {
		each := seconds(c.Busy.Lower) / float64(timed)
		if x.Seconds == 0 {
			x.Seconds = each
		} else {
			x.Seconds += (each - x.Seconds) * 0.05
		}
	}
}

// resume goes on with the minutes that a snapshot was taken in.
func (b *Baselines) resume() {
	for _, site := range b.Sites {
		for _, x := range site.Series {
			if x.Now > 0 {
				site.counted = append(site.counted, x)
			}
		}
	}
}

// endMinute closes the minute that was added up; minutes in between had no quiet pane and are not learned.
func (b *Baselines) endMinute(site *SiteBaseline, next int64) {
	site.Minutes++
	site.InHour++
	site.endAgents()
	site.Misses = site.Misses*decay + float64(site.MissesNow)*(1-decay)
	site.Told = site.Told*decay + float64(site.ToldNow)*(1-decay)
	site.MissesNow, site.ToldNow = 0, 0
	settled := site.Minutes == settledAfter
	for _, x := range site.counted {
		x.endMinute(site.Minutes)
	}
	site.counted = site.counted[:0]
	if settled {
		for _, x := range site.Series {
			x.settle(site.Minutes)
		}
		site.Heads.settle(site.Minutes)
	}
	site.Heads.endMinute(site.Minutes)
	site.Minute = next
	if next/60 != site.Hour {
		b.endHour(site)
		site.Hour, site.InHour = next/60, 0
	}
}

func (b *Baselines) endHour(site *SiteBaseline) {
	for k, x := range site.Series {
		x.endHour(site)
		if len(x.Hours) == 0 && x.at(site.Minutes) < forgotten {
			delete(site.Series, k)
			b.Count--
		}
	}
	site.Heads.endHour(site)
}

// count adds requests to the minute.
func (x *Series) count(n uint64) { x.Now += uint32(min(n, math.MaxUint32/2)) }

// endMinute learns the minute, the site's minutes-th. The median of an hour takes it as it was: two weeks of the same
// are usual, whatever they are.
func (x *Series) endMinute(minutes int64) {
	if x.Now > 0 {
		learned := float64(x.Now)
		if x.Most > 0 {
			learned = min(learned, x.Most)
		}
		x.Samples = append(x.Samples, x.Now)
		x.Sum = x.Sum*math.Pow(decay, float64(minutes-x.Last)) + learned*(1-decay)
		x.Last, x.Now = minutes, 0
	}
}

// settle bounds what is learned of a minute from now on.
func (x *Series) settle(minutes int64) {
	if minutes >= settledAfter {
		x.Most = growth * max(1, x.at(minutes))
	}
}

func (x *Series) endHour(site *SiteBaseline) {
	if site.InHour >= 30 {
		x.keep(hourOfWeek(site.Hour), site.InHour)
	}
	x.Samples = x.Samples[:0]
	x.settle(site.Minutes)
}

// keep stores the median of an hour's minutes, those without requests included.
func (x *Series) keep(hour uint8, minutes int64) {
	zeros := int(minutes) - len(x.Samples)
	median := float32(0)
	if i := int(minutes)/2 - zeros; i >= 0 && i < len(x.Samples) {
		slices.Sort(x.Samples)
		median = float32(x.Samples[i])
	}
	if median == 0 && x.Hours == nil {
		return
	}
	if x.Hours == nil {
		x.Hours = map[uint8][]float32{}
	}
	x.Hours[hour] = append(x.Hours[hour], median)
	x.Hours[hour] = x.Hours[hour][max(0, len(x.Hours[hour])-weeksKept):]
}

// at is the moving average when the site has learned from that many minutes; those since Last had no request.
// Dividing by the weight given so far keeps a young average from lying far under the truth.
func (x *Series) at(minutes int64) float64 {
	if minutes <= 0 {
		return 0
	}
	return x.Sum * math.Pow(decay, float64(minutes-x.Last)) / (1 - math.Pow(decay, float64(minutes)))
}

func hourOfWeek(hour int64) uint8 { return uint8(((hour % 168) + 168) % 168) }

const (
	agentsLearned = 16  // of each pane: the busiest are what the limit is about
	agentFade     = 0.5 // of the maximum that is left after a day of quiet minutes
	agentMinimum  = 60  // requests in a minute under which a share says nothing
)

var agentDecay = math.Pow(agentFade, 1.0/(24*60))

func (site *SiteBaseline) learnAgents(s *pane.Site) {
	if site.Agents == nil {
		site.Agents = map[string]uint64{}
	}
	for _, a := range s.Agents.Heaviest(agentsLearned) {
		site.Agents[a.Key] += a.Count
	}
	site.Requests += s.Agents.Total()
}

func (site *SiteBaseline) endAgents() {
	most := uint64(0)
	for _, n := range site.Agents {
		most = max(most, n)
	}
	site.AgentMinute = max(site.AgentMinute*agentDecay, float64(most))
	site.AgentShare *= agentDecay
	if site.Requests >= agentMinimum {
		site.AgentShare = max(site.AgentShare, float64(most)/float64(site.Requests))
	}
	clear(site.Agents)
	site.Requests = 0
}

func (b *Baselines) agents(name string) AgentBaseline {
	site := b.Sites[name]
	if site == nil {
		return AgentBaseline{}
	}
	return AgentBaseline{PerMinute: site.AgentMinute, Share: site.AgentShare, Minutes: float64(site.Minutes)}
}

func (b *Baselines) cache(name string) CacheBaseline {
	site := b.Sites[name]
	if site == nil || site.Minutes == 0 {
		return CacheBaseline{}
	}
	weight := 1 - math.Pow(decay, float64(site.Minutes)) // of a young average, as for a Series
	return CacheBaseline{Misses: site.Misses / weight, Told: site.Told / weight, Minutes: float64(site.Minutes)}
}

// get tells what is usual for a route at a time.
func (b *Baselines) get(name string, k pane.Key, at int64) Baseline {
	site := b.Sites[name]
	if site == nil {
		return Baseline{}
	}
	k.Origin = 0
	return site.usual(site.Series[k], at)
}

// heads tells how many HEAD requests are usual on all routes of a site together.
func (b *Baselines) heads(name string, at int64) Baseline {
	site := b.Sites[name]
	if site == nil {
		return Baseline{}
	}
	return site.usual(&site.Heads, at)
}

func (site *SiteBaseline) usual(x *Series, at int64) Baseline {
	base := Baseline{Minutes: float64(site.Minutes)}
	if x == nil {
		return base
	}
	base.PerMinute, base.Seconds = x.at(site.Minutes), x.Seconds
	if medians := x.Hours[hourOfWeek(at/int64(time.Hour))]; len(medians) >= weeksNeeded {
		sorted := slices.Sorted(slices.Values(medians))
		base.PerMinute = float64(sorted[len(sorted)/2])
	}
	return base
}

package simulate

import (
	"cmp"
	"slices"
	"time"
)

// PaneSeconds is the width of a pane of the Truth.
const PaneSeconds = 10

const paneNanos = PaneSeconds * int64(time.Second)

// Truth is what really happened, told by the simulator and not by its log.
type Truth struct {
	Scenario  string        `json:"scenario"`
	Format    string        `json:"format"`
	Seed      uint64        `json:"seed"`
	Zone      string        `json:"zone"`
	Start     time.Time     `json:"start"`
	End       time.Time     `json:"end"` // when the log is cut
	Lines     int           `json:"lines"`
	FirstLine time.Time     `json:"first_line"` // the log's own time, not cut to its resolution
	LastLine  time.Time     `json:"last_line"`
	Sites     []SiteTruth   `json:"sites"`
	Logs      []LogTruth    `json:"logs"`
	Cluster   *ClusterTruth `json:"cluster,omitempty"`
}

// LogTruth is what one log holds. Format, Lines and the times of the Truth are those of the first.
type LogTruth struct {
	File   string `json:"file"`
	Format string `json:"format"`
	Lines  int    `json:"lines"`
}

// SiteTruth is the truth about one site. Instants are nil when the thing never happened.
type SiteTruth struct {
	Site        string `json:"site"`
	PoolWorkers int    `json:"pool_workers"`

	Onset     *time.Time `json:"onset"`      // the first storm request arrives
	HeadsEnd  *time.Time `json:"heads_end"`  // whatever its method, the last storm request arrives
	FirstHurt *time.Time `json:"first_hurt"` // the first client gives up because it took too long (or is refused)
	HarmEnd   *time.Time `json:"harm_end"`   // the last one does

	Arrivals  int `json:"arrivals"`
	Completed int `json:"completed"` // answered by any layer, errors included
	Abandoned int `json:"abandoned"`
	InSystem  int `json:"in_system"` // neither answered nor given up at the end: not in the log

	AbandonedPatience int `json:"abandoned_patience"` // because it took too long
	AbandonedOrganic  int `json:"abandoned_organic"`  // of these, people and crawlers of every day
	StormOrganic      int `json:"storm_organic"`      // organic pages that arrived while a storm lasted
	StormOrganicLost  int `json:"storm_organic_lost"` // of these, given up

	Refused   int `json:"refused"`   // 502: the backlog was full
	Reclaimed int `json:"reclaimed"` // 502: killed at the reclaim timeout

	Requests   map[string]map[int]int `json:"requests"`    // method, then status as the log writes it
	AnsweredBy map[Layer]int          `json:"answered_by"` // arrivals by the layer that has to answer them

	P99Seconds   float64       `json:"p99_seconds"` // of all logged requests, as clients saw them, to 1 ms
	Minutes      []MinuteTruth `json:"minutes"`
	BusySystem   []float64     `json:"busy_in_system"`  // by pane: mean number of clients at the application (L)
	BusyService  []float64     `json:"busy_in_service"` // by pane: mean number of workers that hold a request
	PeakSystem   float64       `json:"peak_in_system"`
	ClientSecs   float64       `json:"client_seconds"` // Σ time at the application of all clients within the run
	WorkerSecs   float64       `json:"worker_seconds"`
	WorkerRoutes []*RouteTruth `json:"worker_routes"` // most worker-seconds first
}

// MinuteTruth is one minute of the log, by the time of the lines.
type MinuteTruth struct {
	Start      time.Time `json:"start"`
	Lines      int       `json:"lines"`
	Abandoned  int       `json:"abandoned"`
	P99Seconds float64   `json:"p99_seconds"`
}

// RouteTruth is what one method and route cost: Seconds of workers, also those spent for clients that had left.
type RouteTruth struct {
	Method    string  `json:"method"`
	Route     string  `json:"route"` // the template, without its query
	Arrivals  int     `json:"arrivals"`
	Abandoned int     `json:"abandoned"`
	Seconds   float64 `json:"worker_seconds"`
}

// ledger gathers a SiteTruth while the run goes on.
type ledger struct {
	truth      SiteTruth
	start, cut int64
	storms     []Storm
	system     []int64 // ns by pane
	service    []int64
	millis     []uint32 // histogram of the clients' time in ms; the last holds all that took longer
	minute     int64
	minuteLost int
	durations  []int64
}

const longest = 120_000 // ms, of the histogram

func newLedger(site *Site, start, cut int64) *ledger {
	panes := (cut - start + paneNanos - 1) / paneNanos
	return &ledger{
		truth: SiteTruth{
			Site: site.Host, PoolWorkers: site.Pool.Workers,
			Requests: map[string]map[int]int{}, AnsweredBy: map[Layer]int{},
		},
		start: start, cut: cut, storms: site.Storms, minute: -1,
		system: make([]int64, panes), service: make([]int64, panes), millis: make([]uint32, longest+1),
	}
}

// overlap adds [from, to) to the panes it touches and gives how much of it lies within the run.
func (l *ledger) overlap(panes []int64, from, to int64) int64 {
	from, to = from-l.start, min(to, l.cut)-l.start
	total := max(0, to-from)
	for from < to {
		pane := from / paneNanos
		end := min(to, (pane+1)*paneNanos)
		panes[pane] += end - from
		from = end
	}
	return total
}

func instant(t int64) *time.Time {
	u := time.Unix(0, t).UTC()
	return &u
}

// arrive takes a request whose fate is known.
func (l *ledger) arrive(r *request, f fate) {
	t := &l.truth
	t.Arrivals++
	t.AnsweredBy[r.layer]++
	r.route.truth.Arrivals++
	if r.abandoned {
		r.route.truth.Abandoned++
	}
	switch {
	case r.kind == storm:
		if t.Onset == nil {
			t.Onset = instant(r.arrival)
		}
		t.HeadsEnd = instant(r.arrival)
	case r.kind == organic && l.inStorm(r.arrival):
		t.StormOrganic++
		if r.abandoned {
			t.StormOrganicLost++
		}
	}
	if r.layer != App {
		return
	}
	t.ClientSecs += float64(l.overlap(l.system, r.arrival, r.end)) / 1e9
	seconds := float64(l.overlap(l.service, f.start, f.finish)) / 1e9
	t.WorkerSecs += seconds
	r.route.truth.Seconds += seconds
}

func (l *ledger) inStorm(t int64) bool {
	for _, s := range l.storms {
		if within(t-l.start, s.At, s.For) {
			return true
		}
	}
	return false
}

// leave takes a request that ended within the run, in order of the end. status is what the log says.
func (l *ledger) leave(r *request, status int, logged bool) {
	t := &l.truth
	if r.abandoned {
		t.Abandoned++
	} else {
		t.Completed++
	}
	if r.refused {
		t.Refused++
	}
	if r.reclaimed && !r.abandoned {
		t.Reclaimed++
	}
	if r.patience || r.refused {
		if t.FirstHurt == nil {
			t.FirstHurt = instant(r.end)
		}
		t.HarmEnd = instant(r.end)
	}
	if r.patience {
		t.AbandonedPatience++
		if r.kind == organic {
			t.AbandonedOrganic++
		}
	}
	if logged {
		l.line(r, status)
	}
}

func (l *ledger) line(r *request, status int) {
	byStatus := l.truth.Requests[r.method]
	if byStatus == nil {
		byStatus = map[int]int{}
		l.truth.Requests[r.method] = byStatus
	}
	byStatus[status]++
	took := r.end - r.arrival
	l.millis[min(took/1e6, longest)]++
	if m := r.end / int64(time.Minute); m != l.minute {
		l.closeMinute()
		l.minute = m
	}
	l.durations = append(l.durations, took)
	if r.abandoned {
		l.minuteLost++
	}
}

func (l *ledger) closeMinute() {
	if len(l.durations) == 0 {
		return
	}
	slices.Sort(l.durations)
	at := (len(l.durations)*99+99)/100 - 1
	l.truth.Minutes = append(l.truth.Minutes, MinuteTruth{
		Start: *instant(l.minute * int64(time.Minute)), Lines: len(l.durations), Abandoned: l.minuteLost,
		P99Seconds: float64(l.durations[at]/1e6) / 1e3,
	})
	l.durations, l.minuteLost = l.durations[:0], 0
}

// close finishes the truth. routes are those of the site.
func (l *ledger) close(routes []*RouteTruth) SiteTruth {
	l.closeMinute()
	t := &l.truth
	t.InSystem = t.Arrivals - t.Completed - t.Abandoned
	t.BusySystem, t.BusyService = means(l.system, l.cut-l.start), means(l.service, l.cut-l.start)
	if len(t.BusySystem) > 0 {
		t.PeakSystem = slices.Max(t.BusySystem)
	}
	var total, seen uint64
	for _, n := range l.millis {
		total += uint64(n)
	}
	for ms, n := range l.millis {
		if seen += uint64(n); total > 0 && seen*100 >= total*99 {
			t.P99Seconds = float64(ms) / 1e3
			break
		}
	}
	t.WorkerRoutes = routes
	slices.SortStableFunc(t.WorkerRoutes, func(a, b *RouteTruth) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Method, b.Method), cmp.Compare(a.Route, b.Route))
	})
	return *t
}

// means turns ns by pane into the mean number, to a thousandth; the last pane may be shorter.
func means(panes []int64, length int64) []float64 {
	out := make([]float64, len(panes))
	for i, ns := range panes {
		width := min(paneNanos, length-int64(i)*paneNanos)
		out[i] = float64((ns*1000+width/2)/width) / 1000
	}
	return out
}

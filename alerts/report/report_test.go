package report

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
)

const ten = int64(10 * time.Second)

// closed is a pane of sites with 60 GETs each, at the nth place of a day.
func closed(n int64, sites ...string) *detectors.Result {
	start := 1_780_000_000*int64(time.Second) + n*ten
	p := &pane.Pane{Start: start, End: start + ten, Sites: map[string]*pane.Site{}}
	res := &detectors.Result{At: p.End, Pane: p}
	for _, name := range sites {
		c := &pane.Cell{Requests: 60, Abandoned: 3}
		for range 60 {
			c.Latency.Add(int64(200 * time.Millisecond))
			c.Codes.Add(200)
		}
		p.Site(name).Cells()[pane.Key{Method: "GET", Route: "/"}] = c
		res.Busy = append(res.Busy, detectors.Busy{Site: name, Lower: 1.2, Upper: 3})
	}
	return res
}

func finish(c *Collector) *Report {
	return c.Report(Rest{Pool: func(string) detectors.Pool { return detectors.Pool{Workers: 25} }, Input: Input{Lines: 1, Parsed: 1}})
}

// TestDayStaysSmall: a day of panes is coarsened, loses no request, and its page is small.
func TestDayStaysSmall(t *testing.T) {
	c := New(Config{Pane: 10 * time.Second})
	const panes = 8640
	for n := range int64(panes) {
		c.Observe(closed(n, "a.example", "b.example", "c.example"), nil)
	}
	r := finish(c)
	for i := range r.Sites {
		s := &r.Sites[i]
		var requests, abandoned uint64
		for k := range s.Len() {
			requests, abandoned = requests+s.Requests["GET"][k], abandoned+s.Abandoned[k]
		}
		if s.Len() > seriesPoints || s.Len() < seriesPoints/2 || requests != 60*panes || abandoned != 3*panes || s.Total != requests {
			t.Errorf("%s: %d points, %d requests, %d abandoned, a total of %d", s.Site, s.Len(), requests, abandoned, s.Total)
		}
		if !s.Censored[0] || s.BusyUpper[0].Get() != 3 {
			t.Errorf("%s: censored %t, busy %v", s.Site, s.Censored[0], s.BusyUpper[0])
		}
	}
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil || page.Len() > 3<<20 {
		t.Errorf("the page has %d bytes (%v)", page.Len(), err)
	}
	if n := strings.Count(page.String(), "<svg"); n != 3 {
		t.Errorf("%d charts for three sites", n)
	}
	for _, site := range []string{"a.example", "b.example", "c.example"} {
		if !strings.Contains(page.String(), `<p class="site"><strong>Timeline of `+site) {
			t.Errorf("no chart is headed %s", site)
		}
	}
}

// TestManySites: names by the thousand share one timeline beside those with most requests, and no request is lost.
func TestManySites(t *testing.T) {
	c := New(Config{Pane: 10 * time.Second})
	for n := range int64(300) {
		c.Observe(closed(n, "shop.example", fmt.Sprintf("h%d.example", n)), nil)
	}
	r := finish(c)
	var total uint64
	for i := range r.Sites {
		total += r.Sites[i].Total
	}
	if len(r.Sites) > seriesSites+1 || r.Sites[0].Site != "shop.example" || r.Sites[1].Site != pane.Other || total != 2*60*300 {
		t.Errorf("%d timelines, the first of %s and %s; %d requests", len(r.Sites), r.Sites[0].Site, r.Sites[1].Site, total)
	}
}

func TestHoleInTime(t *testing.T) {
	c := New(Config{Pane: 10 * time.Second, Points: 10})
	for _, n := range []int64{0, 1, 200_000} {
		c.Observe(closed(n, "a.example"), nil)
	}
	r := finish(c)
	if s := &r.Sites[0]; s.Len() > 10 || s.Total != 180 {
		t.Errorf("%d points, %d requests", s.Len(), s.Total)
	}
}

func TestVerdicts(t *testing.T) {
	site := detectors.Labels{{Name: "site", Value: "a.example"}}
	alert := func(s alerts.Severity, v alerts.Verdict) alerts.Alert {
		return alerts.Alert{
			Name: "X", State: alerts.Firing, Severity: s, Labels: site, StartsAt: closed(1).Pane.Start, At: closed(2).At,
			Cause: alerts.Cause{Verdict: v, Text: "it is so; and so", Missing: []string{"a log"}},
		}
	}
	for _, c := range []struct {
		name string
		of   []alerts.Alert
		want Outcome
		says string
	}{
		{"no alert", nil, Calm, "No client is known to be hurt"},
		{"noted", []alerts.Alert{alert(alerts.Info, alerts.Proven)}, Calm, "No client is known to be hurt"},
		{"a warning", []alerts.Alert{alert(alerts.Warning, alerts.Proven)}, Noted, "Nothing paged"},
		{"a page", []alerts.Alert{alert(alerts.Page, alerts.Probable)}, Hurt, "Something hurt a.example on 2026-05-28 from 20:26:50"},
		{"undetermined", []alerts.Alert{alert(alerts.Page, alerts.Undetermined)}, Undetermined, "by what is undetermined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			collector := New(Config{Pane: 10 * time.Second})
			collector.Observe(closed(1, "a.example"), nil)
			collector.Observe(closed(2, "a.example"), c.of)
			r := finish(collector)
			if r.Verdict.Outcome != c.want || !strings.Contains(r.Verdict.Sentence, c.says) {
				t.Errorf("%+v", r.Verdict)
			}
			if len(c.of) > 0 && (!r.Incidents[0].Ongoing || len(r.Missing) == 0) {
				t.Errorf("ongoing %t, missing %q", r.Incidents[0].Ongoing, r.Missing)
			}
		})
	}
}

// TestSentences: each site's own requests are named with it, a share says of what time it is, and of two incidents of one log
// nobody claims that a fix lay between them.
func TestSentences(t *testing.T) {
	class := func(method, route string, share float64) Class {
		return Class{Method: method, Route: route, Origin: "external", Evidence: detectors.Evidence{WorkerSecondsShare: detectors.N(share), Limited: detectors.N(0)}}
	}
	window := func(site string, c ...Class) Window {
		total := detectors.Evidence{BusyWorkersUpper: detectors.N(90), PoolWorkers: detectors.N(25), Requests: detectors.N(1000), Errors5xx: detectors.N(0)}
		return Window{Site: site, Total: total, Classes: c}
	}
	storm := Alert{Name: "StormHurting", Severity: alerts.Page, Cause: alerts.Cause{Verdict: alerts.Proven}, Evidence: detectors.Evidence{Method: "HEAD", Route: "/pay", WorkerSecondsShare: detectors.N(0.88)}}
	two := Incident{
		ID: "2", Severity: alerts.Page, Sites: []string{"a.example", "b.example"}, Alerts: []Alert{storm},
		Windows: []Window{window("a.example", class("HEAD", "/pay", 0.84)), window("b.example", class("HEAD", "/checkout", 0.9)), window("c.example", class("GET", "/", 0.2))},
	}
	files := class("GET", "/app.css", 0)
	files.Rule, files.Advice = alerts.RuleStaticLimit, []alerts.Advice{{Layer: "nginx", Text: "by $uri", Snippet: "map"}}
	files.Evidence.Limited, files.Evidence.DistinctClients = detectors.N(400), detectors.N(1)
	crawl := Alert{Name: "AgentFlood", Severity: alerts.Warning, Cause: alerts.Cause{Verdict: alerts.Proven, Text: "a flood"}, Advice: []alerts.Advice{{Layer: "nginx", Text: "throttle"}}}
	warned := Incident{ID: "3", Severity: alerts.Warning, Sites: []string{"a.example"}, Alerts: []Alert{crawl}, Windows: []Window{window("a.example", files)}}
	again := two
	again.Compared = &alerts.Comparison{Earlier: "1", Verdict: alerts.DidNotHold, Why: "the same again"}
	for _, c := range []struct {
		name        string
		in          Incident
		own         string // an incident of the same log
		says, never string
	}{
		{"two sites", two, "", "HEAD /pay pinned the origin of a.example", "a.example, b.example"},
		{"the other site", two, "", "; HEAD /checkout that of b.example", "c.example"},
		{"a share of another time", two, "", "88 % of the worker-seconds while they came", "84 %"},
		{"files that a limiter refuses", warned, "", "a limiter refused 400 requests for GET /app.css, from 1 address: if these are your own hosts", ""},
		{"an earlier report", again, "", "The last fix did not hold: the same again", ""},
		{"the same log", again, "1", "pinned", "The last fix"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Report{Incidents: []Incident{c.in}, Ledger: []alerts.Entry{{ID: c.own}}}
			r.verdict()
			if s := r.Verdict.Sentence; !strings.Contains(s, c.says) || c.never != "" && strings.Contains(s, c.never) {
				t.Error(s)
			}
		})
	}
	both, told := two, storm
	told.Advice = []alerts.Advice{{Layer: "waf", Text: "answer HEAD /pay"}}
	both.Alerts = []Alert{told}
	both.Windows[1].Classes[0].Advice = []alerts.Advice{{Layer: "waf", Text: "answer HEAD /checkout", Snippet: "{}"}}
	r := Report{Incidents: []Incident{both}}
	r.verdict()
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil || !strings.Contains(page.String(), "0 of 3,000") || !strings.Contains(page.String(), "at 25 workers of a.example, on the mean") ||
		!strings.Contains(page.String(), "Also, in the WAF: answer HEAD /checkout") {
		t.Errorf("the numbers and advice of several sites (%v): %+v", err, r.facts())
	}
	r = Report{Incidents: []Incident{warned}}
	r.verdict()
	if len(r.Verdict.Others) != 1 || r.Verdict.Others[0].Snippet != "map" {
		t.Errorf("what to do of the files: %+v", r.Verdict)
	}
}

// TestIncidentsAreJoined: an incident that was merged with another under another ID is one.
func TestIncidentsAreJoined(t *testing.T) {
	site := detectors.Labels{{Name: "site", Value: "a.example"}}
	member := func(name string) alerts.Member { return alerts.Member{Detector: name, Labels: site, Onset: 5} }
	c := New(Config{Pane: 10 * time.Second})
	c.Observe(closed(1, "a.example"), []alerts.Alert{
		{Name: "A", Severity: alerts.Page, Labels: site, At: 1, Incident: &alerts.Incident{ID: "1", Members: []alerts.Member{member("latency")}}},
		{Name: "B", Severity: alerts.Page, Labels: site, At: 2, Incident: &alerts.Incident{ID: "2", Members: []alerts.Member{member("saturation"), member("latency")}}},
		{Name: "C", Severity: alerts.Page, Labels: site, At: 3, Incident: &alerts.Incident{ID: "3", Members: []alerts.Member{member("head_storm")}}},
	})
	later := alerts.Incident{ID: "2", Members: []alerts.Member{member("saturation"), member("latency")}, Merged: []alerts.Merged{{ID: "1", At: 7e9, Because: "addresses of <both>"}}}
	c.Observe(closed(2, "a.example"), []alerts.Alert{{Name: "B", Severity: alerts.Page, Labels: site, At: 5, Incident: &later}})
	r := finish(c)
	for form, write := range map[string]func(io.Writer) error{"html": r.WriteHTML, "markdown": r.WriteMarkdown, "json": r.WriteJSON} {
		var out bytes.Buffer
		if err := write(&out); err != nil || !strings.Contains(strings.ToLower(out.String()), "merged") || strings.Contains(out.String(), "<both>") != (form == "json") {
			t.Errorf("%s does not tell what was merged (%v)", form, err)
		}
	}
	if len(r.Incidents) != 2 || len(r.Incidents[0].Alerts)+len(r.Incidents[1].Alerts) != 3 {
		t.Errorf("%d incidents", len(r.Incidents))
	}
}

func TestTimeouts(t *testing.T) {
	total := func(abandoned, gateway int) detectors.Evidence {
		return detectors.Evidence{Abandoned: detectors.N(float64(abandoned)), Status: map[string]int{"504": gateway}}
	}
	killed := []Alert{{Evidence: detectors.Evidence{PHPTimeouts: detectors.N(4), StallSeconds: detectors.N(20)}}}
	for _, c := range []struct {
		name    string
		span    detectors.Span
		of      []Alert
		layers  string
		verdict string
	}{
		{"php 20, proxy 25, client 30", detectors.Span{Total: total(500, 90), Pileups: []detectors.Pileup{{Seconds: 25.1, Count: 85}, {Seconds: 29.8, Count: 480}}}, killed,
			"worker 20, proxy 25, client 30", inOrder},
		{"proxy and client", detectors.Span{Total: total(40, 900), Pileups: []detectors.Pileup{{Seconds: 25.1, Count: 850}}}, killed, "worker 20, proxy 25", inOrder},
		{"client before the worker", detectors.Span{Total: total(500, 0), Pileups: []detectors.Pileup{{Seconds: 10.04, Count: 480}}}, killed, "client 10, worker 20", outOfOrder},
		{"nobody's", detectors.Span{Total: total(0, 0), Pileups: []detectors.Pileup{{Seconds: 10.04, Count: 480}}}, nil, "undetermined 10", layerUnknown},
		{"only assumed", detectors.Span{Total: total(500, 0), Pool: detectors.Pool{Reclaim: time.Minute}, Pileups: []detectors.Pileup{{Seconds: 10.04, Count: 480}}}, nil,
			"client 10, worker 60", layerUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := timeouts(&c.span, c.of)
			var layers []string
			for _, f := range got.Found {
				layers = append(layers, f.Layer+" "+f.Seconds.String())
			}
			if s := strings.Join(layers, ", "); s != c.layers || got.Verdict != c.verdict {
				t.Errorf("%s: %s; %q %q", s, got.Verdict, got.Faults, got.Suspected)
			}
		})
	}
}

func TestMarkdownIsText(t *testing.T) {
	for in, want := range map[string]string{
		"a|b": `a\|b`, "<script>": `\<script\>`, "`x`": "\\`x\\`", "\u202e": `\\u{202e}`, "\n# h": `\\n\# h`, "GET /a_b": `GET /a\_b`,
	} {
		if got := plain(in); got != want {
			t.Errorf("%q is written as %q, not as %q", in, got, want)
		}
	}
}

// TestChartsShowWhatIsBesideRequests: annotations, lost lines and restarts stand on the timeline, escaped, and a window of a
// day is drawn pane by pane.
func TestChartsShowWhatIsBesideRequests(t *testing.T) {
	site := detectors.Labels{{Name: "site", Value: "a.example"}}
	c := New(Config{Pane: 10 * time.Second, Points: 100})
	const last = 3000
	for n := range int64(last) {
		res := closed(n, "a.example")
		var told []alerts.Alert
		if n == 2500 {
			told = []alerts.Alert{{Name: "X", State: alerts.Firing, Severity: alerts.Page, Labels: site, StartsAt: res.Pane.Start, At: res.At}}
		}
		if n == 2510 {
			ended := told
			ended = append(ended, alerts.Alert{Name: "X", State: alerts.Resolved, Severity: alerts.Page, Labels: site, StartsAt: closed(2500).Pane.Start, EndsAt: res.At, At: res.At})
			told = ended
			res.Spans = []detectors.Span{{Site: "a.example", From: closed(2500).Pane.Start, To: res.At}}
			for i := range 3 {
				e := pipeline.Event{Kind: pipeline.ContainerRestart, Time: res.Pane.Start, Namespace: "x", Pod: fmt.Sprintf("p%d", i), FinishedAt: res.Pane.Start}
				res.Pane.Events = append(res.Pane.Events, e, e)
			}
		}
		c.Observe(res, told)
	}
	at := closed(2505).Pane.Start
	mark := alerts.Mark{At: alerts.Instant(at), Text: "rule <b>live</b>\u202e"}
	r := c.Report(Rest{
		Pool:  func(string) detectors.Pool { return detectors.Pool{Workers: 25} },
		Input: Input{Parsed: 1, Gaps: []Gap{{Source: "access.log", At: alerts.Stamp(at), Reason: "rotated"}}}, Marks: []alerts.Mark{mark},
	})
	if r.Restarts == nil || len(r.Restarts.Counts) != 1 || r.Restarts.Counts[0] != 3 {
		t.Errorf("restarts: %+v", r.Restarts)
	}
	w := r.Incidents[0].Windows[0]
	if w.Series == nil || w.Series.Step != 10 || r.Sites[0].Step <= 10 || w.Series.Len() < 40 || w.Series.Requests["GET"][5] != 60 {
		t.Errorf("the window's timeline: %+v", w.Series)
	}
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`class="mark"`, `class="lost"`, "Containers restarted", `class="bar"`, "rule &lt;b&gt;live&lt;/b&gt;"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page does not hold %s", want)
		}
	}
	if strings.ContainsAny(page.String(), "\u202e") || strings.Contains(page.String(), "<b>live") {
		t.Error("an annotation is more than text")
	}
}

// TestClocksDoNotHangOnOrder: the same requests in another order give the same offset.
func TestClocksDoNotHangOnOrder(t *testing.T) {
	var records []pipeline.Record
	for i := range 5000 {
		at := int64(i) * int64(time.Second)
		records = append(records, pipeline.Record{Method: []byte("GET"), Path: fmt.Appendf(nil, "/p/%d", i%4000), Route: "/p/{int}", Site: "a.example", Start: at, End: at + 1, Reached: pipeline.Yes})
	}
	var got [2][]Layers
	for n := range got {
		c := New(Config{Pane: 10 * time.Second})
		for i := range records {
			r := records[i]
			if n == 1 {
				r = records[len(records)-1-i]
			}
			c.Record(&r)
			r.Edge, r.Start, r.End = true, r.Start+3*int64(time.Second), r.End+3*int64(time.Second)
			c.Record(&r)
		}
		got[n] = finish(c).Layers
	}
	if x := got[0]; len(x) != 1 || x[0].Clock.Offset.Get() != 3 || x[0].Clock.Pairs < 500 || !strings.Contains(strings.Join(x[0].Says, " "), "3 s ahead") {
		t.Errorf("%+v", x)
	}
	if !reflect.DeepEqual(got[0], got[1]) {
		t.Errorf("in another order: %+v", got[1])
	}
}

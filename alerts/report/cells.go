package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// classColumns are the columns of the table of requests.
var classColumns = []string{
	"Requests", "Answer at", "Count", "Worker-seconds", "Share", "Clients", "Per client and minute", "Repeat factor", "Reached upstream", "Cache",
}

// cells are the texts of a row, by classColumns. What is not known is a dash.
func (c *Class) cells() []string {
	e := &c.Evidence
	name := c.Name()
	if c.Origin != "external" {
		name += " (" + c.Origin + " clients)"
	}
	return []string{
		name, c.answer(), number(e.Requests), seconds(e.WorkerSecondsLower, e.WorkerSecondsUpper), share(e.WorkerSecondsShare), approx(e.DistinctClients),
		number(e.RequestsPerClientPerMinute), number(e.RepeatFactor), share(e.ReachedUpstreamRatio), c.cache(),
	}
}

const unknown = "–"

func number(n detectors.Num) string {
	if !n.Known() {
		return unknown
	}
	return alerts.Number(n.Get())
}

func share(n detectors.Num) string {
	if !n.Known() {
		return unknown
	}
	return alerts.Percent(n.Get())
}

// exact is up to how many clients panes count one by one.
const exact = 128

func approx(n detectors.Num) string {
	if n.Get() > exact {
		return "≈ " + alerts.Number(math.Round(n.Get()))
	}
	return number(n)
}

func seconds(lower, upper detectors.Num) string {
	low, high := number(lower), number(upper)
	if low == high {
		return low
	}
	return low + " to " + high
}

// cache are the shares of the cache's answers.
func (c *Class) cache() string {
	var all float64
	for _, s := range c.Cache {
		all += s.Count
	}
	if all == 0 {
		return unknown
	}
	var parts []string
	for _, s := range c.Cache[:min(len(c.Cache), 3)] {
		parts = append(parts, fmt.Sprintf("%s %s", s.Key, alerts.Percent(s.Count/all)))
	}
	return strings.Join(parts, ", ")
}

func (c *Class) answer() string {
	if c.Answer == "" {
		if c.Rule == "" {
			return "undetermined"
		}
		return c.Rule
	}
	if alerts.NothingToDo(&c.Advice[0]) {
		return "answered already"
	}
	return layerText(c.Answer)
}

// left tells how many classes a table does not list.
func left(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "One more class, a small one."
	}
	return fmt.Sprintf("%d more classes, each small.", n)
}

// gist is what an advice begins with: enough to tell it from the others of its layer.
func gist(advice string) string {
	const most = 72
	for _, end := range []string{"; ", ": ", ". "} {
		advice, _, _ = strings.Cut(advice, end)
	}
	return cutAt(advice, most)
}

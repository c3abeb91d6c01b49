package alerts

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Campaign is an entry of the calendar: mail that was sent, whose links scanners fetch before people do. It holds no
// alert back: for a while it makes an info of the warning of a storm, as long as nobody is hurt, and tells causes of the
// send.
type Campaign struct {
	Name  string        `yaml:"name"`
	At    time.Time     `yaml:"at"`
	For   time.Duration `yaml:"for"`   // how long storms are expected
	Sites []string      `yaml:"sites"` // empty: all
}

// CheckCampaigns reports the first fault, naming the campaign.
func CheckCampaigns(list []Campaign) error {
	for _, c := range list {
		switch {
		case c.Name == "":
			return fmt.Errorf("campaign %q: name: is missing", c.Name)
		case c.At.IsZero():
			return fmt.Errorf("campaign %q: at: is missing: write when it is sent, as in 2026-07-01T10:00:00+02:00", c.Name)
		case c.For <= 0:
			return fmt.Errorf("campaign %q: for: must be above 0", c.Name)
		}
	}
	return nil
}

// prefetch are the detectors of what scanners do to a mail's links.
var prefetch = []string{"head_storm", "agent_flood"}

// clockSkew is how long before its send a campaign's storm may begin, by two clocks and a pane.
const clockSkew = int64(time.Minute)

// expected tells whether an event time (ns) is within a campaign to a site.
func (c *Campaign) expected(site string, at int64, early int64) bool {
	sent := c.At.UnixNano()
	return at >= sent-early && at < sent+int64(c.For) && (len(c.Sites) == 0 || slices.Contains(c.Sites, site))
}

// foretold lowers the warning of an expected storm: of a rule that reads nothing but what scanners do, and only while
// neither clients nor workers suffer.
func (m *Manager) foretold(t *tracked, g *group, s Severity) Severity {
	for _, name := range hurts {
		if d := g.found[name]; d != nil && d.Active {
			return s
		}
	}
	if s != Warning || slices.ContainsFunc(t.rule.reads, func(name string) bool { return !slices.Contains(prefetch, name) }) {
		return s
	}
	for i := range m.campaigns {
		if m.campaigns[i].expected(t.labels.Get("site"), m.at-1, 0) {
			return Info
		}
	}
	return s
}

// sent adds to a cause that a campaign was sent, or that of those in the calendar none was. Of a storm only: what else
// is slow has nothing to do with links. Without a calendar nobody knows, which is said of what looks like scanners.
func (m *Manager) sent(t *tracked, f *facts, c Cause) Cause {
	onset := int64(0)
	for _, name := range prefetch {
		if d := t.history.Seen[name]; d != nil && d.Onset > 0 && (onset == 0 || d.Onset < onset) {
			onset = d.Onset
		}
	}
	switch {
	case onset == 0:
		return c
	case len(m.campaigns) == 0:
		if f.head != nil && scanners(f) != "" && strings.Contains(c.Text, scanners(f)) {
			c.Text += "; no send time is known: there is no calendar of mail (campaigns)"
		}
		return c
	}
	var last *Campaign
	for i := range m.campaigns {
		x := &m.campaigns[i]
		if x.expected(t.labels.Get("site"), onset, clockSkew) && (last == nil || x.At.After(last.At)) {
			last = x
		}
	}
	if last == nil {
		c.Text += "; no campaign of the calendar was sent when the storm began"
		return c
	}
	at := last.At.UnixNano()
	c.Text += fmt.Sprintf("; a campaign was sent at %s (%s), %s", stamp(at), last.Name, distance(time.Duration(onset-at)))
	return c
}

func distance(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d.Abs() <= 10*time.Second:
		return "as the storm began"
	case d < 0:
		return (-d).String() + " after the storm began"
	}
	return d.String() + " before the storm began"
}

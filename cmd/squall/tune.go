package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// tuneOptions are the flags of `squall tune`.
type tuneOptions struct {
	replayOptions

	json, yaml bool
}

// newTuneCommand makes `squall tune`: thresholds from history.
func newTuneCommand() *cobra.Command {
	var o tuneOptions
	cmd := &cobra.Command{
		Use:   "tune [flags] PATH...",
		Short: "propose thresholds and a throttle from past logs, and show what they would have paged",
		Long: "tune reads past logs, a month of them if there is one, and tells of each site how many agents it has, how\n" +
			"many requests the busiest that people use made in its busiest minute, which limit for each agent lies\n" +
			"between people and scanners, what is usual of its routes, and which thresholds are too near to that. Then\n" +
			"it replays the same logs with what it proposes. The last part is YAML for the configuration.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(errors.New("tune needs at least one PATH: a file, a glob or a directory"))
			}
			if slices.Contains(args, "-") {
				return usageError(errors.New("tune reads its logs twice: write standard input into a file first"))
			}
			if o.json && o.yaml {
				return usageError(errors.New("standard output can take one of --json and --yaml"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return tune(cmd.Context(), o, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "configuration `FILE`; without one the defaults")
	o.add(f)
	f.StringVar(&o.since, "since", "", "learn from what was logged at this `TIME` or later: RFC 3339, or how long before now")
	f.StringVar(&o.until, "until", "", "learn from what was logged before this `TIME`")
	f.IntVar(&o.workers, "workers", 0, "workers of the origin's `POOL`, for sites that the configuration does not list")
	f.StringVar(&o.progress, "progress", progressAuto, "show on standard error how far it is: auto, always or never")
	f.BoolVar(&o.json, "json", false, "write one JSON object to standard output")
	f.BoolVar(&o.yaml, "yaml", false, "write the YAML alone to standard output")
	return cmd
}

// tuned is all that `squall tune` tells.
type tuned struct {
	First   *string     `json:"first"`
	Last    *string     `json:"last"`
	Lines   uint64      `json:"lines"`
	Parsed  uint64      `json:"parsed"`
	Sites   []tunedSite `json:"sites"`
	Left    bool        `json:"sites_not_listed,omitempty"` // there are more
	Config  string      `json:"config"`                     // YAML
	Now     firedAlerts `json:"alerts_now"`
	Then    firedAlerts `json:"alerts_proposed"`
	Changed bool        `json:"changed"` // the proposal is not what is in effect
}

// firedAlerts are the alerts of one replay.
type firedAlerts struct {
	Page    int          `json:"page"`
	Warning int          `json:"warning"`
	Info    int          `json:"info"`
	List    []firedAlert `json:"list"` // pages first, then by time
	Left    int          `json:"not_listed,omitempty"`
}

type firedAlert struct {
	At       string          `json:"at"`
	Alert    string          `json:"alert"`
	Severity alerts.Severity `json:"severity"`
	Labels   string          `json:"labels"`
	Summary  string          `json:"summary"`
}

// listedAlerts is how many alerts are listed of a replay.
const listedAlerts = 50

func tune(ctx context.Context, o tuneOptions, paths []string, stdout, stderr io.Writer) error {
	var a advance
	p := newProgress(o.progress, stderr, &a)
	stdout, stderr = p.Writer(stdout), p.Writer(stderr)
	return p.during(ctx, func(ctx context.Context) error {
		c, rep, err := o.prepare(stderr)
		if err != nil {
			return err
		}
		h := newHistory(rep.judge)
		now, err := tunePass(ctx, rep, &a, paths, h.observe)
		if err != nil {
			return err
		}
		if err := rep.blind(); err != nil {
			return err
		}
		out, err := proposed(c, h, rep)
		if err != nil {
			return err
		}
		out.Now, out.Then = now, now
		if out.Changed {
			again, err := o.with(c, out.Config, io.Discard) // what is damaged was told
			if err != nil {
				return err
			}
			if out.Then, err = tunePass(ctx, again, &a, paths, nil); err != nil {
				return err
			}
		}
		return errors.Join(rep.whole(), out.write(o, stdout))
	})
}

// with makes what replays with a proposal laid over the configuration.
func (o *tuneOptions) with(c *Config, proposal string, stderr io.Writer) (*replayer, error) {
	over, faults, err := parseConfig("proposal", []byte(proposal), os.LookupEnv)
	if err = errors.Join(err, faults.sorted()); err != nil {
		return nil, err
	}
	for i := range over.Sites {
		s := &over.Sites[i]
		k := slices.IndexFunc(c.Sites, func(x SiteConfig) bool { return x.Name == s.Name })
		if k < 0 {
			s.Pool = c.SiteDefaults.Pool
			c.Sites = append(c.Sites, *s)
			continue
		}
		for _, d := range s.Detectors {
			if j := slices.IndexFunc(c.Sites[k].Detectors, func(x Kind) bool { return x.Type == d.Type }); j >= 0 {
				c.Sites[k].Detectors[j] = c.Sites[k].Detectors[j].over(d)
			} else {
				c.Sites[k].Detectors = append(c.Sites[k].Detectors, d)
			}
		}
	}
	choice, err := o.choose()
	if err != nil {
		return nil, err
	}
	rep, err := newReplayer(c, choice, o.site, stderr)
	if err != nil {
		return nil, err
	}
	rep.within, err = parseRange(o.since, o.until, time.Now())
	return rep, err
}

// tunePass replays the logs and gives the alerts that began.
func tunePass(ctx context.Context, rep *replayer, a *advance, paths []string, observe func(*detectors.Result, []alerts.Alert)) (firedAlerts, error) {
	fired := firedAlerts{List: []firedAlert{}}
	rep.advance = a
	a.total.Store(0)
	a.read.Store(0)
	rep.judge.settled = rep.within.within(rep.judge, func(res *detectors.Result, transitions []alerts.Alert) {
		if observe != nil {
			observe(res, transitions)
		}
		for i := range transitions {
			if transitions[i].State == alerts.Firing {
				fired.add(&transitions[i])
			}
		}
	})
	if err := rep.run(ctx, paths, strings.NewReader("")); err != nil {
		return fired, err
	}
	slices.SortStableFunc(fired.List, func(a, b firedAlert) int {
		return slices.Index(severities, b.Severity) - slices.Index(severities, a.Severity)
	})
	return fired, nil
}

func (f *firedAlerts) add(a *alerts.Alert) {
	switch a.Severity {
	case alerts.Page:
		f.Page++
	case alerts.Warning:
		f.Warning++
	default:
		f.Info++
	}
	if len(f.List) >= listedAlerts {
		f.Left++
		return
	}
	f.List = append(f.List, firedAlert{
		formatTime(a.At), a.Name, a.Severity, alerts.Escape(a.Labels.String()), alerts.Escape(a.Annotations["summary"]),
	})
}

// proposed makes what is told of a history.
func proposed(c *Config, h *history, rep *replayer) (*tuned, error) {
	t := &rep.judge.total
	out := &tuned{Lines: t.lines, Parsed: t.parsed, Sites: []tunedSite{}, Left: h.left > 0}
	if t.first != 0 {
		first, last := formatTime(t.first), formatTime(t.last)
		out.First, out.Last = &first, &last
	}
	usual := rep.judge.engine.Usual(toldRoutes)
	for _, s := range h.end() {
		if s.minutes == 0 {
			continue
		}
		i := slices.IndexFunc(usual, func(u detectors.Usual) bool { return u.Site == s.name })
		var of detectors.Usual
		if i >= 0 {
			of = usual[i]
		}
		site, err := propose(c, s, of)
		if err != nil {
			return nil, err
		}
		out.Sites = append(out.Sites, site)
		for _, l := range site.Limits {
			out.Changed = out.Changed || l.Proposed != l.Now
		}
	}
	out.Config = out.yaml()
	return out, nil
}

// yaml writes the proposal as a part of a configuration.
func (t *tuned) yaml() string {
	var b strings.Builder
	b.WriteString("sites:\n")
	sites := 0
	for i := range t.Sites {
		s := &t.Sites[i]
		if !slices.ContainsFunc(s.Limits, tunedLimit.worthWriting) {
			continue
		}
		sites++
		fmt.Fprintf(&b, "  - name: %s\n    detectors:\n", yamlText(s.Site))
		for _, l := range s.Limits {
			if l.worthWriting() {
				value := strconv.FormatFloat(l.Proposed, 'f', -1, 64)
				if l.Detector == "latency" {
					value += "s"
				}
				fmt.Fprintf(&b, "      %s: {%s: %s} # %s\n", l.Detector, l.Setting, value, l.Why)
			}
		}
	}
	if sites == 0 {
		return "sites: [] # the thresholds in effect fit this history\n"
	}
	return b.String()
}

// yamlText writes a site's name, which a client may have chosen. What JSON quotes YAML reads.
func yamlText(s string) string {
	quoted, err := json.Marshal(s)
	if err != nil {
		return `""`
	}
	return string(quoted)
}

// write writes it in the form that was asked for.
func (t *tuned) write(o tuneOptions, stdout io.Writer) error {
	var b bytes.Buffer
	switch {
	case o.yaml:
		b.WriteString(t.Config)
	case o.json:
		text, err := alerts.AppendJSONDocument(nil, t)
		if err != nil {
			return err
		}
		b.Write(text)
	default:
		t.text(&b)
	}
	_, err := stdout.Write(b.Bytes())
	return err
}

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/enrich"
	"github.com/squall-sre/squall/pipeline/format"
	"github.com/squall-sre/squall/pipeline/source"
)

// families are the tables that a configuration refers to, for checking it without starting anything.
func families() Families {
	return Families{
		Sources: source.Kinds(), Formats: format.Names(), Notifiers: notify.Kinds(), Detectors: detectors.Names(),
		Source: func(_ string, decode func(any) error) error {
			_, err := source.New(decode, source.Runtime{
				Name: "check", Logger: zap.NewNop(), Metrics: source.NewMetrics(prometheus.NewRegistry()), Now: time.Now,
				Stdin: strings.NewReader(""),
			})
			return err
		},
		Format: func(name string, decode func(any) error) error {
			_, err := chooseFormat(name, decode)
			return err
		},
		Notifier: func(_ string, decode func(any) error) error {
			_, err := notify.New(decode, notify.Runtime{Name: "check", Stdout: io.Discard, Now: time.Now})
			return err
		},
		Detector: func(name string, decode func(any) error) error {
			_, err := detectors.New(name, decode)
			return err
		},
	}
}

// A formatChoice is a format as configured: its name, perhaps with a framing in front, and its settings.
type formatChoice struct {
	name     string
	settings formatSettings
}

// formatSettings is what a format's mapping may hold beside its type.
type formatSettings struct {
	LogFormat    string            `yaml:"log_format"`    // for nginx, apache and php_fpm_access: the string of their configuration
	Fields       map[string]string `yaml:"fields"`        // for json: where the values stand
	DurationUnit string            `yaml:"duration_unit"` // s, ms, us or ns, of durations that do not tell
}

func chooseFormat(name string, decode func(any) error) (formatChoice, error) {
	c := formatChoice{name: name}
	if framing, ok := strings.CutSuffix(name, "+"); ok {
		return c, fmt.Errorf("format %q: no format stands behind the framing; write %s+auto, or %s+nginx and the like", name, framing, framing)
	}
	if err := decode(&c.settings); err != nil {
		return c, err
	}
	_, err := c.open(time.UTC)
	return c, err
}

func (c formatChoice) open(zone *time.Location) (pipeline.Format, error) { return c.openNear(zone, 0) }

// lacks tells what records will lack for the choice's log_format.
func (c formatChoice) lacks() []string {
	f, err := c.open(time.UTC)
	if err != nil {
		return nil
	}
	_, name := format.SplitFraming(c.name)
	return format.Lacks(format.Config{Name: name, LogFormat: c.settings.LogFormat}, f)
}

// openNear is open for lines that were written at about near, in ns, whose times may carry no year.
func (c formatChoice) openNear(zone *time.Location, near int64) (pipeline.Format, error) {
	_, name := format.SplitFraming(c.name)
	return format.New(format.Config{
		Name: name, LogFormat: c.settings.LogFormat, Fields: c.settings.Fields, DurationUnit: c.settings.DurationUnit, Zone: zone, Near: near,
	})
}

// newChain builds the enrichers.
func newChain(c *Config, reg prometheus.Registerer) (*enrich.Chain, error) {
	cfg := enrich.Config{Own: enrich.Own{Interfaces: c.Own.Interfaces}, Registerer: reg}
	if c.Own.Interfaces {
		prefixes, err := enrich.InterfacePrefixes()
		if err != nil {
			return nil, err
		}
		cfg.Interfaces = prefixes
	}
	cfg.Own.Addresses = prefixTexts(c.Own.Addresses)
	cfg.TrustedProxies = prefixTexts(c.TrustedProxies)
	for _, a := range c.Allowed {
		cfg.Allowed = append(cfg.Allowed, enrich.Allowed{Name: a.Name, Addresses: prefixTexts(a.Addresses)})
	}
	for _, s := range c.Sites {
		cfg.Sites = append(cfg.Sites, enrich.Site{Name: s.Name, Hosts: s.Hosts, Routes: s.Routes})
	}
	return enrich.New(cfg)
}

func prefixTexts(prefixes []Prefix) []string {
	var out []string
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

// newJudge builds what run and replay share. reg may be nil. What it counts is exported by who gives it other metrics.
func newJudge(c *Config, reg prometheus.Registerer, maxOpen int) (*judge, error) {
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	pools := map[string]detectors.Pool{}
	for _, s := range c.Sites {
		pools[s.Name] = detectors.Pool{Workers: s.Pool.Workers, Reclaim: s.Pool.ReclaimTimeout}
	}
	other := detectors.Pool{Workers: c.SiteDefaults.Pool.Workers, Reclaim: c.SiteDefaults.Pool.ReclaimTimeout}
	pool := func(site string) detectors.Pool {
		if p, ok := pools[site]; ok {
			return p
		}
		return other
	}
	controls, sites, dependencies := declared(c)
	engine, err := detectors.NewEngine(detectors.Config{
		Pane: c.Pane, Cluster: c.Fleet.Cluster, Settings: detectorSettings(c), Pool: pool,
		Controls:     func(site string) []detectors.Control { return controls[site] },
		Dependencies: dependencies,
	})
	if err != nil {
		return nil, err
	}
	siteOf := func(site string) alerts.Site { return sites[site] }
	manager, err := alerts.NewManager(alerts.Config{
		Rules: c.ConfiguredRules(), SiteRules: c.SiteRules(), Suppressors: c.Suppressors(), Campaigns: c.Calendar(),
		Detectors: detectors.Names(), Registerer: reg,
		Sites: siteOf, MinFiring: c.MinFiring, Grafana: c.Grafana.URL,
	})
	if err != nil {
		return nil, err
	}
	j := &judge{
		ledger: alerts.NewLedger(c.Pane, siteOf),
		engine: engine, manager: manager, metrics: newJudgeMetrics(prometheus.NewRegistry()),
		sources: map[string]int{}, loose: map[string]int{}, trust: fullTrust, inputs: map[string]punctuality{}, behind: map[string]map[string]int64{},
		gaps: map[string]int64{}, absent: map[string]int64{}, total: tally{failed: map[string]uint64{}, heard: map[string]*heard{}},
	}
	j.panes = pane.NewAssembler(pane.Config{
		Pane: c.Pane, MaxOpen: maxOpen, Whole: j.pass,
		Reclaim: func(site string) time.Duration { return pool(site).Reclaim },
	})
	return j, nil
}

// declared is what the configuration says of sites beside their traffic.
func declared(c *Config) (map[string][]detectors.Control, map[string]alerts.Site, detectors.Dependencies) {
	controls, sites, dependencies := map[string][]detectors.Control{}, map[string]alerts.Site{}, detectors.Dependencies{}
	for _, s := range c.Sites {
		site := alerts.Site{Dependencies: s.Dependencies, Namespaces: s.Namespaces}
		for _, x := range s.Controls {
			controls[s.Name] = append(controls[s.Name], detectors.Control(x))
		}
		site.Controls = controls[s.Name]
		sites[s.Name] = site
		for _, ns := range s.Namespaces {
			dependencies[ns] = s.Dependencies
		}
	}
	return controls, sites, dependencies
}

func detectorSettings(c *Config) []detectors.Setting {
	var out []detectors.Setting
	for _, name := range detectors.Names() {
		s := detectors.Setting{Name: name, Decode: c.DetectorFor("", name).Decode, Sites: map[string]func(any) error{}}
		for i := range c.Sites {
			for _, k := range c.Sites[i].Detectors {
				if k.Type == name {
					s.Sites[c.Sites[i].Name] = c.DetectorFor(c.Sites[i].Name, name).Decode
				}
			}
		}
		out = append(out, s)
	}
	return out
}

// framings are what kinds of source have around each line.
var framings = map[string]string{"container": "container", "journal": "journal", "syslog": "syslog"}

// opener makes the framing and the format of each stream of an input: it is the Open of a road.
type opener struct {
	format  formatChoice
	zone    *time.Location
	framing string // that of the kind of source, when the format names none
	// opened is told of each stream's format, nil for nobody.
	opened func(s *pipeline.Stream, f pipeline.Format)
}

func (o opener) open(s *pipeline.Stream, first []byte) (pipeline.Framer, pipeline.Format, error) {
	framing, _, err := o.framingOf(first)
	if err != nil {
		return nil, nil, err
	}
	var framer pipeline.Framer // none where nothing is around the lines: what a framer gives is copied
	if framing != "" {
		if framer, err = format.NewFramerIn(framing, o.zone); err != nil {
			return nil, nil, err
		}
	}
	f, err := o.format.openNear(o.zone, writtenAt(s.Path))
	if err != nil {
		return nil, nil, err
	}
	if o.opened != nil {
		o.opened(s, f)
	}
	return framer, f, nil
}

// framingOf gives what is around a stream's lines: what the format's name or the kind of source says; else what its
// first line looks like, unless the format that was asked for reads the line as it is. guessed tells that the line
// alone says so.
func (o opener) framingOf(first []byte) (framing string, guessed bool, err error) {
	framing, name := format.SplitFraming(o.format.name)
	if framing = cmp.Or(framing, o.framing); framing != "" || strings.HasPrefix(o.format.name, "file+") {
		return framing, false, nil
	}
	if framing = framingAround(first); framing == "" || name == "auto" {
		return framing, framing != "", nil
	}
	f, err := o.format.open(o.zone)
	if err != nil {
		return "", false, err
	}
	var item pipeline.Item
	item.Reset()
	if f.Parse(first, &item); item.Kind != pipeline.Failed {
		return "", false, nil
	}
	return framing, true, nil
}

// writtenAt is when a file was last written, in ns; 0 for what is no file.
func writtenAt(path string) int64 {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.ModTime().UnixNano()
}

// framingAround tells by the looks of a line who wrapped it: a container runtime, the journal, a relay of syslog, or
// nobody.
func framingAround(line []byte) string {
	line = bytes.TrimLeft(line, "\x00")
	switch {
	case bytes.HasPrefix(line, []byte(`{"log":"`)):
		return "container"
	case isJournal(line):
		return "journal"
	}
	if priority, _, ok := bytes.Cut(line[:min(len(line), len("<191>"))], []byte{'>'}); ok && len(priority) > 1 && priority[0] == '<' &&
		len(bytes.Trim(priority[1:], "0123456789")) == 0 {
		return "syslog"
	}
	at, rest, _ := bytes.Cut(line, []byte{' '})
	if len(at) < len("2006-01-02T15:04:05Z") || at[4] != '-' || at[10] != 'T' {
		return ""
	}
	if bytes.HasPrefix(rest, []byte("stdout ")) || bytes.HasPrefix(rest, []byte("stderr ")) {
		return "container"
	}
	return ""
}

// isJournal tells whether a line is an object of journalctl -o json, other than one of the kernel: those kernel_oom
// reads as they are, since they name the host.
func isJournal(line []byte) bool {
	return len(line) > 0 && line[0] == '{' && bytes.Contains(line, []byte(`"__REALTIME_TIMESTAMP":"`)) &&
		bytes.Contains(line, []byte(`"MESSAGE":`)) && !bytes.Contains(line, []byte(`"_TRANSPORT":"kernel"`))
}

// loadConfig reads and validates a file; "" gives the embedded default.
func loadConfig(path string, env func(string) (string, bool)) (*Config, error) {
	if path == "" {
		c := Default()
		return c, usageIf(c.Validate(families()))
	}
	c, err := LoadValid(path, env, families())
	return c, usageIf(err)
}

// newRedactor builds the redaction.
func newRedactor(c *Config) (*enrich.Redactor, error) {
	r, err := enrich.NewRedactor(enrich.RedactConfig{
		Query: c.Redact.Query, Keys: c.Redact.Keys, Client: c.Redact.Client, HMACKey: []byte(c.Redact.HMACKey),
	})
	if err != nil {
		return nil, usageError(fmt.Errorf("redact: %w", err))
	}
	return r, nil
}

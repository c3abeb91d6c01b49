package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/loki"
)

// A Config is the whole configuration file, checked, with every default filled in. Its keys are a contract:
// none is ever renamed. Durations are written 60s, 10m, 72h; sizes 64KiB, 2GiB; ratios are 0–1.
type Config struct {
	Sources        []SourceConfig   `yaml:"sources"`         // what is read: the one key without a default
	Own            OwnConfig        `yaml:"own"`             // this is us: never advised to be blocked
	Allowed        []AllowedConfig  `yaml:"allowed"`         // known ranges, never advised to be blocked
	TrustedProxies []Prefix         `yaml:"trusted_proxies"` // whose X-Forwarded-For is believed
	Timezone       Zone             `yaml:"timezone"`        // for formats that log none: UTC, an IANA name, +0200
	SiteDefaults   SiteDefaults     `yaml:"site_defaults"`   // for every site that does not say otherwise
	Sites          []SiteConfig     `yaml:"sites"`           // a site is a host unless it is listed
	Pane           time.Duration    `yaml:"pane"`            // the step of detection; it divides a minute
	Detectors      DetectorConfigs  `yaml:"detectors"`       // settings by detector's name
	Rules          []RuleConfig     `yaml:"rules"`           // added to the shipped ones; the same name replaces
	Suppress       []SuppressConfig `yaml:"suppress"`        // what holds alerts back
	Campaigns      []CampaignConfig `yaml:"campaigns"`       // the calendar of mail that is sent
	MinFiring      time.Duration    `yaml:"min_firing"`      // an alert fires for this long at least
	Redact         RedactConfig     `yaml:"redact"`          // what of a line is made unreadable before it is stored
	Spool          SpoolConfig      `yaml:"spool"`           // the durable queue before Loki
	Loki           loki.Config      `yaml:"loki"`            // where lines are shipped
	Notify         []NotifyConfig   `yaml:"notify"`          // who is told of alerts
	Web            WebConfig        `yaml:"web"`             // the page, metrics and the API
	Grafana        GrafanaConfig    `yaml:"grafana"`         // where its dashboards are
	Fleet          FleetConfig      `yaml:"fleet"`           // detection over many nodes

	root *node
}

// A SourceConfig is one input. The kind's own settings (paths, units, bucket, …) are behind Kind.
type SourceConfig struct {
	Name     string            `yaml:"name"` // default: type and position, as in file-1
	Type     string            `yaml:"type"`
	Format   FormatConfig      `yaml:"format"`
	Site     string            `yaml:"site"` // for formats that log no host
	Timezone Zone              `yaml:"timezone"`
	Lateness time.Duration     `yaml:"lateness"` // how long a line may come after newer ones
	Labels   map[string]string `yaml:"labels"`   // static: go to Loki and to detections

	Kind Kind `yaml:"-"`
}

// A FormatConfig names the format of a source's lines: `auto`, a name, or a mapping with `type` and the
// format's own settings.
type FormatConfig struct {
	Kind
}

// OwnConfig says which addresses are this site's own hosts: blocking them is never advised.
type OwnConfig struct {
	Interfaces bool     `yaml:"interfaces"` // the addresses of this machine
	Addresses  []Prefix `yaml:"addresses"`
}

// An AllowedConfig is a named range of known clients, such as an office.
type AllowedConfig struct {
	Name      string   `yaml:"name"`
	Addresses []Prefix `yaml:"addresses"`
}

// SiteDefaults hold for every site that does not say otherwise.
type SiteDefaults struct {
	Pool PoolConfig `yaml:"pool"` // of sites that say nothing
}

// A PoolConfig describes the workers that answer a site's requests.
type PoolConfig struct {
	Workers        int           `yaml:"workers"`         // over all tasks; 0: unknown
	ReclaimTimeout time.Duration `yaml:"reclaim_timeout"` // what a stuck request may hold a worker for
}

// A SiteConfig is one site: hosts that are one thing to its visitors.
type SiteConfig struct {
	Name         string            `yaml:"name"`
	Hosts        []string          `yaml:"hosts"`        // default: the name
	Pool         PoolConfig        `yaml:"pool"`         // its workers
	Routes       []string          `yaml:"routes"`       // templates such as /checkout/{id}, tried in order
	Namespaces   []string          `yaml:"namespaces"`   // of its containers in the cluster
	Dependencies map[string]string `yaml:"dependencies"` // for scope and for merging incidents
	Controls     []ControlConfig   `yaml:"controls"`     // what is already in place
	Detectors    DetectorConfigs   `yaml:"detectors"`    // laid over the general settings
	Rules        []RuleConfig      `yaml:"rules"`        // laid over the general rules of the same names

	node *node
}

// A ControlConfig is something in place at a site: a name, or a rule with the requests that it answers. Then the
// damage that it would have caught is told.
type ControlConfig struct {
	Name   string `yaml:"name"`
	Method string `yaml:"method"`
	Path   string `yaml:"path"`  // a path or a route; * is any run of characters
	Agent  string `yaml:"agent"` // a part of the User-Agent
}

// DetectorConfigs are settings by detector's name, in the order of the file.
type DetectorConfigs []Kind

// A RuleConfig is one alert rule, added to the shipped ones or replacing the one of the same name.
type RuleConfig struct {
	alerts.Rule `yaml:",inline"`

	node *node
}

// SiteRules gives the rules that sites have, whole, instead of the general ones.
func (c *Config) SiteRules() map[string][]alerts.Rule {
	out := map[string][]alerts.Rule{}
	for i := range c.Sites {
		for _, r := range c.Sites[i].Rules {
			out[c.Sites[i].Name] = append(out[c.Sites[i].Name], r.Rule)
		}
	}
	return out
}

// A SuppressConfig is a maintenance window, or a condition under which nobody is told.
type SuppressConfig struct {
	alerts.Suppressor `yaml:",inline"`

	node *node
}

// A CampaignConfig is mail that is sent.
type CampaignConfig struct {
	alerts.Campaign `yaml:",inline"`

	node *node
}

// Suppressors gives what is configured as alerts takes it.
func (c *Config) Suppressors() []alerts.Suppressor {
	var out []alerts.Suppressor
	for _, s := range c.Suppress {
		out = append(out, s.Suppressor)
	}
	return out
}

// Calendar gives the campaigns as alerts takes them.
func (c *Config) Calendar() []alerts.Campaign {
	var out []alerts.Campaign
	for _, x := range c.Campaigns {
		out = append(out, x.Campaign)
	}
	return out
}

// ConfiguredRules gives the rules as alerts takes them.
func (c *Config) ConfiguredRules() []alerts.Rule {
	var out []alerts.Rule
	for _, r := range c.Rules {
		out = append(out, r.Rule)
	}
	return out
}

// RedactConfig says what of a line is made unreadable before it is stored.
type RedactConfig struct {
	Query   string   `yaml:"query"`    // mask, drop or keep
	Keys    []string `yaml:"keys"`     // added to the built-in list
	Client  string   `yaml:"client"`   // keep, truncate or hmac
	HMACKey string   `yaml:"hmac_key"` // for client: hmac
}

// SpoolConfig bounds the durable queue.
type SpoolConfig struct {
	Dir      string            `yaml:"dir"`
	MaxBytes pipeline.ByteSize `yaml:"max_bytes"`
	MaxAge   time.Duration     `yaml:"max_age"`
}

// A NotifyConfig is one receiver of alerts; its settings are behind Kind.
type NotifyConfig struct {
	Type string `yaml:"type"`

	Kind Kind `yaml:"-"`
}

// WebConfig is the HTTP server's.
type WebConfig struct {
	Listen     string `yaml:"listen"`
	ConfigFile string `yaml:"config_file"` // exporter-toolkit's web configuration: TLS, basic auth
}

// GrafanaConfig says where squall's dashboards are, for the links in alerts.
type GrafanaConfig struct {
	URL string `yaml:"url"` // empty: alerts link to no dashboard
}

// A Prefix is a range of addresses, or one, as in 10.0.0.0/8 or 198.51.100.7.
type Prefix struct{ netip.Prefix }

// UnmarshalText reads a range or a single address. Bits behind the prefix are an error, as they are most
// often a typing mistake.
func (p *Prefix) UnmarshalText(text []byte) error {
	if addr, err := netip.ParseAddr(string(text)); err == nil && addr.Zone() == "" {
		p.Prefix = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())
		return nil
	}
	got, err := netip.ParsePrefix(string(text))
	if err != nil {
		return fmt.Errorf("%q is no address and no range: write 198.51.100.7 or 10.0.0.0/8", text)
	}
	if got.Masked() != got {
		return fmt.Errorf("%q has bits behind its prefix: write %s", text, got.Masked())
	}
	p.Prefix = got
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (p Prefix) MarshalText() ([]byte, error) {
	if p.IsSingleIP() {
		return p.Addr().MarshalText()
	}
	return p.Prefix.MarshalText()
}

// A Zone is a time zone: UTC, an IANA name, or a fixed offset such as +0200.
type Zone struct{ *time.Location }

// UnmarshalText reads a zone.
func (z *Zone) UnmarshalText(text []byte) (err error) {
	z.Location, err = pipeline.ParseZone(string(text))
	return err
}

// MarshalText writes what UnmarshalText reads.
func (z Zone) MarshalText() ([]byte, error) {
	if z.Location == nil {
		return []byte("UTC"), nil
	}
	return []byte(z.String()), nil
}

// latenessOf holds the default of `lateness` for kinds of source that deliver late; the others have defaultLateness.
var latenessOf = map[string]time.Duration{"s3": 10 * time.Minute, "kubernetes": 15 * time.Second}

// formatOf holds the default of `format` for kinds of source that write their lines themselves; the others have auto.
var formatOf = map[string]string{"kubernetes": "kubernetes"}

const defaultLateness = 5 * time.Second

// Default is the configuration of an empty file: no sources, no Loki, alerts on standard output.
func Default() *Config {
	c := defaults()
	c.root = &node{shape: mapShape}
	c.fill()
	return c
}

// defaults are the values of every key that a file leaves out.
func defaults() *Config {
	return &Config{
		Own:          OwnConfig{Interfaces: true},
		Timezone:     Zone{time.UTC},
		SiteDefaults: SiteDefaults{Pool: PoolConfig{ReclaimTimeout: time.Minute}},
		Pane:         10 * time.Second,
		MinFiring:    2 * time.Minute,
		Redact:       RedactConfig{Query: "mask", Client: "keep"},
		Spool:        SpoolConfig{Dir: "/var/lib/squall", MaxBytes: 2 << 30, MaxAge: 72 * time.Hour},
		Loki:         loki.DefaultConfig(),
		Notify:       []NotifyConfig{{Type: "stdout", Kind: newKind("stdout", stdoutNode, notifyKeys)}},
		Web:          WebConfig{Listen: "127.0.0.1:9177"},
		Fleet:        FleetConfig{Cluster: "default", Lateness: 30 * time.Second, MaxAge: 3 * time.Hour, MaxBytes: 2 << 30},
	}
}

// stdoutNode is the default notifier's mapping.
var stdoutNode = &node{shape: mapShape, fields: []field{{key: "type", value: &node{shape: textShape, text: "stdout", raw: "stdout"}}}}

// LoadConfig reads and checks a configuration file. It reports as many faults as it finds, each as
// file:line:column; the settings of kinds are checked when the kinds are made (see LoadValid). env looks up
// environment variables, as os.LookupEnv does.
func LoadConfig(path string, env func(string) (string, bool)) (*Config, error) {
	c, faults, err := readConfig(path, env)
	if err == nil {
		err = faults.sorted()
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// LoadValid does what LoadConfig does and validates the settings of every kind too (see Config.Validate): the
// faults of both are told at once.
func LoadValid(path string, env func(string) (string, bool), f Families) (*Config, error) {
	c, faults, err := readConfig(path, env)
	if err != nil {
		return nil, err
	}
	if err := append(faults, c.unechoed(faults, c.validate(f))...).sorted(); err != nil {
		return nil, err
	}
	return c, nil
}

func readConfig(path string, env func(string) (string, bool)) (*Config, configErrors, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: squall init writes one", err)
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return parseConfig(path, text, env)
}

// parseConfig gives what could be read, and the faults of the rest.
func parseConfig(file string, text []byte, env func(string) (string, bool)) (*Config, configErrors, error) {
	root, faults, err := readTree(file, bytes.TrimPrefix(text, []byte("\ufeff")), env)
	if err != nil {
		return nil, nil, err
	}
	c := defaults()
	c.root = root
	d := &decoder{errs: faults}
	d.value(root, addressable(c))
	c.fill()
	return c, append(d.errs, c.check()...), nil
}

// sourceWarnings tells what is no fault in the sources and yet costs: without a name they have one from their place in the
// list, and it is by its name that a source knows what it has read; and event time waits for the slowest of them.
func (c *Config) sourceWarnings() (warnings []string) {
	nameless := 0
	var slowest, quickest *SourceConfig
	for i := range c.Sources {
		s := &c.Sources[i]
		if s.Kind.node.get("name") == nil {
			nameless++
		}
		if slowest == nil || s.Lateness > slowest.Lateness {
			slowest = s
		}
		if quickest == nil || s.Lateness < quickest.Lateness {
			quickest = s
		}
	}
	if nameless > 1 {
		warnings = append(warnings, fmt.Sprintf("%d sources have no name: another order of them reads everything anew; give each a name", nameless))
	}
	if slowest != nil && slowest.Lateness > time.Minute && quickest.Lateness <= time.Minute {
		warnings = append(warnings, fmt.Sprintf("the lines of source %s may come %s late, and detection waits for them in all others, too: give it a squall of its own",
			slowest.Name, slowest.Lateness))
	}
	return warnings
}

// fill derives the defaults that depend on other values.
func (c *Config) fill() {
	for i := range c.Sources {
		s := &c.Sources[i]
		if s.Name == "" {
			s.Name = s.Type + "-" + strconv.Itoa(i+1)
		}
		if s.Timezone.Location == nil {
			s.Timezone = c.Timezone
		}
		if s.Kind.node.get("lateness") == nil {
			s.Lateness = defaultLateness
			if d, ok := latenessOf[s.Type]; ok {
				s.Lateness = d
			}
		}
		if name, ok := formatOf[s.Type]; ok && s.Kind.node.get("format") == nil {
			s.Format.Kind = newKind(name, &node{shape: mapShape}, []string{})
		}
	}
	general := alerts.AllRules(c.ConfiguredRules())
	for i := range c.Sites {
		s := &c.Sites[i]
		for j := range s.Rules {
			s.Rules[j].over(general)
		}
		if len(s.Hosts) == 0 && s.Name != "" {
			s.Hosts = []string{s.Name}
		}
		if s.node.find("pool", "workers") == nil {
			s.Pool.Workers = c.SiteDefaults.Pool.Workers
		}
		if s.node.find("pool", "reclaim_timeout") == nil {
			s.Pool.ReclaimTimeout = c.SiteDefaults.Pool.ReclaimTimeout
		}
	}
}

// DetectorFor gives the settings of one detector for one site, "" or an unlisted site for the general ones: what the site
// says, laid over what the file says in general. The kind's own defaults lie below both.
func (c *Config) DetectorFor(site, name string) Kind {
	general := c.Detectors.named(name)
	for i := range c.Sites {
		if c.Sites[i].Name != site {
			continue
		}
		for _, k := range c.Sites[i].Detectors {
			if k.Type == name {
				return general.over(k)
			}
		}
	}
	return general
}

// over completes a site's rule with the general one of its name: what the site does not say holds as it does elsewhere.
func (r *RuleConfig) over(general []alerts.Rule) {
	i := slices.IndexFunc(general, func(g alerts.Rule) bool { return g.Name == r.Name })
	if i < 0 || r.node == nil || r.node.shape != mapShape {
		return
	}
	r.Rule = general[i]
	new(decoder).structure(r.node, addressable(&r.Rule), nil) // its faults were told
}

func (c DetectorConfigs) named(name string) Kind {
	for _, k := range c {
		if k.Type == name {
			return k
		}
	}
	return newKind(name, nil, nil)
}

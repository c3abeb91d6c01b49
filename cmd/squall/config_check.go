package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/pipeline/enrich"
)

// check finds the faults that no single value shows.
func (c *Config) check() configErrors {
	var errs configErrors
	c.checkSources(&errs)
	c.checkSites(&errs)
	c.checkRules(&errs)
	if c.Pane < time.Second || time.Minute%c.Pane != 0 {
		errs.add(c.root.place("pane"), "pane is %s: it must be at least 1s and divide a minute, as 1s, 5s, 10s or 30s do", c.Pane)
	}
	if c.MinFiring < time.Second {
		errs.add(c.root.place("min_firing"), "min_firing is below 1s: write more than Alertmanager's group_wait, or it may never tell of an alert")
	}
	oneOf(&errs, c.root.place("redact", "query"), "redact.query", c.Redact.Query, "mask", "drop", "keep")
	oneOf(&errs, c.root.place("redact", "client"), "redact.client", c.Redact.Client, "keep", "truncate", "hmac")
	if c.Spool.MaxBytes < 1<<20 {
		errs.add(c.root.place("spool", "max_bytes"), "spool.max_bytes is below 1MiB")
	}
	if c.Spool.MaxAge <= 0 {
		errs.add(c.root.place("spool", "max_age"), "spool.max_age must be above 0")
	}
	if c.Spool.Dir == "" {
		errs.add(c.root.place("spool", "dir"), "spool.dir is empty")
	}
	urlOf(&errs, c.root.place("grafana", "url"), "grafana.url", c.Grafana.URL, "https", "http")
	c.checkFleet(&errs)
	if _, port, err := net.SplitHostPort(c.Web.Listen); err != nil {
		errs.add(c.root.place("web", "listen"), "web.listen: write host:port, as in 127.0.0.1:9177")
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		errs.add(c.root.place("web", "listen"), "web.listen: %q is no port: write a number up to 65535", port)
	}
	return errs
}

func oneOf(errs *configErrors, at position, what, got string, allowed ...string) {
	if !slices.Contains(allowed, got) {
		errs.add(at, "%s is %q: write %s", what, got, strings.Join(allowed, ", "))
	}
}

// urlOf checks an address; its text is not repeated, since it may hold a password.
func urlOf(errs *configErrors, at position, what, got string, schemes ...string) {
	if got == "" {
		return
	}
	for _, one := range strings.Split(got, ",") { // NATS takes several
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) {
			errs.add(at, "%s is not a URL: write %s://host:port", what, schemes[0])
			return
		}
	}
}

func (c *Config) checkSources(errs *configErrors) {
	first := map[string]position{}
	for i := range c.Sources {
		s := &c.Sources[i]
		at := s.Kind.node.place("name")
		if other, twice := first[s.Name]; twice {
			errs.add(at, "source %q is named a second time: the first is at %s", s.Name, other)
			continue
		}
		first[s.Name] = at
	}
	c.checkPaths(errs)
}

// checkPaths refuses paths that two sources name, unless one excludes what the other reads: each would read the file, and its lines would count twice. What
// globs and links have in common on the disk is not looked at: a file made there must not keep squall from starting.
func (c *Config) checkPaths(errs *configErrors) {
	type named struct {
		*node
		source  string
		exclude *node
	}
	var earlier []named
	for i := range c.Sources {
		s := &c.Sources[i]
		if s.Type != "file" && s.Type != "container" {
			continue
		}
		paths := s.Kind.node.get("paths")
		for j := 0; paths.item(j) != nil; j++ {
			p := named{paths.item(j), s.Name, s.Kind.node.get("exclude")}
			for _, e := range earlier {
				if e.source != p.source && samePath(e.text, p.text) && !anyMatches(e.exclude.texts(), p.text) && !anyMatches(p.exclude.texts(), e.text) {
					errs.add(p.at, "source %q names what source %q reads already, by its path at %s: its lines would count twice; exclude it at one of them",
						p.source, e.source, e.at)
				}
			}
			earlier = append(earlier, p)
		}
	}
}

// samePath tells whether two paths or globs are the same, or one of them matches the other.
func samePath(a, b string) bool {
	a, b = filepath.Clean(a), filepath.Clean(b)
	one, _ := filepath.Match(a, b) // what is no pattern matches nothing
	other, _ := filepath.Match(b, a)
	return a == b || one || other
}

func (c *Config) checkSites(errs *configErrors) {
	names, hosts := map[string]position{}, map[string]string{}
	for i := range c.Sites {
		s := &c.Sites[i]
		at := s.node.place("name")
		if s.Name == "" {
			errs.add(at, "a site has no name")
			continue
		}
		if other, twice := names[s.Name]; twice {
			errs.add(at, "site %q is named a second time: the first is at %s", s.Name, other)
			continue
		}
		names[s.Name] = at
		for j, h := range s.Hosts {
			at := s.node.place("hosts")
			if item := s.node.get("hosts").item(j); item != nil {
				at = item.at
			}
			key := strings.ToLower(strings.TrimSuffix(h, "."))
			if other, taken := hosts[key]; taken {
				errs.add(at, "host %q belongs to site %q already", h, other)
			}
			hosts[key] = s.Name
		}
		s.checkControls(errs)
		if s.Pool.Workers < 0 {
			errs.add(s.node.place("pool", "workers"), "pool.workers is below 0")
		}
		if s.Pool.ReclaimTimeout <= 0 {
			errs.add(s.node.place("pool", "reclaim_timeout"), "pool.reclaim_timeout must be above 0")
		}
	}
	if p := c.SiteDefaults.Pool; p.Workers < 0 || p.ReclaimTimeout <= 0 {
		errs.add(c.root.place("site_defaults", "pool"), "pool.workers must be from 0 up, pool.reclaim_timeout above 0")
	}
	for i := range c.Allowed {
		if c.Allowed[i].Name == "" {
			errs.add(c.root.get("allowed").item(i).at, "an allowed range has no name")
		}
	}
}

// checkControls finds rules in place that can answer nothing.
func (s *SiteConfig) checkControls(errs *configErrors) {
	for i, c := range s.Controls {
		at := s.node.get("controls").item(i).at
		if c.Method != strings.ToUpper(c.Method) {
			errs.add(at, "control %q: method is %q: write %s", c.Name, c.Method, strings.ToUpper(c.Method))
		}
		if c.Path != "" && c.Path[0] != '/' && c.Path[0] != '*' {
			errs.add(at, "control %q: path is %q: write /… or *…", c.Name, c.Path)
		}
	}
}

func (c *Config) checkRules(errs *configErrors) {
	names := map[string]position{}
	for i := range c.Rules {
		r := &c.Rules[i]
		at := r.node.place("name")
		switch other, twice := names[r.Name]; {
		case r.Name == "":
			errs.add(at, "a rule has no name")
		case twice:
			errs.add(at, "rule %q is named a second time: the first is at %s", r.Name, other)
		}
		names[r.Name] = at
	}
}

// compileRules checks each rule alone, so that each fault is told at its rule, and at the key that the message
// begins with. It tells whether all are sound.
func (c *Config) compileRules(errs *configErrors, detectors []string) bool {
	before := len(*errs)
	for _, r := range c.Rules {
		err := alerts.CheckRules([]alerts.Rule{r.Rule}, detectors)
		if err == nil {
			continue
		}
		errs.take(r.node.place(keyOf(err, "rule", r.Name)), "", err)
	}
	return len(*errs) == before
}

// checkSiteRules checks each rule of each site alone.
func (c *Config) checkSiteRules(errs *configErrors, detectors []string) {
	for i := range c.Sites {
		s := &c.Sites[i]
		names := map[string]position{}
		for _, r := range s.Rules {
			at := r.node.place("name")
			if other, twice := names[r.Name]; twice {
				errs.add(at, "site %q changes rule %q a second time: the first is at %s", s.Name, r.Name, other)
				continue
			}
			names[r.Name] = at
			if err := alerts.CheckSiteRules(c.ConfiguredRules(), s.Name, []alerts.Rule{r.Rule}, detectors); err != nil {
				errs.take(r.node.place(keyOf(err, "rule", r.Name)), "", err)
			}
		}
	}
}

// keyOf is the key that the message of a fault in a named thing begins with.
func keyOf(err error, what, name string) string {
	key, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), fmt.Sprintf("%s %q: ", what, name)), ":")
	return key
}

// checkSuppress checks each suppressor and campaign alone, as compileRules does rules.
func (c *Config) checkSuppress(errs *configErrors, detectors []string) {
	rules := ruleNames(c)
	names := map[string]position{}
	for _, s := range c.Suppress {
		at := s.node.place("name")
		if other, twice := names[s.Name]; twice {
			errs.add(at, "suppressor %q is named a second time: the first is at %s", s.Name, other)
		}
		names[s.Name] = at
		if err := alerts.CheckSuppressors([]alerts.Suppressor{s.Suppressor}, rules, detectors); err != nil {
			errs.take(s.node.place(keyOf(err, "suppressor", s.Name)), "", err)
		}
	}
	for _, x := range c.Campaigns {
		unread := x.At.IsZero() && x.node.get("at") != nil // that was told
		if err := alerts.CheckCampaigns([]alerts.Campaign{x.Campaign}); err != nil && !unread {
			errs.take(x.node.place(keyOf(err, "campaign", x.Name)), "", err)
		}
	}
}

// A family makes a kind from its name and its settings, to see whether it can be made. It starts nothing.
type family func(name string, decode func(any) error) error

// Families are the tables of kinds that a configuration refers to.
type Families struct {
	Source, Format, Notifier, Detector family
	Sources, Formats, Notifiers        []string // the names in the tables
	Detectors                          []string
}

// Validate makes every configured kind once, and throws it away: afterwards the settings of all kinds are
// known to be good, and what the kinds filled in by default is part of the effective configuration. Names
// that a table does not hold are faults.
func (c *Config) Validate(f Families) error { return c.validate(f).sorted() }

func (c *Config) validate(f Families) (errs configErrors) {
	for i := range c.Sources {
		s := &c.Sources[i]
		tryKind(&errs, "source", s.Kind, s.Kind.node.place("type"), f.Sources, f.Source)
		if s.Format.Type != "" {
			tryKind(&errs, "format", s.Format.Kind, s.Kind.node.place("format"), f.Formats, f.Format)
		}
	}
	for i := range c.Notify {
		k := c.Notify[i].Kind
		tryKind(&errs, "notifier", k, k.node.place("type"), f.Notifiers, f.Notifier)
	}
	c.checkDetectors(&errs, f)
	c.checkLoki(&errs)
	c.checkChain(&errs)
	if err := web.Validate(c.Web.ConfigFile); err != nil {
		errs.take(c.root.place("web", "config_file"), "web.config_file", err)
	}
	if c.compileRules(&errs, f.Detectors) {
		c.checkSiteRules(&errs, f.Detectors)
		c.checkSuppress(&errs, f.Detectors)
	}
	secrets := secretsOf(c.root, nil)
	for i := range errs { // a kind may quote what it refuses
		for _, secret := range secrets {
			errs[i].msg = strings.ReplaceAll(errs[i].msg, secret, redacted)
		}
		errs[i].msg = maskURL(errs[i].msg)
	}
	return errs
}

// checkChain makes what the road makes of hosts, routes and redaction. Where sites have faults that were told it tells
// none: it would tell the same.
func (c *Config) checkChain(errs *configErrors) {
	var told configErrors
	if c.checkSites(&told); len(told) > 0 {
		return
	}
	_, err := newChain(c, nil)
	var redactErr error
	if c.Redact.HMACKey != redacted { // as Effective prints it
		_, redactErr = newRedactor(c)
	}
	for _, fault := range parts(errors.Join(err, redactErr)) {
		var at *enrich.ConfigError
		if errors.As(fault, &at) {
			errs.add(c.root.follow(at.Path), "%v", at.Err)
		} else {
			errs.take(c.root.at, "", fault)
		}
	}
}

// parts are the errors that were joined to one.
func parts(err error) (all []error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, part := range joined.Unwrap() {
			all = append(all, parts(part)...)
		}
		return all
	}
	if err != nil {
		all = append(all, err)
	}
	return all
}

// unechoed leaves out what is said of a place a second time, and what a kind says of a setting that could not be read.
func (c *Config) unechoed(told, errs configErrors) configErrors {
	var kinds []*node
	for i := range c.Sources {
		kinds = append(kinds, c.Sources[i].Kind.node)
	}
	for i := range c.Notify {
		kinds = append(kinds, c.Notify[i].Kind.node)
	}
	return slices.DeleteFunc(errs, func(e configError) bool {
		again := slices.ContainsFunc(told, func(t configError) bool { return t.at == e.at })
		return again || slices.ContainsFunc(kinds, func(n *node) bool {
			return n != nil && e.at == n.place("type") && slices.ContainsFunc(told, func(t configError) bool { return n.holds(t.at) })
		})
	})
}

// checkLoki checks what a push needs; without an address nothing is pushed.
func (c *Config) checkLoki(errs *configErrors) {
	if c.Loki.URL == "" {
		return
	}
	var static []string
	for _, s := range c.Sources {
		static = append(static, slices.Sorted(maps.Keys(s.Labels))...)
	}
	for _, err := range parts(c.Loki.Check(static)) {
		key, _, _ := strings.Cut(err.Error(), ":") // a message begins with its key
		errs.take(c.root.place("loki", key), "loki", err)
	}
}

func (c *Config) checkDetectors(errs *configErrors, f Families) {
	for _, name := range f.Detectors {
		if c.Detectors.named(name).node == nil {
			c.Detectors = append(c.Detectors, newKind(name, nil, nil))
		}
	}
	for _, k := range c.Detectors {
		tryKind(errs, "detector", k, c.keyPlace(c.root.get("detectors"), k), f.Detectors, f.Detector)
	}
	for i := range c.Sites {
		s := &c.Sites[i]
		for _, k := range s.Detectors {
			over := c.DetectorFor(s.Name, k.Type)
			tryKind(errs, "detector", over, c.keyPlace(s.node.get("detectors"), k), f.Detectors, f.Detector)
		}
	}
}

// keyPlace is where the key of an entry stands in a mapping of kinds.
func (c *Config) keyPlace(n *node, k Kind) position {
	if n != nil {
		for _, f := range n.fields {
			if f.key == k.Type {
				return f.at
			}
		}
	}
	return c.root.at
}

func tryKind(errs *configErrors, what string, k Kind, at position, known []string, make family) {
	switch {
	case k.Type == "": // said already
	case !slices.Contains(known, k.Type[strings.LastIndexByte(k.Type, '+')+1:]): // cri+nginx: a framing first
		errs.add(at, "%s", unknown(what, k.Type, known))
	default:
		errs.take(at, fmt.Sprintf("%s %s", what, k.Type), make(k.Type, k.Decode))
	}
}

// RequireSources refuses a configuration that reads nothing: the one key without a default.
func (c *Config) RequireSources() error {
	if len(c.Sources) > 0 {
		return nil
	}
	if c.root == nil || c.root.at.file == "" {
		return errors.New("no sources are configured")
	}
	return configErrors{{c.root.place("sources"), "no sources are configured: write `sources: [{type: file, paths: [/var/log/nginx/*access*.log]}]`"}}
}

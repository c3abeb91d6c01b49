// Package enrich fills in what a Record's line does not say but the configuration does: whose address it is,
// which site and which route were asked for, and what the client looks like. It also redacts lines.
//
// Everything here is a pure function of the configuration and the record, with one exception, the cap on
// unlisted sites (see siteTable). What is remembered is remembered for speed alone, in memory of fixed size:
// a route's name never depends on what was seen before, so that every node, and a replay, names it alike.
// How many routes of a site are kept apart is decided where they are counted, by weight, in the panes.
package enrich

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/gaissmai/bart"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/squall-sre/squall/pipeline"
)

// Config says what is known about the sites and the addresses. Its fields mirror the configuration file.
type Config struct {
	Own            Own
	Interfaces     []netip.Prefix // this machine's addresses (InterfacePrefixes); used when Own.Interfaces is set
	Allowed        []Allowed
	TrustedProxies []string // addresses and prefixes whose X-Forwarded-For is believed
	Sites          []Site
	Limits         Limits
	Registerer     prometheus.Registerer // may be nil
}

// Own lists the addresses that are this installation's.
type Own struct {
	Interfaces bool     // count the machine's own addresses too
	Addresses  []string // addresses and prefixes
}

// Allowed is a named set of addresses that must never be blocked, such as an office.
type Allowed struct {
	Name      string
	Addresses []string
}

// Site is a configured site: a name for one or more hosts.
type Site struct {
	Name   string
	Hosts  []string // the name alone when empty
	Routes []string // templates such as /checkout/{id}, /feeds/{name}.xml or /files/{path...}
}

// Limits bound the memory. Zero means the default.
type Limits struct {
	Sites int // distinct unlisted sites kept apart at a time; default 1,024
	Paths int // paths remembered; default 16,384, rounded up to a power of two
}

// A ConfigError is a value that cannot be used, with its place in the configuration.
type ConfigError struct {
	Path string // for example sites[1].routes[0]
	Err  error
}

// Error names the place, the value and what is valid.
func (e *ConfigError) Error() string { return e.Path + ": " + e.Err.Error() }

// Unwrap gives the reason alone.
func (e *ConfigError) Unwrap() error { return e.Err }

func configError(err error, path string, args ...any) error {
	return &ConfigError{Path: fmt.Sprintf(path, args...), Err: err}
}

// A Chain runs all enrichers in order. It is safe for concurrent use.
type Chain struct {
	trusted *bart.Lite
	origins *origins
	sites   *siteTable
	routes  *router
	agents  *memo[agent]
}

// New checks the configuration and builds the chain. All that is wrong with it is in the error, joined.
func New(cfg Config) (*Chain, error) {
	if cfg.Limits.Sites <= 0 {
		cfg.Limits.Sites = 1024
	}
	if cfg.Limits.Paths <= 0 {
		cfg.Limits.Paths = 16 << 10
	}
	trusted, err1 := newTrusted(cfg.TrustedProxies)
	origins, err2 := newOrigins(cfg)
	sites, err3 := newSiteTable(cfg.Sites, cfg.Limits.Sites, newMetrics(cfg.Registerer))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	return &Chain{
		trusted: trusted,
		origins: origins,
		sites:   sites,
		routes:  newRouter(cfg.Limits.Paths),
		agents:  newMemo[agent](4 << 10),
	}, nil
}

// For returns the enricher of one source. fixedSite is the source's site, for formats that log no host; it
// may be empty.
func (c *Chain) For(fixedSite string) pipeline.Enricher {
	e := &sourceEnricher{chain: c}
	if fixedSite != "" {
		e.fixed = c.sites.fixed(fixedSite)
	}
	return e
}

// Explain tells what path becomes on the named site and why, one line for each segment.
func (c *Chain) Explain(siteName, path string) string {
	return c.routes.explain(c.sites.treeOf(siteName), path)
}

// ClientSource tells what the client's address of r is taken from, before r is enriched.
func (c *Chain) ClientSource(r *pipeline.Record) ClientSource {
	unresolved := *r
	return resolveClient(&unresolved, c.trusted)
}

// AllowedName gives the name of the allowed range that covers addr.
func (c *Chain) AllowedName(addr netip.Addr) (name string, ok bool) {
	return c.origins.allowedName(addr.Unmap())
}

// sourceEnricher is a Chain with a source's fixed site.
type sourceEnricher struct {
	chain *Chain
	fixed *site
}

// Enrich fills Client, Origin, Site, Route, Agent, Static and Class.
func (e *sourceEnricher) Enrich(r *pipeline.Record) {
	c := e.chain
	r.Origin = pipeline.External
	if resolveClient(r, c.trusted).vouched() {
		r.Origin = c.origins.of(r.Client)
	}
	s := c.sites.find(r, e.fixed)
	r.Site = s.name
	r.Route = c.routes.route(s.tree, r.Path)
	r.Static = isStatic(r.Path)
	r.Class = c.classify(r)
	if r.Class == pipeline.Probe && !mayProbe(r) {
		r.Class = pipeline.Bot
	}
}

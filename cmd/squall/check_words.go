package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/squall-sre/squall/alerts"
)

// inWords tells in sentences what squall would do with a configuration: what a reader of the YAML has to work out.
func (c *Config) inWords() (words []string) {
	say := func(format string, args ...any) {
		words = append(words, alerts.Escape(maskURL(fmt.Sprintf(format, args...))))
	}
	switch name := c.Fleet.name(); {
	case len(c.Sources) == 0 && c.Fleet.on():
		say("reads no log: it is for squall aggregate, which judges the fleet %s as %s", c.Fleet.Cluster, name)
	case c.Fleet.NATS != "":
		say("is %s of the fleet %s: it tells its panes there, and its own alerts while no aggregator is heard", name, c.Fleet.Cluster)
	}
	for i := range c.Sources {
		s := &c.Sources[i]
		from := ""
		for _, key := range []string{"paths", "units", "listen", "bucket"} {
			if n := s.Kind.node.get(key); n != nil {
				from = " " + n.listed()
			}
		}
		say("reads %s: %s%s, format %s; lines up to %s late are detected", s.Name, s.Type, from, s.Format.Type, shortDuration(s.Lateness))
	}
	for i := range c.Sites {
		s := &c.Sites[i]
		workers := "an unknown number of workers: saturation stays silent"
		if s.Pool.Workers > 0 {
			workers = fmt.Sprintf("%d workers", s.Pool.Workers)
		}
		say("knows the site %s (%s) with %s", s.Name, strings.Join(s.Hosts, ", "), workers)
	}
	if len(c.Sites) == 0 && c.SiteDefaults.Pool.Workers == 0 {
		say("takes each host for a site, and knows no number of workers: saturation stays silent (site_defaults.pool.workers)")
	}
	var pages []string
	for _, r := range alerts.AllRules(c.ConfiguredRules()) {
		if strings.Contains(r.Severity, string(alerts.Page)) && !r.Disabled {
			pages = append(pages, r.Name)
		}
	}
	say("pages for %s", strings.Join(pages, ", "))
	for _, s := range c.Suppress {
		say("holds alerts back while %s is on", s.Name)
	}
	kept := fmt.Sprintf("keeps lines in %s, for %s and %d MiB at most", c.Spool.Dir, shortDuration(c.Spool.MaxAge), c.Spool.MaxBytes>>20)
	if c.Loki.URL == "" {
		say("%s, and ships none: loki.url is empty", kept)
	} else {
		say("ships lines to %s; until they are there it %s", hostOf(c.Loki.URL), kept)
	}
	people := false
	for i := range c.Notify {
		k := c.Notify[i].Kind
		to := ""
		if n := k.node.get("urls"); n != nil {
			var hosts []string
			for _, item := range n.items {
				hosts = append(hosts, hostOf(item.text))
			}
			to = " " + strings.Join(hosts, ", ")
		}
		people = people || k.Type != "stdout"
		say("tells %s%s", k.Type, to)
	}
	if !people {
		say("pages nobody: write an alertmanager or a webhook under notify")
	}
	return words
}

// listed is a text, or the texts of a list.
func (n *node) listed() string {
	if n.shape != listShape {
		return n.raw
	}
	var out []string
	for _, item := range n.items {
		out = append(out, item.raw)
	}
	return strings.Join(out, ", ")
}

// hostOf is the part of an address that holds no secret.
func hostOf(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Host
	}
	return redacted
}

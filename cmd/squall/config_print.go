package main

import (
	"encoding"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/squall-sre/squall/alerts"
)

// redacted stands where a secret was written in the file itself. It is a plain word, so that what is printed
// can be loaded again.
const redacted = "redacted"

const secretWords = `password|passwd|token|secret|authorization|credential|api_?key|hmac_key|access_key`

// secretKey matches the keys whose values are not shown. A key that ends in _file names a path, no secret.
var secretKey = regexp.MustCompile(`(?i)(?:` + secretWords + `)`)

// Effective writes the configuration as it is in effect, as YAML that can be loaded again. What was written
// as ${…} is written so again, unexpanded; passwords in URLs, headers and tokens are replaced by a word.
func (c *Config) Effective() ([]byte, error) {
	p := printer{secrets: secretsOf(c.root, nil)}
	return yaml.MarshalWithOptions(p.config(c), yaml.Indent(2), yaml.IndentSequence(true))
}

// secretsOf lists what came out of files, in case that a kind copied it to another field.
func secretsOf(n *node, found []string) []string {
	if n == nil {
		return found
	}
	if n.secret && len(n.text) >= 4 {
		found = append(found, n.text)
	}
	for _, f := range n.fields {
		found = secretsOf(f.value, found)
	}
	for _, item := range n.items {
		found = secretsOf(item, found)
	}
	return found
}

// A printer turns values back into YAML, with the nodes they came from at hand.
type printer struct {
	secrets []string
}

func (p printer) config(c *Config) yaml.MapSlice {
	out := p.structure(reflect.ValueOf(*c), c.root)
	for i, item := range out {
		switch item.Key {
		case "sources":
			out[i].Value = p.sources(c.Sources)
		case "notify":
			list := []any{}
			for _, n := range c.Notify {
				list = append(list, append(yaml.MapSlice{{Key: "type", Value: n.Type}}, p.receiver(n.Kind)...))
			}
			out[i].Value = list
		case "detectors":
			out[i].Value = p.detectors(c.Detectors)
		case "rules":
			out[i].Value = p.rules(c)
		case "sites":
			list := []any{}
			for j := range c.Sites {
				list = append(list, p.site(&c.Sites[j]))
			}
			out[i].Value = list
		}
	}
	return out
}

func (p printer) sources(sources []SourceConfig) []any {
	list := []any{}
	for i := range sources {
		s := &sources[i]
		entry := p.structure(reflect.ValueOf(*s), s.Kind.node)
		for j := range entry {
			if entry[j].Key == "format" {
				entry[j].Value = p.format(s.Format.Kind)
			}
		}
		list = append(list, append(entry, p.kind(s.Kind)...))
	}
	return list
}

func (p printer) format(k Kind) any {
	settings := p.kind(k)
	if k.node == nil || len(k.node.fields) == 0 { // written as a name: a name again
		return p.text("", k.Type, nil)
	}
	return append(yaml.MapSlice{{Key: "type", Value: k.Type}}, settings...)
}

func (p printer) site(s *SiteConfig) yaml.MapSlice {
	out := p.structure(reflect.ValueOf(*s), s.node)
	for i := range out {
		if out[i].Key == "detectors" {
			out[i].Value = p.detectors(s.Detectors)
		}
	}
	return out
}

// rules gives the shipped rules and the configured ones, as they are in effect.
func (p printer) rules(c *Config) []any {
	nodes := map[string]*node{}
	for _, r := range c.Rules {
		nodes[r.Name] = r.node
	}
	list := []any{}
	for _, r := range alerts.AllRules(c.ConfiguredRules()) {
		list = append(list, p.structure(reflect.ValueOf(r), nodes[r.Name]))
	}
	return list
}

func (p printer) detectors(list DetectorConfigs) yaml.MapSlice {
	out := yaml.MapSlice{}
	for _, k := range list {
		out = append(out, yaml.MapItem{Key: k.Type, Value: p.kind(k)})
	}
	return out
}

// receiver hides the path of a receiver's single address: of a webhook, the path is the key to the door.
func (p printer) receiver(k Kind) yaml.MapSlice {
	out := p.kind(k)
	for i, item := range out {
		text, ok := item.Value.(string)
		n := k.node.get("url")
		if item.Key != "url" || !ok || (n != nil && n.expanded) {
			continue
		}
		if u, err := url.Parse(text); err == nil && len(u.Path) > 1 {
			u.Path, u.RawPath = "/"+redacted, ""
			out[i].Value = u.String()
		}
	}
	return out
}

// kind gives a kind's settings: those in effect when the kind was made, else those that were written.
func (p printer) kind(k Kind) yaml.MapSlice {
	out := yaml.MapSlice{}
	if k.got != nil && *k.got != nil {
		v := reflect.ValueOf(*k.got).Elem()
		if v.Kind() == reflect.Struct {
			for _, item := range p.structure(v, k.node) {
				if name, _ := item.Key.(string); !slices.Contains(k.common, name) {
					out = append(out, item)
				}
			}
			return out
		}
	}
	if k.node == nil {
		return out
	}
	for _, f := range k.node.fields {
		if !slices.Contains(k.common, f.key) {
			out = append(out, yaml.MapItem{Key: f.key, Value: p.node(f.key, f.value)})
		}
	}
	return out
}

func (p printer) structure(v reflect.Value, n *node) yaml.MapSlice {
	out := yaml.MapSlice{}
	for _, f := range structFields(v.Type()) {
		x := v.FieldByIndex(f.index)
		if nilable := x.Kind() == reflect.Slice || x.Kind() == reflect.Map || x.Kind() == reflect.Pointer; nilable && x.IsNil() {
			continue // not given; an empty list may mean something else
		}
		out = append(out, yaml.MapItem{Key: f.key, Value: p.value(f.key, x, n.get(f.key))})
	}
	return out
}

// value gives one value as YAML's own types. key is the one it stands under.
func (p printer) value(key string, v reflect.Value, n *node) any {
	switch x := v.Interface().(type) {
	case time.Duration:
		return p.text(key, shortDuration(x), n)
	case encoding.TextMarshaler:
		if v.Kind() == reflect.Pointer && v.IsNil() {
			return nil
		}
		text, err := x.MarshalText()
		if err != nil {
			return p.text(key, "", n)
		}
		return p.text(key, string(text), n)
	case yaml.InterfaceMarshaler:
		if n != nil && n.shape == textShape {
			return p.text(key, n.text, n)
		}
		if as, err := x.MarshalYAML(); err == nil && as != nil && reflect.TypeOf(as) != v.Type() {
			return p.value(key, reflect.ValueOf(as), n)
		}
		return nil
	case Kind, FormatConfig:
		return nil // written by whoever knows the family
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return p.value(key, v.Elem(), n)
	case reflect.Struct:
		if n != nil && n.shape == textShape { // a struct that reads a short form
			return p.text(key, n.text, n)
		}
		return p.structure(v, n)
	case reflect.Map:
		return p.mapping(key, v, n)
	case reflect.Slice, reflect.Array:
		list := []any{}
		for i := range v.Len() {
			list = append(list, p.value(key, v.Index(i), n.item(i)))
		}
		return list
	case reflect.String:
		return p.text(key, v.String(), n)
	}
	return v.Interface()
}

func (p printer) mapping(key string, v reflect.Value, n *node) yaml.MapSlice {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	out := yaml.MapSlice{}
	for _, k := range keys {
		under := k.String()
		if isHeaders(key) {
			under = key
		}
		out = append(out, yaml.MapItem{Key: k.String(), Value: p.value(under, v.MapIndex(k), n.get(k.String()))})
	}
	return out
}

func isHeaders(key string) bool { return strings.HasSuffix(key, "headers") }

// node prints settings of a kind that was not made, as they were written.
func (p printer) node(key string, n *node) any {
	switch n.shape {
	case mapShape:
		out := yaml.MapSlice{}
		for _, f := range n.fields {
			under := f.key
			if isHeaders(key) {
				under = key
			}
			out = append(out, yaml.MapItem{Key: f.key, Value: p.node(under, f.value)})
		}
		return out
	case listShape:
		list := []any{}
		for _, item := range n.items {
			list = append(list, p.node(key, item))
		}
		return list
	case textShape:
		return p.text(key, n.text, n)
	}
	return n.plain()
}

// text gives a text so that it loads to what it was, unless it is a secret.
func (p printer) text(key, s string, n *node) string {
	if n != nil && n.shape == textShape && n.expanded && (s == n.text || n.secret) {
		return n.raw
	}
	if s == "" {
		return ""
	}
	if isHeaders(key) || (secretKey.MatchString(key) && !strings.HasSuffix(key, "_file")) {
		return redacted
	}
	for _, secret := range p.secrets {
		s = strings.ReplaceAll(s, secret, redacted)
	}
	return escape(maskURL(s))
}

// What a URL hides: who logs in, and the values of query parameters with a secret's name.
var (
	urlUser  = regexp.MustCompile(`://[^/?#\s"@]*(?:@[^/?#\s"@]*)*@`)
	urlQuery = regexp.MustCompile(`(?i)([?&](?:key|sig|[^=&\s"]*(?:` + secretWords + `)[^=&\s"]*)=)[^&\s"#]*`)
)

// maskURL hides the secrets of the URLs in a text.
func maskURL(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}
	s = urlUser.ReplaceAllString(s, "://"+redacted+"@")
	return urlQuery.ReplaceAllString(s, "${1}"+redacted)
}

// shortDuration writes 10m for Go's 10m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

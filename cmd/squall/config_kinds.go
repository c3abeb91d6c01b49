package main

import (
	"reflect"
	"time"
)

func addressable(p any) reflect.Value { return reflect.ValueOf(p).Elem() }

// decodeNode reads what every source has; the rest is the kind's.
func (s *SourceConfig) decodeNode(d *decoder, n *node) {
	type plain SourceConfig
	s.Format.Kind = newKind("auto", nil, nil)
	common := keysOf(reflect.TypeFor[SourceConfig]())
	d.openStructure(n, addressable((*plain)(s)))
	s.Kind = newKind(s.Type, n, common)
}

var notifyKeys = keysOf(reflect.TypeFor[NotifyConfig]())

// decodeNode reads the type; the rest is the kind's.
func (c *NotifyConfig) decodeNode(d *decoder, n *node) {
	type plain NotifyConfig
	d.openStructure(n, addressable((*plain)(c)))
	c.Kind = newKind(c.Type, n, notifyKeys)
}

// openStructure fills a struct of a kind's common keys and lets the others pass.
func (d *decoder) openStructure(n *node, v reflect.Value) {
	var others []string
	for _, f := range n.fields {
		others = append(others, f.key)
	}
	d.structure(n, v, others)
	if n.shape == mapShape && n.find("type") == nil {
		d.errs.add(n.at, "no type is given")
	}
}

// decodeNode reads a name or a mapping.
func (f *FormatConfig) decodeNode(d *decoder, n *node) {
	switch {
	case n.shape == textShape:
		f.Kind = newKind(n.text, &node{shape: mapShape, at: n.at}, []string{})
	case n.shape == mapShape && n.get("type") != nil:
		f.Kind = newKind(n.get("type").text, n, []string{"type"})
	default:
		d.errs.add(n.at, "want auto, a format's name, or a mapping with its type")
	}
}

// decodeNode keeps each detector's settings for the detector.
func (c *DetectorConfigs) decodeNode(d *decoder, n *node) {
	if n.shape != mapShape {
		d.errs.add(n.at, "want a mapping from a detector's name to its settings, not %s", n.shown())
		return
	}
	for _, f := range n.fields {
		if f.value.shape != mapShape && f.value.shape != nullShape {
			d.errs.add(f.value.at, "want a mapping of %s's settings, not %s", f.key, f.value.shown())
			continue
		}
		k := newKind(f.key, f.value, nil)
		*c = append(*c, k)
	}
}

// decodeNode keeps the node for positions.
func (s *SiteConfig) decodeNode(d *decoder, n *node) {
	type plain SiteConfig
	s.node = n
	d.structure(n, addressable((*plain)(s)), nil)
}

// decodeNode keeps the node for positions.
func (r *RuleConfig) decodeNode(d *decoder, n *node) {
	type plain RuleConfig
	r.node = n
	d.structure(n, addressable((*plain)(r)), nil)
}

// decodeNode reads a name or a mapping.
func (c *ControlConfig) decodeNode(d *decoder, n *node) {
	if n.shape == textShape {
		c.Name = n.text
		return
	}
	type plain ControlConfig
	d.structure(n, addressable((*plain)(c)), nil)
	if n.shape == mapShape && c.Name == "" {
		d.errs.add(n.at, "a control has no name")
	}
}

// decodeNode keeps the node for positions.
func (s *SuppressConfig) decodeNode(d *decoder, n *node) {
	type plain SuppressConfig
	s.node = n
	d.structure(n, addressable((*plain)(s)), nil)
}

// campaignLength is how long scanners are expected after a send.
const campaignLength = time.Hour

// decodeNode keeps the node for positions.
func (c *CampaignConfig) decodeNode(d *decoder, n *node) {
	type plain CampaignConfig
	c.node, c.For = n, campaignLength
	d.structure(n, addressable((*plain)(c)), nil)
}

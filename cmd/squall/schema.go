package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// configSchema is the JSON Schema of the configuration: what editors complete and check by. It is generated from the
// structures of the configuration and of every kind, and a test compares it with them: make readme.
//
//go:embed squall.schema.json
var configSchema []byte

// A schemaNode is the part of a JSON Schema that the manual's page shows.
type schemaNode struct {
	Description string
	Default     any
	Type        any
	Const       string
	Pattern     string
	Properties  map[string]*schemaNode
	Items       *schemaNode
	OneOf       []*schemaNode
	Extra       json.RawMessage `json:"additionalProperties"`
}

// values is what stands below a mapping of names to things of one kind.
func (n *schemaNode) values() *schemaNode {
	var inner schemaNode
	if len(n.Extra) == 0 || n.Extra[0] != '{' || json.Unmarshal(n.Extra, &inner) != nil {
		return nil
	}
	return &inner
}

// A schemaKey is one key of the configuration, by its path.
type schemaKey struct {
	path, typ, fallback, about string
}

// schemaKeys lists every key, in the order of its path.
func schemaKeys() ([]schemaKey, error) { return schemaKeysOf(configSchema) }

func schemaKeysOf(schema []byte) ([]schemaKey, error) {
	var root schemaNode
	if err := json.Unmarshal(schema, &root); err != nil {
		return nil, fmt.Errorf("the schema of the configuration: %w", err)
	}
	var out []schemaKey
	root.walk("", func(k schemaKey) { out = append(out, k) })
	return out, nil
}

func (n *schemaNode) walk(path string, tell func(schemaKey)) {
	names := make([]string, 0, len(n.Properties))
	for name := range n.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p := n.Properties[name]
		if p.Const != "" { // the type that tells which of several it is
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		k := schemaKey{path: at, typ: p.typeName(), about: p.Description}
		if p.Default != nil {
			text, err := json.Marshal(p.Default)
			if err == nil {
				k.fallback = string(text)
			}
		}
		tell(k)
		p.below(at, tell)
	}
}

// below goes into lists, mappings of names, and each of several alternatives.
func (n *schemaNode) below(at string, tell func(schemaKey)) {
	n.walk(at, tell)
	for _, o := range n.OneOf {
		if o.Properties != nil {
			o.walk(at, tell)
		}
	}
	if v := n.values(); v != nil && v.Properties != nil {
		v.walk(at+".NAME", tell)
	}
	if n.Items == nil {
		return
	}
	n.Items.walk(at+"[]", tell)
	for _, o := range n.Items.OneOf {
		kind := ""
		if t := o.Properties["type"]; t != nil && t.Const != "" {
			kind = "(" + t.Const + ")"
		}
		if kind != "" {
			tell(schemaKey{path: at + "[]" + kind, typ: "mapping", about: o.Description})
		}
		o.walk(at+"[]"+kind, tell)
	}
}

func (n *schemaNode) typeName() string {
	if strings.Contains(n.Pattern, "|ms|") {
		return "duration"
	}
	names := map[string]string{"object": "mapping", "array": "list", "string": "text", "boolean": "true or false"}
	switch t := n.Type.(type) {
	case string:
		if t == "array" && n.Items != nil {
			if of := n.Items.typeName(); of != "any" {
				return "list of " + strings.NewReplacer("text", "texts", "mapping", "mappings", "duration", "durations").Replace(of)
			}
		}
		if names[t] != "" {
			return names[t]
		}
		return t
	case []any: // of several, the first says it
		switch {
		case slices.Contains(t, any("number")):
			return "text"
		case slices.Contains(t, any("integer")):
			return "size"
		case slices.Contains(t, any("boolean")):
			return "true or false"
		}
		return "mapping"
	}
	if len(n.OneOf) > 0 {
		return "text or mapping"
	}
	return "any"
}

// configurationPage is squall.yaml(5).
func configurationPage() []byte {
	p := newManPage("squall.yaml", "5", "the configuration of squall")
	p.section("DESCRIPTION")
	p.WriteString(roff("YAML. Everything has a default but sources; keys that are not known are errors, told as file:line:column. "+
		"In texts ${NAME} stands for a variable of the environment, ${file:/path} for what a file holds, and "+
		"${credential:NAME} for a secret in "+credentialFolder+" or a credential of systemd; $$ is a dollar sign. "+
		"Durations are written 60s, 10m, 72h; sizes 64KiB, 2GiB; ratios are 0 to 1. squall check --config FILE tells faults and prints "+
		"what is in effect; squall check --schema prints the JSON Schema that this page is made of. "+
		"An example with every key: /usr/share/doc/squall/squall.example.yaml.") + "\n")
	p.section("KEYS")
	keys, err := schemaKeys()
	if err != nil { // it is part of the program, and a test reads it
		p.tagged("none", err.Error())
	}
	for _, k := range keys {
		about := k.typ
		if k.fallback != "" {
			about += ", default " + k.fallback
		}
		if k.about != "" {
			about += ": " + k.about
		}
		p.tagged(k.path, about)
	}
	p.section("SEE ALSO")
	p.WriteString("squall(1), squall\\-check(1), squall\\-init(1), squall\\-doctor(1)\n")
	return p.Bytes()
}

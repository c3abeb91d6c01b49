package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
	"github.com/squall-sre/squall/pipeline/source"
)

const (
	schemaPath = "../../deploy/squall.schema.json"
	schemaID   = "https://raw.githubusercontent.com/squall-sre/squall/main/deploy/squall.schema.json"
	// expandedText is a text that is known only when the file is loaded.
	expandedText = `\$\{`
)

type object = map[string]any

// A schemaMaker makes the schema of Go types from the types, and its descriptions from the comments beside their
// fields.
type schemaMaker struct {
	t    *testing.T
	docs map[string]string // by package path, type and field
}

func newSchemaMaker(t *testing.T) *schemaMaker {
	m := &schemaMaker{t: t, docs: map[string]string{}}
	for name, f := range goFiles(t) {
		pkg := module + "/" + filepath.ToSlash(filepath.Dir(name))
		ast.Inspect(f, func(n ast.Node) bool {
			typ, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := typ.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					text := strings.TrimSpace(field.Comment.Text())
					if text == "" {
						text = strings.TrimSpace(field.Doc.Text())
					}
					for _, id := range field.Names {
						m.docs[pkg+"."+typ.Name.Name+"."+id.Name] = strings.Join(strings.Fields(text), " ")
					}
				}
			}
			return true
		})
	}
	return m
}

// plainWords describe keys whose fields need no comment in the code.
var plainWords = map[string]string{
	"type": "which kind it is", "labels": "static labels", "name": "what it is called", "window": "how far back is looked", "format": "auto, a name, or a mapping with type",
	"timezone": "UTC, an IANA name, or an offset such as +0200: for lines whose times carry none", "addresses": "addresses and ranges",
	"at": "when", "from": "when it begins", "until": "when it ends", "severities": "which are covered; empty: all", "sites": "which are covered; empty: all",
	"p99": "of the time to answer", "per_minute": "requests a minute", "bucket": "its name", "burst": "requests to the API at once",
	"url": "an address", "resend": "how often what fires is told again", "http_config": "Prometheus' http_config: authorization, TLS, proxies",
	"basic_auth": "a user and a password", "username": "who logs in", "password": "a secret: ${credential:NAME}",
	"password_file": "a file with the password", "bearer_token": "a secret: ${credential:NAME}", "headers": "added to each request", "tls_config": "of the client",
	"ca_file": "certificates that are trusted", "cert_file": "the client's certificate", "key_file": "its key", "server_name": "that the certificate must have",
	"insecure_skip_verify": "trusts any certificate", "method": "in capitals", "dir": "a folder", "max_bytes": "the oldest lines go when it is full",
	"max_age": "older lines go", "listen": "host:port", "cluster": "its name in labels",
}

// structure is an object with a struct's keys, closed.
func (m *schemaMaker) structure(v reflect.Value, leave ...string) object {
	properties := object{}
	for _, f := range structFields(v.Type()) {
		if slices.Contains(leave, f.key) {
			continue
		}
		field := v.FieldByIndex(f.index)
		p := m.value(field)
		owner := v.Type()
		for _, i := range f.index[:len(f.index)-1] {
			owner = owner.Field(i).Type
		}
		goName := v.Type().FieldByIndex(f.index).Name
		about := m.docs[owner.PkgPath()+"."+owner.Name()+"."+goName]
		if about == "" {
			about = plainWords[f.key]
		}
		if about != "" {
			p["description"] = about
		}
		properties[f.key] = p
	}
	return object{"type": "object", "properties": properties, "additionalProperties": false}
}

// textTypes are what a text may look like: tenant_id: 1 and timezone: +0200 are numbers to YAML.
var textTypes = []string{"string", "number"}

func withDefault(p object, v any, zero bool) object {
	if !zero {
		p["default"] = v
	}
	return p
}

// value is the schema of one value, with what it holds as its default.
func (m *schemaMaker) value(v reflect.Value) object {
	switch x := v.Interface().(type) {
	case time.Duration:
		p := object{"type": "string", "pattern": `^([0-9.]+(ns|us|µs|ms|s|m|h))+$|^0$|` + expandedText}
		if x == 0 {
			p["type"] = []string{"string", "integer"}
		}
		return withDefault(p, shortDuration(x), x == 0)
	case pipeline.ByteSize:
		return withDefault(object{"type": []string{"string", "integer"}}, printer{}.value("", v, nil), x == 0)
	case FormatConfig:
		return m.format()
	case DetectorConfigs:
		return m.detectors()
	case []ControlConfig:
		one := m.structure(reflect.ValueOf(ControlConfig{}))
		return object{"type": "array", "items": object{"oneOf": []object{{"type": "string"}, one}}}
	case []SourceConfig:
		return m.kinds(reflect.TypeFor[SourceConfig](), source.Kinds(), families().Source)
	case []NotifyConfig:
		return m.kinds(reflect.TypeFor[NotifyConfig](), families().Notifiers, families().Notifier)
	case time.Time, *time.Time:
		return object{"type": "string", "format": "date-time"}
	case encoding.TextMarshaler:
		text, err := x.MarshalText()
		if err != nil || v.Kind() == reflect.Pointer && v.IsNil() {
			text = nil
		}
		return withDefault(object{"type": textTypes}, string(text), len(text) == 0 || v.IsZero())
	}
	if foreign := v.Type().PkgPath() != "" && !strings.HasPrefix(v.Type().PkgPath(), module); foreign {
		// What another's type reads of itself is in that one's manual.
		_, itself := reflect.New(v.Type()).Interface().(yaml.InterfaceUnmarshaler)
		switch {
		case v.Kind() != reflect.Struct && itself && v.Kind() != reflect.String, v.Type().Name() == "URL":
			return object{}
		case strings.Contains(v.Type().PkgPath(), "timeinterval"), v.Type().Name() == "Headers", v.Type().Name() == "ProxyConfig":
			return object{"type": "object"}
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		return m.value(reflect.New(v.Type().Elem()).Elem())
	case reflect.Struct:
		return m.structure(v)
	case reflect.Map:
		return object{"type": "object", "additionalProperties": m.value(reflect.New(v.Type().Elem()).Elem())}
	case reflect.Slice:
		p := object{"type": "array", "items": m.value(reflect.New(v.Type().Elem()).Elem())}
		return withDefault(p, v.Interface(), v.Len() == 0)
	case reflect.String:
		return withDefault(object{"type": textTypes}, v.String(), v.Len() == 0)
	case reflect.Bool:
		return object{"type": []string{"boolean", "string"}, "default": v.Bool()}
	case reflect.Interface:
		return object{}
	}
	kind := "number"
	if v.CanInt() || v.CanUint() {
		kind = "integer"
	}
	return object{"type": kind, "default": v.Interface()}
}

func (m *schemaMaker) format() object {
	named := m.structure(reflect.ValueOf(formatSettings{}))
	named["properties"].(object)["type"] = object{"type": "string", "description": "the format's name"}
	named["required"] = []string{"type"}
	return object{"default": "auto", "oneOf": []object{
		{"type": "string", "anyOf": []object{{"enum": format.Names()}, {"pattern": `^[a-z]+\+|` + expandedText}}}, named,
	}}
}

func (m *schemaMaker) detectors() object {
	properties := object{}
	for _, name := range detectors.Names() {
		h, _, err := detectors.HelpFor(name)
		if err != nil {
			m.t.Fatal(err)
		}
		p := m.settings(name, families().Detector)
		p["description"] = h.Watches
		p["type"] = []string{"object", "null"}
		properties[name] = p
	}
	return object{"type": "object", "properties": properties, "additionalProperties": false}
}

// settings is what a kind decodes, with the defaults it had filled in before.
func (m *schemaMaker) settings(name string, make family, leave ...string) object {
	k := newKind(name, &node{shape: mapShape, fields: []field{{key: "type", value: &node{shape: textShape, text: name}}}}, []string{"type"})
	_ = make(name, k.Decode) // what is missing is not the question
	if *k.got == nil {
		m.t.Fatalf("%s decodes no settings", name)
	}
	v := reflect.ValueOf(*k.got).Elem()
	if v.Kind() != reflect.Struct {
		m.t.Fatalf("%s decodes its settings into %s", name, v.Type())
	}
	return m.structure(v, leave...)
}

// kinds is a list whose items have the keys of a family and those of the kind that their type names.
func (m *schemaMaker) kinds(family reflect.Type, names []string, make family) object {
	var variants []object
	for _, name := range names {
		v := reflect.New(family).Elem()
		if s, ok := v.Addr().Interface().(*SourceConfig); ok {
			s.Lateness = defaultLateness
			if d, ok := latenessOf[name]; ok {
				s.Lateness = d
			}
		}
		all := m.structure(v)
		properties := all["properties"].(object)
		own := m.settings(name, make, keysOf(family)...)
		maps.Copy(properties, own["properties"].(object))
		properties["type"] = object{"const": name}
		all["required"] = []string{"type"}
		all["description"] = name
		if reads := source.Reads(name); reads != "" {
			all["description"] = reads
		}
		variants = append(variants, all)
	}
	return object{"type": "array", "items": object{"type": "object", "oneOf": variants}}
}

// generated holds the schema, which takes a second to make.
var generated struct {
	sync.Mutex
	text []byte
}

func generatedSchema(t *testing.T) []byte {
	t.Helper()
	generated.Lock()
	defer generated.Unlock()
	if generated.text == nil {
		generated.text = makeSchema(t)
	}
	return generated.text
}

func makeSchema(t *testing.T) []byte {
	t.Helper()
	m := newSchemaMaker(t)
	root := m.structure(reflect.ValueOf(*defaults()))
	root["$schema"] = "http://json-schema.org/draft-07/schema#" // what editors know best
	root["$id"] = schemaID
	root["title"] = "squall's configuration"
	text, err := json.MarshalIndent(root, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// TestSchemaIsTheCodes holds that the schema in deploy/ and the one in the program are what the code says.
func TestSchemaIsTheCodes(t *testing.T) {
	want := generatedSchema(t)
	for _, path := range []string{schemaPath, "squall.schema.json"} {
		compareGenerated(t, path, want)
	}
}

// compareGenerated holds that a file is what is generated from the code, or writes it: make readme.
func compareGenerated(t *testing.T, path string, want []byte) {
	t.Helper()
	if *writeReadme {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // it is for everybody to read
			t.Fatal(err)
		}
		if err := os.WriteFile(path, want, 0o644); err != nil { //nolint:gosec // it is for everybody to read
			t.Fatal(err)
		}
		return
	}
	is, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(is, want) {
		t.Errorf("%s is not what the code says: make readme", path)
	}
}

// validate checks a configuration by the schema, as an editor does.
func validateBySchema(t *testing.T, text []byte) error {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(generatedSchema(t)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaID, schema); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile(schemaID)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return err
	}
	asJSON, err := json.Marshal(v)
	if err != nil {
		return err
	}
	in, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		return err
	}
	return compiled.Validate(in)
}

// TestSchemaTakesWhatLoads holds that editors do not complain of a configuration that squall loads, and that they do of
// what it refuses.
func TestSchemaTakesWhatLoads(t *testing.T) {
	good := 0
	for _, pattern := range []string{"../../deploy/*.yaml", "../../deploy/package/squall.yaml", "testdata/config/*/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := LoadValid(path, func(string) (string, bool) { return "x", true }, families()); err != nil {
				continue // its fault may be one that no schema can tell
			}
			good++
			if err := validateBySchema(t, text); err != nil {
				t.Errorf("%s loads, and the schema refuses it: %v", path, err)
			}
		}
	}
	if good < 2 {
		t.Fatalf("%d configurations were looked at", good)
	}
	for _, bad := range []string{
		"surces: []", "sources: [{type: fil}]", "sources: [{type: file, path: x}]", "pane: 10", "detectors: {head_strom: {}}",
		"detectors: {latency: {p98: 3s}}", "notify: [{type: stdout, url: x}]", "loki: {ulr: x}", "sites: [{name: a, pool: {worker: 1}}]",
		"sources: [{type: stdin, format: {type: nginx, log_fromat: x}}]", "sources: [{type: stdin, format: ngnix}]",
	} {
		if validateBySchema(t, []byte(bad)) == nil {
			t.Errorf("the schema takes %s", bad)
		}
	}
}

// TestSchemaDescribesEveryKey holds that no key of squall's own stands without a word.
func TestSchemaDescribesEveryKey(t *testing.T) {
	keys, err := schemaKeysOf(generatedSchema(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) < 150 {
		t.Fatalf("%d keys", len(keys))
	}
	for _, k := range keys {
		if k.about == "" && !strings.Contains(k.path, "http_config.") && !strings.Contains(k.path, "backoff_config.") {
			t.Errorf("%s is not described: write a comment beside its field", k.path)
		}
	}
}

package main

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// A decoder fills Go values from nodes, strictly, and collects every fault with its place.
type decoder struct {
	errs configErrors
}

// A nodeDecoder is a part of the configuration that reads its node itself.
type nodeDecoder interface {
	decodeNode(d *decoder, n *node)
}

// A Kind is one configured entry of a family (a source, a format, a notifier, a detector): its name in the
// family's table and its settings, which only the kind knows.
type Kind struct {
	Type string

	node   *node
	common []string // keys of the node that are not the kind's
	got    *any     // what Decode last filled: the settings in effect, with the kind's defaults
}

func newKind(typ string, n *node, common []string) Kind {
	return Kind{Type: typ, node: n, common: common, got: new(any)}
}

// Decode fills the kind's settings, strictly. Errors carry file:line:column.
func (k Kind) Decode(settings any) error {
	if k.got != nil {
		*k.got = settings
	}
	return k.fill(settings)
}

func (k Kind) fill(settings any) error {
	v := reflect.ValueOf(settings)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("decode into %T: want a pointer", settings)
	}
	if k.node == nil {
		return nil
	}
	d := &decoder{}
	if k.common != nil && v.Elem().Kind() == reflect.Struct {
		d.structure(k.node, v.Elem(), k.common)
	} else {
		d.value(k.node, v.Elem())
	}
	return d.errs.sorted()
}

// At puts an error that names no place at this entry's.
func (k Kind) At(err error) error {
	if err == nil || k.node == nil {
		return err
	}
	var errs configErrors
	errs.take(k.node.at, k.Type, err)
	return errs
}

// over gives the settings of k with those of the entry above it laid over them.
func (k Kind) over(above Kind) Kind {
	return Kind{Type: k.Type, node: layered(k.node, above.node)}
}

// layered gives a mapping with the keys of both, the upper one's first.
func layered(lower, upper *node) *node {
	if lower == nil || upper == nil || lower.shape != mapShape || upper.shape != mapShape {
		if upper != nil {
			return upper
		}
		return lower
	}
	out := &node{shape: mapShape, at: upper.at, fields: append([]field(nil), upper.fields...)}
	for _, f := range lower.fields {
		if out.get(f.key) == nil {
			out.fields = append(out.fields, f)
		}
	}
	return out
}

// A structField is a field of a Go struct with the key it is written under.
type structField struct {
	key   string
	index []int
}

// structFields lists the keys of a struct, by goccy/go-yaml's tags; inlined structs are part of it.
func structFields(t reflect.Type) []structField {
	var out []structField
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if strings.Contains(options, "inline") && f.Type.Kind() == reflect.Struct {
			for _, inner := range structFields(f.Type) {
				out = append(out, structField{inner.key, append([]int{i}, inner.index...)})
			}
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		out = append(out, structField{name, []int{i}})
	}
	return out
}

func keysOf(t reflect.Type) []string {
	var out []string
	for _, f := range structFields(t) {
		out = append(out, f.key)
	}
	return out
}

// value fills v from n. Nothing (null) leaves the default.
func (d *decoder) value(n *node, v reflect.Value) {
	if n == nil || n.shape == nullShape {
		return
	}
	if v.CanAddr() && d.itself(n, v.Addr()) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.value(n, v.Elem())
	case reflect.Struct:
		d.structure(n, v, nil)
	case reflect.Map:
		d.mapping(n, v)
	case reflect.Slice:
		d.list(n, v)
	case reflect.Interface:
		if v.NumMethod() > 0 {
			d.errs.add(n.at, "%s cannot be configured", v.Type())
			return
		}
		v.Set(reflect.ValueOf(n.plain())) // not nil: null was turned away above
	default:
		d.scalar(n, v)
	}
}

// itself lets a value that can read its own configuration do so.
func (d *decoder) itself(n *node, p reflect.Value) bool {
	switch u := p.Interface().(type) {
	case nodeDecoder:
		u.decodeNode(d, n)
	case *time.Duration:
		d.duration(n, u)
	case *time.Time:
		var err error
		if *u, err = time.Parse(time.RFC3339, n.text); err != nil {
			d.errs.add(n.at, "%s is no time: write 2026-07-01T10:00:00+02:00", n.shown())
		}
	case yaml.InterfaceUnmarshaler:
		d.errs.take(n.at, "", u.UnmarshalYAML(Kind{node: n}.fill))
	case yaml.BytesUnmarshaler:
		text, err := yaml.Marshal(n.plain())
		if err == nil {
			err = u.UnmarshalYAML(text)
		}
		d.errs.take(n.at, "", err)
	case encoding.TextUnmarshaler:
		if n.shape == mapShape || n.shape == listShape {
			d.errs.add(n.at, "want one value, not %s", n.shape)
			return true
		}
		if err := u.UnmarshalText([]byte(n.text)); err != nil {
			if n.secret { // the message may quote the value
				err = fmt.Errorf("%s is not valid", n.shown())
			}
			d.errs.take(n.at, "", err)
		}
	default:
		return false
	}
	return true
}

// structure fills a struct; keys that are neither the struct's nor in others are faults.
func (d *decoder) structure(n *node, v reflect.Value, others []string) {
	if n.shape != mapShape {
		d.errs.add(n.at, "want a mapping of %s, not %s", strings.Join(keysOf(v.Type()), ", "), n.shown())
		return
	}
	fields := structFields(v.Type())
	known := append(keysOf(v.Type()), others...)
	for _, f := range n.fields {
		if !slices.Contains(known, f.key) {
			d.errs.add(f.at, "%s", unknown("key", f.key, known))
		}
	}
	for _, f := range fields {
		if value := n.get(f.key); value != nil {
			d.value(value, v.FieldByIndex(f.index))
		}
	}
}

func (d *decoder) mapping(n *node, v reflect.Value) {
	if n.shape != mapShape {
		d.errs.add(n.at, "want a mapping, not %s", n.shown())
		return
	}
	if v.Type().Key().Kind() != reflect.String {
		d.errs.add(n.at, "%s cannot be configured", v.Type())
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(n.fields))
	for _, f := range n.fields {
		value := reflect.New(v.Type().Elem()).Elem()
		d.value(f.value, value)
		out.SetMapIndex(reflect.ValueOf(f.key).Convert(v.Type().Key()), value)
	}
	v.Set(out)
}

func (d *decoder) list(n *node, v reflect.Value) {
	if n.shape == mapShape {
		d.errs.add(n.at, "want a list, not a mapping: write - before it, or [ ] around it")
		return
	}
	if n.shape != listShape {
		d.errs.add(n.at, "want a list, not %s: write [%s]", n.shown(), n.raw)
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, item := range n.items {
		d.value(item, out.Index(i))
	}
	v.Set(out)
}

func (d *decoder) scalar(n *node, v reflect.Value) {
	if n.shape == mapShape && v.Kind() == reflect.String {
		d.errs.add(n.at, "want one value, not %s: a text with a colon in it needs quotes", n.shape)
		return
	}
	if n.shape == mapShape || n.shape == listShape {
		d.errs.add(n.at, "want one value, not %s", n.shape)
		return
	}
	switch k := v.Kind(); {
	case k == reflect.String:
		v.SetString(n.text)
	case k == reflect.Bool:
		if b, err := strconv.ParseBool(n.text); err == nil && (n.shape == boolShape || n.expanded) {
			v.SetBool(b)
			return
		}
		d.errs.add(n.at, "want true or false, not %s", n.shown())
	case v.CanInt():
		i, err := strconv.ParseInt(strings.ReplaceAll(n.text, "_", ""), 10, v.Type().Bits())
		if err != nil || (n.shape != integerShape && !n.expanded) {
			d.errs.add(n.at, "want an integer, not %s", n.shown())
			return
		}
		v.SetInt(i)
	case v.CanUint():
		i, err := strconv.ParseUint(strings.ReplaceAll(n.text, "_", ""), 10, v.Type().Bits())
		if err != nil || (n.shape != integerShape && !n.expanded) {
			d.errs.add(n.at, "want an integer from 0 up, not %s", n.shown())
			return
		}
		v.SetUint(i)
	case v.CanFloat():
		f, err := strconv.ParseFloat(n.text, v.Type().Bits())
		number := n.shape == integerShape || n.shape == floatShape || n.expanded
		if err != nil || !number || math.IsNaN(f) || math.IsInf(f, 0) {
			d.errs.add(n.at, "want a number, not %s", n.shown())
			return
		}
		v.SetFloat(f)
	default:
		d.errs.add(n.at, "%s cannot be configured", v.Type())
	}
}

func (d *decoder) duration(n *node, v *time.Duration) {
	got, err := time.ParseDuration(n.text)
	switch {
	case n.shape == mapShape || n.shape == listShape || n.shape == boolShape:
		err = fmt.Errorf("want a duration, not %s", n.shown())
	case err != nil && n.shape == integerShape:
		err = fmt.Errorf("%s has no unit: write %ss or %sm", n.shown(), n.text, n.text)
	case err != nil:
		err = fmt.Errorf("%s is not a duration: write 60s, 10m or 72h", n.shown())
	case got < 0:
		err = fmt.Errorf("%s is negative", n.shown())
	}
	if err != nil {
		d.errs.take(n.at, "", err)
		return
	}
	*v = got
}

// plain gives a node as YAML's own types, for settings that are not a struct.
func (n *node) plain() any {
	switch n.shape {
	case mapShape:
		out := make(map[string]any, len(n.fields))
		for _, f := range n.fields {
			out[f.key] = f.value.plain()
		}
		return out
	case listShape:
		out := make([]any, len(n.items))
		for i, item := range n.items {
			out[i] = item.plain()
		}
		return out
	case integerShape:
		if i, err := strconv.ParseInt(n.text, 0, 64); err == nil {
			return i
		}
	case floatShape:
		if f, err := strconv.ParseFloat(n.text, 64); err == nil {
			return f
		}
	case boolShape:
		return n.text == "true"
	case nullShape:
		return nil
	}
	return n.text
}

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a configuration file. Aliases are followed, so that the nodes are counted, not the bytes.
const (
	maxConfigBytes = 4 << 20
	maxConfigDepth = 64
	maxConfigNodes = 200_000
	maxSecretBytes = 64 << 10
)

// shape is what a node of the configuration is.
type shape uint8

const (
	nullShape shape = iota
	textShape
	integerShape
	floatShape
	boolShape
	mapShape
	listShape
)

var shapeNames = [...]string{"nothing", "a text", "an integer", "a number", "true or false", "a mapping", "a list"}

func (s shape) String() string { return shapeNames[s] }

// A node is a value of the configuration file with its place: aliases and merges resolved, ${…} expanded.
type node struct {
	shape shape
	at    position

	text     string // of a scalar, expanded
	raw      string // of a scalar, as written
	expanded bool   // text came from ${…}
	secret   bool   // a part of text came from ${file:…}

	fields []field // of a mapping, in the order of the file
	items  []*node // of a list
}

// A field is one key of a mapping.
type field struct {
	key   string
	at    position
	value *node
}

// get returns the value of a key, nil when there is none or n is no mapping.
func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	for _, f := range n.fields {
		if f.key == key {
			return f.value
		}
	}
	return nil
}

// find walks down keys of mappings.
func (n *node) find(path ...string) *node {
	for _, key := range path {
		n = n.get(key)
	}
	return n
}

// place is where the value at a path stands, or where the nearest thing above it does.
func (n *node) place(path ...string) position {
	if n == nil {
		return position{}
	}
	at := n.at
	for _, key := range path {
		n = n.get(key)
		if n == nil {
			break
		}
		at = n.at
	}
	return at
}

// item returns the i-th item, nil when there is none.
func (n *node) item(i int) *node {
	if n == nil || i >= len(n.items) {
		return nil
	}
	return n.items[i]
}

// follow is place of a path with places in lists, as in sites[0].hosts[1].
func (n *node) follow(path string) position {
	at := n.at
	for step := range strings.SplitSeq(strings.NewReplacer("[", ".", "]", "").Replace(path), ".") {
		if i, err := strconv.Atoi(step); err == nil {
			n = n.item(i)
		} else {
			n = n.get(step)
		}
		if n == nil {
			break
		}
		at = n.at
	}
	return at
}

// holds tells whether a place is that of a node or of one below it.
func (n *node) holds(at position) bool {
	return n != nil && (n.at == at || slices.ContainsFunc(n.items, func(item *node) bool { return item.holds(at) }) ||
		slices.ContainsFunc(n.fields, func(f field) bool { return f.at == at || f.value.holds(at) }))
}

// texts are those of a list.
func (n *node) texts() (texts []string) {
	for i := 0; n.item(i) != nil; i++ {
		texts = append(texts, n.item(i).text)
	}
	return texts
}

// shown is the text for an error message: what came from a file or from the environment is not shown.
func (n *node) shown() string {
	switch {
	case n.shape == mapShape || n.shape == listShape || n.shape == nullShape:
		return n.shape.String()
	case n.expanded:
		return fmt.Sprintf("the value of %q", n.raw)
	}
	return fmt.Sprintf("%q", n.text)
}

// A treeReader turns goccy's syntax tree into nodes.
type treeReader struct {
	file    string
	env     func(string) (string, bool)
	anchors map[string]ast.Node
	errs    configErrors
	count   int
	spent   bool // over maxConfigNodes: said once
}

// readTree parses a configuration. A file without a document is an empty mapping. An error says that there is
// nothing to go on with; faults of single values are in the list. Without an env texts stand as they are written.
func readTree(file string, text []byte, env func(string) (string, bool)) (*node, configErrors, error) {
	r := &treeReader{file: file, env: env, anchors: map[string]ast.Node{}}
	empty := &node{shape: mapShape, at: position{file, 1, 1}}
	if len(text) > maxConfigBytes {
		return nil, nil, configErrors{{position{file: file}, fmt.Sprintf("the file is larger than %d bytes", maxConfigBytes)}}
	}
	parsed, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, nil, configErrors{r.syntax(err)}
	}
	root := empty
	seen := false
	for _, doc := range parsed.Docs {
		if doc.Body == nil {
			continue
		}
		if seen {
			r.errs.add(r.place(doc.Body.GetToken()), "a second document: a configuration is one")
			break
		}
		seen = true
		root = r.node(doc.Body, 0)
	}
	if root.shape == nullShape {
		root = empty
	}
	if r.spent {
		return nil, nil, r.errs
	}
	return root, r.errs, nil
}

func (r *treeReader) syntax(err error) configError {
	var located yaml.Error
	if errors.As(err, &located) && located.GetToken() != nil {
		message := located.GetMessage()
		if strings.Contains(message, "'\t'") {
			message = "a tab: YAML indents by spaces"
		}
		return configError{r.place(located.GetToken()), message}
	}
	return configError{position{file: r.file}, err.Error()}
}

func (r *treeReader) place(t *token.Token) position {
	if t == nil || t.Position == nil {
		return position{r.file, 1, 1}
	}
	return position{r.file, t.Position.Line, t.Position.Column}
}

// node makes one node and all below it.
func (r *treeReader) node(n ast.Node, depth int) *node {
	out := &node{}
	if n == nil {
		return out
	}
	out.at = r.place(n.GetToken())
	if r.count++; r.count > maxConfigNodes || depth > maxConfigDepth {
		if !r.spent {
			r.spent = true
			r.errs.add(out.at, "too many values, or nested too deeply: an alias may repeat itself")
		}
		return out
	}
	switch n := n.(type) {
	case *ast.AnchorNode:
		r.anchors[n.Name.GetToken().Value] = n.Value
		return r.node(n.Value, depth+1)
	case *ast.AliasNode:
		target, ok := r.anchors[n.Value.GetToken().Value]
		if !ok {
			r.errs.add(out.at, "alias of an unknown anchor %q", n.Value.GetToken().Value)
			return out
		}
		return r.node(target, depth+1)
	case *ast.TagNode:
		r.errs.add(out.at, "tags such as %s are not used here", n.Start.Value)
	case *ast.MappingNode:
		r.mapping(out, n.Values, depth)
	case *ast.MappingValueNode:
		r.mapping(out, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		out.shape = listShape
		for _, v := range n.Values {
			out.items = append(out.items, r.node(v, depth+1))
		}
	default:
		r.scalar(out, n)
	}
	return out
}

func (r *treeReader) scalar(out *node, n ast.Node) {
	switch n := n.(type) {
	case *ast.StringNode:
		out.shape, out.raw = textShape, n.Value
	case *ast.LiteralNode:
		out.shape, out.raw = textShape, n.Value.Value
	case *ast.IntegerNode:
		out.shape, out.raw = integerShape, n.Token.Value
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.shape, out.raw = floatShape, n.GetToken().Value
	case *ast.BoolNode:
		out.shape, out.raw = boolShape, n.Token.Value
	case *ast.NullNode:
	default:
		r.errs.add(out.at, "%s is not expected here", strings.ToLower(n.Type().String()))
	}
	out.text = out.raw
	if out.shape != textShape || r.env == nil {
		return
	}
	x := expansion{env: r.env}
	text, err := x.expand(out.raw)
	if err != nil {
		r.errs.add(out.at, "%v", err)
		out.shape = nullShape // said: nothing more is to be found in it
		return
	}
	out.text, out.expanded, out.secret = text, x.expanded, x.secret
}

func (r *treeReader) mapping(out *node, values []*ast.MappingValueNode, depth int) {
	out.shape = mapShape
	var merged []field
	for i, v := range values {
		at := r.place(v.Key.GetToken())
		if i == 0 {
			out.at = at
		}
		if v.Key.IsMergeKey() {
			merged = append(merged, r.merge(v.Value, depth)...)
			continue
		}
		key := v.Key.GetToken().Value
		if s, ok := v.Key.(*ast.StringNode); ok {
			key = s.Value
		}
		if out.get(key) != nil {
			r.errs.add(at, "key %q is given twice", key)
			continue
		}
		value := r.node(v.Value, depth+1)
		if value.shape == nullShape { // an empty value has no token of its own worth showing
			value.at = at
		}
		out.fields = append(out.fields, field{key, at, value})
	}
	for _, f := range merged { // what the mapping says itself wins; of several merges, the first
		if out.get(f.key) == nil {
			out.fields = append(out.fields, f)
		}
	}
}

func (r *treeReader) merge(v ast.Node, depth int) []field {
	n := r.node(v, depth+1)
	switch n.shape {
	case mapShape:
		return n.fields
	case listShape:
		var all []field
		for _, item := range n.items {
			all = append(all, item.fields...)
		}
		return all
	}
	r.errs.add(n.at, "<< wants a mapping, not %s", n.shown())
	return nil
}

// An expansion replaces ${NAME}, ${file:/path} and ${credential:NAME} in one text; $$ is a dollar sign. What comes out is never
// read as YAML again.
type expansion struct {
	env              func(string) (string, bool)
	expanded, secret bool
}

func (x *expansion) expand(s string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "$$"):
			out.WriteByte('$')
			x.expanded = true
			i += 2
		case strings.HasPrefix(s[i:], "${"):
			end := closing(s[i:])
			if end < 0 {
				return "", errors.New("${ without }: write $${ for the characters themselves")
			}
			value, err := x.reference(s[i+2 : i+end])
			if err != nil {
				return "", err
			}
			x.expanded = true
			out.WriteString(value)
			i += end + 1
		default:
			out.WriteByte(s[i])
			i++
		}
	}
	return out.String(), nil
}

// closing finds the brace that ends the reference at the start of s.
func closing(s string) int {
	depth := 0
	for i := range len(s) {
		switch {
		case s[i] == '$' && i+1 < len(s) && s[i+1] == '{':
			depth++
		case s[i] == '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// reference gives what stands for the inside of ${…}. The path of a file may hold ${NAME}.
func (x *expansion) reference(name string) (string, error) {
	if credential, ok := strings.CutPrefix(name, "credential:"); ok {
		path, err := x.credential(credential)
		if err != nil {
			return "", err
		}
		x.secret = true
		return readSecret(path)
	}
	path, isFile := strings.CutPrefix(name, "file:")
	if !isFile {
		value, ok := x.env(name)
		if !ok {
			return "", fmt.Errorf("environment variable %q is not set (write $${%s} for the characters themselves)", name, name)
		}
		return value, nil
	}
	inner := expansion{env: x.env}
	path, err := inner.expand(path)
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("${file:%s}: the path must be absolute", path)
	}
	x.secret = true
	return readSecret(path)
}

// credentialFolder is where whoever runs squall puts its credentials, and the unit's LoadCredential finds them.
const credentialFolder = "/etc/squall/credentials"

// credential is the file of a credential: that of systemd, by its own name or by the name that it has as one of the
// unit's folder; without systemd, as for `squall check` by hand, the one in the folder itself.
func (x *expansion) credential(name string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/${}") {
		return "", fmt.Errorf("${credential:%s}: want the name of a file in %s, without a folder", name, credentialFolder)
	}
	dir, ok := x.env("CREDENTIALS_DIRECTORY")
	if !ok || dir == "" {
		return filepath.Join(credentialFolder, name), nil
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		path = filepath.Join(dir, "squall_"+name)
	}
	return path, nil
}

func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxSecretBytes {
		return "", fmt.Errorf("%s is larger than %d bytes", path, maxSecretBytes)
	}
	return strings.TrimSpace(string(text)), nil
}

// escape writes a text so that expand gives it back.
func escape(s string) string {
	var out strings.Builder
	for i := range len(s) {
		if s[i] == '$' && i+1 < len(s) && (s[i+1] == '$' || s[i+1] == '{') {
			out.WriteByte('$')
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

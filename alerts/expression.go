package alerts

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/types"
	"github.com/expr-lang/expr/vm"

	"github.com/squall-sre/squall/detectors"
)

// maxNodes bounds an expression: rules are short.
const maxNodes = 500

// active is the field that a detector's bare name stands for.
const active = "active"

// numberFields are the numbers of detectors.Evidence by their names in JSON: what an expression may read.
var numberFields = evidenceFields(reflect.TypeFor[detectors.Num]())

// evidenceFields maps JSON names to field indices for the fields of one type.
func evidenceFields(of reflect.Type) map[string]int {
	fields := map[string]int{}
	t := reflect.TypeFor[detectors.Evidence]()
	for i := range t.NumField() {
		if t.Field(i).Type == of {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			fields[name] = i
		}
	}
	return fields
}

// detectorType is what an expression sees of a detector.
func detectorType() types.Map {
	m := types.Map{
		active: types.Bool, "value": types.Float64, "threshold": types.Float64, "peak": types.Float64,
		"method": types.String, "route": types.String, "p99_censored": types.Bool,
	}
	for name := range numberFields {
		m[name] = types.Float64
	}
	return m
}

// inactive is a detector that found nothing: every number is NaN, so that comparisons with it are false.
func inactive() map[string]any {
	m := map[string]any{
		active: false, "value": math.NaN(), "threshold": math.NaN(), "peak": math.NaN(),
		"method": "", "route": "", "p99_censored": false,
	}
	for name := range numberFields {
		m[name] = math.NaN()
	}
	return m
}

// view is what an expression sees of a detection.
func view(d *detectors.Detection) map[string]any {
	m := map[string]any{
		active: true, "value": d.Value, "threshold": d.Threshold, "peak": d.Peak,
		"method": d.Evidence.Method, "route": d.Evidence.Route, "p99_censored": d.Evidence.P99Censored,
	}
	e := reflect.ValueOf(&d.Evidence).Elem()
	for name, i := range numberFields {
		m[name] = e.Field(i).Interface().(detectors.Num).Get()
	}
	return m
}

// An expression is a checked program and the detectors it reads, in the order in which it names them.
type expression struct {
	program *vm.Program
	reads   []string
}

// compile checks an expression over detectors.
func compile(text string, known []string, kind reflect.Kind) (*expression, error) {
	tree, err := parser.Parse(text)
	if err != nil {
		return nil, positioned(text, err)
	}
	names := &nameCheck{known: known, declared: map[string]bool{}}
	ast.Walk(&tree.Node, names)
	if err := names.check(); err != nil {
		return nil, positioned(text, err)
	}
	env := types.Map{}
	for _, name := range known {
		env[name] = detectorType()
	}
	bare := &bareNames{known: known, made: map[ast.Node]bool{}}
	program, err := expr.Compile(text, expr.Env(env), expr.AsKind(kind), expr.Patch(bare), expr.MaxNodes(maxNodes))
	if err != nil {
		return nil, positioned(text, err)
	}
	return &expression{program, names.reads}, nil
}

// run evaluates with what was found; every detector that the expression reads and found lacks is inactive.
func (e *expression) run(found map[string]*detectors.Detection) (any, error) {
	env := make(map[string]any, len(e.reads))
	for _, name := range e.reads {
		if d := found[name]; d != nil {
			env[name] = view(d)
		} else {
			env[name] = inactive()
		}
	}
	return expr.Run(e.program, env)
}

// holds evaluates a condition. One that cannot be evaluated does not hold.
func (e *expression) holds(found map[string]*detectors.Detection) (bool, error) {
	v, err := e.run(found)
	if err != nil {
		return false, err
	}
	b, _ := v.(bool)
	return b, nil
}

// bareNames turns a detector's name used alone into its field active. Children are visited before their parents,
// so the name within name.value is turned too, and turned back when its parent comes.
type bareNames struct {
	known []string
	made  map[ast.Node]bool
}

// Visit implements ast.Visitor.
func (b *bareNames) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		if slices.Contains(b.known, n.Value) {
			member := &ast.MemberNode{Node: n, Property: &ast.StringNode{Value: active}}
			ast.Patch(node, member)
			b.made[member] = true
		}
	case *ast.MemberNode:
		if inner, ok := n.Node.(*ast.MemberNode); ok && b.made[inner] {
			n.Node = inner.Node
		}
	}
}

// nameCheck finds the names that are neither a detector nor one of its fields, to say which was meant.
type nameCheck struct {
	known    []string
	declared map[string]bool
	idents   []*ast.IdentifierNode
	reads    []string
	err      *file.Error
}

// Visit implements ast.Visitor.
func (c *nameCheck) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.VariableDeclaratorNode:
		c.declared[n.Name] = true
	case *ast.IdentifierNode:
		c.idents = append(c.idents, n)
	case *ast.BinaryNode:
		if slices.Contains([]string{"<", "<=", ">", ">=", "==", "!="}, n.Operator) {
			c.ratio(n.Left, n.Right)
			c.ratio(n.Right, n.Left)
		}
	case *ast.MemberNode:
		detector, ok := n.Node.(*ast.IdentifierNode)
		field, isName := n.Property.(*ast.StringNode)
		if !ok || !isName || !slices.Contains(c.known, detector.Value) {
			return
		}
		fields := detectorType()
		if _, ok := fields[field.Value]; !ok && c.err == nil {
			names := make([]string, 0, len(fields))
			for name := range fields {
				names = append(names, name)
			}
			c.err = unknown("field of "+detector.Value, field.Value, names, n.Property.Location())
		}
	}
}

// isRatio tells whether a number of the evidence is a part of a whole. How many times the usual a rate is, is none.
func isRatio(field string) bool {
	return field != "baseline_ratio" && (strings.HasSuffix(field, "_ratio") || strings.HasSuffix(field, "_share"))
}

// ratio finds a ratio that is compared with a number it never reaches, most often a percentage.
func (c *nameCheck) ratio(side, other ast.Node) {
	member, ok := side.(*ast.MemberNode)
	if !ok {
		return
	}
	field, ok := member.Property.(*ast.StringNode)
	if _, number := numberFields[nameOf(field)]; !ok || !number || !isRatio(field.Value) {
		return
	}
	var n float64
	switch v := other.(type) {
	case *ast.IntegerNode:
		n = float64(v.Value)
	case *ast.FloatNode:
		n = v.Value
	}
	if n <= 1 || c.err != nil {
		return
	}
	msg := fmt.Sprintf("%s is a ratio of 0 to 1 and never %v", field.Value, n)
	if n <= 100 {
		msg += fmt.Sprintf(": write %v for %v %%", n/100, n)
	}
	c.err = &file.Error{Location: other.Location(), Message: msg}
}

func nameOf(n *ast.StringNode) string {
	if n == nil {
		return ""
	}
	return n.Value
}

func (c *nameCheck) check() error {
	for _, n := range c.idents {
		switch {
		case slices.Contains(c.known, n.Value):
			if !slices.Contains(c.reads, n.Value) {
				c.reads = append(c.reads, n.Value)
			}
		case c.declared[n.Value] || n.Value == "$env":
		case slices.Contains(builtin.Names, n.Value):
		case c.err == nil || n.Location().From < c.err.From:
			c.err = unknown("detector", n.Value, c.known, n.Location())
		}
	}
	if c.err != nil {
		return c.err
	}
	return nil
}

func unknown(what, name string, valid []string, at file.Location) *file.Error {
	msg := fmt.Sprintf("unknown %s %q", what, name)
	if near := nearest(name, valid); near != "" {
		msg += fmt.Sprintf(": did you mean %q?", near)
	}
	return &file.Error{Location: at, Message: msg}
}

// positioned words an error with its line and column, both from 1.
func positioned(text string, err error) error {
	var at *file.Error
	if !errors.As(err, &at) {
		return err
	}
	if at.Line == 0 {
		at = at.Bind(file.NewSource(text))
	}
	return fmt.Errorf("line %d, column %d: %s", at.Line, at.Column+1, at.Message)
}

// nearest is the valid name with the fewest edits, "" when none is near; the first by name among equals.
func nearest(name string, valid []string) string {
	best, fewest := "", max(2, len(name)/3)+1
	for _, v := range slices.Sorted(slices.Values(valid)) {
		if d := edits(name, v); d < fewest {
			best, fewest = v, d
		}
	}
	return best
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

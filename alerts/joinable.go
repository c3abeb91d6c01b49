package alerts

import (
	"fmt"
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"

	"github.com/squall-sre/squall/detectors"
)

// places are the labels that detections have.
var places = []string{"cluster", "site"}

// checkPlaces refuses a rule that can never fire, since it is joined by a label that no detection has, or asks for
// detections of a site and of the cluster in one: no label joins these.
func checkPlaces(by []string, key, when string, reads []string) error {
	for _, name := range by {
		if slices.Contains(places, name) {
			continue
		}
		msg := fmt.Sprintf("by: no detection has a label %q: there are %s", name, strings.Join(places, " and "))
		if near := nearest(name, places); near != "" {
			msg += fmt.Sprintf(": did you mean %q?", near)
		}
		return fmt.Errorf("%s", msg)
	}
	tree, err := parser.Parse(when)
	if err != nil || len(by) == 0 {
		return err
	}
	for _, place := range places {
		if possible(tree.Node, place) {
			return nil
		}
	}
	var of []string
	for _, name := range reads {
		of = append(of, name+" ("+strings.Join(detectors.PlacesOf(name), " or ")+")")
	}
	return fmt.Errorf("%s: by %s it never holds, since no label joins detections of a site with those of the cluster: %s; `by: []` joins all of them, of all sites",
		key, strings.Join(by, ", "), strings.Join(of, ", "))
}

// possible tells whether an expression may hold with detections of one place alone. What is negated, chosen or computed
// may.
func possible(n ast.Node, place string) bool {
	switch n := n.(type) {
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&":
			return possible(n.Left, place) && possible(n.Right, place)
		case "or", "||":
			return possible(n.Left, place) || possible(n.Right, place)
		}
		return possible(n.Left, place) && possible(n.Right, place) // a number that is not known makes it false
	case *ast.MemberNode:
		return possible(n.Node, place)
	case *ast.IdentifierNode:
		of := detectors.PlacesOf(n.Value)
		return of == nil || slices.Contains(of, place)
	}
	return true
}

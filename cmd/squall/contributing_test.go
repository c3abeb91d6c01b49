package main

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline/format"
	"github.com/squall-sre/squall/pipeline/source"
)

// TestContributingIsTrue holds that what CONTRIBUTING says of a new kind is so: the table with that name is in that
// file, has a line for each kind, and the files and variables that it names are there.
func TestContributingIsTrue(t *testing.T) {
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	families := map[string][]string{"format": format.Names(), "source": source.Kinds(), "detector": detectors.Names(), "notifier": notify.Kinds()}
	families["format"] = slices.DeleteFunc(families["format"], func(name string) bool { // those that are made of others, or of a map
		return slices.Contains([]string{"auto", "json", "mixed"}, name)
	})
	files := goFiles(t)
	for _, row := range regexp.MustCompile("(?m)^\\| (\\w+) \\| `([^`]+)/x\\.go` \\| `([^`]+)` \\| `(\\w+)` in `([^`]+)` \\| (.*) \\|$").FindAllStringSubmatch(string(text), -1) {
		family, folder, contract, table, file, tests := row[1], row[2], row[3], row[4], row[5], row[6]
		names := families[family]
		delete(families, family)
		keys := tableKeys(files[file], table)
		for _, name := range names {
			if !slices.Contains(keys, name) {
				t.Errorf("the %s %s has no line in %s of %s", family, name, table, file)
			}
		}
		if filepath.Dir(file) != folder {
			t.Errorf("%s is not in %s", file, folder)
		}
		in := folder
		if pkg, name, ok := strings.Cut(contract, "."); ok {
			in, contract = pkg, name
		}
		if !declares(files, in, contract) {
			t.Errorf("%s declares no %s", in, contract)
		}
		for _, m := range regexp.MustCompile("`(\\w+)` in `([^`]+)`").FindAllStringSubmatch(tests, -1) {
			if declaredAs(files[m[2]], m[1]) == nil {
				t.Errorf("%s has no %s", m[2], m[1])
			}
		}
	}
	if len(families) > 0 {
		t.Errorf("CONTRIBUTING has no row for %v", families)
	}
}

// tableKeys are the keys of a map literal.
func tableKeys(f *ast.File, table string) (keys []string) {
	v, ok := declaredAs(f, table).(*ast.ValueSpec)
	if !ok || len(v.Values) == 0 {
		return nil
	}
	lit, ok := v.Values[0].(*ast.CompositeLit)
	if !ok {
		return nil
	}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.BasicLit); ok {
				keys = append(keys, strings.Trim(key.Value, `"`))
			}
		}
	}
	return keys
}

// declaredAs finds what a file declares under a name: a type or a variable.
func declaredAs(f *ast.File, name string) (found ast.Spec) {
	if f == nil {
		return nil
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range g.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.Name == name {
					return spec
				}
			case *ast.ValueSpec:
				if spec.Names[0].Name == name {
					return spec
				}
			}
		}
	}
	return nil
}

// declares tells whether a folder's files declare an interface of this name.
func declares(files map[string]*ast.File, folder, name string) bool {
	for path, f := range files {
		if spec, ok := declaredAs(f, name).(*ast.TypeSpec); ok && filepath.Dir(path) == folder {
			if _, ok := spec.Type.(*ast.InterfaceType); ok {
				return true
			}
		}
	}
	return false
}

package main

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/squall-sre/squall"
	top    = "../.."
)

// goPackage is what `go list -json` tells of a package.
type goPackage struct {
	ImportPath, Dir, Name, Doc string
	Imports                    []string
	GoFiles                    []string
}

func goList(t *testing.T, args ...string) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Dir,Name,Doc,Imports,GoFiles"}, args...)...)
	cmd.Dir = top
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	var list []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 4 {
		t.Fatalf("go list tells of %d packages only", len(list))
	}
	return list
}

// layers are the nouns, lowest first: imports go down only. Above the program is what is deployed with it.
var layers = []string{"pipeline", "detectors", "alerts", "cmd", "deploy"}

// layer gives the height of one of our packages, -1 for others, and its path below the module.
func layer(importPath string) (height int, inside string) {
	inside, ours := strings.CutPrefix(importPath, module+"/")
	if !ours {
		return -1, ""
	}
	first, _, _ := strings.Cut(inside, "/")
	return slices.Index(layers, first), inside
}

func TestImportsGoDownOnly(t *testing.T) {
	for _, p := range goList(t, "./...") {
		from, inside := layer(p.ImportPath)
		if from < 0 {
			t.Errorf("%s belongs to no layer", p.ImportPath)
			continue
		}
		for _, i := range p.Imports {
			to, target := layer(i)
			if to < 0 {
				continue
			}
			if to > from {
				t.Errorf("%s imports %s: imports go down only", inside, target)
			}
			// A noun does not know its kinds, and kinds do not know each other; its own parts it may use, as
			// detectors uses detectors/pane.
			if path.Dir(inside) == path.Dir(target) && strings.Contains(inside, "/") && from < 3 {
				t.Errorf("%s imports its sibling %s: a kind's folder imports its parent alone", inside, target)
			}
		}
	}
}

// AGPL modules are named in no import, not even of what we import.
func TestNoCopyleftDependency(t *testing.T) {
	for _, p := range goList(t, "-deps", "./...") {
		for _, never := range []string{"github.com/grafana/loki/v3", "github.com/grafana/grafana/", "github.com/grafana/tempo"} {
			if strings.HasPrefix(p.ImportPath+"/", never) {
				t.Errorf("%s is linked", p.ImportPath)
			}
		}
	}
}

func TestTopLevelIsFixed(t *testing.T) {
	fixed := []string{
		"cmd", "pipeline", "detectors", "alerts", "deploy", "testdata", "go.mod", "go.sum", "Makefile",
		"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
	}
	ignored := []string{"bin"} // built, and ignored by git
	entries, err := os.ReadDir(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, ".") && !slices.Contains(fixed, name) && !slices.Contains(ignored, name) {
			t.Errorf("%s stands at the top: the top level is fixed", name)
		}
	}
}

func TestPackagesHaveNamesAndComments(t *testing.T) {
	for _, p := range goList(t, "./...") {
		for _, part := range strings.Split(strings.TrimPrefix(p.ImportPath, module), "/") {
			if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "types", "models", "misc", "base"}, part) {
				t.Errorf("%s: %q is no noun of the field", p.ImportPath, part)
			}
		}
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// goFiles parses all our Go files.
func goFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	out := map[string]*ast.File{}
	err := filepath.WalkDir(top, func(name string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := e.Name()
		if e.IsDir() && (base == "testdata" || (strings.HasPrefix(base, ".") && base != "..")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		f, err := parser.ParseFile(positions, name, nil, parser.ParseComments)
		out[filepath.ToSlash(strings.TrimPrefix(name, top+"/"))] = f
		return err
	})
	if err != nil || len(out) < 10 {
		t.Fatalf("%d files: %v", len(out), err)
	}
	return out
}

var positions = token.NewFileSet()

func TestFunctionsAreShort(t *testing.T) {
	const most = 80 // lines
	for name, f := range goFiles(t) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || ast.IsGenerated(f) {
				continue
			}
			if lines := positions.Position(fn.End()).Line - positions.Position(fn.Pos()).Line + 1; lines > most {
				t.Errorf("%s: %s has %d lines: at most %d", name, fn.Name.Name, lines, most)
			}
		}
	}
}

// Detection is a function of the lines: the parts that detect know event time only.
func TestDetectionReadsNoClock(t *testing.T) {
	pure := func(name string) bool {
		switch dir := path.Dir(name); {
		case strings.HasSuffix(name, "_test.go"):
			return false
		case dir == "pipeline/format", dir == "pipeline/enrich", dir == "alerts":
			return true
		default:
			return strings.HasPrefix(name, "detectors/")
		}
	}
	seen := 0
	for name, f := range goFiles(t) {
		if !pure(name) {
			continue
		}
		seen++
		for _, i := range f.Imports {
			if i.Path.Value == `"math/rand"` || i.Path.Value == `"math/rand/v2"` {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := s.X.(*ast.Ident)
			clock := []string{"Now", "Since", "Until", "After", "Tick", "NewTimer", "NewTicker", "Sleep"}
			if ok && pkg.Name == "time" && slices.Contains(clock, s.Sel.Name) {
				t.Errorf("%s: time.%s", positions.Position(s.Pos()), s.Sel.Name)
			}
			return true
		})
	}
	if seen < 5 {
		t.Fatalf("only %d files were looked at", seen)
	}
}

// Nothing but main ends the process.
func TestOnlyMainExits(t *testing.T) {
	for name, f := range goFiles(t) {
		if name == "cmd/squall/main.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "os" && s.Sel.Name == "Exit" {
				t.Errorf("%s: os.Exit", positions.Position(s.Pos()))
			}
			return true
		})
	}
}

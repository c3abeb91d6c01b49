package enrich

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A routeTree holds a site's declared routes, a node for each segment. It is not changed once built.
type routeTree struct {
	scope uint32 // of the site in the memo of paths; 0 is for all sites without routes
	root  routeNode
}

type routeNode struct {
	literal  map[string]*routeNode
	patterns []*patternNode // the most literal first
	route    string         // the template that ends here
	rest     string         // the template whose {name...} begins here
}

// A patternNode is a segment with placeholders: what stands before, between and behind them.
type patternNode struct {
	lits []string
	next *routeNode
}

func (t *routeTree) scopeOf() uint32 {
	if t == nil {
		return 0
	}
	return t.scope
}

// newRouteTree builds the tree of templates; nil without any.
func newRouteTree(scope uint32, templates []string, path string) (*routeTree, error) {
	if len(templates) == 0 {
		return nil, nil
	}
	t := &routeTree{scope: scope}
	var errs []error
	for i, template := range templates {
		if err := t.add(template); err != nil {
			errs = append(errs, configError(err, "%s[%d]", path, i))
		}
	}
	return t, errors.Join(errs...)
}

func (t *routeTree) add(template string) error {
	bad := func(why string) error {
		return fmt.Errorf("%q is no route: %s; valid are /checkout/{id}, /feeds/{name}.xml, /files/{path...}", template, why)
	}
	switch {
	case !strings.HasPrefix(template, "/"):
		return bad("it must begin with a slash")
	case len(template) > templateMax:
		return bad(fmt.Sprintf("it is longer than %d bytes", templateMax))
	case strings.ContainsAny(template, "?#;"):
		return bad("it must have no query, fragment or parameter")
	case !printable(template):
		return bad("write other than printable ASCII percent-encoded")
	}
	n := &t.root
	parts := strings.Split(strings.Trim(template, "/"), "/")
	if len(parts) > segmentMax {
		return bad(fmt.Sprintf("it has more than %d segments", segmentMax))
	}
	for i, part := range parts {
		if part == "" && len(parts) == 1 {
			break // "/"
		}
		if part == "" || part == "." || part == ".." {
			return bad("it has an empty or dot segment")
		}
		if strings.HasPrefix(part, "{") && strings.HasSuffix(part, "...}") {
			if i+1 < len(parts) || !isName(part[1:len(part)-4]) {
				return bad("{name...} stands for all that follows, and must be its last segment")
			}
			return end(&n.rest, template)
		}
		lits, why := parsePattern(part)
		if why != "" {
			return bad(why)
		}
		n = n.child(lits)
	}
	return end(&n.route, template)
}

func end(slot *string, template string) error {
	if *slot != "" {
		return fmt.Errorf("%q matches the same paths as %q: keep one of them", template, *slot)
	}
	*slot = template
	return nil
}

func isName(s string) bool {
	for i := range len(s) {
		if !isAlnum(s[i]) && s[i] != '_' {
			return false
		}
	}
	return s != ""
}

// parsePattern cuts a segment at its placeholders, or says why it cannot.
func parsePattern(part string) (lits []string, why string) {
	for {
		open := strings.IndexByte(part, '{')
		lit := part
		if open >= 0 {
			lit = part[:open]
		}
		if strings.IndexByte(lit, '}') >= 0 {
			return nil, "a brace is not opened"
		}
		if open == 0 && len(lits) > 0 {
			return nil, "two placeholders must have something between them"
		}
		lits = append(lits, string(unescape(nil, []byte(lit))))
		if open < 0 {
			return lits, ""
		}
		size := strings.IndexByte(part[open:], '}')
		if size < 0 {
			return nil, "a brace is not closed"
		}
		if !isName(part[open+1 : open+size]) {
			return nil, "a placeholder's name is made of letters, digits and _"
		}
		part = part[open+size+1:]
	}
}

func (n *routeNode) child(lits []string) *routeNode {
	if len(lits) == 1 {
		if n.literal == nil {
			n.literal = map[string]*routeNode{}
		}
		next := n.literal[lits[0]]
		if next == nil {
			next = &routeNode{}
			n.literal[lits[0]] = next
		}
		return next
	}
	for _, p := range n.patterns {
		if slices.Equal(p.lits, lits) {
			return p.next
		}
	}
	p := &patternNode{lits: lits, next: &routeNode{}}
	n.patterns = append(n.patterns, p)
	slices.SortFunc(n.patterns, func(a, b *patternNode) int {
		return cmp.Or(len(strings.Join(b.lits, ""))-len(strings.Join(a.lits, "")), slices.Compare(a.lits, b.lits))
	})
	return p.next
}

// match finds the declared route of a path: the more literal one where several fit. It visits each node of the
// tree at most once.
func (t *routeTree) match(s *segments) (string, bool) {
	if t == nil {
		return "", false
	}
	r := t.root.match(s, 0)
	return r, r != ""
}

func (n *routeNode) match(s *segments, i int) string {
	if i == s.n {
		if !s.deep && n.route != "" {
			return n.route
		}
		if s.deep {
			return n.rest
		}
		return ""
	}
	seg := s.at(i)
	if next := n.literal[string(seg)]; next != nil {
		if r := next.match(s, i+1); r != "" {
			return r
		}
	}
	for _, p := range n.patterns {
		if p.fits(seg) {
			if r := p.next.match(s, i+1); r != "" {
				return r
			}
		}
	}
	return n.rest
}

// fits tells whether seg has the pattern's literals in order, with at least a byte for each placeholder.
func (p *patternNode) fits(seg []byte) bool {
	last := len(p.lits) - 1
	if len(seg) < len(p.lits[0]) || string(seg[:len(p.lits[0])]) != p.lits[0] {
		return false
	}
	seg = seg[len(p.lits[0]):]
	for _, lit := range p.lits[1:last] {
		if len(seg) == 0 {
			return false
		}
		i := bytes.Index(seg[1:], []byte(lit))
		if i < 0 {
			return false
		}
		seg = seg[1+i+len(lit):]
	}
	end := p.lits[last]
	return len(seg) > len(end) && string(seg[len(seg)-len(end):]) == end
}

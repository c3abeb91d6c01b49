package enrich

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of a template. A path is read up to pathMax bytes, a template made from one has at most autoDepth
// segments and templateMax bytes before its {rest}.
const (
	pathMax     = 2048
	segmentMax  = 16 // segments of a path that declared routes can see
	autoDepth   = 6
	literalMax  = 96 // bytes of a literal segment as written in the template
	templateMax = 240
)

const (
	routeMalformed = "{malformed}" // the request line held no path
	routeRest      = "{rest}"
)

// A router turns paths into templates. A template depends on the path and the site's declared routes alone.
type router struct {
	paths     *memo[string] // by raw path, in the scope of a site's tree
	templates *memo[string] // the same strings by themselves, so that a million paths share one template
}

func newRouter(paths int) *router {
	return &router{paths: newMemo[string](paths), templates: newMemo[string](max(paths/4, 64))}
}

// route gives the template of a raw path.
func (ro *router) route(tree *routeTree, path []byte) string {
	if len(path) == 0 || path[0] != '/' {
		if string(path) == "*" {
			return "*" // OPTIONS *
		}
		return routeMalformed
	}
	if len(path) == 1 {
		return "/"
	}
	scope := tree.scopeOf()
	if len(path) > memoKeyMax {
		return ro.make(tree, path)
	}
	h := ro.paths.hash(scope, path)
	if t, ok := ro.paths.get(h, scope, path); ok {
		return t
	}
	t := ro.make(tree, path)
	ro.paths.put(h, scope, path, t)
	return t
}

func (ro *router) make(tree *routeTree, path []byte) string {
	var s segments
	s.split(path)
	if t, ok := tree.match(&s); ok {
		return t
	}
	var buf [templateMax + 3*literalMax + 16]byte
	t := s.appendTemplate(buf[:0])
	h := ro.templates.hash(0, t)
	if known, ok := ro.templates.get(h, 0, t); ok {
		return known
	}
	made := string(t)
	ro.templates.put(h, 0, t, made)
	return made
}

func (ro *router) explain(tree *routeTree, path string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", ro.route(tree, []byte(path)))
	if path == "" || path[0] != '/' {
		b.WriteString("  the request holds no path that begins with a slash\n")
		return b.String()
	}
	var s segments
	s.split([]byte(path))
	if t, ok := tree.match(&s); ok {
		fmt.Fprintf(&b, "  declared route %s\n", t)
		return b.String()
	}
	n := min(s.n, autoDepth)
	for i := range n {
		k := s.kind(i)
		out := k.append(nil, s.at(i))
		if string(s.at(i)) == routeRest {
			n = i
			break
		}
		fmt.Fprintf(&b, "  %q: %s, %s\n", s.at(i), out, k.why())
	}
	switch {
	case n == 0 && !s.deep:
		b.WriteString("  the root\n")
	case s.deep || s.n > n:
		fmt.Fprintf(&b, "  the rest: %s, more than %d segments or %d bytes\n", routeRest, autoDepth, pathMax)
	}
	return b.String()
}

// segments are the parts of a path, percent-decoded, without path parameters (;…), empty and dot segments.
type segments struct {
	n    int  // segments kept
	deep bool // there were more
	ends [segmentMax]int
	buf  [pathMax]byte
}

func (s *segments) at(i int) []byte {
	from := 0
	if i > 0 {
		from = s.ends[i-1]
	}
	return s.buf[from:s.ends[i]]
}

func (s *segments) split(path []byte) {
	over := 0 // segments behind the last kept
	cut := len(path) > pathMax
	if cut {
		path = path[:bytes.LastIndexByte(path[:pathMax], '/')+1]
	}
	for len(path) > 0 {
		path = path[1:]
		seg := path
		if i := bytes.IndexByte(path, '/'); i >= 0 {
			seg, path = path[:i], path[i:]
		} else {
			path = nil
		}
		if i := bytes.IndexByte(seg, ';'); i >= 0 {
			seg = seg[:i]
		}
		from := 0
		if s.n > 0 {
			from = s.ends[s.n-1]
		}
		dec := unescape(s.buf[from:from], seg)
		switch {
		case len(dec) == 0 || string(dec) == ".":
		case string(dec) == "..":
			if over > 0 {
				over--
			} else if s.n > 0 {
				s.n--
			}
		case s.n == segmentMax || over > 0:
			over++
		default:
			s.ends[s.n] = from + len(dec)
			s.n++
		}
	}
	s.deep = over > 0 || cut
}

// unescape appends b with its percent escapes decoded; what is no escape stays as it is. dst never outgrows b.
func unescape(dst, b []byte) []byte {
	for i := 0; i < len(b); i++ {
		if b[i] == '%' && i+2 < len(b) {
			if hi, lo := hexValue(b[i+1]), hexValue(b[i+2]); hi >= 0 && lo >= 0 {
				dst = append(dst, byte(hi<<4|lo))
				i += 2
				continue
			}
		}
		dst = append(dst, b[i])
	}
	return dst
}

func hexValue(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

func (s *segments) kind(i int) segmentKind {
	return kindOf(s.at(i), i == 0, i == s.n-1 && !s.deep)
}

func (s *segments) appendTemplate(dst []byte) []byte {
	for i := range min(s.n, autoDepth) {
		if string(s.at(i)) == routeRest || len(dst) > templateMax {
			return append(dst, "/"+routeRest...)
		}
		dst = append(dst, '/')
		dst = s.kind(i).append(dst, s.at(i))
	}
	if s.n > autoDepth || s.deep {
		return append(dst, "/"+routeRest...)
	}
	if len(dst) == 0 {
		return append(dst, '/')
	}
	return dst
}

// literalByte tells which ASCII bytes a literal segment may hold. Whatever else occurs in paths is typed by
// people or by attackers.
func literalByte(c byte) bool {
	return isAlnum(c) || strings.IndexByte("-._~@:!+,=()*", c) >= 0
}

func isAlnum(c byte) bool { return isDigit(c) || isLetter(c) }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// isLiteral tells whether a decoded segment can stand in a template as it is.
func isLiteral(b []byte) bool {
	size := 0
	for _, c := range b {
		if c < utf8.RuneSelf {
			if !literalByte(c) {
				return false
			}
			size++
		} else {
			size += 3
		}
	}
	return size <= literalMax && utf8.Valid(b)
}

// appendLiteral escapes what is not ASCII, so that templates are printable ASCII.
func appendLiteral(dst, b []byte) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range b {
		if c < utf8.RuneSelf {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', digits[c>>4], digits[c&15])
		}
	}
	return dst
}

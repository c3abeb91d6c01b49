package enrich

import "bytes"

// keyMax is how far a key reaches back from its equals sign, in bytes as written.
const keyMax = 192

// nesting tells in what an equals sign was written: as it is, or escaped once or twice by a URL in a URL.
// The value then ends at a separator of the same depth or of one further out.
type nesting int

// secrets finds the values of sensitive keys wherever a query can stand, the userinfo of URLs, bearer tokens,
// and the sensitive fields of JSON.
func (rd *Redactor) secrets(edits []edit, line []byte, json bool) []edit {
	edits = rd.pairs(edits, line, '=')
	if bytes.IndexByte(line, '%') >= 0 {
		edits = rd.pairs(edits, line, '%')
	}
	if bytes.IndexByte(line, '\\') >= 0 {
		edits = rd.pairs(edits, line, '\\')
	}
	edits = userinfo(edits, line)
	edits = schemes(edits, line)
	if json || index(line, `":`) >= 0 {
		edits = fields(edits, line)
	}
	return edits
}

// pairs looks at every equals sign that begins with the byte first: = itself, %3D and %253D, or \u003d and \x3d.
func (rd *Redactor) pairs(edits []edit, line []byte, first byte) []edit {
	var braces braceState
	for i := 0; i < len(line); {
		at := bytes.IndexByte(line[i:], first)
		if at < 0 {
			break
		}
		at += i
		c, size, nested := decodeByte(line[at:])
		if c != '=' {
			i = at + 1
			continue
		}
		from := at
		for from > 0 && at-from < keyMax && isKeyByte(line[from-1]) {
			from--
		}
		i = at + size
		if !rd.mayBeKey.may(line[from:at]) {
			continue
		}
		var buf [keyMax]byte
		key := normalKey(buf[:0], line[from:at])
		if len(key) == 0 || !rd.sensitive(key) {
			continue
		}
		start, end := i, 0
		if inQuotes := start < len(line) && line[start] == '"' && from > 0 && line[from-1] <= ' ' && !quoteEnds(line[start+1:]); inQuotes {
			start++
			end = start + max(0, bytes.IndexByte(line[start:], '"'))
		} else {
			end = valueEnd(line, start, nested, braces.inside(line, at), from > 0 && line[from-1] == ';')
		}
		value := line[start:end]
		if len(value) == 0 || string(value) == mask || isStatus(key, value) && (from == 0 || line[from-1] <= ' ') {
			continue
		}
		edits = append(edits, edit{from: start, to: end, text: mask})
		i = end
	}
	return edits
}

// isStatus spares code=200 in logs made of pairs: there it is the response's, and a code of three digits is no
// secret.
func isStatus(key, value []byte) bool {
	return string(key) == "code" && len(value) <= 3 && countDigits(value) == len(value)
}

func isKeyByte(c byte) bool {
	return isAlnum(c) || c == '_' || c == '-' || c == '.' || c == '~' || c == '%' || c == '[' || c == ']' || c == '$' || c == '\\' || c >= 0x80
}

// decodeByte reads one byte as URLs, JSON and nginx may write it: x, %78, %2578, \u0078 or \x78. nested counts
// the percent escapes around it.
func decodeByte(b []byte) (c byte, size int, nested nesting) {
	if b[0] == '%' {
		at := 1
		for nested = 1; at+2 <= len(b) && b[at] == '2' && b[at+1] == '5' && nested < 3; nested++ {
			at += 2
		}
		if at+2 <= len(b) && hexValue(b[at]) >= 0 && hexValue(b[at+1]) >= 0 {
			return byte(hexValue(b[at])<<4 | hexValue(b[at+1])), at + 2, nested
		}
		return '%', 1, 0
	}
	if b[0] != '\\' {
		return b[0], 1, 0
	}
	switch {
	case len(b) >= 6 && b[1] == 'u' && b[2] == '0' && b[3] == '0' && hexValue(b[4]) >= 0 && hexValue(b[5]) >= 0:
		return byte(hexValue(b[4])<<4 | hexValue(b[5])), 6, 0
	case len(b) >= 4 && b[1] == 'x' && hexValue(b[2]) >= 0 && hexValue(b[3]) >= 0:
		return byte(hexValue(b[2])<<4 | hexValue(b[3])), 4, 0
	case len(b) >= 2:
		return '\\', 2, 0
	}
	return '\\', 1, 0
}

// normalKey appends the key at the end of raw: decoded, in lower case, with _ for -.
func normalKey(dst, raw []byte) []byte {
	for len(raw) > 0 {
		c, size, _ := decodeByte(raw)
		raw = raw[size:]
		switch {
		case c == '\\' || !isKeyByte(c) || c == '%':
			dst = dst[:0] // a separator, however it is written
			continue
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c == '-':
			c = '_'
		}
		dst = append(dst, c)
	}
	return dst
}

// valueEnd finds where the value at i ends. Too far is harmless and too near is not: what only might be a
// separator is taken for a part of the value.
func valueEnd(line []byte, i int, depth nesting, braces, parameter bool) int {
	for i < len(line) {
		switch c := line[i]; {
		case c <= ' ' || c == '"' || c == '&':
			return i
		case c == '\\':
			d, size, _ := decodeByte(line[i:])
			if d == '&' || d == ' ' || i+1 < len(line) && line[i+1] == '"' && quoteEnds(line[i+2:]) {
				return i
			}
			if size == 2 && (line[i+1] == 'n' || line[i+1] == 't' || line[i+1] == 'r') {
				return i
			}
			i += size
			continue
		case c == '%' && depth > 0:
			if d, _, nested := decodeByte(line[i:]); d == '&' && nested <= depth {
				return i
			}
		case braces && (c == '|' || c == '}'):
			return i
		case parameter && (c == ';' || c == '/' || c == '?'):
			return i
		}
		i++
	}
	return i
}

// quoteEnds tells whether an escaped quote, with b behind it, ends a string within a string rather than being a
// byte of the value.
func quoteEnds(b []byte) bool {
	return len(b) == 0 || b[0] <= ' ' || b[0] == ',' || b[0] == '}' || b[0] == ']' || b[0] == ':' || b[0] == '"' || b[0] == '\\'
}

// braceState tells whether a place is in the {a|b} of HAProxy's captures, in one walk over the line. HAProxy
// escapes braces, bars and quotes within them.
type braceState struct {
	pos int
	in  bool
}

func (s *braceState) inside(line []byte, at int) bool {
	for ; s.pos < at; s.pos++ {
		switch line[s.pos] {
		case '{':
			s.in = s.in || s.pos > 0 && line[s.pos-1] == ' ' && line[s.pos+1] != '"'
		case '}', '"':
			s.in = false
		}
	}
	return s.in
}

// userinfo finds user:password@ in URLs.
func userinfo(edits []edit, line []byte) []edit {
	if bytes.IndexByte(line, '@') < 0 && !bytes.Contains(line, []byte("%40")) {
		return edits
	}
	for i := 0; i < len(line); {
		colon := i
		for colon < len(line) && line[colon] != ':' && line[colon] != '%' {
			colon++
		}
		i = colon + 1
		start := authority(line, colon)
		if start < 0 {
			continue
		}
		at, end := -1, start
	scan:
		for end < len(line) {
			c, size, nested := decodeByte(line[end:])
			switch {
			case c == '@':
				at = end
			case c <= ' ' || c == '"' || c == '\\' || c == '/' || c == '?' || c == '#' || c == '&' && nested == 0:
				break scan
			}
			end += size
		}
		if at > start && string(line[start:at]) != mask {
			edits = append(edits, edit{from: start, to: at, text: mask})
		}
		i = max(i, end)
	}
	return edits
}

// authority gives the place behind the :// at i, in any of its spellings, or -1.
func authority(line []byte, i int) int {
	for _, want := range []byte("://") {
		if i >= len(line) {
			return -1
		}
		c, size, _ := decodeByte(line[i:])
		if c == '\\' && i+1 < len(line) && line[i+1] == '/' { // JSON may write \/
			c = '/'
		}
		if c != want {
			return -1
		}
		i += size
	}
	return i
}

// index is bytes.Index for what ends with a byte that is rarer in lines than the one it begins with.
func index(line []byte, text string) int {
	for i := 0; ; i++ {
		at := bytes.IndexByte(line[i:], text[len(text)-1])
		if at < 0 {
			return -1
		}
		i += at
		if from := i + 1 - len(text); from >= 0 && string(line[from:i+1]) == text {
			return from
		}
	}
}

// schemes finds the credentials behind Bearer and Basic.
func schemes(edits []edit, line []byte) []edit {
	for _, scheme := range []string{"earer", "asic"} {
		for i := 0; i < len(line); {
			at := index(line[i:], scheme)
			if at < 0 {
				break
			}
			i += at + len(scheme)
			start := i
			for start < len(line) { // one blank, or more of them
				c, size, _ := decodeByte(line[start:])
				if c != ' ' && c != '+' {
					break
				}
				start += size
			}
			if start == i {
				continue
			}
			end := start
			for end < len(line) && (isAlnum(line[end]) || bytes.IndexByte([]byte("-._~+/=%"), line[end]) >= 0) {
				end++
			}
			i = start // a word too short to be a secret may be a scheme itself
			if end-start >= 8 {
				edits = append(edits, edit{from: start, to: end, text: mask})
				i = end
			}
		}
	}
	return edits
}

// fields finds the strings of sensitive fields in JSON, and in JSON that is a string of JSON.
func fields(edits []edit, line []byte) []edit {
	for i := 0; ; {
		at := index(line[i:], `":`)
		if at < 0 {
			return edits
		}
		at += i
		i = at + 2
		escaped := at > 0 && line[at-1] == '\\'
		end := at
		if escaped {
			end--
		}
		from := bytes.LastIndexByte(line[max(0, end-64):end], '"')
		if from < 0 {
			continue
		}
		raw := line[max(0, end-64)+from+1 : end]
		if !mayBeField.may(raw) {
			continue
		}
		var buf [64]byte
		key := normalKey(buf[:0], raw)
		if bytes.HasSuffix(line[:end], []byte("cs(Cookie)")) {
			key = append(buf[:0], "cookie"...)
		}
		if sensitiveField(key) {
			edits, i = fieldStrings(edits, line, i, escaped)
		}
	}
}

// fieldStrings masks the string at i, or the strings of the array at i, and tells where it stopped.
func fieldStrings(edits []edit, line []byte, i int, escaped bool) ([]edit, int) {
	array := false
	for i < len(line) {
		switch c := line[i]; {
		case c <= ' ' || array && c == ',':
			i++
		case c == '[' && !array:
			array = true
			i++
		case c == '"' && !escaped, c == '\\' && escaped && i+1 < len(line) && line[i+1] == '"':
			start := i + 1
			if escaped {
				start++
			}
			end := stringEnd(line, start, escaped)
			if value := line[start:end]; len(value) > 0 && string(value) != mask {
				edits = append(edits, edit{from: start, to: end, text: mask})
			}
			i = min(end+start-i, len(line))
			if !array {
				return edits, i
			}
		default:
			return edits, i
		}
	}
	return edits, i
}

// stringEnd finds the quote, or the escaped quote, that ends the string whose first byte is at i.
func stringEnd(line []byte, i int, escaped bool) int {
	for ; i < len(line); i++ {
		if line[i] == '"' {
			return i
		}
		if line[i] != '\\' {
			continue
		}
		if escaped && i+1 < len(line) && line[i+1] == '"' {
			return i
		}
		if escaped && i+3 < len(line) && line[i+1] == '\\' && line[i+2] == '\\' {
			i += 2 // \\\" is a quote within the inner string
		}
		i++
	}
	return len(line)
}

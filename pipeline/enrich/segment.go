package enrich

import "bytes"

// segmentKind is what one segment of a path was taken for.
type segmentKind uint8

const (
	segLiteral segmentKind = iota
	segPlaceholder
	segInt
	segUUID
	segHash
	segDate
	segLocale
	segEmail
	segSlugInt
	segIntSlug
	segID
	segFile
	segText
)

var segmentKinds = [...]struct{ text, why string }{
	segLiteral:     {"", "taken as it is"},
	segPlaceholder: {"", "a placeholder already"},
	segInt:         {"{int}", "digits alone"},
	segUUID:        {"{uuid}", "a UUID"},
	segHash:        {"{hash}", "16 or more hexadecimal digits, or a long token"},
	segDate:        {"{date}", "a date"},
	segLocale:      {"{locale}", "a language, with or without a region"},
	segEmail:       {"{email}", "an e-mail address"},
	segSlugInt:     {"{slug}-{int}", "words and a number at the end"},
	segIntSlug:     {"{int}-{slug}", "a number and words"},
	segID:          {"{id}", "three or more digits among letters"},
	segFile:        {"{file}.", "a file: a static one, or with digits in its name"},
	segText:        {"{text}", "too long, or with bytes that are typed by people or programs"},
}

func (k segmentKind) why() string { return segmentKinds[k].why }

// append writes what the decoded segment becomes in a template.
func (k segmentKind) append(dst, seg []byte) []byte {
	switch k {
	case segLiteral:
		return appendLiteral(dst, seg)
	case segPlaceholder:
		return append(dst, seg...)
	case segFile:
		return lower(append(dst, segmentKinds[k].text...), extension(seg))
	}
	return append(dst, segmentKinds[k].text...)
}

// kindOf judges a decoded segment. Its order is part of every route's name: a change renames routes.
func kindOf(seg []byte, first, last bool) segmentKind {
	switch {
	case isPlaceholder(seg):
		return segPlaceholder
	case countDigits(seg) == len(seg):
		return segInt
	case isUUID(seg):
		return segUUID
	case isDate(seg):
		return segDate
	case isEmail(seg):
		return segEmail
	}
	if last {
		if ext := extension(seg); ext != nil && isFile(seg[:len(seg)-len(ext)-1], ext) {
			return segFile
		}
	}
	switch {
	case isLocale(seg, first):
		return segLocale
	case isSlugInt(seg):
		return segSlugInt
	case isIntSlug(seg):
		return segIntSlug
	case isHash(seg):
		return segHash
	case !isLiteral(seg):
		return segText
	case countDigits(seg) >= 3:
		return segID
	}
	return segLiteral
}

// isPlaceholder recognises what kindOf gives, so that the template of a template is itself.
func isPlaceholder(seg []byte) bool {
	if seg[0] != '{' {
		return false
	}
	for _, k := range segmentKinds[segInt:segFile] {
		if string(seg) == k.text {
			return true
		}
	}
	if rest, ok := bytes.CutPrefix(seg, []byte(segmentKinds[segFile].text)); ok {
		ext := extension(seg)
		return len(ext) == len(rest) && ext != nil && bytes.IndexFunc(ext, func(r rune) bool { return r >= 'A' && r <= 'Z' }) < 0
	}
	return string(seg) == segmentKinds[segText].text || string(seg) == routeRest
}

func countDigits(b []byte) int {
	n := 0
	for _, c := range b {
		if isDigit(c) {
			n++
		}
	}
	return n
}

func isUUID(b []byte) bool {
	if len(b) != 36 {
		return false
	}
	for i, c := range b {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
		} else if hexValue(c) < 0 {
			return false
		}
	}
	return true
}

// isDate recognises 2026-03, 2026-03-29 and 2026-03-29T00:26:24Z. Eight digits are an int: taking some of the
// numbers of one route for dates would split it.
func isDate(b []byte) bool {
	if len(b) < 7 || len(b) > 35 || b[4] != '-' || countDigits(b[:4]) != 4 || b[0] != '1' && b[0] != '2' {
		return false
	}
	if m := number2(b[5:]); m < 1 || m > 12 {
		return false
	}
	if len(b) == 7 {
		return true
	}
	if len(b) < 10 || b[7] != '-' {
		return false
	}
	if d := number2(b[8:]); d < 1 || d > 31 {
		return false
	}
	if len(b) == 10 {
		return true
	}
	if b[10] != 'T' && b[10] != 't' && b[10] != ' ' && b[10] != '_' {
		return false
	}
	for _, c := range b[11:] {
		if !isDigit(c) && c != ':' && c != '.' && c != '+' && c != '-' && c != 'Z' && c != 'z' {
			return false
		}
	}
	return true
}

// number2 reads two digits; -1 when they are none.
func number2(b []byte) int {
	if len(b) < 2 || !isDigit(b[0]) || !isDigit(b[1]) {
		return -1
	}
	return int(b[0]-'0')*10 + int(b[1]-'0')
}

func isEmail(b []byte) bool {
	at := bytes.IndexByte(b, '@')
	return at > 0 && bytes.IndexByte(b[at+1:], '.') > 0 && bytes.IndexByte(b[at+1:], '@') < 0 && b[len(b)-1] != '.'
}

// extension gives the part behind the last dot if it looks like a file's extension.
func extension(seg []byte) []byte {
	dot := bytes.LastIndexByte(seg, '.')
	if dot <= 0 || len(seg)-dot-1 < 2 || len(seg)-dot-1 > 5 {
		return nil
	}
	ext, letters := seg[dot+1:], 0
	for _, c := range ext {
		if !isAlnum(c) {
			return nil
		}
		if isLetter(c) {
			letters++
		}
	}
	if letters == 0 {
		return nil
	}
	return ext
}

// scriptExtensions are programs, not files: /index2.php is a route of its own.
var scriptExtensions = map[string]bool{"php": true, "asp": true, "aspx": true, "jsp": true, "do": true, "cgi": true, "pl": true, "html": false}

func isFile(stem, ext []byte) bool {
	var buf [8]byte
	e := lower(buf[:0], ext)
	if isStaticExtension(e) {
		return true
	}
	if scriptExtensions[string(e)] {
		return countDigits(stem) == len(stem) || isUUID(stem) || isHash(stem) || isDate(stem)
	}
	return countDigits(stem) > 0
}

// isHash recognises hexadecimal digests, from 16 digits on, and long tokens such as base64 or a JWT: from 20
// bytes on, with digits or capitals scattered as in no words.
func isHash(b []byte) bool {
	if len(b) < 16 {
		return false
	}
	hex, digits, upper, low, other, turns, humps := true, 0, 0, 0, 0, 0, 0
	for i, c := range b {
		hex = hex && hexValue(c) >= 0
		switch {
		case isDigit(c):
			digits++
			if i > 0 && isLetter(b[i-1]) {
				turns++
			}
		case c >= 'A' && c <= 'Z':
			upper++
			if i > 0 && b[i-1] >= 'a' && b[i-1] <= 'z' {
				humps++
			}
		case c >= 'a' && c <= 'z':
			low++
		case c == '-' || c == '_' || c == '=' || c == '+' || c == '.' || c == '~':
			other++
		default:
			return false
		}
	}
	if hex {
		return true
	}
	if len(b) < 20 || other*6 > len(b) {
		return false
	}
	return turns >= 2 && (upper > 0 && low > 0 || digits*6 >= len(b)) || digits > 0 && (turns+humps)*4 >= len(b)
}

// isSlugInt recognises blue-shoes-123 and blue_shoes_123: two or more words and a number, or one word and a
// number of three digits and more, for step-2 and http-2 are names.
func isSlugInt(b []byte) bool {
	i := len(b)
	for i > 0 && isDigit(b[i-1]) {
		i--
	}
	digits := len(b) - i
	return digits > 0 && i > 1 && (b[i-1] == '-' || b[i-1] == '_') && isWords(b[:i-1], digits >= 3)
}

// isIntSlug recognises 123-blue-shoes.
func isIntSlug(b []byte) bool {
	i := 0
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	return i > 0 && i+1 < len(b) && (b[i] == '-' || b[i] == '_') && isWords(b[i+1:], i >= 3)
}

// isWords tells whether b is two or more words of letters and digits, or one where that is enough. In no word
// may digits stand as in a token.
func isWords(b []byte, oneIsEnough bool) bool {
	words, start := 1, 0
	for i, c := range b {
		switch {
		case c == '-' || c == '_':
			if i == start {
				return false
			}
			words, start = words+1, i+1
		case !isAlnum(c) && c < 0x80:
			return false
		}
	}
	return start < len(b) && (words > 1 || oneIsEnough) && countDigits(b)*3 <= len(b)
}

// languages are the codes of ISO 639-1 that stand alone at the head of paths. Those that are words of their
// own (my, id, is, am, as, be, so, to, or, no, io) count only with a region.
var languages = languageSet("ar az bg bn bs ca cs cy da de el en es et eu fa fi fr ga gl he hi hr hu hy it ja ka kk km ko ky lt lv mk mn ms nb nl nn pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh")
var regionLanguages = languageSet("my id is am as be so to or no af kn gu mt ne si tg tk lo ml mr pa ps rw sn yo zu")

func languageSet(list string) (set [26 * 26]bool) {
	for ; len(list) >= 2; list = list[min(3, len(list)):] {
		set[int(list[0]-'a')*26+int(list[1]-'a')] = true
	}
	return set
}

// isLocale recognises de at the head of a path, and de-CH, de_CH, zh-Hans and zh-Hans-CN anywhere.
func isLocale(b []byte, first bool) bool {
	if len(b) < 2 || len(b) > 10 || !isLetter(b[0]) || !isLetter(b[1]) {
		return false
	}
	code := int(b[0]|0x20-'a')*26 + int(b[1]|0x20-'a')
	if len(b) == 2 {
		return first && languages[code]
	}
	if !languages[code] && !regionLanguages[code] || b[2] != '-' && b[2] != '_' {
		return false
	}
	rest := b[3:]
	if len(rest) == 7 && (rest[4] == '-' || rest[4] == '_') && isScript(rest[:4]) {
		rest = rest[5:]
	}
	return len(rest) == 2 && isLetter(rest[0]) && isLetter(rest[1]) || len(rest) == 4 && isScript(rest)
}

func isScript(b []byte) bool {
	s := string(b)
	return s == "Hans" || s == "Hant" || s == "Latn" || s == "Cyrl" || s == "hans" || s == "hant" || s == "latn" || s == "cyrl"
}

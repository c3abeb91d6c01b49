package alerts

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// hidden tells whether a character can change how the text around it is shown: control characters, bidirectional
// and zero-width marks, line and paragraph separators, and what is not a character.
func hidden(r rune) bool {
	return r < 0x20 || r == 0x7f || r >= 0x80 && (!unicode.IsPrint(r) && r != '\u00a0')
}

// Escape makes text from a log safe to show: hidden characters and bytes that are no UTF-8 become \n, \t, \xNN
// or \u{NNNN}.
func Escape(s string) string {
	if !needsEscape(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x`)
			b.WriteByte(hexDigits[s[i]>>4])
			b.WriteByte(hexDigits[s[i]&15])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case hidden(r):
			b.WriteString(`\u{`)
			for shift := 28; shift >= 0; shift -= 4 {
				if d := r >> shift; d > 0 || shift <= 12 {
					b.WriteByte(hexDigits[d&15])
				}
			}
			b.WriteByte('}')
		default:
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

func needsEscape(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || hidden(r) {
			return true
		}
	}
	return false
}

// escapeLines is Escape for our own text of several lines: the line ends stay.
func escapeLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = Escape(l)
	}
	return strings.Join(lines, "\n")
}

// appendJSONSafe appends a JSON document with every hidden character as \uNNNN. Outside of strings there is none.
func appendJSONSafe(dst, doc []byte) []byte {
	for i := 0; i < len(doc); {
		if doc[i] < 0x7f { // control characters below 0x20 are escaped by the encoder
			dst = append(dst, doc[i])
			i++
			continue
		}
		r, size := utf8.DecodeRune(doc[i:])
		if !hidden(r) {
			dst = append(dst, doc[i:i+size]...)
		} else if r > 0xffff {
			r -= 0x10000
			dst = appendU(appendU(dst, 0xd800+r>>10), 0xdc00+r&0x3ff)
		} else {
			dst = appendU(dst, r)
		}
		i += size
	}
	return dst
}

func appendU(dst []byte, r rune) []byte {
	return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

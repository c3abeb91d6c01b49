package enrich

// A nameFilter tells, by its length and its last two bytes, that a name is none of a set: what most names in a line are
// is settled by that, without decoding them.
type nameFilter [1 << 10]uint64 // by the folded last two bytes: a bit for each length, the last for all from 63 on

// add makes the filter let name pass, and with endings every longer name that ends with it.
func (f *nameFilter) add(name string, endings bool) {
	if len(name) < 2 {
		return // may lets names of one byte pass
	}
	lengths := uint64(1) << min(len(name), 63)
	if endings {
		lengths = -lengths // and all above
	}
	f[filterIndex(name[len(name)-2], name[len(name)-1])] |= lengths
}

// may tells whether raw, as it is written, can be a name of the set. Names with escapes, or with anything but letters,
// digits, _ and -, are let pass.
func (f *nameFilter) may(raw []byte) bool {
	for _, c := range raw {
		if folded[c] == 0 {
			return true
		}
	}
	n := len(raw)
	return n < 2 || f[filterIndex(raw[n-2], raw[n-1])]>>min(n, 63)&1 != 0
}

func filterIndex(a, b byte) int { return int(folded[a]&31)<<5 | int(folded[b]&31) }

// folded numbers the bytes of plain names as normalKey makes them alike, and all digits as one; 0 is no such byte.
var folded = func() (t [256]byte) {
	for c := range t {
		switch c := byte(c); {
		case c >= 'a' && c <= 'z':
			t[c] = c - 'a' + 1
		case c >= 'A' && c <= 'Z':
			t[c] = c - 'A' + 1
		case c == '_' || c == '-':
			t[c] = 27
		case isDigit(c):
			t[c] = 28
		}
	}
	return t
}()

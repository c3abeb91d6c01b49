package format

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

// TestAddresses: what others read otherwise (octal) is no address, and an interface's name is no part of one.
func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3", "0.0.0.0": "0.0.0.0", "010.001.002.003": "invalid IP", "10.1.2.03": "invalid IP", "00.1.2.3": "invalid IP",
		"fe80::1": "fe80::1", "fe80::1%eth0": "fe80::1", "[fe80::1%eth0.100]": "fe80::1", "fe80::1%": "invalid IP", "%eth0": "invalid IP",
		"fe80::1%a b": "invalid IP", "10.1.2.3%eth0": "invalid IP", "::ffff:10.1.2.3": "10.1.2.3", "::ffff:010.1.2.3": "invalid IP",
	} {
		if got := addrOf([]byte(text)).String(); got != want {
			t.Errorf("%q became %s, want %s", text, got, want)
		}
	}
	if addr, port := addrPort([]byte("[fe80::1%eth0]:443")); addr.String() != "fe80::1" || port != 443 {
		t.Errorf("%s %d", addr, port)
	}
}

// FuzzAddress: IPv6 is read as the standard library reads it, all of it but what has a zone or ends in dotted digits.
func FuzzAddress(f *testing.F) {
	for _, text := range []string{"::", "::1", "1::", "2001:db8::7", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8::",
		"1::2::3", ":1", "1:", "1:::2", "12345::", "0000:0ABC::f", "::ffff:a01:203", "::ffff:10.1.2.3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "g::"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := netip.ParseAddr(text)
		got, ok := ipv6([]byte(text))
		switch {
		case ok && (err != nil || got != want.Unmap()):
			t.Errorf("%q became %s, want %s (%v)", text, got, want, err)
		case !ok && err == nil && want.Is6() && !strings.ContainsAny(text, ".%"):
			t.Errorf("%q is an address", text)
		}
		if four, ok := ipv4([]byte(text)); ok != (err == nil && want.Is4()) || ok && four != want {
			t.Errorf("%q became %s, want %s (%v)", text, four, want, err)
		}
	})
}

// TestFind: the first of several, at every distance from the beginning and the end.
func TestFind(t *testing.T) {
	line := make([]byte, 40)
	for at := range line {
		for from := range len(line) + 1 {
			for i := range line {
				line[i] = ' ' - 1 + byte(i%3)&2 // its neighbours, into whose bits a difference borrows
			}
			line[at], line[len(line)-1] = ' ', ' '
			want := bytes.IndexByte(line[from:], ' ')
			if want >= 0 {
				want += from
			}
			if got := find(line, from, ' '); got != want {
				t.Fatalf("from %d: %d, want %d in %q", from, got, want, line)
			}
		}
	}
}

// TestLiterals: comparing a word is comparing the bytes, for literals of every length and at the line's very end.
func TestLiterals(t *testing.T) {
	line := []byte(`0123456789abcdefghij`)
	for n := 1; n <= 12; n++ {
		for at := range len(line) + 1 - n {
			e := element{literal: line[at : at+n]}
			e.prepare()
			for from := range len(line) + 1 {
				if got, want := e.follows(line, from), from == at; got != want {
					t.Errorf("%q at %d: %v", e.literal, from, got)
				}
			}
			if got := e.search(line, 0); got != at {
				t.Errorf("%q was found at %d, want %d", e.literal, got, at)
			}
		}
	}
}

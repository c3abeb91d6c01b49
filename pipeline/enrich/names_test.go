package enrich

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// namePieces are what names and almost names are made of.
func namePieces() []string {
	words := slices.Concat(sensitiveKeys, sensitiveEndings, sensitiveFields)
	for _, w := range slices.Clone(words) {
		words = append(words, w[1:], w[:len(w)-1], strings.ToUpper(w), strings.ReplaceAll(w, "_", "-"))
	}
	return append(words, "", "a", "_", "-", ".", "[", "]", "%5B", "%6e", "%255d", `\u005f`, `\x2d`, "7", "é", "\xff", "$", "~", "%", `\`, strings.Repeat("x", 70))
}

// What the filter stops is no name of a secret, however it is written.
func TestFilterStopsNoSensitiveName(t *testing.T) {
	rd := mustRedactor(t, RedactConfig{Keys: []string{"Voucher-No", "k", "c-3", "a.b"}})
	pieces := append(namePieces(), "voucher-no", "k", "K", "c_9", "c-3", "a.b")
	stopped, passed := 0, 0
	check := func(raw []byte) {
		key := normalKey(nil, raw)
		if len(key) > 0 && rd.sensitive(key) && !rd.mayBeKey.may(raw) {
			t.Fatalf("%q is stopped, and names a secret", raw)
		}
		if sensitiveField(key) && !mayBeField.may(raw) {
			t.Fatalf("%q is stopped, and is a sensitive field", raw)
		}
		if rd.mayBeKey.may(raw) {
			passed++
		} else {
			stopped++
		}
	}
	for _, a := range pieces {
		for _, b := range pieces {
			check([]byte(a + b))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check([]byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 5).Draw(t, "pieces"), "")))
		check(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	})
	if stopped < 1000 || passed < 1000 {
		t.Errorf("%d were stopped and %d let pass", stopped, passed)
	}
}

func TestFilterStopsWhatLogsAreMadeOf(t *testing.T) {
	rd := mustRedactor(t, RedactConfig{})
	for _, name := range []string{"host", "xff", "rt", "uaddr", "us", "ul", "cs", "lrs", "page", "sort", "utm_source"} {
		if rd.mayBeKey.may([]byte(name)) {
			t.Errorf("%s is let pass", name)
		}
	}
	for _, name := range []string{"level", "ts", "msg", "remote_ip", "method", "uri", "headers", "User-Agent", "status", "duration"} {
		if mayBeField.may([]byte(name)) {
			t.Errorf("%s is let pass", name)
		}
	}
}

func TestIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := []byte(rapid.StringMatching(`[earsic":x ]{0,40}`).Draw(t, "line"))
		for _, text := range []string{"earer", "asic", `":`} {
			if got, want := index(line, text), bytes.Index(line, []byte(text)); got != want {
				t.Fatalf("%q in %q: %d, want %d", text, line, got, want)
			}
		}
	})
}

package format

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

// jsonValue draws any JSON value of a small depth.
func jsonValue(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.String().AsAny(), rapid.Float64Range(-1e12, 1e12).AsAny(), rapid.Int64().AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil),
	}
	if depth > 0 {
		leaves = append(leaves, rapid.SliceOfN(jsonValue(depth-1), 0, 3).AsAny(),
			rapid.MapOfN(rapid.String(), jsonValue(depth-1), 0, 3).AsAny())
	}
	return rapid.OneOf(leaves...)
}

// TestScannerAgreesWithEncodingJSON reads what the standard library wrote, and knows each cut of it as one.
func TestScannerAgreesWithEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		object := rapid.MapOfN(rapid.String(), jsonValue(3), 1, 4).Draw(t, "object")
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		var mem arena
		if reason := checkJSON(text, &mem); reason != "" {
			t.Fatalf("%s: %s", text, reason)
		}
		cut := rapid.IntRange(1, len(text)-1).Draw(t, "cut")
		if reason := checkJSON(text[:cut], &mem); reason != pipeline.ReasonTruncated {
			t.Fatalf("%s: %q", text[:cut], reason)
		}
	})
}

// TestScannerRefusesWhatEncodingJSONRefuses allows the two differences that the scanner is documented to have.
func TestScannerRefusesWhatEncodingJSONRefuses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := []byte("{" + rapid.StringMatching(`("[a\\u"]{0,3}" ?: ?[-0-9.eEtrufalsn"\[\]{},]{0,6},?){0,3}`).Draw(t, "text") + "}")
		var mem arena
		if reason := checkJSON(text, &mem); (reason == "") && !json.Valid(text) && !leadingZero(text) {
			t.Fatalf("%s was accepted", text)
		}
	})
}

func leadingZero(text []byte) bool {
	for i := 1; i < len(text); i++ {
		if text[i-1] == '0' && text[i] >= '0' && text[i] <= '9' {
			return true
		}
	}
	return false
}

func TestScannerUnescapesAsEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(`"` + rapid.StringMatching(`([a-z é]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}|\\ud83d\\ude00){0,8}`).Draw(t, "text") + `"`)
		var want string
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		s := jsonScanner{text: text, mem: &arena{}}
		kind, got := s.scalar()
		if kind != jsonString || string(got) != want {
			t.Fatalf("%s: %q, want %q", text, got, want)
		}
	})
}

// TestSpecial compares the search by words with one by bytes.
func TestSpecial(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "text")
		from := rapid.IntRange(0, len(text)+1).Draw(t, "from")
		want := from
		for want < len(text) && text[want] >= 0x20 && text[want] != '"' && text[want] != '\\' {
			want++
		}
		if got := special(text, from); got != want {
			t.Fatalf("%d, want %d", got, want)
		}
	})
}

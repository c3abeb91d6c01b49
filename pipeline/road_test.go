package pipeline

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// upper is a format whose records have the line as path; a line "bad" fails, and "3|x" carries the time 3 s.
type upper struct{}

func (upper) Parse(line []byte, item *Item) {
	if string(line) == "bad" {
		item.Kind, item.Reason = Failed, ReasonMalformed
		return
	}
	item.Kind = IsRecord
	if at, path, ok := bytes.Cut(line, []byte{'|'}); ok {
		item.Record.Time = int64(at[0]-'0') * 1e9
		item.Record.End, item.Record.Resolution = item.Record.Time, 1e9
		line = path
	}
	item.Record.Path = line
}

// parts is a framer that joins lines ending in "+" with the next.
type parts struct {
	held  []byte
	start int64
	out   []byte
}

func (p *parts) Next(line []byte, offset int64) ([]byte, int64, int64, Reason) {
	if string(line) == "unframed" {
		return nil, 0, 0, ReasonMalformed
	}
	if len(p.held) == 0 {
		p.start = offset
	}
	p.held = append(p.held, bytes.TrimSuffix(line, []byte("+"))...)
	if bytes.HasSuffix(line, []byte("+")) {
		return nil, 0, 0, ReasonNone
	}
	p.out = append(p.out[:0], p.held...)
	p.held = p.held[:0]
	return p.out, p.start, 7e9, ReasonNone
}

func (p *parts) Flush() ([]byte, int64, int64, bool) {
	if len(p.held) == 0 {
		return nil, 0, 0, false
	}
	p.out = append(p.out[:0], p.held...)
	p.held = p.held[:0]
	return p.out, p.start, 7e9, true
}

func (p *parts) Pending() (int64, bool) { return p.start, len(p.held) > 0 }

type still struct{}

func (still) Enrich(r *Record) { r.Site = "s" }

// mask writes secret as ***.
type mask struct{}

func (mask) Line(dst, line []byte, _ *Record) []byte {
	if !bytes.Contains(line, []byte("secret")) {
		return line
	}
	return append(dst[:0], bytes.ReplaceAll(line, []byte("secret"), []byte("***"))...)
}

// travel sends blocks down a road and tells what came out.
type travel struct {
	road  *Road
	items []string
	lines []string
	to    []int64
	times []int64
	seen  map[string]bool // entries' time and line
	twice int

	id     string // of the stream that is sent
	unlike []string

	joined, split int
}

func newTravel(framer func() Framer) *travel {
	tr := &travel{seen: map[string]bool{}, id: "id"}
	tr.road = NewRoad(RoadConfig{
		Input: "in", Enricher: still{}, Redactor: mask{}, Now: func() int64 { return 42 },
		Open: func(*Stream, []byte) (Framer, Format, error) {
			if framer == nil {
				return nil, upper{}, nil
			}
			return framer(), upper{}, nil
		},
		Take: func(w *Work) error {
			for i := range w.Items {
				it := &w.Items[i]
				tr.items = append(tr.items, fmt.Sprintf("%d:%d:%s%s", it.Number, it.Offset, it.Record.Path, it.Reason))
			}
			for _, e := range w.Batch.Entries {
				tr.lines = append(tr.lines, string(e.Line))
				tr.times = append(tr.times, e.Time)
				key := fmt.Sprint(e.Time, string(e.Line))
				if tr.seen[key] {
					tr.twice++
				}
				tr.seen[key] = true
			}
			tr.to = append(tr.to, w.Batch.To)
			if w.Batch.Lines+w.Split != len(w.Batch.Entries)+w.Joined || len(w.Items) != len(w.Batch.Entries) {
				tr.unlike = append(tr.unlike, fmt.Sprintf("%d lines and %d split are %d entries and %d joined",
					w.Batch.Lines, w.Split, len(w.Batch.Entries), w.Joined))
			}
			tr.joined, tr.split = tr.joined+w.Joined, tr.split+w.Split
			w.Release()
			return nil
		},
	})
	return tr
}

func (tr *travel) send(t *testing.T, from int64, data string, last bool) {
	t.Helper()
	b := &Block{Stream: &Stream{Input: "in", ID: tr.id, Path: "p"}, Data: []byte(data), From: from, To: from + int64(len(data)), Last: last}
	if err := tr.road.Emit(b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Data {
		b.Data[i] = 'X' // the source takes its memory back
	}
}

func TestRoadLines(t *testing.T) {
	tr := newTravel(nil)
	tr.send(t, 0, "", false)
	tr.send(t, 100, "a\r\n\nbad\n3|b", false)
	want := []string{"1:100:a", "2:103:", "3:104:malformed", "4:108:b"}
	if !slices.Equal(tr.items, want) {
		t.Errorf("items %q, want %q", tr.items, want)
	}
	if want := []string{"a", "", "bad", "3|b"}; !slices.Equal(tr.lines, want) {
		t.Errorf("lines %q, want %q", tr.lines, want)
	}
	if want := EntryTime(3e9, 1e9, 108, xxhash.Sum64String("id")); tr.times[0] != 42 || tr.times[3] != want || want/1e9 != 3 {
		t.Errorf("times %d: want the clock's for a line before any time, and the offset below the resolution", tr.times)
	}
}

func TestRoadMakesEqualLinesDiffer(t *testing.T) {
	tr := newTravel(nil)
	tr.send(t, 0, strings.Repeat("3|HEAD\n", 1000), false)
	tr.send(t, 7000, strings.Repeat("3|HEAD\nbad\n", 1000), false)
	if tr.twice > 0 {
		t.Errorf("%d lines have the time and the text of another: Loki would fold them", tr.twice)
	}
}

// Files of one input have the same labels, and rotated by size they have the same lines at the same places.
func TestRoadMakesEqualLinesOfTwoFilesDiffer(t *testing.T) {
	tr := newTravel(nil)
	for _, id := range []string{"balancer/801-1f-1", "balancer/801-20-1"} {
		tr.id = id
		tr.send(t, 0, strings.Repeat("3|HEAD\nbad\n", 1000), false)
	}
	if tr.twice > 0 {
		t.Errorf("%d lines have the time and the text of another file's: Loki would fold them", tr.twice)
	}
	again := newTravel(nil)
	again.id = tr.id
	again.send(t, 0, strings.Repeat("3|HEAD\nbad\n", 1000), false)
	if !slices.Equal(again.times, tr.times[2000:]) {
		t.Error("a line that is read again has another time")
	}
}

func TestRoadRedacts(t *testing.T) {
	tr := newTravel(nil)
	var want []string
	var data strings.Builder
	for i := range 5000 {
		line := fmt.Sprintf("%d secret %s", i, strings.Repeat("y", i%97))
		if i%3 == 0 {
			line = fmt.Sprintf("%d open", i)
		}
		data.WriteString(line + "\n")
		want = append(want, strings.ReplaceAll(line, "secret", "***"))
	}
	tr.send(t, 0, data.String(), false)
	if !slices.Equal(tr.lines, want) {
		t.Error("the redacted lines are not what was sent")
	}
}

func TestRoadJoinsParts(t *testing.T) {
	tr := newTravel(func() Framer { return &parts{} })
	tr.send(t, 0, "a+\nb\nunframed\nc+\n", false)
	tr.send(t, 18, "d+\n", false)
	tr.send(t, 21, "e\nf+\n", true)
	want := []string{"2:0:ab", "3:5:malformed", "1:14:cde", "2:23:partial"}
	if !slices.Equal(tr.items, want) {
		t.Errorf("items %q, want %q", tr.items, want)
	}
	// a+, c+ and d+ wait for others; f+ is ended by the end.
	if tr.joined != 4 || tr.split != 1 || len(tr.unlike) > 0 {
		t.Errorf("%d lines joined and %d split, want 4 and 1; %q", tr.joined, tr.split, tr.unlike)
	}
	// Until the parts of a line are together, reading would begin again at the first.
	if want := []int64{14, 14, 26}; !slices.Equal(tr.to, want) {
		t.Errorf("positions %d, want %d", tr.to, want)
	}
}

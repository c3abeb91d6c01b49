package loki

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/loki/lokitest"
)

// numbers gives which of logged's lines are in the dead-letter file, by their place at the end of the line.
func (r *rig) buried() (lines []string) {
	for _, l := range r.letters() {
		lines = append(lines, l.Line)
	}
	slices.Sort(lines)
	return lines
}

// A thousand lines with three bad ones: 997 arrive, three are counted by reason, and it is those three.
func TestThreeOfAThousandAreRefused(t *testing.T) {
	type change = func(e *pipeline.Entry)
	old := func(e *pipeline.Entry) { e.Time -= int64(8 * 24 * time.Hour) }
	far := func(e *pipeline.Entry) { e.Time += int64(time.Hour) }
	long := func(e *pipeline.Entry) { e.Line = append(e.Line, bytes.Repeat([]byte("x"), 1000)...) }
	wide := func(e *pipeline.Entry) { e.Route = strings.Repeat("/r", 300) }
	late := func(e *pipeline.Entry) { e.Time -= int64(3 * time.Hour) }
	limits := func(l *lokitest.Limits) { l.MaxLine, l.MaxMetadataBytes = 1000, 500 }
	for name, c := range map[string]struct {
		changes [3]change
		reasons [3]string
		resent  bool // the answer did not tell all
	}{
		"too old":                    {[3]change{old, old, old}, [3]string{refusedTooOld, refusedTooOld, refusedTooOld}, false},
		"too new":                    {[3]change{far, far, far}, [3]string{refusedTooNew, refusedTooNew, refusedTooNew}, false},
		"too long":                   {[3]change{long, long, long}, [3]string{refusedTooLong, refusedTooLong, refusedTooLong}, false},
		"metadata":                   {[3]change{wide, wide, wide}, [3]string{refusedMetadata, refusedMetadata, refusedMetadata}, false},
		"each something else":        {[3]change{old, long, wide}, [3]string{refusedTooOld, refusedTooLong, refusedMetadata}, false},
		"too far behind":             {[3]change{late, late, late}, [3]string{refusedBehind, refusedBehind, refusedBehind}, false},
		"behind, which hides others": {[3]change{late, long, far}, [3]string{refusedBehind, refusedTooLong, refusedTooNew}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := lokitest.NewServer(t)
			limits(&s.Limits)
			r := start(t, t.TempDir(), quick(s.URL))
			r.append(logged("a", 0, 10)) // what others are behind of
			r.shipped()
			b := logged("a", 10, 1000)
			var bad []string
			for i, at := range []int{100, 500, 999} {
				c.changes[i](&b.Entries[at])
				bad = append(bad, string(b.Entries[at].Line))
			}
			requests := s.Requests()
			r.append(b)
			r.shipped()
			if got := len(s.Entries()); got != 1007 {
				t.Errorf("Loki has %d lines, want 1007", got)
			}
			want := map[string]float64{}
			for _, reason := range c.reasons {
				want[reason]++
			}
			for _, reason := range refusedReasons {
				if got := r.value(reason); got != want[reason] {
					t.Errorf("%v lines are refused as %s, want %v", got, reason, want[reason])
				}
			}
			slices.Sort(bad)
			if got := r.buried(); !slices.Equal(got, bad) {
				t.Errorf("the wrong lines are in the dead-letter file: %.200q", got)
			}
			if n := s.Requests() - requests; n != 1 && !c.resent {
				t.Errorf("%d requests for what one answer told", n)
			}
			if folded := s.Folded(); folded > 0 && !c.resent {
				t.Errorf("%d lines were sent again for no reason", folded)
			}
		})
	}
}

// An answer that names entries but not which is no reason to guess: halves find them.
func TestRefusalsThatAreNotExactAreBisected(t *testing.T) {
	s := lokitest.NewServer(t)
	s.Intercept = func(_ int, _ *http.Request, body []byte) lokitest.Reply {
		if !lokitest.Contains(body, "odd") {
			return lokitest.Reply{}
		}
		n := 7 // a number that fits nothing
		return lokitest.Reply{Status: 400, Store: !lokitest.Only(body, "odd"), Text: fmt.Sprintf("%d errors like: max entry size '100000' bytes exceeded for stream '{}' while adding an entry with length '3' bytes", n)}
	}
	r := start(t, t.TempDir(), quick(s.URL))
	b := logged("a", 0, 1000)
	for _, i := range []int{3, 4, 700} {
		b.Entries[i].Line = fmt.Appendf(nil, "odd %d", i)
	}
	r.append(b)
	r.shipped()
	if got := r.buried(); !slices.Equal(got, []string{"odd 3", "odd 4", "odd 700"}) || r.value(refusedTooLong) != 3 {
		t.Errorf("%v lines are refused: %q", r.value(refusedTooLong), got)
	}
	good := 0
	for _, e := range s.Entries() {
		if !strings.HasPrefix(e.Line, "odd") {
			good++
		}
	}
	if good != 997 || testutil.ToFloat64(r.shipper.m.shipped) != 997 {
		t.Errorf("Loki has %d good lines, %v are counted", good, testutil.ToFloat64(r.shipper.m.shipped))
	}
}

// Loki tells what became of the last stream of a push; that it refused lines of another it does not say. Where that
// may be, a stream goes alone.
func TestRefusalsOfOtherStreamsAreNotMissed(t *testing.T) {
	s := lokitest.NewServer(t)
	r := start(t, t.TempDir(), quick(s.URL))
	of := func(site string, from int64) *pipeline.Batch {
		b := logged(site, from, 10)
		for i := range b.Entries {
			b.Entries[i].Site = site
		}
		return b
	}
	r.append(of("a.example", 0))
	r.append(of("b.example", 0))
	r.shipped()
	late := of("a.example", 10)
	for i := range late.Entries {
		late.Entries[i].Time -= int64(3 * time.Hour)
	}
	r.append(late)
	r.append(of("b.example", 10))
	r.shipped()
	r.expect(s, 30)
	if got := r.value(refusedBehind); got != 10 || len(r.letters()) != 10 {
		t.Errorf("%v lines are refused, %d dead letters, want 10", got, len(r.letters()))
	}
}

func TestUnwritableDeadLetterFile(t *testing.T) {
	s := lokitest.NewServer(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "dead-letter.jsonl"), 0o700); err != nil {
		t.Fatal(err)
	}
	log, seen := observer.New(zapcore.ErrorLevel)
	r := start(t, dir, quick(s.URL), func(w *setup) { w.deps.Log = zap.New(log) })
	for round := range int64(3) {
		b := logged("a", round*10, 10)
		b.Entries[4].Time -= int64(8 * 24 * time.Hour)
		r.append(b)
		r.shipped()
	}
	r.expect(s, 27)
	if r.value(refusedTooOld) != 3 || testutil.ToFloat64(r.shipper.m.deadLettersLost) != 3 {
		t.Errorf("%v lines are refused, %v counted as lost to the dead-letter file", r.value(refusedTooOld), testutil.ToFloat64(r.shipper.m.deadLettersLost))
	}
	if n := seen.FilterMessageSnippet("dead-letter file cannot be written").Len(); n != 1 {
		t.Errorf("it was told %d times within a minute", n)
	}
}

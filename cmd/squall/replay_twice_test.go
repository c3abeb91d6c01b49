package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/detectors/pane"
)

// Logs that begin and end alike and have one length are two, whatever is between differs; the same bytes are one, packed
// or not. What is empty is like nothing.
func TestWhatIsTheSameObject(t *testing.T) {
	dir := t.TempDir()
	var log []byte
	for i := range 4000 {
		log = fmt.Appendf(log, "192.0.2.1 - - [01/Jul/2026:10:%02d:%02d +0000] \"GET /page-%06d HTTP/1.1\" 200 512 \"-\" \"curl/8\"\n", i/100, i/2%50, i)
	}
	other := bytes.Replace(log, []byte("/page-002000"), []byte("/page-00200x"), 1)
	if len(log) < 3*peekBytes || len(other) != len(log) || bytes.Equal(log, other) {
		t.Fatal("the logs do not differ behind their beginning")
	}
	paths := []string{
		placeLog(t, dir, "a.log", log), placeLog(t, dir, "b.log", other), placeLog(t, dir, "c.log.gz", gzipped(t, log)),
		placeLog(t, dir, "d.log.zst", zstandard(t, log)), placeLog(t, dir, "e.log", nil), placeLog(t, dir, "f.log", log[:len(log)-1]),
		placeLog(t, dir, "g.log", nil), placeLog(t, dir, "h.log", other),
	}
	v := replayed(t, append([]string{"--format", "nginx_combined", "--site", "x.example"}, paths...)...)
	check(t, "lines of a, b and f", v.summary.Lines, uint64(3*4000))
}

// Of more logs than a summary lists it lists the same ones each time: the first by name.
func TestSummaryListsTheFirstLogs(t *testing.T) {
	all := &tally{heard: map[string]*heard{}}
	res := &detectors.Result{Heard: map[string]*pane.Heard{}}
	for i := range 3 * maxGaps {
		res.Heard[fmt.Sprintf("access-%03d.log", i)] = &pane.Heard{Records: 2}
	}
	for range 5 {
		all.listen(res)
	}
	list := all.sources()
	if len(list) != maxGaps || list[0].Source != "access-000.log" || list[maxGaps-1].Source != "access-099.log" || list[7].Requests != 10 {
		t.Errorf("%d logs: %v", len(list), list)
	}
}

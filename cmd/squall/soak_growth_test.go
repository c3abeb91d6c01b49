//go:build soak

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// growthLines are in each log whose cost a line is compared, over growthSpan of event time.
const (
	growthLines  = 400_000
	growthSpan   = 80 * time.Second
	growthRounds = 3
)

// A growth is a log with many of one thing.
type growth struct {
	name                 string
	sites, files, routes int
	dir                  string
	seconds              []float64
}

var growths = []*growth{
	{name: "one site, file, a hundred routes", sites: 1, files: 1, routes: 100},
	{name: "1,000 sites", sites: 1000, files: 1, routes: 100},
	{name: "2,000 files", sites: 1, files: 2000, routes: 100},
	{name: "10,000 routes", sites: 1, files: 1, routes: 10_000},
	{name: "a new route on every line", sites: 1, files: 1, routes: 1_000_000},
}

// write makes the log: the lines of an ordinary day, made so busy that they fit the span.
func (g *growth) write(t *testing.T, parts []floodPart) {
	t.Helper()
	g.dir = t.TempDir()
	files := make([]bytes.Buffer, g.files)
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	host := []byte(`host="shop.example"`)
	for n := range growthLines {
		at := began.Add(growthSpan / growthLines * time.Duration(n))
		p := parts[n%len(parts)]
		if g.sites > 1 {
			p.tail = bytes.Replace(p.tail, host, fmt.Appendf(nil, `host="shop-%d.example"`, n%g.sites), 1)
		}
		path := routeWord(uint64(n % g.routes))
		file := &files[n%g.files]
		file.Write(p.append(nil, p.address, path, at.AppendFormat(nil, soakTime), appendMsec(nil, at)))
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(g.dir, fmt.Sprintf("access-%04d.log", i)), files[i].Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

var growthCounted = regexp.MustCompile(`"summary":{"lines":(\d+)`)

// replay notes the processor time of one replay.
func (g *growth) replay(t *testing.T, squall string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), squall, "replay", "--progress", "never", "--json", "-", g.dir)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", g.name, err)
	}
	if m := growthCounted.FindSubmatch(out); m == nil || string(m[1]) != strconv.Itoa(growthLines) {
		t.Fatalf("%s: not all lines were read: %.300s", g.name, out)
	}
	g.seconds = append(g.seconds, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
}

// TestSoakGrowth prints what a line costs more where there is much of something.
func TestSoakGrowth(t *testing.T) {
	squall, parts := soakProgram(t), floodParts(t, 100_000)
	for _, g := range growths {
		g.write(t, parts)
	}
	for range growthRounds {
		for _, g := range growths {
			g.replay(t, squall)
		}
	}
	fmt.Printf("\n%s\n\n| replay of %d lines in %s of event time, one processor | CPU-s for a million lines | of the first |\n|---|---|---|\n",
		soakMachine(t), growthLines, growthSpan)
	base := median(growths[0].seconds)
	for _, g := range growths {
		fmt.Printf("| %s | %.2f | %.2f |\n", g.name, median(g.seconds)*1e6/growthLines, median(g.seconds)/base)
	}
	without, with := detectorsCost(t, filepath.Join(growths[0].dir, "access-0000.log"))
	fmt.Printf("| panes alone, no detector | | 1 |\n| all %s, and the rules | | %.2f |\n", "13 detectors", with/without)
	for _, g := range growths[1:4] {
		if ratio := median(g.seconds) / base; ratio > 2 {
			t.Errorf("%s: a line costs %.2f times as much", g.name, ratio)
		}
	}
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// detectorsCost takes a log down the road into panes, with nobody and with everybody looking at them.
func detectorsCost(t *testing.T, path string) (without, with float64) {
	t.Helper()
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var seconds [2][]float64
	for range growthRounds {
		for i := range seconds {
			began := ownTime(t)
			takeDown(t, log, i == 1)
			seconds[i] = append(seconds[i], ownTime(t)-began)
		}
	}
	return median(seconds[0]), median(seconds[1])
}

func takeDown(t *testing.T, log []byte, judged bool) {
	t.Helper()
	j, err := newJudge(Default(), nil, 0)
	chain, err2 := newChain(Default(), nil)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	j.label = "growth"
	j.source("growth", time.Second)
	settle := func() {
		if judged {
			j.settle()
			return
		}
		for j.panes.Next() != nil {
		}
	}
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: "growth", Open: opener{format: formatChoice{name: "nginx_extended"}, zone: time.UTC}.open, Enricher: chain.For(""),
		Take: func(w *pipeline.Work) error {
			j.feed(w)
			w.Release()
			settle()
			return nil
		},
	})
	stream := &pipeline.Stream{Input: "growth", ID: "growth", Path: "growth"}
	in := bufio.NewReaderSize(bytes.NewReader(log), 256<<10)
	for from := int64(0); ; {
		block, _ := in.Peek(256 << 10) // less at the end
		block = block[:bytes.LastIndexByte(block, '\n')+1]
		if len(block) == 0 {
			break
		}
		if err := road.Emit(&pipeline.Block{Stream: stream, Data: block, From: from, To: from + int64(len(block))}); err != nil {
			t.Fatal(err)
		}
		from += int64(len(block))
		_, _ = in.Discard(len(block)) // it was there
	}
	j.panes.Flush()
	settle()
}

// ownTime is the processor time of this process, s.
func ownTime(t *testing.T) float64 {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

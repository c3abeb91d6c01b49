package source

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// BenchmarkBlocks reads a file of 217 bytes a line from its beginning to its end, page cache warm.
func BenchmarkBlocks(b *testing.B) {
	line := append(bytes.Repeat([]byte("x"), 216), '\n')
	const lines = 300_000
	path := filepath.Join(b.TempDir(), "access.log")
	if err := os.WriteFile(path, bytes.Repeat(line, lines), 0o644); err != nil {
		b.Fatal(err)
	}
	f := newFiles(testConfig(path), testRuntime(), nil)
	f.limits.turn = 1 << 40
	seen := 0
	f.prepare(&spool{}, func(blk *pipeline.Block) error { seen += len(blk.Data); return nil })
	g, _, err := f.open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.release()
	c := newCutter()
	b.SetBytes(lines * int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		g.off, g.anchor = 0, g.anchor[:0]
		if _, _, err := f.readBlocks(b.Context(), g, c); err != nil {
			b.Fatal(err)
		}
	}
	if want := b.N * lines * len(line); seen != want {
		b.Fatalf("%d bytes, want %d", seen, want)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*lines), "ns/line")
}

// The number of allocations does not depend on the number of lines or blocks.
func TestBlocksAllocateNothingPerLine(t *testing.T) {
	path := logPath(t)
	write(t, path, text(number(0, 60000)))
	f := newFiles(testConfig(path), testRuntime(), nil)
	f.prepare(&spool{}, func(*pipeline.Block) error { return nil })
	g, _, err := f.open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	c := newCutter()
	f.limits.turn = 1 << 40
	n := testing.AllocsPerRun(5, func() {
		g.off, g.anchor = 0, g.anchor[:0]
		if _, _, err := f.readBlocks(t.Context(), g, c); err != nil {
			t.Error(err)
		}
	})
	if n > 8 {
		t.Errorf("%v allocations for 60000 lines in 8 blocks", n)
	}
}

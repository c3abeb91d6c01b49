package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/squall-sre/squall/pipeline"
)

// A writer with a 4 KiB buffer leaves half a line at each flush; none may be seen.
func TestPartialLinesOfBufferedWriter(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	w := opened(t, path)
	defer w.Close()
	start(t, s, path)
	all := text(lines)
	for len(all) > 0 {
		n := min(4096, len(all))
		put(t, w, all[:n])
		all = all[n:]
	}
	s.want(lines)
}

// Half a line is held for as long as its generation may grow, and told when it is over.
func TestPartialLineAtEnd(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	write(t, path, text(lines)+"half")
	f, _ := start(t, s, path)
	s.want(lines)
	until(t, func() bool { return f.States()[0].Lag == 4 }, func() string { return fmt.Sprint(f.States()) })
	appendTo(t, path, " and whole\nhalf again")
	lines = append(lines, "half and whole")
	s.want(lines)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.want(append(lines, "half again"))
	until(t, func() bool { return s.ended() == 1 }, func() string { return "stream did not end" })
}

func TestLongLines(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	long := strings.Repeat("y", 10<<20)
	fitting := strings.Repeat("f", pipeline.MaxLine-1)
	lines := number(0, 20000)
	write(t, path, text(lines[:10000])+long+"\n"+fitting+"\n"+fitting+"g\n"+text(lines[10000:]))
	start(t, s, path)
	cut := long[:pipeline.MaxLine-1]
	s.want(append(append(append([]string{}, lines[:10000]...), cut, fitting, fitting), lines[10000:]...))
	var skipped []int64
	for _, skip := range s.skips() {
		if skip.Reason != pipeline.SkipLongLine || skip.Lost {
			t.Errorf("skip %+v", skip)
		}
		skipped = append(skipped, skip.Bytes)
	}
	if want := []int64{10<<20 - (pipeline.MaxLine - 1), 1}; !cmp.Equal(skipped, want) {
		t.Errorf("skipped %v bytes, want %v", skipped, want)
	}
}

// A line that grows for a long time, over many turns, is cut as one that is there at once.
func TestLongLineGrowsSlowly(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	f := newFiles(testConfig(path), testRuntime(), nil)
	f.prepare(s, s.keep)
	c := newCutter()
	appendTo(t, path, "first\n")
	for i := range 40 {
		appendTo(t, path, strings.Repeat(string(rune('a'+i%26)), 100_000))
		f.look(&hint{})
		drain(t, f, c)
	}
	appendTo(t, path, "\nlast\n")
	f.look(&hint{})
	drain(t, f, c)
	got := s.all()
	if len(got) != 3 || len(got[1]) != cutAt || got[1][:100_000] != strings.Repeat("a", 100_000) || got[2] != "last" {
		t.Errorf("%d lines, of them the second %d bytes", len(got), len(got[1]))
	}
	f.release()
}

func TestCRLFStays(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 20000)
	for i := range lines {
		lines[i] += "\r"
	}
	w := opened(t, path)
	defer w.Close()
	start(t, s, path)
	put(t, w, text(lines[:19000]))
	s.want(lines[:19000])
	put(t, w, text(lines[19000:19100]))
	s.want(lines[:19100])
	put(t, w, text(lines[19100:]))
	s.want(lines)
}

// However the bytes come, the same lines and the same Skips result, and every byte is accounted for.
func TestCutDependsOnBytesAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in bytes.Buffer
		for range rapid.IntRange(1, 4).Draw(t, "pieces") {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				in.Write(make([]byte, rapid.SampledFrom([]int{1, 15, 16, 17, 5000, 1_100_000}).Draw(t, "nuls")))
			case 1:
				in.WriteString(strings.Repeat("l", rapid.IntRange(cutAt-2, cutAt+2).Draw(t, "near")))
			case 2:
				in.WriteString(strings.Repeat("z", rapid.IntRange(1, 700_000).Draw(t, "long")))
			case 3:
				in.WriteString("\n")
			default:
				in.WriteString(strings.Repeat("a line\r\n", rapid.IntRange(1, 300).Draw(t, "lines")))
			}
		}
		whole := cutAll(t, in.Bytes(), 1<<30, 0)
		if got := cutAll(t, in.Bytes(), rapid.IntRange(20_000, 400_000).Draw(t, "chunk"), rapid.Uint64().Draw(t, "seed")); got != whole {
			t.Fatalf("cut differs\n%s\n%s", got, whole)
		}
	})
}

// cutAll reads data in chunks of up to n bytes and describes the outcome.
func cutAll(t *rapid.T, data []byte, n int, seed uint64) string {
	var out strings.Builder
	var to, nuls int64
	c := newCutter()
	c.reset(&pipeline.Stream{}, 0, func(b *pipeline.Block) error {
		if b.From != to {
			t.Fatalf("block from %d, want %d", b.From, to)
		}
		var skipped int64
		for _, s := range b.Skips {
			skipped += s.Bytes
		}
		if to = b.To; to != b.From+int64(len(b.Data))+skipped {
			t.Fatalf("block %d–%d with %d bytes, %d skipped", b.From, b.To, len(b.Data), skipped)
		}
		at := b.From
		for line := range bytes.Lines(b.Data) {
			if len(line) > pipeline.MaxLine {
				t.Fatalf("a line of %d bytes", len(line))
			}
			fmt.Fprintf(&out, "%d: %d %x\n", at, len(line), line[:min(4, len(line))])
			at += int64(len(line))
		}
		for _, s := range b.Skips {
			if s.Reason == pipeline.SkipNUL {
				nuls += s.Bytes
				continue
			}
			fmt.Fprintf(&out, "%d skips %d %s\n", s.At, s.Bytes, s.Reason)
		}
		return nil
	})
	rnd := rand.New(rand.NewPCG(seed, 1))
	for len(data) > 0 {
		k := min(len(data), len(c.space()))
		if n < 1<<30 {
			k = min(k, 1+rnd.IntN(n))
		}
		copy(c.space(), data[:k])
		if err := c.took(k); err != nil {
			t.Fatal(err)
		}
		data = data[k:]
	}
	if err := c.finish(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "%d to %d", nuls, to)
	return out.String()
}

func TestReadAll(t *testing.T) {
	s := newSpool(t)
	lines := number(0, 20000)
	stream := &pipeline.Stream{ID: "a"}
	if err := ReadAll(t.Context(), stream, iotest.HalfReader(strings.NewReader(text(lines)+"half")), s.keep); err != nil {
		t.Fatal(err)
	}
	s.want(append(lines, "half"))
	if !s.streams["a"].last {
		t.Error("the last block is not marked")
	}

	s = newSpool(t)
	torn := iotest.TimeoutReader(strings.NewReader(strings.Repeat(text(lines), 3)))
	if err := ReadAll(t.Context(), stream, torn, s.keep); err == nil {
		t.Error("no error of a reader that fails")
	}
	if skips := s.skips(); len(skips) != 1 || !skips[0].Lost || skips[0].Reason != pipeline.SkipUnread {
		t.Errorf("skips %v", skips)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ReadAll(ctx, stream, strings.NewReader("x\n"), s.keep); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
}

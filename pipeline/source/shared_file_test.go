package source

import (
	"os"
	"strings"
	"testing"
)

// Two inputs reach one file, one of them by a link: each reads all of it, and goes on where it stopped itself.
func TestTwoInputsOfOneFile(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	link := path + "-link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	lines := number(0, 2000)
	write(t, path, text(lines[:1000]))
	reader := func(name, path string) (stop func()) {
		cfg := testConfig(path)
		cfg.Name = name
		return run(t, newFiles(cfg, testRuntime(), nil), s)
	}
	twice := func(lines []string) []string { return append(append([]string{}, lines...), lines...) }
	first, second := reader("edge", path), reader("edge-copy", link)
	s.wantSet(twice(lines[:1000]))
	first()
	second()
	if n := len(s.Streams("")); n != 2 {
		t.Fatalf("%d streams, want one of each input", n)
	}
	appendTo(t, path, text(lines[1000:]))
	first, second = reader("edge", path), reader("edge-copy", link)
	defer second()
	defer first()
	s.wantSet(twice(lines))
}

// What an older squall stored has the stream's ID without the input's name: reading goes on there.
func TestPositionsOfAnOlderVersion(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	lines := number(0, 2000)
	write(t, path, text(lines[:1000]))
	_, stop := start(t, s, path)
	s.want(lines[:1000])
	stop()
	id := s.order[0]
	old := strings.TrimPrefix(id, "test/")
	if old == id {
		t.Fatalf("the stream %q does not bear its input's name", id)
	}
	s.streams[old] = s.streams[id]
	delete(s.streams, id)
	s.order[0] = old
	appendTo(t, path, text(lines[1000:]))
	_, stop = start(t, s, path)
	defer stop()
	s.want(lines)
}

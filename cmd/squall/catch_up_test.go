package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
)

// TestCatchUpOfUnevenFiles: after an outage one file has little to catch up on and another much. Event time waits for
// the one that is behind: what both hold gives what its replay gives.
func TestCatchUpOfUnevenFiles(t *testing.T) {
	m := stormOfMinutes(t)
	var little, much bytes.Buffer
	for i, line := range m.lines {
		if i%20 == 0 {
			little.Write(line)
		} else {
			much.Write(line)
		}
	}
	dir := t.TempDir()
	placeLog(t, dir, "a.log", little.Bytes())
	placeLog(t, dir, "b.log", much.Bytes())
	d := &lives{dir: filepath.Join(t.TempDir(), "spool"), recorder: watched()}
	d.config = minutesConfig(t, fmt.Sprintf("{type: file, paths: [%q]}", filepath.Join(dir, "*.log")))
	d.run(t, m.last)
	same(t, "caught up", string(d.recorder.text), m.want)
}

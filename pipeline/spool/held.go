package spool

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// heldFile lies beside the store and tells how many lines in it wait to be shipped, or are kept, so that they can be
// counted when the store's own files cannot be read any more. It is written once a second while that changes.
const heldFile = "held-lines"

// held tells how many stored lines would be missed.
func (s *Spool) held() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.consumers) == 0 {
		return s.total.lines - s.first.lines
	}
	var n int64
	for _, c := range s.consumers {
		n = max(n, c.waiting(s.total))
	}
	return n
}

// noteHeld writes the number down. Where that fails the disk is in trouble, which others tell.
func (w *writer) noteHeld() {
	n := w.s.held()
	if n == w.held && w.noted {
		return
	}
	path := filepath.Join(w.s.cfg.Dir, heldFile)
	if os.WriteFile(path+".tmp", strconv.AppendInt(nil, n, 10), 0o640) == nil && os.Rename(path+".tmp", path) == nil {
		w.held, w.noted = n, true
	}
}

// forsake counts the lines of a store that was moved aside unread.
func (s *Spool) forsake() {
	s.m.corrupt.Inc()
	if s.current().opened {
		s.removed(s.current().total, dropCorrupt)
		return
	}
	text, err := os.ReadFile(filepath.Join(s.cfg.Dir, heldFile))
	if err != nil {
		return // not knowable: the store is counted
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
		s.m.recoveredLines.Add(float64(n))
		s.m.lose(dropCorrupt, n, 0)
	}
}

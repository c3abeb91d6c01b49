package source

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const journalRemote = "/usr/lib/systemd/systemd-journal-remote"

// A journalFile is a journal as journald's own code writes it.
type journalFile struct {
	t    *testing.T
	path string
	boot string
}

func newJournalFile(t *testing.T, dir, name string) *journalFile {
	return &journalFile{t: t, path: filepath.Join(dir, name+".journal"), boot: strings.Repeat("b", 32)}
}

type logged struct {
	unit, message string
	us            int64
}

// add appends entries, in the journal export format.
func (f *journalFile) add(entries ...logged) {
	f.t.Helper()
	var export bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&export, "__REALTIME_TIMESTAMP=%d\n__MONOTONIC_TIMESTAMP=%d\n_BOOT_ID=%s\n_HOSTNAME=node-1\n_SYSTEMD_UNIT=%s.service\nMESSAGE\n",
			e.us, e.us-1774743000000000, f.boot, e.unit)
		export.Write([]byte{byte(len(e.message)), byte(len(e.message) >> 8), byte(len(e.message) >> 16), 0, 0, 0, 0, 0})
		export.WriteString(e.message + "\n\n")
	}
	cmd := exec.Command(journalRemote, "-o", f.path, "-")
	cmd.Stdin = &export
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("%v: %s", err, out)
	}
}

const anHour = 3600 * 1000000 // µs

// The real journalctl reads real files: three entries a microsecond, two units, a restart in the middle of a microsecond,
// a new boot, and a new series of numbers. Every entry comes once.
func TestJournalFiles(t *testing.T) {
	dir := t.TempDir()
	file := newJournalFile(t, dir, "a")
	want := map[string][]string{}
	add := func(f *journalFile, n, m int, us int64) {
		t.Helper()
		var entries []logged
		for i := n; i < m; i++ {
			unit := [...]string{"kubelet", "php8.2-fpm", "cron"}[i%3]
			message := fmt.Sprintf("message %d", i)
			entries = append(entries, logged{unit, message, us + int64(i/9)})
			want[unit] = append(want[unit], message)
		}
		f.add(entries...)
	}
	config := "{type: journal, units: [kubelet, php8.2-fpm], directory: " + dir + "}"
	l := newLedger(t)
	begin := func() (stop func()) {
		t.Helper()
		src, err := New(strict(config), testRuntime())
		if err != nil {
			t.Fatal(err)
		}
		return runJournal(t, src, l)
	}
	check := func() {
		t.Helper()
		l.want("kubelet", want["kubelet"])
		l.want("php8.2-fpm", want["php8.2-fpm"])
	}
	const start = 1774743984000000
	add(file, 0, 300, start)
	stop := begin()
	check()
	add(file, 300, 302, start) // while it is followed, within the last microsecond
	check()
	stop()
	add(file, 302, 330, start) // while nobody reads
	file.boot = strings.Repeat("c", 32)
	add(file, 330, 350, start)
	stop = begin()
	check()
	add(file, 350, 360, start)
	check()
	stop()
	other := newJournalFile(t, dir, "b") // journald found a damaged file and began anew
	other.boot = strings.Repeat("d", 32)
	add(other, 360, 380, start+anHour)
	stop = begin()
	check()
	add(other, 380, 400, start+anHour)
	check()
	stop()
	stop = begin() // with nothing new: nothing comes again
	add(other, 400, 403, start+anHour)
	check()
	stop()
	if n := len(l.Streams("")); n != 4 {
		t.Errorf("%d streams: %q", n, l.Streams(""))
	}
}

// With from: end, what was there before the very first start is passed over, and nothing after it, across restarts.
func TestJournalFromEnd(t *testing.T) {
	dir := t.TempDir()
	file := newJournalFile(t, dir, "a")
	at := time.Now().Add(-time.Hour).UnixMicro()
	file.add(logged{"kubelet", "old", at}, logged{"kubelet", "older than the start", at + 1})
	l := newLedger(t)
	more := "from: end, directory: " + dir
	stop := runJournal(t, journalSource(t, testRuntime(), more), l)
	until(t, func() bool { return len(l.Streams("")) == 1 }, func() string { return "no position" })
	stop()
	file.add(logged{"kubelet", "while nobody read", at + 1})
	stop = runJournal(t, journalSource(t, testRuntime(), more), l)
	l.want("kubelet", []string{"while nobody read"})
	file.add(logged{"kubelet", "now", time.Now().UnixMicro()})
	l.want("kubelet", []string{"while nobody read", "now"})
	stop()
}

// Bytes that are no text, several lines, and more than journalctl shows unless it is told to.
func TestJournalMessages(t *testing.T) {
	dir := t.TempDir()
	file := newJournalFile(t, dir, "a")
	const us = 1774743984000000
	long := strings.Repeat("x", 100<<10)
	file.add(logged{"kubelet", "two\nlines", us}, logged{"kubelet", "b\x00\xff", us + 1}, logged{"kubelet", long, us + 2})
	l := newLedger(t)
	stop := runJournal(t, journalSource(t, testRuntime(), "directory: "+dir), l)
	l.want("kubelet", []string{"two\nlines", "[98 0 255]", long})
	stop()
}

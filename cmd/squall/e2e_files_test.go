package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// nobody is a user who may not read everything: root may, and a file that cannot be read needs one who may not.
// The folder becomes theirs.
func nobody(t *testing.T, dir string) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	const id = 65534
	for _, err := range []error{os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, id, id), os.Chown(filepath.Join(dir, "squall.yaml"), id, id)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return &syscall.Credential{Uid: id, Gid: id}
}

// writeVisits writes a log of n visitors' lines.
func writeVisits(t *testing.T, path string, n int, mode os.FileMode) {
	t.Helper()
	var text strings.Builder
	for i := range n {
		text.WriteString(logLine(time.Now(), http.MethodGet, i))
	}
	if err := os.WriteFile(path, []byte(text.String()), mode); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// told counts how often the log has a message about a path.
func (p *program) told(msg, path string) (n int) {
	for _, e := range p.log(msg) {
		if e["path"] == path {
			n++
		}
	}
	return n
}

func TestFilesThatAreNotThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	var paths []string
	for _, name := range []string{"access.log", "missing.log", "locked.log", "vanishing.log", "directory.log", "folder/*.log"} {
		paths = append(paths, fmt.Sprintf("%q", at(name)))
	}
	write(t, at("squall.yaml"), fmt.Sprintf("sources: [{name: balancer, type: file, paths: [%s], lateness: 1s}]\nspool: {dir: %q}\n",
		strings.Join(paths, ", "), at("spool"))+compressed)
	user := nobody(t, dir)
	mkdir(t, at("directory.log"), at("folder"))
	writeVisits(t, at("locked.log"), 11, 0)
	writeVisits(t, at("vanishing.log"), 12, 0o644)
	writeVisits(t, at("folder/a.log"), 13, 0o644)
	people := startLogger(t, at("access.log"), http.MethodGet, 100*time.Millisecond)
	squall := runSquall(t, dir, surroundings{user: user})
	state := func(name string) string {
		s, _ := squall.source(at(name))
		return s.State
	}
	files := func(state string) float64 {
		return squall.metric(fmt.Sprintf("squall_source_files{source=%q,state=%q}", "balancer", state))
	}
	const read = `squall_lines_read_total{source="balancer"}`
	eventually(t, "what can be read is read", func() bool { return squall.metric(read) >= 12+13 })
	check(t, "missing.log", state("missing.log"), "missing")
	check(t, "locked.log", state("locked.log"), "unreadable")
	check(t, "directory.log", state("directory.log"), "unreadable")
	check(t, "files missing", files("missing"), 1.0)
	check(t, "files unreadable", files("unreadable"), 2.0)

	for _, name := range []string{"vanishing.log", "folder"} {
		if err := os.RemoveAll(at(name)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a removed file is missed", func() bool { return state("vanishing.log") == "missing" && state("folder/a.log") != "idle" })
	panes := squall.metric("squall_panes_closed_total")
	eventually(t, "detection goes on", func() bool { return squall.metric("squall_panes_closed_total") > panes+2 })

	if err := os.Chmod(at("locked.log"), 0o644); err != nil {
		t.Fatal(err)
	}
	mkdir(t, at("folder"))
	writeVisits(t, at("missing.log"), 14, 0o644)
	writeVisits(t, at("vanishing.log"), 15, 0o644)
	writeVisits(t, at("folder/b.log"), 16, 0o644)
	eventually(t, "what is back is read", func() bool { return files("unreadable") == 1 && files("missing") == 0 })
	people.stop()
	total := float64(11 + 12 + 13 + 14 + 15 + 16 + len(lines(t, at("access.log"))))
	eventually(t, "every line is read", func() bool { return squall.metric(read) >= total })
	check(t, "lines read", squall.metric(read), total)

	const missing, locked = "file is missing", "cannot open file, trying on"
	check(t, "how often missing.log is told", squall.told(missing, at("missing.log")), 1)
	check(t, "how often vanishing.log is told", squall.told(missing, at("vanishing.log")), 1)
	check(t, "how often locked.log is told", squall.told(locked, at("locked.log")), 1)
	check(t, "how often directory.log is told", squall.told(locked, at("directory.log")), 1)
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// packed is what zstd makes of a text, and behind it n times 16 MiB of nothing.
func packed(t *testing.T, text string, n int) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return append(z.EncodeAll([]byte(text), nil), bytes.Repeat(z.EncodeAll(make([]byte, 16<<20), nil), n)...)
}

// Whatever stands in a log, squall lives, counts it, and goes on detecting.
func TestHostileLogs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), ""))
	now := time.Now()
	hostile := strings.Join([]string{
		logLine(now, http.MethodGet, 1),
		logLine(now.AddDate(1, 0, 0), http.MethodGet, 2), // a clock that is off
		logLine(now.AddDate(60, 0, 0), http.MethodGet, 3),
		"GET /" + strings.Repeat("a", 10<<20) + "\n",
		"\x00\x00\x00" + logLine(now, http.MethodGet, 4),
		strings.Repeat("\x00", 5<<20) + "\n",
		strings.Replace(logLine(now, http.MethodGet, 5), "/product/", "/\xff\xfe\xc0\x80/\x1b[31m/", 1),
		"\xff\xfe\n", "\n", "\r\n", `{"request":` + strings.Repeat("[", 100000) + "\n",
	}, "")
	write(t, log, hostile)
	squall := runSquall(t, dir, surroundings{})
	heads := startLogger(t, log, http.MethodHead, 50*time.Millisecond)
	seen := func() bool { squall.alive(); return len(squall.alerts("HeadStorm", "firing")) == 1 }
	eventually(t, "the storm behind it is seen", seen)
	heads.stop()
	all := float64(len(lines(t, log)))
	counted := func(series string) float64 { return squall.metric("squall_" + series) }
	eventually(t, "every line is read", func() bool { return counted(`lines_read_total{source="balancer"}`) >= all })
	failed := 0.0
	for reason, n := range map[string]float64{"empty": 3, "bad_json": 1, "not_access_log": 2} {
		check(t, reason, counted(fmt.Sprintf("lines_failed_total{reason=%q,source=%q}", reason, "balancer")), n)
		failed += n
	}
	check(t, "lines parsed", counted(`lines_parsed_total{source="balancer"}`), all-failed)
	check(t, "lines too long", counted(`source_skips_total{reason="long_line",source="balancer"}`), 1.0)
	check(t, "holes", counted(`source_skips_total{reason="nul",source="balancer"}`), 2.0)
	check(t, "lines kept", counted("spool_appended_lines_total"), all)
	eventually(t, "and are on disk", func() bool { return counted("spool_stored_lines_total") >= all })
	squall.kill()

	// While it was away the log was rotated and packed, and somebody put a bomb behind it.
	written, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log+".1.zst", packed(t, string(written)+logLine(time.Now(), http.MethodGet, 6), 70), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	squall = runSquall(t, dir, surroundings{})
	heads = startLogger(t, log, http.MethodHead, 50*time.Millisecond)
	within(t, 3*time.Minute, "the archive is given up", func() bool { // 1 GiB, with the race detector
		squall.alive()
		return squall.metric(`squall_source_errors_total{reason="archive",source="balancer"}`) > 0
	})
	check(t, "lost", counted(`gaps_total{reason="unreadable",source="balancer"}`), 1.0)
	eventually(t, "the storm is seen", seen)
	heads.stop()
	eventually(t, "no line is left out or taken twice", func() bool {
		return counted(`lines_read_total{source="balancer"}`) >= float64(1+len(lines(t, log)))
	})
	check(t, "lines read", counted(`lines_read_total{source="balancer"}`), float64(1+len(lines(t, log))))
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// squall is stopped, as by a debugger or a node that swaps, while its log is rotated twice and packed. It reads on where
// it was. A third rotation would have deleted a file that it never saw: that it says.
func TestStoppedWhileLogsRotate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	write(t, filepath.Join(dir, "squall.yaml"), fileYAML(log, filepath.Join(dir, "spool"), ""))
	writeVisits(t, log, 500, 0o644)
	squall := runSquall(t, dir, surroundings{})
	const read = `squall_lines_read_total{source="balancer"}`
	eventually(t, "the log is read", func() bool { return squall.metric(read) >= 500 })
	vanished := func() float64 { return squall.metric(`squall_gaps_total{reason="vanished",source="balancer"}`) }
	rotations := 0
	rotate := func(keep int) {
		t.Helper()
		rotations++
		for n := keep; n > 0; n-- {
			_ = os.Rename(fmt.Sprintf("%s.%d", log, n), fmt.Sprintf("%s.%d", log, n+1)) // perhaps there is none
		}
		if err := errors.Join(os.Rename(log, log+".1"), os.RemoveAll(fmt.Sprintf("%s.%d", log, keep+1))); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for i := range 500 {
			text.WriteString(logLine(time.Now(), http.MethodGet, 500*rotations+i))
		}
		write(t, log, text.String())
	}
	squall.signal(syscall.SIGSTOP)
	rotate(5)
	rotate(5)
	squall.signal(syscall.SIGCONT)
	eventually(t, "what was written meanwhile is read", func() bool { return squall.metric(read) >= 1500 })
	check(t, "gaps", vanished(), 0.0)
	squall.signal(syscall.SIGSTOP)
	for range 3 {
		rotate(1)
	}
	squall.signal(syscall.SIGCONT)
	eventually(t, "what is left is read", func() bool { return squall.metric(read) >= 2500 })
	eventually(t, "a gap is told", func() bool { return vanished() > 0 })
	check(t, "lines read", squall.metric(read), 2500.0)
	check(t, "gaps", vanished(), 1.0)
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

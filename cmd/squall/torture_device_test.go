//go:build torture

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What happens to a disk of its own needs loop devices and a kernel that lets a file system be frozen and broken: not
// every machine that runs the tests has them.

// hungStorms is over how many storms the disk hangs.
const hungStorms = 8

// ext4 makes a file system in a file and mounts it.
func ext4(t *testing.T, dir string) (device string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s: run this test as root", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("truncate", "-s", "128M", image)
	run("mkfs.ext4", "-q", image)
	device = run("losetup", "--find", "--show", image)
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH) // it may be unmounted
		run("losetup", "--detach", device)
	})
	run("mount", "-o", "errors=remount-ro", device, dir)
	return device
}

// The requests of ioctl that freeze and thaw a file system (linux/fs.h: _IOWR('X', 119, int) and 120).
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// freeze lets every write to the file system wait until thaw is called.
func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0); err != nil {
		t.Fatalf("freeze a disk: %v", err)
	}
	thaw = sync.OnceFunc(func() {
		if err := errors.Join(unix.IoctlSetInt(int(f.Fd()), fiThaw, 0), f.Close()); err != nil {
			t.Errorf("thaw a disk: %v", err)
		}
	})
	t.Cleanup(thaw) // before squall is killed: it could not end
	return thaw
}

// The disk of the spool hangs. Storms are told as without that, and when it goes on, everything is stored. A stop
// ends as soon as the disk does: no process can end before, even by kill -9.
func TestTortureDiskHangs(t *testing.T) {
	p := newTwins(t)
	ext4(t, p.spool)
	p.start()
	p.stop = startStorms(t, p.log, time.Minute)
	p.pagesOn(1)
	thaw := freeze(t, p.spool)
	hung := time.Now()
	p.pagesOn(hungStorms)
	t.Logf("the disk hung for %s", time.Since(hung).Round(time.Millisecond))
	thaw()
	before := p.squall.metric("squall_spool_stored_lines_total")
	eventually(t, "lines are stored again", func() bool { return p.squall.metric("squall_spool_stored_lines_total") > before })
	p.pagesOn(1)

	thaw = freeze(t, p.spool)
	p.pagesOn(1)
	thawing := time.AfterFunc(4*time.Second, thaw)
	p.end(syscall.SIGTERM)
	thawing.Stop()
	thaw()
	p.start()
	p.pagesOn(1)
	p.finish("disk hangs")
}

// The kernel finds an error on the spool's disk and makes it read-only, as it does with a disk that fails. Storms are
// told as without that, over a stop and a start; when the disk is repaired every line is stored.
func TestTortureDiskReadOnly(t *testing.T) {
	p := newTwins(t)
	device := ext4(t, p.spool)
	p.start()
	p.stop = startStorms(t, p.log, time.Minute)
	p.pagesOn(1)
	write(t, filepath.Join("/sys/fs/ext4", filepath.Base(device), "trigger_fs_error"), "squall's test")
	if err := os.WriteFile(filepath.Join(p.spool, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Fatalf("the disk can be written: %v", err)
	}
	p.pagesOn(2)
	p.end(syscall.SIGTERM)
	p.start()
	p.pagesOn(2)
	p.end(syscall.SIGTERM)

	if err := unix.Unmount(p.spool, 0); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("e2fsck", "-f", "-y", device).CombinedOutput(); err != nil {
		t.Logf("e2fsck: %v: %s", err, out) // it says by its exit code that it has repaired
	}
	if out, err := exec.Command("mount", device, p.spool).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	p.start()
	p.pagesOn(1)
	p.finish("disk read-only")
}

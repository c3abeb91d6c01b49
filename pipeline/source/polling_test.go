package source

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

// pollsAlone demands that a source without events misses nothing over rotations, says so once, and shows it.
func pollsAlone(t *testing.T, fsType func(string) int64) *files {
	t.Helper()
	path, s := logPath(t), newSpool(t)
	core, logs := observer.New(zap.InfoLevel)
	rt := testRuntime()
	rt.Logger = zap.New(core)
	f := newFiles(testConfig(path), rt, nil)
	if fsType != nil {
		f.fsType = fsType
	}
	lines := number(0, 50000)
	write(t, path, text(lines[:10000]))
	run(t, f, s)
	for i := 1; i < 5; i++ {
		s.want(lines[:i*10000])
		shift(t, path, 8)
		write(t, path, text(lines[i*10000:(i+1)*10000]))
	}
	s.want(lines)
	if n := logs.FilterMessage("no inotify, polling alone").Len(); n != 1 {
		t.Errorf("said %d times that there is no inotify, want once", n)
	}
	if n := testutil.ToFloat64(f.meter.polling); n != 1 {
		t.Errorf("%v directories are polled, want 1", n)
	}
	if n := testutil.ToFloat64(f.meter.all.errors.WithLabelValues("test", errInotify)); n != 1 {
		t.Errorf("counted %v times, want once", n)
	}
	return f
}

// The kernel gives a user so many inotify instances: here all are taken. The test takes those of nobody, not
// those of everything else that root runs.
func TestInotifyInstancesUsedUp(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t)
		return
	}
	for _, fd := range instances(t, 1<<16) {
		defer unix.Close(fd)
	}
	pollsAlone(t, nil)
}

// instances opens up to n of them.
func instances(t *testing.T, n int) (fds []int) {
	t.Helper()
	for range n {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			return fds
		}
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	return fds
}

// An instance is there, but all watches of the user are taken.
func TestInotifyWatchesUsedUp(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t)
		return
	}
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	const held = 100
	dir, made := t.TempDir(), 0
	for _, fd := range instances(t, held) {
		defer unix.Close(fd)
		for i := range limit/held + 2 {
			sub := filepath.Join(dir, strconv.Itoa(i))
			if i == made {
				mkdir(t, sub)
				made++
			}
			if _, err = unix.InotifyAddWatch(fd, sub, unix.IN_DELETE); err != nil {
				break
			}
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%d watches could be had, then: %v", limit, err)
	}
	pollsAlone(t, nil)
}

// On a network file system others write without an event here, and stat fails: polling finds what changes, and
// the library, which would exit, is not used.
func TestNetworkFileSystem(t *testing.T) {
	for name, magic := range map[string]int64{"nfs": unix.NFS_SUPER_MAGIC, "cifs": 0xff534d42, "fuse": unix.FUSE_SUPER_MAGIC} {
		t.Run(name, func(t *testing.T) {
			f := pollsAlone(t, func(string) int64 { return magic })
			path := f.cfg.Paths[0]
			for i := range 20 {
				appendTo(t, path, fmt.Sprintf("%08d slow\n", 90000000+i))
				until(t, func() bool { return f.stands(path) }, func() string { return fmt.Sprint(f.States()) })
				if n := testutil.ToFloat64(f.meter.following); n != 0 {
					t.Fatalf("%v files are followed by the library", n)
				}
			}
		})
	}
}

// stands tells whether the file at path was read to its end.
func (f *files) stands(path string) bool {
	info, err := os.Stat(path)
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.paths[path].gen
	return err == nil && g != nil && g.done.Load() == info.Size()
}

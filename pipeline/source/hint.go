package source

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A hint makes the next look come sooner when names changed in a watched directory. It asks for names alone:
// a busy log would otherwise give an event a line. Nothing depends on it: events get lost, do not exist on
// network file systems, and a node's inotify instances are often used up.
type hint struct {
	changed chan struct{}
	file    *os.File // nil: no inotify
	err     error    // why not
}

func newHint() (*hint, error) {
	h := &hint{changed: make(chan struct{}, 1)}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		h.err = fmt.Errorf("start inotify: %w", err)
		return h, h.err
	}
	h.file = os.NewFile(uintptr(fd), "inotify")
	return h, nil
}

// watch watches a directory; again does no harm, and finds one that was made anew.
func (h *hint) watch(dir string) error {
	if h.file == nil {
		return h.err
	}
	var err error
	raw, cerr := h.file.SyscallConn()
	if cerr != nil {
		return cerr
	}
	cerr = raw.Control(func(fd uintptr) {
		_, err = unix.InotifyAddWatch(int(fd), dir,
			unix.IN_CREATE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_ONLYDIR)
	})
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	return cerr
}

// run ends when the hint is closed.
func (h *hint) run() {
	if h.file == nil {
		return
	}
	events := make([]byte, 16<<10)
	for {
		if _, err := h.file.Read(events); err != nil {
			return
		}
		select {
		case h.changed <- struct{}{}:
		default:
		}
	}
}

func (h *hint) close() {
	if h.file != nil {
		h.file.Close()
	}
}

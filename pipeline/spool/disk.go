package spool

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	defaultMinFree = 64 << 20
	ballastBytes   = 1 << 20
)

// A disk watches the free space of the spool's directory. It holds a ballast: a file to remove when the disk is
// so full that the store can not even be opened to remove lines.
type disk struct {
	dir, ballast string
	minFree      int64
}

func newDisk(dir string, minFree int64) *disk {
	return &disk{dir: dir, ballast: filepath.Join(dir, "ballast"), minFree: minFree}
}

// short tells whether less than need and the reserve are free.
func (d *disk) short(need int64) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(d.dir, &fs); err != nil {
		return false // the store itself will say what is wrong
	}
	size, free := int64(fs.Blocks)*fs.Bsize, int64(fs.Bavail)*fs.Bsize
	reserve := d.minFree
	if reserve == 0 {
		reserve = min(defaultMinFree, size/20)
	}
	return free < need+reserve
}

// reserve makes the ballast if it is missing. A disk without room for it goes without.
func (d *disk) reserve() {
	f, err := os.OpenFile(d.ballast, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, ballastBytes)
	if f.Close() != nil || err != nil {
		_ = os.Remove(d.ballast)
	}
}

// release gives the ballast up, and tells whether there was one.
func (d *disk) release() bool { return os.Remove(d.ballast) == nil }

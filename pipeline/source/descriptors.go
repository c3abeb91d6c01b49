package source

import "sync/atomic"

// Descriptors shares what a process may hold open among its sources of files, and leaves the rest to what must never
// lack one: the spool, the receivers, Loki and the daemon's own port. nil is without a limit.
type Descriptors struct {
	most int64
	used atomic.Int64
}

// descriptorReserve is what is left to others: a squall that ships and pages has about 40 open, and each client of its
// port, each sender of syslog and each archive that is looked into takes one more.
const descriptorReserve = 256

// NewDescriptors makes them for a process that may open limit files: RLIMIT_NOFILE.
func NewDescriptors(limit uint64) *Descriptors {
	n := int64(min(limit, 1<<30))
	return &Descriptors{most: max(n-descriptorReserve, n/4, 1)}
}

// Most is how many files may be held.
func (d *Descriptors) Most() int { return int(d.most) }

func (d *Descriptors) full() bool { return d != nil && d.used.Load() >= d.most }

func (d *Descriptors) add(n int64) {
	if d != nil {
		d.used.Add(n)
	}
}

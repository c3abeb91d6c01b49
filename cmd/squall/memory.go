package main

import (
	"bytes"
	"context"
	"math"
	"os"
	"path"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline/source"
)

// The garbage collector's bounds when nobody sets GOMEMLIMIT. What squall holds is bounded by construction and far
// below; without a limit the collector lets as much garbage again lie beside it in an attack.
const (
	softMemory  = 144 << 20 // bytes of Go's own memory: the program and what the kernel holds for it are 40 more
	memoryShare = 0.8       // of what the control group allows, when that is less
)

// A memoryBound is the collector's soft limit. A limit below what is alive frees nothing and costs half of the processor,
// when it is needed most: so it gives way, to twice as much, or as far as the control group allows.
type memoryBound struct {
	soft, most int64 // bytes
	off        bool  // GOMEMLIMIT is set: it is the user's
}

// boundMemory sets the limit: soft, in bytes, or less where the control group allows less.
func boundMemory(log *zap.Logger, soft int64) memoryBound {
	if os.Getenv("GOMEMLIMIT") != "" {
		return memoryBound{off: true}
	}
	most := int64(math.MaxInt64)
	group, _ := os.ReadFile("/proc/self/cgroup") // without control groups there is none
	for _, file := range limitFiles(string(group)) {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the other version of control groups, or none
		}
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && n > 0 { // else "max"
			most = min(most, int64(memoryShare*float64(n)))
		}
	}
	if soft < math.MaxInt64 {
		most = min(most, 2*soft)
	}
	b := memoryBound{soft: min(soft, most), most: most}
	debug.SetMemoryLimit(b.soft)
	log.Debug("the collector's soft limit is set", zap.Int64("bytes", b.soft))
	return b
}

// boundEvery is how often the limit is looked at.
const boundEvery = 5 * time.Second

// run lets the limit give way until ctx ends.
func (b memoryBound) run(ctx context.Context) error {
	tick := time.NewTicker(boundEvery)
	defer tick.Stop()
	if b.off || b.soft == b.most {
		tick.Stop()
	}
	set := b.soft
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if limit := b.limit(memoryInUse()); limit != set {
				set = limit
				debug.SetMemoryLimit(limit)
			}
		}
	}
}

// limit is the bound where so many bytes are alive, and the runtime holds so many beside the objects: a quarter of what
// is alive may be garbage. It moves in steps.
func (b memoryBound) limit(alive, beside int64) int64 {
	const step = 8 << 20
	return min(max(b.soft, (alive+alive/4+beside)/step*step), b.most)
}

// memoryInUse tells how many bytes the last collection found alive, and how many the runtime holds beside objects and what
// is free.
func memoryInUse() (alive, beside int64) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	of := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	return of(0), of(1) - of(2) - of(3) - of(4)
}

// The collector's GOGC of a replay, and of an aggregator, when nobody sets it. What is alive is small beside the panes that
// are made and thrown away by the thousand.
const (
	replayCollector    = 110
	aggregateCollector = 200
)

// easeCollector lets the collector run less often.
func easeCollector(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// limitFiles lists where the memory limits of the process's control group and of those around it stand, by
// /proc/self/cgroup: in version 2 of control groups (0::/system.slice/squall.service), and in version 1
// (5:memory:/docker/…). In a container of its own the group is the root.
func limitFiles(groups string) (paths []string) {
	const v2, v1 = "/sys/fs/cgroup", "/sys/fs/cgroup/memory"
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, file := v2, "memory.max"
		switch {
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			root, file = v1, "memory.limit_in_bytes"
		case parts[0] != "0":
			continue
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			paths = append(paths, path.Join(root, dir, file))
			if dir == "/" {
				break
			}
		}
	}
	return paths
}

// openFiles shares out what the process may open. The Go runtime has raised the soft limit to the hard one.
func openFiles() *source.Descriptors {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return nil
	}
	return source.NewDescriptors(limit.Cur)
}

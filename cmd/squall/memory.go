package main

import (
	"bytes"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline/source"
)

// The garbage collector's bounds when nobody sets GOMEMLIMIT. What squall holds is bounded by construction and far
// below; without a limit the collector lets as much garbage again lie beside it in an attack.
const (
	softMemory  = 144 << 20 // bytes of Go's own memory: the program and what the kernel holds for it are 40 more
	memoryShare = 0.8       // of what the control group allows, when that is less
)

// boundMemory sets the collector's soft limit: soft, in bytes, or less where the control group allows less.
func boundMemory(log *zap.Logger, soft int64) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := soft
	group, _ := os.ReadFile("/proc/self/cgroup") // without control groups there is none
	for _, file := range limitFiles(string(group)) {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the other version of control groups, or none
		}
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && n > 0 { // else "max"
			limit = min(limit, int64(memoryShare*float64(n)))
		}
	}
	debug.SetMemoryLimit(limit)
	log.Debug("the collector's soft limit is set", zap.Int64("bytes", limit))
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

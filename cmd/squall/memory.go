package main

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"

	"go.uber.org/zap"
)

// The garbage collector's bounds when nobody sets GOMEMLIMIT. What squall holds is bounded by construction and far
// below; without a limit the collector lets as much garbage again lie beside it in an attack.
const (
	softMemory  = 176 << 20 // bytes of Go's own memory
	memoryShare = 0.8       // of what the control group allows, when that is less
)

// boundMemory sets the collector's soft limit.
func boundMemory(log *zap.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := int64(softMemory)
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(path)
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

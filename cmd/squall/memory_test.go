package main

import (
	"slices"
	"testing"
)

func TestLimitFiles(t *testing.T) {
	for groups, want := range map[string][]string{
		"0::/\n": {"/sys/fs/cgroup/memory.max"},
		"0::/system.slice/squall.service\n": {
			"/sys/fs/cgroup/system.slice/squall.service/memory.max", "/sys/fs/cgroup/system.slice/memory.max", "/sys/fs/cgroup/memory.max",
		},
		"5:cpu,memory:/docker/0a1b\n3:cpuset:/x\n": {
			"/sys/fs/cgroup/memory/docker/0a1b/memory.limit_in_bytes", "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes",
		},
		"": nil, "nonsense\n": nil,
	} {
		if got := limitFiles(groups); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", groups, got, want)
		}
	}
}

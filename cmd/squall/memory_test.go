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

// The collector's limit stays where it is while what is alive is well below, gives way to it above, and never passes what
// the control group allows.
func TestMemoryBoundGivesWay(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ soft, most, alive, beside, want int64 }{
		{144, 1 << 40, 20, 10, 144},
		{144, 1 << 40, 100, 15, 144},
		{144, 1 << 40, 160, 20, 216},
		{144, 190, 160, 20, 190},
		{100, 100, 160, 20, 100},
	} {
		b := memoryBound{soft: c.soft * mib, most: c.most * mib}
		if got := b.limit(c.alive*mib, c.beside*mib) / mib; got != c.want {
			t.Errorf("%d MiB alive beside %d, bounds %d and %d: %d, not %d", c.alive, c.beside, c.soft, c.most, got, c.want)
		}
	}
	if alive, beside := memoryInUse(); beside <= 0 || alive < 0 {
		t.Errorf("%d bytes are alive beside %d", alive, beside)
	}
}

//go:build torture

package source

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestTortureRotation is the long version: 50,000 lines a second over twenty logs for a minute.
func TestTortureRotation(t *testing.T) {
	if os.Getuid() == 0 { // permissions mean nothing to root
		asNobody(t)
		return
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := torture{length: time.Minute, rate: 2500, quiet: 5 * time.Second, seed: seed, pause: func(rng *rand.Rand) time.Duration {
		return time.Second + time.Duration(rng.Int64N(int64(4*time.Second)))
	}}
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	renamed, cut := c.run(t, 16, 4)
	check(t, renamed, cut)
	until(t, func() bool { return runtime.NumGoroutine() <= goroutines }, func() string {
		return fmt.Sprintf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
	})
	if after := descriptors(t); after > files {
		t.Errorf("%d descriptors are open, %d were before", after, files)
	}
	fmt.Println("| logs | lines | lost | places | counted | duplicates | torn | truncations | max RSS | goroutines | descriptors |")
	for name, v := range map[string]verdict{"renamed": renamed, "truncated": cut} {
		fmt.Printf("| %s | %d | %d | %d | %d | %d | %d | %d | %s | %d → %d | %d → %d |\n", name, v.lines, v.lost, v.runs, v.counted,
			v.duplicates, v.torn, v.cut, maxRSS(t), goroutines, runtime.NumGoroutine(), files, descriptors(t))
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// maxRSS is the largest resident size of this process: source, writers and their books together.
func maxRSS(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	line, _, _ := strings.Cut(after, "\n")
	return strings.Join(strings.Fields(line), " ")
}

package source

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// Twenty logs under everything that happens to logs, at random. As another user than root: permissions bind.
func TestRotationOfTwentyFiles(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t)
		return
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := torture{length: 4 * time.Second, rate: 500, quiet: 3 * time.Second, seed: seed, pause: func(rng *rand.Rand) time.Duration {
		return 300*time.Millisecond + time.Duration(rng.Int64N(int64(700*time.Millisecond)))
	}}
	renamed, cut := c.run(t, 16, 4)
	t.Logf("never truncated %+v, truncated %+v", renamed, cut)
	check(t, renamed, cut)
}

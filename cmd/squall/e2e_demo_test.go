package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// What a newcomer sees within a minute and a half of `make run`: an alert, and an end when they want one.
func TestDemoTellsOfItsStorm(t *testing.T) {
	t.Parallel()
	squall := launch(t, surroundings{}, "demo", "--web.listen-address", "127.0.0.1:0")
	within(t, 90*time.Second, "an alert is printed", func() bool {
		squall.alive()
		return strings.Contains(squall.stdout.String(), "HeadStorm")
	})
	check(t, "exit code", squall.stop(os.Interrupt), 0)
	if text := squall.stderr.String(); strings.Contains(text, `"level":"error"`) {
		t.Errorf("standard error: %s", text)
	}
}

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The same visitors without a storm, and the same storm answered by nginx itself, wake nobody.
func TestStormThatNginxAnswersWakesNobody(t *testing.T) {
	t.Parallel()
	pages := newReceiver(t)
	am := startAlertmanager(t, pages.URL)
	origin := newOrigin(t, 4, 400*time.Millisecond)
	web := startNginx(t, origin.URL, "if ($request_method = HEAD) { return 200; }")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "squall.yaml"), stormConfig(web.log, filepath.Join(dir, "spool"), am, ""))

	few := visitors() // so few that a busy machine does not make a storm of them
	few.every = 2 * time.Second
	people := few.flow(t, web)
	squall := runSquall(t, dir, surroundings{})
	const panes = "squall_panes_closed_total"
	eventually(t, "the whole window is quiet traffic", func() bool { return squall.metric(panes) >= 12 })
	for _, name := range []string{"HeadStorm", "StormHurting", "ClientsGivingUp", "WorkersExhausted", "SelfLoop"} {
		check(t, name+" while it is quiet", len(squall.alerts(name, "firing")), 0)
	}

	storm := scanners().flow(t, web)
	eventually(t, "the storm is seen", func() bool { return len(squall.alerts("HeadStorm", "firing")) == 1 })
	check(t, "severity", squall.alerts("HeadStorm", "firing")[0].Severity, "info")
	from := squall.metric(panes)
	eventually(t, "the storm fills the window", func() bool { return squall.metric(panes) >= from+12 })
	storm()
	eventually(t, "the storm is over", func() bool { return len(squall.alerts("HeadStorm", "resolved")) == 1 })
	people()

	for _, path := range []string{"/pager", "/team"} {
		for _, status := range []string{"firing", "resolved"} {
			check(t, path+" "+status, len(pages.told(path, status)), 0)
		}
	}
	for _, name := range []string{"StormHurting", "ClientsGivingUp", "WorkersExhausted"} {
		check(t, name, len(squall.alerts(name, "firing"))+len(squall.alerts(name, "resolved")), 0)
	}
	check(t, "HEADs that reached the origin", headsOf(t, web.log, `us="200"`), 0)
	if n := headsOf(t, web.log, `us="-"`); n < 100 {
		t.Errorf("%d HEADs are no storm", n)
	}
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}

// headsOf counts the HEADs in a log whose line has this part.
func headsOf(t *testing.T, log, part string) int {
	t.Helper()
	n := 0
	for _, line := range lines(t, log) {
		if strings.Contains(line, `"HEAD `) && strings.Contains(line, part) {
			n++
		}
	}
	return n
}

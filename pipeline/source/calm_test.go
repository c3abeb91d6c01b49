package source

import (
	"os"
	"testing"
	"time"
)

// What has been quiet for long is looked at less often, until something changes.
func TestCalmFilesAreLookedAtLessOften(t *testing.T) {
	path, s := logPath(t), newSpool(t)
	now := time.Now()
	rt, cfg := testRuntime(), testConfig(path)
	rt.Now = func() time.Time { return now }
	cfg.Lateness = 5 * time.Second
	f := newFiles(cfg, rt, nil)
	f.limits.followers = 0 // they have their own clock
	f.prepare(s, s.keep)
	hint, err := newHint()
	if err != nil {
		t.Fatal(err)
	}
	defer hint.close()
	c := newCutter()
	look := func(what string, after, want time.Duration) {
		t.Helper()
		now = now.Add(after)
		f.look(hint)
		drain(t, f, c)
		f.look(hint)
		if got := f.pause(); got != want {
			t.Errorf("%s: the next look comes after %s, want %s", what, got, want)
		}
	}
	seldom, long := calmPause*rt.Poll, 2*calmAfter*rt.Poll
	appendTo(t, path, "first\n")
	look("a new file", 0, rt.Poll)
	look("a quiet one", long, seldom)
	appendTo(t, path, "second\n")
	look("a line", 0, rt.Poll)
	look("quiet again", long, seldom)
	appendTo(t, path, "half")
	look("half a line", 0, rt.Poll)
	look("quiet half a line", long, seldom)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	look("a rotation", 0, rt.Poll)
	look("no file", long, rt.Poll)
	appendTo(t, path, "third\n")
	look("a new file again", 0, rt.Poll)
	look("two quiet ones", long, seldom)
	f.cfg.Lateness = 3 * rt.Poll
	look("no patience for late lines", long, rt.Poll)
	if got := s.all(); len(got) != 4 { // the half one ended with its file
		t.Errorf("lines %q", got)
	}
	f.release()
}

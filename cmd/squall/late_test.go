package main

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A node whose clock went back is blind until its log's times have caught up: it says so each minute, with the input.
func TestLateLinesAreTold(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	var w lateWatch
	now := time.Now()
	inputs := map[string]punctuality{}
	look := func(after time.Duration) int {
		now = now.Add(after)
		w.look(now, inputs, zap.New(core))
		return len(logs.TakeAll())
	}
	look(0)
	for _, step := range []struct {
		what        string
		after       time.Duration
		lines, late uint64
		told        int
	}{
		{"a few late ones", time.Minute, 1000, 100, 0},
		{"a tenth and more", time.Minute, 1000, 101, 1},
		{"within the minute", 30 * time.Second, 1000, 1000, 0},
		{"the rest of it", 30 * time.Second, 0, 0, 1},
		{"over", time.Minute, 1000, 0, 0},
		{"nothing", time.Minute, 0, 0, 0},
	} {
		was := inputs["balancer"]
		inputs["balancer"] = punctuality{was.lines + step.lines, was.late + step.late}
		inputs["other"] = punctuality{inputs["other"].lines + 5000, 0}
		if told := look(step.after); told != step.told {
			t.Errorf("%s: told %d times, want %d", step.what, told, step.told)
		}
	}
}

package main

import (
	"runtime"
	"testing"
	weakly "weak"

	"github.com/squall-sre/squall/pipeline"
)

// TestEndedFilesHoldNoMemory: a replay knows all its files to its end, of which there may be thousands.
func TestEndedFilesHoldNoMemory(t *testing.T) {
	var rec recorder
	r := rec.replayer(t)
	file := &track{path: "access.log.gz", slot: r.judge.source("access.log", 0), work: make(chan *pipeline.Work), head: &pipeline.Work{}}
	last := weakly.Make(file.head)
	close(file.work)
	if r.next(t.Context(), file) {
		t.Fatal("there is no more work")
	}
	runtime.GC()
	if last.Value() != nil {
		t.Error("the last work, and the spare memory of the road that made it, are still held")
	}
	runtime.KeepAlive(file)
}

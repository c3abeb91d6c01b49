package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestLoggerWritesJSONToAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	log, err := newLogger(f, isTerminal(f), "warn")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("not shown")
	log.Warn("source vanished", zap.String("input", "balancer\n\x1b[2J"))
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	check(t, "msg", got["msg"], "source vanished")
	check(t, "level", got["level"], "warn")
	check(t, "input", got["input"], "balancer\n\x1b[2J")
	if !strings.HasSuffix(got["time"], "Z") || bytes.Count(text, []byte("\n")) != 1 || bytes.ContainsRune(text, 0x1b) {
		t.Errorf("%q", text)
	}
}

func TestLoggerWritesForPeopleToATerminal(t *testing.T) {
	var b bytes.Buffer
	log := zap.New(newLogCore(zapcore.AddSync(&b), zap.InfoLevel, true))
	log.Error("spool is full", zap.Int("dropped", 3))
	got := b.String()
	if !strings.Contains(got, "ERROR") || !strings.Contains(got, "spool is full") || strings.HasPrefix(got, "{") {
		t.Errorf("%q", got)
	}
}

func TestLoggerRefusesLevels(t *testing.T) {
	for _, level := range []string{"loud", "fatal", "panic"} {
		if _, err := newLogger(os.Stderr, false, level); err == nil {
			t.Errorf("level %q is accepted", level)
		}
	}
}

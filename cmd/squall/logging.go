package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// newLogger makes the logger: for people when out is a terminal, as JSON otherwise. level is debug, info,
// warn or error. Callers and stack traces are left out: a sentence and its fields say where it comes from.
func newLogger(out zapcore.WriteSyncer, terminal bool, level string) (*zap.Logger, error) {
	at, err := zapcore.ParseLevel(level)
	if err != nil || at > zapcore.ErrorLevel {
		return nil, fmt.Errorf("log level %q: write debug, info, warn or error", level)
	}
	return zap.New(newLogCore(out, at, terminal)), nil
}

func newLogCore(out zapcore.WriteSyncer, level zapcore.Level, terminal bool) zapcore.Core {
	keys := zapcore.EncoderConfig{
		TimeKey: "time", LevelKey: "level", MessageKey: "msg", NameKey: "component",
		EncodeTime: utcTime, EncodeDuration: zapcore.StringDurationEncoder,
		EncodeLevel: zapcore.LowercaseLevelEncoder,
	}
	encoder := zapcore.NewJSONEncoder(keys)
	if terminal {
		keys.EncodeTime = zapcore.TimeEncoderOfLayout(time.TimeOnly)
		keys.EncodeLevel = zapcore.CapitalColorLevelEncoder
		encoder = zapcore.NewConsoleEncoder(keys)
	}
	return zapcore.NewCore(encoder, zapcore.Lock(out), level)
}

func utcTime(t time.Time, enc zapcore.PrimitiveArrayEncoder) {
	enc.AppendString(t.UTC().Format("2006-01-02T15:04:05.000Z"))
}

// isTerminal tells whether a person reads what is written to w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

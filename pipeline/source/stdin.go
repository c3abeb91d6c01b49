package source

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/squall-sre/squall/pipeline"
)

// newStdin builds the kind stdin: lines as they come, until the writer closes its end.
func newStdin(decode func(any) error, rt Runtime) (Source, error) {
	cfg := struct {
		Common `yaml:",inline"`
	}{defaultCommon(rt)}
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if rt.Stdin == nil {
		return nil, errors.New("there is no standard input")
	}
	return &stdin{common: cfg.Common, rt: rt, meter: rt.Metrics.of(cfg.Name)}, nil
}

type stdin struct {
	common Common
	rt     Runtime
	meter  *meter
	state  atomic.Pointer[pipeline.InputState]
}

func (s *stdin) Common() Common { return s.common }

func (s *stdin) States() []pipeline.InputState {
	if state := s.state.Load(); state != nil {
		return []pipeline.InputState{*state}
	}
	return nil
}

func (s *stdin) setState(state string, err error) {
	st := &pipeline.InputState{Input: s.common.Name, Path: "-", State: state}
	if err != nil {
		st.Err = err.Error()
	}
	s.state.Store(st)
}

// Run implements pipeline.Source. What a pipe carried cannot be read again: each run is a stream of its own.
func (s *stdin) Run(ctx context.Context, _ pipeline.Positions, emit pipeline.Emit) error {
	s.setState("reading", nil)
	c := newCutter()
	c.reset(&pipeline.Stream{
		Input: s.common.Name, ID: "stdin-" + strconv.FormatInt(s.rt.Now().UnixNano(), 36), Path: "-",
		Labels: s.common.Labels,
	}, 0, func(b *pipeline.Block) error {
		if err := emit(b); err != nil {
			return err
		}
		s.meter.count(b)
		return nil
	})
	err := s.copy(ctx, c)
	var broken putError
	switch {
	case errors.As(err, &broken):
		if ctx.Err() != nil {
			return nil
		}
		return broken.error
	case ctx.Err() == nil && !errors.Is(err, io.EOF):
		s.meter.failed(errRead)
		s.setState("unreadable", err)
		s.rt.Logger.Warn("cannot read standard input", zap.String("input", s.common.Name), zap.Error(err))
		return c.finish(unreadable(c))
	}
	s.setState("done", nil)
	return c.finish()
}

// copy hands on what each read brings.
func (s *stdin) copy(ctx context.Context, c *cutter) error {
	wait := s.interruptible(ctx)
	for {
		if ok := wait(); !ok || ctx.Err() != nil {
			return io.EOF
		}
		n, err := s.rt.Stdin.Read(c.space())
		if broken := c.took(n); broken != nil {
			return putError{broken}
		}
		if err != nil {
			return err
		}
	}
}

const stdinPoll = 200 // ms: how long the end of ctx may go unnoticed

// interruptible gives a function that waits for input and gives up with ctx. A read of a terminal or a pipe
// cannot be interrupted, so it is begun only when there is something.
func (s *stdin) interruptible(ctx context.Context) func() bool {
	file, ok := s.rt.Stdin.(*os.File)
	if !ok {
		if closer, ok := s.rt.Stdin.(io.Closer); ok {
			context.AfterFunc(ctx, func() { closer.Close() })
		}
		return func() bool { return true }
	}
	fds := []unix.PollFd{{Fd: int32(file.Fd()), Events: unix.POLLIN}}
	return func() bool {
		for ctx.Err() == nil {
			if n, err := unix.Poll(fds, stdinPoll); n > 0 || err != nil && err != unix.EINTR {
				return true
			}
		}
		return false
	}
}

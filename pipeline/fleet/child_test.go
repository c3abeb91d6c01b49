package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline/spool"
)

// A task is what another process does: this test's own program, started anew.
type task struct {
	Server *ServerConfig // run a server
	Link   *Config       // or be a node, or a holder of a lease
	Dir    string        // of a node's disk
}

// child is the body of such a process. It ends with its standard input, so that none is left behind.
func child(role string) error {
	var todo task
	if err := json.Unmarshal([]byte(os.Getenv("FLEET_TEST_TASK")), &todo); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	switch role {
	case "server":
		s, err := StartServer(ctx, *todo.Server)
		if err != nil {
			return err
		}
		fmt.Println(s.Addr())
		<-ctx.Done()
		s.Shutdown()
		return nil
	case "node":
		return addForEver(ctx, todo)
	case "holder":
		return holdStopped(ctx, todo)
	}
	return errors.New("no role " + role)
}

// addForEver adds panes and tells the sequence of each that is safe.
func addForEver(ctx context.Context, todo task) error {
	s, err := spool.Open(ctx, spool.Config{Dir: todo.Dir})
	if err != nil {
		return err
	}
	kv, err := s.KV(ctx, "fleet")
	if err != nil {
		return err
	}
	l, err := Connect(*todo.Link)
	if err != nil {
		return err
	}
	o, err := l.Outgoing(ctx, kv)
	if err != nil {
		return err
	}
	go func() { _ = o.Run(ctx) }()
	for ctx.Err() == nil {
		var seq uint64
		o.Add(func(s uint64) []byte { seq = s; return pane(100)(s) })
		fmt.Println(seq)
		pause(ctx, time.Millisecond)
	}
	return nil
}

// holdStopped takes a lease, stops the whole process, and, when it goes on, tells whether it would act.
func holdStopped(ctx context.Context, todo task) error {
	l, err := Connect(*todo.Link)
	if err != nil {
		return err
	}
	return l.Lease(ctx, "webhook", time.Second, func(held context.Context) {
		fmt.Println("held", held.Err())
		last := time.Now()
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		for { // the signal may take its time
			t := time.Now()
			if t.Sub(last) >= 400*time.Millisecond {
				break
			}
			last = t
			runtime.Gosched()
		}
		fmt.Println("after", held.Err())
		<-held.Done()
	})
}

// A process is one that the test started.
type process struct {
	*exec.Cmd
	lines *bufio.Scanner
}

func spawn(t *testing.T, role string, todo task) *process {
	t.Helper()
	if todo.Link != nil {
		todo.Link.Log, todo.Link.Registerer = nil, nil
	}
	if todo.Server != nil {
		todo.Server.Log = (*zap.Logger)(nil)
	}
	text, err := json.Marshal(todo)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FLEET_TEST_CHILD="+role, "FLEET_TEST_TASK="+string(text))
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd, bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	return p
}

// line reads one line that the process wrote.
func (p *process) line(t *testing.T) string {
	t.Helper()
	hurry := time.AfterFunc(30*time.Second, func() { _ = p.Process.Kill() })
	defer hurry.Stop()
	if !p.lines.Scan() {
		t.Fatalf("the process ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

// kill ends the process by SIGKILL.
func (p *process) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
}

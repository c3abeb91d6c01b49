package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// childGrace is how long a killed child's output may stay open, by a process that it left behind.
const childGrace = 300 * time.Millisecond

// child runs journalctl and takes what it writes, until it ends or ctx does. The error is why the journal cannot be
// read, or a putError.
func (u *journalUnit) child(ctx context.Context, args []string) (err error) {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer r.Close()
	said := &complaint{}
	cmd := exec.CommandContext(ctx, u.cfg.Journalctl, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_COLORS=0")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = w, said, childGrace
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // with what it starts, and not by the terminal's ^C
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start journalctl: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	broken := u.read(r, said)
	if broken != nil {
		kill()
	}
	lingers := time.AfterFunc(childGrace, kill) // it has closed its output and has nothing to do any more
	defer lingers.Stop()
	ended := cmd.Wait()
	switch text := said.String(); {
	case broken != nil:
		return putError{broken}
	case barred(text):
		return errors.New(text + ": add the user to the group systemd-journal")
	case ended != nil && text != "":
		return fmt.Errorf("journalctl: %w: %s", ended, text)
	case ended != nil:
		return fmt.Errorf("journalctl: %w", ended)
	case strings.Contains(text, "No journal files"):
		return errors.New(text)
	}
	return nil
}

// read takes what the child writes until it closes its output. The error is emit's. A line without an end is not taken:
// the child was stopped within it, and the next one gives it again.
func (u *journalUnit) read(r *os.File, said *complaint) error {
	u.entries.reset()
	chunk, settled := make([]byte, 64<<10), false
	for {
		var until time.Time
		switch {
		case len(u.block) > 0:
			until = u.first.Add(journalBatch)
		case u.follows && !settled:
			until = u.rt.Now().Add(4 * u.rt.Poll)
		}
		r.SetReadDeadline(until) //nolint:errcheck // a closed pipe says so when it is read
		n, err := r.Read(chunk)
		if broken := u.entries.feed(chunk[:n], u.take); broken != nil {
			return broken
		}
		late := errors.Is(err, os.ErrDeadlineExceeded)
		ended := err != nil && !late
		waited := len(u.block) > 0 && u.rt.Now().Sub(u.first) >= journalBatch
		if waited || ended {
			if broken := u.flush(); broken != nil {
				return broken
			}
		}
		switch {
		case u.follows && late:
			settled = true
			u.setState(u.unit, "idle", "")
		case waited && !u.follows && said.String() == "": // it had time to complain
			u.setState(u.unit, "reading", "")
		}
		if ended {
			return nil
		}
	}
}

// complaint keeps the end of what journalctl says of errors.
type complaint struct {
	mu   sync.Mutex
	text []byte
}

const maxComplaint = 512 // bytes

// Write implements io.Writer.
func (c *complaint) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, p[max(0, len(p)-maxComplaint):]...)
	c.text = c.text[max(0, len(c.text)-maxComplaint):]
	return len(p), nil
}

// String gives it as one line.
func (c *complaint) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(bytes.Join(bytes.Fields(bytes.ToValidUTF8(c.text, []byte("?"))), []byte{' '}))
}

// barred tells whether journalctl was kept from the system's journal. It may succeed then: it shows what there is
// of the user's own.
func barred(text string) bool {
	return strings.Contains(text, "ermission") || strings.Contains(text, "not seeing messages")
}

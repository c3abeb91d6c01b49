package notify

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/squall-sre/squall/alerts"
)

// stdout writes each transition as a block for people or as a line of JSON.
type stdout struct {
	to      io.Writer
	add     func([]byte, *alerts.Alert) []byte
	writing *write // has not ended, or nobody saw its end
}

// write is one that may hang: whoever reads a pipe may have stopped to.
type write struct {
	of   string // the transitions that it tells
	done chan error
}

type stdoutConfig struct {
	Type   string `yaml:"type"`
	Format string `yaml:"format"` // text or json
}

func newStdout(decode func(any) error, rt Runtime) ([]Peer, error) {
	cfg := stdoutConfig{Format: "text"}
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	n := &stdout{to: rt.Stdout}
	if n.to == nil {
		n.to = os.Stdout
	}
	switch cfg.Format {
	case "text":
		n.add = alerts.AppendText
	case "json":
		n.add = alerts.AppendJSON
	default:
		return nil, fmt.Errorf("format %q is neither text nor json", cfg.Format)
	}
	return []Peer{{Name: rt.Name, Key: "stdout", Notifier: n}}, nil
}

// Notify implements alerts.Notifier. A write cannot be called back: one that outlasts ctx goes on, the next call
// waits for it, and the same transition is not written again.
func (n *stdout) Notify(ctx context.Context, batch []alerts.Alert) error {
	var text, of []byte
	for i := range batch {
		text = n.add(text, &batch[i])
		of = fmt.Appendf(of, "%s\x00%s\x00%d\n", identity(&batch[i]), batch[i].State, batch[i].StartsAt)
	}
	if n.writing != nil {
		again := n.writing.of == string(of)
		if err := n.await(ctx); err != nil || again {
			return err
		}
	}
	w := &write{string(of), make(chan error, 1)}
	n.writing = w
	go func() {
		_, err := n.to.Write(text)
		w.done <- err
	}()
	return n.await(ctx)
}

func (n *stdout) await(ctx context.Context) error {
	select {
	case err := <-n.writing.done:
		n.writing = nil
		return err
	case <-ctx.Done():
		return fmt.Errorf("write: %w", ctx.Err())
	}
}

// Resend implements alerts.Notifier: a line that was written stays.
func (n *stdout) Resend() time.Duration { return 0 }

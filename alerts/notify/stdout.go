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
	to  io.Writer
	add func([]byte, *alerts.Alert) []byte
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
	return []Peer{{Name: rt.Name, Notifier: n}}, nil
}

// Notify implements alerts.Notifier.
func (n *stdout) Notify(_ context.Context, batch []alerts.Alert) error {
	var out []byte
	for i := range batch {
		out = n.add(out, &batch[i])
	}
	_, err := n.to.Write(out)
	return err
}

// Resend implements alerts.Notifier: a line that was written stays.
func (n *stdout) Resend() time.Duration { return 0 }

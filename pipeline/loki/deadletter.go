package loki

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/grafana/loki/pkg/push"
)

const (
	maxDeadLetters = 16 << 20 // bytes of one file; the one before it is kept as .1
	maxDeadText    = 1 << 10  // bytes of an answer
)

// A deadLetter is one line of the dead-letter file.
type deadLetter struct {
	At       time.Time         `json:"at"`
	Reason   string            `json:"reason"`
	Status   int               `json:"status"`
	Answer   string            `json:"answer"`
	Labels   string            `json:"labels"`
	Time     string            `json:"time,omitempty"` // ns since the epoch, as Loki's API writes it
	Line     string            `json:"line,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// deadLetters keeps what Loki refused for people to look at. It belongs to one goroutine.
type deadLetters struct{ path string }

// write appends the entries of one stream and syncs: Loki will not see them again.
func (d *deadLetters) write(letter deadLetter, labels string, entries []push.Entry) (err error) {
	letter.Labels, letter.Answer = labels, cut(letter.Answer, maxDeadText)
	if info, err := os.Stat(d.path); err == nil && info.Size() >= maxDeadLetters {
		if err := os.Rename(d.path, d.path+".1"); err != nil {
			return fmt.Errorf("rotate the dead-letter file: %w", err)
		}
	}
	f, err := os.OpenFile(d.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("open the dead-letter file: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	enc := json.NewEncoder(f)
	enc.SetEscapeHTML(false)
	for _, e := range entries {
		letter.Time, letter.Line, letter.Metadata = fmt.Sprint(e.Timestamp.UnixNano()), e.Line, nil
		for _, m := range e.StructuredMetadata {
			if letter.Metadata == nil {
				letter.Metadata = map[string]string{}
			}
			letter.Metadata[m.Name] = m.Value
		}
		if err := enc.Encode(letter); err != nil {
			return fmt.Errorf("write the dead-letter file: %w", err)
		}
	}
	return f.Sync()
}

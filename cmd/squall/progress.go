package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// advance is how far a replay has come. It is written by those who read and read by who shows it.
type advance struct {
	files, looked atomic.Int64 // to look at, and looked at, before the first line is judged
	total         atomic.Int64 // bytes of the files; 0: not known
	read          atomic.Int64 // of them
	at            atomic.Int64 // ns of event time; 0 until known
}

// When progress is shown.
const (
	progressAuto   = "auto" // when standard error is a terminal, and only of what takes long
	progressAlways = "always"
	progressNever  = "never"

	progressPatience = 2 * time.Second        // before the first word
	progressEvery    = 250 * time.Millisecond // on a terminal, where it is drawn over
	progressLines    = 5 * time.Second        // elsewhere, where each is a line
)

// progress shows on standard error how far a replay has come. On a terminal it is one line that is drawn anew, and
// whatever else is written there, by way of Writer, stands above it.
type progress struct {
	out      io.Writer
	terminal bool
	advance  *advance
	began    time.Time

	mu     sync.Mutex
	drawn  bool // the line is on the terminal
	ended  bool
	beside []*besideProgress
}

// checkProgress refuses a word that is none of --progress.
func checkProgress(when string) error {
	switch when {
	case progressAuto, progressAlways, progressNever:
		return nil
	}
	return usageError(fmt.Errorf("--progress: %q: there are auto, always and never", when))
}

// newProgress gives nil where nothing is to be shown.
func newProgress(when string, out io.Writer, a *advance) *progress {
	terminal := isTerminal(out)
	if when == progressNever || when == progressAuto && !terminal {
		return nil
	}
	return &progress{out: out, terminal: terminal, advance: a, began: time.Now()}
}

// during shows the progress of what work does, until it is done. Nil shows nothing.
func (p *progress) during(ctx context.Context, work func(context.Context) error) error {
	if p == nil {
		return work(ctx)
	}
	shown, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); p.run(shown) }()
	defer func() { stop(); <-done }()
	return work(ctx)
}

// run shows it until ctx ends.
func (p *progress) run(ctx context.Context) {
	every := progressLines
	if p.terminal {
		every = progressEvery
	}
	wait := time.NewTimer(progressPatience)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			p.end()
			return
		case <-wait.C:
			p.show()
			wait.Reset(every)
		}
	}
}

func (p *progress) show() {
	text := p.advance.text(time.Since(p.began))
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal {
		_, _ = fmt.Fprintln(p.out, text)
		return
	}
	_, _ = fmt.Fprintf(p.out, "\r%s\x1b[K", text)
	p.drawn = true
}

// end takes the line away for good.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	p.ended = true
	for _, b := range p.beside {
		_, _ = b.w.Write(b.half) // an error comes with what is written next
		b.half = nil
	}
}

// wipe takes the line away. The caller holds mu.
func (p *progress) wipe() {
	if p.drawn {
		_, _ = io.WriteString(p.out, "\r\x1b[K")
		p.drawn = false
	}
}

// Writer gives a writer to a terminal that the line does not get in the way of; what is none is given back.
func (p *progress) Writer(w io.Writer) io.Writer {
	if p == nil || !p.terminal || !isTerminal(w) {
		return w
	}
	b := &besideProgress{p: p, w: w}
	p.beside = append(p.beside, b)
	return b
}

// besideProgress writes whole lines, while there is progress.
type besideProgress struct {
	p    *progress
	w    io.Writer
	half []byte // the beginning of a line
}

func (b *besideProgress) Write(text []byte) (int, error) {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	if b.p.ended {
		return b.w.Write(text)
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole == 0 {
		b.half = append(b.half, text...)
		return len(text), nil
	}
	b.p.wipe()
	_, err := b.w.Write(append(b.half, text[:whole]...))
	b.half = append([]byte(nil), text[whole:]...)
	return len(text), err
}

// text tells of the bytes, the rate and the time left.
func (a *advance) text(took time.Duration) string {
	total, read := a.total.Load(), a.read.Load()
	if n := a.files.Load(); read == 0 && n > 0 {
		return fmt.Sprintf("looked at %d of %d files", a.looked.Load(), n)
	}
	var b strings.Builder
	b.WriteString(binaryBytes(float64(read)))
	rate := float64(read) / max(took.Seconds(), 1e-3)
	if total > 0 {
		fmt.Fprintf(&b, " of %s (%.0f %%)", binaryBytes(float64(total)), min(100*float64(read)/float64(total), 100))
	}
	fmt.Fprintf(&b, ", %s/s", binaryBytes(rate))
	if rate > 0 && total > read {
		left := time.Duration(float64(total-read) / rate * 1e9)
		fmt.Fprintf(&b, ", %s left", left.Round(time.Second))
	}
	if at := a.at.Load(); at > 0 {
		fmt.Fprintf(&b, "; at %s", time.Unix(0, at).UTC().Format(time.RFC3339))
	}
	return b.String()
}

// binaryBytes writes a size as people read it.
func binaryBytes(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n >= 1024 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	if i == 0 || n >= 100 {
		return fmt.Sprintf("%.0f %s", n, units[i])
	}
	return fmt.Sprintf("%.1f %s", n, units[i])
}

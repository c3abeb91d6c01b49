package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// formatFlags are the flags that say what lines are.
type formatFlags struct{ format, logFormat, site string }

func (o *formatFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.format, "format", "auto", "`FORMAT` of the lines; auto finds out")
	f.StringVar(&o.logFormat, "log-format", "", "log_format `STRING` of nginx.conf")
	f.StringVar(&o.site, "site", "", "`NAME` of the site, for formats that log no host")
}

func (o *formatFlags) choose() (formatChoice, error) {
	name := o.format
	if o.logFormat != "" && name == "auto" {
		name = "nginx"
	}
	c, err := chooseFormat(name, func(v any) error {
		*v.(*formatSettings) = formatSettings{LogFormat: o.logFormat}
		return nil
	})
	if err != nil {
		return c, usageError(err)
	}
	return c, nil
}

// severities are ordered from the least urgent.
var severities = []alerts.Severity{alerts.Info, alerts.Warning, alerts.Page}

func severityRank(s string) (int, error) {
	i := slices.Index(severities, alerts.Severity(s))
	if i < 0 && s != "" {
		return 0, fmt.Errorf("severity %q: there are info, warning and page", s)
	}
	return i, nil
}

// transcript writes what a replay found: for people, or as JSON lines.
type transcript struct {
	out        *bufio.Writer
	close      func() error
	json       bool
	detections bool
	fired      map[alerts.Severity]int // alerts that began, by severity
	suppressed int                     // alerts that were held back
	line       []byte
}

func newTranscript(o replayOptions, stdout io.Writer) (*transcript, error) {
	t := &transcript{
		out: bufio.NewWriter(stdout), close: func() error { return nil },
		json: o.json != "", detections: o.detections, fired: map[alerts.Severity]int{},
	}
	if o.json != "" && o.json != "-" {
		f, err := os.Create(o.json)
		if err != nil {
			return nil, err
		}
		t.out, t.close = bufio.NewWriter(f), f.Close
	}
	return t, nil
}

// settled writes the transitions of one pane.
func (t *transcript) settled(res *detectors.Result, transitions []alerts.Alert) {
	if t.json && t.detections {
		for i := range res.Changes {
			t.line = alerts.AppendDetectionJSON(t.line[:0], res.At, &res.Changes[i])
			t.write(t.line)
		}
	}
	for i := range transitions {
		a := &transitions[i]
		switch a.State {
		case alerts.Firing:
			t.fired[a.Severity]++
		case alerts.Suppressed:
			t.suppressed++
		}
		if t.json {
			t.line = alerts.AppendJSON(t.line[:0], a)
		} else {
			t.line = append(alerts.AppendText(t.line[:0], a), '\n')
		}
		t.write(t.line)
	}
}

// write leaves an error to the end: bufio.Writer keeps it, and Flush returns it.
func (t *transcript) write(line []byte) {
	_, _ = t.out.Write(line)
}

// reached tells whether an alert of a severity, or a higher one, fired.
func (t *transcript) reached(severity string) bool {
	least, err := severityRank(severity)
	if err != nil {
		return false
	}
	for _, s := range severities[least:] {
		if t.fired[s] > 0 {
			return true
		}
	}
	return false
}

// summary is the last object of a transcript.
type summary struct {
	Lines      uint64                  `json:"lines"`
	Parsed     uint64                  `json:"parsed"`
	Failed     map[string]uint64       `json:"failed"`
	Late       uint64                  `json:"late"`
	First      *string                 `json:"first"`
	Last       *string                 `json:"last"`
	Gaps       []gap                   `json:"gaps"`
	Sources    []heard                 `json:"sources"`
	Alerts     map[alerts.Severity]int `json:"alerts"`
	Before     uint64                  `json:"before_since,omitempty"` // of the lines: what they told was learned from, not reported
	Suppressed int                     `json:"suppressed,omitempty"`   // times that an alert was held back
	Seconds    float64                 `json:"seconds"`                // that the replay took
	Bytes      int64                   `json:"bytes"`
}

// finish writes the summary and closes the transcript.
func (t *transcript) finish(total *tally, took time.Duration) error {
	s := summary{
		Lines: total.lines, Parsed: total.parsed, Failed: total.failed, Late: total.late,
		Gaps: slices.Clone(total.gaps), Sources: total.sources(), Alerts: t.fired, Suppressed: t.suppressed, Bytes: total.bytes, Before: total.before,
		Seconds: float64(took.Milliseconds()) / 1e3,
	}
	if s.Gaps == nil {
		s.Gaps = []gap{}
	}
	if total.first != 0 {
		first, last := formatTime(total.first), formatTime(total.last)
		s.First, s.Last = &first, &last
	}
	if t.json {
		line, err := json.Marshal(map[string]summary{"summary": s})
		if err != nil {
			return err
		}
		t.write(append(line, '\n'))
	} else {
		t.write([]byte(s.text()))
	}
	return errors.Join(t.out.Flush(), t.close())
}

// text is the summary for people.
func (s *summary) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d lines, %d bytes in %.1f s", s.Lines, s.Bytes, s.Seconds)
	if s.First != nil {
		fmt.Fprintf(&b, "; %s to %s", *s.First, *s.Last)
	}
	if s.Before > 0 {
		fmt.Fprintf(&b, "\n%d lines are of before --since: they taught what is usual", s.Before)
	}
	failed := uint64(0)
	for _, n := range s.Failed {
		failed += n
	}
	fmt.Fprintf(&b, "\n%d lines fit no format, %d came too late, %d gaps\n", failed, s.Late, len(s.Gaps))
	for _, h := range s.Sources {
		for _, q := range h.Silent {
			to := "the end"
			if q.To != nil {
				to = *q.To
			}
			fmt.Fprintf(&b, "%s told of no request from %s to %s: nobody asked, or lines are missing\n", alerts.Escape(h.Source), q.From, to)
		}
	}
	fmt.Fprintf(&b, "alerts: %d page, %d warning, %d info",
		s.Alerts[alerts.Page], s.Alerts[alerts.Warning], s.Alerts[alerts.Info])
	if s.Suppressed > 0 {
		fmt.Fprintf(&b, "; %d held back", s.Suppressed)
	}
	b.WriteByte('\n')
	return b.String()
}
